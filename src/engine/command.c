/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What each verb does. A change is a decision: a function that sees the key's present item under
 * its bucket's lock and says what becomes of it. Decisions are pure until the store has answered,
 * because a request that waits is decided again; what is counted is counted after that.
 */
#include "engine/internal.h"

#include "base/check.h"

#include <string.h>

#define RELATIVE_MAX_S (60 * 60 * 24 * 30)

/* What a decision works with. */
struct deciding {
	struct engine *engine;
	const struct request *request;
	struct slot *slot;
	struct reply *reply;
	struct store_view view; /* the item as it was decided on, where 'present' */
	bool present;
	bool body_given;   /* the draft took the upload's segments */
	bool stale_stored; /* an older value was stored as stale */
	/* FETCH with a new time to live: the item was written with the win handed out */
	bool won;
	bool rewritten; /* FETCH with a new time to live: there is a new item, with this access */
	struct slice value; /* ARITHMETIC: the new value's text, in the engine's number_text */
};

static enum store_status
change(struct deciding *deciding,
	enum store_action (*decide)(void *context, const struct store_view *current,
		enum store_found found, struct store_draft *draft))
{
	const struct request *request = deciding->request;
	const struct store_update update = {decide, deciding};
	uint64_t cas;
	enum store_status status = store_change(deciding->engine->thread, request->key,
		request->key_size, request->hash, &update, &cas);

	if (cas)
		deciding->reply->cas = cas;
	return status;
}

/* The class that memcached's statistics would count this key and value under. */
static uint32_t
class_of(const struct engine *engine, uint32_t key_size, uint64_t value_size, uint32_t client_flags)
{
	return classes_find(store_classes(engine->store),
		classes_item_bytes(key_size, value_size, client_flags, 1));
}

static uint32_t
class_of_view(const struct engine *engine, const struct store_view *view)
{
	return class_of(
		engine, item_key_size(view->item), view->value_size, item_client_flags(view->item));
}

static void
cas_policy(const struct request *request, struct store_draft *draft)
{
	draft->cas_policy = STORE_CAS_NEW;
	if (request->options & REQUEST_CAS_NEW) {
		draft->cas_policy = STORE_CAS_GIVEN;
		draft->cas = request->cas_new;
	}
}

/*
 * Must the key be written in base64 on a text connection? One that a binary connection stored may
 * hold what ends a line there.
 */
static bool
key_is_binary(const struct request *request)
{
	if (request->protocol != PROTOCOL_BINARY)
		return request->options & REQUEST_KEY_BINARY;
	for (uint32_t i = 0; i < request->key_size; i++)
		if (request->key[i] <= ' ')
			return true;
	return false;
}

/* Number 0 is no CAS number: with -C all items have it. */
static bool
cas_matches(const struct request *request, const struct store_view *current)
{
	uint64_t cas = item_cas(current->item);

	return cas != 0 && cas == request->cas_compare;
}

/* The present item with all that it has; the decision changes what it wants. */
static void
draft_keep(struct store_draft *draft, const struct store_view *current)
{
	draft->keep_body = true;
	draft->client_flags = item_client_flags(current->item);
	draft->expiry_s = current->item->expiry;
	draft->cas_policy = STORE_CAS_KEEP;
	draft->stale = current->kinds & ITEM_STALE;
	draft->key_binary = current->kinds & ITEM_KEY_BINARY;
	draft->keep_access = true;
}

static uint32_t
expiry_of(const struct engine *engine, int64_t exptime)
{
	uint32_t expiry = store_expiry(engine->time.unix_ns, exptime);

	if (expiry != 0 && expiry <= engine->time.unix_s)
		counter_add(&engine->counters->set_expired_on_arrival, 1);
	return expiry;
}

/* --- fetch -------------------------------------------------------------------------------- */

/* Is the item stale, or (R) soon over, so that one client shall make it anew? */
static bool
win_due(const struct engine *engine, const struct request *request, const struct store_view *view)
{
	if (view->kinds & ITEM_STALE)
		return true;
	return (request->options & REQUEST_RECACHE) && view->item->expiry != 0 &&
	       store_ttl_s(engine->time.unix_ns, view->item->expiry) < request->recache_ttl;
}

/*
 * gat, mg T: the same item with a new time to live. The win is settled here, by the old time to
 * live and under the lock: afterwards the item that was found is no longer the present one.
 */
