/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bodies that don't fit a read buffer. Memory is lent as bytes arrive: chunks of 16 KiB, or for a
 * value that will own dedicated segments those segments themselves, so that it is never copied.
 * Both are bounded; who finds none is parked, and while anybody waits, uploads without progress for
 * some seconds lose what they hold: their rest is swallowed and answered with an error.
 */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

static void
list_append(struct engine *engine, struct upload *upload)
{
	upload->previous = engine->upload_last;
	upload->next = NULL;
	if (engine->upload_last)
		engine->upload_last->next = upload;
	else
		engine->upload_first = upload;
	engine->upload_last = upload;
}

static void
list_prepend(struct engine *engine, struct upload *upload)
{
	upload->previous = NULL;
	upload->next = engine->upload_first;
	if (engine->upload_first)
		engine->upload_first->previous = upload;
	else
		engine->upload_last = upload;
	engine->upload_first = upload;
}

static void
list_remove(struct engine *engine, struct upload *upload)
{
	if (upload->previous)
		upload->previous->next = upload->next;
	else
		engine->upload_first = upload->next;
	if (upload->next)
		upload->next->previous = upload->previous;
	else
		engine->upload_last = upload->previous;
}

static void
release_memory(struct engine *engine, struct upload *upload)
{
	if (upload->large) {
		if (!upload->published && upload->piece_count)
			store_body_release(engine->store, upload->segments, upload->piece_count);
	} else {
		for (uint32_t i = 0; i < upload->piece_count; i++)
			free(upload->chunks[i]);
		engine->upload_bytes -= (uint64_t)upload->piece_count * UPLOAD_CHUNK;
	}
	upload->piece_count = 0;
	if (engine->favoured == upload)
		engine->favoured = NULL;
	if (engine->favoured_large == upload)
		engine->favoured_large = NULL;
}

void
upload_end(struct engine *engine, struct upload *upload)
{
	release_memory(engine, upload);
	list_remove(engine, upload);
	free(upload);
}

/* A refusal in the slot. The answer needs no key. */
static void
refuse(struct slot *slot, enum status status)
{
	slot->request.status = (uint8_t)status;
	slot->request.verb = VERB_REFUSE;
	slot->request.key = NULL;
	slot->request.key_size = 0;
	slot->request.arguments = slice_make(NULL, 0);
	slot->upload = NULL;
}

bool
upload_begin(struct engine *engine, struct stream *stream, struct slot *slot)
{
	const struct request *request = &slot->request;
	bool large = request->body_size > engine->arena.large_min;
	uint64_t unit = large ? 1ull << engine->arena.segment_shift : UPLOAD_CHUNK;
	uint64_t count = (request->body_size + unit - 1) / unit;
	size_t list = count * (large ? sizeof(uint32_t) : sizeof(uint8_t *));
	struct upload *upload =
		malloc(sizeof *upload + list + request->key_size + request->arguments.size);
	uint8_t *behind;

	if (!upload) {
		stream->parser.swallow = request->body_size + stream->parser.body_end;
		refuse(slot, STATUS_NO_MEMORY_READ);
		return false;
	}
	*upload = (struct upload){
		.stream = stream,
		.request = *request,
		.progress_ns = engine->time.unix_ns,
		.progress_turn = engine->turn,
		.piece_room = (uint32_t)count,
		.end_size = stream->parser.body_end,
		.large = large,
	};
	upload->chunks = (uint8_t **)(upload + 1);
	behind = (uint8_t *)(upload + 1) + list;
	memcpy(behind, request->key, request->key_size);
	upload->request.key = behind;
	behind += request->key_size;
	if (request->arguments.size)
		memcpy(behind, request->arguments.data, request->arguments.size);
	upload->request.arguments.data = behind;
	list_append(engine, upload);
	stream->upload = upload;
	stream->sink_size = 0;
	stream->sink_filled = 0;
	counter_add(&engine->counters->uploads, 1);
	return true;
}

/*
 * Uploads that each hold a part and wait for the rest would wait for ever: one of them may pass the
 * bound.
 */
static bool
favour(struct upload **favoured, struct upload *upload)
{
	if (!*favoured)
		*favoured = upload;
	return *favoured == upload;
}

/* Finds room for the next bytes of the body. STORE_NO_MEMORY: there is none and none will come. */
static enum store_status
find_room(struct engine *engine, struct upload *upload)
{
	struct stream *stream = upload->stream;
	uint64_t left = upload->request.body_size - upload->received;
	uint64_t unit = upload->large ? 1ull << engine->arena.segment_shift : UPLOAD_CHUNK;
	uint8_t *room;

	if (upload->large) {
		uint32_t segment;
		enum store_status status =
			store_body_borrow(engine->thread, false, &segment, &room);

		if (status == STORE_WAIT && favour(&engine->favoured_large, upload))
			status = store_body_borrow(engine->thread, true, &segment, &room);
		if (status != STORE_DONE)
			return status;
		upload->segments[upload->piece_count++] = segment;
	} else {
		if (engine->upload_bytes + UPLOAD_CHUNK > engine->options.upload_bytes_max &&
			!favour(&engine->favoured, upload))
			return STORE_WAIT;
		room = malloc(UPLOAD_CHUNK);
		if (!room)
			return STORE_WAIT;
		engine->upload_bytes += UPLOAD_CHUNK;
		upload->chunks[upload->piece_count++] = room;
	}
	stream->sink = room;
	stream->sink_size = left < unit ? left : unit;
	return STORE_DONE;
}

