/* SPDX-License-Identifier: BSD-2-Clause */
#include "index/index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <urcu-qsbr.h>

#include <cmocka.h>

/*
 * Items of these tests: offset i of segment 1 has hash hashes[i]; segment 2 stands for flash, whose
 * keys aren't at hand.
 */
#define ITEMS 4096
static uint64_t hashes[ITEMS];

static bool
item_hash(void *context, uint64_t entry, uint64_t *hash)
{
	(void)context;
	*hash = hashes[bucket_entry_offset(entry)];
	return bucket_entry_segment(entry) == 1;
}

static const struct index_keys keys = {.hash = item_hash};

static struct index *
make(double entries_per_bucket, uint64_t bytes_max)
{
	struct index_options options = {.buckets_initial = 64,
		.bytes_max = bytes_max,
		.entries_per_bucket = entries_per_bucket,
		.keys = &keys};
	struct index *index = index_create(&options);

	assert_non_null(index);
	return index;
}

static bool
insert(struct index *index, uint32_t item, uint32_t segment)
{
	struct index_locked locked;

	index_lock(index, hashes[item], 0, &locked);
	bool done = index_locked_insert(&locked, bucket_entry_make(segment, item, 0), 0);
	index_unlock(&locked);
	return done;
}

static uint64_t
find(struct index *index, uint32_t item, struct index_find *at)
{
	uint64_t entry;

	index_find_begin(index, hashes[item], at);
	do
		while ((entry = index_find_next(at)) != 0)
			if (bucket_entry_offset(entry) == item)
				return entry;
	while (index_find_again(at));
	return 0;
}

static uint64_t
spread(uint64_t i)
{
	i = (i + 1) * 0x9e3779b97f4a7c15u;
	return i ^ i >> 29;
}

static struct index_stats
stats_of(struct index *index)
{
	struct index_stats stats;

	index_get_stats(index, &stats);
	return stats;
}

/* --- layout ------------------------------------------------------------------------------- */

static void
entry_fields(void **state)
{
	uint64_t entry = bucket_entry_make(BUCKET_SEGMENT_MAX, BUCKET_OFFSET_MAX, 63);

	(void)state;
	assert_int_equal(bucket_entry_segment(entry), BUCKET_SEGMENT_MAX);
	assert_int_equal(bucket_entry_offset(entry), BUCKET_OFFSET_MAX);
	assert_int_equal(bucket_entry_class(entry), 63);
	assert_int_equal(bucket_entry_reads(entry), 0);
	assert_int_equal(bucket_entry_tag(entry), 0);
	assert_false(bucket_entry_is_link(entry));
	assert_false(bucket_entry_is_empty(entry));
	assert_true(bucket_entry_is_empty(0));
	entry = 0xabc7000000000000u | bucket_entry_make(1, 2, 3);
	assert_int_equal(bucket_entry_tag(entry), 0xabc);
	assert_int_equal(bucket_entry_reads(entry), 7);
	assert_true(bucket_entry_same_place(entry, bucket_entry_make(1, 2, 9)));
	assert_false(bucket_entry_same_place(entry, bucket_entry_make(1, 3, 3)));
	assert_false(bucket_entry_same_place(entry, bucket_entry_make(2, 2, 3)));
}

static void
links(void **state)
{
	static const uint32_t numbers[] = {1, 0xfffff, 0x100000, 0x12345678, 0x7fffffff};

	(void)state;
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		assert_true(bucket_entry_is_link(bucket_link_make(numbers[i])));
		assert_int_equal(bucket_number_gather(bucket_link_make(numbers[i])), numbers[i]);
		assert_true(bucket_entry_is_empty(bucket_number_spread(numbers[i])));
		uint64_t header = bucket_header_make(0xfedcba98, numbers[i], 1);

		assert_int_equal(bucket_header_link(header), numbers[i]);
		assert_int_equal(bucket_header_version(header), 0xfedcba98);
		assert_true(bucket_header_is_locked(header));
	}
}

