/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The store under concurrency, against dumb models.
 *
 *	own keys	Each thread alone writes its keys, so it knows what each must be: the value of its last write, or absent; under
 *			eviction absent is allowed, another value never. Any thread reads any key: what it finds must be whole and not
 *			older than what was acknowledged before the read began.
 *	counters	All threads increment the same numbers; none may be lost.
 *	CAS		All threads change the same values by compare and swap; each success is one step.
 *	wins		Stale items are found by all; each is handed out once.
 *
 * Meanwhile background threads reclaim and grow the index, which starts far too small, and somebody
 * flushes now and then. After the run a shadow index rebuilt through the observer must equal the
 * real one.
 *
 * Usage: store_model [operations a thread [seed]]
 */
#include "base/check.h"
#include "base/counters.h"
#include "base/rcu.h"
#include "index/index.h"
#include "memory/memory.h"
#include "store/store.h"
#include "tests/lib/index_shadow.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef THREADS
#define THREADS 3 /* more on a machine with more cores */
#endif
#define OWN_KEYS 3000
#define SHARED_KEYS 16
#define NOW_NS 1000000000000000ull
#define TURN 16 /* operations a turn */

/*
 * What the owner of a key last had acknowledged: operation number, doubled; odd: the key is absent
 * then.
 */
static _Atomic uint64_t acknowledged[THREADS][OWN_KEYS];
static _Atomic uint64_t incremented[SHARED_KEYS], swapped[SHARED_KEYS], won[SHARED_KEYS],
	staled[SHARED_KEYS];
static _Atomic bool stop;

struct test {
	struct store *store;
	struct index_shadow *shadow;
	bool evict, flush;
	uint64_t operations, seed;
};

struct worker {
	struct test *test;
	struct store_thread *thread;
	struct counters *counters;
	unsigned number;
	uint64_t random;
	uint64_t waits;
	pthread_t pthread;
};

