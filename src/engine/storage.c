/* SPDX-License-Identifier: BSD-2-Clause */
/* Storing: set, add, replace, append, prepend, cas, ms. */
#include "engine/verbs.h"

static uint32_t
expiry_of(const struct engine *engine, const struct request *request)
{
	return request->exptime ? store_expiry(engine->time.unix_ns, request->exptime) : 0;
}

static void
count_expired_on_arrival(struct engine *engine, uint32_t expiry_s)
{
	if (expiry_s != 0 && expiry_s <= engine->time.unix_s)
		counter_add(&engine->counters->set_expired_on_arrival, 1);
}

/* The pieces of the body that came with the request, into pieces; gives their number. */
static uint32_t
body_pieces(const struct engine *engine, const struct slot *slot, struct slice *pieces)
{
	const struct upload *upload = slot->upload;
	uint64_t left = slot->request.body_size;
	uint64_t unit;

	if (!upload) {
		pieces[0] = slot->request.value;
		return pieces[0].size > 0;
	}
	unit = upload->large ? 1ull << engine->arena.segment_shift : UPLOAD_CHUNK;
	for (uint32_t i = 0; i < upload->piece_count; i++) {
		pieces[i].data = upload->large ? engine_segment(engine, upload->segments[i])
					       : upload->chunks[i];
		pieces[i].size = left < unit ? left : unit;
		left -= pieces[i].size;
	}
	return upload->piece_count;
}

/* The new value as it came. */
static void
draft_body(struct deciding *deciding, struct store_draft *draft)
{
	const struct slot *slot = deciding->slot;

	draft->value_size = slot->request.body_size;
	if (slot->upload && slot->upload->large) {
		draft->body = slot->upload->segments;
		draft->body_count = slot->upload->piece_count;
		deciding->body_given = true;
		return;
	}
	draft->pieces = deciding->engine->pieces;
	draft->piece_count = body_pieces(deciding->engine, slot, deciding->engine->pieces);
}

static enum store_action
decide_append(
	struct deciding *deciding, const struct store_view *current, struct store_draft *draft)
{
	struct engine *engine = deciding->engine;
	const struct request *request = deciding->request;
	struct slice *pieces = engine->pieces;
	uint32_t count;

	if (current->value_size + request->body_size > engine->options.value_bytes_max) {
		deciding->too_large = true;
		deciding->reply->status = STATUS_NOT_STORED;
		return STORE_KEEP;
	}
	command_draft_keep(draft, current);
	command_draft_cas(request, draft);
	/* A new value: neither stale nor fetched yet. */
	draft->stale = draft->keep_access = draft->keep_body = false;
	if (request->mode == MODE_APPEND) {
		count = store_pieces(engine->store, current, pieces);
		count += body_pieces(engine, deciding->slot, pieces + count);
	} else {
		count = body_pieces(engine, deciding->slot, pieces);
		count += store_pieces(engine->store, current, pieces + count);
	}
	draft->pieces = pieces;
	draft->piece_count = count;
	draft->value_size = current->value_size + request->body_size;
	return STORE_REPLACE;
}

static enum store_action
decide_set(struct deciding *deciding, const struct store_view *current, struct store_draft *draft)
{
	const struct request *request = deciding->request;

	draft_body(deciding, draft);
	draft->client_flags = request->client_flags;
	draft->expiry_s = expiry_of(deciding->engine, request);
	draft->key_binary = command_key_is_binary(request);
	command_draft_cas(request, draft);
	if (deciding->stale_stored) {
		/* The item's time to live stays, and whoever has the win keeps it. */
		draft->expiry_s = current->item->expiry;
		draft->stale = true;
		draft->win_sent = current->soft & ITEM_SOFT_WIN;
	}
	return STORE_REPLACE;
}

/* Whether the CAS number lets the request go on; STATUS_OK, EXISTS or NOT_FOUND. */
static enum status
compare_cas(struct deciding *deciding, const struct store_view *current)
{
	const struct request *request = deciding->request;

	deciding->stale_stored = false;
	if (!(request->options & REQUEST_CAS_COMPARE))
		return STATUS_OK;
	if (!current)
		return STATUS_NOT_FOUND;
	if (command_cas_matches(request, current))
		return STATUS_OK;
	if ((request->options & REQUEST_INVALIDATE) &&
		request->cas_compare < item_cas(current->item)) {
		deciding->stale_stored = true;
		return STATUS_OK;
	}
	return STATUS_EXISTS;
}

static enum store_action
decide_store(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct deciding *deciding = context;
	const struct request *request = deciding->request;
	struct reply *reply = deciding->reply;
	bool append = request->mode == MODE_APPEND || request->mode == MODE_PREPEND;
	enum status compared = compare_cas(deciding, current);

	(void)found;
	deciding->body_given = deciding->too_large = false;
	reply->status = STATUS_NOT_STORED;
	if (request->mode == MODE_ADD && current)
		return STORE_KEEP;
	if ((request->mode == MODE_REPLACE || append) && !current) {
		if (!append || !(request->options & REQUEST_VIVIFY))
			return STORE_KEEP;
		reply->status = STATUS_STORED;
		decide_set(deciding, NULL, draft);
		reply->value_size = draft->value_size;
		draft->expiry_s = store_expiry(deciding->engine->time.unix_ns, request->vivify_ttl);
		return STORE_REPLACE;
	}
	reply->status = compared;
	if (compared != STATUS_OK)
		return STORE_KEEP;
	reply->status = STATUS_STORED;
	enum store_action action = append ? decide_append(deciding, current, draft)
					  : decide_set(deciding, current, draft);

	reply->value_size = draft->value_size;
	return action;
}

