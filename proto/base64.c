/* SPDX-License-Identifier: BSD-2-Clause */
#include "proto/base64.h"

static const char base64_digits[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

uint8_t *
base64_encode(uint8_t *at, const uint8_t *data, size_t size)
{
	for (; size >= 3; size -= 3, data += 3) {
		uint32_t group = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];

		*at++ = (uint8_t)base64_digits[group >> 18];
		*at++ = (uint8_t)base64_digits[group >> 12 & 63];
		*at++ = (uint8_t)base64_digits[group >> 6 & 63];
		*at++ = (uint8_t)base64_digits[group & 63];
	}
	if (size > 0) {
		uint32_t group = (uint32_t)data[0] << 16 | (size == 2 ? (uint32_t)data[1] << 8 : 0);

		*at++ = (uint8_t)base64_digits[group >> 18];
		*at++ = (uint8_t)base64_digits[group >> 12 & 63];
		*at++ = size == 2 ? (uint8_t)base64_digits[group >> 6 & 63] : '=';
		*at++ = '=';
	}
	return at;
}

/* The number that a digit stands for, 64 when it is none. */
static uint32_t
digit_value(uint8_t digit)
{
	if (digit >= 'A' && digit <= 'Z')
		return (uint32_t)digit - 'A';
	if (digit >= 'a' && digit <= 'z')
		return (uint32_t)digit - 'a' + 26;
	if (digit >= '0' && digit <= '9')
		return (uint32_t)digit - '0' + 52;
	if (digit == '+')
		return 62;
	if (digit == '/')
		return 63;
	return 64;
}

size_t
base64_decode(uint8_t *to, const uint8_t *text, size_t size)
{
	uint8_t *start = to;
	size_t padding = 0;

	if (size == 0 || size % 4)
		return 0;
	while (padding < 2 && text[size - 1 - padding] == '=')
		padding++;
	for (size_t i = 0; i < size; i += 4) {
		size_t digits = i + 4 == size ? 4 - padding : 4;
		uint32_t group = 0;

		for (size_t j = 0; j < 4; j++) {
			uint32_t value = j < digits ? digit_value(text[i + j]) : 0;

			if (value > 63)
				return 0;
			group = group << 6 | value;
		}
		*to++ = (uint8_t)(group >> 16);
		if (digits > 2)
			*to++ = (uint8_t)(group >> 8);
		if (digits > 3)
			*to++ = (uint8_t)group;
	}
	return (size_t)(to - start);
}
