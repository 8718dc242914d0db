/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The empty client: each connection sends the same bytes whenever as many bytes have come back as
 * answered them the first time. What it counts was learned that first time.
 */
#include "inside.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

static void
add_counts(struct client_counts *into, const struct client_counts *from, bool subtract)
{
	/* struct client_counts is nothing but uint64_t fields. */
	uint64_t *to = (uint64_t *)into;
	const uint64_t *of = (const uint64_t *)from;

	for (size_t i = 0; i < sizeof *into / sizeof *to; i++)
		to[i] += subtract ? -of[i] : of[i];
}

/* Sends the round once, takes its replies as the load generator does, and notes what they were. */
static bool
learn(struct client *client, struct connection *connection, struct round *round)
{
	int patience_ms = (int)(client->shared->options->timeout * 1000);
	struct client_counts before = client->counts;

	client_send(client, connection, round->bytes, round->size);
	while (connection->fd >= 0 && (connection->under_way > 0 || connection->unsent_size > 0)) {
		short events = connection->unsent_size ? POLLIN | POLLOUT : POLLIN;
		struct pollfd ready = {.fd = connection->fd, .events = events};
		if (poll(&ready, 1, patience_ms) <= 0)
			return false;
		if (ready.revents & (POLLIN | POLLERR | POLLHUP))
			client_receive(client, connection);
		if (connection->fd >= 0 && connection->unsent_size &&
			!client_send(
				client, connection, connection->unsent, connection->unsent_size))
			return false;
	}
	round->counts = client->counts;
	add_counts(&round->counts, &before, true);
	round->reply_size = round->counts.bytes_received;
	/* Bytes are counted as they come and go. */
	round->counts.bytes_received = round->counts.bytes_sent = 0;
	return connection->fd >= 0;
}

static bool
prepare(struct client *client, struct connection *connection)
{
	unsigned drawn;
	char *at = compose_requests(
		client, connection, client->send, client->pipeline, client_now_ns(), &drawn);
	size_t size = (size_t)(at - client->send);
	if (size == 0)
		return false;
	struct round *round = calloc(1, sizeof *round + size);
	if (!round)
		return false;
	connection->round = round;
	memcpy(round->bytes, client->send, size);
	round->size = size;
	round->requests = connection->under_way;
	for (uint32_t i = 0; i < connection->slot_count; i++) {
		const struct slot *slot =
			&connection->slots[(connection->slot_head + i) & client->mask];
		round->classes[replies_class(slot->operation)] += slot->requests;
	}
	return learn(client, connection, round);
}

void
empty_begin(struct client *client)
{
	for (unsigned i = 0; i < client->connection_count; i++) {
		struct connection *connection = &client->connections[i];
		if (connection->fd >= 0 && !prepare(client, connection) && connection->fd >= 0)
			client_give_up(client, connection, "no round to repeat");
	}
	for (unsigned i = 0; i < client->connection_count; i++)
		if (client->connections[i].fd >= 0)
			empty_send(client, &client->connections[i]);
}

void
empty_send(struct client *client, struct connection *connection)
{
	struct round *round = connection->round;

	if (round->awaited > 0 || client->stopping || client->left == 0)
		return;
	client->left -= client->left < round->requests ? client->left : round->requests;
	round->awaited = round->reply_size;
	round->start_ns = client_now_ns();
	connection->under_way = round->requests;
	client->under_way += round->requests;
	client_send(client, connection, round->bytes, round->size);
}

void
empty_receive(struct client *client, struct connection *connection)
{
	struct round *round = connection->round;

	client->receive = client_grow(client->receive, &client->receive_size, RECEIVE_SIZE);
	ssize_t got = recv(connection->fd, client->receive, client->receive_size, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		client_give_up(
			client, connection, got == 0 ? "closed by the server" : strerror(errno));
		return;
	}
	client->counts.bytes_received += (size_t)got;
	if ((uint64_t)got > round->awaited) {
		client->counts.errors++;
		client_give_up(client, connection, "more bytes than the first time");
		return;
	}
	round->awaited -= (uint64_t)got;
	if (round->awaited > 0)
		return;
	uint64_t latency = client_now_ns() - round->start_ns;
	for (unsigned i = 0; i < CLIENT_CLASSES; i++)
		if (round->classes[i])
			histogram_add_many(&client->latencies[i], latency, round->classes[i]);
	add_counts(&client->counts, &round->counts, false);
	client->under_way -= connection->under_way;
	connection->under_way = 0;
}
