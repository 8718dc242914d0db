/* SPDX-License-Identifier: BSD-2-Clause */
#include "daemon/admin.h"

#include "base/clock.h"
#include "base/log.h"
#include "daemon/prefixes.h"
#include "daemon/server.h"
#include "daemon/stats.h"

#include <stdlib.h>

#define MEMLIMIT_MIN_MB 8

struct admin {
	struct worker *worker;
};

struct admin *
admin_create(struct worker *worker)
{
	struct admin *admin = calloc(1, sizeof *admin);

	if (admin)
		admin->worker = worker;
	return admin;
}

void
admin_destroy(struct admin *admin)
{
	free(admin);
}

static enum status
set_memory_limit(struct server *server, uint64_t megabytes)
{
	if (megabytes < MEMLIMIT_MIN_MB)
		return STATUS_MEMLIMIT_TOO_SMALL;
	if (megabytes > UINT64_MAX >> 20 || !store_set_limit(server->store, megabytes << 20))
		return STATUS_MEMLIMIT_ADJUST_FAILED;
	atomic_store(&server->limit_bytes, megabytes << 20);
	log_notice("the memory limit is now %llu megabytes", (unsigned long long)megabytes);
	return STATUS_OK;
}

/* No reply: the connection ends with the daemon. */
static enum status
shut_down(struct server *server, struct slice mode, struct engine_text *text)
{
	(void)text;
	if (!server->options->shutdown)
		return STATUS_SHUTDOWN_DISABLED;
	if (mode.size != 0 && !slice_is(mode, "graceful"))
		return STATUS_BAD_SHUTDOWN;
	log_notice("stopping: a client sent shutdown");
	server_stop(server);
	return STATUS_OK;
}

#ifdef HALCYON_TEST_HOOKS
static enum status
debug_time(struct slice word)
{
	char text[24];
	char *end;
	long seconds;

	if (slice_is(word, "p") || slice_is(word, "r")) {
		clock_pause(*word.data == 'p');
		return STATUS_OK;
	}
	if (word.size == 0 || word.size >= sizeof text)
		return STATUS_BAD_FORMAT;
	memcpy(text, word.data, word.size);
	text[word.size] = 0;
	seconds = strtol(text, &end, 10);
	if (*end)
		return STATUS_BAD_FORMAT;
	clock_move(seconds);
	return STATUS_OK;
}
#endif

static enum status
run(void *context, const struct request *request, struct engine_text *text)
{
	struct admin *admin = context;
	struct server *server = admin->worker->server;

	switch ((enum verb)request->verb) {
	case VERB_STATS:
		return stats_run(admin->worker, request, text);
	case VERB_VERBOSITY:
		log_set_verbosity((unsigned)(request->delta < 10 ? request->delta : 10));
		return STATUS_OK;
	case VERB_MEMLIMIT:
		return set_memory_limit(server, request->delta);
	case VERB_SHUTDOWN:
		return shut_down(server, request->arguments, text);
#ifdef HALCYON_TEST_HOOKS
	case VERB_DEBUGTIME:
		return debug_time(request->arguments);
#endif
	default:
		return STATUS_UNKNOWN_COMMAND;
	}
}

static void
detail(void *context, enum verb verb, struct slice key, bool hit)
{
	struct admin *admin = context;
	struct prefixes *prefixes = admin->worker->server->prefixes;

	if (verb == VERB_FETCH)
		prefixes_count(prefixes, key, hit ? PREFIX_HIT : PREFIX_GET);
	else if (verb == VERB_STORE)
		prefixes_count(prefixes, key, PREFIX_SET);
	else if (verb == VERB_DELETE)
		prefixes_count(prefixes, key, PREFIX_DELETE);
}

const struct engine_admin admin_commands = {.run = run, .detail = detail};
