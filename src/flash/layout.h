/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * layout: the bytes of a flash store, little-endian. Readers: the daemon, halcyonctl flash.
 *
 *	file 0	+-------+-------+---------+----------+----------+--
 *		| super | super | journal | region 0 | region n |	n: number of files; regions are
 *		| 0     | 32 Ki | 64 Ki   | data_offset         |	striped over the files
 *		+-------+-------+---------+----------+----------+--
 *	others	the same without a journal: data_offset is 64 Ki there too
 *
 *	region	+--------+-------------+-------------+--     --+------------------+---------+
 *		| header | append      | append      |  unused | footer's entries | trailer |
 *		| 4 Ki   | n * 4 Ki    | n * 4 Ki    |         | 16 B each        | 64 B    |
 *		+--------+-------------+-------------+--     --+------------------+---------+
 *
 *	append	+--------+------+------+------+--     --+
 *		| header | item | item | item |  zeros  |	items on 16-byte boundaries, none crosses
 *		| 32 B   |      |      |      |         |	into the next append
 *		+--------+------+------+------+--     --+
 *
 *	item	the bytes of store/item_hd.h (no segment list, no flash place), then their CRC-32C, then
 *		zeros up to 16
 *
 * Positions. A region has a new sequence number each time it is opened, larger than all before. The
 * position of an item is sequence << 20 | offset in units of 16 bytes from the region's beginning:
 * 56 bits, rising in the order in which the log was written.
 *
 * Checksums are CRC-32C, begun with a seed made of the format's id and the region's sequence (see
 * layout_seed), so that bytes of another format or of an old life of the region are never believed.
 */
#ifndef FLASH_LAYOUT_H
#define FLASH_LAYOUT_H

#include <stdint.h>

#define FLASH_VERSION 1
#define FLASH_BLOCK 4096u
#define FLASH_SUPER_SECOND 32768u /* offset of the second copy */
#define FLASH_DATA_OFFSET 65536u  /* of the journal in file 0, of regions in the others */
#define FLASH_REGION_BYTES_MAX (16u << 20)
#define FLASH_REGION_BYTES_MIN (256u << 10)
#define FLASH_OFFSET_BITS 20
#define FLASH_POSITION_MAX ((1ull << 56) - 1)
#define FLASH_VOID_ALL (FLASH_POSITION_MAX + 1)
#define FLASH_SEQUENCE_MAX ((1ull << 36) - 1) /* 16 PiB written with the smallest regions */
#define FLASH_REGIONS_MAX (3u << 20)	      /* leaves the index a million segments for DRAM */
#define FLASH_JOURNAL_BLOCKS_MIN 16u
#define FLASH_JOURNAL_BLOCKS_MAX 262144u /* 1 GiB */

#define FLASH_SUPER_MAGIC 0x534e4f59434c4148ull /* "HALCYONS" */
#define FLASH_REGION_MAGIC 0x524e4f59434c4148ull
#define FLASH_FOOTER_MAGIC 0x464e4f59434c4148ull
#define FLASH_APPEND_MAGIC 0x44505041u	/* "APPD" */
#define FLASH_JOURNAL_MAGIC 0x4c4e524au /* "JRNL" */

enum flash_state {
	FLASH_IN_USE = 1, /* a daemon runs on it, or ended uncleanly */
	FLASH_CLEAN = 2,  /* the snapshot holds the whole index */
};

enum flash_journal_mode { FLASH_JOURNAL_SYNC, FLASH_JOURNAL_ASYNC, FLASH_JOURNAL_OFF };

/*
 * One block, two copies on each file, written in turn; the valid one with the larger generation
 * counts. What is behind 'state' is of file 0 alone.
 */
struct flash_super {
	uint64_t magic;
	uint32_t version;
	uint32_t crc;	/* of the block with this 0, seed 0 */
	uint8_t id[16]; /* random, made by formatting: the same on all files */
	uint64_t generation;
	uint16_t file, file_count; /* this one's number */
	uint32_t region_bytes;	   /* a power of two */
	uint64_t file_bytes;	   /* of this file */
	uint64_t data_offset;	   /* of this file's first region */
	uint32_t file_regions;	   /* in this file */
	uint32_t regions;	   /* in all files */
	uint32_t journal_blocks;   /* from FLASH_DATA_OFFSET of file 0 */
	uint32_t pad;
	uint64_t hash_seed;
	uint64_t formatted_s; /* Unix */

