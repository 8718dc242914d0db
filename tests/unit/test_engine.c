/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The engine and all below it, without sockets: commands, order, bodies in pieces, waiting, bounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/engine_feed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct feed feed;
static struct feed_stream client;

static int
open_default(void **state)
{
	(void)state;
	feed_open(&feed, &(struct feed_options){0});
	feed_stream_open(&client);
	return 0;
}

static int
close_all(void **state)
{
	(void)state;
	feed_stream_close(&feed, &client);
	feed_close(&feed);
	return 0;
}

static void
say(const char *sent, const char *expected)
{
	feed_send(&feed, &client, sent, strlen(sent));
	assert_string_equal(feed_take(&client, NULL), expected);
}

/* The same conversation in one write and a byte at a time. */
static void
say_split(const char *sent, const char *expected)
{
	say(sent, expected);
	for (const char *at = sent; *at; at++)
		feed_send(&feed, &client, at, 1);
	assert_string_equal(feed_take(&client, NULL), expected);
}

static void
classic(void **state)
{
	(void)state;
	say_split("set a 5 0 1\r\nx\r\nget a\r\ndelete a\r\nget a\r\n",
		"STORED\r\nVALUE a 5 1\r\nx\r\nEND\r\nDELETED\r\nEND\r\n");
	say_split("set a 0 0 1\r\n1\r\nget a\r\nset a 0 0 1\r\n2\r\nget a\r\ndelete a\r\n",
		"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nSTORED\r\nVALUE a 0 "
		"1\r\n2\r\nEND\r\nDELETED\r\n");
	say_split("set n 0 0 3\r\n007\r\nincr n 1\r\nget n\r\ndecr n 9\r\ndelete n\r\n",
		"STORED\r\n8\r\nVALUE n 0 3\r\n8  \r\nEND\r\n0\r\nDELETED\r\n");
	say_split("set s 7 0 1\r\nb\r\nappend s 9 1 1\r\nc\r\nprepend s 9 1 1\r\na\r\nget s x "
		  "s\r\ndelete s\r\n",
		"STORED\r\nSTORED\r\nSTORED\r\nVALUE s 7 3\r\nabc\r\nVALUE s 7 "
		"3\r\nabc\r\nEND\r\nDELETED\r\n");
	say_split("add d 0 0 1\r\na\r\nadd d 0 0 1\r\nb\r\nreplace d 0 0 1\r\nc\r\nreplace e 0 0 "
		  "1\r\nc\r\nget d\r\ndelete d\r\n",
		"STORED\r\nNOT_STORED\r\nSTORED\r\nNOT_STORED\r\nVALUE d 0 "
		"1\r\nc\r\nEND\r\nDELETED\r\n");
	say("cas c 0 0 1 1\r\nx\r\nset c 0 0 1\r\nx\r\ncas c 0 0 1 999999\r\ny\r\n",
		"NOT_FOUND\r\nSTORED\r\nEXISTS\r\n");
}

static void
cas_number(void **state)
{
	unsigned long long cas;
	char line[100];

	(void)state;
	say("set c 0 0 1\r\nx\r\n", "STORED\r\n");
	feed_send(&feed, &client, "gets c\r\n", 8);
	assert_int_equal(sscanf(feed_take(&client, NULL), "VALUE c 0 1 %llu", &cas), 1);
	snprintf(line, sizeof line, "cas c 0 0 1 %llu\r\ny\r\ncas c 0 0 1 %llu\r\nz\r\nget c\r\n",
		cas, cas);
	say(line, "STORED\r\nEXISTS\r\nVALUE c 0 1\r\ny\r\nEND\r\n");
	say("ms e 1 E281474976710657\r\nx\r\nmg e c\r\n", "HD\r\nHD c281474976710657\r\n");
}

