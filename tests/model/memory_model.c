/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory against a dumb model, one thread, a fake clock: random sets of all sizes and lifetimes,
 * overwrites, deletes, reads, flushes, pins, limit changes and pieces of background work. After
 * every few hundred steps everything is compared: no entry but on its own item, live bytes exact,
 * resident segments within the limit, nothing lost but by eviction, expiry or a flush (with
 * eviction off: by nothing else). At the end all segments are accounted for.
 *
 *	memory_model [seed [steps]]
 */
#include "base/check.h"
#include "base/rcu.h"
#include "tests/model/memory_store.h"

#include <stdio.h>
#include <stdlib.h>

#define MIB (1024 * 1024ull)
#define WORKERS_MAX 8
#define PINS_MAX 16

static _Atomic uint32_t now_s;

struct world {
	struct store store;
	struct memory_options options;
	struct memory_thread *workers[WORKERS_MAX], *background;
	uint64_t random;
	uint32_t keys;
	uint32_t pins[PINS_MAX];
	uint64_t outside, limit, full;
	uint64_t hits, misses;
};

static uint32_t
below(struct world *w, uint32_t n)
{
	return (uint32_t)(store_random(&w->random) >> 32) % n;
}

/* Mostly small, sometimes around half a segment, sometimes with a body. */
static uint64_t
any_size(struct world *w)
{
	switch (below(w, 64)) {
	case 0:
		return below(w, 300000);
	case 1:
		return 30000 + below(w, 10000);
	default:
		return below(w, 1 << (4 + below(w, 9)));
	}
}

static uint32_t
any_expiry(struct world *w)
{
	return below(w, 4) ? 0 : now_s + 1 + below(w, 1 << below(w, 20));
}

static void
background_steps(struct world *w, unsigned n)
{
	uint32_t next_s;

	while (n-- > 0 && memory_reclaim(w->background, now_s, &next_s))
		;
	check(n == (unsigned)-1 || next_s == 0 || next_s > now_s);
}

static void
set_one(struct world *w)
{
	struct memory_thread *thread = w->workers[below(w, w->options.workers)];
	uint32_t key = below(w, w->keys);
	uint64_t size = any_size(w);
	uint32_t expiry_s = any_expiry(w);
	bool main = below(w, 8) == 0;
	enum memory_status status;

	if (w->store.keys[key].must_live)
		store_get(&w->store, key, now_s);
	for (unsigned turns = 0; (status = store_set(&w->store, thread, key, size, expiry_s, main,
					  now_s)) == MEMORY_WAIT;
		turns++) {
		check(turns < 100000);
		memory_turn_end(thread, now_s);
		background_steps(w, 1);
	}
	if (status == MEMORY_FULL)
		w->full++;
	/*
	 * With eviction there is always something that can leave, but for what is pinned and the
	 * tiniest memories.
	 */
	check(status == MEMORY_OK || !w->options.evict || size > w->limit / 32);
	memory_turn_end(thread, now_s);
}

static void
pin_or_unpin(struct world *w)
{
	uint32_t *pin = &w->pins[below(w, PINS_MAX)];

	if (*pin) {
		memory_unpin(w->store.memory, *pin);
		*pin = 0;
		return;
	}
	uint32_t segment = store_segment(&w->store, below(w, w->keys));
	if (segment && memory_pin(w->store.memory, segment))
		*pin = segment;
}

/* A lower limit is reached step by step, and not while segments are pinned. */
static void
come_down(struct world *w)
{
	for (uint32_t i = 0; i < PINS_MAX; i++)
		if (w->pins[i]) {
			memory_unpin(w->store.memory, w->pins[i]);
			w->pins[i] = 0;
		}
	background_steps(w, 100000);
}

static void
change_limit(struct world *w)
{
	uint64_t limit = w->options.limit_bytes / 2 +
			 below(w, 1 << 16) * (w->options.limit_bytes / (1 << 15));

	if (!w->options.evict || !memory_set_limit(w->store.memory, limit))
		return;
	w->limit = limit;
	come_down(w);
}

/* Not without eviction: what is there stays then, and may be more than is left. */
static void
change_outside(struct world *w)
{
	if (!w->options.evict)
		return;
	w->outside = below(w, (uint32_t)(w->options.limit_bytes / 16));
	memory_set_outside(w->store.memory, w->outside);
	come_down(w);
}

static void
step(struct world *w)
{
	unsigned what = below(w, 1000);

	if (what < 500)
		set_one(w);
	else if (what < 600)
		store_delete(&w->store, below(w, w->keys));
	else if (what < 900)
		*(store_get(&w->store, below(w, w->keys), now_s) ? &w->hits : &w->misses) += 1;
	else if (what < 940)
		atomic_fetch_add(&now_s, below(w, 8) == 0 ? below(w, 200) : 0);
	else if (what < 970)
		background_steps(w, below(w, 20));
	else if (what < 997)
		pin_or_unpin(w);
	else if (what == 997 && below(w, 4) == 0)
		change_outside(w);
	else if (what == 998 && below(w, 4) == 0)
		change_limit(w);
	else if (what == 999 && below(w, 20) == 0)
		memory_flush(w->store.memory);
}

