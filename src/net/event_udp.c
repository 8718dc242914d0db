/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Datagrams: up to 64 are taken by one recvmmsg, each a stream of its own for as long as its run
 * lasts; replies are cut into datagrams and leave by sendmmsg when the whole batch has been looked
 * at. Nothing of one datagram is left in its stream for the next sender.
 */
#include "net/event_internal.h"

#include "proto/udp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define DATAGRAMS 64
#define DATAGRAM_BYTES 65536
#define MESSAGES 64
#define IOVECS 4096
#define REPLY_BYTES_MAX (8u << 20) /* of a datagram whose requests take several turns */

struct datagram {
	struct stream stream;
	struct datagram *next;
	struct sockaddr_storage peer;
	socklen_t peer_size;
	int fd;
	struct udp_frame frame;
	/*
	 * replies of earlier turns: a reply's datagrams can be numbered only when all of it is
	 * there. Their room counts in limits.output_bytes.
	 */
	uint8_t *kept;
	size_t kept_size, kept_room;
	bool unanswerable; /* a bound was passed: nothing is kept, and nothing more is run */
	uint8_t *buffer;
};

struct udp_socket {
	struct event_udp *udp;
	int fd;
	uint8_t protocol;
	bool readable;
	struct event *event;
};

struct event_udp {
	struct event_front *front;
	struct udp_socket *sockets;
	unsigned socket_count;
	struct datagram *pool;	  /* free */
	struct datagram *again;	  /* with requests left for a later batch */
	struct datagram *sending; /* to be freed when their replies have left */
	struct datagram *all;
	struct mmsghdr messages[MESSAGES];
	uint8_t frames[MESSAGES][UDP_FRAME_SIZE];
	struct iovec iovecs[IOVECS];
	unsigned message_count, iovec_count;
};

static void
on_datagram(int fd, short what, void *context)
{
	(void)fd;
	(void)what;
	((struct udp_socket *)context)->readable = true;
}

static bool
make_datagrams(struct event_udp *udp)
{
	udp->all = calloc(DATAGRAMS, sizeof *udp->all);
	if (!udp->all)
		return false;
	for (unsigned i = 0; i < DATAGRAMS; i++) {
		struct datagram *datagram = &udp->all[i];

		datagram->buffer = malloc(DATAGRAM_BYTES);
		if (!datagram->buffer)
			return false;
		datagram->next = udp->pool;
		udp->pool = datagram;
	}
	return true;
}

static bool
watch_sockets(struct event_udp *udp, const struct listeners *listeners)
{
	udp->sockets = calloc(listeners->count, sizeof *udp->sockets);
	if (!udp->sockets)
		return false;
	for (unsigned i = 0; i < listeners->count; i++) {
		struct udp_socket *one = &udp->sockets[udp->socket_count];

		if (listeners->at[i].kind != LISTENER_UDP)
			continue;
		one->udp = udp;
		one->fd = listeners->at[i].fd;
		one->protocol = listeners->at[i].protocol;
		one->event = event_watch_fd(udp->front, one->fd, on_datagram, one);
		if (!one->event)
			return false;
		udp->socket_count++;
	}
	return true;
}

static void
drop_kept(struct event_udp *udp, struct datagram *datagram)
{
	atomic_fetch_sub_explicit(
		&udp->front->limits->output_bytes, datagram->kept_room, memory_order_relaxed);
	free(datagram->kept);
	datagram->kept = NULL;
	datagram->kept_size = datagram->kept_room = 0;
}

bool
udp_create(struct event_front *front, const struct listeners *listeners)
{
	bool any = false;

	for (unsigned i = 0; listeners && i < listeners->count; i++)
		any = any || listeners->at[i].kind == LISTENER_UDP;
	if (!any)
		return true;
	front->udp = calloc(1, sizeof *front->udp);
	if (!front->udp)
		return false;
	front->udp->front = front;
	return make_datagrams(front->udp) && watch_sockets(front->udp, listeners);
}

void
udp_destroy(struct event_front *front)
{
	struct event_udp *udp = front->udp;

	if (!udp)
		return;
	for (unsigned i = 0; i < udp->socket_count; i++)
		event_watch_fd_end(udp->sockets[i].event);
	for (unsigned i = 0; udp->all && i < DATAGRAMS; i++) {
		drop_kept(udp, &udp->all[i]);
		free(udp->all[i].buffer);
	}
	free(udp->all);
	free(udp->sockets);
	free(udp);
	front->udp = NULL;
}

static void
recycle(struct event_udp *udp, struct datagram *datagram)
{
	udp->front->options.ended(udp->front->options.ended_context, &datagram->stream);
	drop_kept(udp, datagram);
	datagram->next = udp->pool;
	udp->pool = datagram;
}

bool
udp_pending(const struct event_front *front)
{
	return front->udp && front->udp->again;
}

/* --- receiving ---------------------------------------------------------------------------- */

