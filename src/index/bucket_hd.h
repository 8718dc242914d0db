/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * bucket: how the index stands in memory, and the lock-free way to look something up in it. The
 * same bytes in host memory and in the GPU's mirror; both compilers read this header.
 *
 * A bucket is one cache line; overflow units are half a line each, chained newest first, under the
 * bucket's lock and version:
 *
 *	 0        8                                               64
 *	+--------+------+------+------+------+------+------+------+
 *	| header | e0   | e1   | e2   | e3   | e4   | e5   | e6   |     bucket
 *	+--------+------+------+------+------+------+------+------+
 *	    | link
 *	    v
 *	+------+------+------+------+     +------+------+------+------+
 *	| e0   | e1   | e2   | link | --> | e0   | e1   | e2   | e3   |   units: the chain's last
 *	+------+------+------+------+     +------+------+------+------+   one has four entries
 *
 *	header	bits 63-32 version | 31-1 link (number of the first unit, 0: none) | 0 lock
 *	entry	bits 63-52 tag | 51-48 reads | 47-42 size class | 41-20 segment |
 *		19-0 offset (units of 16 bytes)
 *	link	an entry whose segment is all ones: bits 52-42 and 19-0 are the next unit's number
 *	empty	an entry whose segment is 0 (no segment has that number); readers ignore its other
 *		bits, which link freed units
 *
 * Buckets grow up from the beginning of one address range, units down from its end: unit n stands
 * at units_end - n.
 *
 * Home and tag. The table has n buckets, 2^d <= n < 2^(d+1). A hash's home is its lowest d+1 bits,
 * or its lowest d bits if there is no such bucket yet. A bucket whose number took b bits of the
 * hash has tags of the next twelve: bits b to b+11. Growing by one bucket splits bucket n - 2^d by
 * bit d into itself and bucket n: b grows by one in both, and entries whose key is at hand get a
 * new tag. The others' tags move down by one bit: the lowest was the one that chose the side, and
 * the highest becomes 0. Such a tag is compared without the bits that it may have lost, four at
 * most.
 *
 * Reading. Load the bucket count, then the header, then entries (all acquire), and verify the item
 * behind each match. A miss is sure if afterwards version, home and b are what they were; else scan
 * anew. What writers promise (see index.c):
 *	- an entry that moves is stored at its new place, the version is bumped, then the old
 *	  place is cleared;
 *	- a split fills the new bucket, publishes the bucket count, bumps the old bucket's
 *	  version, and only then changes tags and clears there, all under both locks. A reader who
 *	  sees the new count and the old bucket still locked takes either tag.
 */
#ifndef INDEX_BUCKET_HD_H
#define INDEX_BUCKET_HD_H

#include "base/hd.h"

#include <stddef.h>
#include <stdint.h>

#define BUCKET_ENTRIES 7
#define BUCKET_UNIT_ENTRIES 4
#define BUCKET_TAG_BITS 12
#define BUCKET_TAG_LOST_MAX 4 /* bits that a tag may lose, one a doubling */
#define BUCKET_READS_MAX 15
#define BUCKET_SEGMENT_MAX ((1u << 22) - 2) /* numbers 1 to this */
#define BUCKET_OFFSET_MAX ((1u << 20) - 1)
#define BUCKET_CLASS_UNKNOWN 63u /* the size must be read from the item's header */

struct bucket {
	hd_atomic64 header;
	hd_atomic64 entries[BUCKET_ENTRIES];
};

struct bucket_unit {
	hd_atomic64 entries[BUCKET_UNIT_ENTRIES];
};

/*
 * The table as readers see it. The host's lives in the index; a device makes its own from sampled
 * values.
 */
struct bucket_table {
	struct bucket *buckets;
	struct bucket_unit *units_end; /* unit n is units_end[-n] */
	uint64_t bits_initial;	       /* the start size was 2^this */
	hd_atomic64 count;	       /* buckets */
	/* The most that a tag may have lost; 0 as long as every key was at hand. */
	hd_atomic64 tag_bits_lost;
};

/* --- fields ------------------------------------------------------------------------------- */

#define BUCKET_TAG_SHIFT 52
#define BUCKET_READS_SHIFT 48
#define BUCKET_CLASS_SHIFT 42
#define BUCKET_SEGMENT_SHIFT 20
#define BUCKET_TAG_MASK (0xfffull << BUCKET_TAG_SHIFT)
#define BUCKET_READS_MASK (0xfull << BUCKET_READS_SHIFT)
#define BUCKET_SEGMENT_MASK (0x3fffffull << BUCKET_SEGMENT_SHIFT)
#define BUCKET_PLACE_MASK ((1ull << BUCKET_CLASS_SHIFT) - 1)

