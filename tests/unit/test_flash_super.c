/* SPDX-License-Identifier: BSD-2-Clause */
/* Superblocks: what is refused and how it is said, what survives a crash at any write. */
#include "base/rcu.h"
#include "tests/lib/flash_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1u << 20)

static void
expect_refusal(const char *file, const char *words)
{
	uint8_t before[FLASH_DATA_OFFSET], after[FLASH_DATA_OFFSET];
	char name[16];

	for (uint32_t i = 0; i < rig.options.file_count; i++) {
		sprintf(name, "disk%u", i);
		fake_disk_peek(rig.disk, name, 0, before, sizeof before);
		assert_false(rig_start());
		fake_disk_peek(rig.disk, name, 0, after, sizeof after);
		assert_memory_equal(before, after, sizeof before);
	}
	if (strncmp(rig.error, file, strlen(file)) != 0 || strstr(rig.error, words) == NULL)
		fail_msg("'%s' doesn't begin with '%s' or says nothing of '%s'", rig.error, file,
			words);
}

static void
test_geometry(void **state)
{
	(void)state;
	rig_make(3, 4 * MIB);
	assert_true(rig_start());
	assert_int_equal(rig.flash->region_bytes, FLASH_REGION_BYTES_MIN);
	/* 12 MiB: a journal of 768 KiB, 12 + 15 + 15 regions; the files take turns. */
	assert_int_equal(super_journal_blocks(rig.flash), 192);
	assert_int_equal(rig.flash->region_count, 42);
	for (uint32_t i = 0; i < 36; i++)
		assert_int_equal(rig.flash->regions[i].file, i % 3);
	for (uint32_t i = 36; i < 42; i++)
		assert_int_equal(rig.flash->regions[i].file, 1 + i % 2);
	assert_int_equal(rig.flash->regions[0].base, FLASH_DATA_OFFSET + 192 * FLASH_BLOCK);
	assert_int_equal(rig.flash->regions[3].base,
		FLASH_DATA_OFFSET + 192 * FLASH_BLOCK + FLASH_REGION_BYTES_MIN);
	assert_int_equal(rig.flash->regions[1].base, FLASH_DATA_OFFSET);

	uint64_t seed = flash_hash_seed(rig.flash);
	uint8_t id[16];

	memcpy(id, rig.flash->id, sizeof id);
	rig_stop();
	assert_true(rig_start());
	assert_true(flash_hash_seed(rig.flash) == seed);
	assert_memory_equal(id, rig.flash->id, sizeof id);
	rig_stop();

	/* Anew, and nobody takes the one for the other. */
	rig.options.format = true;
	assert_true(rig_start());
	assert_memory_not_equal(id, rig.flash->id, sizeof id);
	rig_end();
}

static void
test_refusals(void **state)
{
	struct flash_file_options swapped[3];
	const struct flash_file_options *files;
	uint8_t block[FLASH_BLOCK], other[FLASH_BLOCK];

	(void)state;
	rig_make(3, 4 * MIB);
	/* Foreign bytes anywhere in the first 64 KiB. */
	fake_disk_poke(rig.disk, "disk1", 40000, "x", 1);
	expect_refusal("disk1: ", "no flash store; --flash-format overwrites it");
	rig.options.format = true;
	assert_true(rig_start());
	rig_stop();
	rig.options.format = false;
	assert_true(rig_start());
	rig_stop();

	files = rig.options.files;
	swapped[0] = files[0];
	swapped[1] = files[2];
	swapped[2] = files[1];
	rig.options.files = swapped;
	expect_refusal("disk2: ", "is file 3 of its flash store, and is given as number 2");
	rig.options.files = files;
	rig.options.file_count = 2;
	expect_refusal("disk0: ", "a flash store of 3 files, and 2 are given");
	rig.options.file_count = 3;

	/* One copy may be damaged, not both. */
	fake_disk_flip(rig.disk, "disk2", 100, 3);
	assert_true(rig_start());
	rig_stop();
	fake_disk_flip(rig.disk, "disk2", FLASH_SUPER_SECOND + 200, 3);
	expect_refusal("disk2: ", "both superblocks of this flash store are damaged");
	fake_disk_flip(rig.disk, "disk2", 100, 3);

	/* Another version is called so, on the other copy's word alone too. */
	fake_disk_peek(rig.disk, "disk0", 0, block, sizeof block);
	fake_disk_peek(rig.disk, "disk0", FLASH_SUPER_SECOND, other, sizeof other);
	struct flash_super *super = (void *)block;

	super->version = 7;
	layout_super_seal(super);
	fake_disk_poke(rig.disk, "disk0", 0, block, sizeof block);
	fake_disk_poke(rig.disk, "disk0", FLASH_SUPER_SECOND, block, sizeof block);
	expect_refusal("disk0: ", "version 7, this program reads 1; --flash-format");
	fake_disk_poke(rig.disk, "disk0", FLASH_SUPER_SECOND, other, sizeof other);
	assert_true(rig_start());
	rig_stop();

	/* Shorter than it was formatted; an empty one among others. */
	memset(block, 0, sizeof block);
	fake_disk_poke(rig.disk, "disk1", 0, block, sizeof block);
	fake_disk_poke(rig.disk, "disk1", FLASH_SUPER_SECOND, block, sizeof block);
	fake_disk_poke(rig.disk, "disk1", 40000, block, 1);
	expect_refusal("disk1: ", "is empty, while others belong to a flash store");
	rig_end();

	rig_make(1, 3 * MIB);
	rig.options.region_bytes = MIB;
	expect_refusal("disk0: ", "is too small for a flash store: 3145728 bytes, it needs");
	rig.options.region_bytes = MIB + 4096;
	assert_false(rig_start());
	assert_non_null(strstr(rig.error, "a power of two"));
	rig_end();
}

