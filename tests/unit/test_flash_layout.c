/* SPDX-License-Identifier: BSD-2-Clause */
/* What stands on the medium: sealed it is valid, and no single flipped bit is believed. */
#include "flash/internal.h"
#include "store/item_hd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t id[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t other_id[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17};

typedef bool check_function(const void *data);

/* Flips each bit of the bytes in turn; none must be believed. */
static void
flip_all(void *data, size_t bytes, check_function *valid)
{
	uint8_t *at = data;

	assert_true(valid(data));
	for (size_t bit = 0; bit < bytes * 8; bit++) {
		at[bit / 8] ^= (uint8_t)(1 << bit % 8);
		if (valid(data))
			fail_msg("bit %zu flipped, still believed", bit);
		at[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	assert_true(valid(data));
}

static struct flash_super
super_make(void)
{
	return (struct flash_super){
		.magic = FLASH_SUPER_MAGIC,
		.version = FLASH_VERSION,
		.generation = 7,
		.file_count = 2,
		.region_bytes = 1u << 20,
		.file_bytes = FLASH_DATA_OFFSET + 16 * FLASH_BLOCK + (9 << 20),
		.data_offset = FLASH_DATA_OFFSET + 16 * FLASH_BLOCK,
		.file_regions = 9,
		.regions = 18,
		.journal_blocks = 16,
		.hash_seed = 5,
		.state = FLASH_IN_USE,
	};
}

static void
test_super(void **state)
{
	union {
		uint8_t bytes[FLASH_BLOCK];
		struct flash_super super;
	} block = {{0}};

	(void)state;
	block.super = super_make();
	memcpy(block.super.id, id, sizeof id);
	layout_super_seal(&block.super);
	flip_all(&block, sizeof block, layout_super_valid);

	/* A good checksum doesn't make sense of nonsense. */
	struct flash_super good = block.super;
#define REFUSE(field, value)                                                                       \
	do {                                                                                       \
		block.super = good;                                                                \
		block.super.field = value;                                                         \
		layout_super_seal(&block.super);                                                   \
		assert_false(layout_super_valid(&block));                                          \
	} while (0)
	REFUSE(version, FLASH_VERSION + 1);
	REFUSE(file_count, 0);
	REFUSE(file_count, IO_FILES_MAX + 1);
	REFUSE(file, 2);
	REFUSE(region_bytes, 0);
	REFUSE(region_bytes, (1u << 20) + 4096);
	REFUSE(region_bytes, 32u << 20);
	REFUSE(regions, 0);
	REFUSE(regions, FLASH_REGIONS_MAX + 1);
	REFUSE(file_regions, 10); /* the file is too short */
	REFUSE(file_regions, 19);
	REFUSE(data_offset, FLASH_DATA_OFFSET);
	REFUSE(journal_blocks, 15);
	REFUSE(journal_blocks, 17);
	REFUSE(file_bytes, 4096);
	REFUSE(state, 0);
	REFUSE(state, 3);
	REFUSE(journal_mode, 3);
	REFUSE(sequence_next, FLASH_SEQUENCE_MAX + 1);
	REFUSE(snapshot_regions, 19);
#undef REFUSE
	block.super = good;
	assert_true(layout_super_valid(&block));
}

static bool
region_valid(const void *block)
{
	return layout_region_valid(block, id);
}

static void
test_region(void **state)
{
	union {
		uint8_t bytes[FLASH_BLOCK];
		struct flash_region_header header;
	} block = {.header = {.magic = FLASH_REGION_MAGIC,
			   .version = FLASH_VERSION,
			   .sequence = 99,
			   .kind = FLASH_REGION_DATA,
			   .opened_s = 1}};

	(void)state;
	memcpy(block.header.id, id, sizeof id);
	layout_region_seal(&block.header);
	flip_all(&block, sizeof block, region_valid);
	assert_false(layout_region_valid(&block, other_id));
	block.header.sequence = 0;
	layout_region_seal(&block.header);
	assert_false(region_valid(&block));
	block.header.sequence = FLASH_SEQUENCE_MAX + 1;
	layout_region_seal(&block.header);
	assert_false(region_valid(&block));
}

static bool
journal_valid(const void *block)
{
	return layout_journal_valid(block, id);
}

static void
test_journal(void **state)
{
	struct flash_journal_block block = {
		.magic = FLASH_JOURNAL_MAGIC, .number = 3, .position = 77, .count = 254};

	(void)state;
	for (unsigned i = 0; i < FLASH_JOURNAL_RECORDS; i++)
		block.records[i] = (struct flash_record){i, i};
	layout_journal_seal(&block, id);
	flip_all(&block, sizeof block, journal_valid);
	assert_false(layout_journal_valid(&block, other_id));
	block.count = 255;
	layout_journal_seal(&block, id);
	assert_false(journal_valid(&block));
}

#define REGION_BYTES (256u << 10)

static bool
footer_whole(const void *end)
{
	const struct flash_footer *footer =
		(const void *)((const uint8_t *)end + FLASH_BLOCK - sizeof *footer);

	return layout_footer_valid(footer, REGION_BYTES, id, 12) && layout_footer_whole(footer, id);
}

static void
test_footer(void **state)
{
	_Alignas(64) uint8_t end[FLASH_BLOCK];
	struct flash_footer *footer = (void *)(end + sizeof end - sizeof *footer);
	struct flash_footer_entry *entries = (void *)footer;

	(void)state;
	memset(end, 0, sizeof end);
	*footer = (struct flash_footer){
		.magic = FLASH_FOOTER_MAGIC, .sequence = 12, .entries = 252, .used = 8192};
	for (unsigned i = 0; i < 252; i++)
		entries[-1 - (int)i] = (struct flash_footer_entry){i * 99999u, i, i};
	layout_footer_seal(footer, id);
	flip_all(end, sizeof end, footer_whole);
	assert_false(layout_footer_valid(footer, REGION_BYTES, id, 13));
	assert_false(layout_footer_whole(footer, other_id));

	/* More entries than fit are never looked at. */
	struct flash_footer good = *footer;

	footer->entries = UINT32_MAX;
	assert_false(layout_footer_valid(footer, REGION_BYTES, id, 12));
	footer->entries = (REGION_BYTES - 8192 - 64) / 16;
	assert_true(layout_footer_valid(footer, REGION_BYTES, id, 12));
	footer->entries++;
	assert_false(layout_footer_valid(footer, REGION_BYTES, id, 12));
	*footer = good;
	footer->used = REGION_BYTES + 4096;
	assert_false(layout_footer_valid(footer, REGION_BYTES, id, 12));
	footer->used = 8192 + 16;
	assert_false(layout_footer_valid(footer, REGION_BYTES, id, 12));
	footer->used = 0;
	assert_false(layout_footer_valid(footer, REGION_BYTES, id, 12));
}

/* An item of these parts; gives its bytes. */
static uint32_t
item_make(void *at, uint32_t key, uint32_t value, uint8_t kinds)
{
	struct item *item = at;

	*item = (struct item){
		.cas_low = 1, .sizes = key | value << 8 | (uint32_t)(kinds != 0) << 31};
	memset((uint8_t *)at + 16, 'k', key);
	memset((uint8_t *)at + 16 + key, 'v', value);
	if (kinds != 0) {
		memset((uint8_t *)at + 16 + key + value, 0, item_trailer_size(kinds, 0));
		((uint8_t *)at)[16 + key + value] = kinds;
	}
	return 16 + key + value + (kinds != 0 ? item_trailer_size(kinds, 0) : 0);
}

static bool
append_valid(const void *append)
{
	return layout_append_valid(append, 8192, id, 5, 4096);
}

static void
test_append(void **state)
{
	static _Alignas(64) uint8_t append[8192];
	struct flash_append_header *header = (void *)append;

	(void)state;
	*header = (struct flash_append_header){.magic = FLASH_APPEND_MAGIC,
		.bytes = sizeof append,
		.items = 2,
		.sequence = 5,
		.offset = 4096};
	uint8_t *at = append + sizeof *header;
	uint32_t bytes = item_make(at, 5, 100, 0), record, again;

	layout_item_seal((struct item *)at, bytes, id, 5);
	at += layout_record_bytes(bytes);
	layout_filler_make(at, 160);
	at += 160;
	bytes = item_make(at, 250, 3000, ITEM_FLAGS | ITEM_CAS | ITEM_STALE);
	layout_item_seal((struct item *)at, bytes, id, 5);
	layout_append_seal(append, id);
	flip_all(append, sizeof append, append_valid);
	assert_false(layout_append_valid(append, 4096, id, 5, 4096));
	assert_false(layout_append_valid(append, 8192, id, 6, 4096));
	assert_false(layout_append_valid(append, 8192, id, 5, 8192));
	assert_false(layout_append_valid(append, 8192, other_id, 5, 4096));
	header->bytes = 0;
	assert_false(append_valid(append));
	header->bytes = UINT32_MAX & ~4095u;
	assert_false(append_valid(append));

	/* Walked: item, filler, item, end. */
	uint32_t room = sizeof append - 32;

	at = append + 32;
	record = layout_record_at(at, room, &again);
	assert_int_equal(record, layout_record_bytes(121));
	assert_int_equal(again, 121);
	at += record;
	room -= record;
	assert_int_equal(layout_record_at(at, room, &again), 160);
	assert_int_equal(again, 0);
	assert_int_equal(layout_record_at(at, 159, &again), 0);
	at += 160;
	room -= 160;
	record = layout_record_at(at, room, &again);
	assert_int_equal(again, bytes);
	assert_true(layout_item_valid((struct item *)at, room, id, 5));
	assert_int_equal(layout_record_at(at, record - 1, &again), 0);
	at += record;
	assert_int_equal(layout_record_at(at, room - record, &again), 0);
}

static uint32_t item_room;

static bool
item_valid(const void *item)
{
	return layout_item_valid(item, item_room, id, 5);
}

static void
test_item(void **state)
{
	static _Alignas(16) uint8_t space[4096];

	(void)state;
	/* Every length around the boundary: bytes, checksum, zeros up to 16. */
	for (uint32_t value = 0; value < 40; value++)
		for (int trailer = 0; trailer < 2; trailer++) {
			uint32_t bytes = item_make(space, 3, value, trailer ? ITEM_FLAGS : 0);
			uint32_t record = layout_record_bytes(bytes);

			assert_int_equal(record, (bytes + 4 + 15) / 16 * 16);
			memset(space + bytes, 0xff, 32);
			layout_item_seal((struct item *)space, bytes, id, 5);
			for (uint32_t i = bytes + 4; i < record; i++)
				assert_int_equal(space[i], 0);
			assert_int_equal(space[record], 0xff);
			assert_int_equal(layout_item_bytes((struct item *)space, record), bytes);
			item_room = record;
			flip_all(space, bytes + 4, item_valid);
			item_room = bytes + 4;
			assert_true(item_valid(space));
			/* Cut off anywhere, it is none, and nothing behind the room is read. */
			for (item_room = 0; item_room < bytes + 4; item_room++)
				assert_false(item_valid(space));
			item_room = record;
			assert_false(layout_item_valid((struct item *)space, record, id, 6));
			assert_false(layout_item_valid((struct item *)space, record, other_id, 5));
		}

	/* What never stands on flash. */
	uint32_t bytes = item_make(space, 3, 10, ITEM_FLASH);

	assert_int_equal(layout_item_bytes((struct item *)space, 4096), 0);
	bytes = item_make(space, 3, 10, ITEM_LARGE);
	assert_int_equal(layout_item_bytes((struct item *)space, 4096), 0);
	bytes = item_make(space, 3, 10, 0x40);
	assert_int_equal(layout_item_bytes((struct item *)space, 4096), 0);
	bytes = item_make(space, 0, 10, 0);
	assert_int_equal(layout_item_bytes((struct item *)space, 4096), 0);
	(void)bytes;
}

static void
test_positions(void **state)
{
	(void)state;
	assert_int_equal(
		flash_position_sequence(flash_position_make(123456789, 0xfffff)), 123456789);
	assert_int_equal(flash_position_offset(flash_position_make(123456789, 0xfffff)), 0xfffff);
	assert_true(flash_position_make(FLASH_SEQUENCE_MAX, 0xfffff) == FLASH_POSITION_MAX);
	assert_true(layout_seed(id, 1) != layout_seed(id, 2));
	assert_true(layout_seed(id, 1) != layout_seed(other_id, 1));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_super),
		cmocka_unit_test(test_region),
		cmocka_unit_test(test_journal),
		cmocka_unit_test(test_footer),
		cmocka_unit_test(test_append),
		cmocka_unit_test(test_item),
		cmocka_unit_test(test_positions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
