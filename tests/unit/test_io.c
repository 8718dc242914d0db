/* SPDX-License-Identifier: BSD-2-Clause */
#define _GNU_SOURCE
#include "flash/io.h"
#include "flash/io_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCK 4096u
#define FILE_BYTES (1u << 20)

static const struct io_backend *const backends[] = {&io_uring_backend, &io_threads_backend};
#define EACH_BACKEND(b) for (unsigned b = 0; b < usable; b++)
#define BACKEND(b) backends[first + (b)]
static unsigned first, usable = 2;

static char path[64];

static int
setup(void **state)
{
	char why[256];

	(void)state;
	/* In the build's folder: a temporary file system may know no O_DIRECT. */
	snprintf(path, sizeof path, "io-test-%d", (int)getpid());
	unlink(path);
	if (io_choose(why, sizeof why) != &io_uring_backend) {
		print_message("# %s\n", why);
		first = usable = 1;
	}
	return 0;
}

static int
teardown(void **state)
{
	(void)state;
	unlink(path);
	return 0;
}

static struct io *
open_file(const struct io_backend *backend, uint64_t size)
{
	struct io_file_options options = {.path = path, .size = size};
	char error[256] = "";
	struct io *io = backend->open(&options, 1, error, sizeof error);

	assert_string_equal(error, "");
	assert_non_null(io);
	return io;
}

static struct io_queue *
make_queue(const struct io_backend *backend, struct io *io, uint32_t depth)
{
	struct io_queue_options options = {.depth = depth};
	struct io_queue *queue = backend->queue_create(io, &options);

	assert_non_null(queue);
	return queue;
}

static uint8_t *
make_data(size_t bytes)
{
	uint8_t *data = aligned_alloc(BLOCK, bytes);

	assert_non_null(data);
	memset(data, 0, bytes);
	return data;
}

static struct io_request
request_of(enum io_op op, uint64_t offset, uint32_t size, void *data)
{
	return (struct io_request){
		.op = (uint8_t)op, .offset = offset, .size = size, .data = data, .buffer = -1};
}

/* Does one request, and gives its result. */
static int
run(const struct io_backend *backend, struct io_queue *queue, struct io_request *request)
{
	struct io_request *given = request, *back;

	request->result = 12345;
	assert_true(backend->submit(queue, &given));
	assert_null(given);
	do
		backend->wait(queue, 10000);
	while (!(back = backend->poll(queue)));
	assert_ptr_equal(back, request);
	assert_null(backend->poll(queue));
	return request->result;
}

static bool
is_readable(int fd, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, timeout_ms) == 1 && (poll_fd.revents & POLLIN);
}

static void
test_write_and_read(void **state)
{
	(void)state;
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);
		struct io *io = open_file(backend, FILE_BYTES);
		const struct io_file_info *info = backend->file(io, 0);
		struct io_queue *queue = make_queue(backend, io, 8);
		uint8_t *out = make_data(4 * BLOCK), *in = make_data(4 * BLOCK);
		struct io_request request;

		assert_int_equal(backend->file_count(io), 1);
		assert_string_equal(info->name, path);
		assert_int_equal(info->size, FILE_BYTES);
		assert_false(info->device);
		for (unsigned i = 0; i < 4 * BLOCK; i++)
			out[i] = (uint8_t)(i * 7 + i / 256 + b);
		request = request_of(IO_WRITE, 8 * BLOCK, 4 * BLOCK, out);
		assert_int_equal(run(backend, queue, &request), 0);
		request = request_of(IO_READ, 8 * BLOCK, 4 * BLOCK, in);
		assert_int_equal(run(backend, queue, &request), 0);
		assert_memory_equal(in, out, 4 * BLOCK);
		/* One block of it, and durably changed. */
		request = request_of(IO_WRITE, 9 * BLOCK, info->block, in);
		request.durable = true;
		assert_int_equal(run(backend, queue, &request), 0);
		request = request_of(IO_READ, 9 * BLOCK, info->block, out);
		assert_int_equal(run(backend, queue, &request), 0);
		assert_memory_equal(in, out, info->block);
		request = request_of(IO_FLUSH, 0, 0, NULL);
		assert_int_equal(run(backend, queue, &request), 0);
		request = request_of(IO_DISCARD, 8 * BLOCK, BLOCK, NULL);
		assert_int_equal(run(backend, queue, &request), 0);
		backend->queue_destroy(queue);
		backend->close(io);
		/* What was written is in the file. */
		int fd = open(path, O_RDONLY);
		assert_int_equal(pread(fd, out, BLOCK, 10 * BLOCK), BLOCK);
		assert_memory_equal(out, in + 2 * BLOCK, BLOCK);
		close(fd);
		free(in);
		free(out);
	}
}