static void
test_shrunk(void **state)
{
	uint8_t block[FLASH_BLOCK];
	struct flash_super *super = (void *)block;

	(void)state;
	rig_make(1, 4 * MIB);
	assert_true(rig_start());
	rig_stop();
	for (unsigned copy = 0; copy < 2; copy++) {
		fake_disk_peek(rig.disk, "disk0", copy * FLASH_SUPER_SECOND, block, sizeof block);
		super->file_bytes += FLASH_BLOCK;
		layout_super_seal(super);
		fake_disk_poke(rig.disk, "disk0", copy * FLASH_SUPER_SECOND, block, sizeof block);
	}
	expect_refusal("disk0: ", "has become shorter: 4194304 bytes, formatted with 4198400");
	for (unsigned copy = 0; copy < 2; copy++) {
		fake_disk_peek(rig.disk, "disk0", copy * FLASH_SUPER_SECOND, block, sizeof block);
		super->file_bytes -= 2 * FLASH_BLOCK;
		layout_super_seal(super);
		fake_disk_poke(rig.disk, "disk0", copy * FLASH_SUPER_SECOND, block, sizeof block);
	}
	/* Longer is fine: the geometry stays. */
	assert_true(rig_start());
	assert_int_equal(rig.flash->region_count, 14);
	rig_end();
}

/* --- crashes ------------------------------------------------------------------------------ */

struct cut {
	uint64_t at;
	bool done;
};

static bool
cut_at(void *context, uint64_t number, const struct io_request *request, bool done)
{
	struct cut *cut = context;

	(void)request;
	(void)done;
	return number == cut->at;
}

static void
wait_reserved(uint64_t next)
{
	for (unsigned i = 0;
		i < 1000 && !flash_cas_reserve(rig.flash, next) && !fake_disk_is_cut(rig.disk); i++)
		rig_step(1000000);
}

/* Numbers that were given are below the next start's first, wherever the power fails. */
static void
test_cas(void **state)
{
	uint64_t given = 0;

	(void)state;
	rig_make(2, 4 * MIB);
	assert_true(rig_start());
	assert_int_equal(flash_cas_first(rig.flash), 1);
	assert_true(flash_cas_reserve(rig.flash, 1));
	rig_stop();
	for (uint64_t at = 1; at < 60; at++) {
		struct fake_disk_counts counts;

		assert_true(rig_start());
		assert_true(flash_cas_first(rig.flash) > given);

		uint64_t next = flash_cas_first(rig.flash);

		fake_disk_get_counts(rig.disk, &counts);
		struct cut cut = {counts.numbers + 1 + at % 12, false};

		fake_disk_on_write(rig.disk, cut_at, &cut);
		for (unsigned i = 0; i < 6 && !fake_disk_is_cut(rig.disk); i++) {
			next += 1ull << 29;
			wait_reserved(next);
			if (!fake_disk_is_cut(rig.disk)) {
				assert_true(flash_cas_reserve(rig.flash, next));
				given = next;
			}
		}
		fake_disk_on_write(rig.disk, NULL, NULL);
		rig_crash(at);
	}
	rig_end();
}

static void
set_mark(struct flash_super *super, void *context)
{
	super->flushes = *(const uint64_t *)context;
}

/* What was settled is there afterwards; both copies say it at rest. */
static void
test_changes(void **state)
{
	uint64_t settled = 0, mark = 0;
	uint8_t first[FLASH_BLOCK], second[FLASH_BLOCK];

	(void)state;
	rig_make(1, 4 * MIB);
	assert_true(rig_start());
	for (uint64_t round = 1; round < 80; round++) {
		struct fake_disk_counts counts;

		fake_disk_get_counts(rig.disk, &counts);
		struct cut cut = {counts.numbers + 1 + round % 9, false};

		fake_disk_on_write(rig.disk, cut_at, &cut);
		for (unsigned i = 0; i < 5 && !fake_disk_is_cut(rig.disk); i++) {
			mark++;
			uint64_t ticket = super_change(rig.flash, set_mark, &mark);

			while (super_settled(rig.flash, ticket) == FLASH_NOT_YET &&
				!fake_disk_is_cut(rig.disk))
				rig_step(1000000);
			if (super_settled(rig.flash, ticket) == FLASH_DURABLE)
				settled = mark;
		}
		fake_disk_on_write(rig.disk, NULL, NULL);
		rig_crash(round);
		assert_true(rig_start());
		rig_settle();
		fake_disk_peek(rig.disk, "disk0", 0, first, sizeof first);
		fake_disk_peek(rig.disk, "disk0", FLASH_SUPER_SECOND, second, sizeof second);
		const struct flash_super *a = (void *)first, *b = (void *)second;

		assert_true(layout_super_valid(a) && layout_super_valid(b));
		assert_int_equal(a->flushes, b->flushes);
		assert_true(a->flushes >= settled && a->flushes <= mark);
		mark = a->flushes;
	}
	assert_true(settled > 50);
	rig_end();
}

