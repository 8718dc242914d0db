/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * front: bytes in and out of one worker. It knows no command. Implementations: event.c (libevent
 * sockets: TCP, Unix, UDP).
 *
 * All functions are called by the worker that owns the front, but wake, which any thread may call.
 * While wait blocks, the worker is off line for RCU, so callbacks inside may only note what became
 * ready; they touch neither store nor engine.
 */
#ifndef NET_FRONT_H
#define NET_FRONT_H

#include "engine/batch.h"

#include <stdbool.h>
#include <stdint.h>

struct front;

struct front_ops {
	const char *name;
	/*
	 * Blocks until something is ready, wake was called, or timeout_ms (-1: no limit; 0: poll)
	 * passed.
	 */
	void (*wait)(struct front *front, int timeout_ms);
	/*
	 * Fills an empty batch with ready streams (runs with slot_count 0); false when none is
	 * ready. Reads at most once a stream.
	 */
	bool (*receive)(struct front *front, struct batch *batch);
	/*
	 * Writes this turn's pieces of every run that has some. A run whose bytes aren't all taken
	 * becomes blocked; the rest is pinned or copied within the bounds, else the connection is
	 * closed and counted. Takes finished runs' streams back when they are no longer blocked, as
	 * stream.wish says. Gives true when the batch has no stream left and may return to the
	 * pool.
	 */
	bool (*send)(struct front *front, struct batch *batch);
	/* A parked stream goes on: it is ready again. */
	void (*resume)(struct front *front, struct stream *stream);
	/* The run of a batch that was sent stands here now: engine_batch_merge moved it. */
	void (*moved)(struct front *front, struct batch_run *run);
	/*
	 * From now on wait ends too when fd is readable, for as long as it is: its owner reads it
	 * empty. One a front, before its first wait, open until destroy. False: errno.
	 */
	bool (*watch)(struct front *front, int fd);
	/* Ends wait early; callable from any thread and from signal-safe contexts. */
	void (*wake)(struct front *front);
	/* Stops accepting, closes everything. */
	void (*destroy)(struct front *front);
};

struct front {
	const struct front_ops *ops;
};

#endif
