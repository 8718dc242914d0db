/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The index against a dumb model (an array: key -> place), by random operations of one thread:
 * sets, deletes, moves, reads, moves to where the key isn't at hand, splits, reclaiming of units.
 * Hashes are crafted: spread, crowded into few buckets (long chains), or with few different tags
 * (collisions everywhere). After each run a shadow rebuilt through the observer must equal the
 * index.
 *
 * Usage: index_model [first seed [seeds]]
 */
#include "index/index.h"
#include "tests/lib/index_shadow.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <urcu-qsbr.h>

#define KEYS_MAX 20000
#define PLACES_MAX (1u << 20)
#define BUCKETS_MAX (1u << 16)
#define WRITER 3

struct place {
	uint32_t key;
	bool keyless; /* as an item on flash: its key can't be asked for */
};

struct model {
	uint64_t random;
	uint32_t keys;
	uint32_t keyless_percent;
	uint64_t hashes[KEYS_MAX];
	uint32_t current[KEYS_MAX]; /* place, 0: the key is absent */
	uint8_t reads[KEYS_MAX];
	uint32_t present;
	struct place places[PLACES_MAX]; /* place p is segment 1 + p / 4096, offset p % 4096 */
	uint32_t places_used;
	struct index *index;
	struct index_shadow *shadow;
	uint64_t hint_checks;
	uint32_t seen[KEYS_MAX];
};

