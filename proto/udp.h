/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * udp: the frame in front of requests and replies in datagrams. It knows no command.
 *
 *	byte	0	   2	     4		 6
 *		request id | sequence | datagrams | reserved	big-endian; replies carry the request's id
 *
 * A request fits one datagram. A reply is cut into datagrams of at most UDP_DATAGRAM_MAX bytes,
 * numbered from 0, each with the number of them all.
 */
#ifndef PROTO_UDP_H
#define PROTO_UDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define UDP_FRAME_SIZE 8
#define UDP_DATAGRAM_MAX 1400
#define UDP_PAYLOAD_MAX (UDP_DATAGRAM_MAX - UDP_FRAME_SIZE)

struct udp_frame {
	uint16_t request_id;
	uint16_t sequence;
	uint16_t datagrams;
	uint16_t reserved;
};

/*
 * Reads the frame of a received datagram. False when the datagram is too short or is a part of a
 * longer request, which nothing is to be answered to. What stands in reserved does not matter.
 */
bool udp_frame_read(struct udp_frame *frame, const uint8_t *data, size_t size);

/* Writes a frame to 'at' (UDP_FRAME_SIZE bytes). */
void udp_frame_write(uint8_t *at, const struct udp_frame *frame);

/*
 * How many datagrams a reply of that many bytes takes; 0 for none, and for a reply that 65535
 * datagrams can't carry.
 */
uint32_t udp_datagram_count(uint64_t reply_bytes);

/*
 * A walk over a reply's pieces, datagram by datagram. All zero but pieces and piece_count is the
 * start.
 */
struct udp_split {
	const struct iovec *pieces;
	uint32_t piece_count;
	uint32_t piece;	     /* the one that the next datagram starts in */
	size_t piece_offset; /* and how far in it */
};

/*
 * The payload of the next datagram, as iovecs that refer to the reply's bytes: fills up to
 * iovec_size of them (at least 1) with at most UDP_PAYLOAD_MAX bytes together; gives how many, and
 * 0 at the end. Only where iovecs run out is a datagram shorter that isn't the last: then *bytes,
 * which says how many bytes it holds, is below UDP_PAYLOAD_MAX, so give it piece_count, or 1392,
 * iovecs.
 */
uint32_t udp_split_next(
	struct udp_split *split, struct iovec *iovecs, uint32_t iovec_size, size_t *bytes);

#endif
