/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Datagrams: the frame, the protocol chosen by the first byte behind it, and the reply's way back: the datagram's own bytes are cut into
 * pieces by its first bytes and must come out of the split unchanged.
 */
#include "base/check.h"
#include "proto/udp.h"
#include "tests/lib/proto_feed.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
split(const uint8_t *data, size_t size)
{
	struct iovec pieces[4], iovecs[4];
	size_t at = 0, got = 0, bytes;
	uint32_t datagrams = 0, used;

	for (int i = 0; i < 4; i++) {
		size_t take = i < 3 ? (size_t)data[i] * 32 : size;

		if (take > size - at)
			take = size - at;
		pieces[i] = (struct iovec){(uint8_t *)data + at, take};
		at += take;
	}
	struct udp_split walk = {.pieces = pieces, .piece_count = 4};

	while ((used = udp_split_next(&walk, iovecs, 4, &bytes)) > 0) {
		datagrams++;
		check(bytes > 0 && bytes <= UDP_PAYLOAD_MAX);
		for (uint32_t i = 0; i < used; i++) {
			check((const uint8_t *)iovecs[i].iov_base == data + got);
			got += iovecs[i].iov_len;
			check(iovecs[i].iov_len > 0 && iovecs[i].iov_len <= bytes);
			bytes -= iovecs[i].iov_len;
		}
		check(bytes == 0);
	}
	check(got == size);
	check(datagrams == udp_datagram_count(size));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct udp_frame frame;
	struct feed feed;

	if (size >= 3)
		split(data, size);
	if (!udp_frame_read(&frame, data, size))
		return 0;
	check(size >= UDP_FRAME_SIZE && frame.sequence == 0 && frame.datagrams <= 1);
	uint8_t copy[UDP_FRAME_SIZE];

	udp_frame_write(copy, &frame);
	check(memcmp(copy, data, sizeof copy) == 0);
	feed_begin(&feed);
	feed.limits.datagram = true;
	feed.compose = true;
	feed_run(&feed, data + UDP_FRAME_SIZE, size - UDP_FRAME_SIZE);
	feed_end(&feed);
	return 0;
}
