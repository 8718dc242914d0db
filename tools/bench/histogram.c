/* SPDX-License-Identifier: BSD-2-Clause */
#include "histogram.h"

#include <math.h>

void
histogram_merge(struct histogram *into, const struct histogram *from)
{
	into->count += from->count;
	into->sum += from->sum;
	if (from->max > into->max)
		into->max = from->max;
	for (unsigned i = 0; i < HISTOGRAM_CELLS; i++)
		into->cells[i] += from->cells[i];
}

/* The largest value that falls into a cell. */
static uint64_t
cell_end(unsigned cell)
{
	if (cell < 2 * HISTOGRAM_STEPS)
		return cell;
	unsigned shift = cell / HISTOGRAM_STEPS - 1;
	uint64_t step = cell - shift * HISTOGRAM_STEPS;
	return ((step + 1) << shift) - 1;
}

uint64_t
histogram_quantile(const struct histogram *histogram, double share)
{
	uint64_t rank = (uint64_t)ceil(share * (double)histogram->count);
	uint64_t seen = 0;

	if (rank == 0)
		rank = 1;
	for (unsigned i = 0; i < HISTOGRAM_CELLS - 1; i++) {
		seen += histogram->cells[i];
		if (seen >= rank)
			return cell_end(i) < histogram->max ? cell_end(i) : histogram->max;
	}
	return histogram->max;
}
