/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Replies to connections: one sendmsg a connection and batch, and what becomes of the bytes that a
 * peer doesn't take. Values in the store are pinned, as long as the store allows it; all else is
 * copied, within bounds for one connection and for all; beyond these the connection is closed.
 * Nothing is read from a connection that owes its peer bytes.
 */
#include "net/event_internal.h"

#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* a peer that took nothing for so long may be closed in favour of another */
#define QUIET_NS (10 * 1000000000ull)

static void
append_leftover(struct connection *connection, struct leftover *leftover)
{
	leftover->next = NULL;
	if (connection->out_last)
		connection->out_last->next = leftover;
	else
		connection->out_first = leftover;
	connection->out_last = leftover;
}

static void
free_leftover(struct connection *connection, struct leftover *leftover, size_t copied)
{
	const struct event_front_options *options = &connection->front->options;

	if (leftover->pinned) {
		options->pins->unpin(
			options->pins_context, leftover->pinned, leftover->pinned_size);
	} else {
		connection->copied_bytes -= copied;
		atomic_fetch_sub_explicit(
			&connection->front->limits->output_bytes, copied, memory_order_relaxed);
	}
	free(leftover);
}

/*
 * A copy's size at its making stands behind none of its fields, so that it is kept in pinned_size.
 */
static void
pop_leftover(struct connection *connection)
{
	struct leftover *leftover = connection->out_first;

	connection->out_first = leftover->next;
	if (!connection->out_first)
		connection->out_last = NULL;
	free_leftover(connection, leftover, leftover->pinned_size);
}

void
leftovers_drop(struct connection *connection)
{
	while (connection->out_first)
		pop_leftover(connection);
}

static bool
keep_copy(struct connection *connection, const uint8_t *data, size_t size)
{
	struct event_limits *limits = connection->front->limits;
	struct leftover *leftover;

	if (connection->copied_bytes + size > limits->output_bytes_each)
		return false;
	if (atomic_fetch_add_explicit(&limits->output_bytes, size, memory_order_relaxed) + size >
		limits->output_bytes_max) {
		atomic_fetch_sub_explicit(&limits->output_bytes, size, memory_order_relaxed);
		return false;
	}
	leftover = malloc(sizeof *leftover + size);
	if (!leftover) {
		atomic_fetch_sub_explicit(&limits->output_bytes, size, memory_order_relaxed);
		return false;
	}
	memcpy(leftover + 1, data, size);
	*leftover = (struct leftover){
		.data = (uint8_t *)(leftover + 1), .size = size, .pinned_size = size};
	connection->copied_bytes += size;
	append_leftover(connection, leftover);
	counter_add(&connection->front->counters->send_copied, 1);
	return true;
}

static bool
keep(struct connection *connection, const struct iovec *piece)
{
	const struct event_front_options *options = &connection->front->options;
	struct leftover *leftover;

	if (options->pins->pin(options->pins_context, piece->iov_base, piece->iov_len) !=
		BATCH_PINNED)
		return keep_copy(connection, piece->iov_base, piece->iov_len);
	leftover = malloc(sizeof *leftover);
	if (!leftover) {
		options->pins->unpin(options->pins_context, piece->iov_base, piece->iov_len);
		return false;
	}
	*leftover = (struct leftover){.data = piece->iov_base,
		.size = piece->iov_len,
		.pinned = piece->iov_base,
		.pinned_size = piece->iov_len};
	append_leftover(connection, leftover);
	counter_add(&connection->front->counters->send_pinned, 1);
	return true;
}

/* Keeps all pieces; false when that would pass a bound. */
static bool
keep_all(struct connection *connection, const struct iovec *pieces, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (pieces[i].iov_len && !keep(connection, &pieces[i]))
			return false;
	return true;
}

/* Makes room by closing those that have taken nothing for long. */
static bool
shed_quiet(struct connection *connection)
{
	struct event_front *front = connection->front;
	struct link *at = front->blocked.next;
	bool some = false;

	while (at != &front->blocked) {
		struct connection *other = connection_of(at, blocked_link);

		at = at->next;
		if (front->now_ns - other->progress_ns < QUIET_NS)
			break;
		if (other == connection)
			continue;
		other->dead = true;
		leftovers_drop(other);
		connection_drained(other);
		counter_add(&front->counters->send_closed, 1);
		some = true;
	}
	return some;
}

