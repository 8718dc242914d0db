/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * journal: records of what died, made durable together.
 *
 *	journal_put --> queue --> commit: up to 16 blocks, one write a run of neighbours --> settled
 *
 * One commit is under way at a time: whatever is put meanwhile goes into the next, so that many
 * writers share a write. A block that isn't full stays in memory, and the next commit writes it
 * again with more, to another place than the one that holds what was acknowledged:
 *
 *	ring	... | full | full | part: 30 | part: 90 | ...
 *			   ^older, superseded  ^newest	-> the next goes over the older one
 *
 * Places are given out in the ring's order from head, and taken back from tail once every region
 * that their records could speak of is gone. Records of regions that can't be voided in their own
 * header stay for ever: before their place is taken back they are put again.
 */
#include "flash/internal.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define QUEUE_RECORDS 16384u /* a power of two */
#define COMMIT_BLOCKS 16u
#define COMMIT_TRIES 4
#define PINS_MAX 1024u
#define NO_PLACE UINT64_MAX
#define PIN_BIT (1ull << 63) /* of a place's position: a record that must stay is in it */

struct run {
	struct write write;
	uint32_t first, count; /* of the commit's blocks */
};

struct journal {
	pthread_mutex_t mutex; /* over queue, put, taken, pins */
	struct flash_record *queue;
	_Atomic uint64_t put, taken; /* records; a ticket is 'put' after its record */
	struct flash_record pins[PINS_MAX];
	uint32_t pin_count;

	_Atomic uint64_t settled; /* records up to this ticket are durable */
	_Atomic bool failed;
	_Atomic bool busy;     /* somebody found the queue full */
	_Atomic uint64_t used; /* places between tail and head */
	_Atomic uint64_t records, commits, blocks_written;

	/* The flash thread's. Places are counted on; place p of the ring is p modulo its blocks. */
	uint32_t block_count;
	uint64_t *positions; /* of each place: the largest of its records', 0: void */
	uint64_t head, tail;
	uint64_t number;       /* of the last block written */
	uint64_t repin;	       /* ticket that the place at tail waits for, 0: none */
	uint64_t place, spare; /* of the block that isn't full: its newest copy, and the other */
	struct flash_journal_block *blocks; /* of the commit; blocks[0] goes on from the last one */
	uint64_t places[COMMIT_BLOCKS];	    /* where they go */
	uint32_t count;			    /* blocks of the commit under way, 0: none */
	uint64_t ticket;
	struct run runs[COMMIT_BLOCKS];
	uint32_t runs_under_way;
	bool run_failed;
	unsigned tries;
};

bool
journal_create(struct flash *flash)
{
	struct journal *journal = calloc(1, sizeof *journal);

	if (journal == NULL)
		return false;
	flash->journal = journal;
	pthread_mutex_init(&journal->mutex, NULL);
	journal->block_count = super_journal_blocks(flash);
	journal->queue = calloc(QUEUE_RECORDS, sizeof *journal->queue);
	journal->positions = calloc(journal->block_count, sizeof *journal->positions);
	journal->blocks = aligned_alloc(FLASH_BLOCK, (size_t)COMMIT_BLOCKS * FLASH_BLOCK);
	journal->place = journal->spare = NO_PLACE;
	if (journal->queue == NULL || journal->positions == NULL || journal->blocks == NULL)
		return false;
	memset(journal->blocks, 0, (size_t)COMMIT_BLOCKS * FLASH_BLOCK);
	return true;
}

void
journal_destroy(struct flash *flash)
{
	struct journal *journal = flash->journal;

	if (journal == NULL)
		return;
	free(journal->queue);
	free(journal->positions);
	free(journal->blocks);
	pthread_mutex_destroy(&journal->mutex);
	free(journal);
	flash->journal = NULL;
}

/* --- recovery ----------------------------------------------------------------------------- */

void
journal_found(struct flash *flash, uint32_t place, uint64_t number, uint64_t position)
{
	struct journal *journal = flash->journal;

	/* A block without a position speaks of nothing. */
	journal->positions[place] = position;
	if (number > journal->number)
		journal->number = number;
}

