/* SPDX-License-Identifier: BSD-2-Clause */
#include "proto/meta.h"

#include "proto/base64.h"
#include "proto/compose.h"
#include "proto/compose_hd.h"
#include "proto/parse.h"
#include "proto/scan_hd.h"
#include "proto/text.h"

/* Command word, key, datalen and flags of one line together. */
#define META_TOKENS_MAX 20

static bool
flag_number(const struct scan_token *flag, uint64_t max, uint64_t *value)
{
	return scan_decimal(flag->data + 1, flag->size - 1, max, value);
}

static bool
flag_exptime(const struct scan_token *flag, int64_t *exptime)
{
	return scan_exptime(flag->data + 1, flag->size - 1, exptime);
}

/* Flags that are one letter. Zero: it isn't one of them. */
static uint32_t
letter_option(uint8_t letter)
{
	switch (letter) {
	case 'c':
		return REQUEST_CAS_WANTED;
	case 'h':
	case 'l':
	case 't':
		return REQUEST_FETCH_WAS;
	case 'q':
		return REQUEST_QUIET;
	case 'u':
		return REQUEST_NO_BUMP;
	case 'v':
		return REQUEST_VALUE_WANTED;
	case 'x':
		return REQUEST_REMOVE_VALUE;
	case 'I':
		return REQUEST_INVALIDATE;
	default:
		return 0;
	}
}

/* One flag with its token; gives STATUS_OK or what is wrong with it. */
static enum status
flag_take(struct request *request, const struct scan_token *flag, uint8_t *mode)
{
	uint64_t number;
	bool good = true;

	request->options |= letter_option(flag->data[0]);
	switch (flag->data[0]) {
	case 'N':
		request->options |= REQUEST_VIVIFY;
		good = flag_exptime(flag, &request->vivify_ttl);
		break;
	case 'T':
		request->options |= REQUEST_TTL;
		good = flag_exptime(flag, &request->exptime);
		break;
	case 'R':
		request->options |= REQUEST_RECACHE;
		good = flag_exptime(flag, &request->recache_ttl);
		break;
	case 'C':
		request->options |= REQUEST_CAS_COMPARE;
		good = flag_number(flag, UINT64_MAX, &request->cas_compare);
		break;
	case 'E':
		request->options |= REQUEST_CAS_NEW;
		good = flag_number(flag, UINT64_MAX, &request->cas_new);
		break;
	case 'F':
		if (!flag_number(flag, UINT32_MAX, &number))
			return STATUS_BAD_FORMAT;
		request->client_flags = (uint32_t)number;
		break;
	case 'D':
		good = flag_number(flag, UINT64_MAX, &request->delta);
		break;
	case 'J':
		good = flag_number(flag, UINT64_MAX, &request->initial);
		break;
	case 'M':
		request->options |= REQUEST_MODE_GIVEN;
		*mode = flag->size > 1 ? flag->data[1] : ' ';
		break;
	case 'O':
		if (flag->size > REQUEST_OPAQUE_MAX)
			return STATUS_OPAQUE_TOO_LONG;
		break;
	case 'b':
		request->options |= REQUEST_KEY_BINARY | REQUEST_BASE_KEY;
		break;
	case 'f':
	case 'k':
	case 's':
	case 'L': /* L and P are for routers in front of us */
	case 'P':
		break;
	default:
		return letter_option(flag->data[0]) ? STATUS_OK : STATUS_BAD_FLAG;
	}
	return good ? STATUS_OK : STATUS_BAD_TOKEN;
}

