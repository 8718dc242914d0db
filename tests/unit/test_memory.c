/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/check.h"
#include "base/rcu.h"
#include "memory/ghost.h"
#include "store/item_hd.h"
#include "tests/model/memory_store.h"

#include <stdarg.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1024 * 1024ull)

static _Atomic uint32_t now_s;

struct fixture {
	struct store store;
	struct memory_options options;
	struct memory_thread *workers[8], *background;
};

static void
open_fixture(struct fixture *f, uint32_t keys)
{
	atomic_store(&now_s, 1000000);
	f->store.now_s = &now_s;
	store_open(&f->store, &f->options, keys);
	for (unsigned i = 0; i < f->options.workers; i++)
		f->workers[i] = memory_thread_create(f->store.memory, i);
	f->background = memory_thread_create(f->store.memory, f->options.workers);
}

static void
close_fixture(struct fixture *f)
{
	for (unsigned i = 0; i < f->options.workers; i++)
		memory_thread_destroy(f->workers[i]);
	memory_thread_destroy(f->background);
	store_close(&f->store);
}

static struct memory_stats
stats_of(struct fixture *f)
{
	struct memory_stats stats;

	memory_get_stats(f->store.memory, &stats);
	return stats;
}

/* Sets, with background work whenever memory asks for patience. */
static enum memory_status
set_at(struct fixture *f, unsigned worker, uint32_t key, uint64_t bytes, uint32_t expiry_s,
	bool main)
{
	enum memory_status status;

	while ((status = store_set(&f->store, f->workers[worker], key, bytes, expiry_s, main,
			now_s)) == MEMORY_WAIT)
		store_settle(&f->store, f->background, now_s);
	return status;
}

static void
test_sizes(void **state)
{
	static const struct {
		uint64_t limit;
		unsigned workers, shift;
	} cases[] = {
		{1 * MIB, 4, 16},
		{64 * MIB, 4, 17},
		{64 * MIB, 1, 17},
		{256 * MIB, 1, 19},
		{1024 * MIB, 4, 21},
		{1024 * MIB, 32, 18},
		{100 * MIB, 1, 17},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct fixture f;

		store_options(&f.options, &f.store, cases[i].limit, 1);
		f.options.workers = cases[i].workers;
		struct memory *memory = memory_create(&f.options);
		struct memory_stats stats;
		assert_non_null(memory);
		memory_get_stats(memory, &stats);
		assert_int_equal(memory_arena(memory)->segment_shift, cases[i].shift);
		assert_in_range(stats.segments_limit * stats.segment_bytes, cases[i].limit * 9 / 10,
			cases[i].limit);
		assert_int_equal(stats.segments_open, 0);
		assert_int_equal(stats.resident_bytes, 0);
		memory_destroy(memory);
	}
}

/* The head of the largest value, four bytes a segment of it, fits half a segment. */
static void
test_head_fits(void **state)
{
	static const uint64_t values[] = {1 * MIB, 500 * MIB, 550 * MIB, 1024 * MIB};

	(void)state;
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		struct fixture f;

		store_options(&f.options, &f.store, 1100 * MIB, 1);
		f.options.workers = 128;
		f.options.value_bytes_max = values[i];
		struct memory *memory = memory_create(&f.options);
		assert_non_null(memory);
		uint64_t segment = 1ull << memory_arena(memory)->segment_shift;
		uint64_t head = 300 + 4 * ((values[i] + segment - 1) / segment);
		assert_in_range(head, 1, segment / 2);
		memory_destroy(memory);
	}
}

static void
test_set_get_delete(void **state)
{
	struct fixture f;

	(void)state;
	store_options(&f.options, &f.store, 16 * MIB, 2);
	open_fixture(&f, 100);
	for (uint32_t key = 0; key < 100; key++)
		assert_int_equal(
			store_set(&f.store, f.workers[key % 2], key, key * 10, 0, false, now_s),
			MEMORY_OK);
	for (uint32_t key = 0; key < 100; key++)
		assert_true(store_get(&f.store, key, now_s));
	store_check(&f.store);
	for (uint32_t key = 0; key < 100; key++)
		store_delete(&f.store, key);
	assert_false(store_get(&f.store, 5, now_s));
	assert_int_equal(stats_of(&f).live_bytes, 0);
	close_fixture(&f);
}

