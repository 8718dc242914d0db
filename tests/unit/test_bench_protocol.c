/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The wire protocols of the load generator: requests byte by byte, replies cut from any piece, and
 * nonsense that must be told from replies without reading a byte too far. Pieces are blocks of just
 * their size, so that a sanitizer sees such a read.
 */
#include "tools/bench/protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KEY_SIZE 6
#define MANY 5 /* keys of a get of several */
#define BYTES(literal) literal, sizeof(literal) - 1

static void
create(struct workload *workload, uint64_t value_size, uint32_t flags)
{
	struct options options = {
		.keys = 1000,
		.key_size = KEY_SIZE,
		.key_prefix = "k",
		.value_size = {value_size, value_size},
		.flags = flags,
		.seed = 5,
		.verify = true,
	};

	assert_int_equal(workload_create(workload, &options), 0);
}

/* Bytes of the binary protocol are written as 81|opcode|opaque's last byte|.. by binary(). */
struct bytes {
	char data[2048];
	size_t size;
};

static void
add(struct bytes *bytes, const void *data, size_t size)
{
	assert_true(bytes->size + size <= sizeof bytes->data);
	memcpy(bytes->data + bytes->size, data, size);
	bytes->size += size;
}

static void
add_binary(struct bytes *bytes, unsigned char opcode, unsigned char status, const char *extras,
	size_t extras_size, const char *key, const char *value, size_t value_size)
{
	size_t key_size = strlen(key), body = extras_size + key_size + value_size;
	unsigned char header[24] = {0x81, opcode, 0, (unsigned char)key_size,
		(unsigned char)extras_size, 0, 0, status, 0, 0, (unsigned char)(body >> 8),
		(unsigned char)body, 0x48, 0x42, 0x6e, opcode, 0, 0, 0, 0, 0, 0, 0, 9};

	add(bytes, header, sizeof header);
	add(bytes, extras, extras_size);
	add(bytes, key, key_size);
	add(bytes, value, value_size);
}

/* What one reply must be. */
struct expected {
	enum operation operation;
	unsigned keys;
	enum reply_kind kind;
	bool last;
	const char *key;
	const char *value;
	uint32_t flags;
};

static void
check_reply(const struct expected *expected, const struct reply *reply)
{
	assert_int_equal(reply->kind, expected->kind);
	assert_int_equal(reply->last, expected->last);
	assert_non_null(reply->line);
	if (expected->kind == REPLY_VALUE) {
		assert_int_equal(reply->key_size, strlen(expected->key));
		assert_memory_equal(reply->key, expected->key, reply->key_size);
		assert_int_equal(reply->flags, expected->flags);
	}
	if (expected->value) {
		assert_int_equal(reply->value_size, strlen(expected->value));
		assert_memory_equal(reply->value, expected->value, reply->value_size);
	}
}

/* The stream is cut at every byte: nothing is taken before it is whole, then all of it. */
static void
check_stream(const struct protocol *protocol, const struct bytes *stream,
	const struct expected *expected, unsigned count)
{
	size_t at = 0;

	for (unsigned i = 0; i < count; i++) {
		struct reply reply;
		size_t wanted, used = 0, told = 0;
		for (size_t size = 1; used == 0; size++) {
			assert_true(at + size <= stream->size);
			char *piece = malloc(size);
			assert_non_null(piece);
			memcpy(piece, stream->data + at, size);
			used = protocol->parse(piece, size, expected[i].operation, expected[i].keys,
				&reply, &wanted);
			if (used) {
				assert_int_equal(used, size);
				assert_true(told == 0 || told == used);
				check_reply(&expected[i], &reply);
			} else if (wanted) {
				told = wanted;
			}
			free(piece);
		}
		/* More behind it changes nothing. */
		assert_int_equal(protocol->parse(stream->data + at, stream->size - at,
					 expected[i].operation, expected[i].keys, &reply, &wanted),
			used);
		check_reply(&expected[i], &reply);
		at += used;
	}
	assert_int_equal(at, stream->size);
}

