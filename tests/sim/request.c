/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/sim/sim.h"

#include "accel/accel.h"
#include "base/check.h"
#include "base/rcu.h"

#include <string.h>
#include <xxhash.h>

#define POOL_BYTES (1u << 20)
#define PIECES_MAX 64
#define TTL_MAX_S 300

/* --- values ------------------------------------------------------------------------------- */

/* What values are made of: a head that is like no other, and a piece of this. */
static uint8_t pool[POOL_BYTES];

struct head {
	uint64_t event;
	uint32_t key, size;
};

static void
fill_pool(void)
{
	uint64_t x = 88172645463325252u;

	for (uint32_t i = 0; i < POOL_BYTES; i += 8) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(pool + i, &x, 8);
	}
}

/* A value of the request's own, in sim->value. */
static void
make_value(struct sim *sim, const struct sim_request *request, uint32_t size)
{
	struct head head = {request->event, request->key, size};
	uint32_t here = size < sizeof head ? size : (uint32_t)sizeof head;

	if (pool[0] == 0)
		fill_pool();
	memcpy(sim->value, &head, here);
	if (size > here)
		memcpy(sim->value + here,
			pool + (request->event * 4099) % (POOL_BYTES - SIM_VALUE_MAX), size - here);
}

/* The value's bytes, put together in 'room' where they stand in pieces. */
static const uint8_t *
value_of_view(const struct sim *sim, const struct store_view *view, uint8_t *room)
{
	struct slice pieces[PIECES_MAX];
	uint32_t count = store_pieces(sim->store, view, pieces), size = 0;

	check(count <= PIECES_MAX && view->value_size <= SIM_VALUE_MAX);
	if (count == 1)
		return pieces[0].data;
	for (uint32_t i = 0; i < count; i++) {
		memcpy(room + size, pieces[i].data, pieces[i].size);
		size += (uint32_t)pieces[i].size;
	}
	return room;
}

static struct oracle_state
state_of_view(const struct sim *sim, const struct store_view *view)
{
	static uint8_t room[SIM_VALUE_MAX];
	const uint8_t *value = value_of_view(sim, view, room);

	return (struct oracle_state){.hash = XXH3_64bits(value, view->value_size),
		.size = (uint32_t)view->value_size,
		.flags = item_client_flags(view->item),
		.expiry_s = view->item->expiry,
		.cas = item_cas(view->item),
		.stale = view->kinds & ITEM_STALE};
}

/* --- what was read ------------------------------------------------------------------------ */

static struct oracle_key *
key_of(struct sim *sim, const struct sim_request *request)
{
	return &sim->oracle.keys[request->key];
}

/* The read of a present item: it must be what the key may be. Gives the oracle's state. */
static struct oracle_state *
check_view(struct sim *sim, struct sim_request *request, const struct store_view *view)
{
	struct oracle_key *key = key_of(sim, request);
	struct oracle_state state = state_of_view(sim, view), *known;
	bool win = view->soft & ITEM_SOFT_WIN;

	if (!item_has_key(view->item, (const uint8_t *)key->name, key->name_size))
		sim_fail(sim, request->key, "the item has another key");
	known = oracle_seen(&sim->oracle, key, &state, !sim_cut(sim));
	sim_note(sim, request->key, view->flash ? "seen on flash: size, cas" : "seen: size, cas",
		state.size, state.cas);
	if (!known)
		sim_fail(sim, request->key,
			"read size %u cas %llu flags %u expiry %u stale %d (%s), which it can't be",
			state.size, (unsigned long long)state.cas, state.flags, state.expiry_s,
			state.stale, view->flash ? "flash" : "memory");
	if (win && !known->won && !known->perhaps_won)
		sim_fail(sim, request->key, "its win is gone, and nobody got it");
	return known;
}

/* What the turn's find knew, for the first run alone. */
static const struct store_hint *
hint_of(const struct sim_request *request)
{
	return request->hinted ? &request->hint : NULL;
}

static void
count_hit(struct sim *sim, const struct store_view *view)
{
	sim->totals->hits++;
	sim->totals->flash_hits += view->flash;
}

