/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * chain: a bucket's overflow units, and where units come from.
 *
 * A unit is in a chain, or retired (taken out; readers may still be in it, so its link must stay),
 * or free. Retired and free units are linked through their first word, whose segment is 0, so that
 * a late reader takes it for an empty slot.
 */
#include "index/table.h"

#include "base/check.h"

#include <urcu-qsbr.h>

#define UNIT_BYTES sizeof(struct bucket_unit)
#define UNIT_NUMBER_MAX ((1u << 31) - 1)

static void
stack_push(struct index *index, _Atomic uint64_t *stack, uint32_t unit)
{
	struct bucket_unit *at = bucket_unit_at(&index->table, unit);
	uint64_t top = atomic_load_explicit(stack, memory_order_relaxed), pushed;

	do {
		/*
		 * Release: a late reader who sees it instead of the entry that stood there must see
		 * the bumped version too.
		 */
		atomic_store_explicit(
			&at->entries[0], bucket_number_spread((uint32_t)top), memory_order_release);
		pushed = ((top >> 32) + 1) << 32 | unit;
	} while (!atomic_compare_exchange_weak_explicit(
		stack, &top, pushed, memory_order_release, memory_order_relaxed));
}

static uint32_t
stack_pop(struct index *index, _Atomic uint64_t *stack)
{
	uint64_t top = atomic_load_explicit(stack, memory_order_acquire), popped;

	do {
		if ((uint32_t)top == 0)
			return 0;
		/*
		 * The unit may be popped and used by another meanwhile: then the count differs and
		 * what was read is void.
		 */
		struct bucket_unit *at = bucket_unit_at(&index->table, (uint32_t)top);
		uint64_t first = atomic_load_explicit(&at->entries[0], memory_order_relaxed);

		popped = ((top >> 32) + 1) << 32 | bucket_number_gather(first);
	} while (!atomic_compare_exchange_weak_explicit(
		stack, &top, popped, memory_order_acquire, memory_order_acquire));
	return (uint32_t)top;
}

bool
index_take_space(struct index *index, uint64_t bytes)
{
	uint64_t used = atomic_fetch_add_explicit(&index->space_used, bytes, memory_order_relaxed);

	if (used + bytes <= index->area_bytes)
		return true;
	atomic_fetch_sub_explicit(&index->space_used, bytes, memory_order_relaxed);
	return false;
}

/* A unit's number, 0 when there is none. */
static uint32_t
unit_borrow(struct index *index)
{
	uint32_t unit = stack_pop(index, &index->units_free);

	if (unit == 0) {
		if (!index_take_space(index, UNIT_BYTES))
			return 0;
		uint64_t made =
			atomic_fetch_add_explicit(&index->units_made, 1, memory_order_relaxed) + 1;

		check(made <= UNIT_NUMBER_MAX); /* the area is smaller than that */
		unit = (uint32_t)made;
	}
	atomic_fetch_add_explicit(&index->units_in_chains, 1, memory_order_relaxed);
	return unit;
}

void
index_reclaim_units(struct index *index)
{
	uint64_t retired = atomic_load_explicit(&index->units_retired, memory_order_relaxed);

	if ((uint32_t)retired == 0)
		return;
	while (!atomic_compare_exchange_weak_explicit(&index->units_retired, &retired,
		((retired >> 32) + 1) << 32, memory_order_acquire, memory_order_relaxed))
		;
	synchronize_rcu();
	uint64_t count = 0;
	for (uint32_t unit = (uint32_t)retired; unit != 0; count++) {
		struct bucket_unit *at = bucket_unit_at(&index->table, unit);
		uint32_t next = bucket_number_gather(
			atomic_load_explicit(&at->entries[0], memory_order_relaxed));

		stack_push(index, &index->units_free, unit);
		unit = next;
	}
	atomic_fetch_sub_explicit(&index->units_retired_count, count, memory_order_relaxed);
}

uint64_t
index_units_retired(const struct index *index)
{
	return atomic_load_explicit(&index->units_retired_count, memory_order_relaxed);
}

static uint32_t
unit_next(const struct bucket_unit *unit)
{
	uint64_t last =
		atomic_load_explicit(&unit->entries[BUCKET_UNIT_ENTRIES - 1], memory_order_relaxed);

	return bucket_entry_is_link(last) ? bucket_number_gather(last) : 0;
}

static uint32_t
bucket_link(const struct bucket *bucket)
{
	return bucket_header_link(atomic_load_explicit(&bucket->header, memory_order_relaxed));
}

static void
bucket_set_link(struct bucket *bucket, uint32_t link)
{
	uint64_t header = atomic_load_explicit(&bucket->header, memory_order_relaxed);

	atomic_store_explicit(&bucket->header,
		bucket_header_make(bucket_header_version(header), link, 1), memory_order_release);
}

void
chain_walk_begin(struct chain_walk *walk, struct index *index, struct bucket *bucket)
{
	*walk = (struct chain_walk){index, bucket->entries, BUCKET_ENTRIES, 0, bucket_link(bucket)};
}

