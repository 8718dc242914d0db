/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * binary: the binary protocol.
 *
 *	byte	0	1	2	4	5	6	8	12	16
 *	request	0x80	opcode	keylen	extlen	type	vbucket	bodylen	opaque	cas	extras key value
 *	reply	0x81	opcode	keylen	extlen	type	status	bodylen	opaque	cas	extras key value
 *
 * Numbers are big-endian; bodylen counts extras, key and value. It alone frames: whatever is wrong
 * with a request, the next one starts bodylen bytes behind its header.
 */
#ifndef PROTO_BINARY_H
#define PROTO_BINARY_H

#include "proto/request.h"

#define BINARY_HEADER_SIZE 24
#define BINARY_REQUEST 0x80
#define BINARY_REPLY 0x81

/* As request_parse, for a connection known to be binary and with nothing to swallow. */
enum parse_status binary_parse(struct parser *parser, const struct parse_limits *limits,
	const uint8_t *data, size_t size, size_t *consumed, struct request *request);

/* As reply_compose, for a request in binary form. */
void binary_compose(
	struct reply_out *out, const struct request *request, const struct reply *reply);

/*
 * Writes a reply's header to 'at' (BINARY_HEADER_SIZE bytes): for replies that are composed
 * elsewhere, such as those of stat. opaque is in wire order, as in struct request.
 */
void binary_header_write(uint8_t *at, uint8_t opcode, uint16_t key_size, uint8_t extras_size,
	uint16_t status, uint32_t body_size, uint32_t opaque, uint64_t cas);

#endif
