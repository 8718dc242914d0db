/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Segments as wholes: which are free, in what order the sealed ones stand, and when released ones
 * may be used again.
 */
#include "memory/internal.h"

#include "base/check.h"
#include "base/pages.h"

/*
 * Dead segments for which the background is called, though memory isn't full: one grace period
 * makes their pages usable again, while untouched ones must be cleared by the system first.
 */
#define DEAD_BATCH 8

/* --- lists and the expiry heap; all under the pool's mutex -------------------------------- */

static struct segment_links *
links_of(struct memory *memory, uint32_t segment, bool sharing)
{
	struct segment *s = segment_at(memory, segment);

	return sharing ? &s->sharing : &s->age;
}

static void
list_append(struct memory *memory, struct segment_list *list, uint32_t segment, bool sharing)
{
	struct segment_links *links = links_of(memory, segment, sharing);

	links->next = 0;
	links->previous = list->last;
	if (list->last)
		links_of(memory, list->last, sharing)->next = segment;
	else
		list->first = segment;
	list->last = segment;
	list->count++;
}

static void
list_prepend(struct memory *memory, struct segment_list *list, uint32_t segment)
{
	struct segment_links *links = links_of(memory, segment, false);

	links->previous = 0;
	links->next = list->first;
	if (list->first)
		links_of(memory, list->first, false)->previous = segment;
	else
		list->last = segment;
	list->first = segment;
	list->count++;
}

static void
list_remove(struct memory *memory, struct segment_list *list, uint32_t segment, bool sharing)
{
	struct segment_links *links = links_of(memory, segment, sharing);

	if (links->previous)
		links_of(memory, links->previous, sharing)->next = links->next;
	else
		list->first = links->next;
	if (links->next)
		links_of(memory, links->next, sharing)->previous = links->previous;
	else
		list->last = links->previous;
	list->count--;
}

static void
heap_put(struct memory *memory, uint32_t at, uint32_t segment)
{
	memory->heap[at] = segment;
	segment_at(memory, segment)->heap_at = at;
}

static uint32_t
heap_expiry(struct memory *memory, uint32_t at)
{
	return segment_at(memory, memory->heap[at])->expiry;
}

/* Lets the segment sink or rise from this place to where it belongs. */
static void
heap_settle(struct memory *memory, uint32_t at, uint32_t segment)
{
	uint32_t expiry = segment_at(memory, segment)->expiry;

	for (; at > 1 && heap_expiry(memory, at / 2) > expiry; at /= 2)
		heap_put(memory, at, memory->heap[at / 2]);
	for (uint32_t child; (child = 2 * at) <= memory->heap_count; at = child) {
		if (child < memory->heap_count &&
			heap_expiry(memory, child + 1) < heap_expiry(memory, child))
			child++;
		if (heap_expiry(memory, child) >= expiry)
			break;
		heap_put(memory, at, memory->heap[child]);
	}
	heap_put(memory, at, segment);
}

static void
heap_insert(struct memory *memory, uint32_t segment)
{
	uint32_t at = ++memory->heap_count;

	memory->heap[at] = segment;
	heap_settle(memory, at, segment);
}

static void
heap_remove(struct memory *memory, uint32_t segment)
{
	uint32_t at = segment_at(memory, segment)->heap_at,
		 last = memory->heap[memory->heap_count--];

	segment_at(memory, segment)->heap_at = 0;
	if (last != segment)
		heap_settle(memory, at, last);
}

/* --- limits ------------------------------------------------------------------------------- */

