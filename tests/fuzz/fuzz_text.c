/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The text parser, classic and meta. The first byte chooses limits, the rest is what a client sends. Requests must be the same however
 * the bytes are cut, and replies of every status must keep their promises (tests/lib/proto_feed.h).
 */
#include "tests/lib/proto_feed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct parse_limits limits = {.value_bytes_max = 1048576,
		.window_bytes_max = 16384,
		.line_bytes_max = 1048576,
		.protocol = PROTOCOL_TEXT};

	if (size < 2 || size > 8192)
		return 0;
	if (data[0] & 1) {
		limits.value_bytes_max = 100;
		limits.window_bytes_max = 64;
		limits.line_bytes_max = 3000;
	}
	limits.strict = data[0] & 2;
	limits.datagram = data[0] & 4;
	feed_compare(&limits, data + 1, size - 1, false);
	return 0;
}