/* false: it waits. */
static bool
run_get(struct sim *sim, struct sim_request *request)
{
	struct store_thread *thread = sim->threads[request->worker];
	const struct oracle_key *key = key_of(sim, request);
	struct store_view view;
	struct oracle_state *known;
	bool stale_hint;
	enum store_found found = (request->kind == SIM_WIN ? store_find : store_read)(thread,
		(const uint8_t *)key->name, key->name_size, key->hash, hint_of(request), &view,
		&stale_hint);

	if (found == STORE_PENDING)
		return false;
	sim->totals->reads++;
	request->present = found == STORE_PRESENT;
	if (!request->present) {
		sim_note(sim, request->key, "absent", found, 0);
		return true;
	}
	known = check_view(sim, request, &view);
	count_hit(sim, &view);
	sim->last_cas[request->key % 16] = item_cas(view.item);
	if (request->kind == SIM_WIN && store_take_win(thread, &view, key->hash)) {
		sim_note(sim, request->key, "won", known->cas, 0);
		if (known->won && !known->perhaps_won)
			sim_fail(sim, request->key, "its win was handed out twice");
		known->won = true;
		known->perhaps_won |= sim_cut(sim);
	}
	return true;
}

/* --- changes ------------------------------------------------------------------------------ */

/* The draft's value is sim->value, size bytes; the state that it would make. */
static void
draft_value(struct sim *sim, struct sim_request *request, struct store_draft *draft,
	struct slice *piece, uint32_t size)
{
	*piece = slice_make(sim->value, size);
	draft->pieces = piece;
	draft->piece_count = size > 0;
	draft->value_size = size;
	draft->client_flags = request->flags;
	draft->expiry_s = request->expiry_s;
	request->next = (struct oracle_state){.hash = XXH3_64bits(sim->value, size),
		.size = size,
		.flags = request->flags,
		.expiry_s = request->expiry_s,
		.stale = draft->stale,
		.won = draft->win_sent,
		.made = sim->event};
}

struct deciding {
	struct sim *sim;
	struct sim_request *request;
	struct slice piece;
};

/* Another value, made from the present one: a new number, or more bytes behind. */
static uint32_t
next_value(struct sim *sim, struct sim_request *request, const struct store_view *current)
{
	uint32_t size = (uint32_t)current->value_size;

	memmove(sim->value, value_of_view(sim, current, sim->value), size);
	if (request->kind == SIM_INCR) {
		uint64_t number = XXH3_64bits(sim->value, size) + 1;

		memcpy(sim->value, &number, sizeof number);
		return sizeof number;
	}
	memcpy(sim->value + size, pool + request->event % 1000, request->size);
	return size + request->size;
}

/* What keeps the value: touch, and a delete that leaves it stale. */
static void
keep_value(struct sim *sim, struct sim_request *request, const struct oracle_state *known,
	struct store_draft *draft)
{
	request->next = *known;
	request->next.made = sim->event;
	request->next.expiry_s = request->expiry_s;
	draft->keep_body = true;
	draft->client_flags = known->flags;
	draft->stale = known->stale;
	draft->expiry_s = request->expiry_s;
	if (request->kind == SIM_TOUCH) {
		draft->keep_access = true;
		draft->cas_policy = STORE_CAS_KEEP;
		return;
	}
	draft->stale = request->next.stale = true;
	request->next.won = request->next.perhaps_won = false;
}

static enum store_action
decide(void *context, const struct store_view *current, enum store_found found,
	struct store_draft *draft)
{
	struct deciding *deciding = context;
	struct sim *sim = deciding->sim;
	struct sim_request *request = deciding->request;
	const struct oracle_state *known = NULL;

	(void)found;
	request->present = current != NULL;
	if (current)
		known = check_view(sim, request, current);
	switch (request->kind) {
	case SIM_DELETE:
		return STORE_REMOVE;
	case SIM_ADD:
		if (current)
			return STORE_KEEP;
		break;
	case SIM_CAS:
		if (!current || item_cas(current->item) != request->cas)
			return STORE_KEEP;
		break;
	case SIM_TOUCH:
	case SIM_STALE:
		if (!current)
			return STORE_KEEP;
		keep_value(sim, request, known, draft);
		return STORE_REPLACE;
	case SIM_INCR:
	case SIM_APPEND:
		if (!current || current->value_size + request->size > SIM_VALUE_MAX / 4)
			return STORE_KEEP;
		request->flags = known->flags;
		request->expiry_s = known->expiry_s;
		draft->keep_access = true;
		draft_value(
			sim, request, draft, &deciding->piece, next_value(sim, request, current));
		request->next.won = known->won;
		request->next.perhaps_won = known->perhaps_won;
		return STORE_REPLACE;
	}
	make_value(sim, request, request->size);
	draft_value(sim, request, draft, &deciding->piece, request->size);
	return STORE_REPLACE;
}

