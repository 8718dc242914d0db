/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/lib/index_shadow.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shadow_bucket {
	uint64_t *entries; /* without reads, sorted */
	uint32_t count;
	uint32_t version;
	bool told;
};

struct index_shadow {
	const struct index *index;
	_Atomic uint64_t count;
	uint64_t buckets_max;
	struct shadow_bucket *buckets;
};

static int
entry_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Entries of a bucket's chain, sorted, without reads; malloc'd. */
static uint64_t *
chain_read(const struct bucket_table *table, const struct bucket *bucket, uint32_t *count)
{
	uint32_t room = 16, link = bucket_header_link(hd_load_acquire(&bucket->header));
	const _Atomic uint64_t *words = bucket->entries;
	uint64_t *entries = malloc(room * sizeof *entries);
	uint32_t words_count = BUCKET_ENTRIES;

	check(entries != NULL);
	*count = 0;
	for (;;) {
		uint32_t next = 0;

		for (uint32_t i = 0; i < words_count; i++) {
			uint64_t entry = hd_load_acquire(&words[i]);

			if (words != bucket->entries && i == BUCKET_UNIT_ENTRIES - 1 &&
				bucket_entry_is_link(entry)) {
				next = bucket_number_gather(entry);
				continue;
			}
			if (bucket_entry_is_empty(entry))
				continue;
			if (*count == room) {
				room *= 2;
				entries = realloc(entries, room * sizeof *entries);
				check(entries != NULL);
			}
			entries[(*count)++] = entry & ~BUCKET_READS_MASK;
		}
		if (words != bucket->entries)
			link = next;
		if (link == 0)
			break;
		words = bucket_unit_at(table, link)->entries;
		words_count = BUCKET_UNIT_ENTRIES;
	}
	qsort(entries, *count, sizeof *entries, entry_compare);
	return entries;
}

struct index_shadow *
index_shadow_create(uint64_t buckets_max)
{
	struct index_shadow *shadow = calloc(1, sizeof *shadow);

	check(shadow != NULL);
	shadow->buckets_max = buckets_max;
	shadow->buckets = calloc(buckets_max, sizeof *shadow->buckets);
	check(shadow->buckets != NULL);
	return shadow;
}

void
index_shadow_destroy(struct index_shadow *shadow)
{
	for (uint64_t i = 0; i < shadow->buckets_max; i++)
		free(shadow->buckets[i].entries);
	free(shadow->buckets);
	free(shadow);
}

void
index_shadow_attach(struct index_shadow *shadow, const struct index *index, uint64_t buckets)
{
	shadow->index = index;
	atomic_store(&shadow->count, buckets);
}

static void
shadow_changed(void *context, unsigned writer, const struct index_change *change)
{
	struct index_shadow *shadow = context;

	(void)writer;
	for (uint32_t i = 0; i < change->count; i++) {
		uint64_t number = change->at[i].number;

		check(number < shadow->buckets_max && number <= atomic_load(&shadow->count));
		check(bucket_header_is_locked(hd_load_acquire(&change->at[i].bucket->header)));

		struct shadow_bucket *bucket = &shadow->buckets[number];

		check(!bucket->told || (int32_t)(change->at[i].version - bucket->version) > 0);
		free(bucket->entries);
		bucket->entries = chain_read(
			index_table(shadow->index), change->at[i].bucket, &bucket->count);
		bucket->version = change->at[i].version;
		bucket->told = true;
	}
}

static void
shadow_grown(void *context, uint64_t buckets)
{
	struct index_shadow *shadow = context;

	check(buckets == atomic_load(&shadow->count) + 1);
	check(shadow->buckets[buckets - 1].told);
	atomic_store(&shadow->count, buckets);
}

const struct index_observer index_shadow_observer = {
	.changed = shadow_changed, .grown = shadow_grown};

bool
index_shadow_equals(const struct index_shadow *shadow)
{
	const struct bucket_table *table = index_table(shadow->index);
	bool equal = atomic_load(&shadow->count) == hd_load_acquire(&table->count);

	if (!equal)
		printf("# shadow: the number of buckets differs\n");
	for (uint64_t i = 0; equal && i < atomic_load(&shadow->count); i++) {
		const struct shadow_bucket *bucket = &shadow->buckets[i];
		uint32_t count,
			version = bucket_header_version(hd_load_acquire(&table->buckets[i].header));
		uint64_t *entries = chain_read(table, &table->buckets[i], &count);

		equal = count == bucket->count && version == bucket->version &&
			(count == 0 ||
				memcmp(entries, bucket->entries, count * sizeof *entries) == 0);
		if (!equal)
			printf("# shadow: bucket %" PRIu64
			       " differs: %u entries, version %u; shadow %u, %u\n",
				i, count, version, bucket->count, bucket->version);
		free(entries);
	}
	return equal;
}

/*
 * Holes of one bucket: none in it when it has units, none in units but the first, which has an
 * entry.
 */
static bool
chain_is_compact(const struct bucket_table *table, const struct bucket *bucket)
{
	uint32_t first = bucket_header_link(hd_load_acquire(&bucket->header)), next;

	for (unsigned i = 0; first != 0 && i < BUCKET_ENTRIES; i++)
		if (bucket_entry_is_empty(hd_load_acquire(&bucket->entries[i])))
			return false;
	for (uint32_t link = first; link != 0; link = next) {
		const struct bucket_unit *unit = bucket_unit_at(table, link);
		uint64_t last = hd_load_acquire(&unit->entries[BUCKET_UNIT_ENTRIES - 1]);
		unsigned used = 0, count = BUCKET_UNIT_ENTRIES;

		next = bucket_entry_is_link(last) ? bucket_number_gather(last) : 0;
		count -= next != 0;
		for (unsigned i = 0; i < count; i++)
			used += !bucket_entry_is_empty(hd_load_acquire(&unit->entries[i]));
		if (used == 0 || (link != first && used != count))
			return false;
	}
	return true;
}

bool
index_shadow_sound(const struct index *index)
{
	const struct bucket_table *table = index_table(index);
	uint64_t entries = 0, buckets = hd_load_acquire(&table->count);
	struct index_stats stats;

	for (uint64_t i = 0; i < buckets; i++) {
		uint32_t count;

		if (bucket_header_is_locked(hd_load_acquire(&table->buckets[i].header))) {
			printf("# bucket %" PRIu64 " is locked\n", i);
			return false;
		}
		if (!chain_is_compact(table, &table->buckets[i])) {
			printf("# bucket %" PRIu64 "'s chain has holes\n", i);
			return false;
		}
		free(chain_read(table, &table->buckets[i], &count));
		entries += count;
	}
	index_get_stats(index, &stats);
	if (stats.entries != entries)
		printf("# %" PRIu64 " entries, statistics say %" PRIu64 "\n", entries,
			stats.entries);
	return stats.entries == entries;
}
