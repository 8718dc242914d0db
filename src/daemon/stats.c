/* SPDX-License-Identifier: BSD-2-Clause */
#include "daemon/stats.h"

#include "base/clock.h"
#include "base/log.h"
#include "daemon/prefixes.h"
#include "daemon/stats_output.h"
#include "index/index.h"
#include "memory/memory.h"
#include "proto/binary.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

#define OPCODE_STAT 0x10
#define HEADER_SIZE 24
#define RESERVED_FDS 64

/* Rows of counters.def. */
static const struct {
	const char *field;
	const char *name; /* memcached's, "" for one of ours */
	size_t offset;
} rows[] = {
#define COUNTER(field, name, sentence) {#field, name, offsetof(struct counters, field)},
#include "base/counters.def"
#undef COUNTER
};

#define ROWS (sizeof rows / sizeof *rows)

/* Counters that go up and down: a reset doesn't change what is there. */
static const size_t gauges[] = {
	offsetof(struct counters, curr_connections),
	offsetof(struct counters, read_buf_count),
	offsetof(struct counters, read_buf_bytes),
	offsetof(struct counters, read_buf_bytes_free),
	offsetof(struct counters, flash_objects),
};

static uint64_t
at_offset(const struct counters *counters, size_t offset)
{
	return counter_get((const _Atomic uint64_t *)((const char *)counters + offset));
}

/* --- output ------------------------------------------------------------------------------- */

static bool
put_frame(struct stats_output *output, const char *name, size_t name_size, const char *value,
	size_t value_size)
{
	uint8_t header[HEADER_SIZE];

	binary_header_write(header, OPCODE_STAT, (uint16_t)name_size, 0, 0,
		(uint32_t)(name_size + value_size), output->request->opaque, 0);
	return engine_text_put(output->text, header, sizeof header) &&
	       engine_text_put(output->text, name, name_size) &&
	       engine_text_put(output->text, value, value_size);
}

void
stats_put(struct stats_output *output, const char *name, const char *format, ...)
{
	char value[4096];
	va_list arguments;
	int size;
	bool fine;

	va_start(arguments, format);
	size = vsnprintf(value, sizeof value, format, arguments);
	va_end(arguments);
	if (size < 0 || (size_t)size >= sizeof value)
		size = (int)strlen(value);
	if (output->request->protocol == PROTOCOL_BINARY)
		fine = put_frame(output, name, strlen(name), value, (size_t)size);
	else
		fine = engine_text_put(output->text, "STAT ", 5) &&
		       engine_text_put(output->text, name, strlen(name)) &&
		       engine_text_put(output->text, " ", 1) &&
		       engine_text_put(output->text, value, (size_t)size) &&
		       engine_text_put(output->text, "\r\n", 2);
	output->failed = output->failed || !fine;
}

void
stats_put_number(struct stats_output *output, const char *name, uint64_t number)
{
	stats_put(output, name, "%llu", (unsigned long long)number);
}

/* The end of a reply; word: what text says where it isn't END. */
static void
put_end(struct stats_output *output, const char *word)
{
	bool fine;

	if (output->request->protocol == PROTOCOL_BINARY)
		fine = put_frame(output, "", 0, "", 0);
	else
		fine = engine_text_put(output->text, word, strlen(word)) &&
		       engine_text_put(output->text, "\r\n", 2);
	output->failed = output->failed || !fine;
}

/* --- sums --------------------------------------------------------------------------------- */

static bool
is_gauge(size_t offset)
{
	size_t classes = offsetof(struct counters, classes);

	for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++)
		if (gauges[i] == offset)
			return true;
	if (offset < classes)
		return false;
	/* The first two of each class: items and their bytes. */
	return (offset - classes) % sizeof((struct counters *)NULL)->classes[0] <
	       2 * sizeof(uint64_t);
}

