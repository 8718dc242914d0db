/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the choice of what leaves is worth: misses of a cache-aside client (get; on a miss, set)
 * with Zipf popularity and values log-uniform from 20 bytes to 4 KiB, against a plain LRU of the
 * same memory with memcached's overheads (56 bytes an item, one after the key, two after the
 * value, chunks that grow by 1.25). The last fifth of the requests counts.
 *
 * Without arguments: some loads at a sixteenth of the size that the targets name, so that it takes
 * seconds, with the ratios to LRU that they must reach. Else one run, NAME=VALUE each, and a line:
 *
 *	zipf	exponent (1.0)			mib		memory (16)
 *	keys	(11719 a MiB: 3 M in 256)	requests	(10 a key)
 *	scan	percent of the requests		overwrites	percent of hits that are set anew
 *	ttl	1: each set gives 5 to 30 s; a second is a fifteenth as many requests as keys. From
 *		35 s before counting on
 *	shift	1: after every 20th as many requests as keys, a 64th of the popular ones changes
 *	value	bytes, all the same		lru		off
 *
 * and of how memory chooses (struct memory_tuning):
 *
 *	probation keep	percent			width segments	numbers
 *	ghost	per mille, or off		rank		reads-per-byte, reads, age
 *	counter	reads count up to here		fade garbage	numbers
 *	admit	score, reads			ghost-main	0, 1
 */
#include "base/check.h"
#include "base/rcu.h"
#include "tests/model/memory_store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 8
#define INDEX_BYTES 11 /* an item, counted outside the segments */

struct load {
	uint32_t keys, scan_keys; /* the scan's keys come after the others */
	uint32_t *order;	  /* popularity rank to key */
	uint32_t *value_bytes;
	double *cumulative;
	double exponent, overwrites, scan;
	bool ttl, shift, lru;
	uint32_t value; /* bytes of each, 0: log-uniform */
	uint32_t scan_at, shift_step;
	uint64_t limit, requests, random;
	uint32_t ttl_s; /* of what is set now, 0 none */
};

static _Atomic uint32_t now_s;

static void
make_load(struct load *load)
{
	uint32_t keys = load->keys;
	double sum = 0;

	load->random = 88172645463325252ull;
	load->scan_keys = load->scan > 0 ? 4 * keys : 1;
	load->order = malloc(keys * sizeof *load->order);
	load->value_bytes = malloc((keys + load->scan_keys) * sizeof *load->value_bytes);
	load->cumulative = malloc(keys * sizeof *load->cumulative);
	check(load->order && load->value_bytes && load->cumulative);
	for (uint32_t i = 0; i < keys; i++) {
		uint32_t j = (uint32_t)(store_random(&load->random) >> 32) % (i + 1);

		load->order[i] = load->order[j];
		load->order[j] = i;
		load->cumulative[i] = sum += pow(i + 1, -load->exponent);
	}
	for (uint32_t i = 0; i < keys; i++)
		load->cumulative[i] /= sum;
	for (uint32_t i = 0; i < keys + load->scan_keys; i++)
		load->value_bytes[i] =
			load->value ? load->value
				    : (uint32_t)(20 * pow(4096 / 20.0,
							      store_random_unit(&load->random)));
}

static void
free_load(struct load *load)
{
	free(load->order);
	free(load->value_bytes);
	free(load->cumulative);
}

/*
 * Popularity moves: ranks are dealt to groups, each with one of the hottest 64th; of each 64th
 * group the hottest becomes the coldest and the others rise.
 */
