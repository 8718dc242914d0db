/* SPDX-License-Identifier: BSD-2-Clause */
#include "store/item_hd.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

/*
 * An item as whoever writes one lays it out, field by field; independent of the header's own
 * arithmetic.
 */
struct sample {
	uint8_t bytes[1024] __attribute__((aligned(16)));
	uint32_t size; /* before rounding */
};

static void
put(struct sample *sample, const void *from, uint32_t size)
{
	memcpy(sample->bytes + sample->size, from, size);
	sample->size += size;
}

static const struct item *
make(struct sample *sample, uint32_t key_size, uint32_t value_size, uint8_t kinds,
	uint32_t segments)
{
	struct item header = {
		.cas_low = 0x89abcdef,
		.cas_high = 0x4567,
		.soft = 0x8001,
		.expiry = 1700000000,
		.sizes = key_size | value_size << 8 | (kinds ? 1u << 31 : 0),
	};
	uint32_t flags = 0xfeedf00d, segment = 77;
	uint64_t cas = 0xfedcba9876543210, place = 0x0123456789abcdef, length = 5000000000;
	uint8_t fill[256];

	memset(sample, 0xee, sizeof *sample);
	sample->size = 0;
	put(sample, &header, sizeof header);
	memset(fill, 'k', sizeof fill);
	put(sample, fill, key_size);
	memset(fill, 'v', sizeof fill);
	put(sample, fill, value_size);
	if (kinds)
		put(sample, &kinds, 1);
	if (kinds & ITEM_FLAGS)
		put(sample, &flags, 4);
	if (kinds & ITEM_CAS)
		put(sample, &cas, 8);
	if (kinds & ITEM_FLASH)
		put(sample, &place, 8);
	if (kinds & ITEM_LARGE) {
		put(sample, &length, 8);
		put(sample, &segments, 4);
		for (uint32_t i = 0; i < segments; i++, segment++)
			put(sample, &segment, 4);
	}
	return (const struct item *)sample->bytes;
}

static void
test_header(void **state)
{
	struct sample sample;
	const struct item *item = make(&sample, 250, 0, 0, 0);

	(void)state;
	assert_int_equal(sizeof(struct item), 16);
	assert_int_equal(item_key_size(item), 250);
	assert_int_equal(item_value_size(item), 0);
	assert_false(item_has_trailer(item));
	assert_int_equal(item_cas(item), 0x456789abcdef);
	assert_int_equal(item_client_flags(item), 0);
	assert_int_equal(item_kinds(item), 0);
	assert_int_equal(item_size(item), 16 * ((16 + 250 + 15) / 16));
	assert_ptr_equal(item_key(item), sample.bytes + 16);
	assert_ptr_equal(item_value(item), sample.bytes + 16 + 250);

	/* The greatest lengths don't touch each other. */
	struct item wide = {.sizes = 255 | ITEM_VALUE_MAX << 8};
	assert_int_equal(item_key_size(&wide), 255);
	assert_int_equal(item_value_size(&wide), 8388607);
	assert_false(item_has_trailer(&wide));
}

/* Every set of kinds, at lengths that put the trailer on all alignments. */
static void
test_trailers(void **state)
{
	struct sample sample;

	(void)state;
	for (unsigned kinds = 1; kinds < 64; kinds++)
		for (uint32_t value_size = 0; value_size < 17; value_size++) {
			bool large = kinds & ITEM_LARGE;
			uint32_t segments = large ? value_size + 1 : 0,
				 inline_size = large ? 0 : value_size;
			const struct item *item =
				make(&sample, 3, inline_size, (uint8_t)kinds, segments);

			assert_int_equal(item_kinds(item), kinds);
			assert_int_equal(item_size(item), (sample.size + 15) / 16 * 16);
			assert_int_equal(item_trailer_size((uint8_t)kinds, segments),
				sample.size - 16 - 3 - inline_size);
			assert_int_equal(
				item_client_flags(item), kinds & ITEM_FLAGS ? 0xfeedf00d : 0);
			assert_true(item_cas(item) ==
				    (kinds & ITEM_CAS ? 0xfedcba9876543210 : 0x456789abcdef));
			assert_true(item_value_length(item) == (large ? 5000000000 : inline_size));
			assert_int_equal(item_large_count(item), segments);
			for (uint32_t i = 0; i < segments; i++)
				assert_int_equal(item_large_segment(item, i), 77 + i);
			if (kinds & ITEM_FLASH) {
				uint64_t place;

				memcpy(&place, item_trailer_field(item_trailer(item), ITEM_FLASH),
					8);
				assert_true(place == 0x0123456789abcdef);
			}
		}
	assert_int_equal(item_trailer_size(0, 0), 0);
}

static void
test_key(void **state)
{
	struct sample sample;
	const struct item *item = make(&sample, 5, 9, 0, 0);

	(void)state;
	assert_true(item_has_key(item, (const uint8_t *)"kkkkk", 5));
	assert_false(item_has_key(item, (const uint8_t *)"kkkkk", 4));
	assert_false(item_has_key(item, (const uint8_t *)"kkkkkv", 6));
	assert_false(item_has_key(item, (const uint8_t *)"kkkkx", 5));
}

static void
test_expiry(void **state)
{
	struct item item = {.expiry = 0};

	(void)state;
	assert_false(item_expired(&item, UINT32_MAX));
	item.expiry = 1000;
	assert_false(item_expired(&item, 999));
	assert_true(item_expired(&item, 1000));
	assert_true(item_expired(&item, UINT32_MAX));
}

static void
test_soft_time(void **state)
{
	uint32_t last = 0;

	(void)state;
	for (uint32_t seconds = 0; seconds < 1024; seconds++)
		assert_int_equal(item_soft_seconds(item_soft_time(seconds)), seconds);
	/*
	 * Never later than it was, by less than a 1024th; never backwards; never out of its bits.
	 */
	for (uint32_t seconds = 1024; seconds < 2047u << 14; seconds += 1 + seconds / 5000) {
		uint16_t soft = item_soft_time(seconds);
		uint32_t got = item_soft_seconds(soft);

		assert_int_equal(soft & ~ITEM_SOFT_TIME, 0);
		assert_in_range(got, seconds - seconds / 1024, seconds);
		assert_true(got >= last);
		last = got;
	}
	/* Held at the end. */
	assert_int_equal(item_soft_time(2047u << 14), ITEM_SOFT_TIME);
	assert_int_equal(item_soft_time(UINT32_MAX), ITEM_SOFT_TIME);
	assert_int_equal(item_soft_seconds(ITEM_SOFT_TIME), 2047u << 14);
	assert_true(item_soft_seconds(ITEM_SOFT_TIME) > 388 * 86400);
	/* The bits beside the time are no part of it. */
	assert_int_equal(item_soft_seconds(ITEM_SOFT_FETCHED | ITEM_SOFT_WIN | 5), 5);
	assert_int_equal(ITEM_SOFT_FETCHED | ITEM_SOFT_WIN | ITEM_SOFT_TIME, 0xffff);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_trailers),
		cmocka_unit_test(test_key),
		cmocka_unit_test(test_expiry),
		cmocka_unit_test(test_soft_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
