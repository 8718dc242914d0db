/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Through the items of claimed segments: each is moved on or dropped, under its bucket's lock, by
 * the items' owner.
 */
#include "memory/internal.h"

#include "base/check.h"
#include "store/item_hd.h"

#include <string.h>

/* The item that the job has come to. */
struct found {
	const struct item *item;
	uint32_t segment, offset; /* in units */
	uint32_t size;
	uint64_t weight; /* with its body */
};

/* False at the source's end. */
static bool
find(const struct memory *memory, struct found *found)
{
	const struct job *job = &memory->job;

	found->segment = job->sources[job->at];
	if (job->offset == segment_at(memory, found->segment)->used)
		return false;
	found->offset = job->offset / ITEM_ALIGN;
	found->item = memory_address(&memory->arena, found->segment, found->offset);
	found->size = item_size(found->item);
	found->weight =
		found->size + (uint64_t)item_large_count(found->item) * memory->segment_bytes;
	check(job->offset + found->size <= segment_at(memory, found->segment)->used);
	return true;
}

/* How many items the walk looks ahead of the one it is at: their buckets take a while to come. */
#define AHEAD 8

/* What goes before the job through the same source. */
struct scout {
	uint32_t at, offset; /* as the job's */
	unsigned lead;	     /* items ahead of the job's */
};

/* Before an item is worked on, those behind it are announced. */
static void
scout_on(struct memory *memory, struct scout *scout)
{
	const struct memory_items *items = memory->options.items;
	const struct job *job = &memory->job;

	if (!items->ahead)
		return;
	if (scout->at != job->at || scout->lead == 0)
		*scout = (struct scout){.at = job->at, .offset = job->offset};
	else
		scout->lead--;

	uint32_t segment = job->sources[job->at], end = segment_at(memory, segment)->used;

	for (; scout->lead < AHEAD && scout->offset < end; scout->lead++) {
		const struct item *item =
			memory_address(&memory->arena, segment, scout->offset / ITEM_ALIGN);

		ghost_prefetch(&memory->ghost, items->ahead(memory->options.items_context, item));
		scout->offset += item_size(item);
	}
}

static int
reads_of(struct memory *memory, const struct found *found)
{
	int reads = memory->options.items->reads(
		memory->options.items_context, found->item, found->segment, found->offset);

	return reads > (int)memory->tuning.reads_max ? (int)memory->tuning.reads_max : reads;
}

/* --- dropping ----------------------------------------------------------------------------- */

/* False: the owner is busy, the item stays for now. */
static bool
drop(struct memory *memory, const struct found *found, enum memory_reason reason)
{
	const struct memory_items *items = memory->options.items;
	void *context = memory->options.items_context;
	bool remember = reason == MEMORY_EVICTED &&
			(memory->job.kind == JOB_PROBATION ||
				(memory->job.kind == JOB_MERGE && memory->tuning.ghost_main));

	enum memory_dropped dropped =
		items->drop(context, found->item, found->segment, found->offset, reason);

	if (dropped == MEMORY_GONE)
		return true;
	if (dropped == MEMORY_BUSY)
		return false;
	memory_dead(memory, found->segment, found->size);
	COUNT(memory->dropped_items, 1);
	for (uint32_t i = 0; i < item_large_count(found->item); i++) {
		uint32_t body = item_large_segment(found->item, i);

		memory_body_release(memory, &body, 1, true);
	}
	if (remember && dropped == MEMORY_DROPPED)
		ghost_insert(&memory->ghost, items->hash(context, found->item));
	return true;
}

/* --- moving ------------------------------------------------------------------------------- */

/*
 * An open segment to move into, of the source's epoch and opened no later than the sources: soft
 * times count from there. 0: none can be had. now_s only says how long the item may live.
 */