static const struct expected line_replies[] = {
	{OPERATION_GET, 1, REPLY_VALUE, true, "key", "ab\r\nc", 0},
	{OPERATION_GET, 1, REPLY_END, true, NULL, NULL, 0},
	{OPERATION_GET, MANY, REPLY_VALUE, false, "k2", "", 7},
	{OPERATION_GET, MANY, REPLY_ERROR, false, NULL, NULL, 0},
	{OPERATION_GET, MANY, REPLY_VALUE, false, "k3", "x", UINT32_MAX},
	{OPERATION_GET, MANY, REPLY_END, true, NULL, NULL, 0},
	{OPERATION_SET, 1, REPLY_DONE, true, NULL, NULL, 0},
	{OPERATION_SET, 1, REPLY_NOT_STORED, true, NULL, NULL, 0},
	{OPERATION_SET, 1, REPLY_REFUSED, true, NULL, NULL, 0},
	{OPERATION_SET, 1, REPLY_ERROR, true, NULL, NULL, 0},
	{OPERATION_APPEND, 1, REPLY_DONE, true, NULL, NULL, 0},
	{OPERATION_APPEND, 1, REPLY_NOT_STORED, true, NULL, NULL, 0},
	{OPERATION_GAT, 1, REPLY_VALUE, true, "key", "v", 0},
	{OPERATION_GAT, 1, REPLY_END, true, NULL, NULL, 0},
	{OPERATION_TOUCH, 1, REPLY_DONE, true, NULL, NULL, 0},
	{OPERATION_TOUCH, 1, REPLY_MISS, true, NULL, NULL, 0},
	{OPERATION_INCR, 1, REPLY_NUMBER, true, NULL, NULL, 0},
	{OPERATION_INCR, 1, REPLY_MISS, true, NULL, NULL, 0},
	{OPERATION_INCR, 1, REPLY_ERROR, true, NULL, NULL, 0},
	{OPERATION_DELETE, 1, REPLY_DONE, true, NULL, NULL, 0},
	{OPERATION_DELETE, 1, REPLY_MISS, true, NULL, NULL, 0},
};

static void
meta_replies_are_cut_from_any_piece(void **unused)
{
	static const char replies[] =
		"VA 5 f0 kkey\r\nab\r\nc\r\nEN\r\nVA 0 f7 kk2\r\n\r\nCLIENT_ERROR no\r\n"
		"VA 1 kk3 f4294967295\r\nx\r\nMN\r\nHD\r\nNS\r\n"
		"SERVER_ERROR out of memory storing object\r\n"
		"SERVER_ERROR object too large for cache\r\nHD\r\nNS\r\nVA 1 f0 kkey\r\nv\r\nEN "
		"kkey\r\n"
		"HD\r\nEN\r\nVA 10\r\n1000000001\r\nNF\r\n"
		"CLIENT_ERROR cannot increment or decrement non-numeric value\r\nHD\r\nNF\r\n";
	struct bytes stream = {.size = 0};

	(void)unused;
	add(&stream, BYTES(replies));
	check_stream(
		protocol_meta(), &stream, line_replies, sizeof line_replies / sizeof *line_replies);
}

