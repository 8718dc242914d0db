/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * short: copies and comparisons of a key's or a small value's length, inline: a call into the C
 * library costs more than the work. The ends of the bytes are done by loads and stores that
 * overlap, so nothing outside of them is ever read or written:
 *
 *	size 16 and more   [ 16 ][ 16 ] ...  and the last 16, whatever they share with those before
 *	size 8 to 15       the first 8 and the last 8; so for 4 to 7
 *	size 1 to 3        the first, the middle and the last byte
 */
#ifndef BASE_SHORT_HD_H
#define BASE_SHORT_HD_H

#include "base/hd.h"

#include <stddef.h>
#include <stdint.h>

/* From this size on the library's way is the faster one. */
#define SHORT_COPY_MAX 256

/* Are 16 bytes of any alignment the same? */
HD_FUNCTION int
short_equal16(const uint8_t *a, const uint8_t *b)
{
#if defined(__SSE2__) && !defined(__CUDACC__)
	typedef char bytes16 __attribute__((vector_size(16)));
	bytes16 one, two;

	hd_copy(&one, a, 16);
	hd_copy(&two, b, 16);
	return __builtin_ia32_pmovmskb128((bytes16)(one == two)) == 0xffff;
#else
	return ((hd_load64(a) ^ hd_load64(b)) | (hd_load64(a + 8) ^ hd_load64(b + 8))) == 0;
#endif
}

/* 1 when the bytes are the same; any size. */
HD_FUNCTION int
short_equal(const void *left, const void *right, size_t size)
{
#ifdef __CUDA_ARCH__
	return hd_equal(left, right, size);
#else
	const uint8_t *a = (const uint8_t *)left, *b = (const uint8_t *)right;

	if (size >= 16) {
		for (size_t at = 0; at < size - 16; at += 16)
			if (!short_equal16(a + at, b + at))
				return 0;
		return short_equal16(a + size - 16, b + size - 16);
	}
	if (size >= 8)
		return ((hd_load64(a) ^ hd_load64(b)) |
			       (hd_load64(a + size - 8) ^ hd_load64(b + size - 8))) == 0;
	if (size >= 4)
		return ((hd_load32(a) ^ hd_load32(b)) |
			       (hd_load32(a + size - 4) ^ hd_load32(b + size - 4))) == 0;
	return size == 0 ||
	       (a[0] == b[0] && a[size / 2] == b[size / 2] && a[size - 1] == b[size - 1]);
#endif
}

/* 16 to 32 bytes, 32 to 64: by two and four stores. */
HD_FUNCTION void
short_copy32(uint8_t *to, const uint8_t *from, size_t size)
{
	hd_copy(to, from, 16);
	hd_copy(to + size - 16, from + size - 16, 16);
}

HD_FUNCTION void
short_copy64(uint8_t *to, const uint8_t *from, size_t size)
{
	short_copy32(to, from, 32);
	short_copy32(to + size - 32, from + size - 32, 32);
}

/* Copies; any size. The two don't overlap. (In line by force: a call is what it is to avoid.) */
HD_FUNCTION __attribute__((always_inline)) void
short_copy(void *to, const void *from, size_t size)
{
#ifdef __CUDA_ARCH__
	hd_copy(to, from, size);
#else
	uint8_t *out = (uint8_t *)to;
	const uint8_t *in = (const uint8_t *)from;

	if (size > SHORT_COPY_MAX) {
		hd_copy(to, from, size);
	} else if (size > 32) {
		for (; size > 64; size -= 64, out += 64, in += 64)
			short_copy64(out, in, 64);
		/* What is left is 1 to 64 bytes; the loop has gone over those before it, if any. */
		if (size > 32)
			short_copy64(out, in, size);
		else
			short_copy32(out + size - 32, in + size - 32, 32);
	} else if (size >= 16) {
		short_copy32(out, in, size);
	} else if (size >= 8) {
		uint64_t first = hd_load64(in), last = hd_load64(in + size - 8);

		hd_copy(out, &first, 8);
		hd_copy(out + size - 8, &last, 8);
	} else if (size >= 4) {
		uint32_t first = hd_load32(in), last = hd_load32(in + size - 4);

		hd_copy(out, &first, 4);
		hd_copy(out + size - 4, &last, 4);
	} else if (size != 0) {
		uint8_t first = in[0], middle = in[size / 2], last = in[size - 1];

		out[0] = first;
		out[size / 2] = middle;
		out[size - 1] = last;
	}
#endif
}

#endif