static uint32_t
output_for(struct memory *memory, const struct found *found, enum generation generation,
	uint32_t now_s)
{
	const struct job *job = &memory->job;
	uint32_t epoch = segment_epoch(memory, found->segment);
	uint32_t *output = &memory->outputs[generation][append_ttl_class(
		found->item->expiry, now_s, memory->outputs_classes)];

	if (*output) {
		const struct segment *s = segment_at(memory, *output);
		bool full = s->used + found->size > memory->segment_bytes;

		if (!full && segment_epoch(memory, *output) == epoch &&
			memory_segment_opened_s(memory, *output) <= job->opened_s &&
			atomic_load(&s->bodies) < body_seal_count(memory))
			return *output;
		pool_seal(memory, *output, full);
	}
	*output = pool_take(memory, NULL, SEGMENT_OPEN, generation, epoch, job->opened_s);
	if (*output) {
		segment_at(memory, *output)->filling_s = now_s;
		memory->job.taken++;
	}
	return *output;
}

/*
 * All but the soft word, which is the owner's to copy: in a sealed segment it is all that
 * changes.
 */
static void
copy_item(struct item *to, const struct item *from, uint32_t size)
{
	to->cas_low = from->cas_low;
	to->cas_high = from->cas_high;
	to->soft = 0;
	to->expiry = from->expiry;
	to->sizes = from->sizes;
	memcpy(to + 1, from + 1, size - ITEM_HEADER);
}

enum moved { MOVED, GONE, NO_ROOM };

static enum moved
move(struct memory *memory, const struct found *found, enum generation generation, unsigned reads,
	uint32_t now_s)
{
	const struct memory_observer *observer = memory->options.observer;
	uint32_t output = output_for(memory, found, generation, now_s);

	if (!output)
		return NO_ROOM;
	struct segment *s = segment_at(memory, output);
	uint32_t offset = s->used / ITEM_ALIGN;
	struct item *to = memory_address(&memory->arena, output, offset);

	copy_item(to, found->item, found->size);
	/* Counted first: as soon as the index names it, it may be reported dead. */
	atomic_fetch_add(&s->live, found->size);
	append_expect(s, found->item->expiry);
	if (!memory->options.items->move(memory->options.items_context, found->item, found->segment,
		    found->offset, output, offset, to, segment_epoch(memory, output), reads)) {
		/* Nobody has seen the copy: the next one goes over it. */
		atomic_fetch_sub(&s->live, found->size);
		return GONE;
	}
	s->used += found->size;
	memory_dead(memory, found->segment, found->size);
	if (item_kinds(to) & ITEM_LARGE)
		body_own(memory, to, output);
	if (observer && observer->written)
		observer->written(memory->options.observer_context, output, s->used);
	COUNT(memory->moved_items, 1);
	COUNT(memory->moved_bytes, found->size);
	return MOVED;
}

unsigned
walk_seal_outputs(struct memory *memory, uint32_t now_s, bool all)
{
	unsigned sealed = 0;

	for (unsigned generation = 0; generation < GENERATIONS; generation++)
		for (unsigned class = 0; class < TTL_CLASSES; class ++) {
			uint32_t *output = &memory->outputs[generation][class];

			if (!*output || !append_seal_due(memory, *output, now_s, all))
				continue;
			pool_seal(memory, *output, false);
			*output = 0;
			sealed++;
		}
	return sealed;
}

/* --- walking ------------------------------------------------------------------------------ */

/* What becomes of an item: where it goes and with how many reads, or -1 and why it leaves. */
struct verdict {
	int reads;
	enum generation generation;
	enum memory_reason reason;
};

