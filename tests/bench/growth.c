/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Growth of the index under inserts: the longest split, the longest insertion, bytes an entry.
 * Items of 32 bytes stand behind the entries, so that a split reads them as the store's would be
 * read. One thread grows in the background; inserting threads help at the end of each turn of 256
 * when it can't keep up.
 *
 * Usage: growth [-n entries, in millions (20)] [-t inserting threads (1)] [-b initial buckets
 * (65536)] [-h splits of help a turn (64)]
 *
 * Times are of the wall clock, so what the scheduler adds is in them: 'the machine's own' is the
 * longest gap that as many threads saw which did nothing but look at the clock, just before. CPU
 * times are without it: of one split with its page faults and look-ahead, and of one turn of help.
 */
#include "index/index.h"

#include "base/check.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <urcu-qsbr.h>
#include <xxhash.h>

#define THREADS_MAX 64
#define TURN 256
#define BEHIND 512 /* missing splits at which inserting threads help */
#define BUCKETS_OF_LOG 40

struct item {
	uint64_t header[2];
	uint64_t key[2];
};

struct bench {
	struct index *index;
	struct item *items;
	uint64_t count;
	unsigned threads, help;
	_Atomic uint32_t inserting;
	uint64_t split_cpu_ns;		       /* the growing thread's longest */
	uint64_t split_by_log[BUCKETS_OF_LOG]; /* its splits that took less than 2^i ns of CPU */
	uint64_t own_ns;		       /* the machine's own longest gap */
};

struct inserter {
	struct bench *bench;
	unsigned number;
	uint64_t longest_ns;
	uint64_t longest_help_ns, longest_help_cpu_ns;
	uint64_t by_log[BUCKETS_OF_LOG]; /* insertions that took less than 2^i ns */
	uint64_t preempted;
};

