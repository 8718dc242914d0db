/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * format: finding the superblocks of the files, saying what is wrong with them, or making them.
 *
 * Geometry. The journal takes a sixteenth of all, in file 0; what is left of each file is cut into
 * regions, which are numbered over the files in turn as long as each has one more.
 */
#include "flash/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define REGIONS_LEAST 8u
#define REGIONS_WANTED 64u
#define SIZE_OF_LARGE (1ull << 30) /* from here on regions are as large as an entry can address */
#define ZEROS_BYTES (1u << 20)
#define REMEDY "; --flash-format overwrites it"

enum content {
	CONTENT_EMPTY,
	CONTENT_OURS,
	CONTENT_DAMAGED,
	CONTENT_OTHER_VERSION,
	CONTENT_FOREIGN,
};

static const struct io_file_info *
file_info(const struct flash *flash, uint32_t file)
{
	return flash->options.io->file(flash->io, file);
}

static bool
complain(const struct flash *flash, uint32_t file, char *error, size_t size, const char *what)
{
	snprintf(error, size, "%s: %s", file_info(flash, file)->name, what);
	return false;
}

/* --- what is there ------------------------------------------------------------------------ */

static bool
is_zero(const uint8_t *at, size_t bytes)
{
	return at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0;
}

/* 'head': the first FLASH_DATA_OFFSET bytes. The better copy goes to file->block. */
static enum content
judge(const uint8_t *head, struct super_file *file, uint32_t *version)
{
	enum content content = is_zero(head, FLASH_DATA_OFFSET) ? CONTENT_EMPTY : CONTENT_FOREIGN;

	for (uint8_t copy = 0; copy < 2; copy++) {
		const struct flash_super *super =
			(const void *)(head + (size_t)copy * FLASH_SUPER_SECOND);

		if (layout_super_valid(super)) {
			if (content == CONTENT_OURS && super->generation <= file->generation)
				continue;
			content = CONTENT_OURS;
			memcpy(file->block, super, FLASH_BLOCK);
			file->generation = super->generation;
			file->turn = !copy;
		} else if (super->magic == FLASH_SUPER_MAGIC && content != CONTENT_OURS) {
			bool other = super->version != FLASH_VERSION;

			if (other && content != CONTENT_DAMAGED)
				*version = super->version;
			content = other && content != CONTENT_DAMAGED ? CONTENT_OTHER_VERSION
								      : CONTENT_DAMAGED;
		}
	}
	return content;
}

static bool
refuse(const struct flash *flash, uint32_t file, enum content content, uint32_t version,
	char *error, size_t size)
{
	char what[160];

	switch (content) {
	case CONTENT_DAMAGED:
		return complain(flash, file, error, size,
			"both superblocks of this flash store are damaged" REMEDY);
	case CONTENT_OTHER_VERSION:
		snprintf(what, sizeof what,
			"is a flash store of version %u, this program reads %u" REMEDY, version,
			FLASH_VERSION);
		return complain(flash, file, error, size, what);
	case CONTENT_EMPTY:
		return complain(flash, file, error, size,
			"is empty, while others belong to a flash store: a file is missing, or was "
			"lost" REMEDY);
	default:
		return complain(
			flash, file, error, size, "holds something that is no flash store" REMEDY);
	}
}

/* One of ours: is it the file that it should be? */
static bool
fits(const struct flash *flash, const struct super_file *files, uint32_t file, char *error,
	size_t size)
{
	const struct flash_super *super = files[file].block, *first = files[0].block;
	uint32_t count = flash->options.file_count;
	char what[200];

	if (super->file_count != count) {
		snprintf(what, sizeof what,
			"belongs to a flash store of %u file%s, and %u %s given" REMEDY,
			super->file_count, super->file_count == 1 ? "" : "s", count,
			count == 1 ? "is" : "are");
		return complain(flash, file, error, size, what);
	}
	if (memcmp(super->id, first->id, sizeof super->id) != 0)
		return complain(flash, file, error, size,
			"belongs to another flash store than the first file" REMEDY);
	if (super->file != file) {
		snprintf(what, sizeof what,
			"is file %u of its flash store, and is given as number %u: give them in "
			"their order" REMEDY,
			super->file + 1u, file + 1);
		return complain(flash, file, error, size, what);
	}
	if (super->region_bytes != first->region_bytes || super->regions != first->regions ||
		super->journal_blocks != first->journal_blocks ||
		super->hash_seed != first->hash_seed)
		return complain(flash, file, error, size,
			"has another geometry than the first file" REMEDY);
	if (super->file_bytes > file_info(flash, file)->size) {
		snprintf(what, sizeof what,
			"has become shorter: %llu bytes, formatted with %llu" REMEDY,
			(unsigned long long)file_info(flash, file)->size,
			(unsigned long long)super->file_bytes);
		return complain(flash, file, error, size, what);
	}
	return true;
}

/* --- a new format ------------------------------------------------------------------------- */