/* Ten times memory goes through; the limit holds at each step, and what was read stays longer. */
static void
test_eviction(void **state)
{
	static const uint64_t limits[] = {1 * MIB, 2 * MIB, 8 * MIB, 24 * MIB};

	(void)state;
	for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
		struct fixture f;
		uint32_t hot = (uint32_t)(limits[l] / 8 / 1024),
			 keys = (uint32_t)(limits[l] / 1024 * 10), hits = 0;

		store_options(&f.options, &f.store, limits[l], 4);
		open_fixture(&f, keys);
		for (uint32_t key = 0; key < keys; key++) {
			assert_int_equal(set_at(&f, key % 4, key, 1000, 0, false), MEMORY_OK);
			for (uint32_t i = 0; key >= hot && i < 2; i++)
				store_get(&f.store, (key * 2 + i) % hot, now_s);
			assert_in_range(stats_of(&f).resident_bytes, 0, limits[l]);
		}
		for (uint32_t key = 0; key < hot; key++)
			hits += store_get(&f.store, key, now_s);
		assert_in_range(hits, hot * 9 / 10, hot);
		store_check(&f.store);
		/* What can be held is held: not much is lost to open and free segments. */
		if (limits[l] >= 8 * MIB)
			assert_in_range(stats_of(&f).live_bytes, limits[l] * 85 / 100, limits[l]);
		close_fixture(&f);
	}
}

static void
test_ghost(void **state)
{
	static _Atomic uint32_t words[64 * GHOST_WAYS];
	struct ghost ghost;
	uint64_t random = 1, first[2000];
	unsigned remembered = 0;

	(void)state;
	ghost_init(&ghost, words);
	ghost_insert(&ghost, 5);
	assert_false(ghost_take(&ghost, 5)); /* no sets: it remembers nothing */
	ghost_resize(&ghost, 64);
	ghost_insert(&ghost, 0); /* tag 0 isn't 'empty' */
	assert_true(ghost_take(&ghost, 0));
	assert_false(ghost_take(&ghost, 0));
	for (unsigned i = 0; i < 2000; i++)
		ghost_insert(&ghost, first[i] = store_random(&random));
	/* It holds 1024: of the last 700 nearly all, of the first 500 nearly none. */
	for (unsigned i = 1300; i < 2000; i++)
		remembered += ghost_take(&ghost, first[i]);
	assert_in_range(remembered, 660, 700);
	remembered = 0;
	for (unsigned i = 0; i < 500; i++)
		remembered += ghost_take(&ghost, first[i]);
	assert_in_range(remembered, 0, 25);
	/* Others aren't taken for those. */
	for (unsigned i = 0; i < 10000; i++)
		assert_false(ghost_take(&ghost, store_random(&random)));
}

/* What is put back can be taken once more, and counts once. */
static void
test_ghost_put(void **state)
{
	struct fixture f;

	(void)state;
	store_options(&f.options, &f.store, 4 * MIB, 1);
	open_fixture(&f, 8000);
	for (uint32_t key = 0; key < 8000; key++)
		set_at(&f, 0, key, 1000, 0, false);
	uint32_t key = 0;
	while (key < 8000 && !memory_ghost_take(f.store.memory, store_hash(key), 1000))
		key++;
	assert_int_not_equal(key, 8000);
	assert_int_equal(stats_of(&f).ghost_hits, 1);
	memory_ghost_put(f.store.memory, store_hash(key));
	assert_int_equal(stats_of(&f).ghost_hits, 0);
	assert_true(memory_ghost_take(f.store.memory, store_hash(key), 1000));
	assert_false(memory_ghost_take(f.store.memory, store_hash(key), 1000));
	assert_int_equal(stats_of(&f).ghost_hits, 1);
	close_fixture(&f);
}

/*
 * A flush kills everything at once; the background clears it away, segment by segment, and all
 * memory is free again.
 */
static void
test_flush(void **state)
{
	struct fixture f;

	(void)state;
	store_options(&f.options, &f.store, 4 * MIB, 2);
	open_fixture(&f, 3000);
	for (uint32_t key = 0; key < 2000; key++)
		set_at(&f, key % 2, key, 700, 0, key % 3 == 0);
	uint32_t epoch = memory_epoch(f.store.memory);
	memory_flush(f.store.memory);
	assert_int_equal(memory_epoch(f.store.memory), epoch + 1);
	for (uint32_t key = 0; key < 2000; key++)
		assert_false(store_get(&f.store, key, now_s));
	/* What is set from now on lives. */
	for (uint32_t key = 1500; key < 2500; key++)
		assert_int_equal(set_at(&f, key % 2, key, 700, 0, false), MEMORY_OK);
	atomic_fetch_add(&now_s, 1);
	memory_turn_end(f.workers[0], now_s);
	memory_turn_end(f.workers[1], now_s);
	store_settle(&f.store, f.background, now_s);
	for (uint32_t key = 0; key < 2500; key++)
		assert_int_equal(store_get(&f.store, key, now_s), key >= 1500);
	assert_int_equal(f.store.drops[MEMORY_FLUSHED], 1500);
	assert_int_equal(f.store.drops[MEMORY_EVICTED], 0);
	assert_true(stats_of(&f).flushed_segments > 0);
	store_check(&f.store);
	close_fixture(&f);
}

