/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * table: what index.c, chain.c and grow.c share: the table's state, a bucket's lock, its chain.
 * Private to the module.
 *
 * Only the holder of a bucket's lock changes its header, its chain, and its entries but for their
 * reads.
 */
#ifndef INDEX_TABLE_H
#define INDEX_TABLE_H

#include "index/index.h"

#include <sched.h>
#include <stdalign.h>

#define INDEX_WRITERS 256
#define INDEX_LINE 64
#define INDEX_FOLD 16 /* entries that a writer counts for itself before it adds them to the sum */
#define INDEX_SPLIT_SCRATCH                                                                        \
	512 /* entries of a chain whose side a split remembers; longer ones are asked twice */

struct index_writer {
	alignas(INDEX_LINE) _Atomic int64_t entries; /* not yet folded into index.entries */
};

struct index {
	struct bucket_table table; /* first: see index_table */
	const struct index_keys *keys;
	void *keys_context;
	const struct index_observer *observer; /* NULL: none */
	void *observer_context;
	uint8_t *area;
	uint64_t area_bytes;
	uint64_t load_256ths; /* entries a bucket above which the table grows, times 256 */

	/*
	 * Written by many. Stacks: unit number in the low half, a count of changes in the high one,
	 * against reuse.
	 */
	alignas(INDEX_LINE) _Atomic uint64_t
		space_used; /* bytes of the area given out from both ends */
	_Atomic uint64_t units_made;
	_Atomic uint64_t units_in_chains;
	_Atomic uint64_t units_free; /* stack */
	_Atomic uint64_t
		units_retired; /* stack: taken out of chains, readers may still be in them */
	_Atomic uint64_t units_retired_count;
	alignas(INDEX_LINE) _Atomic int64_t entries;
	alignas(INDEX_LINE) _Atomic uint64_t retries;

	/* The growing thread's. */
	alignas(INDEX_LINE) _Atomic uint32_t growing;
	_Atomic uint32_t tags_exhausted;
	_Atomic uint64_t splits;
	_Atomic uint64_t split_ns_max, split_wall_ns_max;
	/* Bytes from the area's beginning and from its end whose pages are there. */
	_Atomic uint64_t buckets_touched, units_touched;
	uint64_t scratch[INDEX_SPLIT_SCRATCH];

	struct index_writer writers[INDEX_WRITERS];
};

static inline void
index_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

/* Returns the header as it stands, locked. */
static inline uint64_t
bucket_lock(struct bucket *bucket)
{
	for (unsigned turn = 1;; turn++) {
		uint64_t header = atomic_load_explicit(&bucket->header, memory_order_relaxed);

		if (!bucket_header_is_locked(header) &&
			atomic_compare_exchange_weak_explicit(&bucket->header, &header, header | 1,
				memory_order_acquire, memory_order_relaxed))
			return header | 1;
		if (turn % 64 == 0)
			sched_yield(); /* the holder may have been preempted */
		else
			index_pause();
	}
}

/* Under the lock: stays locked. What was stored before is seen by whoever sees the new version. */
static inline void
bucket_bump(struct bucket *bucket)
{
	uint64_t header = atomic_load_explicit(&bucket->header, memory_order_relaxed);

	atomic_store_explicit(&bucket->header, header + (1ull << 32), memory_order_release);
}

static inline void
bucket_unlock(struct bucket *bucket, bool changed)
{
	uint64_t header = atomic_load_explicit(&bucket->header, memory_order_relaxed);

	atomic_store_explicit(&bucket->header, (header & ~1ull) + ((uint64_t)changed << 32),
		memory_order_release);
}

/*
 * True for one that nobody has changed yet: looking only, since locking it would make its page
 * resident.
 */
static inline bool
bucket_is_untouched(const struct bucket *bucket)
{
	uint64_t any = atomic_load_explicit(&bucket->header, memory_order_relaxed);

	for (unsigned i = 0; i < BUCKET_ENTRIES && any == 0; i++)
		any = atomic_load_explicit(&bucket->entries[i], memory_order_relaxed);
	return any == 0;
}

/* Tells the observer of one bucket's change, which unlocking will publish as 'version'. */
void index_tell(struct index *index, unsigned writer, uint64_t number, uint32_t version);

/* True when no split can be made any more. */
bool index_growth_stopped(const struct index *index);

/* Adds to the count of entries. */
void index_count_entries(struct index *index, unsigned writer, int64_t more);

/* --- chain.c: a locked bucket's entries and units ----------------------------------------- */

/* Goes over all slots of a locked bucket, empty ones included, links not. */
struct chain_walk {
	struct index *index;
	_Atomic uint64_t *words;
	uint32_t count;
	uint32_t position;
	uint32_t link;
};

void chain_walk_begin(struct chain_walk *walk, struct index *index, struct bucket *bucket);
_Atomic uint64_t *chain_walk_next(struct chain_walk *walk);

/*
 * An empty slot of the bucket, from a new unit if need be; NULL when there is no room for one. A
 * new unit is all empty.
 */
_Atomic uint64_t *chain_free_slot(struct index *index, struct bucket *bucket);

/*
 * Closes holes: moves entries from the first unit into the bucket and the other units, and takes
 * emptied units out. Afterwards only the first unit has empty slots, and none if the bucket itself
 * has.
 */
void chain_compact(struct index *index, struct bucket *bucket);

/* Takes all units out of a bucket that no reader has seen yet. */
void chain_drop(struct index *index, struct bucket *bucket);

/* Takes bytes of the area; false when it is full. */
bool index_take_space(struct index *index, uint64_t bytes);

#endif
