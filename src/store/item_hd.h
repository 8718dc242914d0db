/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * item: how a key and its value stand in memory, on flash and in the GPU's mirror. The same bytes
 * everywhere; both compilers read this header.
 *
 *	 0               4       6       8               12              16
 *	+---------------+-------+-------+---------------+---------------+----------+-----------+-----------+
 *	| cas, low 32   | cas   | soft  | expiry        | sizes         | key      | value     | trailer   |
 *	|               | 32-47 |       | Unix s, 0 no  | k 8 v 23 t 1  | k bytes  | v bytes   | where t=1 |
 *	+---------------+-------+-------+---------------+---------------+----------+-----------+-----------+
 *
 *	sizes:	bits 0-7 key length, 8-30 value length, 31 'a trailer follows'
 *	soft:	bit 15 fetched, bit 14 win sent, bits 0-13 seconds from the segment's opening to the last access, floating
 *		(4 bits exponent, 10 mantissa: exact to 1023, within 1/1024 to 388 days, then held there: it never wraps)
 *	trailer: one byte of kinds, then what the kinds say, in this order, unaligned:
 *		FLAGS u32 client flags | CAS u64 | FLASH u64 place | LARGE u64 value length, u32 n, n times u32 segment number
 *		STALE and KEY_BINARY are bits alone.
 *	A LARGE item's header says value length 0: the value stands in the listed segments, each
 *	full but the last.
 *
 * Items start on 16-byte boundaries of their segment. In a sealed segment only 'soft' ever changes:
 * time and fetched by one relaxed compare-exchange of the word whose failure is ignored, win by
 * compare-exchange under the bucket's lock, because it must be handed out exactly once.
 */
#ifndef STORE_ITEM_HD_H
#define STORE_ITEM_HD_H

#include "base/hd.h"
#include "base/short_hd.h"

#include <stddef.h>
#include <stdint.h>

#define ITEM_ALIGN 16u
#define ITEM_HEADER 16u
#define ITEM_VALUE_MAX ((1u << 23) - 1)
#define ITEM_CAS_MAX ((1ull << 48) - 1)

#define ITEM_SOFT_FETCHED 0x8000u
#define ITEM_SOFT_WIN 0x4000u
#define ITEM_SOFT_TIME 0x3fffu

enum item_kind {
	ITEM_FLAGS = 1 << 0,
	ITEM_CAS = 1 << 1,
	ITEM_FLASH = 1 << 2,
	ITEM_LARGE = 1 << 3,
	ITEM_STALE = 1 << 4,
	ITEM_KEY_BINARY = 1 << 5,
};

struct item {
	uint32_t cas_low;
	uint16_t cas_high;
	uint16_t soft;
	uint32_t expiry;
	uint32_t sizes;
};

HD_FUNCTION uint32_t
item_key_size(const struct item *item)
{
	return item->sizes & 0xff;
}

HD_FUNCTION uint32_t
item_value_size(const struct item *item)
{
	return (item->sizes >> 8) & ITEM_VALUE_MAX;
}

HD_FUNCTION int
item_has_trailer(const struct item *item)
{
	return (int)(item->sizes >> 31);
}

HD_FUNCTION const uint8_t *
item_key(const struct item *item)
{
	return (const uint8_t *)item + ITEM_HEADER;
}

HD_FUNCTION const uint8_t *
item_value(const struct item *item)
{
	return item_key(item) + item_key_size(item);
}

HD_FUNCTION const uint8_t *
item_trailer(const struct item *item)
{
	return item_value(item) + item_value_size(item);
}

HD_FUNCTION uint8_t
item_kinds(const struct item *item)
{
	return item_has_trailer(item) ? *item_trailer(item) : 0;
}

/* Bytes of a trailer with these kinds (0 for none); segments: entries of a large value's list. */
HD_FUNCTION uint32_t
item_trailer_size(uint8_t kinds, uint32_t segments)
{
	uint32_t size = kinds != 0;

	size += kinds & ITEM_FLAGS ? 4 : 0;
	size += kinds & ITEM_CAS ? 8 : 0;
	size += kinds & ITEM_FLASH ? 8 : 0;
	size += kinds & ITEM_LARGE ? 12 + 4 * segments : 0;
	return size;
}

