/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the choice of what leaves is worth: misses of a cache-aside client (get; on a miss, set)
 * with Zipf popularity and values log-uniform from 20 bytes to 4 KiB, against a plain LRU of the
 * same memory with memcached's overheads (56 bytes an item, one after the key, two after the
 * value, chunks that grow by 1.25). A sixteenth of the size that the targets name, so that it
 * takes seconds; other scales, exponents and mixes from the command line:
 *
 *	memory_hits [zipf [MiB [keys [requests [overwrites% [scan%]]]]]]
 */
#include "base/check.h"
#include "base/rcu.h"
#include "tests/model/memory_store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define KEY_BYTES 8
#define INDEX_BYTES 11 /* an item, counted outside the segments */

struct load {
	uint32_t keys, scan_keys; /* the scan's keys come after the others */
	uint32_t *order;	  /* popularity rank to key */
	uint32_t *value_bytes;
	double *cumulative;
	double overwrites, scan;
	uint32_t scan_at;
	uint64_t random;
};

static void
make_load(struct load *load, double exponent, uint32_t keys)
{
	double sum = 0;

	load->keys = keys;
	load->scan_keys = load->scan > 0 ? 4 * keys : 1;
	load->order = malloc(keys * sizeof *load->order);
	load->value_bytes = malloc((keys + load->scan_keys) * sizeof *load->value_bytes);
	load->cumulative = malloc(keys * sizeof *load->cumulative);
	check(load->order && load->value_bytes && load->cumulative);
	for (uint32_t i = 0; i < keys; i++) {
		uint32_t j = (uint32_t)(store_random(&load->random) >> 32) % (i + 1);

		load->order[i] = load->order[j];
		load->order[j] = i;
		load->cumulative[i] = sum += pow(i + 1, -exponent);
	}
	for (uint32_t i = 0; i < keys; i++)
		load->cumulative[i] /= sum;
	for (uint32_t i = 0; i < keys + load->scan_keys; i++)
		load->value_bytes[i] =
			(uint32_t)(20 * pow(4096 / 20.0, store_random_unit(&load->random)));
}

static uint32_t
next_key(struct load *load)
{
	double u = store_random_unit(&load->random);
	uint32_t low = 0, high = load->keys - 1;

	if (load->scan > 0 && store_random_unit(&load->random) < load->scan) {
		load->scan_at = (load->scan_at + 1) % load->scan_keys;
		return load->keys + load->scan_at;
	}
	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (load->cumulative[middle] < u)
			low = middle + 1;
		else
			high = middle;
	}
	return load->order[low];
}

/* --- the other: one list, least recently used first out ----------------------------------- */

struct lru {
	uint32_t *next, *previous; /* by key + 1; 0 is the list's head */
	bool *here;
	uint64_t bytes, limit;
};

static uint64_t
lru_item_bytes(uint32_t value_bytes)
{
	double chunk = 96;
	uint32_t bytes = 48 + 8 + KEY_BYTES + 1 + value_bytes + 2;

	while (chunk < bytes)
		chunk = ceil(chunk * 1.25 / 8) * 8;
	return (uint64_t)chunk;
}

static void
lru_unlink(struct lru *lru, uint32_t node)
{
	lru->next[lru->previous[node]] = lru->next[node];
	lru->previous[lru->next[node]] = lru->previous[node];
}

static void
lru_push(struct lru *lru, uint32_t node)
{
	lru->next[node] = lru->next[0];
	lru->previous[node] = 0;
	lru->previous[lru->next[0]] = node;
	lru->next[0] = node;
}

static bool
lru_access(struct lru *lru, const struct load *load, uint32_t key)
{
	uint32_t node = key + 1;
	bool hit = lru->here[key];

	if (hit)
		lru_unlink(lru, node);
	else
		lru->bytes += lru_item_bytes(load->value_bytes[key]);
	lru->here[key] = true;
	lru_push(lru, node);
	while (lru->bytes > lru->limit) {
		uint32_t last = lru->previous[0];

		lru_unlink(lru, last);
		lru->here[last - 1] = false;
		lru->bytes -= lru_item_bytes(load->value_bytes[last - 1]);
	}
	return hit;
}

/* --- ours --------------------------------------------------------------------------------- */

static _Atomic uint32_t now_s;

struct ours {
	struct store store;
	struct memory_options options;
	struct memory_thread *worker, *background;
	bool awake;
	uint64_t sets, inserts, most; /* the most items that there were: the index doesn't shrink */
};

static void
wake(void *context)
{
	((struct ours *)context)->awake = true;
}

static void
run_background(struct ours *ours)
{
	uint32_t next_s;

	while (ours->awake) {
		ours->awake = false;
		while (memory_reclaim(ours->background, now_s, &next_s))
			;
	}
}

