/* SPDX-License-Identifier: BSD-2-Clause */
/* Open segments, who appends where; and the segments of large values. */
#include "memory/internal.h"

#include "base/check.h"
#include "store/item_hd.h"

#include <sched.h>

/*
 * Held for one copy of an item at most; only appenders that several workers share, and seals by
 * the reclaimer, ever meet.
 */
static void
appender_lock(struct appender *appender)
{
	for (unsigned turns = 0;
		atomic_flag_test_and_set_explicit(&appender->lock, memory_order_acquire);)
		if (++turns % 64 == 0)
			sched_yield();
}

static void
appender_unlock(struct appender *appender)
{
	atomic_flag_clear_explicit(&appender->lock, memory_order_release);
}

/* 0: never, or so late that it makes no difference; then ever shorter. */
unsigned
append_ttl_class(uint32_t expiry_s, uint32_t now_s, unsigned classes)
{
	static const uint32_t longest_s[TTL_CLASSES + 1][TTL_CLASSES] = {
		{0},
		{0},
		{0, 86400},
		{0, 7 * 86400, 3600},
		{0, 7 * 86400, 6 * 3600, 600},
	};
	uint32_t left = expiry_s > now_s ? expiry_s - now_s : 0;
	unsigned class = 0;

	if (expiry_s == 0)
		return 0;
	while (class + 1 < classes && left <= longest_s[classes][class + 1])
		class ++;
	return class;
}

/*
 * Open segments may take 4% of memory, those that reclaim moves into among them, but each
 * appender needs two: one a generation. Where that would be over a quarter of memory, fewer
 * appenders are shared by all workers.
 */
void
append_choose_slots(struct memory *memory)
{
	unsigned segments = (unsigned)(memory->options.limit_bytes >> memory->arena.segment_shift);
	unsigned workers = memory->options.workers, appenders = workers;

	if (2 * workers > segments / 4)
		appenders = segments / 8 ? segments / 8 : 1;
	memory->outputs_classes = segments >= 1024 ? 4 : segments >= 256 ? 2 : 1;
	unsigned budget = segments / 25;
	unsigned each = budget > memory->outputs_classes
				? (budget - memory->outputs_classes) / appenders
				: 0;

	each = each < 2 ? 2 : each > OPEN_MAX ? OPEN_MAX : each;
	memory->appenders_count = appenders;
	memory->slots[MAIN] = each / 2;
	memory->slots[PROBATION] = each - each / 2;
}

void
append_expect(struct segment *segment, uint32_t expiry_s)
{
	uint32_t expiry = expiry_s ? expiry_s : EXPIRY_NEVER;

	if (expiry > segment->expiry)
		segment->expiry = expiry;
	if (expiry < segment->first_expiry)
		segment->first_expiry = expiry;
}

static void
seal_slot(struct memory *memory, struct appender *appender, unsigned slot, bool full)
{
	pool_seal(memory, appender->open[slot], full);
	appender->open[slot] = 0;
}

/* Gives the appender an open segment with room, in place of what it has in the slot. */
static bool
open_slot(struct memory_thread *thread, unsigned slot, uint32_t bytes, uint32_t now_s)
{
	struct memory *memory = thread->memory;
	struct appender *appender = thread->appender;
	uint32_t segment = appender->open[slot], epoch = memory_epoch(memory);

	if (segment && segment_epoch(memory, segment) != epoch)
		seal_slot(memory, appender, slot, false);
	else if (segment && segment_at(memory, segment)->used + bytes > memory->segment_bytes)
		seal_slot(memory, appender, slot, true);
	if (appender->open[slot])
		return true;

	bool main = slot >= memory->slots[PROBATION];
	segment = pool_take(memory, thread, SEGMENT_OPEN, main ? MAIN : PROBATION, epoch, now_s);
	if (!segment)
		return false;
	pool_wait_no_more(thread);
	segment_at(memory, segment)->filling_s = now_s;
	appender->open[slot] = segment;
	return true;
}

/* When nothing can be reclaimed, any open segment with room will do. */
static bool
any_slot(struct memory *memory, struct appender *appender, uint32_t bytes, unsigned *slot)
{
	for (*slot = 0; *slot < memory->slots[PROBATION] + memory->slots[MAIN]; ++*slot) {
		uint32_t segment = appender->open[*slot];

		if (segment && segment_epoch(memory, segment) == memory_epoch(memory) &&
			segment_at(memory, segment)->used + bytes <= memory->segment_bytes)
			return true;
	}
	return false;
}

