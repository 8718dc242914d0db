/* SPDX-License-Identifier: BSD-2-Clause */
#include "engine/internal.h"

#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* replies' text of one run: 256 misses, or hits of small values, fit many times over */
#define OUT_TEXT (256 * 1024)
/* values up to this are copied beside their header: cheaper than an iovec of their own */
#define OUT_COPY_MAX 512
#define TEXT_MAX (16 * 1024 * 1024)

/* Text that one reply may take: its lines, an echo of meta flags, a small value. */
#define REPLY_ROOM (COMPOSE_ROOM + TEXT_LINE_MAX + OUT_COPY_MAX)

static void
free_texts(struct engine *engine)
{
	for (uint32_t i = 0; i < engine->text_count; i++)
		free(engine->texts[i].data);
	engine->text_count = 0;
}

static void
free_pool(struct engine *engine)
{
	while (engine->pool) {
		struct batch *batch = engine->pool;

		engine->pool = batch->next;
		free(batch->held);
		free(batch);
	}
}

static bool
make_pool(struct engine *engine)
{
	for (int i = 0; i < BATCHES_MAX; i++) {
		struct batch *batch = calloc(1, sizeof *batch);

		if (!batch)
			return false;
		batch->next = engine->pool;
		engine->pool = batch;
		engine->pool_count++;
		if (!engine->flash)
			continue;
		batch->held = calloc(BATCH_SLOTS, sizeof *batch->held);
		if (!batch->held)
			return false;
	}
	return true;
}

void
engine_destroy(struct engine *engine)
{
	free_texts(engine);
	free_pool(engine);
	if (engine->accel_state)
		engine->accel->destroy(engine->accel_state);
	if (engine->thread)
		store_thread_destroy(engine->thread);
	free(engine->out.text);
	free(engine->out.pieces);
	free(engine->pieces);
	free(engine->segments);
	free(engine);
}

/* Everything that the worker will need, made at start. */
static bool
make_parts(struct engine *engine)
{
	uint32_t pieces_max = store_pieces_max(engine->store);

	engine->pieces_max = pieces_max;
	engine->thread =
		store_thread_create(engine->store, engine->options.worker, engine->counters);
	engine->accel_state = engine->accel->create(&(struct accel_options){
		.index = store_index(engine->store),
		.view = {engine->arena.base, engine->arena.segment_shift,
			engine->arena.segments_max},
		.seed = store_hash_seed(engine->store),
	});
	engine->out = (struct reply_out){
		.text = malloc(OUT_TEXT),
		.text_size = OUT_TEXT,
		.pieces = calloc(BATCH_SLOTS * 3 + pieces_max + 8, sizeof(struct iovec)),
		.piece_size = BATCH_SLOTS * 3 + pieces_max + 8,
		.copy_max = OUT_COPY_MAX,
	};
	/* An append has the pieces of the present value and of the new one, which may be chunks. */
	engine->pieces = calloc(pieces_max * 2 + engine->arena.large_min / UPLOAD_CHUNK + 4,
		sizeof *engine->pieces);
	engine->segments = calloc(pieces_max, sizeof *engine->segments);
	return make_pool(engine) && engine->thread && engine->accel_state && engine->out.text &&
	       engine->out.pieces && engine->pieces && engine->segments;
}

struct engine *
engine_create(const struct engine_options *options)
{
	struct engine *engine = calloc(1, sizeof *engine);

	if (!engine)
		return NULL;
	engine->options = *options;
	engine->store = options->store;
	store_get_arena(engine->store, &engine->arena);
	engine->flash = store_flash(engine->store) != NULL;
	engine->accel = &accel_cpu;
	engine->counters = options->counters;
	engine->limits = (struct parse_limits){
		.value_bytes_max = options->value_bytes_max,
		.window_bytes_max = options->window_bytes_max,
		.line_bytes_max = options->line_bytes_max,
		.strict = options->strict,
	};
	if (engine->options.requests_a_turn == 0 || engine->options.requests_a_turn > BATCH_SLOTS)
		engine->options.requests_a_turn = BATCH_SLOTS;
	if (!make_parts(engine)) {
		engine_destroy(engine);
		return NULL;
	}
	return engine;
}

struct store_thread *
engine_store_thread(struct engine *engine)
{
	return engine->thread;
}

struct batch *
engine_batch_borrow(struct engine *engine)
{
	struct batch *batch = engine->pool;

	if (!batch)
		return NULL;
	engine->pool = batch->next;
	engine->pool_count--;
	batch->next = NULL;
	batch->run_count = 0;
	batch->slot_count = 0;
	batch->bytes = 0;
	batch->again = batch->poll = false;
	return batch;
}

