/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/options.h"

#include "base/options_flash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ARGUMENTS_MAX 32

/* Splits 'line' at spaces; gives what options_parse gave. */
static bool
parse(struct options *options, const char *line, char error[OPTIONS_ERROR_MAX])
{
	char copy[1024], *argv[ARGUMENTS_MAX], *place = NULL;
	int argc = 0;
	bool fine;

	snprintf(copy, sizeof copy, "halcyond %s", line);
	for (char *word = strtok_r(copy, " ", &place); word; word = strtok_r(NULL, " ", &place))
		argv[argc++] = word;
	argv[argc] = NULL;
	options_init(options);
	error[0] = 0;
	fine = options_parse(options, argc, argv, error);
	return fine;
}

static void
must(struct options *options, const char *line)
{
	char error[OPTIONS_ERROR_MAX];

	if (!parse(options, line, error))
		fail_msg("'%s' was refused: %s", line, error);
}

/* Refused, with one line that names 'what'. */
static void
must_not(const char *line, const char *what)
{
	struct options options;
	char error[OPTIONS_ERROR_MAX];

	if (parse(&options, line, error))
		fail_msg("'%s' was accepted", line);
	if (!strstr(error, what) || strchr(error, '\n'))
		fail_msg("'%s' is refused by '%s', which doesn't name '%s'", line, error, what);
	options_free(&options);
}

static void
test_defaults(void **state)
{
	struct options options;

	(void)state;
	must(&options, "");
	assert_int_equal(options.port, 11211);
	assert_int_equal(options.udp_port, 0);
	assert_int_equal(options.memory, 64);
	assert_int_equal(options.connections_max, 1024);
	assert_int_equal(options.threads, 4);
	assert_int_equal(options.value_bytes_max, 1048576);
	assert_int_equal(options.unix_mask, 0700);
	assert_string_equal(options.listen, "127.0.0.1,::1");
	assert_true(options.connections_refuse);
	assert_null(options.unix_socket);
	assert_false(options.given[OPTION_NUMBER_port]);
	options_free(&options);
}

/* Every row's default is written as an operator could write it. */
static void
test_defaults_can_be_given(void **state)
{
	(void)state;
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++) {
		const struct option_row *row = &options_table()[i];
		struct options options, given;
		char line[256], before[64], after[64];

		if (!*row->value || row->state == OPTION_LATER || row->kind == OPTION_LIST)
			continue;
		snprintf(line, sizeof line, "--%s=%s", row->name, row->value);
		must(&options, "");
		must(&given, line);
		options_format(&options, row, before, sizeof before);
		options_format(&given, row, after, sizeof after);
		assert_string_equal(before, after);
		assert_true(given.given[i]);
		options_free(&options);
		options_free(&given);
	}
}

static void
test_forms(void **state)
{
	struct options options;

	(void)state;
	must(&options, "-p 1 -U2 -vvv -m128 -l ::1 -l 127.0.0.1:5 -I 2m -MCF -c10");
	assert_int_equal(options.port, 1);
	assert_int_equal(options.udp_port, 2);
	assert_int_equal(options.verbose, 3);
	assert_int_equal(options.memory, 128);
	assert_string_equal(options.listen, "::1,127.0.0.1:5");
	assert_int_equal(options.value_bytes_max, 2 << 20);
	assert_true(options.evictions_off && options.cas_off && options.flush_off);
	assert_int_equal(options.connections_max, 10);
	options_free(&options);
	must(&options, "--port=7 --memory-limit 100 --disable-cas --no-maxconns-fast --protocol "
		       "binary -D # -u nobody");
	assert_int_equal(options.port, 7);
	assert_int_equal(options.memory, 100);
	assert_true(options.cas_off);
	assert_false(options.connections_refuse);
	assert_int_equal(options.protocol, 2);
	assert_string_equal(options.prefix_delimiter, "#");
	assert_string_equal(options.user, "nobody");
	options_free(&options);
}

static void
test_extended(void **state)
{
	struct options options;

	(void)state;
	must(&options, "-o modern,idle_timeout=3 -oslab_automove,no_lru_crawler -o "
		       "no_maxconns_fast,,hash_algorithm=jenkins "
		       "-o "
		       "slab_automove=2,no_slab_automove,relaxed_privileges,no_drop_privileges,"
		       "strict_protocol=close");
	assert_int_equal(options.idle_timeout_s, 3);
	assert_false(options.lru_crawler);
	assert_false(options.connections_refuse);
	assert_int_equal(options.slab_automove, 0);
	assert_int_equal(options.strict_protocol, 1);
	assert_true(options.relaxed_privileges);
	options_free(&options);
	must_not("-o nosuch", "nosuch");
	must_not("-o idle_timeout", "idle-timeout");
	must_not("-o idle_timeout=x", "idle-timeout");
	must_not("-o slab_automove=3", "slab-automove");
}