static void
expiry_and_touch(void **state)
{
	(void)state;
	say("set e 0 2 1\r\nx\r\ntouch e 4\r\nmg e t v\r\n",
		"STORED\r\nTOUCHED\r\nVA 1 t4\r\nx\r\n");
	feed_advance(&feed, 3900000000ull);
	say("get e\r\n", "VALUE e 0 1\r\nx\r\nEND\r\n");
	feed_advance(&feed, 200000000ull);
	say("get e\r\ntouch e 1\r\n", "END\r\nNOT_FOUND\r\n");
	say("set g 3 0 2\r\nab\r\ngat 10 g h\r\nmg g t\r\n",
		"STORED\r\nVALUE g 3 2\r\nab\r\nEND\r\nHD t10\r\n");
	/* A time to live of n lasts n seconds from any instant. */
	feed_advance(&feed, 700000000ull);
	say("set f 0 1 1\r\nx\r\n", "STORED\r\n");
	feed_advance(&feed, 999999999ull);
	say("get f\r\n", "VALUE f 0 1\r\nx\r\nEND\r\n");
	feed_advance(&feed, 1000000000ull);
	say("get f\r\n", "END\r\n");
	say("set m 0 -1 1\r\nx\r\nget m\r\n", "STORED\r\nEND\r\n");
}

static void
flush(void **state)
{
	(void)state;
	say("set f 0 0 1\r\nx\r\nflush_all\r\nget f\r\nset f 0 0 1\r\ny\r\nget f\r\n",
		"STORED\r\nOK\r\nEND\r\nSTORED\r\nVALUE f 0 1\r\ny\r\nEND\r\n");
	say("flush_all 2\r\nget f\r\n", "OK\r\nVALUE f 0 1\r\ny\r\nEND\r\n");
	feed_advance(&feed, 2100000000ull);
	say("get f\r\nincr f 1\r\nappend f 0 0 1\r\nx\r\nset f 0 0 1\r\nz\r\nget f\r\n",
		"END\r\nNOT_FOUND\r\nNOT_STORED\r\nSTORED\r\nVALUE f 0 1\r\nz\r\nEND\r\n");
}

static void
meta(void **state)
{
	(void)state;
	say("ms m 2 T100\r\nhi\r\nmd m I T30\r\nmg m v t\r\nmg m v t\r\n",
		"HD\r\nHD\r\nVA 2 t30 X W\r\nhi\r\nVA 2 t30 Z X\r\nhi\r\n");
	say("ms r 2 T30\r\nhi\r\nmg r R60 v\r\nmg r R60 v\r\n",
		"HD\r\nVA 2 W\r\nhi\r\nVA 2 Z\r\nhi\r\n");
	say("mg n N30 v t\r\nmg n N30 v t\r\n", "VA 0 t30 W\r\n\r\nVA 0 t30 Z\r\n\r\n");
	say("ma q\r\nma q N0 J13 v\r\nma q v D30\r\nma q MD D9000 v\r\n",
		"NF\r\nVA 2\r\n13\r\nVA 2\r\n43\r\nVA 1\r\n0\r\n");
	say("set x 7 0 4\r\nbody\r\nmd x x\r\nmg x v f\r\n", "STORED\r\nHD\r\nVA 0 f0\r\n\r\n");
	say("set h 0 0 1\r\nx\r\nmg h h l t u\r\nmg h h l t\r\nmg h h l t\r\n",
		"STORED\r\nHD h0 l0 t-1\r\nHD h0 l0 t-1\r\nHD h1 l0 t-1\r\n");
	say("ms YmluACBrZXk= 2 b\r\nhi\r\nmg YmluACBrZXk= b k v\r\nmg YmluACBrZXk= v\r\nmn\r\n",
		"HD\r\nVA 2 kYmluACBrZXk= b\r\nhi\r\nEN\r\nMN\r\n");
}

/* Fills a value so that each byte tells where it stands. */
static uint8_t *
pattern(size_t size, unsigned seed)
{
	uint8_t *bytes = malloc(size + 2);

	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)(i * 31 + i / 251 + seed);
	memcpy(bytes + size, "\r\n", 2);
	return bytes;
}

/* Sends a set, and a large body in writes of 'step' bytes at most. */
static void
send_value(const char *key, const uint8_t *value, size_t size, size_t step, const char *answer)
{
	char line[100];

	snprintf(line, sizeof line, "set %s 9 0 %zu\r\n", key, size);
	feed_send(&feed, &client, line, strlen(line));
	for (size_t at = 0; at < size + 2; at += step)
		feed_send(&feed, &client, value + at, size + 2 - at < step ? size + 2 - at : step);
	assert_string_equal(feed_take(&client, NULL), answer);
}

