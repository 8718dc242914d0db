/* SPDX-License-Identifier: BSD-2-Clause */
#include "flash/replay.h"
#include "flash/replay_table.h"

#include "base/check.h"
#include "base/pages.h"
#include "store/item_hd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (1u << 20)
#define PIECES 8 /* of a stream under way */
#define HEADERS 32
#define GUESS_FIRST (64u << 10)
#define PASSES_MAX 64u /* the index has so many buckets at least: see replay_items */
#define TABLE_LEAST (1ull << 20)
#define TORN_REACH 34u /* twice a commit's blocks, and two */
#define AHEAD 24       /* entries that are looked up before their turn */

/* --- streams: reads in order, several under way ------------------------------------------- */

struct piece {
	struct write write;
	uint8_t *data;
	int result;
};

struct stream {
	struct flash *flash;
	struct piece pieces[HEADERS];
	uint8_t *area;
	uint32_t count, piece_bytes;
	/* What the n-th read is. */
	void (*locate)(void *context, uint32_t n, struct io_request *request);
	/* In order. false: stop. */
	bool (*consume)(void *context, uint32_t n, const struct io_request *request, int result);
	void *context;
};

static void
piece_done(struct flash *flash, struct write *write, int result)
{
	(void)flash;
	((struct piece *)write->context)->result = result;
}

static void
piece_submit(struct stream *stream, uint32_t n)
{
	struct piece *piece = &stream->pieces[n % stream->count];

	piece->write.request =
		(struct io_request){.op = IO_READ, .buffer = -1, .data = piece->data};
	stream->locate(stream->context, n, &piece->write.request);
	check(piece->write.request.size <= stream->piece_bytes);
	piece->write.done = piece_done;
	piece->write.context = piece;
	writer_submit(stream->flash, &piece->write);
}

/* false: stopped, or the device is silent (then the stream is lost to it). */
static bool
stream_run(struct replay *replay, struct stream *stream, uint32_t total)
{
	uint32_t submitted = 0, n = 0;
	bool more = true;

	for (; n < total && more; n++) {
		struct piece *piece = &stream->pieces[n % stream->count];

		while (submitted < total && submitted < n + stream->count)
			piece_submit(stream, submitted++);
		if (!writer_finish(stream->flash, &piece->write)) {
			replay->silent = true;
			return false;
		}
		more = stream->consume(stream->context, n, &piece->write.request, piece->result);
	}
	for (; n < submitted; n++)
		if (!writer_finish(stream->flash, &stream->pieces[n % stream->count].write)) {
			replay->silent = true;
			return false;
		}
	return more;
}

static struct stream *
stream_make(struct replay *replay, uint32_t count, uint32_t piece_bytes)
{
	struct stream *stream = calloc(1, sizeof *stream);

	if (stream == NULL)
		return NULL;
	stream->flash = replay->flash;
	stream->count = count;
	stream->piece_bytes = piece_bytes;
	stream->context = replay;
	stream->area = pages_reserve((size_t)count * piece_bytes, FLASH_BLOCK);
	if (stream->area == NULL) {
		free(stream);
		return NULL;
	}
	for (uint32_t i = 0; i < count; i++)
		stream->pieces[i].data = stream->area + (size_t)i * piece_bytes;
	return stream;
}

static void
stream_end(const struct replay *replay, struct stream *stream)
{
	if (replay->silent)
		return;
	pages_release(stream->area, (size_t)stream->count * stream->piece_bytes);
	free(stream);
}

/* --- making and ending -------------------------------------------------------------------- */

bool
replay_begin(struct replay *replay, struct flash *flash)
{
	*replay = (struct replay){.flash = flash, .footer_guess = GUESS_FIRST, .passes = 1};
	replay->regions = calloc(flash->region_count, sizeof *replay->regions);
	replay->order = calloc(flash->region_count, sizeof *replay->order);
	replay->body = pages_reserve(flash->region_bytes, FLASH_BLOCK);
	replay->footer = pages_reserve(flash->region_bytes, FLASH_BLOCK);
	return replay->regions != NULL && replay->order != NULL && replay->body != NULL &&
	       replay->footer != NULL;
}

