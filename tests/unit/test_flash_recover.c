/* SPDX-License-Identifier: BSD-2-Clause */
/* Recovery: what is kept and what never comes back, over crashes, damage and hostile images. */
#include "base/rcu.h"
#include "store/item_hd.h"
#include "tests/lib/flash_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB (1u << 20)
#define FILL 1200u

static void
start(void)
{
	if (!rig_start())
		fail_msg("%s", rig.error);
}

static void
restart_after_crash(uint64_t seed)
{
	rig_crash(seed);
	start();
}

static void
fill(uint32_t keys, uint32_t bytes)
{
	for (uint32_t i = 0; i < keys; i++)
		assert_true(rig_put(i, bytes));
	rig_settle();
}

/* --- what is kept ------------------------------------------------------------------------- */

static void
test_unclean(void **state)
{
	struct flash_stats stats;
	uint32_t there, again;

	(void)state;
	rig_make(2, 6 * MIB);
	start();
	assert_int_equal(rig.found_count, 0);
	fill(FILL, 3000);
	for (uint32_t i = 0; i < FILL; i += 5)
		assert_true(rig_delete(i));
	for (uint32_t i = 1; i < FILL; i += 5)
		assert_true(rig_put(i, 1000 + i));
	rig_settle();
	there = rig_verify();
	assert_int_equal(there, FILL - FILL / 5);
	restart_after_crash(1);
	/* Sealed regions are whole; of the open one what the disk kept. */
	again = rig_verify();
	assert_in_range(again, there - 200, there);
	assert_int_equal(rig.found_count, again);
	flash_get_stats(rig.flash, &stats);
	assert_int_equal(stats.recovered_items, again);
	assert_true(stats.recovery_killed >= FILL / 5);
	assert_false(stats.recovered_clean);
	assert_true(rig.expected >= again);
	/* Once more without a write: the same. */
	restart_after_crash(2);
	assert_int_equal(rig_verify(), again);
	rig_end();
}

static void
test_clean(void **state)
{
	struct flash_stats stats;
	uint32_t there;

	(void)state;
	rig_make(2, 6 * MIB);
	start();
	fill(FILL, 3000);
	for (uint32_t i = 0; i < FILL; i += 5)
		assert_true(rig_delete(i));
	assert_true(rig_save());
	start();
	flash_get_stats(rig.flash, &stats);
	assert_true(stats.recovered_clean);
	assert_int_equal(rig.loads, 1);
	assert_int_equal(flash_cas_first(rig.flash), 1000);
	there = rig_verify();
	assert_int_equal(there, FILL - FILL / 5);
	/* The snapshot is used once: after a crash the log is replayed, and the journal with it. */
	assert_true(rig_delete(7));
	assert_true(rig_put(8, 500));
	restart_after_crash(3);
	flash_get_stats(rig.flash, &stats);
	assert_false(stats.recovered_clean);
	assert_int_equal(rig.loads, 0);
	assert_in_range(rig_verify(), there - 2, there);
	rig_end();
}

/* A snapshot that isn't whole, or isn't wanted: the log is as good. */
static void
test_bad_snapshot(void **state)
{
	uint8_t block[FLASH_BLOCK];
	uint32_t there;

	(void)state;
	for (unsigned how = 0; how < 3; how++) {
		rig_make(2, 6 * MIB);
		start();
		fill(FILL, 3000);
		there = rig_verify();
		assert_true(rig_save());
		fake_disk_peek(rig.disk, "disk0", 0, block, sizeof block);
		const struct flash_super *super = (void *)block;

		assert_int_equal(super->state, FLASH_CLEAN);
		start();
		struct region region = rig.flash->regions[super->snapshot_region];
		const char *name = region.file == 0 ? "disk0" : "disk1";

		assert_true(rig_save());
		fake_disk_peek(rig.disk, "disk0", 0, block, sizeof block);
		if (how == 0)
			rig.refuse_load = true;
		rig_start();
		rig_stop();
		(void)name;
		start();
		assert_in_range(rig_verify(), there - 1, there);
		rig_end();
	}
}

