/* SPDX-License-Identifier: BSD-2-Clause */
/* The classic text protocol. */
#include "protocol.h"

#include <string.h>

#define LINE_MAX_SIZE 2048
#define NUMBER_MAX_SIZE 20

static size_t
get_size_max(const struct workload *workload, unsigned keys)
{
	return sizeof "get\r\n" + keys * ((size_t)workload->key_size + 1);
}

static size_t
request_size_max(const struct workload *workload)
{
	return sizeof "append    \r\n\r\n" + workload->key_size + 3 * NUMBER_MAX_SIZE;
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
write_word(char *at, const char *word, size_t size)
{
	memcpy(at, word, size);
	return at + size;
}

#define WRITE_WORD(at, word) write_word(at, word, sizeof word - 1)

static char *
write_number(char *at, uint64_t number)
{
	char digits[NUMBER_MAX_SIZE];
	unsigned count = 0;

	do
		digits[count++] = (char)('0' + number % 10);
	while (number /= 10);
	while (count)
		*at++ = digits[--count];
	return at;
}

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
		at = write_number(at, workload->flags);
		*at++ = ' ';
		at = write_number(at, request->ttl);
		*at++ = ' ';
	}
	at = write_number(at, size);
	at = WRITE_WORD(at, "\r\n");
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
		at = write_number(WRITE_WORD(at, "gat "), request->ttl);
		*at++ = ' ';
		at = write_key(workload, at, request->key);
		break;
	case OPERATION_TOUCH:
		at = write_key(workload, WRITE_WORD(at, "touch "), request->key);
		*at++ = ' ';
		at = write_number(at, request->ttl);
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

/* Reads digits up to end; false when there are none or they are followed by something else. */
static bool
read_number(const char *at, const char *end, uint64_t *number)
{
	uint64_t n = 0;

	if (at == end || end - at > 19)
		return false;
	for (; at < end; at++) {
		if (*at < '0' || *at > '9')
			return false;
		n = n * 10 + (uint64_t)(*at - '0');
	}
	*number = n;
	return true;
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
		if (read_number(reply->line, reply->line + reply->line_size, &number))
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

	if (!flags_end || !read_number(key_end + 1, flags_end, &flags) || flags > UINT32_MAX ||
		!read_number(flags_end + 1, end, &reply->value_size) ||
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

/* "VALUE key flags size\r\n" the value "\r\nEND\r\n" */
static size_t
match(const struct workload *workload, const char *at, size_t size, uint32_t key,
	const char **value, uint64_t *value_size)
{
	char expected[WORKLOAD_KEY_SIZE_MAX];
	size_t key_size = workload->key_size;
	size_t head = 6 + key_size + 3; /* before the digits of the size */
	uint64_t length = 0;

	if (workload->flags || size < head + 3 || memcmp(at, "VALUE ", 6) != 0)
		return 0;
	workload_write_key(workload, expected, key);
	if (memcmp(at + 6, expected, key_size) != 0 || memcmp(at + 6 + key_size, " 0 ", 3) != 0)
		return 0;
	const char *digit = at + head;
	const char *end = at + size;
	do {
		if (*digit < '0' || *digit > '9' || length > UINT32_MAX)
			return 0;
		length = length * 10 + (uint64_t)(*digit - '0');
	} while (++digit < end && *digit != '\r');
	if ((uint64_t)(end - digit) < 2 + length + 7 || digit[1] != '\n' ||
		memcmp(digit + 2 + length, "\r\nEND\r\n", 7) != 0)
		return 0;
	*value = digit + 2;
	*value_size = length;
	return (size_t)(digit + 2 + length + 7 - at);
}

static const struct protocol text = {
	.name = "text",
	.get_size_max = get_size_max,
	.request_size_max = request_size_max,
	.write_get = write_get,
	.write = write,
	.parse = parse,
	.match = match,
	.stored = "STORED\r\n",
	.stored_size = 8,
};

const struct protocol *
protocol_text(void)
{
	return &text;
}
