/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The index under threads: readers who count reads, writers, movers, a growing thread, a reclaiming
 * one. Each key has one writer, which numbers its operations (every fourth deletes), so that each
 * answer can be judged:
 *
 *	acknowledged <= number of the operation that the answer shows <= started
 *
 * where 'acknowledged' was read before the look-up began and 'started' after it ended. So an
 * acknowledged write that is undone, a present key that is missed, a deleted key that is found, an
 * entry that leads into a foreign item, each stops the test. A hint that still holds is judged by
 * what was acknowledged just before it was asked.
 *
 * Usage: index_stress [seed [rounds]]
 */
#include "index/index.h"
#include "tests/lib/index_shadow.h"

#include "base/check.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <urcu-qsbr.h>

#define KEYS 4096
#define WRITERS 2
#define READERS 2
#define MOVERS 1
#define PLACES_EACH 8192 /* of a writer or mover, beside those that hold items */
#define PLACES (KEYS + (WRITERS + MOVERS) * PLACES_EACH)
#ifdef __SANITIZE_THREAD__
#define OPERATIONS 15000 /* of each writer in a round */
#else
#define OPERATIONS 40000
#endif
#define BUCKETS_MAX 8192

/*
 * An item: who it belongs to and which operation wrote it. Used again after a grace period, as
 * segments are.
 */
struct place {
	_Atomic uint32_t key;
	_Atomic uint32_t operation;
	_Atomic uint32_t keyless;
};

struct key {
	uint64_t hash;
	_Atomic uint32_t started, acknowledged; /* operations, from 1; 0: never written */
};

struct round {
	struct index *index;
	struct index_shadow *shadow;
	struct key keys[KEYS];
	struct place places[PLACES];
	uint32_t keyless_percent;
	_Atomic uint32_t writing; /* writers that aren't done */
	_Atomic uint64_t done;	  /* operations of all */
	_Atomic uint64_t hits, misses, held, held_locked, moves;
};

/* A thread, with the places that it may write to. */
struct actor {
	struct round *round;
	unsigned number;
	uint64_t random;
	uint32_t *free, free_count; /* stacks */
	uint32_t *dead, dead_count; /* freed by this thread, readers may still be looking */
};

static uint64_t
next_random(struct actor *actor)
{
	uint64_t x = actor->random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return actor->random = x;
}

static bool
deletes(uint32_t operation)
{
	return operation % 4 == 0;
}

static uint64_t
entry_of(uint32_t place)
{
	return bucket_entry_make(1 + place / 1024, place % 1024, 0);
}

static uint32_t
place_of(uint64_t entry)
{
	uint32_t place = (bucket_entry_segment(entry) - 1) * 1024 + bucket_entry_offset(entry);

	check(place < PLACES);
	return place;
}

static bool
key_hash(void *context, uint64_t entry, uint64_t *hash)
{
	struct round *round = context;
	const struct place *place = &round->places[place_of(entry)];

	*hash = round->keys[atomic_load_explicit(&place->key, memory_order_relaxed)].hash;
	return !atomic_load_explicit(&place->keyless, memory_order_relaxed);
}

static const struct index_keys keys = {.hash = key_hash};

static uint32_t
place_take(struct actor *actor, uint32_t key, uint32_t operation)
{
	struct round *round = actor->round;

	if (actor->free_count == 0) {
		synchronize_rcu(); /* quiescent here */
		while (actor->dead_count > 0)
			actor->free[actor->free_count++] = actor->dead[--actor->dead_count];
		check(actor->free_count > 0);
	}

	uint32_t place = actor->free[--actor->free_count];

	atomic_store_explicit(&round->places[place].key, key, memory_order_relaxed);
	atomic_store_explicit(&round->places[place].operation, operation, memory_order_relaxed);
	atomic_store_explicit(&round->places[place].keyless,
		next_random(actor) % 100 < round->keyless_percent, memory_order_relaxed);
	return place;
}

static uint32_t
place_key(const struct round *round, uint32_t place)
{
	return atomic_load_explicit(&round->places[place].key, memory_order_relaxed);
}

static uint32_t
place_operation(const struct round *round, uint32_t place)
{
	return atomic_load_explicit(&round->places[place].operation, memory_order_relaxed);
}

/* --- readers ------------------------------------------------------------------------------ */