/* An entry without tag and reads, as the index's functions take it. */
HD_FUNCTION uint64_t
bucket_entry_make(uint32_t segment, uint32_t offset, uint32_t size_class)
{
	return (uint64_t)size_class << BUCKET_CLASS_SHIFT |
	       (uint64_t)segment << BUCKET_SEGMENT_SHIFT | offset;
}

HD_FUNCTION uint32_t
bucket_entry_tag(uint64_t entry)
{
	return (uint32_t)(entry >> BUCKET_TAG_SHIFT);
}

HD_FUNCTION uint32_t
bucket_entry_reads(uint64_t entry)
{
	return (uint32_t)(entry >> BUCKET_READS_SHIFT) & 0xf;
}

HD_FUNCTION uint32_t
bucket_entry_class(uint64_t entry)
{
	return (uint32_t)(entry >> BUCKET_CLASS_SHIFT) & 0x3f;
}

HD_FUNCTION uint32_t
bucket_entry_segment(uint64_t entry)
{
	return (uint32_t)(entry >> BUCKET_SEGMENT_SHIFT) & 0x3fffff;
}

/* In units of 16 bytes. */
HD_FUNCTION uint32_t
bucket_entry_offset(uint64_t entry)
{
	return (uint32_t)entry & BUCKET_OFFSET_MAX;
}

/* Do both name the same place, whatever their tags, reads and classes? */
HD_FUNCTION int
bucket_entry_same_place(uint64_t a, uint64_t b)
{
	return ((a ^ b) & BUCKET_PLACE_MASK) == 0;
}

HD_FUNCTION int
bucket_entry_is_empty(uint64_t entry)
{
	return (entry & BUCKET_SEGMENT_MASK) == 0;
}

HD_FUNCTION int
bucket_entry_is_link(uint64_t entry)
{
	return (entry & BUCKET_SEGMENT_MASK) == BUCKET_SEGMENT_MASK;
}

/* A unit's number (31 bits) spread over an entry's fields around the segment. */
HD_FUNCTION uint64_t
bucket_number_spread(uint32_t unit)
{
	return (uint64_t)(unit >> 20) << BUCKET_CLASS_SHIFT | (unit & BUCKET_OFFSET_MAX);
}

HD_FUNCTION uint32_t
bucket_number_gather(uint64_t entry)
{
	return (uint32_t)(entry >> BUCKET_CLASS_SHIFT & 0x7ff) << 20 | bucket_entry_offset(entry);
}

HD_FUNCTION uint64_t
bucket_link_make(uint32_t unit)
{
	return BUCKET_SEGMENT_MASK | bucket_number_spread(unit);
}

HD_FUNCTION int
bucket_header_is_locked(uint64_t header)
{
	return (int)(header & 1);
}

HD_FUNCTION uint32_t
bucket_header_link(uint64_t header)
{
	return (uint32_t)header >> 1;
}

HD_FUNCTION uint32_t
bucket_header_version(uint64_t header)
{
	return (uint32_t)(header >> 32);
}

HD_FUNCTION uint64_t
bucket_header_make(uint32_t version, uint32_t link, int locked)
{
	return (uint64_t)version << 32 | (uint64_t)link << 1 | (uint64_t)locked;
}

/*
 * Size classes: code 4 * (k - 4) + j is (1 + j/4) * 2^k + 128 bytes, k from 4 to 19, so 144 bytes
 * to 768 KiB and 128 bytes. The smallest class that holds 'bytes', or BUCKET_CLASS_UNKNOWN above
 * the largest.
 */
HD_FUNCTION uint32_t
bucket_class_of(uint64_t bytes)
{
	uint64_t above, code;
	uint32_t k;

	if (bytes <= 144)
		return 0;
	above = bytes - 128;
	k = hd_log2(above);
	if (k > 19)
		return BUCKET_CLASS_UNKNOWN;
	/* Quarters of 2^k, rounded up; four of them are the next k's first class. */
	code = 4 * (k - 4) + ((above - (1ull << k) + (1ull << (k - 2)) - 1) >> (k - 2));
	return code < BUCKET_CLASS_UNKNOWN ? (uint32_t)code : BUCKET_CLASS_UNKNOWN;
}

/* Bytes of a class; 0 for BUCKET_CLASS_UNKNOWN. */
HD_FUNCTION uint32_t
bucket_class_bytes(uint32_t size_class)
{
	if (size_class >= BUCKET_CLASS_UNKNOWN)
		return 0;
	return ((4 + (size_class & 3)) << (2 + size_class / 4)) + 128;
}

