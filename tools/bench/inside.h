/* SPDX-License-Identifier: BSD-2-Clause */
/* inside: what client.c, compose.c, replies.c and empty.c share of a client; nobody else's. */
#ifndef TOOLS_BENCH_INSIDE_H
#define TOOLS_BENCH_INSIDE_H

#include "client.h"
#include "pause.h"

#define DRAW_BATCH 256
#define SEND_SIZE (256 * 1024) /* no more is composed for a connection while so much waits */
#define RECEIVE_SIZE (256 * 1024)
#define EVENTS_PER_TURN 256
#define TURN_MS 100

/*
 * Requests of one kind in a row that began together: a run of gets of one key each, or one request
 * of any other kind. Their keys, 'keys' for each, stand in the ring of keys.
 */
struct slot {
	uint64_t start_ns; /* when it was sent, in an open loop when it was due */
	uint32_t requests; /* still without their whole answers */
	uint16_t keys;
	uint16_t answered; /* keys of the oldest that are dealt with */
	uint8_t operation;
	bool is_newest; /* of a set or delete: all versions before it had been answered */
};

/* The empty client: what a connection sends again and again. */
struct round {
	uint32_t requests;
	uint32_t classes[CLIENT_CLASSES];
	uint64_t reply_size; /* bytes that answer it */
	uint64_t awaited;    /* of those still to come */
	uint64_t start_ns;
	struct client_counts counts; /* what one round does */
	size_t size;
	char bytes[];
};

struct connection {
	int fd; /* -1 when it is closed */
	uint32_t events;
	uint32_t number; /* among all connections: owns keys number, number + connections, ... */
	uint32_t head;	 /* of the oldest request under way, in the ring of keys */
	uint32_t under_way;
	uint32_t slot_head;
	uint32_t slot_count;
	uint32_t fill_kind; /* kinds of keys that are filled */
	uint64_t owned;	    /* keys that it owns */
	uint64_t fill_next; /* how many of those are filled, of this kind */
	bool is_filled;
	uint32_t penalties; /* keys missed since the last pause began */
	uint64_t resume_ns; /* asks nothing before; 0: not paused */
	struct slot *slots;
	/*
	 * multiget of both for each request. Versions: of a set or delete its own; of a get the
	 * oldest that may come back.
	 */
	uint32_t *keys;
	uint32_t *versions;
	uint32_t *aside; /* keys that were missed and are to be set: first to end */
	size_t aside_first;
	size_t aside_end;
	size_t aside_room;
	char *unsent;
	size_t unsent_size;
	size_t unsent_room;
	char *partial; /* an incomplete reply */
	size_t partial_size;
	size_t partial_room;
	struct round *round; /* of the empty client */
};

/*
 * What is asked next, by chance: the first whose bound is above a random number. The likeliest
 * stands first, and is drawn in runs.
 */
struct choice {
	uint64_t bound;
	enum operation operation;
	bool is_scan;
};

/* Replies in a row whose requests began together. */
struct batch {
	uint64_t start_ns;
	uint32_t counts[CLIENT_CLASSES];
};

struct client {
	struct client_shared *shared;
	int epoll_fd;
	unsigned index; /* among all threads */
	bool many_writers;
	bool vanishing; /* keys may be missed rightly, evicted or not */
	uint32_t pipeline;
	uint32_t mask; /* of the rings of slots and of requests' keys, which are powers of two */
	uint32_t multiget;
	unsigned connection_count;
	struct connection *connections;
	char *receive;
	size_t receive_size;
	char *send;
	size_t send_room;

	uint64_t random;
	struct draw_state draws;
	uint64_t drawn[DRAW_BATCH];
	unsigned drawn_next;
	struct choice choices[OPERATION_COUNT + 2];
	unsigned choice_count;
	double run_scale;  /* 1 / log(chance of the first choice) */
	unsigned run_left; /* requests of the first choice until there is another one */

	enum client_phase phase;
	uint64_t left; /* requests that may still be drawn in this phase */
	bool stopping;
	bool is_open_loop;
	struct draw_arrivals arrivals;
	uint64_t start_ns;
	uint64_t deadline_ns; /* when the phase ends, 0 for when its requests are answered */
	uint64_t due_ns;      /* when the next request of an open loop is due */
	uint64_t spin_ns;     /* how long before that it is no longer slept */
	bool all_busy;	      /* no connection had a free slot for it */
	unsigned cursor;      /* the connection that is asked first to take it */
	uint64_t under_way;
	struct pauses pauses; /* of connections, by their place among the thread's */
	struct batch batch;
	struct client_counts counts;
	struct histogram latencies[CLIENT_CLASSES];
	_Atomic(uint64_t) progress;
};

/* client.c */

/* The connection is of no more use: what is under way has no answer. */
void client_give_up(struct client *client, struct connection *connection, const char *why);

/* Reads what has come and takes the replies. */
void client_receive(struct client *client, struct connection *connection);

/* Hands bytes to the socket, keeps what it does not take. False when the connection is lost. */
bool client_send(
	struct client *client, struct connection *connection, const char *bytes, size_t size);

/* Grow a buffer to hold size bytes; exits where there is no memory. */
void *client_grow(void *buffer, size_t *room, size_t size);

void client_complain(struct client *client, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* compose.c */

void compose_prepare(struct client *client, unsigned index);

/*
 * Writes the next requests for the connection and takes slots for them, as many as there are free
 * and the buffer (client->send, where at is in) can take: first the sets that follow misses, then
 * up to limit of the phase's. Returns their end; *drawn is how many came from the mix.
 */
char *compose_requests(struct client *client, struct connection *connection, char *at,
	unsigned limit, uint64_t start_ns, unsigned *drawn);

/* Bytes that may be written behind SEND_SIZE. */
size_t compose_size_max(const struct client *client);

/* replies.c */

/*
 * Cuts all whole replies off the received bytes. Returns how many bytes are left, or -1 when the
 * stream is lost. *wanted as in struct protocol.
 */
ssize_t replies_take(struct client *client, struct connection *connection, const char *at,
	size_t size, size_t *wanted);

/* The class that counts an operation's latency. */
enum client_class replies_class(enum operation operation);

/* empty.c */

/* Makes the requests of each connection, sends them, learns from the answers and sends anew. */
void empty_begin(struct client *client);

/* Reads and counts bytes. */
void empty_receive(struct client *client, struct connection *connection);

/* Sends the requests anew when all bytes have come. */
void empty_send(struct client *client, struct connection *connection);

#endif
