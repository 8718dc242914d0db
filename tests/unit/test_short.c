/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The inline copies and comparisons against the C library's, for every size and alignment, with a
 * page behind the bytes, and one before them, that nobody may touch.
 */
#include "base/short_hd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define PAGE 4096u
#define SIZES 300

/* A page between two that can't be touched. */
static uint8_t *
page_make(void)
{
	uint8_t *pages = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(pages, MAP_FAILED);
	assert_int_equal(mprotect(pages + PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
	return pages + PAGE;
}

static void
page_end(uint8_t *page)
{
	munmap(page - PAGE, 3 * PAGE);
}

/* Where 'size' bytes stand in a page: at its beginning, at its end, or up to 17 bytes away. */
static uint8_t *
place(uint8_t *page, size_t size, unsigned way)
{
	return way % 2 ? page + PAGE - size - way / 2 : page + way / 2;
}

static void
test_equal(void **state)
{
	uint8_t *a = page_make(), *b = page_make();

	(void)state;
	for (size_t size = 0; size <= SIZES; size++) {
		for (unsigned way = 0; way < 36; way++) {
			uint8_t *one = place(a, size, way), *two = place(b, size, 35 - way);

			for (size_t i = 0; i < size; i++)
				one[i] = two[i] = (uint8_t)(i * 7 + size);
			assert_int_equal(short_equal(one, two, size), 1);
			for (size_t i = 0; i < size; i++) {
				two[i] ^= (uint8_t)(1u << (i + way) % 8);
				assert_int_equal(short_equal(one, two, size), 0);
				two[i] = one[i];
			}
		}
	}
	page_end(a);
	page_end(b);
}

static void
test_copy(void **state)
{
	uint8_t *a = page_make(), *b = page_make();

	(void)state;
	for (size_t size = 0; size <= SIZES; size++) {
		for (unsigned way = 0; way < 36; way++) {
			uint8_t *from = place(a, size, way), *to = place(b, size, 35 - way);

			memset(b, 0xee, PAGE);
			for (size_t i = 0; i < size; i++)
				from[i] = (uint8_t)(i * 11 + way);
			short_copy(to, from, size);
			assert_memory_equal(to, from, size);
			/* Nothing beside them was written. */
			for (size_t i = 0; i < PAGE; i++)
				if (b + i < to || b + i >= to + size)
					assert_int_equal(b[i], 0xee);
		}
	}
	page_end(a);
	page_end(b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_equal),
		cmocka_unit_test(test_copy),
	};

	return cmocka_run_group_tests_name("short", tests, NULL, NULL);
}