static struct verdict
judge(struct memory *memory, const struct found *found, uint32_t now_s)
{
	struct job *job = &memory->job;
	struct verdict verdict = {-1, MAIN, job->reason};
	unsigned score;
	int reads;

	if (segment_epoch(memory, found->segment) != memory_epoch(memory))
		verdict.reason = MEMORY_FLUSHED;
	else if (item_expired(found->item, now_s))
		verdict.reason = MEMORY_EXPIRED;
	else
		switch (job->kind) {
		case JOB_COMPACT:
			verdict.generation = READ(memory->faces[found->segment].generation);
			verdict.reads = reads_of(memory, found);
			/*
			 * Without eviction nothing may be lost to a hint: a move that finds
			 * nothing to move does no harm.
			 */
			if (verdict.reads < 0 && !memory->options.evict)
				verdict.reads = 0;
			break;
		case JOB_PROBATION:
			reads = reads_of(memory, found);
			if (reads >= 0 && rank_worth(memory, (uint32_t)reads, found->weight))
				verdict.reads = (int)rank_fade(memory, (uint32_t)reads);
			break;
		case JOB_MERGE:
			reads = memory->reads[job->item];
			if (reads > 15)
				break;
			score = rank_score(memory, (uint32_t)reads, found->weight);
			if (score == job->threshold && job->threshold_bytes >= found->weight)
				job->threshold_bytes -= found->weight;
			else if (score <= job->threshold)
				break;
			verdict.reads = (int)rank_fade(memory, (uint32_t)reads);
			break;
		default:
			break;
		}
	return verdict;
}

/* The source is through: nothing names it any more. */
static void
finish_source(struct memory *memory)
{
	struct job *job = &memory->job;
	uint32_t segment = job->sources[job->at++];

	switch (job->kind) {
	case JOB_COMPACT:
		COUNT(memory->compacted_segments, 1);
		break;
	case JOB_MERGE:
		COUNT(memory->merged_segments, 1);
		break;
	case JOB_PROBATION:
		COUNT(memory->evicted_segments, 1);
		break;
	default:
		COUNT(*(job->reason == MEMORY_EXPIRED	      ? &memory->expired_segments
			      : job->reason == MEMORY_FLUSHED ? &memory->flushed_segments
							      : &memory->dead_segments),
			1);
	}
	job->offset = 0;
	if (job->at == job->count) {
		if (job->kind == JOB_MERGE)
			memory->squeeze = job->taken < job->count ? 0 : memory->squeeze + 1;
		job->kind = JOB_NONE;
	}
	pool_release(memory, segment);
}

/* Without a segment to move to and with nothing on its way: what can't be kept is put back. */
static void
abandon(struct memory *memory)
{
	struct job *job = &memory->job;

	for (; job->at < job->count; job->at++)
		pool_unclaim(memory, job->sources[job->at]);
	job->kind = JOB_NONE;
	pool_set_exhausted(memory);
}

static bool
grace_pending(struct memory *memory)
{
	pthread_mutex_lock(&memory->pool);
	bool pending = memory->grace.count > 0;
	pthread_mutex_unlock(&memory->pool);
	return pending;
}

/* The segment is to go without a walk: no entry may lead into it, or the next life would answer. */
static void
check_dead(struct memory *memory)
{
	struct found found;

	while (find(memory, &found)) {
		check(memory->options.items->reads(memory->options.items_context, found.item,
			      found.segment, found.offset) < 0);
		memory->job.offset += found.size;
	}
}

enum step
walk_sources(struct memory *memory, uint32_t now_s, struct budget budget)
{
	struct job *job = &memory->job;
	struct scout scout = {0};
	enum moved moved;

	while (job->kind != JOB_NONE && budget.items > 0 && budget.bytes > 0) {
		struct found found;

		/*
		 * What is dead is reported after the index has stopped naming it, so a sealed
		 * segment without a live byte is named nowhere: its items needn't be asked for one
		 * by one.
		 */
		bool dead = job->kind == JOB_CLEAR &&
			    atomic_load(&segment_at(memory, job->sources[job->at])->live) == 0;

		if (dead && memory->tuning.check_dead)
			check_dead(memory);
		if (dead || !find(memory, &found)) {
			finish_source(memory);
			continue;
		}
		scout_on(memory, &scout);
		struct verdict verdict = judge(memory, &found, now_s);
		if (verdict.reads >= 0) {
			moved = move(
				memory, &found, verdict.generation, (unsigned)verdict.reads, now_s);
			if (moved == NO_ROOM && grace_pending(memory))
				return STEP_GRACE;
			if (moved == NO_ROOM && !memory->options.evict) {
				abandon(memory);
				return STEP_WORKED;
			}
			if (moved == MOVED && job->kind == JOB_PROBATION)
				COUNT(memory->promoted_items, 1);
			if (moved != MOVED && !drop(memory, &found, MEMORY_EVICTED))
				return STEP_BUSY;
		} else if (!drop(memory, &found, verdict.reason)) {
			return STEP_BUSY;
		}
		job->item++;
		job->offset += found.size;
		budget.items--;
		budget.bytes -= found.size < budget.bytes ? found.size : budget.bytes;
	}
	return STEP_WORKED;
}

