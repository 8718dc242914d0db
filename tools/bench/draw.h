/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * draw: random choices of the load: which key comes next, how long its value is, when a request is
 * due. It knows keys by number only, reads no clock and does no I/O.
 *
 * What is shared (struct draw_keys, struct draw_sizes) is made at start and only read afterwards,
 * by any number of threads. What changes (struct draw_state, struct draw_arrivals) belongs to one
 * thread, is small and is held by value. The same seed, index and count give the same draws.
 */
#ifndef TOOLS_BENCH_DRAW_H
#define TOOLS_BENCH_DRAW_H

#include <stdbool.h>
#include <stdint.h>

#define DRAW_KEYS_MAX (UINT64_C(1) << 32)
#define DRAW_EXPONENT_MAX 100.0

enum draw_kind {
	DRAW_UNIFORM,	 /* every key is as likely as any other */
	DRAW_ZIPF,	 /* the key of rank r (from 0) comes with a chance like (r + 1)^-exponent */
	DRAW_SEQUENTIAL, /* all keys in turn: 0, 1, .. keys - 1, 0, 1, .. */
};

struct draw_keys_options {
	enum draw_kind kind;
	uint64_t keys;	 /* key numbers are 0 .. keys - 1; 1 .. DRAW_KEYS_MAX */
	double exponent; /* of DRAW_ZIPF: 0 .. DRAW_EXPONENT_MAX, 1 and above included */
	/*
	 * With DRAW_ZIPF: popularity moves one step on after so many draws of one state; 0 is
	 * never. (For a step every n draws of t threads together, give n / t.) See
	 * draw_keys_of_rank.
	 */
	uint64_t shift_every;
};

/* Opaque; a few 10 KiB however many keys there are. */
struct draw_keys;

/* NULL when there is no memory. Options out of their bounds are a programmer's error (assert). */
struct draw_keys *draw_keys_create(const struct draw_keys_options *options);

/* Frees all, sets *keys to NULL; may be NULL already. */
void draw_keys_destroy(struct draw_keys **keys);

/*
 * Which key has the rank (0 is the most popular) after so many steps of popularity: a bijection of
 * 0 .. keys - 1 at every step, and the same in all processes, whatever their seed.
 *
 * Neighbours in rank are no neighbours in number: rank r has place r * a mod keys, where a is near
 * keys / 1.618 and has no divisor in common with keys (golden section: of many keys the few most
 * popular are about evenly spaced).
 *
 * A step moves a 64th of all ranks. Ranks are dealt to m groups, rank r to group r mod m, where m
 * is keys / 64 (below 8192 keys: keys / slots, where slots is keys / 128, but at least 2), so that
 * each group has one of the m hottest and below it colder ones, each m ranks after the one before.
 * Step t (from 0) turns the groups whose number is t modulo 64: every key of these rises by m ranks
 * and the hottest becomes the group's coldest. So each step gives a 64th of the hot ranks to keys
 * that were cold, and after 64 steps every hot key is another one. The ranks after the last whole
 * row of m never move, nor does anything where there are fewer than 4 keys.
 */
uint64_t draw_keys_of_rank(const struct draw_keys *keys, uint64_t rank, uint64_t step);

/* One thread's place in the sequences. */
struct draw_state {
	uint64_t random;
	uint64_t left; /* draws until the next step of popularity */
	uint64_t step; /* steps of popularity so far */
	uint64_t next; /* sequential: the next key */
	uint64_t scan; /* the next key beyond the key space */
	uint64_t stride;
};

/*
 * State number index of count (index < count, e.g. a thread's): all count states together draw
 * each key of DRAW_SEQUENTIAL in turn, and their scans never give the same number twice.
 */
void draw_state_start(struct draw_state *state, const struct draw_keys *keys, uint64_t seed,
	uint32_t index, uint32_t count);

/*
 * Write the next count key numbers. Some nanoseconds a key; a zipf draw has the exact chance, but
 * for the rounding of doubles, for any exponent and number of keys.
 */
void draw_keys_fill(
	const struct draw_keys *keys, struct draw_state *state, uint64_t *numbers, unsigned count);

/*
 * Write the next count numbers of a scan: keys + index, then + count each time: numbers beyond the
 * key space that never come again, so a key must have room for more digits than keys - 1 has.
 */
void draw_scan_fill(struct draw_state *state, uint64_t *numbers, unsigned count);

enum draw_size_kind {
	DRAW_SIZE_FIXED,   /* always min */
	DRAW_SIZE_UNIFORM, /* min .. max, each as likely */
	/*
	 * min .. max, spread evenly over the logarithm: size x has the chance
	 * log((x + 1) / x) / log((max + 1) / min). min is at least 1.
	 */
	DRAW_SIZE_LOG_UNIFORM,
};

#define DRAW_SIZE_CELLS 1024

/* Made by draw_sizes_start; holds nothing that must be freed. */
struct draw_sizes {
	enum draw_size_kind kind;
	uint64_t seed;
	uint64_t min;
	uint64_t max;
	double bound[DRAW_SIZE_CELLS + 1]; /* of DRAW_SIZE_LOG_UNIFORM: sizes at even quantiles */
};

void draw_sizes_start(struct draw_sizes *sizes, enum draw_size_kind kind, uint64_t min,
	uint64_t max, uint64_t seed);

/*
 * The size that belongs to a number: a pure function of seed and number, so a key keeps its size.
 * (Where every version of a key shall have a size of its own, mix the version into the number.)
 */
uint64_t draw_size(const struct draw_sizes *sizes, uint64_t number);

enum draw_arrival_kind {
	DRAW_ARRIVAL_POISSON, /* exponential gaps, independent of each other */
	DRAW_ARRIVAL_EVEN,    /* all gaps alike */
};

/* One thread's (or connection's) times of arrival. */
struct draw_arrivals {
	enum draw_arrival_kind kind;
	uint64_t random;
	double gap_ns; /* on average */
	double at_ns;  /* of the arrival that came last */
};

/*
 * Arrivals at per_second (> 0) on average. Stream number index of count, at per_second each: even
 * arrivals of the streams are spread over the gap (stream i begins at (i + 1) / count of it).
 */
void draw_arrivals_start(struct draw_arrivals *arrivals, enum draw_arrival_kind kind,
	double per_second, uint64_t seed, uint32_t index, uint32_t count);

/* When the next request is due, in nanoseconds since the start; never less than the one before. */
uint64_t draw_arrivals_next(struct draw_arrivals *arrivals);

#endif
