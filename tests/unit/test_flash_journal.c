/* SPDX-License-Identifier: BSD-2-Clause */
/* The journal: what was settled is there after any crash; places come back; what stays stays. */
#include "base/rcu.h"
#include "flash/replay.h"
#include "tests/lib/flash_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB (1u << 20)
#define WHAT_MAX 200000u

static uint8_t on_medium[WHAT_MAX];

/* Reads the ring as it stands on the disk: which of the test's records are there. */
static uint32_t
read_ring(const uint8_t id[16], uint32_t blocks)
{
	static struct flash_journal_block block;
	uint32_t valid = 0;

	memset(on_medium, 0, sizeof on_medium);
	for (uint32_t place = 0; place < blocks; place++) {
		fake_disk_peek(rig.disk, "disk0", FLASH_DATA_OFFSET + place * FLASH_BLOCK, &block,
			sizeof block);
		if (!layout_journal_valid(&block, id))
			continue;
		valid++;
		for (uint32_t i = 0; i < block.count; i++)
			if (block.records[i].what < WHAT_MAX)
				on_medium[block.records[i].what] = 1;
	}
	return valid;
}

static bool
cut_at(void *context, uint64_t number, const struct io_request *request, bool done)
{
	(void)request;
	(void)done;
	return number == *(uint64_t *)context;
}

static uint64_t
numbers(void)
{
	struct fake_disk_counts counts;

	fake_disk_get_counts(rig.disk, &counts);
	return counts.numbers;
}

static void
start(void)
{
	if (!rig_start())
		fail_msg("%s", rig.error);
}

/* Bursts of any size, a power failure at any write: every settled record is on the medium. */
static void
test_settled(void **state)
{
	uint8_t id[16];
	uint32_t settled_of_all = 0;

	(void)state;
	rig_make(1, 8 * MIB);
	start();
	/* The tail stays where the only region is: nothing may be taken back. */
	assert_true(rig_put(1, 100));
	memcpy(id, rig.flash->id, sizeof id);
	uint32_t what = 1, blocks = super_journal_blocks(rig.flash);

	for (unsigned round = 0; round < 60; round++) {
		uint64_t tickets[3000], first = what, at = numbers() + 1 + rig_draw(40);
		uint32_t count = 0, settled = 0;

		fake_disk_on_write(rig.disk, cut_at, &at);
		while (!fake_disk_is_cut(rig.disk) && count < 2500) {
			uint32_t burst = rig_draw(6) == 0 ? rig_draw(700) : rig_draw(4);

			for (; burst > 0 && count < 2500; burst--)
				tickets[count++] = journal_put(rig.flash, FLASH_RECORD_KEY, what++);
			rig_step(200000);
		}
		fake_disk_on_write(rig.disk, NULL, NULL);
		/* Tickets rise with the puts: those settled are the first ones. */
		while (settled < count &&
			journal_settled(rig.flash, tickets[settled]) == FLASH_DURABLE)
			settled++;
		rig_crash(round);
		read_ring(id, blocks);
		for (uint32_t i = 0; i < settled; i++)
			if (!on_medium[first + i])
				fail_msg("round %u: record %u of %u settled ones is lost", round, i,
					settled);
		settled_of_all += settled;
		/* A new format now and then: the ring is small. */
		rig.options.format = round % 3 == 2;
		start();
		rig.options.format = false;
		memcpy(id, rig.flash->id, sizeof id);
		rig_put(1, 100);
	}
	assert_true(settled_of_all > 5000);
	rig_end();
}

