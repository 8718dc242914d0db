/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The first step of parsing: swallow what is left of a refused body, tell the protocols apart, hand
 * on.
 */
#include "proto/parse.h"

#include "proto/binary.h"
#include "proto/text.h"

enum parse_status
request_parse(struct parser *parser, const struct parse_limits *limits, const uint8_t *data,
	size_t size, size_t *consumed, struct request *request, uint8_t *key_decoded)
{
	*consumed = 0;
	parser->wanted = 0;
	if (size == 0)
		return PARSE_MORE;
	if (parser->swallow) {
		*consumed = parser->swallow < size ? (size_t)parser->swallow : size;
		parser->swallow -= *consumed;
		return PARSE_SKIP;
	}
	if (parser->protocol == PROTOCOL_UNKNOWN) {
		if (limits->protocol != PROTOCOL_UNKNOWN)
			parser->protocol = limits->protocol == PROTOCOL_BINARY ? PROTOCOL_BINARY
									       : PROTOCOL_TEXT;
		else
			parser->protocol =
				data[0] == BINARY_REQUEST ? PROTOCOL_BINARY : PROTOCOL_TEXT;
	}
	if (parser->protocol == PROTOCOL_BINARY)
		return binary_parse(parser, limits, data, size, consumed, request);
	return text_parse(parser, limits, data, size, consumed, request, key_decoded);
}