void
replay_end(struct replay *replay)
{
	free(replay->regions);
	free(replay->order);
	table_end(replay->keys);
	table_end(replay->places);
	if (replay->silent)
		return;
	if (replay->body != NULL)
		pages_release(replay->body, replay->flash->region_bytes);
	if (replay->footer != NULL)
		pages_release(replay->footer, replay->flash->region_bytes);
}

void
replay_judge_by(struct replay *replay, const struct flash_super *found)
{
	replay->void_below = found->void_below > found->unjournaled_below
				     ? found->void_below
				     : found->unjournaled_below;
	replay->flush_position = found->flush_position;
	replay->expired_below = found->expired_below;
	replay->expired_s = found->expired_s;
}

/* --- survey ------------------------------------------------------------------------------- */

static bool
is_zero(const uint8_t *at, size_t bytes)
{
	return at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0;
}

static void
header_locate(void *context, uint32_t n, struct io_request *request)
{
	const struct replay *replay = context;
	const struct region *region = &replay->flash->regions[n];

	request->file = region->file;
	request->offset = region->base;
	request->size = FLASH_BLOCK;
}

static bool
header_read(void *context, uint32_t n, const struct io_request *request, int result)
{
	static const uint8_t of_kind[] = {
		[FLASH_REGION_DATA] = REPLAY_DATA,
		[FLASH_REGION_SNAPSHOT] = REPLAY_SNAPSHOT,
		[FLASH_REGION_FREE] = REPLAY_FREE,
	};
	struct replay *replay = context;
	struct replay_region *region = &replay->regions[n];
	const struct flash_region_header *header = request->data;

	if (result != 0) {
		region->header = REPLAY_UNREADABLE;
		return true;
	}
	if (!layout_region_valid(header, replay->flash->id)) {
		region->damaged = !is_zero(request->data, FLASH_BLOCK);
		return true;
	}
	region->header = of_kind[header->kind];
	region->sequence = header->sequence;
	region->opened_s = header->opened_s;
	if (header->sequence > replay->sequence_max)
		replay->sequence_max = header->sequence;
	if (region->header == REPLAY_DATA)
		replay->order[replay->order_count++] = n;
	return true;
}

static void
trailer_locate(void *context, uint32_t n, struct io_request *request)
{
	const struct replay *replay = context;
	const struct region *region = &replay->flash->regions[replay->order[n]];

	request->file = region->file;
	request->offset = region->base + replay->flash->region_bytes - FLASH_BLOCK;
	request->size = FLASH_BLOCK;
}

static const struct flash_footer *
footer_at_end(const uint8_t *data, uint32_t bytes)
{
	return (const void *)(data + bytes - sizeof(struct flash_footer));
}

static bool
trailer_read(void *context, uint32_t n, const struct io_request *request, int result)
{
	struct replay *replay = context;
	struct replay_region *region = &replay->regions[replay->order[n]];
	const struct flash_footer *footer = footer_at_end(request->data, FLASH_BLOCK);

	if (result != 0 || footer->magic != FLASH_FOOTER_MAGIC ||
		footer->sequence != region->sequence) {
		region->damaged = result != 0;
		return true;
	}
	region->sealed = layout_footer_valid(
		footer, replay->flash->region_bytes, replay->flash->id, region->sequence);
	region->damaged = !region->sealed;
	if (region->sealed) {
		region->entries = footer->entries;
		region->used = footer->used;
		replay->entries += footer->entries;
	}
	return true;
}

static int
compare_sequences(const void *a, const void *b, void *context)
{
	const struct replay_region *regions = context;
	uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

	if (regions[left].sequence != regions[right].sequence)
		return regions[left].sequence < regions[right].sequence ? -1 : 1;
	return left < right ? -1 : left > right;
}