/* Is there an answer 'operation' (0: absent) to be had between the two? */
static void
judge(uint32_t key, uint32_t acknowledged, uint32_t operation, uint32_t started)
{
	bool right = operation >= acknowledged && operation <= started;

	if (operation == 0) {
		right = acknowledged == 0;
		for (uint32_t i = acknowledged; i <= started && !right; i++)
			right = deletes(i);
	}
	if (!right)
		fprintf(stderr, "key %u: answer %u, acknowledged %u, started %u\n", key, operation,
			acknowledged, started);
	check(right);
}

/* Looks a key up, gives the operation that wrote what was found, 0 for nothing. */
static uint32_t
look_up(struct round *round, uint32_t key, struct index_find *find, uint64_t *entry)
{
	index_find_begin(round->index, round->keys[key].hash, find);
	do
		while ((*entry = index_find_next(find)) != 0)
			if (place_key(round, place_of(*entry)) == key)
				return place_operation(round, place_of(*entry));
	while (index_find_again(find));
	return 0;
}

static void
read_once(struct actor *actor)
{
	struct round *round = actor->round;
	/*
	 * Half of all reads go to few keys: their entries' reads are bumped while they are
	 * replaced.
	 */
	uint64_t random = next_random(actor);
	uint32_t number = (uint32_t)(random >> 8) % (random & 1 ? 16 : KEYS);
	struct key *key = &round->keys[number];
	struct index_find find;
	uint64_t entry;
	uint32_t acknowledged = atomic_load_explicit(&key->acknowledged, memory_order_acquire);
	uint32_t operation = look_up(round, number, &find, &entry);

	judge(number, acknowledged, operation,
		atomic_load_explicit(&key->started, memory_order_acquire));
	if (operation != 0)
		index_count_read(find.slot, entry, 0);
	atomic_fetch_add_explicit(
		operation != 0 ? &round->hits : &round->misses, 1, memory_order_relaxed);

	for (unsigned pause = (unsigned)(random >> 32) % 64; pause > 0; pause--)
		atomic_load_explicit(&key->started, memory_order_acquire);
	acknowledged = atomic_load_explicit(&key->acknowledged, memory_order_acquire);
	if (index_hint_holds(round->index, key->hash, find.number, find.version)) {
		judge(number, acknowledged, operation,
			atomic_load_explicit(&key->started, memory_order_acquire));
		atomic_fetch_add_explicit(&round->held, 1, memory_order_relaxed);
	}
}

static void *
reader(void *context)
{
	struct actor *actor = context;

	rcu_register_thread();
	while (atomic_load_explicit(&actor->round->writing, memory_order_relaxed) != 0) {
		for (unsigned i = 0; i < 32; i++)
			read_once(actor);
		rcu_quiescent_state();
	}
	rcu_unregister_thread();
	return NULL;
}

/* --- writers ------------------------------------------------------------------------------ */

static _Atomic uint64_t *
locked_find(struct round *round, struct index_locked *locked, uint32_t key, uint64_t *entry)
{
	_Atomic uint64_t *slot;

	while ((slot = index_locked_next(locked, entry)) != NULL)
		if (place_key(round, place_of(*entry)) == key)
			return slot;
	return NULL;
}

/*
 * Locks the key's bucket and gives its slot. Half of the writers look before they lock: where
 * nothing has changed since, what they found must be what a scan under the lock finds.
 */
static _Atomic uint64_t *
lock_and_find(struct actor *actor, uint32_t number, struct index_locked *locked, uint64_t *entry)
{
	struct round *round = actor->round;
	const struct key *key = &round->keys[number];
	struct index_find find;
	_Atomic uint64_t *slot;
	uint64_t seen;
	bool held;

	if (next_random(actor) % 2) {
		index_lock(round->index, key->hash, actor->number, locked);
		return locked_find(round, locked, number, entry);
	}
	look_up(round, number, &find, &seen);
	held = index_lock_found(
		round->index, key->hash, actor->number, find.number, find.version, locked);
	if (held) {
		index_locked_rewind(locked);
		atomic_fetch_add_explicit(&round->held_locked, 1, memory_order_relaxed);
	}
	slot = locked_find(round, locked, number, entry);
	if (held) {
		check((slot != NULL) == (seen != 0));
		check(!slot || (slot == find.slot && ((*entry ^ seen) & ~BUCKET_READS_MASK) == 0));
	}
	return slot;
}

