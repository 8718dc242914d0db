/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * meta: the flags of meta commands (mg ms md ma me mn) and their replies.
 */
#ifndef PROTO_META_H
#define PROTO_META_H

#include "proto/request.h"

/*
 * Parses [at, end), the line behind the command word, into *request, which request_begin has set up
 * with its command. True when a body of request->body_size bytes and a line end follow (ms, also
 * where it is refused): false for ms means that its length can't be known. A base64 key is decoded
 * into key_decoded (KEY_SIZE_MAX bytes).
 */
bool meta_parse(
	struct request *request, const uint8_t *at, const uint8_t *end, uint8_t *key_decoded);

/* As reply_compose, for a request in meta form. */
void meta_compose(struct reply_out *out, const struct request *request, const struct reply *reply);

#endif
