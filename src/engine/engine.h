/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * engine: runs batches. parse -> hash -> find -> fetch -> execute and compose. It knows requests
 * and the store, no socket.
 *
 * One engine a worker; all functions are called by that worker, on line for RCU unless said
 * otherwise.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/batch.h"

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct store;
struct store_thread;
struct counters;

/* The time, sampled once a turn by the worker. */
struct engine_time {
	/* Unix time in nanoseconds: monotonic clock plus the offset taken at start */
	uint64_t unix_ns;
	uint32_t unix_s; /* whole seconds of it */
};

/* Bytes of a reply that is composed outside the engine; freed when the batch has been sent. */
struct engine_text {
	uint8_t *data; /* malloc'd */
	size_t size;
	size_t room;
};
/* Appends; false when memory ran out or the text passed 16 MiB. */
bool engine_text_put(struct engine_text *text, const void *data, size_t size);
bool engine_text_printf(struct engine_text *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Commands about the daemon, not about items: stats, verbosity, cache_memlimit, shutdown,
 * debugtime. The daemon's; runs in the worker's turn. Leaves a whole reply in *text (framed for
 * request->protocol), or none and gives the status to be answered.
 */
struct engine_admin {
	enum status (*run)(void *context, const struct request *request, struct engine_text *text);
	/*
	 * 'stats detail': called for each key while *detail_enabled (engine_options) is true. hit:
	 * FETCH only.
	 */
	void (*detail)(void *context, enum verb verb, struct slice key, bool hit);
};

struct engine_options {
	struct store *store;
	struct counters *counters; /* this worker's */
	unsigned worker;	   /* number: 0 .. workers - 1 */
	uint64_t value_bytes_max;  /* -I */
	uint64_t window_bytes_max; /* the front's ordinary read buffer */
	uint64_t line_bytes_max;
	uint64_t upload_bytes_max; /* chunks that this worker lends to arriving bodies */
	/* streams parked for want of room, all workers together: the daemon's, starts at 0 */
	_Atomic uint32_t *upload_waiters;
	/* -R: requests of one connection in one batch, at most BATCH_SLOTS */
	uint32_t requests_a_turn;
	bool flush_allowed;  /* not -F */
	bool strict;	     /* -o strict_protocol=close */
	const char *version; /* what 'version' answers */
	const struct engine_admin *admin;
	const _Atomic bool *detail_enabled; /* NULL: never */
	void *admin_context;
	/* a connection's replies in one batch, beyond which it yields (1 MiB) */
	uint64_t reply_bytes_max;
};

struct engine *engine_create(const struct engine_options *options);
void engine_destroy(struct engine *engine);

/*
 * The worker's own store thread: whoever runs the loop begins and ends its turns (store_turn_begin,
 * store_turn_end).
 */
struct store_thread *engine_store_thread(struct engine *engine);

/* An empty batch from this worker's pool; NULL when all are pending: receive nothing more now. */
struct batch *engine_batch_borrow(struct engine *engine);
/* Takes an empty batch back. */
void engine_batch_return(struct engine *engine, struct batch **batch);
/* Half of this worker's batches are pending, or more. */
bool engine_batches_are_few(const struct engine *engine);
/*
 * Puts the unfinished runs of a pending batch into another one, whose finished ones make room: as
 * many as fit. moved is called for each run that stands elsewhere now, in either batch. With trim,
 * requests behind the first few of a run go back into their stream's window, where they can. True
 * when nothing is left in *from. Both were sent. from may be to: then it is only made dense.
 */
bool engine_batch_merge(struct engine *engine, struct batch *to, struct batch *from, bool trim,
	void (*moved)(void *context, struct batch_run *run), void *context);
/*
 * Has something happened that lets a request of the pending batch go on, which engine_run has not
 * seen? For who is about to sleep.
 */
bool engine_batch_can_go_on(const struct engine *engine, const struct batch *batch);
/* Its streams are going away with their front: gives back what its requests hold, and itself. */
void engine_batch_drop(struct engine *engine, struct batch **batch);

/*
 * Runs a new batch, or a pending one again: afterwards each run has this turn's pieces, and
 * finished ones say so.
 */
void engine_run(struct engine *engine, struct batch *batch, const struct engine_time *time);

/*
 * Once a turn: streams whose parking is over, one a call, NULL at the end. *deadline_ns: Unix time
 * at which to ask again at the latest (0: no need). Takes memory back from stalled uploads while
 * others wait for it.
 */
struct stream *engine_unpark(
	struct engine *engine, const struct engine_time *time, uint64_t *deadline_ns);

/* How a front pins what a peer didn't take; context: the worker's struct store_thread. */
extern const struct batch_pins engine_pins;

/* The stream is going away (not in a batch): gives back what the engine holds for it. */
void engine_stream_end(struct engine *engine, struct stream *stream);

#endif
