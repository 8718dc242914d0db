/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libmemcached against a running server:
 *
 *	libmemcached MODE HOST PORT SOCKET UDP_PORT
 *
 * MODE is one of
 *	text, binary	every operation, each reply looked at
 *	socket		text over the Unix socket
 *	buffered	sets gathered by the library and sent in one go (binary
 *			sends quiet opcodes then)
 *	quiet		the library's noreply behaviour
 *	udp		datagrams; the library only sends over UDP, so what has
 *			arrived is looked at over TCP
 *
 * Prints what differs and exits with 1; 0 when all is as it should be.
 */
#include <libmemcached/memcached.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LARGE_BYTES 1000000
#define MANY_KEYS 300

struct address {
	const char *host;
	in_port_t port;
	const char *socket;
	in_port_t udp_port;
};

static unsigned checks;
static unsigned failures;

static bool
check(bool holds, const char *what)
{
	checks++;
	if (!holds) {
		failures++;
		printf("wrong: %s\n", what);
	}
	return holds;
}

static void
check_rc(memcached_st *mc, memcached_return_t got, memcached_return_t want, const char *what)
{
	if (!check(got == want, what))
		printf("\tgot '%s', not '%s'\n", memcached_strerror(mc, got),
			memcached_strerror(mc, want));
}

static void
pause_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&t, NULL);
}

/* Is the value of key exactly these bytes with these flags? NULL: is it absent? */
static void
check_value(memcached_st *mc, const char *key, const char *want, size_t len, uint32_t flags,
	const char *what)
{
	memcached_return_t rc;
	uint32_t got_flags = 0;
	size_t got_len = 0;
	char *got = memcached_get(mc, key, strlen(key), &got_len, &got_flags, &rc);

	if (want == NULL) {
		check_rc(mc, rc, MEMCACHED_NOTFOUND, what);
	} else {
		check_rc(mc, rc, MEMCACHED_SUCCESS, what);
		check(got_len == len && (len == 0 || (got != NULL && memcmp(got, want, len) == 0)),
			what);
		check(got_flags == flags, what);
	}
	free(got);
}

static memcached_return_t
set(memcached_st *mc, const char *key, const char *value, time_t expiry, uint32_t flags)
{
	return memcached_set(mc, key, strlen(key), value, strlen(value), expiry, flags);
}

static void
try_values(memcached_st *mc)
{
	char bytes[256], key[251];
	char *large = malloc(LARGE_BYTES);

	for (int i = 0; i < 256; i++)
		bytes[i] = (char)i;
	for (size_t i = 0; i < LARGE_BYTES; i++)
		large[i] = (char)(i * 7 + i / 251);
	memset(key, 'k', 250);
	key[250] = '\0';

	check_rc(mc, set(mc, "lm-a", "value", 0, 0xdeadbeef), MEMCACHED_SUCCESS, "set");
	check_value(mc, "lm-a", "value", 5, 0xdeadbeef, "get with 32-bit flags");
	check_rc(mc, memcached_set(mc, "lm-bytes", 8, bytes, sizeof bytes, 0, 1), MEMCACHED_SUCCESS,
		"set of all byte values");
	check_value(mc, "lm-bytes", bytes, sizeof bytes, 1, "get of all byte values");
	check_rc(mc, set(mc, "lm-crlf", "a\r\nEND\r\n", 0, 0), MEMCACHED_SUCCESS,
		"set of line ends");
	check_value(mc, "lm-crlf", "a\r\nEND\r\n", 8, 0, "get of line ends");
	check_rc(mc, set(mc, "lm-empty", "", 0, 2), MEMCACHED_SUCCESS, "set of nothing");
	check_value(mc, "lm-empty", "", 0, 2, "get of nothing");
	check_rc(mc, set(mc, key, "long key", 0, 0), MEMCACHED_SUCCESS, "set, key of 250 bytes");
	check_value(mc, key, "long key", 8, 0, "get, key of 250 bytes");
	check_rc(mc, memcached_set(mc, "lm-large", 8, large, LARGE_BYTES, 0, 3), MEMCACHED_SUCCESS,
		"set of a large value");
	check_value(mc, "lm-large", large, LARGE_BYTES, 3, "get of a large value");
	check_value(mc, "lm-missing", NULL, 0, 0, "get of a missing key");
	free(large);
}

