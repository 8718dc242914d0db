/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The log over a disk in memory: a small index of this test's own, stepped in one thread with a
 * clock of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rcu.h"
#include "flash/log.h"
#include "store/item_hd.h"
#include "tests/lib/fake_disk.h"
#include "tests/lib/flash_doubles.h"

#include <stdlib.h>
#include <string.h>

#define KEYS 4096u
#define REGION (256u << 10)
#define MS 1000000ull
#define BEGIN_NS (1000000000ull * 1000000000ull)

struct key {
	uint32_t segment, offset; /* segment 0: not there */
	uint32_t version, bytes;
	uint64_t position;
	unsigned reads;
	uint32_t expiry;
};

static struct {
	struct fake_disk *disk;
	struct flash *flash;
	uint64_t now_ns, random;
	struct key keys[KEYS];
	uint64_t wakes, purges, moves, outside;
} my;

/* --- the index ---------------------------------------------------------------------------- */

static uint32_t
draw(uint32_t below)
{
	my.random = my.random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((my.random >> 33) % below);
}

static uint64_t
hash_of(uint32_t key)
{
	return (uint64_t)key * 0x9e3779b97f4a7c15ull << 16 | key;
}

static struct key *
key_named(uint64_t hash, uint32_t segment, uint32_t offset)
{
	struct key *key = &my.keys[hash & 0xffff];

	assert_true((hash & 0xffff) < KEYS && hash == hash_of(hash & 0xffff));
	return key->segment == segment && key->offset == offset ? key : NULL;
}

static int
items_reads(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	struct key *key = key_named(hash, segment, offset);

	(void)context;
	return key ? (int)key->reads : -1;
}

static void
name(struct key *key, const struct flash_place_in *place)
{
	key->segment = place->segment;
	key->offset = place->offset;
	key->position = place->position;
	assert_int_equal(flash_position(my.flash, key->segment, key->offset), key->position);
}

static bool
items_move(void *context, const struct item *item, uint64_t hash, uint64_t position,
	uint32_t segment, uint32_t offset, uint32_t opened_s, unsigned reads)
{
	struct key *key = key_named(hash, segment, offset);
	struct flash_place_in place;

	(void)context;
	if (!key)
		return false;
	assert_int_equal(position, key->position);
	assert_true(opened_s >= BEGIN_NS / 1000000000u);
	if (flash_reserve(my.flash, key->bytes, true, &place) != FLASH_DONE)
		return false;
	memcpy(place.item, item, key->bytes);
	flash_commit(my.flash, &place, hash, bucket_class_of(key->bytes + 4), key->expiry);
	name(key, &place);
	key->reads = reads;
	my.moves++;
	return true;
}

static bool
items_drop(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	struct key *key = key_named(hash, segment, offset);

	(void)context;
	if (key)
		key->segment = 0;
	return key != NULL;
}

static void
items_purge(void *context, uint32_t segment)
{
	(void)context;
	my.purges++;
	for (uint32_t i = 0; i < KEYS; i++)
		if (my.keys[i].segment == segment)
			my.keys[i].segment = 0;
}

static void
items_outside(void *context, uint64_t bytes)
{
	(void)context;
	my.outside = bytes;
}

static const struct flash_items items = {
	items_reads, items_move, items_drop, items_purge, items_outside};

static void
wake(void *context)
{
	(void)context;
	my.wakes++;
}

/* --- steps -------------------------------------------------------------------------------- */

static void
begin(uint32_t regions, const struct flash_options *more)
{
	struct fake_disk_file file = {.name = "disk", .size = (uint64_t)(regions + 1) * REGION};
	struct flash_file_options path = {.path = "disk"};
	struct flash_options options = more ? *more : (struct flash_options){.journal = 0};
	char error[200];

	memset(&my, 0, sizeof my);
	*flash_doubles() = (struct flash_doubles){.read_us = 0};
	my.random = 1;
	my.now_ns = BEGIN_NS;
	my.disk = fake_disk_create(7, &file, 1);
	fake_disk_use(my.disk);
	options.io = fake_disk_backend();
	options.files = &path;
	options.file_count = 1;
	options.region_bytes = REGION;
	options.memory_bytes = 64 << 20;
	options.item_bytes_max = 1 << 20;
	options.reinsert_percent = options.reinsert_percent ? options.reinsert_percent : 7;
	options.now_ns = my.now_ns;
	options.items = &items;
	options.wake = wake;
	my.flash = flash_create(&options, error, sizeof error);
	if (!my.flash)
		fail_msg("%s", error);
	assert_in_range(my.flash->region_count, regions - 2, regions + 1);
	assert_true(my.outside > 0);
}

