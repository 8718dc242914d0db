/* SPDX-License-Identifier: BSD-2-Clause */
#include "proto/binary.h"

#include "base/check.h"
#include "proto/compose.h"
#include "proto/parse.h"

/* How a request of an opcode is built; anything else is refused. */
enum {
	KEY_NONE = 1u << 0,	   /* no key */
	KEY_NEEDED = 1u << 1,	   /* a key of one byte at least */
	BODY_VALUE = 1u << 2,	   /* a value may follow the key; else the body ends there */
	EXTRAS_OPTIONAL = 1u << 3, /* the extras may be left out */
	OPCODE_KNOWN = 1u << 4,
};

struct opcode {
	uint8_t command;
	uint8_t verb;
	uint8_t mode;
	uint8_t form;
	uint8_t extras;
	uint32_t options;
};

#define KEYED (OPCODE_KNOWN | KEY_NEEDED)
#define KEYLESS (OPCODE_KNOWN | KEY_NONE)
#define QUIET REQUEST_QUIET
#define VALUE REQUEST_VALUE_WANTED
#define WITH_KEY (REQUEST_VALUE_WANTED | REQUEST_KEY_WANTED)

static const struct opcode opcodes[256] = {
	[0x00] = {COMMAND_GET, VERB_FETCH, MODE_NONE, KEYED, 0, VALUE},
	[0x01] = {COMMAND_SET, VERB_STORE, MODE_SET, KEYED | BODY_VALUE, 8, 0},
	[0x02] = {COMMAND_ADD, VERB_STORE, MODE_ADD, KEYED | BODY_VALUE, 8, 0},
	[0x03] = {COMMAND_REPLACE, VERB_STORE, MODE_REPLACE, KEYED | BODY_VALUE, 8, 0},
	[0x04] = {COMMAND_DELETE, VERB_DELETE, MODE_NONE, KEYED, 0, 0},
	[0x05] = {COMMAND_INCR, VERB_ARITHMETIC, MODE_INCREMENT, KEYED, 20, 0},
	[0x06] = {COMMAND_DECR, VERB_ARITHMETIC, MODE_DECREMENT, KEYED, 20, 0},
	[0x07] = {COMMAND_QUIT, VERB_QUIT, MODE_NONE, KEYLESS, 0, REQUEST_CLOSE},
	[0x08] = {COMMAND_FLUSH_ALL, VERB_FLUSH, MODE_NONE, KEYLESS | EXTRAS_OPTIONAL, 4, 0},
	[0x09] = {COMMAND_GET, VERB_FETCH, MODE_NONE, KEYED, 0, VALUE | QUIET},
	[0x0a] = {COMMAND_NOOP, VERB_NOOP, MODE_NONE, KEYLESS, 0, 0},
	[0x0b] = {COMMAND_VERSION, VERB_VERSION, MODE_NONE, KEYLESS, 0, 0},
	[0x0c] = {COMMAND_GET, VERB_FETCH, MODE_NONE, KEYED, 0, WITH_KEY},
	[0x0d] = {COMMAND_GET, VERB_FETCH, MODE_NONE, KEYED, 0, WITH_KEY | QUIET},
	[0x0e] = {COMMAND_APPEND, VERB_STORE, MODE_APPEND, KEYED | BODY_VALUE, 0, 0},
	[0x0f] = {COMMAND_PREPEND, VERB_STORE, MODE_PREPEND, KEYED | BODY_VALUE, 0, 0},
	[0x10] = {COMMAND_STATS, VERB_STATS, MODE_NONE, OPCODE_KNOWN, 0, 0},
	[0x11] = {COMMAND_SET, VERB_STORE, MODE_SET, KEYED | BODY_VALUE, 8, QUIET},
	[0x12] = {COMMAND_ADD, VERB_STORE, MODE_ADD, KEYED | BODY_VALUE, 8, QUIET},
	[0x13] = {COMMAND_REPLACE, VERB_STORE, MODE_REPLACE, KEYED | BODY_VALUE, 8, QUIET},
	[0x14] = {COMMAND_DELETE, VERB_DELETE, MODE_NONE, KEYED, 0, QUIET},
	[0x15] = {COMMAND_INCR, VERB_ARITHMETIC, MODE_INCREMENT, KEYED, 20, QUIET},
	[0x16] = {COMMAND_DECR, VERB_ARITHMETIC, MODE_DECREMENT, KEYED, 20, QUIET},
	[0x17] = {COMMAND_QUIT, VERB_QUIT, MODE_NONE, KEYLESS, 0, REQUEST_CLOSE | QUIET},
	[0x18] = {COMMAND_FLUSH_ALL, VERB_FLUSH, MODE_NONE, KEYLESS | EXTRAS_OPTIONAL, 4, QUIET},
	[0x19] = {COMMAND_APPEND, VERB_STORE, MODE_APPEND, KEYED | BODY_VALUE, 0, QUIET},
	[0x1a] = {COMMAND_PREPEND, VERB_STORE, MODE_PREPEND, KEYED | BODY_VALUE, 0, QUIET},
	[0x1c] = {COMMAND_TOUCH, VERB_TOUCH, MODE_NONE, KEYED, 4, REQUEST_TTL},
	[0x1d] = {COMMAND_GAT, VERB_FETCH, MODE_NONE, KEYED, 4, REQUEST_TTL | VALUE},
	[0x1e] = {COMMAND_GAT, VERB_FETCH, MODE_NONE, KEYED, 4, REQUEST_TTL | VALUE | QUIET},
	[0x23] = {COMMAND_GAT, VERB_FETCH, MODE_NONE, KEYED, 4, REQUEST_TTL | WITH_KEY},
	[0x24] = {COMMAND_GAT, VERB_FETCH, MODE_NONE, KEYED, 4, REQUEST_TTL | WITH_KEY | QUIET},
};