/* --- what never comes back ---------------------------------------------------------------- */

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

/* A step of a random history. */
static void
wander(void)
{
	uint32_t key = rig_draw(300);

	switch (rig_draw(8)) {
	case 0:
		rig_delete(key);
		break;
	case 1:
		if (rig_draw(40) == 0)
			rig_flush(0);
		break;
	case 2:
		rig_step(1000000);
		break;
	default:
		rig_put(key, rig_draw(8) == 0 ? rig_draw(16000) : rig_draw(1500));
	}
}

/* Histories with a power failure at any write, and further ones while it is recovered. */
static void
crashes(unsigned rounds, uint64_t mask, uint8_t journal)
{
	uint64_t at, total = 0;

	rig_make(2, 3 * MIB);
	rig.tag_mask = mask;
	rig.options.journal = journal;
	start();
	for (unsigned round = 0; round < rounds; round++) {
		at = numbers() + 1 + rig_draw(400);
		fake_disk_on_write(rig.disk, cut_at, &at);
		while (!fake_disk_is_cut(rig.disk))
			wander();
		fake_disk_on_write(rig.disk, NULL, NULL);
		rig_crash(round);
		for (unsigned again = rig_draw(3); again > 0; again--) {
			at = numbers() + 1 + rig_draw(30);
			fake_disk_on_write(rig.disk, cut_at, &at);
			if (rig_start())
				rig_verify();
			fake_disk_on_write(rig.disk, NULL, NULL);
			rig_crash(round + 1000);
		}
		start();
		total += rig_verify();
	}
	/* It isn't right by keeping nothing. */
	assert_true(total > rounds * 20);
	rig_end();
}

static void
test_crashes(void **state)
{
	(void)state;
	crashes(150, UINT64_MAX, FLASH_JOURNAL_SYNC);
}

static void
test_crashes_equal_tags(void **state)
{
	(void)state;
	crashes(100, 0xff, FLASH_JOURNAL_SYNC);
}

/* A key that lost its entry to another of its tag is dead, whatever becomes of the other. */
static void
test_replaced(void **state)
{
	(void)state;
	rig_make(1, 6 * MIB);
	start();
	fill(600, 3000);
	rig.tag_mask = 7;
	restart_after_crash(1);
	assert_int_equal(rig.found_count, 8);
	assert_true(rig.replaced > 100);
	for (uint32_t i = 0; i < 600; i++)
		if (rig.keys[i].segment != 0)
			assert_true(rig_delete(i));
		else
			rig.keys[i].absent = true; /* say: it was set and deleted in memory */
	rig.tag_mask = UINT64_MAX;
	restart_after_crash(2);
	assert_int_equal(rig.found_count, 0);
	rig_end();
}

/* What found no room is dead too. */
static void
test_no_room(void **state)
{
	(void)state;
	rig_make(1, 6 * MIB);
	start();
	fill(600, 3000);
	rig.room = 50;
	restart_after_crash(1);
	assert_int_equal(rig.found_count, 50);
	for (uint32_t i = 0; i < 600; i++)
		rig.keys[i].absent = rig.keys[i].segment == 0;
	rig.room = 1000;
	restart_after_crash(2);
	assert_int_equal(rig_verify(), 50);
	assert_int_equal(rig.found_count, 50);
	rig_end();
}