static void
end(void)
{
	flash_destroy(my.flash);
	fake_disk_destroy(my.disk);
}

static void
step(uint64_t ns)
{
	my.now_ns += ns;
	fake_disk_tick(my.disk, 4);
	for (unsigned i = 0; flash_work(my.flash, my.now_ns); i++)
		assert_in_range(i, 0, 100000);
}

static void
settle(void)
{
	for (unsigned i = 0; i < 300; i++)
		step(100 * 1000);
}

static void
item_fill(struct item *item, uint32_t key, const struct key *entry)
{
	uint32_t *at = (void *)(item + 1);
	uint32_t value = entry->bytes - ITEM_HEADER - 8;

	*item = (struct item){
		.cas_low = entry->version, .expiry = entry->expiry, .sizes = 8 | value << 8};
	at[0] = key;
	at[1] = ~key;
	memset(at + 2, (int)(key * 31 + entry->version), value);
}

static enum flash_status
put(uint32_t key, uint32_t bytes)
{
	struct key *entry = &my.keys[key];
	struct flash_place_in place;
	uint64_t tail = atomic_load(&my.flash->tail);
	enum flash_status status = flash_reserve(my.flash, bytes, false, &place);

	if (status != FLASH_DONE)
		return status;
	assert_true(place.position >= tail);
	assert_int_equal(
		atomic_load(&my.flash->tail), place.position + layout_record_bytes(bytes) / 16);
	entry->version++;
	entry->bytes = bytes;
	item_fill(place.item, key, entry);
	flash_commit(my.flash, &place, hash_of(key), bucket_class_of(bytes + 4), entry->expiry);
	name(entry, &place);
	return FLASH_DONE;
}

static void
put_wait(uint32_t key, uint32_t bytes)
{
	for (unsigned i = 0; put(key, bytes) != FLASH_DONE; i++) {
		assert_in_range(i, 0, 10000);
		step(100 * 1000);
	}
}

/* What the index names must be there, whole and the key's newest. */
static void
verify(uint32_t key)
{
	static uint8_t have[REGION] __attribute__((aligned(16)));
	static uint8_t want[REGION] __attribute__((aligned(16)));
	struct key *entry = &my.keys[key];
	const struct region *region;
	uint64_t position;
	uint32_t segment, offset, bytes, state;

	if (entry->segment == 0)
		return;
	position = flash_position(my.flash, entry->segment, entry->offset);
	assert_int_equal(position, entry->position);
	region = &my.flash->regions[flash_region_of(entry->segment)];
	state = region_state(region);
	assert_int_equal(flash_place(my.flash, position, &segment, &offset),
		state == REGION_OPEN || state == REGION_SEALING || state == REGION_SEALED);
	assert_int_equal(segment, entry->segment);
	assert_int_equal(offset, entry->offset);
	assert_true(flash_believed(my.flash, position));
	bytes = log_buffered(my.flash, position, have, sizeof have);
	if (bytes == 0) {
		fake_disk_peek(my.disk, "disk", region->base + offset * 16ull, have,
			layout_record_bytes(entry->bytes));
		assert_true(layout_item_valid((void *)have, layout_record_bytes(entry->bytes),
			my.flash->id, flash_position_sequence(position)));
		bytes = layout_item_bytes((void *)have, sizeof have);
	}
	assert_int_equal(bytes, entry->bytes);
	item_fill((void *)want, key, entry);
	assert_memory_equal(have, want, bytes);
}

static uint32_t
verify_all(void)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < KEYS; i++) {
		verify(i);
		count += my.keys[i].segment != 0;
	}
	return count;
}

static struct flash_stats
stats(void)
{
	struct flash_stats now;

	flash_get_stats(my.flash, &now);
	return now;
}

static uint32_t
some_bytes(void)
{
	return draw(4) == 0 ? 24 + 1 + draw(9000) : 24 + 1 + draw(600);
}

