/* SPDX-License-Identifier: BSD-2-Clause */
#include "flash.h"

#include "base/hash_hd.h"
#include "flash/replay.h"
#include "store/item_hd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define MEMORY_BYTES (4ull << 30) /* a quarter of it for the journal's tables */
#define PIECE_BYTES (1u << 20)

struct view {
	struct flash *flash;
	struct flash_super *found;
	struct replay replay;
	bool verify, json;
	/* Of the region in turn. */
	uint8_t *body;
	uint32_t readable; /* bytes of it */
	/* Found by verify. */
	uint64_t appends, appends_bad, items, items_bad, unreadable, footers_bad;
	uint64_t *bad; /* items, of each region */
	bool snapshot_whole;
	const char *void_reason;
};

static bool
is_clean(const struct view *view)
{
	return view->found->state == FLASH_CLEAN;
}

/* --- reading and checking ----------------------------------------------------------------- */

static void
read_region(struct view *view, uint32_t number)
{
	const struct region *region = &view->flash->regions[number];
	uint32_t all = view->flash->region_bytes, piece = PIECE_BYTES;

	view->readable = 0;
	while (view->readable < all) {
		uint32_t bytes = all - view->readable < piece ? all - view->readable : piece;

		if (writer_run(view->flash, IO_READ, region->file, region->base + view->readable,
			    view->body + view->readable, bytes, false) == 0) {
			view->readable += bytes;
		} else if (piece > FLASH_BLOCK) {
			piece = FLASH_BLOCK;
		} else {
			view->unreadable++;
			return;
		}
	}
}

/* Goes over the appends as they stand behind one another. */
static void
check_appends(struct view *view, uint32_t number)
{
	const struct replay_region *region = &view->replay.regions[number];
	uint32_t at = FLASH_BLOCK;

	while (at + FLASH_BLOCK <= view->readable && at < region->used) {
		const struct flash_append_header *header = (const void *)(view->body + at);

		if (!layout_append_header_valid(header, region->used - at, region->sequence, at) ||
			header->bytes > view->readable - at) {
			view->appends_bad++;
			return;
		}
		view->appends++;
		view->appends_bad += !layout_append_valid(
			header, region->used - at, view->flash->id, region->sequence, at);
		at += header->bytes;
	}
}

static bool
visit_region(void *context, uint32_t number, const struct flash_footer *scanned)
{
	struct view *view = context;

	/* Each pass looks at other items of the region. */
	read_region(view, number);
	if (view->replay.pass > 0)
		return true;
	view->footers_bad += scanned != NULL && view->replay.regions[number].damaged;
	check_appends(view, number);
	return true;
}

static bool
item_is_right(const struct view *view, uint32_t number, const struct flash_footer_entry *entry)
{
	uint32_t offset = (entry->place & ((1u << FLASH_OFFSET_BITS) - 1)) * ITEM_ALIGN;
	const struct item *item = (const void *)(view->body + offset);

	if (offset >= view->readable)
		return false;
	return layout_item_valid(item, view->readable - offset, view->flash->id,
		       view->replay.regions[number].sequence) &&
	       item_key_size(item) <= HASH_SIZE_MAX && item->expiry == entry->expiry &&
	       hash_bytes(item_key(item), item_key_size(item), view->flash->hash_seed) ==
		       entry->hash;
}

static bool
visit_item(void *context, uint32_t number, const struct flash_footer_entry *entry,
	enum replay_verdict verdict)
{
	struct view *view = context;

	(void)verdict;
	view->items++;
	if (!item_is_right(view, number, entry)) {
		view->items_bad++;
		view->bad[number]++;
	}
	return true;
}

static bool
verify(struct view *view)
{
	static const struct replay_visitor visitor = {.region = visit_region, .item = visit_item};
	struct replay *replay = &view->replay;

	view->body = aligned_alloc(FLASH_BLOCK, view->flash->region_bytes);
	view->bad = calloc(view->flash->region_count, sizeof *view->bad);
	if (view->body == NULL || view->bad == NULL)
		return false;
	for (uint32_t pass = 0; pass < replay->passes; pass++)
		if (!replay_load(replay, pass) || !replay_items(replay, &visitor, view))
			return false;
	if (is_clean(view))
		view->snapshot_whole = snapshot_is_whole(view->flash, view->found);
	return true;
}

