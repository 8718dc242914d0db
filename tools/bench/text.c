/* SPDX-License-Identifier: BSD-2-Clause */
/* The classic text protocol. */
#include "digits.h"
#include "protocol.h"

#include <string.h>

#define LINE_MAX_SIZE 2048

static size_t
get_size_max(const struct workload *workload, unsigned keys)
{
	return sizeof "get\r\n" + keys * ((size_t)workload->key_size + 1);
}

static size_t
request_size_max(const struct workload *workload)
{
	return sizeof "append    \r\n\r\n" + workload->key_size + 3 * DIGITS_MAX;
}

static char *
write_get(const struct workload *workload, char *at, const uint32_t *keys, unsigned count)
{
	memcpy(at, "get", 3);
	at += 3;
	for (unsigned i = 0; i < count; i++) {
		*at++ = ' ';
		workload_write_key(workload, at, keys[i]);
		at += workload->key_size;
	}
	memcpy(at, "\r\n", 2);
	return at + 2;
}

static char *
write_gets(const struct workload *workload, char *at, const uint32_t *keys, unsigned count)
{
	const size_t size = workload->key_size;

	for (unsigned i = 0; i < count; i++) {
		memcpy(at, "get ", 4);
		workload_write_key(workload, at + 4, keys[i]);
		memcpy(at + 4 + size, "\r\n", 2);
		at += 4 + size + 2;
	}
	return at;
}

static char *
write_word(char *at, const char *word, size_t size)
{
	memcpy(at, word, size);
	return at + size;
}

#define WRITE_WORD(at, word) write_word(at, word, sizeof(word) - 1)

static char *
write_key(const struct workload *workload, char *at, uint32_t key)
{
	workload_write_key(workload, at, key);
	return at + workload->key_size;
}

static char *
write_store(
	const struct workload *workload, char *at, const struct request *request, bool is_append)
{
	uint64_t size = workload_value_size(workload, request->key, request->version);

	at = is_append ? WRITE_WORD(at, "append ") : WRITE_WORD(at, "set ");
	at = write_key(workload, at, request->key);
	if (workload->flags == 0 && request->ttl == 0) {
		at = WRITE_WORD(at, " 0 0 ");
	} else {
		*at++ = ' ';
		at = digits_write(at, workload->flags);
		*at++ = ' ';
		at = digits_write(at, request->ttl);
		*at++ = ' ';
	}
	if (workload->size_mask && !(request->key & WORKLOAD_COUNTER)) {
		memcpy(at, &workload->size_line, sizeof workload->size_line);
		at += workload->size_digits + 2;
	} else {
		at = digits_write(at, size);
		at = WRITE_WORD(at, "\r\n");
	}
	workload_write_value(workload, at, size, request->key, request->version);
	return WRITE_WORD(at + size, "\r\n");
}

static char *
write(const struct workload *workload, char *at, const struct request *request)
{
	switch (request->operation) {
	case OPERATION_GET:
		return write_get(workload, at, &request->key, 1);
	case OPERATION_SET:
		return write_store(workload, at, request, false);
	case OPERATION_APPEND:
		return write_store(workload, at, request, true);
	case OPERATION_GAT:
		at = digits_write(WRITE_WORD(at, "gat "), request->ttl);
		*at++ = ' ';
		at = write_key(workload, at, request->key);
		break;
	case OPERATION_TOUCH:
		at = write_key(workload, WRITE_WORD(at, "touch "), request->key);
		*at++ = ' ';
		at = digits_write(at, request->ttl);
		break;
	case OPERATION_INCR:
		at = write_key(workload, WRITE_WORD(at, "incr "), request->key);
		at = WRITE_WORD(at, " 1");
		break;
	default:
		at = write_key(workload, WRITE_WORD(at, "delete "), request->key);
		break;
	}
	return WRITE_WORD(at, "\r\n");
}