/*
 * Items that live equally long stand together and leave together, without anything being moved;
 * and the deadline is told.
 */
static void
test_expiry(void **state)
{
	struct fixture f;
	uint32_t next_s;

	(void)state;
	store_options(&f.options, &f.store, 16 * MIB, 1);
	open_fixture(&f, 8000);
	for (uint32_t key = 0; key < 8000; key++)
		set_at(&f, 0, key, 500, key % 2 ? now_s + 300 : 0, false);
	atomic_fetch_add(&now_s, 70);
	memory_turn_end(f.workers[0], now_s); /* seals by age */
	assert_false(memory_reclaim(f.background, now_s, &next_s));
	assert_int_equal(next_s, 1000300);
	atomic_store(&now_s, 1000299);
	store_settle(&f.store, f.background, now_s);
	assert_int_equal(f.store.drops[MEMORY_EXPIRED], 0);
	atomic_store(&now_s, 1000300);
	store_settle(&f.store, f.background, now_s);
	assert_int_equal(f.store.drops[MEMORY_EXPIRED], 4000);
	assert_int_equal(f.store.moves, 0);
	assert_true(stats_of(&f).expired_segments >= 4000 * 500 / (128 * 1024));
	for (uint32_t key = 0; key < 8000; key++)
		assert_int_equal(store_get(&f.store, key, now_s), key % 2 == 0);
	store_check(&f.store);
	close_fixture(&f);
}

/*
 * What a reader holds beyond its turn stays whole while everything else is replaced; an eighth of
 * memory and no more.
 */
static void
test_pins(void **state)
{
	struct fixture f;
	const void *pins[2000] = {NULL};
	unsigned pinned = 0, segments = 0;

	(void)state;
	store_options(&f.options, &f.store, 4 * MIB, 1);
	open_fixture(&f, 20000);
	for (uint32_t key = 0; key < 2000; key++)
		set_at(&f, 0, key, 1000, 0, false);
	uint64_t limit = stats_of(&f).segments_limit;
	for (uint32_t key = 0; key < 2000; key++)
		pinned += (pins[key] = store_pin(&f.store, key)) != NULL;
	assert_in_range(pinned, limit / 8 * 50, limit / 8 * 64);
	assert_int_equal(stats_of(&f).segments_pinned, limit / 8);
	assert_true(stats_of(&f).pin_refusals > 0);
	for (uint32_t key = 2000; key < 20000; key++)
		assert_int_equal(set_at(&f, 0, key, 1000, 0, false), MEMORY_OK);
	for (uint32_t key = 0; key < 2000; key++)
		store_delete(&f.store, key);
	store_settle(&f.store, f.background, now_s);
	segments = (unsigned)stats_of(&f).segments_grace;
	assert_true(segments > 0);
	for (uint32_t key = 0; key < 2000; key++)
		if (pins[key])
			store_unpin(&f.store, key, pins[key]);
	store_settle(&f.store, f.background, now_s);
	assert_int_equal(stats_of(&f).segments_pinned, 0);
	assert_int_equal(stats_of(&f).segments_grace, 0);
	close_fixture(&f);
}

/*
 * Without eviction everything stays; the error comes when memory is really full, and what is
 * deleted makes room again.
 */
static void
test_no_eviction(void **state)
{
	struct fixture f;
	uint32_t stored = 0, again = 0;

	(void)state;
	store_options(&f.options, &f.store, 8 * MIB, 4);
	f.options.evict = false;
	open_fixture(&f, 40000);
	while (set_at(&f, stored % 4, stored, 500, 0, false) == MEMORY_OK)
		stored++;
	assert_in_range((uint64_t)stored * 528, 8 * MIB * 85 / 100, 8 * MIB);
	for (uint32_t key = 0; key < stored; key++)
		assert_true(store_get(&f.store, key, now_s));
	/* Every third goes: the holes are everywhere, and are gathered. */
	for (uint32_t key = 0; key < stored; key += 3)
		store_delete(&f.store, key);
	while (set_at(&f, again % 4, 20000 + again, 500, 0, false) == MEMORY_OK)
		again++;
	assert_in_range(again, stored / 3 * 80 / 100, stored);
	for (uint32_t key = 0; key < stored; key++)
		assert_int_equal(store_get(&f.store, key, now_s), key % 3 != 0);
	assert_int_equal(f.store.drops[MEMORY_EVICTED], 0);
	assert_true(stats_of(&f).compacted_segments > 0);
	store_check(&f.store);
	close_fixture(&f);
}

