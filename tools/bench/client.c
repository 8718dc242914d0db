/* SPDX-License-Identifier: BSD-2-Clause */
/* Sockets and event loops. */
#include "inside.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define COMPLAINTS_MAX 20
#define OPEN_SPIN_NS 50000   /* before a request of an open loop is due: more than waking takes */
#define BEHIND_MAX 100000000 /* requests that are counted as due and not sent, a thread */

uint64_t
client_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void
client_complain(struct client *client, const char *format, ...)
{
	if (atomic_fetch_add(&client->shared->complaints, 1) >= COMPLAINTS_MAX)
		return;
	char text[512];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	fprintf(stderr, "halcyon-bench: %s\n", text);
}

static void
watch(struct client *client, struct connection *connection, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = connection};

	if (connection->events == events)
		return;
	epoll_ctl(client->epoll_fd, connection->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
		connection->fd, &event);
	connection->events = events;
}

void
client_give_up(struct client *client, struct connection *connection, const char *why)
{
	client_complain(client, "connection %u: %s, with %u requests under way", connection->number,
		why, connection->under_way);
	close(connection->fd);
	connection->fd = -1;
	if (connection->under_way == 0)
		client->counts
			.errors++; /* nothing is missing, but it should not have been closed */
	client->counts.missing += connection->under_way;
	client->under_way -= connection->under_way;
	connection->under_way = 0;
}

void *
client_grow(void *buffer, size_t *room, size_t size)
{
	if (size <= *room)
		return buffer;
	size_t wanted = *room ? *room : 4096;
	while (wanted < size)
		wanted *= 2;
	buffer = realloc(buffer, wanted);
	if (!buffer) {
		fprintf(stderr, "halcyon-bench: no memory for a buffer of %zu bytes\n", wanted);
		exit(1);
	}
	*room = wanted;
	return buffer;
}

bool
client_send(struct client *client, struct connection *connection, const char *bytes, size_t size)
{
	ssize_t sent = send(connection->fd, bytes, size, MSG_NOSIGNAL);

	if (sent < 0 && errno != EAGAIN && errno != EINTR) {
		client_give_up(client, connection, strerror(errno));
		return false;
	}
	size_t done = sent > 0 ? (size_t)sent : 0;
	client->counts.bytes_sent += done;
	size_t rest = size - done;
	if (rest > 0) {
		if (bytes != connection->unsent)
			connection->unsent =
				client_grow(connection->unsent, &connection->unsent_room, rest);
		memmove(connection->unsent, bytes + done, rest);
	}
	connection->unsent_size = rest;
	watch(client, connection, rest ? EPOLLIN | EPOLLOUT : EPOLLIN);
	return true;
}

/* True when the connection can take new requests; sends first what the socket left. */
static bool
is_clear(struct client *client, struct connection *connection)
{
	if (connection->fd < 0)
		return false;
	if (connection->unsent_size == 0)
		return true;
	return client_send(client, connection, connection->unsent, connection->unsent_size) &&
	       connection->unsent_size == 0;
}

/*
 * Sends new requests as far as the pipeline, the socket and the phase allow; in an open loop only
 * the sets that follow misses, which go at once.
 */
static void
fill_pipeline(struct client *client, struct connection *connection)
{
	unsigned limit = client->is_open_loop ? 0 : client->pipeline;
	unsigned drawn;

	/* What the socket left goes first, whether the pipeline is full or not. */
	while (is_clear(client, connection) && connection->under_way < client->pipeline &&
		!connection->resume_ns) {
		char *at = compose_requests(
			client, connection, client->send, limit, client_now_ns(), &drawn);
		if (at == client->send ||
			!client_send(client, connection, client->send, (size_t)(at - client->send)))
			return;
	}
}

/*
 * Keys were missed: the connection pauses, from now or from the end of the pause it is in. (That
 * one then ends early in the heap, and is put back: see resume.)
 */
static void
pay_penalties(struct client *client, struct connection *connection)
{
	uint64_t wait_ns = connection->penalties * client->shared->options->miss_penalty_us * 1000;

	connection->penalties = 0;
	if (wait_ns == 0 || connection->fd < 0)
		return;
	if (connection->resume_ns) {
		connection->resume_ns += wait_ns;
		return;
	}
	connection->resume_ns = client_now_ns() + wait_ns;
	pauses_add(&client->pauses, (uint32_t)(connection - client->connections),
		connection->resume_ns);
}

/* Connections whose pause is over go on. */
static void
resume(struct client *client, uint64_t now)
{
	while (pauses_next_ns(&client->pauses) <= now) {
		uint32_t which = pauses_take(&client->pauses);
		struct connection *connection = &client->connections[which];
		if (connection->resume_ns > now) {
			pauses_add(&client->pauses, which, connection->resume_ns);
			continue;
		}
		connection->resume_ns = 0;
		fill_pipeline(client, connection);
	}
}

