/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every implementation must answer like the plain one below: hash, then walk the bucket's entries
 * in their order and compare keys.
 */
#include "accel/accel.h"

#include "base/hash_hd.h"
#include "index/index.h"
#include "store/item_hd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <urcu-qsbr.h>

#include <cmocka.h>

#define KEY_ROOM 256
#define SEED 0x1234567890abcdefu
#define SEGMENT_SHIFT 16
#define SEGMENTS 40
#define ITEMS 6000
#define ELSEWHERE 1000 /* a segment that is not in the arena */

struct world {
	uint8_t *arena;
	uint32_t segment, used; /* being filled */
	struct index *index;
	struct accel_state *state;
	bool some_elsewhere; /* every tenth item */
};

static uint32_t
key_make(uint32_t i, uint8_t *key)
{
	uint32_t size = 4 + i * 7 % 247;

	memset(key, 'a' + (int)(i % 26), size);
	memcpy(key, &i, sizeof i);
	return size;
}

static bool
item_hash(void *context, uint64_t entry, uint64_t *hash)
{
	struct world *world = context;
	uint32_t segment = bucket_entry_segment(entry);

	if (segment >= SEGMENTS)
		return false;

	const struct item *item = (const void *)(world->arena + ((size_t)segment << SEGMENT_SHIFT) +
						 (size_t)bucket_entry_offset(entry) * ITEM_ALIGN);

	*hash = accel_hash(item_key(item), item_key_size(item), SEED);
	return true;
}

static const struct index_keys keys = {.hash = item_hash};

static void
store(struct world *world, uint32_t i, bool elsewhere)
{
	uint8_t key[KEY_ROOM];
	uint32_t key_size = key_make(i, key), bytes = (ITEM_HEADER + key_size + 15) & ~15u;
	uint32_t segment = ELSEWHERE, offset = i;
	struct index_locked locked;

	if (!elsewhere) {
		if (world->used + bytes > 1u << SEGMENT_SHIFT) {
			world->segment++;
			world->used = 0;
		}
		assert_true(world->segment < SEGMENTS);
		segment = world->segment;
		offset = world->used / ITEM_ALIGN;

		struct item *item =
			(void *)(world->arena + ((size_t)segment << SEGMENT_SHIFT) + world->used);

		*item = (struct item){.sizes = key_size};
		memcpy(item + 1, key, key_size);
		world->used += bytes;
	}
	index_lock(world->index, accel_hash(key, key_size, SEED), 0, &locked);
	assert_true(index_locked_insert(&locked, bucket_entry_make(segment, offset, 0), i % 16));
	index_unlock(&locked);
}

static struct world *
world_create(bool some_elsewhere)
{
	struct world *world = calloc(1, sizeof *world);

	assert_non_null(world);
	world->some_elsewhere = some_elsewhere;

	world->arena = aligned_alloc(4096, (size_t)SEGMENTS << SEGMENT_SHIFT);
	world->segment = 1;

	struct index_options options = {.buckets_initial = 256,
		.bytes_max = 4 << 20,
		.entries_per_bucket = 9,
		.keys = &keys,
		.keys_context = world};

	world->index = index_create(&options);
	world->state = accel_cpu.create(&(struct accel_options){.index = world->index,
		.view = {.base = world->arena,
			.segment_shift = SEGMENT_SHIFT,
			.segments_max = SEGMENTS},
		.seed = SEED});
	assert_non_null(world->state);
	for (uint32_t i = 0; i < ITEMS; i++) {
		store(world, i, some_elsewhere && i % 10 == 9);
		index_grow(world->index, 1, 0);
	}
	return world;
}

/* With every key at hand tags are compared whole, else without the bits that they may have lost. */
static int
set_up_dram(void **state)
{
	*state = world_create(false);
	return 0;
}

static int
set_up_mixed(void **state)
{
	*state = world_create(true);
	return 0;
}

static int
tear_down(void **state)
{
	struct world *world = *state;

	accel_cpu.destroy(world->state);
	index_destroy(world->index);
	free(world->arena);
	free(world);
	return 0;
}

/* The answer in the plainest way. Nobody writes meanwhile. */
static struct accel_request
plain(const struct world *world, const uint8_t *key, uint32_t key_size)
{
	struct accel_request answer = {
		.key = key, .key_size = key_size, .hash = hash_bytes(key, key_size, SEED)};
	const struct bucket_table *table = index_table(world->index);
	uint32_t bits;

	answer.number = bucket_home(answer.hash, table->count, &bits);

	struct bucket *bucket = &table->buckets[answer.number];
	_Atomic uint64_t *words = bucket->entries;
	uint32_t count = BUCKET_ENTRIES, link = bucket_header_link(bucket->header);

	answer.version = bucket_header_version(bucket->header);
	for (;;) {
		uint32_t next = 0;

		for (uint32_t i = 0; i < count; i++) {
			uint64_t entry = words[i];

			if (bucket_entry_is_link(entry)) {
				next = bucket_number_gather(entry);
				continue;
			}
			if (bucket_entry_is_empty(entry) ||
				!bucket_tag_fits(entry, bucket_tag(answer.hash, bits),
					(uint32_t)table->tag_bits_lost))
				continue;
			if (bucket_entry_segment(entry) >= SEGMENTS) {
				if (answer.found != ACCEL_MISS)
					continue;
				answer.found = ACCEL_UNVERIFIED;
				answer.entry = entry;
				answer.slot = &words[i];
				continue;
			}
			const struct item *item =
				(const void *)(world->arena +
					       ((size_t)bucket_entry_segment(entry)
						       << SEGMENT_SHIFT) +
					       bucket_entry_offset(entry) * 16ull);

			if (item_has_key(item, key, key_size)) {
				answer.found = ACCEL_HIT;
				answer.entry = entry;
				answer.slot = &words[i];
				return answer;
			}
		}
		if (words != bucket->entries)
			link = next;
		if (link == 0)
			return answer;
		words = bucket_unit_at(table, link)->entries;
		count = BUCKET_UNIT_ENTRIES;
	}
}