static void
binary_replies_are_cut_from_any_piece(void **unused)
{
	static const char none[4] = "", seven[4] = {0, 0, 0, 7}, all[4] = {-1, -1, -1, -1};
	static const char number[8] = {0, 0, 0, 0, 59, (char)154, (char)202, 1};
	struct bytes stream = {.size = 0};

	(void)unused;
	add_binary(&stream, 0x0c, 0, none, 4, "key", BYTES("ab\r\nc"));
	add_binary(&stream, 0x0c, 1, none, 0, "key", "", 0);
	add_binary(&stream, 0x0d, 0, seven, 4, "k2", "", 0);
	add_binary(&stream, 0x0d, 4, none, 0, "", BYTES("Invalid arguments"));
	add_binary(&stream, 0x0d, 0, all, 4, "k3", BYTES("x"));
	add_binary(&stream, 0x0a, 0, none, 0, "", "", 0);
	add_binary(&stream, 0x01, 0, none, 0, "", "", 0);
	add_binary(&stream, 0x01, 5, none, 0, "", BYTES("Not stored."));
	add_binary(&stream, 0x01, 0x82, none, 0, "", BYTES("Out of memory"));
	add_binary(&stream, 0x01, 3, none, 0, "", BYTES("Too large."));
	add_binary(&stream, 0x0e, 0, none, 0, "", "", 0);
	add_binary(&stream, 0x0e, 5, none, 0, "", BYTES("Not stored."));
	add_binary(&stream, 0x23, 0, none, 4, "key", BYTES("v"));
	add_binary(&stream, 0x23, 1, none, 0, "", BYTES("Not found"));
	add_binary(&stream, 0x1c, 0, seven, 4, "", "", 0);
	add_binary(&stream, 0x1c, 1, none, 0, "", BYTES("Not found"));
	add_binary(&stream, 0x05, 0, none, 0, "", number, sizeof number);
	add_binary(&stream, 0x05, 1, none, 0, "", BYTES("Not found"));
	add_binary(&stream, 0x05, 6, none, 0, "", "", 0);
	add_binary(&stream, 0x04, 0, none, 0, "", "", 0);
	add_binary(&stream, 0x04, 1, none, 0, "", BYTES("Not found"));
	check_stream(protocol_binary(), &stream, line_replies,
		sizeof line_replies / sizeof *line_replies);
}

static enum reply_kind
kind_of(const struct protocol *protocol, const char *data, size_t size, enum operation operation,
	unsigned keys)
{
	char *piece = malloc(size);
	struct reply reply;
	size_t wanted;

	assert_non_null(piece);
	memcpy(piece, data, size);
	size_t used = protocol->parse(piece, size, operation, keys, &reply, &wanted);
	free(piece);
	assert_true(used > 0 && used <= size);
	return reply.kind;
}