static uint64_t
next_random(struct model *model)
{
	/* splitmix64 */
	uint64_t z = model->random += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static uint64_t
entry_of(uint32_t place, uint32_t size_class)
{
	return bucket_entry_make(1 + place / 4096, place % 4096, size_class);
}

static uint32_t
place_of(uint64_t entry)
{
	return (bucket_entry_segment(entry) - 1) * 4096 + bucket_entry_offset(entry);
}

static bool
key_hash(void *context, uint64_t entry, uint64_t *hash)
{
	struct model *model = context;
	const struct place *place = &model->places[place_of(entry)];

	check(place_of(entry) < model->places_used &&
		model->current[place->key] == place_of(entry));
	*hash = model->hashes[place->key];
	return !place->keyless;
}

static const struct index_keys keys = {.hash = key_hash};

/* --- what is done to the index ------------------------------------------------------------ */

static uint32_t
place_new(struct model *model, uint32_t key, bool keyless)
{
	uint32_t place = model->places_used++;

	check(place < PLACES_MAX);
	model->places[place] = (struct place){key, keyless};
	return place;
}

static _Atomic uint64_t *
locked_find(struct model *model, struct index_locked *locked, uint32_t key, uint64_t *entry)
{
	_Atomic uint64_t *slot;

	while ((slot = index_locked_next(locked, entry)) != NULL)
		if (model->places[place_of(*entry)].key == key)
			return slot;
	return NULL;
}

static bool
find(struct model *model, uint32_t key, struct index_find *found, uint64_t *entry)
{
	index_find_begin(model->index, model->hashes[key], found);
	do {
		while ((*entry = index_find_next(found)) != 0)
			if (model->places[place_of(*entry)].key == key)
				return true;
	} while (index_find_again(found));
	return false;
}

static void
check_key(struct model *model, uint32_t key)
{
	struct index_find found;
	uint64_t entry;
	bool hit = find(model, key, &found, &entry);

	check(hit == (model->current[key] != 0));
	if (!hit)
		return;
	check(place_of(entry) == model->current[key]);
	check(bucket_entry_reads(entry) == model->reads[key]);
	check(bucket_entry_class(entry) == key % 63);
	check(atomic_load(found.slot) == entry);
}

static void
do_set(struct model *model, uint32_t key)
{
	struct index_locked locked;
	struct index_find hint;
	uint64_t entry;
	bool keyless = next_random(model) % 100 < model->keyless_percent,
	     existed = find(model, key, &hint, &entry);
	uint32_t place = place_new(model, key, keyless);
	int reads = next_random(model) % 4 == 0 ? (int)(next_random(model) % 16) : -1;

	check(index_hint_holds(model->index, model->hashes[key], hint.number, hint.version));
	index_lock(model->index, model->hashes[key], WRITER, &locked);
	check(locked.number == hint.number);

	_Atomic uint64_t *slot = locked_find(model, &locked, key, &entry);

	check((slot != NULL) == existed && existed == (model->current[key] != 0));
	if (slot != NULL) {
		check(slot == hint.slot);
		index_locked_replace(&locked, slot, entry_of(place, key % 63), reads);
		model->reads[key] = reads >= 0 ? (uint8_t)reads : model->reads[key];
	} else {
		check(index_locked_insert(
			&locked, entry_of(place, key % 63), reads >= 0 ? (unsigned)reads : 0));
		model->reads[key] = reads >= 0 ? (uint8_t)reads : 0;
		model->present++;
	}
	/*
	 * What the observer's reader of keys will be asked about stands in the model before the
	 * lock is released.
	 */
	model->current[key] = place;
	index_unlock(&locked);
	check(!index_hint_holds(model->index, model->hashes[key], hint.number, hint.version));
	model->hint_checks++;
}

static void
do_delete(struct model *model, uint32_t key)
{
	struct index_locked locked;
	uint64_t entry;

	index_lock(model->index, model->hashes[key], WRITER, &locked);

	_Atomic uint64_t *slot = locked_find(model, &locked, key, &entry);

	check((slot != NULL) == (model->current[key] != 0));
	if (slot != NULL) {
		index_locked_remove(&locked, slot);
		model->current[key] = 0;
		model->present--;
	}
	index_locked_rewind(&locked);
	check(locked_find(model, &locked, key, &entry) == NULL);
	index_unlock(&locked);
}

/* As a mover does: the entry must still name the place that it started from. */
static void
do_move(struct model *model, uint32_t key)
{
	struct index_locked locked;
	uint32_t from = model->current[key];
	_Atomic uint64_t *slot;
	uint64_t entry;

	if (from == 0)
		return;

	uint32_t to = place_new(model, key, next_random(model) % 100 < 4 * model->keyless_percent);

	index_lock(model->index, model->hashes[key], WRITER, &locked);
	while ((slot = index_locked_next(&locked, &entry)) != NULL)
		if (bucket_entry_same_place(entry, entry_of(from, 0)))
			break;
	check(slot != NULL);
	index_locked_replace(&locked, slot, entry_of(to, key % 63), -1);
	model->current[key] = to;
	index_unlock(&locked);
}

static void
do_read(struct model *model, uint32_t key)
{
	struct index_find found;
	uint64_t entry;
	uint32_t random = (uint32_t)next_random(model), reads;

	if (!find(model, key, &found, &entry))
		return;
	reads = model->reads[key];
	if (reads < 4 || (reads < 15 && random % (1u << (reads - 3)) == 0))
		model->reads[key]++;
	index_count_read(found.slot, entry, random);
	check(index_hint_holds(model->index, model->hashes[key], found.number, found.version));
}

/* Several changes under one lock: slots are valid until it is released. */
static void
do_many(struct model *model, uint32_t key)
{
	struct index_locked locked;
	_Atomic uint64_t *slot;
	uint64_t entry;

	index_lock(model->index, model->hashes[key], WRITER, &locked);
	while ((slot = index_locked_next(&locked, &entry)) != NULL) {
		uint32_t other = model->places[place_of(entry)].key;

		check(model->current[other] == place_of(entry));
		/* Its tag is the key's own only when the hash is; else the tag would be wrong. */
		if (next_random(model) % 2 && model->hashes[other] == model->hashes[key]) {
			index_locked_remove(&locked, slot);
			model->current[other] = 0;
			model->present--;
		}
	}
	if (model->current[key] == 0) {
		uint32_t place = place_new(model, key, false);

		check(index_locked_insert(&locked, entry_of(place, key % 63), 1));
		model->current[key] = place;
		model->reads[key] = 1;
		model->present++;
	}
	index_unlock(&locked);
}

static bool
visit(void *context, uint64_t entry)
{
	struct model *model = context;
	uint32_t key = model->places[place_of(entry)].key;

	check(model->current[key] == place_of(entry));
	model->seen[key]++;
	return true;
}

static void
check_all(struct model *model)
{
	uint32_t present = 0;

	memset(model->seen, 0, sizeof model->seen);
	index_walk(model->index, WRITER, visit, model);
	for (uint32_t key = 0; key < model->keys; key++) {
		check_key(model, key);
		check(model->seen[key] == (model->current[key] != 0));
		present += model->current[key] != 0;
	}
	check(present == model->present);
	check(index_shadow_sound(model->index));
	check(index_shadow_equals(model->shadow));
}

/* --- runs --------------------------------------------------------------------------------- */

enum hashes { SPREAD, CROWDED, FEW_TAGS, TWINS, HASHES };
static const char *const hashes_names[] = {"spread", "crowded", "few tags", "twins"};

static uint64_t
hash_make(struct model *model, enum hashes kind, uint32_t key)
{
	uint64_t hash = next_random(model);

	switch (kind) {
	case CROWDED: /* half of all keys in one bucket of 64, until splits part them */
		return hash & 1 ? hash : (hash & ~0x3full) | 5;
	case FEW_TAGS: /* two bits above the first buckets' number vary: tags collide */
		return (hash & 0xff) | 0x5a5a5a5a5a5a5a00u;
	case TWINS: /* each hash belongs to three keys */
		return key % 3 == 0 ? hash : model->hashes[key - key % 3];
	default:
		return hash;
	}
}

static void
run(struct model *model, uint64_t seed)
{
	memset(model, 0, sizeof *model);
	model->random = seed;

	enum hashes kind = next_random(model) % HASHES;
	uint32_t steps = 60000;
	struct index_stats stats;

	model->keyless_percent = next_random(model) % 2 ? 0 : 12;
	model->keys =
		kind == SPREAD ? 2000 + (uint32_t)(next_random(model) % (KEYS_MAX - 2000)) : 1500;
	for (uint32_t key = 0; key < model->keys; key++)
		model->hashes[key] = hash_make(model, kind, key);
	model->places_used = 1;
	model->shadow = index_shadow_create(BUCKETS_MAX);

	struct index_options options = {
		.buckets_initial = 64,
		.bytes_max = 8 << 20,
		.entries_per_bucket = 2 + (double)(next_random(model) % 7),
		.keys = &keys,
		.keys_context = model,
		.observer = &index_shadow_observer,
		.observer_context = model->shadow,
	};

	model->index = index_create(&options);
	check(model->index != NULL);
	index_shadow_attach(model->shadow, model->index, 64);
	for (uint32_t step = 0; step < steps; step++) {
		uint32_t key = (uint32_t)(next_random(model) % model->keys);
		uint64_t dice = next_random(model) % 100;
		/* The population breathes, so that chains grow and shrink. */
		bool shrinking = step / 10000 % 3 == 2;

		if (dice < (shrinking ? 10 : 45))
			do_set(model, key);
		else if (dice < 55)
			do_delete(model, key);
		else if (dice < 65)
			do_move(model, key);
		else if (dice < 70)
			do_many(model, key);
		else if (dice < 80)
			do_read(model, key);
		else
			check_key(model, key);
		if (dice < 20)
			index_grow(model->index, 1 + (unsigned)(dice % 3), WRITER);
		if (dice == 99)
			index_reclaim_units(model->index);
		if (step % 6000 == 0)
			check_all(model);
	}
	check_all(model);
	index_get_stats(model->index, &stats);
	printf("seed %" PRIu64 " %-8s: %" PRIu64 " entries, %" PRIu64 " buckets, %" PRIu64
	       " doublings, %" PRIu64 " units, stopped %" PRIu64 ", tags may have lost %" PRIu64
	       "\n",
		seed, hashes_names[kind], stats.entries, stats.buckets, stats.doublings,
		stats.overflow_units, stats.growth_stopped,
		hd_load_acquire(&index_table(model->index)->tag_bits_lost));
	index_destroy(model->index);
	index_shadow_destroy(model->shadow);
}

int
main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1,
		 seeds = argc > 2 ? strtoull(argv[2], NULL, 0) : 24;
	struct model *model = malloc(sizeof *model);

	check(model != NULL);
	rcu_register_thread();
	for (uint64_t seed = first; seed < first + seeds; seed++)
		run(model, seed);
	rcu_unregister_thread();
	free(model);
	return 0;
}