/* Many records at once share writes; a lone one is written at once. */
static void
test_group(void **state)
{
	struct flash_stats before, after;
	uint64_t ticket = 0;

	(void)state;
	rig_make(1, 8 * MIB);
	start();
	rig_settle();
	flash_get_stats(rig.flash, &before);
	for (uint32_t i = 0; i < 10000; i++)
		ticket = journal_put(rig.flash, FLASH_RECORD_KEY, i);
	assert_true(ticket > 0);
	while (journal_settled(rig.flash, ticket) == FLASH_NOT_YET)
		rig_step(100000);
	flash_get_stats(rig.flash, &after);
	assert_int_equal(after.journal_records - before.journal_records, 10000);
	assert_in_range(after.journal_commits - before.journal_commits, 2, 4);
	assert_in_range(after.journal_bytes - before.journal_bytes, 10000 * 16, 10000 * 17 + 8192);

	/* The queue has a bound. */
	for (uint32_t i = 0; i < 16384; i++)
		assert_int_not_equal(journal_put(rig.flash, FLASH_RECORD_KEY, i), 0);
	assert_int_equal(journal_put(rig.flash, FLASH_RECORD_KEY, 1), 0);
	struct flash_intent intent = {0};

	assert_int_equal(
		flash_invalidate(rig.flash, FLASH_RECORD_KEY, 5, 1 << 20, &intent), FLASH_NOT_YET);
	assert_int_equal(intent.ticket, 0);
	assert_false(flash_intent_settled(rig.flash, &intent));
	rig_step(100000);
	assert_true(flash_intent_settled(rig.flash, &intent));
	rig_end();
}

/* The ring goes round many times as the log does, and is never said to be full. */
static void
test_wraps(void **state)
{
	struct flash_stats stats;

	(void)state;
	rig_make(1, 4 * MIB);
	start();
	for (uint32_t i = 0; i < 60000; i++) {
		assert_true(rig_put(i % 200, 800));
		assert_false(journal_wants_room(rig.flash));
	}
	flash_get_stats(rig.flash, &stats);
	assert_true(stats.journal_bytes > 4 * stats.journal_blocks * FLASH_BLOCK);
	assert_int_equal(stats.regions_hurried, 0);
	rig_crash(1);
	start();
	rig_verify();
	rig_end();
}

/* More records than the ring holds while the log stands still: it asks for room, and gets it. */
static void
test_hurry(void **state)
{
	struct flash_stats stats;

	(void)state;
	rig_make(1, 4 * MIB);
	start();
	for (uint32_t i = 0; i < 400; i++)
		assert_true(rig_put(i, 3000));
	for (uint32_t i = 0; i < 40000; i++) {
		uint64_t ticket;

		while ((ticket = journal_put(rig.flash, FLASH_RECORD_KEY, i)) == 0)
			rig_step(100000);
		assert_true(ticket != UINT64_MAX);
	}
	rig_settle();
	assert_true(journal_is_quiet(rig.flash));
	flash_get_stats(rig.flash, &stats);
	assert_true(stats.regions_hurried > 0);
	assert_true(flash_alive(rig.flash));
	rig_end();
}

/* A record of a region that can't be written stays, however often the ring goes round. */
static void
test_stays(void **state)
{
	uint8_t id[16];
	uint32_t blocks;

	(void)state;
	rig_make(1, 4 * MIB);
	start();
	memcpy(id, rig.flash->id, sizeof id);
	blocks = super_journal_blocks(rig.flash);
	assert_true(journal_put(rig.flash, FLASH_RECORD_REGION, 150001) != 0);
	assert_true(journal_put(rig.flash, FLASH_RECORD_NUMBER, 150002) != 0);
	assert_true(journal_put(rig.flash, FLASH_RECORD_KEY, 150003) != 0);
	for (unsigned round = 0; round < 30; round++) {
		for (uint32_t i = 0; i < 2000; i++)
			assert_true(rig_put(i % 200, 300));
		rig_settle();
		read_ring(id, blocks);
		assert_true(on_medium[150001] && on_medium[150002]);
	}
	/* What doesn't stay has been written over. */
	assert_false(on_medium[150003]);
	rig_end();
}