/* --- printing ----------------------------------------------------------------------------- */

static void
print_string(const char *text)
{
	putchar('"');
	for (; *text != '\0'; text++)
		if ((unsigned char)*text < 0x20)
			printf("\\u%04x", (unsigned)*text);
		else if (*text == '"' || *text == '\\')
			printf("\\%c", *text);
		else
			putchar(*text);
	putchar('"');
}

static const char *
region_kind(const struct replay_region *region)
{
	switch (region->header) {
	case REPLAY_UNREADABLE:
		return "unreadable";
	case REPLAY_FREE:
		return "free";
	case REPLAY_SNAPSHOT:
		return "index";
	case REPLAY_DATA:
		return region->dead ? "void" : region->sealed ? "sealed" : "open";
	default:
		return region->damaged ? "damaged" : "unused";
	}
}

static const char *
journal_mode(uint32_t mode)
{
	static const char *const names[] = {"sync", "async", "off"};

	return mode < 3 ? names[mode] : "?";
}

static void
format_time(uint64_t seconds, char *text, size_t size)
{
	time_t time = (time_t)seconds;
	struct tm parts;

	if (seconds == 0 || gmtime_r(&time, &parts) == NULL ||
		strftime(text, size, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
		snprintf(text, size, "-");
}

static void
format_id(const uint8_t id[16], char text[33])
{
	for (unsigned i = 0; i < 16; i++)
		snprintf(text + (size_t)2 * i, 3, "%02x", id[i]);
}

static uint64_t
kept(const struct view *view)
{
	if (view->void_reason != NULL)
		return 0;
	if (is_clean(view) && view->snapshot_whole)
		return view->found->objects;
	return view->replay.verdicts[REPLAY_LIVE];
}

static bool
is_damaged(const struct view *view)
{
	bool damaged = view->replay.journal_damaged || view->replay.nonsense > 0 ||
		       view->appends_bad > 0 || view->items_bad > 0 || view->unreadable > 0 ||
		       view->footers_bad > 0 || (is_clean(view) && !view->snapshot_whole);

	for (uint32_t i = 0; i < view->flash->region_count; i++) {
		const struct replay_region *region = &view->replay.regions[i];

		damaged |= region->header == REPLAY_UNREADABLE ||
			   (region->header == REPLAY_NOTHING && region->damaged);
	}
	return damaged;
}

static void
print_store(const struct view *view)
{
	const struct flash_super *super = view->found;
	char id[33], formatted[64], due[64];

	format_id(super->id, id);
	format_time(super->formatted_s, formatted, sizeof formatted);
	format_time(super->flush_at_ns / 1000000000u, due, sizeof due);
	for (uint32_t i = 0; i < view->flash->options.file_count; i++)
		printf("file %u             %s, %" PRIu64 " bytes\n", i,
			view->flash->options.files[i].path,
			view->flash->options.io->file(view->flash->io, i)->size);
	printf("format             version %u, id %s, made %s\n", super->version, id, formatted);
	printf("regions            %u of %u KiB\n", super->regions, super->region_bytes / 1024);
	printf("journal            %u blocks, %" PRIu64 " in use or kept, %" PRIu64
	       " records, mode %s%s\n",
		super->journal_blocks, view->replay.journal_valid, view->replay.journal_records,
		journal_mode(super->journal_mode), view->replay.journal_damaged ? ", damaged" : "");
	printf("state              %s\n", is_clean(view) ? "stopped cleanly: the index was saved"
							 : "in use, or stopped uncleanly");
	if (is_clean(view))
		printf("saved index        %" PRIu64 " bytes in %u regions, %" PRIu64 " items\n",
			super->snapshot_bytes, super->snapshot_regions, super->objects);
	printf("next sequence      %" PRIu64 "\n", super->sequence_next);
	printf("next cas           %" PRIu64 "\n", super->cas_next);
	printf("flushes            %" PRIu64 ", next due %s\n", super->flushes, due);
	if (view->void_reason != NULL)
		printf("void               %s\n", view->void_reason);
}

static void
print_regions(const struct view *view)
{
	printf("\nregion  file  sequence      kind        items     fill  opened\n");
	for (uint32_t i = 0; i < view->flash->region_count; i++) {
		const struct replay_region *region = &view->replay.regions[i];
		char opened[64];

		if (region->header == REPLAY_NOTHING && !region->damaged)
			continue;
		format_time(region->opened_s, opened, sizeof opened);
		printf("%-7u %-5u %-13" PRIu64 " %-11s %-9u %3u%%  %s", i,
			view->flash->regions[i].file, region->sequence, region_kind(region),
			region->entries,
			(unsigned)((uint64_t)region->used * 100 / view->flash->region_bytes),
			opened);
		if (view->verify && view->bad[i] > 0)
			printf("  %" PRIu64 " items are damaged", view->bad[i]);
		putchar('\n');
	}
}

static void
print_verdict(const struct view *view)
{
	const uint64_t *verdicts = view->replay.verdicts;

	printf("\nappends            %" PRIu64 ", %" PRIu64 " damaged\n", view->appends,
		view->appends_bad);
	printf("footers damaged    %" PRIu64 "\n", view->footers_bad);
	printf("items              %" PRIu64 ", %" PRIu64 " damaged\n", view->items,
		view->items_bad);
	if (is_clean(view))
		printf("saved index        %s\n", view->snapshot_whole ? "whole" : "damaged");
	printf("dead by journal    %" PRIu64 "\n", verdicts[REPLAY_KILLED]);
	printf("flushed            %" PRIu64 "\n", verdicts[REPLAY_FLUSHED]);
	printf("void               %" PRIu64 "\n", verdicts[REPLAY_VOIDED]);
	printf("expired            %" PRIu64 "\n", verdicts[REPLAY_EXPIRED]);
	printf("a recovery keeps   %" PRIu64 " items%s\n", kept(view),
		is_clean(view) && view->snapshot_whole
			? ""
			: ", less one in a thousand or so of equal tags");
}

static void
print_json_regions(const struct view *view)
{
	const char *between = "";

	printf(", \"region\": [");
	for (uint32_t i = 0; i < view->flash->region_count; i++) {
		const struct replay_region *region = &view->replay.regions[i];

		if (region->header == REPLAY_NOTHING && !region->damaged)
			continue;
		printf("%s{\"number\": %u, \"file\": %u, \"sequence\": %" PRIu64
		       ", \"kind\": \"%s\", \"items\": %u, \"used_bytes\": %u, \"opened\": %u",
			between, i, view->flash->regions[i].file, region->sequence,
			region_kind(region), region->entries, region->used, region->opened_s);
		if (view->verify)
			printf(", \"items_damaged\": %" PRIu64, view->bad[i]);
		putchar('}');
		between = ", ";
	}
	putchar(']');
}

static void
print_as_json(const struct view *view)
{
	const struct flash_super *super = view->found;
	const uint64_t *verdicts = view->replay.verdicts;
	char id[33];

	format_id(super->id, id);
	printf("{\"files\": [");
	for (uint32_t i = 0; i < view->flash->options.file_count; i++) {
		printf(i > 0 ? ", " : "");
		print_string(view->flash->options.files[i].path);
	}
	printf("], \"version\": %u, \"id\": \"%s\", \"formatted\": %" PRIu64
	       ", \"regions\": %u, \"region_bytes\": %u, \"journal_blocks\": %u",
		super->version, id, super->formatted_s, super->regions, super->region_bytes,
		super->journal_blocks);
	printf(", \"journal_blocks_valid\": %" PRIu64 ", \"journal_records\": %" PRIu64
	       ", \"journal_mode\": \"%s\", \"journal_damaged\": %s",
		view->replay.journal_valid, view->replay.journal_records,
		journal_mode(super->journal_mode), view->replay.journal_damaged ? "true" : "false");
	printf(", \"clean\": %s, \"objects\": %" PRIu64 ", \"sequence_next\": %" PRIu64
	       ", \"cas_next\": %" PRIu64 ", \"flushes\": %" PRIu64 ", \"flush_at_ns\": %" PRIu64,
		is_clean(view) ? "true" : "false", is_clean(view) ? super->objects : 0,
		super->sequence_next, super->cas_next, super->flushes, super->flush_at_ns);
	printf(", \"void\": ");
	if (view->void_reason != NULL)
		print_string(view->void_reason);
	else
		printf("null");
	print_json_regions(view);
	if (view->verify) {
		printf(", \"appends\": %" PRIu64 ", \"appends_damaged\": %" PRIu64
		       ", \"footers_damaged\": %" PRIu64 ", \"items\": %" PRIu64
		       ", \"items_damaged\": %" PRIu64,
			view->appends, view->appends_bad, view->footers_bad, view->items,
			view->items_bad);
		printf(", \"index_whole\": %s, \"killed\": %" PRIu64 ", \"flushed\": %" PRIu64
		       ", \"voided\": %" PRIu64 ", \"expired\": %" PRIu64 ", \"kept\": %" PRIu64
		       ", \"damaged\": %s",
			view->snapshot_whole ? "true" : "false", verdicts[REPLAY_KILLED],
			verdicts[REPLAY_FLUSHED], verdicts[REPLAY_VOIDED], verdicts[REPLAY_EXPIRED],
			kept(view), is_damaged(view) ? "true" : "false");
	}
	printf("}\n");
}

/* --- the command -------------------------------------------------------------------------- */

static int
look(struct view *view)
{
	struct replay *replay = &view->replay;
	const char *name = view->flash->options.files[0].path;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (!replay_begin(replay, view->flash) || !replay_survey(replay) ||
		!replay_journal(replay, NULL)) {
		fprintf(stderr, "halcyonctl: %s: %s\n", name,
			replay->silent ? "the device does not answer" : "no memory");
		return EXIT_FAILED;
	}
	replay->now_s = (uint32_t)now.tv_sec;
	replay_judge_by(replay, view->found);
	if (view->verify && !verify(view)) {
		fprintf(stderr, "halcyonctl: %s: %s\n", name,
			replay->silent	   ? "the device does not answer"
			: replay->overflow ? "its journal is more than can be held in memory"
					   : "no memory");
		return EXIT_FAILED;
	}
	view->void_reason = recover_why_void(view->found,
		is_clean(view) && (!view->verify || view->snapshot_whole), replay->journal_damaged,
		(uint64_t)now.tv_sec * 1000000000u);
	if (view->json) {
		print_as_json(view);
	} else {
		print_store(view);
		print_regions(view);
		if (view->verify)
			print_verdict(view);
	}
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "halcyonctl: cannot write to standard output\n");
		return EXIT_FAILED;
	}
	if (!view->verify || !is_damaged(view))
		return 0;
	fprintf(stderr, "halcyonctl: %s: the store is damaged\n", name);
	return EXIT_FAILED;
}