/* --- tests -------------------------------------------------------------------------------- */

/* The log goes round its regions twenty times: what is read often stays, the rest leaves in turn. */
static void
test_wraps(void **state)
{
	struct flash_stats now;
	uint32_t hot = 0, cold = 0;

	(void)state;
	begin(16, NULL);
	/* Small ones that are read, once. */
	for (uint32_t i = 0; i < 64; i++)
		put_wait(i, 24 + 200);
	for (uint32_t i = 0; i < 120000; i++) {
		uint32_t key = 64 + draw(KEYS - 64);

		my.keys[i % 64].reads = 5;
		put_wait(key, some_bytes());
		verify(draw(KEYS));
		if (i % 8 == 0)
			step(20 * 1000);
		if (i % 4096 == 0)
			verify_all();
	}
	settle();
	verify_all();
	for (uint32_t i = 0; i < 64; i++)
		hot += my.keys[i].segment != 0;
	for (uint32_t i = 64; i < KEYS; i++)
		cold += my.keys[i].segment != 0;
	now = stats();
	print_message("# %u hot, %u cold keys left; regions reclaimed %u; re-inserted %.2f%% of "
		      "bytes; write amplification %.3f\n",
		hot, cold, (unsigned)now.regions_reclaimed,
		100.0 * (double)now.item_bytes_reinserted / (double)now.item_bytes_written,
		(double)now.written_bytes / (double)now.item_bytes_written);
	assert_int_equal(hot, 64);
	assert_true(now.regions_reclaimed > 20 * my.flash->region_count);
	assert_int_equal(now.items_written, 120064);
	assert_int_equal(now.items_reinserted, my.moves);
	assert_true(my.moves > 64 * 19);
	assert_true(now.item_bytes_reinserted * 100 < 8 * now.item_bytes_written);
	/* Regions of 256 KiB and chunks of 64 KiB: fillers, ends of regions, footers. */
	assert_true((double)now.written_bytes < 1.15 * (double)now.item_bytes_written);
	assert_int_equal(now.write_errors, 0);
	assert_true(now.items_dropped > 0);
	end();
}

/* When everything is read often, the share alone is copied on. */
static void
test_reinsertion_share(void **state)
{
	const struct flash_options options = {.reinsert_percent = 20};
	struct flash_stats now;

	(void)state;
	begin(16, &options);
	for (uint32_t i = 0; i < 30000; i++) {
		uint32_t key = draw(KEYS);

		put_wait(key, some_bytes());
		my.keys[key].reads = 9;
		if (i % 8 == 0)
			step(20 * 1000);
	}
	settle();
	verify_all();
	now = stats();
	print_message("# re-inserted %.2f%% of 20%%\n",
		100.0 * (double)now.item_bytes_reinserted / (double)now.item_bytes_written);
	/* Every byte that is written comes to reclaim once: x / (1 + x) is at most a fifth. */
	assert_true(now.item_bytes_reinserted * 100 < 26 * now.item_bytes_written);
	assert_true(now.item_bytes_reinserted * 100 > 6 * now.item_bytes_written);
	end();
}

/* Values of 4 KiB cost nine sectors of 512 bytes to read, wherever they stand. */
static void
test_fillers(void **state)
{
	uint32_t asked = bucket_class_bytes(bucket_class_of(24 + 4096 + 4)), filled = 0;
	uint64_t before = 0;

	(void)state;
	begin(16, NULL);
	assert_int_equal(my.flash->block, 512);
	for (uint32_t i = 0; i < 400; i++) {
		uint32_t from;

		put_wait(i, 24 + 4096);
		from = my.keys[i].offset * 16;
		assert_int_equal((from + asked + 511) / 512 - from / 512, 9);
		filled += before != 0 &&
			  my.keys[i].position - before > layout_record_bytes(24 + 4096) / 16;
		before = my.keys[i].position;
		if (i % 4 == 0)
			step(20 * 1000);
	}
	assert_true(filled > 20);
	settle();
	verify_all();
	end();
}

