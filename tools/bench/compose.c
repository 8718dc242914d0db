/* SPDX-License-Identifier: BSD-2-Clause */
/* What is asked next. */
#include "inside.h"

#include <math.h>

#define TAIL_SETS 16 /* one in so many appends is a set */
#define SLACK 64
#define RUN_END 1000000000

/*
 * How many requests of the likeliest choice come before another one: as many as independent draws
 * would give, k of them with the chance p^k (1 - p), but with one draw for the whole run.
 */
static unsigned
draw_run(struct client *client)
{
	if (client->choice_count == 1)
		return RUN_END;
	/* Even over (0, 1], so that the logarithm is finite. */
	double even = ((double)(workload_random(&client->random) >> 11) + 1.0) * 0x1p-53;
	double run = log(even) * client->run_scale;
	return run < RUN_END ? (unsigned)run : RUN_END;
}

/*
 * The choices, the likeliest first: scans and overwrites have their shares, the mix has the rest.
 */
void
compose_prepare(struct client *client, unsigned index)
{
	const struct options *options = client->shared->options;
	double rest = 1 - options->scan - options->overwrites;
	double shares[OPERATION_COUNT + 1] = {0};
	double total = 0;
	double sum = 0;

	for (unsigned i = 0; i < OPERATION_COUNT; i++)
		total += (double)options->weights[i];
	for (unsigned i = 0; i < OPERATION_COUNT; i++)
		shares[i] = rest * (double)options->weights[i] / total;
	shares[OPERATION_SET] += options->overwrites;
	shares[OPERATION_COUNT] = options->scan;
	client->choice_count = 0;
	for (;;) {
		unsigned best = 0;
		for (unsigned i = 1; i <= OPERATION_COUNT; i++)
			if (shares[i] > shares[best])
				best = i;
		if (shares[best] <= 0)
			break;
		sum += shares[best];
		client->choices[client->choice_count++] = (struct choice){
			.bound = sum < 1 ? (uint64_t)(sum * 0x1p64) : UINT64_MAX,
			.operation = best < OPERATION_COUNT ? best : OPERATION_GET,
			.is_scan = best == OPERATION_COUNT,
		};
		shares[best] = 0;
	}
	client->choices[client->choice_count - 1].bound = UINT64_MAX;
	client->random = options->seed + index * UINT64_C(0x51ed270b0a1f39c1);
	client->run_scale = 1 / log((double)client->choices[0].bound * 0x1p-64);
	client->run_left = draw_run(client);
	client->drawn_next = DRAW_BATCH;
	draw_state_start(&client->draws, client->shared->keys, options->seed, index,
		(uint32_t)options->threads);
}

size_t
compose_size_max(const struct client *client)
{
	const struct protocol *protocol = client->shared->protocol;
	const struct workload *workload = client->shared->workload;
	size_t value = workload->value_size_max > WORKLOAD_COUNTER_SIZE ? workload->value_size_max
									: WORKLOAD_COUNTER_SIZE;
	size_t any = protocol->request_size_max(workload) + value;
	size_t get = protocol->get_size_max(workload, client->multiget);

	/* Plain gets are gathered, up to a pipeline of them, before the bytes are counted. */
	size_t gets = client->pipeline * protocol->get_size_max(workload, 1);

	return gets + (any > get ? any : get) + SLACK;
}

static void
refill(struct client *client)
{
	draw_keys_fill(client->shared->keys, &client->draws, client->drawn, DRAW_BATCH);
	client->drawn_next = 0;
}

static inline uint32_t
draw_key(struct client *client)
{
	if (client->drawn_next == DRAW_BATCH)
		refill(client);
	return (uint32_t)client->drawn[client->drawn_next++];
}

/* The nearest key that the connection owns, where only it may write it. */
static uint32_t
own_key(const struct client *client, const struct connection *connection, uint32_t key)
{
	if (!client->shared->workload->sent || client->many_writers)
		return key;
	uint32_t all = (uint32_t)client->shared->options->connections;
	uint32_t own = key - key % all + connection->number;
	return own < client->shared->workload->keys ? own : own - all;
}

static uint32_t
draw_ttl(struct client *client)
{
	const struct optable_pair *range = &client->shared->options->ttl;

	if (range->first == range->second)
		return (uint32_t)range->first;
	return (uint32_t)(range->first + workload_below(workload_random(&client->random),
						 range->second - range->first + 1));
}

