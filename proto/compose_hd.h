/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * compose_hd: the parts of replies that host and device write alike: decimal numbers and the VALUE
 * line.
 */
#ifndef PROTO_COMPOSE_HD_H
#define PROTO_COMPOSE_HD_H

#include "base/hd.h"
#include "base/short_hd.h"

#include <stddef.h>
#include <stdint.h>

#define COMPOSE_DECIMAL_MAX 20 /* digits of 2^64 - 1 */
/* "VALUE " key " " flags " " size " " cas "\r\n" */
#define COMPOSE_VALUE_LINE_MAX (6 + 250 + 1 + 10 + 1 + 20 + 1 + 20 + 2)

/* How many digits number has. */
HD_FUNCTION unsigned
compose_decimal_size(uint64_t number)
{
	unsigned digits = 1;

	while (number >= 10) {
		if (number < 100)
			return digits + 1;
		if (number < 1000)
			return digits + 2;
		if (number < 10000)
			return digits + 3;
		number /= 10000;
		digits += 4;
	}
	return digits;
}

/* The two digits of a number under 100, as bytes in their order. */
HD_FUNCTION uint32_t
compose_pair(uint32_t number)
{
	uint32_t tens = number * 103 >> 10;

	return (tens | (number - 10 * tens) << 8) + ('0' | '0' << 8);
}

/* Writes number at 'at' (room: COMPOSE_DECIMAL_MAX); gives the byte behind its last digit. */
HD_FUNCTION uint8_t *
compose_decimal(uint8_t *at, uint64_t number)
{
	uint8_t *end, *digit;

	if (number < 10) {
		*at = (uint8_t)('0' + number);
		return at + 1;
	}
	end = digit = at + (number < 100 ? 2 : compose_decimal_size(number));
	while (number >= 100) {
		uint32_t pair = compose_pair((uint32_t)(number % 100));

		digit -= 2;
		digit[0] = (uint8_t)pair;
		digit[1] = (uint8_t)(pair >> 8);
		number /= 100;
	}
	if (number >= 10) {
		uint32_t pair = compose_pair((uint32_t)number);

		at[0] = (uint8_t)pair;
		at[1] = (uint8_t)(pair >> 8);
	} else {
		at[0] = (uint8_t)('0' + number);
	}
	return end;
}

/*
 * The line above a value, with its line end. Room: COMPOSE_VALUE_LINE_MAX. Gives the byte behind
 * it.
 */
HD_FUNCTION uint8_t *
compose_value_line(uint8_t *at, const uint8_t *key, size_t key_size, uint32_t client_flags,
	uint64_t value_size, int with_cas, uint64_t cas)
{
	hd_copy(at, "VALUE ", 6);
	short_copy(at + 6, key, key_size);
	at += 6 + key_size;
	*at++ = ' ';
	at = compose_decimal(at, client_flags);
	*at++ = ' ';
	at = compose_decimal(at, value_size);
	if (with_cas) {
		*at++ = ' ';
		at = compose_decimal(at, cas);
	}
	*at++ = '\r';
	*at++ = '\n';
	return at;
}

#endif