/*
 * Its memory is taken back; what is still to come of it will be swallowed and answered with an
 * error.
 */
static void
abort_upload(struct engine *engine, struct upload *upload)
{
	release_memory(engine, upload);
	upload->aborted = true;
	upload->stream->sink = NULL;
	upload->stream->sink_size = 0;
	counter_add(&engine->counters->uploads_aborted, 1);
}

static void
park(struct engine *engine, struct stream *stream)
{
	/* The favoured one, whom nobody has to wait for, goes first. */
	bool first = stream->upload == engine->favoured_large;

	stream->upload->parked = true;
	stream->parked_next = first ? engine->parked_first : NULL;
	if (first || !engine->parked_first)
		engine->parked_first = stream;
	else
		engine->parked_last->parked_next = stream;
	if (!first || !engine->parked_last)
		engine->parked_last = stream;
	engine->parked_count++;
	atomic_fetch_add_explicit(engine->options.upload_waiters, 1, memory_order_relaxed);
	counter_add(&engine->counters->uploads_parked, 1);
}

/* n bytes of the body stand in the sink. */
static void
took(struct engine *engine, struct upload *upload, size_t n)
{
	struct stream *stream = upload->stream;

	upload->received += n;
	stream->sink += n;
	stream->sink_size -= n;
	if (upload->waited)
		return;
	/* A byte now and then is no progress: while others wait, so much must come in time. */
	upload->since += (uint32_t)n;
	if (upload->since < UPLOAD_FIRST && upload->received < upload->request.body_size)
		return;
	upload->since = 0;
	upload->progress_ns = engine->time.unix_ns;
	upload->progress_turn = engine->turn;
	list_remove(engine, upload);
	list_append(engine, upload);
}

/* The body is whole: its line end is the last thing to come. */
static enum upload_status
finish(struct engine *engine, struct upload *upload, struct slot *slot)
{
	struct stream *stream = upload->stream;
	bool bad_end;

	stream->wanted = upload->end_size;
	if (stream->input_size < upload->end_size)
		return UPLOAD_MORE;
	slot->request = upload->request;
	slot->upload = upload;
	stream->upload = NULL;
	bad_end = upload->end_size && memcmp(stream->input, "\r\n", 2) != 0;
	stream->input += upload->end_size;
	stream->input_size -= upload->end_size;
	if (bad_end) {
		refuse(slot, STATUS_BAD_CHUNK);
		upload_end(engine, upload);
	}
	return UPLOAD_DONE;
}

/*
 * The aborted upload's request goes on without a body: the store drops the old value, the client
 * gets its error at once.
 */
static enum upload_status
skip_aborted(struct engine *engine, struct upload *upload, struct slot *slot, uint8_t *key_decoded)
{
	struct stream *stream = upload->stream;

	/* What was read into the sink has left the socket, though a full batch never took it. */
	upload->received += stream->sink_filled;
	stream->parser.swallow = upload->request.body_size + upload->end_size - upload->received;
	slot->request = upload->request;
	slot->request.status = upload->full ? STATUS_NO_MEMORY : STATUS_NO_MEMORY_READ;
	memcpy(key_decoded, upload->request.key, upload->request.key_size);
	slot->request.key = key_decoded;
	slot->request.arguments = slice_make(NULL, 0);
	slot->upload = NULL;
	stream->upload = NULL;
	stream->sink_filled = 0;
	upload_end(engine, upload);
	return UPLOAD_SKIP;
}

enum upload_status
upload_advance(
	struct engine *engine, struct stream *stream, struct slot *slot, uint8_t *key_decoded)
{
	struct upload *upload = stream->upload;

	if (stream->sink_filled && !upload->aborted) {
		size_t filled = stream->sink_filled;

		stream->sink_filled = 0;
		upload->waited = false;
		took(engine, upload, filled);
	}
	while (upload->received < upload->request.body_size && !upload->aborted) {
		size_t n;

		if (stream->sink_size == 0) {
			uint64_t left = upload->request.body_size - upload->received;
			enum store_status status;

			if (upload->piece_count == 0 && stream->input_size < left &&
				stream->input_size < UPLOAD_FIRST) {
				stream->wanted = UPLOAD_FIRST;
				return UPLOAD_MORE;
			}
			status = find_room(engine, upload);
			if (status == STORE_WAIT) {
				park(engine, stream);
				return UPLOAD_PARKED;
			}
			if (status == STORE_NO_MEMORY) {
				upload->full = true;
				abort_upload(engine, upload);
				break;
			}
		}
		if (stream->input_size == 0)
			return UPLOAD_MORE;
		n = stream->input_size < stream->sink_size ? stream->input_size : stream->sink_size;
		memcpy(stream->sink, stream->input, n);
		stream->input += n;
		stream->input_size -= n;
		took(engine, upload, n);
	}
	return upload->aborted ? skip_aborted(engine, upload, slot, key_decoded)
			       : finish(engine, upload, slot);
}

