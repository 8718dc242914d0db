/* SPDX-License-Identifier: BSD-2-Clause */
/* The classic text protocol: bytes to requests. */
#include "tests/lib/proto_table.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static void
test_keys(void **state)
{
	static const struct table_row rows[] = {
		ROW("get " K250 "\r\n", "FETCH key=" K250 " +value +last\n"),
		ROW("set " K250 " 0 0 1\r\nx\r\n", "STORE set key=" K250 " value=x\n"),
		ROW("set " K251 " 0 0 1\r\nx\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("get k3 " K251 "\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("delete " K251 "\r\nincr " K251 " 1\r\ntouch " K251 " 1\r\n",
			"REFUSE BAD_FORMAT\nREFUSE BAD_FORMAT\nREFUSE BAD_FORMAT\n"),
		ROW("set k\tb 0 0 1\r\nx\r\n", "STORE set key=k\\x09b value=x\n"),
		ROW("get\r\nget \r\ngets   \r\n",
			"REFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\n"),
		ROW("get  k10   k10 \r\n", "FETCH key=k10 +value\nFETCH key=k10 +value +last\n"),
		ROW("get a\rb c\r\n", "FETCH key=a\\x0db +value\nFETCH key=c +value +last\n"),
		ROW("get a \r b\r\n",
			"FETCH key=a +value\nFETCH key=\\x0d +value\nFETCH key=b +value +last\n"),
		ROW("get a \r\n", "FETCH key=a +value +last\n"),
		ROW("get a\r\r\n", "FETCH key=a\\x0d +value +last\n"),
		ROW("get a\n", "FETCH key=a +value +last\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_fetch(void **state)
{
	static const struct table_row rows[] = {
		ROW("gets a b\r\nget c\r\n", "FETCH key=a +value +cas\nFETCH key=b +value +cas "
					     "+last\nFETCH key=c +value +last\n"),
		ROW("gat 10 a b\r\n", "FETCH key=a exptime=10 +ttl +value\nFETCH key=b exptime=10 "
				      "+ttl +value +last\n"),
		ROW("gats -1 a\r\n", "FETCH key=a exptime=-1 +ttl +value +cas +last\n"),
		ROW("gat\r\ngat 10\r\ngat x k\r\ngat 1x k\r\n",
			"REFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\nREFUSE "
			"BAD_EXPTIME\nREFUSE BAD_EXPTIME\n"),
		ROW("get n5 noreply\r\n", "FETCH key=n5 +value\nFETCH key=noreply +value +last\n"),
		ROW(" get a\r\n", "FETCH key=a +value +last\n"),
		ROW("getx a\r\ngetsx a\r\nGET a\r\n",
			"REFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_store(void **state)
{
	static const struct table_row rows[] = {
		ROW("set s1 0 0 0\r\n\r\n", "STORE set key=s1 value=\n"),
		ROW("set s2 0 0 6\r\nab\r\ncd\r\nmn\r\n",
			"STORE set key=s2 value=ab\\x0d\\x0acd\nNOOP\n"),
		ROW("set s4 0 0 5\r\nEND\r\n\r\nmn\r\n",
			"STORE set key=s4 value=END\\x0d\\x0a\nNOOP\n"),
		ROW("set s5 0 0 3\r\nabcdef\r\nmn\r\n",
			"REFUSE BAD_CHUNK\nREFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set s7 0 0 -1\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set s8 0 0 4294967295\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set s8 0 0 2147483646\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set s10 0 0 abc\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set s11 0 0\r\nmn\r\nset\r\n", "REFUSE BAD_FORMAT\nNOOP\nREFUSE BAD_FORMAT\n"),
		ROW("set s13 4294967296 0 1\r\nx\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set s13 4294967295 0 1\r\nx\r\nmn\r\n",
			"STORE set key=s13 flags=4294967295 value=x\nNOOP\n"),
		ROW("set s14 -1 0 1\r\nx\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set e10 0 abc 1\r\nx\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set e1 0 -1 1\r\nx\r\n", "STORE set key=e1 exptime=-1 value=x\n"),
		ROW("set e4 0 4294967295 1\r\nx\r\nset e4b 0 4294967296 1\r\nx\r\n",
			"STORE set key=e4 exptime=-1 value=x\nSTORE set key=e4b value=x\n"),
		ROW("add a 1 2 1\r\nx\r\nreplace a 1 2 1\r\nx\r\nappend a 1 2 1\r\nx\r\nprepend a "
		    "1 2 1\r\nx\r\n",
			"STORE add key=a flags=1 exptime=2 value=x\nSTORE replace key=a flags=1 "
			"exptime=2 value=x\n"
			"STORE append key=a flags=1 exptime=2 value=x\nSTORE prepend key=a flags=1 "
			"exptime=2 value=x\n"),
		ROW("set s22 0 0 1\nx\r\nget s22\n",
			"STORE set key=s22 value=x\nFETCH key=s22 +value +last\n"),
		ROW("SET s23 0 0 1\r\nx\r\nmn\r\n",
			"REFUSE UNKNOWN_COMMAND\nREFUSE BAD_FORMAT\nNOOP\n"),
		ROW("cas c2 0 0 1 99\r\ny\r\n",
			"STORE set key=c2 compare=99 value=y +cas-compare\n"),
		ROW("cas c4 0 0 1\r\nx\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("cas c5 0 0 1 abc\r\nx\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("cas c5 0 0 1 18446744073709551616\r\nx\r\nmn\r\n",
			"REFUSE BAD_FORMAT\nNOOP\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_noreply(void **state)
{
	static const struct table_row rows[] = {
		ROW("set n1 0 0 1 noreply\r\nx\r\n", "STORE set key=n1 value=x +noreply\n"),
		ROW("cas n1 0 0 1 7 noreply\r\nx\r\n",
			"STORE set key=n1 compare=7 value=x +cas-compare +noreply\n"),
		ROW("incr n4 1 noreply\r\ntouch a 1 noreply\r\ndelete a noreply\r\ndelete a 0 "
		    "noreply\r\n",
			"ARITHMETIC increment key=n4 delta=1 +noreply\nTOUCH key=a exptime=1 +ttl "
			"+noreply\n"
			"DELETE key=a +noreply\nDELETE key=a +noreply\n"),
		ROW("set n7 0 0 abc noreply\r\nx\r\nmn\r\n",
			"REFUSE BAD_FORMAT\nREFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set " K251 " 0 0 1 noreply\r\nx\r\nmn\r\n",
			"REFUSE BAD_FORMAT +noreply\nNOOP\n"),
		ROW("set n8 0 0 3 noreply\r\nabcde\r\n",
			"REFUSE BAD_CHUNK +noreply\nREFUSE BAD_FORMAT\n"),
		ROW("flush_all noreply\r\nflush_all 5 noreply\r\n",
			"FLUSH +noreply\nFLUSH exptime=5 +ttl +noreply\n"),
		ROW("verbosity 1 noreply\r\n", "VERBOSITY delta=1 +noreply\n"),
		ROW("delete noreply\r\n", "DELETE key=noreply\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_changes(void **state)
{
	static const struct table_row rows[] = {
		ROW("delete d1\r\ndelete d1 0\r\ndelete d2 10\r\ndelete d2 0 0\r\ndelete\r\n",
			"DELETE key=d1\nDELETE key=d1\nREFUSE BAD_DELETE\nREFUSE "
			"BAD_DELETE\nREFUSE BAD_FORMAT\n"),
		ROW("incr a 1\r\ndecr a 18446744073709551615\r\n",
			"ARITHMETIC increment key=a delta=1\nARITHMETIC decrement key=a "
			"delta=18446744073709551615\n"),
		ROW("incr i5 -1\r\nincr i5 abc\r\nincr i5 18446744073709551616\r\nincr i5\r\n",
			"REFUSE BAD_DELTA\nREFUSE BAD_DELTA\nREFUSE BAD_DELTA\nREFUSE "
			"BAD_FORMAT\n"),
		ROW("touch a 10\r\ntouch a x\r\ntouch a\r\n",
			"TOUCH key=a exptime=10 +ttl\nREFUSE BAD_EXPTIME\nREFUSE BAD_FORMAT\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_admin(void **state)
{
	static const struct table_row rows[] = {
		ROW("flush_all\r\nflush_all 2\r\nflush_all abc\r\nflush_all -1\r\n",
			"FLUSH\nFLUSH exptime=2 +ttl\nREFUSE BAD_EXPTIME\nFLUSH exptime=-1 +ttl\n"),
		ROW("version\r\nverbosity\r\nverbosity 1\r\nverbosity x\r\n",
			"VERSION\nREFUSE BAD_FORMAT\nVERBOSITY delta=1\nREFUSE BAD_FORMAT\n"),
		ROW("stats\r\nstats items\r\nstats  cachedump 1 2 \r\n",
			"STATS\nSTATS arguments=items\nSTATS arguments=cachedump 1 2\n"),
		ROW("shutdown\r\nshutdown graceful\r\n", "SHUTDOWN\nSHUTDOWN arguments=graceful\n"),
		ROW("cache_memlimit abc\r\ncache_memlimit 0\r\ncache_memlimit "
		    "64\r\ncache_memlimit\r\n",
			"REFUSE UNKNOWN_COMMAND\nMEMLIMIT delta=0\nMEMLIMIT delta=64\nREFUSE "
			"UNKNOWN_COMMAND\n"),
		ROW("config get cluster\r\nlru_crawler metadump all\r\nslabs reassign 1 2\r\n",
			"REFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\n"),
		ROW("quit\r\nmn\r\n", "QUIT +close\n"),
		ROW("quitx\r\nflush_al\r\nflush_allx\r\n",
			"REFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
test_framing(void **state)
{
	static const struct table_row rows[] = {
		ROW(" \r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("\r\n\nmn\r\n", "REFUSE BAD_FORMAT\nREFUSE BAD_FORMAT\nNOOP\n"),
		ROW("     \r\n", "REFUSE UNKNOWN_COMMAND\n"),
		ROW("boguscommand x y\r\nhi\r\n",
			"REFUSE UNKNOWN_COMMAND\nREFUSE UNKNOWN_COMMAND\n"),
		ROW("POST / HTTP/1.1\r\nHost: x\r\n\r\nset a 0 0 1\r\nx\r\n", "CLOSE\n"),
		ROW("DELETE HTTP/1.1\r\n", "CLOSE\n"),
		ROW("get HTTP/1.1\r\n", "FETCH key=HTTP/1.1 +value +last\n"),
		ROW("mn\r\n\x80\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
			"NOOP\nREFUSE BAD_FORMAT\n"),
		ROW("set a 0 0 1\r\nx\r\nget a\r\ndelete a\r\nge",
			"STORE set key=a value=x\nFETCH key=a +value +last\nDELETE key=a\n"),
	};

	(void)state;
	TABLE_RUN(NULL, rows);
}

static void
feed_text(const struct parse_limits *limits, const char *input, size_t size, const char *lines)
{
	struct feed feed;

	feed_begin(&feed);
	if (limits)
		feed.limits = *limits;
	feed_run(&feed, (const uint8_t *)input, size);
	assert_string_equal(feed.lines, lines);
	feed_end(&feed);
}

/* Lines without an end: get lines may be long, others close. */
static void
test_long_lines(void **state)
{
	static char line[20000];
	struct parse_limits limits = {
		.value_bytes_max = 1048576, .window_bytes_max = 16384, .line_bytes_max = 12000};
	struct feed feed;
	size_t size;

	(void)state;
	memset(line, 'x', sizeof line);
	feed_text(NULL, line, 2048, "");
	feed_text(NULL, line, 2049, "CLOSE\n");
	/*
	 * With its end in the window a long line is only wrong, and a body behind it is still
	 * swallowed.
	 */
	memcpy(line, "set ", 4);
	memcpy(line + 3000, " 0 0 9\r\nflush_all\r\nmn\r\n", 23);
	feed_text(NULL, line, 3023, "REFUSE BAD_FORMAT\nNOOP\n");
	memset(line, ' ', sizeof line);
	feed_text(NULL, line, 9000, "CLOSE\n");
	for (size = 0; size < 11000; size += 10)
		memcpy(line + size, "get abcdef", 10);
	feed_text(&limits, line, size, "");
	feed_text(&limits, line, 12001, "CLOSE\n");
	memcpy(line + size, "\r\n", 2);
	feed_begin(&feed);
	feed.limits = limits;
	feed.first = feed.step = 1000;
	feed_run(&feed, (const uint8_t *)line, size + 2);
	assert_int_equal(feed.left, 0);
	/* 'get' and 'abcdefget' a time, but for the first and last words. */
	size_t keys = 0;
	for (char *at = feed.lines; (at = strstr(at, "FETCH")); at++)
		keys++;
	assert_int_equal(keys, 1100);
	assert_non_null(strstr(feed.lines, "key=abcdef +value +last\n"));
	feed_end(&feed);
}

static void
test_large_bodies(void **state)
{
	struct parse_limits limits = {
		.value_bytes_max = 1000, .window_bytes_max = 200, .line_bytes_max = 12000};
	static char input[4096];
	size_t size;

	(void)state;
	/*
	 * Over the value's limit: refused, but the request says so by its verb, since the old value
	 * must go.
	 */
	size = (size_t)snprintf(input, sizeof input, "set a 0 0 1001\r\n%*s\r\nmn\r\n", 1001, "");
	feed_text(&limits, input, size, "STORE TOO_LARGE set key=a\nNOOP\n");
	feed_compare(&limits, (const uint8_t *)input, size, true);
	/* At the limit, over the window's: the body comes later. */
	size = (size_t)snprintf(input, sizeof input, "set a 0 0 1000\r\n%*s\r\nmn\r\n", 1000, "");
	feed_text(&limits, input, size, "STORE set key=a value=<1000:c299d000>\nNOOP\n");
	feed_compare(&limits, (const uint8_t *)input, size, true);
	/* Exactly the window: in one piece. */
	size = (size_t)snprintf(input, sizeof input, "set a 0 0 183\r\n%*s\r\nmn\r\n", 183, "");
	assert_int_equal(size, 200 + 4);
	feed_compare(&limits, (const uint8_t *)input, size, true);
}

static void
test_body_status(void **state)
{
	struct parse_limits limits = {
		.value_bytes_max = 1000, .window_bytes_max = 200, .line_bytes_max = 12000};
	struct parser parser = {0};
	struct request request;
	uint8_t key[KEY_SIZE_MAX];
	size_t consumed;
	static const char line[] = "set abc 5 0 900\r\n12345";

	(void)state;
	assert_int_equal(request_parse(&parser, &limits, (const uint8_t *)line, sizeof line - 1,
				 &consumed, &request, key),
		PARSE_BODY);
	assert_int_equal(consumed, 17);
	assert_int_equal(request.body_size, 900);
	assert_int_equal(parser.body_end, 2);
	/* In a datagram no more will come: it is just not whole. */
	parser = (struct parser){0};
	limits.datagram = true;
	assert_int_equal(request_parse(&parser, &limits, (const uint8_t *)line, sizeof line - 1,
				 &consumed, &request, key),
		PARSE_MORE);
	/* How much is needed is said. */
	parser = (struct parser){0};
	assert_int_equal(request_parse(&parser, &limits, (const uint8_t *)"set a 0 0 9\r\n", 13,
				 &consumed, &request, key),
		PARSE_MORE);
	assert_int_equal(parser.wanted, 13 + 9 + 2);
	assert_int_equal(consumed, 0);
}

static void
test_strict(void **state)
{
	struct parse_limits limits = {.value_bytes_max = 1000,
		.window_bytes_max = 200,
		.line_bytes_max = 12000,
		.strict = true};
	static const struct table_row rows[] = {
		ROW("sett a 0 0 9\r\nflush_all\r\n", "REFUSE UNKNOWN_COMMAND +close\n"),
		ROW("set a 0 0 x\r\nflush_all\r\n", "REFUSE BAD_FORMAT +close\n"),
		ROW("ms a x\r\nflush_all\r\n", "REFUSE BAD_FORMAT +close\n"),
		ROW("set a x 0 9\r\nflush_all\r\nget b\r\n",
			"REFUSE BAD_FORMAT\nFETCH key=b +value +last\n"),
	};

	(void)state;
	TABLE_RUN(&limits, rows);
}

/* What can be swallowed is never run. */
static void
test_injection(void **state)
{
#define BODY "flush_all\r\nset pwn 0 0 1\r\nX"
	static const struct table_row rows[] = {
		ROW("set " K251 " 0 0 27\r\n" BODY "\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("set a 0 zz 27\r\n" BODY "\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("ms " K251 " 27\r\n" BODY "\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("ms a 27 ~\r\n" BODY "\r\nmn\r\n", "REFUSE BAD_FLAG\nNOOP\n"),
		ROW("ms a 27 T1 T2\r\n" BODY "\r\nmn\r\n", "REFUSE DUPLICATE_FLAG\nNOOP\n"),
		ROW("ms a 27 a b c d e f g h i j k l m n o p q r s\r\n" BODY "\r\nmn\r\n",
			"REFUSE BAD_FLAG\nNOOP\n"),
		ROW("ms a 27 Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" BODY "\r\nmn\r\n",
			"REFUSE OPAQUE_TOO_LONG\nNOOP\n"),
		ROW("cas a 0 0 27 x\r\n" BODY "\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
		ROW("append a -5 0 27\r\n" BODY "\r\nmn\r\n", "REFUSE BAD_FORMAT\nNOOP\n"),
	};

	(void)state;
	assert_int_equal(sizeof BODY - 1, 27);
	TABLE_RUN(NULL, rows);
}

static void
test_forced_protocol(void **state)
{
	struct parse_limits limits = {
		.value_bytes_max = 1000, .window_bytes_max = 200, .line_bytes_max = 12000};

	(void)state;
	limits.protocol = PROTOCOL_BINARY;
	feed_text(&limits, "get a\r\n", 7, "CLOSE\n");
	limits.protocol = PROTOCOL_TEXT;
	feed_text(&limits, "\x80\r\nmn\r\n", 7, "REFUSE BAD_FORMAT\nNOOP\n");
}

/* Each row of commands.def is found by its own text, and by no other. */
static void
test_command_words(void **state)
{
	(void)state;
	for (int i = 0; i < COMMAND_NONE; i++) {
		const char *text = command_text((enum command)i);
		struct parse_limits limits = {
			.value_bytes_max = 1000, .window_bytes_max = 200, .line_bytes_max = 12000};
		char line[64];

		if (!*text)
			continue;
		for (int wrong = 0; wrong < 3; wrong++) {
			struct parser parser = {0};
			struct request request;
			uint8_t key[KEY_SIZE_MAX];
			size_t consumed;
			int size = snprintf(line, sizeof line, "%s%s 1 1 1 1 1\r\n1\r\n", text,
				wrong == 1 ? "_" : "");

			if (wrong == 2)
				line[0] ^= 0x20;
			assert_int_equal(request_parse(&parser, &limits, (const uint8_t *)line,
						 (size_t)size, &consumed, &request, key),
				PARSE_REQUEST);
			assert_int_equal(request.command, wrong ? COMMAND_NONE : i);
		}
	}
}

/*
 * A space before a line keeps it from the plain form, and means nothing: the ways that cut plain
 * lines in one pass must make of any line what the general one makes of it behind a space. Both
 * windows end where a page does that can't be read.
 */
struct ways {
	uint8_t *plain_end, *general_end; /* of the windows */
	uint32_t random;
	uint32_t requests[COMMAND_COUNT], noreply, too_large, bodies, more, refused;
};

static uint32_t
ways_random(struct ways *ways, uint32_t below)
{
	ways->random = ways->random * 1664525 + 1013904223;
	return (uint32_t)((uint64_t)ways->random * below >> 32);
}

static uint8_t *
page_end(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *pages =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(pages != MAP_FAILED);
	assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
	return pages + page;
}

/* The request with offsets into its window for pointers. */
static void
request_rebase(struct request *request, const uint8_t *window)
{
	const uint8_t **pointers[] = {
		&request->key, &request->arguments.data, &request->value.data};

	for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
		/* Of a get only the first two are set. */
		if (i == 2 && request->verb == VERB_FETCH)
			break;
		if (*pointers[i])
			*pointers[i] = (const uint8_t *)(uintptr_t)(*pointers[i] - window + 1);
	}
}

static void
ways_count(struct ways *ways, enum parse_status status, const struct request *request)
{
	if (status == PARSE_MORE) {
		ways->more++;
		return;
	}
	ways->bodies += status == PARSE_BODY;
	ways->refused += request->verb == VERB_REFUSE;
	ways->too_large += request->status == STATUS_TOO_LARGE;
	ways->noreply += request->verb == VERB_STORE && request->options & REQUEST_NOREPLY;
	ways->requests[request->command] += request->verb != VERB_REFUSE;
}

static void
ways_compare(struct ways *ways, const struct parse_limits *limits, const uint8_t *line, size_t size)
{
	struct parse_limits limits_behind = *limits;
	struct parser plain = {.protocol = PROTOCOL_TEXT}, general = plain;
	struct request request, wanted;
	uint8_t *at = ways->plain_end - size, *behind = ways->general_end - size, key[KEY_SIZE_MAX];
	size_t consumed = 0, consumed_behind = 0;
	const uint8_t *newline = memchr(line, '\n', size);

	limits_behind.window_bytes_max++;
	limits_behind.line_bytes_max++;
	memcpy(at, line, size);
	memcpy(behind, line, size);
	behind[-1] = ' ';
	plain.scanned = ways_random(ways, newline ? (uint32_t)(newline - line) + 1 : 1);
	general.scanned = plain.scanned ? plain.scanned + 1 : 0;
	memset(&request, 0xa5, sizeof request);
	memset(&wanted, 0xa5, sizeof wanted);
	enum parse_status status =
		request_parse(&plain, limits, at, size, &consumed, &request, key);
	enum parse_status status_behind = request_parse(
		&general, &limits_behind, behind - 1, size + 1, &consumed_behind, &wanted, key);

	assert_int_equal(status, status_behind);
	assert_int_equal(consumed + (consumed_behind > 0), consumed_behind);
	assert_int_equal(plain.wanted + (general.wanted > 0), general.wanted);
	assert_int_equal(plain.scanned + (general.scanned > 0), general.scanned);
	assert_int_equal(plain.swallow, general.swallow);
	assert_int_equal(plain.body_end, general.body_end);
	assert_int_equal(plain.multiget_open, general.multiget_open);
	if (status == PARSE_REQUEST || status == PARSE_BODY) {
		request_rebase(&request, at);
		request_rebase(&wanted, behind);
		/* Words that are none are told apart by their line's length. */
		if (request.command == COMMAND_NONE)
			wanted.status = request.status;
		wanted.hash = request.hash;
		assert_memory_equal(&request, &wanted,
			request.verb == VERB_FETCH ? offsetof(struct request, value)
						   : sizeof request);
	}
	ways_count(ways, status, &request);
}

static const char *
ways_number(struct ways *ways)
{
	static const char *const numbers[] = {"60", "5", "12", "007", "2592000", "1796000000",
		"2147483645", "2147483646", "2147483648", "4294967295", "4294967296",
		"99999999999999999", "999999999999999999", "1000000000000000000",
		"9223372036854775807", "9223372036854775808", "18446744073709551615",
		"18446744073709551616", "000000000000000000000007", "-1", "+1", "1a", "noreply"};

	return ways_random(ways, 3) ? "0"
				    : numbers[ways_random(ways, sizeof numbers / sizeof *numbers)];
}

/* A line, its body and what comes behind: plain, or nearly so. Its size, of 1000 bytes at most. */
static size_t
ways_line(struct ways *ways, uint8_t *line)
{
	static const char *const words[] = {"set", "add", "replace", "append", "prepend", "cas",
		"touch", "incr", "decr", "gat", "gats", "get", "gets", "delete"};
	static const char *const ends[] = {"\r\n", "\r\n", "\r\n", "\n", " noreply\r\n",
		" noreply\n", " noreply \r\n", " 1 noreply\r\n", " noreplx\r\n", " \r\n", "\r\r\n"};
	static const uint32_t lengths[] = {1, 2, 7, 15, 16, 17, 33, 249, 250, 251};
	const char *word = words[ways_random(ways, sizeof words / sizeof *words)];
	char key[256] = "", numbers[100] = "", text[600];
	uint32_t key_size = lengths[ways_random(ways, sizeof lengths / sizeof *lengths)];
	uint32_t body = ways_random(ways, 4) ? ways_random(ways, 12) : ways_random(ways, 200);
	const char *end = ends[ways_random(ways, sizeof ends / sizeof *ends)];

	memset(key, "k\t\r\xa0"[ways_random(ways, 16) < 12 ? 0 : ways_random(ways, 4)], key_size);
	int size = snprintf(text, sizeof text, "%s ", word);

	if (word[0] == 'g' && word[1] == 'a')
		size += snprintf(text + size, sizeof text - (size_t)size, "%s ", ways_number(ways));
	if (strcmp(word, "touch") == 0 || strcmp(word + 1, "ncr") == 0 || strcmp(word, "decr") == 0)
		snprintf(numbers, sizeof numbers, " %s", ways_number(ways));
	if (strchr("sarpc", word[0]))
		snprintf(numbers, sizeof numbers, " %s %s %u", ways_number(ways), ways_number(ways),
			(unsigned)body);
	else
		body = 0;
	size += snprintf(text + size, sizeof text - (size_t)size, "%s%s%s", key, numbers, end);
	memcpy(line, text, (size_t)size);
	memset(line + size, "vv\n"[ways_random(ways, 3)], body);
	memcpy(line + (size_t)size + body, "\r\nget k\r\n", 9);
	return (size_t)size + body + ways_random(ways, 10);
}

/* Changes, adds or takes away a byte of the first ones. */
static size_t
ways_mutate(struct ways *ways, uint8_t *line, size_t size)
{
	static const char bytes[] = " \r\n\t0123456789-+anrk";
	size_t at = ways_random(ways, size < 60 ? (uint32_t)size : 60);
	uint8_t byte = (uint8_t)bytes[ways_random(ways, sizeof bytes)];

	switch (ways_random(ways, 3)) {
	case 0:
		line[at] = byte;
		return size;
	case 1:
		memmove(line + at + 1, line + at, size - at);
		line[at] = byte;
		return size + 1;
	default:
		memmove(line + at, line + at + 1, size - at - 1);
		return size - 1;
	}
}

static void
test_ways(void **state)
{
	struct ways ways = {.plain_end = page_end(), .general_end = page_end(), .random = 1};
	const enum command plain[] = {COMMAND_SET, COMMAND_ADD, COMMAND_REPLACE, COMMAND_APPEND,
		COMMAND_PREPEND, COMMAND_TOUCH, COMMAND_INCR, COMMAND_DECR, COMMAND_GAT};
	struct parse_limits limits[] = {
		{.value_bytes_max = 1048576, .window_bytes_max = 16384, .line_bytes_max = 1048576},
		{.value_bytes_max = 100, .window_bytes_max = 60, .line_bytes_max = 3000},
		{.value_bytes_max = 100,
			.window_bytes_max = 60,
			.line_bytes_max = 3000,
			.datagram = true},
		{.value_bytes_max = UINT64_MAX,
			.window_bytes_max = 16384,
			.line_bytes_max = 1048576,
			.strict = true},
	};

	(void)state;
	for (int round = 0; round < 8000; round++) {
		uint8_t line[1100];
		size_t size = ways_line(&ways, line);

		for (uint32_t i = ways_random(&ways, 4); i > 0 && size > 1; i--)
			size = ways_mutate(&ways, line, size);
		for (size_t cut = 1; cut <= size; cut++) {
			/* Windows around what stands there, too. */
			if (round % 4 == 1 || round % 4 == 2)
				limits[round % 4].window_bytes_max =
					cut - 1 + ways_random(&ways, 3);
			ways_compare(&ways, &limits[round % 4], line, cut);
		}
	}
	for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
		assert_true(ways.requests[plain[i]] > 500);
	assert_true(ways.noreply > 500 && ways.too_large > 500 && ways.bodies > 500);
	assert_true(ways.more > 10000 && ways.refused > 10000);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_fetch),
		cmocka_unit_test(test_store),
		cmocka_unit_test(test_noreply),
		cmocka_unit_test(test_changes),
		cmocka_unit_test(test_admin),
		cmocka_unit_test(test_framing),
		cmocka_unit_test(test_long_lines),
		cmocka_unit_test(test_large_bodies),
		cmocka_unit_test(test_body_status),
		cmocka_unit_test(test_strict),
		cmocka_unit_test(test_injection),
		cmocka_unit_test(test_forced_protocol),
		cmocka_unit_test(test_command_words),
		cmocka_unit_test(test_ways),
	};

	return cmocka_run_group_tests_name("proto_text", tests, NULL, NULL);
}
