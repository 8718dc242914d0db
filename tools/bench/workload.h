/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * workload: which keys there are, what their values are, and what a reader may see.
 *
 * A value of a key and version is computed, never stored:
 *
 *     | version, 4 bytes, masked by a hash of the key | 64-bit words from seed, key, version |
 *
 * Values shorter than 4 bytes carry no version; they come from the version's low byte alone, so
 * that a reader can try all.
 *
 * A key has one writer, which numbers its sets from 1. Per key, with --verify, two numbers are
 * shared by all threads:
 *
 *     acked <= any version that a get sent from now on may return <= sent
 *
 * The writer raises sent before it writes to the socket and acked when it has read the reply; a
 * reader loads acked before it sends and sent after it has the answer. acked 0 says that the key
 * was not stored in this run.
 *
 * Keys are known by number. Those of the key space are 0 .. keys - 1, those of a scan follow. What
 * can't be read as a value of that kind has names of its own, told by the number's two highest
 * bits: the key that is incremented holds a decimal number, the key that is appended to grows.
 */
#ifndef TOOLS_BENCH_WORKLOAD_H
#define TOOLS_BENCH_WORKLOAD_H

#include "options.h"

#include <stdatomic.h>

#define WORKLOAD_KEY_SIZE_MAX 250
#define WORKLOAD_NUMBERS (UINT32_C(1) << 30) /* key space and scans together */
#define WORKLOAD_COUNTER (UINT32_C(1) << 31) /* with a key's number: its counter */
#define WORKLOAD_TAIL (UINT32_C(1) << 30)    /* with a key's number: what is appended to */
#define WORKLOAD_COUNTER_SIZE 10	     /* digits that a counter starts with */

struct workload {
	uint64_t keys;
	uint64_t seed;
	unsigned key_size;
	unsigned key_digits;
	uint32_t flags;			      /* client flags of each value */
	char key_head[WORKLOAD_KEY_SIZE_MAX]; /* what stands before the digits */
	uint64_t value_size_min;
	uint64_t value_size_max;
	_Atomic(uint32_t) *sent; /* both NULL without --verify */
	_Atomic(uint32_t) *acked;
	char *sample; /* without --verify, where values are copied from */
};

enum workload_verdict {
	WORKLOAD_RIGHT,
	WORKLOAD_WRONG_LENGTH,
	WORKLOAD_WRONG_BYTES,
	WORKLOAD_STALE,	  /* right in itself, but older than it may be */
	WORKLOAD_UNKNOWN, /* right in itself, but newer than anything sent */
};

/* 0, or -1 when there is no memory. workload_destroy frees what it holds, not the struct. */
int workload_create(struct workload *workload, const struct options *options);

void workload_destroy(struct workload *workload);

/* Decimal digits that the highest key number takes. */
unsigned workload_key_digits(uint64_t keys);

/* Write the key_size bytes of a key. */
void workload_write_key(const struct workload *workload, char *at, uint32_t key);

uint64_t workload_value_size(const struct workload *workload, uint64_t key, uint32_t version);

/* Write the value's bytes, workload_value_size of them. */
void workload_write_value(
	const struct workload *workload, char *at, uint64_t size, uint64_t key, uint32_t version);

/*
 * Judge a value that a get of the key returned. oldest is what acked was when the get was sent.
 * *version is what the value says it is.
 */
enum workload_verdict workload_check_value(const struct workload *workload, uint64_t key,
	uint32_t oldest, const char *value, uint64_t size, uint32_t *version);

const char *workload_verdict_text(enum workload_verdict verdict);

/*
 * A fast generator of 64 random bits; *state may be any number. (SplitMix64: Steele, Lea, Flood
 * 2014.)
 */
static inline uint64_t
workload_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* A number below bound, from 64 random bits, without a division. */
static inline uint64_t
workload_below(uint64_t bits, uint64_t bound)
{
	return (uint64_t)(((unsigned __int128)bits * bound) >> 64);
}

#endif