/* What was given up leaves a filler, and its neighbours whole, also for a scan. */
static void
test_abandon(void **state)
{
	static uint8_t append[REGION] __attribute__((aligned(4096)));
	const struct flash_append_header *header = (void *)append;
	struct flash_place_in place;
	uint32_t at = sizeof *header, item_bytes, found = 0, fillers = 0;

	(void)state;
	begin(8, NULL);
	for (uint32_t i = 0; i < 30; i++) {
		put_wait(i, 24 + 1000);
		assert_int_equal(flash_reserve(my.flash, 500, false, &place), FLASH_DONE);
		flash_abandon(my.flash, &place);
	}
	for (unsigned i = 0; i < 110; i++)
		step(100 * MS);
	assert_int_equal(verify_all(), 30);
	fake_disk_peek(my.disk, "disk",
		my.flash->regions[flash_region_of(my.keys[0].segment)].base + FLASH_BLOCK, append,
		sizeof append - FLASH_BLOCK);
	assert_true(layout_append_valid(append, sizeof append - FLASH_BLOCK, my.flash->id,
		flash_position_sequence(my.keys[0].position), FLASH_BLOCK));
	assert_int_equal(header->items, 30);
	while (at < header->bytes) {
		uint32_t record = layout_record_at(append + at, header->bytes - at, &item_bytes);

		if (record == 0)
			break;
		found += item_bytes != 0;
		fillers += item_bytes == 0;
		at += record;
	}
	assert_int_equal(found, 30);
	assert_int_equal(fillers, 30);
	end();
}

/* A partial chunk is written when it is old, not before. */
static void
test_partial(void **state)
{
	struct flash_stats now;
	uint64_t before;

	(void)state;
	begin(8, NULL);
	settle();
	put_wait(1, 300);
	settle();
	before = stats().written_bytes;
	for (unsigned i = 0; i < 90; i++)
		step(100 * MS);
	assert_int_equal(stats().written_bytes, before);
	assert_int_equal(stats().items_written, 1);
	for (unsigned i = 0; i < 12; i++)
		step(100 * MS);
	now = stats();
	assert_int_equal(now.written_bytes, before + FLASH_BLOCK);
	assert_int_equal(verify_all(), 1);
	end();
}

/*
 * Appends into one region fail: it is retired, its items are absent, nothing else is wrong. kinds
 * of trouble: 0 once (nothing happens), 1 data only, 2 its header too, so that the journal must say
 * it.
 */
static void
test_append_fails(void **state)
{
	(void)state;
	for (unsigned trouble = 0; trouble < 3; trouble++) {
		struct fake_disk_fault fault = {
			.kinds = FAKE_DISK_WRITES, .name = "disk", .error = 5};
		struct flash_stats now;
		uint32_t bad;
		uint64_t base;

		begin(12, NULL);
		for (uint32_t i = 0; i < 100; i++)
			put_wait(i, 1000);
		settle();
		bad = flash_region_of(my.keys[99].segment);
		base = my.flash->regions[bad].base;
		assert_int_equal(region_state(&my.flash->regions[bad]), REGION_OPEN);
		fault.from = base + (trouble == 2 ? 0 : FLASH_BLOCK);
		fault.to = base + REGION;
		fault.times = trouble == 0 ? 1 : 0;
		fake_disk_fault(my.disk, &fault);
		for (uint32_t i = 100; i < 6000; i++) {
			put_wait(i % KEYS, some_bytes());
			if (i % 8 == 0)
				step(20 * 1000);
			verify(draw(KEYS));
		}
		settle();
		verify_all();
		now = stats();
		assert_true(now.alive);
		assert_int_equal(now.regions_retired, trouble != 0);
		assert_int_equal(flash_doubles()->region_records, trouble == 2);
		assert_int_equal(
			region_state(&my.flash->regions[bad]) == REGION_RETIRED, trouble != 0);
		for (uint32_t i = 0; i < KEYS; i++)
			assert_true(trouble == 0 || my.keys[i].segment != flash_segment(bad));
		assert_true(now.write_errors >= 1);
		end();
	}
}