static void
check_value(const char *key, const uint8_t *value, size_t size)
{
	char line[100];
	size_t got, head;
	const char *reply;

	snprintf(line, sizeof line, "get %s\r\n", key);
	feed_send(&feed, &client, line, strlen(line));
	reply = feed_take(&client, &got);
	head = (size_t)snprintf(line, sizeof line, "VALUE %s 9 %zu\r\n", key, size);
	assert_int_equal(got, head + size + 2 + 5);
	assert_memory_equal(reply, line, head);
	assert_memory_equal(reply + head, value, size + 2);
	assert_memory_equal(reply + head + size + 2, "END\r\n", 5);
}

static void
values_of_all_sizes(void **state)
{
	static const size_t sizes[] = {0, 1, 511, 512, 513, 16000, 16383, 16384, 16385, 65535,
		65536, 65537, 131071, 131072, 131073, 262143, 262144, 262145, 524288, 1048575,
		1048576};

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		uint8_t *value = pattern(sizes[i], (unsigned)i),
			*longer = pattern(sizes[i] + 1, (unsigned)i);

		send_value("v", value, sizes[i], 10000, "STORED\r\n");
		check_value("v", value, sizes[i]);
		send_value("v", value, sizes[i], 1 << 21, "STORED\r\n");
		say("touch v 1000\r\n", "TOUCHED\r\n");
		check_value("v", value, sizes[i]);
		if (sizes[i] == 1048576)
			say("append v 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
		else {
			uint8_t line[] = "append v 0 0 1\r\n?\r\n";

			line[16] = longer[sizes[i]];
			feed_send(&feed, &client, line, sizeof line - 1);
			assert_string_equal(feed_take(&client, NULL), "STORED\r\n");
			check_value("v", longer, sizes[i] + 1);
		}
		free(value);
		free(longer);
	}
	uint8_t *value = pattern(1048577, 1);

	send_value("v", value, 1048577, 100000, "SERVER_ERROR object too large for cache\r\n");
	say("get v\r\nmn\r\n", "END\r\nMN\r\n");
	free(value);
}

static void
bad_chunk(void **state)
{
	uint8_t *value = pattern(100000, 1);

	(void)state;
	say("set b 0 0 3\r\nabcdef\r\nmn\r\n",
		"CLIENT_ERROR bad data chunk\r\nCLIENT_ERROR bad command line format\r\nMN\r\n");
	value[100000] = 'x';
	value[100001] = 'y';
	send_value("b", value, 100000, 7000, "CLIENT_ERROR bad data chunk\r\n");
	say("mn\r\nget b\r\n", "MN\r\nEND\r\n");
	free(value);
}

static void
pipeline(void **state)
{
	char *sent = malloc(1 << 20), *expected = malloc(1 << 20);
	size_t s = 0, e = 0;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		s += (size_t)sprintf(
			sent + s, "set k%d 0 0 3\r\n%03d\r\nget k%d nope k%d\r\n", i, i, i, i);
		e += (size_t)sprintf(expected + e,
			"STORED\r\nVALUE k%d 0 3\r\n%03d\r\nVALUE k%d 0 3\r\n%03d\r\nEND\r\n", i, i,
			i, i);
	}
	say(sent, expected);
	/* One line with more keys than a batch has slots. */
	s = (size_t)sprintf(sent, "get");
	for (int i = 0; i < 1000; i++)
		s += (size_t)sprintf(sent + s, " k%d", i);
	sprintf(sent + s, "\r\nmn\r\n");
	e = 0;
	for (int i = 0; i < 1000; i++)
		e += (size_t)sprintf(expected + e, "VALUE k%d 0 3\r\n%03d\r\n", i, i);
	sprintf(expected + e, "END\r\nMN\r\n");
	say(sent, expected);
	assert_true(counter_get(&feed.counters->conn_yields) > 0);
	free(sent);
	free(expected);
}

/* Many streams in one batch: each gets its own replies. */
static void
many_streams(void **state)
{
	struct feed_stream streams[200], *list[200];
	char line[100], answer[100];

	(void)state;
	for (int i = 0; i < 200; i++) {
		feed_stream_open(&streams[i]);
		list[i] = &streams[i];
		snprintf(line, sizeof line, "set s%d 0 0 3\r\n%03d\r\nget s%d\r\n", i, i, i);
		feed_put(&streams[i], line, strlen(line));
	}
	while (feed_turn(&feed, list, 200))
		;
	for (int i = 0; i < 200; i++) {
		snprintf(answer, sizeof answer, "STORED\r\nVALUE s%d 0 3\r\n%03d\r\nEND\r\n", i, i);
		assert_string_equal(feed_take(&streams[i], NULL), answer);
		feed_stream_close(&feed, &streams[i]);
	}
}

