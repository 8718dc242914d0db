/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * plain: text lines with a body or a number, in the form that nearly all have. Inside proto only;
 * others use request_parse (proto/request.h).
 */
#ifndef PROTO_PLAIN_H
#define PROTO_PLAIN_H

#include "proto/request.h"

/*
 * Takes a set, add, replace, append, prepend, touch, incr or decr, or a gat of one key, that stands
 * at data whole, in the plain form and with nothing wrong: *request and *consumed are what
 * text_parse makes them. Else false, and *request holds nothing of use. size > 0.
 */
bool plain_parse(const struct parse_limits *limits, const uint8_t *data, size_t size,
	size_t *consumed, struct request *request);

#endif