/* Neither the region nor the journal can be written: nothing on flash counts any more. */
static void
test_void(void **state)
{
	struct fake_disk_fault fault = {.kinds = FAKE_DISK_WRITES, .name = "disk", .error = 5};
	uint64_t position;

	(void)state;
	begin(12, NULL);
	for (uint32_t i = 0; i < 100; i++)
		put_wait(i, 1000);
	settle();
	position = my.keys[99].position;
	flash_doubles()->put_fails = true;
	fault.from = my.flash->regions[flash_region_of(my.keys[99].segment)].base;
	fault.to = fault.from + REGION;
	fake_disk_fault(my.disk, &fault);
	for (uint32_t i = 0; i < 1000 && flash_alive(my.flash); i++) {
		put(i % KEYS, 3000);
		step(MS);
	}
	assert_false(flash_alive(my.flash));
	settle();
	assert_true(flash_voided(my.flash)); /* the superblock took it */
	assert_false(flash_believed(my.flash, position));
	assert_int_equal(put(1, 1000), FLASH_REFUSED);
	assert_int_equal(flash_admits(my.flash, 1000, 1, 0), FLASH_REFUSED);
	end();
}

/* A disk that doesn't answer: BUSY, not a wait; then it goes on, and whoever asked is told. */
static void
test_stuck(void **state)
{
	struct fake_disk_fault fault = {
		.kinds = FAKE_DISK_WRITES, .name = "disk", .error = FAKE_DISK_STUCK};
	uint32_t key = 0;
	uint64_t wakes;

	(void)state;
	begin(12, NULL);
	settle();
	fake_disk_fault(my.disk, &fault);
	while (put(key % KEYS, 1000) == FLASH_DONE && key < 100000) {
		key++;
		step(1000);
	}
	assert_true(key < 10000);
	/* REGIONS_AHEAD were ready. */
	assert_true(key > 2 * (REGION - 16384) / 1040);
	assert_int_equal(put(0, 1000), FLASH_BUSY);
	assert_int_equal(flash_admits(my.flash, 1000, 0, 0), FLASH_BUSY);
	assert_true(stats().busy > 0);
	for (unsigned i = 0; i < 50; i++)
		step(100 * MS);
	assert_true(flash_alive(my.flash));
	assert_int_equal(verify_all(), key);
	wakes = my.wakes;
	fake_disk_no_faults(my.disk);
	fake_disk_unstick(my.disk, false);
	settle();
	assert_true(my.wakes > wakes);
	assert_int_equal(flash_admits(my.flash, 1000, 0, 0), FLASH_DONE);
	for (uint32_t i = 0; i < 3000; i++) {
		put_wait(i, 500);
		if (i % 8 == 0)
			step(20 * 1000);
	}
	settle();
	verify_all();
	/* Now it never comes back: after 10 s it is dead. */
	fake_disk_fault(my.disk, &fault);
	for (uint32_t i = 0; i < 4000; i++)
		put(i, 500);
	for (unsigned i = 0; i < 99; i++)
		step(100 * MS);
	assert_true(flash_alive(my.flash));
	for (unsigned i = 0; i < 5; i++)
		step(100 * MS);
	assert_false(flash_alive(my.flash));
	assert_true(stats().write_late > 0);
	fake_disk_no_faults(my.disk);
	fake_disk_unstick(my.disk, true);
	end();
}

/* Everything fails for over a second: dead. Less than that: not. */
static void
test_dead(void **state)
{
	(void)state;
	begin(12, NULL);
	settle();
	fake_disk_vanish(my.disk, true);
	for (uint32_t i = 0; i < 50; i++) {
		put(i, 3000);
		step(MS);
	}
	assert_true(flash_alive(my.flash));
	for (uint32_t i = 0; i < 300; i++) {
		put(i, 3000);
		step(10 * MS);
	}
	assert_false(flash_alive(my.flash));
	end();
}

/* A footer that can't be read: the index is searched, nothing dangles. */
static void
test_footer_lost(void **state)
{
	(void)state;
	begin(12, NULL);
	for (uint32_t i = 0; i < 20000; i++) {
		put_wait(i % KEYS, some_bytes());
		if (i % 8 == 0)
			step(20 * 1000);
		if (i == 2000)
			for (uint32_t r = 0; r < 3; r++) {
				struct region *region = &my.flash->regions[r];

				fake_disk_flip(my.disk, "disk",
					region->base + REGION - sizeof(struct flash_footer) - 5, 3);
			}
		verify(draw(KEYS));
	}
	settle();
	verify_all();
	assert_in_range(my.purges, 1, 3);
	end();
}

