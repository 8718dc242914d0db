/* SPDX-License-Identifier: BSD-2-Clause */
/* report: the summary of a phase, as lines or as JSON, from one table of figures. */
#ifndef TOOLS_BENCH_REPORT_H
#define TOOLS_BENCH_REPORT_H

#include "client.h"

struct report_phase {
	enum client_phase phase;
	struct client_counts counts; /* of all threads together */
	struct histogram latencies[CLIENT_CLASSES];
	double seconds;
	double cpu_user_seconds; /* that this program used */
	double cpu_system_seconds;
};

void report_add(struct report_phase *phase, const struct client *client);

/* Adds the counts of a phase to those of others. */
void report_add_counts(struct client_counts *into, const struct client_counts *from);

/* Print the phases in order, each name once; as JSON with the options. */
void report_print(const struct report_phase *phases, unsigned count, const struct options *options,
	FILE *out);

/* Whether the phase went as it must under these options; the exit status hangs on it. */
bool report_is_good(const struct report_phase *phase, const struct options *options);

#endif