static void
change_done(struct sim *sim, struct sim_request *request, uint64_t cas)
{
	struct oracle_key *key = key_of(sim, request);
	bool surely = !sim_cut(sim);

	if (request->action == STORE_REMOVE) {
		sim_note(sim, request->key, "deleted", request->present, 0);
		oracle_changed(&sim->oracle, key, NULL, surely);
		return;
	}
	if (request->action == STORE_KEEP) {
		sim_note(sim, request->key, "kept", request->kind, request->present);
		return;
	}
	request->next.cas = cas;
	sim->last_cas[request->key % 16] = cas;
	sim_note(sim, request->key, "stored: size, cas", request->next.size, cas);
	if (request->kind == SIM_TOUCH) {
		/* The number stays: the state before is gone, and this one takes its place. */
		struct oracle_state next = request->next;

		oracle_changed(&sim->oracle, key, NULL, surely);
		oracle_changed(&sim->oracle, key, &next, surely);
	} else if (!oracle_changed(&sim->oracle, key, &request->next, surely)) {
		sim_fail(sim, request->key, "CAS number %llu was given before",
			(unsigned long long)cas);
	}
}

static bool
run_change(struct sim *sim, struct sim_request *request)
{
	struct store_thread *thread = sim->threads[request->worker];
	struct oracle_key *key = key_of(sim, request);
	const uint8_t *name = (const uint8_t *)key->name;
	struct deciding deciding = {sim, request, {0}};
	enum store_status status;
	uint64_t cas;

	if (request->kind == SIM_SET) {
		struct store_draft draft = {0};

		request->action = STORE_REPLACE;
		make_value(sim, request, request->size);
		draft_value(sim, request, &draft, &deciding.piece, request->size);
		status = store_set(
			thread, name, key->name_size, key->hash, hint_of(request), &draft, &cas);
	} else {
		struct store_update update = {
			.decide = decide, .context = &deciding, .hint = hint_of(request)};

		/* store_change says no more than DONE; what was decided last says the rest. */
		request->action = STORE_KEEP;
		status = store_change(thread, name, key->name_size, key->hash, &update, &cas);
		if (status == STORE_DONE)
			request->action = request->kind == SIM_DELETE ? STORE_REMOVE
					  : cas != 0		      ? STORE_REPLACE
								      : STORE_KEEP;
	}
	switch (status) {
	case STORE_WAIT:
		return false;
	case STORE_DONE:
		change_done(sim, request, cas);
		return true;
	default:
		sim_note(sim, request->key, "refused", request->kind, (uint64_t)status);
		sim->totals->refused++;
		return true;
	}
}

static bool
run_flush(struct sim *sim, struct sim_request *request)
{
	enum store_status status = store_flush(sim->threads[request->worker], request->at_ns);
	bool first = !request->present;

	if (first)
		oracle_flush(&sim->oracle, request->event, request->at_ns);
	request->present = true;
	sim_note(sim, SIM_ALL_KEYS,
		status == STORE_DONE ? "flush_all: now, at" : "flush_all waits: now, at",
		sim->oracle.now_ns, request->at_ns);
	if (status == STORE_WAIT)
		return false;
	if (status == STORE_DONE && !sim_cut(sim))
		oracle_flush_done(&sim->oracle, request->event, request->at_ns,
			!sim->plan.flash || flash_alive(store_flash(sim->store)));
	return true;
}

/* --- slots -------------------------------------------------------------------------------- */

static void
release(struct sim *sim, struct sim_request *request)
{
	store_release(sim->threads[request->worker], &request->held);
	request->used = false;
}

static void
run(struct sim *sim, struct sim_request *request)
{
	struct store_thread *thread = sim->threads[request->worker];
	bool finished;

	store_hold(thread, &request->held);
	if (request->kind == SIM_GET || request->kind == SIM_WIN)
		finished = run_get(sim, request);
	else if (request->kind == SIM_FLUSH)
		finished = run_flush(sim, request);
	else
		finished = run_change(sim, request);
	if (finished)
		release(sim, request);
	else
		sim_note(sim, request->key, "waits", request->kind, request->event);
	request->hinted = false;
	store_hold(thread, NULL);
}

