/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * recover: from what replay reads to a log and an index that can be used.
 *
 * One rule: what the index doesn't name afterwards must be dead durably before recovery ends, or a
 * later recovery would believe it though its key was overwritten meanwhile without a record. So
 *	- an item that took another's entry (equal tags) or found no room leaves a PLACE record;
 *	- a region whose header can't be read, or which a record voids, gets a FREE header, else a
 *	  record of its number that stays;
 *	- behind what could be read of a region without a footer a block of zeros is written, then the
 *	  footer of what was read;
 *	- how far expiry was judged stands in the superblock.
 *
 * A crash on the way is harmless: each of these writes says what is true already.
 */
#include "flash/replay.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENCES_APART 16
#define STUCK_ROUNDS 200
#define ROUND_MS 50

struct recover {
	struct flash *flash;
	const struct flash_super *found;
	struct replay replay;
	uint64_t first;	   /* sequence: all that stood there have lower ones */
	uint64_t sequence; /* the next to be given */
	uint64_t expect_done;
	bool clean;
	bool full; /* an item found no room */
	uint64_t left_out;
	uint8_t *block;
};

/* --- records ------------------------------------------------------------------------------ */

/* A step of the journal. false: it doesn't move. */
static bool
pump(struct flash *flash, unsigned *rounds)
{
	const struct io_backend *io = flash->options.io;

	journal_work(flash, flash->options.now_ns);
	io->push(flash->writer);
	if (writer_poll(flash)) {
		*rounds = 0;
		return true;
	}
	io->wait(flash->writer, ROUND_MS);
	if (writer_poll(flash)) {
		*rounds = 0;
		return true;
	}
	return ++*rounds < STUCK_ROUNDS;
}

static bool
put(struct flash *flash, enum flash_record_kind kind, uint64_t what)
{
	unsigned rounds = 0;
	uint64_t ticket;

	while ((ticket = journal_put(flash, kind, what)) == 0)
		if (!pump(flash, &rounds)) {
			flash_void(flash, "the journal has no room for what recovery found");
			return false;
		}
	return ticket != UINT64_MAX && flash_alive(flash);
}

static bool
finish_journal(struct flash *flash)
{
	unsigned rounds = 0;

	while (!journal_is_quiet(flash) && flash_alive(flash))
		if (!pump(flash, &rounds)) {
			flash_void(flash, "the journal cannot be written");
			return false;
		}
	return flash_alive(flash);
}

/* --- regions ------------------------------------------------------------------------------ */

/* A device that doesn't answer keeps what it was given: nothing is written any more. */
static int
write_block(struct recover *recover, uint16_t file, uint64_t offset, void *data, uint32_t bytes)
{
	int result = -ETIMEDOUT;

	if (!recover->replay.silent)
		result = writer_run(recover->flash, IO_WRITE, file, offset, data, bytes, true);
	if (result == -ETIMEDOUT)
		recover->replay.silent = true;
	return result;
}

static int
write_region(struct recover *recover, uint32_t number, uint64_t offset, void *data, uint32_t bytes)
{
	const struct region *region = &recover->flash->regions[number];

	return write_block(recover, region->file, region->base + offset, data, bytes);
}

/* Makes a region's content void for good: it is free, or retired. false: neither was possible. */
static bool
void_region(struct recover *recover, uint32_t number)
{
	struct flash *flash = recover->flash;
	struct flash_region_header *header = (void *)recover->block;

	if (recover->replay.silent)
		return false;
	memset(recover->block, 0, FLASH_BLOCK);
	header->magic = FLASH_REGION_MAGIC;
	header->version = FLASH_VERSION;
	memcpy(header->id, flash->id, sizeof header->id);
	header->sequence = recover->sequence++;
	header->kind = FLASH_REGION_FREE;
	header->opened_s = recover->replay.now_s;
	layout_region_seal(header);
	flash->recovered.bad_regions++;
	if (write_region(recover, number, 0, header, FLASH_BLOCK) == 0)
		return true;
	if (recover->replay.silent)
		return false;
	log_region_found(flash, number, recover->sequence++, REGION_RETIRED, 0, 0, 0);
	flash_say(flash, 4, "flash: region %u fails and is used no more", number);
	return put(flash, FLASH_RECORD_NUMBER, number);
}

/* Before any item is named: what is void already, as far as it isn't by the superblock. */
static bool
void_the_dead(struct recover *recover)
{
	struct replay *replay = &recover->replay;

	for (uint32_t i = 0; i < recover->flash->region_count; i++) {
		const struct replay_region *region = &replay->regions[i];

		if (((region->header == REPLAY_DATA && region->dead) ||
			    region->header == REPLAY_UNREADABLE) &&
			!void_region(recover, i))
			return false;
	}
	return true;
}

