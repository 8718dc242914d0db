/* SPDX-License-Identifier: BSD-2-Clause */
/* Arithmetic: incr, decr, ma. */
#include "engine/verbs.h"

#include <string.h>

/* A decimal number as memcached takes it: digits, spaces behind. */
static bool
read_number(const struct engine *engine, const struct store_view *view, uint64_t *number)
{
	struct slice piece;
	size_t i = 0;

	if (view->value_size == 0 || view->value_size > NUMBER_TEXT_MAX)
		return false;
	store_pieces(engine->store, view, &piece);
	for (*number = 0; i < piece.size && piece.data[i] >= '0' && piece.data[i] <= '9'; i++)
		if (__builtin_mul_overflow(*number, 10, number) ||
			__builtin_add_overflow(*number, (uint64_t)(piece.data[i] - '0'), number))
			return false;
	if (i == 0)
		return false;
	while (i < piece.size && piece.data[i] == ' ')
		i++;
	return i == piece.size;
}

/* The number's text, as wide as the old value where that is wider: padded by spaces. */
static void
write_number(struct deciding *deciding, uint64_t number, uint64_t width)
{
	char *text = deciding->engine->number_text, *end = text + NUMBER_TEXT_MAX, *at = end;
	size_t size;

	do
		*--at = (char)('0' + number % 10);
	while (number /= 10);
	size = (size_t)(end - at);
	memmove(text, at, size);
	if (width > size) {
		memset(text + size, ' ', width - size);
		size = width;
	}
	deciding->value = slice_make(text, size);
}

static void
draft_number(struct deciding *deciding, struct store_draft *draft)
{
	draft->keep_body = false;
	draft->pieces = &deciding->value;
	draft->piece_count = 1;
	draft->value_size = deciding->value.size;
	command_draft_cas(deciding->request, draft);
}

static enum store_action
decide_create_number(struct deciding *deciding, struct store_draft *draft)
{
	const struct request *request = deciding->request;

	write_number(deciding, request->initial, 0);
	deciding->reply->status = STATUS_NUMBER;
	deciding->reply->number = request->initial;
	draft->expiry_s = store_expiry(deciding->engine->time.unix_ns, request->vivify_ttl);
	draft->key_binary = command_key_is_binary(request);
	draft_number(deciding, draft);
	return STORE_REPLACE;
}

static enum store_action
decide_arithmetic(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct deciding *deciding = context;
	const struct request *request = deciding->request;
	struct reply *reply = deciding->reply;
	uint64_t number;

	(void)found;
	deciding->present = current != NULL;
	reply->status = STATUS_NOT_FOUND;
	if (!current)
		return (request->options & REQUEST_VIVIFY) ? decide_create_number(deciding, draft)
							   : STORE_KEEP;
	deciding->view = *current;
	reply->status = STATUS_EXISTS;
	if ((request->options & REQUEST_CAS_COMPARE) && !command_cas_matches(request, current))
		return STORE_KEEP;
	reply->status = STATUS_NOT_A_NUMBER;
	if (!read_number(deciding->engine, current, &number))
		return STORE_KEEP;
	if (request->mode == MODE_INCREMENT)
		number += request->delta;
	else
		number = number < request->delta ? 0 : number - request->delta;
	reply->status = STATUS_NUMBER;
	reply->number = number;
	write_number(deciding, number, current->value_size);
	command_draft_keep(draft, current);
	draft->access_now = true;
	if (request->options & REQUEST_TTL)
		draft->expiry_s = store_expiry(deciding->engine->time.unix_ns, request->exptime);
	draft_number(deciding, draft);
	return STORE_REPLACE;
}

bool
arithmetic_run(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct counters *counters = engine->counters;
	const struct request *request = deciding->request;
	struct reply *reply = deciding->reply;
	bool incr = request->mode == MODE_INCREMENT;
	enum store_status status = command_change(deciding, decide_arithmetic);
	uint32_t expiry;

	if (status == STORE_WAIT)
		return false;
	if (status == STORE_REFUSED) {
		reply->status = STATUS_FLASH_REFUSED;
		return true;
	}
	if (status == STORE_NO_MEMORY) {
		counter_add(&counters->store_no_memory, 1);
		reply->status = STATUS_NO_MEMORY;
		return true;
	}
	if (!deciding->present) {
		counter_add(incr ? &counters->incr_misses : &counters->decr_misses, 1);
		counter_add(&counters->total_items, reply->status == STATUS_NUMBER);
		expiry = store_expiry(engine->time.unix_ns, request->vivify_ttl);
	} else {
		uint32_t id = command_class_of_view(engine, &deciding->view);

		if (reply->status == STATUS_NUMBER) {
			counter_add(incr ? &counters->incr_hits : &counters->decr_hits, 1);
			counter_add(incr ? &counters->classes[id].incr_hits
					 : &counters->classes[id].decr_hits,
				1);
		}
		expiry = request->options & REQUEST_TTL
				 ? store_expiry(engine->time.unix_ns, request->exptime)
				 : deciding->view.item->expiry;
	}
	reply->ttl_s = store_ttl_s(engine->time.unix_ns, expiry);
	reply->value_size = deciding->value.size;
	if (reply->status == STATUS_NUMBER && (request->options & REQUEST_VALUE_WANTED)) {
		engine->pieces[0] = deciding->value;
		reply->pieces = engine->pieces;
		reply->piece_count = 1;
	}
	return true;
}
