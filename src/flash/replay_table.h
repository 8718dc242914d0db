/* SPDX-License-Identifier: BSD-2-Clause */
/* replay_table: 64-bit keys and the largest position put for each, in memory that is had at once. */
#ifndef FLASH_REPLAY_TABLE_H
#define FLASH_REPLAY_TABLE_H

#include "base/pages.h"
#include "flash/layout.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct replay_entry {
	uint64_t key, position; /* position 0: empty */
};

struct replay_table {
	struct replay_entry *entries;
	uint64_t mask, count, bytes;
};

/* At most half full, so that nearly every key is looked for in one cache line. */
static inline uint64_t
table_room(uint64_t count)
{
	uint64_t room = 1024;

	while (room / 2 < count)
		room *= 2;
	return room;
}

static inline struct replay_table *
table_make(uint64_t count)
{
	struct replay_table *table = calloc(1, sizeof *table);
	uint64_t room = table_room(count);

	if (table == NULL)
		return NULL;
	table->bytes = room * sizeof *table->entries;
	table->mask = room - 1;
	table->entries =
		pages_reserve(table->bytes, table->bytes >= PAGES_HUGE ? PAGES_HUGE : FLASH_BLOCK);
	if (table->entries != NULL) {
		pages_advise_huge(table->entries, table->bytes, true);
		return table;
	}
	free(table);
	return NULL;
}

static inline void
table_end(struct replay_table *table)
{
	if (table == NULL)
		return;
	pages_release(table->entries, table->bytes);
	free(table);
}

/*
 * The search begins at a cache line's first entry. Whoever chooses keys doesn't choose their places:
 * hashes are seeded, positions are multiplied.
 */
static inline struct replay_entry *
table_at(const struct replay_table *table, uint64_t key)
{
	return &table->entries[(key * 0x9e3779b97f4a7c15u) >> 20 & table->mask & ~3ull];
}

static inline uint64_t
table_find(const struct replay_table *table, uint64_t key)
{
	struct replay_entry *at = table_at(table, key);

	while (at->position != 0 && at->key != key)
		at = at == table->entries + table->mask ? table->entries : at + 1;
	return at->position;
}

/* Keeps the larger position. false: full. */
static inline bool
table_put(struct replay_table *table, uint64_t key, uint64_t position)
{
	struct replay_entry *at = table_at(table, key);

	while (at->position != 0 && at->key != key)
		at = at == table->entries + table->mask ? table->entries : at + 1;
	if (at->position == 0) {
		if (table->count >= table->mask - table->mask / 8)
			return false;
		table->count++;
		at->key = key;
	}
	if (position > at->position)
		at->position = position;
	return true;
}

#endif
