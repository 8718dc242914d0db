/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/model/memory_store.h"

#include "base/check.h"
#include "base/rcu.h"
#include "store/item_hd.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 8

static uint64_t
entry_make(uint32_t segment, uint32_t offset, unsigned reads)
{
	return STORE_NAMED | (uint64_t)reads << 42 | (uint64_t)segment << 20 | offset;
}

static uint32_t
entry_segment(uint64_t entry)
{
	return (uint32_t)(entry >> 20) & ((1u << 22) - 1);
}

static uint32_t
entry_offset(uint64_t entry)
{
	return (uint32_t)entry & ((1u << 20) - 1);
}

static unsigned
entry_reads(uint64_t entry)
{
	return (unsigned)(entry >> 42) & 15;
}

static bool
entry_is(uint64_t entry, uint32_t segment, uint32_t offset)
{
	return entry && entry_segment(entry) == segment && entry_offset(entry) == offset;
}

static void
lock(struct store_key *key)
{
	for (unsigned turns = 0;
		atomic_flag_test_and_set_explicit(&key->lock, memory_order_acquire);)
		if (++turns % 64 == 0)
			sched_yield();
}

static void
unlock(struct store_key *key)
{
	atomic_flag_clear_explicit(&key->lock, memory_order_release);
}

uint64_t
store_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

double
store_random_unit(uint64_t *state)
{
	return (double)(store_random(state) >> 11) * 0x1p-53;
}

static uint32_t
item_number(const struct item *item)
{
	uint64_t number;

	check(item_key_size(item) == KEY_BYTES);
	memcpy(&number, item_key(item), sizeof number);
	return (uint32_t)number;
}

/*
 * The value's words of eight bytes follow from key, version and place; what segments hold is a
 * multiple of it.
 */
#define WORD_STEP 0x165667b19e3779f9ull

static uint64_t
first_word(uint32_t key, uint32_t version)
{
	return key * 0x9e3779b97f4a7c15ull ^ version * 0xc2b2ae3d27d4eb4full;
}

/* --- what memory asks --------------------------------------------------------------------- */

static struct store_key *
key_of(struct store *store, const struct item *item)
{
	uint32_t number = item_number(item);

	check(number < store->keys_count);
	return &store->keys[number];
}

static int
items_reads(void *context, const struct item *item, uint32_t segment, uint32_t offset)
{
	uint64_t entry = atomic_load(&key_of(context, item)->entry);

	return entry_is(entry, segment, offset) ? (int)entry_reads(entry) : -1;
}

static bool
items_move(void *context, const struct item *item, uint32_t segment, uint32_t offset,
	uint32_t to_segment, uint32_t to_offset, struct item *to, uint32_t epoch, unsigned reads)
{
	struct store *store = context;
	struct store_key *key = key_of(store, item);
	bool same;

	check(item_number(to) == item_number(item) && item_size(to) == item_size(item));
	check(memory_segment_opened_s(store->memory, to_segment) <=
		memory_segment_opened_s(store->memory, segment));
	lock(key);
	same = entry_is(atomic_load(&key->entry), segment, offset) &&
	       memory_segment_epoch(store->memory, segment) == epoch;
	if (same) {
		to->soft = __atomic_load_n(&item->soft, __ATOMIC_RELAXED);
		atomic_store(&key->entry, entry_make(to_segment, to_offset, reads));
		atomic_fetch_add_explicit(&store->moves, 1, memory_order_relaxed);
	}
	unlock(key);
	return same;
}

static enum memory_dropped
items_drop(void *context, const struct item *item, uint32_t segment, uint32_t offset,
	enum memory_reason reason)
{
	struct store *store = context;
	struct store_key *key = key_of(store, item);
	bool same;