/* Up to share of the requests that are due, on a connection that is clear. */
static void
send_due(struct client *client, struct connection *connection, uint64_t now, uint64_t share)
{
	char *at = client->send;

	while (share > 0 && client->due_ns <= now && connection->under_way < client->pipeline &&
		at < client->send + SEND_SIZE) {
		unsigned drawn;
		char *end = compose_requests(client, connection, at, 1, client->due_ns, &drawn);
		if (end == at)
			break;
		at = end;
		if (!drawn)
			continue;
		client->due_ns = client->start_ns + draw_arrivals_next(&client->arrivals);
		share--;
	}
	if (at > client->send)
		client_send(client, connection, client->send, (size_t)(at - client->send));
}

/*
 * In an open loop: gives all requests that are due to connections with free slots, in turn; many at
 * once share them out evenly. What finds no free slot stays due.
 */
static void
send_all_due(struct client *client, uint64_t now)
{
	unsigned count = client->connection_count;
	unsigned refused = 0;

	client->all_busy = false;
	if (client->due_ns > now)
		return;
	double due = (double)(now - client->due_ns) / client->arrivals.gap_ns + 1;
	uint64_t share = (uint64_t)(due / count) + 1;
	while (client->due_ns <= now && !client->stopping && client->left > 0 && refused < count) {
		struct connection *connection = &client->connections[client->cursor];
		if (++client->cursor == count)
			client->cursor = 0;
		if (!is_clear(client, connection) || connection->under_way == client->pipeline) {
			refused++;
			continue;
		}
		refused = 0;
		send_due(client, connection, now, share);
	}
	client->all_busy = refused == count;
}

void
client_receive(struct client *client, struct connection *connection)
{
	size_t old = connection->partial_size;
	size_t wanted;

	client->receive = client_grow(client->receive, &client->receive_size, old + RECEIVE_SIZE);
	ssize_t got = recv(connection->fd, client->receive + old, client->receive_size - old, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		client_give_up(
			client, connection, got == 0 ? "closed by the server" : strerror(errno));
		return;
	}
	client->counts.bytes_received += (size_t)got;
	if (old)
		memcpy(client->receive, connection->partial, old);
	size_t size = old + (size_t)got;
	ssize_t left = replies_take(client, connection, client->receive, size, &wanted);
	if (left < 0) {
		client_give_up(client, connection, "out of step");
		return;
	}
	connection->partial_size = (size_t)left;
	if (left == 0)
		return;
	connection->partial =
		client_grow(connection->partial, &connection->partial_room, (size_t)left);
	memcpy(connection->partial, client->receive + size - (size_t)left, (size_t)left);
	/* Room for the whole of a large value, so that its rest can come with one recv. */
	if (wanted)
		client->receive =
			client_grow(client->receive, &client->receive_size, wanted + RECEIVE_SIZE);
}

static bool
phase_is_over(const struct client *client)
{
	if (client->under_way)
		return false;
	if (client->phase != CLIENT_FILL && !client->stopping && client->left > 0)
		return false;
	for (unsigned i = 0; i < client->connection_count; i++) {
		const struct connection *connection = &client->connections[i];
		if (connection->fd >= 0 && (connection->unsent_size ||
						   connection->aside_first < connection->aside_end))
			return false;
		if (client->phase == CLIENT_FILL && connection->fd >= 0 && !connection->is_filled)
			return false;
	}
	return true;
}

static bool
all_closed(const struct client *client)
{
	for (unsigned i = 0; i < client->connection_count; i++)
		if (client->connections[i].fd >= 0)
			return false;
	return true;
}

/* Waits for events, but no longer. */
static int
wait_for_ns(struct client *client, struct epoll_event *events, uint64_t ns)
{
	struct timespec left = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
	int count = epoll_pwait2(client->epoll_fd, events, EVENTS_PER_TURN, &left, NULL);

	if (count >= 0 || errno != ENOSYS)
		return count;
	/* An older kernel counts in milliseconds: those begun are polled. */
	return epoll_wait(client->epoll_fd, events, EVENTS_PER_TURN, (int)(ns / 1000000));
}

/*
 * Waits for events in an open loop, until the next request is due at most:
 *
 *	now                                   due - OPEN_SPIN_NS          due
 *	 |  asleep, until an event comes       |  polls again and again    |
 *
 * A sleeper that is woken by a timer comes too late by what waking takes, and that would be in the
 * latency; so the last part of a gap is polled, where this thread has a CPU for itself. Poll,
 * don't sleep, also when the request fell due since send_all_due looked: nothing else need happen
 * until then. Where every connection is busy, only an answer helps.
 */