static void
meta_nonsense_is_broken(void **unused)
{
	static const struct {
		enum operation operation;
		unsigned keys;
		const char *text;
	} cases[] = {
		{OPERATION_GET, 1, "\r\n"},
		{OPERATION_GET, 1, "\n"},
		{OPERATION_GET, 1, "EN\n"},
		{OPERATION_GET, 1, "EN \r\n"},
		{OPERATION_GET, 1, "END\r\n"},
		{OPERATION_GET, 1, "HD\r\n"},
		{OPERATION_GET, 1, "MN\r\n"},
		{OPERATION_GET, MANY, "EN\r\n"},
		{OPERATION_GET, 1, "NF\r\n"},
		{OPERATION_GET, 1, "VALUE key 0 1\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f0 kkey\r\nab\r\n"},
		{OPERATION_GET, 1, "VA 1 f0 kkey\r\na\n\r\n"},
		{OPERATION_GET, 1, "VA  f0 kkey\r\n\r\n"},
		{OPERATION_GET, 1, "VA \r\n\r\n"},
		{OPERATION_GET, 1, "VA -1 f0 kkey\r\n\r\n"},
		{OPERATION_GET, 1, "VA 1x f0 kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 4294967296 f0 kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 18446744073709551617 f0 kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f0\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f0 k\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f4294967296 kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f0 f0 kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f0 kkey kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f0 kkey W\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f0  kkey\r\na\r\n"},
		{OPERATION_GET, 1, "VA 1 f0 kkey \r\na\r\n"},
		{OPERATION_GET, 1, "va 1 f0 kkey\r\na\r\n"},
		{OPERATION_GAT, 1, "HD\r\n"},
		{OPERATION_SET, 1, "STORED\r\n"},
		{OPERATION_SET, 1, "HD k\r\n"},
		{OPERATION_SET, 1, "EN\r\n"},
		{OPERATION_SET, 1, "NF\r\n"},
		{OPERATION_SET, 1, "VA 1 f0 kkey\r\na\r\n"},
		{OPERATION_APPEND, 1, "EX\r\n"},
		{OPERATION_TOUCH, 1, "NF\r\n"},
		{OPERATION_TOUCH, 1, "VA 1 f0 kkey\r\na\r\n"},
		{OPERATION_INCR, 1, "HD\r\n"},
		{OPERATION_INCR, 1, "EN\r\n"},
		{OPERATION_INCR, 1, "12\r\n"},
		{OPERATION_INCR, 1, "VA 0\r\n\r\n"},
		{OPERATION_INCR, 1, "VA 2\r\n1x\r\n"},
		{OPERATION_INCR, 1, "VA 2 f0\r\n12\r\n"},
		{OPERATION_INCR, 1, "VA 3\r\n12\r\n\r\n"},
		{OPERATION_INCR, 1, "VA 30\r\n"},
		{OPERATION_DELETE, 1, "EN\r\n"},
		{OPERATION_DELETE, 1, "MN\r\n"},
	};

	(void)unused;
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
		if (kind_of(protocol_meta(), cases[i].text, strlen(cases[i].text),
			    cases[i].operation, cases[i].keys) != REPLY_BROKEN)
			fail_msg("taken for a reply: %s", cases[i].text);
	/* A line that never ends. */
	char line[5000];
	memset(line, 'x', sizeof line);
	memcpy(line, "VA 1 f0 k", 9);
	assert_int_equal(
		kind_of(protocol_meta(), line, sizeof line, OPERATION_GET, 1), REPLY_BROKEN);
}

