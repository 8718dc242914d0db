/* SPDX-License-Identifier: BSD-2-Clause */
#include "client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define RECEIVE_SIZE (256 * 1024)
#define SEND_SIZE (256 * 1024) /* no more is composed for a connection while so much waits */
#define EVENTS_PER_TURN 256
#define COMPLAINTS_MAX 20
#define TURN_MS 100

struct asked {
	uint32_t key;
	uint32_t version; /* of a set: its own; of a get: the oldest that may come back */
};

struct slot {
	uint64_t sent_ns;
	uint16_t keys;
	uint16_t answered; /* keys of a get that are dealt with */
	bool is_set;
};

struct connection {
	int fd; /* -1 when it is closed */
	uint32_t events;
	uint32_t number; /* among all connections: owns keys number, number + connections, ... */
	uint32_t head;	 /* slot of the oldest request under way */
	uint32_t under_way;
	uint64_t owned;	    /* keys that it owns */
	uint64_t fill_next; /* how many of those are filled */
	struct slot *slots;
	struct asked *asked; /* multiget for each slot */
	char *unsent;
	size_t unsent_size;
	size_t unsent_room;
	char *partial; /* an incomplete reply */
	size_t partial_size;
	size_t partial_room;
};

struct client {
	struct client_shared *shared;
	int epoll_fd;
	unsigned connection_count;
	struct connection *connections;
	char *receive;
	size_t receive_size;
	char *send;
	size_t send_room;
	uint64_t random;
	uint32_t *keys; /* of the get that is being written */

	enum client_phase phase;
	uint64_t left; /* requests that may still be sent in this phase */
	bool stopping;
	uint64_t under_way;
	struct client_counts counts;
	struct histogram latencies;
	_Atomic(uint64_t) progress;
};

uint64_t
client_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void __attribute__((format(printf, 2, 3)))
complain(struct client *client, const char *format, ...)
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

/* The connection is of no more use: what is under way has no answer. */
static void
give_up(struct client *client, struct connection *connection, const char *why)
{
	complain(client, "connection %u: %s, with %u requests under way", connection->number, why,
		connection->under_way);
	close(connection->fd);
	connection->fd = -1;
	if (connection->under_way == 0)
		client->counts
			.errors++; /* nothing is missing, but it should not have been closed */
	client->counts.missing += connection->under_way;
	client->under_way -= connection->under_way;
	connection->under_way = 0;
}

/* Grow a buffer to hold size bytes. There is no way on without memory. */
static char *
grow(char *buffer, size_t *room, size_t size)
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

static struct slot *
push_slot(struct client *client, struct connection *connection, uint64_t now, struct asked **asked)
{
	const struct options *options = client->shared->options;
	uint32_t at = connection->head + connection->under_way;

	if (at >= options->pipeline)
		at -= (uint32_t)options->pipeline;
	connection->under_way++;
	client->under_way++;
	*asked = connection->asked + (size_t)at * options->multiget;
	struct slot *slot = &connection->slots[at];
	slot->sent_ns = now;
	slot->answered = 0;
	return slot;
}

static char *
add_set(struct client *client, struct connection *connection, char *at, uint64_t key, uint64_t now)
{
	struct workload *workload = client->shared->workload;
	struct asked *asked;
	struct slot *slot = push_slot(client, connection, now, &asked);

	slot->is_set = true;
	slot->keys = 1;
	asked->key = (uint32_t)key;
	asked->version = 1;
	if (workload->sent) {
		/* Only this connection writes the key, so a plain increment will do. */
		asked->version =
			atomic_load_explicit(&workload->sent[key], memory_order_relaxed) + 1;
		atomic_store_explicit(&workload->sent[key], asked->version, memory_order_release);
	}
	struct request request = {OPERATION_SET, asked->key, asked->version, 0};
	return client->shared->protocol->write(workload, at, &request);
}

static char *
add_get(struct client *client, struct connection *connection, char *at, uint64_t now)
{
	struct workload *workload = client->shared->workload;
	unsigned count = (unsigned)client->shared->options->multiget;
	struct asked *asked;
	struct slot *slot = push_slot(client, connection, now, &asked);

	slot->is_set = false;
	slot->keys = (uint16_t)count;
	for (unsigned i = 0; i < count; i++) {
		uint32_t key =
			(uint32_t)workload_below(workload_random(&client->random), workload->keys);
		client->keys[i] = asked[i].key = key;
		asked[i].version = workload->acked ? atomic_load_explicit(&workload->acked[key],
							     memory_order_acquire)
						   : 0;
	}
	return client->shared->protocol->write_get(workload, at, client->keys, count);
}

