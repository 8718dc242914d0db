/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The cpu implementation: a group of requests goes through each step together, so that the loads of
 * one step are in flight at once: hash | load home buckets | match tags, load the first candidates'
 * items | compare keys.
 */
#include "accel/accel.h"

#include "base/check.h"
#include "index/index.h"
#include "store/item_hd.h"

#include <stdlib.h>
#include <xxhash.h>

#define GROUP 64     /* requests in flight: their buckets and items stay in the first-level cache */
#define BURSTS_MAX 8 /* submitted and not polled */

struct accel_state {
	struct accel_options options;
	struct accel_burst *first, **last; /* submitted */
	uint32_t submitted;
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

static void
group_run(struct accel_state *state, struct accel_request *requests, uint32_t count)
{
	const struct accel_options *options = &state->options;

	for (uint32_t i = 0; i < count; i++) {
		requests[i].hash = accel_hash(requests[i].key, requests[i].key_size, options->seed);
		index_prefetch(options->index, requests[i].hash);
	}
	for (uint32_t i = 0; i < count; i++) {
		struct index_find *find = &state->finds[i];

		index_find_begin(options->index, requests[i].hash, find);
		state->candidates[i] = index_find_next(find);

		const struct item *item = state->candidates[i] != 0
						  ? item_at(&options->view, state->candidates[i])
						  : NULL;

		if (item != NULL) {
			__builtin_prefetch(item);
			/* Items start on any 16 bytes: the key may end in the next line. */
			__builtin_prefetch(
				(const uint8_t *)item + ITEM_HEADER + requests[i].key_size - 1);
		}
	}
	for (uint32_t i = 0; i < count; i++)
		request_finish(
			&options->view, &state->finds[i], state->candidates[i], &requests[i]);
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