static void
shift_step(struct load *load)
{
	uint32_t groups = load->keys / 64, rows = load->keys / groups;

	for (uint32_t group = load->shift_step++ % 64; group < groups; group += 64) {
		uint32_t hottest = load->order[group];

		for (uint32_t row = 0; row + 1 < rows; row++)
			load->order[group + row * groups] = load->order[group + (row + 1) * groups];
		load->order[group + (rows - 1) * groups] = hottest;
	}
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
	uint32_t *expiry;
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
lru_access(struct lru *lru, const struct load *load, uint32_t key, bool overwrite)
{
	uint32_t node = key + 1;
	bool here = lru->here[key],
	     hit = here && (lru->expiry[key] == 0 || lru->expiry[key] > now_s);

	if (!hit || overwrite)
		lru->expiry[key] = load->ttl_s ? now_s + load->ttl_s : 0;
	if (here)
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

struct ours {
	struct store store;
	struct memory_options options;
	struct memory_thread *worker, *background;
	bool awake;
	uint64_t sets, set_bytes, inserts;
	uint64_t most; /* the most items that there were: the index doesn't shrink */
};

static void
wake(void *context)
{
	((struct ours *)context)->awake = true;
}

static void
open_ours(struct ours *ours, const struct load *load, const struct memory_tuning *tuning)
{
	*ours = (struct ours){.awake = false};
	store_options(&ours->options, &ours->store, load->limit, 1);
	ours->options.tuning = tuning;
	ours->options.wake = wake;
	ours->options.wake_context = ours;
	ours->store.now_s = &now_s;
	store_open(&ours->store, &ours->options, load->keys + load->scan_keys);
	ours->store.light = true;
	ours->worker = memory_thread_create(ours->store.memory, 0);
	ours->background = memory_thread_create(ours->store.memory, 1);
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

/* The limit holds, and what an index would take counts against it. */
static void
look_at_bytes(struct ours *ours)
{
	struct memory_stats stats;

	memory_get_stats(ours->store.memory, &stats);
	check(stats.resident_bytes <= ours->options.limit_bytes);
	uint64_t items = ours->inserts - ours->store.drops[MEMORY_EVICTED] -
			 ours->store.drops[MEMORY_EXPIRED];
	if (items > ours->most)
		ours->most = items;
	memory_set_outside(ours->store.memory, ours->most * INDEX_BYTES);
}

static bool
ours_access(struct ours *ours, const struct load *load, uint32_t key, bool overwrite)
{
	struct memory *memory = ours->store.memory;
	bool hit = store_get(&ours->store, key, now_s), main;
	uint32_t segment = store_segment(&ours->store, key), bytes = load->value_bytes[key];
	enum memory_status status;

	if (hit && !overwrite)
		return true;
	main = segment ? !memory_segment_probation(memory, segment)
		       : memory_ghost_take(memory, store_hash(key), bytes + KEY_BYTES + 16);
	while ((status = store_set(&ours->store, ours->worker, key, bytes,
			load->ttl_s ? now_s + load->ttl_s : 0, main, now_s)) == MEMORY_WAIT)
		run_background(ours);
	check(status == MEMORY_OK);
	run_background(ours);
	ours->inserts += segment == 0;
	ours->set_bytes += (bytes + KEY_BYTES + 16 + 15) & ~15u;
	if (++ours->sets % 1024 == 0)
		look_at_bytes(ours);
	return hit;
}

static void
print_line(const struct load *load, struct ours *ours, double misses, double lru_misses)
{
	struct memory_stats stats;

	memory_get_stats(ours->store.memory, &stats);
	printf("zipf %.2f, %3llu MiB, %7u keys, overwrites %2.0f%%, scan %2.0f%%%s%s: misses %.4f, "
	       "LRU %.4f, ratio %.3f; live %.3f, moved %.2f bytes a byte set\n",
		load->exponent, (unsigned long long)load->limit >> 20, load->keys,
		100 * load->overwrites, 100 * load->scan, load->ttl ? ", ttl" : "",
		load->shift ? ", shift" : "", misses, lru_misses,
		lru_misses > 0 ? misses / lru_misses : 0,
		(double)stats.live_bytes / (double)load->limit,
		(double)stats.moved_bytes / (double)ours->set_bytes);
}

/* Time and popularity at this request. */
static void
pass(struct load *load, uint64_t n, uint64_t counted_from)
{
	uint32_t second = load->keys / 15;

	if (n % second == 0)
		now_s++;
	if (load->shift && n % (load->keys / 20) == 0)
		shift_step(load);
	if (load->ttl && n + 35ull * second >= counted_from)
		load->ttl_s = 5 + (uint32_t)(store_random(&load->random) >> 40) % 26;
}

/* The ratio of our misses to the other's in the last fifth of the requests. */
static double
compare(struct load *load, const struct memory_tuning *tuning)
{
	struct ours ours;
	struct lru lru = {.limit = load->limit};
	uint64_t misses = 0, lru_misses = 0, from = load->requests / 5 * 4;

	make_load(load);
	uint32_t all = load->keys + load->scan_keys;
	lru.next = calloc(all + 1, sizeof *lru.next);
	lru.previous = calloc(all + 1, sizeof *lru.previous);
	lru.here = calloc(all, sizeof *lru.here);
	lru.expiry = calloc(all, sizeof *lru.expiry);
	check(lru.next && lru.previous && lru.here && lru.expiry);
	now_s = 1000000;
	open_ours(&ours, load, tuning);
	for (uint64_t n = 0; n < load->requests; n++) {
		pass(load, n, from);
		uint32_t key = next_key(load);
		bool overwrite =
			load->overwrites > 0 && store_random_unit(&load->random) < load->overwrites;
		bool hit = ours_access(&ours, load, key, overwrite),
		     lru_hit = load->lru && lru_access(&lru, load, key, overwrite);

		misses += n >= from && !hit;
		lru_misses += n >= from && load->lru && !lru_hit;
	}
	double counted = (double)(load->requests - from);
	print_line(load, &ours, (double)misses / counted, (double)lru_misses / counted);
	memory_thread_destroy(ours.worker);
	memory_thread_destroy(ours.background);
	store_close(&ours.store);
	free(lru.next);
	free(lru.previous);
	free(lru.here);
	free(lru.expiry);
	free_load(load);
	return lru_misses ? (double)misses / (double)lru_misses : 0;
}

/* --- arguments ---------------------------------------------------------------------------- */

static bool
set_tuning(struct memory_tuning *tuning, const char *name, const char *value)
{
	const struct {
		const char *name;
		unsigned *number;
	} numbers[] = {
		{"probation", &tuning->probation_percent},
		{"keep", &tuning->keep_percent},
		{"width", &tuning->merge_width},
		{"segments", &tuning->segments_min},
		{"ghost", &tuning->ghost_per_mille},
		{"counter", &tuning->reads_max},
		{"fade", &tuning->fade_percent},
		{"garbage", &tuning->garbage_min},
	};

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (strcmp(name, numbers[i].name) == 0) {
			*numbers[i].number = (unsigned)strtoul(value, NULL, 0); /* off: 0 */
			return true;
		}
	if (strcmp(name, "rank") == 0) {
		bool age = strcmp(value, "age") == 0;

		tuning->ranking = age				? MEMORY_BY_AGE
				  : strcmp(value, "reads") == 0 ? MEMORY_BY_READS
								: MEMORY_BY_READS_A_BYTE;
		tuning->admit_by_score = tuning->admit_by_score && !age;
	} else if (strcmp(name, "admit") == 0) {
		tuning->admit_by_score = strcmp(value, "score") == 0;
	} else if (strcmp(name, "ghost-main") == 0) {
		tuning->ghost_main = strcmp(value, "0") != 0;
	} else {
		return false;
	}
	return true;
}

static bool
set_load(struct load *load, const char *name, const char *value)
{
	double number = atof(value);

	if (strcmp(name, "zipf") == 0)
		load->exponent = number;
	else if (strcmp(name, "mib") == 0)
		load->limit = (uint64_t)number << 20;
	else if (strcmp(name, "keys") == 0)
		load->keys = (uint32_t)number;
	else if (strcmp(name, "requests") == 0)
		load->requests = (uint64_t)number;
	else if (strcmp(name, "overwrites") == 0)
		load->overwrites = number / 100;
	else if (strcmp(name, "scan") == 0)
		load->scan = number / 100;
	else if (strcmp(name, "ttl") == 0)
		load->ttl = number > 0;
	else if (strcmp(name, "shift") == 0)
		load->shift = number > 0;
	else if (strcmp(name, "value") == 0)
		load->value = (uint32_t)number;
	else if (strcmp(name, "lru") == 0)
		load->lru = strcmp(value, "off") != 0;
	else
		return false;
	return true;
}

static const struct load plain_load = {.exponent = 1.0, .limit = 16 << 20, .lru = true};

static void
fill_in(struct load *load)
{
	if (load->keys == 0)
		load->keys = (uint32_t)((load->limit >> 20) * 3000000 / 256);
	if (load->requests == 0)
		load->requests = 10ull * load->keys;
}

static int
run_one(int argc, char **argv)
{
	struct memory_tuning tuning = memory_tuning;
	struct load load = plain_load;

	for (int i = 1; i < argc; i++) {
		char name[32], value[32];

		if (sscanf(argv[i], "%31[^=]=%31s", name, value) != 2 ||
			!(set_load(&load, name, value) || set_tuning(&tuning, name, value))) {
			fprintf(stderr, "%s: NAME=VALUE, as the source's beginning says\n",
				argv[i]);
			return 2;
		}
	}
	fill_in(&load);
	compare(&load, &tuning);
	return 0;
}

/* The ratios that hold with some room: measured are .61, .80, .62, .64. */
static int
run_gates(void)
{
	static const struct {
		double most, exponent, overwrites, scan;
		bool ttl, shift;
	} gates[] = {
		{0.68, 1.0, 0.0, 0.00, false, false},
		{0.86, 1.0, 0.0, 0.25, false, false},
		{0.70, 1.0, 0.3, 0.00, false, false},
		{0.72, 1.0, 0.0, 0.00, false, true},
	};
	int failed = 0;

	for (size_t i = 0; i < sizeof gates / sizeof *gates; i++) {
		struct load load = plain_load;

		load.exponent = gates[i].exponent;
		load.overwrites = gates[i].overwrites;
		load.scan = gates[i].scan;
		load.ttl = gates[i].ttl;
		load.shift = gates[i].shift;
		fill_in(&load);
		load.requests /= 2;
		failed |= compare(&load, NULL) > gates[i].most;
	}
	return failed;
}

int
main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	rcu_register();
	int status = argc > 1 ? run_one(argc, argv) : run_gates();
	rcu_unregister();
	return status;
}
