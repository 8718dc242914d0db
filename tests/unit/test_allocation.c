/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * No request of the data path calls the allocator: its functions are this program's own, and count
 * while engine_run is at work (--wrap).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/engine_feed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 200
#define DEPTH 100

static unsigned long allocations;
static bool counting;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* glibc's own, below whatever library takes their names. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

void *
malloc(size_t size)
{
	allocations += counting;
	return __libc_malloc(size);
}

void *
calloc(size_t count, size_t size)
{
	allocations += counting;
	return __libc_calloc(count, size);
}

void *
realloc(void *memory, size_t size)
{
	allocations += counting;
	return __libc_realloc(memory, size);
}

void *
aligned_alloc(size_t alignment, size_t size)
{
	allocations += counting;
	return __libc_memalign(alignment, size);
}

int
posix_memalign(void **memory, size_t alignment, size_t size)
{
	allocations += counting;
	*memory = __libc_memalign(alignment, size);
	return *memory ? 0 : ENOMEM;
}

void
free(void *memory)
{
	__libc_free(memory);
}
#define COUNTED true
#else
#define COUNTED false
#endif

void __real_engine_run(struct engine *engine, struct batch *batch, const struct engine_time *time);
void __wrap_engine_run(struct engine *engine, struct batch *batch, const struct engine_time *time);

void
__wrap_engine_run(struct engine *engine, struct batch *batch, const struct engine_time *time)
{
	counting = true;
	__real_engine_run(engine, batch, time);
	counting = false;
}

/* What one turn's window holds: DEPTH times the format, with numbers for %d. */
static void
run(struct feed *feed, struct feed_stream *stream, const char *format)
{
	static char text[DEPTH * 256];
	size_t size = 0;

	for (int round = 0; round < ROUNDS; round++, size = 0) {
		for (int i = 0; i < DEPTH; i++)
			size += (size_t)snprintf(text + size, sizeof text - size,
				format, /* NOLINT */
				(round * DEPTH + i) % 500, i);
		feed_send(feed, stream, text, size);
		feed_take(stream, NULL);
	}
}

static void
data_path(void **state)
{
	static const char *const formats[] = {
		"set key-%d 0 0 4\r\n%04d\r\n",
		"get key-%d missing-%d\r\n",
		"gets key-%d missing-%d key-1 key-2 key-3\r\n",
		"gat 1000 key-%d missing-%d\r\n",
		"touch key-%d %d\r\n",
		"incr key-%d %d\r\n",
		"append key-%d 0 0 4\r\n%04d\r\n",
		"delete key-%d\r\nadd number-%d 0 0 1\r\n1\r\n",
		"mg key-%d v k f t s c O%d\r\n",
		"ms key-%d 4 F7\r\n%04d\r\n",
		"ma key-%d D%d\r\n",
		"md key-%d q O%d\r\nmn\r\n",
		"cas key-%d 0 0 4 %d\r\nabcd\r\n",
	};
	struct feed feed;
	struct feed_stream stream;

	(void)state;
	feed_open(&feed, &(struct feed_options){.limit_bytes = 16 << 20});
	feed_stream_open(&stream);
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
		allocations = 0;
		run(&feed, &stream, formats[i]);
		if (allocations)
			print_error("%lu allocations: %s\n", allocations, formats[i]);
		assert_int_equal(allocations, 0);
	}
	/* That it is able to see one: a body that arrives in pieces has a struct of its own. */
	allocations = 0;
	feed_send(&feed, &stream, "set large 0 0 60000\r\n", 21);
	assert_true(!COUNTED || allocations > 0);
	feed_stream_close(&feed, &stream);
	feed_close(&feed);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(data_path)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