static void
test_flush(void **state)
{
	uint32_t there;

	(void)state;
	rig_make(1, 6 * MIB);
	start();
	fill(600, 3000);
	rig_flush(0);
	for (uint32_t i = 0; i < 400; i++)
		assert_true(rig_put(i, 3000));
	rig_settle();
	restart_after_crash(1);
	there = rig_verify();
	assert_in_range(there, 250, 400);
	assert_int_equal(rig.found_count, there);

	/* A delayed one, taken back; one that isn't due yet; one that came due while down. */
	rig_flush(rig.now_ns + 5000000000ull);
	rig_flush(rig.now_ns + 9000000000ull);
	restart_after_crash(2);
	assert_in_range(flash_flush_due_ns(rig.flash), rig.now_ns + 1000000000ull,
		rig.now_ns + 9000000000ull);
	assert_int_equal(rig_verify(), there);
	rig_crash(3);
	rig.now_ns += 10000000000ull;
	start();
	assert_int_equal(rig.found_count, 0);
	assert_int_equal(flash_flush_due_ns(rig.flash), 0);
	fill(300, 3000);
	restart_after_crash(4);
	assert_true(rig_verify() > 200);
	/* After a clean stop too. */
	rig_flush(rig.now_ns + 5000000000ull);
	assert_true(rig_save());
	rig.now_ns += 10000000000ull;
	start();
	assert_int_equal(rig_verify(), 0);
	assert_int_equal(rig.found_count, 0);
	rig_end();
}

/* What expired doesn't live again when the clock is set back. */
static void
test_expired(void **state)
{
	uint64_t now;

	(void)state;
	rig_make(1, 6 * MIB);
	start();
	for (uint32_t i = 0; i < 600; i++)
		rig.keys[i].expiry = (uint32_t)(rig.now_ns / 1000000000u) + 100 + i;
	fill(600, 3000);
	now = rig.now_ns;
	rig_crash(1);
	rig.now_ns = RIG_BEGIN_NS + 400 * 1000000000ull;
	start();
	assert_in_range(rig.found_count, 200, 300);
	for (uint32_t i = 0; i < 600; i++)
		rig.keys[i].absent = rig.keys[i].segment == 0;
	rig_crash(2);
	rig.now_ns = now;
	start();
	rig_verify();
	rig_end();
}

static void
test_journal_off(void **state)
{
	(void)state;
	rig_make(1, 6 * MIB);
	rig.options.journal = FLASH_JOURNAL_OFF;
	start();
	fill(600, 3000);
	restart_after_crash(1);
	assert_int_equal(rig.found_count, 0);

	/* A clean stop keeps it; what was superseded without a record stays dead ever after. */
	fill(600, 3000);
	for (uint32_t i = 0; i < 300; i++)
		assert_true(rig_delete(i));
	assert_true(rig_save());
	rig.options.journal = FLASH_JOURNAL_SYNC;
	start();
	assert_int_equal(rig_verify(), 300);
	for (uint32_t i = 600; i < 1000; i++)
		assert_true(rig_put(i, 3000));
	rig_settle();
	restart_after_crash(2);
	assert_in_range(rig_verify(), 250, 400);
	rig_end();
}

/* --- damage ------------------------------------------------------------------------------- */

/* A block of the journal that can't be read, or makes no sense, far from where it was written last. */
static void
test_damaged_journal(void **state)
{
	uint8_t block[FLASH_BLOCK];

	(void)state;
	for (unsigned how = 0; how < 3; how++) {
		uint64_t at = FLASH_DATA_OFFSET + 2 * FLASH_BLOCK;

		rig_make(1, 32 * MIB);
		start();
		/* 512 blocks; a hundred or so are written. */
		fill(600, 3000);
		for (unsigned round = 0; round < 40; round++)
			for (uint32_t i = 0; i < 600; i++)
				assert_true(rig_put(i, 50));
		for (uint32_t i = 600; i < 1500; i++)
			assert_true(rig_put(i, 3000));
		rig_settle();
		rig_crash(1);
		fake_disk_peek(rig.disk, "disk0", at, block, sizeof block);
		assert_int_not_equal(block[0], 0);
		if (how == 1)
			fake_disk_flip(rig.disk, "disk0", at + 50, 1);
		if (how == 2) {
			struct fake_disk_fault fault = {.kinds = FAKE_DISK_READS,
				.from = at,
				.to = at + FLASH_BLOCK,
				.error = 5};

			fake_disk_fault(rig.disk, &fault);
		}
		start();
		if (how == 0)
			assert_true(rig_verify() > 500);
		else
			assert_int_equal(rig.found_count, 0);
		rig_end();
	}
}

