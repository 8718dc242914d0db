/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Random choices of the load generator against the chances that they should have. Seeds are fixed,
 * so a test passes always or never; bounds are such that a right generator fails one in a million
 * seeds or fewer.
 */
#include "tools/bench/draw.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BATCH 100

static struct draw_keys *
create(enum draw_kind kind, uint64_t keys, double exponent, uint64_t shift_every)
{
	struct draw_keys_options options = {kind, keys, exponent, shift_every};
	struct draw_keys *made = draw_keys_create(&options);

	assert_non_null(made);
	return made;
}

/* The number that times a is 1 modulo n: Euclid's algorithm. */
static uint64_t
inverse_of(uint64_t a, uint64_t n)
{
	int64_t r = (int64_t)n, next_r = (int64_t)a, t = 0, next_t = 1;

	while (next_r) {
		int64_t quotient = r / next_r, rest = r % next_r, next = t - quotient * next_t;
		r = next_r;
		next_r = rest;
		t = next_t;
		next_t = next;
	}
	assert_int_equal(r, 1);
	return (uint64_t)(t < 0 ? t + (int64_t)n : t);
}

/* Undoes the scattering of ranks, by what draw.h says it is. */
struct ranks {
	uint64_t keys;
	uint64_t inverse;
};

static struct ranks
ranks_of(const struct draw_keys *keys, uint64_t count)
{
	struct ranks ranks = {count, 0};

	if (count > 1)
		ranks.inverse = inverse_of(draw_keys_of_rank(keys, 1, 0), count);
	return ranks;
}

static uint64_t
rank_of(const struct ranks *ranks, uint64_t key)
{
	return (uint64_t)((unsigned __int128)key * ranks->inverse % ranks->keys);
}

/* The sum of (r + 1)^-exponent over the ranks from .. to - 1; by the integral where it is that
 * close. */
static double
weight_of(uint64_t from, uint64_t to, double exponent)
{
	double sum = 0;

	for (; from < to && from < 3000; from++)
		sum += pow((double)from + 1, -exponent);
	if (from == to)
		return sum;
	double low = (double)from + 0.5, high = (double)to + 0.5;
	if (exponent == 1)
		return sum + log(high / low);
	return sum + (pow(high, 1 - exponent) - pow(low, 1 - exponent)) / (1 - exponent);
}

/* Pearson's sum over bins that expect at least 10, the others taken together. */
static void
check_chi_square(const char *what, const double *expected, const uint64_t *seen, unsigned bins)
{
	double sum = 0, rest_expected = 0, rest_seen = 0;
	unsigned degrees = 0;

	for (unsigned i = 0; i < bins; i++) {
		if (expected[i] < 10) {
			rest_expected += expected[i];
			rest_seen += (double)seen[i];
			continue;
		}
		sum += ((double)seen[i] - expected[i]) * ((double)seen[i] - expected[i]) /
		       expected[i];
		degrees++;
	}
	/* Too few for the sum: about Poisson. */
	if (fabs(rest_seen - rest_expected) > 6 * sqrt(rest_expected) + 6)
		fail_msg("%s: %.0f in rare bins, %.1f expected", what, rest_seen, rest_expected);
	double bound = degrees + 5.5 * sqrt(2.0 * degrees) + 10;
	if (sum > bound)
		fail_msg("%s: chi-square %.1f, at most %.1f", what, sum, bound);
}

#define BINS_MAX 2000

/* Bins of ranks: the first 100 alone, then 40 in each doubling. */
static unsigned
make_bins(uint64_t keys, uint64_t *from)
{
	unsigned bins = 0;

	for (uint64_t rank = 0; rank < keys; rank += rank < 100 ? 1 : rank / 57) {
		assert_true(bins < BINS_MAX - 1);
		from[bins++] = rank;
	}
	from[bins] = keys;
	return bins;
}

