/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Statistics of a whole server without sockets: its counters are set here, and its first worker is
 * asked.
 */
#include "base/clock.h"
#include "base/rcu.h"
#include "daemon/prefixes.h"
#include "daemon/server.h"
#include "daemon/stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct server server, server_with_flash;
static struct server *asked = &server;
static struct options options, options_with_flash;
static struct listeners listeners;

static int
set_up(void **state)
{
	char *argv[] = {(char[]){"halcyond"}, (char[]){"-m"}, (char[]){"16"}, (char[]){"-t"},
		(char[]){"2"}, (char[]){"-o"}, (char[]){"no_lru_crawler,no_lru_maintainer"}, NULL};
	char error[OPTIONS_ERROR_MAX];

	(void)state;
	clock_start();
	options_init(&options);
	assert_true(options_parse(&options, 7, argv, error));
	assert_true(server_create(&server, &options, &listeners));
	rcu_register();
	return 0;
}

static int
tear_down(void **state)
{
	(void)state;
	rcu_unregister();
	server_destroy(&server);
	options_free(&options);
	return 0;
}

static const char flash_template[] = "/tmp/halcyon-stats-XXXXXX";
static char flash_path[sizeof flash_template];

/* A second server, which is the one that is asked; with a flash file of 64 megabytes. */
static int
set_up_flash(void **state)
{
	char *argv[] = {(char[]){"halcyond"}, (char[]){"-m16"}, (char[]){"-t1"}, (char[]){"-o"},
		(char[]){"ext_path=/tmp/halcyon-stats-XXXXXX:64m,ext_item_size=700"}, NULL};
	char error[OPTIONS_ERROR_MAX];
	int fd;

	(void)state;
	memcpy(flash_path, flash_template, sizeof flash_path);
	fd = mkstemp(flash_path);
	assert_true(fd >= 0 && close(fd) == 0);
	memcpy(strchr(argv[4], '/'), flash_path, strlen(flash_path));
	options_init(&options_with_flash);
	assert_true(options_parse(&options_with_flash, 5, argv, error));
	rcu_unregister();
	assert_true(server_create(&server_with_flash, &options_with_flash, &listeners));
	rcu_register();
	asked = &server_with_flash;
	return 0;
}

static int
tear_down_flash(void **state)
{
	(void)state;
	asked = &server;
	rcu_unregister();
	server_destroy(&server_with_flash);
	rcu_register();
	options_free(&options_with_flash);
	return unlink(flash_path);
}

/* The reply to 'stats WORDS', or to the binary form; the caller frees it. */
static char *
ask(const char *words, enum protocol protocol, enum status *status, size_t *size)
{
	struct request request = {
		.verb = VERB_STATS, .protocol = (uint8_t)protocol, .opaque = 0x01020304};
	struct engine_text text = {0};
	struct store_thread *store = engine_store_thread(asked->workers[0].engine);

	request.arguments = slice_text(words);
	store_turn_begin(store, clock_unix_ns());
	*status = stats_run(&asked->workers[0], &request, &text);
	store_turn_end(store);
	*size = text.size;
	if (!engine_text_put(&text, "", 1))
		fail();
	return (char *)text.data;
}

static char *
ask_text(const char *words)
{
	enum status status;
	size_t size;
	char *text = ask(words, PROTOCOL_TEXT, &status, &size);

	assert_int_equal(status, STATUS_TEXT);
	return text;
}

/* The value of a name in a reply, -1 when it isn't there. */
static long long
number_of(const char *text, const char *name)
{
	char line[128];
	const char *at;

	snprintf(line, sizeof line, "STAT %s ", name);
	at = strstr(text, line);
	return at ? atoll(at + strlen(line)) : -1;
}

static unsigned
lines_of(const char *text)
{
	unsigned lines = 0;

	for (; (text = strstr(text, "\r\n")); text += 2)
		lines++;
	return lines;
}