static uint64_t
next_random(struct worker *worker)
{
	uint64_t z = worker->random += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* --- values that tell what they are ------------------------------------------------------- */

struct value {
	uint64_t operation;
	uint32_t owner, key;
	uint32_t size; /* of all of it */
	uint8_t filler[];
};

static uint32_t
make_value(uint8_t *to, uint32_t owner, uint32_t key, uint64_t operation, uint32_t filler)
{
	struct value *value = (struct value *)to;

	*value = (struct value){operation, owner, key, (uint32_t)sizeof *value + filler};
	for (uint32_t i = 0; i < filler; i++)
		value->filler[i] = (uint8_t)(operation * 7 + i);
	return value->size;
}

static uint64_t
check_value(const struct store *store, const struct store_view *view, uint32_t owner, uint32_t key)
{
	struct slice pieces[64];
	static _Thread_local uint8_t copy[1 << 20];
	uint32_t count = store_pieces(store, view, pieces), size = 0;
	const struct value *value = (const struct value *)copy;

	for (uint32_t i = 0; i < count; i++) {
		memcpy(copy + size, pieces[i].data, pieces[i].size);
		size += (uint32_t)pieces[i].size;
	}
	check(size >= sizeof *value && size == value->size && value->owner == owner &&
		value->key == key);
	for (uint32_t i = 0; i < size - sizeof *value; i++)
		check(value->filler[i] == (uint8_t)(value->operation * 7 + i));
	return value->operation;
}

/* --- operations --------------------------------------------------------------------------- */

static uint32_t
name_key(uint8_t *to, const char *kind, uint32_t owner, uint32_t key)
{
	return (uint32_t)sprintf((char *)to, "%s-%u-%u", kind, owner, key);
}

struct draft_of {
	struct slice value;
	int64_t delta;
	uint64_t number, cas, new_cas;
	bool done, present;
};

static enum store_action
decide_set(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct draft_of *of = context;

	(void)current;
	(void)found;
	draft->pieces = &of->value;
	draft->piece_count = 1;
	draft->value_size = of->value.size;
	return STORE_REPLACE;
}

static enum store_action
decide_remove(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	(void)context;
	(void)current;
	(void)found;
	(void)draft;
	return STORE_REMOVE;
}

/* The value as it is, with another expiry: what touch does. */
static enum store_action
decide_touch(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct draft_of *of = context;

	(void)found;
	of->present = current != NULL;
	if (!current)
		return STORE_KEEP;
	draft->keep_body = true;
	draft->keep_access = true;
	draft->cas_policy = STORE_CAS_KEEP;
	draft->expiry_s = (uint32_t)(NOW_NS / 1000000000u) + 100000 + (uint32_t)of->delta;
	return STORE_REPLACE;
}

static enum store_action
decide_count(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct draft_of *of = context;

	(void)found;
	of->number = 0;
	of->cas = current ? item_cas(current->item) : 0;
	if (current)
		memcpy(&of->number, item_value(current->item), 8);
	of->number++;
	of->value = slice_make(&of->number, 8);
	draft->pieces = &of->value;
	draft->piece_count = 1;
	draft->value_size = 8;
	return STORE_REPLACE;
}

static enum store_action
decide_swap(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct draft_of *of = context;

	of->done = false;
	if (current && item_cas(current->item) != of->cas)
		return STORE_KEEP;
	if (!current && of->cas != 0)
		return STORE_KEEP;
	of->done = true;
	return decide_set(context, current, found, draft);
}

static enum store_action
decide_stale(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct draft_of *of = context;

	decide_set(context, current, found, draft);
	of->done = true;
	draft->stale = true;
	return STORE_REPLACE;
}

/* A quiescent moment between two turns, as a worker has it. */
static void
next_turn(struct worker *worker)
{
	store_turn_end(worker->thread);
	rcu_quiescent();
	store_turn_begin(worker->thread, NOW_NS);
}

/* What a batch's look-up gives a write that follows in the same turn. */
static struct store_hint
look_ahead(struct worker *worker, const uint8_t *key, uint32_t key_size, uint64_t hash)
{
	struct store_arena arena;
	struct index_find find;
	uint64_t entry;

	store_get_arena(worker->test->store, &arena);
	index_find_begin(store_index(worker->test->store), hash, &find);
	do
		while ((entry = index_find_next(&find))) {
			const void *item =
				arena.base +
				((uint64_t)bucket_entry_segment(entry) << arena.segment_shift) +
				(uint64_t)bucket_entry_offset(entry) * ITEM_ALIGN;

			if (item_has_key(item, key, key_size))
				return (struct store_hint){
					find.number, entry, find.slot, find.version};
		}
	while (index_find_again(&find));
	return (struct store_hint){.number = find.number, .version = find.version};
}

static enum store_status
change(struct worker *worker, const uint8_t *key, uint32_t key_size,
	enum store_action (*decide)(
		void *, const struct store_view *, enum store_found, struct store_draft *),
	struct draft_of *of)
{
	uint64_t hash = store_hash(worker->test->store, key, key_size), cas;
	struct store_hint hint = look_ahead(worker, key, key_size, hash);
	struct store_update update = {
		.decide = decide, .context = of, .hint = next_random(worker) % 2 ? &hint : NULL};
	enum store_status status;

	/* Others may change the key meanwhile: then the hint must not be used. */
	if (next_random(worker) % 8 == 0)
		sched_yield();
	while ((status = store_change(worker->thread, key, key_size, hash, &update, &cas)) ==
		STORE_WAIT) {
		worker->waits++;
		next_turn(worker);
		update.hint = NULL;
	}
	of->new_cas = cas;
	return status;
}

static uint32_t
filler_of(struct worker *worker)
{
	uint64_t r = next_random(worker);

	if (r % 500 == 0)
		return 70000 + (uint32_t)(r >> 32) % 100000; /* dedicated segments */
	return (uint32_t)(r >> 32) % (r % 7 == 0 ? 4000 : 100);
}

static void
own_key(struct worker *worker, uint64_t operation)
{
	static _Thread_local uint8_t bytes[1 << 20];
	uint32_t key = (uint32_t)(next_random(worker) % OWN_KEYS), size;
	uint8_t name[64];
	uint32_t name_size = name_key(name, "own", worker->number, key);
	struct draft_of of = {0};
	_Atomic uint64_t *known = &acknowledged[worker->number][key];
	uint64_t last = atomic_load(known);
	struct store_view view;
	enum store_found found;

	/* First: it is what I left there. */
	found = store_find(worker->thread, name, name_size,
		store_hash(worker->test->store, name, name_size), NULL, &view, NULL);
	if (found == STORE_PRESENT)
		check(check_value(worker->test->store, &view, worker->number, key) * 2 == last);
	else
		check(worker->test->evict || worker->test->flush || last % 2 == 1 || last == 0);
	switch (next_random(worker) % 8) {
	case 0:
		check(change(worker, name, name_size, decide_remove, &of) == STORE_DONE);
		atomic_store(known, operation * 2 + 1);
		break;
	case 1:
		of.delta = (int64_t)(operation % 50000);
		check(change(worker, name, name_size, decide_touch, &of) == STORE_DONE);
		break;
	default:
		size = make_value(bytes, worker->number, key, operation, filler_of(worker));
		of.value = slice_make(bytes, size);
		check(change(worker, name, name_size, decide_set, &of) == STORE_DONE);
		atomic_store(known, operation * 2);
		break;
	}
}

static void
read_any(struct worker *worker)
{
	uint32_t owner = (uint32_t)(next_random(worker) % THREADS),
		 key = (uint32_t)(next_random(worker) % OWN_KEYS);
	uint8_t name[64];
	uint32_t name_size = name_key(name, "own", owner, key);
	uint64_t before = atomic_load(&acknowledged[owner][key]);
	struct store_view view;
	enum store_found found = store_find(worker->thread, name, name_size,
		store_hash(worker->test->store, name, name_size), NULL, &view, NULL);

	if (found == STORE_PRESENT) {
		uint64_t operation = check_value(worker->test->store, &view, owner, key);

		check(operation * 2 >= before || (before % 2 == 1 && operation * 2 > before));
		store_accessed(worker->thread, &view);
	} else if (!worker->test->evict && !worker->test->flush && before != 0 && before % 2 == 0) {
		/* Absent though it was there: only if its owner has removed it since. */
		check(atomic_load(&acknowledged[owner][key]) != before || owner != worker->number);
	}
}

static void
shared_key(struct worker *worker, uint64_t operation)
{
	uint32_t key = (uint32_t)(next_random(worker) % SHARED_KEYS);
	uint8_t name[64], bytes[200];
	struct draft_of of = {0};
	struct store_view view;
	uint64_t hash;
	uint32_t name_size;

	switch (next_random(worker) % 3) {
	case 0:
		name_size = name_key(name, "count", 0, key);
		check(change(worker, name, name_size, decide_count, &of) == STORE_DONE);
		/* Whoever wrote before: a key's numbers rise. */
		check(of.new_cas > of.cas);
		atomic_fetch_add(&incremented[key], 1);
		break;
	case 1:
		name_size = name_key(name, "swap", 0, key);
		hash = store_hash(worker->test->store, name, name_size);
		if (store_find(worker->thread, name, name_size, hash, NULL, &view, NULL) ==
			STORE_PRESENT) {
			of.cas = item_cas(view.item);
			memcpy(&of.number, item_value(view.item), 8);
		}
		of.number++;
		memcpy(bytes, &of.number, 8);
		of.value = slice_make(bytes, 8 + next_random(worker) % 100);
		check(change(worker, name, name_size, decide_swap, &of) == STORE_DONE);
		if (of.done)
			atomic_fetch_add(&swapped[key], 1);
		break;
	case 2:
		name_size = name_key(name, "stale", 0, key);
		hash = store_hash(worker->test->store, name, name_size);
		if (operation % 8 == 0) {
			of.value = slice_make(bytes, 8);
			check(change(worker, name, name_size, decide_stale, &of) == STORE_DONE);
			atomic_fetch_add(&staled[key], 1);
		} else if (store_find(worker->thread, name, name_size, hash, NULL, &view, NULL) ==
				   STORE_PRESENT &&
			   (view.kinds & ITEM_STALE) && !(view.soft & ITEM_SOFT_WIN)) {
			store_accessed(worker->thread, &view);
			if (store_take_win(worker->thread, &view, hash))
				atomic_fetch_add(&won[key], 1);
		}
		break;
	}
}

static void *
work(void *context)
{
	struct worker *worker = context;

	rcu_register();
	rcu_online();
	store_turn_begin(worker->thread, NOW_NS);
	for (uint64_t i = 1; i <= worker->test->operations; i++) {
		if (i % TURN == 0)
			next_turn(worker);
		if (worker->test->flush && next_random(worker) % 20000 == 0)
			store_flush(worker->thread, 0);
		switch (next_random(worker) % 4) {
		case 0:
			own_key(worker, i);
			break;
		case 1:
			if (!worker->test->flush && !worker->test->evict)
				shared_key(worker, i);
			break;
		default:
			read_any(worker);
			break;
		}
	}
	store_turn_end(worker->thread);
	rcu_offline();
	rcu_unregister();
	return NULL;
}

static void *
reclaim(void *context)
{
	struct worker *worker = context;
	uint32_t next;

	rcu_register();
	rcu_online();
	while (!atomic_load(&stop)) {
		if (!store_background_reclaim(worker->thread, NOW_NS, &next))
			sched_yield();
		store_turn_end(worker->thread);
		rcu_quiescent();
	}
	rcu_offline();
	rcu_unregister();
	return NULL;
}

static void *
grow(void *context)
{
	struct worker *worker = context;

	rcu_register();
	rcu_online();
	while (!atomic_load(&stop)) {
		store_turn_begin(worker->thread, NOW_NS);
		if (!store_background_grow(worker->thread))
			sched_yield();
		rcu_quiescent();
	}
	rcu_offline();
	rcu_unregister();
	return NULL;
}

/* --- one run ------------------------------------------------------------------------------ */

static void
no_wake(void *context)
{
	(void)context;
}

static void
open_store(struct test *test)
{
	struct memory_tuning tuning = memory_tuning;

	tuning.check_dead = true;
	test->shadow = index_shadow_create(1 << 20);
	test->store = store_create(&(struct store_options){
		.limit_bytes = (test->evict ? 2ull : 11ull) * THREADS << 20,
		.reserve_factor = 4,
		.workers = THREADS,
		.value_bytes_max = 1 << 20,
		.evict = test->evict,
		.cas = true,
		.buckets_initial = 64,
		.growth = true,
		.classes = {.factor = 1.25,
			.chunk_bytes = 48,
			.chunk_bytes_max = 524288,
			.page_bytes = 1 << 20},
		.index_observer = &index_shadow_observer,
		.index_observer_context = test->shadow,
		.memory_tuning = &tuning,
		.wake = no_wake,
	});
	check(test->store);
	index_shadow_attach(test->shadow, store_index(test->store), 64);
}

static void
check_shared(const struct test *test, struct store_thread *thread)
{
	for (uint32_t key = 0; key < SHARED_KEYS && !test->evict && !test->flush; key++) {
		uint8_t name[64];
		struct store_view view;
		uint64_t number = 0;
		uint32_t size = name_key(name, "count", 0, key);

		if (store_find(thread, name, size, store_hash(test->store, name, size), NULL, &view,
			    NULL) == STORE_PRESENT)
			memcpy(&number, item_value(view.item), 8);
		check(number == atomic_load(&incremented[key]));
		number = 0;
		size = name_key(name, "swap", 0, key);
		if (store_find(thread, name, size, store_hash(test->store, name, size), NULL, &view,
			    NULL) == STORE_PRESENT)
			memcpy(&number, item_value(view.item), 8);
		check(number == atomic_load(&swapped[key]));
		check(atomic_load(&won[key]) <= atomic_load(&staled[key]));
	}
}

/* Items by the counters, by the index and by a walk are as many. */
static bool
count_item(void *context, const struct store_view *view)
{
	(void)view;
	(*(uint64_t *)context)++;
	return true;
}

static void
check_counts(const struct test *test, struct worker *workers, struct store_thread *thread)
{
	struct index_stats index;
	struct memory_stats memory;
	uint64_t counted = 0, walked = 0;

	for (unsigned i = 0; i < THREADS + 2; i++)
		for (unsigned id = 0; id < SIZE_CLASSES; id++)
			counted += counter_get(&workers[i].counters->classes[id].number);
	store_get_index_stats(test->store, &index);
	store_get_memory_stats(test->store, &memory);
	store_walk(thread, count_item, &walked);
	printf("# entries %llu, live bytes %llu of %llu, buckets %llu, splits %llu, moved %llu, "
	       "evicted %llu, waits %llu\n",
		(unsigned long long)index.entries, (unsigned long long)memory.live_bytes,
		(unsigned long long)memory.limit_bytes, (unsigned long long)index.buckets,
		(unsigned long long)index.splits, (unsigned long long)memory.moved_items,
		(unsigned long long)memory.dropped_items, (unsigned long long)workers[0].waits);
	check(counted == index.entries);
	check(test->flush || walked == index.entries);
	check(index.splits > 0);
}

static void
run(struct test *test)
{
	struct worker workers[THREADS + 2];

	memset(acknowledged, 0, sizeof acknowledged);
	memset(incremented, 0, sizeof incremented);
	memset(swapped, 0, sizeof swapped);
	memset(won, 0, sizeof won);
	memset(staled, 0, sizeof staled);
	atomic_store(&stop, false);
	open_store(test);
	for (unsigned i = 0; i < THREADS + 2; i++) {
		struct worker *worker = &workers[i];

		*worker =
			(struct worker){.test = test, .number = i, .random = test->seed * 100 + i};
		worker->counters = aligned_alloc(128, sizeof *worker->counters);
		memset(worker->counters, 0, sizeof *worker->counters);
		worker->thread = store_thread_create(test->store, i, worker->counters);
		check(worker->thread);
		check(pthread_create(&worker->pthread, NULL,
			      i < THREADS    ? work
			      : i == THREADS ? reclaim
					     : grow,
			      worker) == 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(workers[i].pthread, NULL);
	atomic_store(&stop, true);
	for (unsigned i = THREADS; i < THREADS + 2; i++)
		pthread_join(workers[i].pthread, NULL);
	rcu_register();
	rcu_online();
	store_turn_begin(workers[0].thread, NOW_NS);
	check_shared(test, workers[0].thread);
	check_counts(test, workers, workers[0].thread);
	check(index_shadow_equals(test->shadow) && index_shadow_sound(store_index(test->store)));
	rcu_offline();
	rcu_unregister();
	for (unsigned i = 0; i < THREADS + 2; i++) {
		store_thread_destroy(workers[i].thread);
		free(workers[i].counters);
	}
	store_destroy(test->store);
	index_shadow_destroy(test->shadow);
}

int
main(int argc, char **argv)
{
	uint64_t operations = argc > 1 ? strtoull(argv[1], NULL, 10) : 150000;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int kind = 0; kind < 4; kind++) {
		struct test test = {.evict = kind & 1,
			.flush = kind & 2,
			.operations = operations,
			.seed = seed + (unsigned)kind};

		printf("# seed %llu, %s, %s\n", (unsigned long long)test.seed,
			test.evict ? "evicting" : "keeping",
			test.flush ? "with flush_all" : "without flush_all");
		run(&test);
	}
	return 0;
}
