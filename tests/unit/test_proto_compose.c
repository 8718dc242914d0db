/* SPDX-License-Identifier: BSD-2-Clause */
/* Replies: a request of each protocol with what the engine found, to bytes. */
#include "tests/lib/proto_table.h"

#include "proto/binary.h"
#include "proto/compose_hd.h"

#include <stdio.h>

struct answer {
	uint8_t text[COMPOSE_ROOM];
	struct iovec pieces[8];
	struct reply_out out;
	char bytes[8192];
	size_t size;
};

static void
answer_begin(struct answer *answer)
{
	answer->out = (struct reply_out){
		.text = answer->text,
		.text_size = sizeof answer->text,
		.pieces = answer->pieces,
		.piece_size = 8,
		.copy_max = 512,
	};
	answer->size = 0;
}

static void
answer_flatten(struct answer *answer)
{
	answer->size = 0;
	for (uint32_t i = answer->out.piece_first; i < answer->out.piece_used; i++) {
		memcpy(answer->bytes + answer->size, answer->pieces[i].iov_base,
			answer->pieces[i].iov_len);
		answer->size += answer->pieces[i].iov_len;
	}
	answer->bytes[answer->size] = '\0';
	assert_int_equal(answer->size, answer->out.bytes);
}

/* Parses the command and composes this reply for its first request. */
static void
compose(struct answer *answer, const char *command, size_t size, const struct reply *reply)
{
	struct parse_limits limits = {
		.value_bytes_max = 1048576, .window_bytes_max = 16384, .line_bytes_max = 65536};
	struct parser parser = {0};
	struct request request;
	uint8_t key[KEY_SIZE_MAX];
	size_t consumed;

	assert_int_equal(request_parse(&parser, &limits, (const uint8_t *)command, size, &consumed,
				 &request, key),
		PARSE_REQUEST);
	answer_begin(answer);
	reply_compose(&answer->out, &request, reply);
	answer_flatten(answer);
}

static void
expect(const char *command, const struct reply *reply, const char *bytes)
{
	static struct answer answer;

	compose(&answer, command, strlen(command), reply);
	if (strcmp(answer.bytes, bytes) != 0)
		print_error("command: %s\n", command);
	assert_string_equal(answer.bytes, bytes);
}

static const struct slice hi = {(const uint8_t *)"hi", 2};

#define HIT                                                                                        \
	.status = STATUS_HIT, .ttl_s = -1, .cas = 42, .client_flags = 5, .value_size = 2,          \
	.pieces = &hi, .piece_count = 1
#define REPLY(...) (&(const struct reply){__VA_ARGS__})

