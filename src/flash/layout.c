/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * layout: what stands on the medium, checked and sealed. Pure: bytes in, bytes out. Whatever it is
 * given to check may be damaged, or made by somebody who means harm.
 */
#include "base/crc32c.h"
#include "flash/internal.h"
#include "store/item_hd.h"

#include <string.h>

#define SEED_FIRST 0xffffffffu

uint32_t
layout_seed(const uint8_t id[16], uint64_t sequence)
{
	return crc32c(crc32c(SEED_FIRST, id, 16), &sequence, sizeof sequence);
}

/* Of these bytes, where four at 'hole' count as zero: they hold the checksum. */
static uint32_t
sum_around(uint32_t seed, const void *data, size_t bytes, size_t hole)
{
	static const uint8_t zeros[4];
	const uint8_t *at = data;
	uint32_t crc = crc32c(seed, at, hole);

	crc = crc32c(crc, zeros, sizeof zeros);
	return crc32c(crc, at + hole + sizeof zeros, bytes - hole - sizeof zeros);
}

static bool
sequence_is_sane(uint64_t sequence)
{
	return sequence != 0 && sequence <= FLASH_SEQUENCE_MAX;
}

/* --- superblock --------------------------------------------------------------------------- */

static uint32_t
super_sum(const void *block)
{
	return sum_around(0, block, FLASH_BLOCK, offsetof(struct flash_super, crc));
}

/* The geometry: every number that later code calculates with. */
static bool
super_geometry_is_sane(const struct flash_super *super)
{
	uint64_t data = FLASH_DATA_OFFSET;

	if (super->region_bytes < FLASH_REGION_BYTES_MIN ||
		super->region_bytes > FLASH_REGION_BYTES_MAX ||
		(super->region_bytes & (super->region_bytes - 1)) != 0)
		return false;
	if (super->file_count == 0 || super->file_count > IO_FILES_MAX ||
		super->file >= super->file_count || super->regions == 0 ||
		super->regions > FLASH_REGIONS_MAX || super->file_regions > super->regions)
		return false;
	if (super->journal_blocks < FLASH_JOURNAL_BLOCKS_MIN ||
		super->journal_blocks > FLASH_JOURNAL_BLOCKS_MAX)
		return false;
	if (super->file == 0)
		data += (uint64_t)super->journal_blocks * FLASH_BLOCK;
	return super->data_offset == data && super->file_bytes >= data &&
	       (super->file_bytes - data) / super->region_bytes >= super->file_regions;
}

bool
layout_super_valid(const void *block)
{
	const struct flash_super *super = block;

	return super->magic == FLASH_SUPER_MAGIC && super->version == FLASH_VERSION &&
	       super->crc == super_sum(block) && super_geometry_is_sane(super) &&
	       (super->state == FLASH_IN_USE || super->state == FLASH_CLEAN) &&
	       super->journal_mode <= FLASH_JOURNAL_OFF &&
	       super->sequence_next <= FLASH_SEQUENCE_MAX && super->void_below <= FLASH_VOID_ALL &&
	       super->flush_position <= FLASH_VOID_ALL &&
	       super->unjournaled_below <= FLASH_VOID_ALL &&
	       super->expired_below <= FLASH_VOID_ALL &&
	       super->snapshot_sequence <= FLASH_SEQUENCE_MAX &&
	       super->snapshot_regions <= super->regions;
}

void
layout_super_seal(struct flash_super *super)
{
	super->crc = super_sum(super);
}

/* --- region header ------------------------------------------------------------------------ */

static uint32_t
region_sum(const struct flash_region_header *header, const uint8_t id[16])
{
	return sum_around(layout_seed(id, header->sequence), header, FLASH_BLOCK,
		offsetof(struct flash_region_header, crc));
}

bool
layout_region_valid(const void *block, const uint8_t id[16])
{
	const struct flash_region_header *header = block;

	return header->magic == FLASH_REGION_MAGIC && header->version == FLASH_VERSION &&
	       memcmp(header->id, id, sizeof header->id) == 0 &&
	       sequence_is_sane(header->sequence) && header->kind >= FLASH_REGION_DATA &&
	       header->kind <= FLASH_REGION_FREE && header->crc == region_sum(header, id);
}

void
layout_region_seal(struct flash_region_header *header)
{
	header->crc = region_sum(header, header->id);
}

/* --- journal block ------------------------------------------------------------------------ */

static uint32_t
journal_sum(const struct flash_journal_block *block, const uint8_t id[16])
{
	return sum_around(
		layout_seed(id, 0), block, FLASH_BLOCK, offsetof(struct flash_journal_block, crc));
}

bool
layout_journal_valid(const void *block, const uint8_t id[16])
{
	const struct flash_journal_block *journal = block;

	return journal->magic == FLASH_JOURNAL_MAGIC && journal->number != 0 &&
	       journal->position <= FLASH_POSITION_MAX && journal->count <= FLASH_JOURNAL_RECORDS &&
	       journal->crc == journal_sum(journal, id);
}

void
layout_journal_seal(struct flash_journal_block *block, const uint8_t id[16])
{
	block->crc = journal_sum(block, id);
}

/* --- append ------------------------------------------------------------------------------- */