static uint32_t
choose_region_bytes(uint64_t total)
{
	uint32_t bytes = FLASH_REGION_BYTES_MIN;

	if (total >= SIZE_OF_LARGE)
		return FLASH_REGION_BYTES_MAX;
	while (bytes < FLASH_REGION_BYTES_MAX && (uint64_t)bytes * 2 * REGIONS_WANTED <= total)
		bytes *= 2;
	return bytes;
}

static uint32_t
choose_journal_blocks(uint64_t total, uint64_t first)
{
	uint64_t blocks = total / 16 / FLASH_BLOCK, most = first / 2 / FLASH_BLOCK;

	blocks = blocks < most ? blocks : most;
	blocks = blocks < FLASH_JOURNAL_BLOCKS_MAX ? blocks : FLASH_JOURNAL_BLOCKS_MAX;
	blocks -= blocks % 16;
	return blocks > FLASH_JOURNAL_BLOCKS_MIN ? (uint32_t)blocks : FLASH_JOURNAL_BLOCKS_MIN;
}

static bool
too_small(const struct flash *flash, uint32_t file, uint64_t least, char *error, size_t size)
{
	char what[160];

	snprintf(what, sizeof what, "is too small for a flash store: %llu bytes, it needs %llu",
		(unsigned long long)file_info(flash, file)->size, (unsigned long long)least);
	return complain(flash, file, error, size, what);
}

/* Fills the blocks with a geometry for the files as they are. */
static bool
lay_out(struct flash *flash, struct super_file *files, char *error, size_t error_size)
{
	uint32_t count = flash->options.file_count, region_bytes = flash->options.region_bytes;
	uint64_t total = 0, regions = 0;

	for (uint32_t i = 0; i < count; i++)
		total += file_info(flash, i)->size;
	if (region_bytes == 0)
		region_bytes = choose_region_bytes(total);

	uint32_t journal = choose_journal_blocks(total, file_info(flash, 0)->size);

	for (uint32_t i = 0; i < count; i++) {
		struct flash_super *super = files[i].block;
		uint64_t size = file_info(flash, i)->size;
		uint64_t data = FLASH_DATA_OFFSET + (i == 0 ? (uint64_t)journal * FLASH_BLOCK : 0);
		uint64_t least = count == 1 ? (uint64_t)REGIONS_LEAST * region_bytes : region_bytes;
		uint64_t here;

		if (size < data + least)
			return too_small(flash, i, data + least, error, error_size);
		here = (size - data) / region_bytes;
		if (here > FLASH_REGIONS_MAX / count)
			here = FLASH_REGIONS_MAX / count;
		regions += here;
		*super = (struct flash_super){
			.magic = FLASH_SUPER_MAGIC,
			.version = FLASH_VERSION,
			.file = (uint16_t)i,
			.file_count = (uint16_t)count,
			.region_bytes = region_bytes,
			.file_bytes = size,
			.data_offset = data,
			.file_regions = (uint32_t)here,
			.journal_blocks = journal,
			.formatted_s = flash->options.now_ns / 1000000000u,
			.state = FLASH_IN_USE,
			.journal_mode = flash->options.journal,
			.sequence_next = 1,
			.cas_next = 1,
		};
	}
	if (regions < REGIONS_LEAST)
		return too_small(flash, count - 1,
			file_info(flash, count - 1)->size +
				(REGIONS_LEAST - regions) * region_bytes,
			error, error_size);
	for (uint32_t i = 0; i < count; i++)
		files[i].block->regions = (uint32_t)regions;
	return true;
}

/*
 * So that whatever stands in the journal later was a record once (see replay.h). First the old
 * superblocks go: a format that is interrupted must not leave a store without its records.
 */
static int
clear_journal(struct flash *flash, uint32_t blocks)
{
	uint64_t bytes = (uint64_t)blocks * FLASH_BLOCK;
	uint8_t *zeros = aligned_alloc(FLASH_BLOCK, ZEROS_BYTES);
	int result = zeros == NULL ? -ENOMEM : 0;

	if (zeros != NULL)
		memset(zeros, 0, ZEROS_BYTES);
	for (uint64_t at = 0; at < FLASH_DATA_OFFSET && result == 0; at += FLASH_SUPER_SECOND)
		result = writer_run(flash, IO_WRITE, 0, at, zeros, FLASH_BLOCK, true);
	for (uint64_t at = 0; at < bytes && result == 0; at += ZEROS_BYTES)
		result = writer_run(flash, IO_WRITE, 0, FLASH_DATA_OFFSET + at, zeros,
			(uint32_t)(bytes - at < ZEROS_BYTES ? bytes - at : ZEROS_BYTES), false);
	if (result == 0)
		result = writer_run(flash, IO_FLUSH, 0, 0, NULL, 0, false);
	if (result != -ETIMEDOUT)
		free(zeros);
	return result;
}

static bool
cannot_format(const struct flash *flash, uint32_t file, int result, char *error, size_t size)
{
	char what[160];

	snprintf(what, sizeof what, "cannot be formatted: %s", strerror(-result));
	return complain(flash, file, error, size, what);
}

