/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * scan: how the text protocol's lines are cut, for host and device: line ends, tokens, numbers, get
 * lines.
 *
 * A line ends at '\n'; a '\r' right before it belongs to the line end. Tokens are separated by
 * spaces only: a tab is part of a key. Nothing reads outside of the bytes it is given.
 *
 *	get  key1 key2 \r\n
 *	     ^at       ^end (the line without its line end)
 */
#ifndef PROTO_SCAN_HD_H
#define PROTO_SCAN_HD_H

#include "base/hd.h"

#include <stddef.h>
#include <stdint.h>

#define SCAN_KEY_MAX 250

struct scan_token {
	const uint8_t *data;
	size_t size; /* 0: there was none */
};

/* The first '\n' in [data, end), or end. */
HD_FUNCTION const uint8_t *
scan_newline(const uint8_t *data, const uint8_t *end)
{
#ifdef __CUDA_ARCH__
	while (data < end && *data != '\n')
		data++;
	return data;
#else
	const uint8_t *found =
		data < end ? (const uint8_t *)__builtin_memchr(data, '\n', (size_t)(end - data))
			   : end;

	return found ? found : end;
#endif
}

/* The end of the line that starts at line and whose '\n' stands at newline: without '\r'. */
HD_FUNCTION const uint8_t *
scan_line_end(const uint8_t *line, const uint8_t *newline)
{
	return newline > line && newline[-1] == '\r' ? newline - 1 : newline;
}

/* The first space in [at, end), or end. */
HD_FUNCTION const uint8_t *
scan_space(const uint8_t *at, const uint8_t *end)
{
#ifndef __CUDA_ARCH__
	/*
	 * Eight bytes a step: the lowest byte that is a space shows as the lowest 0x80 (borrows
	 * only run upwards).
	 */
	while (end - at >= 8) {
		uint64_t word = hd_load64(at) ^ 0x2020202020202020u;
		uint64_t zero = (word - 0x0101010101010101u) & ~word & 0x8080808080808080u;

		if (zero)
			return at + (__builtin_ctzll(zero) >> 3);
		at += 8;
	}
#endif
	while (at < end && *at != ' ')
		at++;
	return at;
}

/*
 * The first space or '\n' in [at, end), or end: where a get line's key ends, without looking for
 * the line's end first.
 */