/* What M asks for. */
static enum status
mode_take(struct request *request, uint8_t letter)
{
	if (request->verb == VERB_STORE) {
		switch (letter) {
		case 'E':
			request->mode = MODE_ADD;
			return STATUS_OK;
		case 'A':
			request->mode = MODE_APPEND;
			return STATUS_OK;
		case 'P':
			request->mode = MODE_PREPEND;
			return STATUS_OK;
		case 'R':
			request->mode = MODE_REPLACE;
			return STATUS_OK;
		case 'S':
			request->mode = MODE_SET;
			return STATUS_OK;
		default:
			return STATUS_BAD_MODE_SET;
		}
	}
	if (request->verb != VERB_ARITHMETIC)
		return STATUS_OK;
	switch (letter) {
	case 'I':
	case '+':
		request->mode = MODE_INCREMENT;
		return STATUS_OK;
	case 'D':
	case '-':
		request->mode = MODE_DECREMENT;
		return STATUS_OK;
	default:
		return STATUS_BAD_MODE_ARITHMETIC;
	}
}

/* All flags of [at, end), of which tokens stood before. */
static enum status
flags_take(struct request *request, const uint8_t *at, const uint8_t *end, size_t tokens)
{
	uint64_t seen[2] = {0, 0};
	uint8_t mode = 0;
	enum status status;

	for (;;) {
		struct scan_token flag = scan_token_next(&at, end);

		if (flag.size == 0)
			break;
		if (++tokens > META_TOKENS_MAX)
			return STATUS_FLAGS_TOO_LONG;
		uint8_t letter = flag.data[0];

		if (letter > 127)
			return STATUS_BAD_FLAG;
		if (seen[letter >> 6] & (uint64_t)1 << (letter & 63))
			return STATUS_DUPLICATE_FLAG;
		seen[letter >> 6] |= (uint64_t)1 << (letter & 63);
		status = flag_take(request, &flag, &mode);
		if (status != STATUS_OK)
			return status;
	}
	if (request->options & REQUEST_MODE_GIVEN) {
		status = mode_take(request, mode);
		if (status != STATUS_OK)
			return status;
	}
	return STATUS_OK;
}

/*
 * Some flags mean something in some modes only: afterwards each option that is set is one to act
 * on.
 */
static void
options_settle(struct request *request)
{
	if (request->verb != VERB_STORE)
		return;
	if (request->mode != MODE_APPEND && request->mode != MODE_PREPEND)
		request->options &= ~(uint32_t)REQUEST_VIVIFY;
	if (request->mode == MODE_ADD)
		request->options &= ~(uint32_t)REQUEST_CAS_COMPARE;
	/* A replace with a number to compare is a compare and swap: it needs the item anyway. */
	if (request->mode == MODE_REPLACE && request->options & REQUEST_CAS_COMPARE)
		request->mode = MODE_SET;
	if (!(request->options & REQUEST_CAS_COMPARE) || request->mode != MODE_SET)
		request->options &= ~(uint32_t)REQUEST_INVALIDATE;
}

/* ma has one line for whatever is wrong with its flags. */
static enum status
flags_status(const struct request *request, enum status status)
{
	if (request->command != COMMAND_MA || status == STATUS_BAD_MODE_ARITHMETIC ||
		status == STATUS_OPAQUE_TOO_LONG)
		return status;
	return STATUS_BAD_ARITHMETIC_FLAG;
}

bool
meta_parse(struct request *request, const uint8_t *at, const uint8_t *end, uint8_t *key_decoded)
{
	bool body = request->verb == VERB_STORE;

	if (request->verb == VERB_NOOP)
		return false;
	struct scan_token key = scan_token_next(&at, end);

	if (key.size == 0) {
		request_refuse(request, STATUS_BAD_FORMAT);
		return false;
	}
	if (body) {
		struct scan_token size = scan_token_next(&at, end);

		if (!scan_decimal(size.data, size.size, BODY_SIZE_MAX, &request->body_size)) {
			request_refuse(request, STATUS_BAD_FORMAT);
			return false;
		}
	}
	if (key.size > KEY_SIZE_MAX) {
		request_refuse(request, STATUS_BAD_FORMAT);
		return body;
	}
	request->key = key.data;
	request->key_size = (uint8_t)key.size;
	request->arguments = slice_make(at, (size_t)(end - at));
	if (request->verb == VERB_ARITHMETIC)
		request->delta = 1;
	else if (request->verb == VERB_INSPECT)
		request->options |= REQUEST_NO_BUMP;
	enum status status = flags_take(request, at, end, body ? 3 : 2);

	if (status == STATUS_OK && request->options & REQUEST_KEY_BINARY) {
		request->key_size = (uint8_t)base64_decode(key_decoded, key.data, key.size);
		request->key = key_decoded;
		if (request->key_size == 0)
			status = STATUS_BAD_KEY_ENCODING;
	}
	if (status != STATUS_OK)
		request_refuse(request, flags_status(request, status));
	else
		options_settle(request);
	return body;
}

