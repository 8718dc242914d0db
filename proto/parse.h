/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * parse: what the parsers share. Inside proto only; others use request_parse (proto/request.h).
 */
#ifndef PROTO_PARSE_H
#define PROTO_PARSE_H

#include "proto/request.h"

/* Bodies up to this length are swallowed or stored; a longer length is no length. */
#define BODY_SIZE_MAX (INT32_MAX - 2)

/* Clears what a request's readers look at and names the command. */
static inline void
request_begin(struct request *request, enum protocol protocol, enum command command, enum verb verb,
	enum request_mode mode)
{
	*request = (struct request){
		.verb = (uint8_t)verb,
		.protocol = (uint8_t)protocol,
		.command = (uint8_t)command,
		.mode = (uint8_t)mode,
		.status = STATUS_OK,
	};
}

/* Makes it one that does nothing but answer status, or not even that where noreply was asked for. */
static inline void
request_refuse(struct request *request, enum status status)
{
	request->verb = VERB_REFUSE;
	request->status = (uint8_t)status;
	request->options &= REQUEST_NOREPLY | REQUEST_CLOSE;
}

#endif
