/* SPDX-License-Identifier: BSD-2-Clause */
#include "index/index.h"

#include "base/check.h"
#include "index/table.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BUCKETS_MIN 64u
#define HUGE_BYTES (2ull << 20)
#define PAGE_BYTES 4096u
#define AHEAD_BYTES (1ull << 20) /* 16384 splits */
#define BITS_MAX 29 /* buckets at the start; homes and tags leave plenty of the hash's bits */
#define AREA_BYTES_MAX                                                                             \
	(32ull << 30) /* three thousand million entries; units' numbers have 31 bits */

_Static_assert(offsetof(struct index, table) == 0, "index_table relies on it");
_Static_assert(sizeof(struct bucket) == INDEX_LINE, "a bucket is one cache line");
_Static_assert(
	sizeof(struct bucket_unit) == INDEX_LINE / 2, "an overflow unit is half a cache line");

static uint64_t
round_up(uint64_t value, uint64_t unit)
{
	return (value + unit - 1) / unit * unit;
}

/* The whole address range at once: pages come when they are touched. */
static bool
index_map(struct index *index, uint64_t bytes_max)
{
	uint64_t bytes = round_up(bytes_max, HUGE_BYTES);
	uint8_t *area = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (area == MAP_FAILED)
		return false;

	/* Aligned, so that huge pages fit; what is left over at both ends goes back. */
	uint64_t before = (HUGE_BYTES - (uintptr_t)area % HUGE_BYTES) % HUGE_BYTES;

	if (before != 0)
		munmap(area, before);
	if (before != HUGE_BYTES)
		munmap(area + before + bytes, HUGE_BYTES - before);
	index->area = area + before;
	index->area_bytes = bytes;
	madvise(index->area, bytes, MADV_HUGEPAGE); /* where it is off: as before */
	return true;
}

struct index *
index_create(const struct index_options *options)
{
	check(options->keys != NULL);

	uint64_t wanted =
		options->buckets_initial > BUCKETS_MIN ? options->buckets_initial : BUCKETS_MIN;
	uint32_t bits = hd_log2(wanted) + ((wanted & (wanted - 1)) != 0);

	uint64_t bytes = options->bytes_max < AREA_BYTES_MAX ? options->bytes_max : AREA_BYTES_MAX;

	if (bits > BITS_MAX || bytes < (sizeof(struct bucket) << bits)) {
		errno = EINVAL;
		return NULL;
	}
	struct index *index = aligned_alloc(INDEX_LINE, round_up(sizeof *index, INDEX_LINE));

	if (index == NULL)
		return NULL;
	__builtin_memset((void *)index, 0, sizeof *index);
	if (!index_map(index, bytes)) {
		free(index);
		return NULL;
	}
	index->keys = options->keys;
	index->keys_context = options->keys_context;
	index->observer = options->observer;
	index->observer_context = options->observer_context;
	index->load_256ths = (uint64_t)(options->entries_per_bucket * 256);
	index->table.buckets = (struct bucket *)(void *)index->area;
	index->table.units_end = (struct bucket_unit *)(void *)(index->area + index->area_bytes);
	index->table.bits_initial = bits;
	atomic_store_explicit(
		&index->space_used, sizeof(struct bucket) << bits, memory_order_relaxed);
	atomic_store_explicit(&index->table.count, 1ull << bits, memory_order_release);
	return index;
}

void
index_destroy(struct index *index)
{
	if (index == NULL)
		return;
	munmap(index->area, index->area_bytes);
	free(index);
}

void
index_find_restart(struct index_find *find)
{
	/* The count is the only thing here that isn't a reader's to change. */
	struct index *index = (struct index *)find->index;

	atomic_fetch_add_explicit(&index->retries, 1, memory_order_relaxed);
	index_find_begin(index, find->at.hash, find);
}

void
index_tell(struct index *index, unsigned writer, uint64_t number, uint32_t version)
{
	if (index->observer == NULL)
		return;

	struct index_change change = {
		.count = 1, .at[0] = {number, &index->table.buckets[number], version}};

	index->observer->changed(index->observer_context, writer, &change);
}

void
index_count_entries(struct index *index, unsigned writer, int64_t more)
{
	_Atomic int64_t *own = &index->writers[writer].entries;
	int64_t now = atomic_fetch_add_explicit(own, more, memory_order_relaxed) + more;

	if (now > -INDEX_FOLD && now < INDEX_FOLD)
		return;
	atomic_fetch_sub_explicit(own, now, memory_order_relaxed);
	atomic_fetch_add_explicit(&index->entries, now, memory_order_relaxed);
}