static void
test_refusals(void **state)
{
	(void)state;
	must_not("-t 0", "between 1 and 128");
	must_not("-c 0", "--conn-limit");
	must_not("-c -1", "--conn-limit");
	must_not("-I 1000", "1024");
	must_not("-I 1025m", "1073741824");
	must_not("-I 256m", "half");
	must_not("-I 18446744073709551615g", "--max-item-size");
	must_not("-m 0", "--memory-limit");
	must_not("-m 64k", "--memory-limit");
	must_not("-m", "needs a value");
	must_not("-B http", "auto|ascii|binary");
	must_not("-a 888", "octal");
	must_not("-f 1", "--slab-growth-factor");
	must_not("-f nan", "--slab-growth-factor");
	must_not("-D ::", "one character");
	must_not("-p 65536", "--port");
	must_not("-z", "-z");
	must_not("--nosuch=1", "--nosuch");
	must_not("word", "word");
	must_not("-o slab_sizes=0", "--slab-sizes");
	must_not("-o slab_sizes=47", "--slab-sizes");
	must_not("-o slab_sizes=4294967295", "--slab-sizes");
	must_not("-o slab_sizes=4294967296-100", "--slab-sizes");
	must_not("-o slab_sizes=18446744073709551664", "--slab-sizes");
	must_not("-o slab_sizes=100-100", "--slab-sizes");
	must_not("-o slab_sizes=200-100", "--slab-sizes");
	must_not("-o slab_sizes=abc", "--slab-sizes");
	must_not("-o slab_sizes=100-", "--slab-sizes");
	must_not("-o slab_sizes=100+200", "--slab-sizes");
	must_not("-o slab_sizes=524296", "--slab-sizes");
	must_not("--no-maxconns-fast=yes", "no-maxconns-fast");
	must_not("-o no_maxconns_fast=yes", "no_maxconns_fast");
	must_not("-o no_log_file", "no_log_file");
	must_not("-o no_port", "no_port");
	must_not("-o no_user", "no_user");
	must_not("-o no_pidfile", "no_pidfile");
}

static void
test_sizes(void **state)
{
	struct options options;
	char line[1024] = "-o slab_sizes=48";
	size_t used = strlen(line);

	(void)state;
	must(&options, "-o slab_sizes=48-100-524288");
	options_free(&options);
	for (int i = 1; i < 62; i++)
		used += (size_t)snprintf(line + used, sizeof line - used, "-%d", 48 + 8 * i);
	must(&options, line);
	options_free(&options);
	snprintf(line + used, sizeof line - used, "-1000");
	must_not(line, "more than 62");
}

/* What memcached has and this daemon not yet. */
static void
test_later(void **state)
{
	(void)state;
	must_not("-S", "--enable-sasl");
	must_not("-Y /tmp/users", "--auth-file");
	must_not("-e /tmp/file", "--memory-file");
	must_not("-Z", "--enable-ssl");
	must_not("-o ssl_key=/tmp/x", "ssl_key");
	must_not("-o proxy_config=/tmp/x", "proxy_config");
}

/* The files that a command line names. The caller frees both. */
static void
must_name(struct options *options, const char *line, struct options_flash *flash, unsigned count)
{
	char error[OPTIONS_ERROR_MAX];

	must(options, line);
	if (!options_flash_read(options, flash, error))
		fail_msg("'%s': %s", line, error);
	assert_int_equal(flash->count, count);
}

static void
must_name_one(const char *line, const char *path, uint64_t size)
{
	struct options options;
	struct options_flash flash;

	must_name(&options, line, &flash, 1);
	assert_string_equal(flash.files[0].path, path);
	assert_int_equal(flash.files[0].size, size);
	options_flash_free(&flash);
	options_free(&options);
}