static enum store_action
decide_touch(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct deciding *deciding = context;
	uint32_t expiry = store_expiry(deciding->engine->time.unix_ns, deciding->request->exptime);

	(void)found;
	deciding->present = current != NULL;
	deciding->won = deciding->rewritten = false;
	if (!current)
		return STORE_KEEP;
	deciding->view = *current;
	if (current->item->expiry == expiry)
		return STORE_KEEP;
	deciding->rewritten = true;
	draft_keep(draft, current);
	draft->expiry_s = expiry;
	draft->access_now = !(deciding->request->options & REQUEST_NO_BUMP);
	deciding->won = deciding->request->protocol == PROTOCOL_META &&
			!(current->soft & ITEM_SOFT_WIN) &&
			win_due(deciding->engine, deciding->request, current);
	draft->win_sent = deciding->won;
	return STORE_REPLACE;
}

/* mg N: an empty item for the one client that will fill it. */
static enum store_action
decide_vivify(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct deciding *deciding = context;
	const struct request *request = deciding->request;

	(void)found;
	deciding->present = current != NULL;
	if (current) {
		deciding->view = *current;
		return STORE_KEEP;
	}
	draft->expiry_s = store_expiry(deciding->engine->time.unix_ns, request->vivify_ttl);
	draft->key_binary = key_is_binary(request);
	draft->win_sent = true;
	cas_policy(request, draft);
	return STORE_REPLACE;
}

/* Stale, or soon over: exactly one client is told to make it anew. */
static void
settle_win(struct engine *engine, const struct request *request, struct store_view *view,
	struct reply *reply)
{
	reply->stale = view->kinds & ITEM_STALE;
	reply->win_sent = view->soft & ITEM_SOFT_WIN;
	if (reply->win_sent || !win_due(engine, request, view))
		return;
	reply->won = store_take_win(engine->thread, view, request->hash);
	reply->win_sent = !reply->won;
	/* As the word stands now: what counts the access compares with it. */
	if (reply->won)
		view->soft |= ITEM_SOFT_WIN;
}

static void
reply_from_view(struct engine *engine, const struct request *request, const struct store_view *view,
	struct reply *reply)
{
	reply->status = STATUS_HIT;
	reply->client_flags = item_client_flags(view->item);
	reply->cas = item_cas(view->item);
	reply->value_size = view->value_size;
	reply->key = request->key;
	reply->key_size = request->key_size;
	reply->key_binary = view->kinds & ITEM_KEY_BINARY;
	reply->fetched = view->soft & ITEM_SOFT_FETCHED;
	reply->last_access_s = store_last_access_s(engine->thread, view);
	reply->ttl_s = store_ttl_s(engine->time.unix_ns, view->item->expiry);
	if (request->options & REQUEST_VALUE_WANTED) {
		reply->pieces = engine->pieces;
		reply->piece_count = store_pieces(engine->store, view, engine->pieces);
	}
}

static void
count_fetch(struct engine *engine, const struct request *request, enum store_found found,
	const struct store_view *view)
{
	struct counters *counters = engine->counters;
	bool touch = request->options & REQUEST_TTL, hit = found == STORE_PRESENT;

	counter_add(&counters->cmd_get, 1);
	counter_add(hit ? &counters->get_hits : &counters->get_misses, 1);
	counter_add(&counters->get_expired, found == STORE_EXPIRED);
	counter_add(&counters->get_flushed, found == STORE_FLUSHED);
	if (touch) {
		counter_add(&counters->cmd_touch, 1);
		counter_add(hit ? &counters->touch_hits : &counters->touch_misses, 1);
	}
	if (hit) {
		uint32_t id = class_of_view(engine, view);

		counter_add(
			touch ? &counters->classes[id].touch_hits : &counters->classes[id].get_hits,
			1);
	}
}

/* A miss that may be turned into a placeholder. False: it must wait. */
static bool
fetch_miss(struct deciding *deciding, enum store_found found)
{
	struct engine *engine = deciding->engine;
	const struct request *request = deciding->request;
	struct reply *reply = deciding->reply;

	reply->status = STATUS_MISS;
	if (request->options & REQUEST_VIVIFY) {
		switch (change(deciding, decide_vivify)) {
		case STORE_WAIT:
			return false;
		case STORE_NO_MEMORY:
			counter_add(&engine->counters->store_no_memory, 1);
			reply->status = STATUS_NO_MEMORY;
			break;
		case STORE_DONE:
			if (deciding->present) { /* somebody else was first, just now */
				settle_win(engine, request, &deciding->view, reply);
				reply_from_view(engine, request, &deciding->view, reply);
				break;
			}
			counter_add(&engine->counters->total_items, 1);
			reply->status = STATUS_HIT;
			reply->won = true;
			reply->key_binary = request->options & REQUEST_KEY_BINARY;
			reply->ttl_s = store_ttl_s(engine->time.unix_ns,
				store_expiry(engine->time.unix_ns, request->vivify_ttl));
			break;
		}
	}
	count_fetch(engine, request, found == STORE_PRESENT ? STORE_ABSENT : found, NULL);
	return true;
}

