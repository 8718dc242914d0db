/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The event front against an engine that answers lines: 'big N' with N bytes that stand in a
 * 'store', 'quit' by closing, any other line with itself. Acceptor, front and clients run in this
 * one thread, so each test is a script.
 */
#include "net/event.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define STORE_BYTES (8u << 20)
#define PIECES 512
#define TEXT_BYTES 65536

struct rig {
	struct listeners listeners;
	struct event_limits limits;
	struct counters *counters;
	struct front *front, *fronts[1];
	struct acceptor *acceptor;
	struct batch *batch;
	struct reply_out out;
	struct iovec pieces[PIECES];
	uint8_t text[TEXT_BYTES];
	size_t text_used;
	uint8_t *store;
	int pins, unpins, refuse_pins, ended;
	char path[64];
};

static enum batch_bytes
pin(void *context, const void *bytes, size_t size)
{
	struct rig *rig = context;
	const uint8_t *at = bytes;

	(void)size;
	if (at < rig->store || at >= rig->store + STORE_BYTES)
		return BATCH_PLAIN;
	if (rig->refuse_pins)
		return BATCH_REFUSED;
	rig->pins++;
	return BATCH_PINNED;
}

static void
unpin(void *context, const void *bytes, size_t size)
{
	struct rig *rig = context;

	(void)bytes;
	(void)size;
	rig->unpins++;
}

static void
ended(void *context, struct stream *stream)
{
	struct rig *rig = context;

	(void)stream;
	rig->ended++;
}

static const struct batch_pins pins = {pin, unpin};

static void
rig_open(struct rig *rig, uint32_t connections_max)
{
	char error[LISTEN_ERROR_MAX] = "";
	struct listen_options listen = {.unix_mask = 0700, .backlog = 64};

	memset(rig, 0, sizeof *rig);
	snprintf(rig->path, sizeof rig->path, "/tmp/halcyon-event-%d.sock", (int)getpid());
	listen.unix_path = rig->path;
	if (!listeners_open_unix(&rig->listeners, &listen, error))
		fail_msg("%s", error);
	rig->limits.connections_max = connections_max;
	rig->limits.line_bytes_max = 65536;
	rig->limits.window_bytes_max = 1 << 20;
	rig->limits.held_bytes_max = 16384;
	rig->limits.output_bytes_max = 1 << 20;
	rig->limits.output_bytes_each = 300000;
	rig->counters = aligned_alloc(128, sizeof *rig->counters);
	memset(rig->counters, 0, sizeof *rig->counters);
	rig->store = malloc(STORE_BYTES);
	for (uint32_t i = 0; i < STORE_BYTES; i++)
		rig->store[i] = (uint8_t)(i * 2654435761u >> 24);
	rig->batch = calloc(1, sizeof *rig->batch);
	rig->out.pieces = rig->pieces;
	rig->front = rig->fronts[0] =
		event_front_create(&(struct event_front_options){.limits = &rig->limits,
			.counters = rig->counters,
			.pins = &pins,
			.pins_context = rig,
			.ended = ended,
			.ended_context = rig,
			.listeners = &rig->listeners});
	assert_non_null(rig->front);
	rig->acceptor = acceptor_create(&(struct acceptor_options){.limits = &rig->limits,
		.listeners = &rig->listeners,
		.fronts = rig->fronts,
		.front_count = 1,
		.refuse = true,
		.counters = rig->counters});
	assert_non_null(rig->acceptor);
}

static void
rig_close(struct rig *rig)
{
	rig->front->ops->destroy(rig->front);
	acceptor_destroy(rig->acceptor);
	listeners_close(&rig->listeners);
	assert_int_equal(rig->pins, rig->unpins);
	assert_int_equal(atomic_load(&rig->limits.connections), 0);
	assert_int_equal(atomic_load(&rig->limits.window_bytes), 0);
	assert_int_equal(atomic_load(&rig->limits.held_bytes), 0);
	assert_int_equal(atomic_load(&rig->limits.output_bytes), 0);
	assert_int_equal(rig->ended, counter_get(&rig->counters->total_connections));
	free(rig->counters);
	free(rig->store);
	free(rig->batch);
}

