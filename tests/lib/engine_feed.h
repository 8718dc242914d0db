/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * engine_feed: a store, an engine and streams without sockets. What is fed to a stream is parsed,
 * run and answered in the calling thread, with the clock that the test sets; replies are collected
 * as one string a stream.
 */
#ifndef TESTS_LIB_ENGINE_FEED_H
#define TESTS_LIB_ENGINE_FEED_H

#include "base/counters.h"
#include "engine/engine.h"
#include "store/store.h"

struct feed {
	struct store *store;
	struct store_thread *background;
	struct engine *engine;
	struct counters *counters, *background_counters;
	_Atomic uint32_t waiters;
	struct engine_time time;
	uint64_t turns;
};

/* One connection: a window that the feed fills, and all that came back. */
struct feed_stream {
	struct stream stream;
	uint8_t *window;
	size_t window_room;
	uint8_t *output;
	size_t output_size, output_room;
	bool closed, parked;
};

struct feed_options {
	uint64_t limit_bytes;	  /* 0: 64 MiB */
	uint64_t value_bytes_max; /* 0: 1 MiB */
	bool no_evict, no_cas, no_flush;
	unsigned workers;	   /* 0: 1 */
	uint64_t upload_bytes_max; /* 0: 1 MiB */
};

/* The calling thread becomes an RCU reader until feed_close. The clock stands at 1,000,000 s. */
void feed_open(struct feed *feed, const struct feed_options *options);
void feed_close(struct feed *feed);
void feed_advance(struct feed *feed, uint64_t ns);

void feed_stream_open(struct feed_stream *stream);
void feed_stream_close(struct feed *feed, struct feed_stream *stream);

/*
 * Gives bytes to the stream and runs turns until nothing moves any more. Background work runs
 * between turns.
 */
void feed_send(struct feed *feed, struct feed_stream *stream, const void *data, size_t size);
/*
 * The same, without running: for several streams in one batch. feed_turn runs one turn over these
 * streams.
 */
void feed_put(struct feed_stream *stream, const void *data, size_t size);
bool feed_turn(struct feed *feed, struct feed_stream **streams, size_t count);

/*
 * What came back since the last call, as a string (a zero behind it); valid until the next call of
 * anything.
 */
const char *feed_take(struct feed_stream *stream, size_t *size);

#endif