static bool
starts(const struct reply *reply, const char *word)
{
	size_t size = strlen(word);

	return reply->line_size >= size && memcmp(reply->line, word, size) == 0;
}

static bool
is(const struct reply *reply, const char *word)
{
	return reply->line_size == strlen(word) && starts(reply, word);
}

/* The reply that a line alone is, as far as the operation can be answered so. */
static enum reply_kind
kind_of_line(struct reply *reply, enum operation operation)
{
	uint64_t number;

	if (starts(reply, "SERVER_ERROR out of memory") ||
		starts(reply, "SERVER_ERROR Out of memory"))
		return REPLY_REFUSED;
	if (starts(reply, "ERROR") || starts(reply, "CLIENT_ERROR") ||
		starts(reply, "SERVER_ERROR"))
		return REPLY_ERROR;
	switch (operation) {
	case OPERATION_GET:
	case OPERATION_GAT:
		return is(reply, "END") ? REPLY_END : REPLY_BROKEN;
	case OPERATION_SET:
	case OPERATION_APPEND:
		if (is(reply, "STORED"))
			return REPLY_DONE;
		return is(reply, "NOT_STORED") ? REPLY_NOT_STORED : REPLY_BROKEN;
	case OPERATION_TOUCH:
		if (is(reply, "TOUCHED"))
			return REPLY_DONE;
		break;
	case OPERATION_DELETE:
		if (is(reply, "DELETED"))
			return REPLY_DONE;
		break;
	default:
		reply->value = reply->line;
		reply->value_size = reply->line_size;
		if (digits_read(reply->line, reply->line + reply->line_size, &number))
			return REPLY_NUMBER;
	}
	return is(reply, "NOT_FOUND") ? REPLY_MISS : REPLY_BROKEN;
}

/* "VALUE key flags size": the key, the flags and the size. */
static bool
read_value_line(struct reply *reply)
{
	const char *at = reply->line + 6;
	const char *end = reply->line + reply->line_size;
	const char *key_end = memchr(at, ' ', (size_t)(end - at));
	const char *flags_end =
		key_end ? memchr(key_end + 1, ' ', (size_t)(end - key_end - 1)) : NULL;
	uint64_t flags;

	if (!flags_end || !digits_read(key_end + 1, flags_end, &flags) || flags > UINT32_MAX ||
		!digits_read(flags_end + 1, end, &reply->value_size) ||
		reply->value_size > UINT32_MAX)
		return false;
	reply->key = at;
	reply->key_size = (uint64_t)(key_end - at);
	reply->flags = (uint32_t)flags;
	return true;
}

static size_t
parse(const char *at, size_t size, enum operation operation, unsigned keys, struct reply *reply,
	size_t *wanted)
{
	const char *newline = memchr(at, '\n', size < LINE_MAX_SIZE ? size : LINE_MAX_SIZE);

	(void)keys;
	*wanted = 0;
	if (!newline && size < LINE_MAX_SIZE)
		return 0;
	reply->line = at;
	reply->line_size = newline ? (size_t)(newline - at) : LINE_MAX_SIZE;
	reply->kind = REPLY_BROKEN;
	reply->last = true;
	if (!newline || newline == at || newline[-1] != '\r')
		return newline ? reply->line_size + 1 : reply->line_size;
	reply->line_size--;
	size_t line_end = (size_t)(newline + 1 - at);
	bool is_read = operation == OPERATION_GET || operation == OPERATION_GAT;
	if (!is_read || !starts(reply, "VALUE ")) {
		reply->kind = kind_of_line(reply, operation);
		return line_end;
	}
	if (!read_value_line(reply))
		return line_end;
	size_t whole = line_end + reply->value_size + 2;
	if (size < whole) {
		*wanted = whole;
		return 0;
	}
	reply->value = at + line_end;
	reply->last = false;
	if (memcmp(reply->value + reply->value_size, "\r\n", 2) == 0)
		reply->kind = REPLY_VALUE;
	return whole;
}

