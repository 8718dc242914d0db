/* SPDX-License-Identifier: BSD-2-Clause */
/* What came back, held against what was asked. */
#include "inside.h"

#include <inttypes.h>

/* Latencies are added for a run of replies at once: those read together often began together. */
static void
flush_batch(struct client *client, uint64_t now)
{
	struct batch *batch = &client->batch;

	for (unsigned i = 0; i < CLIENT_CLASSES; i++) {
		if (batch->counts[i] == 0)
			continue;
		histogram_add_many(&client->latencies[i], now - batch->start_ns, batch->counts[i]);
		batch->counts[i] = 0;
	}
}

static const uint8_t classes[OPERATION_COUNT] = {
	[OPERATION_GET] = CLIENT_CLASS_GET,
	[OPERATION_GAT] = CLIENT_CLASS_GET,
	[OPERATION_SET] = CLIENT_CLASS_SET,
	[OPERATION_TOUCH] = CLIENT_CLASS_OTHER,
	[OPERATION_INCR] = CLIENT_CLASS_OTHER,
	[OPERATION_APPEND] = CLIENT_CLASS_OTHER,
	[OPERATION_DELETE] = CLIENT_CLASS_OTHER,
};

enum client_class
replies_class(enum operation operation)
{
	return classes[operation];
}

/* count requests of the oldest slot have their answers. */
static inline void
end_requests(struct client *client, struct connection *connection, struct slot *slot,
	uint32_t count, uint64_t now)
{
	if (slot->start_ns != client->batch.start_ns) {
		flush_batch(client, now);
		client->batch.start_ns = slot->start_ns;
	}
	client->batch.counts[classes[slot->operation]] += count;
	client->counts.requests += count;
	connection->head = (connection->head + count) & client->mask;
	connection->under_way -= count;
	client->under_way -= count;
	slot->requests -= count;
	slot->answered = 0;
	if (slot->requests == 0) {
		connection->slot_head = (connection->slot_head + 1) & client->mask;
		connection->slot_count--;
	}
}

/* What was asked, once it has been answered. */
static void
count_operation(struct client_counts *counts, const struct slot *slot)
{
	switch ((enum operation)slot->operation) {
	case OPERATION_GET:
		counts->gets += slot->keys;
		break;
	case OPERATION_SET:
		counts->sets++;
		break;
	case OPERATION_GAT:
		counts->gats++;
		break;
	case OPERATION_TOUCH:
		counts->touches++;
		break;
	case OPERATION_INCR:
		counts->incrs++;
		break;
	case OPERATION_APPEND:
		counts->appends++;
		break;
	default:
		counts->deletes++;
		break;
	}
}

static void
count_hit(struct client_counts *counts, enum operation operation)
{
	switch (operation) {
	case OPERATION_GAT:
		counts->gat_hits++;
		break;
	case OPERATION_TOUCH:
		counts->touch_hits++;
		break;
	case OPERATION_INCR:
		counts->incr_hits++;
		break;
	case OPERATION_APPEND:
		counts->append_hits++;
		break;
	case OPERATION_DELETE:
		counts->delete_hits++;
		break;
	case OPERATION_GET:
		counts->hits++;
		break;
	default:
		break;
	}
}

/* What the oldest request under way asked for: its keys and their versions. */
struct asked {
	const uint32_t *keys;
	const uint32_t *versions;
};

/* Keys that get, gat or incr missed: with --cache-aside they are set next. */
static void
note_misses(struct client *client, struct connection *connection, const struct slot *slot,
	struct asked asked, unsigned first, unsigned end)
{
	bool is_get = slot->operation == OPERATION_GET;

	if (is_get)
		client->counts.misses += end - first;
	if (client->phase == CLIENT_RUN && end > first)
		connection->penalties += end - first;
	for (unsigned i = first; i < end; i++) {
		if (client->shared->options->cache_aside) {
			size_t room = connection->aside_room * sizeof *connection->aside;
			connection->aside = client_grow(connection->aside, &room,
				(connection->aside_end + 1) * sizeof *connection->aside);
			connection->aside_room = room / sizeof *connection->aside;
			connection->aside[connection->aside_end++] = asked.keys[i];
		}
		if (slot->operation == OPERATION_INCR || asked.versions[i] == 0 ||
			client->vanishing)
			continue;
		client->counts.lost++;
		if (client->shared->options->strict)
			client_complain(client,
				"key %" PRIu32 ": missing, though version %" PRIu32 " was stored",
				asked.keys[i], asked.versions[i]);
	}
}

