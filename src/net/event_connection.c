/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A connection's life, and its read buffer. Where its unread bytes stand:
 *
 *	nothing unread			no memory at all
 *	being read, or in a batch	in a window of 16 KiB, lent by the front (longer for a long line)
 *	an unfinished request		a small one in a copy of its own size, else in the window
 *
 * What unfinished requests hold is counted; over the bound, the connection that has left one
 * longest is closed.
 */
#include "net/event_internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* unfinished requests up to this leave their window */
#define SAVE_BYTES_MAX (EVENT_WINDOW_BYTES / 2)
/* kept by a front; more go back to the allocator */
#define SPARE_WINDOWS 32
/* of a large body at a time, so that others get their turn */
#define SINK_READ_MAX (256 * 1024)
/* unread bytes that a close takes off the socket */
#define DRAIN_BYTES_MAX (64 * 1024)

/* --- windows ------------------------------------------------------------------------------ */

void
event_windows_publish(struct event_front *front)
{
	if (front->windows_uncounted == 0)
		return;
	atomic_fetch_add_explicit(&front->limits->window_bytes, (uint64_t)front->windows_uncounted,
		memory_order_relaxed);
	front->windows_uncounted = 0;
}

/*
 * Most windows are lent and returned within a turn: what all fronts share is written only when the
 * difference has become large, and before the front sleeps.
 */
static void
count_windows(struct event_front *front, int64_t bytes)
{
	int64_t slack = (int64_t)front->limits->window_slack_bytes;

	front->windows_uncounted += bytes;
	if (front->windows_uncounted > slack || front->windows_uncounted < -slack)
		event_windows_publish(front);
}

static uint8_t *
borrow_window(struct event_front *front)
{
	uint8_t *window = front->windows;

	if (window) {
		memcpy(&front->windows, window, sizeof front->windows);
		front->window_spare--;
		counter_add(&front->counters->read_buf_bytes_free, -(uint64_t)EVENT_WINDOW_BYTES);
	} else {
		window = malloc(EVENT_WINDOW_BYTES);
		if (!window)
			return NULL;
		counter_add(&front->counters->read_buf_count, 1);
		counter_add(&front->counters->read_buf_bytes, EVENT_WINDOW_BYTES);
	}
	count_windows(front, EVENT_WINDOW_BYTES);
	return window;
}

static void
return_window(struct event_front *front, uint8_t *window, size_t size)
{
	count_windows(front, -(int64_t)size);
	if (size == EVENT_WINDOW_BYTES && front->window_spare < SPARE_WINDOWS) {
		memcpy(window, &front->windows, sizeof front->windows);
		front->windows = window;
		front->window_spare++;
		counter_add(&front->counters->read_buf_bytes_free, EVENT_WINDOW_BYTES);
		return;
	}
	counter_add(&front->counters->read_buf_bytes, -(uint64_t)size);
	counter_add(&front->counters->read_buf_count, (uint64_t)-1);
	free(window);
}

static void
set_held(struct connection *connection, size_t bytes)
{
	struct event_front *front = connection->front;

	if (bytes != connection->held_bytes)
		atomic_fetch_add_explicit(&front->limits->held_bytes,
			bytes - connection->held_bytes, memory_order_relaxed);
	connection->held_bytes = bytes;
	if (bytes)
		link_renew(&front->holders, &connection->holder);
	else
		link_remove(&connection->holder);
}

static void
drop_window(struct connection *connection)
{
	if (connection->window)
		return_window(connection->front, connection->window, connection->window_size);
	free(connection->saved);
	connection->window = connection->saved = NULL;
	connection->window_size = 0;
	set_held(connection, 0);
}

/*
 * A window with room behind the unread bytes; *room of it. 0 room: the request is longer than any
 * window may be.
 */