/* A region without a footer: the end of what can be read is marked, and the footer made. */
static bool
seal_region(struct recover *recover, uint32_t number, const struct flash_footer *footer)
{
	struct flash *flash = recover->flash;
	uint32_t bytes = footer->entries * (uint32_t)sizeof(struct flash_footer_entry) +
			 (uint32_t)sizeof *footer;
	uint8_t *end = (uint8_t *)(uintptr_t)footer + sizeof *footer;

	bytes = (bytes + FLASH_BLOCK - 1) / FLASH_BLOCK * FLASH_BLOCK;
	if (recover->replay.silent)
		return false;
	memset(recover->block, 0, FLASH_BLOCK);
	if (footer->used + FLASH_BLOCK + bytes <= flash->region_bytes &&
		write_region(recover, number, footer->used, recover->block, FLASH_BLOCK) != 0)
		return false;
	/* An empty one too: what stood there may be readable again one day. */
	return write_region(recover, number, flash->region_bytes - bytes, end - bytes, bytes) == 0;
}

/* false: it isn't to be used; it is free, or retired. */
static bool
enter_region(struct recover *recover, uint32_t number, const struct flash_footer *scanned)
{
	struct flash *flash = recover->flash;
	struct replay_region *region = &recover->replay.regions[number];

	/* What the superblock voids needs nothing more. */
	if (flash_position_make(region->sequence + 1, 0) <= recover->replay.void_below)
		return false;
	if (scanned != NULL) {
		region->entries = scanned->entries;
		region->used = scanned->used;
		if (!seal_region(recover, number, scanned)) {
			void_region(recover, number);
			return false;
		}
		if (scanned->entries == 0)
			return false;
		flash_say(flash, 5, "flash: region %u had no footer: %u items were found in it",
			number, scanned->entries);
	}
	log_region_found(flash, number, region->sequence, REGION_SEALED, region->opened_s,
		region->entries, region->used);
	return true;
}

/* --- an unclean stop ---------------------------------------------------------------------- */

static bool
visit_region(void *context, uint32_t number, const struct flash_footer *scanned)
{
	struct recover *recover = context;

	if (recover->replay.pass == 0)
		return enter_region(recover, number, scanned);
	return atomic_load(&recover->flash->regions[number].state) == REGION_SEALED;
}

static bool
visit_item(void *context, uint32_t number, const struct flash_footer_entry *entry,
	enum replay_verdict verdict)
{
	struct recover *recover = context;
	struct flash *flash = recover->flash;
	uint64_t position = replay_position(&recover->replay, number, entry);
	struct flash_named replaced = {0, 0};

	if (verdict != REPLAY_LIVE)
		return true;
	if (!flash->options.recovered->item(flash->options.items_context, entry->hash,
		    flash_segment(number), flash_position_offset(position), replay_class(entry),
		    &replaced)) {
		recover->left_out++;
		return put(flash, FLASH_RECORD_PLACE, position);
	}
	flash->recovered.items++;
	if (replaced.segment == 0)
		return true;
	flash->recovered.items--;
	recover->left_out++;

	uint32_t region = flash_region_of(replaced.segment);

	return put(flash, FLASH_RECORD_PLACE,
		flash_position_make(recover->replay.regions[region].sequence, replaced.offset));
}

static void
visit_prefetch(void *context, uint64_t hash)
{
	struct recover *recover = context;
	const struct flash_options *options = &recover->flash->options;

	if (options->recovered->prefetch != NULL)
		options->recovered->prefetch(options->items_context, hash);
}

static void
tell_progress(void *context, uint64_t done, uint64_t total)
{
	struct recover *recover = context;
	const struct flash_options *options = &recover->flash->options;
	uint64_t passes = recover->replay.passes;

	if (options->recovered->progress != NULL)
		options->recovered->progress(options->items_context, "regions replayed",
			recover->replay.pass * total + done, passes * total);
}