void
sim_abandon(struct sim *sim, unsigned worker)
{
	for (unsigned i = 0; i < SIM_REQUESTS; i++)
		if (sim->requests[i].used &&
			(worker == SIM_WORKERS_MAX || sim->requests[i].worker == worker))
			release(sim, &sim->requests[i]);
}

/* --- what clients ask --------------------------------------------------------------------- */

static const struct {
	uint8_t hot, filler; /* how often, of a hundred */
} share_of_kind[] = {
	[SIM_GET] = {30, 34},
	[SIM_WIN] = {6, 1},
	[SIM_SET] = {20, 50},
	[SIM_ADD] = {6, 3},
	[SIM_DELETE] = {10, 4},
	[SIM_TOUCH] = {8, 3},
	[SIM_INCR] = {5, 1},
	[SIM_APPEND] = {5, 1},
	[SIM_CAS] = {6, 2},
	[SIM_STALE] = {4, 1},
};

static enum sim_kind
draw_kind(struct sim *sim, bool hot)
{
	uint64_t left = sim_draw(sim, 100);

	for (unsigned kind = 0; kind < sizeof share_of_kind / sizeof *share_of_kind; kind++) {
		uint8_t share = hot ? share_of_kind[kind].hot : share_of_kind[kind].filler;

		if (left < share)
			return (enum sim_kind)kind;
		left -= share;
	}
	return SIM_GET;
}

static uint32_t
draw_key(struct sim *sim)
{
	const struct sim_plan *plan = &sim->plan;
	uint64_t r = sim_draw(sim, 100);

	if (r < 35)
		return (uint32_t)sim_draw(sim, plan->hot);
	if (r < 50 && plan->twins)
		return plan->hot + (uint32_t)sim_draw(sim, plan->twins);
	return plan->hot + plan->twins + (uint32_t)sim_draw(sim, plan->fillers);
}

static uint32_t
draw_size(struct sim *sim, bool filler)
{
	uint64_t r = sim_draw(sim, 1000);

	if (r < 3)
		return 30000 + (uint32_t)sim_draw(sim, 100000);
	if (filler)
		return (uint32_t)(sim->plan.filler_bytes / 4 +
				  sim_draw(sim, sim->plan.filler_bytes * 3 / 4));
	if (r < 500)
		return (uint32_t)sim_draw(sim, 100);
	return (uint32_t)sim_draw(sim, r < 800 ? 1000 : 5000);
}

static void
draw_request(struct sim *sim, struct sim_request *request, unsigned worker)
{
	uint32_t now_s = (uint32_t)(sim->oracle.now_ns / SIM_SECOND_NS);
	uint32_t key = draw_key(sim);
	bool filler = key >= sim->plan.hot + sim->plan.twins;

	*request = (struct sim_request){.used = true,
		.worker = (uint8_t)worker,
		.key = key,
		.event = ++sim->event,
		.kind = (uint8_t)draw_kind(sim, !filler)};
	request->size =
		request->kind == SIM_APPEND ? (uint32_t)sim_draw(sim, 500) : draw_size(sim, filler);
	if (sim_draw(sim, 3) == 0)
		request->flags = (uint32_t)sim_draw(sim, 1u << 20);
	if (sim_draw(sim, 6) == 0)
		request->expiry_s = now_s + 1 + (uint32_t)sim_draw(sim, TTL_MAX_S);
	request->cas = sim->last_cas[key % 16];
	if (sim_chance(sim, sim->plan.flush_per_million)) {
		request->kind = SIM_FLUSH;
		request->key = SIM_ALL_KEYS;
		if (sim_draw(sim, 2))
			request->at_ns = sim->oracle.now_ns + sim_draw(sim, 20 * SIM_SECOND_NS);
	}
}

static struct sim_request *
free_slot(struct sim *sim)
{
	for (unsigned i = 0; i < SIM_REQUESTS; i++)
		if (!sim->requests[i].used)
			return &sim->requests[i];
	return NULL;
}