static void
write_once(struct actor *actor, uint32_t number)
{
	struct round *round = actor->round;
	struct key *key = &round->keys[number];
	uint32_t before = atomic_load_explicit(&key->started, memory_order_relaxed),
		 operation = before + 1;
	uint32_t place = deletes(operation) ? 0 : place_take(actor, number, operation);
	struct index_locked locked;
	struct index_find find;
	uint64_t entry;

	atomic_store_explicit(&key->started, operation, memory_order_release);

	_Atomic uint64_t *slot = lock_and_find(actor, number, &locked, &entry);

	check((slot != NULL) == (before != 0 && !deletes(before)));
	if (slot != NULL) {
		check(place_operation(round, place_of(entry)) == before);
		actor->dead[actor->dead_count++] = place_of(entry);
	}
	if (deletes(operation)) {
		if (slot != NULL)
			index_locked_remove(&locked, slot);
	} else if (slot != NULL) {
		index_locked_replace(
			&locked, slot, entry_of(place), next_random(actor) % 2 ? -1 : 0);
	} else {
		check(index_locked_insert(&locked, entry_of(place), 0));
	}
	index_unlock(&locked);
	atomic_store_explicit(&key->acknowledged, operation, memory_order_release);
	check(look_up(round, number, &find, &entry) == (deletes(operation) ? 0 : operation));
}

static void *
writer(void *context)
{
	struct actor *actor = context;
	struct round *round = actor->round;

	rcu_register_thread();
	for (uint32_t i = 0; i < OPERATIONS; i++) {
		uint64_t random = next_random(actor);
		/* First every key once, so that the table grows; then as the readers choose. */
		uint32_t key = i < KEYS / WRITERS
				       ? i
				       : (uint32_t)(random >> 8) %
						 (random & 1 ? 16 / WRITERS : KEYS / WRITERS);

		write_once(actor, key * WRITERS + actor->number);
		atomic_fetch_add_explicit(&round->done, 1, memory_order_relaxed);
		if (i % 32 == 0)
			rcu_quiescent_state();
	}
	atomic_fetch_sub_explicit(&round->writing, 1, memory_order_relaxed);
	rcu_unregister_thread();
	return NULL;
}

/* Moves whatever stands at a random place elsewhere, if an entry still names it. */
static void
move_once(struct actor *actor)
{
	struct round *round = actor->round;
	uint32_t from = (uint32_t)(next_random(actor) % PLACES), key = place_key(round, from);
	uint32_t to = place_take(actor, key, 0);
	struct index_locked locked;
	_Atomic uint64_t *slot;
	uint64_t entry;

	index_lock(round->index, round->keys[key].hash, actor->number, &locked);
	while ((slot = index_locked_next(&locked, &entry)) != NULL)
		if (bucket_entry_same_place(entry, entry_of(from)) && place_key(round, from) == key)
			break;
	if (slot != NULL) {
		atomic_store_explicit(&round->places[to].key, key, memory_order_relaxed);
		atomic_store_explicit(&round->places[to].operation, place_operation(round, from),
			memory_order_relaxed);
		index_locked_replace(&locked, slot, entry_of(to), -1);
		atomic_fetch_add_explicit(&round->moves, 1, memory_order_relaxed);
	}
	index_unlock(&locked);
	actor->dead[actor->dead_count++] = slot != NULL ? from : to;
}

static void *
mover(void *context)
{
	struct actor *actor = context;

	rcu_register_thread();
	while (atomic_load_explicit(&actor->round->writing, memory_order_relaxed) != 0) {
		for (unsigned i = 0; i < 32; i++)
			move_once(actor);
		rcu_quiescent_state();
	}
	rcu_unregister_thread();
	return NULL;
}

/* Grows step by step all through the round, and makes freed units usable again. */
static void *
upkeep(void *context)
{
	struct actor *actor = context;
	struct round *round = actor->round;
	uint64_t splits = 0;

	rcu_register_thread();
	while (atomic_load_explicit(&round->writing, memory_order_relaxed) != 0) {
		uint64_t done = atomic_load_explicit(&round->done, memory_order_relaxed);

		if (splits < done * KEYS / (WRITERS * OPERATIONS)) {
			index_grow(round->index, 1, actor->number);
			if (++splits % 64 == 0)
				index_reclaim_units(round->index);
		} else {
			sched_yield();
		}
		rcu_quiescent_state();
	}
	rcu_unregister_thread();
	return NULL;
}

