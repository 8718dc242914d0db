/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A dumb owner of items for tests of memory: keys are the numbers 0 to n - 1, an array of entries
 * stands for the index, a spin lock a key for the bucket's. Values are made from key and version,
 * so that whoever reads can tell whether the bytes are right.
 */
#ifndef TESTS_MODEL_MEMORY_STORE_H
#define TESTS_MODEL_MEMORY_STORE_H

#include "memory/memory.h"

#include <stdatomic.h>

#define STORE_NAMED (1ull << 63)

struct store_key {
	_Atomic uint64_t entry; /* named 1 | reads 4 | segment 22 | offset 20; 0 none */
	atomic_flag lock;
	uint32_t version; /* under the lock: of the last set */
	uint32_t size;	  /* item's bytes in its segment */
	uint32_t expiry;
	uint32_t epoch;
	bool must_live; /* set and neither deleted, flushed, expired nor evicted */
};

struct store {
	struct memory *memory;
	const struct memory_arena *arena;
	struct store_key *keys;
	uint32_t keys_count;
	bool evict;
	bool light; /* set after store_open: values are neither written nor verified */
	_Atomic uint64_t moves, drops[3];
	_Atomic uint32_t *now_s; /* the fake clock, for checks */
};

extern const struct memory_items store_items;

/* Fills in options: items, and a limit. The caller sets the rest before store_open. */
void store_options(struct memory_options *options, struct store *store, uint64_t limit_bytes,
	unsigned workers);
void store_open(struct store *store, const struct memory_options *options, uint32_t keys_count);
void store_close(struct store *store);

/*
 * Sets a key to a value of so many bytes (large ones in bodies). Gives memory's answer; after
 * MEMORY_WAIT this thread sets the same again before any other.
 */
enum memory_status store_set(struct store *store, struct memory_thread *thread, uint32_t key,
	uint64_t value_bytes, uint32_t expiry_s, bool main, uint32_t now_s);
/* Gives up a set that waits. */
void store_set_abort(struct store *store);
void store_delete(struct store *store, uint32_t key);
/*
 * Verifies the bytes and counts a read as the index does: exact to 4, then ever rarer. False on a
 * miss.
 */
bool store_get(struct store *store, uint32_t key, uint32_t now_s);
/*
 * Pins the key's item beyond the turn: NULL when there is none or pins are refused. It must still
 * be whole when it is given back. Items with bodies aren't pinned.
 */
const void *store_pin(struct store *store, uint32_t key);
void store_unpin(struct store *store, uint32_t key, const void *pinned);
/* Its hash, as memory gets it for the ghost. */
uint64_t store_hash(uint32_t key);
/* The segment that the key's item stands in, 0 none. */
uint32_t store_segment(struct store *store, uint32_t key);

/*
 * At rest: every entry stands on an item of its own key, no two overlap; memory's live bytes are
 * exactly the items'. Aborts with a line when not.
 */
void store_check(struct store *store);
/* Bytes of named items. */
uint64_t store_live_bytes(struct store *store);

/* Runs background work until there is none. */
void store_settle(struct store *store, struct memory_thread *background, uint32_t now_s);

/* xorshift64*, and a float in [0, 1). */
uint64_t store_random(uint64_t *state);
double store_random_unit(uint64_t *state);

#endif