static int
open_and_look(struct view *view, int count, char **files)
{
	struct flash_file_options paths[IO_FILES_MAX];
	char error[512], why[256];
	struct flash_options options = {
		.io = io_choose(why, sizeof why),
		.files = paths,
		.file_count = (uint32_t)count,
		.memory_bytes = MEMORY_BYTES,
	};
	int status;

	for (int i = 0; i < count; i++)
		paths[i] = (struct flash_file_options){.path = files[i]};
	view->found = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);
	view->flash = view->found == NULL
			      ? NULL
			      : flash_inspect(&options, view->found, error, sizeof error);
	if (view->flash == NULL) {
		fprintf(stderr, "halcyonctl: %s\n", view->found == NULL ? "no memory" : error);
		free(view->found);
		return EXIT_FAILED;
	}
	status = look(view);
	replay_end(&view->replay);
	/* A device that doesn't answer keeps the buffers, and the process ends. */
	if (!view->replay.silent) {
		free(view->body);
		free(view->bad);
	}
	flash_destroy(view->flash);
	free(view->found);
	return status;
}

int
flash_command(int count, char **words, bool json)
{
	struct view view = {.json = json};

	if (count == 0 || (strcmp(words[0], "inspect") != 0 && strcmp(words[0], "verify") != 0)) {
		fprintf(stderr, "halcyonctl: flash: inspect or verify?\n");
		return EXIT_USAGE;
	}
	view.verify = strcmp(words[0], "verify") == 0;
	if (count == 1 || count - 1 > IO_FILES_MAX) {
		fprintf(stderr, "halcyonctl: flash %s: 1 to %d files are needed\n", words[0],
			IO_FILES_MAX);
		return EXIT_USAGE;
	}
	return open_and_look(&view, count - 1, words + 1);
}
