/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Zipf's law over many keys without a big table. Ranks are cut into columns, the first 64 one by
 * one, later ones by runs a 64th as long as their number, so that even 2^32 ranks make some 1200
 * columns. Over these lies a hat: a run has the weight of its first rank in all its places.
 *
 *     weight  #
 *             #
 *             # #
 *             # # #---+           a draw: a column by its weight (alias method), a place in it
 *             # # # # +-------+   evenly, and kept with the chance true weight / hat, else all is
 *             # # # # # # # # +   drawn anew
 *       rank  0 1 2 3.. 4..
 *
 * What lies below the lowest weight of its run is kept without computing any power (the 'sure'
 * share); that decides all but a 64th of the draws. The chances are exact, not those of a fitted
 * curve, and the table stays in the first two cache levels.
 *
 * Sources: J. H. Ahrens, A one-table method for sampling from continuous and discrete
 * distributions, Computing 54 (1995): the piecewise constant hat. A. J. Walker, An efficient method
 * for generating discrete random variables with general distributions, ACM TOMS 3 (1977), and
 * M. D. Vose, A linear algorithm for generating random numbers with a given distribution, IEEE
 * Trans. Softw. Eng. 17 (1991): aliases.
 */
#include "draw.h"

#include "workload.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define RUN_SHARE 64 /* a run is rank / RUN_SHARE long */
#define PHASES 64    /* a step of popularity turns one group of so many */
#define SLOTS_MAX 64
#define SLOTS_MIN 2
#define GROUPS_MIN 128 /* as far as SLOTS_MIN allows */
#define GOLDEN 0.6180339887498949
#define CERTAIN UINT64_MAX /* a chance of 1 on the scale of 64 bits */

struct column {
	uint64_t stay; /* the chance to stay in this column and not go to the alias */
	uint64_t sure; /* the chance that is kept at the run's lowest weight, so anywhere */
	uint32_t alias;
	uint32_t first; /* rank */
	uint32_t count;
};

struct draw_keys {
	struct draw_keys_options options;
	/* rank r has place r * factor mod keys; inverse is factor / keys on the scale of 64 bits */
	uint64_t factor;
	uint64_t inverse;
	/* Rank r is in group r % groups and has there the slot r / groups. */
	uint64_t groups;
	uint64_t group_inverse; /* 1 / groups on the scale of 64 bits, rounded up */
	uint64_t slots;		/* below 2: nothing moves */
	uint32_t column_count;
	struct column columns[];
};

static uint64_t
high_product(uint64_t a, uint64_t b)
{
	return (uint64_t)(((unsigned __int128)a * b) >> 64);
}

/* A chance of 0 .. 1 on the scale of 64 bits. */
static uint64_t
scaled(double chance)
{
	return chance >= 1.0 ? CERTAIN : (uint64_t)(chance * 0x1p64);
}

/* The run that begins at this rank. */
static uint64_t
run_length(uint64_t rank, uint64_t keys)
{
	uint64_t length = rank < RUN_SHARE ? 1 : rank / RUN_SHARE;

	return length < keys - rank ? length : keys - rank;
}

static uint32_t
count_columns(uint64_t keys)
{
	uint32_t count = 0;

	for (uint64_t rank = 0; rank < keys; rank += run_length(rank, keys))
		count++;
	return count;
}

static double
weight_of_rank(uint64_t rank, double exponent)
{
	return pow((double)rank + 1.0, -exponent);
}

/*
 * Vose's method: weights are scaled so that they are 1 on average; each column that has less is
 * filled up from one that has more.
 */
