/* SPDX-License-Identifier: BSD-2-Clause */
#include "memory/internal.h"

#include "base/check.h"
#include "base/pages.h"
#include "store/item_hd.h"

#include <errno.h>
#include <stdlib.h>

#define SEGMENT_SHIFT_MIN 16
#define SEGMENT_SHIFT_MAX 21
#define SEGMENTS_MAX ((1u << 22) - 1) /* an index entry's 22 bits, of which the last marks a link */
#define HEAD_BYTES 512		      /* of an item's header, longest key and trailer, at most */

const struct memory_tuning memory_tuning = {
	.segments_min = 512,
	.probation_percent = 2,
	.keep_percent = 75,
	.merge_width = MERGE_WIDTH_MAX,
	.ghost_per_mille = 4,
	.reads_max = 15,
	.fade_percent = 70,
	.garbage_min = 5,
	.ranking = MEMORY_BY_READS_A_BYTE,
	.ghost_main = true,
	.admit_by_score = true,
};

/*
 * The arena, and what there is for each segment, in one reserved range each; both are committed
 * by use.
 */
static bool
reserve_ranges(struct memory *memory)
{
	uint64_t n = memory->arena.segments_max;
	uint64_t arena_bytes = n << memory->arena.segment_shift;
	uint32_t sets = memory_ghost_sets(
		memory, memory->options.limit_bytes * memory->options.reserve_factor);
	uint64_t ghost_bytes = (uint64_t)sets * GHOST_WAYS * sizeof(uint32_t);
	uint64_t tables =
		n * (sizeof(struct segment) + sizeof(struct segment_face) + sizeof(uint32_t));

	memory->reads_bytes = (uint64_t)reclaim_merge_width(memory) * memory->segment_bytes / 32;
	memory->arena_bytes = arena_bytes;
	memory->tables_bytes = tables + ghost_bytes + memory->reads_bytes;
	memory->arena.base = pages_reserve(arena_bytes, PAGES_HUGE);
	memory->tables = pages_reserve(memory->tables_bytes, 4096);
	if (!memory->arena.base || !memory->tables)
		return false;

	uint8_t *at = memory->tables;
	ghost_init(&memory->ghost, (_Atomic uint32_t *)at);
	at += ghost_bytes;
	memory->segments = (struct segment *)at;
	at += n * sizeof(struct segment);
	memory->faces = (struct segment_face *)at;
	memory->arena.faces = memory->faces;
	memory->arena.epoch = &memory->epoch;
	at += n * sizeof(struct segment_face);
	memory->heap = (uint32_t *)at;
	at += n * sizeof(uint32_t);
	memory->reads = at;
	return true;
}

/*
 * Explicit huge pages for all that the limit allows, when asked for and there; else transparent
 * ones.
 */
static void
ask_for_huge_pages(struct memory *memory)
{
	size_t bytes = (memory->options.limit_bytes + PAGES_HUGE - 1) & ~(PAGES_HUGE - 1);

	/* Not past the arena's end: what a last part of a huge page holds has small ones. */
	if (bytes > memory->arena_bytes)
		bytes = memory->arena_bytes & ~(PAGES_HUGE - 1);
	if (memory->options.hugepages && bytes > 0 && pages_take_huge(memory->arena.base, bytes))
		memory->huge_pages = true;
	else
		pages_advise_huge(memory->arena.base, memory->arena_bytes, true);
}