/* memcached 1.6.45 prints 84 lines when it has neither flash nor TLS, crawler nor maintainer. */
static void
test_general(void **state)
{
	char *text = ask_text("");

	(void)state;
	assert_int_equal(lines_of(text), 84 + 1);
	assert_non_null(strstr(text, "STAT version 1.6.45\r\n"));
	assert_int_equal(number_of(text, "threads"), 2);
	assert_int_equal(number_of(text, "limit_maxbytes"), 16 << 20);
	assert_int_equal(number_of(text, "accepting_conns"), 1);
	assert_int_equal(number_of(text, "idle_kicks"), -1);
	assert_string_equal(text + strlen(text) - 5, "END\r\n");
	free(text);
}

/* Every thread's counters are summed; a reset hides what was, but for gauges. */
static void
test_sums_and_reset(void **state)
{
	char *text;

	(void)state;
	counter_add(&server.counters[0].get_hits, 3);
	counter_add(&server.counters[1].get_hits, 4);
	counter_add(&server.counters[server.counters_count - 1].rejected_connections, 2);
	counter_add(&server.counters[0].classes[1].number, 5);
	counter_add(&server.counters[1].classes[1].number, (uint64_t)-2);
	counter_add(&server.counters[1].classes[1].evicted, 6);
	text = ask_text("");
	assert_int_equal(number_of(text, "get_hits"), 7);
	assert_int_equal(number_of(text, "rejected_connections"), 2);
	assert_int_equal(number_of(text, "curr_items"), 3);
	free(text);
	text = ask_text("items");
	assert_int_equal(number_of(text, "items:1:number"), 3);
	assert_int_equal(number_of(text, "items:1:evicted"), 6);
	free(text);
	text = ask_text("reset");
	assert_string_equal(text, "RESET\r\n");
	free(text);
	counter_add(&server.counters[1].get_hits, 1);
	text = ask_text("");
	assert_int_equal(number_of(text, "get_hits"), 1);
	assert_int_equal(number_of(text, "rejected_connections"), 0);
	assert_int_equal(number_of(text, "curr_items"), 3);
	free(text);
	text = ask_text("items");
	assert_int_equal(number_of(text, "items:1:number"), 3);
	assert_int_equal(number_of(text, "items:1:evicted"), 0);
	free(text);
	text = ask_text("slabs");
	assert_int_equal(number_of(text, "1:chunk_size"), 96);
	assert_int_equal(number_of(text, "1:used_chunks"), 3);
	assert_int_equal(number_of(text, "active_slabs"), 1);
	free(text);
}

static void
test_settings(void **state)
{
	char *text = ask_text("settings");

	(void)state;
	assert_int_equal(number_of(text, "maxbytes"), 16 << 20);
	assert_int_equal(number_of(text, "maxconns"), 1024);
	assert_int_equal(number_of(text, "num_threads"), 2);
	assert_non_null(strstr(text, "STAT binding_protocol auto-negotiate\r\n"));
	assert_non_null(strstr(text, "STAT lru_crawler no\r\n"));
	assert_non_null(strstr(text, "STAT domain_socket NULL\r\n"));
	free(text);
}

static void
test_detail(void **state)
{
	char *text = ask_text("detail on");

	(void)state;
	assert_string_equal(text, "OK\r\n");
	free(text);
	assert_true(atomic_load(prefixes_enabled(server.prefixes)));
	prefixes_count(server.prefixes, slice_text("foo:a"), PREFIX_SET);
	prefixes_count(server.prefixes, slice_text("foo:b"), PREFIX_HIT);
	prefixes_count(server.prefixes, slice_text("foo:c"), PREFIX_GET);
	prefixes_count(server.prefixes, slice_text("foo:d"), PREFIX_DELETE);
	prefixes_count(server.prefixes, slice_text("without"), PREFIX_SET);
	text = ask_text("detail dump");
	assert_string_equal(text, "PREFIX foo get 2 hit 1 set 1 del 1\r\nEND\r\n");
	free(text);
	text = ask_text("detail");
	assert_string_equal(text, "CLIENT_ERROR usage: stats detail on|off|dump\r\n");
	free(text);
	free(ask_text("reset"));
	text = ask_text("  detail  dump");
	assert_string_equal(text, "END\r\n");
	free(text);
	free(ask_text("detail off"));
	assert_false(atomic_load(prefixes_enabled(server.prefixes)));
}

static void
count_prefix(void *context, struct slice prefix, const uint64_t counts[PREFIX_EVENTS])
{
	uint64_t *seen = context;

	seen[0]++;
	if (slice_is(prefix, "p0"))
		seen[1] = counts[PREFIX_SET];
}

