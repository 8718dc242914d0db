/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The store's own structs, for its three files: store.c (life and look-ups), change.c (writes),
 * upkeep.c (what memory and index ask of the items' owner, background work).
 */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include "base/counters.h"
#include "index/index.h"
#include "memory/memory.h"
#include "store/store.h"

#include <stdatomic.h>

struct store {
	struct store_options options;
	struct index *index;
	struct memory *memory;
	struct memory_arena arena; /* a copy: constant once made */
	struct classes classes;
	uint64_t seed;
	uint32_t pieces_max;
	/* The next unreserved CAS number; threads take blocks of CAS_BLOCK. */
	_Atomic uint64_t cas_next;
	/*
	 * When a delayed flush is due, 0: none. Whoever changes it from due to 0 opens the epoch.
	 */
	_Atomic uint64_t flush_at_ns;
	/*
	 * The grower has been woken and has not gone back to sleep: workers need not wake it again.
	 */
	_Atomic bool grow_awake;
};

#define CAS_BLOCK 1024

struct store_thread {
	struct store *store;
	struct memory_thread *memory;
	struct counters *counters;
	unsigned number;
	uint32_t random; /* xorshift state */
	uint64_t cas_next, cas_end;
	uint64_t now_ns;
	uint32_t now_s;
	uint32_t turns;
	/* pieces_max numbers: the list of one large value, read out of or into a trailer */
	uint32_t *segments;
};

/*
 * The thread whose turn this is. memory's and index's call-backs name no thread, but they run
 * inside the turn of one: its counters and its number as a writer are meant.
 */
struct store_thread *store_self(void);

/* 32 bits of the thread's own random numbers. */
uint32_t store_random(struct store_thread *thread);

/* The place and the standing of an item that an entry leads to. */
enum store_found store_judge(
	const struct store_thread *thread, const struct item *item, uint32_t segment);
void store_view_fill(const struct store *store, struct store_view *view, uint64_t entry,
	_Atomic uint64_t *slot, uint64_t bucket);

static inline const struct item *
store_item(const struct store *store, uint64_t entry)
{
	return memory_address(
		&store->arena, bucket_entry_segment(entry), bucket_entry_offset(entry));
}

/*
 * Counts an item in (sign 1) or out (-1) of the statistics by size class; gives the class. For
 * whoever knows but the item; change.c counts by what it has at hand.
 */
uint32_t store_account(struct store_thread *thread, const struct item *item, int sign);

/*
 * Counts an item whose memory serves again because it had expired or was flushed; id is its class.
 */
void store_count_reclaimed(struct store_thread *thread, const struct item *item, uint32_t id);

/* Reads a large item's segment list into thread->segments. */
uint32_t store_large_list(struct store_thread *thread, const struct item *item);

extern const struct memory_items store_memory_items;
extern const struct index_keys store_index_keys;

#endif
