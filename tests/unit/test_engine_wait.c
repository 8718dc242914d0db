/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Requests that wait for flash in their slots, and batches of them that are put together. What the
 * store says of flash is replaced: a look-up of a key that starts with "slow" waits until the test
 * lets it go, as one that is being read does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/engine_feed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#define STREAMS 300
#define PIPELINE 40

static struct {
	struct store_held *holding;
	uint64_t tickets; /* given */
	uint64_t let_go;  /* up to this one */
	unsigned looked, asked, released, spent;
	bool no_room; /* for a read */
} fake;

struct flash *__wrap_store_flash(struct store *store);
void __wrap_store_hold(struct store_thread *thread, struct store_held *held);
bool __wrap_store_held_settled(const struct store_thread *thread, const struct store_held *held);
void __wrap_store_release(struct store_thread *thread, struct store_held *held);
void __wrap_store_held_spent(struct store_thread *thread);
enum store_found __wrap_store_read(struct store_thread *thread, const uint8_t *key,
	uint32_t key_size, uint64_t hash, const struct store_hint *hint, struct store_view *view,
	bool *stale_hint);
enum store_found __real_store_read(struct store_thread *thread, const uint8_t *key,
	uint32_t key_size, uint64_t hash, const struct store_hint *hint, struct store_view *view,
	bool *stale_hint);
enum store_found __wrap_store_find(struct store_thread *thread, const uint8_t *key,
	uint32_t key_size, uint64_t hash, const struct store_hint *hint, struct store_view *view,
	bool *stale_hint);
enum store_found __real_store_find(struct store_thread *thread, const uint8_t *key,
	uint32_t key_size, uint64_t hash, const struct store_hint *hint, struct store_view *view,
	bool *stale_hint);

struct flash *
__wrap_store_flash(struct store *store)
{
	return (struct flash *)store; /* there is some; nobody looks into it */
}

void
__wrap_store_hold(struct store_thread *thread, struct store_held *held)
{
	(void)thread;
	fake.holding = held;
}

bool
__wrap_store_held_settled(const struct store_thread *thread, const struct store_held *held)
{
	(void)thread;
	fake.asked++;
	return held->intent.ticket <= fake.let_go;
}

void
__wrap_store_release(struct store_thread *thread, struct store_held *held)
{
	(void)thread;
	assert_true(held->intent.ticket > 0);
	memset(held, 0, sizeof *held);
	fake.released++;
}

void
__wrap_store_held_spent(struct store_thread *thread)
{
	(void)thread;
	fake.spent++;
}

static bool
must_wait(const uint8_t *key, uint32_t key_size)
{
	if (key_size < 4 || memcmp(key, "slow", 4) != 0)
		return false;
	fake.looked++;
	assert_non_null(fake.holding);
	if (fake.no_room)
		return true;
	if (fake.holding->intent.ticket == 0)
		fake.holding->intent.ticket = ++fake.tickets;
	return fake.holding->intent.ticket > fake.let_go;
}

enum store_found
__wrap_store_read(struct store_thread *thread, const uint8_t *key, uint32_t key_size, uint64_t hash,
	const struct store_hint *hint, struct store_view *view, bool *stale_hint)
{
	*stale_hint = false;
	return must_wait(key, key_size)
		       ? STORE_PENDING
		       : __real_store_read(thread, key, key_size, hash, hint, view, stale_hint);
}

enum store_found
__wrap_store_find(struct store_thread *thread, const uint8_t *key, uint32_t key_size, uint64_t hash,
	const struct store_hint *hint, struct store_view *view, bool *stale_hint)
{
	if (stale_hint)
		*stale_hint = false;
	return must_wait(key, key_size)
		       ? STORE_PENDING
		       : __real_store_find(thread, key, key_size, hash, hint, view, stale_hint);
}

/* --- a loop as the worker's ---------------------------------------------------------------- */