/* File 0 last: a format that was interrupted is none. */
static bool
write_format(struct flash *flash, struct super_file *files, char *error, size_t error_size)
{
	struct {
		uint8_t id[16];
		uint64_t hash_seed;
	} random;

	if (getrandom(&random, sizeof random, 0) != sizeof random)
		return complain(flash, 0, error, error_size, "the system gives no random bytes");

	int cleared = clear_journal(flash, files[0].block->journal_blocks);

	if (cleared != 0)
		return cannot_format(flash, 0, cleared, error, error_size);
	for (uint32_t i = flash->options.file_count; i-- > 0;) {
		struct flash_super *super = files[i].block;

		memcpy(super->id, random.id, sizeof super->id);
		super->hash_seed = random.hash_seed;
		for (uint32_t copy = 0; copy < 2; copy++) {
			super->generation = copy + 1;
			layout_super_seal(super);

			int result = writer_run(flash, IO_WRITE, (uint16_t)i,
				(uint64_t)copy * FLASH_SUPER_SECOND, super, FLASH_BLOCK, true);

			if (result != 0)
				return cannot_format(flash, i, result, error, error_size);
		}
		files[i].generation = 2;
		files[i].turn = 0;
	}
	flash_say(flash, 5, "flash: formatted: %u regions of %u KiB, a journal of %u KiB",
		files[0].block->regions, files[0].block->region_bytes / 1024,
		files[0].block->journal_blocks * (FLASH_BLOCK / 1024));
	return true;
}

/* --- opening ------------------------------------------------------------------------------ */

static bool
read_heads(struct flash *flash, struct super_file *files, uint8_t *head, enum content *contents,
	uint32_t *versions, char *error, size_t error_size)
{
	for (uint32_t i = 0; i < flash->options.file_count; i++) {
		if (file_info(flash, i)->block > FLASH_BLOCK ||
			file_info(flash, i)->memory_align > FLASH_BLOCK)
			return complain(
				flash, i, error, error_size, "has blocks larger than 4096 bytes");
		if (file_info(flash, i)->size < FLASH_DATA_OFFSET)
			return too_small(flash, i,
				FLASH_DATA_OFFSET + REGIONS_LEAST * FLASH_REGION_BYTES_MIN, error,
				error_size);

		int result =
			writer_run(flash, IO_READ, (uint16_t)i, 0, head, FLASH_DATA_OFFSET, false);

		if (result != 0) {
			char what[160];

			snprintf(what, sizeof what, "its superblocks cannot be read: %s",
				strerror(-result));
			return complain(flash, i, error, error_size, what);
		}
		contents[i] = judge(head, &files[i], &versions[i]);
	}
	return true;
}

static bool
options_are_sane(const struct flash *flash, char *error, size_t size)
{
	uint32_t region = flash->options.region_bytes;

	if (region == 0 || (region >= FLASH_REGION_BYTES_MIN && region <= FLASH_REGION_BYTES_MAX &&
				   (region & (region - 1)) == 0))
		return true;
	snprintf(error, size, "regions have %u to %u KiB, a power of two",
		FLASH_REGION_BYTES_MIN >> 10, FLASH_REGION_BYTES_MAX >> 10);
	return false;
}

static bool
open_or_format(struct flash *flash, struct super_file *files, const enum content *contents,
	const uint32_t *versions, char *error, size_t error_size)
{
	bool empty = true;

	for (uint32_t i = 0; i < flash->options.file_count; i++)
		empty = empty && contents[i] == CONTENT_EMPTY;
	if (empty && flash->inspected)
		return complain(flash, 0, error, error_size, "is empty, not a flash store");
	if (empty || flash->options.format)
		return lay_out(flash, files, error, error_size) &&
		       write_format(flash, files, error, error_size);
	for (uint32_t i = 0; i < flash->options.file_count; i++)
		if (contents[i] != CONTENT_OURS && contents[i] != CONTENT_EMPTY)
			return refuse(flash, i, contents[i], versions[i], error, error_size);
	for (uint32_t i = 0; i < flash->options.file_count; i++)
		if (contents[i] == CONTENT_EMPTY)
			return refuse(flash, i, contents[i], versions[i], error, error_size);
	for (uint32_t i = 0; i < flash->options.file_count; i++)
		if (!fits(flash, files, i, error, error_size))
			return false;

	uint64_t regions = 0;

	for (uint32_t i = 0; i < flash->options.file_count; i++)
		regions += files[i].block->file_regions;
	if (regions != files[0].block->regions)
		return complain(flash, 0, error, error_size,
			"its files don't have the regions that they should" REMEDY);
	return true;
}

bool
format_open(struct flash *flash, struct super_file *files, char *error, size_t error_size)
{
	enum content contents[IO_FILES_MAX];
	uint32_t versions[IO_FILES_MAX] = {0};

	if (!options_are_sane(flash, error, error_size))
		return false;

	uint8_t *head = aligned_alloc(FLASH_BLOCK, FLASH_DATA_OFFSET);

	if (head == NULL)
		return complain(flash, 0, error, error_size, "no memory");
	bool opened = read_heads(flash, files, head, contents, versions, error, error_size);

	/* A device that doesn't answer has the buffer for ever; the process is about to end. */
	free(head);
	return opened && open_or_format(flash, files, contents, versions, error, error_size);
}