/* Sorted; what shares a sequence with another can't be told from it, and both are left out. */
static void
put_in_order(struct replay *replay)
{
	uint32_t kept = 0;

	qsort_r(replay->order, replay->order_count, sizeof *replay->order, compare_sequences,
		replay->regions);
	for (uint32_t i = 0; i < replay->order_count; i++) {
		struct replay_region *region = &replay->regions[replay->order[i]];

		if ((i > 0 && replay->regions[replay->order[i - 1]].sequence == region->sequence) ||
			(i + 1 < replay->order_count &&
				replay->regions[replay->order[i + 1]].sequence == region->sequence))
			region->dead = region->damaged = true;
	}
	for (uint32_t i = 0; i < replay->order_count; i++)
		if (!replay->regions[replay->order[i]].dead)
			replay->order[kept++] = replay->order[i];
	replay->order_count = kept;
}

bool
replay_survey(struct replay *replay)
{
	struct stream *stream = stream_make(replay, HEADERS, FLASH_BLOCK);

	if (stream == NULL)
		return false;
	stream->locate = header_locate;
	stream->consume = header_read;
	bool read = stream_run(replay, stream, replay->flash->region_count);

	if (read) {
		put_in_order(replay);
		stream->locate = trailer_locate;
		stream->consume = trailer_read;
		read = stream_run(replay, stream, replay->order_count);
	}
	stream_end(replay, stream);
	return read;
}

uint32_t
replay_region_of(const struct replay *replay, uint64_t sequence)
{
	uint32_t low = 0, high = replay->order_count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (replay->regions[replay->order[middle]].sequence < sequence)
			low = middle + 1;
		else
			high = middle;
	}
	return low < replay->order_count && replay->regions[replay->order[low]].sequence == sequence
		       ? replay->order[low]
		       : UINT32_MAX;
}

/* --- journal ------------------------------------------------------------------------------ */

struct ring {
	struct replay *replay;
	void (*found)(struct flash *flash, uint32_t place, uint64_t number, uint64_t position);
	void (*record)(struct replay *replay, const struct flash_record *record);
	uint32_t blocks;
};

static void
ring_locate(void *context, uint32_t n, struct io_request *request)
{
	const struct ring *ring = context;
	uint64_t bytes = (uint64_t)ring->blocks * FLASH_BLOCK - (uint64_t)n * PIECE_BYTES;

	request->file = 0;
	request->offset = FLASH_DATA_OFFSET + (uint64_t)n * PIECE_BYTES;
	request->size = bytes < PIECE_BYTES ? (uint32_t)bytes : PIECE_BYTES;
}

static void
ring_torn(struct replay *replay, uint32_t place, const void *block)
{
	if (is_zero(block, FLASH_BLOCK))
		return;
	if (replay->torn_count < REPLAY_TORN_MAX)
		replay->torn[replay->torn_count++] = place;
	else
		replay->journal_damaged = true;
}

static void
ring_block(struct ring *ring, uint32_t place, const struct flash_journal_block *block)
{
	struct replay *replay = ring->replay;

	if (!layout_journal_valid(block, replay->flash->id)) {
		if (ring->found != NULL)
			ring_torn(replay, place, block);
		return;
	}
	if (ring->found != NULL) {
		uint64_t position = block->position;

		if (block->number > replay->journal_number) {
			replay->journal_number = block->number;
			replay->journal_place = place;
		}

		replay->journal_valid++;
		replay->journal_records += block->count;
		if (flash_position_sequence(position) > replay->sequence_max)
			replay->sequence_max = flash_position_sequence(position);
		ring->found(replay->flash, place, block->number, position);
	}
	for (uint32_t i = 0; i < block->count; i++)
		ring->record(replay, &block->records[i]);
}

static bool
ring_read(void *context, uint32_t n, const struct io_request *request, int result)
{
	struct ring *ring = context;
	struct replay *replay = ring->replay;
	uint32_t first = n * (PIECE_BYTES / FLASH_BLOCK);

	if (result == 0) {
		for (uint32_t i = 0; i < request->size / FLASH_BLOCK; i++)
			ring_block(ring, first + i,
				(const void *)((const uint8_t *)request->data +
					       (size_t)i * FLASH_BLOCK));
		return true;
	}

	/* Block by block: only those that can't be read are lost. */
	for (uint32_t i = 0; i < request->size / FLASH_BLOCK; i++) {
		int again = writer_run(replay->flash, IO_READ, 0,
			request->offset + (uint64_t)i * FLASH_BLOCK, request->data, FLASH_BLOCK,
			false);

		if (again == -ETIMEDOUT) {
			replay->silent = true;
			return false;
		}
		if (again != 0)
			replay->journal_damaged = true;
		else
			ring_block(ring, first + i, request->data);
	}
	return true;
}

