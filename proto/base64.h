/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * base64: keys of meta commands that aren't text (RFC 4648, the standard alphabet, padded).
 */
#ifndef PROTO_BASE64_H
#define PROTO_BASE64_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that size bytes take when encoded. */
#define BASE64_ENCODED_SIZE(size) (((size) + 2) / 3 * 4)

/* Writes data's code to 'at' (BASE64_ENCODED_SIZE(size) bytes); gives the byte behind it. */
uint8_t *base64_encode(uint8_t *at, const uint8_t *data, size_t size);

/*
 * Writes what text encodes to 'to' (size / 4 * 3 bytes of room). How many bytes that is; 0 when
 * text is no such code.
 */
size_t base64_decode(uint8_t *to, const uint8_t *text, size_t size);

#endif