static uint32_t
least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t
most(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

void
pool_set_allowed(struct memory *memory)
{
	/* What was stored before by anybody counts: who comes last here has read all of it. */
	pthread_mutex_lock(&memory->pool);
	uint64_t limit = READ(memory->limit_bytes), outside = READ(memory->outside_bytes);
	uint64_t own = (uint64_t)READ(memory->ghost.sets) * GHOST_WAYS * 4 + memory->reads_bytes;
	uint64_t each =
		memory->segment_bytes + sizeof(struct segment) + sizeof(struct segment_face) + 4;
	uint64_t allowed = limit > outside + own ? (limit - outside - own) / each : 0;
	/* What the open segments need, and some to turn over; below that nothing works at all. */
	uint32_t opens = memory->appenders_count * (memory->slots[PROBATION] + memory->slots[MAIN]);
	uint32_t floor = opens + memory->outputs_classes + 4;

	uint32_t n = allowed > memory->arena.segments_max - 1 ? memory->arena.segments_max - 1
							      : (uint32_t)allowed;
	n = most(n, floor);
	/*
	 * Reclaim keeps a segment or two to move items into, or it could wait for itself. The
	 * background starts at 'low' and goes on to 'target': free segments hold nothing, so both
	 * are small, but a full one lasts a worker a few milliseconds only.
	 */
	uint32_t reserve = n < 64 ? 1 : 2;
	uint32_t low = reserve + most(1, least(n / 16, most(n / 64, memory->options.workers + 1)));

	atomic_store(&memory->allowed, n);
	atomic_store(&memory->reserve, reserve);
	atomic_store(&memory->low, low);
	atomic_store(&memory->target, low + most(1, n / 128));
	pthread_mutex_unlock(&memory->pool);
}

int64_t
pool_free_count(const struct memory *memory)
{
	return (int64_t)READ(memory->allowed) - (int64_t)READ(memory->used);
}

void
pool_wake(struct memory *memory)
{
	if (!atomic_exchange(&memory->woken, true) && memory->options.wake)
		memory->options.wake(memory->options.wake_context);
}

void
pool_tell_starved(struct memory *memory)
{
	if (atomic_exchange(&memory->starved, false) && memory->options.wake)
		memory->options.wake(memory->options.wake_context);
}

void
pool_set_exhausted(struct memory *memory)
{
	atomic_store(&memory->exhausted, true);
	pool_tell_starved(memory);
}

/* --- free segments ------------------------------------------------------------------------ */

/*
 * A number whose pages are there already, else one that is committed by its first use. 0: none.
 * Locked.
 */
static uint32_t
free_number(struct memory *memory)
{
	uint32_t segment = memory->free.first;

	if (segment) {
		list_remove(memory, &memory->free, segment, false);
		return segment;
	}
	if ((segment = memory->bare.first))
		list_remove(memory, &memory->bare, segment, false);
	else if (memory->bare_from < memory->arena.segments_max)
		segment = memory->bare_from++;
	if (segment)
		memory->resident++;
	return segment;
}

/* What those need who have waited longer than this thread. Locked. */
static int64_t
needed_before(const struct memory *memory, const struct memory_thread *thread)
{
	int64_t needed = 0;

	for (const struct memory_thread *t = memory->waiting; t && t != thread; t = t->waits_after)
		needed += t->needs;
	return needed;
}

void
pool_wait(struct memory_thread *thread, uint32_t needs)
{
	struct memory *memory = thread->memory;
	struct memory_thread **last = &memory->waiting;

	pthread_mutex_lock(&memory->pool);
	while (*last && *last != thread)
		last = &(*last)->waits_after;
	*last = thread;
	thread->needs = needs;
	pthread_mutex_unlock(&memory->pool);
}

void
pool_wait_no_more(struct memory_thread *thread)
{
	struct memory *memory = thread->memory;
	struct memory_thread **at = &memory->waiting;

	if (thread->needs == 0)
		return;
	pthread_mutex_lock(&memory->pool);
	while (*at != thread)
		at = &(*at)->waits_after;
	*at = thread->waits_after;
	thread->waits_after = NULL;
	thread->needs = 0;
	bool others = memory->waiting && pool_free_count(memory) > READ(memory->reserve);
	pthread_mutex_unlock(&memory->pool);
	/* What was kept for this one may be for others. */
	if (others)
		pool_tell_starved(memory);
}

uint32_t
pool_take(struct memory *memory, struct memory_thread *thread, enum segment_state state,
	enum generation generation, uint32_t epoch, uint32_t opened_s)
{
	uint32_t segment = 0;

	pthread_mutex_lock(&memory->pool);
	int64_t spare = thread ? READ(memory->reserve) : 0;
	/* Where no more can be had, nobody's turn comes by keeping what is left. */
	if (thread && !atomic_load(&memory->exhausted))
		spare += needed_before(memory, thread);
	if (pool_free_count(memory) > spare)
		segment = free_number(memory);
	if (segment) {
		struct segment *s = segment_at(memory, segment);
		struct segment_face *face = &memory->faces[segment];

		atomic_store_explicit(&face->epoch, epoch, memory_order_relaxed);
		atomic_store_explicit(&face->opened_s, opened_s, memory_order_relaxed);
		atomic_store_explicit(&face->generation, generation, memory_order_relaxed);
		atomic_store(&s->live, 0);
		atomic_store(&s->bodies, 0);
		atomic_store(&s->capacity, memory->segment_bytes);
		atomic_store(&s->head, 0);
		s->used = s->expiry = s->garbage = s->heap_at = 0;
		s->first_expiry = EXPIRY_NEVER;
		s->published = false;
		s->life++;
		atomic_store(&s->state, state);
		COUNT(memory->used, 1);
		if (state == SEGMENT_OPEN) {
			memory->open_count++;
			COUNT(memory->generation_count[generation], 1);
		} else {
			COUNT(memory->bodies_count, 1);
		}
	}
	bool short_of = pool_free_count(memory) < pool_low(memory);
	pthread_mutex_unlock(&memory->pool);

	if (short_of)
		pool_wake(memory);
	const struct memory_observer *observer = memory->options.observer;
	if (segment && observer && observer->opened)
		observer->opened(memory->options.observer_context, segment, epoch);
	return segment;
}

bool
pool_trim(struct memory *memory)
{
	if (memory->huge_pages || atomic_load(&memory->pages_stay))
		return false;
	for (unsigned n = TRIM_SEGMENTS; n > 0; n--) {
		uint32_t segment = 0;

		pthread_mutex_lock(&memory->pool);
		if (memory->resident > READ(memory->allowed) && (segment = memory->free.last)) {
			list_remove(memory, &memory->free, segment, false);
			atomic_store(&segment_at(memory, segment)->state, SEGMENT_BARE);
		}
		pthread_mutex_unlock(&memory->pool);
		if (!segment)
			return false;

		bool bare = pages_decommit(
			memory_address(&memory->arena, segment, 0), memory->segment_bytes);
		pthread_mutex_lock(&memory->pool);
		if (bare) {
			memory->resident--;
			list_append(memory, &memory->bare, segment, false);
		} else {
			atomic_store(&segment_at(memory, segment)->state, SEGMENT_FREE);
			list_append(memory, &memory->free, segment, false);
			atomic_store(&memory->pages_stay, true);
		}
		pthread_mutex_unlock(&memory->pool);
	}
	return true;
}

/* --- sealed segments ---------------------------------------------------------------------- */

/* The list that a sealed segment belongs in. Bodies are live bytes of their heads' segment. */
static uint32_t
garbage_of(struct memory *memory, uint32_t segment)
{
	struct segment *s = segment_at(memory, segment);
	uint64_t live = atomic_load(&s->live);

	if (live == 0 || segment_epoch(memory, segment) != atomic_load(&memory->epoch))
		return GARBAGE_DEAD;
	live += (uint64_t)atomic_load(&s->bodies) * memory->segment_bytes;
	uint64_t capacity = atomic_load(&s->capacity);
	return live >= capacity ? 0
				: (uint32_t)((capacity - live) * 16 >> memory->arena.segment_shift);
}

void
pool_relist_locked(struct memory *memory, uint32_t segment)
{
	struct segment *s = segment_at(memory, segment);

	if (atomic_load(&s->state) != SEGMENT_SEALED)
		return;
	uint32_t garbage = garbage_of(memory, segment);
	if (garbage == s->garbage)
		return;
	if (s->garbage)
		list_remove(memory, &memory->garbage[s->garbage], segment, true);
	s->garbage = garbage;
	if (garbage)
		list_append(memory, &memory->garbage[garbage], segment, true);
}

void
pool_relist(struct memory *memory, uint32_t segment)
{
	pthread_mutex_lock(&memory->pool);
	pool_relist_locked(memory, segment);
	bool reuse = memory->garbage[GARBAGE_DEAD].count >= DEAD_BATCH;
	pthread_mutex_unlock(&memory->pool);
	if (reuse)
		pool_wake(memory);
	/* Something may be had now; who waits must hear of it. */
	if (atomic_load(&memory->exhausted)) {
		atomic_store(&memory->exhausted, false);
		pool_wake(memory);
	}
}

static void
enlist_locked(struct memory *memory, uint32_t segment)
{
	struct segment *s = segment_at(memory, segment);

	list_append(memory, &memory->age[READ(memory->faces[segment].generation)], segment, false);
	if (s->expiry != EXPIRY_NEVER)
		heap_insert(memory, segment);
	/*
	 * memory_dead subtracts, then looks at the state; here the state is stored, then 'live'
	 * read: one of the two relists.
	 */
	atomic_store(&s->state, SEGMENT_SEALED);
	pool_relist_locked(memory, segment);
}

void
pool_seal(struct memory *memory, uint32_t segment, bool full)
{
	struct segment *s = segment_at(memory, segment);

	pthread_mutex_lock(&memory->pool);
	check(atomic_load(&s->state) == SEGMENT_OPEN);
	if (full)
		atomic_store(&s->capacity, s->used);
	s->stamp = atomic_load(&memory->grace_begun);
	memory->open_count--;
	enlist_locked(memory, segment);
	bool earliest = memory->heap_count && memory->heap[1] == segment, garbage = s->garbage;
	pthread_mutex_unlock(&memory->pool);

	/* The background sleeps until the earliest expiry that it knows, or has nothing to free. */
	bool freeable = garbage && atomic_exchange(&memory->exhausted, false);
	if (earliest || freeable)
		pool_wake(memory);
	const struct memory_observer *observer = memory->options.observer;
	if (observer && observer->sealed)
		observer->sealed(memory->options.observer_context, segment);
}

void
pool_claim_locked(struct memory *memory, uint32_t segment)
{
	struct segment *s = segment_at(memory, segment);
	uint32_t generation = READ(memory->faces[segment].generation);

	check(atomic_load(&s->state) == SEGMENT_SEALED);
	list_remove(memory, &memory->age[generation], segment, false);
	if (s->garbage)
		list_remove(memory, &memory->garbage[s->garbage], segment, true);
	s->garbage = 0;
	if (s->heap_at)
		heap_remove(memory, segment);
	atomic_store(&s->state, SEGMENT_CLEARING);
	atomic_fetch_sub(&memory->generation_count[generation], 1);
}

void
pool_unclaim(struct memory *memory, uint32_t segment)
{
	pthread_mutex_lock(&memory->pool);
	COUNT(memory->generation_count[READ(memory->faces[segment].generation)], 1);
	enlist_locked(memory, segment);
	pthread_mutex_unlock(&memory->pool);
}

bool
pool_settled(const struct memory *memory, uint32_t segment)
{
	return atomic_load(&memory->grace_over) > segment_at(memory, segment)->stamp;
}

/* --- grace -------------------------------------------------------------------------------- */

void
pool_release(struct memory *memory, uint32_t segment)
{
	struct segment *s = segment_at(memory, segment);
	const struct memory_observer *observer = memory->options.observer;

	if (observer && observer->released)
		observer->released(memory->options.observer_context, segment);

	pthread_mutex_lock(&memory->pool);
	if (atomic_load(&s->state) == SEGMENT_BODY) {
		atomic_fetch_sub(&memory->bodies_count, 1);
	} else {
		check(atomic_load(&s->state) == SEGMENT_CLEARING);
		/* Heads that were never published may have left some bodies counted here. */
		uint32_t left = atomic_exchange(&s->bodies, 0);
		atomic_fetch_sub(
			&memory->generation_bodies[READ(memory->faces[segment].generation)], left);
	}
	atomic_store(&s->state, SEGMENT_GRACE);
	s->stamp = atomic_load(&memory->grace_begun);
	list_append(memory, &memory->grace, segment, false);
	pthread_mutex_unlock(&memory->pool);
}

static void
free_locked(struct memory *memory, uint32_t segment)
{
	struct segment *s = segment_at(memory, segment);

	if (atomic_load(&s->live) != 0)
		COUNT(memory->accounting_errors, 1);
	atomic_store(&s->state, SEGMENT_FREE);
	atomic_fetch_sub(&memory->used, 1);
	list_prepend(memory, &memory->free, segment);
}

uint32_t
pool_free_ready(struct memory *memory)
{
	uint32_t freed = 0, segment;

	pthread_mutex_lock(&memory->pool);
	while ((segment = memory->grace.first) && pool_settled(memory, segment)) {
		list_remove(memory, &memory->grace, segment, false);
		if (atomic_load(&segment_at(memory, segment)->pins)) {
			list_append(memory, &memory->held, segment, false);
			continue;
		}
		free_locked(memory, segment);
		freed++;
	}
	if (atomic_exchange(&memory->held_ready, false))
		for (uint32_t next, held = memory->held.first; held; held = next) {
			next = segment_at(memory, held)->age.next;
			if (atomic_load(&segment_at(memory, held)->pins))
				continue;
			list_remove(memory, &memory->held, held, false);
			free_locked(memory, held);
			freed++;
		}
	pthread_mutex_unlock(&memory->pool);

	if (freed && pool_trim(memory))
		pool_wake(memory);
	if (freed && pool_free_count(memory) > 0) {
		atomic_store(&memory->exhausted, false);
		pool_tell_starved(memory);
	}
	return freed;
}