	uint32_t state;	       /* enum flash_state */
	uint32_t journal_mode; /* of the daemon that runs or ran on it */
	uint64_t
		sequence_next; /* at least: larger than all that were given before it was written */
	uint64_t cas_next;     /* CAS numbers below may have been given */
	/*
	 * Whatever stands at a lower position is void. The largest of all files' counts: where file
	 * 0 can't be written any more, the others may. FLASH_VOID_ALL: everything.
	 */
	uint64_t void_below;
	/* What was superseded below may have left no record: void after an unclean stop. */
	uint64_t unjournaled_below;
	uint64_t flush_position; /* flush_all: items at lower positions are dead */
	uint64_t flush_at_ns;	 /* a delayed flush_all, Unix; 0: none */
	uint64_t flushes;	 /* how many there were */
	/*
	 * Items below this position that expire at or before this time were left out by a recovery,
	 * and are dead though the clock be set back.
	 */
	uint64_t expired_below;
	uint64_t expired_s; /* Unix */
	/* FLASH_CLEAN: the snapshot, in whole regions one after the other in order of sequence */
	uint64_t snapshot_sequence; /* of its first region; 0: none */
	uint64_t snapshot_bytes;
	uint32_t snapshot_regions;
	uint32_t snapshot_crc;	  /* of its bytes, seeded by snapshot_sequence */
	uint64_t objects;	  /* items that the snapshot names */
	uint32_t snapshot_region; /* number of its first region */
	uint32_t pad2;
};

enum flash_region_kind { FLASH_REGION_DATA = 1, FLASH_REGION_SNAPSHOT = 2, FLASH_REGION_FREE = 3 };

/* First block of a region. Written durably before anything of its new life. */
struct flash_region_header {
	uint64_t magic;
	uint32_t version;
	uint32_t crc; /* of the block with this 0, seeded by sequence */
	uint8_t id[16];
	uint64_t sequence;
	uint32_t kind;	   /* enum flash_region_kind; FREE: its old content is void */
	uint32_t opened_s; /* Unix: what its items' soft times count from */
};

struct flash_append_header {
	uint32_t magic;
	uint32_t crc;	/* of 'bytes' bytes with this 0, seeded by sequence */
	uint32_t bytes; /* of the append, this header and the zeros at its end included */
	uint32_t items;
	uint64_t sequence;
	uint32_t offset; /* in the region, bytes: a multiple of FLASH_BLOCK */
	uint32_t pad;
};

/*
 * Where an append can't hold an item (it was given up after its place was reserved, or sectors are
 * spared), a filler stands: an item's header of zeros but for cas_low, the filler's bytes.
 */

/* In the order of offsets. */
struct flash_footer_entry {
	uint64_t hash;
	uint32_t place;	 /* bits 0-19 offset in units of 16 bytes, 20-25 size class (bucket_hd.h) */
	uint32_t expiry; /* Unix s, 0: none */
};

/* The last 64 bytes of a sealed region; its entries end where it begins. */
struct flash_footer {
	uint64_t magic;
	uint64_t sequence;
	uint32_t entries;
	uint32_t used; /* bytes of the region up to the end of its last append */
	uint32_t crc;  /* of the entries and of this with it 0, seeded by sequence */
	uint32_t pad[9];
};

enum flash_record_kind {
	FLASH_RECORD_KEY = 1,	/* 'what' is a key's hash: its copies at lower positions are dead */
	FLASH_RECORD_PLACE = 2, /* 'what' is a position: the item there is dead */
	FLASH_RECORD_REGION = 3, /* 'what' is a sequence: the region's content is void */
	FLASH_RECORD_NUMBER =
		4, /* 'what' is a region's number: its content of lower sequences is */
};

struct flash_record {
	uint64_t what;
	uint64_t kind_position; /* bits 56-63 kind, 0-55 the log's reserved tail at that time */
};

#define FLASH_JOURNAL_RECORDS ((FLASH_BLOCK - 32) / 16)

/*
 * A block of the journal's ring. While it isn't full it is written again with more records, in turn
 * to two neighbouring places of the ring, so that a torn write loses no acknowledged record. Order
 * and duplicates don't matter: a record says for itself what it kills. A block is void when all
 * regions whose copies its records could kill are gone: 'position' is the largest of its records.
 */
struct flash_journal_block {
	uint32_t magic;
	uint32_t crc;	 /* of the block with this 0, seeded by 0 (that is, by the format's id) */
	uint64_t number; /* rises with each write */
	uint64_t position;
	uint32_t count;
	uint32_t pad;
	struct flash_record records[FLASH_JOURNAL_RECORDS];
};

_Static_assert(sizeof(struct flash_journal_block) <= FLASH_BLOCK, "a block");
_Static_assert(sizeof(struct flash_super) <= FLASH_BLOCK, "a block");
_Static_assert(sizeof(struct flash_append_header) == 32, "32 bytes");
_Static_assert(sizeof(struct flash_footer) == 64, "64 bytes");
_Static_assert(sizeof(struct flash_footer_entry) == 16, "16 bytes");

/* The value that a checksum begins with: layout.c. */
uint32_t layout_seed(const uint8_t id[16], uint64_t sequence);

static inline uint64_t
flash_position_make(uint64_t sequence, uint32_t offset)
{
	return sequence << FLASH_OFFSET_BITS | offset;
}

static inline uint64_t
flash_position_sequence(uint64_t position)
{
	return position >> FLASH_OFFSET_BITS;
}

static inline uint32_t
flash_position_offset(uint64_t position)
{
	return (uint32_t)position & ((1u << FLASH_OFFSET_BITS) - 1);
}

#endif