/* The peer took a part of what was to be sent. */
static void
block(struct connection *connection, const struct iovec *pieces, uint32_t count)
{
	struct event_front *front = connection->front;

	connection->blocked = true;
	connection->progress_ns = front->now_ns;
	link_renew(&front->blocked, &connection->blocked_link);
	if (!keep_all(connection, pieces, count)) {
		leftovers_drop(connection);
		if (!shed_quiet(connection) || !keep_all(connection, pieces, count)) {
			leftovers_drop(connection);
			connection->dead = true;
			counter_add(&front->counters->send_closed, 1);
			log_info("<%d closed: its peer doesn't read its replies", connection->fd);
		}
	}
	if (connection->dead) {
		connection->blocked = false;
		link_remove(&connection->blocked_link);
		return;
	}
	event_watch_write(connection, true);
}

/* Advances over n sent bytes; *count says how many pieces are left, the first of them cut. */
static struct iovec *
advance(struct iovec *pieces, uint32_t *count, size_t n)
{
	while (*count > 0 && n >= pieces->iov_len) {
		n -= pieces->iov_len;
		pieces++;
		(*count)--;
	}
	if (*count > 0 && n > 0) {
		pieces->iov_base = (uint8_t *)pieces->iov_base + n;
		pieces->iov_len -= n;
	}
	return pieces;
}

static size_t
bytes_of(const struct iovec *pieces, size_t count)
{
	size_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += pieces[i].iov_len;
	return bytes;
}

static void
write_pieces(struct connection *connection, struct iovec *pieces, uint32_t count)
{
	while (count > 0) {
		size_t chunk = count < IOV_MAX ? count : IOV_MAX, bytes = bytes_of(pieces, chunk);
		struct msghdr message = {.msg_iov = pieces, .msg_iovlen = chunk};
		/* Replies with small values are one piece, which the kernel takes with less ado. */
		ssize_t n =
			count == 1 ? send(connection->fd, pieces->iov_base, pieces->iov_len,
					     MSG_NOSIGNAL | MSG_DONTWAIT)
				   : sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN) {
				connection->dead = true;
				return;
			}
			n = 0;
		}
		counter_add(&connection->front->counters->bytes_written, (uint64_t)n);
		pieces = advance(pieces, &count, (size_t)n);
		if ((size_t)n < bytes) {
			block(connection, pieces, count);
			return;
		}
	}
}

bool
leftovers_write(struct connection *connection)
{
	while (connection->out_first) {
		struct iovec pieces[64];
		size_t count = 0, bytes = 0;
		ssize_t n;

		for (struct leftover *one = connection->out_first; one && count < 64;
			one = one->next) {
			pieces[count++] = (struct iovec){(void *)(uintptr_t)one->data, one->size};
			bytes += one->size;
		}
		n = sendmsg(connection->fd,
			&(struct msghdr){.msg_iov = pieces, .msg_iovlen = count},
			MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		connection->progress_ns = connection->front->now_ns;
		link_renew(&connection->front->blocked, &connection->blocked_link);
		atomic_store_explicit(
			&connection->active_ns, connection->front->now_ns, memory_order_relaxed);
		counter_add(&connection->front->counters->bytes_written, (uint64_t)n);
		for (size_t left = (size_t)n; connection->out_first;) {
			struct leftover *first = connection->out_first;

			if (left < first->size) {
				first->data += left;
				first->size -= left;
				break;
			}
			left -= first->size;
			pop_leftover(connection);
		}
		if ((size_t)n < bytes)
			return true;
	}
	return true;
}

void
event_moved(struct front *base, struct batch_run *run)
{
	(void)base;
	/* A datagram doesn't know its run. */
	if (!run->stream->datagram)
		((struct connection *)((char *)run->stream - offsetof(struct connection, stream)))
			->run = run;
}

bool
event_send(struct front *base, struct batch *batch)
{
	struct event_front *front = (struct event_front *)base;
	bool empty = true;

	for (uint32_t i = 0; i < batch->run_count; i++) {
		struct batch_run *run = &batch->runs[i];
		struct connection *connection;

		if (!run->stream)
			continue;
		if (run->stream->datagram) {
			udp_send(front, batch, run);
			empty = empty && !run->stream;
			continue;
		}
		connection = (struct connection *)((char *)run->stream -
						   offsetof(struct connection, stream));
		if (run->piece_count > 0 && !connection->dead)
			write_pieces(connection, batch->out->pieces + run->piece_first,
				run->piece_count);
		if (run->finished) {
			run->stream = NULL;
			connection_return(connection);
		} else {
			run->blocked = connection->blocked;
			empty = false;
		}
	}
	udp_flush(front);
	event_reap(front);
	return empty;
}
