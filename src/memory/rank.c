/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What an item is worth: reads a byte. Main's merges keep the best of their bytes by it, and say
 * with that what the least is that has a place in main: the bar, which what was read in probation,
 * or comes back from the ghost, must be over.
 */
#include "memory/internal.h"

#include "base/hd.h"

#define BAR_FALL 128 /* sixteenths of an octave that the bar falls while all of memory is refused */

/* A counter is exact to 4; each step above r took 2^(r-3) reads on average. */
static uint32_t
estimate(uint32_t reads)
{
	return reads <= 4 ? reads : 2 + (1u << (reads - 3));
}

/*
 * Sixteenths of an octave of (reads + 0.3) / weight. Smallest: 3 * 2^32 / 10 GiB, raised to 16, so
 * the logarithm is never below 4; greatest 40983 * 2^32 / 32, 42.
 */
unsigned
rank_score(const struct memory *memory, uint32_t reads, uint64_t weight)
{
	if (memory->tuning.ranking == MEMORY_BY_AGE)
		return 1;
	if (memory->tuning.ranking == MEMORY_BY_READS)
		weight = 256;
	uint64_t ratio = ((uint64_t)(10 * estimate(reads) + 3) << 32) / weight | 16;
	unsigned octave = hd_log2(ratio);
	unsigned score = octave * 16 + ((unsigned)(ratio >> (octave - 4)) & 15);

	return score < SCORES ? score : SCORES - 1;
}

/*
 * What is left of a counter after a merge: seven tenths of the reads, rounded up or down by chance
 * so that the mean is right. Whoever holds the token.
 */
uint32_t
rank_fade(struct memory *memory, uint32_t reads)
{
	uint32_t left = estimate(reads) * memory->tuning.fade_percent, faded = 0;

	while (faded < reads && 100 * estimate(faded + 1) <= left)
		faded++;
	if (faded == reads)
		return reads;
	memory->random = memory->random * 6364136223846793005ull + 1442695040888963407ull;
	uint32_t step = 100 * (estimate(faded + 1) - estimate(faded));
	return faded + ((uint32_t)(memory->random >> 33) % step < left - 100 * estimate(faded));
}

uint32_t
rank_probation_share(const struct memory *memory)
{
	/* What is open is too young to leave. */
	return (uint32_t)((uint64_t)READ(memory->allowed) * memory->tuning.probation_percent /
			  100) +
	       memory->appenders_count * memory->slots[PROBATION];
}

uint32_t
rank_weight(const struct memory *memory, enum generation generation)
{
	return READ(memory->generation_count[generation]) +
	       READ(memory->generation_bodies[generation]);
}

void
rank_set_bar(struct memory *memory, unsigned threshold)
{
	atomic_store_explicit(&memory->bar, threshold ? threshold : 1, memory_order_relaxed);
	atomic_store_explicit(&memory->refused_bytes, 0, memory_order_relaxed);
}

/*
 * Without a bar, which is while main is still filling, one read is enough. Where much comes back
 * that isn't let in, the bar falls: popularity has moved, and what the last merge kept isn't read
 * any more.
 */
bool
rank_worth(const struct memory *memory, uint32_t reads, uint64_t weight)
{
	unsigned bar = READ(memory->bar);

	if (bar == 0 || !memory->tuning.admit_by_score ||
		rank_weight(memory, PROBATION) > 2 * rank_probation_share(memory))
		return reads > 0;
	uint64_t fallen = READ(memory->refused_bytes) * BAR_FALL / READ(memory->limit_bytes);
	return rank_score(memory, reads, weight) + fallen > bar;
}
