/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/lib/proto_feed.h"

#include "base/check.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const verb_names[] = {
	[VERB_FETCH] = "FETCH",
	[VERB_STORE] = "STORE",
	[VERB_ARITHMETIC] = "ARITHMETIC",
	[VERB_TOUCH] = "TOUCH",
	[VERB_DELETE] = "DELETE",
	[VERB_INSPECT] = "INSPECT",
	[VERB_NOOP] = "NOOP",
	[VERB_FLUSH] = "FLUSH",
	[VERB_VERSION] = "VERSION",
	[VERB_VERBOSITY] = "VERBOSITY",
	[VERB_STATS] = "STATS",
	[VERB_MEMLIMIT] = "MEMLIMIT",
	[VERB_SHUTDOWN] = "SHUTDOWN",
	[VERB_DEBUGTIME] = "DEBUGTIME",
	[VERB_QUIT] = "QUIT",
	[VERB_REFUSE] = "REFUSE",
};

static const char *const mode_names[] = {
	[MODE_NONE] = "",
	[MODE_SET] = "set",
	[MODE_ADD] = "add",
	[MODE_REPLACE] = "replace",
	[MODE_APPEND] = "append",
	[MODE_PREPEND] = "prepend",
	[MODE_INCREMENT] = "increment",
	[MODE_DECREMENT] = "decrement",
};

static const char *const status_names[] = {
#define STATUS(name, text, meta, binary, binary_text) [STATUS_##name] = #name,
#include "proto/status.def"
#undef STATUS
};

static const char *const option_names[] = {
	"ttl",
	"vivify",
	"recache",
	"cas-compare",
	"cas-new",
	"invalidate",
	"no-bump",
	"remove-value",
	"binary-key",
	"value",
	"quiet",
	"noreply",
	"cas",
	"key",
	"last",
	"close",
	"was",
	"no-create",
	"b",
	"mode-given",
};

static void __attribute__((format(printf, 2, 3))) put(struct feed *feed, const char *format, ...)
{
	va_list arguments;

	for (;;) {
		va_start(arguments, format);
		int size = vsnprintf(feed->lines + feed->lines_size,
			feed->lines_room - feed->lines_size, format, arguments);
		va_end(arguments);
		if (feed->lines_size + (size_t)size < feed->lines_room) {
			feed->lines_size += (size_t)size;
			return;
		}
		feed->lines_room = 2 * feed->lines_room + (size_t)size + 1;
		feed->lines = realloc(feed->lines, feed->lines_room);
		check(feed->lines);
	}
}

static void
put_bytes(struct feed *feed, const char *name, const uint8_t *data, size_t size)
{
	put(feed, " %s=", name);
	/* Long runs are told apart by their length and sum. */
	if (size > 300) {
		uint32_t sum = 0;

		for (size_t i = 0; i < size; i++)
			sum = sum * 31 + data[i];
		put(feed, "<%zu:%08x>", size, (unsigned)sum);
		return;
	}
	for (size_t i = 0; i < size; i++)
		put(feed, isgraph(data[i]) || data[i] == ' ' ? "%c" : "\\x%02x", data[i]);
}

static void
put_request(struct feed *feed, const struct request *r, const uint8_t *body)
{
	put(feed, "%s", verb_names[r->verb]);
	if (r->protocol == PROTOCOL_BINARY)
		put(feed, " op=%02x opaque=%u", r->opcode, __builtin_bswap32(r->opaque));
	if (r->status != STATUS_OK)
		put(feed, " %s", status_names[r->status]);
	if (r->verb != VERB_REFUSE) {
		if (r->mode != MODE_NONE)
			put(feed, " %s", mode_names[r->mode]);
		if (r->key_size)
			put_bytes(feed, "key", r->key, r->key_size);
		if (r->client_flags)
			put(feed, " flags=%u", r->client_flags);
		if (r->exptime)
			put(feed, " exptime=%lld", (long long)r->exptime);
		if (r->options & REQUEST_VIVIFY)
			put(feed, " vivify=%lld", (long long)r->vivify_ttl);
		if (r->options & REQUEST_RECACHE)
			put(feed, " recache=%lld", (long long)r->recache_ttl);
		if (r->options & REQUEST_CAS_COMPARE)
			put(feed, " compare=%llu", (unsigned long long)r->cas_compare);
		if (r->options & REQUEST_CAS_NEW)
			put(feed, " new=%llu", (unsigned long long)r->cas_new);
		if (r->verb == VERB_ARITHMETIC || r->verb == VERB_MEMLIMIT ||
			r->verb == VERB_VERBOSITY)
			put(feed, " delta=%llu", (unsigned long long)r->delta);
		if (r->verb == VERB_ARITHMETIC && r->initial)
			put(feed, " initial=%llu", (unsigned long long)r->initial);
		if (r->arguments.size)
			put_bytes(feed, "arguments", r->arguments.data, r->arguments.size);
		if (r->verb == VERB_STORE && r->status == STATUS_OK)
			put_bytes(feed, "value", body, r->body_size);
	}
	for (unsigned i = 0; i < sizeof option_names / sizeof *option_names; i++)
		if (r->options & 1u << i)
			put(feed, " +%s", option_names[i]);
	put(feed, "\n");
}