static uint8_t *
make_room(struct connection *connection, size_t *room)
{
	struct event_front *front = connection->front;
	struct stream *stream = &connection->stream;
	size_t most = front->limits->line_bytes_max + EVENT_WINDOW_BYTES;

	if (!connection->window) {
		uint8_t *window = borrow_window(front);

		if (!window)
			return NULL;
		if (stream->input_size)
			memcpy(window, stream->input, stream->input_size);
		free(connection->saved);
		connection->saved = NULL;
		connection->window = window;
		connection->window_size = EVENT_WINDOW_BYTES;
	} else if (stream->input != connection->window) {
		memmove(connection->window, stream->input, stream->input_size);
	}
	if (stream->input_size == connection->window_size && connection->window_size < most) {
		size_t size = stream->wanted > 2 * connection->window_size
				      ? stream->wanted
				      : 2 * connection->window_size;
		uint8_t *grown;

		size = size < most ? size : most;
		grown = realloc(connection->window, size);
		if (!grown)
			return NULL;
		count_windows(front, (int64_t)(size - connection->window_size));
		counter_add(&front->counters->read_buf_bytes, size - connection->window_size);
		connection->window = grown;
		connection->window_size = size;
	}
	stream->input = connection->window;
	*room = connection->window_size - stream->input_size;
	return connection->window + stream->input_size;
}

/* Outside a batch: keeps of the window only what an unfinished request needs. */
static void
settle_window(struct connection *connection)
{
	struct stream *stream = &connection->stream;
	size_t size = stream->input_size;

	if (size == 0) {
		stream->input = NULL;
		drop_window(connection);
		return;
	}
	if (connection->window && size <= SAVE_BYTES_MAX) {
		uint8_t *saved = malloc(size);

		if (saved) {
			memcpy(saved, stream->input, size);
			return_window(
				connection->front, connection->window, connection->window_size);
			connection->window = NULL;
			connection->window_size = 0;
			connection->saved = saved;
			stream->input = saved;
		}
	}
	set_held(connection, connection->window ? connection->window_size : size);
}

/* --- life --------------------------------------------------------------------------------- */

void
connection_adopt(struct event_front *front, int fd, const struct listener *listener)
{
	struct connection *connection = calloc(1, sizeof *connection);

	if (connection) {
		connection->front = front;
		connection->fd = fd;
		connection->listener = listener;
	}
	if (!connection || !event_watch_create(connection)) {
		free(connection);
		close(fd);
		acceptor_connection_ended(front->limits);
		return;
	}
	connection->stream.id = ++front->ids << 8 | front->options.worker;
	connection->stream.protocol_fixed = listener->protocol;
	link_init(&connection->idle);
	link_init(&connection->holder);
	link_init(&connection->blocked_link);
	link_init(&connection->all);
	atomic_init(&connection->active_ns, front->now_ns);
	link_append(&front->idle, &connection->idle);
	pthread_mutex_lock(&front->lock);
	link_append(&front->all, &connection->all);
	pthread_mutex_unlock(&front->lock);
	atomic_fetch_add_explicit(&front->limits->connection_structures, 1, memory_order_relaxed);
	counter_add(&front->counters->total_connections, 1);
	counter_add(&front->counters->curr_connections, 1);
	event_watch_read(connection, true);
	log_debug("<%d new connection on %s", fd, listener->name);
}

void
connection_ready(struct connection *connection)
{
	struct event_front *front = connection->front;

	if (connection->ready)
		return;
	connection->ready = true;
	connection->ready_next = NULL;
	if (front->ready_last)
		front->ready_last->ready_next = connection;
	else
		front->ready_first = connection;
	front->ready_last = connection;
	front->ready_count++;
}

static struct connection *
pop_ready(struct event_front *front)
{
	struct connection *connection = front->ready_first;

	front->ready_first = connection->ready_next;
	if (!front->ready_first)
		front->ready_last = NULL;
	front->ready_count--;
	connection->ready = false;
	return connection;
}