static void
try_storage(memcached_st *mc)
{
	const char *k = "lm-s";

	memcached_delete(mc, k, 4, 0);
	check_rc(mc, memcached_replace(mc, k, 4, "x", 1, 0, 0),
		memcached_behavior_get(mc, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL)
			? MEMCACHED_NOTFOUND
			: MEMCACHED_NOTSTORED,
		"replace of a missing key");
	check_rc(mc, memcached_append(mc, k, 4, "x", 1, 0, 0), MEMCACHED_NOTSTORED,
		"append to a missing key");
	check_rc(mc, memcached_add(mc, k, 4, "b", 1, 0, 5), MEMCACHED_SUCCESS, "add");
	memcached_return_t again = memcached_add(mc, k, 4, "z", 1, 0, 0);
	check(again == MEMCACHED_NOTSTORED || again == MEMCACHED_DATA_EXISTS,
		"add of a present key");
	check_rc(mc, memcached_append(mc, k, 4, "c", 1, 0, 0), MEMCACHED_SUCCESS, "append");
	check_rc(mc, memcached_prepend(mc, k, 4, "a", 1, 0, 0), MEMCACHED_SUCCESS, "prepend");
	check_value(mc, k, "abc", 3, 5, "value after append and prepend");
	check_rc(mc, memcached_replace(mc, k, 4, "new", 3, 0, 6), MEMCACHED_SUCCESS, "replace");
	check_value(mc, k, "new", 3, 6, "value after replace");
	check_rc(mc, memcached_exist(mc, k, 4), MEMCACHED_SUCCESS, "exist");
	check_rc(mc, memcached_delete(mc, k, 4, 0), MEMCACHED_SUCCESS, "delete");
	check_rc(mc, memcached_delete(mc, k, 4, 0), MEMCACHED_NOTFOUND, "delete of a missing key");
	check_rc(mc, memcached_exist(mc, k, 4), MEMCACHED_NOTFOUND, "exist of a missing key");
}

static uint64_t
fetch_cas(memcached_st *mc, const char *key)
{
	size_t len = strlen(key);
	memcached_return_t rc;
	memcached_result_st *result;
	uint64_t cas = 0;

	check_rc(mc, memcached_mget(mc, &key, &len, 1), MEMCACHED_SUCCESS, "mget for the cas");
	while ((result = memcached_fetch_result(mc, NULL, &rc)) != NULL) {
		cas = memcached_result_cas(result);
		memcached_result_free(result);
	}
	return cas;
}

static void
try_cas(memcached_st *mc)
{
	const char *k = "lm-cas";

	check_rc(mc, set(mc, k, "1", 0, 0), MEMCACHED_SUCCESS, "set before cas");
	uint64_t first = fetch_cas(mc, k);
	check(first != 0, "the cas isn't zero");
	check_rc(mc, memcached_cas(mc, k, 6, "2", 1, 0, 9, first), MEMCACHED_SUCCESS, "cas");
	check(fetch_cas(mc, k) != first, "the cas has changed");
	check_rc(
		mc, memcached_cas(mc, k, 6, "3", 1, 0, 0, first), MEMCACHED_DATA_EXISTS, "old cas");
	check_value(mc, k, "2", 1, 9, "value after cas");
	check_rc(mc, memcached_cas(mc, "lm-nocas", 8, "3", 1, 0, 0, first), MEMCACHED_NOTFOUND,
		"cas of a missing key");
}

static void
try_counters(memcached_st *mc, bool binary)
{
	uint64_t n = 0;

	memcached_delete(mc, "lm-n", 4, 0);
	check_rc(mc, memcached_increment(mc, "lm-n", 4, 1, &n), MEMCACHED_NOTFOUND,
		"increment of a missing key");
	check_rc(mc, set(mc, "lm-n", "40", 0, 0), MEMCACHED_SUCCESS, "set of a number");
	check_rc(mc, memcached_increment(mc, "lm-n", 4, 2, &n), MEMCACHED_SUCCESS, "increment");
	check(n == 42, "40 + 2");
	check_rc(mc, memcached_decrement(mc, "lm-n", 4, 50, &n), MEMCACHED_SUCCESS, "decrement");
	check(n == 0, "42 - 50 stops at 0");
	check_rc(mc, set(mc, "lm-n", "18446744073709551615", 0, 0), MEMCACHED_SUCCESS,
		"set of 2^64-1");
	check_rc(mc, memcached_increment(mc, "lm-n", 4, 1, &n), MEMCACHED_SUCCESS,
		"increment past 2^64");
	check(n == 0, "2^64-1 + 1 wraps to 0");
	check_rc(mc, set(mc, "lm-n", "word", 0, 0), MEMCACHED_SUCCESS, "set of a word");
	check(memcached_increment(mc, "lm-n", 4, 1, &n) != MEMCACHED_SUCCESS,
		"increment of a word");
	check_value(mc, "lm-n", "word", 4, 0, "the word is still there");
	if (!binary)
		return;
	memcached_delete(mc, "lm-n", 4, 0);
	check_rc(mc, memcached_increment_with_initial(mc, "lm-n", 4, 5, 77, 0, &n),
		MEMCACHED_SUCCESS, "increment with an initial value");
	check(n == 77, "the initial value");
	check_rc(mc, memcached_increment_with_initial(mc, "lm-n", 4, 5, 77, 0, &n),
		MEMCACHED_SUCCESS, "second increment with an initial value");
	check(n == 82, "77 + 5");
}