struct memory *
memory_create(const struct memory_options *options)
{
	check(options->workers > 0 && options->reserve_factor > 0 && options->items);
	struct memory *memory = aligned_alloc(64, (sizeof *memory + 63) & ~(size_t)63);

	if (!memory)
		return NULL;
	*memory = (struct memory){.options = *options,
		.tuning = options->tuning ? *options->tuning : memory_tuning,
		.bare_from = 1};
	check(memory->tuning.merge_width <= MERGE_WIDTH_MAX);
	uint64_t segments = 128 * (uint64_t)options->workers;
	if (segments < memory->tuning.segments_min)
		segments = memory->tuning.segments_min;
	unsigned shift = SEGMENT_SHIFT_MIN;
	while (shift < SEGMENT_SHIFT_MAX && options->limit_bytes >> (shift + 1) >= segments)
		shift++;
	/* A large value's head, which numbers its segments, is an item of half a segment too. */
	while (shift < SEGMENT_SHIFT_MAX &&
		HEAD_BYTES + 4 * ((options->value_bytes_max >> shift) + 2) > 1ull << (shift - 1))
		shift++;
	memory->arena.segment_shift = shift;
	memory->segment_bytes = 1u << shift;
	/* Number 0 is never used. */
	uint64_t n = (options->limit_bytes * options->reserve_factor >> shift) + 1;
	memory->arena.segments_max = n > SEGMENTS_MAX ? SEGMENTS_MAX : n < 64 ? 64 : (uint32_t)n;
	atomic_init(&memory->limit_bytes, options->limit_bytes);
	atomic_init(&memory->epoch, 1);
	memory->flush_cursor = UINT32_MAX;
	pthread_mutex_init(&memory->pool, NULL);

	append_choose_slots(memory);
	memory->appenders = aligned_alloc(64, memory->appenders_count * sizeof *memory->appenders);
	if (!memory->appenders || !reserve_ranges(memory)) {
		memory_destroy(memory);
		errno = ENOMEM;
		return NULL;
	}
	for (unsigned i = 0; i < memory->appenders_count; i++)
		memory->appenders[i] = (struct appender){.lock = ATOMIC_FLAG_INIT};
	ghost_resize(&memory->ghost, memory_ghost_sets(memory, options->limit_bytes));
	ask_for_huge_pages(memory);
	pool_set_allowed(memory);
	return memory;
}

void
memory_destroy(struct memory *memory)
{
	if (!memory)
		return;
	pages_release(memory->arena.base, memory->arena_bytes);
	pages_release(memory->tables, memory->tables_bytes);
	pthread_mutex_destroy(&memory->pool);
	free(memory->appenders);
	free(memory);
}

struct memory_thread *
memory_thread_create(struct memory *memory, unsigned number)
{
	struct memory_thread *thread = calloc(1, sizeof *thread);

	if (!thread)
		return NULL;
	thread->memory = memory;
	thread->number = number;
	if (number < memory->options.workers)
		thread->appender = &memory->appenders[number % memory->appenders_count];
	return thread;
}

void
memory_thread_destroy(struct memory_thread *thread)
{
	pool_wait_no_more(thread);
	free(thread);
}

const struct memory_arena *
memory_arena(const struct memory *memory)
{
	return &memory->arena;
}

uint32_t
memory_segment_epoch(const struct memory *memory, uint32_t segment)
{
	return segment_epoch(memory, segment);
}

uint32_t
memory_segment_opened_s(const struct memory *memory, uint32_t segment)
{
	return READ(memory->faces[segment].opened_s);
}

bool
memory_segment_probation(const struct memory *memory, uint32_t segment)
{
	return READ(memory->faces[segment].generation) == PROBATION;
}

uint32_t
memory_epoch(const struct memory *memory)
{
	return atomic_load_explicit(&memory->epoch, memory_order_acquire);
}

void
memory_flush(struct memory *memory)
{
	/*
	 * Under the mutex, so that each seal is before it (and found by the scan) or after it
	 * (and sees the new epoch).
	 */
	pthread_mutex_lock(&memory->pool);
	atomic_fetch_add(&memory->epoch, 1);
	memory->flush_cursor = 1;
	pthread_mutex_unlock(&memory->pool);
	atomic_store(&memory->exhausted, false);
	pool_wake(memory);
}

void
memory_dead(struct memory *memory, uint32_t segment, uint32_t bytes)
{
	struct segment *s = segment_at(memory, segment);
	uint32_t old = atomic_fetch_sub(&s->live, bytes);

	if (old < bytes)
		COUNT(memory->accounting_errors, 1);
	/* Only when it crosses into another list: a few times in a segment's life. */
	uint32_t capacity = atomic_load_explicit(&s->capacity, memory_order_relaxed),
		 now = old - bytes;
	unsigned shift = memory->arena.segment_shift - 4;
	if ((now == 0 || (capacity - old) >> shift != (capacity - now) >> shift) &&
		atomic_load(&s->state) == SEGMENT_SEALED)
		pool_relist(memory, segment);
}

