/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What leaves, and when. One piece of work (a job) is in progress at a time; whoever holds the
 * token does a bounded step of it: the background thread, or a worker whose writes outrun it.
 * Only the background waits for grace periods.
 */
#include "memory/internal.h"

#include "base/check.h"
#include "base/rcu.h"

#include <sched.h>
#include <string.h>

#define FLUSH_SCAN 512 /* segments compared with the epoch while the pool's mutex is held */
#define SWEEP_SCAN 512 /* the same, with the time */
#define GRACE_BATCH                                                                                \
	8 /* segments that wait before a grace period is worth while although there is more to do */
#define LOOK_AT 64 /* segments looked at for one that can be claimed */

static const struct budget background_budget = {2000, 256 * 1024};
static const struct budget worker_budget = {250, 64 * 1024};

bool
reclaim_token_take(struct memory *memory)
{
	return !atomic_flag_test_and_set_explicit(&memory->token, memory_order_acquire);
}

void
reclaim_token_return(struct memory *memory)
{
	atomic_flag_clear_explicit(&memory->token, memory_order_release);
}

/* Main segments merged at a time: 64, fewer where memory has not many. */
unsigned
reclaim_merge_width(const struct memory *memory)
{
	uint64_t width = (memory->options.limit_bytes >> memory->arena.segment_shift) / 8;

	return width < 2			    ? 2
	       : width > memory->tuning.merge_width ? memory->tuning.merge_width
						    : (unsigned)width;
}

/* --- choosing: under the pool's mutex ----------------------------------------------------- */

static void
claim(struct memory *memory, uint32_t segment)
{
	struct job *job = &memory->job;
	uint32_t opened_s = READ(memory->faces[segment].opened_s);

	pool_claim_locked(memory, segment);
	if (job->count == 0 || opened_s < job->opened_s)
		job->opened_s = opened_s;
	job->sources[job->count++] = segment;
}

/*
 * A job of this kind on one segment, if it has settled; else *young tells that a grace period
 * would help.
 */
static bool
start(struct memory *memory, enum job_kind kind, enum memory_reason reason, uint32_t segment,
	bool *young)
{
	if (!pool_settled(memory, segment)) {
		*young = true;
		return false;
	}
	memory->job = (struct job){.kind = kind, .reason = reason};
	claim(memory, segment);
	return true;
}

/* Moves segments of old epochs to the list of dead ones. True while there are more to compare. */
static bool
scan_flushed(struct memory *memory)
{
	uint32_t n = FLUSH_SCAN;

	for (; n > 0 && memory->flush_cursor < memory->bare_from; n--)
		pool_relist_locked(memory, memory->flush_cursor++);
	return n == 0;
}

static bool
start_dead(struct memory *memory, uint32_t now_s, bool *young)
{
	uint32_t segment = memory->garbage[GARBAGE_DEAD].first;

	if (segment) {
		bool old = segment_epoch(memory, segment) != memory_epoch(memory);

		if (start(memory, JOB_CLEAR, old ? MEMORY_FLUSHED : MEMORY_EVICTED, segment, young))
			return true;
	}
	segment = memory->heap_count ? memory->heap[1] : 0;
	return segment && segment_at(memory, segment)->expiry <= now_s &&
	       start(memory, JOB_CLEAR, MEMORY_EXPIRED, segment, young);
}

/*
 * Sealed before it was full, by age: where little is written such segments would be all of memory.
 */
static bool
sparse(const struct memory *memory, uint32_t segment)
{
	return atomic_load(&segment_at(memory, segment)->capacity) == memory->segment_bytes;
}

/*
 * The one with the lowest live share. Without eviction every dead sixteenth counts; with it,
 * merging does the rest.
 */
static bool
start_compact(struct memory *memory, bool *young)
{
	unsigned least_garbage = memory->options.evict ? memory->tuning.garbage_min : 1;
	const struct segment_face *faces = memory->faces;

	if (!memory->options.evict && atomic_load(&memory->exhausted))
		return false;
	for (unsigned garbage = GARBAGE_DEAD - 1; garbage >= least_garbage; garbage--) {
		uint32_t segment = memory->garbage[garbage].first;

		for (unsigned n = LOOK_AT; segment && n > 0; n--) {
			if ((!memory->options.evict || READ(faces[segment].generation) == MAIN ||
				    sparse(memory, segment)) &&
				start(memory, JOB_COMPACT, MEMORY_EVICTED, segment, young))
				return true;
			segment = segment_at(memory, segment)->sharing.next;
		}
	}
	return false;
}