/* --- rounds ------------------------------------------------------------------------------- */

static struct actor
actor_make(struct round *round, unsigned number, uint64_t seed, uint32_t *next_place)
{
	struct actor actor = {.round = round,
		.number = number,
		.random = (seed + number + 1) * 0x9e3779b97f4a7c15u};

	if (next_place == NULL)
		return actor;
	/*
	 * A writer's first places also hold its keys' items. Any thread's dead places stay its own.
	 */
	actor.free = malloc(PLACES * sizeof *actor.free);
	actor.dead = malloc(PLACES * sizeof *actor.dead);
	check(actor.free != NULL && actor.dead != NULL);

	uint32_t count = PLACES_EACH + (number < WRITERS ? KEYS / WRITERS : 0);

	while (count-- > 0)
		actor.free[actor.free_count++] = (*next_place)++;
	return actor;
}

static void
round_check(struct round *round)
{
	for (uint32_t number = 0; number < KEYS; number++) {
		uint32_t last = round->keys[number].acknowledged;
		struct index_find find;
		uint64_t entry;

		check(last != 0 && last == round->keys[number].started);
		check(look_up(round, number, &find, &entry) == (deletes(last) ? 0 : last));
	}
	check(index_shadow_sound(round->index));
	if (round->shadow != NULL)
		check(index_shadow_equals(round->shadow));
}

static void
round_run(struct round *round, uint64_t seed)
{
	static void *(*const roles[])(void *) = {writer, writer, mover, upkeep, reader, reader};
	struct actor actors[WRITERS + MOVERS + 1 + READERS];
	pthread_t threads[WRITERS + MOVERS + 1 + READERS];
	uint32_t next_place = 0;
	struct index_options options = {.buckets_initial = 64,
		.bytes_max = 2 << 20,
		.entries_per_bucket = seed % 3 == 0 ? 7.5 : 1,
		.keys = &keys,
		.keys_context = round};

	__builtin_memset((void *)round, 0, sizeof *round);
	round->keyless_percent = seed % 4 == 1 ? 5 : 0;
	for (uint32_t i = 0; i < KEYS; i++) {
		uint64_t hash = (i + 1 + seed) * 0x9e3779b97f4a7c15u;

		hash ^= hash >> 31;
		/* In some rounds tags are all but equal, or buckets crowded. */
		round->keys[i].hash = seed % 3 == 1   ? (hash & 0xffff) | 0x7770000
				      : seed % 3 == 2 ? hash & ~0x38ull
						      : hash;
	}
	for (uint32_t i = 0; i < PLACES; i++)
		round->places[i].key = KEYS - 1;
	if (seed % 2) {
		round->shadow = index_shadow_create(BUCKETS_MAX);
		options.observer = &index_shadow_observer;
		options.observer_context = round->shadow;
	}
	round->index = index_create(&options);
	check(round->index != NULL);
	if (round->shadow != NULL)
		index_shadow_attach(round->shadow, round->index, 64);
	round->writing = WRITERS;
	for (unsigned i = 0; i < sizeof roles / sizeof *roles; i++) {
		actors[i] = actor_make(round, i, seed, i < WRITERS + MOVERS ? &next_place : NULL);
		check(pthread_create(&threads[i], NULL, roles[i], &actors[i]) == 0);
	}
	for (unsigned i = 0; i < sizeof roles / sizeof *roles; i++) {
		pthread_join(threads[i], NULL);
		free(actors[i].free);
		free(actors[i].dead);
	}
	round_check(round);
}

int
main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1,
		 rounds = argc > 2 ? strtoull(argv[2], NULL, 0) : 12;
	struct round *round = malloc(sizeof *round);

	check(round != NULL);
	for (uint64_t seed = first; seed < first + rounds; seed++) {
		struct index_stats stats;

		round_run(round, seed);
		index_get_stats(round->index, &stats);
		printf("seed %" PRIu64 ": %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64
		       " hints held (%" PRIu64 " under the lock), %" PRIu64 " moves, %" PRIu64
		       " splits, %" PRIu64 " retries, longest split %" PRIu64 " us\n",
			seed, round->hits, round->misses, round->held, round->held_locked,
			round->moves, stats.splits, stats.retries, stats.split_ns_max / 1000);
		index_destroy(round->index);
		if (round->shadow != NULL)
			index_shadow_destroy(round->shadow);
	}
	free(round);
	return 0;
}
