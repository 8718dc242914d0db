/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/hash_hd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

static const uint64_t seeds[] = {
	0, 1, 0x9e3779b97f4a7c15u, UINT64_MAX, 0x00000000ffffffffu, 0xffffffff00000000u};

/* Each input in a block of its own size, so that a sanitizer sees a byte read too far. */
static void
compare(uint32_t size, uint64_t seed, unsigned shift)
{
	uint8_t *block = malloc(size + shift + 1), *data = block + shift;

	for (uint32_t i = 0; i < size; i++)
		data[i] = (uint8_t)(i * 197 + size * 31 + shift + (i >> 3));
	assert_int_equal(hash_bytes(data, size, seed), XXH3_64bits_withSeed(data, size, seed));
	free(block);
}

static void
all_lengths_and_seeds(void **state)
{
	(void)state;
	for (size_t s = 0; s < sizeof seeds / sizeof *seeds; s++)
		for (uint32_t size = 0; size <= HASH_SIZE_MAX; size++)
			for (unsigned shift = 0; shift < 8; shift++)
				compare(size, seeds[s], shift);
}

static void
every_byte_counts(void **state)
{
	uint8_t data[HASH_SIZE_MAX];

	(void)state;
	for (uint32_t size = 1; size <= HASH_SIZE_MAX; size++) {
		memset(data, 'k', sizeof data);
		uint64_t hash = hash_bytes(data, size, 7);

		for (uint32_t i = 0; i < size; i++) {
			data[i] ^= 1;
			assert_int_not_equal(hash_bytes(data, size, 7), hash);
			assert_int_equal(
				hash_bytes(data, size, 7), XXH3_64bits_withSeed(data, size, 7));
			data[i] ^= 1;
		}
	}
}

static void
seed_counts(void **state)
{
	(void)state;
	for (uint32_t size = 0; size <= HASH_SIZE_MAX; size++) {
		uint8_t data[HASH_SIZE_MAX] = {0};

		assert_int_not_equal(hash_bytes(data, size, 1), hash_bytes(data, size, 2));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_lengths_and_seeds),
		cmocka_unit_test(every_byte_counts),
		cmocka_unit_test(seed_counts),
	};

	return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