static uint64_t
load(const char *at)
{
	uint64_t bytes;

	memcpy(&bytes, at, sizeof bytes);
	return bytes;
}

/*
 * "VALUE key flags size\r\n" the value "\r\nEND\r\n". Where all values have one size, what stands
 * behind the key is compared by eight bytes at a time.
 */
static size_t
match(const struct workload *workload, const char *at, size_t size, uint32_t key,
	const char **value, uint64_t *value_size)
{
	const size_t head = 6 + workload->key_size + 3; /* before the digits of the size */
	const char *digits = at + head;
	const char *end = at + size;
	uint64_t length = workload->value_size_max;
	size_t digits_size = workload->size_digits;

	/* At least the shortest: a size of one digit, no value. */
	if (size < head + 1 + 2 + 7 || workload->flags || memcmp(at, "VALUE ", 6) != 0 ||
		memcmp(digits - 3, " 0 ", 3) != 0 || !workload_is_key(workload, at + 6, key))
		return 0;
	if (!workload->size_mask || (load(digits) & workload->size_mask) != workload->size_line) {
		const char *digit = digits;
		length = 0;
		while (*digit != '\r') {
			unsigned next = (unsigned char)*digit++ - (unsigned)'0';
			if (next > 9 || length > UINT32_MAX / 10 || end - digit < 2 + 7)
				return 0;
			length = length * 10 + next;
		}
		digits_size = (size_t)(digit - digits);
		if (digits_size == 0 || digit[1] != '\n')
			return 0;
	}
	size_t whole = head + digits_size + 2 + length + 7;
	if (size < whole || memcmp(at + whole - 7, "\r\nEND\r\n", 7) != 0)
		return 0;
	*value = digits + digits_size + 2;
	*value_size = length;
	return whole;
}

/*
 * All answers have one length. Of each, all bytes beside the value are compared, eight at a time:
 *
 *     VALUE key 0 size\r\n value \r\nEND\r\n
 */
static unsigned
match_run(const struct workload *workload, const char *at, size_t size, const uint32_t *keys,
	unsigned count, struct value *values, size_t *used)
{
	const uint64_t value_size = workload->value_size_max;
	const size_t line_end = workload->size_digits + 2;
	const size_t head = 6 + workload->key_size + 3;
	const size_t whole = head + line_end + value_size + 7;
	const uint64_t size_line = workload->size_line;
	const uint64_t size_mask = workload->size_mask;
	const uint64_t begin = load("VALUE \0") & ~UINT64_C(0) >> 16;
	const uint64_t end = load("\0\r\nEND\r\n") >> 8;
	const uint32_t flags = '0' << 8 | ' ' << 16 | ' ';
	unsigned i = 0;

	if (!size_mask || workload->flags)
		return 0;
	if (count > size / whole)
		count = (unsigned)(size / whole);
	for (; i < count; i++, at += whole) {
		const char *digits = at + head;
		uint32_t between;
		memcpy(&between, digits - 4, sizeof between);
		uint64_t difference = (load(at) & ~UINT64_C(0) >> 16) ^ begin;
		difference |= (between >> 8) ^ flags;
		difference |= (load(digits) & size_mask) ^ size_line;
		difference |= (load(at + whole - 8) >> 8) ^ end;
		if (difference || !workload_is_key(workload, at + 6, keys[i]))
			break;
		values[i] = (struct value){digits + line_end, value_size};
	}
	*used = i * whole;
	return i;
}

static const struct protocol text = {
	.name = "text",
	.get_size_max = get_size_max,
	.request_size_max = request_size_max,
	.write_get = write_get,
	.write_gets = write_gets,
	.write = write,
	.parse = parse,
	.match = match,
	.match_run = match_run,
	.stored = "STORED\r\n",
	.stored_size = 8,
};

const struct protocol *
protocol_text(void)
{
	return &text;
}
