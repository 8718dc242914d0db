/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * event: the front of sockets: TCP, Unix and UDP over libevent, one front a worker, and the
 * acceptor that hands new connections to them in turn. It knows bytes and peers, no command.
 *
 *	acceptor (main thread)  --- ring of each worker + wake --->  front (worker)
 *
 * A front's memory is bounded by struct event_limits, for all fronts together: read buffers are
 * lent while there is something in them, an unfinished request is kept in a copy of its own size,
 * and what a peer doesn't take is pinned in the store or copied.
 */
#ifndef NET_EVENT_H
#define NET_EVENT_H

#include "base/counters.h"
#include "net/front.h"
#include "net/listen.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* an ordinary read buffer: a request up to this size is waited for in it */
#define EVENT_WINDOW_BYTES 16384

struct acceptor;

/* What all fronts of a daemon share: bounds, and what is in use. */
struct event_limits {
	uint32_t connections_max;
	uint64_t line_bytes_max; /* a read buffer may grow to this for a long line */
	/* read buffers lent: beyond, nothing new is read until some come back */
	uint64_t window_bytes_max;
	/* a front may have lent so much more, or less, than window_bytes says */
	uint64_t window_slack_bytes;
	/* unfinished requests: beyond, the connection that left one longest is closed */
	uint64_t held_bytes_max;
	/* copies of what peers didn't take: beyond, such a connection is closed */
	uint64_t output_bytes_max;
	uint64_t output_bytes_each; /* the same, of one connection */
	uint64_t idle_timeout_ns;   /* 0: none */

	_Atomic uint32_t connections;
	_Atomic uint64_t connection_structures;
	_Atomic uint64_t window_bytes;
	_Atomic uint64_t held_bytes;
	_Atomic uint64_t output_bytes;
	_Atomic(struct acceptor *) waiting; /* an acceptor that goes on when a connection ends */
};

struct event_front_options {
	unsigned worker;
	struct event_limits *limits;
	struct counters *counters;
	const struct batch_pins *pins;
	void *pins_context;
	/* The stream goes away; the worker is on line. */
	void (*ended)(void *context, struct stream *stream);
	void *ended_context;
	const struct listeners *listeners; /* its UDP sockets are read by every front */
};

/* NULL with errno. */
struct front *event_front_create(const struct event_front_options *options);

/* The version of the library below, as 'stats' prints it. */
const char *event_front_library(void);

/* One connection, as another thread sees it. */
struct event_connection_view {
	int fd;
	const char *state; /* memcached's name of what it is doing */
	const char *listen_name;
	uint64_t idle_ns;
};
/*
 * Calls visit for every connection of the front. Any thread; new connections of this front wait
 * meanwhile.
 */
void event_front_visit(struct front *front,
	void (*visit)(void *context, const struct event_connection_view *view), void *context);

/*
 * Closes the connection that holds a batch longest because its peer doesn't read, if that is for at
 * least quiet_ns. For a worker whose batches are all held. The worker is on line.
 */
bool event_front_relieve(struct front *front, uint64_t quiet_ns);

/* --- accepting, in the main thread -------------------------------------------------------- */

struct acceptor_options {
	struct event_limits *limits;
	const struct listeners *listeners;
	struct front **fronts;
	unsigned front_count;
	bool refuse; /* answer those over the limit with an error and close; else let them wait */
	struct counters *counters; /* the acceptor's own */
};

struct acceptor_stats {
	uint64_t accepting;	 /* 1, or 0 while listening is off */
	uint64_t disabled_count; /* times that it was switched off */
	uint64_t disabled_us;	 /* and for how long in all */
};

struct acceptor *acceptor_create(const struct acceptor_options *options);
/* Accepts until acceptor_wake, or until timeout_ms passed (-1: no limit). */
void acceptor_wait(struct acceptor *acceptor, int timeout_ms);
/* Any thread, and signal handlers. */
void acceptor_wake(struct acceptor *acceptor);
void acceptor_get_stats(struct acceptor *acceptor, struct acceptor_stats *stats);
void acceptor_destroy(struct acceptor *acceptor);

#endif
