/* SPDX-License-Identifier: BSD-2-Clause */
#include "options.h"

#include "workload.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIELD(name) offsetof(struct options, name)
#define MILLIONS UINT64_C(1000000)
#define MONTH (30 * 24 * 3600) /* a longer time to live is taken for a date */

static const struct optable_row rows[] = {
	{"server", 's', "HOST:PORT", OPTABLE_STRING, FIELD(server), 0, 0, "127.0.0.1:11211",
		"the server, over TCP"},
	{"socket", 'u', "PATH", OPTABLE_STRING, FIELD(socket), 0, 0, NULL,
		"a Unix socket instead of TCP"},
	{"protocol", 'p', "NAME", OPTABLE_STRING, FIELD(protocol), 0, 0, "text",
		"text, meta or binary"},
	{"connections", 'c', "N", OPTABLE_NUMBER, FIELD(connections), 1, 65000, "50",
		"connections in all"},
	{"threads", 't', "N", OPTABLE_NUMBER, FIELD(threads), 1, 256, "1",
		"threads, each with its own event loop"},
	{"pin", 0, "A,B,..", OPTABLE_STRING, FIELD(pin), 0, 0, NULL,
		"CPUs that the threads are bound to, in turn"},
	{"pipeline", 'P', "N", OPTABLE_NUMBER, FIELD(pipeline), 1, 10000, "1",
		"requests that a connection has under way at once"},
	{"multiget", 'g', "N", OPTABLE_NUMBER, FIELD(multiget), 1, 1000, "1", "keys in each get"},
	{"keys", 'k', "N", OPTABLE_NUMBER, FIELD(keys), 1, 1000 * MILLIONS, "100000",
		"different keys"},
	{"key-size", 'K', "BYTES", OPTABLE_NUMBER, FIELD(key_size), 1, WORKLOAD_KEY_SIZE_MAX, "16",
		"bytes of each key"},
	{"key-prefix", 0, "TEXT", OPTABLE_STRING, FIELD(key_prefix), 0, 0, "bench-",
		"what keys begin with, as far as the size leaves room"},
	{"keys-by", 0, "HOW", OPTABLE_STRING, FIELD(keys_by), 0, 0, "uniform",
		"which keys are asked for: uniform, zipf:EXPONENT or sequential"},
	{"shift", 0, "N", OPTABLE_NUMBER, FIELD(shift), 0, UINT64_MAX, "0",
		"with zipf: after every N keys that were drawn, a 64th of the popular keys gives "
		"way to others"},
	{"value-size", 'V', "A-B", OPTABLE_RANGE, FIELD(value_size), 0, 1024 * 1024 * 1024, "64",
		"bytes of each value, spread over the range"},
	{"values-by", 0, "HOW", OPTABLE_STRING, FIELD(values_by), 0, 0, "uniform",
		"how sizes are spread: uniform, or log for evenly over the logarithm"},
	{"ratio", 'r', "SET:GET", OPTABLE_RATIO, FIELD(ratio), 0, 1000000, "1:9",
		"how many sets come to how many gets, where --mix is not given"},
	{"mix", 0, "GET=N,..", OPTABLE_STRING, FIELD(mix), 0, 0, NULL,
		"weights of the requests: get, set, gat, touch, incr, append, delete"},
	{"scan", 0, "SHARE", OPTABLE_SECONDS, FIELD(scan), 0, 1, "0",
		"share (0 to 1) of requests that are gets of keys never asked for before or again"},
	{"overwrites", 0, "SHARE", OPTABLE_SECONDS, FIELD(overwrites), 0, 1, "0",
		"share of requests that set a key drawn as those of gets are"},
	{"ttl", 0, "A-B", OPTABLE_RANGE, FIELD(ttl), 0, MONTH, "0",
		"seconds to live that each set, gat and touch gives; 0 is for ever"},
	{"flags", 0, "N", OPTABLE_NUMBER, FIELD(flags), 0, UINT32_MAX, "0",
		"client flags of each value"},
	{"cache-aside", 0, NULL, OPTABLE_FLAG, FIELD(cache_aside), 0, 0, NULL,
		"a key that get, gat or incr missed is set next, by the same connection"},
	{"miss-penalty-us", 0, "N", OPTABLE_NUMBER, FIELD(miss_penalty_us), 0, 60 * MILLIONS, "0",
		"so long a connection asks nothing for each key that get, gat or incr missed in "
		"the "
		"run"},
	{"warmup", 0, "N", OPTABLE_NUMBER, FIELD(warmup), 0, UINT64_MAX, "0",
		"requests after the fill that are counted apart, as fast as they go"},
	{"requests", 'n', "N", OPTABLE_NUMBER, FIELD(requests), 0, UINT64_MAX, "0",
		"requests of the run, beside the sets of --cache-aside; 0 goes by time"},
	{"seconds", 'T', "S", OPTABLE_SECONDS, FIELD(seconds), 0, 1000000, "10",
		"time to run after the fill and the warm-up"},
	{"rate", 0, "N", OPTABLE_SECONDS, FIELD(rate), 0, 1000000000, "0",
		"open loop: so many requests a second are due, over all connections; 0 is a closed "
		"loop"},
	{"arrivals", 0, "HOW", OPTABLE_STRING, FIELD(arrivals), 0, 0, "poisson",
		"with --rate: poisson (independent of each other) or even"},
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
	{"check-counters", 0, NULL, OPTABLE_FLAG, FIELD(check_counters), 0, 0, NULL,
		"compare the totals with the server's counters, alone on that server"},
	{"empty", 0, NULL, OPTABLE_FLAG, FIELD(empty), 0, 0, NULL,
		"send the same pre-made requests again and again and only count the bytes of the "
		"replies"},
	{"seed", 0, "N", OPTABLE_NUMBER, FIELD(seed), 0, UINT64_MAX, "1",
		"seed of the values and of the order of keys"},
	{"timeout", 0, "S", OPTABLE_SECONDS, FIELD(timeout), 0, 100000, "10",
		"give up when nothing was answered for so long"},
	{"json", 'j', NULL, OPTABLE_FLAG, FIELD(json), 0, 0, NULL,
		"print the summary as JSON, with the options"},
	{"quiet", 'q', NULL, OPTABLE_FLAG, FIELD(quiet), 0, 0, NULL, "no progress line"},
	{"help", 'h', NULL, OPTABLE_FLAG, FIELD(help), 0, 0, NULL, "print this help"},
	{"help-man", 0, NULL, OPTABLE_FLAG, FIELD(help_man), 0, 0, NULL, "print the manual page"},
	{"version", 0, NULL, OPTABLE_FLAG, FIELD(version), 0, 0, NULL, "print the version"},
};

