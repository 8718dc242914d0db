/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of the verbs share: command.c (dispatch, touch, delete), fetch.c, storage.c,
 * arithmetic.c. A change is a decision: a function that sees the key's present item under its
 * bucket's lock and says what becomes of it. Decisions are pure until the store has answered,
 * because a request that waits is decided again; what is counted is counted after that.
 */
#ifndef ENGINE_VERBS_H
#define ENGINE_VERBS_H

#include "engine/internal.h"

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
	bool too_large;	   /* an append would have made too long a value */
	/* FETCH with a new time to live: the item was written with the win handed out */
	bool won;
	bool rewritten; /* FETCH with a new time to live: there is a new item, with this access */
	struct slice value; /* ARITHMETIC: the new value's text, in the engine's number_text */
};

/* What was found for the slot's request; of use while slot->hinted. */
static inline struct store_hint
command_hint(const struct slot *slot)
{
	return (struct store_hint){
		slot->hint_number, slot->hint_entry, slot->hint_slot, slot->hint_version};
}

static inline enum store_status
command_change(struct deciding *deciding,
	enum store_action (*decide)(void *context, const struct store_view *current,
		enum store_found found, struct store_draft *draft))
{
	const struct request *request = deciding->request;
	const struct slot *slot = deciding->slot;
	const struct store_hint hint = command_hint(slot);
	const struct store_update update = {decide, deciding, slot->hinted ? &hint : NULL};
	uint64_t cas;
	enum store_status status = store_change(deciding->engine->thread, request->key,
		request->key_size, request->hash, &update, &cas);

	if (cas)
		deciding->reply->cas = cas;
	return status;
}

/* The class that memcached's statistics would count this key and value under. */
static inline uint32_t
command_class_of(
	const struct engine *engine, uint32_t key_size, uint64_t value_size, uint32_t client_flags)
{
	return classes_find(store_classes(engine->store),
		classes_item_bytes(key_size, value_size, client_flags, 1));
}

static inline uint32_t
command_class_of_view(const struct engine *engine, const struct store_view *view)
{
	return command_class_of(
		engine, item_key_size(view->item), view->value_size, item_client_flags(view->item));
}

static inline void
command_draft_cas(const struct request *request, struct store_draft *draft)
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
static inline bool
command_key_is_binary(const struct request *request)
{
	if (request->protocol != PROTOCOL_BINARY)
		return request->options & REQUEST_KEY_BINARY;
	for (uint32_t i = 0; i < request->key_size; i++)
		if (request->key[i] <= ' ')
			return true;
	return false;
}

/* Number 0 is no CAS number: with -C all items have it. */
static inline bool
command_cas_matches(const struct request *request, const struct store_view *current)
{
	uint64_t cas = item_cas(current->item);

	return cas != 0 && cas == request->cas_compare;
}

/* The present item with all that it has; the decision changes what it wants. */
static inline void
command_draft_keep(struct store_draft *draft, const struct store_view *current)
{
	draft->keep_body = true;
	draft->client_flags = item_client_flags(current->item);
	draft->expiry_s = current->item->expiry;
	draft->cas_policy = STORE_CAS_KEEP;
	draft->stale = current->kinds & ITEM_STALE;
	draft->key_binary = current->kinds & ITEM_KEY_BINARY;
	draft->keep_access = true;
}

/* --- command.c --- */

/* Decisions that several verbs share: for gat, mg T and touch; for delete, and sets that failed. */
enum store_action command_decide_touch(void *context, const struct store_view *current,
	enum store_found found, struct store_draft *draft);
enum store_action command_decide_remove(void *context, const struct store_view *current,
	enum store_found found, struct store_draft *draft);

/* --- the verbs: each runs one request; false when it must wait --- */

bool fetch_run(struct deciding *deciding);
/* A get or gets of the text protocol, see fetch_is_plain. */
bool fetch_plain(struct engine *engine, const struct slot *slot, struct reply *reply);

static inline bool
fetch_is_plain(const struct request *request)
{
	return request->verb == VERB_FETCH && request->protocol == PROTOCOL_TEXT &&
	       !(request->options & REQUEST_TTL);
}

bool fetch_inspect(struct deciding *deciding);
bool storage_run(struct deciding *deciding);
bool arithmetic_run(struct deciding *deciding);

/* Is the item stale, or (R) soon over, so that one client shall make it anew? */
bool fetch_win_due(
	const struct engine *engine, const struct request *request, const struct store_view *view);

#endif