/*
 * Goes on at the longest run of void places: nearly always behind the newest block, whose older copy
 * may stand on either side of it.
 */
void
journal_start(struct flash *flash, uint64_t oldest)
{
	struct journal *journal = flash->journal;
	uint32_t count = journal->block_count, run = 0, longest = 0, end = 0;

	/* Twice round, for a run over the ring's end. */
	for (uint32_t i = 0; i < 2 * count && run < count; i++) {
		run = journal->positions[i % count] < oldest ? run + 1 : 0;
		if (run > longest) {
			longest = run;
			end = i + 1;
		}
	}
	journal->tail = end;
	journal->head = (uint64_t)end + count - longest;
	for (uint64_t place = journal->head; place < journal->tail + count; place++)
		journal->positions[place % count] = 0;
	atomic_store_explicit(&journal->used, journal->head - journal->tail, memory_order_relaxed);
}

/* --- putting ------------------------------------------------------------------------------ */

/* By the mutex. 0: no room. */
static uint64_t
queue_put(struct journal *journal, struct flash_record record)
{
	uint64_t put = atomic_load_explicit(&journal->put, memory_order_relaxed);

	if (put - atomic_load_explicit(&journal->taken, memory_order_relaxed) == QUEUE_RECORDS) {
		atomic_store(&journal->busy, true);
		return 0;
	}
	journal->queue[put % QUEUE_RECORDS] = record;
	atomic_store_explicit(&journal->put, put + 1, memory_order_release);
	return put + 1;
}

static bool
kind_stays(uint64_t kind)
{
	return kind == FLASH_RECORD_REGION || kind == FLASH_RECORD_NUMBER;
}

/* Keeps a record for good. False: too many. */
static bool
pin(struct journal *journal, enum flash_record_kind kind, uint64_t what)
{
	if (journal->pin_count == PINS_MAX)
		return false;
	journal->pins[journal->pin_count++] =
		(struct flash_record){.what = what, .kind_position = (uint64_t)kind << 56};
	return true;
}

/* *position: what it covers. */
static uint64_t
put_record(struct flash *flash, enum flash_record_kind kind, uint64_t what, uint64_t *position)
{
	struct journal *journal = flash->journal;
	bool pinned = true;

	if (atomic_load_explicit(&journal->failed, memory_order_acquire))
		return UINT64_MAX;
	*position = atomic_load_explicit(&flash->tail, memory_order_acquire);
	pthread_mutex_lock(&journal->mutex);
	uint64_t ticket =
		queue_put(journal, (struct flash_record){.what = what,
					   .kind_position = (uint64_t)kind << 56 | *position});

	if (ticket != 0 && kind_stays(kind))
		pinned = pin(journal, kind, what);
	pthread_mutex_unlock(&journal->mutex);
	if (!pinned)
		flash_void(flash, "too many regions cannot be written");
	flash_wake(flash);
	return ticket;
}

uint64_t
journal_put(struct flash *flash, enum flash_record_kind kind, uint64_t what)
{
	uint64_t position;

	return put_record(flash, kind, what, &position);
}

enum flash_durable
journal_settled(const struct flash *flash, uint64_t ticket)
{
	const struct journal *journal = flash->journal;

	if (ticket == UINT64_MAX)
		return FLASH_NEVER;
	if (atomic_load_explicit(&journal->settled, memory_order_acquire) >= ticket)
		return FLASH_DURABLE;
	return atomic_load_explicit(&journal->failed, memory_order_acquire) ? FLASH_NEVER
									    : FLASH_NOT_YET;
}

bool
journal_is_quiet(const struct flash *flash)
{
	const struct journal *journal = flash->journal;

	return atomic_load(&journal->settled) == atomic_load(&journal->put);
}

bool
journal_wants_room(const struct flash *flash)
{
	const struct journal *journal = flash->journal;

	return atomic_load_explicit(&journal->used, memory_order_relaxed) >
	       (uint64_t)journal->block_count * 3 / 4;
}

/* --- what a change of a key asks ---------------------------------------------------------- */