void
engine_batch_return(struct engine *engine, struct batch **batch)
{
	(*batch)->next = engine->pool;
	engine->pool = *batch;
	engine->pool_count++;
	*batch = NULL;
}

bool
engine_batches_are_few(const struct engine *engine)
{
	return engine->pool_count <= BATCHES_MAX / 2;
}

/* --- parse -------------------------------------------------------------------------------- */

/* The slot that was filled is one of the run's; its key will be found with those of all others. */
static void
add_slot(struct engine *engine, struct batch *batch, uint32_t run)
{
	struct slot *slot = &batch->slots[batch->slot_count];
	const struct request *request = &slot->request;

	slot->stage = SLOT_EXECUTE;
	slot->run = (uint16_t)run;
	slot->hinted = false;
	if (engine->flash)
		batch->held[batch->slot_count].intended = false;
	if (request->key_size > 0 && request->verb <= VERB_INSPECT) {
		struct accel_request *find = &engine->finds[engine->find_count];

		slot->stage = SLOT_FIND;
		find->key = request->key;
		find->key_size = request->key_size;
		find->value_ahead = request->options & REQUEST_VALUE_WANTED ? OUT_COPY_MAX : 0;
		engine->find_slots[engine->find_count++] = (uint16_t)batch->slot_count;
	}
	batch->slot_count++;
	batch->runs[run].slot_count++;
}

static void
consume(struct stream *stream, size_t size)
{
	check(size <= stream->input_size);
	stream->input += size;
	stream->input_size -= size;
}

/* An arriving body goes first. False when the stream has nothing more to give at the moment. */
static bool
parse_upload(struct engine *engine, struct batch *batch, uint32_t index, struct slot *slot)
{
	struct stream *stream = batch->runs[index].stream;

	slot->input_before = NULL;
	switch (upload_advance(engine, stream, slot, batch->key_decoded[batch->slot_count])) {
	case UPLOAD_DONE:
	case UPLOAD_SKIP:
		add_slot(engine, batch, index);
		return true;
	case UPLOAD_MORE:
		return false;
	case UPLOAD_PARKED:
		stream->wish = STREAM_PARKED;
		return false;
	}
	return false;
}

/*
 * Between two requests a parser mostly knows no more than the protocol. (What it has scanned
 * without finding a line's end is found again.)
 */
static bool
parser_holds_state(const struct parser *parser)
{
	return parser->multiget_open || parser->swallow || parser->protocol == PROTOCOL_UNKNOWN;
}

/*
 * The next request of a stream's window. False when the stream has nothing more to give at the
 * moment.
 */
static bool
parse_window(struct engine *engine, struct batch *batch, uint32_t index, struct slot *slot)
{
	struct stream *stream = batch->runs[index].stream;
	size_t consumed = 0;

	slot->upload = NULL;
	slot->input_before = stream->input;
	slot->parser_kept = parser_holds_state(&stream->parser);
	if (slot->parser_kept)
		batch->parser_before[batch->slot_count] = stream->parser;
	switch (request_parse(&stream->parser, &engine->limits, stream->input, stream->input_size,
		&consumed, &slot->request, batch->key_decoded[batch->slot_count])) {
	case PARSE_REQUEST:
		consume(stream, consumed);
		stream->last_command = slot->request.command;
		add_slot(engine, batch, index);
		if (slot->request.verb == VERB_QUIT || (slot->request.options & REQUEST_CLOSE)) {
			stream->wish = STREAM_CLOSE;
			return false;
		}
		return true;
	case PARSE_SKIP:
		consume(stream, consumed);
		return true;
	case PARSE_BODY:
		consume(stream, consumed);
		stream->last_command = slot->request.command;
		if (!upload_begin(engine, stream, slot))
			add_slot(engine, batch, index);
		return true;
	case PARSE_MORE:
		stream->wanted = stream->parser.wanted;
		if (stream->end_of_input || stream->datagram)
			stream->wish = STREAM_CLOSE;
		return false;
	case PARSE_CLOSE:
		counter_add(&engine->counters->lines_too_long, 1);
		stream->wish = STREAM_CLOSE;
		return false;
	}
	return false;
}

