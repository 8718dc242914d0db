/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * grow: linear hashing, one bucket at a time. Bucket n - 2^d is split into itself and the new
 * bucket n, by bit d of the hashes:
 *
 *	lock both | fill the new one | publish the count | bump the old one's version |
 *	change tags and clear there | close holes | unlock
 *
 * A reader with the old count who sees a changed or cleared slot sees the new count too, and scans
 * anew. A reader with the new count finds what has moved in the new bucket, and takes either tag in
 * the old one as long as it is locked (bucket_find_scan).
 */
#include "index/table.h"

#include "base/check.h"

#include <time.h>

/* What a split makes of an entry: its word afterwards, without reads; and whether it moves. */
struct split_side {
	uint64_t entry;
	bool moves;
	bool keyless; /* the side came from the tag */
};

#define SPLIT_LONG_NS 50000 /* a split takes a few thousand */

static uint64_t
clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool
index_growth_stopped(const struct index *index)
{
	return atomic_load_explicit(&index->tags_exhausted, memory_order_relaxed) != 0 ||
	       atomic_load_explicit(&index->space_used, memory_order_relaxed) +
			       sizeof(struct bucket) >
		       index->area_bytes;
}

uint64_t
index_growth_lack(const struct index *index)
{
	int64_t entries = atomic_load_explicit(&index->entries, memory_order_relaxed);
	uint64_t count = atomic_load_explicit(&index->table.count, memory_order_relaxed);

	if (entries <= 0 || (uint64_t)entries * 256 <= count * index->load_256ths ||
		index_growth_stopped(index))
		return 0;

	uint64_t wanted =
		index->load_256ths != 0 ? (uint64_t)entries * 256 / index->load_256ths : count;

	return wanted > count ? wanted - count : 1;
}

/* The side of an entry when the bucket goes from 'bits' to one more. */
static struct split_side
split_side_of(struct index *index, uint64_t number, uint32_t bits, uint64_t entry)
{
	struct split_side side = {.entry = entry & ~(BUCKET_TAG_MASK | BUCKET_READS_MASK)};
	uint64_t hash, tag;

	if (index->keys->hash(index->keys_context, entry, &hash)) {
		check((hash & ((1ull << bits) - 1)) == number);
		side.moves = hash >> bits & 1;
		tag = bucket_tag(hash, bits + 1);
	} else {
		side.keyless = true;
		side.moves = bucket_entry_tag(entry) & 1;
		tag = bucket_entry_tag(entry) >> 1;
	}
	side.entry |= tag << BUCKET_TAG_SHIFT;
	return side;
}

/*
 * The n-th entry's side. The first ones are remembered: its word, with what isn't the tag or the
 * place turned into two flags in the place of reads. Asking twice gives the same answer, since the
 * bucket is locked.
 */
static struct split_side
split_side_again(struct index *index, uint64_t number, uint32_t bits, uint64_t entry, uint64_t n)
{
	if (n >= INDEX_SPLIT_SCRATCH)
		return split_side_of(index, number, bits, entry);

	uint64_t word = index->scratch[n];

	return (struct split_side){word & ~BUCKET_READS_MASK, bucket_entry_reads(word) & 1,
		bucket_entry_reads(word) & 2};
}

/*
 * Copies what moves into the new bucket. False: no unit could be had, or a tag has no bit left;
 * nobody has seen the copies.
 */
static bool
split_copy(struct index *index, uint64_t old, uint32_t bits, struct bucket *new)
{
	uint32_t doublings = bits + 1 - (uint32_t)index->table.bits_initial;
	struct chain_walk walk;
	_Atomic uint64_t *slot;
	uint64_t n = 0;
	bool keyless = false;

	chain_walk_begin(&walk, index, &index->table.buckets[old]);
	while ((slot = chain_walk_next(&walk)) != NULL) {
		uint64_t entry = atomic_load_explicit(slot, memory_order_relaxed);

		if (bucket_entry_is_empty(entry))
			continue;

		struct split_side side = split_side_of(index, old, bits, entry);

		if (n < INDEX_SPLIT_SCRATCH)
			index->scratch[n] = side.entry | (uint64_t)(side.moves | side.keyless << 1)
								 << BUCKET_READS_SHIFT;
		n++;
		if (side.keyless && doublings > BUCKET_TAG_LOST_MAX) {
			atomic_store_explicit(&index->tags_exhausted, 1, memory_order_relaxed);
			return false;
		}
		keyless |= side.keyless;
		if (!side.moves)
			continue;

		_Atomic uint64_t *to = chain_free_slot(index, new);

		if (to == NULL)
			return false;
		atomic_store_explicit(
			to, side.entry | (entry & BUCKET_READS_MASK), memory_order_release);
	}
	/* Before the count, so that whoever sees the count compares accordingly. */
	if (keyless &&
		atomic_load_explicit(&index->table.tag_bits_lost, memory_order_relaxed) < doublings)
		atomic_store_explicit(&index->table.tag_bits_lost, doublings, memory_order_release);
	return true;
}