struct binary_header {
	uint8_t opcode;
	uint8_t extras_size;
	uint16_t key_size;
	uint32_t body_size;
	uint64_t cas;
};

static uint32_t
read_u32(const uint8_t *at)
{
	uint32_t number;

	memcpy(&number, at, sizeof number);
	return __builtin_bswap32(number);
}

static uint64_t
read_u64(const uint8_t *at)
{
	uint64_t number;

	memcpy(&number, at, sizeof number);
	return __builtin_bswap64(number);
}

static void
write_u32(uint8_t *at, uint32_t number)
{
	number = __builtin_bswap32(number);
	memcpy(at, &number, sizeof number);
}

static void
write_u64(uint8_t *at, uint64_t number)
{
	number = __builtin_bswap64(number);
	memcpy(at, &number, sizeof number);
}

/* Answers status at once; the body, wherever it ends, is swallowed. */
static enum parse_status
refuse_body(struct parser *parser, const struct binary_header *header, size_t *consumed,
	struct request *request, enum status status)
{
	request_refuse(request, status);
	parser->swallow = header->body_size;
	*consumed = BINARY_HEADER_SIZE;
	return PARSE_REQUEST;
}

/*
 * As refuse_body, for a request that is no use of its opcode: the client doesn't speak this
 * protocol, so it is closed.
 */
static enum parse_status
refuse_client(struct parser *parser, const struct binary_header *header, size_t *consumed,
	struct request *request)
{
	request->options = REQUEST_CLOSE;
	return refuse_body(parser, header, consumed, request, STATUS_INVALID_ARGUMENTS);
}

/* Are the lengths those that the opcode has? */
static bool
form_fits(const struct opcode *opcode, const struct binary_header *header)
{
	if (header->extras_size != opcode->extras &&
		!(opcode->form & EXTRAS_OPTIONAL && header->extras_size == 0))
		return false;
	if (opcode->form & KEY_NONE && header->key_size)
		return false;
	if (opcode->form & KEY_NEEDED && !header->key_size)
		return false;
	return opcode->form & BODY_VALUE ||
	       header->body_size == (uint32_t)header->extras_size + header->key_size;
}

/*
 * What stands in the extras. A time to live is unsigned here: there is no way to say 'in the past'.
 */
static void
extras_take(struct request *request, const struct binary_header *header, const uint8_t *extras)
{
	switch (request->verb) {
	case VERB_STORE:
		if (header->extras_size) {
			request->client_flags = read_u32(extras);
			request->exptime = read_u32(extras + 4);
		}
		break;
	case VERB_ARITHMETIC:
		request->delta = read_u64(extras);
		request->initial = read_u64(extras + 8);
		request->vivify_ttl = read_u32(extras + 16);
		request->options |=
			request->vivify_ttl == UINT32_MAX ? REQUEST_CREATE_DENIED : REQUEST_VIVIFY;
		break;
	case VERB_FLUSH:
		if (header->extras_size) {
			request->options |= REQUEST_TTL;
			request->exptime = read_u32(extras);
		}
		break;
	case VERB_TOUCH:
		request->exptime = read_u32(extras);
		break;
	case VERB_FETCH:
		if (request->options & REQUEST_TTL)
			request->exptime = read_u32(extras);
		break;
	default:
		break;
	}
	if (header->cas && (request->verb == VERB_STORE || request->verb == VERB_ARITHMETIC ||
				   request->verb == VERB_DELETE)) {
		request->options |= REQUEST_CAS_COMPARE;
		request->cas_compare = header->cas;
		/* With a CAS number, add and replace are what set is. */
		if (request->mode == MODE_ADD || request->mode == MODE_REPLACE)
			request->mode = MODE_SET;
	}
}