/* Whether the connection has one more request to send in this phase, and if so the request. */
static char *
add_request(struct client *client, struct connection *connection, char *at, uint64_t now)
{
	const struct options *options = client->shared->options;
	uint64_t all = options->connections;

	if (client->phase == CLIENT_FILL) {
		if (connection->fill_next == connection->owned)
			return NULL;
		return add_set(client, connection, at,
			connection->number + all * connection->fill_next++, now);
	}
	if (client->stopping || client->left == 0)
		return NULL;
	client->left--;
	uint64_t bits = workload_random(&client->random);
	uint64_t total = options->ratio.first + options->ratio.second;
	if (workload_below(bits, total) < options->ratio.first && connection->owned) {
		uint64_t turn = workload_below(workload_random(&client->random), connection->owned);
		return add_set(client, connection, at, connection->number + all * turn, now);
	}
	return add_get(client, connection, at, now);
}

/* Hands bytes to the socket, keeps what it does not take. False when the connection is lost. */
static bool
send_bytes(struct client *client, struct connection *connection, const char *bytes, size_t size)
{
	ssize_t sent = send(connection->fd, bytes, size, MSG_NOSIGNAL);

	if (sent < 0 && errno != EAGAIN && errno != EINTR) {
		give_up(client, connection, strerror(errno));
		return false;
	}
	size_t done = sent > 0 ? (size_t)sent : 0;
	client->counts.bytes_sent += done;
	size_t rest = size - done;
	if (rest > 0) {
		if (bytes != connection->unsent)
			connection->unsent =
				grow(connection->unsent, &connection->unsent_room, rest);
		memmove(connection->unsent, bytes + done, rest);
	}
	connection->unsent_size = rest;
	watch(client, connection, rest ? EPOLLIN | EPOLLOUT : EPOLLIN);
	return true;
}

/* Sends new requests as far as the pipeline, the socket and the phase allow. */
static void
fill_pipeline(struct client *client, struct connection *connection)
{
	const struct options *options = client->shared->options;

	if (connection->fd < 0)
		return;
	if (connection->unsent_size &&
		!send_bytes(client, connection, connection->unsent, connection->unsent_size))
		return;
	while (connection->unsent_size == 0 && connection->under_way < options->pipeline) {
		uint64_t now = client_now_ns();
		char *at = client->send;

		while (connection->under_way < options->pipeline && at < client->send + SEND_SIZE) {
			char *end = add_request(client, connection, at, now);
			if (!end)
				break;
			at = end;
		}
		if (at == client->send ||
			!send_bytes(client, connection, client->send, (size_t)(at - client->send)))
			return;
	}
}

static void
note_misses(struct client *client, const struct asked *asked, unsigned count)
{
	client->counts.misses += count;
	for (unsigned i = 0; i < count; i++) {
		if (asked[i].version == 0)
			continue;
		client->counts.lost++;
		if (client->shared->options->strict)
			complain(client,
				"key %" PRIu32 ": missing, though version %" PRIu32 " was stored",
				asked[i].key, asked[i].version);
	}
}

static void
check_value(struct client *client, const struct asked *asked, const struct reply *reply)
{
	struct workload *workload = client->shared->workload;
	uint32_t version;

	if (!workload->sent)
		return;
	enum workload_verdict verdict = workload_check_value(
		workload, asked->key, asked->version, reply->value, reply->value_size, &version);
	if (verdict == WORKLOAD_RIGHT)
		return;
	client->counts.wrong++;
	complain(client,
		"key %" PRIu32 ": %s (got %" PRIu64 " bytes that say version %" PRIu32
		"; versions %" PRIu32 " to %" PRIu32 " may come)",
		asked->key, workload_verdict_text(verdict), reply->value_size, version,
		asked->version, atomic_load(&workload->sent[asked->key]));
}