static void
try_expiry(memcached_st *mc)
{
	check_rc(mc, set(mc, "lm-e1", "short", 1, 0), MEMCACHED_SUCCESS, "set for 1 s");
	check_rc(mc, set(mc, "lm-e2", "kept", 1, 0), MEMCACHED_SUCCESS,
		"set for 1 s, to be touched");
	check_rc(mc, memcached_touch(mc, "lm-e2", 5, 60), MEMCACHED_SUCCESS, "touch");
	check_rc(mc, memcached_touch(mc, "lm-none", 7, 60), MEMCACHED_NOTFOUND,
		"touch of a missing key");
	check_value(mc, "lm-e1", "short", 5, 0, "value before it expires");
	pause_ms(2200);
	check_value(mc, "lm-e1", NULL, 0, 0, "value after it has expired");
	check_value(mc, "lm-e2", "kept", 4, 0, "touched value");
}

static void
try_many(memcached_st *mc)
{
	static char names[MANY_KEYS][16];
	const char *keys[MANY_KEYS];
	size_t lengths[MANY_KEYS];
	bool seen[MANY_KEYS] = {false};
	memcached_return_t rc;
	memcached_result_st *result;
	unsigned count = 0, right = 0;

	for (int i = 0; i < MANY_KEYS; i++) {
		snprintf(names[i], sizeof names[i], "lm-many-%d", i);
		keys[i] = names[i];
		lengths[i] = strlen(names[i]);
		if (i % 3 != 0)
			memcached_set(mc, keys[i], lengths[i], keys[i], lengths[i], 0, (uint32_t)i);
		else
			memcached_delete(mc, keys[i], lengths[i], 0);
	}
	memcached_flush_buffers(mc);
	check_rc(mc, memcached_mget(mc, keys, lengths, MANY_KEYS), MEMCACHED_SUCCESS, "mget");
	while ((result = memcached_fetch_result(mc, NULL, &rc)) != NULL) {
		char key[16];

		snprintf(key, sizeof key, "%.*s", (int)memcached_result_key_length(result),
			memcached_result_key_value(result));
		unsigned i = (unsigned)atoi(key + strlen("lm-many-"));

		count++;
		if (i < MANY_KEYS && i % 3 != 0 && !seen[i] &&
			memcached_result_flags(result) == i &&
			memcached_result_length(result) == lengths[i] &&
			memcmp(memcached_result_value(result), keys[i], lengths[i]) == 0)
			right++;
		else
			printf("\tkey %s, flags %u, %zu bytes\n", key,
				memcached_result_flags(result), memcached_result_length(result));
		if (i < MANY_KEYS)
			seen[i] = true;
		memcached_result_free(result);
	}
	check(count == MANY_KEYS - MANY_KEYS / 3, "mget brings every present key");
	check(right == count, "each value of mget is right");
}

static memcached_return_t
count_stat(const memcached_instance_st *server, const char *key, size_t key_len, const char *value,
	size_t value_len, void *context)
{
	(void)server;
	(void)value;
	*(unsigned *)context += value_len > 0 && key_len == 9 && memcmp(key, "cmd_touch", 9) == 0;
	return MEMCACHED_SUCCESS;
}

static void
try_server(memcached_st *mc)
{
	unsigned found = 0;

	check_rc(mc, memcached_version(mc), MEMCACHED_SUCCESS, "version");
	check_rc(mc, memcached_stat_execute(mc, NULL, count_stat, &found), MEMCACHED_SUCCESS,
		"stats");
	check(found == 1, "stats has cmd_touch once");
	check_rc(mc, memcached_verbosity(mc, 0), MEMCACHED_SUCCESS, "verbosity");
	check_rc(mc, set(mc, "lm-f", "x", 0, 0), MEMCACHED_SUCCESS, "set before flush");
	check_rc(mc, memcached_flush(mc, 0), MEMCACHED_SUCCESS, "flush");
	check_value(mc, "lm-f", NULL, 0, 0, "value after flush");
	check_rc(mc, set(mc, "lm-f", "y", 0, 0), MEMCACHED_SUCCESS, "set after flush");
	check_value(mc, "lm-f", "y", 1, 0, "value set after flush");
}

