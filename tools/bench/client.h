/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * client: one thread's share of the load: its connections, their event loop, what is under way and
 * what came back.
 *
 * A connection keeps up to 'pipeline' requests under way in a ring of slots, oldest first; a slot
 * knows what was asked, when, and what may be answered. Bytes are read into one buffer of the
 * thread; only an incomplete reply is kept by its connection.
 */
#ifndef TOOLS_BENCH_CLIENT_H
#define TOOLS_BENCH_CLIENT_H

#include "../common/dial.h"
#include "histogram.h"
#include "protocol.h"

enum client_phase {
	CLIENT_FILL, /* each connection sets the keys that it owns, in order */
	CLIENT_RUN,  /* sets and gets of random keys */
};

/* What one phase did. All failures but 'refused' and 'misses' are failures whatever the options. */
struct client_counts {
	uint64_t requests; /* answered */
	uint64_t sets;
	uint64_t gets; /* keys asked for, not requests */
	uint64_t hits;
	uint64_t misses;
	uint64_t lost;	  /* misses of keys that were stored in this run */
	uint64_t refused; /* sets answered 'out of memory' */
	uint64_t errors;  /* error replies and replies that fit no request */
	uint64_t wrong;	  /* values that failed their check */
	uint64_t missing; /* requests without an answer */
	uint64_t bytes_sent;
	uint64_t bytes_received;
};

struct client;

/* What all clients share; outlives them. */
struct client_shared {
	const struct options *options;
	const struct protocol *protocol;
	const struct dial_address *address;
	struct workload *workload;
	_Atomic(uint64_t) complaints; /* failures told on stderr so far */
};

/*
 * A client for the connections first .. first + count - 1 of all, which it opens. NULL with one
 * line in error. One thread uses it at a time.
 */
struct client *client_create(struct client_shared *shared, unsigned first, unsigned count,
	char *error, size_t error_size);

/* Close the connections, free all, set *client to NULL. */
void client_destroy(struct client **client);

/*
 * Run one phase to its end. requests bounds the phase (for CLIENT_RUN; 0 is no bound), as does
 * deadline_ns on CLOCK_MONOTONIC (0 is none). Afterwards counts and latencies of that phase can be
 * read.
 */
void client_run(
	struct client *client, enum client_phase phase, uint64_t requests, uint64_t deadline_ns);

const struct client_counts *client_counts(const struct client *client);

/* Nanoseconds a request. */
const struct histogram *client_latencies(const struct client *client);

/* Requests answered so far in this phase; any thread may ask. */
uint64_t client_progress(const struct client *client);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t client_now_ns(void);

#endif
