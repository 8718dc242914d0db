/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The meta protocol. A get of several keys is as many quiet mg, which answer hits only, and an mn,
 * whose answer says that all are done.
 */
#include "digits.h"
#include "protocol.h"

#include <string.h>

#define LINE_MAX_SIZE 2048
#define READ_FLAGS " f k v"

static size_t
get_size_max(const struct workload *workload, unsigned keys)
{
	return keys * (sizeof "mg " READ_FLAGS " q\r\n" + workload->key_size) + sizeof "mn\r\n";
}

static size_t
request_size_max(const struct workload *workload)
{
	return sizeof "mg " READ_FLAGS " F T \r\n\r\n" + workload->key_size + 3 * DIGITS_MAX;
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
write_get(const struct workload *workload, char *at, const uint32_t *keys, unsigned count)
{
	if (count == 1) {
		at = write_key(workload, WRITE_WORD(at, "mg "), keys[0]);
		return WRITE_WORD(at, READ_FLAGS "\r\n");
	}
	for (unsigned i = 0; i < count; i++) {
		at = write_key(workload, WRITE_WORD(at, "mg "), keys[i]);
		at = WRITE_WORD(at, READ_FLAGS " q\r\n");
	}
	return WRITE_WORD(at, "mn\r\n");
}

/* Pieces of constant size, so that they are moved by plain instructions. */
static char *
write_gets(const struct workload *workload, char *at, const uint32_t *keys, unsigned count)
{
	const size_t size = workload->key_size;

	for (unsigned i = 0; i < count; i++) {
		memcpy(at, "mg ", 3);
		workload_write_key(workload, at + 3, keys[i]);
		memcpy(at + 3 + size, READ_FLAGS "\r\n", sizeof READ_FLAGS + 1);
		at += 3 + size + sizeof READ_FLAGS + 1;
	}
	return at;
}

static char *
write_ttl(char *at, uint32_t ttl)
{
	return digits_write(WRITE_WORD(at, " T"), ttl);
}

static char *
write_store(const struct workload *workload, char *at, const struct request *request)
{
	uint64_t size = workload_value_size(workload, request->key, request->version);

	at = write_key(workload, WRITE_WORD(at, "ms "), request->key);
	*at++ = ' ';
	at = digits_write(at, size);
	if (request->operation == OPERATION_APPEND) {
		at = WRITE_WORD(at, " MA");
	} else {
		if (workload->flags)
			at = digits_write(WRITE_WORD(at, " F"), workload->flags);
		if (request->ttl)
			at = write_ttl(at, request->ttl);
	}
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
	case OPERATION_APPEND:
		return write_store(workload, at, request);
	case OPERATION_GAT:
		at = write_key(workload, WRITE_WORD(at, "mg "), request->key);
		at = write_ttl(WRITE_WORD(at, READ_FLAGS), request->ttl);
		break;
	case OPERATION_TOUCH:
		at = write_key(workload, WRITE_WORD(at, "mg "), request->key);
		at = write_ttl(at, request->ttl);
		break;
	case OPERATION_INCR:
		at = write_key(workload, WRITE_WORD(at, "ma "), request->key);
		at = WRITE_WORD(at, " v");
		break;
	default:
		at = write_key(workload, WRITE_WORD(at, "md "), request->key);
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
kind_of_line(const struct reply *reply, enum operation operation, bool several)
{
	if (starts(reply, "SERVER_ERROR out of memory") ||
		starts(reply, "SERVER_ERROR Out of memory"))
		return REPLY_REFUSED;
	if (starts(reply, "ERROR") || starts(reply, "CLIENT_ERROR") ||
		starts(reply, "SERVER_ERROR"))
		return REPLY_ERROR;
	switch (operation) {
	case OPERATION_GET:
	case OPERATION_GAT:
		/* Newer servers give the key of a miss back. */
		if (several ? is(reply, "MN") : is(reply, "EN") || starts(reply, "EN k"))
			return REPLY_END;
		return REPLY_BROKEN;
	case OPERATION_SET:
	case OPERATION_APPEND:
		if (is(reply, "HD"))
			return REPLY_DONE;
		return is(reply, "NS") ? REPLY_NOT_STORED : REPLY_BROKEN;
	case OPERATION_TOUCH:
		if (is(reply, "HD"))
			return REPLY_DONE;
		return is(reply, "EN") ? REPLY_MISS : REPLY_BROKEN;
	case OPERATION_DELETE:
		if (is(reply, "HD"))
			return REPLY_DONE;
		break;
	default:
		break;
	}
	return is(reply, "NF") ? REPLY_MISS : REPLY_BROKEN;
}

/* "VA size" and what was asked for: of a read its flags and key, each once. */
static bool
read_value_line(struct reply *reply, bool is_read)
{
	const char *at = reply->line + 3;
	const char *end = reply->line + reply->line_size;
	bool has_flags = false;
	uint64_t number;

	reply->key = NULL;
	for (bool first = true; at <= end; first = false) {
		const char *space = memchr(at, ' ', (size_t)(end - at));
		const char *word_end = space ? space : end;
		if (first) {
			if (!digits_read(at, word_end, &number) || number > UINT32_MAX)
				return false;
			reply->value_size = number;
		} else if (word_end - at > 1 && *at == 'f' && !has_flags) {
			if (!digits_read(at + 1, word_end, &number) || number > UINT32_MAX)
				return false;
			reply->flags = (uint32_t)number;
			has_flags = true;
		} else if (word_end - at > 1 && *at == 'k' && !reply->key) {
			reply->key = at + 1;
			reply->key_size = (uint64_t)(word_end - at - 1);
		} else {
			return false;
		}
		at = word_end + 1;
	}
	return is_read ? has_flags && reply->key : !has_flags && !reply->key;
}

static size_t
parse(const char *at, size_t size, enum operation operation, unsigned keys, struct reply *reply,
	size_t *wanted)
{
	const char *newline = memchr(at, '\n', size < LINE_MAX_SIZE ? size : LINE_MAX_SIZE);
	bool is_read = operation == OPERATION_GET || operation == OPERATION_GAT;
	bool several = operation == OPERATION_GET && keys > 1;

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
	if (!starts(reply, "VA ") || (!is_read && operation != OPERATION_INCR)) {
		reply->kind = kind_of_line(reply, operation, several);
		/* An error answers one mg of several; the mn is answered all the same. */
		reply->last = !several || reply->kind == REPLY_END || reply->kind == REPLY_BROKEN;
		return line_end;
	}
	if (!read_value_line(reply, is_read))
		return line_end;
	size_t whole = line_end + reply->value_size + 2;
	if (!is_read && reply->value_size > DIGITS_MAX)
		return line_end;
	if (size < whole) {
		*wanted = whole;
		return 0;
	}
	reply->value = at + line_end;
	reply->last = !several;
	if (memcmp(reply->value + reply->value_size, "\r\n", 2) != 0)
		return whole;
	uint64_t number;
	if (is_read)
		reply->kind = REPLY_VALUE;
	else if (digits_read(reply->value, reply->value + reply->value_size, &number))
		reply->kind = REPLY_NUMBER;
	return whole;
}

/* "VA size f0 kKEY\r\n" the value "\r\n" */
static size_t
match(const struct workload *workload, const char *at, size_t size, uint32_t key,
	const char **value, uint64_t *value_size)
{
	const size_t key_size = workload->key_size;
	const char *end = at + size;
	const char *digit = at + 3;
	uint64_t length = 0;

	if (workload->flags || size < 4 || memcmp(at, "VA ", 3) != 0)
		return 0;
	while (digit < end && *digit >= '0' && *digit <= '9' && length <= UINT32_MAX)
		length = length * 10 + (uint64_t)(*digit++ - '0');
	const char *from = digit + 5 + key_size + 2; /* the value */
	if (digit == at + 3 || (uint64_t)(end - digit) < 5 + key_size + 2 + length + 2 ||
		memcmp(digit, " f0 k", 5) != 0 || !workload_is_key(workload, digit + 5, key) ||
		memcmp(from - 2, "\r\n", 2) != 0 || memcmp(from + length, "\r\n", 2) != 0)
		return 0;
	*value = from;
	*value_size = length;
	return (size_t)(from + length + 2 - at);
}

static const struct protocol meta = {
	.name = "meta",
	.get_size_max = get_size_max,
	.request_size_max = request_size_max,
	.write_get = write_get,
	.write_gets = write_gets,
	.write = write,
	.parse = parse,
	.match = match,
	.stored = "HD\r\n",
	.stored_size = 4,
};

const struct protocol *
protocol_meta(void)
{
	return &meta;
}
