/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * slice: a borrowed run of bytes. It owns nothing; whoever hands one out says how long it lives.
 */
#ifndef BASE_SLICE_H
#define BASE_SLICE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct slice {
	const uint8_t *data;
	size_t size;
};

#define SLICE_LITERAL(text) ((struct slice){(const uint8_t *)(text), sizeof(text) - 1})

static inline struct slice
slice_make(const void *data, size_t size)
{
	return (struct slice){data, size};
}

static inline struct slice
slice_text(const char *text)
{
	return (struct slice){(const uint8_t *)text, strlen(text)};
}

static inline int
slice_equal(struct slice a, struct slice b)
{
	return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static inline int
slice_is(struct slice a, const char *text)
{
	return slice_equal(a, slice_text(text));
}

#endif
