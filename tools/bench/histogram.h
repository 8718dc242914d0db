/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * histogram: counts of latencies, log-linear.
 *
 * Each power of two is cut into 128 equal steps, so a value is known to better than 0.8 % whatever
 * its size, and values below 256 exactly:
 *
 *     0 .. 255 | 256 .. 511 by 2 | 512 .. 1023 by 4 | ... up to 2^40 - 1
 *
 * (18 minutes in ns); what is above counts in the last cell.
 *
 * One thread writes a histogram; merge when the writers have stopped.
 */
#ifndef TOOLS_BENCH_HISTOGRAM_H
#define TOOLS_BENCH_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_STEP_BITS 7
#define HISTOGRAM_VALUE_BITS 40
#define HISTOGRAM_STEPS (1u << HISTOGRAM_STEP_BITS)
#define HISTOGRAM_CELLS ((HISTOGRAM_VALUE_BITS - HISTOGRAM_STEP_BITS + 1) * HISTOGRAM_STEPS)

struct histogram {
	uint64_t count;
	uint64_t sum;
	uint64_t max; /* exact */
	uint64_t cells[HISTOGRAM_CELLS];
};

static inline unsigned
histogram_cell(uint64_t value)
{
	if (value >> HISTOGRAM_VALUE_BITS)
		return HISTOGRAM_CELLS - 1;
	if (value < 2 * HISTOGRAM_STEPS)
		return (unsigned)value;
	unsigned shift = 63 - (unsigned)__builtin_clzll(value) - HISTOGRAM_STEP_BITS;
	return shift * HISTOGRAM_STEPS + (unsigned)(value >> shift);
}

static inline void
histogram_add(struct histogram *histogram, uint64_t value)
{
	histogram->count++;
	histogram->sum += value;
	if (value > histogram->max)
		histogram->max = value;
	histogram->cells[histogram_cell(value)]++;
}

/* The same value so many times. */
static inline void
histogram_add_many(struct histogram *histogram, uint64_t value, uint64_t count)
{
	histogram->count += count;
	histogram->sum += count * value;
	if (value > histogram->max)
		histogram->max = value;
	histogram->cells[histogram_cell(value)] += count;
}

void histogram_merge(struct histogram *into, const struct histogram *from);

/*
 * The value that share (0 to 1) of the counts do not exceed: the upper end of its step, never above
 * max.
 */
uint64_t histogram_quantile(const struct histogram *histogram, double share);

#endif