static struct feed feed;
static struct feed_stream streams[STREAMS];
static struct batch_run *where[STREAMS]; /* each stream's run, as a front would know it */
static struct batch *pending[64];
static unsigned pending_count, moves, batches_most;

static unsigned
number_of(const struct stream *stream)
{
	return (unsigned)((const struct feed_stream *)stream - streams);
}

static void
open_streams(void)
{
	memset(&fake, 0, sizeof fake);
	pending_count = moves = batches_most = 0;
	feed_open(&feed, &(struct feed_options){0});
	for (unsigned i = 0; i < STREAMS; i++)
		feed_stream_open(&streams[i]);
}

static void
close_streams(void)
{
	assert_int_equal(pending_count, 0);
	/* All that was held was given back, once. */
	assert_int_equal(fake.released, fake.tickets);
	for (unsigned i = 0; i < STREAMS; i++)
		feed_stream_close(&feed, &streams[i]);
	feed_close(&feed);
}

static void
collect(struct feed_stream *stream, const struct iovec *pieces, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		if (stream->output_size + pieces[i].iov_len + 1 > stream->output_room) {
			stream->output_room = (stream->output_size + pieces[i].iov_len) * 2 + 4096;
			stream->output = realloc(stream->output, stream->output_room);
		}
		memcpy(stream->output + stream->output_size, pieces[i].iov_base, pieces[i].iov_len);
		stream->output_size += pieces[i].iov_len;
	}
}

/* As a front's send: finished runs' streams leave. True when the batch is empty. */
static bool
send_batch(struct batch *batch)
{
	bool empty = true;

	for (uint32_t i = 0; i < batch->run_count; i++) {
		struct batch_run *run = &batch->runs[i];

		if (!run->stream)
			continue;
		assert_ptr_equal(where[number_of(run->stream)], run);
		collect(&streams[number_of(run->stream)], batch->out->pieces + run->piece_first,
			run->piece_count);
		if (run->finished) {
			where[number_of(run->stream)] = NULL;
			run->stream = NULL;
		} else {
			empty = false;
		}
	}
	return empty;
}

static void
run_batch(struct batch *batch)
{
	engine_run(feed.engine, batch, &feed.time);
	if (send_batch(batch))
		engine_batch_return(feed.engine, &batch);
	else
		pending[pending_count++] = batch;
	if (pending_count > batches_most)
		batches_most = pending_count;
}

static void
moved(void *context, struct batch_run *run)
{
	(void)context;
	where[number_of(run->stream)] = run;
	moves++;
}

static void
merge(bool trim)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < pending_count; i++) {
		if (kept > 0 && engine_batch_merge(feed.engine, pending[kept - 1], pending[i], trim,
					moved, NULL)) {
			engine_batch_return(feed.engine, &pending[i]);
			continue;
		}
		pending[kept++] = pending[i];
		engine_batch_merge(
			feed.engine, pending[kept - 1], pending[kept - 1], trim, moved, NULL);
	}
	pending_count = kept;
}

static void
run_pending(void)
{
	struct batch *now[64];
	unsigned count = pending_count;

	memcpy(now, pending, sizeof now);
	pending_count = 0;
	for (unsigned i = 0; i < count; i++)
		run_batch(now[i]);
}

/* Each of these streams comes alone, in a batch of its own. */
static void
turn(unsigned first, unsigned count)
{
	struct store_thread *thread = engine_store_thread(feed.engine);

	store_turn_begin(thread, feed.time.unix_ns);
	run_pending();
	for (unsigned i = first; i < first + count; i++) {
		struct batch *batch;

		if (where[i] || (streams[i].stream.input_size == 0 && !streams[i].stream.more))
			continue;
		if (engine_batches_are_few(feed.engine))
			merge(false);
		if (engine_batches_are_few(feed.engine))
			merge(true);
		batch = engine_batch_borrow(feed.engine);
		assert_non_null(batch);
		batch->runs[batch->run_count++] = (struct batch_run){.stream = &streams[i].stream};
		where[i] = &batch->runs[0];
		run_batch(batch);
	}
	store_turn_end(thread);
}