/* Reads that fail: the region is given up, and its header says so. */
static void
test_read_errors(void **state)
{
	uint32_t region, count = 0;
	uint8_t block[FLASH_BLOCK];

	(void)state;
	begin(12, NULL);
	for (uint32_t i = 0; i < 2000; i++) {
		put_wait(i % KEYS, 700);
		if (i % 8 == 0)
			step(20 * 1000);
	}
	settle();
	region = flash_region_of(my.keys[100].segment);
	assert_int_equal(region_state(&my.flash->regions[region]), REGION_SEALED);
	for (unsigned i = 0; i < REGION_ERRORS_MAX; i++)
		log_region_error(my.flash, region);
	settle();
	assert_int_equal(region_state(&my.flash->regions[region]), REGION_RETIRED);
	for (uint32_t i = 0; i < KEYS; i++)
		count += my.keys[i].segment == flash_segment(region);
	assert_int_equal(count, 0);
	fake_disk_peek(my.disk, "disk", my.flash->regions[region].base, block, sizeof block);
	assert_true(layout_region_valid(block, my.flash->id));
	assert_int_equal(((struct flash_region_header *)(void *)block)->kind, FLASH_REGION_FREE);
	verify_all();
	end();
}

/* A journal that is nearly full: the oldest leave at once, nothing is copied on. */
static void
test_hurry(void **state)
{
	uint64_t oldest;

	(void)state;
	begin(12, NULL);
	for (uint32_t i = 0; i < 2000; i++) {
		put_wait(i, 700);
		my.keys[i].reads = 9;
		if (i % 8 == 0)
			step(20 * 1000);
	}
	settle();
	oldest = log_oldest_sequence(my.flash);
	flash_doubles()->wants_room = true;
	settle();
	flash_doubles()->wants_room = false;
	settle();
	assert_true(log_oldest_sequence(my.flash) > oldest);
	assert_true(stats().regions_hurried >= 3);
	assert_int_equal(my.moves, 0);
	/* Even the open region: its records could not go otherwise. */
	assert_int_equal(verify_all(), 0);
	assert_int_equal(put(5, 700), FLASH_DONE);
	verify(5);
	end();
}

/* A clean stop: all is on the medium, footers name every item; the snapshot's regions come last. */
static uint64_t
clock_ns(void)
{
	return my.now_ns += 10000;
}

static void
test_finish(void **state)
{
	static uint8_t bytes[REGION] __attribute__((aligned(4096)));
	uint32_t snapshot[3], listed = 0, named;

	(void)state;
	begin(8, NULL);
	for (uint32_t i = 0; i < 8000; i++) {
		put_wait(i % KEYS, 400);
		if (i % 8 == 0)
			step(20 * 1000);
	}
	assert_true(log_finish(my.flash, clock_ns, my.now_ns + 10000 * MS));
	assert_int_equal(put(1, 100), FLASH_REFUSED);
	for (unsigned i = 0; i < 3; i++) {
		struct flash_region_header *header = (void *)bytes;

		snapshot[i] = log_snapshot_region(my.flash);
		assert_int_not_equal(snapshot[i], UINT32_MAX);
		fake_disk_peek(
			my.disk, "disk", my.flash->regions[snapshot[i]].base, bytes, FLASH_BLOCK);
		assert_true(layout_region_valid(bytes, my.flash->id));
		assert_int_equal(header->kind, FLASH_REGION_SNAPSHOT);
		assert_int_equal(
			region_sequence(&my.flash->regions[snapshot[i]]), header->sequence);
		assert_true(i == 0 || header->sequence >
					      region_sequence(&my.flash->regions[snapshot[i - 1]]));
	}
	named = verify_all();
	for (uint32_t r = 0; r < my.flash->region_count; r++) {
		const struct flash_footer *footer = (void *)(bytes + REGION - sizeof *footer);
		const struct flash_footer_entry *entry;
		struct region *region = &my.flash->regions[r];

		if (region_state(region) != REGION_SEALED)
			continue;
		fake_disk_peek(my.disk, "disk", region->base, bytes, REGION);
		assert_true(
			layout_footer_valid(footer, REGION, my.flash->id, region_sequence(region)));
		assert_true(layout_footer_whole(footer, my.flash->id));
		entry = (const void *)((const uint8_t *)footer - footer->entries * sizeof *entry);
		for (uint32_t i = 0; i < footer->entries; i++)
			listed += key_named(entry[i].hash, flash_segment(r),
					  entry[i].place & BUCKET_OFFSET_MAX) != NULL;
	}
	assert_true(named > 500);
	assert_int_equal(listed, named);
	end();
}