static void
test_depth(void **state)
{
	(void)state;
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);
		struct io *io = open_file(backend, FILE_BYTES);
		struct io_queue *queue = make_queue(backend, io, 4);
		uint8_t *data = make_data(5 * BLOCK);
		struct io_request requests[5], *given;
		unsigned back = 0;

		for (unsigned i = 0; i < 5; i++) {
			requests[i] = request_of(IO_READ, 0, BLOCK, data + i * BLOCK);
			given = &requests[i];
			assert_int_equal(backend->submit(queue, &given), i < 4);
		}
		assert_ptr_equal(given, &requests[4]);
		while (back < 4) {
			backend->wait(queue, -1);
			while (backend->poll(queue))
				back++;
		}
		assert_true(backend->submit(queue, &given));
		backend->wait(queue, -1);
		while (!backend->poll(queue))
			backend->wait(queue, -1);
		/* Nothing is under way: waiting for it would be for ever. */
		backend->wait(queue, -1);
		backend->queue_destroy(queue);
		backend->close(io);
		free(data);
	}
}

/* Random blocks, many at once, in both directions: what is read is what was written last. */
static void
mix(const struct io_backend *backend, struct io *io, struct io_queue *queue, unsigned rounds,
	unsigned many, bool sleep_on_descriptor)
{
	unsigned blocks = FILE_BYTES / BLOCK;
	uint32_t version[FILE_BYTES / BLOCK] = {0};
	uint8_t *data = make_data((size_t)many * BLOCK);
	struct io_request *requests = calloc(many, sizeof *requests);
	int descriptor = backend->descriptor(queue);

	for (unsigned round = 0; round < rounds; round++) {
		unsigned back = 0;

		for (unsigned i = 0; i < many; i++) {
			/* Another block for each. */
			unsigned block = (round * 7 + i * (blocks / many)) % blocks;
			bool write = (random() & 1) != 0 || version[block] == 0;
			uint32_t *words = (uint32_t *)(void *)(data + (size_t)i * BLOCK);
			struct io_request *given = &requests[i];

			requests[i] = request_of(
				write ? IO_WRITE : IO_READ, (uint64_t)block * BLOCK, BLOCK, words);
			version[block] += write;
			words[0] = write ? block : ~0u;
			words[BLOCK / 4 - 1] = write ? version[block] : ~0u;
			assert_true(backend->submit(queue, &given));
		}
		backend->push(queue);
		while (back < many) {
			struct io_request *request;

			if (sleep_on_descriptor)
				assert_true(is_readable(descriptor, 10000));
			else
				backend->wait(queue, 10000);
			while ((request = backend->poll(queue))) {
				uint32_t *words = request->data;
				uint32_t block = (uint32_t)(request->offset / BLOCK);

				assert_int_equal(request->result, 0);
				assert_int_equal(words[0], block);
				assert_int_equal(words[BLOCK / 4 - 1], version[block]);
				back++;
			}
		}
		/* Nothing is under way, so there is nothing to wake for: more than for nothing once. */
		for (unsigned i = 0; is_readable(descriptor, 0); i++) {
			assert_true(i < 32);
			assert_null(backend->poll(queue));
		}
	}
	assert_int_equal(backend->file(io, 0)->size, FILE_BYTES);
	free(requests);
	free(data);
}

static void
test_many(void **state)
{
	(void)state;
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);
		struct io *io = open_file(backend, FILE_BYTES);
		struct io_queue *queue = make_queue(backend, io, 64);

		mix(backend, io, queue, 50, 64, false);
		mix(backend, io, queue, 50, 64, true);
		mix(backend, io, queue, 300, 1, true);
		backend->queue_destroy(queue);
		backend->close(io);
	}
}

struct mover {
	const struct io_backend *backend;
	struct io *io;
	struct io_queue *queue;
};

