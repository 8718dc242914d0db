/* SPDX-License-Identifier: BSD-2-Clause */
/* What host and device share of the text protocol: line ends, tokens, numbers, get lines. */
#include "proto/scan_hd.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/*
 * The fast scans against the plain ones, for every length, alignment and place of the byte that
 * stops them.
 */
static void
test_stops(void **state)
{
	enum { LENGTHS = 70 };

	(void)state;
	for (size_t size = 0; size <= LENGTHS; size++) {
		/*
		 * Just as many bytes as there are: the address sanitizer sees a read behind them.
		 */
		uint8_t *bytes = malloc(size + 1);

		assert_non_null(bytes);
		for (size_t from = 0; from <= size && from < 17; from++) {
			for (size_t stop = from; stop <= size; stop++) {
				/* Bytes that are one bit or one off those that stop. */
				for (size_t i = 0; i < size; i++)
					bytes[i] = (uint8_t) "\x21\x1f\x0b\x09\xa0\x8a\xff"[i % 7];
				if (stop < size)
					bytes[stop] = ' ';
				if (stop + 1 < size)
					bytes[stop + 1] = 0x21;
				assert_ptr_equal(
					scan_space(bytes + from, bytes + size), bytes + stop);
				assert_ptr_equal(
					scan_key_end(bytes + from, bytes + size), bytes + stop);
				if (stop < size)
					bytes[stop] = '\n';
				assert_ptr_equal(
					scan_key_end(bytes + from, bytes + size), bytes + stop);
				assert_ptr_equal(
					scan_newline(bytes + from, bytes + size), bytes + stop);
			}
		}
		free(bytes);
	}
}

static void
test_tokens(void **state)
{
	static const uint8_t line[] = "  one two\t3   \r";
	const uint8_t *at = line, *end = line + sizeof line - 1;
	static const char *const words[] = {"one", "two\t3", "\r"};

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct scan_token token = scan_token_next(&at, end);

		assert_int_equal(token.size, strlen(words[i]));
		assert_memory_equal(token.data, words[i], token.size);
	}
	assert_int_equal(scan_token_next(&at, end).size, 0);
	assert_ptr_equal(at, end);
	assert_ptr_equal(scan_line_end(line, end), end - 1);
	assert_ptr_equal(scan_line_end(line, line), line);
	assert_ptr_equal(scan_line_end(end - 1, end - 1), end - 1);
}