/* No more than 65536 prefixes, whatever clients send; those that are there go on counting. */
static void
test_prefixes_bound(void **state)
{
	struct prefixes *prefixes = prefixes_create(':', true);
	uint64_t seen[2] = {0};
	char text[32];

	(void)state;
	for (int i = 0; i < 70000; i++) {
		snprintf(text, sizeof text, "p%d:", i);
		prefixes_count(prefixes, slice_text(text), PREFIX_SET);
	}
	prefixes_count(prefixes, slice_text("p0:again"), PREFIX_SET);
	prefixes_visit(prefixes, count_prefix, seen);
	assert_int_equal(seen[0], 65536);
	assert_int_equal(seen[1], 2);
	prefixes_clear(prefixes);
	seen[0] = 0;
	prefixes_visit(prefixes, count_prefix, seen);
	assert_int_equal(seen[0], 0);
	prefixes_destroy(prefixes);
}

static void
test_words(void **state)
{
	static const char *const empty[] = {"extstore", "sizes", "conns"};
	enum status status;
	size_t size;
	char *text;

	(void)state;
	for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
		text = ask_text(empty[i]);
		assert_string_equal(text, "END\r\n");
		free(text);
	}
	text = ask_text("halcyon");
	assert_non_null(strstr(text, "STAT product halcyon\r\n"));
	assert_true(number_of(text, "index_growth_pause_max_us") >= 0);
	assert_int_equal(number_of(text, "memory_limit_bytes"), 16 << 20);
	free(text);
	text = ask("bogus", PROTOCOL_TEXT, &status, &size);
	assert_int_equal(status, STATUS_UNKNOWN_COMMAND);
	assert_int_equal(size, 0);
	free(text);
	text = ask("cachedump", PROTOCOL_TEXT, &status, &size);
	assert_int_equal(status, STATUS_BAD_FORMAT);
	free(text);
	text = ask("cachedump 1 10", PROTOCOL_TEXT, &status, &size);
	assert_string_equal(text, "END\r\n");
	free(text);
}

/* Names of extstore, in the order in which memcached has them, and none without flash. */
static void
test_flash_names(void **state)
{
	static const char *const names[] = {"get_flushed", "get_extstore", "get_aborted_extstore",
		"get_oom_extstore", "recache_from_extstore", "miss_from_extstore",
		"badcrc_from_extstore", "delete_misses", "log_watchers", "extstore_memory_pressure",
		"extstore_compact_lost", "extstore_compact_rescues", "extstore_compact_resc_cold",
		"extstore_compact_resc_old", "extstore_compact_skipped", "extstore_page_allocs",
		"extstore_page_evictions", "extstore_page_reclaims", "extstore_pages_free",
		"extstore_pages_used", "extstore_objects_evicted", "extstore_objects_read",
		"extstore_objects_written", "extstore_objects_used", "extstore_bytes_evicted",
		"extstore_bytes_written", "extstore_bytes_read", "extstore_bytes_used",
		"extstore_bytes_fragmented", "extstore_limit_maxbytes", "extstore_io_queue",
		"unexpected_napi_ids"};
	char *text = ask_text(""), line[64];
	const char *at = text;

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *found;

		snprintf(line, sizeof line, "STAT %s ", names[i]);
		found = strstr(at, line);
		if (!found)
			fail_msg("%s isn't there, or not in its place", names[i]);
		/* The next line, but for the two gaps between the blocks. */
		if (i > 0 && i != 8)
			assert_ptr_equal(found, strstr(at, "\r\n") + 2);
		at = found;
	}
	free(text);
	text = ask_text("settings");
	assert_non_null(strstr(text, "STAT inline_ascii_response no\r\nSTAT ext_item_size 700\r\n"
				     "STAT ext_item_age 0\r\nSTAT ext_low_ttl 0\r\n"
				     "STAT ext_recache_rate 2000\r\nSTAT ext_wbuf_size 4194304\r\n"
				     "STAT ext_compact_under 0\r\nSTAT ext_drop_under 0\r\n"
				     "STAT ext_max_sleep 1000000\r\nSTAT ext_max_frag 0.80\r\n"
				     "STAT slab_automove_freeratio 0.010\r\n"
				     "STAT ext_drop_unread no\r\n"));
	free(text);
	asked = &server;
	text = ask_text("");
	assert_null(strstr(text, "extstore"));
	free(text);
	asked = &server_with_flash;
}