/* Kept in an intent instead of a tail: this place alone. */
#define COVERS_PLACE (1ull << 63)

static bool
covers(const struct flash_intent *intent, enum flash_record_kind kind, uint64_t position)
{
	if (intent->ticket == 0)
		return false;
	if (kind == FLASH_RECORD_PLACE)
		return intent->covers == (position | COVERS_PLACE);
	return !(intent->covers & COVERS_PLACE) && position < intent->covers;
}

/* Nothing on flash is believed again once that is durable. */
static enum flash_durable
void_state(const struct flash *flash)
{
	return super_void_settled(flash) ? FLASH_DURABLE : FLASH_NEVER;
}

enum flash_durable
flash_invalidate(struct flash *flash, enum flash_record_kind kind, uint64_t what, uint64_t position,
	struct flash_intent *intent)
{
	enum flash_durable settled;
	uint64_t tail;

	if (position == 0 || flash->options.journal == FLASH_JOURNAL_OFF)
		return FLASH_DURABLE;
	if (!flash_alive(flash))
		return void_state(flash);
	if (!covers(intent, kind, position)) {
		intent->ticket = put_record(flash, kind, what, &tail);
		if (intent->ticket == UINT64_MAX) {
			intent->ticket = 0;
			return void_state(flash);
		}
		intent->covers = kind == FLASH_RECORD_PLACE ? position | COVERS_PLACE : tail;
		/* Without room even the asynchronous journal waits: what isn't put is no record. */
		if (intent->ticket == 0)
			return FLASH_NOT_YET;
	}
	if (flash->options.journal == FLASH_JOURNAL_ASYNC)
		return FLASH_DURABLE;
	settled = journal_settled(flash, intent->ticket);
	return settled == FLASH_NEVER ? void_state(flash) : settled;
}

bool
flash_intent_settled(const struct flash *flash, const struct flash_intent *intent)
{
	const struct journal *journal = flash->journal;

	if (intent->flush)
		return flash_flushed(flash, intent) != FLASH_NOT_YET;
	if (!flash_alive(flash))
		return true;
	if (intent->ticket != 0)
		return journal_settled(flash, intent->ticket) != FLASH_NOT_YET;
	return atomic_load_explicit(&journal->put, memory_order_relaxed) -
		       atomic_load_explicit(&journal->taken, memory_order_relaxed) <
	       QUEUE_RECORDS;
}

/* --- places ------------------------------------------------------------------------------- */

static uint64_t *
position_at(struct journal *journal, uint64_t place)
{
	return &journal->positions[place % journal->block_count];
}

/* Puts what stays once more. The ticket of the last, 0: no room. */
static uint64_t
put_pins(struct flash *flash)
{
	struct journal *journal = flash->journal;
	uint64_t tail = atomic_load_explicit(&flash->tail, memory_order_acquire), ticket = 0;

	pthread_mutex_lock(&journal->mutex);
	uint64_t room = QUEUE_RECORDS - (atomic_load(&journal->put) - atomic_load(&journal->taken));

	for (uint32_t i = 0; i < journal->pin_count && journal->pin_count <= room; i++) {
		struct flash_record record = journal->pins[i];

		record.kind_position |= tail;
		ticket = queue_put(journal, record);
	}
	pthread_mutex_unlock(&journal->mutex);
	return ticket;
}

/* Takes places back that nothing needs any more. */
static void
sweep(struct flash *flash)
{
	struct journal *journal = flash->journal;
	uint64_t oldest = flash_position_make(log_oldest_sequence(flash), 0);

	for (; journal->tail < journal->head; journal->tail++) {
		uint64_t *position = position_at(journal, journal->tail);

		if (journal->tail == journal->place || journal->tail == journal->spare)
			break;
		if ((*position & ~PIN_BIT) >= oldest && *position != 0)
			break;
		if (*position & PIN_BIT) {
			if (journal->repin == 0)
				journal->repin = put_pins(flash);
			if (journal->repin == 0 ||
				journal_settled(flash, journal->repin) != FLASH_DURABLE)
				break;
			journal->repin = 0;
		}
		*position = 0;
	}
	atomic_store_explicit(&journal->used, journal->head - journal->tail, memory_order_relaxed);
}