static void
take_sums(struct stats_output *output)
{
	struct server *server = output->worker->server;

	server_sum_counters(server, &output->now);
	pthread_mutex_lock(&server->reset_lock);
	for (size_t offset = 0; offset < sizeof output->now; offset += sizeof(uint64_t)) {
		uint64_t before = is_gauge(offset) ? 0 : at_offset(&server->reset, offset);

		atomic_store_explicit((_Atomic uint64_t *)((char *)&output->since + offset),
			at_offset(&output->now, offset) - before, memory_order_relaxed);
	}
	pthread_mutex_unlock(&server->reset_lock);
}

static void
reset(struct stats_output *output)
{
	struct server *server = output->worker->server;

	pthread_mutex_lock(&server->reset_lock);
	server_sum_counters(server, &server->reset);
	pthread_mutex_unlock(&server->reset_lock);
	prefixes_clear(server->prefixes);
}

/* Rows of the table from one of memcached's names to another, in the table's order. */
static void
put_rows(struct stats_output *output, const char *first, const char *last)
{
	bool within = false;

	for (size_t i = 0; i < ROWS; i++) {
		within = within || strcmp(rows[i].name, first) == 0;
		if (!within || !*rows[i].name)
			continue;
		if (strcmp(rows[i].name, "idle_kicks") != 0 ||
			output->worker->server->limits.idle_timeout_ns)
			stats_put_number(
				output, rows[i].name, at_offset(&output->since, rows[i].offset));
		if (strcmp(rows[i].name, last) == 0)
			return;
	}
}

static void
put_row(struct stats_output *output, const char *name)
{
	put_rows(output, name, name);
}

/* --- plain stats -------------------------------------------------------------------------- */

static void
put_process(struct stats_output *output)
{
	struct server *server = output->worker->server;
	struct rusage usage;
	uint64_t now = clock_unix_ns();

	getrusage(RUSAGE_SELF, &usage);
	stats_put_number(output, "pid", (uint64_t)getpid());
	stats_put_number(output, "uptime", (now - clock_started_ns()) / CLOCK_SECOND_NS);
	stats_put_number(output, "time", now / CLOCK_SECOND_NS);
	stats_put(output, "version", "%s", SERVER_VERSION);
	stats_put(output, "libevent", "%s", event_front_library());
	stats_put_number(output, "pointer_size", 8 * sizeof(void *));
	stats_put(output, "rusage_user", "%ld.%06ld", (long)usage.ru_utime.tv_sec,
		(long)usage.ru_utime.tv_usec);
	stats_put(output, "rusage_system", "%ld.%06ld", (long)usage.ru_stime.tv_sec,
		(long)usage.ru_stime.tv_usec);
	stats_put_number(output, "max_connections", server->limits.connections_max);
	stats_put_number(output, "curr_connections", atomic_load(&server->limits.connections));
	put_row(output, "total_connections");
	put_row(output, "rejected_connections");
	stats_put_number(output, "connection_structures",
		atomic_load(&server->limits.connection_structures));
	put_row(output, "response_obj_oom");
	stats_put_number(output, "response_obj_count", server->worker_count);
	stats_put_number(output, "response_obj_bytes", atomic_load(&server->limits.output_bytes));
	put_rows(output, "read_buf_count", "read_buf_oom");
	stats_put_number(output, "reserved_fds", RESERVED_FDS);
}

static void
put_index(struct stats_output *output)
{
	struct index_stats index;
	unsigned power = 0;

	store_get_index_stats(output->worker->server->store, &index);
	while (1ull << (power + 1) <= index.buckets * 8)
		power++;
	stats_put_number(output, "hash_power_level", power);
	stats_put_number(output, "hash_bytes", index.bytes);
	stats_put_number(output, "hash_is_expanding", 0);
}

/* What memcached's page mover, crawler and maintainer do has no counterpart. */
static void
put_zeros(struct stats_output *output, const char *const *names, size_t count)
{
	for (size_t i = 0; i < count; i++)
		stats_put_number(output, names[i], 0);
}