static void
put(unsigned stream, const char *text)
{
	feed_put(&streams[stream], text, strlen(text));
}

static void
expect(unsigned stream, const char *text)
{
	assert_string_equal(feed_take(&streams[stream], NULL), text);
}

static void
fill(void)
{
	put(0, "set fast 0 0 1\r\nf\r\nset slow 0 0 1\r\ns\r\nset slow2 0 0 1\r\nt\r\nset slow3 0 "
	       "0 1\r\nu\r\n");
	turn(0, 1);
	expect(0, "STORED\r\nSTORED\r\nSTORED\r\nSTORED\r\n");
}

/* --- tests -------------------------------------------------------------------------------- */

/* What comes behind a request that waits waits too; others' don't; nothing is looked up in vain. */
static void
order(void **state)
{
	unsigned looked;

	(void)state;
	open_streams();
	fill();
	put(0, "get fast\r\nget slow\r\nget fast\r\nget nothing slow2 fast\r\nmg slow v\r\nmn\r\n");
	put(1, "get fast\r\n");
	turn(0, 2);
	expect(0, "VALUE fast 0 1\r\nf\r\nEND\r\n");
	expect(1, "VALUE fast 0 1\r\nf\r\nEND\r\n");
	looked = fake.looked;
	for (int i = 0; i < 10; i++)
		turn(0, 2);
	assert_int_equal(fake.looked, looked);
	assert_true(fake.asked >= 10);
	assert_int_equal(counter_get(&feed.counters->slots_waited), 1);
	assert_false(engine_batch_can_go_on(feed.engine, pending[0]));
	fake.let_go = 1;
	assert_true(engine_batch_can_go_on(feed.engine, pending[0]));
	turn(0, 2);
	expect(0, "VALUE slow 0 1\r\ns\r\nEND\r\nVALUE fast 0 1\r\nf\r\nEND\r\n");
	fake.let_go = 2;
	turn(0, 2);
	expect(0, "VALUE slow2 0 1\r\nt\r\nVALUE fast 0 1\r\nf\r\nEND\r\n");
	fake.let_go = 3;
	turn(0, 2);
	expect(0, "VA 1\r\ns\r\nMN\r\n");
	/* A look-up is counted when it is answered, however often it was begun. */
	assert_int_equal(counter_get(&feed.counters->cmd_get), 8);
	assert_int_equal(counter_get(&feed.counters->get_hits), 7);
	assert_true(fake.spent > 10);
	close_streams();
}

/* As many as there are wait, alone in their batches: others go on, and all are answered in order. */
static void
many_wait(void **state)
{
	(void)state;
	open_streams();
	fill();
	for (unsigned i = 1; i < STREAMS; i++) {
		/* Line forms whose request points into the window, the batch, or goes on. */
		put(i, i % 3 == 0    ? "mg c2xvdw== b k v\r\nget fast\r\n"
			: i % 3 == 1 ? "get fast slow nothing\r\nmn\r\n"
				     : "mg slow v q k\r\nget fast\r\n");
		turn(i, 1);
		put(0, "get fast\r\n");
		turn(0, 1);
		expect(0, "VALUE fast 0 1\r\nf\r\nEND\r\n");
	}
	assert_true(moves > STREAMS / 2);
	/* All 256 slots of a batch serve before another one is kept. */
	assert_true(batches_most <= 17);
	fake.let_go = UINT64_MAX;
	turn(0, 1);
	for (unsigned i = 1; i < STREAMS; i++)
		expect(i, i % 3 == 0 ? "VA 1 kslow\r\ns\r\nVALUE fast 0 1\r\nf\r\nEND\r\n"
			  : i % 3 == 1
				  ? "VALUE fast 0 1\r\nf\r\nVALUE slow 0 1\r\ns\r\nEND\r\nMN\r\n"
				  : "VA 1 kslow\r\ns\r\nVALUE fast 0 1\r\nf\r\nEND\r\n");
	close_streams();
}