/* Sets that get no answer one by one; other, a plain connection, sees them. */
static void
try_unanswered(memcached_st *mc, memcached_st *other, bool all_operations)
{
	char key[32], value[32];
	unsigned wrong = 0;
	bool udp = memcached_behavior_get(mc, MEMCACHED_BEHAVIOR_USE_UDP);

	check_rc(other, memcached_flush(other, 0), MEMCACHED_SUCCESS, "flush");
	memcached_set(other, "lm-u", 4, "5", 1, 0, 0);
	memcached_set(other, "lm-gone", 7, "x", 1, 0, 0);
	for (int i = 0; i < MANY_KEYS; i++) {
		snprintf(key, sizeof key, "lm-q-%d", i);
		snprintf(value, sizeof value, "value %d", i);
		memcached_return_t rc = set(mc, key, value, 0, (uint32_t)i);
		wrong += rc != MEMCACHED_SUCCESS && rc != MEMCACHED_BUFFERED;
		if (udp && i % 16 == 15)
			pause_ms(2); /* a burst could overrun the socket's buffer */
	}
	check(wrong == 0, "unanswered sets are taken");
	if (all_operations) {
		memcached_increment(mc, "lm-u", 4, 3, &(uint64_t){0});
		memcached_append(mc, "lm-u", 4, "0", 1, 0, 0);
		memcached_delete(mc, "lm-gone", 7, 0);
	}
	if (!udp)
		memcached_flush_buffers(mc);
	pause_ms(300);
	for (int i = 0; i < MANY_KEYS; i++) {
		snprintf(key, sizeof key, "lm-q-%d", i);
		snprintf(value, sizeof value, "value %d", i);
		check_value(other, key, value, strlen(value), (uint32_t)i, "unanswered set");
	}
	if (all_operations) {
		check_value(other, "lm-u", "80", 2, 0, "unanswered increment and append");
		check_value(other, "lm-gone", NULL, 0, 0, "unanswered delete");
	}
}

static memcached_st *
connect_to(const struct address *a, const char *mode)
{
	memcached_st *mc = memcached_create(NULL);
	memcached_return_t rc;

	if (strcmp(mode, "udp") == 0) {
		memcached_behavior_set(mc, MEMCACHED_BEHAVIOR_USE_UDP, 1);
		rc = memcached_server_add(mc, a->host, a->udp_port);
	} else if (strcmp(mode, "socket") == 0) {
		rc = memcached_server_add_unix_socket(mc, a->socket);
	} else {
		rc = memcached_server_add(mc, a->host, a->port);
	}
	check_rc(mc, rc, MEMCACHED_SUCCESS, "adding the server");
	memcached_behavior_set(mc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
	memcached_behavior_set(mc, MEMCACHED_BEHAVIOR_TCP_NODELAY, 1);
	return mc;
}

int
main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "usage: libmemcached MODE HOST PORT SOCKET UDP_PORT\n");
		return 2;
	}
	const char *mode = argv[1];
	struct address a = {argv[2], (in_port_t)atoi(argv[3]), argv[4], (in_port_t)atoi(argv[5])};
	bool binary = strcmp(mode, "binary") == 0;
	memcached_st *mc = connect_to(&a, mode), *other = connect_to(&a, "text");

	if (strcmp(mode, "text") == 0 || strcmp(mode, "socket") == 0 || binary) {
		memcached_behavior_set(mc, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, binary);
		try_values(mc);
		try_storage(mc);
		try_cas(mc);
		try_counters(mc, binary);
		try_many(mc);
		try_expiry(mc);
		try_server(mc);
	} else if (strcmp(mode, "buffered") == 0) {
		memcached_behavior_set(mc, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1);
		try_many(mc);
		try_unanswered(mc, other, false);
		memcached_st *quiet = connect_to(&a, "text");
		memcached_behavior_set(quiet, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, 1);
		memcached_behavior_set(quiet, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1);
		try_many(quiet);
		try_unanswered(quiet, other, false);
		memcached_free(quiet);
	} else if (strcmp(mode, "quiet") == 0) {
		memcached_behavior_set(mc, MEMCACHED_BEHAVIOR_NOREPLY, 1);
		try_unanswered(mc, other, true);
	} else if (strcmp(mode, "udp") == 0) {
		try_unanswered(mc, other, true);
	} else {
		fprintf(stderr, "no such mode: %s\n", mode);
		return 2;
	}
	memcached_free(mc);
	memcached_free(other);
	printf("%u checks, %u wrong\n", checks, failures);
	return failures > 0;
}