static unsigned
bin_of(const uint64_t *from, unsigned bins, uint64_t rank)
{
	unsigned low = 0;

	for (unsigned high = bins; high - low > 1;) {
		unsigned middle = (low + high) / 2;
		if (from[middle] <= rank)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static void
check_zipf(uint64_t count, double exponent, uint64_t draws)
{
	struct draw_keys *keys = create(DRAW_ZIPF, count, exponent, 0);
	struct ranks ranks = ranks_of(keys, count);
	uint64_t from[BINS_MAX], seen[BINS_MAX] = {0}, numbers[BATCH];
	double expected[BINS_MAX];
	unsigned bins = make_bins(count, from);
	struct draw_state state;
	char what[64];

	snprintf(what, sizeof what, "%llu keys, exponent %g", (unsigned long long)count, exponent);
	double total = weight_of(0, count, exponent);
	for (unsigned i = 0; i < bins; i++)
		expected[i] = (double)draws * weight_of(from[i], from[i + 1], exponent) / total;
	draw_state_start(&state, keys, 7, 0, 1);
	for (uint64_t done = 0; done < draws; done += BATCH) {
		draw_keys_fill(keys, &state, numbers, BATCH);
		for (unsigned i = 0; i < BATCH; i++) {
			assert_true(numbers[i] < count);
			seen[bin_of(from, bins, rank_of(&ranks, numbers[i]))]++;
		}
	}
	check_chi_square(what, expected, seen, bins);
	draw_keys_destroy(&keys);
	assert_null(keys);
}

static void
zipf_has_its_chances(void **unused)
{
	static const uint64_t counts[] = {
		1, 2, 3, 10, 64, 65, 130, 1000, 100000, 100000000, DRAW_KEYS_MAX};
	static const double exponents[] = {0, 0.5, 0.8, 0.99, 1, 1.1, 1.5, 2, 5, DRAW_EXPONENT_MAX};

	(void)unused;
	for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++)
		for (unsigned e = 0; e < sizeof exponents / sizeof *exponents; e++)
			check_zipf(counts[c], exponents[e], 100000);
}

/*
 * The hat stands above the true weights by less than a hundredth, so it takes many draws in few
 * bins to see that it is cut down: the ranks that are columns of their own, and the lower and the
 * upper halves of all runs (a run is as long as a 64th of its first rank).
 */
static void
zipf_is_exact_within_runs(void **unused)
{
	enum { DRAWS = 16000000, HEAD = 128, KEYS = 10000000 };
	static const double exponents[] = {0.9, 1.1};
	uint64_t numbers[BATCH];

	(void)unused;
	for (unsigned e = 0; e < 2; e++) {
		double exponent = exponents[e];
		struct draw_keys *keys = create(DRAW_ZIPF, KEYS, exponent, 0);
		struct ranks ranks = ranks_of(keys, KEYS);
		uint64_t from[BINS_MAX], seen[3] = {0};
		unsigned runs = 0;
		double expected[3] = {weight_of(0, HEAD, exponent)};
		for (uint64_t rank = HEAD; rank < KEYS; rank += rank / 64) {
			uint64_t end = rank + rank / 64 < KEYS ? rank + rank / 64 : KEYS;
			uint64_t middle = rank + (end - rank) / 2;
			expected[1] += weight_of(rank, middle, exponent);
			expected[2] += weight_of(middle, end, exponent);
			assert_true(runs < BINS_MAX - 3);
			from[runs++] = rank;
			from[runs++] = middle;
		}
		for (unsigned i = 0; i < 3; i++)
			expected[i] *= DRAWS / weight_of(0, KEYS, exponent);
		struct draw_state state;
		draw_state_start(&state, keys, 7, 0, 1);
		for (unsigned done = 0; done < DRAWS; done += BATCH) {
			draw_keys_fill(keys, &state, numbers, BATCH);
			for (unsigned i = 0; i < BATCH; i++) {
				uint64_t rank = rank_of(&ranks, numbers[i]);
				seen[rank < HEAD ? 0 : 1 + bin_of(from, runs, rank) % 2]++;
			}
		}
		check_chi_square("halves of runs", expected, seen, 3);
		draw_keys_destroy(&keys);
	}
}

static void
uniform_is_even(void **unused)
{
	enum { KEYS = 200, DRAWS = 200000 };
	struct draw_keys *keys = create(DRAW_UNIFORM, KEYS, 0, 0);
	struct draw_state state;
	double expected[KEYS];
	uint64_t seen[KEYS] = {0}, numbers[BATCH];

	(void)unused;
	draw_state_start(&state, keys, 3, 0, 1);
	for (unsigned done = 0; done < DRAWS; done += BATCH) {
		draw_keys_fill(keys, &state, numbers, BATCH);
		for (unsigned i = 0; i < BATCH; i++) {
			assert_true(numbers[i] < KEYS);
			seen[numbers[i]]++;
		}
	}
	for (unsigned i = 0; i < KEYS; i++)
		expected[i] = DRAWS / (double)KEYS;
	check_chi_square("uniform", expected, seen, KEYS);
	draw_keys_destroy(&keys);
}

static void
every_rank_has_its_own_key(void **unused)
{
	static const uint64_t counts[] = {1, 2, 3, 4, 5, 6, 63, 64, 127, 128, 129, 255, 256, 257,
		1000, 8191, 8192, 8193, 10007, 65536};
	static const uint64_t steps[] = {0, 1, 2, 63, 64, 65, 127, 1000, 4095, 4096, 4097,
		UINT64_C(1000000000000), UINT64_MAX};

	(void)unused;
	for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
		struct draw_keys *keys = create(DRAW_ZIPF, counts[c], 1, 1);
		char *taken = malloc(counts[c]);
		assert_non_null(taken);
		for (unsigned s = 0; s < sizeof steps / sizeof *steps; s++) {
			memset(taken, 0, counts[c]);
			for (uint64_t rank = 0; rank < counts[c]; rank++) {
				uint64_t key = draw_keys_of_rank(keys, rank, steps[s]);
				assert_true(key < counts[c]);
				assert_false(taken[key]);
				taken[key] = 1;
			}
		}
		free(taken);
		draw_keys_destroy(&keys);
	}
}