static uint32_t
append_sum(const struct flash_append_header *header, const uint8_t id[16])
{
	return sum_around(layout_seed(id, header->sequence), header, header->bytes,
		offsetof(struct flash_append_header, crc));
}

void
layout_append_seal(void *append, const uint8_t id[16])
{
	struct flash_append_header *header = append;

	header->crc = append_sum(header, id);
}

bool
layout_append_header_valid(const void *append, uint64_t room, uint64_t sequence, uint32_t offset)
{
	const struct flash_append_header *header = append;

	return room >= FLASH_BLOCK && header->magic == FLASH_APPEND_MAGIC &&
	       header->sequence == sequence && header->offset == offset &&
	       header->bytes >= FLASH_BLOCK && header->bytes % FLASH_BLOCK == 0 &&
	       header->bytes <= room;
}

bool
layout_append_valid(
	const void *append, uint64_t room, const uint8_t id[16], uint64_t sequence, uint32_t offset)
{
	const struct flash_append_header *header = append;

	return layout_append_header_valid(append, room, sequence, offset) &&
	       header->crc == append_sum(header, id);
}

/* --- footer ------------------------------------------------------------------------------- */

static uint32_t
footer_sum(const struct flash_footer *footer, const uint8_t id[16])
{
	size_t entries = (size_t)footer->entries * sizeof(struct flash_footer_entry);

	return sum_around(layout_seed(id, footer->sequence), (const uint8_t *)footer - entries,
		entries + sizeof *footer, entries + offsetof(struct flash_footer, crc));
}

void
layout_footer_seal(struct flash_footer *footer, const uint8_t id[16])
{
	footer->crc = footer_sum(footer, id);
}

bool
layout_footer_valid(const struct flash_footer *footer, uint32_t region_bytes, const uint8_t id[16],
	uint64_t sequence)
{
	uint64_t bytes =
		(uint64_t)footer->entries * sizeof(struct flash_footer_entry) + sizeof *footer;

	(void)id; /* the checksum's part */
	return footer->magic == FLASH_FOOTER_MAGIC && footer->sequence == sequence &&
	       footer->used >= FLASH_BLOCK && footer->used % FLASH_BLOCK == 0 &&
	       footer->used <= region_bytes && bytes <= region_bytes - footer->used;
}

bool
layout_footer_whole(const struct flash_footer *footer, const uint8_t id[16])
{
	return footer->crc == footer_sum(footer, id);
}

/* --- item --------------------------------------------------------------------------------- */

uint32_t
layout_item_bytes(const struct item *item, uint64_t room)
{
	uint64_t bytes = ITEM_HEADER;

	if (room < bytes || item_key_size(item) == 0)
		return 0;
	bytes += item_key_size(item) + item_value_size(item);
	if (bytes > room)
		return 0;
	if (item_has_trailer(item)) {
		if (bytes == room)
			return 0;

		uint8_t kinds = item_kinds(item);

		if (kinds == 0 || (kinds & ~(ITEM_FLAGS | ITEM_CAS | ITEM_STALE | ITEM_KEY_BINARY)))
			return 0;
		bytes += item_trailer_size(kinds, 0);
	}
	return bytes <= room ? (uint32_t)bytes : 0;
}

uint32_t
layout_record_bytes(uint32_t item_bytes)
{
	return (item_bytes + LAYOUT_ITEM_SUM + ITEM_ALIGN - 1) & ~(ITEM_ALIGN - 1);
}

void
layout_item_seal(struct item *item, uint32_t bytes, const uint8_t id[16], uint64_t sequence)
{
	uint32_t crc = crc32c(layout_seed(id, sequence), item, bytes);
	uint8_t *end = (uint8_t *)item + bytes;

	memcpy(end, &crc, sizeof crc);
	memset(end + sizeof crc, 0, layout_record_bytes(bytes) - bytes - sizeof crc);
}

bool
layout_item_valid(const struct item *item, uint64_t room, const uint8_t id[16], uint64_t sequence)
{
	uint32_t bytes = layout_item_bytes(item, room), crc;

	if (bytes == 0 || room - bytes < sizeof crc)
		return false;
	memcpy(&crc, (const uint8_t *)item + bytes, sizeof crc);
	return crc == crc32c(layout_seed(id, sequence), item, bytes);
}

void
layout_filler_make(void *at, uint32_t bytes)
{
	struct item *item = at;

	memset(at, 0, bytes);
	item->cas_low = bytes;
}

uint32_t
layout_record_at(const void *at, uint64_t room, uint32_t *item_bytes)
{
	const struct item *item = at;
	uint32_t record;

	*item_bytes = 0;
	if (room < ITEM_HEADER)
		return 0;
	if (item->sizes == 0) {
		record = item->cas_low;
		if (item->cas_high != 0 || item->soft != 0 || item->expiry != 0 ||
			record < ITEM_HEADER || record % ITEM_ALIGN != 0 || record > room)
			return 0;
		return record;
	}
	*item_bytes = layout_item_bytes(item, room);
	if (*item_bytes == 0)
		return 0;
	record = layout_record_bytes(*item_bytes);
	if (record <= room)
		return record;
	*item_bytes = 0;
	return 0;
}