/* One byte or so of a right answer changed: each must be broken as soon as its header is there. */
static void
binary_nonsense_is_broken(void **unused)
{
	static const struct {
		enum operation operation;
		unsigned keys;
		unsigned at;
		unsigned char byte;
	} cases[] = {
		{OPERATION_GET, 1, 0, 0x80}, /* a request */
		{OPERATION_GET, 1, 1, 0x00}, /* GET */
		{OPERATION_GET, 1, 1, 0x0d}, /* GETKQ */
		{OPERATION_GET, 1, 1, 0x0a}, /* NOOP, but nobody asked for it */
		{OPERATION_GET, MANY, 1, 0x0c},
		{OPERATION_SET, 1, 1, 0x0c},
		{OPERATION_GET, 1, 2, 0x01}, /* a key longer than the body */
		{OPERATION_GET, 1, 3, 0x09}, /* a key and extras longer than the body */
		{OPERATION_GET, 1, 3, 0},    /* no key */
		{OPERATION_GET, 1, 4, 0xff}, /* extras longer than the body */
		{OPERATION_GET, 1, 4, 3},    /* no flags */
		{OPERATION_GET, 1, 4, 0},    /* none at all */
		{OPERATION_GET, 1, 5, 1},    /* data type */
		{OPERATION_GET, 1, 8, 0x41}, /* over a gigabyte */
		{OPERATION_GET, 1, 11, 6},   /* shorter than key and flags */
		{OPERATION_GET, 1, 12, 0},   /* the opaque's bytes */
		{OPERATION_GET, 1, 13, 0},
		{OPERATION_GET, 1, 14, 0},
		{OPERATION_GET, 1, 15, 0x0d},
	};
	static const char flags[4] = "";

	(void)unused;
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct bytes stream = {.size = 0};
		add_binary(&stream, 0x0c, 0, flags, 4, "key", "v", 1);
		assert_int_equal(
			kind_of(protocol_binary(), stream.data, stream.size, OPERATION_GET, 1),
			REPLY_VALUE);
		stream.data[cases[i].at] = (char)cases[i].byte;
		if (kind_of(protocol_binary(), stream.data, stream.size, cases[i].operation,
			    cases[i].keys) != REPLY_BROKEN)
			fail_msg("case %u is taken for a reply", i);
	}
	static const struct {
		enum operation operation;
		unsigned keys;
		unsigned char opcode, status, extras;
		const char *key, *value;
	} bodies[] = {
		{OPERATION_SET, 1, 0x01, 0, 0, "", "x"},
		{OPERATION_SET, 1, 0x01, 0, 4, "", ""},
		{OPERATION_DELETE, 1, 0x04, 0, 0, "k", ""},
		{OPERATION_TOUCH, 1, 0x1c, 0, 4, "", "x"},
		{OPERATION_TOUCH, 1, 0x1c, 0, 3, "", ""},
		{OPERATION_INCR, 1, 0x05, 0, 0, "", "1234567"},
		{OPERATION_INCR, 1, 0x05, 0, 0, "", "123456789"},
		{OPERATION_INCR, 1, 0x05, 0, 4, "", "1234"},
		{OPERATION_INCR, 1, 0x05, 0, 0, "k", "1234567"},
		{OPERATION_GET, MANY, 0x0a, 0, 0, "", "x"},
		{OPERATION_GET, MANY, 0x0d, 1, 0, "k", ""},
	};
	for (unsigned i = 0; i < sizeof bodies / sizeof *bodies; i++) {
		struct bytes stream = {.size = 0};
		add_binary(&stream, bodies[i].opcode, bodies[i].status, flags, bodies[i].extras,
			bodies[i].key, bodies[i].value, strlen(bodies[i].value));
		if (kind_of(protocol_binary(), stream.data, stream.size, bodies[i].operation,
			    bodies[i].keys) != REPLY_BROKEN)
			fail_msg("body %u is taken for a reply", i);
	}
	/* A body that nobody would wait for: its header is enough. */
	struct bytes stream = {.size = 0};
	add_binary(&stream, 0x01, 0, "", 0, "", "", 0);
	stream.data[9] = 1;
	assert_int_equal(
		kind_of(protocol_binary(), stream.data, 24, OPERATION_SET, 1), REPLY_BROKEN);
}

/* Requests, as they stand on the wire. */
struct written {
	enum operation operation;
	uint32_t ttl;
	uint32_t flags;
	const char *bytes;
	size_t size;
};

static void
check_requests(const struct protocol *protocol, const struct written *cases, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		struct workload workload;
		struct request request = {cases[i].operation, 42, 1, cases[i].ttl};
		char buffer[500], expected[500], value[3];
		create(&workload, sizeof value, cases[i].flags);
		char *end = protocol->write(&workload, buffer, &request);
		assert_true((size_t)(end - buffer) <=
			    protocol->request_size_max(&workload) + sizeof value);
		/* The value stands as ??? in the table. */
		memcpy(expected, cases[i].bytes, cases[i].size);
		workload_write_value(&workload, value, sizeof value, 42, 1);
		for (size_t at = 0; at + 3 <= cases[i].size; at++)
			if (memcmp(expected + at, "???", 3) == 0)
				memcpy(expected + at, value, 3);
		assert_int_equal(end - buffer, cases[i].size);
		assert_memory_equal(buffer, expected, cases[i].size);
		workload_destroy(&workload);
	}
}

