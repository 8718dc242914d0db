/* SPDX-License-Identifier: BSD-2-Clause */
/* Bodies of large values on their way in, and pins of what a send left over. */
#include "store/internal.h"

void
store_get_arena(const struct store *store, struct store_arena *arena)
{
	*arena = (struct store_arena){
		.base = store->arena.base,
		.segment_shift = store->arena.segment_shift,
		.segments_max = store->arena.segments_max,
		.large_min = memory_large_min(store->memory),
	};
}

enum store_status
store_body_borrow(struct store_thread *thread, bool over_bound, uint32_t *segment, uint8_t **room)
{
	enum memory_status status = memory_body_borrow(thread->memory, thread->now_s, segment);

	if (status == MEMORY_WAIT && over_bound)
		status = memory_body_borrow_copy(thread->memory, thread->now_s, segment);
	if (status != MEMORY_OK)
		return status == MEMORY_WAIT ? STORE_WAIT : STORE_NO_MEMORY;
	*room = memory_address(&thread->store->arena, *segment, 0);
	return STORE_DONE;
}

void
store_body_release(struct store *store, const uint32_t *segments, uint32_t count)
{
	memory_body_release(store->memory, segments, count, false);
}

static bool
in_arena(const struct memory_arena *arena, const uint8_t *bytes)
{
	return bytes >= arena->base &&
	       bytes < arena->base + ((uint64_t)arena->segments_max << arena->segment_shift);
}

static enum store_pinned
pin_loan(struct store_thread *thread, const void *bytes)
{
	static const enum store_pinned answers[] = {
		[FLASH_PINNED] = STORE_PINNED,
		[FLASH_PIN_REFUSED] = STORE_PIN_REFUSED,
		[FLASH_ELSEWHERE] = STORE_ELSEWHERE,
	};

	return answers[flash_pin(thread->flash, bytes)];
}

enum store_pinned
store_pin(struct store_thread *thread, const void *bytes)
{
	struct store *store = thread->store;

	if (!in_arena(&store->arena, bytes))
		return thread->flash ? pin_loan(thread, bytes) : STORE_ELSEWHERE;
	return memory_pin(store->memory, memory_segment_of(&store->arena, bytes))
		       ? STORE_PINNED
		       : STORE_PIN_REFUSED;
}

void
store_unpin(struct store_thread *thread, const void *bytes)
{
	struct store *store = thread->store;

	if (in_arena(&store->arena, bytes))
		memory_unpin(store->memory, memory_segment_of(&store->arena, bytes));
	else
		flash_unpin(thread->flash, bytes);
}