/*
 * A set that failed must not leave the value that it was to replace; 'failure' is its answer then.
 * False: it must wait.
 */
static bool
drop_old_value(struct deciding *deciding, enum status failure)
{
	enum store_status status = STORE_DONE;

	if (deciding->request->mode == MODE_SET &&
		!(deciding->request->options & REQUEST_CAS_COMPARE))
		status = command_change(deciding, command_decide_remove);
	deciding->reply->cas = 0;
	deciding->reply->status = status == STORE_REFUSED ? STATUS_FLASH_REFUSED : failure;
	return status != STORE_WAIT;
}

static void
count_store(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct counters *counters = engine->counters;
	const struct request *request = deciding->request;
	uint32_t id = command_class_of(
		engine, request->key_size, request->body_size, request->client_flags);

	counter_add(&counters->cmd_set, 1);
	counter_add(&counters->classes[id].cmd_set, 1);
	counter_add(&counters->total_items, deciding->reply->status == STATUS_STORED);
	if (!(request->options & REQUEST_CAS_COMPARE))
		return;
	switch (deciding->reply->status) {
	case STATUS_STORED:
		counter_add(&counters->cas_hits, 1);
		counter_add(&counters->classes[id].cas_hits, 1);
		break;
	case STATUS_EXISTS:
		counter_add(&counters->cas_badval, 1);
		counter_add(&counters->classes[id].cas_badval, 1);
		break;
	case STATUS_NOT_FOUND:
		counter_add(&counters->cas_misses, 1);
		break;
	}
}

/* Nothing was stored, and nothing old is left. False: it must wait. */
static bool
out_of_memory(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	const struct request *request = deciding->request;
	uint32_t id = command_class_of(engine, request->key_size, request->body_size, 0);

	if (!drop_old_value(deciding, STATUS_NO_MEMORY))
		return false;
	counter_add(&engine->counters->store_no_memory, 1);
	counter_add(&engine->counters->classes[id].outofmemory, 1);
	return true;
}

/* The store's answers that aren't DONE. False: the request must wait. */
static bool
not_stored(struct deciding *deciding, enum store_status status)
{
	if (status == STORE_WAIT)
		return false;
	if (status == STORE_NO_MEMORY)
		return out_of_memory(deciding);
	deciding->reply->cas = 0;
	deciding->reply->status = STATUS_FLASH_REFUSED;
	return true;
}

/* A set that nothing depends on, its value in one piece: what most are. */
static bool
is_plain(const struct slot *slot)
{
	const struct request *request = &slot->request;

	return request->mode == MODE_SET && request->status == STATUS_OK && !slot->upload &&
	       !(request->options & (REQUEST_CAS_COMPARE | REQUEST_CAS_NEW | REQUEST_INVALIDATE));
}

static bool
run_plain(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	const struct request *request = deciding->request;
	const struct store_hint hint = command_hint(deciding->slot);
	struct store_draft draft = {
		.pieces = &request->value,
		.piece_count = request->value.size > 0,
		.value_size = request->body_size,
		.client_flags = request->client_flags,
		.expiry_s = expiry_of(engine, request),
		.cas_policy = STORE_CAS_NEW,
		.key_binary = command_key_is_binary(request),
	};
	enum store_status status =
		store_set(engine->thread, request->key, request->key_size, request->hash,
			deciding->slot->hinted ? &hint : NULL, &draft, &deciding->reply->cas);

	if (status != STORE_DONE)
		return not_stored(deciding, status);
	deciding->reply->status = STATUS_STORED;
	deciding->reply->value_size = request->body_size;
	count_expired_on_arrival(engine, draft.expiry_s);
	count_store(deciding);
	return true;
}

bool
storage_run(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct slot *slot = deciding->slot;
	struct reply *reply = deciding->reply;
	enum store_status status;

	if (is_plain(slot))
		return run_plain(deciding);
	/* The parser or the upload has found that this one can't be stored. */
	if (deciding->request->status != STATUS_OK) {
		bool large = deciding->request->status == STATUS_TOO_LARGE;

		if (!drop_old_value(deciding, (enum status)deciding->request->status))
			return false;
		counter_add(large ? &engine->counters->store_too_large
				  : &engine->counters->store_no_memory,
			1);
		return true;
	}
	status = command_change(deciding, decide_store);
	if (status != STORE_DONE) {
		if (!not_stored(deciding, status))
			return false;
		deciding->body_given = false;
	} else {
		counter_add(&engine->counters->store_too_large, deciding->too_large);
		if (reply->status == STATUS_STORED)
			count_expired_on_arrival(engine, expiry_of(engine, deciding->request));
		count_store(deciding);
	}
	if (slot->upload)
		slot->upload->published = deciding->body_given && reply->status == STATUS_STORED;
	return true;
}