static void
check_multiget(const struct protocol *protocol, const char *bytes, size_t size)
{
	static const uint32_t keys[] = {42, 7, 999};
	struct workload workload;
	char buffer[500];

	create(&workload, 3, 0);
	char *end = protocol->write_get(&workload, buffer, keys, 3);
	assert_true((size_t)(end - buffer) <= protocol->get_size_max(&workload, 3));
	assert_int_equal(end - buffer, size);
	assert_memory_equal(buffer, bytes, size);
	/* Three gets of one key each, at once and one by one. */
	char single[500], *single_end = single;
	for (unsigned i = 0; i < 3; i++)
		single_end = protocol->write_get(&workload, single_end, &keys[i], 1);
	assert_true((size_t)(single_end - single) <= 3 * protocol->get_size_max(&workload, 1));
	end = protocol->write_gets(&workload, buffer, keys, 3);
	assert_int_equal(end - buffer, single_end - single);
	assert_memory_equal(buffer, single, (size_t)(end - buffer));
	workload_destroy(&workload);
}

static void
meta_requests_are_those_of_the_protocol(void **unused)
{
	static const struct written cases[] = {
		{OPERATION_GET, 0, 0, BYTES("mg k--042 f k v\r\n")},
		{OPERATION_SET, 0, 0, BYTES("ms k--042 3\r\n???\r\n")},
		{OPERATION_SET, 60, 7, BYTES("ms k--042 3 F7 T60\r\n???\r\n")},
		{OPERATION_GAT, 60, 0, BYTES("mg k--042 f k v T60\r\n")},
		{OPERATION_TOUCH, 4294967295, 0, BYTES("mg k--042 T4294967295\r\n")},
		{OPERATION_INCR, 0, 0, BYTES("ma k--042 v\r\n")},
		{OPERATION_APPEND, 0, 7, BYTES("ms k--042 3 MA\r\n???\r\n")},
		{OPERATION_DELETE, 0, 0, BYTES("md k--042\r\n")},
	};

	(void)unused;
	check_requests(protocol_meta(), cases, sizeof cases / sizeof *cases);
	check_multiget(protocol_meta(), BYTES("mg k--042 f k v q\r\nmg k--007 f k v q\r\n"
					      "mg k--999 f k v q\r\nmn\r\n"));
}

#define CAS "\0\0\0\0\0\0\0\0"

static void
binary_requests_are_those_of_the_protocol(void **unused)
{
	static const struct written cases[] = {
		{OPERATION_GET, 0, 0, BYTES("\x80\x0c\0\6\0\0\0\0\0\0\0\6HBn\x0c" CAS "k--042")},
		{OPERATION_SET, 60, 7,
			BYTES("\x80\x01\0\6\x08\0\0\0\0\0\0\x11HBn\x01" CAS
			      "\0\0\0\7\0\0\0<k--042???")},
		{OPERATION_GAT, 60, 0,
			BYTES("\x80\x23\0\6\4\0\0\0\0\0\0\x0aHBn\x23" CAS "\0\0\0<k--042")},
		{OPERATION_TOUCH, 60, 0,
			BYTES("\x80\x1c\0\6\4\0\0\0\0\0\0\x0aHBn\x1c" CAS "\0\0\0<k--042")},
		{OPERATION_INCR, 0, 0,
			BYTES("\x80\x05\0\6\x14\0\0\0\0\0\0\x1aHBn\x05" CAS "\0\0\0\0\0\0\0\1" CAS
			      "\xff\xff\xff\xffk--042")},
		{OPERATION_APPEND, 0, 7,
			BYTES("\x80\x0e\0\6\0\0\0\0\0\0\0\x09HBn\x0e" CAS "k--042???")},
		{OPERATION_DELETE, 0, 0, BYTES("\x80\x04\0\6\0\0\0\0\0\0\0\6HBn\x04" CAS "k--042")},
	};

	(void)unused;
	check_requests(protocol_binary(), cases, sizeof cases / sizeof *cases);
	check_multiget(protocol_binary(), BYTES("\x80\x0d\0\6\0\0\0\0\0\0\0\6HBn\x0d" CAS "k--042"
						"\x80\x0d\0\6\0\0\0\0\0\0\0\6HBn\x0d" CAS "k--007"
						"\x80\x0d\0\6\0\0\0\0\0\0\0\6HBn\x0d" CAS "k--999"
						"\x80\x0a\0\0\0\0\0\0\0\0\0\0HBn\x0a" CAS));
}