/* A value answers the next key of the get that has its name; those before it were missed. */
static bool
take_value(struct client *client, struct slot *slot, const struct asked *asked,
	const struct reply *reply)
{
	struct workload *workload = client->shared->workload;
	unsigned i = slot->answered;

	if (reply->key_size != workload->key_size || reply->flags != workload->flags)
		return false;
	for (; i < slot->keys; i++) {
		char key[WORKLOAD_KEY_SIZE_MAX];
		workload_write_key(workload, key, asked[i].key);
		if (memcmp(key, reply->key, workload->key_size) == 0)
			break;
	}
	if (i == slot->keys)
		return false;
	note_misses(client, asked + slot->answered, i - slot->answered);
	slot->answered = (uint16_t)(i + 1);
	client->counts.hits++;
	check_value(client, &asked[i], reply);
	return true;
}

static void
end_slot(struct client *client, struct connection *connection, struct slot *slot, uint64_t now)
{
	histogram_add(&client->latencies, now - slot->sent_ns);
	client->counts.requests++;
	if (slot->is_set)
		client->counts.sets++;
	else
		client->counts.gets += slot->keys;
	if (++connection->head == client->shared->options->pipeline)
		connection->head = 0;
	connection->under_way--;
	client->under_way--;
}

/* Matches a reply with the oldest request under way. False when it cannot be an answer to that. */
static bool
take_reply(struct client *client, struct connection *connection, const struct reply *reply,
	uint64_t now)
{
	struct workload *workload = client->shared->workload;

	if (connection->under_way == 0 || reply->kind == REPLY_BROKEN)
		return false;
	struct slot *slot = &connection->slots[connection->head];
	struct asked *asked =
		connection->asked + (size_t)connection->head * client->shared->options->multiget;
	switch (reply->kind) {
	case REPLY_VALUE:
		if (!take_value(client, slot, asked, reply))
			return false;
		if (!reply->last)
			return true;
		break;
	case REPLY_END:
		note_misses(client, asked + slot->answered, slot->keys - slot->answered);
		break;
	case REPLY_DONE:
		if (workload->acked)
			atomic_store_explicit(
				&workload->acked[asked->key], asked->version, memory_order_release);
		break;
	case REPLY_REFUSED:
		client->counts.refused++;
		if (!client->shared->options->refusals)
			complain(client, "%s answered: %.*s", slot->is_set ? "set" : "get",
				(int)reply->line_size, reply->line);
		break;
	default:
		client->counts.errors++;
		complain(client, "%s of key %" PRIu32 " answered: %.*s",
			slot->is_set ? "set" : "get", asked->key,
			(int)(reply->line_size < 200 ? reply->line_size : 200), reply->line);
	}
	end_slot(client, connection, slot, now);
	return true;
}

/*
 * Cuts all whole replies off the received bytes. Returns how many bytes are left, or -1 when the
 * stream is lost.
 */
static ssize_t
take_replies(struct client *client, struct connection *connection, const char *at, size_t size,
	size_t *wanted)
{
	uint64_t now = client_now_ns();
	struct reply reply;

	*wanted = 0;
	while (size > 0) {
		const struct slot *slot = &connection->slots[connection->head];
		size_t used = client->shared->protocol->parse(at, size,
			connection->under_way && slot->is_set ? OPERATION_SET : OPERATION_GET,
			connection->under_way ? slot->keys : 1, &reply, wanted);
		if (used == 0)
			break;
		if (!take_reply(client, connection, &reply, now)) {
			client->counts.errors++;
			complain(client, "connection %u: answer fits no request: %.*s",
				connection->number,
				(int)(reply.line_size < 200 ? reply.line_size : 200), reply.line);
			return -1;
		}
		at += used;
		size -= used;
	}
	return (ssize_t)size;
}

static void
receive(struct client *client, struct connection *connection)
{
	size_t old = connection->partial_size;
	size_t wanted;

	client->receive = grow(client->receive, &client->receive_size, old + RECEIVE_SIZE);
	ssize_t got = recv(connection->fd, client->receive + old, client->receive_size - old, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		give_up(client, connection, got == 0 ? "closed by the server" : strerror(errno));
		return;
	}
	client->counts.bytes_received += (size_t)got;
	if (old)
		memcpy(client->receive, connection->partial, old);
	size_t size = old + (size_t)got;
	ssize_t left = take_replies(client, connection, client->receive, size, &wanted);
	if (left < 0) {
		give_up(client, connection, "out of step");
		return;
	}
	connection->partial_size = (size_t)left;
	if (left == 0)
		return;
	connection->partial = grow(connection->partial, &connection->partial_room, (size_t)left);
	memcpy(connection->partial, client->receive + size - (size_t)left, (size_t)left);
	/* Room for the whole of a large value, so that its rest can come with one recv. */
	if (wanted)
		client->receive =
			grow(client->receive, &client->receive_size, wanted + RECEIVE_SIZE);
}

