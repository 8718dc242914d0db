/* SPDX-License-Identifier: BSD-2-Clause */
/* halcyon-bench: connect, fill, run, report. */
#include "counters.h"
#include "report.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "unversioned"
#endif

#define OPEN_LEAD_NS 5000000 /* until the clock of an open loop starts: its threads run by then */

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct thread {
	pthread_t id;
	struct client *client;
	int cpu; /* that it is bound to, or -1 */
	enum client_phase phase;
	uint64_t requests;
	uint64_t start_ns;
	uint64_t deadline_ns;
	_Atomic(bool) done;
};

static void *
run_thread(void *argument)
{
	struct thread *thread = argument;

	if (thread->cpu >= 0) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET((size_t)thread->cpu, &set);
		if (sched_setaffinity(0, sizeof set, &set))
			fprintf(stderr, "halcyon-bench: cannot run on CPU %d\n", thread->cpu);
	}
	client_run(thread->client, thread->phase, thread->requests, thread->start_ns,
		thread->deadline_ns);
	atomic_store(&thread->done, true);
	return NULL;
}

/* Every connection is a descriptor: take as many as the system gives. */
static void
raise_descriptor_limit(uint64_t wanted)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= wanted)
		return;
	limit.rlim_cur = limit.rlim_max < wanted ? wanted : limit.rlim_max;
	if (limit.rlim_max < wanted)
		limit.rlim_max = wanted;
	if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
		return;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static double
seconds_of(struct timeval time)
{
	return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static void
show_progress(const struct thread *threads, unsigned count, double elapsed, uint64_t *before)
{
	uint64_t answered = 0;

	for (unsigned i = 0; i < count; i++)
		answered += client_progress(threads[i].client);
	static const char *const names[] = {
		[CLIENT_FILL] = "fill",
		[CLIENT_WARMUP] = "warm-up",
		[CLIENT_RUN] = "run",
	};
	fprintf(stderr, "\r%-7s %5.0f s  %12llu requests  %9llu/s ", names[threads[0].phase],
		elapsed, (unsigned long long)answered, (unsigned long long)(answered - *before));
	*before = answered;
}

static bool
all_done(const struct thread *threads, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!atomic_load(&threads[i].done))
			return false;
	return true;
}

/* Wait until all threads are done, with a line a second where somebody looks. */
static void
wait_for(struct thread *threads, unsigned count, uint64_t start_ns, bool show)
{
	uint64_t before = 0;
	uint64_t shown_ns = start_ns;

	while (show && !all_done(threads, count)) {
		usleep(20000);
		uint64_t now = client_now_ns();
		if (now - shown_ns < 1000000000)
			continue;
		shown_ns = now;
		show_progress(threads, count, (double)(now - start_ns) / 1e9, &before);
	}
	for (unsigned i = 0; i < count; i++)
		pthread_join(threads[i].id, NULL);
	if (shown_ns != start_ns)
		fputs("\r\033[K", stderr);
}

static int
run_phase(struct thread *threads, unsigned count, const struct options *options,
	enum client_phase phase, struct report_phase *report)
{
	uint64_t wanted = phase == CLIENT_RUN ? options->requests : options->warmup;
	uint64_t start_ns = client_now_ns();
	bool show = !options->quiet && isatty(STDERR_FILENO);
	struct rusage before, after;

	if (phase == CLIENT_RUN && options->rate > 0)
		start_ns += OPEN_LEAD_NS;
	getrusage(RUSAGE_SELF, &before);
	report->phase = phase;
	for (unsigned i = 0; i < count; i++) {
		uint64_t share = wanted / count + (i < wanted % count);
		threads[i].phase = phase;
		threads[i].requests = phase == CLIENT_FILL ? 0 : share;
		threads[i].start_ns = start_ns;
		threads[i].deadline_ns = 0;
		/*
		 * Where requests are counted, a thread whose share is none must not run without
		 * end.
		 */
		if (phase != CLIENT_FILL && (wanted == 0 || share == 0))
			threads[i].deadline_ns =
				start_ns + (wanted ? 0 : (uint64_t)(options->seconds * 1e9)) + 1;
		atomic_store(&threads[i].done, false);
		if (pthread_create(&threads[i].id, NULL, run_thread, &threads[i])) {
			fprintf(stderr, "halcyon-bench: cannot start thread %u\n", i);
			exit(EXIT_FAILED);
		}
	}
	wait_for(threads, count, start_ns, show);
	uint64_t end_ns = client_now_ns();
	/* Where all connections are lost at once, it ends before its start. */
	report->seconds = end_ns > start_ns ? (double)(end_ns - start_ns) / 1e9 : 0;
	getrusage(RUSAGE_SELF, &after);
	report->cpu_user_seconds = seconds_of(after.ru_utime) - seconds_of(before.ru_utime);
	report->cpu_system_seconds = seconds_of(after.ru_stime) - seconds_of(before.ru_stime);
	for (unsigned i = 0; i < count; i++)
		report_add(report, threads[i].client);
	return report_is_good(report, options) ? 0 : EXIT_FAILED;
}