/*
 * Without eviction what expires makes room although in each segment something lives on, and memory
 * asks to be called for it.
 */
static void
test_no_eviction_expiry(void **state)
{
	struct fixture f;
	uint32_t stored = 0, next_s = 0;

	(void)state;
	store_options(&f.options, &f.store, 8 * MIB, 4);
	f.options.evict = false;
	open_fixture(&f, 60000);
	for (;; stored++)
		if (set_at(&f, stored % 4, stored, 500, now_s + (stored % 10 ? 6 : 3600), false) !=
			MEMORY_OK)
			break;
	for (unsigned round = 0; round < 3; round++) {
		uint32_t again = 0, first = stored;

		assert_false(memory_reclaim(f.background, now_s, &next_s));
		assert_int_equal(next_s, now_s + 1);
		for (unsigned s = 0; s < 7; s++) {
			atomic_fetch_add(&now_s, 1);
			store_settle(&f.store, f.background, now_s);
		}
		while (set_at(&f, stored % 4, stored, 500, now_s + (stored % 10 ? 6 : 3600),
			       false) == MEMORY_OK) {
			stored++;
			again++;
		}
		assert_in_range(again, 14000 * (7 - round) / 10, 14000);
		for (uint32_t key = 0; key < first; key += 10)
			assert_true(store_get(&f.store, key, now_s));
		store_check(&f.store);
	}
	assert_int_equal(f.store.drops[MEMORY_EVICTED], 0);
	close_fixture(&f);
}

/*
 * Compaction has an output open when everything is flushed: what lives from then on must not be
 * moved into it. Within one second, so that no upkeep comes between.
 */
static void
test_flush_between_moves(void **state)
{
	struct fixture f;

	(void)state;
	store_options(&f.options, &f.store, 4 * MIB, 1);
	f.options.evict = false;
	open_fixture(&f, 20000);
	for (uint32_t round = 0, key = 0; round < 4; round++) {
		uint32_t first = key;

		/* Two of three go at once, so that room is made by moving. */
		for (; key < first + 5000; key++) {
			assert_int_equal(set_at(&f, 0, key, 1500, 0, false), MEMORY_OK);
			if (key % 3)
				store_delete(&f.store, key);
		}
		assert_true(stats_of(&f).compacted_segments > 10 * (round + 1));
		for (uint32_t i = first; i < key; i++)
			assert_int_equal(store_get(&f.store, i, now_s), i % 3 == 0);
		store_check(&f.store);
		memory_flush(f.store.memory);
	}
	assert_int_equal(f.store.drops[MEMORY_EVICTED], 0);
	close_fixture(&f);
}

/*
 * A worker that writes an item a minute has its segment sealed nearly empty each time. Nothing
 * may leave for that while what lives is a fraction of memory.
 */
static void
test_slow_writers(void **state)
{
	struct fixture f;

	(void)state;
	store_options(&f.options, &f.store, 4 * MIB, 2);
	open_fixture(&f, 2000);
	for (uint32_t key = 0; key < 2000; key++) {
		assert_int_equal(set_at(&f, key % 2, key, 1000, 0, key % 5 == 0), MEMORY_OK);
		atomic_fetch_add(&now_s, 61);
		memory_turn_end(f.workers[0], now_s);
		memory_turn_end(f.workers[1], now_s);
	}
	assert_int_equal(f.store.drops[MEMORY_EVICTED], 0);
	assert_true(stats_of(&f).compacted_segments > 1000);
	store_check(&f.store);
	close_fixture(&f);
}