static void
test_flash_files(void **state)
{
	struct options options;
	struct options_flash flash;

	(void)state;
	must_name(&options, "", &flash, 0);
	options_free(&options);
	must_name_one("--flash-path /dev/nvme0n1", "/dev/nvme0n1", 0);
	must_name_one("--flash-path=/f --flash-size=0", "/f", 0);
	must_name_one("--flash-path /f --flash-size 12345", "/f", 12345);
	must_name_one("--flash-path /f --flash-size 3K", "/f", 3 << 10);
	must_name_one("--flash-size 10g --flash-path /f", "/f", 10ull << 30);
	must_name_one("--flash-path /f --flash-size 2t", "/f", 2ull << 40);
	must_name_one("--flash-path /f --flash-size 1P", "/f", 1ull << 50);
	must_name_one("-o ext_path=/f:64m", "/f", 64 << 20);
	must_name_one("-o ext_path=/f:5G", "/f", 5ull << 30);
	must_name_one("-o ext_path=/f:2T:coldcompact,slab_reassign", "/f", 2ull << 40);
	must_name_one("-o modern,ext_path=/f:1p:default", "/f", 1ull << 50);
	must_name_one("--ext-path=/f:1g", "/f", 1 << 30);
	/* Sizes go with paths by their order, wherever they stand. */
	must_name(&options,
		"--flash-size 1g --flash-path /a,/b --flash-size 2g -o ext_path=/d:4g "
		"--flash-path /c -o ext_path=/e:5g:old",
		&flash, 5);
	for (unsigned i = 0; i < 5; i++) {
		static const uint64_t gigabytes[] = {1, 2, 0, 4, 5};

		assert_string_equal(flash.files[i].path, ((char[]){'/', (char)('a' + i), 0}));
		assert_int_equal(flash.files[i].size, gigabytes[i] << 30);
	}
	options_flash_free(&flash);
	options_free(&options);
}

static void
test_flash_values(void **state)
{
	struct options options;

	(void)state;
	must(&options, "");
	assert_int_equal(options.flash_journal, 0);
	assert_int_equal(options.flash_depth, 128);
	assert_int_equal(options.flash_read_timeout_ms, 1000);
	assert_int_equal(options.flash_reinsert, 5);
	assert_int_equal(options.flash_write_budget, 0);
	assert_int_equal(options.stop_timeout_s, 90);
	assert_false(options.flash_format);
	options_free(&options);
	must(&options, "--flash-path /f --flash-format --flash-journal async --flash-depth 64 "
		       "--flash-write-budget 3t --flash-item-size-min 100 "
		       "--flash-read-timeout=250 --flash-reinsert 0 --flash-io threads "
		       "--state-directory /var/lib/h --stop-timeout 5");
	assert_true(options.flash_format);
	assert_int_equal(options.flash_journal, 1);
	assert_int_equal(options.flash_depth, 64);
	assert_int_equal(options.flash_write_budget, 3ull << 40);
	assert_int_equal(options.flash_item_size_min, 100);
	assert_int_equal(options.flash_read_timeout_ms, 250);
	assert_int_equal(options.flash_reinsert, 0);
	assert_int_equal(options.flash_io, 2);
	assert_string_equal(options.state_directory, "/var/lib/h");
	assert_int_equal(options.stop_timeout_s, 5);
	options_free(&options);
	/* All that memcached 1.6.45 takes. */
	must(&options, "-o ext_path=/f:64m,ext_page_size=8,ext_wbuf_size=2,ext_threads=1,"
		       "ext_io_depth=2,ext_item_size=512,ext_item_age=2,ext_low_ttl=1,"
		       "ext_recache_rate=10000,ext_compact_under=3,ext_drop_under=1,"
		       "ext_max_sleep=5000,ext_max_frag=0.5,ext_drop_unread");
	assert_int_equal(options.ext_item_size, 512);
	assert_int_equal(options.ext_recache_rate, 10000);
	assert_int_equal(options.ext_wbuf_size, 2);
	assert_true(options.ext_drop_unread);
	options_free(&options);
}