/* Headers that can't be read: their regions' items are gone for good, though they can be later. */
static void
test_unreadable(void **state)
{
	(void)state;
	for (unsigned writable = 0; writable < 2; writable++) {
		struct fake_disk_fault fault = {.kinds = FAKE_DISK_READS, .error = 5};
		uint32_t lost = 0, there;

		rig_make(1, 6 * MIB);
		start();
		fill(600, 3000);
		assert_true(rig_verify() == 600);
		for (uint32_t i = 0; i < 3; i++) {
			fault.from = rig.flash->regions[i].base;
			fault.to = fault.from + FLASH_BLOCK;
			fault.kinds = FAKE_DISK_READS | (writable ? 0 : FAKE_DISK_WRITES);
			fake_disk_fault(rig.disk, &fault);
		}
		restart_after_crash(1);
		there = rig_verify();
		for (uint32_t i = 0; i < 600; i++) {
			rig.keys[i].absent = rig.keys[i].segment == 0;
			lost += rig.keys[i].absent;
		}
		assert_true(lost > 200);
		assert_true(there > 100);
		fake_disk_no_faults(rig.disk);
		restart_after_crash(2);
		assert_int_equal(rig_verify(), there);
		rig_end();
	}
}

/*
 * A region whose footer can't be read, nor its body from somewhere on, is sealed where it ends; both
 * can be read later, and nothing more comes back.
 */
static void
test_unreadable_body(void **state)
{
	(void)state;
	for (unsigned first = 0; first < 2; first++) {
		struct fake_disk_fault fault = {.kinds = FAKE_DISK_READS, .error = 5};
		uint32_t there, lost = 0;
		uint64_t base;

		rig_make(1, 6 * MIB);
		start();
		fill(600, 3000);
		base = rig.flash->regions[1].base;
		rig_crash(1);
		fault.from = base + FLASH_REGION_BYTES_MIN - FLASH_BLOCK;
		fault.to = base + FLASH_REGION_BYTES_MIN;
		fake_disk_fault(rig.disk, &fault);
		fault.from = base + (first ? FLASH_BLOCK : 100000);
		fault.to = fault.from + 1;
		fake_disk_fault(rig.disk, &fault);
		start();
		there = rig_verify();
		for (uint32_t i = 0; i < 600; i++) {
			rig.keys[i].absent = rig.keys[i].segment == 0;
			lost += rig.keys[i].absent;
		}
		assert_true(lost > 40 && there > 300);
		fake_disk_no_faults(rig.disk);
		restart_after_crash(2);
		assert_int_equal(rig_verify(), there);
		rig_end();
	}
}

static uint8_t *
image_take(uint64_t bytes)
{
	uint8_t *image = malloc(bytes);

	assert_non_null(image);
	fake_disk_peek(rig.disk, "disk0", 0, image, bytes);
	return image;
}

/* Bits flipped anywhere: recovery ends, and what it gives has a right checksum or is noticed. */
static void
test_flips(void **state)
{
	uint64_t bytes = 3 * MIB, opened = 0, found = 0;

	(void)state;
	rig_make(1, bytes);
	start();
	for (unsigned i = 0; i < 1500; i++)
		wander();
	rig_settle();
	assert_true(rig_verify() > 100);
	uint64_t bases[16];
	uint32_t regions = rig.flash->region_count;

	for (uint32_t i = 0; i < regions; i++)
		bases[i] = rig.flash->regions[i].base;
	rig_crash(1);
	uint8_t *image = image_take(bytes);

	for (unsigned round = 0; round < 250; round++) {
		fake_disk_poke(rig.disk, "disk0", 0, image, bytes);
		for (uint32_t flips = 1 + rig_draw(6); flips > 0; flips--) {
			uint64_t base = bases[rig_draw(regions)];
			const uint64_t at[] = {
				rig_draw(FLASH_BLOCK),
				FLASH_SUPER_SECOND + rig_draw(200),
				FLASH_DATA_OFFSET + rig_draw(40 * FLASH_BLOCK),
				base + rig_draw(64),
				base + FLASH_REGION_BYTES_MIN - 1 - rig_draw(3000),
				base + FLASH_BLOCK + rig_draw(64),
				rig_draw((uint32_t)bytes),
			};

			fake_disk_flip(rig.disk, "disk0", at[rig_draw(7)], rig_draw(8));
		}
		if (rig_start()) {
			opened++;
			found += rig.found_count;
			rig_settle();
		}
		rig_crash(round);
	}
	assert_true(opened > 200 && found > opened * 50);
	free(image);
	rig_end();
}