static void
add_datagram(struct event_udp *udp, struct batch *batch, struct datagram *datagram)
{
	struct batch_run *run = &batch->runs[batch->run_count++];

	(void)udp;
	*run = (struct batch_run){.stream = &datagram->stream};
	batch->bytes += datagram->stream.input_size;
}

static bool
batch_has_room(const struct batch *batch)
{
	return batch->run_count < BATCH_STREAMS && batch->bytes < BATCH_BYTES;
}

/* One that arrived; false when there is nothing to answer. */
static bool
open_datagram(struct event_udp *udp, struct datagram *datagram, size_t size, uint8_t protocol)
{
	struct event_front *front = udp->front;

	counter_add(&front->counters->bytes_read, size);
	if (!udp_frame_read(&datagram->frame, datagram->buffer, size)) {
		counter_add(&front->counters->udp_dropped, 1);
		return false;
	}
	datagram->unanswerable = false;
	datagram->stream = (struct stream){
		.input = datagram->buffer + UDP_FRAME_SIZE,
		.input_size = size - UDP_FRAME_SIZE,
		.datagram = true,
		.protocol_fixed = protocol,
		.end_of_input = true,
		.id = ++front->ids << 8 | front->options.worker,
	};
	return true;
}

static void
receive_socket(struct event_udp *udp, struct udp_socket *one, struct batch *batch)
{
	struct datagram *taken[DATAGRAMS];
	struct mmsghdr messages[DATAGRAMS];
	struct iovec iovecs[DATAGRAMS];
	unsigned room = BATCH_STREAMS - batch->run_count, count = 0;
	int n;

	for (; count < DATAGRAMS && count < room && udp->pool; count++) {
		struct datagram *datagram = udp->pool;

		udp->pool = datagram->next;
		datagram->fd = one->fd;
		taken[count] = datagram;
		iovecs[count] = (struct iovec){datagram->buffer, DATAGRAM_BYTES};
		messages[count].msg_hdr = (struct msghdr){.msg_name = &datagram->peer,
			.msg_namelen = sizeof datagram->peer,
			.msg_iov = &iovecs[count],
			.msg_iovlen = 1};
	}
	n = count ? recvmmsg(one->fd, messages, count, MSG_DONTWAIT, NULL) : 0;
	if (count && n < (int)count)
		one->readable = false;
	for (unsigned i = 0; i < count; i++) {
		if ((int)i < n) {
			taken[i]->peer_size = messages[i].msg_hdr.msg_namelen;
			if (open_datagram(udp, taken[i], messages[i].msg_len, one->protocol)) {
				add_datagram(udp, batch, taken[i]);
				continue;
			}
		}
		taken[i]->next = udp->pool;
		udp->pool = taken[i];
	}
}

void
udp_receive(struct event_front *front, struct batch *batch)
{
	struct event_udp *udp = front->udp;
	struct datagram *again;

	if (!udp)
		return;
	again = udp->again;
	udp->again = NULL;
	while (again) {
		struct datagram *next = again->next;

		if (batch_has_room(batch)) {
			add_datagram(udp, batch, again);
		} else {
			again->next = udp->again;
			udp->again = again;
		}
		again = next;
	}
	for (unsigned i = 0; i < udp->socket_count; i++)
		if (udp->sockets[i].readable && batch_has_room(batch))
			receive_socket(udp, &udp->sockets[i], batch);
}

/* --- sending ------------------------------------------------------------------------------ */

/* Room for size bytes, within the bound of one and that of all replies together. */
static bool
grow_kept(struct event_udp *udp, struct datagram *datagram, size_t size)
{
	struct event_limits *limits = udp->front->limits;
	size_t more = size - datagram->kept_room;
	uint8_t *grown = NULL;

	if (size > REPLY_BYTES_MAX)
		return false;
	if (atomic_fetch_add_explicit(&limits->output_bytes, more, memory_order_relaxed) + more <=
		limits->output_bytes_max)
		grown = realloc(datagram->kept, size);
	if (!grown) {
		atomic_fetch_sub_explicit(&limits->output_bytes, more, memory_order_relaxed);
		return false;
	}
	datagram->kept = grown;
	datagram->kept_room = size;
	return true;
}

static bool
keep_pieces(struct event_udp *udp, struct datagram *datagram, const struct iovec *pieces,
	uint32_t count)
{
	size_t size = datagram->kept_size;

	for (uint32_t i = 0; i < count; i++)
		size += pieces[i].iov_len;
	if (size > datagram->kept_room && !grow_kept(udp, datagram, size))
		return false;
	for (uint32_t i = 0; i < count; i++) {
		memcpy(datagram->kept + datagram->kept_size, pieces[i].iov_base, pieces[i].iov_len);
		datagram->kept_size += pieces[i].iov_len;
	}
	return true;
}

static void
give_up(struct event_udp *udp, struct datagram *datagram)
{
	datagram->unanswerable = true;
	drop_kept(udp, datagram);
	counter_add(&udp->front->counters->udp_dropped, 1);
}