/*
 * The reads that a counter stands for: exact to 4, then each step above r took 2^(r-3) reads on
 * average (see index_count_read). 15 is about 4098.
 */
HD_FUNCTION uint32_t
bucket_reads_estimate(uint32_t reads)
{
	return reads <= 4 ? reads : 2 + (1u << (reads - 3));
}

/* --- home and tag ------------------------------------------------------------------------- */

/*
 * The home bucket of a hash in a table of 'count' buckets, and how many bits of the hash its number
 * took.
 */
HD_FUNCTION uint64_t
bucket_home(uint64_t hash, uint64_t count, uint32_t *bits)
{
	uint32_t d = hd_log2(count);
	uint64_t low = 1ull << d, number = hash & (2 * low - 1);

	if (number >= count)
		number -= low;
	/* Buckets below the split pointer and those that splits made took a bit more. */
	*bits = d + ((number & (low - 1)) < count - low);
	return number;
}

/* The bits that a bucket's number took, in a table of 'count'. */
HD_FUNCTION uint32_t
bucket_bits(uint64_t number, uint64_t count)
{
	uint32_t bits;

	bucket_home(number, count, &bits);
	return bits;
}

/* The bucket that the newest one was split from. */
HD_FUNCTION uint64_t
bucket_newest_parent(uint64_t count)
{
	return count - 1 - (1ull << hd_log2(count - 1));
}

HD_FUNCTION uint32_t
bucket_tag(uint64_t hash, uint32_t bits)
{
	return (uint32_t)(hash >> bits) & 0xfff;
}

/* Can this entry's tag, which lost 'lost' bits at most, come from a hash with 'tag'? */
HD_FUNCTION int
bucket_tag_fits(uint64_t entry, uint32_t tag, uint32_t lost)
{
	uint32_t have = bucket_entry_tag(entry);

	for (uint32_t s = 0; s <= lost; s++)
		if (have == (tag & (0xfffu >> s)))
			return 1;
	return 0;
}

HD_FUNCTION struct bucket_unit *
bucket_unit_at(const struct bucket_table *table, uint32_t number)
{
	return table->units_end - number;
}

/* --- looking up --------------------------------------------------------------------------- */

/* A look-up in progress; index_find in index.h is the host's way to use it. */
struct bucket_find {
	const struct bucket_table *table;
	uint64_t hash;
	uint64_t number;    /* home bucket */
	hd_atomic64 *words; /* being scanned: a bucket with its header, or a unit */
	hd_atomic64 *slot;  /* of the entry last returned */
	uint32_t version;   /* of the bucket when the scan began */
	uint32_t bits;
	uint32_t tag;
	uint32_t
		tag_before; /* differs while the bucket is being split: entries may have this one */
	uint32_t lost;
	uint32_t link;	  /* next unit */
	uint32_t matches; /* bit i: words[i] has the tag and hasn't been returned yet */
};

/*
 * Which of 'count' words have the tag, bit i for words[i]. The vector form gives what the scalar
 * one gives; it is left out where a thread sanitizer must see each load, and on devices, which
 * compare one word a lane.
 */
HD_FUNCTION uint32_t
bucket_match_scalar(const hd_atomic64 *words, uint32_t count, uint32_t tag)
{
	uint32_t matches = 0;

	for (uint32_t i = 0; i < count; i++)
		matches |= (uint32_t)(bucket_entry_tag(hd_load_acquire(&words[i])) == tag) << i;
	return matches;
}

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define BUCKET_SCALAR 1
#endif
#endif
#if defined(__SSE2__) && !defined(__CUDACC__) && !defined(__SANITIZE_THREAD__) &&                  \
	!defined(BUCKET_SCALAR)
#define BUCKET_VECTOR 1

typedef int bucket_vector __attribute__((vector_size(16), may_alias));

HD_FUNCTION uint32_t
bucket_match_vector(const hd_atomic64 *words, uint32_t count, uint32_t tag)
{
	const bucket_vector *from = (const bucket_vector *)(const void *)words;
	const bucket_vector wanted = {
		(int)(tag << 20), (int)(tag << 20), (int)(tag << 20), (int)(tag << 20)};
	uint32_t matches = 0;

	/*
	 * Aligned 8-byte halves of a 16-byte load are each atomic on x86, and its loads stay in
	 * order.
	 */
	for (uint32_t i = 0; i < count; i += 4) {
		bucket_vector a = from[i / 2], b = from[i / 2 + 1];
		bucket_vector high = __builtin_shufflevector(a, b, 1, 3, 5, 7);
		bucket_vector same = ((high ^ wanted) & (int)0xfff00000) == 0;

		matches |= (uint32_t)__builtin_ia32_movmskps(
				   (__attribute__((vector_size(16))) float)same)
			   << i;
	}
	__asm__ volatile("" ::: "memory");
	return matches;
}
#endif

