/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * stats_output: one form of writing for text and binary: a name and a value at a time.
 */
#ifndef DAEMON_STATS_OUTPUT_H
#define DAEMON_STATS_OUTPUT_H

#include "base/counters.h"
#include "daemon/server.h"
#include "engine/engine.h"

#include <stdbool.h>

struct stats_output {
	const struct request *request;
	struct engine_text *text;
	struct worker *worker;
	struct counters now;   /* sums of all threads */
	struct counters since; /* the same less what they were at the last reset; gauges excepted */
	bool failed;	       /* out of memory, or over the bound of a reply */
};

void stats_put(struct stats_output *output, const char *name, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void stats_put_number(struct stats_output *output, const char *name, uint64_t number);

/* --- stats_items.c --- */

void stats_items(struct stats_output *output);
void stats_slabs(struct stats_output *output);
void stats_sizes(struct stats_output *output);
/* words: class and limit. False when they can't be read. Text only: it writes the whole reply. */
bool stats_cachedump(struct stats_output *output, struct slice words);

/* --- stats_flash.c: without flash they write nothing --- */

/* memcached's names in plain 'stats': those beside the look-ups, and those of extstore itself. */
void stats_flash_lookups(struct stats_output *output);
void stats_flash_extstore(struct stats_output *output);
/* 'stats extstore': regions, by the names of its pages. */
void stats_flash_pages(struct stats_output *output);
/* In 'stats halcyon'. */
void stats_flash_own(struct stats_output *output);

/* --- stats_settings.c --- */

void stats_settings(struct stats_output *output);
void stats_connections(struct stats_output *output);

#endif
