/* SPDX-License-Identifier: BSD-2-Clause */
#include "proto/text.h"

#include "base/check.h"
#include "proto/compose.h"
#include "proto/compose_hd.h"
#include "proto/meta.h"
#include "proto/parse.h"
#include "proto/plain.h"
#include "proto/scan_hd.h"

_Static_assert(SCAN_KEY_MAX == KEY_SIZE_MAX, "host and device agree on the longest key");

/*
 * Tokens of a line that any classic command looks at; of a longer line the rest is counted, and the
 * last one kept.
 */
#define TEXT_TOKENS 6

struct text_tokens {
	struct scan_token token[TEXT_TOKENS];
	struct scan_token last;
	size_t count;
};

/*
 * A command line: [at, end) is what follows the command word, next is the byte behind the line end.
 */
struct text_line {
	const uint8_t *at;
	const uint8_t *end;
	const uint8_t *next;
};

struct text_command {
	uint8_t verb;
	uint8_t mode;
};

static const struct text_command text_commands[COMMAND_COUNT] = {
#define COMMAND(name, text, verb, mode, sentence) [COMMAND_##name] = {VERB_##verb, MODE_##mode},
#include "proto/commands.def"
#undef COMMAND
	[COMMAND_NONE] = {VERB_REFUSE, MODE_NONE},
};

/*
 * The first eight bytes of a word as one number, like LITERAL_PACK's of a literal. Whole words are
 * loaded where [word, end) has them.
 */
static inline uint64_t
word_pack(const uint8_t *word, size_t size, const uint8_t *end)
{
	uint64_t packed = 0;

	if (size == 0)
		return 0;
	if (end - word >= 8) {
		packed = hd_load64(word);
		return size < 8 ? packed & ~(uint64_t)0 >> (64 - 8 * size) : packed;
	}
	for (size_t i = 0; i < size; i++)
		packed |= (uint64_t)word[i] << (8 * i);
	return packed;
}

/*
 * The rows of commands.def whose texts have this size, a constant: what is left of it are a few
 * comparisons of numbers.
 */
static inline __attribute__((always_inline)) enum command
command_of_size(size_t size, uint64_t packed)
{
#define COMMAND(name, text, verb, mode, sentence)                                                  \
	if (sizeof(text) - 1 == size && packed == LITERAL_PACK(text))                              \
		return COMMAND_##name;
#include "proto/commands.def"
#undef COMMAND
	return COMMAND_NONE;
}

/*
 * The row of commands.def whose text is the word; COMMAND_NONE for none. [word, end) may be read.
 */
static enum command
command_find(const uint8_t *word, size_t size, const uint8_t *end)
{
	uint64_t packed = word_pack(word, size, end);

	switch (size) {
	case 0:
	case 1:
		return COMMAND_NONE;
	case 2:
		return command_of_size(2, packed);
	case 3:
		return command_of_size(3, packed);
	case 4:
		return command_of_size(4, packed);
	case 5:
		return command_of_size(5, packed);
	case 6:
		return command_of_size(6, packed);
	case 7:
		return command_of_size(7, packed);
	case 8:
		return command_of_size(8, packed);
	default:
		break;
	}
#define COMMAND(name, text, verb, mode, sentence)                                                  \
	if (sizeof(text) - 1 > 8 && sizeof(text) - 1 == size &&                                    \
		hd_equal(word, text, sizeof(text) - 1))                                            \
		return COMMAND_##name;
#include "proto/commands.def"
#undef COMMAND
	return COMMAND_NONE;
}

static void
tokens_take(struct text_tokens *tokens, const struct text_line *line)
{
	const uint8_t *at = line->at;

	tokens->count = 0;
	tokens->last = (struct scan_token){line->end, 0};
	tokens->token[0] = tokens->last;
	for (;;) {
		struct scan_token token = scan_token_next(&at, line->end);

		if (token.size == 0)
			return;
		if (tokens->count < TEXT_TOKENS)
			tokens->token[tokens->count] = token;
		tokens->count++;
		tokens->last = token;
	}
}

static bool
token_is(const struct scan_token *token, const char *text, size_t size)
{
	return token->size == size && hd_equal(token->data, text, size);
}

/* Is the last token, which is not among the first 'least' ones, noreply? */
static bool
noreply_take(const struct text_tokens *tokens, size_t least, struct request *request)
{
	if (tokens->count <= least || !token_is(&tokens->last, "noreply", 7))
		return false;
	request->options |= REQUEST_NOREPLY;
	return true;
}