/* Values over half a segment: they come, are replaced, evicted and deleted whole. */
static void
test_large(void **state)
{
	struct fixture f;
	uint32_t segment, segments[64], count = 0, hits = 0;

	(void)state;
	struct memory_tuning tuning = memory_tuning;
	tuning.segments_min = 128;
	store_options(&f.options, &f.store, 16 * MIB, 1);
	f.options.tuning = &tuning;
	open_fixture(&f, 500);
	assert_in_range(memory_large_min(f.store.memory), 60000, 65536);
	for (uint32_t key = 0; key < 500; key++) {
		assert_int_equal(set_at(&f, 0, key, 60000 + key * 1000, 0, key % 2), MEMORY_OK);
		assert_true(store_get(&f.store, key, now_s));
		assert_in_range(stats_of(&f).resident_bytes, 0, 16 * MIB);
	}
	for (uint32_t key = 0; key < 500; key++)
		hits += store_get(&f.store, key, now_s);
	assert_in_range(hits, 20, 60);
	store_check(&f.store);
	for (uint32_t key = 0; key < 500; key++)
		store_delete(&f.store, key);
	store_settle(&f.store, f.background, now_s);
	assert_int_equal(stats_of(&f).segments_body, 0);

	/* Unfinished ones: an eighth. */
	while (memory_body_borrow(f.workers[0], now_s, &segment) == MEMORY_OK) {
		assert_in_range(count, 0, 63);
		segments[count++] = segment;
	}
	assert_int_equal(count, stats_of(&f).segments_limit / 8);
	/* That is no lack of memory, for which merges would keep less. */
	uint64_t waits = stats_of(&f).waits;
	assert_int_equal(memory_body_borrow(f.workers[0], now_s, &segment), MEMORY_WAIT);
	assert_int_equal(stats_of(&f).waits, waits);
	memory_body_release(f.store.memory, segments, count, false);
	assert_int_equal(memory_body_borrow(f.workers[0], now_s, &segment), MEMORY_OK);
	memory_body_release(f.store.memory, &segment, 1, false);
	store_settle(&f.store, f.background, now_s);
	assert_int_equal(stats_of(&f).segments_body + stats_of(&f).segments_grace, 0);
	close_fixture(&f);
}

static void
test_limit(void **state)
{
	struct fixture f;

	(void)state;
	store_options(&f.options, &f.store, 16 * MIB, 1);
	open_fixture(&f, 80000);
	for (uint32_t key = 0; key < 30000; key++)
		set_at(&f, 0, key, 1000, 0, false);
	assert_true(stats_of(&f).resident_bytes > 15 * MIB);

	assert_true(memory_set_limit(f.store.memory, 8 * MIB));
	store_settle(&f.store, f.background, now_s);
	assert_in_range(stats_of(&f).resident_bytes, 6 * MIB, 8 * MIB);
	store_check(&f.store);

	assert_true(memory_set_limit(f.store.memory, 64 * MIB));
	for (uint32_t key = 0; key < 80000; key++)
		assert_int_equal(set_at(&f, 0, key, 1000, 0, false), MEMORY_OK);
	assert_in_range(stats_of(&f).resident_bytes, 62 * MIB, 64 * MIB);

	/* The index and others count too. */
	memory_set_outside(f.store.memory, 20 * MIB);
	store_settle(&f.store, f.background, now_s);
	assert_in_range(stats_of(&f).resident_bytes, 40 * MIB, 44 * MIB);

	assert_false(memory_set_limit(f.store.memory, 64 * MIB + 1)); /* out of the range */
	assert_false(memory_set_limit(f.store.memory, 1 * MIB));
	assert_int_equal(stats_of(&f).limit_bytes, 64 * MIB);
	close_fixture(&f);
}

/* Free segments that a lower limit leaves no room for are given back a few at a time. */
static void
test_limit_in_steps(void **state)
{
	struct fixture f;
	uint64_t before, after;

	(void)state;
	store_options(&f.options, &f.store, 64 * MIB, 1);
	open_fixture(&f, 60000);
	for (uint32_t key = 0; key < 60000; key++)
		set_at(&f, 0, key, 1000, 0, false);
	memory_flush(f.store.memory);
	store_settle(&f.store, f.background, now_s);
	before = stats_of(&f).resident_bytes;
	assert_true(before > 50 * MIB);

	assert_true(memory_set_limit(f.store.memory, 24 * MIB));
	after = stats_of(&f).resident_bytes;
	assert_int_equal(after, before - 8 * stats_of(&f).segment_bytes);
	store_settle(&f.store, f.background, now_s);
	assert_in_range(stats_of(&f).resident_bytes, 20 * MIB, 24 * MIB);
	close_fixture(&f);
}