static int
wait_until_due(struct client *client, struct epoll_event *events)
{
	uint64_t now = client_now_ns();
	uint64_t until = now + TURN_MS * UINT64_C(1000000);

	if (client->deadline_ns && client->deadline_ns < until)
		until = client->deadline_ns > now ? client->deadline_ns : now;
	if (!client->all_busy && client->due_ns < until + client->spin_ns) {
		uint64_t early = client->due_ns > now ? client->due_ns - now : 0;
		if (early <= client->spin_ns) {
			int count = epoll_wait(client->epoll_fd, events, EVENTS_PER_TURN, 0);
			if (count == 0 && early > 0)
				sched_yield(); /* to a server that shares this CPU all the same */
			return count;
		}
		until = now + early - client->spin_ns;
	}
	return wait_for_ns(client, events, until - now);
}

static int
wait_for_events(struct client *client, struct epoll_event *events)
{
	if (client->is_open_loop && client->left > 0 && !client->stopping)
		return wait_until_due(client, events);
	uint64_t next_ns = pauses_next_ns(&client->pauses);
	if (next_ns != UINT64_MAX) {
		uint64_t now = client_now_ns();
		uint64_t turn_ns = TURN_MS * UINT64_C(1000000);
		uint64_t wait_ns = next_ns > now ? next_ns - now : 0;
		return wait_for_ns(client, events, wait_ns < turn_ns ? wait_ns : turn_ns);
	}
	return epoll_wait(client->epoll_fd, events, EVENTS_PER_TURN, TURN_MS);
}

static void
begin_phase(struct client *client, enum client_phase phase, uint64_t requests, uint64_t start_ns,
	uint64_t deadline_ns)
{
	const struct options *options = client->shared->options;

	client->phase = phase;
	client->left = requests ? requests : UINT64_MAX;
	client->stopping = false;
	client->start_ns = start_ns;
	client->deadline_ns = deadline_ns;
	client->all_busy = false;
	client->pauses.count = 0;
	for (unsigned i = 0; i < client->connection_count; i++) {
		client->connections[i].penalties = 0;
		client->connections[i].resume_ns = 0;
	}
	client->is_open_loop = phase == CLIENT_RUN && options->rate > 0;
	memset(&client->counts, 0, sizeof client->counts);
	memset(client->latencies, 0, sizeof client->latencies);
	atomic_store(&client->progress, 0);
	if (client->is_open_loop) {
		draw_arrivals_start(&client->arrivals, options->arrival_kind,
			options->rate / (double)options->threads, options->seed, client->index,
			(uint32_t)options->threads);
		client->due_ns = start_ns + draw_arrivals_next(&client->arrivals);
		return;
	}
	if (phase == CLIENT_RUN && options->empty) {
		empty_begin(client);
		return;
	}
	for (unsigned i = 0; i < client->connection_count; i++)
		fill_pipeline(client, &client->connections[i]);
}

/* How many requests of an open loop were due before its end and still wait. */
static void
count_behind(struct client *client, uint64_t deadline_ns)
{
	while (client->due_ns < deadline_ns && client->counts.behind < BEHIND_MAX) {
		client->counts.behind++;
		client->due_ns = client->start_ns + draw_arrivals_next(&client->arrivals);
	}
}

static void
handle_events(struct client *client, const struct epoll_event *events, int count)
{
	bool is_empty = client->phase == CLIENT_RUN && client->shared->options->empty;

	for (int i = 0; i < count; i++) {
		struct connection *connection = events[i].data.ptr;
		bool readable =
			connection->fd >= 0 && events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP);

		if (is_empty) {
			if (readable)
				empty_receive(client, connection);
			if (is_clear(client, connection))
				empty_send(client, connection);
			continue;
		}
		if (readable)
			client_receive(client, connection);
		if (connection->penalties)
			pay_penalties(client, connection);
		if (!client->is_open_loop || connection->aside_end > 0 || connection->unsent_size)
			fill_pipeline(client, connection);
	}
}

void
client_run(struct client *client, enum client_phase phase, uint64_t requests, uint64_t start_ns,
	uint64_t deadline_ns)
{
	uint64_t patience_ns = (uint64_t)(client->shared->options->timeout * 1e9);
	struct epoll_event events[EVENTS_PER_TURN];

	begin_phase(client, phase, requests, start_ns, deadline_ns);
	if (client->is_open_loop || client->shared->options->miss_penalty_us)
		prctl(PR_SET_TIMERSLACK, 1); /* the kernel adds 50 us to each wait otherwise */
	uint64_t last_ns = client_now_ns(), moved = 0;
	while (!phase_is_over(client) && !all_closed(client)) {
		int count = wait_for_events(client, events);
		uint64_t now = client_now_ns();

		if (deadline_ns && now >= deadline_ns && !client->stopping) {
			client->stopping = true;
			if (client->is_open_loop)
				count_behind(client, deadline_ns);
		}
		if (count > 0)
			handle_events(client, events, count);
		if (client->pauses.count > 0)
			resume(client, client_now_ns());
		if (client->is_open_loop)
			send_all_due(client, client_now_ns());
		atomic_store_explicit(
			&client->progress, client->counts.requests, memory_order_relaxed);
		/* An event is no progress: bytes are. */
		if (client->counts.bytes_sent + client->counts.bytes_received != moved ||
			client->under_way == 0)
			last_ns = now;
		moved = client->counts.bytes_sent + client->counts.bytes_received;
		if (now - last_ns > patience_ns) {
			for (unsigned i = 0; i < client->connection_count; i++)
				if (client->connections[i].fd >= 0)
					client_give_up(client, &client->connections[i],
						"no answer in time");
		}
	}
}