static bool
key_take(struct request *request, const struct scan_token *token)
{
	if (token->size > KEY_SIZE_MAX)
		return false;
	request->key = token->data;
	request->key_size = (uint8_t)token->size;
	return true;
}

/*
 * set KEY FLAGS EXPTIME BYTES [noreply], cas KEY FLAGS EXPTIME BYTES CAS [noreply]. True when BYTES
 * is known, so that the body can be swallowed whatever else is wrong; only then does noreply count.
 */
static bool
parse_store(struct request *request, const struct text_line *line)
{
	struct text_tokens tokens;
	uint64_t number;

	tokens_take(&tokens, line);
	if (tokens.count < 4 || !scan_decimal(tokens.token[3].data, tokens.token[3].size,
					BODY_SIZE_MAX, &request->body_size)) {
		request_refuse(request, STATUS_BAD_FORMAT);
		return false;
	}
	noreply_take(&tokens, 4, request);
	if (!key_take(request, &tokens.token[0]) ||
		!scan_decimal(tokens.token[1].data, tokens.token[1].size, UINT32_MAX, &number) ||
		!scan_exptime(tokens.token[2].data, tokens.token[2].size, &request->exptime)) {
		request_refuse(request, STATUS_BAD_FORMAT);
		return true;
	}
	request->client_flags = (uint32_t)number;
	if (request->command != COMMAND_CAS)
		return true;
	if (tokens.count < 5 || !scan_decimal(tokens.token[4].data, tokens.token[4].size,
					UINT64_MAX, &request->cas_compare))
		request_refuse(request, STATUS_BAD_FORMAT);
	else
		request->options |= REQUEST_CAS_COMPARE;
	return true;
}

/* incr KEY N [noreply], touch KEY EXPTIME [noreply] */
static void
parse_change(struct request *request, const struct text_line *line)
{
	struct text_tokens tokens;

	tokens_take(&tokens, line);
	if (tokens.count < 2) {
		request_refuse(request, STATUS_BAD_FORMAT);
		return;
	}
	noreply_take(&tokens, 1, request);
	if (!key_take(request, &tokens.token[0])) {
		request_refuse(request, STATUS_BAD_FORMAT);
	} else if (request->verb == VERB_TOUCH) {
		request->options |= REQUEST_TTL;
		if (!scan_exptime(tokens.token[1].data, tokens.token[1].size, &request->exptime))
			request_refuse(request, STATUS_BAD_EXPTIME);
	} else if (!scan_decimal(tokens.token[1].data, tokens.token[1].size, UINT64_MAX,
			   &request->delta)) {
		request_refuse(request, STATUS_BAD_DELTA);
	}
}

/* delete KEY [0] [noreply]: the time that a delete could once have is accepted as 0 only. */
static void
parse_delete(struct request *request, const struct text_line *line)
{
	struct text_tokens tokens;

	tokens_take(&tokens, line);
	if (tokens.count == 0) {
		request_refuse(request, STATUS_BAD_FORMAT);
		return;
	}
	size_t arguments = tokens.count - noreply_take(&tokens, 1, request);

	if (!key_take(request, &tokens.token[0]))
		request_refuse(request, STATUS_BAD_FORMAT);
	else if (arguments > 2 || (arguments == 2 && !token_is(&tokens.token[1], "0", 1)))
		request_refuse(request, STATUS_BAD_DELETE);
}

/* flush_all [DELAY] [noreply] */
static void
parse_flush(struct request *request, const struct text_line *line)
{
	struct text_tokens tokens;

	tokens_take(&tokens, line);
	if (tokens.count == noreply_take(&tokens, 0, request))
		return;
	request->options |= REQUEST_TTL;
	if (!scan_exptime(tokens.token[0].data, tokens.token[0].size, &request->exptime))
		request_refuse(request, STATUS_BAD_EXPTIME);
}

/* verbosity N [noreply], cache_memlimit N [noreply] */
static void
parse_number(struct request *request, const struct text_line *line, enum status bad)
{
	struct text_tokens tokens;

	tokens_take(&tokens, line);
	noreply_take(&tokens, 0, request);
	if (!scan_decimal(tokens.token[0].data, tokens.token[0].size, UINT32_MAX, &request->delta))
		request_refuse(request, bad);
}

/* The words behind the command, without the spaces around them. */
static void
parse_words(struct request *request, const struct text_line *line)
{
	const uint8_t *at = line->at, *end = line->end;

	while (at < end && *at == ' ')
		at++;
	while (end > at && end[-1] == ' ')
		end--;
	request->arguments = slice_make(at, (size_t)(end - at));
}