static const struct optable_section sections[] = {
	{"REQUESTS",
		"A connection keeps --pipeline requests under way and sends the next when an "
		"answer "
		"has come (closed loop). With\n"
		"--rate (open loop) requests are due at times that don't depend on the answers; a "
		"connection that has less than\n"
		"--pipeline under way takes the next one that is due, and where none has, it "
		"waits, "
		"which its latency includes.\n"
		"So that it isn't late by itself, a thread doesn't sleep in the 50 us before a "
		"request is due, unless there are more\n"
		"threads than CPUs that the program may use: its CPU a request then says little.\n"
		"\n"
		"Keys of sets, gats, touches and deletes are drawn as those of gets are. Under "
		"Zipf "
		"the popular keys are scattered\n"
		"over the key numbers, the same for every seed. incr asks for keys of its own (a "
		"'+' "
		"in front) that hold a number,\n"
		"append for others (an '&' in front); one in sixteen of its requests is a set, so "
		"that they stay short. --fill\n"
		"sets these too. A key of a scan has the next number behind the key space, the "
		"same "
		"ones in every run; with\n"
		"--cache-aside it is stored. With --scan all key numbers are written with ten "
		"digits.\n"
		"\n"
		"With --miss-penalty-us a connection is a worker that fetches what the cache "
		"missed from something slower, one key\n"
		"after the other, and sends nothing meanwhile, the set of --cache-aside least of "
		"all. What is under way is still\n"
		"answered, so with --pipeline 1 a worker does one thing at a time. Latencies "
		"don't count the wait.\n"
		"\n"
		"The size of a value follows from the key, so a key keeps its size; with --verify, "
		"from the key and the version."},
	{"HOW VALUES ARE CHECKED",
		"A value is computed from the seed, the number of its key and its version, its "
		"length too, and its first four\n"
		"bytes tell the version. Each key is written by one connection only, so its "
		"versions have an order. A get notes\n"
		"the last version that was acknowledged when it was sent, and what comes back must "
		"be that version or one\n"
		"sent since, right in length and in every byte. A value from an earlier run with "
		"the "
		"same seed, key size\n"
		"and prefix is accepted if it is right in itself. A delete counts as a version: "
		"what "
		"was before may not come back.\n"
		"\n"
		"With --cache-aside or --overwrites several connections write a key, and the "
		"server "
		"may take their sets in any\n"
		"order. Versions are then numbers in the order of sending. A version that was sent "
		"when all before it were answered\n"
		"is newer than those; from its answer on, a get that is sent may return nothing "
		"older. Everything else is\n"
		"checked as above.\n"
		"\n"
		"Without --verify every byte of a value is still compared with what this run would "
		"have set; values that differ are\n"
		"counted as foreign, and are no failure."},
	{"SUMMARY",
		"One line a figure: name and number. Latencies are in microseconds, from the "
		"moment "
		"a request was handed to\n"
		"the socket, with --rate from when it was due, to the moment its whole answer had "
		"been read. Figures of the fill begin\n"
		"with fill_, those of the warm-up with warmup_. JSON has latencies of get and gat, "
		"of "
		"set, and of all others as well.\n"
		"\n"
		"  requests   answered, the sets that follow misses included (after_miss)\n"
		"  gets       keys asked for by get, scans of which are keys of --scan\n"
		"  lost       misses of keys that this run stored (with --verify)\n"
		"  missing    requests that were never answered\n"
		"  behind     requests that were due at the end of an open loop, and not yet sent"},
	{"EMPTY CLIENT",
		"With --empty each connection sends as many requests as --pipeline says, drawn "
		"once, "
		"looks at the answers, and from then\n"
		"on sends the same bytes whenever as many bytes have come back. It shows what the "
		"sockets and the server allow; the\n"
		"load generator is to be compared with it."},
	{"EXIT STATUS", "0: every answer came and was right. 1: an answer was wrong, missing or an "
			"error, a total differed from the server's,\n"
			"or the server could not be reached. 2: the command line was wrong."},
	{"EXAMPLES",
		"Fill a million keys, then 30 seconds of one set to nine gets, all checked:\n"
		"  halcyon-bench --keys 1,000,000 --fill --verify --seconds 30 --pipeline 16\n"
		"\n"
		"How fast are pipelined gets on a Unix socket:\n"
		"  halcyon-bench --socket /run/halcyond.sock --fill --ratio 0:1 --pipeline 64\n"
		"\n"
		"Latency at 100,000 requests a second:\n"
		"  halcyon-bench --fill --rate 100000 --mix get=90,set=10\n"
		"\n"
		"Misses of a cache in front of something slow, after a million requests:\n"
		"  halcyon-bench --keys 3,000,000 --keys-by zipf:1.0 --value-size 20-4096 "
		"--values-by "
		"log --mix get=1 --cache-aside \\\n"
		"    --warmup 1,000,000 --requests 5,000,000 --pipeline 16"},
	{NULL, NULL},
};