static uint64_t
places_left(const struct journal *journal)
{
	return journal->block_count - (journal->head - journal->tail);
}

/* --- commits ------------------------------------------------------------------------------ */

static void run_done(struct flash *flash, struct write *write, int result);

/* Writes the commit's blocks from 'first' on, 'count' of them, one write for each neighbours. */
static void
write_runs(struct flash *flash)
{
	struct journal *journal = flash->journal;
	uint32_t runs = 0;

	for (uint32_t first = 0, end; first < journal->count; first = end) {
		struct run *run = &journal->runs[runs++];
		uint64_t place = journal->places[first] % journal->block_count;

		for (end = first + 1;
			end < journal->count &&
			journal->places[end] % journal->block_count == place + (end - first);
			end++)
			;
		run->first = first;
		run->count = end - first;
		run->write.request = (struct io_request){.op = IO_WRITE,
			.durable = true,
			.buffer = -1,
			.size = run->count * FLASH_BLOCK,
			.offset = FLASH_DATA_OFFSET + place * FLASH_BLOCK,
			.data = &journal->blocks[first]};
		run->write.done = run_done;
		run->write.context = run;
	}
	journal->runs_under_way = runs;
	journal->run_failed = false;
	for (uint32_t i = 0; i < runs; i++)
		writer_submit(flash, &journal->runs[i].write);
}

static uint64_t
block_position(const struct flash_journal_block *block)
{
	uint64_t stays = 0;

	for (uint32_t i = 0; i < block->count; i++)
		if (kind_stays(block->records[i].kind_position >> 56))
			stays = PIN_BIT;
	return block->position | stays;
}

/* The last block stays for the next commit, when it has room. */
static void
carry_last(struct journal *journal)
{
	struct flash_journal_block *last = &journal->blocks[journal->count - 1];
	uint64_t place = journal->places[journal->count - 1];
	/* A place that lies behind would hold up the ring's tail: it is let go. */
	uint64_t older = journal->count == 1 ? journal->place : NO_PLACE;

	if (last->count == FLASH_JOURNAL_RECORDS) {
		journal->place = journal->spare = NO_PLACE;
		memset(journal->blocks, 0, FLASH_BLOCK);
		if (older != NO_PLACE && older > place)
			journal->spare = older;
		return;
	}
	if (last != journal->blocks)
		memcpy(journal->blocks, last, FLASH_BLOCK);
	journal->spare = older;
	journal->place = place;
}

static void
commit_settled(struct flash *flash)
{
	struct journal *journal = flash->journal;

	/* The first block's older copy has been superseded. */
	if (journal->place != NO_PLACE)
		*position_at(journal, journal->place) = 0;
	for (uint32_t i = 0; i < journal->count; i++)
		*position_at(journal, journal->places[i]) = block_position(&journal->blocks[i]);
	atomic_fetch_add_explicit(&journal->blocks_written, journal->count, memory_order_relaxed);
	atomic_fetch_add_explicit(&journal->commits, 1, memory_order_relaxed);
	carry_last(journal);
	journal->count = 0;
	atomic_store_explicit(&journal->settled, journal->ticket, memory_order_release);
	if (flash->options.wake != NULL)
		flash->options.wake(flash->options.wake_context);
}

/* Elsewhere, as far as there is room: the blocks may be bad. */
static void
commit_again(struct flash *flash)
{
	struct journal *journal = flash->journal;

	if (++journal->tries >= COMMIT_TRIES) {
		/* count stays: nothing is written any more. */
		atomic_store_explicit(&journal->failed, true, memory_order_release);
		flash_void(flash, "the journal cannot be written");
		return;
	}
	if (journal->tries >= 2 && places_left(journal) >= journal->count)
		for (uint32_t i = 0; i < journal->count; i++)
			journal->places[i] = journal->head++;
	write_runs(flash);
}