	lock(key);
	same = entry_is(atomic_load(&key->entry), segment, offset);
	if (same) {
		if (reason == MEMORY_EVICTED)
			check(store->evict);
		else if (reason == MEMORY_EXPIRED)
			check(key->expiry && key->expiry <= atomic_load(store->now_s));
		else
			check(key->epoch < memory_epoch(store->memory));
		atomic_store(&key->entry, 0);
		key->must_live = false;
		atomic_fetch_add_explicit(&store->drops[reason], 1, memory_order_relaxed);
	}
	unlock(key);
	return same ? MEMORY_DROPPED : MEMORY_GONE;
}

uint64_t
store_hash(uint32_t key)
{
	uint64_t state = key + 1;

	store_random(&state);
	return store_random(&state);
}

static uint64_t
items_hash(void *context, const struct item *item)
{
	(void)context;
	return store_hash(item_number(item));
}

const struct memory_items store_items = {items_reads, items_move, items_drop, items_hash, NULL};

/* --- the owner's own work ----------------------------------------------------------------- */

void
store_options(
	struct memory_options *options, struct store *store, uint64_t limit_bytes, unsigned workers)
{
	*options = (struct memory_options){
		.limit_bytes = limit_bytes,
		.reserve_factor = 4,
		.workers = workers,
		.value_bytes_max = 1 << 20,
		.evict = true,
		.seal_age_s = 60,
		.items = &store_items,
		.items_context = store,
	};
}

void
store_open(struct store *store, const struct memory_options *options, uint32_t keys_count)
{
	*store = (struct store){
		.keys_count = keys_count, .evict = options->evict, .now_s = store->now_s};
	store->keys = calloc(keys_count, sizeof *store->keys);
	check(store->keys);
	for (uint32_t i = 0; i < keys_count; i++)
		atomic_flag_clear(&store->keys[i].lock);
	store->memory = memory_create(options);
	check(store->memory);
	store->arena = memory_arena(store->memory);
}

void
store_close(struct store *store)
{
	memory_destroy(store->memory);
	free(store->keys);
}

static struct item *
item_of(struct store *store, uint64_t entry)
{
	return memory_address(store->arena, entry_segment(entry), entry_offset(entry));
}

/*
 * The item behind a key is gone from the index: its bytes, and those of its body, are free. Not
 * under the key's lock.
 */
static void
let_go(struct store *store, uint64_t entry)
{
	const struct item *item = item_of(store, entry);

	memory_dead(store->memory, entry_segment(entry), item_size(item));
	for (uint32_t i = 0; i < item_large_count(item); i++) {
		uint32_t body = item_large_segment(item, i);

		memory_body_release(store->memory, &body, 1, true);
	}
}

static void
write_head(struct item *item, uint32_t key, uint64_t value_bytes, uint32_t expiry_s,
	const uint32_t *bodies, uint32_t count)
{
	uint64_t number = key;
	uint32_t inline_bytes = count ? 0 : (uint32_t)value_bytes;
	uint8_t *at = (uint8_t *)item + ITEM_HEADER;

	*item = (struct item){
		.expiry = expiry_s,
		.sizes = KEY_BYTES | inline_bytes << 8 | (count ? 1u << 31 : 0),
	};
	memcpy(at, &number, KEY_BYTES);
	if (!count)
		return;
	at += KEY_BYTES;
	*at++ = ITEM_LARGE;
	memcpy(at, &value_bytes, 8);
	memcpy(at + 8, &count, 4);
	memcpy(at + 12, bodies, 4 * (size_t)count);
}

static void
write_value(uint8_t *to, uint32_t key, uint32_t version, uint64_t from, uint64_t bytes)
{
	uint64_t word = first_word(key, version) + from / 8 * WORD_STEP;

	for (uint64_t at = 0; at < bytes; at += 8, word += WORD_STEP)
		memcpy(to + at, &word, bytes - at < 8 ? bytes - at : 8);
}

/* The body that waits for its next segment: this thread repeats the set until it is done. */
#define UPLOAD_MAX 256

static _Thread_local struct {
	uint32_t bodies[UPLOAD_MAX], count;
} upload;

