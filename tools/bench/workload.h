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
 * Sets and deletes of a key are numbered from 1. Per key, with --verify, numbers are shared by all
 * threads:
 *
 *     acked <= any version that a get sent from now on may return <= sent
 *
 * A writer raises sent before it writes to the socket; a reader loads acked before it sends and
 * sent after it has the answer. acked 0 says that the key was not stored in this run.
 *
 * Where a key has one writer, the server takes its versions in their order, so acked is the last
 * one that was answered. Where it has many, the server may take them in any order, and 'answered'
 * counts those that were. A writer that finds as many answered as there are, before it takes the
 * next number v, knows that the server takes v after all of them: workload_take_version tells, and
 * only such a v may raise acked.
 *
 * Keys are known by number. Those of the key space are 0 .. keys - 1, those of a scan follow. What
 * can't be read as a value of that kind has names of its own, told by the number's two highest
 * bits: the key that is incremented holds a decimal number, the key that is appended to grows.
 */
#ifndef TOOLS_BENCH_WORKLOAD_H
#define TOOLS_BENCH_WORKLOAD_H

#include "options.h"

#include <stdatomic.h>
#include <string.h>

#define WORKLOAD_KEY_SIZE_MAX 250
#define WORKLOAD_NUMBERS (UINT32_C(1) << 30) /* key space and scans together */
#define WORKLOAD_COUNTER (UINT32_C(1) << 31) /* with a key's number: its counter */
#define WORKLOAD_TAIL (UINT32_C(1) << 30)    /* with a key's number: what is appended to */
#define WORKLOAD_SAMPLE_EXTRA 4096
#define WORKLOAD_COUNTER_SIZE 10 /* digits that a counter starts with */

struct workload {
	uint64_t keys;
	uint64_t seed;
	unsigned key_size;
	unsigned key_digits;
	uint32_t flags;			      /* client flags of each value */
	char key_head[WORKLOAD_KEY_SIZE_MAX]; /* what stands before the digits */
	uint64_t value_size_min;
	uint64_t value_size_max;
	struct draw_sizes sizes;
	uint64_t quick_tail; /* the last 8 bytes of a key whose digits are all 0 */
	uint32_t quick_end;  /* keys below can be written the quick way; 0 for none */
	/*
	 * Where all values have one size that takes at most 6 digits: these and a line end, for
	 * comparing 8 bytes under the mask. Else the mask is 0.
	 */
	uint64_t size_line;
	uint64_t size_mask;
	unsigned size_digits;
	_Atomic(uint32_t) *sent; /* all NULL without --verify */
	_Atomic(uint32_t) *acked;
	_Atomic(uint32_t) *answered; /* NULL also where a key has one writer */
	char *sample;		     /* without --verify, where values are copied from */
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

/* Write the key_size bytes of any key. */
void workload_write_any_key(const struct workload *workload, char *at, uint32_t key);

/*
 * The decimal digits of a number below 10^8 as eight bytes, the first in the lowest, each 0 to 9.
 * Halves, quarters and single digits are parted by multiplying with inverses, all at once.
 */
static inline uint64_t
workload_digits(uint32_t number)
{
	uint64_t halves = number / 10000 | (uint64_t)(number % 10000) << 32;
	uint64_t hundreds = (halves * 10486 >> 20) & UINT64_C(0x0000007f0000007f);
	uint64_t pairs = hundreds | (halves - 100 * hundreds) << 16;
	uint64_t tens = (pairs * 103 >> 10) & UINT64_C(0x000f000f000f000f);

	return tens | (pairs - 10 * tens) << 8;
}

/* Write the key_size bytes of a key. */
static inline void
workload_write_key(const struct workload *workload, char *at, uint32_t key)
{
	if (key >= workload->quick_end) {
		workload_write_any_key(workload, at, key);
		return;
	}
	uint64_t tail = workload->quick_tail | workload_digits(key);
	unsigned size = workload->key_size;
	if (size == 16)
		memcpy(at, workload->key_head, 8);
	else
		memcpy(at, workload->key_head, size - sizeof tail);
	memcpy(at + size - sizeof tail, &tail, sizeof tail);
}

bool workload_is_any_key(const struct workload *workload, const char *at, uint32_t key);

/* Whether these key_size bytes are the key. */
static inline __attribute__((always_inline)) bool
workload_is_key(const struct workload *workload, const char *at, uint32_t key)
{
	unsigned size = workload->key_size;
	uint64_t tail;

	if (key >= workload->quick_end)
		return workload_is_any_key(workload, at, key);
	memcpy(&tail, at + size - sizeof tail, sizeof tail);
	if (tail != (workload->quick_tail | workload_digits(key)))
		return false;
	return size == 16 ? memcmp(at, workload->key_head, 8) == 0
			  : memcmp(at, workload->key_head, size - sizeof tail) == 0;
}

uint64_t workload_value_size(const struct workload *workload, uint64_t key, uint32_t version);

/* Write the value's bytes, workload_value_size of them. */
void workload_write_value(
	const struct workload *workload, char *at, uint64_t size, uint64_t key, uint32_t version);

/* See workload_value_differs; for values of any size. */
bool workload_any_value_differs(
	const struct workload *workload, uint64_t key, const char *value, uint64_t size);

typedef uint64_t workload_vector __attribute__((vector_size(16), aligned(1), may_alias));

static inline workload_vector
workload_xor(const char *a, const char *b)
{
	return *(const workload_vector *)a ^ *(const workload_vector *)b;
}

/*
 * Without --verify: whether the bytes differ from those that this run sets for the key. Looks at
 * every byte, whatever those before it were.
 */
static inline bool
workload_value_differs(
	const struct workload *workload, uint64_t key, const char *value, uint64_t size)
{
	const char *expected = workload->sample;
	workload_vector difference = {0, 0};

	if (!expected || size != workload->value_size_min || size != workload->value_size_max ||
		size < sizeof difference)
		return workload_any_value_differs(workload, key, value, size);
	expected += key % WORKLOAD_SAMPLE_EXTRA;
	for (; size > 64; size -= 64, value += 64, expected += 64)
		difference |= workload_xor(value, expected) |
			      workload_xor(value + 16, expected + 16) |
			      workload_xor(value + 32, expected + 32) |
			      workload_xor(value + 48, expected + 48);
	/* 1 to 64 are left, with at least 16 in all: from both ends, some of them twice. */
	if (size > 32)
		difference |= workload_xor(value + 16, expected + 16) |
			      workload_xor(value + size - 32, expected + size - 32);
	if (size >= 16)
		difference |= workload_xor(value, expected);
	difference |= workload_xor(value + size - 16, expected + size - 16);
	return (difference[0] | difference[1]) != 0;
}

/*
 * Number a set or delete that is about to be written. Sets *is_newest: see above. 1 for what isn't
 * followed.
 */
uint32_t workload_take_version(struct workload *workload, uint64_t key, bool *is_newest);

/* The set or delete was answered; done says whether it took effect. */
void workload_end_version(
	struct workload *workload, uint64_t key, uint32_t version, bool is_newest, bool done);

/* The oldest version that a get which is about to be written may return. */
static inline uint32_t
workload_oldest(const struct workload *workload, uint64_t key)
{
	if (!workload->acked || key >= workload->keys)
		return 0;
	return atomic_load_explicit(&workload->acked[key], memory_order_acquire);
}

/* The newest version that was sent so far. */
static inline uint32_t
workload_newest(const struct workload *workload, uint64_t key)
{
	if (!workload->sent || key >= workload->keys)
		return 0;
	return atomic_load_explicit(&workload->sent[key], memory_order_acquire);
}

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