static bool
read_ring(struct ring *ring)
{
	struct replay *replay = ring->replay;
	struct stream *stream = stream_make(replay, PIECES, PIECE_BYTES);

	if (stream == NULL)
		return false;
	ring->blocks = super_journal_blocks(replay->flash);
	stream->context = ring;
	stream->locate = ring_locate;
	stream->consume = ring_read;

	uint64_t bytes = (uint64_t)ring->blocks * FLASH_BLOCK;
	bool read = stream_run(replay, stream, (uint32_t)((bytes + PIECE_BYTES - 1) / PIECE_BYTES));

	stream_end(replay, stream);
	return read;
}

static uint32_t
record_kind(const struct flash_record *record)
{
	return (uint32_t)(record->kind_position >> 56);
}

static uint64_t
record_position(const struct flash_record *record)
{
	return record->kind_position & FLASH_POSITION_MAX;
}

static uint64_t
oldest_position(const struct replay *replay)
{
	return replay->order_count > 0
		       ? flash_position_make(replay->regions[replay->order[0]].sequence, 0)
		       : UINT64_MAX;
}

/* Those that records void count: their headers don't say so yet. */
uint64_t
replay_journal_oldest(const struct replay *replay)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < replay->flash->region_count; i++) {
		const struct replay_region *region = &replay->regions[i];
		uint64_t position = flash_position_make(region->sequence, 0);

		if (region->header == REPLAY_UNREADABLE)
			return 0;
		if (region->header == REPLAY_DATA && position < oldest)
			oldest = position;
	}
	return oldest;
}

/* The first reading: what is about regions, and how much there is of the rest. */
static void
record_count(struct replay *replay, const struct flash_record *record)
{
	uint32_t region;

	switch (record_kind(record)) {
	case FLASH_RECORD_KEY:
		replay->key_records += record_position(record) > oldest_position(replay);
		break;
	case FLASH_RECORD_PLACE:
		replay->place_records +=
			replay_region_of(replay, flash_position_sequence(record->what)) !=
			UINT32_MAX;
		break;
	case FLASH_RECORD_REGION:
		region = replay_region_of(replay, record->what);
		if (region != UINT32_MAX)
			replay->regions[region].dead = true;
		break;
	case FLASH_RECORD_NUMBER:
		if (record->what >= replay->flash->region_count)
			break;
		if (flash_position_sequence(record_position(record)) >
			replay->regions[record->what].void_below)
			replay->regions[record->what].void_below =
				flash_position_sequence(record_position(record));
		break;
	}
}

static uint64_t
memory_for_tables(const struct replay *replay)
{
	uint64_t quarter = replay->flash->options.memory_bytes / 4;

	return quarter > TABLE_LEAST ? quarter : TABLE_LEAST;
}

static void
found_nothing(struct flash *flash, uint32_t place, uint64_t number, uint64_t position)
{
	(void)flash;
	(void)place;
	(void)number;
	(void)position;
}

/* Are they all where a crash leaves such? */
static void
judge_torn(struct replay *replay, uint32_t blocks)
{
	for (uint32_t i = 0; i < replay->torn_count; i++) {
		uint32_t behind = (replay->torn[i] + blocks - replay->journal_place) % blocks;

		if (behind > TORN_REACH && blocks - behind > TORN_REACH)
			replay->journal_damaged = true;
	}
}

