/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/check.h"
#include "base/rcu.h"
#include "store/item_hd.h"
#include "tests/model/memory_store.h"

#include <stdarg.h>
#include <setjmp.h>
#include <string.h>

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
set_at(struct fixture *f, unsigned worker, uint32_t key, uint64_t bytes, uint32_t expiry_s, bool main)
{
	enum memory_status status;

	while ((status = store_set(&f->store, f->workers[worker], key, bytes, expiry_s, main, now_s)) == MEMORY_WAIT)
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
		{ 1 * MIB, 4, 16 },    { 64 * MIB, 4, 17 },    { 64 * MIB, 1, 19 },
		{ 1024 * MIB, 4, 21 }, { 1024 * MIB, 32, 18 }, { 100 * MIB, 1, 19 },
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
		assert_in_range(stats.segments_limit * stats.segment_bytes, cases[i].limit * 9 / 10, cases[i].limit);
		assert_int_equal(stats.segments_open, 0);
		assert_int_equal(stats.resident_bytes, 0);
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
		assert_int_equal(store_set(&f.store, f.workers[key % 2], key, key * 10, 0, false, now_s), MEMORY_OK);
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
	static const uint64_t limits[] = { 1 * MIB, 2 * MIB, 8 * MIB, 24 * MIB };

	(void)state;
	for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
		struct fixture f;
		uint32_t hot = (uint32_t)(limits[l] / 8 / 1024), keys = (uint32_t)(limits[l] / 1024 * 10), hits = 0;

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

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_set_get_delete),
		cmocka_unit_test(test_eviction),
	};

	rcu_register();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	rcu_unregister();
	return failed;
}
