/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * index: hash -> location, for items of every tier. It knows no keys, no clock and no tier: an
 * entry is eight bytes, and whoever looks something up verifies the item behind it.
 *
 * Layout, entries and the lock-free reading protocol are in bucket_hd.h, which device code compiles
 * too.
 *
 * Threads. Readers (any thread registered with liburcu-qsbr and on line) take no lock. A writer
 * locks one bucket; only a split takes two, lower number first. Overflow units are freed after a
 * grace period. Memory order: entries are published by release and read by acquire; the version is
 * bumped between the store of a moved entry's new place and the clearing of its old.
 */
#ifndef INDEX_INDEX_H
#define INDEX_INDEX_H

#include "index/bucket_hd.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index;

/*
 * What the index must ask the owner of the items. Called under bucket locks; must not call back
 * into the index.
 */
struct index_keys {
	/*
	 * The full hash of the key behind an entry, into *hash; false when the key isn't at hand
	 * (an item on flash).
	 */
	bool (*hash)(void *context, uint64_t entry, uint64_t *hash);
	/*
	 * May start loading the item behind an entry that may be stale, and nothing else. NULL:
	 * don't. Called without locks.
	 */
	void (*prefetch)(void *context, uint64_t entry);
};

/*
 * One write's effect: the buckets that it changed, as they now stand (still locked; walk the chain
 * with bucket_hd.h).
 */
struct index_change {
	uint32_t count;
	struct {
		uint64_t number;
		const struct bucket *bucket;
		uint32_t version; /* that this change will publish */
	} at[2];
};

/*
 * Follows all changes: the GPU's mirror is one, the models' shadow index another. Never called for
 * 'reads' bumps.
 */
struct index_observer {
	/*
	 * Under the bucket locks of the change, before they are released. writer: as given to
	 * index_lock or index_grow.
	 */
	void (*changed)(void *context, unsigned writer, const struct index_change *change);
	/*
	 * The table now has this many buckets; the change that filled the newest was reported
	 * before, the trimmed old one after.
	 */
	void (*grown)(void *context, uint64_t buckets);
};

/*
 * Entries a bucket at which memory and time meet their limits, averaged over a round of growth:
 * 11.53 bytes an object (at most 12) and 1.279 lines a hit (at most 1.3). At 7.5 it is 11.22 and
 * 1.336, at 6.5 11.94 and 1.227 (tests/model/index_cost.c).
 */
#define INDEX_LOAD 7.0

struct index_options {
	uint64_t buckets_initial; /* rounded up to a power of two, at least 64 */
	/* Address range reserved for buckets and overflow units together; 32 GiB at most. */
	uint64_t bytes_max;
	double entries_per_bucket; /* grows above this average: INDEX_LOAD */
	const struct index_keys *keys;
	void *keys_context;
	const struct index_observer *observer; /* NULL: none */
	void *observer_context;
};

/* NULL with errno set when the address range can't be had. */
struct index *index_create(const struct index_options *options);
void index_destroy(struct index *index);

/*
 * Shared by host and device code: base addresses and size of the table (see bucket_hd.h). Lives as
 * long as the index.
 */
static inline const struct bucket_table *
index_table(const struct index *index)
{
	/* It stands first in struct index; index.c asserts that. */
	return (const struct bucket_table *)(const void *)index;
}

/* --- reading: lock-free, the calling thread is a reader ----------------------------------- */

/*
 * A look-up in progress. Use:
 *	index_find_begin(index, hash, &find);
 *	do
 *		while ((entry = index_find_next(&find)))
 *			if (the item behind entry has the key)
 *				hit: find.slot, find.number and find.version are its place
 *	while (index_find_again(&find));	(true: the bucket changed meanwhile, scan anew)
 */
struct index_find {
	uint64_t number;	/* of the home bucket */
	_Atomic uint64_t *slot; /* of the entry last returned */
	uint32_t version;	/* of the bucket when the scan began */
	/* private */
	const struct index *index;
	struct bucket_find at;
};

/* Counts a scan that has to be made anew, and begins it. */
void index_find_restart(struct index_find *find);

static inline void
index_find_begin(const struct index *index, uint64_t hash, struct index_find *find)
{
	find->index = index;
	find->slot = NULL;
	bucket_find_begin(&find->at, index_table(index), hash);
	find->number = find->at.number;
	find->version = find->at.version;
}