static void
set_aliases(struct column *columns, uint32_t count, double *weights, uint32_t *order)
{
	double total = 0;
	uint32_t small = 0;	/* order[0 .. small) have less than 1 */
	uint32_t large = count; /* order[large .. count) have 1 or more */

	for (uint32_t i = count; i-- > 0;) /* the small ones first, for their bits' sake */
		total += weights[i];
	for (uint32_t i = 0; i < count; i++) {
		weights[i] *= count / total;
		if (weights[i] < 1.0)
			order[small++] = i;
		else
			order[--large] = i;
	}
	while (small > 0 && large < count) {
		uint32_t less = order[--small];
		uint32_t more = order[large];
		columns[less].stay = scaled(weights[less]);
		columns[less].alias = more;
		weights[more] -= 1.0 - weights[less];
		if (weights[more] < 1.0) {
			large++;
			order[small++] = more;
		}
	}
	/* What is left has exactly 1, but for rounding. */
	for (uint32_t i = 0; i < count; i++) {
		if (i == small)
			i = large;
		if (i == count)
			break;
		columns[order[i]].stay = CERTAIN;
		columns[order[i]].alias = order[i];
	}
}

static int
set_columns(struct draw_keys *keys)
{
	double exponent = keys->options.exponent;
	uint32_t count = keys->column_count;
	double *weights = calloc(count, sizeof *weights);
	uint32_t *order = calloc(count, sizeof *order);

	if (weights && order) {
		uint64_t rank = 0;
		for (uint32_t i = 0; i < count; i++) {
			struct column *column = &keys->columns[i];
			uint64_t length = run_length(rank, keys->options.keys);
			column->first = (uint32_t)rank;
			column->count = (uint32_t)length;
			column->sure = scaled(
				pow(((double)rank + 1.0) / (double)(rank + length), exponent));
			weights[i] = (double)length * weight_of_rank(rank, exponent);
			rank += length;
		}
		set_aliases(keys->columns, count, weights, order);
	}
	int result = weights && order ? 0 : -1;
	free(weights);
	free(order);
	return result;
}

