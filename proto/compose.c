/* SPDX-License-Identifier: BSD-2-Clause */
/* Replies as iovecs: short things are copied into the batch's text, long ones are referred to. */
#include "proto/compose.h"

#include "base/check.h"
#include "proto/binary.h"
#include "proto/meta.h"
#include "proto/text.h"

static void
piece_append(struct reply_out *out, const uint8_t *data, size_t size)
{
	check(out->piece_used < out->piece_size);
	out->pieces[out->piece_used++] = (struct iovec){(void *)data, size};
	out->bytes += size;
}

/*
 * Text lengthens the iovec before it where that is text too, and never one of referred bytes that
 * happen to stand beside it.
 */
void
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

		if (base >= out->text && base + last->iov_len == start) {
			last->iov_len += size;
			out->bytes += size;
			return;
		}
	}
	piece_append(out, start, size);
}

void
reply_put(struct reply_out *out, const void *data, size_t size)
{
	uint8_t *start = out->text + out->text_used;

	check(size <= out->text_size - out->text_used);
	if (size == 0)
		return;
	memcpy(start, data, size);
	compose_end(out, start + size);
}

void
reply_refer(struct reply_out *out, const void *data, size_t size)
{
	if (size == 0)
		return;
	if (size <= out->copy_max && size <= out->text_size - out->text_used)
		reply_put(out, data, size);
	else
		piece_append(out, data, size);
}

uint8_t *
compose_value(struct reply_out *out, uint8_t *at, const struct reply *reply)
{
	const struct slice *pieces = reply->pieces;

	/*
	 * COMPOSE_ROOM is made for a header of under half of it, a copied value and what ends it.
	 */
	if (reply->piece_count == 1 && pieces->size <= out->copy_max &&
		pieces->size <= COMPOSE_ROOM / 2 - 16) {
		if (pieces->size)
			memcpy(at, pieces->data, pieces->size);
		return at + pieces->size;
	}
	compose_end(out, at);
	for (uint32_t i = 0; i < reply->piece_count; i++) {
		if (pieces[i].size)
			piece_append(out, pieces[i].data, pieces[i].size);
	}
	return compose_begin(out);
}

void
reply_compose(struct reply_out *out, const struct request *request, const struct reply *reply)
{
	switch (request->protocol) {
	case PROTOCOL_BINARY:
		binary_compose(out, request, reply);
		break;
	case PROTOCOL_META:
		meta_compose(out, request, reply);
		break;
	default:
		text_compose(out, request, reply);
		break;
	}
}

const char *
command_text(enum command command)
{
	static const char *const texts[COMMAND_COUNT] = {
#define COMMAND(name, text, verb, mode, sentence) [COMMAND_##name] = (text),
#include "proto/commands.def"
#undef COMMAND
		[COMMAND_NONE] = "",
	};

	check((unsigned)command < COMMAND_COUNT);
	return texts[command];
}