/* A hit of key 42 with an empty value or one of 12 bytes. */
static void
write_hit(struct bytes *bytes, const char *protocol, const char *value)
{
	char head[100];
	static const char flags[4] = "";

	bytes->size = 0;
	if (strcmp(protocol, "binary") == 0) {
		add_binary(bytes, 0x0c, 0, flags, 4, "k--042", value, strlen(value));
		return;
	}
	bool is_meta = strcmp(protocol, "meta") == 0;
	snprintf(head, sizeof head, is_meta ? "VA %zu f0 kk--042\r\n" : "VALUE k--042 0 %zu\r\n",
		strlen(value));
	add(bytes, head, strlen(head));
	add(bytes, value, strlen(value));
	add(bytes, "\r\nEND\r\n", is_meta ? 2 : 7);
}

/*
 * The quick look says nothing else than the parser, for every cut of a hit and every change of one
 * byte.
 */
static void
match_agrees_with_parse(void **unused)
{
	const struct protocol *const protocols[] = {
		protocol_text(), protocol_meta(), protocol_binary()};
	static const char *const values[] = {"", "hello\r\nworld"};
	struct workload workload;

	(void)unused;
	create(&workload, 3, 0);
	for (unsigned p = 0; p < 6; p++) {
		const struct protocol *protocol = protocols[p / 2];
		struct bytes hit;
		const char *value;
		uint64_t value_size;
		write_hit(&hit, protocol->name, values[p % 2]);
		assert_int_equal(
			protocol->match(&workload, hit.data, hit.size, 42, &value, &value_size),
			hit.size);
		assert_int_equal(value_size, strlen(values[p % 2]));
		assert_memory_equal(value, values[p % 2], value_size);
		assert_int_equal(
			protocol->match(&workload, hit.data, hit.size, 43, &value, &value_size), 0);
		for (size_t size = 0; size < hit.size; size++) {
			char *piece = malloc(size + !size);
			assert_non_null(piece);
			memcpy(piece, hit.data, size);
			assert_int_equal(
				protocol->match(&workload, piece, size, 42, &value, &value_size),
				0);
			free(piece);
		}
		for (size_t at = 0; at < hit.size; at++) {
			for (unsigned change = 1; change < 256; change++) {
				char *piece = malloc(hit.size);
				assert_non_null(piece);
				memcpy(piece, hit.data, hit.size);
				piece[at] ^= (char)change;
				size_t used = protocol->match(
					&workload, piece, hit.size, 42, &value, &value_size);
				if (used) {
					struct reply reply;
					size_t wanted;
					assert_true(used <= hit.size);
					assert_true(protocol->parse(piece, hit.size, OPERATION_GET,
						1, &reply, &wanted));
					assert_int_equal(reply.kind, REPLY_VALUE);
					assert_ptr_equal(reply.value, value);
					assert_int_equal(reply.value_size, value_size);
					assert_int_equal(reply.key_size, KEY_SIZE);
					assert_memory_equal(reply.key, "k--042", KEY_SIZE);
					assert_int_equal(reply.flags, 0);
				}
				free(piece);
			}
		}
	}
	workload_destroy(&workload);
}