/* One copy's place is bad: the other serves. Both are: the content is void. */
static void
test_bad_copies(void **state)
{
	(void)state;
	for (unsigned bad = 0; bad < 2; bad++) {
		struct fake_disk_fault fault = {.kinds = FAKE_DISK_WRITES,
			.name = "disk0",
			.from = bad * FLASH_SUPER_SECOND,
			.to = bad * FLASH_SUPER_SECOND + FLASH_BLOCK,
			.error = 5};
		uint64_t mark = 77;

		rig_make(1, 4 * MIB);
		assert_true(rig_start());
		fake_disk_fault(rig.disk, &fault);
		for (unsigned i = 0; i < 5; i++) {
			uint64_t ticket = super_change(rig.flash, set_mark, &mark);

			for (unsigned n = 0; n < 100; n++)
				rig_step(1000000);
			assert_int_equal(super_settled(rig.flash, ticket), FLASH_DURABLE);
		}
		assert_true(flash_alive(rig.flash));
		rig_end();
	}
}

static void
fail_supers(const char *name)
{
	struct fake_disk_fault fault = {.kinds = FAKE_DISK_WRITES,
		.name = name,
		.from = 0,
		.to = FLASH_DATA_OFFSET,
		.error = 5};

	fake_disk_fault(rig.disk, &fault);
}

/* Void by the marker file, which is gone when the superblock says so. */
static void
test_marker(void **state)
{
	char directory[] = "/tmp/halcyon-flash-XXXXXX", command[200];
	uint64_t mark = 1;

	(void)state;
	assert_non_null(mkdtemp(directory));
	rig_make(1, 8 * MIB);
	rig.options.state_directory = directory;
	assert_true(rig_start());
	for (uint32_t i = 0; i < 400; i++)
		assert_true(rig_put(i, 8000));
	rig_settle();
	assert_true(rig_verify() == 400);
	fail_supers("disk0");
	super_change(rig.flash, set_mark, &mark);
	rig_settle();
	assert_false(flash_alive(rig.flash));
	assert_true(super_void_settled(rig.flash));
	rig_crash(3);
	snprintf(command, sizeof command, "test -e %s/flash-*.void", directory);
	assert_int_equal(system(command), 0);

	/* While the superblock can't be written the store isn't opened. */
	assert_false(rig_start());
	fake_disk_no_faults(rig.disk);
	assert_true(rig_start());
	assert_int_equal(rig.found_count, 0);
	assert_int_not_equal(system(command), 0);
	assert_true(flash_alive(rig.flash));
	assert_true(rig_put(1, 100));
	rig_crash(4);
	/* Void once, not for ever. */
	assert_true(rig_start());
	for (uint32_t i = 0; i < 400; i++)
		assert_true(rig_put(i, 8000));
	rig_settle();
	rig_crash(5);
	assert_true(rig_start());
	assert_true(rig.found_count > 100);
	rig_end();
	assert_int_equal(rmdir(directory), 0);
}

/* Void by another file's superblock when the first can't be written and there is no directory. */
static void
test_void_elsewhere(void **state)
{
	uint64_t mark = 1;

	(void)state;
	rig_make(2, 4 * MIB);
	assert_true(rig_start());
	for (uint32_t i = 0; i < 400; i++)
		assert_true(rig_put(i, 8000));
	rig_settle();
	fail_supers("disk0");
	super_change(rig.flash, set_mark, &mark);
	rig_settle();
	assert_false(flash_alive(rig.flash));
	assert_true(super_void_settled(rig.flash));
	fake_disk_no_faults(rig.disk);
	rig_crash(3);
	assert_true(rig_start());
	assert_int_equal(rig.found_count, 0);
	rig_stop();

	/* With one file nothing can say so: changes of what has a copy are refused. */
	rig_end();
	rig_make(1, 8 * MIB);
	assert_true(rig_start());
	for (uint32_t i = 0; i < 100; i++)
		assert_true(rig_put(i, 8000));
	rig_settle();
	fail_supers("disk0");
	super_change(rig.flash, set_mark, &mark);
	rig_settle();
	assert_false(flash_alive(rig.flash));
	assert_false(super_void_settled(rig.flash));
	struct flash_intent intent = {0};

	assert_int_equal(
		flash_invalidate(rig.flash, FLASH_RECORD_KEY, rig_hash(1), 1 << 20, &intent),
		FLASH_NEVER);
	rig_end();
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_geometry),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_shrunk),
		cmocka_unit_test(test_cas),
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_bad_copies),
		cmocka_unit_test(test_marker),
		cmocka_unit_test(test_void_elsewhere),
	};

	rcu_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