static bool
run_fetch(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct slot *slot = deciding->slot;
	const struct request *request = deciding->request;
	const struct store_hint hint = {
		slot->hint_number, slot->hint_entry, slot->hint_slot, slot->hint_version};
	struct store_view *view = &deciding->view;
	enum store_found found;
	bool stale_hint;

	found = store_find(engine->thread, request->key, request->key_size, request->hash,
		slot->hinted ? &hint : NULL, view, &stale_hint);
	counter_add(&engine->counters->batch_hints_stale, stale_hint);
	if (found == STORE_PRESENT && (request->options & REQUEST_TTL)) {
		/*
		 * The value that is answered is the one whose time was changed: as the decision saw
		 * it.
		 */
		enum store_status status = change(deciding, decide_touch);

		if (status == STORE_WAIT)
			return false;
		deciding->won &= status == STORE_DONE;
		deciding->rewritten &= status == STORE_DONE;
		found = deciding->present ? STORE_PRESENT : STORE_ABSENT;
	}
	if (found != STORE_PRESENT)
		return fetch_miss(deciding, found);
	if (deciding->won) {
		deciding->reply->stale = view->kinds & ITEM_STALE;
		deciding->reply->won = true;
	} else if (request->protocol == PROTOCOL_META) {
		settle_win(engine, request, view, deciding->reply);
	}
	reply_from_view(engine, request, view, deciding->reply);
	/* Where there was no memory for a new item, the old one's time to live stays. */
	if (deciding->rewritten)
		deciding->reply->ttl_s = store_ttl_s(
			engine->time.unix_ns, store_expiry(engine->time.unix_ns, request->exptime));
	else if (!(request->options & REQUEST_NO_BUMP))
		store_accessed(engine->thread, view);
	count_fetch(engine, request, STORE_PRESENT, view);
	return true;
}

/* me: what is known about an item; leaves no trace. */
static bool
run_inspect(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	const struct request *request = deciding->request;
	struct reply *reply = deciding->reply;
	struct store_view *view = &deciding->view;

	reply->status = STATUS_MISS;
	if (store_find(engine->thread, request->key, request->key_size, request->hash, NULL, view,
		    NULL) != STORE_PRESENT)
		return true;
	reply_from_view(engine, request, view, reply);
	reply->size_class = (uint8_t)class_of_view(engine, view);
	reply->item_bytes = classes_item_bytes(
		request->key_size, view->value_size, reply->client_flags, reply->cas != 0);
	return true;
}

/* --- store -------------------------------------------------------------------------------- */

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
		counter_add(&engine->counters->store_too_large, 1);
		deciding->reply->status = STATUS_NOT_STORED;
		return STORE_KEEP;
	}
	draft_keep(draft, current);
	cas_policy(request, draft);
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
	draft->expiry_s = store_expiry(deciding->engine->time.unix_ns, request->exptime);
	draft->key_binary = key_is_binary(request);
	cas_policy(request, draft);
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
	if (cas_matches(request, current))
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
	deciding->present = current != NULL;
	deciding->body_given = false;
	if (current)
		deciding->view = *current;
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

static enum store_action
decide_remove(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	const struct request *request = ((const struct deciding *)context)->request;

	(void)found;
	(void)draft;
	/* Another's value, acknowledged meanwhile, is not what the request was about. */
	if (current && (request->options & REQUEST_CAS_COMPARE) && !cas_matches(request, current))
		return STORE_KEEP;
	return STORE_REMOVE;
}

/* A set that failed must not leave the value that it was to replace. */
static void
drop_old_value(struct deciding *deciding)
{
	if (deciding->request->mode == MODE_SET &&
		!(deciding->request->options & REQUEST_CAS_COMPARE))
		change(deciding, decide_remove);
	deciding->reply->cas = 0;
}