static void
put_mover(struct stats_output *output)
{
	static const char *const before[] = {
		"slab_reassign_rescues",
		"slab_reassign_chunk_rescues",
		"slab_reassign_inline_reclaim",
		"slab_reassign_busy_items",
		"slab_reassign_busy_deletes",
		"slab_reassign_busy_nomem",
	};
	static const char *const after[] = {"slab_reassign_running", "slabs_moved"};
	static const char *const crawler[] = {"lru_crawler_running", "lru_crawler_starts"};
	const struct options *options = output->worker->server->options;
	static const char *const log[] = {
		"log_worker_written",
		"log_watcher_skipped",
		"log_watcher_sent",
		"log_watchers",
	};
	static const char *const network[] = {"unexpected_napi_ids", "round_robin_fallback"};

	put_zeros(output, before, sizeof before / sizeof *before);
	stats_put(output, "slab_reassign_last_busy_status", "none");
	put_zeros(output, after, sizeof after / sizeof *after);
	if (options->lru_crawler)
		put_zeros(output, crawler, sizeof crawler / sizeof *crawler);
	if (options->lru_maintainer)
		stats_put_number(output, "lru_maintainer_juggles", 0);
	stats_put_number(output, "malloc_fails", 0);
	stats_put_number(output, "log_worker_dropped",
		counter_get(&output->since.log_worker_dropped) + log_dropped());
	put_zeros(output, log, sizeof log / sizeof *log);
	stats_flash_extstore(output);
	put_zeros(output, network, sizeof network / sizeof *network);
}

static void
put_items(struct stats_output *output)
{
	static const char *const crawler[] = {
		"crawler_reclaimed", "crawler_items_checked", "lrutail_reflocked"};
	static const char *const moves[] = {"moves_to_cold", "moves_to_warm", "moves_within_lru"};
	bool maintainer = output->worker->server->options->lru_maintainer;
	struct memory_stats memory;
	uint64_t items = counter_get(&output->now.flash_objects), bytes = 0;

	store_get_memory_stats(output->worker->server->store, &memory);
	for (int i = 0; i < SIZE_CLASSES; i++) {
		items += counter_get(&output->now.classes[i].number);
		bytes += counter_get(&output->now.classes[i].bytes);
	}
	stats_put_number(output, "bytes", bytes);
	stats_put_number(output, "curr_items", items);
	put_row(output, "total_items");
	stats_put_number(output, "slab_global_page_pool", memory.segments_free);
	put_row(output, "expired_unfetched");
	put_row(output, "evicted_unfetched");
	if (maintainer)
		put_row(output, "evicted_active");
	put_row(output, "evictions");
	put_row(output, "reclaimed");
	put_zeros(output, crawler, sizeof crawler / sizeof *crawler);
	if (!maintainer)
		return;
	put_zeros(output, moves, sizeof moves / sizeof *moves);
	put_row(output, "direct_reclaims");
	stats_put_number(output, "lru_bumps_dropped", 0);
}

static void
put_general(struct stats_output *output)
{
	struct server *server = output->worker->server;
	struct acceptor_stats accept;

	acceptor_get_stats(server->acceptor, &accept);
	put_process(output);
	put_rows(output, "cmd_get", "get_flushed");
	stats_flash_lookups(output);
	put_rows(output, "delete_misses", "bytes_written");
	stats_put_number(output, "limit_maxbytes", atomic_load(&server->limit_bytes));
	stats_put_number(output, "accepting_conns", accept.accepting);
	stats_put_number(output, "listen_disabled_num", accept.disabled_count);
	stats_put_number(output, "time_in_listen_disabled_us", accept.disabled_us);
	stats_put_number(output, "threads", server->worker_count);
	put_row(output, "conn_yields");
	put_index(output);
	put_mover(output);
	put_items(output);
}