/* --- hostile images: every checksum is right ---------------------------------------------- */

static void
forge_super(uint8_t *image)
{
	for (unsigned copy = 0; copy < 2; copy++) {
		struct flash_super *super = (void *)(image + copy * FLASH_SUPER_SECOND);
		uint64_t *words = (void *)super;

		words[5 + rig_draw(sizeof *super / 8 - 5)] = (uint64_t)rig_draw(1u << 31)
							     << rig_draw(33);
		layout_super_seal(super);
	}
}

static void
forge_journal(uint8_t *image, const uint8_t id[16])
{
	struct flash_journal_block *block =
		(void *)(image + FLASH_DATA_OFFSET + (size_t)rig_draw(40) * FLASH_BLOCK);

	*block = (struct flash_journal_block){.magic = FLASH_JOURNAL_MAGIC,
		.number = (uint64_t)rig_draw(1u << 31) << rig_draw(33),
		.position = ((uint64_t)rig_draw(1u << 31) << rig_draw(33)) & FLASH_POSITION_MAX,
		.count = FLASH_JOURNAL_RECORDS};
	for (uint32_t i = 0; i < FLASH_JOURNAL_RECORDS; i++)
		block->records[i] =
			(struct flash_record){.what = (uint64_t)rig_draw(1u << 31) << rig_draw(33),
				.kind_position = (uint64_t)rig_draw(6) << 56 |
						 ((uint64_t)rig_draw(1u << 31) << rig_draw(25))};
	layout_journal_seal(block, id);
}

static void
forge_header(uint8_t *region, const uint8_t id[16])
{
	struct flash_region_header *header = (void *)region;

	header->magic = FLASH_REGION_MAGIC;
	header->version = FLASH_VERSION;
	memcpy(header->id, id, 16);
	header->sequence =
		rig_draw(2) == 0 ? 1 + rig_draw(8) : (uint64_t)rig_draw(1u << 31) << rig_draw(6);
	header->kind = 1 + rig_draw(3);
	layout_region_seal(header);
}

static void
forge_footer(uint8_t *region, const uint8_t id[16])
{
	const struct flash_region_header *header = (void *)region;
	struct flash_footer *footer = (void *)(region + FLASH_REGION_BYTES_MIN - sizeof *footer);
	uint32_t used = FLASH_BLOCK * (1 + rig_draw(60)),
		 most = (FLASH_REGION_BYTES_MIN - used - 64) / 16;

	*footer = (struct flash_footer){.magic = FLASH_FOOTER_MAGIC,
		.sequence = header->sequence,
		.entries = rig_draw(3) == 0 ? most : rig_draw(most),
		.used = used};
	for (uint32_t i = 1; i <= footer->entries; i++)
		((struct flash_footer_entry *)footer)[-(int64_t)i] =
			(struct flash_footer_entry){.hash = rig_draw(500),
				.place = rig_draw(1u << 31),
				.expiry = rig_draw(3) == 0 ? rig_draw(1u << 31) : 0};
	layout_footer_seal(footer, id);
}

