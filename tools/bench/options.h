/* SPDX-License-Identifier: BSD-2-Clause */
/* options: what halcyon-bench was asked to do; the table behind it is in options.c. */
#ifndef TOOLS_BENCH_OPTIONS_H
#define TOOLS_BENCH_OPTIONS_H

#include "../common/optable.h"
#include "draw.h"

/* What a client can ask for. Each but SCAN is an operation of the protocol. */
enum operation {
	OPERATION_GET,
	OPERATION_SET,
	OPERATION_GAT,
	OPERATION_TOUCH,
	OPERATION_INCR,
	OPERATION_APPEND,
	OPERATION_DELETE,
	OPERATION_COUNT
};

#define OPTIONS_PINS_MAX 256

struct options {
	const char *server;
	const char *socket;
	const char *protocol;
	uint64_t connections;
	uint64_t threads;
	const char *pin;
	uint64_t pipeline;
	uint64_t multiget;
	uint64_t keys;
	uint64_t key_size;
	const char *key_prefix;
	const char *keys_by;
	uint64_t shift;
	struct optable_pair value_size;
	const char *values_by;
	struct optable_pair ratio; /* sets : gets */
	const char *mix;
	double scan;
	double overwrites;
	struct optable_pair ttl;
	uint64_t flags;
	bool cache_aside;
	uint64_t miss_penalty_us;
	uint64_t warmup;
	uint64_t requests; /* 0: until seconds have passed */
	double seconds;
	double rate; /* requests a second; 0: closed loop */
	const char *arrivals;
	bool fill;
	bool fill_only;
	bool verify;
	bool strict;
	bool refusals;
	bool check_counters;
	bool empty;
	uint64_t seed;
	double timeout;
	bool json;
	bool quiet;
	bool help;
	bool help_man;
	bool version;

	/* What options_check reads from the strings above. */
	uint64_t weights[OPERATION_COUNT];
	enum draw_kind key_kind;
	double exponent;
	enum draw_size_kind value_kind;
	enum draw_arrival_kind arrival_kind;
	unsigned pins[OPTIONS_PINS_MAX];
	unsigned pin_count;
};

/* The table: for parsing, --help, the manual page and the summary. */
const struct optable *options_table(void);

/* As --mix names it. */
const char *options_operation_name(enum operation operation);

/*
 * Check what one row alone cannot: that the options fit each other. 0, or -1 with one line in
 * error. Fills in what follows from others.
 */
int options_check(struct options *options, char *error, size_t error_size);

/* Whether a key may be set by several connections, so that its versions have no order. */
bool options_many_writers(const struct options *options);

#endif
