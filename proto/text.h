/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * text: the classic text protocol, and the lines and bodies of meta commands, whose flags are
 * meta.c's. Parsing and composing; no I/O, no clock, no allocation.
 */
#ifndef PROTO_TEXT_H
#define PROTO_TEXT_H

#include "proto/request.h"

/* As request_parse, for a connection known to be text and with nothing to swallow. */
enum parse_status text_parse(struct parser *parser, const struct parse_limits *limits,
	const uint8_t *data, size_t size, size_t *consumed, struct request *request,
	uint8_t *key_decoded);

/* As reply_compose, for a request in classic form. */
void text_compose(struct reply_out *out, const struct request *request, const struct reply *reply);

/* Appends status' line as it stands in status.def, with a line end. */
void text_compose_status(struct reply_out *out, enum status status);

#endif