static void
test_text(void **state)
{
	(void)state;
	expect("get a\r\n", REPLY(HIT), "VALUE a 5 2\r\nhi\r\nEND\r\n");
	expect("get a b\r\n", REPLY(HIT), "VALUE a 5 2\r\nhi\r\n");
	expect("gets a\r\n", REPLY(HIT), "VALUE a 5 2 42\r\nhi\r\nEND\r\n");
	expect("gats 1 a\r\n", REPLY(HIT), "VALUE a 5 2 42\r\nhi\r\nEND\r\n");
	expect("get a\r\n", REPLY(.status = STATUS_MISS), "END\r\n");
	expect("get a b\r\n", REPLY(.status = STATUS_MISS), "");
	expect("get a\r\n", REPLY(.status = STATUS_NO_MEMORY_READ),
		"SERVER_ERROR Out of memory during read\r\n");
	expect("get a b\r\n", REPLY(.status = STATUS_NO_MEMORY_READ), "");
	expect("get a\r\n", REPLY(.status = STATUS_HIT, .client_flags = UINT32_MAX),
		"VALUE a 4294967295 0\r\n\r\nEND\r\n");
	expect("set a 0 0 1\r\nx\r\n", REPLY(.status = STATUS_STORED), "STORED\r\n");
	expect("set a 0 0 1\r\nx\r\n", REPLY(.status = STATUS_TOO_LARGE),
		"SERVER_ERROR object too large for cache\r\n");
	expect("set a 0 0 1 noreply\r\nx\r\n", REPLY(.status = STATUS_STORED), "");
	expect("set a 0 0 1 noreply\r\nx\r\n", REPLY(.status = STATUS_NO_MEMORY), "");
	expect("add a 0 0 1\r\nx\r\n", REPLY(.status = STATUS_NOT_STORED), "NOT_STORED\r\n");
	expect("cas a 0 0 1 1\r\nx\r\n", REPLY(.status = STATUS_EXISTS), "EXISTS\r\n");
	expect("cas a 0 0 1 1\r\nx\r\n", REPLY(.status = STATUS_NOT_FOUND), "NOT_FOUND\r\n");
	expect("incr a 1\r\n", REPLY(.status = STATUS_NUMBER, .number = UINT64_MAX),
		"18446744073709551615\r\n");
	expect("incr a 1\r\n", REPLY(.status = STATUS_MISS), "NOT_FOUND\r\n");
	expect("incr a 1\r\n", REPLY(.status = STATUS_NOT_A_NUMBER),
		"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
	expect("touch a 1\r\n", REPLY(.status = STATUS_TOUCHED), "TOUCHED\r\n");
	expect("delete a\r\n", REPLY(.status = STATUS_DELETED), "DELETED\r\n");
	expect("delete a noreply\r\n", REPLY(.status = STATUS_DELETED), "");
	expect("delete a 9\r\n", REPLY(.status = STATUS_OK),
		"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n");
	expect("flush_all\r\n", REPLY(.status = STATUS_OK), "OK\r\n");
	expect("flush_all\r\n", REPLY(.status = STATUS_FLUSH_DISABLED),
		"CLIENT_ERROR flush_all not allowed\r\n");
	expect("version\r\n", REPLY(.status = STATUS_OK, .text = SLICE_LITERAL("1.6.45")),
		"VERSION 1.6.45\r\n");
	expect("stats\r\n",
		REPLY(.status = STATUS_TEXT, .text = SLICE_LITERAL("STAT a 1\r\nEND\r\n")),
		"STAT a 1\r\nEND\r\n");
	expect("quit\r\n", REPLY(.status = STATUS_OK), "");
	expect("shutdown\r\n", REPLY(.status = STATUS_OK), "");
	expect("shutdown\r\n", REPLY(.status = STATUS_SHUTDOWN_DISABLED),
		"SERVER_ERROR: shutdown not enabled\r\n");
	expect("nonsense\r\n", REPLY(.status = STATUS_OK), "ERROR\r\n");
}

static void
test_meta_get(void **state)
{
	(void)state;
	expect("mn\r\n", REPLY(.status = STATUS_OK), "MN\r\n");
	expect("mg m2\r\n", REPLY(HIT), "HD\r\n");
	expect("mg m2 v\r\n", REPLY(HIT), "VA 2\r\nhi\r\n");
	expect("mg m2 s t f k v Oabc\r\n", REPLY(HIT), "VA 2 s2 t-1 f5 km2 Oabc\r\nhi\r\n");
	expect("mg m2 Oabc v k f t s\r\n", REPLY(HIT), "VA 2 Oabc km2 f5 t-1 s2\r\nhi\r\n");
	expect("mg a h l t c\r\n", REPLY(HIT, .fetched = true, .last_access_s = 7),
		"HD h1 l7 t-1 c42\r\n");
	expect("mg a t\r\n", REPLY(.status = STATUS_HIT, .ttl_s = 30), "HD t30\r\n");
	expect("mg a v\r\n", REPLY(.status = STATUS_MISS), "EN\r\n");
	expect("mg a v k O12 s\r\n", REPLY(.status = STATUS_MISS), "EN ka O12\r\n");
	expect("mg a v q k O77\r\n", REPLY(.status = STATUS_MISS), "");
	expect("mg a v q\r\n", REPLY(HIT), "VA 2\r\nhi\r\n");
	expect("mg a q s N30 t\r\n", REPLY(.status = STATUS_HIT, .won = true, .ttl_s = 30),
		"HD s0 t30 W\r\n");
	expect("mg a v q\r\n", REPLY(.status = STATUS_NO_MEMORY_READ),
		"SERVER_ERROR Out of memory during read\r\n");
	expect("mg a R60 v\r\n", REPLY(HIT, .won = true), "VA 2 W\r\nhi\r\n");
	expect("mg a v t c\r\n", REPLY(HIT, .won = true, .stale = true),
		"VA 2 t-1 c42 X W\r\nhi\r\n");
	expect("mg a v t\r\n", REPLY(HIT, .win_sent = true, .stale = true),
		"VA 2 t-1 Z X\r\nhi\r\n");
	/* Only a value with another CAS number is sent. */
	expect("mg a c C5 v\r\n", REPLY(HIT), "VA 2 c42\r\nhi\r\n");
	expect("mg a c C42 v s\r\n", REPLY(HIT), "HD c42 s2\r\n");
	expect("mg a v\r\n", REPLY(.status = STATUS_HIT), "VA 0\r\n\r\n");
	expect("mg YmluACBrZXk= b k v\r\n", REPLY(HIT, .key_binary = true),
		"VA 2 kYmluACBrZXk= b\r\nhi\r\n");
	expect("mg YmluACBrZXk= b k v\r\n", REPLY(.status = STATUS_MISS), "EN kYmluACBrZXk= b\r\n");
	expect("mg YmluACBrZXk= b v\r\n", REPLY(HIT, .key_binary = true), "VA 2\r\nhi\r\n");
	expect("mg foo k\r\n", REPLY(HIT, .key_binary = true), "HD kZm9v b\r\n");
	expect("mg v v v\r\n", REPLY(HIT), "CLIENT_ERROR duplicate flag\r\n");
	expect("mg a q ~\r\n", REPLY(HIT), "CLIENT_ERROR invalid flag\r\n");
}

static void
test_meta_change(void **state)
{
	(void)state;
	expect("ms a 2\r\nhi\r\n", REPLY(.status = STATUS_STORED), "HD\r\n");
	expect("ms a 2 q\r\nhi\r\n", REPLY(.status = STATUS_STORED), "");
	expect("ms a 2 q ME\r\nhi\r\n", REPLY(.status = STATUS_NOT_STORED), "NS\r\n");
	expect("ms a 2 c C99\r\nhi\r\n", REPLY(.status = STATUS_EXISTS, .cas = 42), "EX c0\r\n");
	expect("ms a 2 C5\r\nhi\r\n", REPLY(.status = STATUS_NOT_FOUND), "NF\r\n");
	expect("ms a 2 C5\r\nhi\r\n", REPLY(.status = STATUS_MISS), "NF\r\n");
	expect("ms a 2 k c O9 s\r\nhi\r\n",
		REPLY(.status = STATUS_STORED, .cas = 42, .value_size = 4), "HD ka c42 O9 s4\r\n");
	expect("ms Zm9v 2 k b\r\nhi\r\n", REPLY(.status = STATUS_STORED), "HD kZm9v b\r\n");
	expect("ms a 2 q\r\nhi\r\n", REPLY(.status = STATUS_TOO_LARGE),
		"SERVER_ERROR object too large for cache\r\n");
	expect("ms a 2 q\r\nhiXX\r\n", REPLY(.status = STATUS_OK),
		"CLIENT_ERROR bad data chunk\r\n");
	expect("md a\r\n", REPLY(.status = STATUS_DELETED), "HD\r\n");
	expect("md a q k\r\n", REPLY(.status = STATUS_DELETED), "");
	expect("md a q k O1\r\n", REPLY(.status = STATUS_NOT_FOUND), "NF ka O1\r\n");
	expect("md a C1 k\r\n", REPLY(.status = STATUS_EXISTS), "EX ka\r\n");
	expect("ma a\r\n", REPLY(.status = STATUS_NUMBER, .number = 13, .ttl_s = -1, .cas = 42),
		"HD\r\n");
	expect("ma a v t c\r\n",
		REPLY(.status = STATUS_NUMBER, .number = 13, .ttl_s = -1, .cas = 42),
		"VA 2 t-1 c42\r\n13\r\n");
	expect("ma a q v\r\n", REPLY(.status = STATUS_NUMBER, .number = 13), "");
	expect("ma a q k\r\n", REPLY(.status = STATUS_NOT_FOUND), "NF ka\r\n");
	expect("ma a q N1\r\n", REPLY(.status = STATUS_NOT_STORED), "NS\r\n");
	expect("ma a q\r\n", REPLY(.status = STATUS_NOT_A_NUMBER),
		"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
	expect("ma a x x\r\n", REPLY(.status = STATUS_OK),
		"CLIENT_ERROR invalid or duplicate flag\r\n");
}

static void
test_meta_inspect(void **state)
{
	(void)state;
	expect("me a\r\n", REPLY(.status = STATUS_MISS), "EN\r\n");
	expect("me a\r\n",
		REPLY(HIT, .last_access_s = 3, .fetched = true, .size_class = 31, .item_bytes = 99),
		"ME a exp=-1 la=3 cas=42 fetch=yes cls=31 size=99\r\n");
	expect("me Zm9v b\r\n", REPLY(.status = STATUS_HIT, .ttl_s = 60, .key_binary = true),
		"ME Zm9v exp=60 la=0 cas=0 fetch=no cls=0 size=0\r\n");
}

/* The longest that a meta reply can be still fits the room that callers make. */
static void
test_meta_longest(void **state)
{
	static struct answer answer;
	static uint8_t value[512];
	struct slice piece = {value, sizeof value};
	char command[1024];
	int size = snprintf(command, sizeof command, "mg %s s v t c f h l k O%s\r\n", K250,
		"abcdefghijklmnopqrstuvwxyz01234");
	struct reply reply = {.status = STATUS_HIT,
		.ttl_s = INT64_MAX,
		.cas = UINT64_MAX,
		.client_flags = UINT32_MAX,
		.value_size = 512,
		.pieces = &piece,
		.piece_count = 1,
		.last_access_s = UINT32_MAX,
		.key_binary = true,
		.won = true,
		.stale = true,
		.win_sent = true};

	(void)state;
	compose(&answer, command, (size_t)size, &reply);
	assert_int_equal(answer.out.piece_used, 1);
	assert_true(answer.size < COMPOSE_ROOM);
}

/* Requests of the binary protocol: header numbers of one byte are enough here. */
static size_t
binary_request(char *at, uint8_t opcode, const char *key, const char *extras, size_t extras_size,
	const char *value)
{
	size_t key_size = strlen(key), value_size = strlen(value),
	       body = extras_size + key_size + value_size;

	memset(at, 0, 24);
	at[0] = (char)0x80;
	at[1] = (char)opcode;
	at[3] = (char)key_size;
	at[4] = (char)extras_size;
	at[11] = (char)body;
	memcpy(at + 12, "\xca\xfe\xba\xbe", 4);
	memcpy(at + 24, extras, extras_size);
	memcpy(at + 24 + extras_size, key, key_size);
	memcpy(at + 24 + extras_size + key_size, value, value_size);
	return 24 + body;
}

static void
expect_binary(uint8_t opcode, const char *key, const char *extras, size_t extras_size,
	const char *value, const struct reply *reply, const char *bytes, size_t size)
{
	static struct answer answer;
	char command[512];

	compose(&answer, command, binary_request(command, opcode, key, extras, extras_size, value),
		reply);
	if (answer.size != size)
		print_error("opcode: %02x\n", opcode);
	assert_int_equal(answer.size, size);
	assert_memory_equal(answer.bytes, bytes, size);
}

#define BYTES(text) text, sizeof(text) - 1
#define HEAD(opcode, key_size, extras_size, status, body_size, cas)                                \
	"\x81" opcode "\0" key_size extras_size "\0" status "\0\0\0" body_size "\xca\xfe\xba\xbe"  \
	"\0\0\0\0\0\0\0" cas
#define EXTRAS_8 "\0\0\0\0\0\0\0\0"
#define EXTRAS_20 "\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0"

static void
test_binary_fetch(void **state)
{
	(void)state;
	expect_binary(0x00, "k", "", 0, "", REPLY(HIT),
		BYTES(HEAD("\x00", "\0", "\4", "\0\0", "\6", "\x2a") "\0\0\0\5"
								     "hi"));
	expect_binary(0x09, "k", "", 0, "", REPLY(HIT),
		BYTES(HEAD("\x09", "\0", "\4", "\0\0", "\6", "\x2a") "\0\0\0\5"
								     "hi"));
	expect_binary(0x0c, "k", "", 0, "", REPLY(HIT),
		BYTES(HEAD("\x0c", "\1", "\4", "\0\0", "\7", "\x2a") "\0\0\0\5"
								     "khi"));
	expect_binary(0x23, "k", "\0\0\0\1", 4, "", REPLY(HIT),
		BYTES(HEAD("\x23", "\1", "\4", "\0\0", "\7", "\x2a") "\0\0\0\5"
								     "khi"));
	expect_binary(0x1e, "k", "\0\0\0\1", 4, "", REPLY(HIT),
		BYTES(HEAD("\x1e", "\0", "\4", "\0\0", "\6", "\x2a") "\0\0\0\5"
								     "hi"));
	expect_binary(0x1c, "k", "\0\0\0\1", 4, "",
		REPLY(.status = STATUS_TOUCHED, .client_flags = 5, .cas = 42),
		BYTES(HEAD("\x1c", "\0", "\4", "\0\0", "\4", "\x2a") "\0\0\0\5"));
	expect_binary(0x1c, "k", "\0\0\0\1", 4, "", REPLY(.status = STATUS_NOT_FOUND),
		BYTES(HEAD("\x1c", "\0", "\0", "\0\1", "\x09", "\0") "Not found"));
	expect_binary(0x00, "k", "", 0, "", REPLY(.status = STATUS_MISS),
		BYTES(HEAD("\x00", "\0", "\0", "\0\1", "\x09", "\0") "Not found"));
	expect_binary(0x0c, "k", "", 0, "", REPLY(.status = STATUS_MISS),
		BYTES(HEAD("\x0c", "\1", "\0", "\0\1", "\1", "\0") "k"));
	expect_binary(0x09, "k", "", 0, "", REPLY(.status = STATUS_MISS), "", 0);
	expect_binary(0x0d, "k", "", 0, "", REPLY(.status = STATUS_MISS), "", 0);
	expect_binary(0x24, "k", "\0\0\0\1", 4, "", REPLY(.status = STATUS_MISS), "", 0);
	expect_binary(0x09, "k", "", 0, "", REPLY(.status = STATUS_NO_MEMORY_READ),
		BYTES(HEAD("\x09", "\0", "\0", "\0\x82", "\x0d", "\0") "Out of memory"));
}

static void
test_binary_change(void **state)
{
	(void)state;
	expect_binary(0x01, "k", EXTRAS_8, 8, "v", REPLY(.status = STATUS_STORED, .cas = 42),
		BYTES(HEAD("\x01", "\0", "\0", "\0\0", "\0", "\x2a")));
	expect_binary(
		0x11, "k", EXTRAS_8, 8, "v", REPLY(.status = STATUS_STORED, .cas = 42), "", 0);
	expect_binary(0x01, "k", EXTRAS_8, 8, "v", REPLY(.status = STATUS_EXISTS, .cas = 42),
		BYTES(HEAD("\x01", "\0", "\0", "\0\2", "\x14", "\0") "Data exists for key."));
	expect_binary(0x12, "k", EXTRAS_8, 8, "v", REPLY(.status = STATUS_NOT_STORED),
		BYTES(HEAD("\x12", "\0", "\0", "\0\2", "\x14", "\0") "Data exists for key."));
	expect_binary(0x13, "k", EXTRAS_8, 8, "v", REPLY(.status = STATUS_NOT_STORED),
		BYTES(HEAD("\x13", "\0", "\0", "\0\1", "\x09", "\0") "Not found"));
	expect_binary(0x0e, "k", "", 0, "v", REPLY(.status = STATUS_NOT_STORED),
		BYTES(HEAD("\x0e", "\0", "\0", "\0\5", "\x0b", "\0") "Not stored."));
	expect_binary(0x01, "k", EXTRAS_8, 8, "v", REPLY(.status = STATUS_TOO_LARGE),
		BYTES(HEAD("\x01", "\0", "\0", "\0\3", "\x0a", "\0") "Too large."));
	expect_binary(0x04, "k", "", 0, "", REPLY(.status = STATUS_DELETED, .cas = 42),
		BYTES(HEAD("\x04", "\0", "\0", "\0\0", "\0", "\0")));
	expect_binary(0x14, "k", "", 0, "", REPLY(.status = STATUS_DELETED), "", 0);
	expect_binary(0x14, "k", "", 0, "", REPLY(.status = STATUS_NOT_FOUND),
		BYTES(HEAD("\x14", "\0", "\0", "\0\1", "\x09", "\0") "Not found"));
	expect_binary(0x05, "k", EXTRAS_20, 20, "",
		REPLY(.status = STATUS_NUMBER, .number = 258, .cas = 42),
		BYTES(HEAD("\x05", "\0", "\0", "\0\0", "\x08", "\x2a") "\0\0\0\0\0\0\1\2"));
	expect_binary(
		0x15, "k", EXTRAS_20, 20, "", REPLY(.status = STATUS_NUMBER, .number = 258), "", 0);
	expect_binary(0x15, "k", EXTRAS_20, 20, "", REPLY(.status = STATUS_NOT_A_NUMBER),
		BYTES(HEAD("\x15", "\0", "\0", "\0\6", "\x2e",
			"\0") "Non-numeric server-side value for incr or decr"));
}

static void
test_binary_admin(void **state)
{
	(void)state;
	expect_binary(0x0a, "", "", 0, "", REPLY(.status = STATUS_OK),
		BYTES(HEAD("\x0a", "\0", "\0", "\0\0", "\0", "\0")));
	expect_binary(0x0b, "", "", 0, "",
		REPLY(.status = STATUS_OK, .text = SLICE_LITERAL("1.6.45")),
		BYTES(HEAD("\x0b", "\0", "\0", "\0\0", "\6", "\0") "1.6.45"));
	expect_binary(0x08, "", "", 0, "", REPLY(.status = STATUS_OK),
		BYTES(HEAD("\x08", "\0", "\0", "\0\0", "\0", "\0")));
	expect_binary(0x18, "", "", 0, "", REPLY(.status = STATUS_OK), "", 0);
	expect_binary(0x07, "", "", 0, "", REPLY(.status = STATUS_OK),
		BYTES(HEAD("\x07", "\0", "\0", "\0\0", "\0", "\0")));
	expect_binary(0x17, "", "", 0, "", REPLY(.status = STATUS_OK), "", 0);
	expect_binary(0x10, "bogus", "", 0, "", REPLY(.status = STATUS_NOT_FOUND),
		BYTES(HEAD("\x10", "\0", "\0", "\0\1", "\x09", "\0") "Not found"));
	expect_binary(0x10, "", "", 0, "",
		REPLY(.status = STATUS_TEXT, .text = SLICE_LITERAL("framed")), "framed", 6);
	expect_binary(0x77, "", "", 0, "", REPLY(.status = STATUS_OK),
		BYTES(HEAD("\x77", "\0", "\0", "\0\x81", "\x0f", "\0") "Unknown command"));
	expect_binary(0x00, "", "", 0, "", REPLY(.status = STATUS_OK),
		BYTES(HEAD("\x00", "\0", "\0", "\0\4", "\x11", "\0") "Invalid arguments"));
}

/* Short values stand beside their header in one iovec, long ones are referred to. */
static void
test_pieces(void **state)
{
	static struct answer answer;
	static uint8_t value[3000];
	struct slice pieces[2] = {{value, 512}, {value + 1000, 700}};
	struct reply reply = {
		.status = STATUS_HIT, .value_size = 512, .pieces = pieces, .piece_count = 1};

	(void)state;
	memset(value, 'v', sizeof value);
	compose(&answer, "get a\r\n", 7, &reply);
	assert_int_equal(answer.out.piece_used, 1);
	reply.value_size = pieces[0].size = 513;
	compose(&answer, "get a\r\n", 7, &reply);
	assert_int_equal(answer.out.piece_used, 3);
	assert_ptr_equal(answer.pieces[1].iov_base, value);
	reply.piece_count = 2;
	reply.value_size = 513 + 700;
	compose(&answer, "get a\r\n", 7, &reply);
	assert_int_equal(answer.out.piece_used, 4);
	assert_int_equal(answer.size, strlen("VALUE a 0 1213\r\n\r\nEND\r\n") + 1213);
	/* Text never joins another connection's iovec. */
	answer_begin(&answer);
	reply_put(&answer.out, "one", 3);
	reply_put(&answer.out, "two", 3);
	assert_int_equal(answer.out.piece_used, 1);
	answer.out.piece_first = answer.out.piece_used;
	answer.out.bytes = 0;
	reply_put(&answer.out, "three", 5);
	reply_put(&answer.out, "", 0);
	reply_refer(&answer.out, "four", 4);
	assert_int_equal(answer.out.piece_used, 2);
	assert_int_equal(answer.out.bytes, 9);
	/* A reference is copied only where there is room. */
	answer.out.text_used = answer.out.text_size - 2;
	reply_refer(&answer.out, "five", 4);
	assert_int_equal(answer.out.piece_used, 3);
	/* Bytes that stand right behind a reference don't lengthen it. */
	answer_begin(&answer);
	reply_refer(&answer.out, value, 1000);
	answer.out.text = value + 1000;
	answer.out.text_size = 1000;
	reply_put(&answer.out, "text", 4);
	assert_int_equal(answer.out.piece_used, 2);
}

static void
test_decimals(void **state)
{
	(void)state;
	for (uint64_t power = 1; power; power = power > UINT64_MAX / 10 ? 0 : power * 10) {
		const uint64_t numbers[] = {power - 1, power, power + 1};

		for (int i = 0; i < 3; i++) {
			char expected[32];
			uint8_t digits[32];
			int size = snprintf(
				expected, sizeof expected, "%llu", (unsigned long long)numbers[i]);

			assert_int_equal(compose_decimal(digits, numbers[i]) - digits, size);
			assert_memory_equal(digits, expected, (size_t)size);
			assert_int_equal(compose_decimal_size(numbers[i]), size);
		}
	}
	uint8_t line[COMPOSE_VALUE_LINE_MAX];

	assert_int_equal(compose_value_line(line, (const uint8_t *)K250, 250, UINT32_MAX,
				 UINT64_MAX, 1, UINT64_MAX) -
				 line,
		COMPOSE_VALUE_LINE_MAX);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_meta_get),
		cmocka_unit_test(test_meta_change),
		cmocka_unit_test(test_meta_inspect),
		cmocka_unit_test(test_meta_longest),
		cmocka_unit_test(test_binary_fetch),
		cmocka_unit_test(test_binary_change),
		cmocka_unit_test(test_binary_admin),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_decimals),
	};

	return cmocka_run_group_tests_name("proto_compose", tests, NULL, NULL);
}