/* --- ours --------------------------------------------------------------------------------- */

static void
put_halcyon_memory(struct stats_output *output)
{
	struct memory_stats memory;

	store_get_memory_stats(output->worker->server->store, &memory);
#define PUT(field) stats_put_number(output, "memory_" #field, memory.field)
	PUT(limit_bytes);
	PUT(segment_bytes);
	PUT(segments_limit);
	PUT(segments_free);
	PUT(segments_open);
	PUT(segments_probation);
	PUT(segments_main);
	PUT(segments_body);
	PUT(segments_grace);
	PUT(segments_pinned);
	PUT(live_bytes);
	PUT(resident_bytes);
	PUT(ghost_bytes);
	PUT(evicted_segments);
	PUT(merged_segments);
	PUT(expired_segments);
	PUT(flushed_segments);
	PUT(dead_segments);
	PUT(compacted_segments);
	PUT(moved_items);
	PUT(moved_bytes);
	PUT(dropped_items);
	PUT(ghost_hits);
	PUT(promoted_items);
	PUT(worker_steps);
	PUT(waits);
	PUT(pin_refusals);
	PUT(accounting_errors);
#undef PUT
}

static void
put_halcyon_index(struct stats_output *output)
{
	struct index_stats index;

	store_get_index_stats(output->worker->server->store, &index);
	stats_put_number(output, "index_entries", index.entries);
	stats_put_number(output, "index_buckets", index.buckets);
	stats_put_number(output, "index_buckets_initial", index.buckets_initial);
	stats_put_number(output, "index_overflow_units", index.overflow_units);
	stats_put_number(output, "index_bytes", index.bytes);
	stats_put_number(output, "index_splits", index.splits);
	stats_put_number(output, "index_growth_pause_max_us", (index.split_ns_max + 999) / 1000);
	stats_put_number(
		output, "index_growth_pause_wall_max_us", (index.split_wall_ns_max + 999) / 1000);
	stats_put_number(output, "index_doublings", index.doublings);
	stats_put_number(output, "index_growth_stopped", index.growth_stopped);
	stats_put_number(output, "index_retries", index.retries);
}

static void
put_halcyon(struct stats_output *output)
{
	const struct event_limits *limits = &output->worker->server->limits;

	stats_put(output, "product", "halcyon");
	stats_put(output, "halcyon_version", "%s", PACKAGE_VERSION);
	for (size_t i = 0; i < ROWS; i++)
		if (!*rows[i].name)
			stats_put_number(
				output, rows[i].field, at_offset(&output->since, rows[i].offset));
	put_halcyon_index(output);
	put_halcyon_memory(output);
	stats_flash_own(output);
	stats_put_number(output, "front_window_bytes", atomic_load(&limits->window_bytes));
	stats_put_number(output, "front_held_bytes", atomic_load(&limits->held_bytes));
	stats_put_number(output, "front_output_bytes", atomic_load(&limits->output_bytes));
	stats_put_number(output, "log_lines_dropped", log_dropped());
}

/* --- detail ------------------------------------------------------------------------------- */

static void
put_prefix(void *context, struct slice prefix, const uint64_t counts[PREFIX_EVENTS])
{
	struct engine_text *text = context;

	if (!engine_text_put(text, "PREFIX ", 7) ||
		!engine_text_put(text, prefix.data, prefix.size))
		return;
	engine_text_printf(text, " get %llu hit %llu set %llu del %llu\r\n",
		(unsigned long long)counts[PREFIX_GET], (unsigned long long)counts[PREFIX_HIT],
		(unsigned long long)counts[PREFIX_SET], (unsigned long long)counts[PREFIX_DELETE]);
}

