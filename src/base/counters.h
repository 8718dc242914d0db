/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * counters: what a worker counts. Each thread owns one struct and is its only writer; statistics
 * add them up with relaxed reads, so no counter is shared between threads and a sum is never torn.
 * Rows are in counters.def.
 */
#ifndef BASE_COUNTERS_H
#define BASE_COUNTERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* memcached's slab classes, by which 'stats items' and 'stats slabs' speak */
#define SIZE_CLASSES 64

struct counters {
#define COUNTER(name, stat, sentence) _Atomic uint64_t name;
#include "base/counters.def"
#undef COUNTER
	/*
	 * of items by memcached's size class; number and bytes may be negative in one thread: only
	 * the sums mean something
	 */
	struct {
		_Atomic uint64_t number, bytes, get_hits, cmd_set, delete_hits, incr_hits,
			decr_hits, cas_hits, cas_badval, touch_hits, evicted, evicted_unfetched,
			evicted_nonzero, expired_unfetched, reclaimed, outofmemory;
	} classes[SIZE_CLASSES];
} __attribute__((aligned(128)));

/* Adds to a counter of the calling thread's own struct. */
static inline void
counter_add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
		memory_order_relaxed);
}

static inline uint64_t
counter_get(const _Atomic uint64_t *counter)
{
	return atomic_load_explicit(counter, memory_order_relaxed);
}

#endif
