/* SPDX-License-Identifier: BSD-2-Clause */
#include "memory/ghost.h"

static uint32_t
tag_of(uint64_t hash)
{
	uint32_t tag = hash & 0xffffff;

	return tag ? tag : 1;
}

/* The set comes from other bits than the tag. */
static _Atomic uint32_t *
set_of(const struct ghost *ghost, uint64_t hash)
{
	uint64_t sets = atomic_load_explicit(&ghost->sets, memory_order_relaxed);

	return sets ? &ghost->words[((hash >> 32) * sets >> 32) * GHOST_WAYS] : NULL;
}

void
ghost_init(struct ghost *ghost, _Atomic uint32_t *words)
{
	*ghost = (struct ghost){.words = words};
}

void
ghost_resize(struct ghost *ghost, uint32_t sets)
{
	atomic_store_explicit(&ghost->sets, sets, memory_order_relaxed);
}

void
ghost_insert(struct ghost *ghost, uint64_t hash)
{
	_Atomic uint32_t *set = set_of(ghost, hash), *victim = set;

	if (!set)
		return;
	uint64_t tick = (uint64_t)atomic_load_explicit(&ghost->sets, memory_order_relaxed) *
			GHOST_WAYS / 64;
	uint64_t inserted = atomic_fetch_add_explicit(&ghost->inserted, 1, memory_order_relaxed);
	uint32_t time = (uint32_t)(inserted / (tick ? tick : 1)) & 0xff, oldest = 0;

	for (unsigned i = 0; i < GHOST_WAYS; i++) {
		uint32_t word = atomic_load_explicit(&set[i], memory_order_relaxed);
		uint32_t age = (time - (word >> 24)) & 0xff;

		if (word == 0 || (word & 0xffffff) == tag_of(hash)) {
			victim = &set[i];
			break;
		}
		if (age >= oldest) {
			oldest = age;
			victim = &set[i];
		}
	}
	atomic_store_explicit(victim, time << 24 | tag_of(hash), memory_order_relaxed);
}

bool
ghost_take(struct ghost *ghost, uint64_t hash)
{
	_Atomic uint32_t *set = set_of(ghost, hash);

	for (unsigned i = 0; set && i < GHOST_WAYS; i++) {
		uint32_t word = atomic_load_explicit(&set[i], memory_order_relaxed);

		if ((word & 0xffffff) == tag_of(hash) &&
			atomic_compare_exchange_strong_explicit(
				&set[i], &word, 0, memory_order_relaxed, memory_order_relaxed))
			return true;
	}
	return false;
}

void
ghost_prefetch(const struct ghost *ghost, uint64_t hash)
{
	_Atomic uint32_t *set = set_of(ghost, hash);

	if (set)
		__builtin_prefetch((const void *)set, 1);
}