static bool
within(const void *data, size_t size, const void *start, size_t room)
{
	const uint8_t *d = data, *s = start;

	return d >= s && d + size <= s + room;
}

static void
check_request(const struct request *r, const uint8_t *window, size_t size,
	const uint8_t *key_decoded, bool body)
{
	check(r->verb <= VERB_REFUSE && r->status < STATUS_COUNT && r->command < COMMAND_COUNT);
	if (r->verb == VERB_REFUSE) {
		check(r->status != STATUS_OK);
		return;
	}
	switch (r->verb) {
	case VERB_FETCH:
	case VERB_STORE:
	case VERB_ARITHMETIC:
	case VERB_TOUCH:
	case VERB_DELETE:
	case VERB_INSPECT:
		check(r->key_size >= 1 && r->key_size <= KEY_SIZE_MAX);
		check(within(r->key, r->key_size, window, size) ||
			within(r->key, r->key_size, key_decoded, KEY_SIZE_MAX));
		break;
	default:
		break;
	}
	if (r->arguments.size)
		check(within(r->arguments.data, r->arguments.size, window, size));
	if (r->verb == VERB_STORE && r->status == STATUS_OK && !body)
		check(r->value.size == r->body_size &&
			within(r->value.data, r->value.size, window, size));
}

/*
 * Replies of every status must fit the room that COMPOSE_ROOM promises, and count their bytes
 * right.
 */
static void
check_replies(const struct request *r)
{
	static const uint8_t big[4096] = {'v'};
	uint8_t *text = malloc(COMPOSE_ROOM);
	struct iovec iovecs[3 + 2];

	check(text);
	for (int status = 0; status < STATUS_COUNT; status++) {
		for (int shape = 0; shape < 4; shape++) {
			struct slice pieces[2] = {{big, shape == 0 ? 512 : 4096}, {big, 700}};
			struct reply reply = {
				.status = (uint8_t)status,
				.won = shape & 1,
				.stale = shape & 1,
				.win_sent = shape & 2,
				.fetched = shape & 2,
				.key_binary = shape & 1,
				.size_class = 255,
				.client_flags = UINT32_MAX,
				.last_access_s = UINT32_MAX,
				.ttl_s = shape ? INT64_MAX : -1,
				.cas = UINT64_MAX,
				.number = UINT64_MAX,
				.item_bytes = UINT64_MAX,
				.pieces = pieces,
				.piece_count = shape == 3 ? 2 : 1,
				.value_size = pieces[0].size + (shape == 3 ? 700 : 0),
				.text = SLICE_LITERAL("1.2.3"),
			};
			struct reply_out out = {
				.text = text,
				.text_size = COMPOSE_ROOM,
				.pieces = iovecs,
				.piece_size = 3 + reply.piece_count,
				.copy_max = 512,
			};
			uint64_t bytes = 0;

			/*
			 * A parser's refusal has a key that wasn't checked: its composers don't
			 * look at it.
			 */
			reply_compose(&out, r, &reply);
			for (uint32_t i = 0; i < out.piece_used; i++)
				bytes += iovecs[i].iov_len;
			check(bytes == out.bytes);
			if (r->protocol != PROTOCOL_BINARY && r->options & REQUEST_NOREPLY)
				check(bytes == 0);
		}
	}
	free(text);
}