static void
test_flash_refusals(void **state)
{
	char line[1024];
	size_t used = (size_t)snprintf(line, sizeof line, "--flash-path /0");

	(void)state;
	must_not("-M --flash-path /f --flash-size 1g", "--disable-evictions");
	must_not("-M -o ext_path=/f:1g", "ext_path");
	must_not("--flash-path /a,,/b", "--flash-path: a path is empty");
	must_not("--flash-path /f,/f", "/f is named twice");
	must_not("--flash-path /f -o ext_path=/f:1g", "/f is named twice");
	must_not("--flash-size 1g", "1g has no --flash-path");
	must_not("--flash-path /f --flash-size 1g --flash-size 2g", "2g has no --flash-path");
	must_not("--flash-path /f --flash-size 1x", "'1x' is not a size");
	must_not("--flash-path /f --flash-size -1", "'-1' is not a size");
	must_not("--flash-path /f --flash-size 1gg", "'1gg' is not a size");
	must_not("--flash-path /f --flash-size 16384p", "'16384p' is not a size");
	must_not("-o ext_path=/f", "ext_path=/f");
	must_not("-o ext_path=/f:", "ext_path=/f:");
	must_not("-o ext_path=/f:5", "ext_path=/f:5");
	must_not("-o ext_path=/f:0g", "ext_path=/f:0g");
	must_not("-o ext_path=/f:1g:nosuch", "nosuch");
	must_not("-o ext_path=:1g", "ext_path");
	must_not("-o ext_path", "ext-path");
	must_not("--flash-journal maybe", "sync|async|off");
	must_not("--flash-io aio", "auto|io_uring|threads");
	must_not("--flash-depth 0", "--flash-depth");
	must_not("--flash-reinsert 51", "--flash-reinsert");
	must_not("--flash-read-timeout 9", "--flash-read-timeout");
	must_not("--flash-write-budget 2048t", "--flash-write-budget");
	must_not("--stop-timeout 0", "--stop-timeout");
	must_not("-o ext_max_frag=2", "ext-max-frag");
	for (int i = 1; i <= OPTIONS_FLASH_MAX; i++)
		used += (size_t)snprintf(line + used, sizeof line - used, ",/%d", i);
	must_not(line, "more than 64 paths");
}

static void
write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static void
test_file(void **state)
{
	char path[] = "/tmp/halcyon-options-XXXXXX", line[128];
	struct options options;

	(void)state;
	assert_true(close(mkstemp(path)) == 0);
	write_file(path, "# a comment\n\nport = 5\n  threads "
			 "3\nmemory_limit=100\ndisable-cas\nlisten = ::1\nlisten 127.0.0.1\n");
	snprintf(line, sizeof line, "--config %s -m 128", path);
	must(&options, line);
	assert_int_equal(options.port, 5);
	assert_int_equal(options.threads, 3);
	assert_int_equal(options.memory, 128);
	assert_true(options.cas_off);
	assert_string_equal(options.listen, "::1,127.0.0.1");
	assert_true(options.given[OPTION_NUMBER_port]);
	options_free(&options);
	/* A list of the command line replaces the file's. */
	snprintf(line, sizeof line, "--config=%s -l 10.0.0.1", path);
	must(&options, line);
	assert_string_equal(options.listen, "10.0.0.1");
	options_free(&options);
	snprintf(line, sizeof line, "--config=%s", path);
	write_file(path, "port = 5\nnosuch = 1\n");
	must_not(line, "line 2: there is no option 'nosuch'");
	write_file(path, "\nthreads = 0\n");
	must_not(line, "line 2");
	write_file(path, "threads\n");
	must_not(line, "threads needs a value");
	write_file(path, "threads 2\nconfig = /etc/hostname\n");
	must_not(line, "line 2: option config");
	write_file(path, "extended = config=/etc/hostname\n");
	must_not(line, "line 1: option config");
	unlink(path);
	must_not(line, path);
}

/*
 * -h says which of memcached's own tests may run: words of features that aren't there must not be
 * in it.
 */
static void
test_help(void **state)
{
	static const char *const not_there[] = {
		"sasl", "proxy_config", "enable-ssl", "no_drop_privileges"};
	char *text = NULL;
	size_t size = 0;
	FILE *file = open_memstream(&text, &size);

	(void)state;
	options_print_help(file);
	assert_int_equal(fclose(file), 0);
	assert_non_null(strstr(text, "unix-socket"));
	for (size_t i = 0; i < sizeof not_there / sizeof *not_there; i++)
		assert_null(strcasestr(text, not_there[i]));
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++)
		if (options_table()[i].state != OPTION_LATER)
			assert_non_null(strstr(text, options_table()[i].name));
	free(text);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_defaults_can_be_given),
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_extended),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_later),
		cmocka_unit_test(test_flash_files),
		cmocka_unit_test(test_flash_values),
		cmocka_unit_test(test_flash_refusals),
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_help),
	};

	return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