static void
compare(struct world *w)
{
	struct memory_stats stats;

	store_check(&w->store);
	memory_get_stats(w->store.memory, &stats);
	check(stats.resident_bytes <= stats.segments_limit * stats.segment_bytes);
	check(stats.resident_bytes + stats.ghost_bytes + w->outside <= w->limit);
	check(stats.segments_pinned <= PINS_MAX);
	if (!w->options.evict)
		check(w->store.drops[MEMORY_EVICTED] == 0);
}

/* Everything is flushed or deleted: all segments must come back. */
static void
finish(struct world *w)
{
	struct memory_stats stats;
	uint32_t i;

	for (i = 0; i < PINS_MAX; i++)
		if (w->pins[i])
			memory_unpin(w->store.memory, w->pins[i]);
	for (i = 0; i < w->keys; i += 2)
		store_delete(&w->store, i);
	memory_flush(w->store.memory);
	for (i = 0; i < w->options.workers; i++)
		memory_turn_end(w->workers[i], now_s);
	atomic_fetch_add(&now_s, 1);
	for (i = 0; i < w->options.workers; i++)
		memory_turn_end(w->workers[i], now_s);
	background_steps(w, 100000);
	memory_get_stats(w->store.memory, &stats);
	check(stats.live_bytes == 0 && store_live_bytes(&w->store) == 0);
	check(stats.segments_free == stats.segments_limit);
	check(stats.segments_open + stats.segments_probation + stats.segments_main +
			stats.segments_body + stats.segments_grace + stats.segments_pinned ==
		0);
	check(stats.accounting_errors == 0);
}

static void
run(uint64_t seed, uint64_t limit, unsigned workers, bool evict, uint64_t steps)
{
	struct world w = {.random = seed * 2 + 1, .limit = limit};
	struct memory_tuning tuning = memory_tuning;
	struct memory_stats stats;
	unsigned i;

	atomic_store(&now_s, 1700000000);
	store_options(&w.options, &w.store, limit, workers);
	tuning.check_dead = true;
	w.options.tuning = &tuning;
	w.options.evict = evict;
	w.options.value_bytes_max = 300000;
	w.store.now_s = &now_s;
	w.keys = (uint32_t)(limit / (evict ? 256 : 2048));
	store_open(&w.store, &w.options, w.keys);
	for (i = 0; i < workers; i++)
		w.workers[i] = memory_thread_create(w.store.memory, i);
	w.background = memory_thread_create(w.store.memory, workers);

	for (uint64_t n = 0; n < steps; n++) {
		step(&w);
		if (n % (steps / 64 + 1) == 0)
			compare(&w);
	}
	compare(&w);
	memory_get_stats(w.store.memory, &stats);
	printf("seed %llu -m %llu%s workers %u: %llu sets refused, moved %llu, dropped "
	       "%llu/%llu/%llu, segments evicted %llu "
	       "merged %llu expired %llu flushed %llu dead %llu compacted %llu, worker steps %llu, "
	       "waits %llu, live %.2f\n",
		(unsigned long long)seed, (unsigned long long)(limit / MIB), evict ? "" : " -M",
		workers, (unsigned long long)w.full, (unsigned long long)w.store.moves,
		(unsigned long long)w.store.drops[0], (unsigned long long)w.store.drops[1],
		(unsigned long long)w.store.drops[2], (unsigned long long)stats.evicted_segments,
		(unsigned long long)stats.merged_segments,
		(unsigned long long)stats.expired_segments,
		(unsigned long long)stats.flushed_segments, (unsigned long long)stats.dead_segments,
		(unsigned long long)stats.compacted_segments,
		(unsigned long long)stats.worker_steps, (unsigned long long)stats.waits,
		(double)stats.live_bytes / (double)w.limit);
	finish(&w);

	for (i = 0; i < workers; i++)
		memory_thread_destroy(w.workers[i]);
	memory_thread_destroy(w.background);
	store_close(&w.store);
}

int
main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1,
		 steps = argc > 2 ? strtoull(argv[2], NULL, 0) : 60000;

	setvbuf(stdout, NULL, _IOLBF, 0);
	rcu_register();
	run(seed, 1 * MIB, 4, true, steps);
	run(seed, 2 * MIB, 2, true, steps);
	run(seed, 8 * MIB, 4, true, steps);
	run(seed, 16 * MIB, 1, true, steps);
	run(seed, 2 * MIB, 2, false, steps);
	run(seed, 8 * MIB, 4, false, steps);
	rcu_unregister();
	return 0;
}