HD_FUNCTION uint32_t
bucket_match(const hd_atomic64 *words, uint32_t count, uint32_t tag)
{
#ifdef BUCKET_VECTOR
	return bucket_match_vector(words, count, tag);
#else
	return bucket_match_scalar(words, count, tag);
#endif
}

/* Does this entry fit the look-up's tag, in all its forms? */
HD_FUNCTION int
bucket_find_fits(const struct bucket_find *find, uint64_t entry)
{
	return bucket_tag_fits(entry, find->tag, find->lost) ||
	       bucket_tag_fits(entry, find->tag_before, find->lost);
}

/* Which words have the tag, or what is left of it when it lost bits. */
HD_FUNCTION uint32_t
bucket_match_lost(const hd_atomic64 *words, uint32_t count, uint32_t tag, uint32_t lost)
{
	uint32_t matches = bucket_match(words, count, tag);

	for (uint32_t s = 1; s <= lost; s++)
		matches |= bucket_match(words, count, tag & (0xfffu >> s));
	return matches;
}

HD_FUNCTION uint32_t
bucket_find_match(const struct bucket_find *find, const hd_atomic64 *words, uint32_t count)
{
	uint32_t matches = 0;

	if (find->tag == find->tag_before)
		return bucket_match_lost(words, count, find->tag, find->lost);
	for (uint32_t i = 0; i < count; i++)
		matches |= (uint32_t)bucket_find_fits(find, hd_load_acquire(&words[i])) << i;
	return matches;
}

/*
 * Starts a scan of the home bucket, whose number, bits and header the caller has loaded, in this
 * order.
 */
HD_FUNCTION void
bucket_find_scan(struct bucket_find *find, uint64_t count, uint64_t header)
{
	struct bucket *bucket = &find->table->buckets[find->number];

	find->version = bucket_header_version(header);
	find->link = bucket_header_link(header);
	find->tag = find->tag_before = bucket_tag(find->hash, find->bits);
	if (bucket_header_is_locked(header) && find->number == bucket_newest_parent(count))
		find->tag_before = bucket_tag(find->hash, find->bits - 1);
	find->lost = (uint32_t)hd_load_acquire(&find->table->tag_bits_lost);
	find->words = &bucket->header;
	/* Word 0 is the header. */
	find->matches = bucket_find_match(find, find->words, 1 + BUCKET_ENTRIES) & ~1u;
	find->slot = 0;
}

HD_FUNCTION void
bucket_find_begin(struct bucket_find *find, const struct bucket_table *table, uint64_t hash)
{
	uint64_t count = hd_load_acquire(&table->count);

	find->table = table;
	find->hash = hash;
	find->number = bucket_home(hash, count, &find->bits);
	bucket_find_scan(find, count, hd_load_acquire(&table->buckets[find->number].header));
}

/* The next entry with the tag, in find->slot; 0 at the end of the chain. */
HD_FUNCTION uint64_t
bucket_find_next(struct bucket_find *find)
{
	for (;;) {
		while (find->matches != 0) {
			hd_atomic64 *slot = find->words + hd_lowest_bit(find->matches);
			uint64_t entry = hd_load_acquire(slot);

			find->matches &= find->matches - 1;
			if (bucket_entry_is_empty(entry) || bucket_entry_is_link(entry) ||
				!bucket_find_fits(find, entry))
				continue;
			find->slot = slot;
			return entry;
		}
		if (find->link == 0)
			return 0;
		find->words = bucket_unit_at(find->table, find->link)->entries;
		uint64_t last = hd_load_acquire(&find->words[BUCKET_UNIT_ENTRIES - 1]);
		find->link = bucket_entry_is_link(last) ? bucket_number_gather(last) : 0;
		find->matches = bucket_find_match(find, find->words, BUCKET_UNIT_ENTRIES);
	}
}

/* After a miss: is it sure? All loads of the scan were acquire, so these come after them. */
HD_FUNCTION int
bucket_find_is_current(const struct bucket_find *find)
{
	uint32_t bits;
	uint64_t number = bucket_home(find->hash, hd_load_acquire(&find->table->count), &bits);
	uint64_t header = hd_load_acquire(&find->table->buckets[find->number].header);

	return number == find->number && bits == find->bits &&
	       bucket_header_version(header) == find->version;
}

#endif
