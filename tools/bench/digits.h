/* SPDX-License-Identifier: BSD-2-Clause */
/* digits: decimal numbers in the text and meta protocols, written and read. */
#ifndef TOOLS_BENCH_DIGITS_H
#define TOOLS_BENCH_DIGITS_H

#include <stdbool.h>
#include <stdint.h>

#define DIGITS_MAX 20 /* that a number takes */

/* Returns the end. */
static inline char *
digits_write(char *at, uint64_t number)
{
	char digits[DIGITS_MAX];
	unsigned count = 0;

	do
		digits[count++] = (char)('0' + number % 10);
	while (number /= 10);
	while (count)
		*at++ = digits[--count];
	return at;
}

/*
 * Reads digits up to end; false when there are none, more than 19 (which any 64-bit number holds)
 * or something else.
 */
static inline bool
digits_read(const char *at, const char *end, uint64_t *number)
{
	uint64_t n = 0;

	if (at == end || end - at > 19)
		return false;
	for (; at < end; at++) {
		if (*at < '0' || *at > '9')
			return false;
		n = n * 10 + (uint64_t)(*at - '0');
	}
	*number = n;
	return true;
}

#endif