static void *
move(void *argument)
{
	struct mover *mover = argument;

	mix(mover->backend, mover->io, mover->queue, 20, 32, true);
	mix(mover->backend, mover->io, mover->queue, 20, 32, false);
	return NULL;
}

/* A queue that changes hands, and comes back. */
static void
test_moves(void **state)
{
	(void)state;
	EACH_BACKEND(b)
	{
		struct io_queue_options options = {.depth = 32, .moves = true};
		struct mover mover = {.backend = BACKEND(b)};
		pthread_t thread;

		mover.io = open_file(mover.backend, FILE_BYTES);
		mover.queue = mover.backend->queue_create(mover.io, &options);
		assert_non_null(mover.queue);
		move(&mover);
		assert_int_equal(pthread_create(&thread, NULL, move, &mover), 0);
		pthread_join(thread, NULL);
		move(&mover);
		mover.backend->queue_destroy(mover.queue);
		mover.backend->close(mover.io);
	}
}

/* A queue that one thread makes and destroys, and another one uses. */
static void
test_handed(void **state)
{
	(void)state;
	EACH_BACKEND(b)
	{
		struct mover mover = {.backend = BACKEND(b)};
		pthread_t thread;

		mover.io = open_file(mover.backend, FILE_BYTES);
		mover.queue = make_queue(mover.backend, mover.io, 32);
		mover.backend->push(mover.queue);
		assert_null(mover.backend->poll(mover.queue));
		mover.backend->wait(mover.queue, -1);
		assert_int_equal(pthread_create(&thread, NULL, move, &mover), 0);
		pthread_join(thread, NULL);
		assert_null(mover.backend->poll(mover.queue));
		mover.backend->queue_destroy(mover.queue);
		mover.backend->close(mover.io);
	}
}

/* Buffers that are known beforehand; one request names none. */
static void
test_buffers(void **state)
{
	(void)state;
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);
		struct io *io = open_file(backend, FILE_BYTES);
		uint8_t *data = make_data(8 * BLOCK);
		struct iovec buffers[2] = {{data, 4 * BLOCK}, {data + 4 * BLOCK, 4 * BLOCK}};
		struct io_queue_options options = {
			.depth = 4, .buffers = buffers, .buffer_count = 2};
		struct io_queue *queue = backend->queue_create(io, &options);
		struct io_request request;

		assert_non_null(queue);
		memset(data, 0x5a, 8 * BLOCK);
		request = request_of(IO_WRITE, 0, 2 * BLOCK, data + BLOCK);
		request.buffer = 0;
		assert_int_equal(run(backend, queue, &request), 0);
		memset(data, 0, 8 * BLOCK);
		request = request_of(IO_READ, BLOCK, BLOCK, data + 6 * BLOCK);
		request.buffer = 1;
		assert_int_equal(run(backend, queue, &request), 0);
		request = request_of(IO_READ, 0, BLOCK, data);
		assert_int_equal(run(backend, queue, &request), 0);
		for (unsigned i = 0; i < BLOCK; i++) {
			assert_int_equal(data[i], 0x5a);
			assert_int_equal(data[6 * BLOCK + i], 0x5a);
			assert_int_equal(data[5 * BLOCK + i], 0);
		}
		backend->queue_destroy(queue);
		backend->close(io);
		free(data);
	}
}

static void
test_errors(void **state)
{
	(void)state;
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);
		struct io *io = open_file(backend, FILE_BYTES);
		struct io_queue *queue = make_queue(backend, io, 4);
		uint8_t *data = make_data(4 * BLOCK);
		struct io_request request;
		struct io_file_options options = {.path = path, .read_only = true};
		char error[256];

		/* The file was cut behind our back: within the transfer, within a block, before. */
		assert_int_equal(truncate(path, 4 * BLOCK), 0);
		request = request_of(IO_READ, 2 * BLOCK, 4 * BLOCK, data);
		assert_int_equal(run(backend, queue, &request), -EIO);
		assert_int_equal(request.done, 2 * BLOCK);
		assert_int_equal(truncate(path, 3 * BLOCK + 100), 0);
		request = request_of(IO_READ, 2 * BLOCK, 4 * BLOCK, data);
		assert_int_equal(run(backend, queue, &request), -EIO);
		request = request_of(IO_READ, 8 * BLOCK, BLOCK, data);
		assert_int_equal(run(backend, queue, &request), -EIO);
		request = request_of(IO_READ, 0, 2 * BLOCK, data);
		assert_int_equal(run(backend, queue, &request), 0);
		backend->queue_destroy(queue);
		backend->close(io);

		/* A descriptor that takes no writes; a hint never fails. */
		io = backend->open(&options, 1, error, sizeof error);
		assert_non_null(io);
		queue = make_queue(backend, io, 4);
		request = request_of(IO_WRITE, 0, BLOCK, data);
		assert_int_equal(run(backend, queue, &request), -EBADF);
		request = request_of(IO_DISCARD, 0, BLOCK, NULL);
		assert_int_equal(run(backend, queue, &request), 0);
		request = request_of(IO_READ, 0, BLOCK, data);
		assert_int_equal(run(backend, queue, &request), 0);
		backend->queue_destroy(queue);
		backend->close(io);
		free(data);
	}
}

