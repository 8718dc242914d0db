/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * server: everything that serves, made and torn down in order: store, fronts, engines, workers,
 * background threads, acceptor.
 */
#ifndef DAEMON_SERVER_H
#define DAEMON_SERVER_H

#include "base/counters.h"
#include "base/options.h"
#include "base/options_flash.h"
#include "engine/engine.h"
#include "net/event.h"
#include "net/listen.h"
#include "store/store.h"

#include <pthread.h>
#include <stdatomic.h>

struct admin;
struct prefixes;
struct server;

/* One thread that runs the loop of worker.c. */
struct worker {
	struct server *server;
	unsigned number;
	struct front *front;
	struct engine *engine;
	struct counters *counters;
	struct admin *admin;
	pthread_t thread;
	bool started;
	_Atomic uint64_t turns;	 /* odd within a turn, even while it waits for events */
	_Atomic bool wants_wake; /* a request waits for memory */
	uint64_t turns_seen;	 /* the watchdog's */
};

/* One thread that does the store's bounded steps and sleeps in between. */
struct background {
	struct server *server;
	const char *name;
	bool (*step)(struct background *background, uint32_t *next_s);
	struct store_thread *store;
	struct counters *counters;
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool woken;
};

enum { BACKGROUND_RECLAIM, BACKGROUND_GROW, BACKGROUND_FLASH, BACKGROUNDS };

/* a read that takes longer makes the writer wait */
#define READ_TARGET_US 2000

/* What flash was opened with, and how far its recovery has been told. */
struct server_flash {
	struct options_flash named;
	struct flash_file_options *files;
	struct flash_options options;
	uint64_t began_ns, told_ns, logged_ns;
	char error[512];
	_Atomic bool saving; /* a second signal ends the process */
};

struct server {
	const struct options *options;
	struct listeners *listeners;
	struct event_limits limits;
	struct store *store;
	struct worker *workers;
	unsigned worker_count;
	struct background background[BACKGROUNDS];
	struct counters *counters; /* workers', background threads', the acceptor's */
	unsigned counters_count;
	struct front **fronts;		   /* the acceptor's list */
	struct acceptor *_Atomic acceptor; /* NULL before its end: signal handlers wake it */
	struct counters reset;		   /* sums at the last 'stats reset' */
	pthread_mutex_t reset_lock;
	struct prefixes *prefixes; /* 'stats detail' */
	_Atomic uint32_t upload_waiters;
	struct server_flash flash;
	_Atomic bool stop; /* set by server_stop */
	_Atomic uint64_t limit_bytes;
};

/* the memcached that is spoken; clients compare it, so digits and dots only */
#define SERVER_VERSION "1.6.45"

/*
 * *server comes zeroed, but that it may have been told to stop. False with a line in the log.
 * listeners and options outlive the server.
 */
bool server_create(
	struct server *server, const struct options *options, struct listeners *listeners);
/* Starts the threads. False with a line in the log. */
bool server_start(struct server *server);
/*
 * Accepts connections until server_stop, or until *leave is seen after a wake; tells the service
 * manager's watchdog while all workers advance.
 */
void server_run(struct server *server, const _Atomic bool *leave);
/* Signal handlers too: server_run looks at its conditions. */
void server_wake(struct server *server);
/* Any thread, and signal handlers: server_run returns. */
void server_stop(struct server *server);
/* Ends the threads within a few seconds and frees everything; ends the process when one doesn't. */
void server_destroy(struct server *server);

/* All threads' counters, and what background threads and the acceptor count. */
void server_sum_counters(const struct server *server, struct counters *sum);

/* --- server_flash.c: without flash none of them does anything --- */

/* Adds what the options say about flash. False with a line in the log. */
bool server_flash_options(struct server *server, struct store_options *store);
/* A line in the log about what was there. */
void server_flash_opened(struct server *server);
/* The flash thread. */
void *server_flash_run(void *background);
/* The clean stop: no other thread is left, this one is registered with RCU. */
void server_flash_save(struct server *server);
void server_flash_free(struct server *server);

/* --- worker.c --- */

void *worker_run(void *worker);

#endif