/* Class c is (1 + j/4) * 2^k + 128: written here in the plainest way. */
static uint32_t
class_bytes_plain(uint32_t code)
{
	uint32_t k = 4 + code / 4, j = code % 4;

	return (1u << k) + j * (1u << k) / 4 + 128;
}

static void
size_classes(void **state)
{
	uint32_t code = 0;

	(void)state;
	for (uint32_t c = 0; c < BUCKET_CLASS_UNKNOWN; c++)
		assert_int_equal(bucket_class_bytes(c), class_bytes_plain(c));
	assert_int_equal(bucket_class_bytes(BUCKET_CLASS_UNKNOWN), 0);
	for (uint32_t bytes = 0; bytes <= class_bytes_plain(62); bytes++) {
		while (class_bytes_plain(code) < bytes)
			code++;
		if (bucket_class_of(bytes) != code)
			fail_msg("%u bytes: class %u, not %u", bytes, bucket_class_of(bytes), code);
	}
	assert_int_equal(bucket_class_of(class_bytes_plain(62) + 1), BUCKET_CLASS_UNKNOWN);
	assert_int_equal(bucket_class_of(8 << 20), BUCKET_CLASS_UNKNOWN);
	assert_int_equal(bucket_class_of(UINT64_MAX), BUCKET_CLASS_UNKNOWN);
}

/* Homes against the definition: split bucket by bucket from 64 on, following each hash. */
static void
homes_follow_splits(void **state)
{
	uint64_t home[256];
	uint32_t bits[256];

	(void)state;
	for (unsigned i = 0; i < 256; i++) {
		home[i] = spread(i) & 63;
		bits[i] = 6;
	}
	for (uint64_t count = 64; count < 1500; count++) {
		uint64_t low = 1;

		for (unsigned i = 0; i < 256; i++) {
			uint32_t have;

			assert_int_equal(bucket_home(spread(i), count, &have), home[i]);
			assert_int_equal(have, bits[i]);
			assert_int_equal(bucket_bits(home[i], count), bits[i]);
		}
		while (low * 2 <= count)
			low *= 2;
		assert_int_equal(bucket_newest_parent(count + 1), count - low);
		for (unsigned i = 0; i < 256; i++)
			if (home[i] == count - low) {
				home[i] += spread(i) & low;
				bits[i]++;
			}
	}
}

static void
match_forms_agree(void **state)
{
	struct bucket bucket __attribute__((aligned(64)));
	_Atomic uint64_t *words = &bucket.header;

	(void)state;
	for (unsigned round = 0; round < 20000; round++) {
		uint32_t tag = round % 3 == 0 ? 0 : (uint32_t)(spread(round) >> 40) & 0xfff;

		for (unsigned i = 0; i < 8; i++)
			words[i] = (spread(round * 8 + i) & ~BUCKET_TAG_MASK) |
				   (uint64_t)(spread(round ^ i << 20) & 2 ? tag : tag ^ 1u << i)
					   << BUCKET_TAG_SHIFT;
#ifdef BUCKET_VECTOR
		assert_int_equal(
			bucket_match_vector(words, 8, tag), bucket_match_scalar(words, 8, tag));
		assert_int_equal(
			bucket_match_vector(words, 4, tag), bucket_match_scalar(words, 4, tag));
#endif
		for (unsigned i = 0; i < 8; i++)
			assert_int_equal(bucket_match_scalar(words, 8, tag) >> i & 1,
				bucket_entry_tag(words[i]) == tag);
	}
}

static void
lost_tag_bits(void **state)
{
	uint64_t entry = 0x00full << BUCKET_TAG_SHIFT;

	(void)state;
	assert_true(bucket_tag_fits(entry, 0x00f, 0));
	assert_false(bucket_tag_fits(entry, 0x80f, 0));
	assert_true(bucket_tag_fits(entry, 0x80f, 1));
	assert_false(bucket_tag_fits(entry, 0x40f, 1));
	assert_true(bucket_tag_fits(entry, 0xf0f, 4));
	assert_false(bucket_tag_fits(entry, 0xf0f, 3));
	assert_false(bucket_tag_fits(entry, 0xf8f, 4));
	/* What a tag can't have lost: the entry has a bit that the hash hasn't. */
	assert_false(bucket_tag_fits(0x80full << BUCKET_TAG_SHIFT, 0x00f, 4));
}