bool
replay_journal(struct replay *replay,
	void (*found)(struct flash *flash, uint32_t place, uint64_t number, uint64_t position))
{
	struct ring ring = {.replay = replay,
		.found = found != NULL ? found : found_nothing,
		.record = record_count};
	uint64_t memory = memory_for_tables(replay), places;
	uint32_t kept = 0;

	if (!read_ring(&ring))
		return false;
	judge_torn(replay, ring.blocks);
	for (uint32_t i = 0; i < replay->order_count; i++) {
		struct replay_region *region = &replay->regions[replay->order[i]];

		if (region->sequence < region->void_below)
			region->dead = true;
		if (!region->dead)
			replay->order[kept++] = replay->order[i];
	}
	replay->order_count = kept;

	/* What doesn't fit costs its region: see record_load. */
	places = table_room(replay->place_records) * sizeof(struct replay_entry);
	if (places > memory / 4)
		replay->place_records = memory / 4 / sizeof(struct replay_entry) / 2;
	replay->places = table_make(replay->place_records);
	while (replay->passes < PASSES_MAX && table_room(replay->key_records / replay->passes * 9 /
							 8) * sizeof(struct replay_entry) >
						      memory - memory / 4)
		replay->passes *= 2;
	return replay->places != NULL;
}

static void
record_load(struct replay *replay, const struct flash_record *record)
{
	uint64_t position = record_position(record);
	uint32_t region;

	if (record_kind(record) == FLASH_RECORD_KEY) {
		if ((record->what & (replay->passes - 1)) == replay->pass &&
			position > oldest_position(replay) &&
			!table_put(replay->keys, record->what, position))
			replay->overflow = true;
	} else if (record_kind(record) == FLASH_RECORD_PLACE && replay->pass == 0) {
		region = replay_region_of(replay, flash_position_sequence(record->what));
		if (region != UINT32_MAX && !table_put(replay->places, record->what, 1))
			replay->overflow = true;
	}
}

bool
replay_load(struct replay *replay, uint32_t pass)
{
	struct ring ring = {.replay = replay, .record = record_load};
	uint64_t each = replay->passes == 1 ? replay->key_records
					    : replay->key_records / replay->passes * 9 / 8;

	replay->pass = pass;
	table_end(replay->keys);
	replay->keys = table_make(each);
	return replay->keys != NULL && read_ring(&ring) && !replay->overflow;
}

/* --- items -------------------------------------------------------------------------------- */

static enum replay_verdict
judge(const struct replay *replay, uint64_t position, const struct flash_footer_entry *entry)
{
	if (position < replay->void_below)
		return REPLAY_VOIDED;
	if (position < replay->flush_position)
		return REPLAY_FLUSHED;
	if (table_find(replay->keys, entry->hash) > position ||
		table_find(replay->places, position) != 0)
		return REPLAY_KILLED;
	if (entry->expiry != 0 &&
		(entry->expiry <= replay->now_s ||
			(entry->expiry <= replay->expired_s && position < replay->expired_below)))
		return REPLAY_EXPIRED;
	return REPLAY_LIVE;
}

struct items {
	struct replay *replay;
	const struct replay_visitor *visitor;
	void *context;
};

static void
look_ahead(const struct items *items, uint64_t hash)
{
	__builtin_prefetch(table_at(items->replay->keys, hash));
	if (items->visitor->prefetch != NULL)
		items->visitor->prefetch(items->context, hash);
}

/* Can such an item be in this region? */
static bool
entry_is_sane(const struct flash_footer_entry *entry, uint32_t used)
{
	uint64_t offset = (uint64_t)(entry->place & ((1u << FLASH_OFFSET_BITS) - 1)) * ITEM_ALIGN;

	return offset >= FLASH_BLOCK + sizeof(struct flash_append_header) &&
	       offset + 2 * ITEM_ALIGN <= used;
}