static inline uint64_t
index_find_next(struct index_find *find)
{
	uint64_t entry = bucket_find_next(&find->at);

	find->slot = find->at.slot;
	return entry;
}

static inline bool
index_find_again(struct index_find *find)
{
	if (__builtin_expect(bucket_find_is_current(&find->at), 1))
		return false;
	index_find_restart(find);
	return true;
}

/*
 * A result found earlier (by an accelerator, or in this batch): true while the bucket is still home
 * and unchanged.
 */
static inline bool
index_hint_holds(const struct index *index, uint64_t hash, uint64_t number, uint32_t version)
{
	const struct bucket_table *table = index_table(index);
	uint32_t bits;

	return bucket_home(hash, hd_load_acquire(&table->count), &bits) == number &&
	       bucket_header_version(hd_load_acquire(&table->buckets[number].header)) == version;
}

/* Starts loading the home bucket's line. */
static inline void
index_prefetch(const struct index *index, uint64_t hash)
{
	const struct bucket_table *table = index_table(index);
	uint32_t bits;

	__builtin_prefetch(
		&table->buckets[bucket_home(hash, hd_load_relaxed(&table->count), &bits)]);
}

/*
 * The counter after one more read: exact to 4, then from r to r + 1 with probability 2^(3-r), by
 * 'random' (any 32 random bits).
 */
static inline uint32_t
index_reads_more(uint32_t reads, uint32_t random)
{
	if (reads == BUCKET_READS_MAX || (reads >= 4 && (random & ((1u << (reads - 3)) - 1)) != 0))
		return reads;
	return reads + 1;
}

/*
 * Counts a read in the entry's 4-bit counter, if the slot still holds the entry, whatever its reads
 * are by now. One relaxed compare-exchange of the whole entry; failure is ignored.
 */
static inline void
index_count_read(_Atomic uint64_t *slot, uint64_t entry, uint32_t random)
{
	uint64_t now = atomic_load_explicit(slot, memory_order_relaxed);
	uint32_t reads = bucket_entry_reads(now), more = index_reads_more(reads, random);

	if (((now ^ entry) & ~BUCKET_READS_MASK) != 0 || more == reads)
		return;
	atomic_compare_exchange_strong_explicit(slot, &now, now + (1ull << BUCKET_READS_SHIFT),
		memory_order_relaxed, memory_order_relaxed);
}

/* --- writing: under the bucket's lock ----------------------------------------------------- */

/* A locked home bucket. Scan with index_locked_next; slots are valid until unlock. */
struct index_locked {
	struct index *index;
	uint64_t hash;
	uint64_t number;
	unsigned writer;
	bool changed;
	/* private */
	bool removed; /* the chain may have holes that unlocking must close */
	struct bucket *bucket;
	struct bucket_find at;
};

/*
 * Locks the hash's home bucket (re-checks the home after locking). writer: this thread's number, 0
 * to 255.
 */
void index_lock(struct index *index, uint64_t hash, unsigned writer, struct index_locked *locked);
/*
 * The same for who has looked the key up in this turn and found the bucket with this number and
 * version. True: nothing has changed since, so what was found, or that nothing was, still holds; no
 * scan has begun then, index_locked_rewind does it. False: as after index_lock.
 */
bool index_lock_found(struct index *index, uint64_t hash, unsigned writer, uint64_t number,
	uint32_t version, struct index_locked *locked);

/*
 * Next slot whose tag matches, its entry in *entry; NULL at the end. index_locked_rewind starts
 * over.
 */
_Atomic uint64_t *index_locked_next(struct index_locked *locked, uint64_t *entry);
void index_locked_rewind(struct index_locked *locked);

/*
 * Changes. 'entry' is made by bucket_entry_make without a tag: the index sets it. Replace keeps the
 * slot and, unless reads are given, the reads counter as it stands: a read that is counted at that
 * very instant is lost, as one whose compare-exchange fails. Insert gives false when no overflow
 * unit can be had. Remove clears.
 */
void index_locked_replace(struct index_locked *locked, _Atomic uint64_t *slot, uint64_t entry,
	int reads /* -1: keep */);