/* Appends of random words in a row, without a footer. */
static void
forge_appends(uint8_t *region, const uint8_t id[16])
{
	const struct flash_region_header *region_header = (void *)region;
	uint32_t at = FLASH_BLOCK;

	memset(region + FLASH_REGION_BYTES_MIN - 64, 0, 64);
	while (at < FLASH_REGION_BYTES_MIN) {
		struct flash_append_header *header = (void *)(region + at);
		uint32_t bytes = FLASH_BLOCK * (1 + rig_draw(8));

		if (bytes > FLASH_REGION_BYTES_MIN - at)
			bytes = FLASH_REGION_BYTES_MIN - at;
		*header = (struct flash_append_header){.magic = FLASH_APPEND_MAGIC,
			.bytes = bytes,
			.sequence = region_header->sequence,
			.offset = at};
		for (uint32_t i = 32; i + 16 <= bytes; i += 16 * (1 + rig_draw(20))) {
			struct item *item = (void *)(region + at + i);

			*item = (struct item){.cas_low = rig_draw(4) == 0 ? rig_draw(4096) : 16,
				.sizes = rig_draw(2) == 0
						 ? 0
						 : rig_draw(256) | rig_draw(1u << 10) << 8 |
							   rig_draw(2) << 31};
		}
		layout_append_seal(header, id);
		at += bytes;
	}
}

static void
test_hostile(void **state)
{
	uint64_t bytes = 3 * MIB, opened = 0, found = 0;
	uint8_t id[16];

	(void)state;
	rig_make(1, bytes);
	start();
	fill(300, 3000);
	memcpy(id, rig.flash->id, sizeof id);
	uint64_t bases[16];
	uint32_t regions = rig.flash->region_count;

	for (uint32_t i = 0; i < regions; i++)
		bases[i] = rig.flash->regions[i].base;
	rig_crash(1);
	uint8_t *image = image_take(bytes), *forged = malloc(bytes);

	rig.room = 1000;
	for (unsigned round = 0; round < 150; round++) {
		memcpy(forged, image, bytes);
		for (uint32_t n = 1 + rig_draw(4); n > 0; n--) {
			uint8_t *region = forged + bases[rig_draw(regions)];

			switch (rig_draw(5)) {
			case 0:
				forge_super(forged);
				break;
			case 1:
				forge_journal(forged, id);
				break;
			case 2:
				forge_header(region, id);
				break;
			case 3:
				forge_footer(region, id);
				break;
			case 4:
				forge_appends(region, id);
				break;
			}
		}
		fake_disk_poke(rig.disk, "disk0", 0, forged, bytes);
		if (rig_start()) {
			opened++;
			found += rig.found_count;
			for (unsigned i = 0; i < 20; i++)
				rig_step(1000000);
		}
		rig_crash(round);
	}
	assert_true(opened > 50 && found > opened);
	free(image);
	free(forged);
	rig_end();
}

/* More records than the tables may hold at once: several passes, and each kills what it should. */
static void
test_passes(void **state)
{
	struct flash_stats stats;

	(void)state;
	rig_make(1, 64 * MIB);
	rig.options.memory_bytes = 16 * MIB;
	start();
	fill(1000, 3000);
	for (uint32_t i = 0; i < 1000; i += 2)
		assert_true(rig_delete(i));
	rig.options.memory_bytes = 1 * MIB; /* tables of 1 MiB */
	for (uint64_t i = 0; i < 150000; i++)
		while (journal_put(rig.flash, FLASH_RECORD_KEY, i * 0x9e3779b97f4a7c15u) == 0)
			rig_step(100000);
	rig_settle();
	restart_after_crash(1);
	flash_get_stats(rig.flash, &stats);
	assert_in_range(rig_verify(), 400, 500);
	assert_int_equal(rig.found_count, rig_verify());
	assert_true(stats.recovery_killed >= 400);
	rig_end();
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unclean),
		cmocka_unit_test(test_clean),
		cmocka_unit_test(test_bad_snapshot),
		cmocka_unit_test(test_crashes),
		cmocka_unit_test(test_crashes_equal_tags),
		cmocka_unit_test(test_replaced),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_flush),
		cmocka_unit_test(test_expired),
		cmocka_unit_test(test_journal_off),
		cmocka_unit_test(test_damaged_journal),
		cmocka_unit_test(test_unreadable),
		cmocka_unit_test(test_unreadable_body),
		cmocka_unit_test(test_flips),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_passes),
	};

	rcu_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