/* --- operations --------------------------------------------------------------------------- */

static void
insert_find_replace_remove(void **state)
{
	struct index *index = make(7.5, 1 << 20);
	struct index_locked locked;
	struct index_find at;
	uint64_t entry;

	(void)state;
	hashes[7] = 0x123456789abcdef0u;
	assert_int_equal(find(index, 7, &at), 0);
	assert_true(insert(index, 7, 1));
	entry = find(index, 7, &at);
	assert_int_equal(entry & ~BUCKET_TAG_MASK, bucket_entry_make(1, 7, 0));
	assert_int_equal(bucket_entry_tag(entry), hashes[7] >> 6 & 0xfff);
	assert_true(index_hint_holds(index, hashes[7], at.number, at.version));

	index_count_read(at.slot, entry, 0);
	index_lock(index, hashes[7], 0, &locked);
	_Atomic uint64_t *slot = index_locked_next(&locked, &entry);
	assert_ptr_equal(slot, at.slot);
	assert_null(index_locked_next(&locked, &entry));
	index_locked_replace(&locked, slot, bucket_entry_make(1, 7, 5), -1);
	/*
	 * Readers see the new entry at once, but the hint falls only when the change is
	 * acknowledged.
	 */
	assert_true(index_hint_holds(index, hashes[7], at.number, at.version));
	index_unlock(&locked);
	assert_false(index_hint_holds(index, hashes[7], at.number, at.version));
	entry = find(index, 7, &at);
	assert_int_equal(bucket_entry_reads(entry), 1);
	assert_int_equal(bucket_entry_class(entry), 5);

	index_lock(index, hashes[7], 0, &locked);
	slot = index_locked_next(&locked, &entry);
	index_locked_replace(&locked, slot, bucket_entry_make(1, 7, 5), 9);
	index_unlock(&locked);
	assert_int_equal(bucket_entry_reads(find(index, 7, &at)), 9);

	index_lock(index, hashes[7], 0, &locked);
	index_locked_remove(&locked, index_locked_next(&locked, &entry));
	index_unlock(&locked);
	assert_int_equal(find(index, 7, &at), 0);
	assert_int_equal(stats_of(index).entries, 0);
	index_destroy(index);
}

static void
unlock_without_change_keeps_hints(void **state)
{
	struct index *index = make(7.5, 1 << 20);
	struct index_locked locked;
	struct index_find at;

	(void)state;
	hashes[1] = 99;
	insert(index, 1, 1);
	find(index, 1, &at);
	index_lock(index, 99, 0, &locked);
	index_unlock(&locked);
	assert_true(index_hint_holds(index, 99, at.number, at.version));
	index_destroy(index);
}

static void
chains_grow_and_shrink(void **state)
{
	struct index *index = make(1000, 1 << 20);
	struct index_find at;

	(void)state;
	/* All in bucket 5, and all with one tag. */
	for (uint32_t i = 0; i < 100; i++) {
		hashes[i] = 5 | (uint64_t)i << 40;
		assert_true(insert(index, i, 1));
	}
	/* 7 in the bucket, 4 in the last unit, 3 in each other one: 30 units hold 91. */
	assert_int_equal(stats_of(index).overflow_units, 31);
	for (uint32_t i = 0; i < 100; i++)
		assert_int_not_equal(find(index, i, &at), 0);
	for (uint32_t i = 0; i < 100; i += 1) {
		struct index_locked locked;
		uint64_t entry;
		_Atomic uint64_t *slot;

		index_lock(index, hashes[i], 0, &locked);
		while ((slot = index_locked_next(&locked, &entry)) != NULL &&
			bucket_entry_offset(entry) != i)
			;
		assert_non_null(slot);
		index_locked_remove(&locked, slot);
		index_unlock(&locked);
		for (uint32_t j = 0; j < 100; j++)
			assert_int_equal(find(index, j, &at) != 0, j > i);
	}
	assert_int_equal(stats_of(index).overflow_units, 0);
	/* The units are used again only after a grace period. */
	uint64_t bytes = stats_of(index).bytes;

	index_reclaim_units(index);
	for (uint32_t i = 0; i < 100; i++)
		assert_true(insert(index, i, 1));
	assert_int_equal(stats_of(index).bytes, bytes);
	index_destroy(index);
}