/* Where a kind's field stands in the trailer; the caller has seen its bit. */
HD_FUNCTION const uint8_t *
item_trailer_field(const uint8_t *trailer, uint8_t kind)
{
	uint8_t before = (uint8_t)(*trailer & (kind - 1) & (ITEM_FLAGS | ITEM_CAS | ITEM_FLASH));

	return trailer + 1 + (before & ITEM_FLAGS ? 4 : 0) + (before & ITEM_CAS ? 8 : 0) +
	       (before & ITEM_FLASH ? 8 : 0);
}

HD_FUNCTION uint32_t
item_client_flags(const struct item *item)
{
	uint32_t flags = 0;

	if (item_kinds(item) & ITEM_FLAGS)
		hd_copy(&flags, item_trailer_field(item_trailer(item), ITEM_FLAGS), 4);
	return flags;
}

HD_FUNCTION uint64_t
item_cas(const struct item *item)
{
	uint64_t cas = (uint64_t)item->cas_high << 32 | item->cas_low;

	if (item_kinds(item) & ITEM_CAS)
		hd_copy(&cas, item_trailer_field(item_trailer(item), ITEM_CAS), 8);
	return cas;
}

/* The length of the value, wherever it stands. */
HD_FUNCTION uint64_t
item_value_length(const struct item *item)
{
	uint64_t length = item_value_size(item);

	if (item_kinds(item) & ITEM_LARGE)
		hd_copy(&length, item_trailer_field(item_trailer(item), ITEM_LARGE), 8);
	return length;
}

/* Segments of a large value, 0 for others. Their numbers: item_large_segment(item, 0 ..). */
HD_FUNCTION uint32_t
item_large_count(const struct item *item)
{
	uint32_t count = 0;

	if (item_kinds(item) & ITEM_LARGE)
		hd_copy(&count, item_trailer_field(item_trailer(item), ITEM_LARGE) + 8, 4);
	return count;
}

HD_FUNCTION uint32_t
item_large_segment(const struct item *item, uint32_t i)
{
	uint32_t segment;

	hd_copy(&segment, item_trailer_field(item_trailer(item), ITEM_LARGE) + 12 + 4 * (size_t)i,
		4);
	return segment;
}

/* Bytes that the item takes in its segment, a multiple of ITEM_ALIGN. */
HD_FUNCTION uint32_t
item_size(const struct item *item)
{
	uint32_t size = ITEM_HEADER + item_key_size(item) + item_value_size(item);

	size += item_has_trailer(item) ? item_trailer_size(item_kinds(item), item_large_count(item))
				       : 0;
	return (size + ITEM_ALIGN - 1) & ~(ITEM_ALIGN - 1);
}

HD_FUNCTION int
item_has_key(const struct item *item, const uint8_t *key, uint32_t key_size)
{
	return item_key_size(item) == key_size && short_equal(item_key(item), key, key_size);
}

/* Expired at this instant? now_s: whole Unix seconds that have passed. */
HD_FUNCTION int
item_expired(const struct item *item, uint32_t now_s)
{
	return item->expiry != 0 && item->expiry <= now_s;
}

HD_FUNCTION uint32_t
item_soft_seconds(uint16_t soft)
{
	uint32_t exponent = (soft & ITEM_SOFT_TIME) >> 10, mantissa = soft & 0x3ff;

	return exponent == 0 ? mantissa : (1024 + mantissa) << (exponent - 1);
}

HD_FUNCTION uint16_t
item_soft_time(uint32_t seconds)
{
	uint32_t exponent = 0;

	if (seconds < 1024)
		return (uint16_t)seconds;
	if (seconds >= 2047u << 14)
		return ITEM_SOFT_TIME;
	while (seconds >> exponent >= 2048)
		exponent++;
	return (uint16_t)((exponent + 1) << 10 | ((seconds >> exponent) & 0x3ff));
}

#endif