static void
test_numbers(void **state)
{
	static const struct {
		const char *text;
		uint64_t max;
		int good;
		uint64_t value;
	} decimals[] = {
		{"0", UINT64_MAX, 1, 0},
		{"007", UINT64_MAX, 1, 7},
		{"18446744073709551615", UINT64_MAX, 1, UINT64_MAX},
		{"00018446744073709551615", UINT64_MAX, 1, UINT64_MAX},
		{"18446744073709551616", UINT64_MAX, 0, 0},
		{"99999999999999999999", UINT64_MAX, 0, 0},
		{"4294967295", UINT32_MAX, 1, UINT32_MAX},
		{"4294967296", UINT32_MAX, 0, 0},
		{"", UINT64_MAX, 0, 0},
		{"+1", UINT64_MAX, 0, 0},
		{"-1", UINT64_MAX, 0, 0},
		{"1 ", UINT64_MAX, 0, 0},
		{" 1", UINT64_MAX, 0, 0},
		{"1a", UINT64_MAX, 0, 0},
		{"0x1", UINT64_MAX, 0, 0},
		{"1.0", UINT64_MAX, 0, 0},
	};
	static const struct {
		const char *text;
		int good;
		int64_t value;
	} exptimes[] = {
		{"0", 1, 0},
		{"-1", 1, -1},
		{"2592000", 1, 2592000},
		{"2147483647", 1, INT32_MAX},
		{"2147483648", 1, INT32_MIN},
		{"4294967295", 1, -1},
		{"4294967296", 1, 0},
		{"-2147483648", 1, INT32_MIN},
		{"9223372036854775807", 1, -1},
		{"9223372036854775808", 0, 0},
		{"", 0, 0},
		{"-", 0, 0},
		{"--1", 0, 0},
		{"+1", 0, 0},
		{"1-", 0, 0},
		{"abc", 0, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof decimals / sizeof *decimals; i++) {
		uint64_t value = 0;

		assert_int_equal(scan_decimal((const uint8_t *)decimals[i].text,
					 strlen(decimals[i].text), decimals[i].max, &value),
			decimals[i].good);
		assert_int_equal(value, decimals[i].value);
	}
	for (size_t i = 0; i < sizeof exptimes / sizeof *exptimes; i++) {
		int64_t value = 0;

		assert_int_equal(scan_exptime((const uint8_t *)exptimes[i].text,
					 strlen(exptimes[i].text), &value),
			exptimes[i].good);
		assert_true(value == exptimes[i].value);
	}
}

/* A number with what stops it, in just as many bytes. */
static void
test_digits(void **state)
{
	static const struct {
		const char *text;
		int size; /* of the number, -1 where there is none */
		uint64_t value;
	} rows[] = {
		{"0 ", 1, 0},
		{"0\r", 1, 0},
		{"64\n", 2, 64},
		{"007/", 3, 7},
		{"9:", 1, 9},
		{"999999999999999999 ", 18, 999999999999999999},
		{"000000000000000000000000000007 ", 30, 7},
		{"1000000000000000000 ", -1, 0},
		{"18446744073709551617 ", -1, 0},
		{"340282366920938463463374607431768211457 ", -1, 0},
		{"0", -1, 0},
		{"64", -1, 0},
		{" ", -1, 0},
		{"-1 ", -1, 0},
		{"+1 ", -1, 0},
		{"/ ", -1, 0},
		{": ", -1, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		size_t size = strlen(rows[i].text);
		uint8_t *bytes = malloc(size);
		uint64_t value = 0;

		assert_non_null(bytes);
		memcpy(bytes, rows[i].text, size);
		const uint8_t *stop = scan_digits(bytes, bytes + size, &value);

		assert_int_equal(stop ? stop - bytes : -1, rows[i].size);
		if (stop)
			assert_int_equal(value, rows[i].value);
		free(bytes);
	}
}

static enum scan_get
get_line(const char *line, size_t *keys_at, uint32_t *count, int *cas)
{
	const uint8_t *start = (const uint8_t *)line, *keys = start;
	enum scan_get got = scan_get_line(start, start + strlen(line), &keys, count, cas);

	*keys_at = (size_t)(keys - start);
	return got;
}

static void
test_get_lines(void **state)
{
	char long_key[300];
	size_t at;
	uint32_t count = 0;
	int cas = 0;

	(void)state;
	assert_int_equal(get_line("get a", &at, &count, &cas), SCAN_GET_KEYS);
	assert_int_equal(at, 3);
	assert_int_equal(count, 1);
	assert_int_equal(cas, 0);
	assert_int_equal(get_line("gets  a b  c ", &at, &count, &cas), SCAN_GET_KEYS);
	assert_int_equal(at, 4);
	assert_int_equal(count, 3);
	assert_int_equal(cas, 1);
	assert_int_equal(get_line("get", &at, &count, &cas), SCAN_GET_NO_KEY);
	assert_int_equal(get_line("ge", &at, &count, &cas), SCAN_GET_NOT);
	assert_int_equal(get_line("get ", &at, &count, &cas), SCAN_GET_NO_KEY);
	assert_int_equal(get_line("gets", &at, &count, &cas), SCAN_GET_NO_KEY);
	assert_int_equal(get_line("gets   ", &at, &count, &cas), SCAN_GET_NO_KEY);
	assert_int_equal(get_line("gat 1 a", &at, &count, &cas), SCAN_GET_NOT);
	assert_int_equal(get_line("getsx a", &at, &count, &cas), SCAN_GET_NOT);
	assert_int_equal(get_line("getx a", &at, &count, &cas), SCAN_GET_NOT);
	memcpy(long_key, "get ", 4);
	memset(long_key + 4, 'k', 251);
	long_key[4 + 250] = '\0';
	assert_int_equal(get_line(long_key, &at, &count, &cas), SCAN_GET_KEYS);
	long_key[4 + 250] = 'k';
	long_key[4 + 251] = '\0';
	assert_int_equal(get_line(long_key, &at, &count, &cas), SCAN_GET_BAD_KEY);
}

/*
 * The check of a get line by blocks against the plain one: keys of all lengths around the longest
 * one allowed and around a block's, spaces in any number, with no byte behind the line.
 */
static void
test_get_check(void **state)
{
	static const size_t lengths[] = {
		1, 2, 15, 16, 17, 62, 63, 64, 65, 127, 128, 186, 249, 250, 251, 252, 313, 314, 320};
	enum { LENGTHS = sizeof lengths / sizeof *lengths };
	uint32_t random = 1, seen[SCAN_GET_KEYS + 1] = {0};

	(void)state;
	for (int round = 0; round < 60000; round++) {
		uint8_t line[2048];
		size_t size = 0;
		uint32_t count;

		random = random * 1664525 + 1013904223;
		for (uint32_t words = random >> 28; words > 0; words--) {
			random = random * 1664525 + 1013904223;

			/* Most rounds have short keys; spaces stand alone or in runs. */
			size_t length = random >> 31 ? 1 + (random >> 20 & 31)
						     : lengths[(random >> 20) % LENGTHS];
			size_t spaces =
				(random >> 12 & 7) == 0 ? random >> 4 & 127 : random >> 13 & 1;

			if (size + length + spaces + 1 > sizeof line)
				break;
			memset(line + size, ' ', spaces + 1);
			size += spaces + (words > 1 || (random & 1));
			memset(line + size, "\x21\t\xa0\x1f"[random >> 8 & 3], length);
			size += (round & 3) == 0 && words == 1 ? 0 : length;
		}
		uint8_t *alone = malloc(size ? size : 1);

		assert_non_null(alone);
		memcpy(alone, line, size);
		enum scan_get wanted = scan_get_keys(alone, alone + size, &count);

		assert_int_equal(scan_get_check(alone, alone + size), wanted);
		seen[wanted]++;
		free(alone);
	}
	assert_true(seen[SCAN_GET_NO_KEY] > 100 && seen[SCAN_GET_BAD_KEY] > 100 &&
		    seen[SCAN_GET_KEYS] > 100);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stops),
		cmocka_unit_test(test_tokens),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_digits),
		cmocka_unit_test(test_get_lines),
		cmocka_unit_test(test_get_check),
	};

	return cmocka_run_group_tests_name("proto_scan", tests, NULL, NULL);
}
