/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The event front's own structs, for its files: event.c (libevent: polling, waking, accepting),
 * event_connection.c (a connection's life and its read buffer), event_send.c (replies and what
 * peers didn't take), event_udp.c.
 *
 * Who may do what: callbacks of wait run while the worker is off line. They note readiness, and
 * write what is pinned or copied already; a connection is closed only on line (event_reap).
 */
#ifndef NET_EVENT_INTERNAL_H
#define NET_EVENT_INTERNAL_H

#include "net/event.h"

#include <pthread.h>
#include <stddef.h>

#define HANDOFF_RING 512 /* accepted connections on their way to one worker */

struct event;
struct event_base;
struct event_udp;

/* A ring of struct links; an element that is in no list points to itself. */
struct link {
	struct link *next, *previous;
};

/* Reply bytes that a peer didn't take. */
struct leftover {
	struct leftover *next;
	const uint8_t *data;
	size_t size;
	const void *pinned; /* what to unpin; NULL: the bytes stand behind this struct */
	size_t pinned_size;
};

enum connection_state { CONNECTION_READ, CONNECTION_NREAD, CONNECTION_PARSE, CONNECTION_WRITE };

struct connection {
	struct stream stream;
	struct event_front *front;
	struct event *readable, *writable;
	const struct listener *listener;
	struct batch_run *run; /* in a batch; NULL: outside */
	struct connection *ready_next;
	struct connection *doomed_next;
	struct link all;  /* front.all; under front.lock */
	struct link idle; /* front.idle: least recently active first */
	/* front.holders: in it while held_bytes is not 0, least recent first */
	struct link holder;
	/* front.blocked: in it while blocked, least recent progress first */
	struct link blocked_link;
	uint8_t *window; /* lent read buffer that stream.input points into, or NULL */
	size_t window_size;
	/* an unfinished request's bytes, while no window is lent; stream.input points to it */
	uint8_t *saved;
	size_t held_bytes;
	struct leftover *out_first, *out_last;
	size_t copied_bytes;
	_Atomic uint64_t active_ns;
	uint64_t progress_ns;
	int fd;
	_Atomic uint8_t state; /* enum connection_state, for statistics */
	bool ready;	       /* in front.ready */
	bool watching;	       /* the read event is armed */
	bool watching_write;
	bool blocked;
	bool parked;
	bool resumed; /* goes into a batch without being read first */
	bool closing; /* closes once its output has left */
	bool dead;    /* the peer is gone: nothing is written any more */
	bool doomed;  /* in front.doomed */
};

struct handoff {
	int fd;
	const struct listener *listener;
};

struct event_front {
	struct front front;
	struct event_front_options options;
	struct event_limits *limits;
	struct counters *counters;
	struct event_base *base;
	struct event *waker, *timer, *watched;
	int wake_fd;
	_Atomic bool wake_pending;
	uint64_t now_ns; /* monotonic; sampled when wait returns */

	struct connection *ready_first, *ready_last;
	uint32_t ready_count;
	bool starved;	    /* read buffers have run out */
	uint32_t turn_left; /* of those ready when the turn began, how many weren't looked at yet */
	struct connection *doomed;
	struct link idle, holders, blocked;
	uint8_t *windows; /* spare read buffers, linked through their first bytes */
	uint32_t window_count, window_spare;
	int64_t windows_uncounted; /* bytes lent that limits.window_bytes doesn't know of yet */

	pthread_mutex_t lock; /* of all */
	struct link all;

	struct handoff ring[HANDOFF_RING];
	_Atomic uint32_t ring_head, ring_tail; /* the acceptor writes tail, the front head */

	struct event_udp *udp;
	uint64_t ids;
};

#define connection_of(link, member)                                                                \
	((struct connection *)((char *)(link)-offsetof(struct connection, member)))

static inline void
link_init(struct link *link)
{
	link->next = link->previous = link;
}

static inline bool
link_empty(const struct link *list)
{
	return list->next == list;
}

static inline void
link_remove(struct link *link)
{
	link->next->previous = link->previous;
	link->previous->next = link->next;
	link_init(link);
}

static inline void
link_append(struct link *list, struct link *link)
{
	link->previous = list->previous;
	link->next = list;
	list->previous->next = link;
	list->previous = link;
}

static inline void
link_renew(struct link *list, struct link *link)
{
	link_remove(link);
	link_append(list, link);
}

/* --- event.c --- */

/* Makes the connection's events; false when memory ran out. */
bool event_watch_create(struct connection *connection);
void event_watch_destroy(struct connection *connection);
void event_watch_read(struct connection *connection, bool on);
void event_watch_write(struct connection *connection, bool on);
struct event *event_watch_fd(struct event_front *front, int fd,
	void (*ready)(int fd, short what, void *context), void *context);
void event_watch_fd_end(struct event *event);
void acceptor_connection_ended(struct event_limits *limits);

/* --- event_connection.c --- */

void connection_adopt(struct event_front *front, int fd, const struct listener *listener);
void connection_ready(struct connection *connection);
/* To be closed when the worker is on line. */
void connection_doom(struct connection *connection);
/* Closes it. Not in a batch; on line. */
void connection_close(struct connection *connection);
/* The batch gave it back: goes on as its wish says. */
void connection_return(struct connection *connection);
/* All its leftovers have been written. */
void connection_drained(struct connection *connection);
void event_reap(struct event_front *front);
/* Adds this front's lent windows to what all fronts share. */
void event_windows_publish(struct event_front *front);
bool event_receive(struct front *front, struct batch *batch);
void event_resume(struct front *front, struct stream *stream);
/* When the next idle connection is due: milliseconds, -1 for none. */
int event_idle_due_ms(const struct event_front *front);

/* --- event_send.c --- */

bool event_send(struct front *front, struct batch *batch);
void event_moved(struct front *front, struct batch_run *run);
/* Writes leftovers; false when the peer is gone. */
bool leftovers_write(struct connection *connection);
void leftovers_drop(struct connection *connection);

/* --- event_udp.c --- */

bool udp_create(struct event_front *front, const struct listeners *listeners);
void udp_destroy(struct event_front *front);
/* Adds datagrams to the batch. */
void udp_receive(struct event_front *front, struct batch *batch);
bool udp_pending(const struct event_front *front);
/* This turn's pieces of a datagram's run; takes a finished one back. */
void udp_send(struct event_front *front, struct batch *batch, struct batch_run *run);
/* Sends what udp_send has gathered. Before the batch's bytes go. */
void udp_flush(struct event_front *front);

#endif
