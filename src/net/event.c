/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Polling, waking and accepting: all that touches libevent.
 */
#include "net/event_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPT_PAUSE_MS 100 /* listening is off for so long when descriptors ran out */
#define ACCEPTS_A_TURN 64
#define STARVED_MS 10 /* until a front asks for read buffers again */

static struct event_front *
event_front(struct front *front)
{
	return (struct event_front *)front;
}

static struct event_base *
make_base(void)
{
	struct event_config *config = event_config_new();
	struct event_base *base = NULL;

	if (!config)
		return NULL;
	event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
	event_config_set_flag(config, EVENT_BASE_FLAG_IGNORE_ENV);
	base = event_base_new_with_config(config);
	event_config_free(config);
	return base;
}

/* --- a connection's events ---------------------------------------------------------------- */

static void
on_readable(evutil_socket_t fd, short what, void *context)
{
	struct connection *connection = context;

	(void)fd;
	(void)what;
	/* Levels are triggered: what can't be read now must not be reported again and again. */
	if (connection->run || connection->parked || connection->blocked || connection->closing ||
		connection->doomed)
		event_watch_read(connection, false);
	else
		connection_ready(connection);
}

static void
on_writable(evutil_socket_t fd, short what, void *context)
{
	struct connection *connection = context;

	(void)fd;
	(void)what;
	if (!leftovers_write(connection)) {
		connection->dead = true;
		leftovers_drop(connection);
	}
	if (!connection->out_first)
		connection_drained(connection);
}

bool
event_watch_create(struct connection *connection)
{
	struct event_base *base = connection->front->base;

	connection->readable =
		event_new(base, connection->fd, EV_READ | EV_PERSIST, on_readable, connection);
	return connection->readable != NULL;
}

void
event_watch_destroy(struct connection *connection)
{
	if (connection->readable)
		event_free(connection->readable);
	if (connection->writable)
		event_free(connection->writable);
}

void
event_watch_read(struct connection *connection, bool on)
{
	if (connection->watching == on)
		return;
	connection->watching = on;
	if (on)
		event_add(connection->readable, NULL);
	else
		event_del_noblock(connection->readable);
}

void
event_watch_write(struct connection *connection, bool on)
{
	if (connection->watching_write == on)
		return;
	if (!connection->writable)
		connection->writable = event_new(connection->front->base, connection->fd,
			EV_WRITE | EV_PERSIST, on_writable, connection);
	if (!connection->writable) {
		connection->dead = true;
		return;
	}
	connection->watching_write = on;
	if (on)
		event_add(connection->writable, NULL);
	else
		event_del_noblock(connection->writable);
}

struct event *
event_watch_fd(struct event_front *front, int fd, void (*ready)(int fd, short what, void *context),
	void *context)
{
	struct event *event = event_new(front->base, fd, EV_READ | EV_PERSIST, ready, context);

	if (event)
		event_add(event, NULL);
	return event;
}

void
event_watch_fd_end(struct event *event)
{
	event_free(event);
}

/* --- waiting and waking ------------------------------------------------------------------- */

static void
on_wake(evutil_socket_t fd, short what, void *context)
{
	struct event_front *front = context;
	uint64_t count;

	(void)what;
	if (read(fd, &count, sizeof count) < 0 && errno != EAGAIN)
		log_error("cannot read from a worker's wake descriptor: %s", strerror(errno));
	/*
	 * An exchange, not a store: it reads what a waker wrote that found the flag set and wrote
	 * no event, so what that waker published before is seen from here on.
	 */
	atomic_exchange(&front->wake_pending, false);
}

static void
on_timer(evutil_socket_t fd, short what, void *context)
{
	(void)fd;
	(void)what;
	(void)context;
}

static void
adopt_all(struct event_front *front)
{
	uint32_t head = atomic_load_explicit(&front->ring_head, memory_order_relaxed);

	while (head != atomic_load_explicit(&front->ring_tail, memory_order_acquire)) {
		struct handoff *one = &front->ring[head % HANDOFF_RING];

		connection_adopt(front, one->fd, one->listener);
		atomic_store_explicit(&front->ring_head, ++head, memory_order_release);
	}
}