static uint8_t *
put_key(uint8_t *at, const uint8_t *key, size_t size, bool binary)
{
	if (binary)
		return base64_encode(at, key, size);
	memcpy(at, key, size);
	return at + size;
}

static uint8_t *
put_number(uint8_t *at, char letter, uint64_t number)
{
	*at++ = ' ';
	*at++ = (uint8_t)letter;
	return compose_decimal(at, number);
}

static uint8_t *
put_text(uint8_t *at, const void *text, size_t size)
{
	memcpy(at, text, size);
	return at + size;
}

/* The key as a flag, followed by b where it is a binary one. */
static uint8_t *
put_key_flag(uint8_t *at, const struct request *request, const struct reply *reply)
{
	/*
	 * An item that was found says itself what its key is: it may have been stored in the other
	 * form.
	 */
	bool found = request->verb == VERB_FETCH && reply->status == STATUS_HIT;
	bool binary = found ? reply->key_binary : (request->options & REQUEST_KEY_BINARY) != 0;

	*at++ = ' ';
	*at++ = 'k';
	at = put_key(at, request->key, request->key_size, binary);
	return binary ? put_text(at, " b", 2) : at;
}

/* A flag that shows something of the item; nothing is appended where it can't be known. */
static uint8_t *
put_item_flag(uint8_t *at, uint8_t letter, const struct request *request, const struct reply *reply)
{
	bool fetch = request->verb == VERB_FETCH;
	bool store = request->verb == VERB_STORE;
	bool good = reply->status == STATUS_HIT || reply->status == STATUS_STORED ||
		    reply->status == STATUS_NUMBER;

	switch (letter) {
	case 'c':
		if (good || store)
			at = put_number(at, 'c', good ? reply->cas : 0);
		break;
	case 's':
		if (store || (fetch && good))
			at = put_number(at, 's', good ? reply->value_size : request->body_size);
		break;
	case 't':
		if (!good || store)
			break;
		if (reply->ttl_s < 0)
			at = put_text(at, " t-1", 4);
		else
			at = put_number(at, 't', (uint64_t)reply->ttl_s);
		break;
	case 'f':
		if (fetch && good)
			at = put_number(at, 'f', reply->client_flags);
		break;
	case 'h':
		if (fetch && good)
			at = put_number(at, 'h', reply->fetched);
		break;
	case 'l':
		if (fetch && good)
			at = put_number(at, 'l', reply->last_access_s);
		break;
	default:
		break;
	}
	return at;
}

/* The flags to be returned, in the order in which they were given. */
static uint8_t *
put_flags(uint8_t *at, const struct request *request, const struct reply *reply)
{
	const uint8_t *flags = request->arguments.data;
	const uint8_t *end = flags + request->arguments.size;

	for (;;) {
		struct scan_token flag = scan_token_next(&flags, end);

		if (flag.size == 0)
			return at;
		if (flag.data[0] == 'O') {
			*at++ = ' ';
			at = put_text(at, flag.data, flag.size);
		} else if (flag.data[0] == 'k') {
			at = put_key_flag(at, request, reply);
		} else {
			at = put_item_flag(at, flag.data[0], request, reply);
		}
	}
}

