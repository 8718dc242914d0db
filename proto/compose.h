/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * compose: what the composers share. Inside proto only; others use reply_compose, reply_put and
 * reply_refer (proto/request.h).
 *
 *	uint8_t *at = compose_begin(out);
 *	... write up to COMPOSE_ROOM bytes at 'at' ...
 *	compose_end(out, at);
 */
#ifndef PROTO_COMPOSE_H
#define PROTO_COMPOSE_H

#include "proto/request.h"

/* Where the next text bytes go; the caller of reply_compose has made room for COMPOSE_ROOM. */
static inline uint8_t *
compose_begin(struct reply_out *out)
{
	return out->text + out->text_used;
}

/* Appends what was written between compose_begin and end. */
void compose_end(struct reply_out *out, const uint8_t *end);

/*
 * Appends the reply's value behind the text that was written up to 'at': a copy where it is short,
 * else references. Gives where text goes on, not yet appended: end it by compose_end.
 */
uint8_t *compose_value(struct reply_out *out, uint8_t *at, const struct reply *reply);

#endif