bool
memory_ghost_take(struct memory *memory, uint64_t hash, uint64_t bytes)
{
	if (!ghost_take(&memory->ghost, hash))
		return false;
	if (!rank_worth(memory, 1, bytes)) {
		COUNT(memory->refused_bytes, bytes);
		return false;
	}
	COUNT(memory->ghost_hits, 1);
	return true;
}

void
memory_ghost_prefetch(const struct memory *memory, uint64_t hash)
{
	ghost_prefetch(&memory->ghost, hash);
}

void
memory_ghost_put(struct memory *memory, uint64_t hash)
{
	ghost_insert(&memory->ghost, hash);
	atomic_fetch_sub_explicit(&memory->ghost_hits, 1, memory_order_relaxed);
}

/* --- pins --------------------------------------------------------------------------------- */

bool
memory_pin(struct memory *memory, uint32_t segment)
{
	_Atomic uint32_t *pins = &segment_at(memory, segment)->pins;
	uint32_t count = atomic_load(pins);

	while (count)
		if (atomic_compare_exchange_weak(pins, &count, count + 1))
			return true;
	/* One more segment: within the bound only. */
	if (atomic_fetch_add(&memory->pinned_count, 1) >= READ(memory->allowed) / 8) {
		atomic_fetch_sub(&memory->pinned_count, 1);
		COUNT(memory->pin_refusals, 1);
		return false;
	}
	if (atomic_fetch_add(pins, 1) != 0)
		atomic_fetch_sub(&memory->pinned_count, 1);
	return true;
}

void
memory_unpin(struct memory *memory, uint32_t segment)
{
	struct segment *s = segment_at(memory, segment);
	uint32_t old = atomic_fetch_sub(&s->pins, 1);

	check(old != 0);
	if (old != 1)
		return;
	atomic_fetch_sub(&memory->pinned_count, 1);
	atomic_store(&memory->held_ready, true);
	atomic_store(&memory->exhausted, false);
	if (pool_free_count(memory) < pool_target(memory))
		pool_wake(memory);
}

/* --- limits ------------------------------------------------------------------------------- */

/*
 * A key in ghost costs 4 bytes: a 250th of memory remembers as many as memory holds items of a
 * KiB.
 */
uint32_t
memory_ghost_sets(const struct memory *memory, uint64_t limit_bytes)
{
	uint64_t sets = limit_bytes * memory->tuning.ghost_per_mille / 1000 /
			(GHOST_WAYS * sizeof(uint32_t));

	return !memory->options.evict || sets == 0 ? 0
	       : sets > 1u << 26		   ? 1u << 26
	       : sets < 16			   ? 16
						   : (uint32_t)sets;
}

void
memory_set_outside(struct memory *memory, uint64_t bytes)
{
	if (atomic_exchange(&memory->outside_bytes, bytes) == bytes)
		return;
	pool_set_allowed(memory);
	bool more = pool_trim(memory);
	atomic_store(&memory->exhausted, false);
	if (more || pool_free_count(memory) < pool_low(memory))
		pool_wake(memory);
}

bool
memory_set_limit(struct memory *memory, uint64_t limit_bytes)
{
	uint64_t opens =
		memory->appenders_count * (memory->slots[PROBATION] + memory->slots[MAIN]) +
		memory->outputs_classes;
	uint64_t outside = READ(memory->outside_bytes) + limit_bytes / 64;

	if (limit_bytes > memory->options.limit_bytes * memory->options.reserve_factor ||
		limit_bytes < outside + 2 * (opens + 4) * memory->segment_bytes)
		return false;
	if (limit_bytes < READ(memory->limit_bytes) && !memory->huge_pages)
		/*
		 * Else the kernel may make a huge page of what was given back, and resident
		 * memory grows again.
		 */
		pages_advise_huge(memory->arena.base, memory->arena_bytes, false);
	atomic_store(&memory->limit_bytes, limit_bytes);
	ghost_resize(&memory->ghost, memory_ghost_sets(memory, limit_bytes));
	pool_set_allowed(memory);
	pool_trim(memory);
	atomic_store(&memory->exhausted, false);
	pool_wake(memory);
	return true;
}