/* More workers than memory allows open segments: they share, and each can still set. */
static void
test_shared_appenders(void **state)
{
	struct fixture f;

	(void)state;
	store_options(&f.options, &f.store, 1 * MIB, 8);
	open_fixture(&f, 4000);
	for (uint32_t key = 0; key < 4000; key++) {
		assert_int_equal(set_at(&f, key % 8, key, 400, key % 5 ? 0 : now_s + 50, key % 2),
			MEMORY_OK);
		assert_in_range(stats_of(&f).segments_open, 0, 16 / 4);
	}
	store_check(&f.store);
	close_fixture(&f);
}

/* --- the observer ------------------------------------------------------------------------- */

struct watched {
	enum { NOT_SEEN, OPENED, SEALED } state[1024];
	uint32_t written[1024];
	unsigned opened, sealed, released;
};

static void
on_opened(void *context, uint32_t segment, uint32_t epoch)
{
	struct watched *watched = context;

	assert_true(segment < 1024 && epoch > 0);
	assert_int_equal(watched->state[segment], NOT_SEEN);
	watched->state[segment] = OPENED;
	watched->written[segment] = 0;
	watched->opened++;
}

static void
on_written(void *context, uint32_t segment, uint32_t bytes)
{
	struct watched *watched = context;

	assert_int_equal(watched->state[segment], OPENED);
	assert_true(bytes > watched->written[segment]);
	watched->written[segment] = bytes;
}

static void
on_sealed(void *context, uint32_t segment)
{
	struct watched *watched = context;

	assert_int_equal(watched->state[segment], OPENED);
	watched->state[segment] = SEALED;
	watched->sealed++;
}

static void
on_released(void *context, uint32_t segment)
{
	struct watched *watched = context;

	assert_int_equal(watched->state[segment], SEALED);
	watched->state[segment] = NOT_SEEN;
	watched->released++;
}

/* --- who waits for a segment -------------------------------------------------------------- */

/* Memory full, and no segment free for workers: each has been refused and has ended its turn. */
static void
fill(struct fixture *f, uint64_t limit, unsigned workers)
{
	store_options(&f->options, &f->store, limit, workers);
	open_fixture(f, 4096);
	for (uint32_t key = 0; store_set(&f->store, f->workers[1], key % 4096, 30000, 0, false,
				       now_s) == MEMORY_OK;
		key++)
		;
	for (unsigned i = 0; i < workers; i++)
		memory_turn_end(f->workers[i], now_s);
}

/* Takes what the worker gets, 30,000 bytes at a time. Gives how many segments that were. */
static unsigned
take_all(struct fixture *f, unsigned worker, uint32_t *key)
{
	unsigned before = (unsigned)stats_of(f).segments_free;

	while (store_set(&f->store, f->workers[worker], *key % 4096, 30000, 0, false, now_s) ==
		MEMORY_OK)
		++*key;
	return before - (unsigned)stats_of(f).segments_free;
}

/*
 * Others take all they can get whenever segments come free, and always ask first. Who waits still
 * gets one, after as many as there are others, and no more than were free when it began to wait.
 */
static void
test_waiting_in_turn(void **state)
{
	struct fixture f;
	uint32_t key = 0, next_s;
	unsigned others = 0;

	(void)state;
	fill(&f, 8 * MIB, 4);
	assert_int_equal(
		store_set(&f.store, f.workers[0], 4000, 30000, 0, true, now_s), MEMORY_WAIT);
	for (unsigned turn = 0; others < 1000; turn++) {
		memory_reclaim(f.background, now_s, &next_s);
		for (unsigned i = 1; i < 4; i++)
			others += take_all(&f, i, &key);
		enum memory_status status =
			store_set(&f.store, f.workers[0], 4000, 30000, 0, true, now_s);
		for (unsigned i = 0; i < 4; i++)
			memory_turn_end(f.workers[i], now_s);
		if (status == MEMORY_OK)
			break;
		assert_int_equal(status, MEMORY_WAIT);
	}
	assert_in_range(others, 0, 16);
	store_check(&f.store);
	close_fixture(&f);
}

/* A copy that needs several at once gives all back when one is refused, and still comes first. */
static void
test_copy_in_turn(void **state)
{
	struct fixture f;
	uint32_t key = 0, next_s, segments[4];
	unsigned others = 0, got = 0;

	(void)state;
	fill(&f, 8 * MIB, 4);
	while (got < 4 && others < 1000) {
		memory_reclaim(f.background, now_s, &next_s);
		for (unsigned i = 1; i < 4; i++)
			others += take_all(&f, i, &key);
		for (got = 0; got < 4 && memory_body_borrow_copy(
						 f.workers[0], now_s, &segments[got]) == MEMORY_OK;
			got++)
			;
		memory_body_release(f.store.memory, segments, got, false);
		for (unsigned i = 0; i < 4; i++)
			memory_turn_end(f.workers[i], now_s);
	}
	assert_int_equal(got, 4);
	assert_in_range(others, 0, 40);
	close_fixture(&f);
}

