/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * compose_hd: the parts of replies that host and device write alike: decimal numbers and the VALUE
 * line.
 */
#ifndef PROTO_COMPOSE_HD_H
#define PROTO_COMPOSE_HD_H

#include "base/hd.h"

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

/* Writes number at 'at' (room: COMPOSE_DECIMAL_MAX); gives the byte behind its last digit. */
HD_FUNCTION uint8_t *
compose_decimal(uint8_t *at, uint64_t number)
{
	uint8_t *end = at + compose_decimal_size(number);
	uint8_t *digit = end;

	do {
		*--digit = (uint8_t)('0' + number % 10);
		number /= 10;
	} while (digit > at);
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
	at[0] = 'V';
	at[1] = 'A';
	at[2] = 'L';
	at[3] = 'U';
	at[4] = 'E';
	at[5] = ' ';
	hd_copy(at + 6, key, key_size);
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
