/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * pause: connections that ask nothing until a time of their own, ordered by that time.
 *
 * A binary heap: the next one to go on stands first. One thread's.
 */
#ifndef TOOLS_BENCH_PAUSE_H
#define TOOLS_BENCH_PAUSE_H

#include <stdbool.h>
#include <stdint.h>

struct pause_entry {
	uint64_t until_ns;
	uint32_t which;
};

/* All zero: no room. */
struct pauses {
	struct pause_entry *entries;
	uint32_t count;
	uint32_t room;
};

/* Room for so many at a time. False when there is no memory. */
bool pauses_create(struct pauses *pauses, uint32_t room);

void pauses_destroy(struct pauses *pauses);

/* 'which' isn't among them, and there is room. */
void pauses_add(struct pauses *pauses, uint32_t which, uint64_t until_ns);

/* When the next one goes on; UINT64_MAX: there is none. */
uint64_t pauses_next_ns(const struct pauses *pauses);

/* Takes the next one out; there is one. */
uint32_t pauses_take(struct pauses *pauses);

#endif