/* Where not all can be tried: the way back leads to the rank. */
static void
many_ranks_have_their_own_keys(void **unused)
{
	static const uint64_t counts[] = {100000000, 4000000000, DRAW_KEYS_MAX - 1, DRAW_KEYS_MAX};

	(void)unused;
	for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
		struct draw_keys *keys = create(DRAW_ZIPF, counts[c], 1, 1);
		struct ranks ranks = ranks_of(keys, counts[c]);
		uint64_t groups = counts[c] / 64;
		for (uint64_t i = 0; i < 200000; i++) {
			uint64_t rank = i < 1000 ? counts[c] - 1 - i
						 : i * UINT64_C(0x9e3779b97f4a7c15) % counts[c];
			uint64_t key = draw_keys_of_rank(keys, rank, 0);
			assert_true(key < counts[c] && rank_of(&ranks, key) == rank);
			/* 192 steps lift every key three places of its group. */
			if (rank < groups * 61)
				assert_int_equal(draw_keys_of_rank(keys, rank, 192),
					draw_keys_of_rank(keys, rank + 3 * groups, 0));
			else if (rank < groups * 64)
				assert_int_equal(draw_keys_of_rank(keys, rank, 192),
					draw_keys_of_rank(keys, rank - 61 * groups, 0));
		}
		draw_keys_destroy(&keys);
	}
}

static int
compare_numbers(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void
hot_keys_are_not_neighbours(void **unused)
{
	static const uint64_t counts[] = {100000, 999999, 1000000, 3000000, 100000000};
	enum { HOT = 30 };

	(void)unused;
	for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
		struct draw_keys *keys = create(DRAW_ZIPF, counts[c], 1, 0);
		uint64_t hot[HOT + 1];
		for (unsigned i = 0; i < HOT; i++)
			hot[i] = draw_keys_of_rank(keys, i, 0);
		qsort(hot, HOT, sizeof *hot, compare_numbers);
		hot[HOT] = hot[0] + counts[c];
		for (unsigned i = 0; i < HOT; i++)
			assert_true(hot[i + 1] - hot[i] >= counts[c] / (HOT * 3));
		draw_keys_destroy(&keys);
	}
}

