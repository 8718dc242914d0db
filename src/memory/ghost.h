/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * ghost: which keys left probation not long ago, four bytes a key. Sets of 16 words (a cache
 * line); a word is 24 bits of the key's hash and 8 bits of the time at which it left, counted in
 * sixty-fourths of the ghost. Of a full set the oldest gives way, so the whole is first in, first
 * out but for a set's luck.
 *
 *	word:	| time 8 | tag 24 (never 0) |	0: empty
 *
 * Any thread inserts and takes. Words are changed one by one and relaxed; losing one costs a hint.
 */
#ifndef MEMORY_GHOST_H
#define MEMORY_GHOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GHOST_WAYS 16u

struct ghost {
	_Atomic uint32_t *words; /* constant */
	_Atomic uint32_t sets;	 /* 0: remembers nothing */
	_Atomic uint64_t inserted;
};

/* words: zeroed, room for the most sets that there will ever be. */
void ghost_init(struct ghost *ghost, _Atomic uint32_t *words);
/* Most of what it remembers is lost. Any thread. */
void ghost_resize(struct ghost *ghost, uint32_t sets);
void ghost_insert(struct ghost *ghost, uint64_t hash);
bool ghost_take(struct ghost *ghost, uint64_t hash);
/* Loads the words that one of these two will look at. */
void ghost_prefetch(const struct ghost *ghost, uint64_t hash);

#endif