bool
memory_worth(const struct memory *memory, uint32_t reads, uint64_t bytes)
{
	return rank_worth(memory, reads, bytes);
}

static void
visit_segment(struct memory *memory, uint32_t segment,
	void (*visit)(void *context, const struct item *item, uint32_t segment, uint32_t offset),
	void *context)
{
	uint32_t used = segment_at(memory, segment)->used;

	for (uint32_t at = 0; at < used;) {
		const struct item *item = memory_address(&memory->arena, segment, at / ITEM_ALIGN);
		/* It may be given up in the visit, but stays where it is. */
		uint32_t size = item_size(item);

		visit(context, item, segment, at / ITEM_ALIGN);
		at += size;
	}
}

void
memory_visit(struct memory *memory,
	void (*visit)(void *context, const struct item *item, uint32_t segment, uint32_t offset),
	void *context)
{
	for (int generation = MAIN; generation >= PROBATION; generation--)
		for (uint32_t segment = 1; segment < memory->bare_from; segment++) {
			uint8_t state = atomic_load(&segment_at(memory, segment)->state);

			if ((state == SEGMENT_OPEN || state == SEGMENT_SEALED ||
				    state == SEGMENT_CLEARING) &&
				READ(memory->faces[segment].generation) == (unsigned)generation)
				visit_segment(memory, segment, visit, context);
		}
}

void
memory_get_stats(const struct memory *const_memory, struct memory_stats *stats)
{
	struct memory *memory = (struct memory *)const_memory; /* its mutex only */
	uint64_t live = 0;

	pthread_mutex_lock(&memory->pool);
	*stats = (struct memory_stats){
		.limit_bytes = READ(memory->limit_bytes),
		.segment_bytes = memory->segment_bytes,
		.segments_limit = READ(memory->allowed),
		.segments_open = memory->open_count,
		.segments_probation = READ(memory->generation_count[PROBATION]),
		.segments_main = READ(memory->generation_count[MAIN]),
		.segments_body = READ(memory->bodies_count),
		.segments_grace = memory->grace.count + memory->held.count,
		.segments_pinned = READ(memory->pinned_count),
		.resident_bytes = (uint64_t)memory->resident << memory->arena.segment_shift,
		.ghost_bytes = (uint64_t)READ(memory->ghost.sets) * GHOST_WAYS * 4,
		.evicted_segments = READ(memory->evicted_segments),
		.merged_segments = READ(memory->merged_segments),
		.expired_segments = READ(memory->expired_segments),
		.flushed_segments = READ(memory->flushed_segments),
		.dead_segments = READ(memory->dead_segments),
		.compacted_segments = READ(memory->compacted_segments),
		.moved_items = READ(memory->moved_items),
		.moved_bytes = READ(memory->moved_bytes),
		.dropped_items = READ(memory->dropped_items),
		.ghost_hits = READ(memory->ghost_hits),
		.promoted_items = READ(memory->promoted_items),
		.worker_steps = READ(memory->worker_steps),
		.waits = READ(memory->waits),
		.pin_refusals = READ(memory->pin_refusals),
		.accounting_errors = READ(memory->accounting_errors),
	};
	int64_t spare = pool_free_count(memory);
	stats->segments_free = spare > 0 ? (uint64_t)spare : 0;
	uint32_t bodies = READ(memory->bodies_count), unfinished = READ(memory->bodies_unfinished);
	uint32_t end = memory->bare_from;
	pthread_mutex_unlock(&memory->pool);

	for (uint32_t segment = 1; segment < end; segment++)
		live += READ(segment_at(memory, segment)->live);
	stats->live_bytes = live + (uint64_t)(bodies > unfinished ? bodies - unfinished : 0) *
					   memory->segment_bytes;
}