static void
a_step_moves_a_64th(void **unused)
{
	static const uint64_t counts[] = {1000, 5000, 8192, 10000, 100003};

	(void)unused;
	for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
		struct draw_keys *keys = create(DRAW_ZIPF, counts[c], 1, 1);
		uint64_t slots = counts[c] < 8192 ? counts[c] / 128 : 64;
		uint64_t groups = counts[c] / slots;
		for (uint64_t step = 0; step < 200; step++) {
			uint64_t moved = 0;
			for (uint64_t rank = 0; rank < counts[c]; rank++) {
				uint64_t before = draw_keys_of_rank(keys, rank, step);
				uint64_t after = draw_keys_of_rank(keys, rank, step + 1);
				if (before == after)
					continue;
				moved++;
				assert_int_equal(rank % groups % 64, step % 64);
				uint64_t from = rank + groups;
				if (from >= groups * slots)
					from -= groups * slots;
				assert_int_equal(after, draw_keys_of_rank(keys, from, step));
			}
			assert_true(moved >= groups / 64 * slots);
			assert_true(moved <= (groups / 64 + 1) * slots);
		}
		for (uint64_t rank = 0; rank < groups * slots; rank++)
			assert_true(draw_keys_of_rank(keys, rank, 5) !=
				    draw_keys_of_rank(keys, rank, 69));
		draw_keys_destroy(&keys);
	}
}

/* The same ranks are drawn, and each has the key that it has at this step. */
static void
draws_follow_the_steps(void **unused)
{
	enum { KEYS = 50000, EVERY = 1000, DRAWS = 150 * EVERY };
	struct draw_keys *still = create(DRAW_ZIPF, KEYS, 0.9, 0);
	struct draw_keys *moving = create(DRAW_ZIPF, KEYS, 0.9, EVERY);
	struct ranks ranks = ranks_of(still, KEYS);
	struct draw_state a, b;
	uint64_t x[777], y[777], changed = 0;

	(void)unused;
	draw_state_start(&a, still, 5, 2, 4);
	draw_state_start(&b, moving, 5, 2, 4);
	for (uint64_t done = 0; done < DRAWS; done += 777) {
		draw_keys_fill(still, &a, x, 777);
		draw_keys_fill(moving, &b, y, 777);
		for (unsigned i = 0; i < 777; i++) {
			uint64_t step = (done + i) / EVERY;
			assert_int_equal(
				y[i], draw_keys_of_rank(moving, rank_of(&ranks, x[i]), step));
			changed += x[i] != y[i];
		}
	}
	/* On average over 150 steps; nothing is where it was after 64. */
	assert_true(changed > DRAWS * 3 / 4);
	draw_keys_destroy(&still);
	draw_keys_destroy(&moving);
}

static void
draws_do_not_depend_on_the_batch(void **unused)
{
	static const enum draw_kind kinds[] = {DRAW_UNIFORM, DRAW_ZIPF, DRAW_SEQUENTIAL};

	(void)unused;
	for (unsigned k = 0; k < 3; k++) {
		struct draw_keys *keys = create(kinds[k], 1000, 1.2, 70);
		struct draw_state state;
		uint64_t whole[1000], parts[1000], other[1000];
		draw_state_start(&state, keys, 9, 1, 3);
		draw_keys_fill(keys, &state, whole, 1000);
		draw_state_start(&state, keys, 9, 1, 3);
		for (unsigned at = 0, size = 0; at < 1000; at += size, size++) {
			if (size > 1000 - at)
				size = 1000 - at;
			draw_keys_fill(keys, &state, parts + at, size);
		}
		assert_memory_equal(whole, parts, sizeof whole);
		draw_state_start(&state, keys, 9, 2, 3);
		draw_keys_fill(keys, &state, other, 1000);
		assert_memory_not_equal(whole, other, sizeof whole);
		draw_state_start(&state, keys, 10, 1, 3);
		draw_keys_fill(keys, &state, other, 1000);
		if (kinds[k] == DRAW_SEQUENTIAL)
			assert_memory_equal(whole, other, sizeof whole);
		else
			assert_memory_not_equal(whole, other, sizeof whole);
		draw_keys_destroy(&keys);
	}
}