/* Of three hits in a row all are taken, fewer when one is cut, another's or changed. */
static void
runs_are_matched_as_far_as_they_are_hits(void **unused)
{
	const struct protocol *protocol = protocol_text();
	static const uint32_t keys[3] = {42, 42, 42}, others[3] = {42, 42, 41};
	static const char *const contents[] = {"abc", "hello\r\nworld"};
	struct workload workload;

	(void)unused;
	for (unsigned p = 0; p < 2; p++) {
		struct bytes hit, stream = {.size = 0};
		struct value values[3];
		size_t used;
		create(&workload, strlen(contents[p]), 0);
		write_hit(&hit, protocol->name, contents[p]);
		for (unsigned i = 0; i < 3; i++)
			add(&stream, hit.data, hit.size);
		for (size_t size = 1; size <= stream.size; size++) {
			char *piece = malloc(size);
			assert_non_null(piece);
			memcpy(piece, stream.data, size);
			unsigned whole = (unsigned)(size / hit.size);
			unsigned found =
				protocol->match_run(&workload, piece, size, keys, 3, values, &used);
			assert_int_equal(found, whole);
			assert_int_equal(used, whole * hit.size);
			for (unsigned i = 0; i < found; i++) {
				assert_int_equal(values[i].size, strlen(contents[p]));
				assert_memory_equal(values[i].at, contents[p], values[i].size);
			}
			found = protocol->match_run(
				&workload, piece, size, others, 3, values, &used);
			assert_int_equal(found, whole < 2 ? whole : 2);
			free(piece);
		}
		stream.data[hit.size] ^= 1;
		assert_int_equal(protocol->match_run(&workload, stream.data, stream.size, keys, 3,
					 values, &used),
			1);
		workload_destroy(&workload);
	}
}

/* Whatever comes: no byte is read behind the piece, and slices lie within what was taken. */
static void
random_bytes_are_survived(void **unused)
{
	static const char alphabet[] = "VALUE k0 19\r\nHDENMNFS\x81\x0c\x0d\x0a\x01\x23\0\0\0HBn";
	const struct protocol *const protocols[] = {
		protocol_text(), protocol_meta(), protocol_binary()};
	static const char *const values[] = {"", "hello\r\nworld"};
	uint64_t random = 1;

	(void)unused;
	for (unsigned round = 0; round < 60000; round++) {
		const struct protocol *protocol = protocols[round % 3];
		struct bytes hit;
		write_hit(&hit, protocol->name, values[round / 3 % 2]);
		uint64_t bits = workload_random(&random);
		unsigned changes = (unsigned)(bits % 4);
		size_t size = 1 + (bits >> 8) % hit.size;
		char *piece = malloc(size);
		assert_non_null(piece);
		memcpy(piece, hit.data, size);
		for (unsigned i = 0; i < changes; i++) {
			bits = workload_random(&random);
			piece[bits % size] = bits >> 32 & 1
						     ? alphabet[(bits >> 33) % sizeof alphabet]
						     : (char)(bits >> 40);
		}
		enum operation operation =
			(enum operation)(workload_random(&random) % OPERATION_COUNT);
		struct reply reply = {.kind = REPLY_BROKEN};
		size_t wanted = 0;
		size_t used = protocol->parse(piece, size, round % 5 ? OPERATION_GET : operation,
			round % 7 ? 1 : MANY, &reply, &wanted);
		assert_true(used <= size);
		if (used && (reply.kind == REPLY_VALUE || reply.kind == REPLY_NUMBER)) {
			assert_true(reply.value >= piece);
			assert_true(reply.value + reply.value_size <= piece + used);
		}
		if (used && reply.kind == REPLY_VALUE)
			assert_true(
				reply.key >= piece && reply.key + reply.key_size <= piece + used);
		free(piece);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(meta_replies_are_cut_from_any_piece),
		cmocka_unit_test(binary_replies_are_cut_from_any_piece),
		cmocka_unit_test(meta_nonsense_is_broken),
		cmocka_unit_test(binary_nonsense_is_broken),
		cmocka_unit_test(meta_requests_are_those_of_the_protocol),
		cmocka_unit_test(binary_requests_are_those_of_the_protocol),
		cmocka_unit_test(match_agrees_with_parse),
		cmocka_unit_test(runs_are_matched_as_far_as_they_are_hits),
		cmocka_unit_test(random_bytes_are_survived),
	};

	return cmocka_run_group_tests_name("bench_protocol", tests, NULL, NULL);
}