/* In binary form the whole dump is one value, as memcached sends it. */
static void
dump_prefixes(struct stats_output *output)
{
	struct prefixes *prefixes = output->worker->server->prefixes;
	struct engine_text dump = {0};

	if (output->request->protocol != PROTOCOL_BINARY) {
		prefixes_visit(prefixes, put_prefix, output->text);
		put_end(output, "END");
		return;
	}
	prefixes_visit(prefixes, put_prefix, &dump);
	engine_text_put(&dump, "END\r\n", 5);
	output->failed = output->failed ||
			 !put_frame(output, "detailed", 8, (const char *)dump.data, dump.size);
	free(dump.data);
	put_end(output, "END");
}

static void
put_line(struct stats_output *output, const char *line)
{
	engine_text_put(output->text, line, strlen(line));
	engine_text_put(output->text, "\r\n", 2);
}

static enum status
detail(struct stats_output *output, struct slice word)
{
	struct prefixes *prefixes = output->worker->server->prefixes;

	if (output->worker->server->options->dump_off) {
		if (output->request->protocol == PROTOCOL_BINARY)
			return STATUS_DUMP_DISABLED;
		put_line(output, "CLIENT_ERROR stats detail not allowed");
		return STATUS_TEXT;
	}
	if (slice_is(word, "dump")) {
		dump_prefixes(output);
		return STATUS_TEXT;
	}
	if (!slice_is(word, "on") && !slice_is(word, "off")) {
		if (output->request->protocol == PROTOCOL_BINARY)
			return STATUS_INVALID_ARGUMENTS;
		put_line(output, "CLIENT_ERROR usage: stats detail on|off|dump");
		return STATUS_TEXT;
	}
	prefixes_enable(prefixes, slice_is(word, "on"));
	put_end(output, "OK");
	return STATUS_TEXT;
}

/* --- which one ---------------------------------------------------------------------------- */

/* Cuts the first word off. */
static struct slice
next_word(struct slice *words)
{
	struct slice word;
	size_t size = 0;

	while (words->size > 0 && *words->data == ' ') {
		words->data++;
		words->size--;
	}
	while (size < words->size && words->data[size] != ' ')
		size++;
	word = slice_make(words->data, size);
	words->data += size;
	words->size -= size;
	return word;
}

static enum status
cachedump(struct stats_output *output, struct slice words)
{
	if (output->worker->server->options->dump_off)
		return STATUS_DUMP_DISABLED;
	if (output->request->protocol == PROTOCOL_BINARY)
		return STATUS_NOT_FOUND;
	return stats_cachedump(output, words) ? STATUS_TEXT : STATUS_BAD_FORMAT;
}

static const struct {
	const char *word;
	void (*put)(struct stats_output *output);
} forms[] = {
	{"", put_general},
	{"settings", stats_settings},
	{"items", stats_items},
	{"slabs", stats_slabs},
	{"sizes", stats_sizes},
	{"conns", stats_connections},
	{"halcyon", put_halcyon},
	{"extstore", stats_flash_pages},
};

static enum status
choose(struct stats_output *output, struct slice words)
{
	struct slice word = next_word(&words);

	if (slice_is(word, "detail"))
		return detail(output, next_word(&words));
	if (slice_is(word, "cachedump"))
		return cachedump(output, words);
	if (slice_is(word, "reset")) {
		reset(output);
		put_end(output, "RESET");
		return STATUS_TEXT;
	}
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		if (!slice_is(word, forms[i].word))
			continue;
		forms[i].put(output);
		put_end(output, "END");
		return STATUS_TEXT;
	}
	return output->request->protocol == PROTOCOL_BINARY ? STATUS_NOT_FOUND
							    : STATUS_UNKNOWN_COMMAND;
}

enum status
stats_run(struct worker *worker, const struct request *request, struct engine_text *text)
{
	struct stats_output output = {.request = request, .text = text, .worker = worker};
	enum status status;

	take_sums(&output);
	status = choose(&output, request->arguments);
	if (output.failed) {
		text->size = 0;
		return STATUS_NO_MEMORY;
	}
	return status;
}