/*
 * A body's bytes arrive in a batch that is full before its turn comes: they count in the next one.
 */
static void
upload_behind_a_full_batch(void **state)
{
	struct feed_stream other, *both[] = {&other, &client};
	uint8_t *value = pattern(60000, 5);
	char gets[BATCH_SLOTS * 8];
	size_t size = 0;

	(void)state;
	feed_stream_open(&other);
	for (int i = 0; i < BATCH_SLOTS; i++)
		size += (size_t)sprintf(gets + size, "get x\r\n");
	feed_send(&feed, &client, "set up 9 0 60000\r\n", 18);
	feed_send(&feed, &client, value, 5000);
	for (size_t sent = 5000; sent < 60000;) {
		struct stream *stream = &client.stream;
		size_t piece = stream->sink_size < 60000 - sent ? stream->sink_size : 60000 - sent;

		assert_true(piece > 0);
		memcpy(stream->sink, value + sent, piece);
		stream->sink_filled = piece;
		sent += piece;
		feed_put(&other, gets, size);
		while (feed_turn(&feed, both, 2))
			;
	}
	feed_send(&feed, &client, "\r\n", 2);
	assert_string_equal(feed_take(&client, NULL), "STORED\r\n");
	check_value("up", value, 60000);
	feed_stream_close(&feed, &other);
	free(value);
}

static int
open_few_chunks(void **state)
{
	(void)state;
	feed_open(&feed, &(struct feed_options){.upload_bytes_max = 65536});
	feed_stream_open(&client);
	return 0;
}

/*
 * Uploads that together need far more than the bound: while their clients go on sending, all end,
 * and none is taken back.
 */
static void
uploads_that_wait_for_each_other(void **state)
{
	struct feed_stream streams[20], *list[20];
	uint8_t *value = pattern(60000, 3);

	(void)state;
	for (int i = 0; i < 20; i++) {
		feed_stream_open(&streams[i]);
		list[i] = &streams[i];
		feed_put(&streams[i], "set w 9 0 60000\r\n", 17);
	}
	for (size_t sent = 0; sent < 60000; sent += 20000) {
		for (int i = 0; i < 20; i++)
			feed_put(&streams[i], value + sent, 20000);
		while (feed_turn(&feed, list, 20))
			;
	}
	for (int i = 0; i < 20; i++)
		feed_put(&streams[i], "\r\n", 2);
	while (feed_turn(&feed, list, 20))
		;
	for (int i = 0; i < 20; i++) {
		assert_string_equal(feed_take(&streams[i], NULL), "STORED\r\n");
		feed_stream_close(&feed, &streams[i]);
	}
	assert_true(counter_get(&feed.counters->uploads_parked) > 0);
	assert_int_equal(counter_get(&feed.counters->uploads_aborted), 0);
	check_value("w", value, 60000);
	free(value);
}

/* More than fits: every set is answered, memory stays in its bounds, the newest are there. */
static void
overfill(void **state)
{
	uint8_t *value = pattern(5000, 3);
	char key[32];

	(void)state;
	for (int i = 0; i < 40000; i++) {
		snprintf(key, sizeof key, "o%d", i);
		send_value(key, value, 5000, 1 << 20, "STORED\r\n");
	}
	check_value(key, value, 5000);
	assert_true(counter_get(&feed.counters->evictions) +
			    counter_get(&feed.background_counters->evictions) >
		    20000);
	free(value);
}

static void
large_overfill(void **state)
{
	uint8_t *value = pattern(1 << 20, 3);
	char key[32];

	(void)state;
	for (int i = 0; i < 300; i++) {
		snprintf(key, sizeof key, "o%d", i);
		send_value(key, value, 1 << 20, 1 << 21, "STORED\r\n");
		check_value(key, value, 1 << 20);
	}
	free(value);
}

static int
open_full(void **state)
{
	(void)state;
	feed_open(&feed, &(struct feed_options){.limit_bytes = 8 << 20, .no_evict = true});
	feed_stream_open(&client);
	return 0;
}