/* Before it is freed; rare enough to walk the list. */
static void
leave_ready(struct connection *connection)
{
	struct event_front *front = connection->front;
	struct connection *previous = NULL, *one = front->ready_first;

	if (!connection->ready)
		return;
	while (one != connection) {
		previous = one;
		one = one->ready_next;
	}
	if (previous)
		previous->ready_next = connection->ready_next;
	else
		front->ready_first = connection->ready_next;
	if (front->ready_last == connection)
		front->ready_last = previous;
	front->ready_count--;
	connection->ready = false;
}

void
connection_doom(struct connection *connection)
{
	if (connection->doomed)
		return;
	connection->doomed = true;
	connection->doomed_next = connection->front->doomed;
	connection->front->doomed = connection;
}

static void
leave_doomed(struct connection *connection)
{
	struct connection **at = &connection->front->doomed;

	if (!connection->doomed)
		return;
	while (*at != connection)
		at = &(*at)->doomed_next;
	*at = connection->doomed_next;
	connection->doomed = false;
}

/*
 * Unread bytes on the socket would turn the close into a reset, which may overtake the replies:
 * takes some off first.
 */
static void
close_socket(struct connection *connection)
{
	char scratch[4096];
	size_t drained = 0;
	ssize_t n = 0;

	if (!connection->dead && !connection->stream.end_of_input) {
		shutdown(connection->fd, SHUT_WR);
		while (drained < DRAIN_BYTES_MAX &&
			(n = recv(connection->fd, scratch, sizeof scratch, MSG_DONTWAIT)) > 0)
			drained += (size_t)n;
	}
	close(connection->fd);
}

void
connection_close(struct connection *connection)
{
	struct event_front *front = connection->front;

	check(!connection->run);
	log_debug("<%d connection closed.", connection->fd);
	leave_ready(connection);
	leave_doomed(connection);
	front->options.ended(front->options.ended_context, &connection->stream);
	leftovers_drop(connection);
	link_remove(&connection->idle);
	link_remove(&connection->blocked_link);
	drop_window(connection);
	event_watch_destroy(connection);
	pthread_mutex_lock(&front->lock);
	link_remove(&connection->all);
	pthread_mutex_unlock(&front->lock);
	close_socket(connection);
	atomic_fetch_sub_explicit(&front->limits->connection_structures, 1, memory_order_relaxed);
	counter_add(&front->counters->curr_connections, (uint64_t)-1);
	acceptor_connection_ended(front->limits);
	free(connection);
}

/* While the bound on unfinished requests is passed, closes the one that was left longest. */
static void
shed_holders(struct event_front *front)
{
	struct event_limits *limits = front->limits;
	struct link *at = front->holders.next;

	while (atomic_load_explicit(&limits->held_bytes, memory_order_relaxed) >
			limits->held_bytes_max &&
		at != &front->holders) {
		struct connection *connection = connection_of(at, holder);

		at = at->next;
		if (connection->run || connection->parked)
			continue;
		counter_add(&front->counters->read_buf_oom, 1);
		connection_close(connection);
	}
}

static void
shed_idle(struct event_front *front)
{
	while (!link_empty(&front->idle)) {
		struct connection *connection = connection_of(front->idle.next, idle);
		uint64_t active =
			atomic_load_explicit(&connection->active_ns, memory_order_relaxed);

		if (front->now_ns - active < front->limits->idle_timeout_ns)
			return;
		if (connection->run || connection->parked) {
			/* Not idle: it waits for us. */
			atomic_store_explicit(
				&connection->active_ns, front->now_ns, memory_order_relaxed);
			link_renew(&front->idle, &connection->idle);
			continue;
		}
		counter_add(&front->counters->idle_kicks, 1);
		connection_close(connection);
	}
}

int
event_idle_due_ms(const struct event_front *front)
{
	uint64_t due, now = clock_monotonic_ns();

	if (!front->limits->idle_timeout_ns || link_empty(&front->idle))
		return -1;
	due = atomic_load_explicit(
		      &connection_of(front->idle.next, idle)->active_ns, memory_order_relaxed) +
	      front->limits->idle_timeout_ns;
	return due <= now ? 0 : (int)((due - now) / 1000000 + 1);
}

