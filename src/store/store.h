/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * store: the only owner of an item's life. It puts items into memory, names them in the index,
 * decides what a key's item is at this instant (present, expired, flushed), and clears or moves
 * entries for memory's reclaim. It knows no protocol.
 *
 * Threads. Each thread that calls the store has a struct store_thread of its own, is registered
 * with liburcu-qsbr, and is on line during a turn (store_turn_begin .. store_turn_end). What a
 * look-up gives is valid until that turn ends; a turn is the pin.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "base/slice.h"
#include "flash/flash.h"
#include "store/classes.h"
#include "store/item_hd.h"

#include <stdbool.h>
#include <stdint.h>

struct counters;
struct index_observer;
struct index_stats;
struct memory_observer;
struct memory_stats;
struct memory_tuning;
struct index;
struct store;
struct store_thread;

struct store_options {
	uint64_t limit_bytes;	 /* -m: items, their bodies, index and ghost together */
	uint64_t reserve_factor; /* address range of the arena: this many times limit_bytes */
	/* threads 0 .. workers - 1 store items; further numbers are background threads */
	unsigned workers;
	uint64_t value_bytes_max; /* -I */
	bool evict;		  /* false: -M */
	bool hugepages;		  /* -L */
	bool cas;		  /* false: -C, every CAS number is 0 */
	uint64_t buckets_initial; /* 0: chosen from limit_bytes */
	bool growth;		  /* false: -o no_hashexpand */
	struct classes_options classes;
	const struct index_observer *index_observer; /* NULL: none */
	void *index_observer_context;
	const struct memory_observer *memory_observer; /* NULL: none */
	void *memory_observer_context;
	const struct memory_tuning *memory_tuning; /* NULL: memory's own; else by tests alone */
	/* memory came free or background work waits; any thread calls it */
	void (*wake)(void *context);
	void *wake_context;
	/*
	 * NULL: no flash. The daemon sets what it knows of; the store sets memory_bytes,
	 * item_bytes_max, items, recovered and wake.
	 */
	const struct flash_options *flash;
	uint32_t flash_item_bytes_min; /* key and value: shorter items don't go there */
	/* Lines of progress while flash is recovered; as flash_recovered's. */
	void (*progress)(void *context, const char *what, uint64_t done, uint64_t total);
	void *progress_context;
	/* Where one line is left about what is wrong with flash; "" for other errors. */
	char *error;
	size_t error_size;
};

/* NULL with errno set, or a line in options->error. The calling thread is no reader, or on line. */
struct store *store_create(const struct store_options *options);
/*
 * A clean stop: all other threads are gone, thread is a background one. What is in memory is copied
 * to flash, and the index saved, until the deadline (Unix ns): what isn't copied by then is dropped.
 * Without flash it does nothing. False: the next start replays the log.
 */
bool store_stop(struct store_thread *thread, uint64_t (*now_ns)(void), uint64_t deadline_ns);
void store_destroy(struct store *store);

/* number: unique, below workers for workers. counters: this thread's own, written by it alone. */
struct store_thread *store_thread_create(
	struct store *store, unsigned number, struct counters *counters);
void store_thread_destroy(struct store_thread *thread);

/* The calling thread is on line. Applies a delayed flush that is due. unix_ns: now. */
void store_turn_begin(struct store_thread *thread, uint64_t unix_ns);
/* Bounded help for reclaim and growth; everything looked up in the turn is no longer valid. */
void store_turn_end(struct store_thread *thread);

/*
 * Background work in bounded steps: reclaim and expiry (thread one), index growth and its units
 * (thread two). true: call again at once; false: sleep until wake, or until Unix second *next_s (0:
 * no deadline). The thread is on line.
 */
bool store_background_reclaim(struct store_thread *thread, uint64_t unix_ns, uint32_t *next_s);
bool store_background_grow(struct store_thread *thread);
/*
 * Flash's writing and reclaim (thread three, where there is flash). true: call again at once; false:
 * store_flash_wait, off line, until it is woken or for timeout_ms.
 */
bool store_background_flash(struct store_thread *thread, uint64_t unix_ns);
void store_flash_wait(struct store *store, int timeout_ms);
void store_flash_wake(struct store *store);
/* NULL: none. For statistics. */
struct flash *store_flash(struct store *store);

/* The hash of a key, as the index wants it. */
uint64_t store_hash(const struct store *store, const uint8_t *key, uint32_t key_size);
uint64_t store_hash_seed(const struct store *store);
struct index *store_index(struct store *store);

/* --- reading ------------------------------------------------------------------------------ */

/* STORE_PENDING: the item is being read from flash; run the stage again in a later turn. */
enum store_found { STORE_ABSENT, STORE_PRESENT, STORE_EXPIRED, STORE_FLUSHED, STORE_PENDING };