/* What the parser keeps of a get line's command, as the options of each of its keys. */
static uint32_t
multiget_options(enum command command)
{
	return REQUEST_VALUE_WANTED |
	       (command == COMMAND_GETS || command == COMMAND_GATS ? REQUEST_CAS_WANTED : 0u) |
	       (command == COMMAND_GAT || command == COMMAND_GATS ? REQUEST_TTL : 0u);
}

/*
 * One key of a get, gets, gat or gats. The whole line stood in the window and was found right when
 * its first key was yielded; what is left of it starts at data.
 */
static enum parse_status
multiget_next(struct parser *parser, const uint8_t *data, size_t size, size_t *consumed,
	struct request *request)
{
	const uint8_t *end = data + size, *at = data;
	enum command command = (enum command)parser->multiget;
	uint32_t options = multiget_options(command);

	while (at < end && *at == ' ')
		at++;
	const uint8_t *key = at;

	at = scan_key_end(at, end);
	if (at == end)
		return PARSE_MORE;
	const uint8_t *key_end = *at == '\n' ? scan_line_end(key, at) : at;

	check(key_end > key && key_end - key <= KEY_SIZE_MAX);
	while (*at == ' ') {
		if (++at == end)
			return PARSE_MORE;
	}
	if (*at == '\r' && at + 1 < end && at[1] == '\n')
		at++;
	if (*at == '\n') {
		at++;
		options |= REQUEST_LAST;
		parser->multiget_open = false;
	}
	request_begin_fetch(request, command, options, key, (size_t)(key_end - key));
	request->exptime = options & REQUEST_TTL ? parser->multiget_exptime : 0;
	*consumed = (size_t)(at - data);
	return PARSE_REQUEST;
}

/*
 * get KEY..., gat EXPTIME KEY...: checks the whole line, so that a bad key is answered by one error
 * and nothing else, then yields the first key.
 */
static enum parse_status
parse_fetch(struct parser *parser, const uint8_t *data, size_t size, size_t *consumed,
	const struct text_line *line, struct request *request)
{
	const uint8_t *at = line->at;

	if (request->command == COMMAND_GAT || request->command == COMMAND_GATS) {
		struct scan_token token = scan_token_next(&at, line->end);

		if (token.size == 0) {
			request_refuse(request, STATUS_UNKNOWN_COMMAND);
			return PARSE_REQUEST;
		}
		if (!scan_exptime(token.data, token.size, &parser->multiget_exptime)) {
			request_refuse(request, STATUS_BAD_EXPTIME);
			return PARSE_REQUEST;
		}
	}
	enum scan_get keys = scan_get_check(at, line->end);

	if (keys != SCAN_GET_KEYS) {
		request_refuse(request,
			keys == SCAN_GET_BAD_KEY ? STATUS_BAD_FORMAT : STATUS_UNKNOWN_COMMAND);
		return PARSE_REQUEST;
	}
	parser->multiget = request->command;
	parser->multiget_open = true;
	size_t skipped = (size_t)(at - data);

	multiget_next(parser, at, size - skipped, consumed, request);
	*consumed += skipped;
	return PARSE_REQUEST;
}

/*
 * A command line is whole and its body, if it has one, follows at line->next: wait for it, hand it
 * over or swallow it.
 */
static enum parse_status
parse_body(struct parser *parser, const struct parse_limits *limits, const uint8_t *data,
	size_t size, size_t *consumed, const struct text_line *line, struct request *request)
{
	size_t line_size = (size_t)(line->next - data);
	uint64_t whole = line_size + request->body_size + 2;

	if (request->verb != VERB_REFUSE && request->body_size > limits->value_bytes_max)
		request->status = STATUS_TOO_LARGE;
	if (request->verb == VERB_REFUSE || request->status == STATUS_TOO_LARGE) {
		*consumed = line_size;
		parser->swallow = request->body_size + 2;
		return PARSE_REQUEST;
	}
	if (whole > limits->window_bytes_max && !limits->datagram) {
		*consumed = line_size;
		parser->body_end = 2;
		return PARSE_BODY;
	}
	if (size < whole) {
		*consumed = 0;
		parser->wanted = whole;
		return PARSE_MORE;
	}
	*consumed = (size_t)whole;
	request->value = slice_make(line->next, (size_t)request->body_size);
	if (line->next[request->body_size] != '\r' || line->next[request->body_size + 1] != '\n')
		request_refuse(request, STATUS_BAD_CHUNK);
	return PARSE_REQUEST;
}

