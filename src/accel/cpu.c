/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The cpu implementation: a group of requests goes through each step together, so that the loads of
 * one step are in flight at once:
 *
 *	hash, load home buckets | match tags, load the first candidates' items | compare keys, load
 *	values
 *
 * What is rare (a bucket that is being written, a second candidate, tags that lost bits, items that
 * aren't at hand) goes by the plain way through index_find, whose answers are the same; what stands
 * in overflow units goes that way together, so that these are loaded at once too.
 */
#include "accel/accel.h"

#include "base/check.h"
#include "index/index.h"
#include "store/item_hd.h"

#include <stdlib.h>

/* The library's own code, in line: most keys are so short that the call is half of the work. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#define LINE 64
#define GROUP 64     /* requests in flight: their buckets and items stay in the first-level cache */
#define BURSTS_MAX 8 /* submitted and not polled */

struct accel_state {
	struct accel_options options;
	struct accel_burst *first, **last; /* submitted */
	uint32_t submitted;
	/* of the present group: requests that go the plain way, where each is, its first candidate */
	uint32_t plain_count;
	uint32_t plain[GROUP];
	struct index_find finds[GROUP];
	uint64_t candidates[GROUP];
};

uint64_t
accel_hash(const uint8_t *key, uint32_t key_size, uint64_t seed)
{
	return XXH3_64bits_withSeed(key, key_size, seed);
}

static struct accel_state *
cpu_create(const struct accel_options *options)
{
	struct accel_state *state = malloc(sizeof *state);

	if (state == NULL)
		return NULL;
	state->options = *options;
	state->first = NULL;
	state->last = &state->first;
	state->submitted = 0;
	return state;
}

static void
cpu_destroy(struct accel_state *state)
{
	check(state == NULL || state->submitted == 0);
	free(state);
}

/* The item behind an entry, NULL when it isn't at hand. */
static const struct item *
item_at(const struct accel_view *view, uint64_t entry)
{
	uint32_t segment = bucket_entry_segment(entry);

	if (segment >= view->segments_max)
		return NULL;
	return (const struct item *)(const void *)(view->base +
						   ((uint64_t)segment << view->segment_shift) +
						   (uint64_t)bucket_entry_offset(entry) *
							   ITEM_ALIGN);
}

static void
request_answer(struct accel_request *request, enum accel_found found, uint64_t entry,
	_Atomic uint64_t *slot)
{
	request->found = found;
	request->entry = entry;
	request->slot = slot;
}

/* Goes on from the first candidate of a scan, 0 for none. */
static void
request_finish(const struct accel_view *view, struct index_find *find, uint64_t entry,
	struct accel_request *request)
{
	for (;;) {
		request_answer(request, ACCEL_MISS, 0, NULL);
		for (; entry != 0; entry = index_find_next(find)) {
			const struct item *item = item_at(view, entry);

			if (item == NULL) {
				if (request->found == ACCEL_MISS)
					request_answer(
						request, ACCEL_UNVERIFIED, entry, find->slot);
			} else if (item_has_key(item, request->key, request->key_size)) {
				request_answer(request, ACCEL_HIT, entry, find->slot);
				break;
			}
		}
		if (request->found == ACCEL_HIT || !index_find_again(find))
			break;
		entry = index_find_next(find);
	}
	request->number = find->number;
	request->version = find->version;
}

/* The request goes the plain way. */
static void
plain_begin(struct accel_state *state, struct accel_request *request, uint32_t position)
{
	struct index_find *find = &state->finds[state->plain_count];

	request->found = ACCEL_UNVERIFIED;
	index_find_begin(state->options.index, request->hash, find);
	if (find->at.matches == 0 && find->at.link != 0)
		__builtin_prefetch(bucket_unit_at(find->at.table, find->at.link));
	state->plain[state->plain_count++] = position;
}

/*
 * Loads what will be read of an item whose size isn't known yet: its first line, the next one where
 * a value is wanted, and the one that the key ends in. (In line by force, as below: gcc takes a
 * function that only prefetches for one without effect and leaves out its calls.)
 */
static inline __attribute__((always_inline)) void
item_prefetch(const struct item *item, const struct accel_request *request)
{
	const uint8_t *at = (const uint8_t *)item;
	uint32_t key_end = ITEM_HEADER + request->key_size - 1;

	__builtin_prefetch(at);
	if (request->value_ahead != 0)
		__builtin_prefetch(at + LINE);
	if (request->value_ahead == 0 || key_end >= LINE + ITEM_ALIGN)
		__builtin_prefetch(at + key_end);
}

/* The lines behind those two, as far as the caller will read them at once. */
static inline __attribute__((always_inline)) void
value_prefetch(const struct item *item, const struct accel_request *request)
{
	const uint8_t *at = (const uint8_t *)((uintptr_t)item & ~(uintptr_t)(LINE - 1));
	uint32_t size = item_value_size(item);

	size = size < request->value_ahead ? size : request->value_ahead;
	if (size == 0)
		return;
	const uint8_t *last = item_value(item) + size - 1;

	for (at += 2 * LINE; at <= last; at += LINE)
		__builtin_prefetch(at);
}

/*
 * Matches the home bucket, whose line is there by now. The first candidate is taken for a hit, and
 * a bucket without one for a miss, until they are verified.
 */
static void
request_match(struct accel_state *state, const struct bucket_table *table,
	struct accel_request *request, uint32_t position, uint32_t bits)
{
	struct bucket *bucket = &table->buckets[request->number];
	uint64_t header = hd_load_acquire(&bucket->header);
	uint32_t tag = bucket_tag(request->hash, bits);

	if (bucket_header_is_locked(header)) {
		plain_begin(state, request, position);
		return;
	}
	/* Word 0 is the header. */
	uint32_t matches = bucket_match(&bucket->header, 1 + BUCKET_ENTRIES, tag) & ~1u;
	uint32_t lost = (uint32_t)hd_load_acquire(&table->tag_bits_lost);

	/* The tags of items at hand are whole: what lost bits is on flash, and isn't verified here. */
	if (__builtin_expect(matches == 0 && lost != 0, 0) &&
		(bucket_match_lost(&bucket->header, 1 + BUCKET_ENTRIES, tag, lost) & ~1u) != 0) {
		plain_begin(state, request, position);
		return;
	}

	request->version = bucket_header_version(header);
	if (matches == 0) {
		if (bucket_header_link(header) != 0)
			plain_begin(state, request, position);
		else
			request_answer(request, ACCEL_MISS, 0, NULL);
		return;
	}
	_Atomic uint64_t *slot = &bucket->header + hd_lowest_bit(matches);
	uint64_t entry = hd_load_acquire(slot);
	const struct item *item = item_at(&state->options.view, entry);

	if (bucket_entry_is_empty(entry) || bucket_entry_is_link(entry) ||
		bucket_entry_tag(entry) != tag || item == NULL) {
		plain_begin(state, request, position);
		return;
	}
	request_answer(request, ACCEL_HIT, entry, slot);
	item_prefetch(item, request);
}

/* Is what request_match took it for true? count: of buckets, that its home was found by. */
static bool
request_verify(const struct accel_state *state, const struct bucket_table *table,
	const struct accel_request *request, uint64_t count)
{
	if (request->found == ACCEL_MISS) {
		const struct bucket *bucket = &table->buckets[request->number];

		return hd_load_acquire(&table->count) == count &&
		       bucket_header_version(hd_load_acquire(&bucket->header)) == request->version;
	}
	const struct item *item = item_at(&state->options.view, request->entry);

	if (!item_has_key(item, request->key, request->key_size))
		return false;
	value_prefetch(item, request);
	return true;
}

static void
plain_finish(struct accel_state *state, struct accel_request *requests)
{
	const struct accel_view *view = &state->options.view;

	for (uint32_t i = 0; i < state->plain_count; i++) {
		state->candidates[i] = index_find_next(&state->finds[i]);
		if (state->candidates[i] == 0)
			continue;

		const struct item *item = item_at(view, state->candidates[i]);

		if (item != NULL)
			item_prefetch(item, &requests[state->plain[i]]);
	}
	for (uint32_t i = 0; i < state->plain_count; i++) {
		struct accel_request *request = &requests[state->plain[i]];

		request_finish(view, &state->finds[i], state->candidates[i], request);
		if (request->found == ACCEL_HIT)
			value_prefetch(item_at(view, request->entry), request);
	}
}

static void
group_run(struct accel_state *state, struct accel_request *requests, uint32_t count)
{
	const struct bucket_table *table = index_table(state->options.index);
	uint64_t buckets = hd_load_acquire(&table->count);
	uint8_t bits[GROUP];

	for (uint32_t i = 0; i < count; i++) {
		struct accel_request *request = &requests[i];
		uint32_t home_bits;

		request->hash = accel_hash(request->key, request->key_size, state->options.seed);
		request->number = bucket_home(request->hash, buckets, &home_bits);
		bits[i] = (uint8_t)home_bits;
		__builtin_prefetch(&table->buckets[request->number]);
	}
	state->plain_count = 0;
	for (uint32_t i = 0; i < count; i++)
		request_match(state, table, &requests[i], i, bits[i]);
	/* What is found untrue starts anew; one that goes the plain way isn't looked at here. */
	for (uint32_t i = 0; i < count; i++)
		if (requests[i].found != ACCEL_UNVERIFIED &&
			!request_verify(state, table, &requests[i], buckets))
			plain_begin(state, &requests[i], i);
	plain_finish(state, requests);
}

static bool
cpu_submit(struct accel_state *state, struct accel_burst **burst)
{
	check((*burst)->count <= ACCEL_BURST_MAX);
	if (state->submitted == BURSTS_MAX)
		return false;
	(*burst)->next = NULL;
	*state->last = *burst;
	state->last = &(*burst)->next;
	state->submitted++;
	*burst = NULL;
	return true;
}

static struct accel_burst *
cpu_poll(struct accel_state *state)
{
	struct accel_burst *burst = state->first;

	if (burst == NULL)
		return NULL;
	state->first = burst->next;
	if (state->first == NULL)
		state->last = &state->first;
	state->submitted--;
	burst->next = NULL;
	for (uint32_t i = 0; i < burst->count; i += GROUP)
		group_run(state, burst->requests + i,
			burst->count - i < GROUP ? burst->count - i : GROUP);
	return burst;
}

const struct accel accel_cpu = {.name = "cpu",
	.create = cpu_create,
	.submit = cpu_submit,
	.poll = cpu_poll,
	.destroy = cpu_destroy};