/*
 * What a request holds over the turns in which it waits for flash: items on their way, and the
 * record that its change waits for. All zero: nothing. One a slot, beside it.
 */
struct store_held {
	struct flash_loan *loans;
	struct flash_intent intent;
	bool intended; /* store_intend has nothing more to do for it */
};

/*
 * The request whose look-ups and changes follow (until the next call) holds this. NULL: nothing can
 * be held, and items on flash are absent (walks, tests without flash).
 */
void store_hold(struct store_thread *thread, struct store_held *held);
/* May it go on? false: nothing that it waits for has happened yet. Cheap. */
bool store_held_settled(const struct store_thread *thread, const struct store_held *held);
/*
 * The request is answered or given up. What it borrowed is kept until store_held_spent, because the
 * reply's pieces stand in it.
 */
void store_release(struct store_thread *thread, struct store_held *held);
/* The replies have been sent, or what was left of them pinned or copied. */
void store_held_spent(struct store_thread *thread);
/*
 * A look-up found an entry that can't be verified (ACCEL_UNVERIFIED): if it is on flash, its item
 * begins to be read, so that those of a batch are under way together.
 */
void store_ahead(struct store_thread *thread, struct store_held *held, uint64_t entry);
/*
 * A change of the key will be asked for soon, behind another request that waits: if the key has a
 * copy on flash, the record that kills it goes to the journal now, together with others'. (Should
 * nothing come of the change, the item is lost in a crash, and only then.)
 */
void store_intend(struct store_thread *thread, struct store_held *held, const uint8_t *key,
	uint32_t key_size, uint64_t hash);
/*
 * What the thread's loop sleeps on beside its front: -1 without flash; and for how long at most (-1:
 * any time). store_turn_begin settles what has come, store_turn_end pushes what was begun.
 */
int store_descriptor(const struct store_thread *thread);
int store_timeout_ms(const struct store_thread *thread);

/* An item as it stands, until the end of the turn. */
struct store_view {
	const struct item *item;
	_Atomic uint64_t *slot; /* of the index */
	uint64_t entry;
	uint64_t bucket; /* number of the home bucket */
	uint32_t segment;
	uint8_t kinds;	   /* enum item_kind bits of its trailer */
	bool main;	   /* it has left probation */
	bool flash;	   /* it stands on flash: item is in a loan of what store_hold was given */
	uint16_t soft;	   /* soft word when it was found */
	uint32_t opened_s; /* what soft's time counts from */
	uint64_t value_size;
};

/* A find result of this turn that may be used while the bucket is unchanged. */
struct store_hint {
	uint64_t number;
	uint64_t entry; /* 0: nothing found */
	_Atomic uint64_t *slot;
	uint32_t version;
};

/*
 * Finds a key's item. hint may be NULL. *stale_hint (may be NULL) says that a hint was given but no
 * longer held. Lock-free.
 */
enum store_found store_find(struct store_thread *thread, const uint8_t *key, uint32_t key_size,
	uint64_t hash, const struct store_hint *hint, struct store_view *view, bool *stale_hint);

/*
 * Counts a read: the entry's counter and the item's soft word (fetched, time). Failure of either is
 * ignored.
 */
void store_accessed(struct store_thread *thread, const struct store_view *view);

/* Both at once: finds a key's item and counts the read. */
enum store_found store_read(struct store_thread *thread, const uint8_t *key, uint32_t key_size,
	uint64_t hash, const struct store_hint *hint, struct store_view *view, bool *stale_hint);

/* Seconds since the last access, as the soft word has it. */
uint32_t store_last_access_s(const struct store_thread *thread, const struct store_view *view);

/*
 * Hands out the item's win: true for exactly one caller. Locks the bucket; false too when the item
 * has changed since it was viewed.
 */
bool store_take_win(struct store_thread *thread, const struct store_view *view, uint64_t hash);

/* Most pieces that a value can have. */
uint32_t store_pieces_max(const struct store *store);
/*
 * The value's bytes: 1 piece, or the dedicated segments of a large one. Gives the number of pieces
 * (0 for an empty value).
 */
uint32_t store_pieces(
	const struct store *store, const struct store_view *view, struct slice *pieces);

/* --- writing ------------------------------------------------------------------------------ */

enum store_action { STORE_KEEP, STORE_REPLACE, STORE_REMOVE };
enum store_status {
	STORE_DONE,
	STORE_WAIT /* run the stage again in a later turn */,
	STORE_NO_MEMORY,
	STORE_REFUSED /* flash has an older copy, and can't be told that it is dead */
};
enum store_cas { STORE_CAS_NEW, STORE_CAS_KEEP, STORE_CAS_GIVEN };

