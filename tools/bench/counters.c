/* SPDX-License-Identifier: BSD-2-Clause */
#include "counters.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MAX 65536

/* A server's counter and what of our totals it should have grown by: the sum of two figures. */
#define ROW(name, first, second)                                                                   \
	{                                                                                          \
#name, offsetof(struct client_counts, first),                                      \
			offsetof(struct client_counts, second)                                     \
	}
#define NONE missing /* 0 wherever totals are compared */

static const struct {
	const char *name;
	size_t first;
	size_t second;
} rows[] = {
	ROW(cmd_get, gets, NONE),
	ROW(get_hits, hits, NONE),
	ROW(get_misses, misses, NONE),
	ROW(cmd_set, sets, appends),
	ROW(cmd_touch, touches, gats),
	ROW(touch_hits, touch_hits, gat_hits),
	ROW(incr_hits, incr_hits, NONE),
	ROW(delete_hits, delete_hits, NONE),
};

/* The totals as a server counts them that was asked in the meta protocol. */
static struct client_counts
meta_totals(const struct client_counts *totals)
{
	struct client_counts counts = *totals;
	uint64_t missed = totals->gats - totals->gat_hits + totals->touches - totals->touch_hits;

	counts.gets += missed;
	counts.misses += missed;
	counts.gats = totals->gat_hits;
	counts.touches = totals->touch_hits;
	return counts;
}

#define ROWS (sizeof rows / sizeof rows[0])
_Static_assert(ROWS <= COUNTERS_MAX, "all counters have room");

static int
fail(const struct dial_address *address, const char *why)
{
	fprintf(stderr, "halcyon-bench: %s: stats: %s\n", address->text, why);
	return -1;
}

/* The answer to 'stats' as a string that the caller frees, or NULL with one line on stderr. */
static char *
ask(const struct dial_address *address, int timeout_ms)
{
	static const char question[] = "stats\r\n";
	char *answer = malloc(ANSWER_MAX);
	const char *why = "no memory";
	size_t size = 0;
	char error[256];

	if (!answer) {
		fail(address, why);
		return NULL;
	}
	int fd = dial_connect(address, timeout_ms, error, sizeof error);
	if (fd < 0)
		why = error;
	else if (send(fd, question, sizeof question - 1, MSG_NOSIGNAL) !=
		 (ssize_t)sizeof question - 1)
		why = strerror(errno);
	else
		why = NULL;
	while (!why) {
		struct pollfd ready = {.fd = fd, .events = POLLIN};
		if (poll(&ready, 1, timeout_ms) <= 0) {
			why = "no answer in time";
			break;
		}
		ssize_t got = recv(fd, answer + size, ANSWER_MAX - 1 - size, 0);
		if (got <= 0) {
			why = got == 0 ? "closed, or too long an answer" : strerror(errno);
			break;
		}
		size += (size_t)got;
		answer[size] = '\0';
		if (size >= 5 && strcmp(answer + size - 5, "END\r\n") == 0)
			break;
	}
	if (fd >= 0)
		close(fd);
	if (!why)
		return answer;
	fail(address, why);
	free(answer);
	return NULL;
}

int
counters_read(const struct dial_address *address, int timeout_ms, struct counters *counters)
{
	char *answer = ask(address, timeout_ms);

	if (!answer)
		return -1;
	for (size_t i = 0; i < ROWS; i++) {
		char line[64];
		snprintf(line, sizeof line, "STAT %s ", rows[i].name);
		const char *at = strstr(answer, line);
		if (!at) {
			snprintf(line, sizeof line, "there is no %s", rows[i].name);
			free(answer);
			return fail(address, line);
		}
		counters->values[i] = strtoull(at + strlen(line), NULL, 10);
	}
	free(answer);
	return 0;
}

static uint64_t
figure(const struct client_counts *totals, size_t offset)
{
	return *(const uint64_t *)((const char *)totals + offset);
}

int
counters_compare(const struct dial_address *address, int timeout_ms, const struct counters *before,
	const struct client_counts *totals, bool is_meta)
{
	struct client_counts counts = is_meta ? meta_totals(totals) : *totals;
	struct counters after;
	int result = 0;

	if (counters_read(address, timeout_ms, &after))
		return -1;
	for (size_t i = 0; i < ROWS; i++) {
		uint64_t own = figure(&counts, rows[i].first) + figure(&counts, rows[i].second);
		uint64_t theirs = after.values[i] - before->values[i];
		if (own == theirs)
			continue;
		fprintf(stderr, "halcyon-bench: %s grew by %llu on the server, by %llu here\n",
			rows[i].name, (unsigned long long)theirs, (unsigned long long)own);
		result = -1;
	}
	return result;
}
