/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * proto_table: tables of what goes into a parser and which requests come out, for the unit tests.
 */
#ifndef TESTS_PROTO_TABLE_H
#define TESTS_PROTO_TABLE_H

#include "tests/lib/proto_feed.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

struct table_row {
	const char *input;
	size_t input_size;
	const char *lines;
};

/* The input may hold bytes of value 0. */
#define ROW(input, lines)                                                                          \
	{                                                                                          \
		input, sizeof(input) - 1, lines                                                    \
	}

/* Runs of one letter, to write long keys in tables. */
#define K10 "kkkkkkkkkk"
#define K50 K10 K10 K10 K10 K10
#define K250 K50 K50 K50 K50 K50
#define K251 K250 "k"

static inline void
table_run(const struct parse_limits *limits, const struct table_row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct feed feed;

		feed_begin(&feed);
		if (limits)
			feed.limits = *limits;
		feed_run(&feed, (const uint8_t *)rows[i].input, rows[i].input_size);
		if (strcmp(feed.lines, rows[i].lines) != 0)
			print_error("input: %s\n", rows[i].input);
		assert_string_equal(feed.lines, rows[i].lines);
		feed_compare(
			&feed.limits, (const uint8_t *)rows[i].input, rows[i].input_size, true);
		feed_end(&feed);
	}
}

#define TABLE_RUN(limits, rows) table_run(limits, rows, sizeof(rows) / sizeof *(rows))

#endif
