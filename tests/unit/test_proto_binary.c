/* SPDX-License-Identifier: BSD-2-Clause */
/* The binary protocol: bytes to requests. */
#include "tests/lib/proto_table.h"

#include <stdio.h>

/* A header whose numbers are given as string literals. */
#define H(opcode, key_size, extras_size, body_size, opaque, cas)                                   \
	"\x80" opcode key_size extras_size "\0\0\0" body_size "\0\0\0" opaque "\0\0\0\0\0\0\0" cas
#define KEY_B1 "\0\2"
#define NOOP_9 H("\x0a", "\0\0", "\0", "\0\0\0\0", "\x09", "\0")
#define NOOP_LINE "NOOP op=0a opaque=9\n"
#define FLAGS_EXPTIME "\xde\xad\xbe\xef\0\0\0\x05"
#define COUNTER                                                                                    \
	"\0\0\0\0\0\0\0\1"                                                                         \
	"\0\0\0\0\0\0\0\x0a"

static void
test_fetch(void **state)
{
	static const struct table_row rows[] = {
		ROW(H("\x00", KEY_B1, "\0", "\0\0\0\2", "\1", "\0") "b1",
			"FETCH op=00 opaque=1 key=b1 +value\n"),
		ROW(H("\x09", KEY_B1, "\0", "\0\0\0\2", "\1", "\0") "b1" NOOP_9,
			"FETCH op=09 opaque=1 key=b1 +value +quiet\n" NOOP_LINE),
		ROW(H("\x0c", KEY_B1, "\0", "\0\0\0\2", "\1", "\0") "b1" H(
			    "\x0d", KEY_B1, "\0", "\0\0\0\2", "\2", "\0") "b1",
			"FETCH op=0c opaque=1 key=b1 +value +key\nFETCH op=0d opaque=2 key=b1 "
			"+value +quiet +key\n"),
		ROW(H("\x1c", KEY_B1, "\4", "\0\0\0\6", "\1", "\0") "\0\0\0\x64"
								    "b1",
			"TOUCH op=1c opaque=1 key=b1 exptime=100 +ttl\n"),
		ROW(H("\x1d", KEY_B1, "\4", "\0\0\0\6", "\1",
			    "\0") "\0\0\0\x64"
				  "b1" H("\x1e", KEY_B1, "\4", "\0\0\0\6", "\1",
					  "\0") "\0\0\0\x64"
						"b1" H("\x23", KEY_B1, "\4", "\0\0\0\6", "\1",
							"\0") "\0\0\0\x64"
							      "b1" H("\x24", KEY_B1, "\4",
								      "\0\0\0\6", "\1",
								      "\0") "\xff\xff\xff\xff"
									    "b1",
			"FETCH op=1d opaque=1 key=b1 exptime=100 +ttl +value\n"
			"FETCH op=1e opaque=1 key=b1 exptime=100 +ttl +value +quiet\n"
			"FETCH op=23 opaque=1 key=b1 exptime=100 +ttl +value +key\n"
			"FETCH op=24 opaque=1 key=b1 exptime=4294967295 +ttl +value +quiet +key\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_change(void **state)
{
	static const struct table_row rows[] = {
		ROW(H("\x01", KEY_B1, "\x08", "\0\0\0\x0d", "\1", "\0") FLAGS_EXPTIME "b1"
										      "val",
			"STORE op=01 opaque=1 set key=b1 flags=3735928559 exptime=5 value=val\n"),
		ROW(H("\x01", KEY_B1, "\x08", "\0\0\0\x0a", "\1", "\x63") FLAGS_EXPTIME "b1",
			"STORE op=01 opaque=1 set key=b1 flags=3735928559 exptime=5 compare=99 "
			"value= +cas-compare\n"),
		ROW(H("\x02", KEY_B1, "\x08", "\0\0\0\x0a", "\1", "\0") FLAGS_EXPTIME
			"b1" H("\x12", KEY_B1, "\x08", "\0\0\0\x0a", "\1", "\1") FLAGS_EXPTIME
			"b1" H("\x13", KEY_B1, "\x08", "\0\0\0\x0a", "\1", "\0") FLAGS_EXPTIME "b1",
			"STORE op=02 opaque=1 add key=b1 flags=3735928559 exptime=5 value=\n"
			"STORE op=12 opaque=1 set key=b1 flags=3735928559 exptime=5 compare=1 "
			"value= +cas-compare +quiet\n"
			"STORE op=13 opaque=1 replace key=b1 flags=3735928559 exptime=5 value= "
			"+quiet\n"),
		ROW(H("\x0e", KEY_B1, "\0", "\0\0\0\3", "\1", "\0") "b1x" H(
			    "\x1a", KEY_B1, "\0", "\0\0\0\3", "\1", "\7") "b1x",
			"STORE op=0e opaque=1 append key=b1 value=x\n"
			"STORE op=1a opaque=1 prepend key=b1 compare=7 value=x +cas-compare "
			"+quiet\n"),
		ROW(H("\x04", KEY_B1, "\0", "\0\0\0\2", "\1", "\0") "b1" H(
			    "\x14", KEY_B1, "\0", "\0\0\0\2", "\1", "\5") "b1",
			"DELETE op=04 opaque=1 key=b1\nDELETE op=14 opaque=1 key=b1 compare=5 "
			"+cas-compare +quiet\n"),
		ROW(H("\x05", KEY_B1, "\x14", "\0\0\0\x16", "\1", "\0") COUNTER
			"\xff\xff\xff\xff"
			"b1" H("\x16", KEY_B1, "\x14", "\0\0\0\x16", "\1", "\0") COUNTER
			"\0\0\0\x3c"
			"b1",
			"ARITHMETIC op=05 opaque=1 increment key=b1 delta=1 initial=10 +no-create\n"
			"ARITHMETIC op=16 opaque=1 decrement key=b1 vivify=60 delta=1 initial=10 "
			"+vivify +quiet\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_admin(void **state)
{
	static const struct table_row rows[] = {
		ROW(NOOP_9 H("\x0b", "\0\0", "\0", "\0\0\0\0", "\2", "\0"),
			NOOP_LINE "VERSION op=0b opaque=2\n"),
		ROW(H("\x07", "\0\0", "\0", "\0\0\0\0", "\1", "\0") NOOP_9,
			"QUIT op=07 opaque=1 +close\n"),
		ROW(H("\x17", "\0\0", "\0", "\0\0\0\0", "\1", "\0") NOOP_9,
			"QUIT op=17 opaque=1 +quiet +close\n"),
		ROW(H("\x08", "\0\0", "\4", "\0\0\0\4", "\1", "\0") "\0\0\0\2" H(
			    "\x18", "\0\0", "\0", "\0\0\0\0", "\2", "\0"),
			"FLUSH op=08 opaque=1 exptime=2 +ttl\nFLUSH op=18 opaque=2 +quiet\n"),
		ROW(H("\x10", "\0\0", "\0", "\0\0\0\0", "\1", "\0")
				H("\x10", "\0\5", "\0", "\0\0\0\5", "\1", "\0") "items",
			"STATS op=10 opaque=1\nSTATS op=10 opaque=1 key=items arguments=items\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

/* Whatever is wrong, the next request starts where bodylen says. */
static void
test_wrong(void **state)
{
	static const struct table_row rows[] = {
		ROW(H("\x77", "\0\0", "\0", "\0\0\0\0", "\3", "\0") NOOP_9,
			"REFUSE op=77 opaque=3 UNKNOWN_COMMAND\n" NOOP_LINE),
		ROW(H("\x1b", "\0\0", "\4", "\0\0\0\4", "\3", "\0") "\0\0\0\1" NOOP_9,
			"REFUSE op=1b opaque=3 UNKNOWN_COMMAND\n" NOOP_LINE),
		ROW(H("\x20", "\0\0", "\0", "\0\0\0\0", "\3", "\0") H(
			    "\x21", "\0\5", "\0", "\0\0\0\x0a", "\3", "\0") "PLAIN\0user" NOOP_9,
			"REFUSE op=20 opaque=3 UNKNOWN_COMMAND\nREFUSE op=21 opaque=3 "
			"UNKNOWN_COMMAND\n" NOOP_LINE),
		/* A key that is too long. */
		ROW(H("\x00", "\0\xfb", "\0", "\0\0\0\xfb", "\1", "\0") K251 NOOP_9,
			"REFUSE op=00 opaque=1 INVALID_ARGUMENTS\n" NOOP_LINE),
		ROW(H("\x00", "\0\xfa", "\0", "\0\0\0\xfa", "\1", "\0") K250 NOOP_9,
			"FETCH op=00 opaque=1 key=" K250 " +value\n" NOOP_LINE),
		ROW(H("\x01", "\0\xfb", "\x08", "\0\0\1\5", "\1", "\0") FLAGS_EXPTIME K251
			"xx" NOOP_9,
			"REFUSE op=01 opaque=1 INVALID_ARGUMENTS\n" NOOP_LINE),
		/* Parts that are longer than the body they stand in. */
		ROW(H("\x00", KEY_B1, "\0", "\0\0\0\0", "\1", "\0") NOOP_9,
			"REFUSE op=00 opaque=1 INVALID_ARGUMENTS\n" NOOP_LINE),
		ROW(H("\x01", KEY_B1, "\x08", "\0\0\0\x09", "\1", "\0") FLAGS_EXPTIME "b" NOOP_9,
			"REFUSE op=01 opaque=1 INVALID_ARGUMENTS\n" NOOP_LINE),
		/* Uses that no opcode has: answered, then closed. */
		ROW(H("\x00", "\0\0", "\0", "\0\0\0\0", "\1", "\0") NOOP_9,
			"REFUSE op=00 opaque=1 INVALID_ARGUMENTS +close\n"),
		ROW(H("\x00", KEY_B1, "\0", "\0\0\0\3", "\1", "\0") "b1x" NOOP_9,
			"REFUSE op=00 opaque=1 INVALID_ARGUMENTS +close\n"),
		ROW(H("\x01", KEY_B1, "\0", "\0\0\0\3", "\1", "\0") "b1x" NOOP_9,
			"REFUSE op=01 opaque=1 INVALID_ARGUMENTS +close\n"),
		ROW(H("\x0a", KEY_B1, "\0", "\0\0\0\2", "\1", "\0") "b1" NOOP_9,
			"REFUSE op=0a opaque=1 INVALID_ARGUMENTS +close\n"),
		ROW(H("\x00", KEY_B1, "\0", "\xff\xff\xff\xff", "\1", "\0") "b1" NOOP_9,
			"REFUSE op=00 opaque=1 INVALID_ARGUMENTS +close\n"),
		/* Not a request at all. */
		ROW(NOOP_9 "get a\r\n", NOOP_LINE "CLOSE\n"),
		ROW(NOOP_9 "\x81", NOOP_LINE "CLOSE\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_large(void **state)
{
	struct parse_limits limits = {
		.value_bytes_max = 1000, .window_bytes_max = 200, .line_bytes_max = 2048};
	uint8_t input[2048];
	struct feed feed;
	static const struct {
		uint16_t value_size;
		const char *lines;
	} cases[] = {
		{1001, "STORE op=01 opaque=1 TOO_LARGE set key=k flags=7\n" NOOP_LINE},
		{1000, "STORE op=01 opaque=1 set key=k flags=7 value=<1000:00000000>\n" NOOP_LINE},
		{167, "STORE op=01 opaque=1 set key=k flags=7 value="},
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint16_t body = (uint16_t)(cases[i].value_size + 9);

		memset(input, 0, sizeof input);
		memcpy(input,
			H("\x01", "\0\1", "\x08", "\0\0\0\0", "\1", "\0") "\0\0\0\7"
									  "\0\0\0\0"
									  "k",
			33);
		input[10] = (uint8_t)(body >> 8);
		input[11] = (uint8_t)body;
		size_t size = 24 + (size_t)body;

		memcpy(input + size, NOOP_9, 24);
		feed_begin(&feed);
		feed.limits = limits;
		feed_run(&feed, input, size + 24);
		assert_memory_equal(feed.lines, cases[i].lines, strlen(cases[i].lines));
		feed_end(&feed);
		feed_compare(&limits, input, size + 24, true);
	}
}

static void
test_wanted(void **state)
{
	struct parse_limits limits = {
		.value_bytes_max = 1000, .window_bytes_max = 200, .line_bytes_max = 2048};
	struct parser parser = {0};
	struct request request;
	size_t consumed;
	uint8_t key[KEY_SIZE_MAX];
	static const char set[] =
		H("\x01", KEY_B1, "\x08", "\0\0\0\x0d", "\1", "\0") FLAGS_EXPTIME "b1"
										  "val";
	static const struct {
		size_t size, wanted;
	} steps[] = {{1, 24}, {23, 24}, {24, 34}, {33, 34}, {34, 37}, {36, 37}};

	(void)state;
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		assert_int_equal(request_parse(&parser, &limits, (const uint8_t *)set,
					 steps[i].size, &consumed, &request, key),
			PARSE_MORE);
		assert_int_equal(parser.wanted, steps[i].wanted);
	}
	assert_int_equal(
		request_parse(&parser, &limits, (const uint8_t *)set, 37, &consumed, &request, key),
		PARSE_REQUEST);
	assert_int_equal(consumed, 37);
	/* A body over the window's size comes later, with no line end. */
	limits.window_bytes_max = 36;
	assert_int_equal(
		request_parse(&parser, &limits, (const uint8_t *)set, 35, &consumed, &request, key),
		PARSE_BODY);
	assert_int_equal(consumed, 34);
	assert_int_equal(request.body_size, 3);
	assert_int_equal(parser.body_end, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fetch),
		cmocka_unit_test(test_change),
		cmocka_unit_test(test_admin),
		cmocka_unit_test(test_wrong),
		cmocka_unit_test(test_large),
		cmocka_unit_test(test_wanted),
	};

	return cmocka_run_group_tests_name("proto_binary", tests, NULL, NULL);
}
