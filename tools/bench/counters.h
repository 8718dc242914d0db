/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * counters: the totals of this program held against the server's own ('stats', asked in text over a
 * connection of its own, whatever protocol the load speaks). Only sensible when nobody else asks
 * the server anything.
 */
#ifndef TOOLS_BENCH_COUNTERS_H
#define TOOLS_BENCH_COUNTERS_H

#include "client.h"

#define COUNTERS_MAX 16

struct counters {
	uint64_t values[COUNTERS_MAX];
};

/* Read what can be compared. 0, or -1 with one line on stderr. */
int counters_read(const struct dial_address *address, int timeout_ms, struct counters *counters);

/*
 * Read again and compare the difference with the totals. 0, or -1 with one line on stderr for each
 * counter that differs. is_meta: in the meta protocol touch and gat are gets with a time to live,
 * which count as a touch when they hit, as a get when they miss.
 */
int counters_compare(const struct dial_address *address, int timeout_ms,
	const struct counters *before, const struct client_counts *totals, bool is_meta);

#endif