/* --- writing ------------------------------------------------------------------------------ */

void
index_locked_rewind(struct index_locked *locked)
{
	uint64_t count = atomic_load_explicit(&locked->index->table.count, memory_order_acquire);

	bucket_find_scan(&locked->at, count,
		atomic_load_explicit(&locked->bucket->header, memory_order_relaxed));
}

/* Locks the home bucket; gives its header. All of *locked is set but for a scan. */
static inline __attribute__((always_inline)) uint64_t
lock_home(struct index *index, uint64_t hash, unsigned writer, struct index_locked *locked)
{
	struct bucket_table *table = &index->table;
	uint64_t count = atomic_load_explicit(&table->count, memory_order_acquire);

	check(writer < INDEX_WRITERS);
	for (;;) {
		uint32_t bits;
		uint64_t number = bucket_home(hash, count, &bits);
		struct bucket *bucket = &table->buckets[number];
		uint64_t header = bucket_lock(bucket), seen = count;

		/*
		 * A split holds the lock until it is done, so home and bits stay as they are now.
		 */
		count = atomic_load_explicit(&table->count, memory_order_acquire);
		if (count == seen || bucket_home(hash, count, &bits) == number) {
			locked->index = index;
			locked->hash = hash;
			locked->number = number;
			locked->writer = writer;
			locked->changed = locked->removed = false;
			locked->bucket = bucket;
			locked->at.table = table;
			locked->at.hash = hash;
			locked->at.number = number;
			locked->at.bits = bits;
			locked->at.tag = bucket_tag(hash, bits);
			return header;
		}
		bucket_unlock(bucket, false);
	}
}

void
index_lock(struct index *index, uint64_t hash, unsigned writer, struct index_locked *locked)
{
	lock_home(index, hash, writer, locked);
	index_locked_rewind(locked);
}

bool
index_lock_found(struct index *index, uint64_t hash, unsigned writer, uint64_t number,
	uint32_t version, struct index_locked *locked)
{
	uint64_t header = lock_home(index, hash, writer, locked);

	if (locked->number == number && bucket_header_version(header) == version)
		return true;
	index_locked_rewind(locked);
	return false;
}

_Atomic uint64_t *
index_locked_next(struct index_locked *locked, uint64_t *entry)
{
	*entry = bucket_find_next(&locked->at);
	return *entry != 0 ? locked->at.slot : NULL;
}

/* Tag, and reads where they are given, put to an entry made without them. */
static uint64_t
entry_complete(const struct index_locked *locked, uint64_t entry, unsigned reads)
{
	uint32_t segment = bucket_entry_segment(entry);

	check(segment != 0 && segment <= BUCKET_SEGMENT_MAX && reads <= BUCKET_READS_MAX);
	entry &= ~(BUCKET_TAG_MASK | BUCKET_READS_MASK);
	return entry | (uint64_t)locked->at.tag << BUCKET_TAG_SHIFT |
	       (uint64_t)reads << BUCKET_READS_SHIFT;
}

void
index_locked_replace(struct index_locked *locked, _Atomic uint64_t *slot, uint64_t entry, int reads)
{
	uint64_t old = atomic_load_explicit(slot, memory_order_relaxed);

	check(!bucket_entry_is_empty(old) && !bucket_entry_is_link(old));
	/* Only its reads can change under us, and a reader that counts one expects the old entry. */
	atomic_store_explicit(slot,
		entry_complete(
			locked, entry, reads >= 0 ? (unsigned)reads : bucket_entry_reads(old)),
		memory_order_release);
	locked->changed = true;
}

bool
index_locked_insert(struct index_locked *locked, uint64_t entry, unsigned reads)
{
	_Atomic uint64_t *slot = chain_free_slot(locked->index, locked->bucket);

	if (slot == NULL)
		return false;
	atomic_store_explicit(slot, entry_complete(locked, entry, reads), memory_order_release);
	index_count_entries(locked->index, locked->writer, 1);
	locked->changed = true;
	return true;
}

void
index_locked_remove(struct index_locked *locked, _Atomic uint64_t *slot)
{
	check(!bucket_entry_is_empty(atomic_load_explicit(slot, memory_order_relaxed)));
	/* A reader's compare-exchange can't bring it back: it expects the entry. */
	atomic_store_explicit(slot, 0, memory_order_release);
	index_count_entries(locked->index, locked->writer, -1);
	locked->changed = locked->removed = true;
}