static void
check_value(struct client *client, uint32_t key, uint32_t oldest, const char *value,
	uint64_t value_size)
{
	struct workload *workload = client->shared->workload;
	uint32_t version;

	if (!workload->sent) {
		if (workload_value_differs(workload, key, value, value_size))
			client->counts.foreign++;
		return;
	}
	enum workload_verdict verdict =
		workload_check_value(workload, key, oldest, value, value_size, &version);
	if (verdict == WORKLOAD_RIGHT)
		return;
	client->counts.wrong++;
	client_complain(client,
		"key %" PRIu32 ": %s (got %" PRIu64 " bytes that say version %" PRIu32
		"; versions %" PRIu32 " to %" PRIu32 " may come)",
		key, workload_verdict_text(verdict), value_size, version, oldest,
		workload_newest(workload, key));
}

/* A value answers the next key of the get that has its name; those before it were missed. */
static bool
take_value(struct client *client, struct connection *connection, struct slot *slot,
	struct asked asked, const struct reply *reply)
{
	const struct workload *workload = client->shared->workload;
	unsigned i = slot->answered;

	if (reply->key_size != workload->key_size || reply->flags != workload->flags)
		return false;
	while (i < slot->keys && !workload_is_key(workload, reply->key, asked.keys[i]))
		i++;
	if (i == slot->keys)
		return false;
	note_misses(client, connection, slot, asked, slot->answered, i);
	slot->answered = (uint16_t)(i + 1);
	count_hit(&client->counts, slot->operation);
	check_value(client, asked.keys[i], asked.versions[i], reply->value, reply->value_size);
	return true;
}

static void
note_error(struct client *client, const struct slot *slot, uint32_t key, const struct reply *reply)
{
	client_complain(client, "%s of key %" PRIu32 " answered: %.*s",
		options_operation_name(slot->operation), key,
		(int)(reply->line_size < 200 ? reply->line_size : 200), reply->line);
}

/*
 * Matches a reply with the oldest request under way. False when it cannot be an answer to that.
 */
static bool
take_reply(struct client *client, struct connection *connection, const struct reply *reply,
	uint64_t now)
{
	struct slot *slot = &connection->slots[connection->slot_head];
	size_t place = (size_t)connection->head * client->multiget;
	struct asked asked = {connection->keys + place, connection->versions + place};
	bool is_done = reply->kind == REPLY_DONE;

	switch (reply->kind) {
	case REPLY_VALUE:
		if (!take_value(client, connection, slot, asked, reply))
			return false;
		break;
	case REPLY_END:
		note_misses(client, connection, slot, asked, slot->answered, slot->keys);
		break;
	case REPLY_DONE:
	case REPLY_NUMBER:
		count_hit(&client->counts, slot->operation);
		break;
	case REPLY_MISS:
		is_done = slot->operation == OPERATION_DELETE;
		if (slot->operation == OPERATION_INCR)
			note_misses(client, connection, slot, asked, 0, 1);
		break;
	case REPLY_REFUSED:
		client->counts.refused++;
		if (!client->shared->options->refusals)
			note_error(client, slot, asked.keys[0], reply);
		break;
	case REPLY_NOT_STORED:
		if (slot->operation == OPERATION_APPEND)
			break;
		/* fall through */
	case REPLY_ERROR:
		client->counts.errors++;
		note_error(client, slot, asked.keys[0], reply);
		break;
	default:
		return false;
	}
	if (!reply->last)
		return true;
	if (slot->operation == OPERATION_SET || slot->operation == OPERATION_DELETE)
		workload_end_version(client->shared->workload, asked.keys[0], asked.versions[0],
			slot->is_newest, is_done);
	count_operation(&client->counts, slot);
	end_requests(client, connection, slot, 1, now);
	return true;
}

#define RUN_MAX 64

/*
 * The values of hits of gets of one key each, as many as there are in a row. Returns how many, and
 * in *used the bytes that the answers take.
 */