static void
test_flash_figures(void **state)
{
	char *text;
	long long regions;

	(void)state;
	counter_add(&asked->counters[0].flash_objects, 7);
	counter_add(&asked->counters[0].classes[1].number, 2);
	counter_add(&asked->counters[0].flash_hits, 5);
	counter_add(&asked->counters[0].flash_failed, 3);
	counter_add(&asked->counters[0].flash_promoted, 4);
	counter_add(&asked->counters[0].flash_evicted, 6);
	text = ask_text("");
	assert_int_equal(number_of(text, "curr_items"), 9);
	assert_int_equal(number_of(text, "get_extstore"), 8);
	assert_int_equal(number_of(text, "miss_from_extstore"), 3);
	assert_int_equal(number_of(text, "recache_from_extstore"), 4);
	assert_int_equal(number_of(text, "extstore_objects_used"), 7);
	assert_int_equal(number_of(text, "extstore_objects_evicted"), 6);
	free(text);
	text = ask_text("halcyon");
	regions = number_of(text, "flash_regions");
	assert_non_null(strstr(text, "STAT flash_state alive\r\n"));
	assert_non_null(strstr(text, "STAT flash_journal_mode sync\r\n"));
	assert_non_null(strstr(text, "STAT flash_write_amplification 0.000\r\n"));
	assert_non_null(strstr(text, "STAT flash_read_device_p99_us 0.0\r\n"));
	assert_int_equal(number_of(text, "flash_bytes"), 64 << 20);
	assert_in_range(regions, 16, 256);
	assert_int_equal(number_of(text, "flash_regions_free"), regions);
	free(text);
	text = ask_text("extstore");
	assert_int_equal(lines_of(text), 4 * regions + 1);
	assert_true(strncmp(text,
			    "STAT 0:version 0\r\nSTAT 0:bytes 0\r\nSTAT 0:bucket 0\r\n"
			    "STAT 0:free_bucket 0\r\nSTAT 1:version 0\r\n",
			    91) == 0);
	free(text);
	/* What is there stays; what was done is forgotten. */
	free(ask_text("reset"));
	text = ask_text("");
	assert_int_equal(number_of(text, "curr_items"), 9);
	assert_int_equal(number_of(text, "get_extstore"), 0);
	free(text);
}

/* A frame a pair, the last without a name; each names the request. */
static void
test_binary(void **state)
{
	enum status status;
	size_t size, at = 0;
	unsigned frames = 0;
	char *text = ask("settings", PROTOCOL_BINARY, &status, &size);

	(void)state;
	assert_int_equal(status, STATUS_TEXT);
	while (at < size) {
		const uint8_t *frame = (uint8_t *)text + at;
		size_t key = (size_t)frame[2] << 8 | frame[3],
		       body = (size_t)frame[10] << 8 | frame[11];

		assert_int_equal(frame[0], 0x81);
		assert_int_equal(frame[1], 0x10);
		assert_memory_equal(frame + 12, &(uint32_t){0x01020304}, 4);
		assert_true(key <= body);
		if (frames == 0)
			assert_memory_equal(frame + 24, "maxbytes16777216", 16);
		assert_int_equal(key == 0, at + 24 == size);
		at += 24 + body;
		frames++;
	}
	assert_int_equal(at, size);
	assert_true(frames > 50);
	free(text);
	text = ask("bogus", PROTOCOL_BINARY, &status, &size);
	assert_int_equal(status, STATUS_NOT_FOUND);
	free(text);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_general),
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_settings),
		cmocka_unit_test(test_sums_and_reset),
		cmocka_unit_test(test_detail),
		cmocka_unit_test(test_prefixes_bound),
		cmocka_unit_test(test_binary),
		cmocka_unit_test_setup_teardown(test_flash_names, set_up_flash, tear_down_flash),
		cmocka_unit_test_setup_teardown(test_flash_figures, set_up_flash, tear_down_flash),
	};

	return cmocka_run_group_tests_name("stats", tests, set_up, tear_down);
}