/* Who waited and is gone, or doesn't ask any more, keeps nothing from others. */
static void
test_waiter_gone(void **state)
{
	struct fixture f;
	uint32_t key = 0;

	(void)state;
	for (unsigned gone = 0; gone < 2; gone++) {
		fill(&f, 8 * MIB, 2);
		assert_int_equal(store_set(&f.store, f.workers[0], 4000, 30000, 0, true, now_s),
			MEMORY_WAIT);
		memory_turn_end(f.workers[0], now_s); /* it may well ask again: it comes first */
		store_settle(&f.store, f.background, now_s);
		take_all(&f, 1, &key);
		unsigned kept = (unsigned)stats_of(&f).segments_free;
		memory_turn_end(f.workers[1], now_s);
		if (gone) {
			memory_thread_destroy(f.workers[0]);
			f.workers[0] = memory_thread_create(f.store.memory, 0);
		} else {
			memory_turn_end(f.workers[0], now_s);
		}
		store_settle(&f.store, f.background, now_s);
		take_all(&f, 1, &key);
		assert_int_equal(stats_of(&f).segments_free, kept - 1);
		close_fixture(&f);
	}
}

/* So many at once, as a copy asks for them; what it got is given back. */
static enum memory_status
borrow_copies(struct fixture *f, unsigned worker, unsigned count)
{
	uint32_t segments[16], got = 0;
	enum memory_status status = MEMORY_OK;

	while (got < count && status == MEMORY_OK) {
		status = memory_body_borrow_copy(f->workers[worker], now_s, &segments[got]);
		got += status == MEMORY_OK;
	}
	memory_body_release(f->store.memory, segments, got, false);
	return status;
}

/*
 * Full without eviction, but for segments that a copy which waits longer can't do with. Who needs
 * but one has it: it isn't out of memory.
 */
static void
test_kept_is_not_full(void **state)
{
	struct fixture f;
	uint32_t key = 0, next_s, segments[3];
	enum memory_status status;

	(void)state;
	store_options(&f.options, &f.store, 8 * MIB, 2);
	f.options.evict = false;
	open_fixture(&f, 4096);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(
			memory_body_borrow_copy(f.workers[0], now_s, &segments[i]), MEMORY_OK);
	while ((status = store_set(&f.store, f.workers[1], key, 30000, 0, false, now_s)) !=
		MEMORY_FULL) {
		key += status == MEMORY_OK;
		if (status == MEMORY_WAIT)
			store_settle(&f.store, f.background, now_s);
	}
	memory_turn_end(f.workers[1], now_s);
	uint64_t full = stats_of(&f).segments_free;

	memory_body_release(f.store.memory, segments, 3, false);
	while (stats_of(&f).segments_free < full + 3)
		memory_reclaim(f.background, now_s, &next_s);
	assert_int_equal(borrow_copies(&f, 0, 4), MEMORY_WAIT);
	memory_turn_end(f.workers[0], now_s);
	store_settle(&f.store, f.background, now_s);
	assert_int_equal(stats_of(&f).segments_free, full + 3);

	assert_int_equal(store_set(&f.store, f.workers[1], key, 30000, 0, false, now_s), MEMORY_OK);
	assert_int_equal(stats_of(&f).segments_free, full + 2);
	assert_int_equal(borrow_copies(&f, 0, 4), MEMORY_FULL);
	close_fixture(&f);
}

static void
test_observer(void **state)
{
	static const struct memory_observer observer = {
		on_opened, on_written, on_sealed, on_released};
	static struct watched watched;
	struct fixture f;

	(void)state;
	store_options(&f.options, &f.store, 4 * MIB, 2);
	f.options.observer = &observer;
	f.options.observer_context = &watched;
	open_fixture(&f, 10000);
	for (uint32_t key = 0; key < 10000; key++) {
		set_at(&f, key % 2, key, key % 100 ? 1000 : 100000, 0, key % 4 == 0);
		store_get(&f.store, key / 2, now_s);
	}
	assert_true(watched.released > 100);
	assert_in_range(watched.opened - watched.released, 1, stats_of(&f).segments_limit);
	close_fixture(&f);
}

/* --- bounded steps ------------------------------------------------------------------------ */

