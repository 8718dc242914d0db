/* SPDX-License-Identifier: BSD-2-Clause */
#include "daemon/server.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/rcu.h"
#include "daemon/admin.h"
#include "daemon/notify.h"
#include "daemon/prefixes.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* of the address range that cache_memlimit can grow into */
#define RESERVE_BYTES_MIN (64ull << 20)
#define LINE_BYTES_MAX (1024 * 1024)  /* of a get line */
#define REPLY_BYTES_MAX (1024 * 1024) /* of a connection in one batch */
/*
 * These four together stay below 64 MiB less what code, libraries and connections take (about 10
 * MiB and 0.5 KiB each).
 */
/* all read buffers; more than what unfinished requests may hold, so that some always come back */
#define WINDOW_BYTES_MAX (20ull << 20)
#define HELD_BYTES_MAX (12ull << 20)
#define OUTPUT_BYTES_MAX (8ull << 20)
#define OUTPUT_BYTES_EACH (4ull << 20)
/* chunks lent to arriving bodies, all workers together */
#define UPLOAD_BYTES_MAX (8ull << 20)
#define STOP_SECONDS 10
/* of the index */
#define BUCKETS_MIN 64
#define BUCKET_BYTES 64
#define BUCKET_ITEMS 8

/* --- waking ------------------------------------------------------------------------------- */

static void
wake_background(struct background *background)
{
	pthread_mutex_lock(&background->lock);
	background->woken = true;
	pthread_cond_signal(&background->wake);
	pthread_mutex_unlock(&background->lock);
}

/* The store's hook: memory came free, or background work waits. */
static void
wake_all(void *context)
{
	struct server *server = context;

	for (int i = 0; i < BACKGROUND_FLASH; i++)
		wake_background(&server->background[i]);
	for (unsigned i = 0; i < server->worker_count; i++) {
		struct worker *worker = &server->workers[i];

		if (atomic_load_explicit(&worker->wants_wake, memory_order_relaxed) &&
			worker->front)
			worker->front->ops->wake(worker->front);
	}
}

/* --- background threads ------------------------------------------------------------------- */

static bool
step_reclaim(struct background *background, uint32_t *next_s)
{
	return store_background_reclaim(background->store, clock_unix_ns(), next_s);
}

static bool
step_grow(struct background *background, uint32_t *next_s)
{
	*next_s = 0;
	return store_background_grow(background->store);
}

static void
sleep_until(struct background *background, uint32_t next_s)
{
	pthread_mutex_lock(&background->lock);
	while (!background->woken && !atomic_load(&background->server->stop)) {
		uint64_t now = clock_unix_ns(), due = next_s * CLOCK_SECOND_NS;
		struct timespec until;

		if (!next_s) {
			pthread_cond_wait(&background->wake, &background->lock);
			continue;
		}
		if (due <= now)
			break;
		due = clock_monotonic_ns() + due - now;
		until = (struct timespec){
			(time_t)(due / CLOCK_SECOND_NS), (long)(due % CLOCK_SECOND_NS)};
		if (pthread_cond_timedwait(&background->wake, &background->lock, &until) ==
			ETIMEDOUT)
			break;
	}
	background->woken = false;
	pthread_mutex_unlock(&background->lock);
}

static void *
background_run(void *argument)
{
	struct background *background = argument;

	rcu_register();
	while (!atomic_load(&background->server->stop)) {
		uint32_t next_s = 0;

		if (background->step(background, &next_s)) {
			rcu_quiescent();
			continue;
		}
		rcu_offline();
		sleep_until(background, next_s);
		rcu_online();
	}
	rcu_unregister();
	return NULL;
}

static bool
create_background(struct server *server, unsigned i)
{
	static const struct {
		const char *name;
		bool (*step)(struct background *background, uint32_t *next_s);
	} kinds[BACKGROUNDS] = {[BACKGROUND_RECLAIM] = {"reclaim", step_reclaim},
		[BACKGROUND_GROW] = {"grow", step_grow},
		[BACKGROUND_FLASH] = {"flash", NULL}};
	struct background *background = &server->background[i];
	unsigned number = server->worker_count + i;

	background->server = server;
	background->name = kinds[i].name;
	background->step = kinds[i].step;
	background->counters = &server->counters[number];
	background->store = store_thread_create(server->store, number, background->counters);
	return background->store != NULL;
}

/* --- making it all ------------------------------------------------------------------------ */

