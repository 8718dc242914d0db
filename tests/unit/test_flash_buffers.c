/* SPDX-License-Identifier: BSD-2-Clause */
/* The memory that reads stand in, against a map of what is lent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "flash/buffers.h"

#include <stdbool.h>
#include <string.h>

#define PIECES 256u
#define RANGE ((size_t)PIECES * BUFFERS_LEAST)

struct lent {
	uint8_t *at;
	size_t bytes; /* as asked */
};

static struct lent lent[PIECES];
static unsigned lent_count;
static uint64_t state = 1;

static uint32_t
draw(uint32_t below)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((state >> 33) % below);
}

static void
test_rounded(void **unused)
{
	(void)unused;
	assert_int_equal(buffers_rounded(0), 4096);
	assert_int_equal(buffers_rounded(1), 4096);
	assert_int_equal(buffers_rounded(4096), 4096);
	assert_int_equal(buffers_rounded(4097), 8192);
	assert_int_equal(buffers_rounded((1u << 20) + 1), 2u << 20);
}

/* Is a free aligned run of so many pieces left? Exactly then, merged whole, it can be lent. */
static bool
has_room(const uint8_t *base, size_t rounded)
{
	bool taken[PIECES] = {false};
	size_t run = rounded / BUFFERS_LEAST;

	for (unsigned i = 0; i < lent_count; i++) {
		size_t first = (size_t)(lent[i].at - base) / BUFFERS_LEAST;

		for (size_t k = 0; k < buffers_rounded(lent[i].bytes) / BUFFERS_LEAST; k++)
			taken[first + k] = true;
	}
	for (size_t first = 0; first + run <= PIECES; first += run) {
		size_t k = 0;

		while (k < run && !taken[first + k])
			k++;
		if (k == run)
			return true;
	}
	return false;
}

static void
check_owners(const struct buffers *buffers, const struct lent *one)
{
	size_t rounded = buffers_rounded(one->bytes);

	assert_ptr_equal(buffers_owner(buffers, one->at), one->at + 1);
	assert_ptr_equal(buffers_owner(buffers, one->at + rounded - 1), one->at + 1);
	assert_ptr_equal(buffers_owner(buffers, one->at + draw((uint32_t)rounded)), one->at + 1);
}

/* The owner is only known after lending: the buffer itself, moved by a byte, stands for it. */
static void
borrow(struct buffers *buffers, uint8_t *base, size_t bytes)
{
	bool room = has_room(base, buffers_rounded(bytes));
	char token;
	uint8_t *at = buffers_borrow(buffers, bytes, &token);

	assert_int_equal(at != NULL, room);
	if (!at)
		return;
	assert_ptr_equal(buffers_owner(buffers, at), &token);
	buffers_return(buffers, at);
	/* The same one comes again: the piece that was split is whole or free first. */
	assert_ptr_equal(buffers_borrow(buffers, bytes, at + 1), at);
	assert_int_equal((uintptr_t)at % buffers_rounded(bytes), 0);
	assert_true(at >= base && at + buffers_rounded(bytes) <= base + RANGE);
	memset(at, (int)(lent_count + 1), bytes);
	lent[lent_count++] = (struct lent){at, bytes};
}

static void
give_back(struct buffers *buffers, unsigned i)
{
	uint8_t *at = lent[i].at;

	check_owners(buffers, &lent[i]);
	buffers_return(buffers, at);
	lent[i] = lent[--lent_count];
	assert_null(buffers_owner(buffers, at));
}

static void
test_random(void **unused)
{
	struct buffers *buffers = buffers_create(RANGE);
	uint8_t *base;

	(void)unused;
	assert_non_null(buffers);
	base = buffers_borrow(buffers, RANGE, &lent);
	assert_non_null(base);
	assert_null(buffers_borrow(buffers, 1, &lent));
	assert_ptr_equal(buffers_owner(buffers, base + RANGE - 1), &lent);
	assert_null(buffers_owner(buffers, base - 1));
	assert_null(buffers_owner(buffers, base + RANGE));
	buffers_return(buffers, base);
	for (unsigned round = 0; round < 60000; round++) {
		/* It fills up and empties in turn. */
		bool up = draw(100) < (round / 500 % 2 ? 75u : 35u);

		if (up)
			borrow(buffers, base, (size_t)1 + draw(BUFFERS_LEAST << draw(8)));
		else if (lent_count > 0)
			give_back(buffers, draw(lent_count));
		if (lent_count > 0)
			check_owners(buffers, &lent[draw(lent_count)]);
	}
	while (lent_count > 0)
		give_back(buffers, draw(lent_count));
	/* All is one again. */
	assert_ptr_equal(buffers_borrow(buffers, RANGE, &lent), base);
	buffers_return(buffers, base);
	buffers_destroy(buffers);
}

static void
test_full(void **unused)
{
	struct buffers *buffers = buffers_create(RANGE);
	uint8_t *all[PIECES];

	(void)unused;
	for (unsigned i = 0; i < PIECES; i++) {
		all[i] = buffers_borrow(buffers, BUFFERS_LEAST, &all[i]);
		assert_non_null(all[i]);
	}
	assert_null(buffers_borrow(buffers, 1, &lent));
	for (unsigned i = 0; i < PIECES; i++)
		assert_ptr_equal(buffers_owner(buffers, all[i] + 100), &all[i]);
	/* Every other one free: nothing larger than one can be had. */
	for (unsigned i = 0; i < PIECES; i++)
		if ((uintptr_t)all[i] / BUFFERS_LEAST % 2 == 0)
			buffers_return(buffers, all[i]);
	assert_null(buffers_borrow(buffers, BUFFERS_LEAST + 1, &lent));
	for (unsigned i = 0; i < PIECES; i++)
		if ((uintptr_t)all[i] / BUFFERS_LEAST % 2 != 0)
			buffers_return(buffers, all[i]);
	assert_non_null(buffers_borrow(buffers, RANGE, &lent));
	buffers_destroy(buffers);
}

/* Larger than all there is, and the smallest range. */
static void
test_sizes(void **unused)
{
	struct buffers *buffers = buffers_create(BUFFERS_LEAST);
	uint8_t *one;

	(void)unused;
	assert_non_null(buffers);
	assert_null(buffers_borrow(buffers, BUFFERS_LEAST + 1, &lent));
	assert_null(buffers_borrow(buffers, (size_t)1 << 40, &lent));
	one = buffers_borrow(buffers, BUFFERS_LEAST, &lent);
	assert_non_null(one);
	assert_null(buffers_borrow(buffers, 1, &lent));
	buffers_return(buffers, one);
	buffers_destroy(buffers);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rounded),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_sizes),
	};

	return cmocka_run_group_tests_name("flash_buffers", tests, NULL, NULL);
}
