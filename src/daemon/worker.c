/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The data's way. One turn of a worker:
 *
 *	wait		off line, until bytes, a wake or a deadline come
 *	receive		bytes of all ready connections into a batch
 *	engine_run	parse, hash, find, execute, compose
 *	send		replies, in the order of the requests
 *
 * A batch whose requests wait stays pending and is run again each turn. What was looked up in a
 * turn is valid until its end. Who waits for flash is told by the store's descriptor, or by a wake.
 */
#include "daemon/server.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/rcu.h"

#include <errno.h>
#include <string.h>

/* a request waits for memory: look again that soon, if nobody wakes us before */
#define WAITING_MS 2
/* without a free batch, a peer that took nothing for so long loses its own */
#define QUIET_NS CLOCK_SECOND_NS
/* then reclaim gets its step, and who else is ready is asked for */
#define BATCHES_A_TURN 64

/* Pending batches, oldest first. */
struct pending {
	struct batch *first, *last;
	bool waiting; /* one has a request that waits */
	bool poll;    /* for what nobody may tell of */
	bool again;   /* one can go on at once */
	bool dense;   /* they have been put together in this turn */
};

static void
put_pending(struct pending *pending, struct batch *batch)
{
	batch->next = NULL;
	if (pending->last)
		pending->last->next = batch;
	else
		pending->first = batch;
	pending->last = batch;
	pending->again = pending->again || batch->again;
	pending->poll = pending->poll || batch->poll;
	for (uint32_t i = 0; i < batch->run_count; i++)
		if (batch->runs[i].stream && !batch->runs[i].blocked)
			pending->waiting = true;
}

static void
run_batch(struct worker *worker, struct batch *batch, const struct engine_time *time,
	struct pending *pending)
{
	engine_run(worker->engine, batch, time);
	if (worker->front->ops->send(worker->front, batch))
		engine_batch_return(worker->engine, &batch);
	else
		put_pending(pending, batch);
}

static void
run_pending(struct worker *worker, const struct engine_time *time, struct pending *pending)
{
	struct batch *batch = pending->first;

	*pending = (struct pending){0};
	while (batch) {
		struct batch *next = batch->next;

		run_batch(worker, batch, time, pending);
		batch = next;
	}
}

static void
tell_moved(void *context, struct batch_run *run)
{
	struct front *front = context;

	front->ops->moved(front, run);
}

/* Puts what waits together, one batch after the other; those that come empty go back. */
static void
merge(struct worker *worker, struct pending *pending, bool trim)
{
	struct batch *batch = pending->first, *to = NULL;
	struct pending merged = {.dense = pending->dense};

	while (batch) {
		struct batch *next = batch->next;

		if (!to)
			to = batch;
		if (engine_batch_merge(
			    worker->engine, to, batch, trim, tell_moved, worker->front)) {
			engine_batch_return(worker->engine, &batch);
		} else if (to != batch) {
			put_pending(&merged, to);
			to = batch;
			engine_batch_merge(worker->engine, to, to, trim, tell_moved, worker->front);
		}
		batch = next;
	}
	if (to)
		put_pending(&merged, to);
	*pending = merged;
}

/*
 * Half of the batches are pending: when a device hangs, those who need it must not keep the others
 * waiting.
 */
static void
make_room(struct worker *worker, struct pending *pending)
{
	if (pending->dense || !engine_batches_are_few(worker->engine))
		return;
	merge(worker, pending, false);
	if (engine_batches_are_few(worker->engine))
		merge(worker, pending, true);
	/* Where they are many even so, once a turn is enough. */
	pending->dense = engine_batches_are_few(worker->engine);
}