static void
make_limits(struct server *server)
{
	struct event_limits *limits = &server->limits;

	limits->connections_max = (uint32_t)server->options->connections_max;
	limits->line_bytes_max = LINE_BYTES_MAX;
	limits->window_bytes_max = WINDOW_BYTES_MAX;
	/* All fronts together at most an eighth beyond. */
	limits->window_slack_bytes = WINDOW_BYTES_MAX / 8 / server->options->threads;
	limits->held_bytes_max = HELD_BYTES_MAX;
	limits->output_bytes_max = OUTPUT_BYTES_MAX;
	limits->output_bytes_each = OUTPUT_BYTES_EACH;
	/* Where -I is large, a value may have to be copied whole: flash lends its buffers briefly. */
	if (server->options->value_bytes_max + REPLY_BYTES_MAX > OUTPUT_BYTES_EACH) {
		limits->output_bytes_each = server->options->value_bytes_max + REPLY_BYTES_MAX;
		limits->output_bytes_max = 2 * limits->output_bytes_each;
	}
	limits->idle_timeout_ns = (uint64_t)server->options->idle_timeout_s * CLOCK_SECOND_NS;
}

static uint32_t
parse_sizes(const char *text, uint32_t sizes[CLASSES_MAX])
{
	uint32_t count = 0;

	for (char *end; text && *text && count < CLASSES_MAX; text = *end ? end + 1 : end) {
		unsigned long size = strtoul(text, &end, 10);

		if (end == text)
			break;
		sizes[count++] = (uint32_t)size;
	}
	return count;
}

/*
 * A small limit too can be raised to some size worth having: address range costs next to nothing.
 */
static uint64_t
choose_reserve_factor(const struct options *options)
{
	uint64_t least = RESERVE_BYTES_MIN / options_memory_bytes(options);
	uint64_t given = (uint64_t)options->reserve_factor;

	return given > least ? given : least;
}

/*
 * The index comes out of -m: one asked for that would leave items little gets a quarter of it. 0:
 * the store chooses.
 */
static uint64_t
choose_buckets(const struct options *options)
{
	uint64_t asked = options->hashpower ? (1ull << options->hashpower) / BUCKET_ITEMS : 0,
		 most = options_memory_bytes(options) / 4 / BUCKET_BYTES, buckets = BUCKETS_MIN;

	if (asked <= most)
		return asked;
	while (buckets * 2 <= most)
		buckets *= 2;
	log_notice("-o hashpower=%lld: the index begins with room for %llu items, a quarter of the "
		   "memory",
		(long long)options->hashpower, (unsigned long long)buckets * BUCKET_ITEMS);
	return buckets;
}

static bool
create_store(struct server *server)
{
	const struct options *options = server->options;
	uint32_t sizes[CLASSES_MAX], size_count = parse_sizes(options->slab_sizes, sizes);
	struct store_options store = {
		.limit_bytes = options_memory_bytes(options),
		.reserve_factor = choose_reserve_factor(options),
		.workers = server->worker_count,
		.value_bytes_max = options->value_bytes_max,
		.evict = !options->evictions_off,
		.hugepages = options->hugepages,
		.cas = !options->cas_off,
		.buckets_initial = choose_buckets(options),
		.growth = !options->hashexpand_off,
		.classes =
			{
				.factor = options->growth_factor,
				.chunk_bytes = (uint32_t)options->chunk_bytes,
				.chunk_bytes_max = (uint32_t)options->chunk_kib_max * 1024,
				.page_bytes = 1u << 20,
				.sizes = size_count ? sizes : NULL,
				.size_count = size_count,
			},
		.wake = wake_all,
		.wake_context = server,
	};

	if (!server_flash_options(server, &store))
		return false;
	server->store = store_create(&store);
	if (!server->store && store.error && *store.error)
		log_error("%s", store.error);
	else if (!server->store)
		log_error("cannot make the store of %llu megabytes: %s",
			(unsigned long long)options->memory, strerror(errno));
	if (server->store)
		server_flash_opened(server);
	return server->store != NULL;
}

static void
stream_ended(void *context, struct stream *stream)
{
	struct worker *worker = context;

	engine_stream_end(worker->engine, stream);
}