void
feed_begin(struct feed *feed)
{
	*feed = (struct feed){
		.limits = {.value_bytes_max = 1048576,
			.window_bytes_max = 16384,
			.line_bytes_max = 1048576},
		.first = SIZE_MAX,
		.step = SIZE_MAX,
	};
	feed->lines_room = 256;
	feed->lines = calloc(1, feed->lines_room);
	check(feed->lines);
}

void
feed_end(struct feed *feed)
{
	free(feed->lines);
	feed->lines = NULL;
}

static size_t
read_more(const struct feed *feed, size_t have, size_t size)
{
	size_t take = have ? feed->step : feed->first;

	return take < size - have ? have + take : size;
}

void
feed_run(struct feed *feed, const uint8_t *data, size_t size)
{
	struct parser parser = {0};
	size_t at = 0, have = read_more(feed, 0, size);
	uint8_t key_decoded[KEY_SIZE_MAX];

	while (at < size) {
		if (at >= have) {
			have = read_more(feed, have, size);
			continue;
		}
		/* A window of its own: reading behind it is seen by the address sanitizer. */
		size_t window_size = have - at, consumed = SIZE_MAX;
		uint8_t *window = malloc(window_size);
		struct request request;

		check(window);
		memcpy(window, data + at, window_size);
		enum parse_status status = request_parse(&parser, &feed->limits, window,
			window_size, &consumed, &request, key_decoded);

		if (status == PARSE_REQUEST || status == PARSE_BODY || status == PARSE_SKIP)
			check(consumed > 0 && consumed <= window_size);
		if (feed->limits.datagram)
			check(status != PARSE_BODY);
		if (status == PARSE_MORE) {
			check(consumed == 0 && (parser.wanted == 0 || parser.wanted > window_size));
			free(window);
			if (have == size)
				break;
			have = read_more(feed, have, size);
			continue;
		}
		if (status == PARSE_CLOSE) {
			put(feed, "CLOSE\n");
			feed->closed = true;
			free(window);
			break;
		}
		at += consumed;
		if (status == PARSE_REQUEST || status == PARSE_BODY) {
			uint64_t body =
				status == PARSE_BODY ? request.body_size + parser.body_end : 0;

			check_request(
				&request, window, window_size, key_decoded, status == PARSE_BODY);
			if (feed->compose)
				check_replies(&request);
			if (body > size - at) {
				at -= consumed;
				free(window);
				break;
			}
			put_request(feed, &request,
				status == PARSE_BODY ? data + at : request.value.data);
			at += body;
			if (have < at)
				have = at;
			if (request.options & REQUEST_CLOSE && request.verb != VERB_STORE) {
				feed->closed = true;
				free(window);
				break;
			}
		}
		free(window);
	}
	feed->left = size - at;
}

/*
 * Over-long lines may be met sooner where bytes come slowly: then the requests before are the same,
 * and it is closed.
 */
static void
compare_one(const struct feed *whole, const struct feed *cut)
{
	if (cut->lines_size == whole->lines_size &&
		memcmp(cut->lines, whole->lines, whole->lines_size) == 0)
		return;
	size_t before = cut->lines_size - 6;

	if (cut->closed && cut->lines_size >= 6 && memcmp(cut->lines + before, "CLOSE\n", 6) == 0 &&
		before <= whole->lines_size && memcmp(cut->lines, whole->lines, before) == 0)
		return;
	fprintf(stderr, "in one piece:\n%sfirst %zu bytes, then %zu at a time:\n%s", whole->lines,
		cut->first, cut->step, cut->lines);
	abort();
}

void
feed_compare(const struct parse_limits *limits, const uint8_t *data, size_t size, bool every)
{
	struct feed whole, cut;

	feed_begin(&whole);
	whole.limits = *limits;
	whole.compose = true;
	feed_run(&whole, data, size);
	for (size_t i = 0; i <= size; i += every || size < 64 ? 1 : size / 16) {
		feed_begin(&cut);
		cut.limits = *limits;
		/* The first round gives a byte at a time, or of long inputs a few. */
		cut.step = i ? SIZE_MAX : every || size < 512 ? 1 : size / 256;
		cut.first = i ? i : cut.step;
		feed_run(&cut, data, size);
		compare_one(&whole, &cut);
		feed_end(&cut);
	}
	feed_end(&whole);
}