static void
count_store(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct counters *counters = engine->counters;
	const struct request *request = deciding->request;
	uint32_t id =
		class_of(engine, request->key_size, request->body_size, request->client_flags);

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

static bool
run_store(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct slot *slot = deciding->slot;
	struct reply *reply = deciding->reply;
	enum store_status status;

	/* The parser or the upload has found that this one can't be stored. */
	if (deciding->request->status != STATUS_OK) {
		bool large = deciding->request->status == STATUS_TOO_LARGE;

		counter_add(large ? &engine->counters->store_too_large
				  : &engine->counters->store_no_memory,
			1);
		drop_old_value(deciding);
		reply->status = deciding->request->status;
		return true;
	}
	status = change(deciding, decide_store);
	if (status == STORE_WAIT)
		return false;
	if (status == STORE_NO_MEMORY) {
		uint32_t id = class_of(
			engine, deciding->request->key_size, deciding->request->body_size, 0);

		counter_add(&engine->counters->store_no_memory, 1);
		counter_add(&engine->counters->classes[id].outofmemory, 1);
		drop_old_value(deciding);
		reply->status = STATUS_NO_MEMORY;
		deciding->body_given = false;
	} else {
		if (reply->status == STATUS_STORED)
			expiry_of(engine, deciding->request->exptime);
		count_store(deciding);
	}
	if (slot->upload)
		slot->upload->published = deciding->body_given && reply->status == STATUS_STORED;
	return true;
}

/* --- arithmetic --------------------------------------------------------------------------- */

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
	cas_policy(deciding->request, draft);
}

static enum store_action
decide_create_number(struct deciding *deciding, struct store_draft *draft)
{
	const struct request *request = deciding->request;

	write_number(deciding, request->initial, 0);
	deciding->reply->status = STATUS_NUMBER;
	deciding->reply->number = request->initial;
	draft->expiry_s = store_expiry(deciding->engine->time.unix_ns, request->vivify_ttl);
	draft->key_binary = key_is_binary(request);
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
	if ((request->options & REQUEST_CAS_COMPARE) && !cas_matches(request, current))
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
	draft_keep(draft, current);
	draft->access_now = true;
	if (request->options & REQUEST_TTL)
		draft->expiry_s = store_expiry(deciding->engine->time.unix_ns, request->exptime);
	draft_number(deciding, draft);
	return STORE_REPLACE;
}