/* --- expired among living --------------------------------------------------------------------- */

enum step
walk_expired(struct memory *memory, uint32_t now_s, struct budget budget)
{
	struct job *job = &memory->job;
	struct found found;

	for (; budget.items > 0; budget.items--) {
		if (!find(memory, &found)) {
			segment_at(memory, found.segment)->first_expiry = job->first_expiry;
			job->kind = JOB_NONE;
			pool_unclaim(memory, found.segment);
			/* Tells that there may be something to compact. */
			if (job->expired)
				pool_relist(memory, found.segment);
			break;
		}
		uint32_t expiry = found.item->expiry;
		if (item_expired(found.item, now_s)) {
			drop(memory, &found, MEMORY_EXPIRED);
			job->expired++;
		} else if (expiry && expiry < job->first_expiry) {
			job->first_expiry = expiry;
		}
		job->offset += found.size;
	}
	return STEP_WORKED;
}

/* --- scores ------------------------------------------------------------------------------- */

/*
 * Percent of the sources' bytes that stay: fewer where writers wait about as often as a merge makes
 * a segment free, because moving what stays is what they wait for.
 */
static unsigned
keep_percent(struct memory *memory)
{
	unsigned keep = memory->tuning.keep_percent;
	uint64_t waits = READ(memory->waits), fresh = waits - memory->waits_seen;

	memory->waits_seen = waits;
	if (memory->tuning.ranking == MEMORY_BY_AGE)
		return 0;
	return keep > KEEP_BEHIND && 100 * fresh >= (uint64_t)memory->job.count * (100 - keep)
		       ? KEEP_BEHIND
		       : keep;
}

/*
 * From the best score down, as much as the share of the sources' bytes that is kept holds (dead
 * ones count too: they leave first). That makes no room where segments are badly filled; then
 * ever less of what lives is kept.
 */
static void
set_threshold(struct memory *memory)
{
	struct job *job = &memory->job;
	uint64_t room = 0, live = 0;

	for (uint32_t i = 0; i < job->count; i++)
		room += memory->segment_bytes *
			(1 + (uint64_t)READ(segment_at(memory, job->sources[i])->bodies));
	room = room * keep_percent(memory) / 100;
	for (unsigned score = 0; score < SCORES; score++)
		live += job->weight[score];
	if (memory->squeeze && room > live >> (memory->squeeze & 63))
		room = live >> (memory->squeeze & 63);
	job->threshold = SCORES - 1;
	while (job->threshold > 0 && job->weight[job->threshold] <= room)
		room -= job->weight[job->threshold--];
	job->threshold_bytes = room;
	rank_set_bar(memory, job->threshold);
}

enum step
walk_scores(struct memory *memory, uint32_t now_s, struct budget budget)
{
	struct job *job = &memory->job;
	struct scout scout = {0};

	while (budget.items > 0 && budget.bytes > 0) {
		struct found found;

		if (!find(memory, &found)) {
			job->offset = 0;
			if (++job->at < job->count)
				continue;
			set_threshold(memory);
			job->at = job->item = 0;
			job->kind = JOB_MERGE;
			break;
		}
		scout_on(memory, &scout);
		int reads = item_expired(found.item, now_s) ? -1 : reads_of(memory, &found);
		check(job->item < memory->reads_bytes);
		memory->reads[job->item++] = reads < 0 ? 255 : (uint8_t)reads;
		if (reads >= 0)
			job->weight[rank_score(memory, (uint32_t)reads, found.weight)] +=
				found.weight;
		job->offset += found.size;
		budget.items--;
		budget.bytes -= found.size < budget.bytes ? found.size : budget.bytes;
	}
	return STEP_WORKED;
}
