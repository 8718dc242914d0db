/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * client: one thread's share of the load: its connections, their event loop, what is under way and
 * what came back.
 *
 * A connection keeps up to 'pipeline' requests under way in a ring of slots, oldest first; a slot
 * knows what was asked, when, and what may be answered. Bytes are read into one buffer of the
 * thread; only an incomplete reply is kept by its connection.
 *
 *     compose.c   what is asked next, written into the slots and the buffer
 *     client.c    sockets and the event loops: closed, open, and that of the empty client
 *     replies.c   what came back, held against the slots
 */
#ifndef TOOLS_BENCH_CLIENT_H
#define TOOLS_BENCH_CLIENT_H

#include "../common/dial.h"
#include "histogram.h"
#include "protocol.h"

enum client_phase {
	CLIENT_FILL,   /* each connection sets the keys that it owns, in order */
	CLIENT_WARMUP, /* as the run, but always in a closed loop */
	CLIENT_RUN,    /* requests by the mix */
};

/*
 * What one phase did; nothing but uint64_t. Of them errors, wrong and missing are failures whatever
 * the options.
 */
struct client_counts {
	uint64_t requests; /* answered */
	uint64_t sets;
	uint64_t after_miss; /* those of the sets that follow a miss (--cache-aside) */
	uint64_t gets;	     /* keys asked for, not requests */
	uint64_t hits;
	uint64_t misses;
	uint64_t scans; /* those of the gets that asked for a key of a scan */
	uint64_t gats;
	uint64_t gat_hits;
	uint64_t touches;
	uint64_t touch_hits;
	uint64_t incrs;
	uint64_t incr_hits;
	uint64_t appends;
	uint64_t append_hits;
	uint64_t deletes;
	uint64_t delete_hits;
	uint64_t lost;	  /* misses of keys that were stored in this run */
	uint64_t foreign; /* values that this run would not have set; without --verify */
	uint64_t refused; /* requests answered 'out of memory' */
	uint64_t errors;  /* error replies and replies that fit no request */
	uint64_t wrong;	  /* values that failed their check */
	uint64_t missing; /* requests without an answer */
	uint64_t behind;  /* due in an open loop when it ended, but not sent */
	uint64_t bytes_sent;
	uint64_t bytes_received;
};

/* Latencies are kept by class. */
enum client_class {
	CLIENT_CLASS_GET, /* get and gat */
	CLIENT_CLASS_SET,
	CLIENT_CLASS_OTHER,
	CLIENT_CLASSES
};

struct client;

/* What all clients share; outlives them. */
struct client_shared {
	const struct options *options;
	const struct protocol *protocol;
	const struct dial_address *address;
	const struct draw_keys *keys;
	struct workload *workload;
	_Atomic(uint64_t) complaints; /* failures told on stderr so far */
};

/*
 * The client of thread number index for the connections first .. first + count - 1 of all, which it
 * opens. NULL with one line in error. One thread uses it at a time.
 */
struct client *client_create(struct client_shared *shared, unsigned index, unsigned first,
	unsigned count, char *error, size_t error_size);

/* Close the connections, free all, set *client to NULL. */
void client_destroy(struct client **client);

/*
 * Run one phase to its end. requests bounds the phase (but for CLIENT_FILL; 0 is no bound), as does
 * deadline_ns on CLOCK_MONOTONIC (0 is none). start_ns is when the phase began, for all threads
 * alike. Afterwards counts and latencies of that phase can be read.
 */
void client_run(struct client *client, enum client_phase phase, uint64_t requests,
	uint64_t start_ns, uint64_t deadline_ns);

const struct client_counts *client_counts(const struct client *client);

/* Nanoseconds a request. */
const struct histogram *client_latencies(const struct client *client, enum client_class which);

/* Requests answered so far in this phase; any thread may ask. */
uint64_t client_progress(const struct client *client);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t client_now_ns(void);

#endif