/* A write that the system takes half of goes on where it ended, and tells why it can't. */
static void
test_short_write(void **state)
{
	struct rlimit before, limit;
	uint8_t *data = make_data(4 * BLOCK);

	(void)state;
	getrlimit(RLIMIT_FSIZE, &before);
	signal(SIGXFSZ, SIG_IGN);
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);
		struct io *io = open_file(backend, FILE_BYTES);
		struct io_queue *queue = make_queue(backend, io, 4);
		struct io_request request = request_of(IO_WRITE, 6 * BLOCK, 4 * BLOCK, data);

		limit = before;
		limit.rlim_cur = 8 * BLOCK;
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
		assert_int_equal(run(backend, queue, &request), -EFBIG);
		assert_int_equal(request.done, 2 * BLOCK);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		backend->queue_destroy(queue);
		backend->close(io);
	}
	signal(SIGXFSZ, SIG_DFL);
	free(data);
}

static void
test_rests(void **state)
{
	struct io_request request = request_of(IO_READ, 0, 3 * BLOCK, NULL);

	(void)state;
	assert_false(io_file_advance(&request, BLOCK));
	assert_int_equal(request.done, BLOCK);
	assert_false(io_file_advance(&request, -EINTR));
	assert_false(io_file_advance(&request, -EAGAIN));
	assert_int_equal(request.done, BLOCK);
	assert_true(io_file_advance(&request, 2 * BLOCK));
	assert_int_equal(request.result, 0);
	assert_int_equal(request.done, 3 * BLOCK);
	request = request_of(IO_WRITE, 0, BLOCK, NULL);
	assert_true(io_file_advance(&request, -EINVAL));
	assert_int_equal(request.result, -EINVAL);
	request = request_of(IO_FLUSH, 0, 0, NULL);
	assert_true(io_file_advance(&request, -EIO));
	assert_int_equal(request.result, -EIO);
	request = request_of(IO_FLUSH, 0, 0, NULL);
	assert_true(io_file_advance(&request, 0));
	assert_int_equal(request.result, 0);
}

static void
test_fits(void **state)
{
	struct io *io = open_file(&io_threads_backend, FILE_BYTES);
	uint32_t block = io_file_info(io, 0)->block;
	uint8_t *data = make_data(2 * BLOCK);
	struct io_request request = request_of(IO_READ, 0, block, data);

	(void)state;
	assert_true(io_file_fits(io, &request));
	request.file = 1;
	assert_false(io_file_fits(io, &request));
	request.file = UINT16_MAX;
	assert_false(io_file_fits(io, &request));
	request = request_of(IO_READ, FILE_BYTES - block, block, data);
	assert_true(io_file_fits(io, &request));
	request = request_of(IO_READ, FILE_BYTES - block, 2 * block, data);
	assert_false(io_file_fits(io, &request));
	request = request_of(IO_READ, FILE_BYTES + block, block, data);
	assert_false(io_file_fits(io, &request));
	request = request_of(IO_READ, UINT64_MAX - block + 1, block, data);
	assert_false(io_file_fits(io, &request));
	request = request_of(IO_READ, block / 2, block, data);
	assert_false(io_file_fits(io, &request));
	request = request_of(IO_READ, 0, block / 2, data);
	assert_false(io_file_fits(io, &request));
	request = request_of(IO_READ, 0, 0, data);
	assert_false(io_file_fits(io, &request));
	request = request_of(IO_READ, 0, block, data + 1);
	assert_false(io_file_fits(io, &request));
	io_file_close(io);
	free(data);
}