static void
event_wait(struct front *base, int timeout_ms)
{
	struct event_front *front = event_front(base);
	int idle_ms = event_idle_due_ms(front);

	event_windows_publish(front);
	if (front->doomed || udp_pending(front) || (front->ready_count > 0 && !front->starved))
		timeout_ms = 0;
	if (front->starved && (timeout_ms < 0 || timeout_ms > STARVED_MS))
		timeout_ms = STARVED_MS;
	front->starved = false;
	if (idle_ms >= 0 && (timeout_ms < 0 || idle_ms < timeout_ms))
		timeout_ms = idle_ms;
	if (timeout_ms > 0) {
		struct timeval due = {timeout_ms / 1000, timeout_ms % 1000 * 1000};

		event_add(front->timer, &due);
	}
	event_base_loop(front->base, timeout_ms == 0 ? EVLOOP_ONCE | EVLOOP_NONBLOCK : EVLOOP_ONCE);
	if (timeout_ms > 0)
		event_del_noblock(front->timer);
	front->now_ns = clock_monotonic_ns();
	adopt_all(front);
	front->turn_left = front->ready_count;
}

static void
event_wake(struct front *base)
{
	struct event_front *front = event_front(base);
	uint64_t one = 1;

	/* A full counter means that it is awake already. */
	if (!atomic_exchange(&front->wake_pending, true) &&
		write(front->wake_fd, &one, sizeof one) < 0)
		return;
}

/* What it tells is read by the one who asked for it; here it only ends the waiting. */
static bool
event_watch(struct front *base, int fd)
{
	struct event_front *front = event_front(base);

	check(!front->watched);
	front->watched = event_watch_fd(front, fd, on_timer, front);
	return front->watched != NULL;
}

static void
event_destroy(struct front *base)
{
	struct event_front *front = event_front(base);

	adopt_all(front);
	while (!link_empty(&front->all)) {
		struct connection *connection = connection_of(front->all.next, all);

		connection->run = NULL;
		connection_close(connection);
	}
	udp_destroy(front);
	if (front->waker)
		event_free(front->waker);
	if (front->timer)
		event_free(front->timer);
	if (front->watched)
		event_free(front->watched);
	if (front->base)
		event_base_free(front->base);
	if (front->wake_fd >= 0)
		close(front->wake_fd);
	while (front->windows) {
		uint8_t *window = front->windows;

		memcpy(&front->windows, window, sizeof front->windows);
		free(window);
	}
	pthread_mutex_destroy(&front->lock);
	free(front);
}

static const struct front_ops event_ops = {
	.name = "event",
	.wait = event_wait,
	.receive = event_receive,
	.send = event_send,
	.resume = event_resume,
	.moved = event_moved,
	.watch = event_watch,
	.wake = event_wake,
	.destroy = event_destroy,
};

struct front *
event_front_create(const struct event_front_options *options)
{
	struct event_front *front = calloc(1, sizeof *front);

	if (!front)
		return NULL;
	front->front.ops = &event_ops;
	front->options = *options;
	front->limits = options->limits;
	front->counters = options->counters;
	front->now_ns = clock_monotonic_ns();
	link_init(&front->idle);
	link_init(&front->holders);
	link_init(&front->blocked);
	link_init(&front->all);
	pthread_mutex_init(&front->lock, NULL);
	front->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	front->base = make_base();
	if (front->wake_fd >= 0 && front->base) {
		front->waker = event_watch_fd(front, front->wake_fd, on_wake, front);
		front->timer = event_new(front->base, -1, 0, on_timer, front);
	}
	if (!front->waker || !front->timer || !udp_create(front, options->listeners)) {
		event_destroy(&front->front);
		return NULL;
	}
	return &front->front;
}

const char *
event_front_library(void)
{
	return event_get_version();
}

/* --- accepting ---------------------------------------------------------------------------- */

struct acceptor {
	struct acceptor_options options;
	struct event_base *base;
	struct event *waker, *timer, *limit;
	struct event **events; /* one a listener that is accepted from */
	unsigned event_count;
	unsigned next_front;
	int wake_fd;
	bool paused;
	uint64_t paused_ns;
	_Atomic uint64_t accepting, disabled_count, disabled_us;
};

static void
pause_accepting(struct acceptor *acceptor, int milliseconds)
{
	struct timeval due = {milliseconds / 1000, milliseconds % 1000 * 1000};

	if (!acceptor->paused) {
		for (unsigned i = 0; i < acceptor->event_count; i++)
			event_del_noblock(acceptor->events[i]);
		acceptor->paused = true;
		acceptor->paused_ns = clock_monotonic_ns();
		atomic_store_explicit(&acceptor->accepting, 0, memory_order_relaxed);
		atomic_fetch_add_explicit(&acceptor->disabled_count, 1, memory_order_relaxed);
	}
	if (milliseconds > 0)
		event_add(acceptor->timer, &due);
}

