/* SPDX-License-Identifier: BSD-2-Clause */
/* Fetching: get, gat, mg, me. */
#include "engine/verbs.h"

/* Is the item stale, or (R) soon over, so that one client shall make it anew? */
bool
fetch_win_due(
	const struct engine *engine, const struct request *request, const struct store_view *view)
{
	if (view->kinds & ITEM_STALE)
		return true;
	return (request->options & REQUEST_RECACHE) && view->item->expiry != 0 &&
	       store_ttl_s(engine->time.unix_ns, view->item->expiry) < request->recache_ttl;
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
	draft->key_binary = command_key_is_binary(request);
	draft->win_sent = true;
	command_draft_cas(request, draft);
	return STORE_REPLACE;
}

/* Stale, or soon over: exactly one client is told to make it anew. */
static void
settle_win(struct engine *engine, const struct request *request, struct store_view *view,
	struct reply *reply)
{
	reply->stale = view->kinds & ITEM_STALE;
	reply->win_sent = view->soft & ITEM_SOFT_WIN;
	if (reply->win_sent || !fetch_win_due(engine, request, view))
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

/* A key that was not found; missed says whose miss that is. */
static inline void
count_miss(struct counters *counters, _Atomic uint64_t *missed, enum store_found found)
{
	counter_add(missed, 1);
	if (found == STORE_EXPIRED)
		counter_add(&counters->get_expired, 1);
	else if (found == STORE_FLUSHED)
		counter_add(&counters->get_flushed, 1);
}

static void
count_fetch(struct engine *engine, const struct request *request, enum store_found found,
	const struct store_view *view)
{
	struct counters *counters = engine->counters;
	bool hit = found == STORE_PRESENT;
	/* As memcached counts: what touches is no get; a meta get that misses touches nothing. */
	bool touch = request->options & REQUEST_TTL && (hit || request->protocol != PROTOCOL_META);

	counter_add(touch ? &counters->cmd_touch : &counters->cmd_get, 1);
	if (hit)
		counter_add(touch ? &counters->touch_hits : &counters->get_hits, 1);
	else
		count_miss(
			counters, touch ? &counters->touch_misses : &counters->get_misses, found);
	if (hit) {
		uint32_t id = command_class_of_view(engine, view);

		counter_add(
			touch ? &counters->classes[id].touch_hits : &counters->classes[id].get_hits,
			1);
	}
}

/*
 * get and gets, which most requests are: the way below for them alone. The reply has what their
 * composer reads, and what is counted by it.
 */
bool
fetch_plain(struct engine *engine, const struct slot *slot, struct reply *reply)
{
	const struct request *request = &slot->request;
	struct counters *counters = engine->counters;
	const struct store_hint hint = {
		slot->hint_number, slot->hint_entry, slot->hint_slot, slot->hint_version};
	struct store_view view;
	bool stale_hint;
	enum store_found found = store_read(engine->thread, request->key, request->key_size,
		request->hash, slot->hinted ? &hint : NULL, &view, &stale_hint);

	if (stale_hint)
		counter_add(&counters->batch_hints_stale, 1);
	reply->won = false;
	if (found != STORE_PRESENT) {
		if (found == STORE_PENDING)
			return false;
		counter_add(&counters->cmd_get, 1);
		reply->status = STATUS_MISS;
		count_miss(counters, &counters->get_misses, found);
		return true;
	}
	counter_add(&counters->cmd_get, 1);
	reply->status = STATUS_HIT;
	reply->client_flags = view.kinds & ITEM_FLAGS ? item_client_flags(view.item) : 0;
	reply->cas = request->options & REQUEST_CAS_WANTED ? item_cas(view.item) : 0;
	reply->value_size = view.value_size;
	reply->pieces = engine->pieces;
	if (view.kinds & ITEM_LARGE) {
		reply->piece_count = store_pieces(engine->store, &view, engine->pieces);
	} else {
		engine->pieces[0] = slice_make(item_value(view.item), view.value_size);
		reply->piece_count = view.value_size != 0;
	}
	counter_add(&counters->get_hits, 1);
	counter_add(&counters->classes[command_class_of(engine, request->key_size, view.value_size,
					       reply->client_flags)]
			     .get_hits,
		1);
	return true;
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
		switch (command_change(deciding, decide_vivify)) {
		case STORE_WAIT:
			return false;
		case STORE_NO_MEMORY:
			counter_add(&engine->counters->store_no_memory, 1);
			reply->status = STATUS_NO_MEMORY;
			break;
		case STORE_REFUSED:
			reply->status = STATUS_FLASH_REFUSED;
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

/*
 * An item on flash can't be marked: the one that is due is written anew with its win handed out.
 */
static enum store_action
decide_win(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct deciding *deciding = context;

	(void)found;
	deciding->present = current != NULL;
	deciding->won = false;
	if (!current)
		return STORE_KEEP;
	deciding->view = *current;
	deciding->won = !(current->soft & ITEM_SOFT_WIN) &&
			fetch_win_due(deciding->engine, deciding->request, current);
	if (!deciding->won)
		return STORE_KEEP;
	command_draft_keep(draft, current);
	draft->win_sent = true;
	return STORE_REPLACE;
}

/* False: it must wait. Otherwise *found says what the item is now, and deciding->won. */
static bool
win_on_flash(struct deciding *deciding, enum store_found *found)
{
	const struct store_view *view = &deciding->view;
	enum store_status status;

	if (deciding->request->protocol != PROTOCOL_META || !view->flash ||
		(view->soft & ITEM_SOFT_WIN) ||
		!fetch_win_due(deciding->engine, deciding->request, view))
		return true;
	status = command_change(deciding, decide_win);
	if (status == STORE_WAIT)
		return false;
	deciding->won &= status == STORE_DONE;
	*found = deciding->present ? STORE_PRESENT : STORE_ABSENT;
	return true;
}

bool
fetch_run(struct deciding *deciding)
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
	if (found == STORE_PENDING)
		return false;
	if (stale_hint)
		counter_add(&engine->counters->batch_hints_stale, 1);
	if (found == STORE_PRESENT && (request->options & REQUEST_TTL)) {
		/*
		 * The value that is answered is the one whose time was changed: as the decision saw
		 * it.
		 */
		enum store_status status = command_change(deciding, command_decide_touch);

		if (status == STORE_WAIT)
			return false;
		if (status == STORE_REFUSED) {
			deciding->reply->status = STATUS_FLASH_REFUSED;
			return true;
		}
		deciding->won &= status == STORE_DONE;
		deciding->rewritten &= status == STORE_DONE;
		found = deciding->present ? STORE_PRESENT : STORE_ABSENT;
	}
	if (found == STORE_PRESENT && !deciding->rewritten && !win_on_flash(deciding, &found))
		return false;
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
bool
fetch_inspect(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	const struct request *request = deciding->request;
	struct reply *reply = deciding->reply;
	struct store_view *view = &deciding->view;

	enum store_found found = store_find(
		engine->thread, request->key, request->key_size, request->hash, NULL, view, NULL);

	if (found == STORE_PENDING)
		return false;
	reply->status = STATUS_MISS;
	if (found != STORE_PRESENT)
		return true;
	reply_from_view(engine, request, view, reply);
	reply->size_class = (uint8_t)command_class_of_view(engine, view);
	reply->item_bytes = classes_item_bytes(
		request->key_size, view->value_size, reply->client_flags, reply->cas != 0);
	return true;
}