HD_FUNCTION const uint8_t *
scan_key_end(const uint8_t *at, const uint8_t *end)
{
#if defined(__SSE2__) && !defined(__CUDACC__)
	typedef char bytes16 __attribute__((vector_size(16)));
	const bytes16 spaces = {
		' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
	const bytes16 newlines = {'\n', '\n', '\n', '\n', '\n', '\n', '\n', '\n', '\n', '\n', '\n',
		'\n', '\n', '\n', '\n', '\n'};

	while (end - at >= 16) {
		bytes16 word;

		hd_copy(&word, at, sizeof word);
		bytes16 found = (bytes16)((word == spaces) | (word == newlines));
		unsigned mask = (unsigned)__builtin_ia32_pmovmskb128(found);

		if (mask)
			return at + __builtin_ctz(mask);
		at += 16;
	}
#endif
	while (at < end && *at != ' ' && *at != '\n')
		at++;
	return at;
}

/* Takes the next token off [*at, end): *at moves behind it. */
HD_FUNCTION struct scan_token
scan_token_next(const uint8_t **at, const uint8_t *end)
{
	struct scan_token token;

	while (*at < end && **at == ' ')
		++*at;
	token.data = *at;
	*at = scan_space(*at, end);
	token.size = (size_t)(*at - token.data);
	return token;
}

/*
 * A whole token as an unsigned decimal of at most 'max': digits only, at least one. 1 and *value,
 * or 0.
 */
HD_FUNCTION int
scan_decimal(const uint8_t *text, size_t size, uint64_t max, uint64_t *value)
{
	uint64_t sum = 0;

	if (size == 0)
		return 0;
	for (size_t i = 0; i < size; i++) {
		unsigned digit = (unsigned)text[i] - '0';

		if (digit > 9)
			return 0;
		if (sum > (max - digit) / 10)
			return 0;
		sum = sum * 10 + digit;
	}
	*value = sum;
	return 1;
}

/*
 * The digits at 'at', which is below end, as a number below 10^18: the first byte that isn't one,
 * and *value. NULL where none stands there, where it is larger, and where nothing but digits stands
 * up to end.
 */
HD_FUNCTION const uint8_t *
scan_digits(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
	unsigned digit = (unsigned)*at - '0';
	uint64_t sum = digit;

	if (digit > 9)
		return NULL;
	while (++at < end) {
		digit = (unsigned)*at - '0';
		if (digit > 9) {
			*value = sum;
			return at;
		}
		sum = sum * 10 + digit;
		if (sum > 999999999999999999u)
			return NULL;
	}
	return NULL;
}

/*
 * A time to live: a decimal with or without '-'. What doesn't fit 32 bits wraps, as clients that
 * print -1 as an unsigned 32-bit number expect: 4294967295 is in the past, 4294967296 is never. 1
 * and *exptime, or 0.
 */
HD_FUNCTION int
scan_exptime(const uint8_t *text, size_t size, int64_t *exptime)
{
	int negative = size > 0 && text[0] == '-';
	uint64_t number;

	if (!scan_decimal(text + negative, size - (size_t)negative, INT64_MAX, &number))
		return 0;
	*exptime = (int32_t)(uint32_t)(negative ? 0 - number : number);
	return 1;
}

enum scan_get {
	SCAN_GET_NOT,	  /* another command */
	SCAN_GET_NO_KEY,  /* no key stands on the line */
	SCAN_GET_BAD_KEY, /* one key at least is too long */
	SCAN_GET_KEYS,	  /* one or more keys, all legal */
};

/* Are all tokens of [at, end) keys? *count: how many stand there, when they are. */
HD_FUNCTION enum scan_get
scan_get_keys(const uint8_t *at, const uint8_t *end, uint32_t *count)
{
	uint32_t keys = 0;

	for (;;) {
		struct scan_token key = scan_token_next(&at, end);

		if (key.size == 0)
			break;
		if (key.size > SCAN_KEY_MAX)
			return SCAN_GET_BAD_KEY;
		keys++;
	}
	*count = keys;
	return keys ? SCAN_GET_KEYS : SCAN_GET_NO_KEY;
}

/*
 * What scan_get_keys says, without the count: 64 bytes a step, because of such a block only its
 * first and its last space matter.
 *
 *	...key1 key2 k|ey3 key4 ... key7 k|ey8...
 *	             ^run  ^first       ^last
 */
HD_FUNCTION enum scan_get
scan_get_check(const uint8_t *at, const uint8_t *end)
{
	enum scan_get rest;
	uint32_t count;
	int some = 0;
#if defined(__SSE2__) && !defined(__CUDACC__)
	typedef char bytes16 __attribute__((vector_size(16)));
	const bytes16 spaces = {
		' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
	const uint8_t *run = at; /* behind the last space */

	for (; end - at >= 64; at += 64) {
		uint64_t found = 0;

		for (int i = 0; i < 4; i++) {
			bytes16 word;

			hd_copy(&word, at + 16 * i, sizeof word);
			found |= (uint64_t)(uint32_t)__builtin_ia32_pmovmskb128(
					 (bytes16)(word == spaces))
				 << 16 * i;
		}
		some |= found != ~(uint64_t)0;
		if (found == 0)
			continue;
		if (at + __builtin_ctzll(found) - run > SCAN_KEY_MAX)
			return SCAN_GET_BAD_KEY;
		run = at + 64 - __builtin_clzll(found);
	}
	at = run;
#endif
	rest = scan_get_keys(at, end, &count);
	return rest == SCAN_GET_NO_KEY && some ? SCAN_GET_KEYS : rest;
}

/*
 * Is [line, end) a get? Then *keys is where its first key or a space before it stands, for
 * scan_token_next. A gets, which wants CAS numbers, says so in *cas.
 */
HD_FUNCTION enum scan_get
scan_get_line(
	const uint8_t *line, const uint8_t *end, const uint8_t **keys, uint32_t *count, int *cas)
{
	if (end - line < 3 || line[0] != 'g' || line[1] != 'e' || line[2] != 't')
		return SCAN_GET_NOT;
	*cas = end - line > 3 && line[3] == 's';
	*keys = line + 3 + *cas;
	if (*keys == end)
		return SCAN_GET_NO_KEY;
	if (**keys != ' ')
		return SCAN_GET_NOT;
	return scan_get_keys(*keys, end, count);
}

#endif