static uint64_t
common_divisor(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

static void
set_places(struct draw_keys *keys)
{
	uint64_t count = keys->options.keys;
	uint64_t factor = (uint64_t)((double)count * GOLDEN);

	while (common_divisor(factor, count) != 1)
		factor++;
	keys->factor = factor % count;
	keys->inverse = (uint64_t)(((unsigned __int128)keys->factor << 64) / count);
	keys->slots = count / GROUPS_MIN;
	if (keys->slots > SLOTS_MAX)
		keys->slots = SLOTS_MAX;
	if (keys->slots < SLOTS_MIN)
		keys->slots = SLOTS_MIN;
	keys->groups = count / keys->slots;
	if (keys->groups < 2)
		keys->slots = 0;
	else
		keys->group_inverse = UINT64_MAX / keys->groups + 1;
}

struct draw_keys *
draw_keys_create(const struct draw_keys_options *options)
{
	bool zipf = options->kind == DRAW_ZIPF;

	assert(options->keys >= 1 && options->keys <= DRAW_KEYS_MAX);
	assert(!zipf || (options->exponent >= 0 && options->exponent <= DRAW_EXPONENT_MAX));
	uint32_t columns = zipf ? count_columns(options->keys) : 0;
	struct draw_keys *keys = calloc(1, sizeof *keys + columns * sizeof *keys->columns);
	if (!keys)
		return NULL;
	keys->options = *options;
	keys->column_count = columns;
	set_places(keys);
	if (zipf && set_columns(keys))
		draw_keys_destroy(&keys);
	return keys;
}

void
draw_keys_destroy(struct draw_keys **keys)
{
	free(*keys);
	*keys = NULL;
}

/*
 * rank * factor mod keys without a division: the quotient is off by one at most, for both factors
 * are below 2^32 (V. Shoup's multiplication by a constant, as in NTL).
 */
static inline uint64_t
place_of_rank(const struct draw_keys *keys, uint64_t rank)
{
	uint64_t count = keys->options.keys;
	uint64_t place = rank * keys->factor - high_product(rank, keys->inverse) * count;

	return place >= count ? place - count : place;
}

/*
 * The rank that the key had before any step, when a whole round of PHASES steps was made 'rounds'
 * times (modulo slots) and of the next round those of the phases below 'phase'.
 */
static inline uint64_t
rank_before(const struct draw_keys *keys, uint64_t rank, uint64_t rounds, uint64_t phase)
{
	uint64_t slot = high_product(rank, keys->group_inverse);
	uint64_t group = rank - slot * keys->groups;

	if (slot >= keys->slots)
		return rank;
	slot += rounds + (group % PHASES < phase);
	while (slot >= keys->slots)
		slot -= keys->slots;
	return slot * keys->groups + group;
}

uint64_t
draw_keys_of_rank(const struct draw_keys *keys, uint64_t rank, uint64_t step)
{
	if (keys->slots)
		rank = rank_before(keys, rank, step / PHASES % keys->slots, step % PHASES);
	return place_of_rank(keys, rank);
}

void
draw_state_start(struct draw_state *state, const struct draw_keys *keys, uint64_t seed,
	uint32_t index, uint32_t count)
{
	uint64_t mixed = seed;

	assert(index < count);
	mixed = workload_random(&mixed) ^ index;
	state->random = workload_random(&mixed);
	state->left = keys->options.shift_every;
	state->step = 0;
	state->next = index % keys->options.keys;
	state->scan = keys->options.keys + index;
	state->stride = count;
}

/* The second half of a draw: whether a place in a run that isn't surely kept is kept. */
static bool __attribute__((noinline))
keep(const struct draw_keys *keys, const struct column *column, uint64_t place, uint64_t chance)
{
	double first = (double)column->first + 1.0;
	double ratio = first / (first + (double)place);

	return chance < scaled(pow(ratio, keys->options.exponent));
}

/*
 * A product of 64 random bits and a bound gives two numbers: its high half is even below the bound,
 * and its low half, given that, is even over 64 bits (in steps of about the bound).
 */
static void
draw_ranks(const struct draw_keys *keys, struct draw_state *state, uint64_t *ranks, unsigned count)
{
	uint64_t random = state->random;

	for (unsigned i = 0; i < count;) {
		unsigned __int128 choice =
			(unsigned __int128)workload_random(&random) * keys->column_count;
		uint64_t number = (uint64_t)(choice >> 64);
		const struct column *column = &keys->columns[number];
		/* A mask where a branch would be guessed wrong every other time. */
		uint64_t leave = -(uint64_t)((uint64_t)choice >= column->stay);
		number ^= (number ^ column->alias) & leave;
		column = &keys->columns[number];
		choice = (unsigned __int128)workload_random(&random) * column->count;
		uint64_t place = (uint64_t)(choice >> 64);
		uint64_t chance = (uint64_t)choice;
		ranks[i] = column->first + place;
		if (chance <= column->sure || keep(keys, column, place, chance))
			i++;
	}
	state->random = random;
}

static void
draw_zipf(const struct draw_keys *keys, struct draw_state *state, uint64_t *numbers, unsigned count)
{
	draw_ranks(keys, state, numbers, count);
	if (state->step && keys->slots) {
		uint64_t rounds = state->step / PHASES % keys->slots;
		uint64_t phase = state->step % PHASES;
		for (unsigned i = 0; i < count; i++)
			numbers[i] = rank_before(keys, numbers[i], rounds, phase);
	}
	for (unsigned i = 0; i < count; i++)
		numbers[i] = place_of_rank(keys, numbers[i]);
}

static void
draw_shifting(
	const struct draw_keys *keys, struct draw_state *state, uint64_t *numbers, unsigned count)
{
	while (count > 0) {
		unsigned part = count < state->left ? count : (unsigned)state->left;
		draw_zipf(keys, state, numbers, part);
		numbers += part;
		count -= part;
		state->left -= part;
		if (state->left == 0) {
			state->left = keys->options.shift_every;
			state->step++;
		}
	}
}

static void
draw_uniform(
	const struct draw_keys *keys, struct draw_state *state, uint64_t *numbers, unsigned count)
{
	uint64_t random = state->random;

	for (unsigned i = 0; i < count; i++)
		numbers[i] = workload_below(workload_random(&random), keys->options.keys);
	state->random = random;
}

static void
draw_sequential(
	const struct draw_keys *keys, struct draw_state *state, uint64_t *numbers, unsigned count)
{
	uint64_t next = state->next;

	for (unsigned i = 0; i < count; i++) {
		numbers[i] = next;
		next += state->stride;
		if (next >= keys->options.keys)
			next %= keys->options.keys;
	}
	state->next = next;
}

void
draw_keys_fill(
	const struct draw_keys *keys, struct draw_state *state, uint64_t *numbers, unsigned count)
{
	switch (keys->options.kind) {
	case DRAW_UNIFORM:
		draw_uniform(keys, state, numbers, count);
		break;
	case DRAW_SEQUENTIAL:
		draw_sequential(keys, state, numbers, count);
		break;
	case DRAW_ZIPF:
		if (keys->options.shift_every)
			draw_shifting(keys, state, numbers, count);
		else
			draw_zipf(keys, state, numbers, count);
		break;
	}
}

void
draw_scan_fill(struct draw_state *state, uint64_t *numbers, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		numbers[i] = state->scan;
		state->scan += state->stride;
	}
}

