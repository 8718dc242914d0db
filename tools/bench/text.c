/* SPDX-License-Identifier: BSD-2-Clause */
/* The classic text protocol: get and set. */
#include "protocol.h"

#include <string.h>

#define LINE_MAX_SIZE 2048
#define NUMBER_MAX_SIZE 20

static size_t
get_size_max(const struct workload *workload, unsigned keys)
{
	return sizeof "get\r\n" + keys * (workload->key_size + 1);
}

static size_t
set_size_max(const struct workload *workload)
{
	return sizeof "set  0 0 \r\n\r\n" + workload->key_size + NUMBER_MAX_SIZE;
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
write_set(const struct workload *workload, char *at, uint32_t key, uint32_t version)
{
	uint64_t size = workload_value_size(workload, key, version);

	memcpy(at, "set ", 4);
	at += 4;
	workload_write_key(workload, at, key);
	at += workload->key_size;
	memcpy(at, " 0 0 ", 5);
	at = write_number(at + 5, size);
	memcpy(at, "\r\n", 2);
	at += 2;
	workload_write_value(workload, at, size, key, version);
	at += size;
	memcpy(at, "\r\n", 2);
	return at + 2;
}

static bool
starts(const struct reply *reply, const char *word)
{
	size_t size = strlen(word);

	return reply->line_size >= size && memcmp(reply->line, word, size) == 0;
}

static enum reply_kind
kind_of_line(const struct reply *reply)
{
	if (reply->line_size == 3 && memcmp(reply->line, "END", 3) == 0)
		return REPLY_END;
	if (reply->line_size == 6 && memcmp(reply->line, "STORED", 6) == 0)
		return REPLY_STORED;
	if (reply->line_size == 10 && memcmp(reply->line, "NOT_STORED", 10) == 0)
		return REPLY_NOT_STORED;
	if (starts(reply, "SERVER_ERROR out of memory") ||
		starts(reply, "SERVER_ERROR Out of memory"))
		return REPLY_REFUSED;
	if (starts(reply, "ERROR") || starts(reply, "CLIENT_ERROR") ||
		starts(reply, "SERVER_ERROR"))
		return REPLY_ERROR;
	return REPLY_BROKEN;
}

/* Reads digits up to end; false when there are none or they are followed by something else. */
static bool
read_number(const char *at, const char *end, uint64_t *number)
{
	uint64_t n = 0;

	if (at == end || end - at > 10)
		return false;
	for (; at < end; at++) {
		if (*at < '0' || *at > '9')
			return false;
		n = n * 10 + (uint64_t)(*at - '0');
	}
	*number = n;
	return true;
}

/* "VALUE key flags size": the key and the size. */
static bool
read_value_line(struct reply *reply)
{
	const char *at = reply->line + 6;
	const char *end = reply->line + reply->line_size;
	const char *key_end = memchr(at, ' ', (size_t)(end - at));
	const char *flags_end =
		key_end ? memchr(key_end + 1, ' ', (size_t)(end - key_end - 1)) : NULL;
	uint64_t flags;

	if (!flags_end || !read_number(key_end + 1, flags_end, &flags) ||
		!read_number(flags_end + 1, end, &reply->value_size))
		return false;
	reply->key = at;
	reply->key_size = (uint64_t)(key_end - at);
	/* This tool sets no flags, so others are as wrong as a byte of the value. */
	return flags == 0;
}

static size_t
parse(const char *at, size_t size, struct reply *reply, size_t *wanted)
{
	const char *newline = memchr(at, '\n', size < LINE_MAX_SIZE ? size : LINE_MAX_SIZE);

	*wanted = 0;
	if (!newline && size < LINE_MAX_SIZE)
		return 0;
	reply->line = at;
	reply->line_size = newline ? (size_t)(newline - at) : LINE_MAX_SIZE;
	reply->kind = REPLY_BROKEN;
	if (!newline || newline == at || newline[-1] != '\r')
		return reply->line_size + 1;
	reply->line_size--;
	size_t line_end = (size_t)(newline + 1 - at);
	if (!starts(reply, "VALUE ")) {
		reply->kind = kind_of_line(reply);
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
	if (memcmp(reply->value + reply->value_size, "\r\n", 2) == 0)
		reply->kind = REPLY_VALUE;
	return whole;
}

static const struct protocol text = {
	.name = "text",
	.get_size_max = get_size_max,
	.set_size_max = set_size_max,
	.write_get = write_get,
	.write_set = write_set,
	.parse = parse,
};

const struct protocol *
protocol_text(void)
{
	return &text;
}