void
event_reap(struct event_front *front)
{
	while (front->doomed)
		connection_close(front->doomed);
	shed_holders(front);
	if (front->limits->idle_timeout_ns)
		shed_idle(front);
}

/* --- reading ------------------------------------------------------------------------------ */

enum read_result { READ_SOME, READ_NOTHING, READ_FAILED, READ_LATER };

static enum read_result
read_failed(void)
{
	return errno == EAGAIN || errno == EINTR ? READ_NOTHING : READ_FAILED;
}

static enum read_result
took_bytes(struct connection *connection, ssize_t n)
{
	struct event_front *front = connection->front;

	if (n > 0)
		counter_add(&front->counters->bytes_read, (uint64_t)n);
	else
		connection->stream.end_of_input = true;
	atomic_store_explicit(&connection->active_ns, front->now_ns, memory_order_relaxed);
	if (front->limits->idle_timeout_ns)
		link_renew(&front->idle, &connection->idle);
	return READ_SOME;
}

/* Straight to where a large body is to stand. */
static enum read_result
read_sink(struct connection *connection)
{
	struct stream *stream = &connection->stream;
	size_t most = stream->sink_size < SINK_READ_MAX ? stream->sink_size : SINK_READ_MAX;
	ssize_t n = recv(connection->fd, stream->sink, most, MSG_DONTWAIT);

	if (n < 0)
		return read_failed();
	stream->sink_filled = (size_t)n;
	return took_bytes(connection, n);
}

static enum read_result
read_window(struct connection *connection)
{
	struct event_front *front = connection->front;
	struct event_limits *limits = front->limits;
	struct stream *stream = &connection->stream;
	uint8_t *at;
	size_t room;
	ssize_t n;

	if (!connection->window && atomic_load_explicit(&limits->window_bytes,
					   memory_order_relaxed) >= limits->window_bytes_max)
		return READ_LATER;
	at = make_room(connection, &room);
	if (!at) {
		counter_add(&front->counters->read_buf_oom, 1);
		return READ_FAILED;
	}
	if (room == 0) {
		counter_add(&front->counters->lines_too_long, 1);
		return READ_FAILED;
	}
	n = recv(connection->fd, at, room, MSG_DONTWAIT);
	if (n < 0) {
		enum read_result result = read_failed();

		if (result == READ_NOTHING)
			settle_window(connection);
		return result;
	}
	stream->input_size += (size_t)n;
	return took_bytes(connection, n);
}

static enum read_result
read_once(struct connection *connection)
{
	if (connection->stream.more || connection->resumed || connection->stream.end_of_input)
		return READ_SOME;
	return connection->stream.sink_size ? read_sink(connection) : read_window(connection);
}

static void
add_run(struct batch *batch, struct connection *connection)
{
	struct batch_run *run = &batch->runs[batch->run_count++];

	*run = (struct batch_run){.stream = &connection->stream};
	connection->run = run;
	connection->resumed = false;
	link_remove(&connection->holder);
	batch->bytes += connection->stream.input_size;
	atomic_store_explicit(&connection->state, CONNECTION_PARSE, memory_order_relaxed);
}

bool
event_receive(struct front *base, struct batch *batch)
{
	struct event_front *front = (struct event_front *)base;

	event_reap(front);
	udp_receive(front, batch);
	while (front->turn_left > 0 && front->ready_first && batch->run_count < BATCH_STREAMS &&
		batch->bytes < BATCH_BYTES) {
		struct connection *connection = pop_ready(front);

		front->turn_left--;
		switch (read_once(connection)) {
		case READ_SOME:
			add_run(batch, connection);
			break;
		case READ_NOTHING:
			connection->resumed = false;
			event_watch_read(connection, true);
			break;
		case READ_LATER:
			connection_ready(connection);
			front->starved = true;
			break;
		case READ_FAILED:
			connection->dead = true;
			connection_close(connection);
			break;
		}
	}
	return batch->run_count > 0;
}

/* --- coming back from a batch ------------------------------------------------------------- */