/* Clears what has moved, gives the rest its new tags. The version was bumped. */
static void
split_trim(struct index *index, uint64_t old, uint32_t bits)
{
	struct chain_walk walk;
	_Atomic uint64_t *slot;
	uint64_t n = 0;

	chain_walk_begin(&walk, index, &index->table.buckets[old]);
	while ((slot = chain_walk_next(&walk)) != NULL) {
		uint64_t entry = atomic_load_explicit(slot, memory_order_relaxed);

		if (bucket_entry_is_empty(entry))
			continue;

		struct split_side side = split_side_again(index, old, bits, entry, n++);

		if (side.moves) {
			atomic_store_explicit(slot, 0, memory_order_release);
			continue;
		}
		/* Only its reads can change under us. */
		while (!atomic_compare_exchange_weak_explicit(slot, &entry,
			side.entry | (entry & BUCKET_READS_MASK), memory_order_release,
			memory_order_relaxed))
			;
	}
}

/*
 * Starts loading the items that the next split will ask about, so that they are there when it holds
 * its locks.
 */
static void
split_prefetch(struct index *index, uint64_t number)
{
	struct chain_walk walk;
	_Atomic uint64_t *slot;

	if (index->keys->prefetch == NULL)
		return;
	/*
	 * Without the lock: what it meets may be stale, and a chain that grows meanwhile is no
	 * longer than this.
	 */
	chain_walk_begin(&walk, index, &index->table.buckets[number]);
	for (unsigned i = 0; i < INDEX_SPLIT_SCRATCH && (slot = chain_walk_next(&walk)) != NULL;
		i++) {
		uint64_t entry = atomic_load_explicit(slot, memory_order_relaxed);

		if (!bucket_entry_is_empty(entry) && !bucket_entry_is_link(entry))
			index->keys->prefetch(index->keys_context, entry);
	}
}

static void
note_max(_Atomic uint64_t *max, uint64_t ns)
{
	if (ns > atomic_load_explicit(max, memory_order_relaxed))
		atomic_store_explicit(max, ns, memory_order_relaxed);
}

/*
 * What a split took by the wall, and of its CPU: where threads outnumber the cores, the first has
 * what others ran meanwhile. The thread's clock is a system call, asked a second time only if it
 * matters.
 */
static void
split_note_time(struct index *index, uint64_t wall_ns, uint64_t began_cpu_ns)
{
	uint64_t ns = wall_ns;

	if (wall_ns > SPLIT_LONG_NS) {
		uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - began_cpu_ns;

		ns = cpu_ns < wall_ns ? cpu_ns : wall_ns;
	}
	note_max(&index->split_ns_max, ns);
	note_max(&index->split_wall_ns_max, wall_ns);
	atomic_fetch_add_explicit(&index->splits, 1, memory_order_relaxed);
}

/* Adds one bucket. By the growing thread alone, so the count stays. */
static bool
index_split(struct index *index, unsigned writer)
{
	struct bucket_table *table = &index->table;
	uint64_t count = atomic_load_explicit(&table->count, memory_order_relaxed);
	uint32_t bits = hd_log2(count);
	uint64_t old = count - (1ull << bits);
	struct bucket *low = &table->buckets[old], *high = &table->buckets[count];

	if (!index_take_space(index, sizeof *high))
		return false;
	/*
	 * If its page isn't there yet (see index_touch_ahead), it comes here, not under the locks.
	 */
	atomic_fetch_or_explicit(&high->header, 0, memory_order_relaxed);
	split_prefetch(index, old + 1);

	uint64_t began_cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);

	bucket_lock(low);
	uint64_t began_ns = clock_ns(CLOCK_MONOTONIC);

	atomic_store_explicit(&high->header,
		bucket_header_make(bucket_header_version(high->header) + 1, 0, 1),
		memory_order_relaxed);
	bool copied = split_copy(index, old, bits, high);

	if (copied) {
		index_tell(index, writer, count, bucket_header_version(high->header));
		atomic_store_explicit(&table->count, count + 1, memory_order_release);
		if (index->observer != NULL)
			index->observer->grown(index->observer_context, count + 1);
		bucket_bump(low);
		split_trim(index, old, bits);
		chain_compact(index, low);
		index_tell(index, writer, old, bucket_header_version(low->header) + 1);
	} else {
		for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
			atomic_store_explicit(&high->entries[i], 0, memory_order_relaxed);
		chain_drop(index, high);
		atomic_fetch_sub_explicit(&index->space_used, sizeof *high, memory_order_relaxed);
	}
	bucket_unlock(high, false);
	bucket_unlock(low, copied);
	if (copied)
		split_note_time(index, clock_ns(CLOCK_MONOTONIC) - began_ns, began_cpu_ns);
	return copied;
}

bool
index_grow(struct index *index, unsigned splits, unsigned writer)
{
	uint32_t idle = 0;
	bool more = true;

	check(writer < INDEX_WRITERS);
	if (!atomic_compare_exchange_strong_explicit(
		    &index->growing, &idle, 1, memory_order_acquire, memory_order_relaxed))
		return false;
	while (splits-- > 0 && (more = index_wants_growth(index)))
		if (!index_split(index, writer)) {
			more = false;
			break;
		}
	more = more && index_wants_growth(index);
	atomic_store_explicit(&index->growing, 0, memory_order_release);
	return more;
}
