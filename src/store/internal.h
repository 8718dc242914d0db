/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The store's own structs, for its three files: store.c (life and look-ups), change.c (writes),
 * upkeep.c (what memory and index ask of the items' owner, background work), flash.c (items on
 * flash: finding, promoting, what flash asks), flash_open.c (start and stop of flash).
 */
#ifndef STORE_INTERNAL_H
#define STORE_INTERNAL_H

#include "base/counters.h"
#include "flash/flash.h"
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
	struct flash *flash; /* NULL: none */
	/* What flash's buffers hold; and since when it has been too busy to take items, Unix, 0: not. */
	_Atomic uint64_t flash_bytes, flash_busy_ns;
	_Atomic uint64_t flash_progress; /* the device's, when that was noted */
	uint64_t flash_objects_found;	 /* at the start: counted by the first background thread */
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
	struct flash_thread *flash; /* NULL: this thread reads nothing there */
	struct store_held *held;    /* of the present request; NULL: none */
	struct flash_loan *spent;   /* of requests whose replies are on their way */
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

static inline bool
store_on_flash(const struct store *store, uint64_t entry)
{
	return bucket_entry_segment(entry) >= store->arena.segments_max;
}

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

/* --- flash.c --- */

enum store_candidate {
	CANDIDATE_OTHER,   /* another key's, or nothing that can be read */
	CANDIDATE_MATCH,   /* *loan has the key's item */
	CANDIDATE_PENDING, /* it is on its way */
	CANDIDATE_FAILED,  /* perhaps the key's: it can't be read */
};

/*
 * What a flash entry with the key's tag is, by what the present request holds; where that isn't
 * known yet, the item begins to be read. On line; a bucket may be locked.
 */
enum store_candidate store_flash_candidate(struct store_thread *thread, uint64_t entry,
	const uint8_t *key, uint32_t key_size, struct flash_loan **loan);
/* The view of an item in a loan, and its standing. */
void store_flash_view(const struct store *store, struct store_view *view, uint64_t entry,
	_Atomic uint64_t *slot, uint64_t bucket, const struct flash_loan *loan);
enum store_found store_flash_judge(
	const struct store_thread *thread, const struct item *item, uint64_t position);
/* Position of the copy on flash that an item of DRAM was made from; 0: it has none (any more). */
uint64_t store_flash_origin(const struct store *store, const struct item *item);
/*
 * Before a change of a key with a copy at 'position', under its bucket's lock: STORE_DONE: go on.
 * STORE_WAIT, STORE_REFUSED: not now, not ever.
 */
enum store_status store_flash_kill(
	struct store_thread *thread, enum flash_record_kind kind, uint64_t what, uint64_t position);
/* Copies an item that was read there to DRAM if it is worth that; it keeps its place on flash. */
void store_flash_promote(struct store_thread *thread, const struct store_view *view);
/*
 * Under the bucket's lock, 'slot' names the item at this place of DRAM, which has to leave: it goes
 * to flash, if it may. MEMORY_DROPPED: it may not; nothing was changed.
 */
enum memory_dropped store_flash_stage(struct store_thread *thread, struct index_locked *locked,
	_Atomic uint64_t *slot, uint64_t entry, const struct item *item);
/*
 * A flushed item has to leave: its copy on flash is named again, because a crash may come before the
 * flush is durable, and what is stored under the key meanwhile must find what it supersedes.
 */
enum memory_dropped store_flash_flushed(struct store_thread *thread, struct index_locked *locked,
	_Atomic uint64_t *slot, uint64_t entry, const struct item *item);
/*
 * An expired item leaves memory, its copy on flash unnamed: that one dies, should clocks ever go
 * back. Nobody waits for it.
 */
void store_flash_forget(struct store_thread *thread, const struct item *item, uint64_t hash);
extern const struct flash_items store_flash_items;

/* --- flash_open.c --- */

/* Makes store->flash; false with a line in options.error, or errno. */
bool store_flash_open(struct store *store);

/* --- upkeep.c --- */

/* What index and flash hold counts against -m. */
void store_report_outside(struct store *store);
/* The slot of a locked bucket that names this place, NULL when none does. */
_Atomic uint64_t *store_slot_of_place(
	struct index_locked *locked, uint32_t segment, uint32_t offset, uint64_t *entry);

/* --- store.c --- */

uint64_t store_choose_buckets(const struct store *store);
struct index *store_make_index(struct store *store, uint64_t buckets);

/* Reads a large item's segment list into thread->segments. */
uint32_t store_large_list(struct store_thread *thread, const struct item *item);

extern const struct memory_items store_memory_items;
extern const struct index_keys store_index_keys;

#endif