static void
test_budget(void **state)
{
	const struct flash_options options = {.write_budget = 24u << 20}; /* 1 MiB an hour */
	uint32_t admitted = 0, refused = 0, read = 0, half = 0;

	(void)state;
	begin(16, &options);
	assert_int_equal(flash_admits(my.flash, 1 << 20, 9, 0), FLASH_REFUSED);
	assert_int_equal(stats().refused_size, 1);
	while (stats().budget_left_bytes > 250000 && admitted < 10000) {
		if (flash_admits(my.flash, 1000, 0, draw(65536) << 16) != FLASH_DONE)
			refused++;
		else if (put(admitted % KEYS, 1000) == FLASH_DONE)
			admitted++;
		step(100 * 1000);
	}
	/* The hour's burst was there, but toward its end only some came. */
	assert_in_range(admitted, 600, 900);
	assert_in_range(refused, 30, 2000);
	for (unsigned i = 0; i < 1000; i++) {
		uint32_t random = draw(65536) << 16;

		half += flash_admits(my.flash, 1000, 0, random) == FLASH_DONE;
		read += flash_admits(my.flash, 1000, 2, random) == FLASH_DONE;
	}
	assert_in_range(half, 300, 600);
	assert_int_equal(read, 1000);
	assert_true(stats().refused_budget >= refused);
	/* An hour later it is full again. */
	step(3600 * 1000 * MS);
	assert_in_range(stats().budget_left_bytes, (1 << 20) - 100000, 1 << 20);
	assert_int_equal(flash_admits(my.flash, 1000, 0, UINT32_MAX), FLASH_DONE);
	end();
}

/* What was flushed or has expired isn't copied on. */
static void
test_dead_items(void **state)
{
	(void)state;
	begin(12, NULL);
	for (uint32_t i = 0; i < 2000; i++) {
		my.keys[i].expiry = i % 2 ? (uint32_t)(BEGIN_NS / 1000000000u) + 1 : 0;
		put_wait(i, 700);
		my.keys[i].reads = 9;
		if (i % 8 == 0)
			step(20 * 1000);
	}
	settle();
	step(2000 * MS);
	log_lock(my.flash);
	atomic_store(&my.flash->flush_position, my.keys[500].position);
	log_unlock(my.flash);
	for (uint32_t i = 2000; i < 6000; i++) {
		put_wait(2000 + i % 2000, 700);
		if (i % 8 == 0)
			step(20 * 1000);
	}
	settle();
	verify_all();
	assert_true(my.moves > 0);
	for (uint32_t i = 0; i < 2000; i++)
		assert_true(my.keys[i].segment == 0 || (i >= 500 && i % 2 == 0));
	end();
}

/* Reads are slow: one chunk at a time, and pauses; but no staging waits for it. */
static void
test_reads_first(void **state)
{
	struct fake_disk_counts counts;
	uint32_t most = 0;

	(void)state;
	begin(12, NULL);
	fake_disk_latency(my.disk, 200);
	flash_doubles()->read_us = 5000;
	for (uint32_t i = 0; i < 2000; i++) {
		put_wait(i, 700);
		if (i % 40 == 0)
			step(MS);
		fake_disk_get_counts(my.disk, &counts);
		if (my.flash->log->free_chunks > 0 && my.flash->log->writing > most)
			most = my.flash->log->writing;
	}
	assert_int_equal(most, 1);
	settle();
	settle();
	verify_all();
	end();
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wraps),
		cmocka_unit_test(test_reinsertion_share),
		cmocka_unit_test(test_fillers),
		cmocka_unit_test(test_abandon),
		cmocka_unit_test(test_partial),
		cmocka_unit_test(test_append_fails),
		cmocka_unit_test(test_void),
		cmocka_unit_test(test_stuck),
		cmocka_unit_test(test_dead),
		cmocka_unit_test(test_footer_lost),
		cmocka_unit_test(test_read_errors),
		cmocka_unit_test(test_hurry),
		cmocka_unit_test(test_finish),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_dead_items),
		cmocka_unit_test(test_reads_first),
	};

	rcu_register();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