static bool
ours_access(struct ours *ours, const struct load *load, uint32_t key, bool overwrite)
{
	bool hit = store_get(&ours->store, key, now_s), main;
	uint32_t segment = store_segment(&ours->store, key);
	enum memory_status status;

	if (hit && !overwrite)
		return true;
	main = segment ? !memory_segment_probation(ours->store.memory, segment)
		       : memory_ghost_take(ours->store.memory, store_hash(key));
	while ((status = store_set(&ours->store, ours->worker, key, load->value_bytes[key], 0, main,
			now_s)) == MEMORY_WAIT)
		run_background(ours);
	check(status == MEMORY_OK);
	run_background(ours);
	ours->inserts += segment == 0;
	if (++ours->sets % 1024 == 0) {
		struct memory_stats stats;

		memory_get_stats(ours->store.memory, &stats);
		check(stats.resident_bytes <= ours->options.limit_bytes);
		uint64_t items = ours->inserts - ours->store.drops[MEMORY_EVICTED];
		if (items > ours->most)
			ours->most = items;
		memory_set_outside(ours->store.memory, ours->most * INDEX_BYTES);
	}
	return hit;
}

/* The ratio of our misses to the other's in the second half of the requests. */
static double
compare(struct load *load, double exponent, uint64_t limit, uint64_t requests)
{
	struct ours ours = {.awake = false};
	uint32_t all = load->keys + load->scan_keys;
	struct lru lru = {.limit = limit};
	uint64_t misses = 0, lru_misses = 0, counted = 0;

	lru.next = calloc(all + 1, sizeof *lru.next);
	lru.previous = calloc(all + 1, sizeof *lru.previous);
	lru.here = calloc(all, sizeof *lru.here);
	check(lru.next && lru.previous && lru.here);
	store_options(&ours.options, &ours.store, limit, 1);
	ours.options.wake = wake;
	ours.options.wake_context = &ours;
	ours.store.now_s = &now_s;
	store_open(&ours.store, &ours.options, all);
	ours.store.light = true;
	ours.worker = memory_thread_create(ours.store.memory, 0);
	ours.background = memory_thread_create(ours.store.memory, 1);

	for (uint64_t n = 0; n < requests; n++) {
		uint32_t key = next_key(load);
		bool overwrite =
			load->overwrites > 0 && store_random_unit(&load->random) < load->overwrites;
		bool hit = ours_access(&ours, load, key, overwrite),
		     lru_hit = lru_access(&lru, load, key);

		if (n < requests / 2)
			continue;
		counted++;
		misses += !hit;
		lru_misses += !lru_hit;
	}
	struct memory_stats stats;
	memory_get_stats(ours.store.memory, &stats);
	double ratio = (double)misses / (double)lru_misses;
	printf("zipf %.2f, %llu MiB, %u keys, overwrites %.0f%%, scan %.0f%%: misses %.4f, LRU "
	       "%.4f, ratio %.3f; live %.3f, "
	       "moved %.2f bytes a byte set, ghost hits %llu, promoted %llu\n",
		exponent, (unsigned long long)limit >> 20, load->keys, 100 * load->overwrites,
		100 * load->scan, (double)misses / (double)counted,
		(double)lru_misses / (double)counted, ratio,
		(double)stats.live_bytes / (double)limit,
		(double)stats.moved_bytes / ((double)ours.sets * 800),
		(unsigned long long)stats.ghost_hits, (unsigned long long)stats.promoted_items);

	memory_thread_destroy(ours.worker);
	memory_thread_destroy(ours.background);
	store_close(&ours.store);
	free(lru.next);
	free(lru.previous);
	free(lru.here);
	return ratio;
}

int
main(int argc, char **argv)
{
	double exponent = argc > 1 ? atof(argv[1]) : 1.0;
	uint64_t limit = (argc > 2 ? strtoull(argv[2], NULL, 0) : 16) << 20;
	uint32_t keys = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 0) : 200000;
	uint64_t requests = argc > 4 ? strtoull(argv[4], NULL, 0) : 1000000;
	struct load load = {
		.overwrites = argc > 5 ? atof(argv[5]) / 100 : 0,
		.scan = argc > 6 ? atof(argv[6]) / 100 : 0,
		.random = 88172645463325252ull,
	};

	setvbuf(stdout, NULL, _IOLBF, 0);
	rcu_register();
	make_load(&load, exponent, keys);
	double ratio = compare(&load, exponent, limit, requests);
	rcu_unregister();
	free(load.order);
	free(load.value_bytes);
	free(load.cumulative);
	return ratio <= 0.95 ? 0 : 1;
}