/* Commands without a body that aren't gets. */
static void
parse_simple(struct request *request, const struct text_line *line)
{
	switch (request->verb) {
	case VERB_ARITHMETIC:
	case VERB_TOUCH:
		parse_change(request, line);
		break;
	case VERB_DELETE:
		parse_delete(request, line);
		break;
	case VERB_FLUSH:
		parse_flush(request, line);
		break;
	case VERB_VERBOSITY:
		parse_number(request, line, STATUS_BAD_FORMAT);
		break;
	case VERB_MEMLIMIT:
		parse_number(request, line, STATUS_UNKNOWN_COMMAND);
		break;
	case VERB_QUIT:
		request->options |= REQUEST_CLOSE;
		break;
	default:
		parse_words(request, line);
		break;
	}
}

/*
 * A line that is no command. Requests of HTTP, which browsers can be made to send, close: their
 * body would be run as commands.
 */
static enum parse_status
parse_unknown(
	const struct parse_limits *limits, struct request *request, const struct text_line *line)
{
	struct text_tokens tokens;

	tokens_take(&tokens, line);
	if (tokens.count > 1 && tokens.last.size >= 5 && hd_equal(tokens.last.data, "HTTP/", 5))
		return PARSE_CLOSE;
	/*
	 * Leftovers of a body of a wrong length are often a letter or nothing: those are told
	 * apart.
	 */
	request_refuse(
		request, line->end - line->at < 2 ? STATUS_BAD_FORMAT : STATUS_UNKNOWN_COMMAND);
	if (limits->strict)
		request->options |= REQUEST_CLOSE;
	return PARSE_REQUEST;
}

/* No line end in the window: how much longer may it be waited for? */
static enum parse_status
parse_unfinished(
	struct parser *parser, const struct parse_limits *limits, const uint8_t *data, size_t size)
{
	const uint8_t *at = data, *end = data + size;

	parser->scanned = size;
	parser->wanted = size + 1;
	if (size <= TEXT_LINE_MAX)
		return PARSE_MORE;
	struct scan_token word = scan_token_next(&at, end);
	enum command command = command_find(word.data, word.size, end);

	if (command != COMMAND_GET && command != COMMAND_GETS && command != COMMAND_GAT &&
		command != COMMAND_GATS)
		return PARSE_CLOSE;
	if (size > limits->line_bytes_max)
		return PARSE_CLOSE;
	parser->wanted = 2 * size <= limits->line_bytes_max ? 2 * size : limits->line_bytes_max + 1;
	return PARSE_MORE;
}

/*
 * A get of one key, the line that most requests are: in one pass, the way below with the same
 * result.
 */
static inline bool
get_take(struct parser *parser, const uint8_t *data, const uint8_t *end, size_t *consumed,
	struct request *request)
{
	const uint8_t *key = data + 4;

	if (end - data < 6 || !hd_equal(data, "get ", 4))
		return false;
	const uint8_t *stop = scan_key_end(key, end);

	if (stop == end || *stop != '\n')
		return false;
	size_t key_size = (size_t)(scan_line_end(key, stop) - key);

	if (key_size == 0 || key_size > KEY_SIZE_MAX)
		return false;
	request_begin_fetch(
		request, COMMAND_GET, REQUEST_VALUE_WANTED | REQUEST_LAST, key, key_size);
	*consumed = (size_t)(stop + 1 - data);
	parser->scanned = 0;
	return true;
}

/* A line of any form. */
static __attribute__((noinline)) enum parse_status
parse_line(struct parser *parser, const struct parse_limits *limits, const uint8_t *data,
	size_t size, size_t *consumed, struct request *request, uint8_t *key_decoded)
{
	const uint8_t *end = data + size;
	const uint8_t *newline =
		scan_newline(data + (parser->scanned < size ? parser->scanned : 0), end);

	if (newline == end)
		return parse_unfinished(parser, limits, data, size);
	parser->scanned = 0;
	struct text_line line = {data, scan_line_end(data, newline), newline + 1};
	struct scan_token word = scan_token_next(&line.at, line.end);
	enum command command = command_find(word.data, word.size, end);
	bool meta = word.size == 2 && word.data[0] == 'm' && command != COMMAND_NONE;

	request_begin(request, meta ? PROTOCOL_META : PROTOCOL_TEXT, command,
		text_commands[command].verb, text_commands[command].mode);
	*consumed = (size_t)(line.next - data);
	switch (command) {
	case COMMAND_GET:
	case COMMAND_GETS:
	case COMMAND_GAT:
	case COMMAND_GATS:
		return parse_fetch(parser, data, size, consumed, &line, request);
	case COMMAND_SET:
	case COMMAND_ADD:
	case COMMAND_REPLACE:
	case COMMAND_APPEND:
	case COMMAND_PREPEND:
	case COMMAND_CAS:
		if (parse_store(request, &line))
			return parse_body(parser, limits, data, size, consumed, &line, request);
		if (limits->strict)
			request->options |= REQUEST_CLOSE;
		return PARSE_REQUEST;
	case COMMAND_MS:
		if (meta_parse(request, line.at, line.end, key_decoded))
			return parse_body(parser, limits, data, size, consumed, &line, request);
		if (limits->strict)
			request->options |= REQUEST_CLOSE;
		return PARSE_REQUEST;
	case COMMAND_MG:
	case COMMAND_MD:
	case COMMAND_MA:
	case COMMAND_ME:
	case COMMAND_MN:
		meta_parse(request, line.at, line.end, key_decoded);
		return PARSE_REQUEST;
	case COMMAND_NONE:
		line.at = data;
		return parse_unknown(limits, request, &line);
	default:
		parse_simple(request, &line);
		return PARSE_REQUEST;
	}
}