static bool
phase_is_over(const struct client *client)
{
	if (client->under_way)
		return false;
	if (client->phase == CLIENT_RUN)
		return client->stopping || client->left == 0;
	for (unsigned i = 0; i < client->connection_count; i++) {
		const struct connection *connection = &client->connections[i];
		if (connection->fd >= 0 && connection->fill_next < connection->owned)
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

void
client_run(struct client *client, enum client_phase phase, uint64_t requests, uint64_t deadline_ns)
{
	uint64_t patience_ns = (uint64_t)(client->shared->options->timeout * 1e9);
	struct epoll_event events[EVENTS_PER_TURN];

	client->phase = phase;
	client->left = requests ? requests : UINT64_MAX;
	client->stopping = false;
	memset(&client->counts, 0, sizeof client->counts);
	memset(&client->latencies, 0, sizeof client->latencies);
	atomic_store(&client->progress, 0);
	for (unsigned i = 0; i < client->connection_count; i++)
		fill_pipeline(client, &client->connections[i]);
	uint64_t last_ns = client_now_ns();
	while (!phase_is_over(client) && !all_closed(client)) {
		int count = epoll_wait(client->epoll_fd, events, EVENTS_PER_TURN, TURN_MS);
		uint64_t now = client_now_ns();

		if (deadline_ns && now >= deadline_ns)
			client->stopping = true;
		if (count > 0)
			last_ns = now;
		for (int i = 0; i < count; i++) {
			struct connection *connection = events[i].data.ptr;
			if (connection->fd >= 0 &&
				events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
				receive(client, connection);
			fill_pipeline(client, connection);
		}
		atomic_store_explicit(
			&client->progress, client->counts.requests, memory_order_relaxed);
		if (now - last_ns > patience_ns) {
			for (unsigned i = 0; i < client->connection_count; i++)
				if (client->connections[i].fd >= 0)
					give_up(client, &client->connections[i],
						"no answer in time");
		}
	}
}

static int
create_connection(struct client *client, struct connection *connection, unsigned number,
	char *error, size_t error_size)
{
	const struct options *options = client->shared->options;

	connection->number = number;
	if (options->keys > number)
		connection->owned =
			(options->keys - number + options->connections - 1) / options->connections;
	connection->slots = calloc(options->pipeline, sizeof *connection->slots);
	connection->asked =
		calloc(options->pipeline * options->multiget, sizeof *connection->asked);
	if (!connection->slots || !connection->asked) {
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

struct client *
client_create(struct client_shared *shared, unsigned first, unsigned count, char *error,
	size_t error_size)
{
	const struct options *options = shared->options;
	struct client *client = calloc(1, sizeof *client);
	size_t request_size =
		shared->protocol->request_size_max(shared->workload) + options->value_size.second;
	size_t get_size =
		shared->protocol->get_size_max(shared->workload, (unsigned)options->multiget);

	if (!client) {
		snprintf(error, error_size, "no memory for a thread");
		return NULL;
	}
	client->shared = shared;
	client->random = options->seed + first * UINT64_C(0x51ed270b0a1f39c1);
	client->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	client->connections = calloc(count, sizeof *client->connections);
	client->keys = calloc(options->multiget, sizeof *client->keys);
	client->send_room = SEND_SIZE + (request_size > get_size ? request_size : get_size);
	client->send = malloc(client->send_room);
	if (client->epoll_fd < 0 || !client->connections || !client->keys || !client->send) {
		snprintf(error, error_size, "cannot set up a thread: %s", strerror(errno));
		client_destroy(&client);
		return NULL;
	}
	for (unsigned i = 0; i < count; i++)
		client->connections[i].fd = -1;
	for (client->connection_count = 0; client->connection_count < count;
		client->connection_count++) {
		struct connection *connection = &client->connections[client->connection_count];
		if (create_connection(client, connection, first + client->connection_count, error,
			    error_size)) {
			client->connection_count++;
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
		free(connection->asked);
		free(connection->unsent);
		free(connection->partial);
	}
	if (client->epoll_fd >= 0)
		close(client->epoll_fd);
	free(client->connections);
	free(client->keys);
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
client_latencies(const struct client *client)
{
	return &client->latencies;
}

uint64_t
client_progress(const struct client *client)
{
	return atomic_load_explicit(&client->progress, memory_order_relaxed);
}