/*
 * Without eviction nothing else finds what has expired in a segment where something lives: a sweep
 * over all segments drops it where it stands, so that it counts as garbage. A segment is walked
 * once a sweep if an item of it has expired, and sweeps take a fifth of the time where memory is so
 * large that they take seconds. True while the sweep goes on.
 */
static bool
start_expire(struct memory *memory, uint32_t now_s, bool *young)
{
	if (memory->options.evict)
		return false;
	if (memory->sweep_cursor == 0) {
		if (now_s < memory->sweep_due_s)
			return false;
		memory->sweep_cursor = 1;
		memory->sweep_begun_s = now_s;
	}
	for (unsigned n = SWEEP_SCAN; n > 0; n--) {
		if (memory->sweep_cursor >= memory->bare_from) {
			uint32_t took =
				now_s > memory->sweep_begun_s ? now_s - memory->sweep_begun_s : 0;

			memory->sweep_cursor = 0;
			memory->sweep_due_s = now_s + 1 + 4 * took;
			return false;
		}
		uint32_t segment = memory->sweep_cursor++;
		const struct segment *s = segment_at(memory, segment);

		if (atomic_load(&s->state) == SEGMENT_SEALED && s->first_expiry <= now_s &&
			start(memory, JOB_EXPIRE, MEMORY_EXPIRED, segment, young)) {
			memory->job.first_expiry = EXPIRY_NEVER;
			return true;
		}
	}
	return true;
}

static bool
start_probation(struct memory *memory, bool *young)
{
	uint32_t segment = memory->age[PROBATION].first;

	for (unsigned n = LOOK_AT; segment && n > 0;
		n--, segment = segment_at(memory, segment)->age.next)
		if (!atomic_load(&segment_at(memory, segment)->pins) &&
			start(memory, JOB_PROBATION, MEMORY_EVICTED, segment, young))
			return true;
	return false;
}

/* The oldest of main, as many as weigh the width (a head weighs what its bodies do). */
static bool
start_merge(struct memory *memory, bool *young)
{
	uint32_t width = reclaim_merge_width(memory), segment = memory->age[MAIN].first;
	uint64_t weight = 0;

	memory->job = (struct job){.kind = JOB_NONE, .reason = MEMORY_EVICTED};
	for (unsigned n = LOOK_AT + width;
		segment && n > 0 && (weight < width || memory->job.count < 2); n--) {
		uint32_t next = segment_at(memory, segment)->age.next;

		if (!pool_settled(memory, segment)) {
			*young = true;
		} else if (!atomic_load(&segment_at(memory, segment)->pins)) {
			weight += 1 + READ(segment_at(memory, segment)->bodies);
			claim(memory, segment);
		}
		segment = next;
	}
	if (memory->job.count == 0)
		return false;
	memory->job.kind = JOB_SCORE;
	return true;
}

static bool
start_eviction(struct memory *memory, bool *young)
{
	/* Probation is first in, first out. */
	if (rank_weight(memory, PROBATION) > rank_probation_share(memory))
		return start_probation(memory, young) || start_merge(memory, young);
	return start_merge(memory, young) || start_probation(memory, young);
}

static enum step
choose(struct memory *memory, uint32_t now_s)
{
	bool young = false;
	enum step step = STEP_WORKED;

	pthread_mutex_lock(&memory->pool);
	if (scan_flushed(memory) || start_dead(memory, now_s, &young))
		goto out;
	int64_t ahead = pool_free_count(memory) + memory->grace.count;
	if (ahead >= pool_target(memory))
		step = young ? STEP_GRACE : STEP_IDLE;
	else if (!start_compact(memory, &young) && !start_expire(memory, now_s, &young) &&
		 !(memory->options.evict && start_eviction(memory, &young)))
		step = young ? STEP_GRACE : STEP_IDLE;
out:
	pthread_mutex_unlock(&memory->pool);
	return step;
}

enum step
reclaim_step(struct memory *memory, uint32_t now_s, struct budget budget)
{
	if (memory->job.kind == JOB_NONE)
		return choose(memory, now_s);
	if (memory->job.kind == JOB_SCORE)
		return walk_scores(memory, now_s, budget);
	if (memory->job.kind == JOB_EXPIRE)
		return walk_expired(memory, now_s, budget);
	return walk_sources(memory, now_s, budget);
}

/* --- workers ------------------------------------------------------------------------------ */

