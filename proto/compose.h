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

#include "base/check.h"
#include "base/short_hd.h"
#include "proto/request.h"

/* Where the next text bytes go; the caller of reply_compose has made room for COMPOSE_ROOM. */
static inline uint8_t *
compose_begin(struct reply_out *out)
{
	return out->text + out->text_used;
}

/* Appends a reference. */
void compose_refer(struct reply_out *out, const void *data, size_t size);

/*
 * Appends what was written between compose_begin and end. Text lengthens the iovec before it where
 * that is text too, and never one of referred bytes that happen to stand beside it.
 */
static inline void
compose_end(struct reply_out *out, const uint8_t *end)
{
	uint8_t *start = out->text + out->text_used;
	size_t size = (size_t)(end - start);

	if (size == 0)
		return;
	check(size <= out->text_size - out->text_used);
	out->text_used += size;
	if (out->piece_used > out->piece_first) {
		struct iovec *last = &out->pieces[out->piece_used - 1];
		uint8_t *base = last->iov_base;

		if (base + last->iov_len == start && base >= out->text) {
			last->iov_len += size;
			out->bytes += size;
			return;
		}
	}
	compose_refer(out, start, size);
}

/* The way of compose_value for what isn't one short piece. */
uint8_t *compose_pieces(struct reply_out *out, uint8_t *at, const struct reply *reply);

/*
 * Appends the reply's value behind the text that was written up to 'at': a copy where it is short,
 * else references. Gives where text goes on, not yet appended: end it by compose_end.
 */
static inline uint8_t *
compose_value(struct reply_out *out, uint8_t *at, const struct reply *reply)
{
	const struct slice *pieces = reply->pieces;

	/*
	 * COMPOSE_ROOM is made for a header of under half of it, a copied value and what ends it.
	 */
	if (reply->piece_count != 1 || pieces->size > out->copy_max ||
		pieces->size > COMPOSE_ROOM / 2 - 16)
		return compose_pieces(out, at, reply);
	short_copy(at, pieces->data, pieces->size);
	return at + pieces->size;
}

#endif