bool index_locked_insert(struct index_locked *locked, uint64_t entry, unsigned reads);
void index_locked_remove(struct index_locked *locked, _Atomic uint64_t *slot);

/* Publishes the new version if anything changed, tells the observer, unlocks. */
void index_unlock(struct index_locked *locked);

/* --- growth and upkeep -------------------------------------------------------------------- */

/*
 * How many splits the table lacks, 0 for none. Cheap: workers ask once a turn. A few entries are
 * counted late.
 */
uint64_t index_growth_lack(const struct index *index);

static inline bool
index_wants_growth(const struct index *index)
{
	return index_growth_lack(index) != 0;
}

/*
 * Splits up to 'splits' buckets. One thread at a time grows (others get false at once). False when
 * nothing is left to do. Each split holds two bucket locks for a few microseconds; the longest is
 * in the statistics. Every seventh insertion asks for a split: a worker that helps by fewer doesn't
 * keep up with its own inserts.
 */
bool index_grow(struct index *index, unsigned splits, unsigned writer);

/*
 * Makes the overflow units that were taken out of chains usable again, after waiting for a grace
 * period if there are any. Called by a background thread that holds no reference (as a reader it is
 * quiescent inside); never by a worker.
 */
void index_reclaim_units(struct index *index);

/* How many units wait for index_reclaim_units. Cheap: workers ask once a turn. */
uint64_t index_units_retired(const struct index *index);

/*
 * Makes resident what growth will need next, at most a huge page of buckets and one of units a
 * call: clearing one can take a millisecond, which nobody who inserts or helps should wait for.
 * Called by the background thread before it grows.
 */
void index_touch_ahead(struct index *index);

struct index_stats {
	uint64_t entries;
	uint64_t buckets;
	uint64_t buckets_initial;
	uint64_t overflow_units;
	uint64_t bytes; /* resident: buckets in use and overflow units */
	uint64_t splits;
	uint64_t split_ns_max; /* the most of its CPU that one split took under its locks */
	uint64_t
		split_wall_ns_max; /* the same by the wall: with what else the core did meanwhile */
	uint64_t doublings;
	/* 1 when flash tags have no bits left, or the address range is full. */
	uint64_t growth_stopped;
	uint64_t retries; /* look-ups that had to scan anew */
};

/* Resident bytes, as in the statistics. */
uint64_t index_bytes(const struct index *index);

/* A consistent enough picture; takes no lock. */
void index_get_stats(const struct index *index, struct index_stats *stats);

/*
 * Calls visit for every entry present during the whole walk, until it gives false; an entry that
 * growth moves meanwhile may be visited once more. Holds one bucket lock at a time; visit must not
 * call the index. For dumps, checks and tests.
 */
void index_walk(struct index *index, unsigned writer, bool (*visit)(void *context, uint64_t entry),
	void *context);

/*
 * Clears every entry that 'match' is true for, each under its bucket's lock, while others read and
 * write; gives how many. match must not call the index.
 */
uint64_t index_purge(struct index *index, unsigned writer,
	bool (*match)(void *context, uint64_t entry), void *context);

/* --- the whole table as bytes: image.c ---------------------------------------------------- */

/* What is needed beside the bytes of buckets and units. All zero but for these. */
struct index_image {
	uint64_t bits_initial;
	uint64_t buckets;
	uint64_t units_made, units_free, units_in_chains; /* free: the first of a list */
	uint64_t tag_bits_lost;
	uint64_t entries;
};

/* Memory of the table: page-aligned, whole pages. */
struct index_part {
	void *data;
	uint64_t bytes;
};
#define INDEX_PARTS 2

/*
 * The table as it stands: no other thread uses it until the parts have been copied. Gives the number
 * of parts.
 */
uint32_t index_image_get(
	struct index *index, struct index_image *image, struct index_part parts[INDEX_PARTS]);
/*
 * Where an image's parts go, in an index that was made with its bits_initial and holds nothing yet.
 * 0: it doesn't fit, or makes no sense.
 */
uint32_t index_image_begin(
	struct index *index, const struct index_image *image, struct index_part parts[INDEX_PARTS]);
/*
 * The parts are filled: the index is the image's. false: what came makes no sense; the index is to
 * be destroyed.
 */
bool index_image_end(struct index *index, const struct index_image *image);

#endif