static const struct optable table = {
	.program = "halcyon-bench",
	.purpose = "load generator that checks what comes back",
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

const char *
options_operation_name(enum operation operation)
{
	static const char *const names[OPERATION_COUNT] = {
		[OPERATION_GET] = "get",
		[OPERATION_SET] = "set",
		[OPERATION_GAT] = "gat",
		[OPERATION_TOUCH] = "touch",
		[OPERATION_INCR] = "incr",
		[OPERATION_APPEND] = "append",
		[OPERATION_DELETE] = "delete",
	};

	return names[operation];
}

bool
options_many_writers(const struct options *options)
{
	return options->cache_aside || options->overwrites > 0;
}

static const char *
option_name(size_t offset)
{
	for (size_t i = 0; i < table.row_count; i++)
		if (rows[i].offset == offset)
			return rows[i].name;
	return "?";
}

/* The one way to say that a string option is not of its form. Returns -1. */
static int
refuse(size_t offset, const char *text, const char *form, char *error, size_t error_size)
{
	snprintf(error, error_size, "--%s %s: not of the form %s", option_name(offset), text, form);
	return -1;
}

static int
check_mix(struct options *options, char *error, size_t error_size)
{
	static const char form[] = "get=90,set=10 with get, set, gat, touch, incr, append, delete";
	uint64_t total = 0;

	if (!options->mix) {
		options->weights[OPERATION_SET] = options->ratio.first;
		options->weights[OPERATION_GET] = options->ratio.second;
		return 0;
	}
	for (const char *at = options->mix;; at++) {
		size_t length = strcspn(at, "=,");
		unsigned i = 0;
		while (i < OPERATION_COUNT &&
			(strlen(options_operation_name(i)) != length ||
				strncmp(options_operation_name(i), at, length) != 0))
			i++;
		char *end = NULL;
		/* Each at most once: which of two weights would be meant? */
		if (i == OPERATION_COUNT || at[length] != '=' || options->weights[i] ||
			!isdigit((unsigned char)at[length + 1]))
			return refuse(FIELD(mix), options->mix, form, error, error_size);
		options->weights[i] = strtoull(at + length + 1, &end, 10);
		if ((*end && *end != ',') || options->weights[i] > 1000 * MILLIONS)
			return refuse(FIELD(mix), options->mix, form, error, error_size);
		total += options->weights[i];
		at = end;
		if (!*at)
			break;
	}
	if (total == 0)
		return refuse(FIELD(mix), options->mix, form, error, error_size);
	return 0;
}

static int
check_distributions(struct options *options, char *error, size_t error_size)
{
	const char *keys_by = options->keys_by;
	char *end;

	if (strncmp(keys_by, "zipf:", 5) == 0 && isdigit((unsigned char)keys_by[5])) {
		options->key_kind = DRAW_ZIPF;
		options->exponent = strtod(keys_by + 5, &end);
		if (*end || !(options->exponent <= DRAW_EXPONENT_MAX))
			return refuse(FIELD(keys_by), keys_by, "zipf:EXPONENT", error, error_size);
	} else if (strcmp(keys_by, "sequential") == 0) {
		options->key_kind = DRAW_SEQUENTIAL;
	} else if (strcmp(keys_by, "uniform") == 0) {
		options->key_kind = DRAW_UNIFORM;
	} else {
		return refuse(FIELD(keys_by), keys_by, "uniform, zipf:EXPONENT or sequential",
			error, error_size);
	}
	if (strcmp(options->values_by, "log") == 0)
		options->value_kind = DRAW_SIZE_LOG_UNIFORM;
	else if (strcmp(options->values_by, "uniform") == 0)
		options->value_kind = DRAW_SIZE_UNIFORM;
	else
		return refuse(
			FIELD(values_by), options->values_by, "uniform or log", error, error_size);
	if (options->value_size.first == options->value_size.second)
		options->value_kind = DRAW_SIZE_FIXED;
	if (strcmp(options->arrivals, "even") == 0)
		options->arrival_kind = DRAW_ARRIVAL_EVEN;
	else if (strcmp(options->arrivals, "poisson") == 0)
		options->arrival_kind = DRAW_ARRIVAL_POISSON;
	else
		return refuse(
			FIELD(arrivals), options->arrivals, "poisson or even", error, error_size);
	return 0;
}

static int
check_pin(struct options *options, char *error, size_t error_size)
{
	if (!options->pin)
		return 0;
	for (const char *at = options->pin;; at++) {
		char *end;
		unsigned long cpu = strtoul(at, &end, 10);
		if (!isdigit((unsigned char)*at) || (*end && *end != ',') || cpu >= 1024 ||
			options->pin_count == OPTIONS_PINS_MAX)
			return refuse(FIELD(pin), options->pin, "numbers of CPUs, A,B,..", error,
				error_size);
		options->pins[options->pin_count++] = (unsigned)cpu;
		at = end;
		if (!*at)
			return 0;
	}
}

static int
check_keys(const struct options *options, char *error, size_t error_size)
{
	unsigned digits = workload_key_digits(options->scan > 0 ? WORKLOAD_NUMBERS : options->keys);
	bool named = options->weights[OPERATION_INCR] || options->weights[OPERATION_APPEND];
	bool sets = options->weights[OPERATION_SET] || options->weights[OPERATION_DELETE];

	if (options->key_size < digits + named) {
		snprintf(error, error_size,
			"--key-size %llu: the key numbers need at least %u bytes",
			(unsigned long long)options->key_size, digits + named);
		return -1;
	}
	for (const char *p = options->key_prefix; *p; p++) {
		if ((unsigned char)*p <= ' ' || *p == 127) {
			snprintf(error, error_size,
				"--key-prefix: a key holds no blanks and no control characters");
			return -1;
		}
	}
	if (options->keys < options->connections && (sets || options->fill || options->fill_only)) {
		snprintf(error, error_size,
			"--keys %llu: fewer keys than connections, and a key has one writer",
			(unsigned long long)options->keys);
		return -1;
	}
	if (options->value_kind == DRAW_SIZE_LOG_UNIFORM && options->value_size.first == 0) {
		snprintf(error, error_size, "--values-by log: the least size can't be 0");
		return -1;
	}
	return 0;
}

/* Options that exclude each other; what is the matter, or NULL. */
static const char *
find_contradiction(const struct options *options)
{
	bool vanishing = options->ttl.second || options->weights[OPERATION_DELETE];

	if (options->strict && !options->verify)
		return "--strict needs --verify";
	if (options->strict && vanishing)
		return "--strict: with --ttl or deletes keys are missed rightly";
	if (options->shift && options->key_kind != DRAW_ZIPF)
		return "--shift needs --keys-by zipf:EXPONENT";
	if (options->miss_penalty_us && options->rate > 0)
		return "--miss-penalty-us: a connection that waits is a closed loop's, so no "
		       "--rate";
	if (options->scan + options->overwrites > 1)
		return "--scan and --overwrites: together more than all";
	if (options->empty &&
		(options->verify || options->rate > 0 || options->cache_aside ||
			options->scan > 0 || vanishing || options->weights[OPERATION_APPEND]))
		return "--empty repeats its requests, so their answers must stay the same: no "
		       "--verify, --rate, --cache-aside, --scan, --ttl, appends, deletes";
	return NULL;
}

int
options_check(struct options *options, char *error, size_t error_size)
{
	if (check_mix(options, error, error_size) ||
		check_distributions(options, error, error_size) ||
		check_pin(options, error, error_size) || check_keys(options, error, error_size))
		return -1;
	const char *contradiction = find_contradiction(options);
	if (contradiction) {
		snprintf(error, error_size, "%s", contradiction);
		return -1;
	}
	if (options->threads > options->connections)
		options->threads = options->connections;
	if (options->fill_only)
		options->fill = true;
	return 0;
}