void
draw_sizes_start(struct draw_sizes *sizes, enum draw_size_kind kind, uint64_t min, uint64_t max,
	uint64_t seed)
{
	assert(min <= max && (min >= 1 || kind != DRAW_SIZE_LOG_UNIFORM));
	sizes->kind = kind;
	sizes->seed = seed;
	sizes->min = min;
	sizes->max = max;
	if (kind != DRAW_SIZE_LOG_UNIFORM)
		return;
	double step = log(((double)max + 1.0) / (double)min) / DRAW_SIZE_CELLS;
	for (unsigned i = 0; i <= DRAW_SIZE_CELLS; i++)
		sizes->bound[i] = (double)min * exp(step * i);
}

/*
 * A straight line within a cell, which is off by the square of the cell's height over 8: 2.3e-5 of
 * a size where sizes reach over a factor of a million.
 */
static uint64_t
log_uniform(const struct draw_sizes *sizes, uint64_t bits)
{
	uint64_t cell = bits / (UINT64_MAX / DRAW_SIZE_CELLS + 1);
	double part = (double)(bits * DRAW_SIZE_CELLS >> 11) * 0x1p-53;
	double from = sizes->bound[cell];
	uint64_t size = (uint64_t)(from + (sizes->bound[cell + 1] - from) * part);

	/* The first and last bounds are rounded. */
	if (size < sizes->min)
		return sizes->min;
	return size < sizes->max ? size : sizes->max;
}

uint64_t
draw_size(const struct draw_sizes *sizes, uint64_t number)
{
	uint64_t mixed =
		sizes->seed * UINT64_C(0xd6e8feb86659fd93) ^ number * UINT64_C(0xa0761d6478bd642f);

	switch (sizes->kind) {
	case DRAW_SIZE_UNIFORM:
		return sizes->min +
		       workload_below(workload_random(&mixed), sizes->max - sizes->min + 1);
	case DRAW_SIZE_LOG_UNIFORM:
		return log_uniform(sizes, workload_random(&mixed));
	default:
		return sizes->min;
	}
}

void
draw_arrivals_start(struct draw_arrivals *arrivals, enum draw_arrival_kind kind, double per_second,
	uint64_t seed, uint32_t index, uint32_t count)
{
	uint64_t mixed = seed ^ UINT64_C(0x5851f42d4c957f2d);

	assert(per_second > 0 && index < count);
	mixed = workload_random(&mixed) ^ index;
	arrivals->kind = kind;
	arrivals->random = workload_random(&mixed);
	arrivals->gap_ns = 1e9 / per_second;
	arrivals->at_ns = 0;
	if (kind == DRAW_ARRIVAL_EVEN)
		arrivals->at_ns = arrivals->gap_ns * ((index + 1.0) / count - 1.0);
}

uint64_t
draw_arrivals_next(struct draw_arrivals *arrivals)
{
	double gap = arrivals->gap_ns;

	if (arrivals->kind == DRAW_ARRIVAL_POISSON) {
		/* Even over (0, 1], so that the logarithm is finite. */
		double even = ((double)(workload_random(&arrivals->random) >> 11) + 1.0) * 0x1p-53;
		gap *= -log(even);
	}
	arrivals->at_ns += gap;
	return (uint64_t)arrivals->at_ns;
}
