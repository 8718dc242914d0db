/* SPDX-License-Identifier: BSD-2-Clause */
#define _GNU_SOURCE
#include "base/pages.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

/* How many pages of the range are in memory. */
static size_t
resident(void *pages, size_t bytes)
{
	static unsigned char map[16384];
	size_t n = bytes / (size_t)sysconf(_SC_PAGESIZE), count = 0;

	assert_in_range(n, 1, sizeof map);
	assert_int_equal(mincore(pages, bytes, map), 0);
	for (size_t i = 0; i < n; i++)
		count += map[i] & 1;
	return count * (size_t)sysconf(_SC_PAGESIZE);
}

static void
test_touch_and_give_back(void **state)
{
	(void)state;
	/* 64 GiB of addresses, whatever memory there is. */
	uint8_t *pages = pages_reserve(65536 * MIB, 2 * MIB);
	assert_non_null(pages);
	assert_int_equal((uintptr_t)pages % (2 * MIB), 0);
	pages_advise_huge(pages, 65536 * MIB, false);
	assert_int_equal(resident(pages, 16 * MIB), 0);
	assert_int_equal(pages[65536 * MIB - 1], 0);

	memset(pages, 7, 8 * MIB);
	assert_int_equal(resident(pages, 16 * MIB), 8 * MIB);
	assert_true(pages_decommit(pages + 2 * MIB, 3 * MIB));
	assert_int_equal(resident(pages, 16 * MIB), 5 * MIB);
	assert_int_equal(pages[2 * MIB - 1], 7);
	assert_int_equal(pages[2 * MIB], 0);
	assert_int_equal(pages[5 * MIB], 7);

	/* Only whole pages within are given back. */
	assert_true(pages_decommit(pages + 1, 100));
	pages_decommit(pages + 5 * MIB + 1, 2 * 4096 - 2);
	assert_int_equal(pages[50], 7);
	assert_int_equal(pages[5 * MIB], 7);
	assert_int_equal(pages[5 * MIB + 4096], 7);
	pages_release(pages, 65536 * MIB);
}

/* Locked pages are given back too, or it is told that they aren't. */
static void
test_locked(void **state)
{
	uint8_t *pages = pages_reserve(MIB, 4096);

	(void)state;
	assert_non_null(pages);
	if (mlock(pages, 4096) != 0) {
		pages_release(pages, MIB);
		skip();
	}
	memset(pages, 7, 4096);
	assert_int_equal(pages[0], pages_decommit(pages, 4096) ? 0 : 7);
	pages_release(pages, MIB);
}

static void
test_refusals(void **state)
{
	(void)state;
	errno = 0;
	assert_null(pages_reserve(SIZE_MAX / 2, 4096));
	assert_int_equal(errno, ENOMEM);
	errno = 0;
	assert_null(pages_reserve(SIZE_MAX - 4096, 2 * MIB));
	assert_int_equal(errno, ENOMEM);
	assert_null(pages_reserve(0, 4096));
	pages_release(NULL, 4096);
}

/* With or without explicit huge pages in the system's pool the range can be used afterwards. */
static void
test_huge(void **state)
{
	uint8_t *pages = pages_reserve(8 * MIB, PAGES_HUGE);

	(void)state;
	assert_non_null(pages);
	errno = 0;
	if (!pages_take_huge(pages, 4 * MIB))
		assert_int_not_equal(errno, 0);
	pages_advise_huge(pages, 8 * MIB, true);
	memset(pages, 1, 8 * MIB);
	assert_int_equal(pages[8 * MIB - 1], 1);
	pages_release(pages, 8 * MIB);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_touch_and_give_back),
		cmocka_unit_test(test_locked),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_huge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