static bool
run_arithmetic(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct counters *counters = engine->counters;
	const struct request *request = deciding->request;
	struct reply *reply = deciding->reply;
	bool incr = request->mode == MODE_INCREMENT;
	enum store_status status = change(deciding, decide_arithmetic);
	uint32_t expiry;

	if (status == STORE_WAIT)
		return false;
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
		uint32_t id = class_of_view(engine, &deciding->view);

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

/* --- touch and delete --------------------------------------------------------------------- */

static bool
run_touch(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct counters *counters = engine->counters;
	struct reply *reply = deciding->reply;
	enum store_status status = change(deciding, decide_touch);

	if (status == STORE_WAIT)
		return false;
	counter_add(&counters->cmd_touch, 1);
	counter_add(deciding->present ? &counters->touch_hits : &counters->touch_misses, 1);
	reply->status = STATUS_NOT_FOUND;
	if (!deciding->present)
		return true;
	counter_add(&counters->classes[class_of_view(engine, &deciding->view)].touch_hits, 1);
	reply->status = status == STORE_NO_MEMORY ? STATUS_NO_MEMORY : STATUS_TOUCHED;
	reply->client_flags = item_client_flags(deciding->view.item);
	reply->cas = item_cas(deciding->view.item);
	return true;
}

static enum store_action
decide_delete(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct deciding *deciding = context;
	const struct request *request = deciding->request;
	struct reply *reply = deciding->reply;

	(void)found;
	deciding->present = current != NULL;
	reply->status = STATUS_NOT_FOUND;
	if (!current)
		return STORE_KEEP;
	deciding->view = *current;
	reply->status = STATUS_EXISTS;
	if ((request->options & REQUEST_CAS_COMPARE) && !cas_matches(request, current))
		return STORE_KEEP;
	reply->status = STATUS_DELETED;
	if (!(request->options & (REQUEST_INVALIDATE | REQUEST_REMOVE_VALUE)))
		return STORE_REMOVE;
	draft_keep(draft, current);
	cas_policy(request, draft);
	if (request->options & REQUEST_REMOVE_VALUE) {
		draft->keep_body = false;
		draft->client_flags = 0;
	}
	if (request->options & REQUEST_INVALIDATE) {
		/* The next reader shall have the win. */
		draft->stale = true;
		draft->keep_access = false;
		draft->access_now = current->soft & ITEM_SOFT_FETCHED;
		if (request->options & REQUEST_TTL)
			draft->expiry_s =
				store_expiry(deciding->engine->time.unix_ns, request->exptime);
	}
	return STORE_REPLACE;
}

static bool
run_delete(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct counters *counters = engine->counters;
	struct reply *reply = deciding->reply;
	enum store_status status = change(deciding, decide_delete);

	if (status == STORE_WAIT)
		return false;
	if (status == STORE_NO_MEMORY) {
		/* The mark can't be written: without it the item would pass for fresh. */
		change(deciding, decide_remove);
		reply->status = STATUS_DELETED;
	}
	if (!deciding->present) {
		counter_add(&counters->delete_misses, 1);
	} else if (reply->status == STATUS_DELETED) {
		counter_add(&counters->delete_hits, 1);
		counter_add(
			&counters->classes[class_of_view(engine, &deciding->view)].delete_hits, 1);
	}
	return true;
}

/* --- about the daemon --------------------------------------------------------------------- */

static bool
run_flush(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	const struct request *request = deciding->request;
	int64_t delay = request->options & REQUEST_TTL ? request->exptime : 0;
	uint64_t at = 0;

	if (!engine->options.flush_allowed) {
		deciding->reply->status = STATUS_FLUSH_DISABLED;
		return true;
	}
	if (delay > UINT32_MAX)
		delay = UINT32_MAX;
	if (delay > 0)
		at = (delay <= RELATIVE_MAX_S ? engine->time.unix_ns : 0) +
		     (uint64_t)delay * 1000000000u;
	store_flush(engine->thread, at);
	counter_add(&engine->counters->cmd_flush, 1);
	deciding->reply->status = STATUS_OK;
	return true;
}

static bool
run_admin(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct engine_text *text = &engine->texts[engine->text_count++];

	check(engine->text_count <= BATCH_SLOTS);
	memset(text, 0, sizeof *text);
	deciding->reply->status = (uint8_t)engine->options.admin->run(
		engine->options.admin_context, deciding->request, text);
	if (text->size > 0) {
		deciding->reply->status = STATUS_TEXT;
		deciding->reply->text = slice_make(text->data, text->size);
	}
	return true;
}

static void
count_detail(const struct deciding *deciding)
{
	const struct engine_options *options = &deciding->engine->options;
	const struct request *request = deciding->request;

	if (options->detail_enabled &&
		atomic_load_explicit(options->detail_enabled, memory_order_relaxed) &&
		request->key_size > 0)
		options->admin->detail(options->admin_context, (enum verb)request->verb,
			slice_make(request->key, request->key_size),
			deciding->reply->status == STATUS_HIT && !deciding->reply->won);
}

static bool
run_verb(struct deciding *deciding)
{
	struct reply *reply = deciding->reply;

	switch ((enum verb)deciding->request->verb) {
	case VERB_FETCH:
		return run_fetch(deciding);
	case VERB_STORE:
		return run_store(deciding);
	case VERB_ARITHMETIC:
		return run_arithmetic(deciding);
	case VERB_TOUCH:
		return run_touch(deciding);
	case VERB_DELETE:
		return run_delete(deciding);
	case VERB_INSPECT:
		return run_inspect(deciding);
	case VERB_FLUSH:
		return run_flush(deciding);
	case VERB_VERSION:
		reply->status = STATUS_OK;
		reply->text = slice_text(deciding->engine->options.version);
		return true;
	case VERB_VERBOSITY:
	case VERB_STATS:
	case VERB_MEMLIMIT:
	case VERB_SHUTDOWN:
	case VERB_DEBUGTIME:
		return run_admin(deciding);
	case VERB_REFUSE:
		reply->status = deciding->request->status;
		return true;
	case VERB_NOOP:
	case VERB_QUIT:
		reply->status = STATUS_OK;
		return true;
	}
	return true;
}

bool
command_run(struct engine *engine, struct batch_run *run, struct slot *slot, struct reply *reply)
{
	struct deciding deciding = {
		.engine = engine, .request = &slot->request, .slot = slot, .reply = reply};

	memset(reply, 0, sizeof *reply);
	reply->ttl_s = -1;
	if (run->wrote && engine->accel != &accel_cpu)
		slot->hinted = false;
	if (!run_verb(&deciding))
		return false;
	run->wrote |= slot->request.verb == VERB_STORE || slot->request.verb == VERB_ARITHMETIC ||
		      slot->request.verb == VERB_TOUCH || slot->request.verb == VERB_DELETE ||
		      slot->request.verb == VERB_FLUSH ||
		      (slot->request.options & (REQUEST_TTL | REQUEST_VIVIFY));
	counter_add(&engine->counters->cmd_meta,
		slot->request.protocol == PROTOCOL_META && slot->request.key_size > 0);
	count_detail(&deciding);
	return true;
}