static void
run(struct world *world, struct accel_request *requests, uint32_t count)
{
	struct accel_burst burst = {.requests = requests, .count = count, .context = requests},
			   *submitted = &burst;

	assert_true(accel_cpu.submit(world->state, &submitted));
	assert_null(submitted);
	assert_ptr_equal(accel_cpu.poll(world->state), &burst);
	assert_null(accel_cpu.poll(world->state));
}

static void
answers_are_the_plain_ones(void **state)
{
	static uint8_t bytes[2 * ITEMS][KEY_ROOM];
	static struct accel_request requests[2 * ITEMS];
	struct world *world = *state;
	uint32_t hits = 0, elsewhere = 0, misses = 0;

	for (uint32_t i = 0; i < 2 * ITEMS; i++) {
		memset(&requests[i], 0xee, sizeof requests[i]);
		requests[i].key = bytes[i];
		requests[i].key_size = key_make(i, bytes[i]);
		requests[i].value_ahead = i % 4 * 150;
	}
	run(world, requests, 2 * ITEMS);
	for (uint32_t i = 0; i < 2 * ITEMS; i++) {
		struct accel_request wanted = plain(world, requests[i].key, requests[i].key_size);

		wanted.value_ahead = i % 4 * 150;
		assert_memory_equal(&requests[i], &wanted, sizeof wanted);
		hits += wanted.found == ACCEL_HIT;
		elsewhere += wanted.found == ACCEL_UNVERIFIED;
		misses += wanted.found == ACCEL_MISS;
		if (i < ITEMS)
			assert_int_equal(wanted.found, world->some_elsewhere && i % 10 == 9
							       ? ACCEL_UNVERIFIED
							       : ACCEL_HIT);
	}
	/* A few of the absent ones meet another's tag. */
	uint32_t there = world->some_elsewhere ? ITEMS / 10 : 0;

	assert_int_equal(hits, ITEMS - there);
	assert_in_range(elsewhere, there, there + there / 10);
	assert_int_equal(misses, 2 * ITEMS - hits - elsewhere);
	assert_int_equal(hd_load_acquire(&index_table(world->index)->tag_bits_lost) != 0,
		world->some_elsewhere);
}

static void
hints_hold_until_a_write(void **state)
{
	struct world *world = *state;
	uint8_t key[KEY_ROOM];
	struct accel_request request = {.key = key, .key_size = key_make(5, key)};
	struct index_locked locked;
	uint64_t entry;

	run(world, &request, 1);
	assert_int_equal(request.found, ACCEL_HIT);
	assert_true(index_hint_holds(world->index, request.hash, request.number, request.version));
	index_lock(world->index, request.hash, 0, &locked);
	do
		assert_non_null(index_locked_next(&locked, &entry));
	while (entry != request.entry);
	index_locked_replace(&locked, request.slot, request.entry, -1);
	index_unlock(&locked);
	assert_false(index_hint_holds(world->index, request.hash, request.number, request.version));
}

static void
bursts_of_any_size_come_back_in_order(void **state)
{
	struct world *world = *state;
	struct accel_burst bursts[64] = {{0}};
	uint32_t taken = 0;

	for (; taken < 64; taken++) {
		struct accel_burst *burst = &bursts[taken];

		if (!accel_cpu.submit(world->state, &burst)) {
			assert_ptr_equal(burst, &bursts[taken]);
			break;
		}
	}
	/* There is a bound, and a full queue takes bursts again after a poll. */
	assert_in_range(taken, 1, 63);
	for (uint32_t i = 0; i < taken; i++)
		assert_ptr_equal(accel_cpu.poll(world->state), &bursts[i]);
	assert_null(accel_cpu.poll(world->state));
	for (uint32_t size = 0; size < 200; size++) {
		uint8_t key[KEY_ROOM];
		struct accel_request requests[200];

		for (uint32_t i = 0; i < size; i++)
			requests[i] =
				(struct accel_request){.key = key, .key_size = key_make(3, key)};
		run(world, requests, size);
		for (uint32_t i = 0; i < size; i++)
			assert_int_equal(requests[i].found, ACCEL_HIT);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(answers_are_the_plain_ones, set_up_dram, tear_down),
		{"answers_are_the_plain_ones_mixed", answers_are_the_plain_ones, set_up_mixed,
			tear_down, NULL},
		cmocka_unit_test_setup_teardown(hints_hold_until_a_write, set_up_dram, tear_down),
		cmocka_unit_test_setup_teardown(
			bursts_of_any_size_come_back_in_order, set_up_mixed, tear_down),
	};

	rcu_register_thread();
	int failed = cmocka_run_group_tests_name("accel", tests, NULL, NULL);
	rcu_unregister_thread();
	return failed;
}
