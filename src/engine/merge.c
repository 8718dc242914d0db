/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Batches that wait. A device that hangs may hold one request of each of many batches for a second,
 * and every batch that is pending is one less for new requests. So when half of them are, what
 * waits is put together:
 *
 *	pending		run: done done WAIT next	dense		run: WAIT next
 *	batch		run: done			batch		run: WAIT   <- other batches'
 *			run: WAIT					(room)
 *
 * and if even dense ones are too many, long pipelines keep the first of their requests, and the
 * others go back into their streams' windows, to be parsed again.
 */
#include "engine/internal.h"

#include <string.h>

/* of a run, when batches are few */
#define TRIM_SLOTS 8

void
merge_give_back(struct engine *engine, struct batch *batch, struct batch_run *run, uint16_t keep)
{
	struct stream *stream = run->stream;
	uint32_t end = run->slot_first + run->slot_count, first = run->slot_next + keep;
	const struct slot *slot = &batch->slots[first];

	if (first >= end || stream->upload)
		return;
	/* Bodies that came in pieces can't go back. */
	for (uint32_t i = first; i < end; i++)
		if (!batch->slots[i].input_before || batch->slots[i].upload)
			return;
	stream->input_size += (size_t)(stream->input - slot->input_before);
	stream->input = slot->input_before;
	stream->parser = slot->parser_kept ? batch->parser_before[first]
					   : (struct parser){.protocol = stream->parser.protocol};
	stream->wish = STREAM_READ;
	stream->wanted = 0;
	stream->more = true;
	run->slot_count = (uint16_t)(first - run->slot_first);
	run->finished = run->slot_next == first;
	for (uint32_t i = first; i < end; i++) {
		batch->slots[i].stage = SLOT_DONE;
		if (batch->held && engine_holds(&batch->held[i]))
			store_release(engine->thread, &batch->held[i]);
	}
}

/* What stands beside the slot goes with it; a key that was decoded stands there. */
static void
move_slot(struct batch *to, uint32_t number, uint32_t run, struct batch *from, uint32_t old)
{
	struct slot *slot = &to->slots[number];

	if (to == from && number == old) {
		slot->run = (uint16_t)run;
		return;
	}
	*slot = from->slots[old];
	slot->run = (uint16_t)run;
	if (slot->parser_kept)
		to->parser_before[number] = from->parser_before[old];
	if (slot->request.key == from->key_decoded[old]) {
		memcpy(to->key_decoded[number], from->key_decoded[old], slot->request.key_size);
		slot->request.key = to->key_decoded[number];
	}
	if (from->held) {
		to->held[number] = from->held[old];
		from->held[old] = (struct store_held){0};
	}
}

/* The run, without what is done of it, to the end of a batch, or forward in its own. */
static void
move_run(struct batch *to, struct batch *from, uint32_t old)
{
	const struct batch_run source = from->runs[old];
	struct batch_run *run = &to->runs[to->run_count];
	uint32_t end = source.slot_first + source.slot_count;

	*run = source;
	run->slot_first = run->slot_next = (uint16_t)to->slot_count;
	run->slot_count = (uint16_t)(end - source.slot_next);
	run->piece_count = 0;
	for (uint32_t i = source.slot_next; i < end; i++)
		move_slot(to, to->slot_count++, to->run_count, from, i);
	to->run_count++;
}

/* In place: runs stand in the order of their slots, so that each only moves forward. */
static void
make_dense(struct batch *batch, void (*moved)(void *context, struct batch_run *run), void *context)
{
	uint32_t run_count = batch->run_count;

	batch->run_count = batch->slot_count = 0;
	for (uint32_t i = 0; i < run_count; i++) {
		const struct batch_run *run = &batch->runs[i];

		if (!run->stream)
			continue;
		if (i == batch->run_count && run->slot_next == batch->slot_count &&
			run->slot_first == run->slot_next) {
			batch->slot_count += run->slot_count;
			batch->run_count++;
			continue;
		}
		move_run(batch, batch, i);
		moved(context, &batch->runs[batch->run_count - 1]);
	}
}

static void
trim_all(struct engine *engine, struct batch *batch)
{
	for (uint32_t i = 0; i < batch->run_count; i++)
		if (batch->runs[i].stream && !batch->runs[i].finished)
			merge_give_back(engine, batch, &batch->runs[i], TRIM_SLOTS);
}

bool
engine_batch_merge(struct engine *engine, struct batch *to, struct batch *from, bool trim,
	void (*moved)(void *context, struct batch_run *run), void *context)
{
	bool empty = true;

	/* Loans are named by what holds them, and that moves. */
	store_hold(engine->thread, NULL);
	if (trim)
		trim_all(engine, to);
	make_dense(to, moved, context);
	if (to == from)
		return false;
	if (trim)
		trim_all(engine, from);
	for (uint32_t i = 0; i < from->run_count; i++) {
		struct batch_run *run = &from->runs[i];

		if (!run->stream)
			continue;
		if (to->run_count == BATCH_STREAMS ||
			to->slot_count + (run->slot_first + run->slot_count - run->slot_next) >
				BATCH_SLOTS) {
			empty = false;
			continue;
		}
		move_run(to, from, i);
		run->stream = NULL;
		moved(context, &to->runs[to->run_count - 1]);
	}
	to->again |= from->again;
	to->poll |= from->poll;
	return empty;
}

bool
engine_batch_can_go_on(const struct engine *engine, const struct batch *batch)
{
	if (!engine->flash)
		return false;
	for (uint32_t i = 0; i < batch->run_count; i++) {
		const struct batch_run *run = &batch->runs[i];
		const struct store_held *held = &batch->held[run->slot_next];

		if (run->stream && !run->finished && !run->blocked && engine_holds(held) &&
			store_held_settled(engine->thread, held))
			return true;
	}
	return false;
}

void
engine_batch_drop(struct engine *engine, struct batch **batch)
{
	for (uint32_t i = 0; (*batch)->held && i < (*batch)->slot_count; i++)
		if (engine_holds(&(*batch)->held[i]))
			store_release(engine->thread, &(*batch)->held[i]);
	engine_batch_return(engine, batch);
}
