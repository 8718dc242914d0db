/* SPDX-License-Identifier: BSD-2-Clause */
/* The binary parser, as tests/fuzz/fuzz_text.c does the text parser. */
#include "tests/lib/proto_feed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct parse_limits limits = {.value_bytes_max = 1048576,
		.window_bytes_max = 16384,
		.line_bytes_max = 1048576,
		.protocol = PROTOCOL_BINARY};

	if (size < 2 || size > 8192)
		return 0;
	if (data[0] & 1) {
		limits.value_bytes_max = 100;
		limits.window_bytes_max = 64;
	}
	limits.datagram = data[0] & 4;
	feed_compare(&limits, data + 1, size - 1, false);
	return 0;
}
