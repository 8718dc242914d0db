/* SPDX-License-Identifier: BSD-2-Clause */
#include "options.h"

#include "workload.h"

#include <string.h>

#define FIELD(name) offsetof(struct options, name)
#define MILLIONS UINT64_C(1000000)

static const struct optable_row rows[] = {
	{"server", 's', "HOST:PORT", OPTABLE_STRING, FIELD(server), 0, 0, "127.0.0.1:11211",
		"the server, over TCP"},
	{"socket", 'u', "PATH", OPTABLE_STRING, FIELD(socket), 0, 0, NULL,
		"a Unix socket instead of TCP"},
	{"connections", 'c', "N", OPTABLE_NUMBER, FIELD(connections), 1, 65000, "50",
		"connections in all"},
	{"threads", 't', "N", OPTABLE_NUMBER, FIELD(threads), 1, 256, "1",
		"threads, each with its own event loop"},
	{"pipeline", 'P', "N", OPTABLE_NUMBER, FIELD(pipeline), 1, 10000, "1",
		"requests that a connection has under way at once"},
	{"multiget", 'g', "N", OPTABLE_NUMBER, FIELD(multiget), 1, 1000, "1", "keys in each get"},
	{"keys", 'k', "N", OPTABLE_NUMBER, FIELD(keys), 1, 1000 * MILLIONS, "100000",
		"different keys"},
	{"key-size", 'K', "BYTES", OPTABLE_NUMBER, FIELD(key_size), 1, WORKLOAD_KEY_SIZE_MAX, "16",
		"bytes of each key"},
	{"key-prefix", 0, "TEXT", OPTABLE_STRING, FIELD(key_prefix), 0, 0, "bench-",
		"what keys begin with, as far as the size leaves room"},
	{"value-size", 'V', "A-B", OPTABLE_RANGE, FIELD(value_size), 0, 1024 * 1024 * 1024, "64",
		"bytes of each value, spread evenly over the range"},
	{"ratio", 'r', "SET:GET", OPTABLE_RATIO, FIELD(ratio), 0, 1000000, "1:9",
		"how many sets come to how many gets"},
	{"requests", 'n', "N", OPTABLE_NUMBER, FIELD(requests), 0, UINT64_MAX, "0",
		"requests in all after the fill; 0 goes by time"},
	{"seconds", 'T', "S", OPTABLE_SECONDS, FIELD(seconds), 0, 1000000, "10",
		"time to run after the fill"},
	{"fill", 'f', NULL, OPTABLE_FLAG, FIELD(fill), 0, 0, NULL,
		"set every key once, in order, before the run"},
	{"fill-only", 'F', NULL, OPTABLE_FLAG, FIELD(fill_only), 0, 0, NULL,
		"set every key once and stop"},
	{"verify", 'v', NULL, OPTABLE_FLAG, FIELD(verify), 0, 0, NULL,
		"check every byte of every value, and that no get returns a value older than one "
		"stored before it was sent"},
	{"strict", 'S', NULL, OPTABLE_FLAG, FIELD(strict), 0, 0, NULL,
		"with --verify: a miss of a key that was stored is a failure too"},
	{"refusals", 0, NULL, OPTABLE_FLAG, FIELD(refusals), 0, 0, NULL,
		"a set answered 'out of memory' is counted and is no failure"},
	{"seed", 0, "N", OPTABLE_NUMBER, FIELD(seed), 0, UINT64_MAX, "1",
		"seed of the values and of the order of keys"},
	{"timeout", 0, "S", OPTABLE_SECONDS, FIELD(timeout), 0, 100000, "10",
		"give up when nothing was answered for so long"},
	{"json", 'j', NULL, OPTABLE_FLAG, FIELD(json), 0, 0, NULL, "print the summary as JSON"},
	{"quiet", 'q', NULL, OPTABLE_FLAG, FIELD(quiet), 0, 0, NULL, "no progress line"},
	{"help", 'h', NULL, OPTABLE_FLAG, FIELD(help), 0, 0, NULL, "print this help"},
	{"help-man", 0, NULL, OPTABLE_FLAG, FIELD(help_man), 0, 0, NULL, "print the manual page"},
	{"version", 0, NULL, OPTABLE_FLAG, FIELD(version), 0, 0, NULL, "print the version"},
};

static const struct optable_section sections[] = {
	{"HOW VALUES ARE CHECKED", "A value is computed from the seed, the number of its key and "
				   "its version, its length too, and its first four\n"
				   "bytes tell the version. Each key is written by one connection "
				   "only, so its versions have an order. A get notes\n"
				   "the last version that was acknowledged when it was sent, and "
				   "what comes back must be that version or one\n"
				   "sent since, right in length and in every byte. A value from an "
				   "earlier run with the same seed, key size\n"
				   "and prefix is accepted if it is right in itself."},
	{"SUMMARY", "One line a figure: name and number. Latencies are in microseconds, from the "
		    "moment a request was handed to\n"
		    "the socket to the moment its whole answer had been read. Figures of the fill "
		    "begin with fill_."},
	{"EXIT STATUS", "0: every answer came and was right. 1: an answer was wrong, missing or an "
			"error, or the server could not be\n"
			"reached. 2: the command line was wrong."},
	{"EXAMPLES",
		"Fill a million keys, then 30 seconds of one set to nine gets, all checked:\n"
		"  halcyon-bench --keys 1,000,000 --fill --verify --seconds 30 --pipeline 16\n"
		"\n"
		"How fast are pipelined gets on a Unix socket:\n"
		"  halcyon-bench --socket /run/halcyond.sock --fill --ratio 0:1 --pipeline 64"},
	{NULL, NULL},
};

static const struct optable table = {
	.program = "halcyon-bench",
	.purpose = "closed-loop load generator that checks what comes back",
	.synopsis = "[options]",
	.rows = rows,
	.row_count = sizeof rows / sizeof rows[0],
	.sections = sections,
};

const struct optable *
options_table(void)
{
	return &table;
}

int
options_check(struct options *options, char *error, size_t error_size)
{
	unsigned digits = workload_key_digits(options->keys);

	if (options->key_size < digits) {
		snprintf(error, error_size, "--key-size %llu: %llu keys need at least %u bytes",
			(unsigned long long)options->key_size, (unsigned long long)options->keys,
			digits);
		return -1;
	}
	for (const char *p = options->key_prefix; *p; p++) {
		if ((unsigned char)*p <= ' ' || *p == 127) {
			snprintf(error, error_size,
				"--key-prefix: a key holds no blanks and no control characters");
			return -1;
		}
	}
	if (options->keys < options->connections &&
		(options->ratio.first || options->fill || options->fill_only)) {
		snprintf(error, error_size,
			"--keys %llu: fewer keys than connections, and a key has one writer",
			(unsigned long long)options->keys);
		return -1;
	}
	if (options->strict && !options->verify) {
		snprintf(error, error_size, "--strict needs --verify");
		return -1;
	}
	if (options->threads > options->connections)
		options->threads = options->connections;
	if (options->fill_only)
		options->fill = true;
	return 0;
}
