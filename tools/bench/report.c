/* SPDX-License-Identifier: BSD-2-Clause */
#include "report.h"

#include <string.h>

void
report_add(struct report_phase *phase, const struct client *client)
{
	/* struct client_counts is nothing but uint64_t fields. */
	const uint64_t *from = (const uint64_t *)client_counts(client);
	uint64_t *into = (uint64_t *)&phase->counts;

	for (size_t i = 0; i < sizeof phase->counts / sizeof *into; i++)
		into[i] += from[i];
	histogram_merge(&phase->latencies, client_latencies(client));
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
	COUNT(gets),
	COUNT(hits),
	COUNT(misses),
	COUNT(lost),
	COUNT(refused),
	COUNT(errors),
	COUNT(wrong),
	COUNT(missing),
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

static void
print_name(struct printer *printer, const char *name)
{
	if (printer->json)
		fprintf(printer->out, "%s\n  \"%s%s\": ", printer->first ? "{" : ",",
			printer->prefix, name);
	else
		fprintf(printer->out, "%s%-*s ", printer->prefix,
			(int)(24 - strlen(printer->prefix)), name);
	printer->first = false;
}

static void
print_decimal(struct printer *printer, const char *name, double value, int places)
{
	print_name(printer, name);
	fprintf(printer->out, printer->json ? "%.*f" : "%.*f\n", places, value);
}

static void
print_phase(struct printer *printer, const struct report_phase *phase)
{
	double requests = (double)phase->counts.requests;

	printer->prefix = phase->phase == CLIENT_FILL ? "fill_" : "";
	for (size_t i = 0; i < sizeof count_rows / sizeof count_rows[0]; i++) {
		uint64_t count =
			*(const uint64_t *)((const char *)&phase->counts + count_rows[i].offset);
		print_name(printer, count_rows[i].name);
		fprintf(printer->out, printer->json ? "%llu" : "%llu\n", (unsigned long long)count);
	}
	print_decimal(printer, "seconds", phase->seconds, 3);
	print_decimal(printer, "requests_per_second",
		phase->seconds > 0 ? requests / phase->seconds : 0, 0);
	print_decimal(printer, "bench_cpu_us_a_request",
		requests > 0 ? phase->cpu_seconds * 1e6 / requests : 0, 3);
	if (phase->latencies.count == 0)
		return;
	print_decimal(printer, "latency_mean_us",
		(double)phase->latencies.sum / (double)phase->latencies.count / 1000, 1);
	for (size_t i = 0; i < sizeof quantile_rows / sizeof quantile_rows[0]; i++)
		print_decimal(printer, quantile_rows[i].name,
			(double)histogram_quantile(&phase->latencies, quantile_rows[i].share) /
				1000,
			1);
	print_decimal(printer, "latency_max_us", (double)phase->latencies.max / 1000, 1);
}

void
report_print(const struct report_phase *phases, unsigned count, bool json, FILE *out)
{
	struct printer printer = {.out = out, .json = json, .first = true};

	for (unsigned i = 0; i < count; i++)
		print_phase(&printer, &phases[i]);
	if (json)
		fputs("\n}\n", out);
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