static void
remove_item(struct index *index, uint32_t item)
{
	struct index_locked locked;
	uint64_t entry;
	_Atomic uint64_t *slot;

	index_lock(index, hashes[item], 0, &locked);
	while ((slot = index_locked_next(&locked, &entry)) != NULL &&
		bucket_entry_offset(entry) != item)
		;
	assert_non_null(slot);
	index_locked_remove(&locked, slot);
	index_unlock(&locked);
}

/* Keys come and go, never more than a few: units wait to be used again, and the count says so. */
static void
churn_at_constant_population(void **state)
{
	struct index *index = make(1000, 8 << 20);
	uint64_t bytes = stats_of(index).bytes, reclaims = 0;

	(void)state;
	for (uint32_t round = 0; round < 5000; round++) {
		uint64_t waiting = index_units_retired(index);

		for (uint32_t i = 0; i < 20; i++) {
			hashes[i] = (round & 63) | (uint64_t)i << 40;
			assert_true(insert(index, i, 1));
		}
		/* 7 in the bucket, 4 and three times 3 in units. */
		assert_int_equal(stats_of(index).overflow_units, 4);
		for (uint32_t i = 0; i < 20; i++)
			remove_item(index, i);
		assert_int_equal(stats_of(index).overflow_units, 0);
		assert_int_equal(index_units_retired(index), waiting + 4);
		if (index_units_retired(index) < 256)
			continue;
		index_reclaim_units(index);
		assert_int_equal(index_units_retired(index), 0);
		reclaims++;
	}
	assert_int_equal(reclaims, 5000 * 4 / 256);
	assert_in_range(stats_of(index).bytes - bytes, 1, 32 * 256);
	index_destroy(index);
}

static void
full_area_refuses_and_recovers(void **state)
{
	/* The area is rounded up to 2 MiB; the initial buckets leave room for 65408 units. */
	struct index *index = make(1e9, 64 * 64);
	struct index_locked locked;
	uint64_t inserted = 0;

	(void)state;
	index_lock(index, 3, 0, &locked);
	while (index_locked_insert(&locked, bucket_entry_make(1, 0, 0), 0))
		inserted++;
	index_unlock(&locked);
	assert_int_equal(inserted, 7 + 4 + 3 * (((2 << 20) - 64 * 64) / 32 - 1));
	assert_int_equal(stats_of(index).growth_stopped, 1);
	assert_false(index_wants_growth(index));
	assert_false(index_grow(index, 1, 0));
	index_touch_ahead(index);

	index_lock(index, 3, 0, &locked);
	_Atomic uint64_t *slot;
	uint64_t entry;
	uint64_t removed = 0;

	while ((slot = index_locked_next(&locked, &entry)) != NULL) {
		index_locked_remove(&locked, slot);
		removed++;
	}
	index_unlock(&locked);
	assert_int_equal(removed, inserted);
	assert_int_equal(stats_of(index).overflow_units, 0);
	index_reclaim_units(index);
	for (uint32_t i = 0; i < 20; i++) {
		hashes[i] = 4;
		assert_true(insert(index, i, 1));
	}
	index_destroy(index);
}