/* The value of a store, at 'head' bytes: wait for it, hand it over or swallow it. */
static enum parse_status
value_take(struct parser *parser, const struct parse_limits *limits,
	const struct binary_header *header, const uint8_t *data, size_t size, size_t *consumed,
	struct request *request)
{
	size_t head = BINARY_HEADER_SIZE + (size_t)header->extras_size + header->key_size;
	uint64_t whole = (uint64_t)BINARY_HEADER_SIZE + header->body_size;

	request->body_size = whole - head;
	if (request->body_size > limits->value_bytes_max) {
		request->status = STATUS_TOO_LARGE;
		parser->swallow = request->body_size;
		*consumed = head;
		return PARSE_REQUEST;
	}
	if (whole > limits->window_bytes_max && !limits->datagram) {
		parser->body_end = 0;
		*consumed = head;
		return PARSE_BODY;
	}
	if (size < whole) {
		parser->wanted = whole;
		return PARSE_MORE;
	}
	request->value = slice_make(data + head, (size_t)request->body_size);
	*consumed = (size_t)whole;
	return PARSE_REQUEST;
}

enum parse_status
binary_parse(struct parser *parser, const struct parse_limits *limits, const uint8_t *data,
	size_t size, size_t *consumed, struct request *request)
{
	if (data[0] != BINARY_REQUEST)
		return PARSE_CLOSE;
	if (size < BINARY_HEADER_SIZE) {
		parser->wanted = BINARY_HEADER_SIZE;
		return PARSE_MORE;
	}
	const struct binary_header header = {
		.opcode = data[1],
		.extras_size = data[4],
		.key_size = (uint16_t)(data[2] << 8 | data[3]),
		.body_size = read_u32(data + 8),
		.cas = read_u64(data + 16),
	};
	const struct opcode *opcode = &opcodes[header.opcode];
	size_t head = BINARY_HEADER_SIZE + (size_t)header.extras_size + header.key_size;

	request_begin(request, PROTOCOL_BINARY,
		opcode->form ? (enum command)opcode->command : COMMAND_NONE,
		(enum verb)opcode->verb, (enum request_mode)opcode->mode);
	request->opcode = header.opcode;
	memcpy(&request->opaque, data + 12, sizeof request->opaque);
	if (header.body_size > BODY_SIZE_MAX)
		return refuse_client(parser, &header, consumed, request);
	if (!opcode->form)
		return refuse_body(parser, &header, consumed, request, STATUS_UNKNOWN_COMMAND);
	if (head - BINARY_HEADER_SIZE > header.body_size || header.key_size > KEY_SIZE_MAX)
		return refuse_body(parser, &header, consumed, request, STATUS_INVALID_ARGUMENTS);
	if (!form_fits(opcode, &header))
		return refuse_client(parser, &header, consumed, request);
	if (size < head) {
		parser->wanted = head;
		return PARSE_MORE;
	}
	request->options = opcode->options;
	request->key = data + head - header.key_size;
	request->key_size = (uint8_t)header.key_size;
	extras_take(request, &header, data + BINARY_HEADER_SIZE);
	if (request->verb == VERB_STATS)
		request->arguments = slice_make(request->key, request->key_size);
	if (opcode->form & BODY_VALUE)
		return value_take(parser, limits, &header, data, size, consumed, request);
	*consumed = head;
	return PARSE_REQUEST;
}

void
binary_header_write(uint8_t *at, uint8_t opcode, uint16_t key_size, uint8_t extras_size,
	uint16_t status, uint32_t body_size, uint32_t opaque, uint64_t cas)
{
	at[0] = BINARY_REPLY;
	at[1] = opcode;
	at[2] = (uint8_t)(key_size >> 8);
	at[3] = (uint8_t)key_size;
	at[4] = extras_size;
	at[5] = 0;
	at[6] = (uint8_t)(status >> 8);
	at[7] = (uint8_t)status;
	write_u32(at + 8, body_size);
	memcpy(at + 12, &opaque, sizeof opaque);
	write_u64(at + 16, cas);
}

