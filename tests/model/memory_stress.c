/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory under threads: workers set, overwrite, delete, read (every byte), pin and help; the
 * background reclaims; a clock runs a hundred times too fast and everything is flushed now and
 * then. Afterwards the items are compared as in the model.
 *
 *	memory_stress [seconds a run [seed]]
 */
#include "base/check.h"
#include "base/rcu.h"
#include "tests/model/memory_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MIB (1024 * 1024ull)
#define WORKERS 3
#define TURN 32 /* requests */
#define PINS 4

static _Atomic uint32_t now_s;
static _Atomic bool stop, stop_background;

struct worker {
	pthread_t thread;
	struct store *store;
	struct memory_thread *memory;
	uint64_t random;
	uint64_t sets, refused, gave_up, hits, misses;
	struct {
		uint32_t key;
		const void *item;
	} pins[PINS];
};

static void
pause_us(unsigned us)
{
	struct timespec time = {0, us * 1000l};

	nanosleep(&time, NULL);
}

static void *
run_background(void *argument)
{
	struct worker *w = argument;
	uint32_t next_s;

	rcu_register();
	while (!atomic_load(&stop_background))
		if (!memory_reclaim(w->memory, atomic_load(&now_s), &next_s)) {
			rcu_offline();
			pause_us(100);
			rcu_online();
		}
	rcu_unregister();
	return NULL;
}

static uint32_t
below(struct worker *w, uint32_t n)
{
	return (uint32_t)(store_random(&w->random) >> 32) % n;
}

/* The next turn, as a worker's loop has it. */
static void
end_turn(struct worker *w)
{
	memory_turn_end(w->memory, atomic_load(&now_s));
	rcu_quiescent();
}

static void
set_one(struct worker *w, uint32_t key)
{
	uint64_t size = below(w, 100) ? below(w, 1 << (4 + below(w, 8))) : below(w, 200000);
	uint32_t expiry_s = below(w, 4) ? 0 : atomic_load(&now_s) + 1 + below(w, 60);
	bool main = below(w, 4) == 0;
	enum memory_status status;

	/* Large values may wait for each other: one gives up. */
	for (unsigned turns = 0; (status = store_set(w->store, w->memory, key, size, expiry_s, main,
					  atomic_load(&now_s))) == MEMORY_WAIT;
		turns++) {
		if (turns > 100 + below(w, 100)) {
			store_set_abort(w->store);
			w->gave_up++;
			return;
		}
		end_turn(w);
		rcu_offline();
		pause_us(20);
		rcu_online();
	}
	w->sets++;
	w->refused += status == MEMORY_FULL;
}

static void
request(struct worker *w)
{
	uint32_t key = below(w, w->store->keys_count), what = below(w, 100), i = below(w, PINS);

	if (what < 30)
		set_one(w, key);
	else if (what < 35)
		store_delete(w->store, key);
	else if (what < 97)
		*(store_get(w->store, key, atomic_load(&now_s)) ? &w->hits : &w->misses) += 1;
	else if (w->pins[i].item) {
		store_unpin(w->store, w->pins[i].key, w->pins[i].item);
		w->pins[i].item = NULL;
	} else {
		w->pins[i].key = key;
		w->pins[i].item = store_pin(w->store, key);
	}
}

static void *
run_worker(void *argument)
{
	struct worker *w = argument;

	rcu_register();
	while (!atomic_load(&stop)) {
		for (unsigned i = 0; i < TURN; i++)
			request(w);
		end_turn(w);
	}
	for (unsigned i = 0; i < PINS; i++)
		if (w->pins[i].item)
			store_unpin(w->store, w->pins[i].key, w->pins[i].item);
	rcu_unregister();
	return NULL;
}

static void
run(uint64_t limit, bool evict, double seconds, uint64_t seed)
{
	struct store store = {.now_s = &now_s};
	struct memory_tuning tuning = memory_tuning;
	struct memory_options options;
	struct worker workers[WORKERS + 1];
	struct memory_stats stats;
	unsigned i;

	store_options(&options, &store, limit, WORKERS);
	tuning.check_dead = true;
	options.tuning = &tuning;
	options.evict = evict;
	options.value_bytes_max = 200000;
	options.seal_age_s = 20;
	store_open(&store, &options, (uint32_t)(limit / (evict ? 400 : 2400)));
	atomic_store(&now_s, 1700000000);
	atomic_store(&stop, false);
	atomic_store(&stop_background, false);
	for (i = 0; i <= WORKERS; i++) {
		workers[i] = (struct worker){.store = &store, .random = seed * 1000 + i + 1};
		workers[i].memory = memory_thread_create(store.memory, i);
		check(pthread_create(&workers[i].thread, NULL,
			      i < WORKERS ? run_worker : run_background, &workers[i]) == 0);
	}
	for (unsigned tick = 0; tick < seconds * 100; tick++) {
		pause_us(10000);
		atomic_fetch_add(&now_s, 1);
		if (tick % 32 == 31)
			memory_flush(store.memory);
		memory_get_stats(store.memory, &stats);
		check(stats.resident_bytes <= limit);
		if (limit >= 8 * MIB && tick % 16 == 7)
			check(memory_set_limit(store.memory, limit - tick / 16 % 4 * (limit / 8)));
	}
	atomic_store(&stop, true);
	for (i = 0; i < WORKERS; i++)
		pthread_join(workers[i].thread, NULL);
	atomic_store(&stop_background, true);
	pthread_join(workers[WORKERS].thread, NULL);

	rcu_register();
	store_settle(&store, workers[WORKERS].memory, atomic_load(&now_s));
	store_check(&store);
	rcu_unregister();
	memory_get_stats(store.memory, &stats);
	check(stats.segments_pinned == 0 && stats.segments_grace == 0);
	check(evict || store.drops[MEMORY_EVICTED] == 0);
	struct worker sum = {.sets = 0};
	for (i = 0; i <= WORKERS; i++) {
		sum.sets += workers[i].sets;
		sum.refused += workers[i].refused;
		sum.gave_up += workers[i].gave_up;
		sum.hits += workers[i].hits;
		sum.misses += workers[i].misses;
		memory_thread_destroy(workers[i].memory);
	}
	printf("-m %llu%s: %llu sets, %llu refused, %llu gave up, %llu hits, %llu misses; moved "
	       "%llu, dropped %llu/%llu/%llu, worker steps %llu, "
	       "waits %llu, pin refusals %llu\n",
		(unsigned long long)(limit / MIB), evict ? "" : " -M", (unsigned long long)sum.sets,
		(unsigned long long)sum.refused, (unsigned long long)sum.gave_up,
		(unsigned long long)sum.hits, (unsigned long long)sum.misses,
		(unsigned long long)store.moves, (unsigned long long)store.drops[0],
		(unsigned long long)store.drops[1], (unsigned long long)store.drops[2],
		(unsigned long long)stats.worker_steps, (unsigned long long)stats.waits,
		(unsigned long long)stats.pin_refusals);
	check(sum.sets > sum.refused && sum.hits > 0 && store.moves > 0);
	store_close(&store);
}

int
main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 0.8;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;

	run(1 * MIB, true, seconds, seed);
	run(8 * MIB, true, seconds, seed);
	run(4 * MIB, false, seconds, seed);
	return 0;
}
