/* SPDX-License-Identifier: BSD-2-Clause */
#include "report.h"

#include <string.h>

void
report_add_counts(struct client_counts *into, const struct client_counts *from)
{
	/* struct client_counts is nothing but uint64_t fields. */
	uint64_t *to = (uint64_t *)into;
	const uint64_t *of = (const uint64_t *)from;

	for (size_t i = 0; i < sizeof *into / sizeof *to; i++)
		to[i] += of[i];
}

void
report_add(struct report_phase *phase, const struct client *client)
{
	report_add_counts(&phase->counts, client_counts(client));
	for (unsigned i = 0; i < CLIENT_CLASSES; i++)
		histogram_merge(&phase->latencies[i], client_latencies(client, i));
}

static const struct {
	const char *name;
	size_t offset;
} count_rows[] = {
#define COUNT(name)                                                                                \
	{                                                                                          \
#name, offsetof(struct client_counts, name)                                        \
	}
	COUNT(requests),
	COUNT(sets),
	COUNT(after_miss),
	COUNT(gets),
	COUNT(hits),
	COUNT(misses),
	COUNT(scans),
	COUNT(gats),
	COUNT(gat_hits),
	COUNT(touches),
	COUNT(touch_hits),
	COUNT(incrs),
	COUNT(incr_hits),
	COUNT(appends),
	COUNT(append_hits),
	COUNT(deletes),
	COUNT(delete_hits),
	COUNT(lost),
	COUNT(foreign),
	COUNT(refused),
	COUNT(errors),
	COUNT(wrong),
	COUNT(missing),
	COUNT(behind),
	COUNT(bytes_sent),
	COUNT(bytes_received),
#undef COUNT
};

static const struct {
	const char *name;
	double share;
} quantile_rows[] = {
	{"latency_p50_us", 0.5},
	{"latency_p90_us", 0.9},
	{"latency_p95_us", 0.95},
	{"latency_p99_us", 0.99},
	{"latency_p999_us", 0.999},
	{"latency_p9999_us", 0.9999},
};

struct printer {
	FILE *out;
	bool json;
	bool first;
	const char *prefix;
};

static const char *const phase_prefixes[] = {
	[CLIENT_FILL] = "fill_",
	[CLIENT_WARMUP] = "warmup_",
	[CLIENT_RUN] = "",
};

static void
print_name(struct printer *printer, const char *before, const char *name)
{
	if (printer->json)
		fprintf(printer->out, "%s\n  \"%s%s%s\": ", printer->first ? "{" : ",",
			printer->prefix, before, name);
	else
		fprintf(printer->out, "%s%s%-*s ", printer->prefix, before,
			(int)(24 - strlen(printer->prefix) - strlen(before)), name);
	printer->first = false;
}

static void
print_decimal(
	struct printer *printer, const char *before, const char *name, double value, int places)
{
	print_name(printer, before, name);
	fprintf(printer->out, printer->json ? "%.*f" : "%.*f\n", places, value);
}

static void
print_latencies(struct printer *printer, const char *before, const struct histogram *latencies)
{
	if (latencies->count == 0)
		return;
	print_decimal(printer, before, "latency_mean_us",
		(double)latencies->sum / (double)latencies->count / 1000, 1);
	for (size_t i = 0; i < sizeof quantile_rows / sizeof quantile_rows[0]; i++)
		print_decimal(printer, before, quantile_rows[i].name,
			(double)histogram_quantile(latencies, quantile_rows[i].share) / 1000, 1);
	print_decimal(printer, before, "latency_max_us", (double)latencies->max / 1000, 1);
}

static void
print_phase(struct printer *printer, const struct report_phase *phase)
{
	static const char *const classes[CLIENT_CLASSES] = {
		[CLIENT_CLASS_GET] = "get_",
		[CLIENT_CLASS_SET] = "set_",
		[CLIENT_CLASS_OTHER] = "other_",
	};
	static struct histogram all; /* too large for a stack */
	double requests = (double)phase->counts.requests;
	double cpu_seconds = phase->cpu_user_seconds + phase->cpu_system_seconds;

	printer->prefix = phase_prefixes[phase->phase];
	for (size_t i = 0; i < sizeof count_rows / sizeof count_rows[0]; i++) {
		uint64_t count =
			*(const uint64_t *)((const char *)&phase->counts + count_rows[i].offset);
		print_name(printer, "", count_rows[i].name);
		fprintf(printer->out, printer->json ? "%llu" : "%llu\n", (unsigned long long)count);
	}
	print_decimal(printer, "", "seconds", phase->seconds, 3);
	print_decimal(printer, "", "requests_per_second",
		phase->seconds > 0 ? requests / phase->seconds : 0, 0);
	print_decimal(printer, "", "bench_cpu_user_seconds", phase->cpu_user_seconds, 3);
	print_decimal(printer, "", "bench_cpu_system_seconds", phase->cpu_system_seconds, 3);
	print_decimal(printer, "", "bench_cpu_us_a_request",
		requests > 0 ? cpu_seconds * 1e6 / requests : 0, 4);
	memset(&all, 0, sizeof all);
	for (unsigned i = 0; i < CLIENT_CLASSES; i++)
		histogram_merge(&all, &phase->latencies[i]);
	print_latencies(printer, "", &all);
	for (unsigned i = 0; printer->json && i < CLIENT_CLASSES; i++)
		print_latencies(printer, classes[i], &phase->latencies[i]);
}

void
report_print(
	const struct report_phase *phases, unsigned count, const struct options *options, FILE *out)
{
	struct printer printer = {.out = out, .json = options->json, .first = true};

	for (unsigned i = 0; i < count; i++)
		print_phase(&printer, &phases[i]);
	if (options->json) {
		printer.prefix = "";
		print_name(&printer, "", "options");
		optable_print_json(options_table(), options, out);
		fputs("\n}\n", out);
	}
	fflush(out);
}

bool
report_is_good(const struct report_phase *phase, const struct options *options)
{
	const struct client_counts *counts = &phase->counts;

	if (counts->errors || counts->wrong || counts->missing)
		return false;
	if (counts->refused && !options->refusals)
		return false;
	return !(options->strict && counts->lost);
}