static void
run_done(struct flash *flash, struct write *write, int result)
{
	struct journal *journal = flash->journal;

	(void)write;
	if (result != 0)
		journal->run_failed = true;
	if (--journal->runs_under_way > 0)
		return;
	if (journal->run_failed)
		commit_again(flash);
	else
		commit_settled(flash);
}

/* Moves records from the queue into the block; by the mutex. */
static void
fill_block(struct flash *flash, struct flash_journal_block *block)
{
	struct journal *journal = flash->journal;
	uint64_t put = atomic_load_explicit(&journal->put, memory_order_relaxed);
	uint64_t taken = atomic_load_explicit(&journal->taken, memory_order_relaxed);

	for (; taken < put && block->count < FLASH_JOURNAL_RECORDS; taken++) {
		struct flash_record record = journal->queue[taken % QUEUE_RECORDS];
		uint64_t position = record.kind_position & FLASH_POSITION_MAX;

		block->records[block->count++] = record;
		if (position > block->position)
			block->position = position;
	}
	atomic_store_explicit(&journal->taken, taken, memory_order_relaxed);
}

/* Takes what is queued into blocks, as many as there are places for. Gives how many. */
static uint32_t
commit_fill(struct flash *flash)
{
	struct journal *journal = flash->journal;
	uint32_t count = 0;

	pthread_mutex_lock(&journal->mutex);
	while (count < COMMIT_BLOCKS && atomic_load(&journal->taken) < atomic_load(&journal->put)) {
		struct flash_journal_block *block = &journal->blocks[count];

		if (count == 0 && journal->spare != NO_PLACE)
			journal->places[0] = journal->spare;
		else if (places_left(journal) > 0)
			journal->places[count] = journal->head++;
		else
			break;
		if (count > 0)
			memset(block, 0, FLASH_BLOCK);
		fill_block(flash, block);
		count++;
	}
	journal->ticket = atomic_load(&journal->taken);
	pthread_mutex_unlock(&journal->mutex);
	return count;
}

static void
commit(struct flash *flash)
{
	struct journal *journal = flash->journal;
	uint64_t before = atomic_load(&journal->taken);

	journal->count = commit_fill(flash);
	if (journal->count == 0)
		return;
	for (uint32_t i = 0; i < journal->count; i++) {
		struct flash_journal_block *block = &journal->blocks[i];

		block->magic = FLASH_JOURNAL_MAGIC;
		block->number = ++journal->number;
		layout_journal_seal(block, flash->id);
	}
	atomic_fetch_add_explicit(
		&journal->records, journal->ticket - before, memory_order_relaxed);
	journal->tries = 0;
	write_runs(flash);
	/* Whoever found the queue full. */
	if (atomic_load_explicit(&journal->busy, memory_order_relaxed) &&
		atomic_exchange(&journal->busy, false) && flash->options.wake != NULL)
		flash->options.wake(flash->options.wake_context);
}

bool
journal_work(struct flash *flash, uint64_t now_ns)
{
	struct journal *journal = flash->journal;

	(void)now_ns;
	if (journal->count > 0 || atomic_load_explicit(&journal->failed, memory_order_relaxed))
		return false;
	sweep(flash);
	if (atomic_load_explicit(&journal->taken, memory_order_relaxed) !=
		atomic_load_explicit(&journal->put, memory_order_acquire))
		commit(flash);
	return false;
}

void
journal_stats(const struct flash *flash, struct flash_stats *stats)
{
	const struct journal *journal = flash->journal;

	stats->journal_blocks = journal->block_count;
	stats->journal_used = atomic_load_explicit(&journal->used, memory_order_relaxed);
	stats->journal_records = atomic_load_explicit(&journal->records, memory_order_relaxed);
	stats->journal_commits = atomic_load_explicit(&journal->commits, memory_order_relaxed);
	stats->journal_bytes =
		atomic_load_explicit(&journal->blocks_written, memory_order_relaxed) * FLASH_BLOCK;
	stats->memory_bytes += sizeof *journal + QUEUE_RECORDS * sizeof *journal->queue +
			       journal->block_count * sizeof *journal->positions +
			       (uint64_t)COMMIT_BLOCKS * FLASH_BLOCK;
}