/* me: what is known about an item, for people. */
static void
compose_inspect(struct reply_out *out, const struct request *request, const struct reply *reply)
{
	uint8_t *at = compose_begin(out);

	at = put_text(at, "ME ", 3);
	at = put_key(at, request->key, request->key_size, reply->key_binary);
	at = put_text(at, " exp=", 5);
	if (reply->ttl_s < 0)
		at = put_text(at, "-1", 2);
	else
		at = compose_decimal(at, (uint64_t)reply->ttl_s);
	at = put_text(at, " la=", 4);
	at = compose_decimal(at, reply->last_access_s);
	at = put_text(at, " cas=", 5);
	at = compose_decimal(at, reply->cas);
	at = reply->fetched ? put_text(at, " fetch=yes", 10) : put_text(at, " fetch=no", 9);
	at = put_text(at, " cls=", 5);
	at = compose_decimal(at, reply->size_class);
	at = put_text(at, " size=", 6);
	at = compose_decimal(at, reply->item_bytes);
	at = put_text(at, "\r\n", 2);
	compose_end(out, at);
}

/* The return code of a status; NULL for errors, which are lines of their own. */
static const char *
status_code(const struct request *request, enum status status)
{
	static const char *const codes[STATUS_COUNT] = {
#define STATUS(name, text, meta, binary, binary_text) [STATUS_##name] = (meta),
#include "proto/status.def"
#undef STATUS
	};

	if (status == STATUS_MISS && request->verb != VERB_FETCH && request->verb != VERB_INSPECT)
		return "NF";
	return codes[status];
}

/* q leaves out what a client expects: success, or of a fetch the miss. */
static bool
is_quiet(const struct request *request, enum status status)
{
	if (!(request->options & REQUEST_QUIET))
		return false;
	if (request->verb == VERB_FETCH)
		return status == STATUS_MISS;
	return status == STATUS_OK || status == STATUS_STORED || status == STATUS_DELETED ||
	       status == STATUS_NUMBER;
}

void
meta_compose(struct reply_out *out, const struct request *request, const struct reply *reply)
{
	enum status status = request->verb == VERB_REFUSE ? request->status : reply->status;
	const char *code = status_code(request, status);
	bool value = request->options & REQUEST_VALUE_WANTED &&
		     (status == STATUS_HIT || status == STATUS_NUMBER);
	bool same = request->verb == VERB_FETCH && request->options & REQUEST_CAS_COMPARE &&
		    request->cas_compare == reply->cas;

	if (request->verb == VERB_NOOP) {
		reply_put(out, "MN\r\n", 4);
		return;
	}
	if (request->verb == VERB_REFUSE || code == NULL) {
		text_compose_status(out, status);
		return;
	}
	if (is_quiet(request, status))
		return;
	if (request->verb == VERB_INSPECT && status != STATUS_MISS) {
		compose_inspect(out, request, reply);
		return;
	}
	uint8_t *at = compose_begin(out);

	if (value && !same) {
		at = put_text(at, "VA ", 3);
		at = compose_decimal(at, status == STATUS_NUMBER
						 ? compose_decimal_size(reply->number)
						 : reply->value_size);
	} else if (status == STATUS_HIT || status == STATUS_NUMBER) {
		at = put_text(at, "HD", 2);
		value = false;
	} else {
		at = put_text(at, code, 2);
	}
	at = put_flags(at, request, reply);
	if (status == STATUS_HIT) {
		if (reply->win_sent)
			at = put_text(at, " Z", 2);
		if (reply->stale)
			at = put_text(at, " X", 2);
		if (reply->won)
			at = put_text(at, " W", 2);
	}
	at = put_text(at, "\r\n", 2);
	if (value && status == STATUS_NUMBER) {
		at = compose_decimal(at, reply->number);
		at = put_text(at, "\r\n", 2);
	}
	if (value && status == STATUS_HIT) {
		at = compose_value(out, at, reply);
		at = put_text(at, "\r\n", 2);
	}
	compose_end(out, at);
}