static enum memory_status
no_segment(struct memory_thread *thread)
{
	struct memory *memory = thread->memory;
	uint32_t needs = thread->copies + 1;

	COUNT(memory->waits, 1);
	/* Whoever copies gives back what it had. */
	thread->copies = 0;
	if (atomic_load(&memory->exhausted)) {
		pool_wait_no_more(thread);
		return MEMORY_FULL;
	}
	thread->refused = true;
	pool_wait(thread, needs);
	atomic_store(&memory->starved, true);
	pool_wake(memory);
	return MEMORY_WAIT;
}

enum memory_status
memory_append(struct memory_thread *thread, uint32_t bytes, uint32_t expiry_s, bool main,
	uint32_t now_s, struct memory_place *place)
{
	struct memory *memory = thread->memory;
	struct appender *appender = thread->appender;

	check(appender && bytes >= ITEM_HEADER && bytes % ITEM_ALIGN == 0 &&
		bytes <= memory->segment_bytes / 2);
	main = main || memory->tuning.probation_percent == 0;
	unsigned slot = main ? memory->slots[PROBATION] : 0;
	slot += append_ttl_class(expiry_s, now_s, memory->slots[main ? MAIN : PROBATION]);
	appender_lock(appender);
	if (!open_slot(thread, slot, bytes, now_s) &&
		!(atomic_load(&memory->exhausted) && any_slot(memory, appender, bytes, &slot))) {
		appender_unlock(appender);
		return no_segment(thread);
	}

	uint32_t segment = appender->open[slot];
	struct segment *s = segment_at(memory, segment);

	thread->copies = 0;
	place->segment = segment;
	place->offset = s->used / ITEM_ALIGN;
	place->item = memory_address(&memory->arena, segment, place->offset);
	place->epoch = segment_epoch(memory, segment);
	place->opened_s = memory_segment_opened_s(memory, segment);
	s->used += bytes;
	append_expect(s, expiry_s);
	atomic_fetch_add(&s->live, bytes);
	return MEMORY_OK;
}

void
memory_append_done(struct memory_thread *thread, const struct memory_place *place)
{
	struct memory *memory = thread->memory;
	struct appender *appender = thread->appender;
	const struct memory_observer *observer = memory->options.observer;
	struct segment *s = segment_at(memory, place->segment);

	if (observer && observer->written)
		observer->written(memory->options.observer_context, place->segment, s->used);
	if (item_kinds(place->item) & ITEM_LARGE) {
		body_own(memory, place->item, place->segment);
		/*
		 * So that heads of much memory don't gather in one segment, which leaves as a
		 * whole.
		 */
		for (unsigned slot = 0; slot < OPEN_MAX; slot++)
			if (appender->open[slot] == place->segment &&
				atomic_load(&s->bodies) >= body_seal_count(memory))
				seal_slot(memory, appender, slot, false);
	}
	appender_unlock(appender);
}

unsigned
append_seal(struct memory *memory, struct appender *appender, uint32_t now_s, bool all)
{
	unsigned sealed = 0;

	appender_lock(appender);
	appender->checked_s = now_s;
	for (unsigned slot = 0; slot < memory->slots[PROBATION] + memory->slots[MAIN]; slot++) {
		uint32_t segment = appender->open[slot];

		if (!segment || !append_seal_due(memory, segment, now_s, all))
			continue;
		seal_slot(memory, appender, slot, false);
		sealed++;
	}
	appender_unlock(appender);
	return sealed;
}

/* all: it pays to close it even now, because something in it can be reclaimed. */
bool
append_seal_due(const struct memory *memory, uint32_t segment, uint32_t now_s, bool all)
{
	const struct segment *s = segment_at(memory, segment);

	if (segment_epoch(memory, segment) != memory_epoch(memory) ||
		now_s >= s->filling_s + memory->options.seal_age_s)
		return true;
	return all && (memory->options.evict ||
			      s->used - atomic_load(&s->live) >= memory->segment_bytes / 16);
}

/* --- large values ------------------------------------------------------------------------- */

uint64_t
memory_large_min(const struct memory *memory)
{
	/* So that an item with the longest key and trailer is at most half a segment. */
	return memory->segment_bytes / 2 - 512;
}

uint32_t
body_count_max(const struct memory *memory)
{
	return (uint32_t)(memory->options.value_bytes_max / memory->segment_bytes) + 1;
}

uint32_t
body_seal_count(const struct memory *memory)
{
	uint32_t count = READ(memory->allowed) / 32;

	return count ? count : 1;
}

/*
 * Whoever needs many segments at once (a store that gives all back when one is refused) would
 * never get them from the few that are kept free: each refusal asks for more, up to what the
 * largest value takes, and each second without halves it.
 */