static bool
replay_log(struct recover *recover)
{
	static const struct replay_visitor visitor = {
		.region = visit_region,
		.item = visit_item,
		.prefetch = visit_prefetch,
		.progress = tell_progress,
	};
	struct replay *replay = &recover->replay;
	struct flash *flash = recover->flash;

	if (!void_the_dead(recover))
		return false;
	/* Without memory for so many the items that find no room are left out. */
	flash->options.recovered->expect(flash->options.items_context, replay->entries);
	for (uint32_t pass = 0; pass < replay->passes; pass++) {
		if (!replay_load(replay, pass)) {
			if (replay->overflow)
				flash_void(flash, "its journal is more than memory can hold");
			return false;
		}
		/* Records that could be read when they were counted can't be any more. */
		if (replay->journal_damaged) {
			flash_void(flash, "its journal cannot be read");
			return false;
		}
		if (!replay_items(replay, &visitor, recover))
			return false;
	}
	flash->recovered.killed = replay->verdicts[REPLAY_KILLED];
	return true;
}

/* --- a clean stop ------------------------------------------------------------------------- */

static void
purge(const struct flash *flash, uint32_t number)
{
	const struct flash_items *items = flash->options.items;

	if (items != NULL && items->purge != NULL)
		items->purge(flash->options.items_context, flash_segment(number));
}

/* The saved index is there: the regions that it names. */
static bool
enter_regions(struct recover *recover)
{
	struct replay *replay = &recover->replay;

	for (uint32_t i = 0; i < recover->flash->region_count; i++)
		if (replay->regions[i].dead || replay->regions[i].header == REPLAY_UNREADABLE ||
			(replay->regions[i].header == REPLAY_NOTHING && replay->regions[i].damaged))
			purge(recover->flash, i);
	if (!void_the_dead(recover))
		return false;
	for (uint32_t i = 0; i < replay->order_count; i++) {
		uint32_t number = replay->order[i];
		struct replay_region *region = &replay->regions[number];
		struct flash_footer *scanned = region->sealed ? NULL : replay_scan(replay, number);

		if (replay->silent)
			return false;
		bool entered = enter_region(recover, number, scanned);

		/* Before the next scan: the device may have the last one's footer. */
		if (replay->silent)
			return false;
		if (!entered && (region->damaged || region->entries > 0))
			purge(recover->flash, number);
	}
	return true;
}

/* --- the superblock ----------------------------------------------------------------------- */

static void
set_unclean(struct flash_super *super, void *context)
{
	(void)context;
	super->state = FLASH_IN_USE;
	super->snapshot_sequence = 0;
}

static void
set_started(struct flash_super *super, void *context)
{
	const struct recover *recover = context;
	const struct replay *replay = &recover->replay;
	uint64_t now = flash_position_make(recover->first, 0);

	set_unclean(super, NULL);
	super->sequence_next = recover->sequence;
	super->void_below = replay->void_below;
	if (super->flush_at_ns != 0 && super->flush_at_ns <= recover->flash->options.now_ns) {
		super->flush_at_ns = 0;
		super->flushes++;
	}
	if (recover->clean) {
		/* The index says what is dead; the lost part of the journal can't any more. */
		if (replay->journal_damaged)
			super->unjournaled_below = now;
		return;
	}
	super->unjournaled_below = 0;
	super->expired_below = now;
	if (replay->now_s > super->expired_s)
		super->expired_s = replay->now_s;
}

/* --- all of it ---------------------------------------------------------------------------- */

static uint64_t
larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Above every sequence that was seen anywhere. */
static bool
choose_sequence(struct recover *recover)
{
	const struct flash_super *found = recover->found;
	uint64_t position = larger(
		larger(found->flush_position, found->unjournaled_below), found->expired_below);
	uint64_t most = larger(recover->replay.sequence_max, found->sequence_next);

	if (found->void_below <= FLASH_POSITION_MAX)
		position = larger(position, found->void_below);
	most = larger(most, larger(found->snapshot_sequence, flash_position_sequence(position)));
	recover->first = recover->sequence = most + SEQUENCES_APART;
	/* Regions will be opened for some time yet. */
	return recover->first <= FLASH_SEQUENCE_MAX - (1u << 24);
}

const char *
recover_why_void(const struct flash_super *found, bool clean, bool journal_damaged, uint64_t now_ns)
{
	if (found->void_below == FLASH_VOID_ALL)
		return "its content was declared void";
	if (found->flush_at_ns != 0 && found->flush_at_ns <= now_ns)
		return "a flush that was asked for came due while nothing ran";
	if (clean)
		return NULL;
	if (found->journal_mode == FLASH_JOURNAL_OFF && found->sequence_next > 1)
		return "after an unclean stop, and without a journal";
	return journal_damaged ? "its journal is damaged" : NULL;
}

static const char *
why_void(const struct recover *recover)
{
	return recover_why_void(recover->found, recover->clean, recover->replay.journal_damaged,
		recover->flash->options.now_ns);
}