static uint64_t
clock_of(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t
now_ns(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

static uint64_t
cpu_ns(void)
{
	return clock_of(CLOCK_THREAD_CPUTIME_ID);
}

static uint64_t
longer(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t
entry_of(uint64_t item)
{
	return bucket_entry_make(1 + (uint32_t)(item >> 16), item & 0xffff, 0);
}

static uint64_t
item_of(uint64_t entry)
{
	return (uint64_t)(bucket_entry_segment(entry) - 1) << 16 | bucket_entry_offset(entry);
}

static bool
item_hash(void *context, uint64_t entry, uint64_t *hash)
{
	const struct bench *bench = context;

	*hash = XXH3_64bits_withSeed(bench->items[item_of(entry)].key, sizeof bench->items->key, 7);
	return true;
}

static void
item_prefetch(void *context, uint64_t entry)
{
	const struct bench *bench = context;

	__builtin_prefetch(&bench->items[item_of(entry)]);
}

static const struct index_keys keys = {.hash = item_hash, .prefetch = item_prefetch};

static void *
insert(void *context)
{
	struct inserter *self = context;
	struct bench *bench = self->bench;
	struct rusage usage;
	uint64_t done = 0;

	rcu_register_thread();
	for (uint64_t i = self->number; i < bench->count; i += bench->threads) {
		struct index_locked locked;

		bench->items[i].key[0] = i * 0x9e3779b97f4a7c15u;
		bench->items[i].key[1] = i;
		uint64_t hash =
			XXH3_64bits_withSeed(bench->items[i].key, sizeof bench->items->key, 7);
		uint64_t began_ns = now_ns();

		index_lock(bench->index, hash, self->number, &locked);
		check(index_locked_insert(&locked, entry_of(i), 0));
		index_unlock(&locked);

		uint64_t took_ns = now_ns() - began_ns;

		self->by_log[took_ns == 0 ? 0 : hd_log2(took_ns) + 1]++;
		self->longest_ns = longer(self->longest_ns, took_ns);
		if (++done % TURN != 0)
			continue;
		rcu_quiescent_state();
		if (index_growth_lack(bench->index) > BEHIND) {
			uint64_t began_cpu_ns = cpu_ns();

			began_ns = now_ns();
			index_grow(bench->index, bench->help, self->number);
			self->longest_help_ns = longer(self->longest_help_ns, now_ns() - began_ns);
			self->longest_help_cpu_ns =
				longer(self->longest_help_cpu_ns, cpu_ns() - began_cpu_ns);
		}
	}
	getrusage(RUSAGE_THREAD, &usage);
	self->preempted = (uint64_t)usage.ru_nivcsw;
	atomic_fetch_sub(&bench->inserting, 1);
	rcu_unregister_thread();
	return NULL;
}

static void *
grow(void *context)
{
	struct bench *bench = context;

	rcu_register_thread();
	for (unsigned turn = 0; atomic_load(&bench->inserting) != 0; turn++) {
		uint64_t began_ns = cpu_ns();
		bool more = index_grow(bench->index, 1, THREADS_MAX);

		uint64_t took_ns = cpu_ns() - began_ns;

		bench->split_cpu_ns = longer(bench->split_cpu_ns, took_ns);
		bench->split_by_log[took_ns == 0 ? 0 : hd_log2(took_ns) + 1]++;
		if (!more || turn % 4096 == 0)
			index_reclaim_units(bench->index);
		if (!more || turn % 64 == 0)
			index_touch_ahead(bench->index);
		if (more && turn % 64 != 0)
			continue;
		rcu_thread_offline();
		if (!more)
			usleep(100);
		rcu_thread_online();
	}
	while (index_grow(bench->index, 64, THREADS_MAX))
		rcu_quiescent_state();
	rcu_unregister_thread();
	return NULL;
}

/*
 * What any thread suffers here: the longest gap between two looks at the clock, in three seconds.
 */
static void *
idle(void *context)
{
	uint64_t *longest_ns = context, began_ns = now_ns(), before_ns = began_ns;

	for (uint64_t at_ns; (at_ns = now_ns()) - began_ns < 3000000000u; before_ns = at_ns)
		*longest_ns = longer(*longest_ns, at_ns - before_ns);
	return NULL;
}

static uint64_t
idle_gap(unsigned threads)
{
	pthread_t ids[THREADS_MAX];
	uint64_t longest_ns[THREADS_MAX] = {0}, result = 0;

	for (unsigned i = 0; i < threads; i++)
		check(pthread_create(&ids[i], NULL, idle, &longest_ns[i]) == 0);
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		result = longer(result, longest_ns[i]);
	}
	return result;
}

/* Bytes an entry, averaged over the samples of the last two doublings. */
static void *
sample(void *context)
{
	struct bench *bench = context;
	static double average;
	uint64_t samples = 0;

	while (atomic_load(&bench->inserting) != 0) {
		struct index_stats stats;

		usleep(20000);
		index_get_stats(bench->index, &stats);
		if (stats.entries < bench->count / 4)
			continue;
		average +=
			((double)stats.bytes / (double)stats.entries - average) / (double)++samples;
	}
	return &average;
}

static void
look_up(const struct bench *bench)
{
	uint64_t looked = bench->count < 4000000 ? bench->count : 4000000, item = 1,
		 began_ns = now_ns(), took_ns;
	struct index_find find;
	uint64_t entry;

	for (uint64_t i = 0; i < looked; i++) {
		item = (item * 6364136223846793005u + 1442695040888963407u);
		uint64_t wanted = (item >> 20) % bench->count;
		uint64_t key[2] = {wanted * 0x9e3779b97f4a7c15u, wanted};

		index_find_begin(bench->index, XXH3_64bits_withSeed(key, sizeof key, 7), &find);
		do
			entry = index_find_next(&find);
		while (entry != 0 &&
			memcmp(bench->items[item_of(entry)].key, key, sizeof key) != 0);
		check(entry != 0);
	}
	took_ns = now_ns() - began_ns;
	printf("every one of %" PRIu64 " random look-ups hit, %.0f ns each, one after the other\n",
		looked, (double)took_ns / (double)looked);
}

static void
print_over(const char *what, const uint64_t *by_log)
{
	uint64_t over[3] = {0, 0, 0};

	for (unsigned log = 0; log < BUCKETS_OF_LOG; log++) {
		over[0] += log > 14 ? by_log[log] : 0;
		over[1] += log > 17 ? by_log[log] : 0;
		over[2] += log > 20 ? by_log[log] : 0;
	}
	printf("%s over 16 us: %" PRIu64 ", over 131 us: %" PRIu64 ", over 1049 us: %" PRIu64 "\n",
		what, over[0], over[1], over[2]);
}

static void
report(const struct bench *bench, const struct inserter *inserters, uint64_t took_ns,
	double average)
{
	struct index_stats stats;
	uint64_t longest_ns = 0, help_ns = 0, help_cpu_ns = 0, preempted = 0,
		 inserted[BUCKETS_OF_LOG] = {0};

	for (unsigned i = 0; i < bench->threads; i++) {
		longest_ns = longer(longest_ns, inserters[i].longest_ns);
		help_ns = longer(help_ns, inserters[i].longest_help_ns);
		help_cpu_ns = longer(help_cpu_ns, inserters[i].longest_help_cpu_ns);
		preempted += inserters[i].preempted;
		for (unsigned log = 0; log < BUCKETS_OF_LOG; log++)
			inserted[log] += inserters[i].by_log[log];
	}
	index_get_stats(bench->index, &stats);
	printf("%" PRIu64 " entries in %.2f s, %.2f M/s; %" PRIu64 " buckets from %" PRIu64
	       ", %" PRIu64 " splits, %.2f entries a "
	       "bucket at the end\n",
		stats.entries, (double)took_ns / 1e9, (double)stats.entries * 1e3 / (double)took_ns,
		stats.buckets, stats.buckets_initial, stats.splits,
		(double)stats.entries / (double)stats.buckets);
	printf("bytes an entry: %.2f at the end, %.2f on average over the last two doublings\n",
		(double)stats.bytes / (double)stats.entries, average);
	printf("longest split %.1f us (CPU %.1f); longest insertion %.1f us; longest turn of help "
	       "%.1f us (CPU %.1f); "
	       "the machine's own %.1f us\n",
		(double)stats.split_ns_max / 1e3, (double)bench->split_cpu_ns / 1e3,
		(double)longest_ns / 1e3, (double)help_ns / 1e3, (double)help_cpu_ns / 1e3,
		(double)bench->own_ns / 1e3);
	print_over("insertions", inserted);
	print_over("splits (CPU)", bench->split_by_log);
	printf("inserting threads were preempted %" PRIu64 " times\n", preempted);
	check(stats.entries == bench->count && stats.growth_stopped == 0);
}

int
main(int argc, char **argv)
{
	static struct inserter inserters[THREADS_MAX];
	pthread_t threads[THREADS_MAX], grower, sampler;
	struct bench bench = {.count = 20000000, .threads = 1, .help = 64};
	uint64_t buckets = 65536;
	void *average;
	int option;

	while ((option = getopt(argc, argv, "n:t:b:h:")) != -1) {
		uint64_t value = option == '?' ? 0 : strtoull(optarg, NULL, 0);

		switch (option) {
		case 'n':
			bench.count = value * 1000000;
			break;
		case 't':
			bench.threads = (unsigned)value;
			break;
		case 'b':
			buckets = value;
			break;
		case 'h':
			bench.help = (unsigned)value;
			break;
		default:
			return 2;
		}
	}
	if (bench.count == 0 || bench.threads == 0 || bench.threads > THREADS_MAX)
		return 2;
	bench.items = aligned_alloc(2 << 20, bench.count * sizeof *bench.items);
	bench.index = index_create(&(struct index_options){.buckets_initial = buckets,
		.bytes_max = 1ull << 34,
		.entries_per_bucket = INDEX_LOAD,
		.keys = &keys,
		.keys_context = &bench});
	check(bench.items != NULL && bench.index != NULL);
	madvise(bench.items, bench.count * sizeof *bench.items, MADV_HUGEPAGE); /* as the arena */
	memset(bench.items, 0,
		bench.count * sizeof *bench.items); /* its page faults are not the index's */
	bench.inserting = bench.threads;
	bench.own_ns = idle_gap(bench.threads + 1 < THREADS_MAX ? bench.threads + 1 : THREADS_MAX);

	uint64_t began_ns = now_ns();

	for (unsigned i = 0; i < bench.threads; i++) {
		inserters[i] = (struct inserter){.bench = &bench, .number = i};
		check(pthread_create(&threads[i], NULL, insert, &inserters[i]) == 0);
	}
	check(pthread_create(&grower, NULL, grow, &bench) == 0 &&
		pthread_create(&sampler, NULL, sample, &bench) == 0);
	for (unsigned i = 0; i < bench.threads; i++)
		pthread_join(threads[i], NULL);

	uint64_t took_ns = now_ns() - began_ns;

	pthread_join(grower, NULL);
	pthread_join(sampler, &average);
	report(&bench, inserters, took_ns, *(double *)average);
	look_up(&bench);
	index_destroy(bench.index);
	free(bench.items);
	return 0;
}