_Atomic uint64_t *
chain_walk_next(struct chain_walk *walk)
{
	if (walk->position == walk->count) {
		if (walk->link == 0)
			return NULL;
		struct bucket_unit *unit = bucket_unit_at(&walk->index->table, walk->link);

		walk->link = unit_next(unit);
		walk->words = unit->entries;
		walk->count = walk->link != 0 ? BUCKET_UNIT_ENTRIES - 1 : BUCKET_UNIT_ENTRIES;
		walk->position = 0;
	}
	return &walk->words[walk->position++];
}

static bool
slot_is_empty(const _Atomic uint64_t *slot)
{
	return bucket_entry_is_empty(atomic_load_explicit(slot, memory_order_relaxed));
}

_Atomic uint64_t *
chain_free_slot(struct index *index, struct bucket *bucket)
{
	struct chain_walk walk;
	_Atomic uint64_t *slot;
	uint32_t link = bucket_link(bucket);

	/* All others are full, but for holes that unlocking will close. */
	chain_walk_begin(&walk, index, bucket);
	while ((slot = chain_walk_next(&walk)) != NULL &&
		(walk.words == bucket->entries ||
			walk.words == bucket_unit_at(&index->table, link)->entries))
		if (slot_is_empty(slot))
			return slot;

	uint32_t unit = unit_borrow(index);

	if (unit == 0)
		return NULL;
	struct bucket_unit *at = bucket_unit_at(&index->table, unit);

	for (unsigned i = 0; i < BUCKET_UNIT_ENTRIES; i++)
		atomic_store_explicit(&at->entries[i], 0, memory_order_relaxed);
	if (link != 0)
		atomic_store_explicit(&at->entries[BUCKET_UNIT_ENTRIES - 1], bucket_link_make(link),
			memory_order_relaxed);
	bucket_set_link(bucket, unit);
	return &at->entries[0];
}

/* Takes the first unit out. Its link stays, for readers that are in it. */
static void
chain_take_out_first(struct index *index, struct bucket *bucket)
{
	uint32_t unit = bucket_link(bucket);

	bucket_set_link(bucket, unit_next(bucket_unit_at(&index->table, unit)));
	atomic_fetch_sub_explicit(&index->units_in_chains, 1, memory_order_relaxed);
	/* First, so that what index_reclaim_units subtracts was added. */
	atomic_fetch_add_explicit(&index->units_retired_count, 1, memory_order_relaxed);
	stack_push(index, &index->units_retired, unit);
}

/*
 * An entry of the first unit, after taking out first units that are all empty; NULL when no chain
 * is left.
 */
static _Atomic uint64_t *
chain_first_entry(struct index *index, struct bucket *bucket)
{
	uint32_t link;

	while ((link = bucket_link(bucket)) != 0) {
		struct bucket_unit *unit = bucket_unit_at(&index->table, link);
		unsigned count =
			unit_next(unit) != 0 ? BUCKET_UNIT_ENTRIES - 1 : BUCKET_UNIT_ENTRIES;

		for (unsigned i = 0; i < count; i++)
			if (!slot_is_empty(&unit->entries[i]))
				return &unit->entries[i];
		chain_take_out_first(index, bucket);
	}
	return NULL;
}

/* Moves *from into a hole and gives the next entry that may be moved. */
static _Atomic uint64_t *
chain_fill(
	struct index *index, struct bucket *bucket, _Atomic uint64_t *hole, _Atomic uint64_t *from)
{
	atomic_store_explicit(
		hole, atomic_load_explicit(from, memory_order_relaxed), memory_order_release);
	bucket_bump(bucket);
	atomic_store_explicit(from, 0, memory_order_release);
	return chain_first_entry(index, bucket);
}

void
chain_compact(struct index *index, struct bucket *bucket)
{
	_Atomic uint64_t *from = chain_first_entry(index, bucket);

	for (unsigned i = 0; i < BUCKET_ENTRIES && from != NULL; i++)
		if (slot_is_empty(&bucket->entries[i]))
			from = chain_fill(index, bucket, &bucket->entries[i], from);
	if (from == NULL)
		return;

	uint32_t link = unit_next(bucket_unit_at(&index->table, bucket_link(bucket)));

	/*
	 * When all before it have been taken out, a unit is itself the first, where holes may stay.
	 */
	for (; link != 0; link = unit_next(bucket_unit_at(&index->table, link))) {
		struct bucket_unit *unit = bucket_unit_at(&index->table, link);
		unsigned count =
			unit_next(unit) != 0 ? BUCKET_UNIT_ENTRIES - 1 : BUCKET_UNIT_ENTRIES;

		for (unsigned i = 0; i < count && bucket_link(bucket) != link; i++)
			if (slot_is_empty(&unit->entries[i]))
				from = chain_fill(index, bucket, &unit->entries[i], from);
	}
}

void
chain_drop(struct index *index, struct bucket *bucket)
{
	while (bucket_link(bucket) != 0)
		chain_take_out_first(index, bucket);
}