static void
clear_torn(struct recover *recover)
{
	const struct replay *replay = &recover->replay;

	memset(recover->block, 0, FLASH_BLOCK);
	/* One that can't be written now is counted as damage then: harmless. */
	for (uint32_t i = 0; i < replay->torn_count; i++)
		write_block(recover, 0, FLASH_DATA_OFFSET + (uint64_t)replay->torn[i] * FLASH_BLOCK,
			recover->block, FLASH_BLOCK);
}

/* What stands there is known; decides, and fills log and index. */
static bool
recover_content(struct recover *recover)
{
	struct flash *flash = recover->flash;
	struct replay *replay = &recover->replay;
	const struct flash_super *found = recover->found;
	const char *why = why_void(recover);

	replay->void_below = found->void_below;
	if (why == NULL && recover->clean) {
		flash->recovered.clean = snapshot_load(flash, found);
		if (flash->recovered.clean) {
			flash->recovered.items = found->objects;
			return enter_regions(recover);
		}
		flash_say(flash, 4, "flash: the saved index is not whole: the log is replayed");
		recover->clean = false;
		why = why_void(recover);
	}
	if (why != NULL) {
		recover->clean = false;
		replay->void_below = flash_position_make(recover->first, 0);
		flash_say(flash, 5, "flash: nothing is kept of what was there: %s", why);
		return true;
	}
	/* Before anything is changed that the saved index names. */
	super_change(flash, set_unclean, NULL);
	if (!super_write_now(flash))
		return false;
	replay_judge_by(replay, found);
	return replay_log(recover);
}

static bool
recover_all(struct recover *recover, char *error, size_t error_size)
{
	struct flash *flash = recover->flash;
	struct replay *replay = &recover->replay;
	const char *name = flash->options.files[0].path;

	if (!replay_begin(replay, flash) || recover->block == NULL) {
		snprintf(error, error_size, "%s: no memory to recover it", name);
		return false;
	}
	replay->now_s = (uint32_t)(flash->options.now_ns / 1000000000u);
	if (!replay_survey(replay) || !replay_journal(replay, journal_found)) {
		snprintf(error, error_size, "%s: %s", name,
			replay->silent ? "the device doesn't answer" : "no memory to recover it");
		return false;
	}
	if (!choose_sequence(recover)) {
		snprintf(error, error_size,
			"%s: its sequence numbers are used up; --flash-format begins anew", name);
		return false;
	}
	/* What is put now speaks of all that stands there. */
	atomic_store(&flash->tail, flash_position_make(recover->first, 0));
	journal_start(flash, replay_journal_oldest(replay));
	clear_torn(recover);

	bool recovered = !replay->silent && recover_content(recover) && !replay->silent &&
			 finish_journal(flash);

	if (!recovered && flash_alive(flash)) {
		snprintf(error, error_size, "%s: cannot be recovered: %s", name,
			replay->silent ? "the device doesn't answer"
				       : "it cannot be written, or there is no memory");
		return false;
	}
	super_change(flash, set_started, recover);
	if (super_write_now(flash))
		return true;
	snprintf(error, error_size, "%s: its superblock cannot be written", name);
	return false;
}

bool
recover_run(struct flash *flash, const struct flash_super *found, char *error, size_t error_size)
{
	struct recover *recover = calloc(1, sizeof *recover);
	uint64_t began_ns = clock_monotonic_ns();

	if (recover == NULL) {
		snprintf(error, error_size, "%s: no memory to recover it",
			flash->options.files[0].path);
		return false;
	}
	recover->flash = flash;
	recover->found = found;
	recover->clean = found->state == FLASH_CLEAN;
	recover->block = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);

	bool recovered = recover_all(recover, error, error_size);

	if (recovered) {
		atomic_store(&flash->flush_position, found->flush_position);
		log_start(flash, recover->sequence);
		flash->recovered.ns = clock_monotonic_ns() - began_ns;
		flash_say(flash, 5,
			"flash: %" PRIu64 " items %s, %" PRIu64
			" were dead by the journal, %" PRIu64 " left out, %" PRIu64
			" regions were bad; %" PRIu64 " ms",
			flash->recovered.items,
			flash->recovered.clean ? "saved at the last stop" : "recovered",
			flash->recovered.killed, recover->left_out, flash->recovered.bad_regions,
			flash->recovered.ns / 1000000);
	}
	replay_end(&recover->replay);
	/* A device that is silent has the block for ever. */
	if (!recover->replay.silent)
		free(recover->block);
	free(recover);
	return recovered;
}