/* The item that is to be. All slices stay the caller's and need to live only during the call. */
struct store_draft {
	const struct slice *pieces; /* the value */
	uint32_t piece_count;
	uint64_t value_size; /* sum of the pieces, or the length of a body */
	/*
	 * or: dedicated segments that hold it (memory_body_borrow); the store takes them over when
	 * it gives
	 */
	const uint32_t *body;
	uint32_t body_count; /*     STORE_DONE and the action was STORE_REPLACE */
	/* or: the present item's value as it is (touch, stale: a large body isn't copied) */
	bool keep_body;
	uint32_t client_flags;
	uint32_t expiry_s;
	uint64_t cas;	    /* with STORE_CAS_GIVEN */
	uint8_t cas_policy; /* enum store_cas */
	bool stale;
	bool key_binary;
	bool keep_access; /* fetched, win and time of the present item are carried over */
	bool access_now;  /* fetched is set, as by a hit */
	bool win_sent;	  /* the win is handed out with this write (vivify) */
};

/*
 * Decides what becomes of a key. current is NULL when it is absent, expired or flushed ('found'
 * says which). Fills *draft for STORE_REPLACE (it comes zeroed). Runs under the bucket's lock: it
 * must be quick, and pure until the store answers, because a request that waits is decided again.
 */
struct store_update {
	enum store_action (*decide)(void *context, const struct store_view *current,
		enum store_found found, struct store_draft *draft);
	void *context;
	/* what a look-up of this turn found, NULL for none: nothing is scanned while it holds */
	const struct store_hint *hint;
};

/* Changes one key atomically. *cas gets the new item's CAS number (0 without one). */
enum store_status store_change(struct store_thread *thread, const uint8_t *key, uint32_t key_size,
	uint64_t hash, const struct store_update *update, uint64_t *cas);

/*
 * The same without a decision: the key gets the draft's item, whatever it had. The draft names a new
 * value (keep_body and keep_access aren't set) and its fields are void afterwards.
 */
enum store_status store_set(struct store_thread *thread, const uint8_t *key, uint32_t key_size,
	uint64_t hash, const struct store_hint *hint, struct store_draft *draft, uint64_t *cas);

/* A key that isn't there will be stored in this turn: loads what is asked about it then. */
void store_expect(const struct store *store, uint64_t hash);

/*
 * Everything stored until now is dead, at once or at Unix time at_ns (0: now). A later call
 * replaces a delayed flush. STORE_WAIT: it is done, and not yet durable on flash; with what
 * store_hold was given the same call in a later turn waits on.
 */
enum store_status store_flush(struct store_thread *thread, uint64_t at_ns);

/* cache_memlimit. False when it can't be done. */
bool store_set_limit(struct store *store, uint64_t limit_bytes);

/*
 * Expiry as stored, from what a client sent: 0 none, negative or past: already over; else rounded
 * up, so that a TTL of n lasts n s.
 */
uint32_t store_expiry(uint64_t unix_ns, int64_t exptime);
/* Seconds left, -1 without expiry. */
int64_t store_ttl_s(uint64_t unix_ns, uint32_t expiry_s);

/* --- bodies on their way in, and pins ----------------------------------------------------- */

/* Where items stand: item = base + ((uint64_t)segment << segment_shift) + offset * 16. Constant. */
struct store_arena {
	uint8_t *base; /* of segment number 0, which is never used */
	unsigned segment_shift;
	uint32_t segments_max;
	uint64_t large_min; /* values longer than this own dedicated segments */
};
void store_get_arena(const struct store *store, struct store_arena *arena);

/*
 * A dedicated segment for a large body that is arriving, and its bytes. Those of unfinished bodies
 * are bounded to an eighth of all; over_bound passes that. STORE_WAIT: none at the moment;
 * STORE_NO_MEMORY: none, and none will come. The caller gives them to the store by a draft's body,
 * or back.
 */
enum store_status store_body_borrow(
	struct store_thread *thread, bool over_bound, uint32_t *segment, uint8_t **room);
void store_body_release(struct store *store, const uint32_t *segments, uint32_t count);

/*
 * Keeps the segment that these bytes stand in beyond the turn, until store_unpin with the same
 * bytes: for what a send left over. Refused when an eighth of all segments is pinned. Any thread,
 * on line.
 */
enum store_pinned {
	STORE_PINNED,
	STORE_PIN_REFUSED,
	STORE_ELSEWHERE /* not in the store's memory */
};
enum store_pinned store_pin(struct store_thread *thread, const void *bytes);
void store_unpin(struct store_thread *thread, const void *bytes);

/* --- statistics --------------------------------------------------------------------------- */

const struct classes *store_classes(const struct store *store);
void store_get_index_stats(const struct store *store, struct index_stats *stats);
void store_get_memory_stats(const struct store *store, struct memory_stats *stats);
/*
 * Calls visit for every live item in DRAM, at most 'most' of them (0: all), holding no lock meanwhile but
 * within this thread's turn.
 */
void store_walk(struct store_thread *thread,
	bool (*visit)(void *context, const struct store_view *view), void *context);

#endif