/* Bad places are gone round; when nothing can be written the content is void. */
static void
test_failures(void **state)
{
	struct fake_disk_fault fault = {.kinds = FAKE_DISK_WRITES,
		.name = "disk0",
		.from = FLASH_DATA_OFFSET + 3 * FLASH_BLOCK,
		.to = FLASH_DATA_OFFSET + 4 * FLASH_BLOCK,
		.error = 5};
	struct flash_intent intent = {0};
	uint64_t position;

	(void)state;
	rig_make(1, 4 * MIB);
	start();
	fake_disk_fault(rig.disk, &fault);
	for (uint32_t i = 0; i < 30000; i++)
		assert_true(rig_put(i % 200, 300));
	assert_true(flash_alive(rig.flash));
	rig_crash(1);
	fake_disk_no_faults(rig.disk);
	start();
	rig_verify();

	for (uint32_t i = 0; i < 200; i++)
		assert_true(rig_put(i, 3000));
	position = flash_position(rig.flash, rig.keys[5].segment, rig.keys[5].offset);
	assert_true(position != 0);
	fault.from = FLASH_DATA_OFFSET;
	fault.to = FLASH_DATA_OFFSET + super_journal_blocks(rig.flash) * FLASH_BLOCK;
	fake_disk_fault(rig.disk, &fault);
	assert_int_equal(
		flash_invalidate(rig.flash, FLASH_RECORD_KEY, rig_hash(5), position, &intent),
		FLASH_NOT_YET);
	for (unsigned i = 0; i < 1000 && !flash_intent_settled(rig.flash, &intent); i++)
		rig_step(1000000);
	rig_settle();
	assert_false(flash_alive(rig.flash));
	/* The superblock says so: nothing is left that could come back. */
	assert_true(super_void_settled(rig.flash));
	assert_int_equal(
		flash_invalidate(rig.flash, FLASH_RECORD_KEY, rig_hash(5), position, &intent),
		FLASH_DURABLE);
	fake_disk_no_faults(rig.disk);
	rig_crash(2);
	start();
	assert_int_equal(rig.found_count, 0);
	rig_end();
}

/* An intent is for its key's lower copies, or its place, and no other. */
static void
test_intents(void **state)
{
	struct flash_intent intent = {0};
	uint64_t first, second;

	(void)state;
	rig_make(1, 4 * MIB);
	start();
	assert_true(rig_put(1, 300));
	first = flash_position(rig.flash, rig.keys[1].segment, rig.keys[1].offset);
	assert_int_equal(flash_invalidate(rig.flash, FLASH_RECORD_KEY, rig_hash(1), 0, &intent),
		FLASH_DURABLE);
	assert_int_equal(flash_invalidate(rig.flash, FLASH_RECORD_KEY, rig_hash(1), first, &intent),
		FLASH_NOT_YET);
	rig_settle();
	uint64_t ticket = intent.ticket;

	assert_int_equal(flash_invalidate(rig.flash, FLASH_RECORD_KEY, rig_hash(1), first, &intent),
		FLASH_DURABLE);
	assert_int_equal(intent.ticket, ticket);
	/* A copy that came later needs a record of its own. */
	assert_true(rig_put(1, 300));
	second = flash_position(rig.flash, rig.keys[1].segment, rig.keys[1].offset);
	assert_true(second > first);
	assert_int_equal(
		flash_invalidate(rig.flash, FLASH_RECORD_KEY, rig_hash(1), second, &intent),
		FLASH_NOT_YET);
	assert_true(intent.ticket > ticket);
	rig_settle();
	/* A key's record is none of a place, nor one place's of another. */
	assert_int_equal(flash_invalidate(rig.flash, FLASH_RECORD_PLACE, first, first, &intent),
		FLASH_NOT_YET);
	rig_settle();
	assert_int_equal(flash_invalidate(rig.flash, FLASH_RECORD_PLACE, first, first, &intent),
		FLASH_DURABLE);
	assert_int_equal(flash_invalidate(rig.flash, FLASH_RECORD_PLACE, second, second, &intent),
		FLASH_NOT_YET);
	rig_stop();

	/* Asynchronous: at once. Without a journal: nothing. */
	rig.options.journal = FLASH_JOURNAL_ASYNC;
	start();
	intent = (struct flash_intent){0};
	assert_int_equal(
		flash_invalidate(rig.flash, FLASH_RECORD_KEY, 7, 1 << 20, &intent), FLASH_DURABLE);
	assert_false(journal_is_quiet(rig.flash));
	rig_settle();
	assert_true(journal_is_quiet(rig.flash));
	rig_stop();
	rig.options.journal = FLASH_JOURNAL_OFF;
	start();
	assert_int_equal(
		flash_invalidate(rig.flash, FLASH_RECORD_KEY, 7, 1 << 20, &intent), FLASH_DURABLE);
	assert_true(journal_is_quiet(rig.flash));
	rig_end();
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_settled),
		cmocka_unit_test(test_group),
		cmocka_unit_test(test_wraps),
		cmocka_unit_test(test_hurry),
		cmocka_unit_test(test_stays),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_intents),
	};

	rcu_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