static void
sequences_and_scans_are_shared_out(void **unused)
{
	enum { KEYS = 1001, STATES = 3, ROUNDS = 4 };
	struct draw_keys *keys = create(DRAW_SEQUENTIAL, KEYS, 0, 0);
	unsigned drawn[KEYS] = {0};
	uint64_t scanned[STATES * KEYS];

	(void)unused;
	for (uint32_t s = 0; s < STATES; s++) {
		struct draw_state state;
		uint64_t numbers[KEYS];
		draw_state_start(&state, keys, s, s, STATES);
		draw_keys_fill(keys, &state, numbers, 2);
		assert_int_equal(numbers[0], s);
		assert_int_equal(numbers[1], s + STATES);
		draw_state_start(&state, keys, s, s, STATES);
		for (unsigned round = 0; round < ROUNDS; round++) {
			draw_keys_fill(keys, &state, numbers, KEYS);
			for (unsigned i = 0; i < KEYS; i++)
				drawn[numbers[i]]++;
		}
		draw_scan_fill(&state, scanned + s * KEYS, KEYS);
	}
	for (unsigned i = 0; i < KEYS; i++)
		assert_int_equal(drawn[i], STATES * ROUNDS);
	qsort(scanned, STATES * KEYS, sizeof *scanned, compare_numbers);
	for (unsigned i = 0; i < STATES * KEYS; i++)
		assert_int_equal(scanned[i], KEYS + i);
	/* More states than keys. */
	struct draw_keys *few = create(DRAW_SEQUENTIAL, 2, 0, 0);
	struct draw_state state;
	uint64_t numbers[4];
	draw_state_start(&state, few, 1, 4, 5);
	draw_keys_fill(few, &state, numbers, 4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(numbers[i], (4 + 5 * i) % 2);
	draw_keys_destroy(&few);
	draw_keys_destroy(&keys);
}

/* Sizes of a small range one by one, of a large one by quantiles. */
static void
log_uniform_sizes_have_their_chances(void **unused)
{
	static const uint64_t ranges[][2] = {{1, 10}, {1, 100}, {20, 60}, {20, 4096}, {7, 7},
		{1, 1048576}, {1000, UINT64_C(1) << 40}};
	enum { DRAWS = 400000, QUANTILES = 50 };

	(void)unused;
	for (unsigned r = 0; r < sizeof ranges / sizeof *ranges; r++) {
		uint64_t min = ranges[r][0], max = ranges[r][1];
		bool each = max - min < 100;
		double whole = log(((double)max + 1) / (double)min);
		struct draw_sizes sizes;
		double expected[100] = {0};
		uint64_t seen[100] = {0};
		char what[64];
		snprintf(what, sizeof what, "%llu-%llu", (unsigned long long)min,
			(unsigned long long)max);
		draw_sizes_start(&sizes, DRAW_SIZE_LOG_UNIFORM, min, max, 11);
		uint64_t bound[QUANTILES + 1];
		for (unsigned q = 0; q <= QUANTILES; q++)
			bound[q] = (uint64_t)((double)min * exp(whole * q / QUANTILES));
		bound[QUANTILES] = max + 1;
		unsigned bins = each ? (unsigned)(max - min + 1) : QUANTILES;
		for (unsigned i = 0; i < bins; i++) {
			double from = each ? (double)(min + i) : (double)bound[i];
			double to = each ? from + 1 : (double)bound[i + 1];
			expected[i] = DRAWS * log(to / from) / whole;
		}
		for (uint64_t i = 0; i < DRAWS; i++) {
			uint64_t size = draw_size(&sizes, i);
			assert_true(size >= min && size <= max);
			seen[each ? size - min : bin_of(bound, QUANTILES, size)]++;
		}
		check_chi_square(what, expected, seen, bins);
	}
}

static void
sizes_belong_to_their_numbers(void **unused)
{
	struct draw_sizes fixed, even, other;
	double sum = 0;
	unsigned same = 0, lowest = 0, highest = 0;

	(void)unused;
	draw_sizes_start(&fixed, DRAW_SIZE_FIXED, 100, 100, 1);
	draw_sizes_start(&even, DRAW_SIZE_UNIFORM, 0, 1000, 1);
	draw_sizes_start(&other, DRAW_SIZE_UNIFORM, 0, 1000, 2);
	for (uint64_t i = 0; i < 100000; i++) {
		uint64_t size = draw_size(&even, i);
		assert_int_equal(draw_size(&fixed, i), 100);
		assert_true(size <= 1000);
		assert_int_equal(draw_size(&even, i), size);
		same += draw_size(&other, i) == size;
		lowest += size == 0;
		highest += size == 1000;
		sum += (double)size;
	}
	assert_true(fabs(sum / 100000 - 500) < 5 * 289 / sqrt(100000));
	assert_true(same < 200);
	assert_true(lowest > 50 && lowest < 150 && highest > 50 && highest < 150);
}

static void
poisson_gaps_are_exponential(void **unused)
{
	enum { DRAWS = 400000, QUANTILES = 50 };
	static const double rates[] = {1e7, 1e5, 3};

	(void)unused;
	for (unsigned r = 0; r < 3; r++) {
		struct draw_arrivals arrivals;
		double mean = 1e9 / rates[r], sum = 0, squares = 0, products = 0, before = mean;
		double expected[QUANTILES];
		uint64_t seen[QUANTILES] = {0};
		draw_arrivals_start(&arrivals, DRAW_ARRIVAL_POISSON, rates[r], 5, 1, 2);
		uint64_t last = 0;
		double last_ns = 0;
		for (unsigned i = 0; i < DRAWS; i++) {
			uint64_t now = draw_arrivals_next(&arrivals);
			assert_true(now >= last && now == (uint64_t)arrivals.at_ns);
			last = now;
			double gap = arrivals.at_ns - last_ns;
			last_ns = arrivals.at_ns;
			sum += gap / mean;
			squares += gap / mean * gap / mean;
			products += (gap / mean - 1) * (before / mean - 1);
			before = gap;
			unsigned quantile = (unsigned)((1 - exp(-gap / mean)) * QUANTILES);
			seen[quantile < QUANTILES ? quantile : QUANTILES - 1]++;
		}
		for (unsigned i = 0; i < QUANTILES; i++)
			expected[i] = DRAWS / (double)QUANTILES;
		check_chi_square("gaps", expected, seen, QUANTILES);
		/* Mean 1, mean of squares 2 (of fourth powers 24), no correlation. */
		assert_true(fabs(sum / DRAWS - 1) < 5 / sqrt(DRAWS));
		assert_true(fabs(squares / DRAWS - 2) < 5 * sqrt(20.0 / DRAWS));
		assert_true(fabs(products / DRAWS) < 5 / sqrt(DRAWS));
	}
}

static void
even_arrivals_of_streams_interleave(void **unused)
{
	struct draw_arrivals streams[4];
	struct draw_arrivals poisson, other;

	(void)unused;
	for (uint32_t i = 0; i < 4; i++)
		draw_arrivals_start(&streams[i], DRAW_ARRIVAL_EVEN, 250000, 1, i, 4);
	for (uint64_t turn = 0; turn < 100000; turn++)
		for (uint32_t i = 0; i < 4; i++)
			assert_int_equal(
				draw_arrivals_next(&streams[i]), turn * 4000 + (i + 1) * 1000);
	draw_arrivals_start(&poisson, DRAW_ARRIVAL_POISSON, 1000, 1, 0, 2);
	draw_arrivals_start(&other, DRAW_ARRIVAL_POISSON, 1000, 1, 1, 2);
	uint64_t first = draw_arrivals_next(&poisson);
	assert_true(first != draw_arrivals_next(&other));
	draw_arrivals_start(&poisson, DRAW_ARRIVAL_POISSON, 1000, 1, 0, 2);
	assert_int_equal(draw_arrivals_next(&poisson), first);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zipf_has_its_chances),
		cmocka_unit_test(zipf_is_exact_within_runs),
		cmocka_unit_test(uniform_is_even),
		cmocka_unit_test(every_rank_has_its_own_key),
		cmocka_unit_test(many_ranks_have_their_own_keys),
		cmocka_unit_test(hot_keys_are_not_neighbours),
		cmocka_unit_test(a_step_moves_a_64th),
		cmocka_unit_test(draws_follow_the_steps),
		cmocka_unit_test(draws_do_not_depend_on_the_batch),
		cmocka_unit_test(sequences_and_scans_are_shared_out),
		cmocka_unit_test(log_uniform_sizes_have_their_chances),
		cmocka_unit_test(sizes_belong_to_their_numbers),
		cmocka_unit_test(poisson_gaps_are_exponential),
		cmocka_unit_test(even_arrivals_of_streams_interleave),
	};

	return cmocka_run_group_tests_name("bench_draw", tests, NULL, NULL);
}
