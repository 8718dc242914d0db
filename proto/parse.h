/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * parse: what the parsers share. Inside proto only; others use request_parse (proto/request.h).
 */
#ifndef PROTO_PARSE_H
#define PROTO_PARSE_H

#include "proto/request.h"

/* Bodies up to this length are swallowed or stored; a longer length is no length. */
#define BODY_SIZE_MAX (INT32_MAX - 2)

/* The first eight bytes of a literal as one number: a constant that the compiler folds. */
#define LITERAL_BYTE(text, i)                                                                      \
	((i) < sizeof(text) - 1                                                                    \
			? (uint64_t)(uint8_t)(text)[(i) < sizeof(text) ? (i) : 0] << (8 * (i))     \
			: 0)
#define LITERAL_PACK(text)                                                                         \
	(LITERAL_BYTE(text, 0) | LITERAL_BYTE(text, 1) | LITERAL_BYTE(text, 2) |                   \
		LITERAL_BYTE(text, 3) | LITERAL_BYTE(text, 4) | LITERAL_BYTE(text, 5) |            \
		LITERAL_BYTE(text, 6) | LITERAL_BYTE(text, 7))

/*
 * Clears what the readers of a FETCH of the text protocol look at, and names the command: the first
 * cache line, but for the hash, which the hash stage sets.
 */
static inline void
request_begin_fetch(struct request *request, enum command command, uint32_t options,
	const uint8_t *key, size_t key_size)
{
	request->verb = VERB_FETCH;
	request->protocol = PROTOCOL_TEXT;
	request->command = (uint8_t)command;
	request->mode = MODE_NONE;
	request->status = STATUS_OK;
	request->opcode = 0;
	request->key_size = (uint8_t)key_size;
	request->pad = 0;
	request->options = options;
	request->opaque = 0;
	request->key = key;
	request->exptime = 0;
	request->client_flags = 0;
	request->pad2 = 0;
	request->arguments = (struct slice){NULL, 0};
}

/*
 * Clears what a request's readers look at and names the command. (Field by field: that is a third
 * of a memset's time.)
 */
static inline void
request_begin(struct request *request, enum protocol protocol, enum command command, enum verb verb,
	enum request_mode mode)
{
	request->verb = (uint8_t)verb;
	request->protocol = (uint8_t)protocol;
	request->command = (uint8_t)command;
	request->mode = (uint8_t)mode;
	request->status = STATUS_OK;
	request->opcode = 0;
	request->key_size = 0;
	request->pad = 0;
	request->options = 0;
	request->opaque = 0;
	request->key = NULL;
	request->hash = 0;
	request->exptime = 0;
	request->client_flags = 0;
	request->pad2 = 0;
	request->arguments = (struct slice){NULL, 0};
	request->value = (struct slice){NULL, 0};
	request->body_size = 0;
	request->vivify_ttl = 0;
	request->recache_ttl = 0;
	request->cas_compare = 0;
	request->cas_new = 0;
	request->delta = 0;
	request->initial = 0;
}

/*
 * Makes it one that does nothing but answer status, or not even that where noreply was asked for.
 */
static inline void
request_refuse(struct request *request, enum status status)
{
	request->verb = VERB_REFUSE;
	request->status = (uint8_t)status;
	request->options &= REQUEST_NOREPLY | REQUEST_CLOSE;
}

#endif