/* All phases, between two looks at the server's counters where they are to be compared. */
static int
run_phases(struct thread *threads, unsigned count, const struct client_shared *shared,
	struct report_phase *reports)
{
	const struct options *options = shared->options;
	int timeout_ms = (int)(options->timeout * 1000);
	struct counters before;
	unsigned phases = 0;
	int status = 0;

	if (options->check_counters && counters_read(shared->address, timeout_ms, &before))
		return EXIT_FAILED;
	if (options->fill)
		status = run_phase(threads, count, options, CLIENT_FILL, &reports[phases++]);
	if (status == 0 && !options->fill_only && options->warmup)
		status = run_phase(threads, count, options, CLIENT_WARMUP, &reports[phases++]);
	if (status == 0 && !options->fill_only)
		status = run_phase(threads, count, options, CLIENT_RUN, &reports[phases++]);
	report_print(reports, phases, options, stdout);
	if (status == 0 && options->check_counters) {
		struct client_counts totals = {0};
		for (unsigned i = 0; i < phases; i++)
			report_add_counts(&totals, &reports[i].counts);
		bool is_meta = strcmp(shared->protocol->name, "meta") == 0;
		if (counters_compare(shared->address, timeout_ms, &before, &totals, is_meta))
			status = EXIT_FAILED;
	}
	return status;
}

static int
run(const struct options *options, struct client_shared *shared)
{
	unsigned count = (unsigned)options->threads;
	struct thread *threads = calloc(count, sizeof *threads);
	struct report_phase *reports = calloc(3, sizeof *reports);
	unsigned first = 0;
	int status = 0;
	char error[256];

	if (!threads || !reports) {
		fprintf(stderr, "halcyon-bench: no memory\n");
		status = EXIT_FAILED;
	}
	for (unsigned i = 0; status == 0 && i < count; i++) {
		unsigned share = (unsigned)(options->connections / count +
					    (i < options->connections % count));
		threads[i].cpu =
			options->pin_count ? (int)options->pins[i % options->pin_count] : -1;
		threads[i].client = client_create(shared, i, first, share, error, sizeof error);
		first += share;
		if (!threads[i].client) {
			fprintf(stderr, "halcyon-bench: %s\n", error);
			status = EXIT_FAILED;
		}
	}
	if (status == 0)
		status = run_phases(threads, count, shared, reports);
	for (unsigned i = 0; threads && i < count; i++)
		client_destroy(&threads[i].client);
	free(reports);
	free(threads);
	return status;
}

static const struct protocol *
find_protocol(const char *name)
{
	const struct protocol *const protocols[] = {
		protocol_text(), protocol_meta(), protocol_binary()};

	for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
		if (strcmp(protocols[i]->name, name) == 0)
			return protocols[i];
	return NULL;
}

/* Everything that the options name is there: run. */
static int
set_up_and_run(const struct options *options, const struct protocol *protocol)
{
	struct draw_keys_options key_options = {
		.kind = options->key_kind,
		.keys = options->keys,
		.exponent = options->exponent,
		.shift_every = options->shift
				       ? (options->shift + options->threads - 1) / options->threads
				       : 0,
	};
	struct dial_address address;
	struct workload workload;
	char error[256];

	raise_descriptor_limit(options->connections + 64);
	if (dial_find(options->server, options->socket, &address, error, sizeof error)) {
		fprintf(stderr, "halcyon-bench: %s\n", error);
		return EXIT_FAILED;
	}
	struct draw_keys *keys = draw_keys_create(&key_options);
	if (!keys || workload_create(&workload, options)) {
		fprintf(stderr, "halcyon-bench: no memory for the state of %llu keys\n",
			(unsigned long long)options->keys);
		draw_keys_destroy(&keys);
		return EXIT_FAILED;
	}
	struct client_shared shared = {
		.options = options,
		.protocol = protocol,
		.address = &address,
		.keys = keys,
		.workload = &workload,
	};
	int status = run(options, &shared);
	workload_destroy(&workload);
	draw_keys_destroy(&keys);
	return status;
}

int
main(int argc, char **argv)
{
	struct options options = {0};
	char error[256];

	int next = optable_parse(options_table(), argc, argv, &options, error, sizeof error);
	if (next >= 0 && options.help) {
		optable_print_help(options_table(), stdout);
		return 0;
	}
	if (next >= 0 && options.help_man) {
		optable_print_man(options_table(), stdout);
		return 0;
	}
	if (next >= 0 && options.version) {
		printf("halcyon-bench %s\n", PACKAGE_VERSION);
		return 0;
	}
	if (next >= 0 && next < argc) {
		snprintf(error, sizeof error, "argument not understood: %s", argv[next]);
		next = -1;
	}
	if (next < 0 || options_check(&options, error, sizeof error)) {
		fprintf(stderr, "halcyon-bench: %s\n", error);
		return EXIT_USAGE;
	}
	const struct protocol *protocol = find_protocol(options.protocol);
	if (!protocol) {
		fprintf(stderr,
			"halcyon-bench: --protocol %s: not of the form text, meta or binary\n",
			options.protocol);
		return EXIT_USAGE;
	}
	return set_up_and_run(&options, protocol);
}