/* Writes the header of a reply to this request; gives the byte behind it. */
static uint8_t *
put_header(uint8_t *at, const struct request *request, uint16_t key_size, uint8_t extras_size,
	uint16_t status, uint64_t body_size, uint64_t cas)
{
	binary_header_write(at, request->opcode, key_size, extras_size, status, (uint32_t)body_size,
		request->opaque, cas);
	return at + BINARY_HEADER_SIZE;
}

struct binary_error {
	uint16_t status;
	uint16_t size;
	const char *text;
};

/* An error: its number, and words for people. */
static void
compose_error(struct reply_out *out, const struct request *request, enum status status)
{
	static const struct binary_error errors[STATUS_COUNT] = {
#define STATUS(name, text, meta, binary, binary_text)                                              \
	[STATUS_##name] = {binary, sizeof(binary_text) - 1, binary_text},
#include "proto/status.def"
#undef STATUS
	};
	uint8_t *at = compose_begin(out);

	check((unsigned)status < STATUS_COUNT);
	at = put_header(at, request, 0, 0, errors[status].status, errors[status].size, 0);
	memcpy(at, errors[status].text, errors[status].size);
	compose_end(out, at + errors[status].size);
}

/*
 * A value that was found: flags, for GETK and GATK the key, the value. TOUCH answers the flags
 * alone.
 */
static void
compose_hit(struct reply_out *out, const struct request *request, const struct reply *reply)
{
	bool with_key = request->options & REQUEST_KEY_WANTED;
	bool with_value = request->verb == VERB_FETCH;
	uint16_t key_size = with_key ? request->key_size : 0;
	uint8_t *at = compose_begin(out);

	at = put_header(at, request, key_size, 4, 0,
		4 + (uint64_t)key_size + (with_value ? reply->value_size : 0), reply->cas);
	write_u32(at, reply->client_flags);
	at += 4;
	if (with_key) {
		memcpy(at, request->key, key_size);
		at += key_size;
	}
	if (with_value)
		at = compose_value(out, at, reply);
	compose_end(out, at);
}

/* A miss: GETK and GATK give the key back, the others say it in words. */
static void
compose_miss(struct reply_out *out, const struct request *request)
{
	if (request->verb == VERB_FETCH && request->options & REQUEST_QUIET)
		return;
	if (!(request->options & REQUEST_KEY_WANTED)) {
		compose_error(out, request, STATUS_MISS);
		return;
	}
	uint8_t *at = put_header(
		compose_begin(out), request, request->key_size, 0, 1, request->key_size, 0);

	memcpy(at, request->key, request->key_size);
	compose_end(out, at + request->key_size);
}

/* Success without a value. */
static void
compose_done(struct reply_out *out, const struct request *request, const struct reply *reply)
{
	uint8_t *at = compose_begin(out);

	if (request->options & REQUEST_QUIET)
		return;
	if (reply->status == STATUS_NUMBER) {
		at = put_header(at, request, 0, 0, 0, 8, reply->cas);
		write_u64(at, reply->number);
		at += 8;
	} else {
		at = put_header(
			at, request, 0, 0, 0, 0, reply->status == STATUS_STORED ? reply->cas : 0);
	}
	compose_end(out, at);
}

/*
 * What the text protocol calls NOT_STORED has a cause here: the key of an add is there, that of a
 * replace isn't.
 */
static enum status
not_stored_status(const struct request *request)
{
	if (request->mode == MODE_ADD)
		return STATUS_EXISTS;
	return request->mode == MODE_REPLACE ? STATUS_NOT_FOUND : STATUS_NOT_STORED;
}

void
binary_compose(struct reply_out *out, const struct request *request, const struct reply *reply)
{
	if (request->verb == VERB_REFUSE) {
		compose_error(out, request, request->status);
		return;
	}
	switch (reply->status) {
	case STATUS_HIT:
	case STATUS_TOUCHED:
		compose_hit(out, request, reply);
		break;
	case STATUS_MISS:
	case STATUS_NOT_FOUND:
		compose_miss(out, request);
		break;
	case STATUS_OK:
	case STATUS_STORED:
	case STATUS_DELETED:
	case STATUS_NUMBER:
		if (request->verb == VERB_VERSION) {
			compose_end(out, put_header(compose_begin(out), request, 0, 0, 0,
						 reply->text.size, 0));
			reply_put(out, reply->text.data, reply->text.size);
		} else {
			compose_done(out, request, reply);
		}
		break;
	case STATUS_TEXT:
		reply_refer(out, reply->text.data, reply->text.size);
		break;
	case STATUS_NOT_STORED:
		compose_error(out, request, not_stored_status(request));
		break;
	default:
		compose_error(out, request, (enum status)reply->status);
		break;
	}
}