static unsigned calls;

static int
counting_reads(void *context, const struct item *item, uint32_t segment, uint32_t offset)
{
	calls++;
	return store_items.reads(context, item, segment, offset);
}

static bool
counting_move(void *context, const struct item *item, uint32_t segment, uint32_t offset,
	uint32_t to_segment, uint32_t to_offset, struct item *to, uint32_t epoch, unsigned reads)
{
	calls++;
	return store_items.move(
		context, item, segment, offset, to_segment, to_offset, to, epoch, reads);
}

static enum memory_dropped
counting_drop(void *context, const struct item *item, uint32_t segment, uint32_t offset,
	enum memory_reason reason)
{
	calls++;
	return store_items.drop(context, item, segment, offset, reason);
}

/*
 * A step of the background looks at 2000 items at most, one inside a worker's turn at 250,
 * however small they are.
 */
static void
test_bounded(void **state)
{
	struct memory_items items = {
		counting_reads, counting_move, counting_drop, store_items.hash, NULL};
	struct fixture f;
	unsigned most = 0, most_worker = 0;
	uint32_t next_s;

	(void)state;
	store_options(&f.options, &f.store, 8 * MIB, 1);
	f.options.items = &items;
	open_fixture(&f, 500000);
	for (uint32_t key = 0; key < 500000; key++) {
		while (store_set(&f.store, f.workers[0], key, 8, 0, key % 2, now_s) ==
			MEMORY_WAIT) {
			calls = 0;
			memory_reclaim(f.background, now_s, &next_s);
			most = calls > most ? calls : most;
		}
		calls = 0;
		memory_turn_end(f.workers[0], now_s);
		most_worker = calls > most_worker ? calls : most_worker;
	}
	/* Up to two questions an item. */
	assert_in_range(most, 100, 2 * 2000);
	assert_in_range(most_worker, 100, 2 * 250);
	assert_true(stats_of(&f).merged_segments > 10 && stats_of(&f).evicted_segments > 10);
	close_fixture(&f);
}

/*
 * A segment of two items, of which the first is reported dead twice, or each once (twice is false),
 * then background work. Gives how that ended, as waitpid says it.
 */
static int
die_twice(bool twice)
{
	struct memory_tuning tuning = memory_tuning;
	struct fixture f;
	uint32_t segment;
	pid_t child;
	int status;

	store_options(&f.options, &f.store, 4 * MIB, 1);
	tuning.check_dead = true;
	f.options.tuning = &tuning;
	open_fixture(&f, 2);
	set_at(&f, 0, 0, 1000, 0, false);
	set_at(&f, 0, 1, 1000, 0, false);
	segment = store_segment(&f.store, 0);
	assert_int_equal(store_segment(&f.store, 1), segment);
	store_delete(&f.store, 0);
	if (twice)
		memory_dead(f.store.memory, segment, f.store.keys[0].size);
	else
		store_delete(&f.store, 1);
	atomic_fetch_add(&now_s, 61);
	memory_turn_end(f.workers[0], now_s);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(STDERR_FILENO);
		signal(SIGABRT, SIG_DFL);
		store_settle(&f.store, f.background, now_s);
		_exit(stats_of(&f).dead_segments == 1 ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	close_fixture(&f);
	return status;
}

/* What leaves without a walk is named nowhere: the models' check of that can fail. */
static void
test_check_dead(void **state)
{
	int status;

	(void)state;
	status = die_twice(false);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	status = die_twice(true);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ghost),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_head_fits),
		cmocka_unit_test(test_set_get_delete),
		cmocka_unit_test(test_eviction),
		cmocka_unit_test(test_ghost_put),
		cmocka_unit_test(test_flush),
		cmocka_unit_test(test_flush_between_moves),
		cmocka_unit_test(test_expiry),
		cmocka_unit_test(test_pins),
		cmocka_unit_test(test_no_eviction),
		cmocka_unit_test(test_no_eviction_expiry),
		cmocka_unit_test(test_slow_writers),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_limit_in_steps),
		cmocka_unit_test(test_shared_appenders),
		cmocka_unit_test(test_waiting_in_turn),
		cmocka_unit_test(test_copy_in_turn),
		cmocka_unit_test(test_waiter_gone),
		cmocka_unit_test(test_kept_is_not_full),
		cmocka_unit_test(test_observer),
		cmocka_unit_test(test_bounded),
		cmocka_unit_test(test_check_dead),
	};

	rcu_register();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	rcu_unregister();
	return failed;
}
