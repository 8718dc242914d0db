/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * replay_scan: the items of a region without a footer, from its appends.
 */
#include "flash/replay.h"

#include "base/hash_hd.h"
#include "store/item_hd.h"

#include <errno.h>
#include <string.h>

#define PIECE_BYTES (1u << 20)

/* Reads a piece of the region's body. false: not all of it; *at is where it ends. */
static bool
read_piece(struct replay *replay, const struct region *region, uint32_t *at, uint32_t bytes)
{
	int result = writer_run(replay->flash, IO_READ, region->file, region->base + *at,
		replay->body + *at, bytes, false);

	if (result == -ETIMEDOUT)
		replay->silent = true;
	if (result == 0)
		*at += bytes;
	return result == 0;
}

/* Reads the region's body, as far as it can be read. */
static uint32_t
read_body(struct replay *replay, uint32_t number)
{
	const struct region *region = &replay->flash->regions[number];
	uint32_t all = replay->flash->region_bytes, at = 0;

	while (at < all &&
		read_piece(replay, region, &at, all - at < PIECE_BYTES ? all - at : PIECE_BYTES)) {
		/* Nothing was appended: that is soon seen. */
		if (!layout_append_header_valid(replay->body + FLASH_BLOCK, all - FLASH_BLOCK,
			    replay->regions[number].sequence, FLASH_BLOCK))
			return at;
	}
	/* Up to the block that can't be read. */
	while (at < all && !replay->silent && read_piece(replay, region, &at, FLASH_BLOCK))
		;
	return at;
}

/* The entries of an append, behind those that there are. Gives their number, UINT32_MAX: no room. */
static uint32_t
scan_append(
	struct replay *replay, uint32_t offset, struct flash_footer_entry *entries, uint32_t room)
{
	const struct flash_append_header *header = (const void *)(replay->body + offset);
	uint32_t at = sizeof *header, count = 0, bytes, record;

	while ((record = layout_record_at(
			(const uint8_t *)header + at, header->bytes - at, &bytes)) != 0) {
		const struct item *item = (const void *)((const uint8_t *)header + at);
		uint32_t place = (offset + at) / ITEM_ALIGN;

		at += record;
		if (bytes == 0 || item_key_size(item) > HASH_SIZE_MAX)
			continue;
		if (count == room)
			return UINT32_MAX;
		entries[count++] = (struct flash_footer_entry){
			.hash = hash_bytes(
				item_key(item), item_key_size(item), replay->flash->hash_seed),
			.place = place | bucket_class_of(bytes + LAYOUT_ITEM_SUM)
						 << FLASH_OFFSET_BITS,
			.expiry = item->expiry,
		};
	}
	return count;
}

struct flash_footer *
replay_scan(struct replay *replay, uint32_t number)
{
	const struct replay_region *region = &replay->regions[number];
	uint32_t readable = read_body(replay, number), used = FLASH_BLOCK, count = 0;
	struct flash_footer_entry *entries = (void *)replay->footer;

	while (used + FLASH_BLOCK <= readable &&
		layout_append_valid(replay->body + used, readable - used, replay->flash->id,
			region->sequence, used)) {
		uint32_t end =
			used +
			((const struct flash_append_header *)(const void *)(replay->body + used))
				->bytes;
		/* What a footer behind this append can hold. */
		uint32_t behind = replay->flash->region_bytes - end;
		uint32_t most = behind < sizeof(struct flash_footer)
					? 0
					: (behind - (uint32_t)sizeof(struct flash_footer)) /
						  (uint32_t)sizeof *entries;
		uint32_t more = most < count
					? UINT32_MAX
					: scan_append(replay, used, entries + count, most - count);

		if (behind < FLASH_BLOCK || more == UINT32_MAX)
			break;
		count += more;
		used = end;
	}

	uint8_t *end = replay->footer + replay->flash->region_bytes;
	struct flash_footer *footer = (void *)(end - sizeof *footer);
	uint8_t *first = (uint8_t *)footer - (size_t)count * sizeof *entries;
	uint8_t *begin =
		end - ((size_t)(end - first) + FLASH_BLOCK - 1) / FLASH_BLOCK * FLASH_BLOCK;

	memmove(first, entries, (size_t)count * sizeof *entries);
	memset(begin, 0, (size_t)(first - begin));
	*footer = (struct flash_footer){.magic = FLASH_FOOTER_MAGIC,
		.sequence = region->sequence,
		.entries = count,
		.used = used};
	layout_footer_seal(footer, replay->flash->id);
	return footer;
}