static int
create_connection(struct client *client, struct connection *connection, unsigned number,
	char *error, size_t error_size)
{
	const struct options *options = client->shared->options;
	size_t slots = (size_t)client->mask + 1;

	connection->number = number;
	if (options->keys > number)
		connection->owned =
			(options->keys - number + options->connections - 1) / options->connections;
	connection->slots = calloc(slots, sizeof *connection->slots);
	connection->keys = calloc(slots * options->multiget, sizeof *connection->keys);
	connection->versions = calloc(slots * options->multiget, sizeof *connection->versions);
	if (!connection->slots || !connection->keys || !connection->versions) {
		snprintf(error, error_size, "no memory for connection %u", number);
		return -1;
	}
	connection->fd = dial_connect(
		client->shared->address, (int)(options->timeout * 1000), error, error_size);
	if (connection->fd < 0)
		return -1;
	watch(client, connection, EPOLLIN);
	return 0;
}

/* Whether there are enough CPUs for all threads. */
static bool
has_own_cpu(const struct options *options)
{
	cpu_set_t set;

	if (options->pin_count)
		return options->threads <= options->pin_count;
	return sched_getaffinity(0, sizeof set, &set) == 0 &&
	       options->threads <= (uint64_t)CPU_COUNT(&set);
}

/* What a client is beside its connections. False when there is no memory or descriptor. */
static bool
prepare(struct client *client, unsigned count)
{
	const struct options *options = client->shared->options;

	client->many_writers = options_many_writers(options);
	client->vanishing = options->ttl.second || options->weights[OPERATION_DELETE];
	client->multiget = (uint32_t)options->multiget;
	client->pipeline = (uint32_t)options->pipeline;
	while (client->mask < client->pipeline - 1)
		client->mask = 2 * client->mask + 1;
	client->spin_ns = has_own_cpu(options) ? OPEN_SPIN_NS : 0;
	client->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	client->connections = calloc(count, sizeof *client->connections);
	client->send_room = SEND_SIZE + compose_size_max(client);
	client->send = malloc(client->send_room);
	return client->epoll_fd >= 0 && client->connections && client->send &&
	       pauses_create(&client->pauses, count);
}

struct client *
client_create(struct client_shared *shared, unsigned index, unsigned first, unsigned count,
	char *error, size_t error_size)
{
	struct client *client = calloc(1, sizeof *client);

	if (!client) {
		snprintf(error, error_size, "no memory for a thread");
		return NULL;
	}
	client->shared = shared;
	client->index = index;
	client->epoll_fd = -1;
	if (!prepare(client, count)) {
		snprintf(error, error_size, "cannot set up a thread: %s", strerror(errno));
		client_destroy(&client);
		return NULL;
	}
	compose_prepare(client, index);
	for (unsigned i = 0; i < count; i++)
		client->connections[i].fd = -1;
	while (client->connection_count < count) {
		unsigned i = client->connection_count++;
		if (create_connection(
			    client, &client->connections[i], first + i, error, error_size)) {
			client_destroy(&client);
			return NULL;
		}
	}
	return client;
}

void
client_destroy(struct client **client_at)
{
	struct client *client = *client_at;

	if (!client)
		return;
	*client_at = NULL;
	for (unsigned i = 0; i < client->connection_count; i++) {
		struct connection *connection = &client->connections[i];
		if (connection->fd >= 0)
			close(connection->fd);
		free(connection->slots);
		free(connection->keys);
		free(connection->versions);
		free(connection->aside);
		free(connection->unsent);
		free(connection->partial);
		free(connection->round);
	}
	if (client->epoll_fd >= 0)
		close(client->epoll_fd);
	pauses_destroy(&client->pauses);
	free(client->connections);
	free(client->send);
	free(client->receive);
	free(client);
}

const struct client_counts *
client_counts(const struct client *client)
{
	return &client->counts;
}

const struct histogram *
client_latencies(const struct client *client, enum client_class which)
{
	return &client->latencies[which];
}

uint64_t
client_progress(const struct client *client)
{
	return atomic_load_explicit(&client->progress, memory_order_relaxed);
}