void
memory_turn_end(struct memory_thread *thread, uint32_t now_s)
{
	struct memory *memory = thread->memory;

	/* Who didn't ask again has nothing left to ask for: its connection may be gone. */
	if (!thread->refused)
		pool_wait_no_more(thread);
	thread->refused = false;
	thread->copies = 0;
	if (thread->appender && READ(thread->appender->checked_s) != now_s)
		append_seal(memory, thread->appender, now_s, false);

	/* Half way from where the background was called to where workers must wait. */
	int64_t free = pool_free_count(memory), reserve = READ(memory->reserve);
	if (free > (reserve + READ(memory->low)) / 2 || !reclaim_token_take(memory))
		return;
	enum step step = reclaim_step(memory, now_s, worker_budget);
	reclaim_token_return(memory);
	COUNT(memory->worker_steps, 1);
	if (step == STEP_GRACE)
		pool_wake(memory);
	pool_free_ready(memory);
}

/* --- the background ----------------------------------------------------------------------- */

static void
wait_for_grace(struct memory *memory)
{
	uint64_t begun = atomic_fetch_add(&memory->grace_begun, 1) + 1;

	rcu_synchronize();
	/* Several may wait; the latest counts. */
	uint64_t over = atomic_load(&memory->grace_over);
	while (over < begun && !atomic_compare_exchange_weak(&memory->grace_over, &over, begun))
		;
	pool_free_ready(memory);
}

/* Once a second: what is open too long. Gives when the next will be, 0 never. */
static void
upkeep(struct memory *memory, uint32_t now_s)
{
	if (memory->upkeep_s == now_s)
		return;
	memory->upkeep_s = now_s;
	atomic_store_explicit(&memory->boost, READ(memory->boost) / 2, memory_order_relaxed);
	for (unsigned i = 0; i < memory->appenders_count; i++)
		append_seal(memory, &memory->appenders[i], now_s, false);
	walk_seal_outputs(memory, now_s, false);
}

/* Nothing sealed can be had: what is open is sealed, if that may help. */
static bool
seal_everything(struct memory *memory, uint32_t now_s)
{
	unsigned sealed = walk_seal_outputs(memory, now_s, true);

	for (unsigned i = 0; i < memory->appenders_count; i++)
		sealed += append_seal(memory, &memory->appenders[i], now_s, true);
	return sealed > 0;
}

/*
 * Idle: is it because all is well, or because nothing is to be had? True when there is something
 * to do after all.
 */
static bool
nothing_left(struct memory *memory, uint32_t now_s)
{
	if (pool_free_count(memory) >= pool_target(memory)) {
		/* Who failed while these came free may have been too late to be told. */
		pool_tell_starved(memory);
		return false;
	}
	if (seal_everything(memory, now_s))
		return true;
	pool_set_exhausted(memory);
	return false;
}

static uint32_t
next_deadline(struct memory *memory, uint32_t now_s)
{
	uint32_t next_s = 0;

	pthread_mutex_lock(&memory->pool);
	if (memory->heap_count)
		next_s = segment_at(memory, memory->heap[1])->expiry;
	if (memory->open_count && (next_s == 0 || next_s > now_s + memory->options.seal_age_s))
		next_s = now_s + memory->options.seal_age_s;
	/* Full without eviction: time alone may make room. */
	uint32_t due_s = memory->sweep_due_s > now_s ? memory->sweep_due_s : now_s + 1;
	if (!memory->options.evict && pool_free_count(memory) < pool_target(memory) &&
		(next_s == 0 || next_s > due_s))
		next_s = due_s;
	pthread_mutex_unlock(&memory->pool);
	return next_s;
}

bool
memory_reclaim(struct memory_thread *thread, uint32_t now_s, uint32_t *next_s)
{
	struct memory *memory = thread->memory;
	enum step step;

	atomic_store(&memory->woken, false);
	*next_s = 0;
	if (!reclaim_token_take(memory)) {
		sched_yield();
		return true;
	}
	upkeep(memory, now_s);
	step = reclaim_step(memory, now_s, background_budget);
	reclaim_token_return(memory);
	pool_free_ready(memory);

	pthread_mutex_lock(&memory->pool);
	uint32_t waiting = memory->grace.count;
	bool needed = waiting >= GRACE_BATCH || pool_free_count(memory) < pool_low(memory);
	pthread_mutex_unlock(&memory->pool);

	if (step == STEP_GRACE || (waiting && (needed || step == STEP_IDLE || step == STEP_BUSY))) {
		wait_for_grace(memory);
		return true;
	}
	/* What a change of the limit left to give back. */
	if (pool_trim(memory) || step == STEP_WORKED)
		return true;
	/* The owner wakes us; time goes on meanwhile. */
	if (step == STEP_BUSY) {
		*next_s = now_s + 1;
		return false;
	}
	if (!reclaim_token_take(memory))
		return true;
	bool more = nothing_left(memory, now_s);
	reclaim_token_return(memory);
	if (!more)
		*next_s = next_deadline(memory, now_s);
	return more;
}