enum memory_status
store_set(struct store *store, struct memory_thread *thread, uint32_t key_number,
	uint64_t value_bytes, uint32_t expiry_s, bool main, uint32_t now_s)
{
	struct store_key *key = &store->keys[key_number];
	uint32_t *bodies = upload.bodies, segment_bytes = 1u << store->arena->segment_shift;
	uint32_t wanted = 0;
	enum memory_status status = MEMORY_OK;
	struct memory_place place;

	if (value_bytes > memory_large_min(store->memory))
		wanted = (uint32_t)((value_bytes + segment_bytes - 1) / segment_bytes);
	check(wanted <= UPLOAD_MAX && upload.count <= wanted);
	while (status == MEMORY_OK && upload.count < wanted) {
		status = memory_body_borrow(thread, now_s, &bodies[upload.count]);
		upload.count += status == MEMORY_OK;
	}
	uint32_t count = upload.count;
	uint32_t bytes = ITEM_HEADER + KEY_BYTES + (count ? 13 + 4 * count : (uint32_t)value_bytes);
	bytes = (bytes + 15) & ~15u;
	uint32_t epoch = memory_epoch(store->memory);
	if (status == MEMORY_OK)
		status = memory_append(thread, bytes, expiry_s, main, now_s, &place);
	if (status == MEMORY_WAIT)
		return status;
	upload.count = 0;
	if (status != MEMORY_OK) {
		if (count)
			memory_body_release(store->memory, bodies, count, false);
		return status;
	}
	lock(key);
	/* What is set after a flush isn't flushed. */
	check(place.epoch >= epoch);
	uint32_t version = ++key->version;
	write_head(place.item, key_number, value_bytes, expiry_s, bodies, count);
	if (!count && !store->light)
		write_value((uint8_t *)place.item + ITEM_HEADER + KEY_BYTES, key_number, version, 0,
			value_bytes);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t from = (uint64_t)i * segment_bytes, left = value_bytes - from;

		write_value(memory_address(store->arena, bodies[i], 0), key_number, version, from,
			left < segment_bytes ? left : segment_bytes);
	}
	check(item_size(place.item) == bytes);
	memory_append_done(thread, &place);
	if (count)
		memory_body_publish(store->memory, bodies, count);
	/* What was read stays read. */
	uint64_t old = atomic_load(&key->entry);
	while (!atomic_compare_exchange_weak(&key->entry, &old,
		entry_make(place.segment, place.offset, old ? entry_reads(old) : 0)))
		;
	key->size = bytes;
	key->expiry = expiry_s;
	key->epoch = place.epoch;
	key->must_live = true;
	unlock(key);
	if (old)
		let_go(store, old);
	return MEMORY_OK;
}

void
store_set_abort(struct store *store)
{
	if (upload.count)
		memory_body_release(store->memory, upload.bodies, upload.count, false);
	upload.count = 0;
}

void
store_delete(struct store *store, uint32_t key_number)
{
	struct store_key *key = &store->keys[key_number];

	lock(key);
	uint64_t old = atomic_exchange(&key->entry, 0);
	key->must_live = false;
	unlock(key);
	if (old)
		let_go(store, old);
}

/*
 * The version can't be known without the lock: the first eight bytes give it away, all the others
 * must agree.
 */
static void
verify(struct store *store, uint32_t key, const struct item *item)
{
	uint64_t length = item_value_length(item), word = 0;
	uint32_t count = item_large_count(item), segment_bytes = 1u << store->arena->segment_shift;

	check(item_number(item) == key);
	if (store->light)
		return;
	for (uint64_t at = 0; at < length; at += 8, word += WORD_STEP) {
		const uint8_t *bytes = item_value(item) + at;

		if (count)
			bytes = (const uint8_t *)memory_address(store->arena,
					item_large_segment(item, (uint32_t)(at / segment_bytes)),
					0) +
				at % segment_bytes;
		if (at == 0)
			memcpy(&word, bytes, length < 8 ? length : 8);
		else
			check(memcmp(bytes, &word, length - at < 8 ? length - at : 8) == 0);
	}
}