/* -M: an error, in sync, and what is there stays. */
static void
no_eviction(void **state)
{
	uint8_t *value = pattern(5000, 3);
	char key[32];
	int stored = 0;
	const char *answer;

	(void)state;
	for (int i = 0; i < 3000; i++) {
		char line[100];

		snprintf(line, sizeof line, "set o%d 9 0 5000\r\n", i);
		feed_send(&feed, &client, line, strlen(line));
		feed_send(&feed, &client, value, 5002);
		answer = feed_take(&client, NULL);
		if (strcmp(answer, "STORED\r\n") == 0)
			stored = i + 1;
		else
			assert_string_equal(
				answer, "SERVER_ERROR out of memory storing object\r\n");
	}
	assert_in_range(stored, 1000, 1700);
	for (int i = 0; i < stored; i++) {
		snprintf(key, sizeof key, "o%d", i);
		check_value(key, value, 5000);
	}
	for (int i = 0; i < stored; i += 2) {
		snprintf(key, sizeof key, "delete o%d\r\n", i);
		say(key, "DELETED\r\n");
	}
	/* Merging keeps every live item and gives the others' room back. */
	for (int i = 0; i < stored / 4; i++) {
		snprintf(key, sizeof key, "p%d", i);
		send_value(key, value, 5000, 1 << 20, "STORED\r\n");
	}
	for (int i = 1; i < stored; i += 2) {
		snprintf(key, sizeof key, "o%d", i);
		check_value(key, value, 5000);
	}
	free(value);
}

/* Uploads that stop half-way lose their memory to others, and are told so when they go on. */
static void
stalled_uploads(void **state)
{
	struct feed_stream stalled[200];
	uint8_t *value = pattern(60000, 3);

	(void)state;
	for (int i = 0; i < 200; i++) {
		feed_stream_open(&stalled[i]);
		feed_send(&feed, &stalled[i], "set st 0 0 60000\r\n", 18);
		feed_send(&feed, &stalled[i], value, 20000);
	}
	assert_true(atomic_load(&feed.waiters) > 0);
	feed_advance(&feed, 4000000000ull);
	/* the turn after a long one: bytes may be there that it did not see */
	feed_send(&feed, &client, "mn\r\n", 4);
	assert_string_equal(feed_take(&client, NULL), "MN\r\n");
	assert_int_equal(counter_get(&feed.counters->uploads_aborted), 0);
	feed_advance(&feed, 1);
	/*
	 * One that comes now has its turn after those that wait already, each of whom has a second
	 * to go on.
	 */
	feed_send(&feed, &client, "set fresh 9 0 60000\r\n", 21);
	feed_send(&feed, &client, value, 60000);
	feed_send(&feed, &client, "\r\n", 2);
	for (int rounds = 0; rounds < 30 && client.output_size == 0; rounds++) {
		feed_advance(&feed, 1100000000ull);
		feed_send(&feed, &client, "", 0);
	}
	assert_string_equal(feed_take(&client, NULL), "STORED\r\n");
	assert_true(counter_get(&feed.counters->uploads_aborted) > 0);
	/*
	 * The longest without progress was the first to lose: it goes on, is told, and is in sync.
	 */
	feed_send(&feed, &stalled[0], value + 20000, 40002);
	feed_send(&feed, &stalled[0], "mn\r\n", 4);
	assert_string_equal(
		feed_take(&stalled[0], NULL), "SERVER_ERROR Out of memory during read\r\nMN\r\n");
	for (int i = 0; i < 200; i++)
		feed_stream_close(&feed, &stalled[i]);
	assert_int_equal(atomic_load(&feed.waiters), 0);
	check_value("fresh", value, 60000);
	free(value);
}

/*
 * Bytes that were read into the sink, but not taken since the batch was full, count as come when
 * the upload is aborted.
 */
static void
aborted_with_bytes_in_sink(void **state)
{
	struct feed_stream stalled[80];
	uint8_t *value = pattern(60000, 3);
	struct stream *stream = &stalled[0].stream;

	(void)state;
	for (int i = 0; i < 80; i++) {
		feed_stream_open(&stalled[i]);
		feed_send(&feed, &stalled[i], "set st 0 0 60000\r\n", 18);
		feed_send(&feed, &stalled[i], value, 20000);
	}
	assert_true(stream->sink_size >= 50);
	memcpy(stream->sink, value + 20000, 50);
	stream->sink_filled = 50;
	for (int i = 0; i < 200 && !counter_get(&feed.counters->uploads_aborted); i++) {
		struct feed_stream *list[] = {&client};

		feed_advance(&feed, 100000000ull);
		feed_turn(&feed, list, 1);
	}
	assert_true(counter_get(&feed.counters->uploads_aborted) > 0);
	feed_send(&feed, &stalled[0], value + 20050, 60002 - 20050);
	feed_send(&feed, &stalled[0], "mn\r\nmn\r\n", 8);
	assert_string_equal(feed_take(&stalled[0], NULL),
		"SERVER_ERROR Out of memory during read\r\nMN\r\nMN\r\n");
	for (int i = 0; i < 80; i++)
		feed_stream_close(&feed, &stalled[i]);
	free(value);
}