static bool
visit_entries(const struct items *items, uint32_t number, const struct flash_footer *footer)
{
	struct replay *replay = items->replay;
	const struct flash_footer_entry *entries =
		(const struct flash_footer_entry *)(const void *)footer - footer->entries;
	uint32_t mask = replay->passes - 1;

	for (uint32_t i = 0; i < footer->entries; i++) {
		const struct flash_footer_entry *entry = &entries[i];

		if (i + AHEAD < footer->entries)
			look_ahead(items, entries[i + AHEAD].hash);
		if ((entry->hash & mask) != replay->pass)
			continue;
		if (!entry_is_sane(entry, footer->used)) {
			replay->nonsense++;
			continue;
		}

		enum replay_verdict verdict =
			judge(replay, replay_position(replay, number, entry), entry);

		replay->verdicts[verdict]++;
		if (!items->visitor->item(items->context, number, entry, verdict))
			return false;
	}
	return true;
}

static void
footer_locate(void *context, uint32_t n, struct io_request *request)
{
	const struct items *items = context;
	const struct replay *replay = items->replay;
	const struct region *region = &replay->flash->regions[replay->order[n]];
	uint32_t bytes = replay->footer_guess;

	bytes = bytes < replay->flash->region_bytes ? bytes : replay->flash->region_bytes;
	request->file = region->file;
	request->offset = region->base + replay->flash->region_bytes - bytes;
	request->size = bytes;
}

/* The whole footer, read anew where the guess was too short. NULL: there is none. */
static const struct flash_footer *
footer_whole(struct replay *replay, uint32_t number, const struct io_request *request, int result)
{
	const struct flash *flash = replay->flash;
	const struct region *region = &flash->regions[number];
	const struct flash_footer *footer = footer_at_end(request->data, request->size);
	uint64_t sequence = replay->regions[number].sequence;
	uint32_t bytes;

	if (result != 0 || !layout_footer_valid(footer, flash->region_bytes, flash->id, sequence))
		return NULL;
	bytes = footer->entries * (uint32_t)sizeof(struct flash_footer_entry) +
		(uint32_t)sizeof *footer;
	bytes = (bytes + FLASH_BLOCK - 1) / FLASH_BLOCK * FLASH_BLOCK;
	/* The next ones are likely as long. */
	replay->footer_guess = bytes + bytes / 8 > GUESS_FIRST
				       ? (bytes + bytes / 8) / FLASH_BLOCK * FLASH_BLOCK
				       : GUESS_FIRST;
	if (replay->footer_guess > flash->region_bytes / 2)
		replay->footer_guess = flash->region_bytes / 2;
	if (bytes > request->size) {
		int again = writer_run(replay->flash, IO_READ, region->file,
			region->base + flash->region_bytes - bytes, replay->footer, bytes, false);

		if (again == -ETIMEDOUT)
			replay->silent = true;
		footer = footer_at_end(replay->footer, bytes);
		/* It may have changed between the two: then it is none. */
		if (again != 0 ||
			!layout_footer_valid(footer, flash->region_bytes, flash->id, sequence) ||
			footer->entries * sizeof(struct flash_footer_entry) + sizeof *footer >
				bytes)
			return NULL;
	}
	return layout_footer_whole(footer, flash->id) ? footer : NULL;
}

static bool
footer_read(void *context, uint32_t n, const struct io_request *request, int result)
{
	const struct items *items = context;
	struct replay *replay = items->replay;
	uint32_t number = replay->order[n];
	const struct flash_footer *footer = footer_whole(replay, number, request, result);
	const struct flash_footer *scanned = footer == NULL ? replay_scan(replay, number) : NULL;

	if (replay->silent)
		return false;
	if (items->visitor->progress != NULL)
		items->visitor->progress(items->context, n, replay->order_count);
	if (footer == NULL)
		footer = scanned;
	replay->regions[number].entries = footer->entries;
	replay->regions[number].used = footer->used;
	if (!items->visitor->region(items->context, number, scanned))
		return !replay->silent;
	return visit_entries(items, number, footer);
}

bool
replay_items(struct replay *replay, const struct replay_visitor *visitor, void *context)
{
	struct items items = {replay, visitor, context};
	struct stream *stream = stream_make(replay, PIECES, replay->flash->region_bytes);

	if (stream == NULL)
		return false;
	stream->context = &items;
	stream->locate = footer_locate;
	stream->consume = footer_read;

	bool all = stream_run(replay, stream, replay->order_count);

	stream_end(replay, stream);
	return all;
}
