/* SPDX-License-Identifier: BSD-2-Clause */
/* options: what halcyon-bench was asked to do; the table behind it is in options.c. */
#ifndef TOOLS_BENCH_OPTIONS_H
#define TOOLS_BENCH_OPTIONS_H

#include "../common/optable.h"

struct options {
	const char *server;
	const char *socket;
	uint64_t connections;
	uint64_t threads;
	uint64_t pipeline;
	uint64_t multiget;
	uint64_t keys;
	uint64_t key_size;
	const char *key_prefix;
	struct optable_pair value_size;
	struct optable_pair ratio; /* sets : gets */
	uint64_t requests;	   /* 0: until seconds have passed */
	double seconds;
	bool fill;
	bool fill_only;
	bool verify;
	bool strict;
	bool refusals;
	uint64_t seed;
	double timeout;
	bool json;
	bool quiet;
	bool help;
	bool help_man;
	bool version;
};

/* The table: for parsing, --help and the manual page. */
const struct optable *options_table(void);

/*
 * Check what one row alone cannot: that the options fit each other. 0, or -1 with one line in
 * error. Fills in what follows from others (requests where neither it nor seconds was given).
 */
int options_check(struct options *options, char *error, size_t error_size);

#endif
