/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * plain: one space between words, numbers without a sign, nothing behind them but noreply, a body
 * that stands in the window, and nothing wrong. Such a line is cut in one pass; whatever else comes
 * is left to text.c, which knows all forms and makes of the plain one just what is made here.
 *
 *	set key 0 60 5\r\nhello\r\n
 *	    ^   ^ ^  ^^   ^
 */
#include "proto/plain.h"

#include "proto/parse.h"
#include "proto/scan_hd.h"

struct plain_word {
	uint8_t command, verb, mode;
	uint8_t size; /* with the space behind it */
};

/* Bytes of a connection: a line starts at data, at is behind its word. */
struct plain_line {
	const uint8_t *data;
	const uint8_t *at;
	const uint8_t *end;
};

/*
 * The takers return where what they take ends, the byte that stops it being one of the window; or
 * NULL, and then what they wrote to the request doesn't count.
 */

/* The key that starts at 'at' and that 'stop' ends, a space or the '\n'. */
static inline const uint8_t *
key_take(struct request *request, const uint8_t *at, const uint8_t *end, uint8_t stop)
{
	const uint8_t *found = scan_key_end(at, end);

	if (found == end || *found != stop)
		return NULL;
	size_t size = (size_t)((stop == '\n' ? scan_line_end(at, found) : found) - at);

	if (size - 1 >= KEY_SIZE_MAX)
		return NULL;
	request->key = at;
	request->key_size = (uint8_t)size;
	return found;
}

/* The number behind the space that should stand at 'at'. */
static inline const uint8_t *
number_take(const uint8_t *at, const uint8_t *end, uint64_t *number)
{
	return *at == ' ' && at + 1 < end ? scan_digits(at + 1, end, number) : NULL;
}

/* The line's end, with noreply before it or without; where the next line starts, or the body. */
static inline const uint8_t *
line_end_take(struct request *request, const uint8_t *at, const uint8_t *end)
{
	if (*at == ' ') {
		if (end - at <= 8 || hd_load64(at) != LITERAL_PACK(" noreply"))
			return NULL;
		request->options |= REQUEST_NOREPLY;
		at += 8;
	}
	if (*at == '\r' && ++at == end)
		return NULL;
	return *at == '\n' ? at + 1 : NULL;
}

/* set KEY FLAGS EXPTIME BYTES [noreply] and its like */
static inline const uint8_t *
store_take(const struct plain_word *word, const struct plain_line *line,
	const struct parse_limits *limits, struct request *request)
{
	const uint8_t *end = line->end, *at;
	uint64_t number;

	request_begin(request, PROTOCOL_TEXT, word->command, VERB_STORE, word->mode);
	if (!(at = key_take(request, line->at, end, ' ')) ||
		!(at = number_take(at, end, &number)) || number > UINT32_MAX)
		return NULL;
	request->client_flags = (uint32_t)number;
	if (!(at = number_take(at, end, &number)))
		return NULL;
	request->exptime = (int32_t)(uint32_t)number;
	if (!(at = number_take(at, end, &number)) || number > BODY_SIZE_MAX ||
		number > limits->value_bytes_max)
		return NULL;
	if (!(at = line_end_take(request, at, end)) || number + 2 > (size_t)(end - at))
		return NULL;
	request->body_size = number;
	request->value = slice_make(at, number);
	at += number;
	if ((size_t)(at + 2 - line->data) > limits->window_bytes_max || !hd_equal(at, "\r\n", 2))
		return NULL;
	return at + 2;
}

/* touch KEY EXPTIME [noreply], incr KEY N [noreply], decr KEY N [noreply] */
static inline const uint8_t *
change_take(const struct plain_word *word, const struct plain_line *line, struct request *request)
{
	const uint8_t *end = line->end, *at;
	uint64_t number;

	request_begin(request, PROTOCOL_TEXT, word->command, word->verb, word->mode);
	if (!(at = key_take(request, line->at, end, ' ')) || !(at = number_take(at, end, &number)))
		return NULL;
	if (word->verb == VERB_TOUCH) {
		request->options = REQUEST_TTL;
		request->exptime = (int32_t)(uint32_t)number;
	} else {
		request->delta = number;
	}
	return line_end_take(request, at, end);
}

/* gat EXPTIME KEY; line->at is behind a space */
static inline const uint8_t *
gat_take(const struct plain_line *line, struct request *request)
{
	const uint8_t *end = line->end, *at;
	uint64_t number;

	if (!(at = number_take(line->at - 1, end, &number)) || *at != ' ')
		return NULL;
	request_begin_fetch(
		request, COMMAND_GAT, REQUEST_VALUE_WANTED | REQUEST_LAST | REQUEST_TTL, NULL, 0);
	request->exptime = (int32_t)(uint32_t)number;
	at = key_take(request, at + 1, end, '\n');
	return at ? at + 1 : NULL;
}

/*
 * Which of its commands the line, whose first eight bytes are packed, starts with; COMMAND_NONE for
 * another.
 */
static inline __attribute__((always_inline)) struct plain_word
word_take(uint64_t packed)
{
#define WORD(name, text, verb, mode)                                                               \
	if ((packed & ~(uint64_t)0 >> (64 - 8 * sizeof(text))) == LITERAL_PACK(text " "))          \
		return (struct plain_word){COMMAND_##name, VERB_##verb, MODE_##mode, sizeof(text)};
	WORD(SET, "set", STORE, SET)
	WORD(GAT, "gat", FETCH, NONE)
	WORD(TOUCH, "touch", TOUCH, NONE)
	WORD(INCR, "incr", ARITHMETIC, INCREMENT)
	WORD(DECR, "decr", ARITHMETIC, DECREMENT)
	WORD(ADD, "add", STORE, ADD)
	WORD(REPLACE, "replace", STORE, REPLACE)
	WORD(APPEND, "append", STORE, APPEND)
	WORD(PREPEND, "prepend", STORE, PREPEND)
#undef WORD
	return (struct plain_word){COMMAND_NONE, VERB_REFUSE, MODE_NONE, 0};
}

bool
plain_parse(const struct parse_limits *limits, const uint8_t *data, size_t size, size_t *consumed,
	struct request *request)
{
	const uint8_t *next = NULL;

	if (size < 8)
		return false;
	struct plain_word word = word_take(hd_load64(data));
	struct plain_line line = {data, data + word.size, data + size};

	switch (word.verb) {
	case VERB_STORE:
		next = store_take(&word, &line, limits, request);
		break;
	case VERB_FETCH:
		next = gat_take(&line, request);
		break;
	case VERB_TOUCH:
	case VERB_ARITHMETIC:
		next = change_take(&word, &line, request);
		break;
	default:
		break;
	}
	if (!next)
		return false;
	*consumed = (size_t)(next - data);
	return true;
}
