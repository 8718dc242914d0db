/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/lib/engine_feed.h"

#include "base/check.h"
#include "base/rcu.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW 16384
#define LINE_MAX_BYTES (1 << 20)

static void
no_wake(void *context)
{
	(void)context;
}

static enum status
no_admin(void *context, const struct request *request, struct engine_text *text)
{
	(void)context;
	if (request->verb == VERB_STATS)
		engine_text_printf(text, "STAT words %zu\r\nEND\r\n", request->arguments.size);
	return STATUS_OK;
}

static const struct engine_admin admin = {.run = no_admin};

void
feed_open(struct feed *feed, const struct feed_options *options)
{
	uint64_t value_max = options->value_bytes_max ? options->value_bytes_max : 1 << 20;

	memset(feed, 0, sizeof *feed);
	rcu_register();
	rcu_online();
	feed->time = (struct engine_time){1000000000000000ull, 1000000};
	feed->counters = aligned_alloc(128, sizeof *feed->counters);
	feed->background_counters = aligned_alloc(128, sizeof *feed->counters);
	memset(feed->counters, 0, sizeof *feed->counters);
	memset(feed->background_counters, 0, sizeof *feed->counters);
	feed->store = store_create(&(struct store_options){
		.limit_bytes = options->limit_bytes ? options->limit_bytes : 64 << 20,
		.reserve_factor = 4,
		.workers = options->workers ? options->workers : 1,
		.value_bytes_max = value_max,
		.evict = !options->no_evict,
		.cas = !options->no_cas,
		.growth = true,
		.classes = {.factor = 1.25,
			.chunk_bytes = 48,
			.chunk_bytes_max = 524288,
			.page_bytes = 1 << 20},
		.wake = no_wake,
	});
	check(feed->store);
	feed->background = store_thread_create(
		feed->store, options->workers ? options->workers : 1, feed->background_counters);
	feed->engine = engine_create(&(struct engine_options){
		.store = feed->store,
		.counters = feed->counters,
		.value_bytes_max = value_max,
		.window_bytes_max = WINDOW,
		.line_bytes_max = LINE_MAX_BYTES,
		.upload_bytes_max = options->upload_bytes_max ? options->upload_bytes_max : 1 << 20,
		.upload_waiters = &feed->waiters,
		.flush_allowed = !options->no_flush,
		.version = "1.6.45",
		.admin = &admin,
		.reply_bytes_max = 1 << 20,
	});
	check(feed->background && feed->engine);
}

void
feed_close(struct feed *feed)
{
	engine_destroy(feed->engine);
	store_thread_destroy(feed->background);
	rcu_offline();
	store_destroy(feed->store);
	rcu_unregister();
	free(feed->counters);
	free(feed->background_counters);
}

void
feed_advance(struct feed *feed, uint64_t ns)
{
	feed->time.unix_ns += ns;
	feed->time.unix_s = (uint32_t)(feed->time.unix_ns / 1000000000u);
}

void
feed_stream_open(struct feed_stream *stream)
{
	memset(stream, 0, sizeof *stream);
	stream->window_room = WINDOW;
	stream->window = malloc(stream->window_room);
}

void
feed_stream_close(struct feed *feed, struct feed_stream *stream)
{
	engine_stream_end(feed->engine, &stream->stream);
	free(stream->window);
	free(stream->output);
}

void
feed_put(struct feed_stream *stream, const void *data, size_t size)
{
	size_t left = stream->stream.input_size;

	if (left + size > stream->window_room) {
		uint8_t *grown = malloc(left + size);

		if (left)
			memcpy(grown, stream->stream.input, left);
		free(stream->window);
		stream->window = grown;
		stream->window_room = left + size;
	} else if (left) {
		memmove(stream->window, stream->stream.input, left);
	}
	memcpy(stream->window + left, data, size);
	stream->stream.input = stream->window;
	stream->stream.input_size = left + size;
}

static void
collect(struct feed_stream *stream, const struct iovec *pieces, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (stream->output_size + pieces[i].iov_len + 1 > stream->output_room) {
			stream->output_room = (stream->output_size + pieces[i].iov_len) * 2 + 4096;
			stream->output = realloc(stream->output, stream->output_room);
		}
		memcpy(stream->output + stream->output_size, pieces[i].iov_base, pieces[i].iov_len);
		stream->output_size += pieces[i].iov_len;
	}
}

static void
background(struct feed *feed)
{
	uint32_t next;

	for (int i = 0;
		i < 64 && store_background_reclaim(feed->background, feed->time.unix_ns, &next);
		i++)
		;
	for (int i = 0; i < 64 && store_background_grow(feed->background); i++)
		;
	store_turn_end(feed->background);
}

/*
 * Runs a batch until its streams are finished. Gives whether it did anything for a stream with more
 * to parse.
 */
static void
run_batch(struct feed *feed, struct batch *batch)
{
	bool finished;

	do {
		store_turn_begin(engine_store_thread(feed->engine), feed->time.unix_ns);
		engine_run(feed->engine, batch, &feed->time);
		finished = true;
		for (uint32_t i = 0; i < batch->run_count; i++) {
			struct batch_run *run = &batch->runs[i];

			collect((struct feed_stream *)run->stream,
				batch->out->pieces + run->piece_first, run->piece_count);
			finished &= run->finished;
		}
		store_turn_end(engine_store_thread(feed->engine));
		rcu_quiescent();
		background(feed);
		check(++feed->turns < 100000000);
	} while (!finished);
}

bool
feed_turn(struct feed *feed, struct feed_stream **streams, size_t count)
{
	struct batch *batch = engine_batch_borrow(feed->engine);
	struct stream *resumed;
	uint64_t deadline;
	bool more = false;

	check(batch && count <= BATCH_STREAMS);
	for (size_t i = 0; i < count; i++)
		if (!streams[i]->closed && !streams[i]->parked)
			batch->runs[batch->run_count++].stream = &streams[i]->stream;
	run_batch(feed, batch);
	for (uint32_t i = 0; i < batch->run_count; i++) {
		struct feed_stream *stream = (struct feed_stream *)batch->runs[i].stream;

		stream->closed = stream->stream.wish == STREAM_CLOSE;
		stream->parked = stream->stream.wish == STREAM_PARKED;
		more |= stream->stream.more && !stream->closed;
	}
	engine_batch_return(feed->engine, &batch);
	while ((resumed = engine_unpark(feed->engine, &feed->time, &deadline))) {
		((struct feed_stream *)resumed)->parked = false;
		more = true;
	}
	return more;
}

void
feed_send(struct feed *feed, struct feed_stream *stream, const void *data, size_t size)
{
	feed_put(stream, data, size);
	while (feed_turn(feed, &stream, 1))
		;
}

const char *
feed_take(struct feed_stream *stream, size_t *size)
{
	collect(stream, &(struct iovec){"", 1}, 1);
	stream->output_size--;
	if (size)
		*size = stream->output_size;
	stream->output_size = 0;
	return (const char *)stream->output;
}
