/* SPDX-License-Identifier: BSD-2-Clause */
#include "proto/udp.h"

static uint16_t
read_u16(const uint8_t *at)
{
	return (uint16_t)(at[0] << 8 | at[1]);
}

static void
write_u16(uint8_t *at, uint16_t number)
{
	at[0] = (uint8_t)(number >> 8);
	at[1] = (uint8_t)number;
}

bool
udp_frame_read(struct udp_frame *frame, const uint8_t *data, size_t size)
{
	if (size < UDP_FRAME_SIZE)
		return false;
	frame->request_id = read_u16(data);
	frame->sequence = read_u16(data + 2);
	frame->datagrams = read_u16(data + 4);
	frame->reserved = read_u16(data + 6);
	/* Some clients leave the count 0 in their only datagram. */
	return frame->sequence == 0 && frame->datagrams <= 1;
}

void
udp_frame_write(uint8_t *at, const struct udp_frame *frame)
{
	write_u16(at, frame->request_id);
	write_u16(at + 2, frame->sequence);
	write_u16(at + 4, frame->datagrams);
	write_u16(at + 6, frame->reserved);
}

uint32_t
udp_datagram_count(uint64_t reply_bytes)
{
	uint64_t count = (reply_bytes + UDP_PAYLOAD_MAX - 1) / UDP_PAYLOAD_MAX;

	return count <= UINT16_MAX ? (uint32_t)count : 0;
}

uint32_t
udp_split_next(struct udp_split *split, struct iovec *iovecs, uint32_t iovec_size, size_t *bytes)
{
	uint32_t used = 0;
	size_t room = UDP_PAYLOAD_MAX;

	while (split->piece < split->piece_count && room > 0 && used < iovec_size) {
		const struct iovec *piece = &split->pieces[split->piece];
		size_t left = piece->iov_len - split->piece_offset;
		size_t take = left < room ? left : room;

		if (take > 0) {
			iovecs[used++] = (struct iovec){
				(uint8_t *)piece->iov_base + split->piece_offset, take};
			split->piece_offset += take;
			room -= take;
		}
		if (take == left) {
			split->piece++;
			split->piece_offset = 0;
		}
	}
	*bytes = UDP_PAYLOAD_MAX - room;
	return used;
}