/* --- the engine --------------------------------------------------------------------------- */

static void
answer(struct rig *rig, struct batch_run *run, const uint8_t *line, size_t size)
{
	unsigned long bytes;

	if (size > 4 && memcmp(line, "big ", 4) == 0) {
		bytes = strtoul((const char *)line + 4, NULL, 10);
		rig->pieces[rig->out.piece_used++] = (struct iovec){rig->store, bytes};
	} else {
		assert_true(rig->text_used + size <= TEXT_BYTES);
		memcpy(rig->text + rig->text_used, line, size);
		rig->pieces[rig->out.piece_used++] =
			(struct iovec){rig->text + rig->text_used, size};
		rig->text_used += size;
	}
	run->piece_count++;
}

static void
engine(struct rig *rig)
{
	struct batch *batch = rig->batch;

	rig->out.piece_used = 0;
	rig->text_used = 0;
	batch->out = &rig->out;
	for (uint32_t i = 0; i < batch->run_count; i++) {
		struct batch_run *run = &batch->runs[i];
		struct stream *stream = run->stream;
		const uint8_t *end;

		run->piece_first = rig->out.piece_used;
		stream->wish = stream->end_of_input ? STREAM_CLOSE : STREAM_READ;
		while (stream->input_size &&
			(end = memchr(stream->input, '\n', stream->input_size))) {
			size_t size = (size_t)(end - stream->input) + 1;

			if (size == 5 && memcmp(stream->input, "quit\n", 5) == 0)
				stream->wish = STREAM_CLOSE;
			else
				answer(rig, run, stream->input, size);
			stream->input += size;
			stream->input_size -= size;
		}
		stream->wanted = stream->input_size ? 1 : 0;
		run->finished = true;
	}
}

/* One turn of everything. */
static void
turn(struct rig *rig)
{
	acceptor_wait(rig->acceptor, 0);
	rig->front->ops->wait(rig->front, 0);
	for (;;) {
		rig->batch->run_count = rig->batch->slot_count = 0;
		rig->batch->bytes = 0;
		if (!rig->front->ops->receive(rig->front, rig->batch))
			return;
		engine(rig);
		assert_true(rig->front->ops->send(rig->front, rig->batch));
	}
}

static void
turns(struct rig *rig, int n)
{
	while (n-- > 0)
		turn(rig);
}

/* --- clients ------------------------------------------------------------------------------ */

static int
dial(struct rig *rig)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", rig->path);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
	return fd;
}