/* Where the keys of the next request go. */
static inline size_t
next_place(const struct client *client, const struct connection *connection)
{
	return (size_t)((connection->head + connection->under_way) & client->mask) *
	       client->multiget;
}

static inline struct slot *
push_slot(struct client *client, struct connection *connection, enum operation operation,
	unsigned requests, unsigned keys, uint64_t start_ns)
{
	uint32_t at = (connection->slot_head + connection->slot_count++) & client->mask;

	connection->under_way += requests;
	client->under_way += requests;
	connection->slots[at] = (struct slot){
		.start_ns = start_ns,
		.requests = requests,
		.keys = (uint16_t)keys,
		.operation = (uint8_t)operation,
		.is_newest = true,
	};
	return &connection->slots[at];
}

/* Any request on one key but a get. */
static char *
add_request(struct client *client, struct connection *connection, char *at,
	enum operation operation, uint32_t key, uint64_t start_ns)
{
	struct workload *workload = client->shared->workload;
	struct request request = {operation, key, 1, 0};
	size_t place = next_place(client, connection);
	struct slot *slot = push_slot(client, connection, operation, 1, 1, start_ns);

	if (operation == OPERATION_SET || operation == OPERATION_DELETE)
		request.version = workload_take_version(workload, key, &slot->is_newest);
	if (operation != OPERATION_DELETE)
		request.ttl = draw_ttl(client);
	connection->keys[place] = key;
	connection->versions[place] =
		operation == OPERATION_GAT ? workload_oldest(workload, key) : request.version;
	/* What comes back is the end of the bytes at 'at'. */
	/* cppcheck-suppress returnDanglingLifetime */
	return client->shared->protocol->write(workload, at, &request);
}

/* Note for each key of a get which version it may return at least. */
static void
note_oldest(
	const struct workload *workload, const uint32_t *keys, uint32_t *versions, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		versions[i] = workload_oldest(workload, keys[i]);
}

/* A get of several keys, or of keys of a scan. */
static char *
add_get(struct client *client, struct connection *connection, char *at, bool is_scan,
	uint64_t start_ns)
{
	const struct workload *workload = client->shared->workload;
	unsigned count = client->multiget;
	size_t place = next_place(client, connection);
	uint32_t *keys = connection->keys + place;

	push_slot(client, connection, OPERATION_GET, 1, count, start_ns);
	for (unsigned i = 0; i < count; i++) {
		if (is_scan) {
			uint64_t number;
			draw_scan_fill(&client->draws, &number, 1);
			keys[i] = (uint32_t)number & (WORKLOAD_NUMBERS - 1);
			client->counts.scans++;
		} else {
			keys[i] = draw_key(client);
		}
	}
	note_oldest(workload, keys, connection->versions + place, count);
	return client->shared->protocol->write_get(workload, at, keys, count);
}

/* So many gets of one key each, which the rings have room for. */
static char *
add_gets(struct client *client, struct connection *connection, char *at, unsigned count,
	uint64_t start_ns)
{
	const struct protocol *protocol = client->shared->protocol;
	const struct workload *workload = client->shared->workload;
	uint32_t place = (uint32_t)next_place(client, connection);

	push_slot(client, connection, OPERATION_GET, count, 1, start_ns);
	while (count > 0) {
		/* As far as both the ring goes and keys are drawn. */
		uint32_t *keys = connection->keys + place;
		unsigned run = client->mask + 1 - place;
		if (client->drawn_next == DRAW_BATCH)
			refill(client);
		if (run > DRAW_BATCH - client->drawn_next)
			run = DRAW_BATCH - client->drawn_next;
		if (run > count)
			run = count;
		const uint64_t *drawn = client->drawn + client->drawn_next;
		for (unsigned i = 0; i < run; i++)
			keys[i] = (uint32_t)drawn[i];
		client->drawn_next += run;
		if (workload->acked)
			note_oldest(workload, keys, connection->versions + place, run);
		if (protocol->write_gets)
			at = protocol->write_gets(workload, at, keys, run);
		for (unsigned i = 0; !protocol->write_gets && i < run; i++)
			at = protocol->write_get(workload, at, &keys[i], 1);
		place = (place + run) & client->mask;
		count -= run;
	}
	return at;
}