static void
want_more(struct memory *memory)
{
	uint32_t most = READ(memory->allowed) / 2, boost = READ(memory->boost);

	if (most > body_count_max(memory))
		most = body_count_max(memory);
	boost = boost ? 2 * boost : 2;
	atomic_store_explicit(&memory->boost, boost < most ? boost : most, memory_order_relaxed);
}

static void
tell_bodies_starved(struct memory *memory)
{
	if (atomic_exchange(&memory->bodies_starved, false) && memory->options.wake)
		memory->options.wake(memory->options.wake_context);
}

static enum memory_status
borrow_body(struct memory_thread *thread, uint32_t now_s, uint32_t bound, uint32_t *segment)
{
	struct memory *memory = thread->memory;

	if (atomic_fetch_add(&memory->bodies_unfinished, 1) >= bound) {
		atomic_fetch_sub(&memory->bodies_unfinished, 1);
		atomic_store(&memory->bodies_starved, true);
		/* Told by who leaves the bound; or at once, by us, who may have left it before. */
		if (atomic_load(&memory->bodies_unfinished) < bound)
			tell_bodies_starved(memory);
		return MEMORY_WAIT;
	}
	*segment = pool_take(memory, thread, SEGMENT_BODY, PROBATION, memory_epoch(memory), now_s);
	if (*segment)
		return MEMORY_OK;
	atomic_fetch_sub(&memory->bodies_unfinished, 1);
	tell_bodies_starved(memory);
	want_more(memory);
	return no_segment(thread);
}

enum memory_status
memory_body_borrow(struct memory_thread *thread, uint32_t now_s, uint32_t *segment)
{
	uint32_t bound = READ(thread->memory->allowed) / 8;

	if (bound < body_count_max(thread->memory))
		bound = body_count_max(thread->memory);
	enum memory_status status = borrow_body(thread, now_s, bound, segment);

	/* Kept over the turns, so it is what was waited for. */
	if (status == MEMORY_OK)
		pool_wait_no_more(thread);
	return status;
}

enum memory_status
memory_body_borrow_copy(struct memory_thread *thread, uint32_t now_s, uint32_t *segment)
{
	enum memory_status status = borrow_body(thread, now_s, UINT32_MAX, segment);

	thread->copies += status == MEMORY_OK;
	return status;
}

/* Who waits for unfinished bodies to become fewer is told. */
static void
unfinished_less(struct memory *memory, uint32_t count)
{
	atomic_fetch_sub(&memory->bodies_unfinished, count);
	tell_bodies_starved(memory);
}

void
memory_body_publish(struct memory *memory, const uint32_t *segments, uint32_t count)
{
	const struct memory_observer *observer = memory->options.observer;

	for (uint32_t i = 0; i < count; i++) {
		struct segment *s = segment_at(memory, segments[i]);

		check(atomic_load(&s->state) == SEGMENT_BODY && !s->published);
		s->published = true;
		if (observer && observer->sealed)
			observer->sealed(memory->options.observer_context, segments[i]);
	}
	unfinished_less(memory, count);
}

/* A body no longer counts for its head's segment, if that still lives the same life. */
static void
disown(struct memory *memory, uint64_t head)
{
	uint32_t segment = (uint32_t)head;

	if (segment == 0 || segment_at(memory, segment)->life != head >> 32)
		return;
	_Atomic uint32_t *bodies = &segment_at(memory, segment)->bodies;
	uint32_t count = atomic_load(bodies);

	while (count && !atomic_compare_exchange_weak(bodies, &count, count - 1))
		;
	if (!count)
		return;
	atomic_fetch_sub(&memory->generation_bodies[READ(memory->faces[segment].generation)], 1);
	if (count == 1)
		pool_relist(memory, segment);
}

void
body_own(struct memory *memory, const struct item *item, uint32_t segment)
{
	uint32_t count = item_large_count(item);
	uint64_t head = (uint64_t)segment_at(memory, segment)->life << 32 | segment;

	COUNT(segment_at(memory, segment)->bodies, count);
	COUNT(memory->generation_bodies[READ(memory->faces[segment].generation)], count);
	for (uint32_t i = 0; i < count; i++)
		disown(memory,
			atomic_exchange(
				&segment_at(memory, item_large_segment(item, i))->head, head));
}

void
memory_body_release(struct memory *memory, const uint32_t *segments, uint32_t count, bool published)
{
	for (uint32_t i = 0; i < count; i++) {
		struct segment *s = segment_at(memory, segments[i]);

		check(atomic_load(&s->state) == SEGMENT_BODY && s->published == published);
		disown(memory, atomic_exchange(&s->head, 0));
		pool_release(memory, segments[i]);
	}
	if (!published)
		unfinished_less(memory, count);
	atomic_store(&memory->exhausted, false);
	if (pool_free_count(memory) < pool_target(memory))
		pool_wake(memory);
}