static void
go_on_accepting(struct acceptor *acceptor)
{
	if (!acceptor->paused)
		return;
	acceptor->paused = false;
	event_del_noblock(acceptor->timer);
	atomic_fetch_add_explicit(&acceptor->disabled_us,
		(clock_monotonic_ns() - acceptor->paused_ns) / 1000, memory_order_relaxed);
	atomic_store_explicit(&acceptor->accepting, 1, memory_order_relaxed);
	for (unsigned i = 0; i < acceptor->event_count; i++)
		event_add(acceptor->events[i], NULL);
}

void
acceptor_connection_ended(struct event_limits *limits)
{
	struct acceptor *acceptor;

	atomic_fetch_sub(&limits->connections, 1);
	acceptor = atomic_load(&limits->waiting);
	if (acceptor)
		acceptor_wake(acceptor);
}

static bool
ring_has_room(struct front *base)
{
	struct event_front *front = event_front(base);

	return atomic_load_explicit(&front->ring_tail, memory_order_relaxed) -
		       atomic_load_explicit(&front->ring_head, memory_order_acquire) <
	       HANDOFF_RING;
}

/* The next worker in turn whose ring has room; NULL when none has. */
static struct event_front *
choose_front(struct acceptor *acceptor)
{
	for (unsigned i = 0; i < acceptor->options.front_count; i++) {
		struct front *front =
			acceptor->options
				.fronts[acceptor->next_front++ % acceptor->options.front_count];

		if (ring_has_room(front))
			return event_front(front);
	}
	return NULL;
}

static void
hand_over(struct event_front *front, int fd, const struct listener *listener)
{
	uint32_t tail = atomic_load_explicit(&front->ring_tail, memory_order_relaxed);

	front->ring[tail % HANDOFF_RING] = (struct handoff){fd, listener};
	atomic_store_explicit(&front->ring_tail, tail + 1, memory_order_release);
	event_wake(&front->front);
}

/*
 * Over the limit. What it may have sent already is read, so that the close doesn't take the answer
 * away from it.
 */