static void
send_messages(struct event_udp *udp)
{
	unsigned at = 0;

	while (at < udp->message_count) {
		unsigned end = at + 1;
		int fd = (int)(intptr_t)udp->messages[at].msg_hdr.msg_control;
		int n;

		/*
		 * Neighbours of one socket leave together; its number is kept in a field that is
		 * cleared here.
		 */
		while (end < udp->message_count &&
			(int)(intptr_t)udp->messages[end].msg_hdr.msg_control == fd)
			end++;
		for (unsigned i = at; i < end; i++)
			udp->messages[i].msg_hdr.msg_control = NULL;
		n = sendmmsg(fd, udp->messages + at, end - at, MSG_DONTWAIT | MSG_NOSIGNAL);
		for (int i = 0; i < n; i++)
			counter_add(&udp->front->counters->bytes_written,
				udp->messages[at + (unsigned)i].msg_len);
		if (n < 0 && errno == EINTR)
			n = 0;
		if (n < 0) {
			/*
			 * The first can't be sent: to its peer, or no room at all. The others are
			 * still tried.
			 */
			counter_add(&udp->front->counters->udp_dropped, 1);
			n = 1;
		}
		for (unsigned i = at + (unsigned)n; i < end; i++)
			udp->messages[i].msg_hdr.msg_control = (void *)(intptr_t)fd;
		at += (unsigned)n;
	}
	udp->message_count = udp->iovec_count = 0;
}

/* One datagram of a reply; false at the reply's end. */
static bool
gather_one(struct event_udp *udp, struct datagram *datagram, struct udp_split *split,
	struct udp_frame *frame)
{
	uint32_t most = split->piece_count < UDP_PAYLOAD_MAX ? split->piece_count : UDP_PAYLOAD_MAX;
	struct iovec *iovecs;
	size_t bytes;
	uint32_t count;

	if (udp->message_count == MESSAGES || udp->iovec_count + most + 1 > IOVECS)
		send_messages(udp);
	iovecs = udp->iovecs + udp->iovec_count;
	count = udp_split_next(split, iovecs + 1, most, &bytes);
	if (count == 0)
		return false;
	iovecs[0] = (struct iovec){udp->frames[udp->message_count], UDP_FRAME_SIZE};
	udp_frame_write(udp->frames[udp->message_count], frame);
	frame->sequence++;
	udp->messages[udp->message_count++].msg_hdr = (struct msghdr){
		.msg_name = &datagram->peer,
		.msg_namelen = datagram->peer_size,
		.msg_iov = iovecs,
		.msg_iovlen = count + 1,
		.msg_control = (void *)(intptr_t)datagram->fd,
	};
	udp->iovec_count += count + 1;
	return true;
}

static void
gather(struct event_udp *udp, struct datagram *datagram, const struct iovec *pieces, uint32_t count)
{
	struct udp_split split = {.pieces = pieces, .piece_count = count};
	struct udp_frame frame = {.request_id = datagram->frame.request_id};
	uint64_t bytes = 0;
	uint32_t datagrams;

	for (uint32_t i = 0; i < count; i++)
		bytes += pieces[i].iov_len;
	datagrams = udp_datagram_count(bytes);
	if (datagrams == 0) {
		if (bytes)
			counter_add(&udp->front->counters->udp_dropped, 1);
		return;
	}
	frame.datagrams = (uint16_t)datagrams;
	while (gather_one(udp, datagram, &split, &frame))
		;
}

void
udp_send(struct event_front *front, struct batch *batch, struct batch_run *run)
{
	struct event_udp *udp = front->udp;
	struct datagram *datagram =
		(struct datagram *)((char *)run->stream - offsetof(struct datagram, stream));
	const struct iovec *pieces = batch->out->pieces + run->piece_first;
	bool last = run->finished && !datagram->stream.more;

	if ((!last || datagram->kept_size) && !datagram->unanswerable &&
		!keep_pieces(udp, datagram, pieces, run->piece_count))
		give_up(udp, datagram);
	if (!run->finished)
		return;
	run->stream = NULL;
	if (datagram->unanswerable) {
		/* Its other requests, which may be thousands, would be run for nobody. */
		datagram->stream.more = false;
		datagram->stream.input_size = 0;
		last = true;
	}
	if (!last) {
		datagram->next = udp->again;
		udp->again = datagram;
		return;
	}
	if (datagram->kept_size)
		gather(udp, datagram, &(struct iovec){datagram->kept, datagram->kept_size}, 1);
	else if (!datagram->unanswerable)
		gather(udp, datagram, pieces, run->piece_count);
	datagram->next = udp->sending;
	udp->sending = datagram;
}

void
udp_flush(struct event_front *front)
{
	struct event_udp *udp = front->udp;

	if (!udp)
		return;
	send_messages(udp);
	while (udp->sending) {
		struct datagram *datagram = udp->sending;

		udp->sending = datagram->next;
		recycle(udp, datagram);
	}
}