static void
say(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

static void
hear(struct rig *rig, int fd, const char *text)
{
	char got[256] = "";
	size_t size = 0;

	for (int i = 0; i < 100 && size < strlen(text); i++) {
		ssize_t n;

		turn(rig);
		n = recv(fd, got + size, sizeof got - 1 - size, 0);
		if (n > 0)
			size += (size_t)n;
	}
	got[size] = 0;
	assert_string_equal(got, text);
}

static void
hear_end(struct rig *rig, int fd)
{
	char byte;

	for (int i = 0; i < 100; i++) {
		ssize_t n = recv(fd, &byte, 1, 0);

		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return;
		assert_true(n < 0);
		turn(rig);
	}
	fail_msg("the connection was not closed");
}

/* Reads so many bytes of the store; gives how many came as they should. */
static size_t
hear_store(struct rig *rig, int fd, size_t bytes)
{
	static uint8_t buffer[65536];
	size_t got = 0;

	for (int idle = 0; got < bytes && idle < 1000;) {
		ssize_t n = recv(
			fd, buffer, bytes - got < sizeof buffer ? bytes - got : sizeof buffer, 0);

		turn(rig);
		if (n <= 0) {
			idle++;
			continue;
		}
		if (memcmp(buffer, rig->store + got, (size_t)n) != 0)
			return got;
		got += (size_t)n;
	}
	return got;
}

/* --- tests -------------------------------------------------------------------------------- */

static void
test_echo(void **state)
{
	static struct rig rig;
	int fd;

	(void)state;
	rig_open(&rig, 10);
	fd = dial(&rig);
	for (const char *at = "one\ntwo\n"; *at; at++) {
		assert_int_equal(send(fd, at, 1, 0), 1);
		turns(&rig, 3);
	}
	hear(&rig, fd, "one\ntwo\n");
	say(fd, "a\nb\nc\nd");
	hear(&rig, fd, "a\nb\nc\n");
	say(fd, "\nquit\n");
	hear(&rig, fd, "d\n");
	hear_end(&rig, fd);
	close(fd);
	rig_close(&rig);
}

/*
 * Half of a line stays, in memory of its own size; the peer's end is answered with what was whole.
 */
static void
test_half_open(void **state)
{
	static struct rig rig;
	int fd;

	(void)state;
	rig_open(&rig, 10);
	fd = dial(&rig);
	say(fd, "whole\nhal");
	hear(&rig, fd, "whole\n");
	assert_int_equal(atomic_load(&rig.limits.window_bytes), 0);
	assert_int_equal(atomic_load(&rig.limits.held_bytes), 3);
	say(fd, "f\nrest\nno end");
	shutdown(fd, SHUT_WR);
	hear(&rig, fd, "half\nrest\n");
	hear_end(&rig, fd);
	close(fd);
	rig_close(&rig);
}

/*
 * A peer that doesn't read pins what it didn't take, is not read from meanwhile, and gets every
 * byte in the end.
 */
static void
test_slow_reader(void **state)
{
	static struct rig rig;
	int fd, other;

	(void)state;
	rig_open(&rig, 10);
	fd = dial(&rig);
	other = dial(&rig);
	say(fd, "big 8000000\n");
	turns(&rig, 5);
	assert_int_equal(rig.pins, 1);
	assert_int_equal(rig.unpins, 0);
	say(fd, "after\n");
	say(other, "other\n");
	hear(&rig, other, "other\n");
	assert_int_equal(counter_get(&rig.counters->bytes_read), 12 + 6);
	assert_int_equal(hear_store(&rig, fd, 8000000), 8000000);
	hear(&rig, fd, "after\n");
	assert_int_equal(rig.unpins, 1);
	assert_int_equal(counter_get(&rig.counters->send_pinned), 1);
	close(fd);
	close(other);
	turns(&rig, 3);
	rig_close(&rig);
}

/*
 * Without pins leftovers are copied, up to the bound; beyond it the connection is closed and
 * counted.
 */
static void
test_copies(void **state)
{
	static struct rig rig;
	int fd, fat;

	(void)state;
	rig_open(&rig, 10);
	rig.refuse_pins = 1;
	fd = dial(&rig);
	say(fd, "big 400000\n");
	turns(&rig, 5);
	assert_int_equal(counter_get(&rig.counters->send_copied), 1);
	assert_true(atomic_load(&rig.limits.output_bytes) > 0);
	assert_int_equal(hear_store(&rig, fd, 400000), 400000);
	assert_int_equal(atomic_load(&rig.limits.output_bytes), 0);
	fat = dial(&rig);
	say(fat, "big 8000000\n");
	turns(&rig, 5);
	assert_int_equal(counter_get(&rig.counters->send_closed), 1);
	assert_int_equal(atomic_load(&rig.limits.output_bytes), 0);
	assert_int_equal(atomic_load(&rig.limits.connections), 1);
	say(fd, "still here\n");
	hear(&rig, fd, "still here\n");
	close(fat);
	close(fd);
	rig_close(&rig);
}

/* Leaving while bytes are owed gives pins back. */
static void
test_reader_leaves(void **state)
{
	static struct rig rig;
	int fd;

	(void)state;
	rig_open(&rig, 10);
	fd = dial(&rig);
	say(fd, "big 8000000\n");
	turns(&rig, 5);
	assert_int_equal(rig.pins, 1);
	close(fd);
	turns(&rig, 5);
	assert_int_equal(rig.unpins, 1);
	assert_int_equal(atomic_load(&rig.limits.connections), 0);
	rig_close(&rig);
}

static void
test_connection_limit(void **state)
{
	static struct rig rig;
	int fds[3], over;

	(void)state;
	rig_open(&rig, 3);
	for (int i = 0; i < 3; i++)
		fds[i] = dial(&rig);
	turns(&rig, 3);
	over = dial(&rig);
	hear(&rig, over, "ERROR Too many open connections\r\n");
	hear_end(&rig, over);
	close(over);
	assert_int_equal(counter_get(&rig.counters->rejected_connections), 1);
	close(fds[0]);
	turns(&rig, 3);
	over = dial(&rig);
	say(over, "in\n");
	hear(&rig, over, "in\n");
	close(over);
	for (int i = 1; i < 3; i++)
		close(fds[i]);
	rig_close(&rig);
}

/* Unfinished requests have a bound together: the one that was left longest goes. */
static void
test_stalled(void **state)
{
	static struct rig rig;
	static char part[6001];
	int fds[4];

	(void)state;
	rig_open(&rig, 10);
	memset(part, 'x', sizeof part - 1);
	for (int i = 0; i < 4; i++) {
		fds[i] = dial(&rig);
		say(fds[i], part);
		turns(&rig, 3);
	}
	assert_true(atomic_load(&rig.limits.held_bytes) <= rig.limits.held_bytes_max);
	hear_end(&rig, fds[0]);
	hear_end(&rig, fds[1]);
	say(fds[3], "\n");
	turns(&rig, 3);
	assert_int_equal(recv(fds[3], part, sizeof part, 0), 6001);
	for (int i = 0; i < 4; i++)
		close(fds[i]);
	rig_close(&rig);
}

/* A line longer than any read buffer may grow closes. */
static void
test_endless_line(void **state)
{
	static struct rig rig;
	static char part[100001];
	int fd;

	(void)state;
	rig_open(&rig, 10);
	rig.limits.held_bytes_max = 1 << 20;
	memset(part, 'x', sizeof part - 1);
	fd = dial(&rig);
	say(fd, part);
	for (int i = 0; i < 10; i++)
		turn(&rig);
	assert_int_equal(counter_get(&rig.counters->lines_too_long), 1);
	assert_int_equal(atomic_load(&rig.limits.connections), 0);
	close(fd);
	rig_close(&rig);
}

static void
test_idle(void **state)
{
	static struct rig rig;
	int idle, busy;

	(void)state;
	rig_open(&rig, 10);
	rig.limits.idle_timeout_ns = 300000000;
	idle = dial(&rig);
	busy = dial(&rig);
	turns(&rig, 3);
	for (int i = 0; i < 5; i++) {
		usleep(100000);
		say(busy, "b\n");
		hear(&rig, busy, "b\n");
	}
	hear_end(&rig, idle);
	assert_int_equal(counter_get(&rig.counters->idle_kicks), 1);
	say(busy, "b\n");
	hear(&rig, busy, "b\n");
	close(idle);
	close(busy);
	rig_close(&rig);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_echo),
		cmocka_unit_test(test_half_open),
		cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_reader_leaves),
		cmocka_unit_test(test_connection_limit),
		cmocka_unit_test(test_stalled),
		cmocka_unit_test(test_endless_line),
		cmocka_unit_test(test_idle),
	};

	return cmocka_run_group_tests_name("event", tests, NULL, NULL);
}