static void
set_state(struct connection *connection)
{
	const struct stream *stream = &connection->stream;
	uint8_t state = CONNECTION_READ;

	if (connection->blocked)
		state = CONNECTION_WRITE;
	else if (stream->upload || stream->parser.swallow || stream->wanted)
		state = CONNECTION_NREAD;
	atomic_store_explicit(&connection->state, state, memory_order_relaxed);
}

/* Neither in a batch nor blocked: what comes next? */
static void
go_on(struct connection *connection)
{
	if (connection->stream.more || connection->resumed)
		connection_ready(connection);
	else
		event_watch_read(connection, true);
}

void
connection_return(struct connection *connection)
{
	struct stream *stream = &connection->stream;

	connection->run = NULL;
	set_state(connection);
	if (connection->dead || (stream->wish == STREAM_CLOSE && !connection->blocked)) {
		connection_close(connection);
		return;
	}
	switch ((enum stream_wish)stream->wish) {
	case STREAM_CLOSE:
		connection->closing = true;
		event_watch_read(connection, false);
		drop_window(connection);
		stream->input = NULL;
		stream->input_size = 0;
		break;
	case STREAM_PARKED:
		connection->parked = !connection->resumed;
		event_watch_read(connection, false);
		settle_window(connection);
		if (connection->resumed && !connection->blocked)
			connection_ready(connection);
		break;
	case STREAM_READ:
		if (!stream->more || connection->blocked)
			settle_window(connection);
		if (!connection->blocked)
			go_on(connection);
		break;
	}
}

void
connection_drained(struct connection *connection)
{
	connection->blocked = false;
	link_remove(&connection->blocked_link);
	event_watch_write(connection, false);
	if (connection->run) {
		connection->run->blocked = false;
		return;
	}
	set_state(connection);
	if (connection->closing || connection->dead)
		connection_doom(connection);
	else if (!connection->parked)
		go_on(connection);
}

void
event_resume(struct front *base, struct stream *stream)
{
	struct connection *connection =
		(struct connection *)((char *)stream - offsetof(struct connection, stream));

	(void)base;
	connection->parked = false;
	/*
	 * Requests before the one that was parked are still in their batch: it goes on when that
	 * gives it back.
	 */
	if (connection->run) {
		connection->resumed = true;
		return;
	}
	if (connection->dead) {
		connection_doom(connection);
		return;
	}
	connection->resumed = true;
	if (!connection->blocked)
		connection_ready(connection);
}

/* --- what other threads see --------------------------------------------------------------- */

void
event_front_visit(struct front *base,
	void (*visit)(void *context, const struct event_connection_view *view), void *context)
{
	static const char *const names[] = {
		"conn_read", "conn_nread", "conn_parse_cmd", "conn_mwrite"};
	struct event_front *front = (struct event_front *)base;
	uint64_t now = clock_monotonic_ns();

	pthread_mutex_lock(&front->lock);
	for (struct link *at = front->all.next; at != &front->all; at = at->next) {
		const struct connection *connection = connection_of(at, all);
		uint64_t active =
			atomic_load_explicit(&connection->active_ns, memory_order_relaxed);

		visit(context, &(struct event_connection_view){
				       .fd = connection->fd,
				       .state = names[atomic_load_explicit(
					       &connection->state, memory_order_relaxed)],
				       .listen_name = connection->listener->name,
				       .idle_ns = now > active ? now - active : 0,
			       });
	}
	pthread_mutex_unlock(&front->lock);
}

bool
event_front_relieve(struct front *base, uint64_t quiet_ns)
{
	struct event_front *front = (struct event_front *)base;

	for (struct link *at = front->blocked.next; at != &front->blocked; at = at->next) {
		struct connection *connection = connection_of(at, blocked_link);

		if (front->now_ns - connection->progress_ns < quiet_ns)
			return false;
		if (!connection->run)
			continue;
		connection->dead = true;
		leftovers_drop(connection);
		connection_drained(connection);
		counter_add(&front->counters->send_closed, 1);
		return true;
	}
	return false;
}