static bool
create_worker(struct server *server, unsigned number)
{
	const struct options *options = server->options;
	struct worker *worker = &server->workers[number];
	struct engine_options engine = {
		.store = server->store,
		.counters = &server->counters[number],
		.worker = number,
		.value_bytes_max = options->value_bytes_max,
		.window_bytes_max = EVENT_WINDOW_BYTES,
		.line_bytes_max = LINE_BYTES_MAX,
		.upload_bytes_max = UPLOAD_BYTES_MAX / server->worker_count,
		.upload_waiters = &server->upload_waiters,
		/*
		 * memcached's default would cut every deep pipeline into batches of 20; the batch
		 * itself is bound enough.
		 */
		.requests_a_turn = options->given[OPTION_NUMBER_requests_a_turn]
					   ? (uint32_t)options->requests_a_turn
					   : 0,
		.flush_allowed = !options->flush_off,
		.strict = options->strict_protocol == 1,
		.version = SERVER_VERSION,
		.admin = &admin_commands,
		.detail_enabled = prefixes_enabled(server->prefixes),
		.reply_bytes_max = REPLY_BYTES_MAX,
	};

	worker->server = server;
	worker->number = number;
	worker->counters = &server->counters[number];
	worker->admin = admin_create(worker);
	engine.admin_context = worker->admin;
	worker->engine = worker->admin ? engine_create(&engine) : NULL;
	if (worker->engine)
		worker->front = event_front_create(&(struct event_front_options){
			.worker = number,
			.limits = &server->limits,
			.counters = worker->counters,
			.pins = &engine_pins,
			.pins_context = engine_store_thread(worker->engine),
			.ended = stream_ended,
			.ended_context = worker,
			.listeners = server->listeners,
		});
	return worker->front != NULL;
}

static bool
create_acceptor(struct server *server)
{
	server->fronts = calloc(server->worker_count, sizeof(struct front *));
	if (!server->fronts)
		return false;
	for (unsigned i = 0; i < server->worker_count; i++)
		server->fronts[i] = server->workers[i].front;
	server->acceptor = acceptor_create(&(struct acceptor_options){
		.limits = &server->limits,
		.listeners = server->listeners,
		.fronts = server->fronts,
		.front_count = server->worker_count,
		.refuse = server->options->connections_refuse,
		.counters = &server->counters[server->counters_count - 1],
	});
	return server->acceptor != NULL;
}

static bool
create_parts(struct server *server)
{
	for (unsigned i = 0; i < server->worker_count; i++)
		if (!create_worker(server, i))
			return false;
	for (unsigned i = 0; i < BACKGROUNDS; i++)
		if (!create_background(server, i))
			return false;
	return create_acceptor(server);
}