static void
growth_keeps_every_entry(void **state)
{
	struct index *index = make(4, 4 << 20);
	struct index_find at;
	uint64_t splits = 0;

	(void)state;
	for (uint32_t i = 0; i < ITEMS; i++) {
		hashes[i] = spread(i);
		assert_true(insert(index, i, 1));
		while (index_wants_growth(index)) {
			index_touch_ahead(index);
			index_grow(index, 1, 0);
			splits++;
		}
		for (uint32_t j = i < 50 ? 0 : i - 50; j <= i; j++)
			assert_int_not_equal(find(index, j, &at), 0);
	}
	for (uint32_t i = 0; i < ITEMS; i++) {
		uint64_t entry = find(index, i, &at);
		uint32_t bits;

		assert_int_equal(bucket_home(hashes[i], stats_of(index).buckets, &bits), at.number);
		assert_int_equal(bucket_entry_tag(entry), bucket_tag(hashes[i], bits));
	}
	assert_true(stats_of(index).buckets >= ITEMS / 4 - 16);
	assert_int_equal(stats_of(index).splits, splits);
	assert_int_equal(stats_of(index).growth_stopped, 0);
	assert_int_equal(hd_load_acquire(&index_table(index)->tag_bits_lost), 0);
	index_destroy(index);
}

/* Keys that aren't at hand: four doublings by the tag, then none, and every key is still found. */
static void
keyless_growth_stops_after_four_doublings(void **state)
{
	struct index *index = make(1, 4 << 20);
	struct index_find at;

	(void)state;
	for (uint32_t i = 0; i < ITEMS; i++) {
		hashes[i] = spread(i);
		assert_true(insert(index, i, 2));
		if (i % 8 == 7)
			index_grow(index, 64, 0);
	}
	for (uint32_t i = 0; i < ITEMS; i++)
		assert_int_not_equal(find(index, i, &at), 0);
	assert_int_equal(stats_of(index).buckets, 64 * 16);
	assert_int_equal(stats_of(index).doublings, 4);
	assert_int_equal(stats_of(index).growth_stopped, 1);
	assert_false(index_wants_growth(index));
	index_destroy(index);
}

static void
hints_fall_when_the_home_moves(void **state)
{
	struct index *index = make(0.01, 4 << 20);
	struct index_find stays, moves;

	(void)state;
	hashes[0] = 0;	/* bucket 0 of 64, then of 65 */
	hashes[1] = 64; /* bucket 0 of 64, 64 of 65 */
	insert(index, 0, 1);
	for (uint32_t i = 2; i < 40; i++) {
		hashes[i] = spread(i) << 7 | 33;
		insert(index, i, 1);
	}
	insert(index, 1, 1);
	assert_int_not_equal(find(index, 0, &stays), 0);
	assert_int_not_equal(find(index, 1, &moves), 0);
	assert_int_equal(moves.number, 0);
	index_grow(index, 1, 0);
	assert_int_equal(stats_of(index).buckets, 65);
	assert_false(index_hint_holds(index, hashes[0], stays.number, stays.version));
	assert_false(index_hint_holds(index, hashes[1], moves.number, moves.version));
	assert_int_not_equal(find(index, 1, &moves), 0);
	assert_int_equal(moves.number, 64);
	index_destroy(index);
}

static void
reads_counter(void **state)
{
	_Atomic uint64_t slot = bucket_entry_make(1, 2, 3);
	uint64_t tries = 0, random = 1;
	unsigned reads;

	(void)state;
	for (reads = 0; reads < 4; reads++) {
		index_count_read(&slot, slot, UINT32_MAX);
		assert_int_equal(bucket_entry_reads(slot), reads + 1);
	}
	index_count_read(&slot, slot, UINT32_MAX);
	assert_int_equal(bucket_entry_reads(slot), 4);
	for (; bucket_entry_reads(slot) < 12; tries++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		index_count_read(&slot, slot, (uint32_t)(random >> 32));
	}
	/* 2 + 4 + ... + 256 = 510 on average. */
	assert_in_range(tries, 150, 1600);
	assert_int_equal(bucket_reads_estimate(12), 4 + 510);
	assert_int_equal(bucket_reads_estimate(4), 4);
	assert_int_equal(bucket_reads_estimate(5), 6);
	/* Full, and stale: nothing happens. */
	slot = bucket_entry_make(1, 2, 3) | BUCKET_READS_MASK;
	index_count_read(&slot, slot, 0);
	assert_int_equal(slot, bucket_entry_make(1, 2, 3) | BUCKET_READS_MASK);
	slot = bucket_entry_make(1, 2, 3);
	/* Found before others read it: still the same. */
	index_count_read(&slot, bucket_entry_make(1, 2, 3) | 3ull << BUCKET_READS_SHIFT, 0);
	assert_int_equal(bucket_entry_reads(slot), 1);
	slot = bucket_entry_make(1, 2, 3);
	index_count_read(&slot, bucket_entry_make(1, 3, 3), 0);
	assert_int_equal(slot, bucket_entry_make(1, 2, 3));
}