static void
run_waiting(struct sim *sim, unsigned worker)
{
	unsigned first = (unsigned)sim_draw(sim, SIM_REQUESTS);

	for (unsigned i = 0; i < SIM_REQUESTS; i++) {
		struct sim_request *request = &sim->requests[(first + i) % SIM_REQUESTS];

		if (!request->used || request->worker != worker)
			continue;
		if (sim_draw(sim, 1000) < sim->plan.abandon_per_mille) {
			sim_note(sim, request->key, "abandoned", request->kind, request->event);
			release(sim, request);
		} else if (store_held_settled(sim->threads[worker], &request->held)) {
			run(sim, request);
		}
	}
}

static void
begin_turn(struct sim *sim, unsigned worker)
{
	oracle_time(&sim->oracle);
	store_turn_begin(sim->threads[worker], sim->oracle.now_ns);
}

static void
end_turn(struct sim *sim, unsigned worker)
{
	store_held_spent(sim->threads[worker]);
	store_turn_end(sim->threads[worker]);
	rcu_quiescent();
}

/* Finds the keys of new requests in one burst, as the engine does; what is on flash begins to come. */
static void
find_all(struct sim *sim, unsigned worker, struct sim_request *const *requests, uint32_t count)
{
	struct accel_request finds[SIM_REQUESTS];
	struct accel_burst burst = {.requests = finds, .count = count}, *taken = &burst;

	for (uint32_t i = 0; i < count; i++) {
		const struct oracle_key *key = key_of(sim, requests[i]);

		finds[i] = (struct accel_request){
			.key = (const uint8_t *)key->name, .key_size = key->name_size};
	}
	check(accel_cpu.submit(sim->accels[worker], &taken));
	check(accel_cpu.poll(sim->accels[worker]) == &burst);
	for (uint32_t i = 0; i < count; i++) {
		check(finds[i].hash == key_of(sim, requests[i])->hash);
		requests[i]->hinted = finds[i].found != ACCEL_UNVERIFIED;
		requests[i]->hint = (struct store_hint){.number = finds[i].number,
			.entry = finds[i].entry,
			.slot = finds[i].slot,
			.version = finds[i].version};
		if (finds[i].found == ACCEL_UNVERIFIED && sim->plan.flash)
			store_ahead(sim->threads[worker], &requests[i]->held, finds[i].entry);
	}
}

void
sim_turn(struct sim *sim, unsigned worker, unsigned new_requests)
{
	struct sim_request *fresh[SIM_REQUESTS], *request;
	uint32_t count = 0, found = 0;

	begin_turn(sim, worker);
	run_waiting(sim, worker);
	while (count < new_requests && (request = free_slot(sim))) {
		draw_request(sim, request, worker);
		fresh[count++] = request;
	}
	while (found < count && fresh[found]->kind != SIM_FLUSH)
		found++;
	find_all(sim, worker, fresh, found);
	for (uint32_t i = 0; i < count; i++) {
		sim->totals->requests++;
		run(sim, fresh[i]);
	}
	end_turn(sim, worker);
}

/* Reads some keys at once, as a multi-get does; others work meanwhile. */
static void
read_some(struct sim *sim, uint32_t first, uint32_t count, uint64_t *hits)
{
	unsigned worker = (unsigned)sim_draw(sim, sim->plan.workers), waiting;

	for (uint32_t i = 0; i < count; i++)
		sim->requests[i] = (struct sim_request){.used = true,
			.worker = (uint8_t)worker,
			.kind = SIM_GET,
			.key = first + i,
			.event = ++sim->event};
	do {
		begin_turn(sim, worker);
		waiting = 0;
		for (uint32_t i = 0; i < count; i++) {
			struct sim_request *request = &sim->requests[i];

			if (!request->used)
				continue;
			if (store_held_settled(sim->threads[worker], &request->held))
				run(sim, request);
			waiting += request->used;
			if (!request->used)
				*hits += request->present;
		}
		end_turn(sim, worker);
		if (waiting) {
			sim_flash(sim);
			sim_pass(sim, 100000);
		}
	} while (waiting && !sim_cut(sim));
	sim_abandon(sim, SIM_WORKERS_MAX);
}

void
sim_read_all(struct sim *sim, uint64_t *hits)
{
	sim_abandon(sim, SIM_WORKERS_MAX);
	for (uint32_t k = 0; k < sim->oracle.key_count && !sim_cut(sim); k += SIM_REQUESTS)
		read_some(sim, k,
			sim->oracle.key_count - k < SIM_REQUESTS ? sim->oracle.key_count - k
								 : SIM_REQUESTS,
			hits);
}