static void
refuse_connection(struct acceptor *acceptor, int fd)
{
	static const char text[] = "ERROR Too many open connections\r\n";
	char scratch[2048];

	if (send(fd, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_debug("a refused connection was gone already: %s", strerror(errno));
	shutdown(fd, SHUT_WR);
	while (recv(fd, scratch, sizeof scratch, MSG_DONTWAIT) > 0)
		;
	close(fd);
	counter_add(&acceptor->options.counters->rejected_connections, 1);
}

static void
accept_failed(struct acceptor *acceptor, int reason)
{
	if (reason == EAGAIN || reason == EINTR || reason == ECONNABORTED || reason == EPROTO)
		return;
	if (reason == EMFILE || reason == ENFILE || reason == ENOBUFS || reason == ENOMEM) {
		log_warning("cannot accept connections: %s; trying again in %d ms",
			strerror(reason), ACCEPT_PAUSE_MS);
		pause_accepting(acceptor, ACCEPT_PAUSE_MS);
		return;
	}
	log_warning("cannot accept a connection: %s", strerror(reason));
}

static bool
accept_one(struct acceptor *acceptor, const struct listener *listener)
{
	struct event_limits *limits = acceptor->options.limits;
	struct event_front *front = choose_front(acceptor);
	int fd, on = 1;

	if (!front) {
		pause_accepting(acceptor, 1);
		return false;
	}
	if (!acceptor->options.refuse &&
		atomic_load(&limits->connections) >= limits->connections_max) {
		pause_accepting(acceptor, 0);
		atomic_store(&limits->waiting, acceptor);
		/* One may have ended between the two. */
		if (atomic_load(&limits->connections) < limits->connections_max)
			acceptor_wake(acceptor);
		return false;
	}
	fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		accept_failed(acceptor, errno);
		return false;
	}
	if (atomic_fetch_add(&limits->connections, 1) >= limits->connections_max) {
		atomic_fetch_sub(&limits->connections, 1);
		refuse_connection(acceptor, fd);
		return true;
	}
	if (listener->kind == LISTENER_TCP) {
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	}
	hand_over(front, fd, listener);
	return true;
}

static void
on_acceptable(evutil_socket_t fd, short what, void *context)
{
	struct acceptor *acceptor = context;
	const struct listeners *listeners = acceptor->options.listeners;

	(void)what;
	for (unsigned i = 0; i < listeners->count; i++) {
		if (listeners->at[i].fd != fd)
			continue;
		for (int n = 0; n < ACCEPTS_A_TURN && accept_one(acceptor, &listeners->at[i]); n++)
			;
		return;
	}
}

static void
on_acceptor_timer(evutil_socket_t fd, short what, void *context)
{
	(void)fd;
	(void)what;
	go_on_accepting(context);
}

static void
on_acceptor_wake(evutil_socket_t fd, short what, void *context)
{
	struct acceptor *acceptor = context;
	uint64_t count;

	(void)what;
	if (read(fd, &count, sizeof count) < 0 && errno != EAGAIN)
		log_error("cannot read from the acceptor's wake descriptor: %s", strerror(errno));
	if (atomic_exchange(&acceptor->options.limits->waiting, NULL))
		go_on_accepting(acceptor);
}

static bool
watch_listeners(struct acceptor *acceptor)
{
	const struct listeners *listeners = acceptor->options.listeners;

	acceptor->events = calloc(listeners->count + 1, sizeof *acceptor->events);
	if (!acceptor->events)
		return false;
	for (unsigned i = 0; i < listeners->count; i++) {
		struct event *event;

		if (listeners->at[i].kind == LISTENER_UDP)
			continue;
		event = event_new(acceptor->base, listeners->at[i].fd, EV_READ | EV_PERSIST,
			on_acceptable, acceptor);
		if (!event || event_add(event, NULL) != 0)
			return false;
		acceptor->events[acceptor->event_count++] = event;
	}
	return true;
}

struct acceptor *
acceptor_create(const struct acceptor_options *options)
{
	struct acceptor *acceptor = calloc(1, sizeof *acceptor);

	if (!acceptor)
		return NULL;
	acceptor->options = *options;
	atomic_init(&acceptor->accepting, 1);
	acceptor->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	acceptor->base = make_base();
	if (acceptor->wake_fd >= 0 && acceptor->base) {
		acceptor->waker = event_new(acceptor->base, acceptor->wake_fd, EV_READ | EV_PERSIST,
			on_acceptor_wake, acceptor);
		acceptor->timer = event_new(acceptor->base, -1, 0, on_acceptor_timer, acceptor);
		acceptor->limit = event_new(acceptor->base, -1, 0, on_timer, NULL);
	}
	if (!acceptor->waker || !acceptor->timer || !acceptor->limit ||
		event_add(acceptor->waker, NULL) != 0 || !watch_listeners(acceptor)) {
		acceptor_destroy(acceptor);
		return NULL;
	}
	return acceptor;
}

void
acceptor_wait(struct acceptor *acceptor, int timeout_ms)
{
	struct timeval due = {timeout_ms / 1000, timeout_ms % 1000 * 1000};

	if (timeout_ms >= 0)
		event_add(acceptor->limit, &due);
	event_base_loop(acceptor->base, EVLOOP_ONCE);
}

void
acceptor_wake(struct acceptor *acceptor)
{
	uint64_t one = 1;
	int reason = errno;

	/* A full counter means that it is awake already. */
	if (write(acceptor->wake_fd, &one, sizeof one) < 0)
		errno = reason;
}

void
acceptor_get_stats(struct acceptor *acceptor, struct acceptor_stats *stats)
{
	stats->accepting = atomic_load_explicit(&acceptor->accepting, memory_order_relaxed);
	stats->disabled_count =
		atomic_load_explicit(&acceptor->disabled_count, memory_order_relaxed);
	stats->disabled_us = atomic_load_explicit(&acceptor->disabled_us, memory_order_relaxed);
}

void
acceptor_destroy(struct acceptor *acceptor)
{
	for (unsigned i = 0; i < acceptor->event_count; i++)
		event_free(acceptor->events[i]);
	free(acceptor->events);
	if (acceptor->waker)
		event_free(acceptor->waker);
	if (acceptor->timer)
		event_free(acceptor->timer);
	if (acceptor->limit)
		event_free(acceptor->limit);
	if (acceptor->base)
		event_base_free(acceptor->base);
	if (acceptor->wake_fd >= 0)
		close(acceptor->wake_fd);
	free(acceptor);
}
