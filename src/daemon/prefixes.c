/* SPDX-License-Identifier: BSD-2-Clause */
#include "daemon/prefixes.h"

#include <pthread.h>
#include <stdlib.h>
#include <xxhash.h>

#define SLOTS 65536
#define PREFIXES_MAX 65536

struct prefix {
	struct prefix *next; /* of the same slot */
	uint64_t counts[PREFIX_EVENTS];
	uint32_t size;
	uint8_t text[];
};

struct prefixes {
	pthread_mutex_t lock;
	_Atomic bool enabled;
	uint8_t delimiter;
	uint32_t count;
	struct prefix **slots; /* made when first needed */
};

struct prefixes *
prefixes_create(char delimiter, bool enabled)
{
	struct prefixes *prefixes = calloc(1, sizeof *prefixes);

	if (!prefixes)
		return NULL;
	pthread_mutex_init(&prefixes->lock, NULL);
	prefixes->delimiter = (uint8_t)delimiter;
	atomic_init(&prefixes->enabled, enabled);
	return prefixes;
}

static void
clear_locked(struct prefixes *prefixes)
{
	for (uint32_t i = 0; prefixes->slots && i < SLOTS; i++) {
		while (prefixes->slots[i]) {
			struct prefix *prefix = prefixes->slots[i];

			prefixes->slots[i] = prefix->next;
			free(prefix);
		}
	}
	prefixes->count = 0;
}

void
prefixes_destroy(struct prefixes *prefixes)
{
	if (!prefixes)
		return;
	clear_locked(prefixes);
	free(prefixes->slots);
	pthread_mutex_destroy(&prefixes->lock);
	free(prefixes);
}

const _Atomic bool *
prefixes_enabled(const struct prefixes *prefixes)
{
	return &prefixes->enabled;
}

void
prefixes_enable(struct prefixes *prefixes, bool enabled)
{
	atomic_store(&prefixes->enabled, enabled);
}

/* NULL when there are too many, or no memory. */
static struct prefix *
find_or_make(struct prefixes *prefixes, struct slice text)
{
	struct prefix **slot, *prefix;

	if (!prefixes->slots)
		prefixes->slots = calloc(SLOTS, sizeof(struct prefix *));
	if (!prefixes->slots)
		return NULL;
	slot = &prefixes->slots[XXH3_64bits(text.data, text.size) % SLOTS];
	for (prefix = *slot; prefix; prefix = prefix->next)
		if (slice_equal(slice_make(prefix->text, prefix->size), text))
			return prefix;
	if (prefixes->count >= PREFIXES_MAX)
		return NULL;
	prefix = calloc(1, sizeof *prefix + text.size);
	if (!prefix)
		return NULL;
	memcpy(prefix->text, text.data, text.size);
	prefix->size = (uint32_t)text.size;
	prefix->next = *slot;
	*slot = prefix;
	prefixes->count++;
	return prefix;
}

void
prefixes_count(struct prefixes *prefixes, struct slice key, enum prefix_event event)
{
	const uint8_t *end = key.size ? memchr(key.data, prefixes->delimiter, key.size) : NULL;
	struct prefix *prefix;

	if (!end)
		return;
	pthread_mutex_lock(&prefixes->lock);
	prefix = find_or_make(prefixes, slice_make(key.data, (size_t)(end - key.data)));
	if (prefix) {
		prefix->counts[event]++;
		if (event == PREFIX_HIT)
			prefix->counts[PREFIX_GET]++;
	}
	pthread_mutex_unlock(&prefixes->lock);
}

void
prefixes_clear(struct prefixes *prefixes)
{
	pthread_mutex_lock(&prefixes->lock);
	clear_locked(prefixes);
	pthread_mutex_unlock(&prefixes->lock);
}

void
prefixes_visit(struct prefixes *prefixes,
	void (*visit)(void *context, struct slice prefix, const uint64_t counts[PREFIX_EVENTS]),
	void *context)
{
	pthread_mutex_lock(&prefixes->lock);
	for (uint32_t i = 0; prefixes->slots && i < SLOTS; i++)
		for (const struct prefix *prefix = prefixes->slots[i]; prefix;
			prefix = prefix->next)
			visit(context, slice_make(prefix->text, prefix->size), prefix->counts);
	pthread_mutex_unlock(&prefixes->lock);
}