/*
 * Takes memory of this kind back from the uploads that have been without progress for long. True if
 * there was any.
 */
static bool
abort_stalled(struct engine *engine, bool large)
{
	bool any = false;

	for (struct upload *upload = engine->upload_first; upload; upload = upload->next) {
		if (engine->time.unix_ns - upload->progress_ns < UPLOAD_STALL_NS ||
			engine->turn - upload->progress_turn < 2)
			break;
		/*
		 * Whole ones wait in a slot for their turn. Parked ones wait for us, and the
		 * favoured ones see to it that room comes back to them; but each worker has its
		 * favoured one, and values may be so large that these wait for each other.
		 */
		if (upload->large != large || upload->piece_count == 0 ||
			upload->stream->upload != upload ||
			(upload->parked && (!large || engine->time.unix_ns - upload->progress_ns <
							      UPLOAD_PARKED_NS)))
			continue;
		abort_upload(engine, upload);
		any = true;
	}
	return any;
}

/* Takes a stream out of the list of parked ones; false when it isn't in there. */
static bool
unlink_parked(struct engine *engine, struct stream *stream)
{
	struct stream **link = &engine->parked_first, *previous = NULL;

	for (; *link; previous = *link, link = &(*link)->parked_next) {
		if (*link != stream)
			continue;
		*link = stream->parked_next;
		if (engine->parked_last == stream)
			engine->parked_last = previous;
		stream->parked_next = NULL;
		engine->parked_count--;
		atomic_fetch_sub_explicit(engine->options.upload_waiters, 1, memory_order_relaxed);
		return true;
	}
	return false;
}

static struct stream *
unpark(struct engine *engine, struct stream *stream)
{
	unlink_parked(engine, stream);
	stream->upload->parked = false;
	stream->upload->waited = true;
	stream->upload->progress_turn = engine->turn;
	/*
	 * What it has in its window came long ago: it counts as stalled soon, if nothing more is on
	 * the socket.
	 */
	stream->upload->progress_ns = engine->time.unix_ns - UPLOAD_STALL_NS + UPLOAD_GRACE_NS;
	list_remove(engine, stream->upload);
	list_prepend(engine, stream->upload);
	return stream;
}

/*
 * The first parked stream that waits for this kind of memory, if it can go on: there is room for
 * it, or never will be.
 */
static struct stream *
try_unpark(struct engine *engine, bool large)
{
	struct stream *stream = engine->parked_first;
	enum store_status status;

	while (stream && stream->upload->large != large)
		stream = stream->parked_next;
	if (!stream)
		return NULL;
	if (stream->upload->aborted)
		return unpark(engine, stream);
	status = find_room(engine, stream->upload);
	if (status == STORE_WAIT && abort_stalled(engine, large))
		status = stream->upload->aborted ? STORE_NO_MEMORY
						 : find_room(engine, stream->upload);
	if (status == STORE_NO_MEMORY && !stream->upload->aborted) {
		stream->upload->full = true;
		abort_upload(engine, stream->upload);
	}
	return status == STORE_WAIT ? NULL : unpark(engine, stream);
}

struct stream *
engine_unpark(struct engine *engine, const struct engine_time *time, uint64_t *deadline_ns)
{
	if (engine->turn_ns != time->unix_ns)
		engine->turn++;
	engine->turn_ns = time->unix_ns;
	engine->time = *time;
	*deadline_ns = 0;
	engine->starved = false;
	if (engine->parked_first) {
		/*
		 * Who waits for segments doesn't hold back who needs but a chunk, nor the other
		 * way.
		 */
		bool large = engine->parked_first->upload->large;
		struct stream *stream = try_unpark(engine, large);

		if (!stream)
			stream = try_unpark(engine, !large);
		if (stream)
			return stream;
		*deadline_ns = time->unix_ns + UPLOAD_RETRY_NS;
	}
	if (engine->upload_first) {
		/* Segments are every worker's: others' streams may wait for what ours hold. */
		bool waited_for = atomic_load_explicit(engine->options.upload_waiters,
					  memory_order_relaxed) > engine->parked_count;

		if (waited_for)
			abort_stalled(engine, true);
		if (!*deadline_ns)
			*deadline_ns =
				time->unix_ns + (waited_for ? UPLOAD_RETRY_NS : UPLOAD_STALL_NS);
	}
	return NULL;
}

void
engine_stream_end(struct engine *engine, struct stream *stream)
{
	if (!stream->upload)
		return;
	unlink_parked(engine, stream);
	upload_end(engine, stream->upload);
	stream->upload = NULL;
	stream->sink_size = 0;
}