static unsigned
match_hits(const struct protocol *protocol, const struct workload *workload, const char *from,
	size_t size, const uint32_t *keys, unsigned count, struct value *values, size_t *used)
{
	const char *at = from;
	unsigned i = 0;

	if (protocol->match_run)
		i = protocol->match_run(workload, from, size, keys, count, values, used);
	if (i > 0)
		return i;
	for (; i < count && at < from + size; i++) {
		size_t whole = protocol->match(workload, at, size - (size_t)(at - from), keys[i],
			&values[i].at, &values[i].size);
		if (whole == 0)
			break;
		at += whole;
	}
	*used = (size_t)(at - from);
	return i;
}

/* Takes such hits; returns how many bytes they took. */
static size_t
take_hits(struct client *client, struct connection *connection, struct slot *slot, const char *at,
	size_t size, uint64_t now)
{
	const struct workload *workload = client->shared->workload;
	const uint32_t *keys = connection->keys + connection->head;
	const uint32_t *versions = connection->versions + connection->head;
	uint32_t ring = client->mask + 1 - connection->head;
	unsigned count = slot->requests < ring ? slot->requests : ring;
	struct value values[RUN_MAX];
	uint64_t foreign = 0;
	size_t used;

	if (count > RUN_MAX)
		count = RUN_MAX;
	count = match_hits(
		client->shared->protocol, workload, at, size, keys, count, values, &used);
	if (count == 0)
		return 0;
	if (workload->sample) {
		for (unsigned i = 0; i < count; i++)
			foreign += workload_value_differs(
				workload, keys[i], values[i].at, values[i].size);
	} else {
		for (unsigned i = 0; i < count; i++)
			check_value(client, keys[i], versions[i], values[i].at, values[i].size);
	}
	client->counts.foreign += foreign;
	client->counts.gets += count;
	client->counts.hits += count;
	end_requests(client, connection, slot, count, now);
	return used;
}

/*
 * The answers that come most, without parsing: hits of gets of one key, and sets that were stored.
 * Returns how many bytes they took.
 */
static size_t
take_quickly(struct client *client, struct connection *connection, const char *from, size_t size,
	uint64_t now)
{
	const struct protocol *protocol = client->shared->protocol;
	const char *at = from;
	const char *end = from + size;

	while (at < end && connection->under_way > 0) {
		struct slot *slot = &connection->slots[connection->slot_head];
		size_t used = 0;

		if (slot->operation == OPERATION_GET && client->multiget == 1 &&
			slot->answered == 0) {
			used = take_hits(client, connection, slot, at, (size_t)(end - at), now);
		} else if (slot->operation == OPERATION_SET && protocol->stored &&
			   (size_t)(end - at) >= protocol->stored_size &&
			   memcmp(at, protocol->stored, protocol->stored_size) == 0) {
			size_t place = (size_t)connection->head * client->multiget;
			workload_end_version(client->shared->workload, connection->keys[place],
				connection->versions[place], slot->is_newest, true);
			client->counts.sets++;
			end_requests(client, connection, slot, 1, now);
			used = protocol->stored_size;
		}
		if (used == 0)
			break;
		at += used;
	}
	return (size_t)(at - from);
}

ssize_t
replies_take(struct client *client, struct connection *connection, const char *at, size_t size,
	size_t *wanted)
{
	uint64_t now = client_now_ns();
	struct reply reply;

	*wanted = 0;
	for (;;) {
		size_t used = take_quickly(client, connection, at, size, now);
		at += used;
		size -= used;
		if (size == 0)
			break;
		const struct slot *slot = &connection->slots[connection->slot_head];
		bool is_asked = connection->under_way > 0;
		used = client->shared->protocol->parse(at, size,
			is_asked ? slot->operation : OPERATION_GET, is_asked ? slot->keys : 1,
			&reply, wanted);
		if (used == 0)
			break;
		if (!is_asked || !take_reply(client, connection, &reply, now)) {
			client->counts.errors++;
			client_complain(client, "connection %u: answer fits no request: %.*s",
				connection->number,
				(int)(reply.line_size < 200 ? reply.line_size : 200), reply.line);
			return -1;
		}
		at += used;
		size -= used;
	}
	flush_batch(client, now);
	return (ssize_t)size;
}
