/* SPDX-License-Identifier: BSD-2-Clause */
/* Replies as iovecs: short things are copied into the batch's text, long ones are referred to. */
#include "proto/compose.h"

#include "base/check.h"
#include "proto/binary.h"
#include "proto/meta.h"
#include "proto/text.h"

void
compose_refer(struct reply_out *out, const void *data, size_t size)
{
	check(out->piece_used < out->piece_size);
	out->pieces[out->piece_used++] = (struct iovec){(void *)data, size};
	out->bytes += size;
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
		compose_refer(out, data, size);
}

uint8_t *
compose_pieces(struct reply_out *out, uint8_t *at, const struct reply *reply)
{
	const struct slice *pieces = reply->pieces;

	compose_end(out, at);
	for (uint32_t i = 0; i < reply->piece_count; i++) {
		if (pieces[i].size)
			compose_refer(out, pieces[i].data, pieces[i].size);
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