/* A line that isn't a get of one key. Apart from text_parse, which has few registers to save then. */
static __attribute__((noinline)) enum parse_status
parse_other(struct parser *parser, const struct parse_limits *limits, const uint8_t *data,
	size_t size, size_t *consumed, struct request *request, uint8_t *key_decoded)
{
	if (plain_parse(limits, data, size, consumed, request)) {
		parser->scanned = 0;
		return PARSE_REQUEST;
	}
	return parse_line(parser, limits, data, size, consumed, request, key_decoded);
}

enum parse_status
text_parse(struct parser *parser, const struct parse_limits *limits, const uint8_t *data,
	size_t size, size_t *consumed, struct request *request, uint8_t *key_decoded)
{
	if (parser->multiget_open)
		return multiget_next(parser, data, size, consumed, request);
	if (get_take(parser, data, data + size, consumed, request))
		return PARSE_REQUEST;
	return parse_other(parser, limits, data, size, consumed, request, key_decoded);
}

void
text_compose_status(struct reply_out *out, enum status status)
{
	static const struct slice lines[STATUS_COUNT] = {
#define STATUS(name, text, meta, binary, binary_text)                                              \
	[STATUS_##name] = {(const uint8_t *)text "\r\n", sizeof(text) + 1},
#include "proto/status.def"
#undef STATUS
	};

	check((unsigned)status < STATUS_COUNT);
	reply_put(out, lines[status].data, lines[status].size);
}

/*
 * One key's part of the answer to a get. An error can be told only instead of END: what was sent
 * for the keys before can't be taken back, and a key in the middle that can't be had is as good as
 * a miss.
 */
static void
compose_fetch(struct reply_out *out, const struct request *request, const struct reply *reply)
{
	bool last = request->options & REQUEST_LAST;

	if (reply->status == STATUS_HIT) {
		uint8_t *at = compose_value_line(compose_begin(out), request->key,
			request->key_size, reply->client_flags, reply->value_size,
			(request->options & REQUEST_CAS_WANTED) != 0, reply->cas);

		at = compose_value(out, at, reply);
		memcpy(at, "\r\nEND\r\n", 8);
		compose_end(out, at + (last ? 7 : 2));
	} else if (last) {
		text_compose_status(out, reply->status);
	}
}

static void
compose_number(struct reply_out *out, uint64_t number)
{
	uint8_t *at = compose_decimal(compose_begin(out), number);

	*at++ = '\r';
	*at++ = '\n';
	compose_end(out, at);
}

void
text_compose(struct reply_out *out, const struct request *request, const struct reply *reply)
{
	if (request->options & REQUEST_NOREPLY)
		return;
	if (request->verb == VERB_REFUSE)
		text_compose_status(out, request->status);
	else if (request->verb == VERB_FETCH)
		compose_fetch(out, request, reply);
	else if (reply->status == STATUS_TEXT)
		reply_refer(out, reply->text.data, reply->text.size);
	else if (reply->status == STATUS_NUMBER)
		compose_number(out, reply->number);
	else if (request->verb == VERB_VERSION) {
		reply_put(out, "VERSION ", 8);
		reply_put(out, reply->text.data, reply->text.size);
		reply_put(out, "\r\n", 2);
	} else if (reply->status == STATUS_OK &&
		   (request->verb == VERB_QUIT || request->verb == VERB_SHUTDOWN))
		return;
	else
		text_compose_status(
			out, reply->status == STATUS_MISS ? STATUS_NOT_FOUND : reply->status);
}
