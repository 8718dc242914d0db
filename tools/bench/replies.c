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

static inline void
end_slot(
	struct client *client, struct connection *connection, const struct slot *slot, uint64_t now)
{
	if (slot->start_ns != client->batch.start_ns) {
		flush_batch(client, now);
		client->batch.start_ns = slot->start_ns;
	}
	client->batch.counts[classes[slot->operation]]++;
	client->counts.requests++;
	connection->head = (connection->head + 1) & client->slot_mask;
	connection->under_way--;
	client->under_way--;
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

/* Keys that get, gat or incr missed: with --cache-aside they are set next. */
static void
note_misses(struct client *client, struct connection *connection, const struct slot *slot,
	const struct asked *asked, unsigned count)
{
	bool is_get = slot->operation == OPERATION_GET;

	if (is_get)
		client->counts.misses += count;
	for (unsigned i = 0; i < count; i++) {
		if (client->shared->options->cache_aside) {
			size_t room = connection->aside_room * sizeof *connection->aside;
			connection->aside = client_grow(connection->aside, &room,
				(connection->aside_end + 1) * sizeof *connection->aside);
			connection->aside_room = room / sizeof *connection->aside;
			connection->aside[connection->aside_end++] = asked[i].key;
		}
		if (slot->operation == OPERATION_INCR || asked[i].version == 0 || client->vanishing)
			continue;
		client->counts.lost++;
		if (client->shared->options->strict)
			client_complain(client,
				"key %" PRIu32 ": missing, though version %" PRIu32 " was stored",
				asked[i].key, asked[i].version);
	}
}

static void
check_value(
	struct client *client, const struct asked *asked, const char *value, uint64_t value_size)
{
	struct workload *workload = client->shared->workload;
	uint32_t version;

