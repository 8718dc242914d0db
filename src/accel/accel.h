/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * accel: batched hashing and finding. One contract, several implementations with identical results,
 * bit for bit: accel_cpu (always there; the oracle) and devices that hold a mirror of the index and
 * of the segments. It knows keys, entries and items' headers; it knows no command, no clock and no
 * connection: whether an item has expired or was flushed is the store's to say.
 *
 * A result is a hint. At execution it holds while index_hint_holds(index, hash, number, version)
 * says so; else the bucket is probed again.
 */
#ifndef ACCEL_ACCEL_H
#define ACCEL_ACCEL_H

#include "index/bucket_hd.h"

#include <stdbool.h>
#include <stdint.h>

struct index;

/*
 * The items in DRAM as the store lays them out: item = base + ((uint64_t)segment << segment_shift)
 * + offset * 16.
 */
struct accel_view {
	const uint8_t *base; /* of segment number 0, which is never used */
	uint32_t segment_shift;
	/* Numbers below it are segments of the arena; others' items are not at hand. */
	uint32_t segments_max;
};

enum accel_found {
	ACCEL_MISS, /* no entry of the bucket leads to the key */
	ACCEL_HIT,  /* entry and slot lead to the item; its key was compared */
	/* No item at hand has the key, but entries with its tag stand elsewhere: the first one. */
	ACCEL_UNVERIFIED,
};

/* One key to find. key and key_size are the caller's, the rest is the answer. */
struct accel_request {
	const uint8_t *key; /* key_size bytes (1 to 250), the caller's until the burst is polled */
	uint32_t key_size;
	uint32_t found;		/* enum accel_found */
	uint64_t hash;		/* of the key */
	uint64_t number;	/* home bucket */
	uint64_t entry;		/* 0: none; 'reads' as it stood */
	_Atomic uint64_t *slot; /* where entry was seen; NULL: none */
	uint32_t version;	/* of the bucket when the scan began that gave this answer */
	/*
	 * The caller's: how many bytes of a small value it will read at once (0: none), so that they
	 * may be loaded ahead. Changes no answer.
	 */
	uint32_t value_ahead;
};

/*
 * What is submitted and polled as one. The caller owns it and its requests; neither may be touched
 * in between.
 */
struct accel_burst {
	struct accel_request *requests;
	uint32_t count; /* 0 to ACCEL_BURST_MAX */
	uint32_t pad;
	void *context;		  /* the caller's */
	struct accel_burst *next; /* the implementation's, while it is submitted */
};

#define ACCEL_BURST_MAX 65536

struct accel_options {
	const struct index *index;
	struct accel_view view;
	uint64_t seed; /* of the hash */
};

struct accel_state;

/*
 * An implementation. One state a thread; submit and poll are called by it alone, as a reader (RCU,
 * on line), and what a result points at is good until that thread's next quiescent state.
 */
struct accel {
	const char *name;
	/* NULL with errno set. *options is copied. */
	struct accel_state *(*create)(const struct accel_options *options);
	/*
	 * Takes *burst (sets it to NULL) and gives true; false when it is full: poll first. Never
	 * blocks.
	 */
	bool (*submit)(struct accel_state *state, struct accel_burst **burst);
	/* A finished burst, oldest first; NULL when none is finished yet. */
	struct accel_burst *(*poll)(struct accel_state *state);
	void (*destroy)(struct accel_state *state); /* nothing is submitted */
};

extern const struct accel accel_cpu;

/* The key's hash, as every implementation and all of the store compute it. */
uint64_t accel_hash(const uint8_t *key, uint32_t key_size, uint64_t seed);

#endif
