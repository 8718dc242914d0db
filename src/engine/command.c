/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who runs which verb; and the small verbs: touch, delete, and those about the daemon. fetch.c,
 * storage.c and arithmetic.c have the others.
 */
#include "engine/verbs.h"

#include "base/check.h"

#include <string.h>

#define RELATIVE_MAX_S (60 * 60 * 24 * 30)

/* --- touch and delete --------------------------------------------------------------------- */

/*
 * gat, mg T: the same item with a new time to live. The win is settled here, by the old time to
 * live and under the lock: afterwards the item that was found is no longer the present one.
 */
enum store_action
command_decide_touch(void *context, const struct store_view *current, enum store_found found,
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
	command_draft_keep(draft, current);
	draft->expiry_s = expiry;
	draft->access_now = !(deciding->request->options & REQUEST_NO_BUMP);
	deciding->won = deciding->request->protocol == PROTOCOL_META &&
			!(current->soft & ITEM_SOFT_WIN) &&
			fetch_win_due(deciding->engine, deciding->request, current);
	draft->win_sent = deciding->won;
	return STORE_REPLACE;
}

enum store_action
command_decide_remove(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	const struct request *request = ((const struct deciding *)context)->request;

	(void)found;
	(void)draft;
	/* Another's value, acknowledged meanwhile, is not what the request was about. */
	if (current && (request->options & REQUEST_CAS_COMPARE) &&
		!command_cas_matches(request, current))
		return STORE_KEEP;
	return STORE_REMOVE;
}

static bool
run_touch(struct deciding *deciding)
{
	struct engine *engine = deciding->engine;
	struct counters *counters = engine->counters;
	struct reply *reply = deciding->reply;
	enum store_status status = command_change(deciding, command_decide_touch);

	if (status == STORE_WAIT)
		return false;
	if (status == STORE_REFUSED) {
		reply->status = STATUS_FLASH_REFUSED;
		return true;
	}
	counter_add(&counters->cmd_touch, 1);
	counter_add(deciding->present ? &counters->touch_hits : &counters->touch_misses, 1);
	reply->status = STATUS_NOT_FOUND;
	if (!deciding->present)
		return true;
	counter_add(
		&counters->classes[command_class_of_view(engine, &deciding->view)].touch_hits, 1);
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
	if ((request->options & REQUEST_CAS_COMPARE) && !command_cas_matches(request, current))
		return STORE_KEEP;
	reply->status = STATUS_DELETED;
	if (!(request->options & (REQUEST_INVALIDATE | REQUEST_REMOVE_VALUE)))
		return STORE_REMOVE;
	command_draft_keep(draft, current);
	command_draft_cas(request, draft);
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
	enum store_status status = command_change(deciding, decide_delete);

	if (status == STORE_WAIT)
		return false;
	if (status == STORE_NO_MEMORY) {
		/* The mark can't be written: without it the item would pass for fresh. */
		status = command_change(deciding, command_decide_remove);
		if (status == STORE_WAIT)
			return false;
		reply->status = STATUS_DELETED;
	}
	if (status == STORE_REFUSED) {
		reply->status = STATUS_FLASH_REFUSED;
		return true;
	}
	if (!deciding->present) {
		counter_add(&counters->delete_misses, 1);
	} else if (reply->status == STATUS_DELETED) {
		counter_add(&counters->delete_hits, 1);
		counter_add(&counters->classes[command_class_of_view(engine, &deciding->view)]
				     .delete_hits,
			1);
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
	switch (store_flush(engine->thread, at)) {
	case STORE_WAIT:
		return false;
	case STORE_DONE:
		deciding->reply->status = STATUS_OK;
		break;
	default:
		deciding->reply->status = STATUS_FLASH_REFUSED;
		break;
	}
	counter_add(&engine->counters->cmd_flush, 1);
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

static inline void
count_detail(const struct engine *engine, const struct request *request, const struct reply *reply)
{
	const struct engine_options *options = &engine->options;

	if (options->detail_enabled &&
		atomic_load_explicit(options->detail_enabled, memory_order_relaxed) &&
		request->key_size > 0)
		options->admin->detail(options->admin_context, (enum verb)request->verb,
			slice_make(request->key, request->key_size),
			reply->status == STATUS_HIT && !reply->won);
}

static bool
run_verb(struct deciding *deciding)
{
	struct reply *reply = deciding->reply;

	switch ((enum verb)deciding->request->verb) {
	case VERB_FETCH:
		return fetch_run(deciding);
	case VERB_STORE:
		return storage_run(deciding);
	case VERB_ARITHMETIC:
		return arithmetic_run(deciding);
	case VERB_TOUCH:
		return run_touch(deciding);
	case VERB_DELETE:
		return run_delete(deciding);
	case VERB_INSPECT:
		return fetch_inspect(deciding);
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

static __attribute__((noinline)) bool
run_any(struct engine *engine, struct batch_run *run, struct slot *slot, struct reply *reply)
{
	struct deciding deciding = {
		.engine = engine, .request = &slot->request, .slot = slot, .reply = reply};

	memset(reply, 0, sizeof *reply);
	reply->ttl_s = -1;
	if (!run_verb(&deciding))
		return false;
	run->wrote |= slot->request.verb == VERB_STORE || slot->request.verb == VERB_ARITHMETIC ||
		      slot->request.verb == VERB_TOUCH || slot->request.verb == VERB_DELETE ||
		      slot->request.verb == VERB_FLUSH ||
		      (slot->request.options & (REQUEST_TTL | REQUEST_VIVIFY));
	counter_add(&engine->counters->cmd_meta,
		slot->request.protocol == PROTOCOL_META && slot->request.key_size > 0);
	return true;
}

bool
command_run(struct engine *engine, struct batch_run *run, struct slot *slot, struct reply *reply)
{
	if (run->wrote && engine->accel != &accel_cpu)
		slot->hinted = false;
	if (fetch_is_plain(&slot->request)) {
		if (!fetch_plain(engine, slot, reply))
			return false;
	} else if (!run_any(engine, run, slot, reply))
		return false;
	count_detail(engine, &slot->request, reply);
	return true;
}