static void
run_new(struct worker *worker, const struct engine_time *time, struct pending *pending)
{
	for (int i = 0; i < BATCHES_A_TURN; i++) {
		struct batch *batch;

		make_room(worker, pending);
		batch = engine_batch_borrow(worker->engine);
		if (!batch) {
			event_front_relieve(worker->front, QUIET_NS);
			return;
		}
		if (!worker->front->ops->receive(worker->front, batch)) {
			engine_batch_return(worker->engine, &batch);
			return;
		}
		run_batch(worker, batch, time, pending);
	}
}

/*
 * Last in a turn, as the turn itself parks streams: true when some go on, which the next turn does.
 * *deadline_ns: when streams that wait for room are to be asked about again, 0 for never.
 */
static bool
resume_parked(struct worker *worker, const struct engine_time *time, uint64_t *deadline_ns)
{
	struct stream *stream;
	bool any = false;

	while ((stream = engine_unpark(worker->engine, time, deadline_ns))) {
		worker->front->ops->resume(worker->front, stream);
		any = true;
	}
	return any;
}

/* The store's own deadline: when a read from flash is late. */
static int
choose_timeout_ms(const struct pending *pending, uint64_t now_ns, uint64_t deadline_ns,
	const struct store_thread *store)
{
	int timeout_ms = store_timeout_ms(store);

	if (pending->again)
		return 0;
	if (pending->poll && (timeout_ms < 0 || timeout_ms > WAITING_MS))
		timeout_ms = WAITING_MS;
	if (deadline_ns) {
		int due_ms = deadline_ns > now_ns ? (int)((deadline_ns - now_ns) / 1000000 + 1) : 0;

		if (timeout_ms < 0 || due_ms < timeout_ms)
			timeout_ms = due_ms;
	}
	return timeout_ms;
}

/* After wants_wake is set: what happened before that has woken nobody. */
static bool
can_go_on(const struct worker *worker, const struct pending *pending)
{
	for (const struct batch *batch = pending->first; batch; batch = batch->next)
		if (engine_batch_can_go_on(worker->engine, batch))
			return true;
	return false;
}

static struct engine_time
sample_time(void)
{
	uint64_t now = clock_unix_ns();

	return (struct engine_time){.unix_ns = now, .unix_s = (uint32_t)(now / CLOCK_SECOND_NS)};
}

/* Without it the worker would learn of what flash has read only by its deadlines. */
static void
watch_store(struct worker *worker, const struct store_thread *store)
{
	int fd = store_descriptor(store);

	if (fd >= 0 && !worker->front->ops->watch(worker->front, fd)) {
		log_error("a worker cannot watch its descriptor of flash: %s", strerror(errno));
		server_stop(worker->server);
	}
}

void *
worker_run(void *argument)
{
	struct worker *worker = argument;
	struct front *front = worker->front;
	struct store_thread *store = engine_store_thread(worker->engine);
	struct pending pending = {0};
	int timeout_ms = 0;

	rcu_register();
	watch_store(worker, store);
	while (!atomic_load(&worker->server->stop)) {
		atomic_store(&worker->wants_wake, pending.waiting);
		if (pending.waiting && timeout_ms != 0 && can_go_on(worker, &pending))
			timeout_ms = 0;
		rcu_offline();
		front->ops->wait(front, timeout_ms);
		rcu_online();
		atomic_fetch_add(&worker->turns, 1);

		struct engine_time time = sample_time();

		store_turn_begin(store, time.unix_ns);
		run_pending(worker, &time, &pending);
		run_new(worker, &time, &pending);

		uint64_t deadline_ns;
		bool resumed = resume_parked(worker, &time, &deadline_ns);

		store_held_spent(store);
		store_turn_end(store);
		timeout_ms =
			resumed ? 0 : choose_timeout_ms(&pending, time.unix_ns, deadline_ns, store);
		atomic_fetch_add(&worker->turns, 1);
	}
	while (pending.first) {
		struct batch *batch = pending.first;

		pending.first = batch->next;
		engine_batch_drop(worker->engine, &batch);
	}
	rcu_unregister();
	return NULL;
}