static char *
add_fill(struct client *client, struct connection *connection, char *at, uint64_t start_ns)
{
	static const uint32_t kinds[] = {0, WORKLOAD_COUNTER, WORKLOAD_TAIL};
	const struct options *options = client->shared->options;

	while (connection->fill_next == connection->owned ||
		(connection->fill_kind == 1 && !options->weights[OPERATION_INCR]) ||
		(connection->fill_kind == 2 && !options->weights[OPERATION_APPEND])) {
		if (connection->owned == 0 ||
			connection->fill_kind == sizeof kinds / sizeof *kinds - 1) {
			connection->is_filled = true;
			return at;
		}
		connection->fill_kind++;
		connection->fill_next = 0;
	}
	uint64_t key = connection->number + options->connections * connection->fill_next++;
	return add_request(client, connection, at, OPERATION_SET,
		(uint32_t)key | kinds[connection->fill_kind], start_ns);
}

/* A choice that is not the likeliest. */
static const struct choice *
choose_other(struct client *client)
{
	const struct choice *choice = client->choices;
	uint64_t likeliest = choice->bound;
	uint64_t bits = likeliest + workload_below(workload_random(&client->random), -likeliest);

	for (choice++; bits >= choice->bound && choice->bound != UINT64_MAX;)
		choice++;
	return choice;
}

/* One request of the mix that is not a plain get. */
static char *
add_choice(struct client *client, struct connection *connection, char *at,
	const struct choice *choice, uint64_t start_ns)
{
	enum operation operation = choice->operation;

	if (operation == OPERATION_GET)
		return add_get(client, connection, at, choice->is_scan, start_ns);
	uint32_t key = draw_key(client);
	switch (operation) {
	case OPERATION_SET:
	case OPERATION_DELETE:
		key = own_key(client, connection, key);
		break;
	case OPERATION_INCR:
		key |= WORKLOAD_COUNTER;
		break;
	case OPERATION_APPEND:
		key |= WORKLOAD_TAIL;
		if (workload_below(workload_random(&client->random), TAIL_SETS) == 0)
			operation = OPERATION_SET;
		break;
	default:
		break;
	}
	return add_request(client, connection, at, operation, key, start_ns);
}

/* Up to limit requests of the mix, as far as the buffer goes. */
static char *
add_mix(struct client *client, struct connection *connection, char *at, const char *end,
	unsigned limit, uint64_t start_ns)
{
	const struct choice *likeliest = client->choices;
	bool plain = likeliest->operation == OPERATION_GET && !likeliest->is_scan &&
		     client->multiget == 1;

	if (limit > client->left)
		limit = (unsigned)client->left;
	client->left -= limit;
	while (limit > 0 && at < end) {
		unsigned run = client->run_left < limit ? client->run_left : limit;
		if (run == 0) {
			run = 1;
			at = add_choice(client, connection, at, choose_other(client), start_ns);
			client->run_left = draw_run(client);
		} else if (plain) {
			at = add_gets(client, connection, at, run, start_ns);
			client->run_left -= run;
		} else {
			run = 1;
			at = add_choice(client, connection, at, likeliest, start_ns);
			client->run_left--;
		}
		limit -= run;
		if (client->run_left == 0 && client->choice_count == 1)
			client->run_left = RUN_END;
	}
	client->left += limit;
	return at;
}

char *
compose_requests(struct client *client, struct connection *connection, char *at, unsigned limit,
	uint64_t start_ns, unsigned *drawn)
{
	const char *end = client->send + SEND_SIZE;
	uint32_t free = client->pipeline - connection->under_way;

	*drawn = 0;
	while (connection->aside_first < connection->aside_end && free > 0 && at < end) {
		uint32_t key = connection->aside[connection->aside_first++];
		if (connection->aside_first == connection->aside_end)
			connection->aside_first = connection->aside_end = 0;
		client->counts.after_miss++;
		at = add_request(client, connection, at, OPERATION_SET, key, start_ns);
		free--;
	}
	if (client->phase == CLIENT_FILL) {
		while (free-- > 0 && at < end && !connection->is_filled)
			at = add_fill(client, connection, at, start_ns);
		return at;
	}
	if (client->stopping || at >= end)
		return at;
	uint64_t left = client->left;
	at = add_mix(client, connection, at, end, limit < free ? limit : free, start_ns);
	*drawn = (unsigned)(left - client->left);
	return at;
}