static void
test_locks(void **state)
{
	struct io_file_options one = {.path = path, .size = FILE_BYTES},
			       look = {.path = path, .read_only = true};
	struct io_file_options twice[2] = {one, one};
	char error[256];

	(void)state;
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);
		struct io *io = open_file(backend, FILE_BYTES), *other;

		assert_null(backend->open(&one, 1, error, sizeof error));
		assert_non_null(strstr(error, path));
		assert_non_null(strstr(error, "another process has it"));
		assert_null(backend->open(&look, 1, error, sizeof error));
		backend->close(io);
		assert_null(backend->open(twice, 2, error, sizeof error));
		/* The failed attempt left no lock behind; two may look at the same time. */
		io = backend->open(&look, 1, error, sizeof error);
		assert_non_null(io);
		other = backend->open(&look, 1, error, sizeof error);
		assert_non_null(other);
		assert_null(backend->open(&one, 1, error, sizeof error));
		backend->close(io);
		backend->close(other);
	}
}

static void
test_opening(void **state)
{
	struct io_file_options options = {.path = path};
	char error[256];
	struct stat status;
	struct io *io;

	(void)state;
	unlink(path);
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);

		/* Nothing is created without a size, or for looking. */
		options = (struct io_file_options){.path = path};
		assert_null(backend->open(&options, 1, error, sizeof error));
		assert_non_null(strstr(error, "cannot be opened"));
		options = (struct io_file_options){
			.path = path, .size = FILE_BYTES, .read_only = true};
		assert_null(backend->open(&options, 1, error, sizeof error));
		assert_int_equal(stat(path, &status), -1);
		/* Made, with its blocks; then longer; never shorter. */
		io = open_file(backend, FILE_BYTES);
		backend->close(io);
		assert_int_equal(stat(path, &status), 0);
		assert_int_equal(status.st_size, FILE_BYTES);
		assert_true(status.st_blocks * 512 >= FILE_BYTES);
		assert_int_equal(status.st_mode & 0777, 0600);
		options = (struct io_file_options){
			.path = path, .size = 2 * FILE_BYTES, .read_only = true};
		assert_null(backend->open(&options, 1, error, sizeof error));
		assert_non_null(strstr(error, "smaller"));
		io = open_file(backend, 2 * FILE_BYTES);
		assert_int_equal(backend->file(io, 0)->size, 2 * FILE_BYTES);
		backend->close(io);
		io = open_file(backend, FILE_BYTES);
		assert_int_equal(backend->file(io, 0)->size, 2 * FILE_BYTES);
		backend->close(io);
		options = (struct io_file_options){.path = "/dev/null"};
		assert_null(backend->open(&options, 1, error, sizeof error));
		options = (struct io_file_options){.path = "."};
		assert_null(backend->open(&options, 1, error, sizeof error));
		assert_null(backend->open(&options, 0, error, sizeof error));
		assert_null(backend->open(&options, IO_FILES_MAX + 1, error, sizeof error));
		unlink(path);
	}
}

/* --- where io_uring isn't allowed ------------------------------------------------------------ */