static void
parse_run(struct engine *engine, struct batch *batch, uint32_t index)
{
	struct batch_run *run = &batch->runs[index];
	struct stream *stream = run->stream;
	bool more = true;

	run->slot_first = run->slot_next = (uint16_t)batch->slot_count;
	run->slot_count = 0;
	run->wrote = run->blocked = run->finished = false;
	stream->wish = STREAM_READ;
	stream->wanted = 0;
	engine->limits.protocol = stream->protocol_fixed;
	engine->limits.datagram = stream->datagram;
	while (more && batch->slot_count < BATCH_SLOTS &&
		run->slot_count < engine->options.requests_a_turn) {
		struct slot *slot = &batch->slots[batch->slot_count];

		if (stream->upload)
			more = parse_upload(engine, batch, index, slot);
		else if (stream->input_size > 0)
			more = parse_window(engine, batch, index, slot);
		else
			more = false;
	}
	/*
	 * Stopped by a bound: what is left goes on in a later batch, before more is read to where a
	 * body's bytes stand already.
	 */
	stream->more = more && (stream->input_size > 0 || stream->upload);
	if (stream->more && run->slot_count > 0)
		counter_add(&engine->counters->conn_yields, 1);
	if (!more && stream->wish == STREAM_READ && (stream->end_of_input || stream->datagram))
		stream->wish = STREAM_CLOSE;
}

/* --- find --------------------------------------------------------------------------------- */

/* Not in memory, as far as the find went: a new item is expected, or one on flash begins to come. */
static void
prepare_absent(struct engine *engine, struct batch *batch, uint32_t number)
{
	const struct accel_request *find = &engine->finds[number];
	uint32_t slot = engine->find_slots[number];

	if (find->found == ACCEL_UNVERIFIED && engine->flash && !engine->starved)
		store_ahead(engine->thread, &batch->held[slot], find->entry);
	else if (find->found == ACCEL_MISS && batch->slots[slot].request.verb == VERB_STORE)
		store_expect(engine->store, find->hash);
}

/* Hashes and finds the keys of all new slots in one burst; what is on flash is on its way then. */
static void
find_all(struct engine *engine, struct batch *batch)
{
	struct accel_burst burst = {.requests = engine->finds, .count = engine->find_count};
	struct accel_burst *submitted = &burst;

	if (burst.count == 0)
		return;
	check(engine->accel->submit(engine->accel_state, &submitted));
	while (!engine->accel->poll(engine->accel_state))
		;
	for (uint32_t i = 0; i < burst.count; i++) {
		struct slot *slot = &batch->slots[engine->find_slots[i]];
		const struct accel_request *find = &engine->finds[i];

		slot->request.hash = find->hash;
		slot->hint_number = find->number;
		slot->hint_version = find->version;
		slot->hint_entry = find->entry;
		slot->hint_slot = find->slot;
		slot->hinted = find->found != ACCEL_UNVERIFIED;
		slot->stage = SLOT_EXECUTE;
		if (find->found != ACCEL_HIT)
			prepare_absent(engine, batch, i);
	}
}

/* --- execute and compose ------------------------------------------------------------------ */

static bool
has_room(const struct engine *engine)
{
	const struct reply_out *out = &engine->out;

	return out->text_used + REPLY_ROOM <= out->text_size &&
	       out->piece_used + 4 + engine->pieces_max <= out->piece_size &&
	       out->bytes < engine->options.reply_bytes_max;
}

static void
wait_in_slot(struct engine *engine, struct slot *slot)
{
	slot->hinted = false;
	if (slot->stage != SLOT_WAITING)
		counter_add(&engine->counters->slots_waited, 1);
	slot->stage = SLOT_WAITING;
}

/*
 * The run's first request finds no room, perhaps for what was read ahead for those behind it: they
 * let it go, or all might wait for each other.
 */
static void
let_go_behind(struct engine *engine, struct batch *batch, const struct batch_run *run)
{
	uint32_t end = run->slot_first + run->slot_count;

	for (uint32_t i = run->slot_next + 1u; i < end; i++)
		if (engine_holds(&batch->held[i]))
			store_release(engine->thread, &batch->held[i]);
}

/* Will it change its key, whatever is there? */
static bool
changes_surely(const struct request *request)
{
	if (request->options & REQUEST_CAS_COMPARE)
		return false;
	switch ((enum verb)request->verb) {
	case VERB_STORE:
		return request->mode == MODE_SET;
	case VERB_FETCH:
		return request->options & REQUEST_TTL;
	case VERB_ARITHMETIC:
	case VERB_TOUCH:
	case VERB_DELETE:
		return true;
	default:
		return false;
	}
}

/*
 * A request waits for its record: those behind it put theirs into the same commit, else a pipeline of
 * changes would take one each.
 */
static void
intend_behind(struct engine *engine, struct batch *batch, const struct batch_run *run)
{
	uint32_t end = run->slot_first + run->slot_count;

	for (uint32_t i = run->slot_next + 1u; i < end; i++) {
		const struct request *request = &batch->slots[i].request;

		if (request->key_size > 0 && !batch->held[i].intended && changes_surely(request))
			store_intend(engine->thread, &batch->held[i], request->key,
				request->key_size, request->hash);
	}
}

/* Runs a request that may wait for flash, with what it holds. False: it waits. */
static bool
execute_held(struct engine *engine, struct batch *batch, struct batch_run *run, struct slot *slot,
	struct reply *reply)
{
	struct store_held *held = &batch->held[run->slot_next];