void
index_unlock(struct index_locked *locked)
{
	struct bucket *bucket = locked->bucket;

	if (locked->removed)
		chain_compact(locked->index, bucket);
	if (locked->changed && locked->index->observer != NULL) {
		uint64_t header = atomic_load_explicit(&bucket->header, memory_order_relaxed);

		index_tell(locked->index, locked->writer, locked->number,
			bucket_header_version(header) + 1);
	}
	bucket_unlock(bucket, locked->changed);
	locked->bucket = NULL;
}

/* --- upkeep ------------------------------------------------------------------------------- */

void
index_walk(struct index *index, unsigned writer, bool (*visit)(void *context, uint64_t entry),
	void *context)
{
	bool more = true;

	check(writer < INDEX_WRITERS);
	for (uint64_t number = 0;
		more && number < atomic_load_explicit(&index->table.count, memory_order_acquire);
		number++) {
		struct bucket *bucket = &index->table.buckets[number];
		struct chain_walk walk;
		_Atomic uint64_t *slot;

		if (bucket_is_untouched(bucket))
			continue;
		bucket_lock(bucket);
		chain_walk_begin(&walk, index, bucket);
		while (more && (slot = chain_walk_next(&walk)) != NULL) {
			uint64_t entry = atomic_load_explicit(slot, memory_order_relaxed);

			if (!bucket_entry_is_empty(entry))
				more = visit(context, entry);
		}
		bucket_unlock(bucket, false);
	}
}

/* The next pages of one end of the area, of which 'used' bytes are in use. */
static void
touch_end(struct index *index, _Atomic uint64_t *touched, uint64_t used, bool units)
{
	uint64_t goal = round_up(used + AHEAD_BYTES, HUGE_BYTES);
	uint64_t at = atomic_load_explicit(touched, memory_order_relaxed);
	uint64_t space = atomic_load_explicit(&index->space_used, memory_order_relaxed);

	at = at > used ? at : used / PAGE_BYTES * PAGE_BYTES;
	goal = goal < at + HUGE_BYTES ? goal : at + HUGE_BYTES;
	/* No further when the ends are near each other. */
	if (at >= goal || space + goal - used > index->area_bytes)
		return;
	for (; at < goal; at += PAGE_BYTES) {
		uint8_t *page = units ? index->area + index->area_bytes - at - PAGE_BYTES
				      : index->area + at;

		/* Changes nothing, whatever stands there by now. */
		atomic_fetch_or_explicit((_Atomic uint64_t *)(void *)page, 0, memory_order_relaxed);
	}
	atomic_store_explicit(touched, at, memory_order_relaxed);
}

void
index_touch_ahead(struct index *index)
{
	uint64_t count = atomic_load_explicit(&index->table.count, memory_order_relaxed);
	uint64_t made = atomic_load_explicit(&index->units_made, memory_order_relaxed);

	touch_end(index, &index->buckets_touched, count * sizeof(struct bucket), false);
	touch_end(index, &index->units_touched, made * sizeof(struct bucket_unit), true);
}

uint64_t
index_bytes(const struct index *index)
{
	return atomic_load_explicit(&index->table.count, memory_order_relaxed) *
		       sizeof(struct bucket) +
	       atomic_load_explicit(&index->units_made, memory_order_relaxed) *
		       sizeof(struct bucket_unit);
}

void
index_get_stats(const struct index *index, struct index_stats *stats)
{
	uint64_t count = atomic_load_explicit(&index->table.count, memory_order_relaxed);
	int64_t entries = atomic_load_explicit(&index->entries, memory_order_relaxed);

	for (unsigned i = 0; i < INDEX_WRITERS; i++)
		entries += atomic_load_explicit(&index->writers[i].entries, memory_order_relaxed);
	*stats = (struct index_stats){
		.entries = entries > 0 ? (uint64_t)entries : 0,
		.buckets = count,
		.buckets_initial = 1ull << index->table.bits_initial,
		.overflow_units =
			atomic_load_explicit(&index->units_in_chains, memory_order_relaxed),
		.bytes = index_bytes(index),
		.splits = atomic_load_explicit(&index->splits, memory_order_relaxed),
		.split_ns_max = atomic_load_explicit(&index->split_ns_max, memory_order_relaxed),
		.split_wall_ns_max =
			atomic_load_explicit(&index->split_wall_ns_max, memory_order_relaxed),
		.doublings = hd_log2(count) - index->table.bits_initial,
		.growth_stopped = index_growth_stopped(index),
		.retries = atomic_load_explicit(&index->retries, memory_order_relaxed),
	};
}