/* A key that stands in its batch goes along: the batch it came in serves others meanwhile. */
static void
decoded_keys(void **state)
{
	(void)state;
	open_streams();
	fill();
	put(1, "mg slow v\r\n");
	put(2, "mg c2xvdzI= b k v\r\n");
	turn(1, 2);
	assert_int_equal(pending_count, 2);
	merge(false);
	assert_int_equal(pending_count, 1);
	put(3, "mg c2xvdzM= b k v\r\n");
	turn(3, 1);
	fake.let_go = UINT64_MAX;
	turn(0, 1);
	expect(1, "VA 1\r\ns\r\n");
	expect(2, "VA 1 kslow2\r\nt\r\n");
	expect(3, "VA 1 kslow3\r\nu\r\n");
	close_streams();
}

/* Long pipelines: more requests wait than all batches have slots. */
static void
long_pipelines(void **state)
{
	char sent[PIPELINE * 40] = "", expected[PIPELINE * 40] = "";

	(void)state;
	open_streams();
	fill();
	for (unsigned i = 0; i < PIPELINE; i++) {
		strcat(sent, i % 6 == 0 ? "get slow fast\r\n" : "get fast\r\n");
		strcat(expected, i % 6 == 0
					 ? "VALUE slow 0 1\r\ns\r\nVALUE fast 0 1\r\nf\r\nEND\r\n"
					 : "VALUE fast 0 1\r\nf\r\nEND\r\n");
	}
	for (unsigned i = 1; i < STREAMS; i++) {
		put(i, sent);
		turn(i, 1);
		put(0, "get fast\r\n");
		turn(0, 1);
		expect(0, "VALUE fast 0 1\r\nf\r\nEND\r\n");
	}
	fake.let_go = UINT64_MAX;
	for (int i = 0; i < PIPELINE; i++)
		turn(0, STREAMS);
	for (unsigned i = 1; i < STREAMS; i++)
		expect(i, expected);
	close_streams();
}

/* A read finds no room: what those behind it hold is let go, and it is asked for again soon. */
static void
no_room(void **state)
{
	struct engine_time time;
	uint64_t deadline;

	(void)state;
	open_streams();
	fill();
	fake.no_room = true;
	put(1, "get slow\r\nget slow2\r\nget fast\r\n");
	turn(1, 1);
	assert_true(pending[0]->poll);
	/* As if they had been read ahead. */
	pending[0]->held[1].intent.ticket = ++fake.tickets;
	pending[0]->held[2].intent.ticket = ++fake.tickets;
	turn(1, 1);
	assert_int_equal(fake.released, 2);
	assert_true(pending[0]->poll);
	time = feed.time;
	assert_null(engine_unpark(feed.engine, &time, &deadline));
	fake.no_room = false;
	fake.let_go = UINT64_MAX;
	turn(1, 1);
	expect(1, "VALUE slow 0 1\r\ns\r\nEND\r\nVALUE slow2 0 1\r\nt\r\nEND\r\nVALUE fast 0 "
		  "1\r\nf\r\nEND\r\n");
	close_streams();
}

/* The worker ends while requests wait: what they hold goes back. */
static void
dropped(void **state)
{
	(void)state;
	open_streams();
	fill();
	put(1, "get slow\r\nget slow\r\n");
	put(2, "mg slow v\r\n");
	turn(1, 2);
	assert_int_equal(pending_count, 2);
	assert_int_equal(fake.tickets, 2);
	while (pending_count > 0)
		engine_batch_drop(feed.engine, &pending[--pending_count]);
	memset(where, 0, sizeof where);
	close_streams();
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order),
		cmocka_unit_test(many_wait),
		cmocka_unit_test(decoded_keys),
		cmocka_unit_test(long_pipelines),
		cmocka_unit_test(no_room),
		cmocka_unit_test(dropped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