	if (slot->stage == SLOT_WAITING && !store_held_settled(engine->thread, held))
		return false;
	store_hold(engine->thread, held);
	if (command_run(engine, run, slot, reply)) {
		if (engine_holds(held))
			store_release(engine->thread, held);
		return true;
	}
	if (held->intent.ticket)
		intend_behind(engine, batch, run);
	/* Nobody tells when there is memory again, or room for a read or a record. */
	if (store_held_settled(engine->thread, held)) {
		batch->poll = true;
		engine->starved = true;
		let_go_behind(engine, batch, run);
	}
	return false;
}

static inline __attribute__((always_inline)) void
execute_slots(struct engine *engine, struct batch *batch, struct batch_run *run, bool flash)
{
	struct reply_out *out = &engine->out;
	uint16_t end = (uint16_t)(run->slot_first + run->slot_count);

	run->piece_first = out->piece_first = out->piece_used;
	out->bytes = 0;
	while (run->slot_next < end) {
		struct slot *slot = &batch->slots[run->slot_next];
		struct reply reply;

		if (!has_room(engine)) {
			batch->again = true;
			break;
		}
		if (flash ? !execute_held(engine, batch, run, slot, &reply)
			  : !command_run(engine, run, slot, &reply)) {
			batch->poll |= !flash;
			wait_in_slot(engine, slot);
			break;
		}
		reply_compose(out, &slot->request, &reply);
		/* Key and flags that the reply echoes stand in the upload. */
		if (slot->upload) {
			upload_end(engine, slot->upload);
			slot->upload = NULL;
		}
		slot->stage = SLOT_DONE;
		run->slot_next++;
	}
	run->piece_count = out->piece_used - run->piece_first;
	run->finished = run->slot_next == end;
}

static void
execute_run(struct engine *engine, struct batch *batch, struct batch_run *run)
{
	if (engine->flash)
		execute_slots(engine, batch, run, true);
	else
		execute_slots(engine, batch, run, false);
}

void
engine_run(struct engine *engine, struct batch *batch, const struct engine_time *time)
{
	bool fresh = batch->slot_count == 0;

	engine->time = *time;
	free_texts(engine);
	engine->out.text_used = 0;
	engine->out.piece_used = 0;
	batch->out = &engine->out;
	batch->again = batch->poll = false;
	/* The replies of the run before have left. */
	if (engine->flash)
		store_held_spent(engine->thread);
	if (fresh) {
		engine->find_count = 0;
		for (uint32_t i = 0; i < batch->run_count; i++)
			parse_run(engine, batch, i);
		find_all(engine, batch);
		counter_add(&engine->counters->batches, 1);
		counter_add(&engine->counters->batch_requests, batch->slot_count);
	}
	for (uint32_t i = 0; i < batch->run_count; i++) {
		struct batch_run *run = &batch->runs[i];

		run->piece_count = 0;
		if (!run->stream || run->finished)
			continue;
		/*
		 * The peer doesn't take its replies: a batch that waited for peers would be lost to
		 * all others for as long as these like.
		 */
		if (run->blocked)
			merge_give_back(engine, batch, run, 0);
		else
			execute_run(engine, batch, run);
	}
}

/* --- pins and texts ----------------------------------------------------------------------- */

static enum batch_bytes
pin(void *context, const void *bytes, size_t size)
{
	static const enum batch_bytes answers[] = {
		[STORE_PINNED] = BATCH_PINNED,
		[STORE_PIN_REFUSED] = BATCH_REFUSED,
		[STORE_ELSEWHERE] = BATCH_PLAIN,
	};

	(void)size;
	return answers[store_pin(context, bytes)];
}

static void
unpin(void *context, const void *bytes, size_t size)
{
	(void)size;
	store_unpin(context, bytes);
}

const struct batch_pins engine_pins = {.pin = pin, .unpin = unpin};

bool
engine_text_put(struct engine_text *text, const void *data, size_t size)
{
	if (text->size + size > TEXT_MAX)
		return false;
	if (text->size + size > text->room) {
		size_t room = text->room ? text->room * 2 : 4096;
		uint8_t *grown;

		while (room < text->size + size)
			room *= 2;
		grown = realloc(text->data, room);
		if (!grown)
			return false;
		text->data = grown;
		text->room = room;
	}
	memcpy(text->data + text->size, data, size);
	text->size += size;
	return true;
}

bool
engine_text_printf(struct engine_text *text, const char *format, ...)
{
	char line[2048];
	va_list arguments;
	int size;

	va_start(arguments, format);
	size = vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	return size >= 0 && engine_text_put(text, line,
				    (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
}