	if (!workload->sent) {
		if (workload_value_differs(workload, asked->key, value, value_size))
			client->counts.foreign++;
		return;
	}
	enum workload_verdict verdict = workload_check_value(
		workload, asked->key, asked->version, value, value_size, &version);
	if (verdict == WORKLOAD_RIGHT)
		return;
	client->counts.wrong++;
	client_complain(client,
		"key %" PRIu32 ": %s (got %" PRIu64 " bytes that say version %" PRIu32
		"; versions %" PRIu32 " to %" PRIu32 " may come)",
		asked->key, workload_verdict_text(verdict), value_size, version, asked->version,
		workload_newest(workload, asked->key));
}

/* A value answers the next key of the get that has its name; those before it were missed. */
static bool
take_value(struct client *client, struct connection *connection, struct slot *slot,
	const struct asked *asked, const struct reply *reply)
{
	const struct workload *workload = client->shared->workload;
	unsigned i = slot->answered;

	if (reply->key_size != workload->key_size || reply->flags != workload->flags)
		return false;
	while (i < slot->keys && !workload_is_key(workload, reply->key, asked[i].key))
		i++;
	if (i == slot->keys)
		return false;
	note_misses(client, connection, slot, asked + slot->answered, i - slot->answered);
	slot->answered = (uint16_t)(i + 1);
	count_hit(&client->counts, slot->operation);
	check_value(client, &asked[i], reply->value, reply->value_size);
	return true;
}

static void
note_error(struct client *client, const struct slot *slot, const struct asked *asked,
	const struct reply *reply)
{
	client_complain(client, "%s of key %" PRIu32 " answered: %.*s",
		options_operation_name(slot->operation), asked->key,
		(int)(reply->line_size < 200 ? reply->line_size : 200), reply->line);
}

/*
 * Matches a reply with the oldest request under way. False when it cannot be an answer to that.
 */
static bool
take_reply(struct client *client, struct connection *connection, const struct reply *reply,
	uint64_t now)
{
	struct slot *slot = &connection->slots[connection->head];
	struct asked *asked = connection->asked + (size_t)connection->head * client->multiget;
	bool is_done = reply->kind == REPLY_DONE;

	switch (reply->kind) {
	case REPLY_VALUE:
		if (!take_value(client, connection, slot, asked, reply))
			return false;
		break;
	case REPLY_END:
		note_misses(client, connection, slot, asked + slot->answered,
			slot->keys - slot->answered);
		break;
	case REPLY_DONE:
	case REPLY_NUMBER:
		count_hit(&client->counts, slot->operation);
		break;
	case REPLY_MISS:
		is_done = slot->operation == OPERATION_DELETE;
		if (slot->operation == OPERATION_INCR)
			note_misses(client, connection, slot, asked, 1);
		break;
	case REPLY_REFUSED:
		client->counts.refused++;
		if (!client->shared->options->refusals)
			note_error(client, slot, asked, reply);
		break;
	case REPLY_NOT_STORED:
		if (slot->operation == OPERATION_APPEND)
			break;
		/* fall through */
	case REPLY_ERROR:
		client->counts.errors++;
		note_error(client, slot, asked, reply);
		break;
	default:
		return false;
	}
	if (!reply->last)
		return true;
	if (slot->operation == OPERATION_SET || slot->operation == OPERATION_DELETE)
		workload_end_version(client->shared->workload, asked->key, asked->version,
			slot->is_newest, is_done);
	count_operation(&client->counts, slot);
	end_slot(client, connection, slot, now);
	return true;
}

/* A get of one key that has no answer yet: compared as a whole. */
static inline bool
is_plain_get(const struct slot *slot)
{
	static const struct slot plain = {0, 1, 0, OPERATION_GET, true, 0};
	const size_t offset = offsetof(struct slot, keys);

	return memcmp((const char *)slot + offset, (const char *)&plain + offset,
		       sizeof *slot - offset) == 0;
}

/*
 * The answers that come most, without parsing: hits of gets of one key, and sets that were stored.
 * Returns how many bytes they took. What they count is added up here and stored once.
 */
static size_t
take_quickly(struct client *client, struct connection *connection, const char *from, size_t size,
	uint64_t now)
{
	const struct protocol *protocol = client->shared->protocol;
	struct workload *workload = client->shared->workload;
	const uint32_t mask = client->slot_mask;
	const uint32_t multiget = client->multiget;
	const uint32_t under_way = connection->under_way;
	const char *at = from;
	const char *end = from + size;
	uint32_t head = connection->head;
	uint32_t gets = 0;
	uint32_t sets = 0;
	uint32_t foreign = 0;

	for (; at < end && gets + sets < under_way; head = (head + 1) & mask) {
		struct slot *slot = &connection->slots[head];
		const struct asked *asked = &connection->asked[(size_t)head * multiget];
		enum client_class class;
		if (is_plain_get(slot)) {
			const char *value;
			uint64_t value_size;
			size_t used = protocol->match(
				workload, at, (size_t)(end - at), asked->key, &value, &value_size);
			if (used == 0)
				break;
			if (workload->sample)
				foreign += workload_value_differs(
					workload, asked->key, value, value_size);
			else
				check_value(client, asked, value, value_size);
			at += used;
			gets++;
			class = CLIENT_CLASS_GET;
		} else if (slot->operation == OPERATION_SET && protocol->stored &&
			   (size_t)(end - at) >= protocol->stored_size &&
			   memcmp(at, protocol->stored, protocol->stored_size) == 0) {
			workload_end_version(
				workload, asked->key, asked->version, slot->is_newest, true);
			at += protocol->stored_size;
			sets++;
			class = CLIENT_CLASS_SET;
		} else {
			break;
		}
		if (slot->start_ns != client->batch.start_ns) {
			flush_batch(client, now);
			client->batch.start_ns = slot->start_ns;
		}
		client->batch.counts[class]++;
	}
	connection->head = head;
	connection->under_way -= gets + sets;
	client->under_way -= gets + sets;
	client->counts.requests += gets + sets;
	client->counts.gets += gets;
	client->counts.hits += gets;
	client->counts.sets += sets;
	client->counts.foreign += foreign;
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
		const struct slot *slot = &connection->slots[connection->head];
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