bool
store_get(struct store *store, uint32_t key_number, uint32_t now_s)
{
	struct store_key *key = &store->keys[key_number];
	uint64_t entry = atomic_load(&key->entry);

	if (!entry || memory_segment_epoch(store->memory, entry_segment(entry)) !=
			      memory_epoch(store->memory))
		return false;
	const struct item *item = item_of(store, entry);
	if (item_expired(item, now_s))
		return false;
	verify(store, key_number, item);
	static _Thread_local uint64_t random = 1;
	unsigned reads = entry_reads(entry);
	if (reads < 15 && (reads < 4 || (store_random(&random) >> 32) % (1u << (reads - 3)) == 0))
		atomic_compare_exchange_strong(&key->entry, &entry,
			entry_make(entry_segment(entry), entry_offset(entry), reads + 1));
	return true;
}

const void *
store_pin(struct store *store, uint32_t key)
{
	uint64_t entry = atomic_load(&store->keys[key].entry);

	if (!entry || item_large_count(item_of(store, entry)) ||
		!memory_pin(store->memory, entry_segment(entry)))
		return NULL;
	return item_of(store, entry);
}

void
store_unpin(struct store *store, uint32_t key, const void *pinned)
{
	verify(store, key, pinned);
	memory_unpin(store->memory, memory_segment_of(store->arena, pinned));
}

uint32_t
store_segment(struct store *store, uint32_t key)
{
	return entry_segment(atomic_load(&store->keys[key].entry));
}

uint64_t
store_live_bytes(struct store *store)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < store->keys_count; i++) {
		uint64_t entry = atomic_load(&store->keys[i].entry);

		if (!entry)
			continue;
		const struct item *item = item_of(store, entry);
		bytes += item_size(item) +
			 ((uint64_t)item_large_count(item) << store->arena->segment_shift);
	}
	return bytes;
}

static int
by_address(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

void
store_check(struct store *store)
{
	struct memory_stats stats;
	uint64_t *spans = malloc((2 * (size_t)store->keys_count + 1) * sizeof *spans);
	size_t n = 0;

	check(spans);
	for (uint32_t i = 0; i < store->keys_count; i++) {
		uint64_t entry = atomic_load(&store->keys[i].entry);

		if (!entry) {
			check(!store->keys[i].must_live);
			continue;
		}
		const struct item *item = item_of(store, entry);
		verify(store, i, item);
		check(item_size(item) == store->keys[i].size &&
			item->expiry == store->keys[i].expiry);
		check(memory_segment_epoch(store->memory, entry_segment(entry)) ==
			store->keys[i].epoch);
		/*
		 * Sorted, starts and ends alternate when nothing overlaps: ends are one byte
		 * early.
		 */
		spans[n++] = (uint64_t)((const uint8_t *)item - store->arena->base) << 1;
		spans[n++] =
			(uint64_t)((const uint8_t *)item - store->arena->base + item_size(item) - 1)
				<< 1 |
			1;
	}
	qsort(spans, n, sizeof *spans, by_address);
	for (size_t i = 0; i < n; i++)
		check((spans[i] & 1) == (i & 1));
	free(spans);
	memory_get_stats(store->memory, &stats);
	if (stats.live_bytes != store_live_bytes(store))
		fprintf(stderr, "live bytes: memory says %llu, items have %llu\n",
			(unsigned long long)stats.live_bytes,
			(unsigned long long)store_live_bytes(store));
	check(stats.live_bytes == store_live_bytes(store));
	check(stats.accounting_errors == 0);
}

void
store_settle(struct store *store, struct memory_thread *background, uint32_t now_s)
{
	uint32_t next_s;

	(void)store;
	for (unsigned steps = 0; memory_reclaim(background, now_s, &next_s); steps++)
		check(steps < 1000000);
}