bool
server_create(struct server *server, const struct options *options, struct listeners *listeners)
{
	pthread_condattr_t attributes;

	server->options = options;
	server->listeners = listeners;
	server->worker_count = (unsigned)options->threads;
	server->counters_count = server->worker_count + BACKGROUNDS + 1;
	atomic_store(&server->limit_bytes, options_memory_bytes(options));
	make_limits(server);
	pthread_mutex_init(&server->reset_lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	for (int i = 0; i < BACKGROUNDS; i++) {
		pthread_mutex_init(&server->background[i].lock, NULL);
		pthread_cond_init(&server->background[i].wake, &attributes);
	}
	pthread_condattr_destroy(&attributes);
	server->counters = aligned_alloc(
		_Alignof(struct counters), server->counters_count * sizeof *server->counters);
	server->workers = calloc(server->worker_count, sizeof *server->workers);
	server->prefixes = prefixes_create(
		options->prefix_delimiter[0], options->given[OPTION_NUMBER_prefix_delimiter]);
	if (server->counters)
		memset(server->counters, 0, server->counters_count * sizeof *server->counters);
	if (!server->counters || !server->workers || !server->prefixes || !create_store(server) ||
		!create_parts(server)) {
		if (!*server->flash.error)
			log_error("cannot make the server's parts: %s",
				strerror(errno ? errno : ENOMEM));
		return false;
	}
	return true;
}

/* --- threads ------------------------------------------------------------------------------ */

static bool
wants_pinning(const struct server *server, const cpu_set_t *allowed)
{
	enum { PIN_AUTO, PIN_YES, PIN_NO };

	return server->options->pin_threads == PIN_YES ||
	       (server->options->pin_threads == PIN_AUTO &&
		       (unsigned)CPU_COUNT(allowed) >= server->worker_count);
}

/* Worker n to the n-th processor that this process may use. */
static void
pin_thread(pthread_t thread, const cpu_set_t *allowed, unsigned number)
{
	unsigned nth = number % (unsigned)CPU_COUNT(allowed);

	for (int processor = 0; processor < CPU_SETSIZE; processor++) {
		cpu_set_t one;

		if (!CPU_ISSET(processor, allowed) || nth-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(processor, &one);
		pthread_setaffinity_np(thread, sizeof one, &one);
		return;
	}
}

static bool
start_thread(
	pthread_t *thread, bool *started, void *(*run)(void *), void *argument, const char *name)
{
	int code = pthread_create(thread, NULL, run, argument);

	if (code != 0) {
		log_error("cannot start the thread %s: %s", name, strerror(code));
		return false;
	}
	*started = true;
	pthread_setname_np(*thread, name);
	return true;
}

bool
server_start(struct server *server)
{
	cpu_set_t allowed;
	bool pin = sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
		   wants_pinning(server, &allowed);

	for (unsigned i = 0; i < server->worker_count; i++) {
		struct worker *worker = &server->workers[i];
		char name[16];

		snprintf(name, sizeof name, "worker %hhu", (unsigned char)i);
		if (!start_thread(&worker->thread, &worker->started, worker_run, worker, name))
			return false;
		if (pin)
			pin_thread(worker->thread, &allowed, i);
	}
	for (int i = 0; i < BACKGROUNDS; i++) {
		struct background *background = &server->background[i];

		if (i == BACKGROUND_FLASH && !store_flash(server->store))
			continue;
		if (!start_thread(&background->thread, &background->started,
			    i == BACKGROUND_FLASH ? server_flash_run : background_run, background,
			    background->name))
			return false;
	}
	return true;
}

/* A worker advances when it waits for events, or has begun another turn since it was looked at. */
static bool
all_advance(struct server *server)
{
	bool fine = true;

	for (unsigned i = 0; i < server->worker_count; i++) {
		struct worker *worker = &server->workers[i];
		uint64_t turns = atomic_load(&worker->turns);

		if ((turns & 1) && turns == worker->turns_seen)
			fine = false;
		worker->turns_seen = turns;
	}
	return fine;
}

void
server_run(struct server *server, const _Atomic bool *leave)
{
	uint64_t watchdog_ns = notify_watchdog_ns(), told_ns = 0;

	while (!atomic_load(&server->stop) && !atomic_load(leave)) {
		uint64_t now = clock_monotonic_ns();

		if (watchdog_ns && now - told_ns >= watchdog_ns / 4) {
			if (all_advance(server))
				notify("WATCHDOG=1");
			told_ns = now;
		}
		acceptor_wait(
			server->acceptor, watchdog_ns ? (int)(watchdog_ns / 4000000) + 1 : -1);
	}
}

void
server_wake(struct server *server)
{
	struct acceptor *acceptor = atomic_load(&server->acceptor);

	if (acceptor)
		acceptor_wake(acceptor);
}

void
server_stop(struct server *server)
{
	atomic_store(&server->stop, true);
	server_wake(server);
}

static void
join(pthread_t thread, bool *started, const struct timespec *until)
{
	if (!*started)
		return;
	if (pthread_timedjoin_np(thread, NULL, until) != 0) {
		log_error("a thread does not end within %d seconds: the process ends without it",
			STOP_SECONDS);
		_exit(1);
	}
	*started = false;
}

static void
join_all(struct server *server)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += STOP_SECONDS;
	for (unsigned i = 0; i < server->worker_count; i++)
		if (server->workers[i].started)
			server->workers[i].front->ops->wake(server->workers[i].front);
	for (int i = 0; i < BACKGROUND_FLASH; i++)
		wake_background(&server->background[i]);
	if (server->background[BACKGROUND_FLASH].started)
		store_flash_wake(server->store);
	for (unsigned i = 0; i < server->worker_count; i++)
		join(server->workers[i].thread, &server->workers[i].started, &until);
	for (int i = 0; i < BACKGROUNDS; i++)
		join(server->background[i].thread, &server->background[i].started, &until);
}

void
server_destroy(struct server *server)
{
	struct acceptor *acceptor;

	atomic_store(&server->stop, true);
	if (server->workers)
		join_all(server);
	/* What connections held in the store goes back as from a reader. */
	rcu_register();
	for (unsigned i = 0; server->workers && i < server->worker_count; i++) {
		struct worker *worker = &server->workers[i];

		if (worker->front)
			worker->front->ops->destroy(worker->front);
		if (worker->engine)
			engine_destroy(worker->engine);
		admin_destroy(worker->admin);
	}
	server_flash_save(server);
	rcu_unregister();
	/* Only this thread is left to run signal handlers. */
	acceptor = atomic_exchange(&server->acceptor, NULL);
	if (acceptor)
		acceptor_destroy(acceptor);
	free(server->fronts);
	for (int i = 0; i < BACKGROUNDS; i++)
		if (server->background[i].store)
			store_thread_destroy(server->background[i].store);
	if (server->store)
		store_destroy(server->store);
	server_flash_free(server);
	prefixes_destroy(server->prefixes);
	free(server->workers);
	free(server->counters);
}

void
server_sum_counters(const struct server *server, struct counters *sum)
{
	_Atomic uint64_t *to = (_Atomic uint64_t *)sum;

	memset(sum, 0, sizeof *sum);
	for (unsigned i = 0; i < server->counters_count; i++) {
		const _Atomic uint64_t *from = (const _Atomic uint64_t *)&server->counters[i];

		for (size_t k = 0; k < sizeof *sum / sizeof *to; k++)
			counter_add(&to[k], counter_get(&from[k]));
	}
}
