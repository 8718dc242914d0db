/* SPDX-License-Identifier: BSD-2-Clause */
/* The index written down and taken up again; and purged. */
#include "index/index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <urcu-qsbr.h>

#include <cmocka.h>

#define ITEMS 40000u
#define AREA_BYTES (8ull << 20)

static uint64_t
hash_of(uint32_t item)
{
	uint64_t hash = (item + 1) * 0x9e3779b97f4a7c15u;

	return hash ^ hash >> 29;
}

/* As on flash: no key is at hand. */
static bool
no_hash(void *context, uint64_t entry, uint64_t *hash)
{
	(void)context;
	(void)entry;
	(void)hash;
	return false;
}

static const struct index_keys keys = {.hash = no_hash};

static struct index *
make(uint64_t buckets)
{
	struct index *index = index_create(&(struct index_options){.buckets_initial = buckets,
		.bytes_max = AREA_BYTES,
		.entries_per_bucket = INDEX_LOAD,
		.keys = &keys});

	assert_non_null(index);
	return index;
}

static void
fill(struct index *index)
{
	for (uint32_t item = 0; item < ITEMS; item++) {
		struct index_locked locked;

		index_lock(index, hash_of(item), 0, &locked);
		assert_true(index_locked_insert(
			&locked, bucket_entry_make(1 + item % 3, item, 0), item % 16));
		index_unlock(&locked);
	}
	while (index_grow(index, 64, 0))
		;
}

static bool
has(struct index *index, uint32_t item)
{
	struct index_find find;
	uint64_t entry;

	index_find_begin(index, hash_of(item), &find);
	do
		while ((entry = index_find_next(&find)) != 0)
			if (bucket_entry_offset(entry) == item)
				return bucket_entry_segment(entry) == 1 + item % 3 &&
				       bucket_entry_reads(entry) == item % 16;
	while (index_find_again(&find));
	return false;
}

static bool
is_segment(void *context, uint64_t entry)
{
	return bucket_entry_segment(entry) == *(uint32_t *)context;
}

/* As it goes by way of a file. */
static struct index *
copy(struct index *from)
{
	struct index_part source[INDEX_PARTS], target[INDEX_PARTS];
	struct index_image image;
	uint32_t count = index_image_get(from, &image, source);
	struct index *to = make(1ull << image.bits_initial);

	assert_int_equal(index_image_begin(to, &image, target), count);
	for (uint32_t i = 0; i < count; i++) {
		assert_int_equal((uintptr_t)target[i].data % 4096, 0);
		assert_int_equal(source[i].bytes, target[i].bytes);
		memcpy(target[i].data, source[i].data, source[i].bytes);
	}
	assert_true(index_image_end(to, &image));
	return to;
}

static void
test_copy(void **state)
{
	struct index *from = make(1024), *to;
	struct index_stats before, after;

	(void)state;
	fill(from);
	index_get_stats(from, &before);
	assert_true(before.overflow_units > 0 && before.doublings > 0);
	to = copy(from);
	index_destroy(from);
	index_get_stats(to, &after);
	assert_int_equal(after.entries, ITEMS);
	assert_int_equal(after.buckets, before.buckets);
	assert_int_equal(after.overflow_units, before.overflow_units);
	assert_int_equal(after.bytes, before.bytes);
	for (uint32_t item = 0; item < ITEMS; item++)
		assert_true(has(to, item));
	/* It goes on as any: grows, and gives its units up. */
	for (uint32_t segment = 1; segment <= 3; segment++)
		assert_true(index_purge(to, 0, is_segment, &segment) > 0);
	index_reclaim_units(to);
	index_get_stats(to, &after);
	assert_int_equal(after.entries, 0);
	assert_int_equal(after.overflow_units, 0);
	fill(to);
	for (uint32_t item = 0; item < ITEMS; item++)
		assert_true(has(to, item));
	index_destroy(to);
}

static void
test_purge(void **state)
{
	struct index *index = make(64);
	uint32_t segment = 2, left = 0;

	(void)state;
	fill(index);
	assert_int_equal(index_purge(index, 1, is_segment, &segment), ITEMS / 3);
	assert_int_equal(index_purge(index, 1, is_segment, &segment), 0);
	for (uint32_t item = 0; item < ITEMS; item++) {
		assert_int_equal(has(index, item), item % 3 != 1);
		left += has(index, item);
	}
	struct index_stats stats;

	index_get_stats(index, &stats);
	assert_int_equal(stats.entries, left);
	index_destroy(index);
}

static void
test_nonsense(void **state)
{
	struct index *from = make(64), *to = make(64), *other = make(128);
	struct index_part parts[INDEX_PARTS];
	struct index_image image, wrong;

	(void)state;
	fill(from);
	index_image_get(from, &image, parts);
	assert_int_equal(index_image_begin(other, &image, parts), 0);
#define REFUSED(field, value)                                                                      \
	wrong = image;                                                                             \
	wrong.field = value;                                                                       \
	assert_int_equal(index_image_begin(to, &wrong, parts), 0)
	REFUSED(bits_initial, 5);
	REFUSED(buckets, 63);
	REFUSED(buckets, AREA_BYTES / 64 + 1);
	REFUSED(buckets, UINT64_MAX / 32);
	REFUSED(units_made, UINT64_MAX);
	REFUSED(units_made, AREA_BYTES / 32);
	REFUSED(units_free, image.units_made + 1);
	REFUSED(units_in_chains, image.units_made + 1);
	REFUSED(tag_bits_lost, 5);
	REFUSED(entries, UINT64_MAX);
	assert_true(index_image_begin(to, &image, parts) > 0);
	/* A bucket that says it is locked, and one whose chain leads out of the units. */
	*(uint64_t *)parts[0].data = 1;
	assert_false(index_image_end(to, &image));
	*(uint64_t *)parts[0].data = (image.units_made + 1) << 1;
	assert_false(index_image_end(to, &image));
	index_destroy(from);
	index_destroy(to);
	index_destroy(other);
}

int
main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_copy),
		cmocka_unit_test(test_purge),
		cmocka_unit_test(test_nonsense),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	urcu_qsbr_register_thread();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	urcu_qsbr_unregister_thread();
	return failed;
}