static bool
count_entry(void *context, uint64_t entry)
{
	uint32_t *visits = context;

	assert_int_equal(bucket_entry_segment(entry), 1);
	++*visits;
	return true;
}

/*
 * Bytes of the mapping around this address that were written to: what is only read is the zero
 * page, and a sanitizer's shadow stands elsewhere.
 */
static uint64_t
dirty_bytes(const void *address)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	char line[1024];
	bool inside = false;
	uint64_t dirty = 0;

	assert_non_null(file);
	while (fgets(line, sizeof line, file)) {
		unsigned long long from, to, kib;

		if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
			inside = (uintptr_t)address >= from && (uintptr_t)address < to;
		else if (inside && sscanf(line, "Private_Dirty: %llu kB", &kib) == 1)
			dirty = kib * 1024;
	}
	fclose(file);
	return dirty;
}

/* Walking a large table with little in it finds that, and doesn't commit the rest. */
static void
walk_commits_nothing(void **state)
{
	struct index_options options = {.buckets_initial = 1 << 20,
		.bytes_max = 128 << 20,
		.entries_per_bucket = 7.5,
		.keys = &keys};
	struct index *index = index_create(&options);
	uint32_t visits = 0;

	(void)state;
	assert_non_null(index);
	for (uint32_t i = 0; i < 50; i++) {
		hashes[i] = 99 | (uint64_t)i << 40;
		assert_true(insert(index, i, 1));
	}
	const struct bucket *buckets = index_table(index)->buckets;
	uint64_t before = dirty_bytes(buckets);

	index_walk(index, 0, count_entry, &visits);
	assert_int_equal(visits, 50);
	assert_in_range(before, 1, 16 << 20);
	assert_in_range(dirty_bytes(buckets), before, before + (4 << 20));
	index_destroy(index);
}

static void
impossible_options(void **state)
{
	struct index_options options = {.buckets_initial = 1 << 20,
		.bytes_max = 1 << 20,
		.entries_per_bucket = 7.5,
		.keys = &keys};

	(void)state;
	assert_null(index_create(&options));
	options.bytes_max = UINT64_MAX;
	options.buckets_initial = UINT64_MAX / 2;
	assert_null(index_create(&options));
	index_destroy(NULL);
	/* More than can be used is no error. */
	options.buckets_initial = 100;
	struct index *index = index_create(&options);

	assert_non_null(index);
	assert_int_equal(stats_of(index).buckets, 128);
	index_destroy(index);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entry_fields),
		cmocka_unit_test(links),
		cmocka_unit_test(size_classes),
		cmocka_unit_test(homes_follow_splits),
		cmocka_unit_test(match_forms_agree),
		cmocka_unit_test(lost_tag_bits),
		cmocka_unit_test(insert_find_replace_remove),
		cmocka_unit_test(unlock_without_change_keeps_hints),
		cmocka_unit_test(chains_grow_and_shrink),
		cmocka_unit_test(churn_at_constant_population),
		cmocka_unit_test(full_area_refuses_and_recovers),
		cmocka_unit_test(growth_keeps_every_entry),
		cmocka_unit_test(keyless_growth_stops_after_four_doublings),
		cmocka_unit_test(hints_fall_when_the_home_moves),
		cmocka_unit_test(reads_counter),
		cmocka_unit_test(walk_commits_nothing),
		cmocka_unit_test(impossible_options),
	};

	rcu_register_thread();
	int failed = cmocka_run_group_tests_name("index", tests, NULL, NULL);
	rcu_unregister_thread();
	return failed;
}