/* Who sends a byte now and then doesn't keep others from their memory. */
static void
dripping_uploads(void **state)
{
	struct feed_stream dripping[80];
	uint8_t *value = pattern(60000, 3);

	(void)state;
	for (int i = 0; i < 80; i++) {
		feed_stream_open(&dripping[i]);
		feed_send(&feed, &dripping[i], "set st 0 0 60000\r\n", 18);
		feed_send(&feed, &dripping[i], value, 20000);
	}
	feed_put(&client, "set fresh 9 0 60000\r\n", 21);
	feed_send(&feed, &client, value, 60002);
	for (int turn = 0; turn < 100 && client.output_size == 0; turn++) {
		struct feed_stream *list[] = {&client};

		feed_advance(&feed, 500000000ull);
		for (int i = 0; i < 80; i++)
			if (!dripping[i].parked && dripping[i].output_size == 0)
				feed_send(&feed, &dripping[i], value + 20000 + turn, 1);
		feed_turn(&feed, list, 1);
	}
	assert_string_equal(feed_take(&client, NULL), "STORED\r\n");
	for (int i = 0; i < 80; i++)
		feed_stream_close(&feed, &dripping[i]);
	check_value("fresh", value, 60000);
	free(value);
}

/* Small print of the meta commands, as memcached has it. */
static void
meta_small_print(void **state)
{
	(void)state;
	say("ms a 1 E100\r\nx\r\nms a 1 MA I C50\r\ny\r\nmg a v\r\n", "HD\r\nEX\r\nVA 1\r\nx\r\n");
	say("ms b 1 MR C5\r\nx\r\nms a 1 MR C100\r\nz\r\nmg a v\r\n", "NF\r\nHD\r\nVA 1\r\nz\r\n");
	/* An access counts though the time to live stays, or the win is given. */
	say("set g 0 0 1\r\nx\r\ngat 0 g\r\nmg g h\r\n",
		"STORED\r\nVALUE g 0 1\r\nx\r\nEND\r\nHD h1\r\n");
	say("set n 0 0 1\r\nx\r\nmd n I\r\nmg n h\r\nmg n h\r\n",
		"STORED\r\nHD\r\nHD h0 X W\r\nHD h1 Z X\r\n");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(classic, open_default, close_all),
		cmocka_unit_test_setup_teardown(cas_number, open_default, close_all),
		cmocka_unit_test_setup_teardown(expiry_and_touch, open_default, close_all),
		cmocka_unit_test_setup_teardown(flush, open_default, close_all),
		cmocka_unit_test_setup_teardown(meta, open_default, close_all),
		cmocka_unit_test_setup_teardown(values_of_all_sizes, open_default, close_all),
		cmocka_unit_test_setup_teardown(bad_chunk, open_default, close_all),
		cmocka_unit_test_setup_teardown(pipeline, open_default, close_all),
		cmocka_unit_test_setup_teardown(many_streams, open_default, close_all),
		cmocka_unit_test_setup_teardown(
			upload_behind_a_full_batch, open_default, close_all),
		cmocka_unit_test_setup_teardown(
			uploads_that_wait_for_each_other, open_few_chunks, close_all),
		cmocka_unit_test_setup_teardown(overfill, open_default, close_all),
		cmocka_unit_test_setup_teardown(large_overfill, open_default, close_all),
		cmocka_unit_test_setup_teardown(no_eviction, open_full, close_all),
		cmocka_unit_test_setup_teardown(stalled_uploads, open_default, close_all),
		cmocka_unit_test_setup_teardown(
			aborted_with_bytes_in_sink, open_default, close_all),
		cmocka_unit_test_setup_teardown(dripping_uploads, open_default, close_all),
		cmocka_unit_test_setup_teardown(meta_small_print, open_default, close_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