static bool
forbid_io_uring(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* In a child of its own. Gives its exit code: 0 as it should be, 77 where no filter can be set. */
static int
without_io_uring(void)
{
	struct io_file_options options = {.path = path, .size = FILE_BYTES};
	struct io_queue_options queue_options = {.depth = 4};
	const struct io_backend *backend;
	struct io *io;
	struct io_queue *queue;
	uint8_t *data = aligned_alloc(BLOCK, BLOCK);
	struct io_request request, *given = &request;
	char why[256] = "", error[256] = "";

	if (!data || !forbid_io_uring())
		return 77;
	backend = io_choose(why, sizeof why);
	if (backend != &io_threads_backend)
		return 1;
	if (!strstr(why, "io_uring is refused (Operation not permitted)") ||
		!strstr(why, "seccomp") || strchr(why, '\n'))
		return 2;
	if (io_uring_backend.open(&options, 1, error, sizeof error))
		return 3;
	if (strncmp(error, "refused", 7) != 0)
		return 4;
	io = backend->open(&options, 1, error, sizeof error);
	if (!io)
		return 5;
	queue = backend->queue_create(io, &queue_options);
	if (!queue)
		return 6;
	memset(data, 3, BLOCK);
	request = request_of(IO_WRITE, 0, BLOCK, data);
	if (!backend->submit(queue, &given))
		return 7;
	do
		backend->wait(queue, 10000);
	while (!(given = backend->poll(queue)));
	if (given != &request || request.result != 0)
		return 8;
	backend->queue_destroy(queue);
	backend->close(io);
	free(data);
	return 0;
}

static void
test_refused(void **state)
{
	pid_t child = fork();
	int status;

	(void)state;
	assert_true(child >= 0);
	if (child == 0)
		_exit(without_io_uring());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		print_message("# no seccomp filter can be set here: not tested\n");
	else
		assert_int_equal(WEXITSTATUS(status), 0);
}

static void
test_chosen(void **state)
{
	char why[256] = "x";

	(void)state;
	if (first == 0) {
		assert_ptr_equal(io_choose(why, sizeof why), &io_uring_backend);
		assert_string_equal(why, "");
	}
	assert_ptr_equal(io_choose(NULL, 0), backends[first]);
}

/* --- a device with blocks of 4 KiB, where one can be made ------------------------------------ */

static void
with_device(const char *device)
{
	EACH_BACKEND(b)
	{
		const struct io_backend *backend = BACKEND(b);
		struct io_file_options options = {.path = device, .size = FILE_BYTES};
		char error[256] = "";
		struct io *io = backend->open(&options, 1, error, sizeof error);
		struct io_queue *queue;
		uint8_t *data = make_data(2 * BLOCK);
		struct io_request request;

		assert_string_equal(error, "");
		assert_non_null(io);
		assert_true(backend->file(io, 0)->device);
		assert_int_equal(backend->file(io, 0)->block, 4096);
		assert_int_equal(backend->file(io, 0)->size, FILE_BYTES);
		request = request_of(IO_READ, 512, 4096, data);
		assert_false(io_file_fits(io, &request));
		request = request_of(IO_READ, 0, 512, data);
		assert_false(io_file_fits(io, &request));
		queue = make_queue(backend, io, 64);
		mix(backend, io, queue, 5, 64, true);
		request = request_of(IO_FLUSH, 0, 0, NULL);
		assert_int_equal(run(backend, queue, &request), 0);
		request = request_of(IO_DISCARD, 0, 4096, NULL);
		assert_int_equal(run(backend, queue, &request), 0);
		backend->queue_destroy(queue);
		backend->close(io);
		options.size = 2 * FILE_BYTES;
		assert_null(backend->open(&options, 1, error, sizeof error));
		assert_non_null(strstr(error, "smaller"));
		free(data);
	}
}

static void
test_device(void **state)
{
	char command[200], device[64] = "";
	FILE *output;

	(void)state;
	backends[1]->close(open_file(backends[1], FILE_BYTES));
	snprintf(command, sizeof command,
		"test $(id -u) = 0 && losetup -b 4096 -f --show '%s' 2> /dev/null", path);
	output = popen(command, "r");
	assert_non_null(output);
	if (!fgets(device, sizeof device, output))
		device[0] = '\0';
	pclose(output);
	device[strcspn(device, "\n")] = '\0';
	if (device[0] == '\0') {
		print_message("# no loop device can be made here: not tested\n");
		return;
	}
	with_device(device);
	snprintf(command, sizeof command, "losetup -d '%s'", device);
	assert_int_equal(system(command), 0);
}

/* What never wakes is killed, and fails so. */
static int
bound(void **state)
{
	(void)state;
	alarm(60);
	return 0;
}

#define BOUNDED(test) cmocka_unit_test_setup(test, bound)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		BOUNDED(test_opening),
		BOUNDED(test_write_and_read),
		BOUNDED(test_depth),
		BOUNDED(test_many),
		BOUNDED(test_moves),
		BOUNDED(test_handed),
		BOUNDED(test_buffers),
		BOUNDED(test_errors),
		BOUNDED(test_short_write),
		BOUNDED(test_rests),
		BOUNDED(test_fits),
		BOUNDED(test_locks),
		BOUNDED(test_refused),
		BOUNDED(test_chosen),
		BOUNDED(test_device),
	};

	return cmocka_run_group_tests_name("io", tests, setup, teardown);
}
