/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The io_uring backend. A queue is a ring that one thread alone enters (SINGLE_ISSUER); where the
 * kernel has it, completions wait until that thread asks for them (DEFER_TASKRUN), instead of
 * interrupting it. An eventfd tells a sleeping loop.
 */
#include "flash/io_file.h"

#include "base/check.h"

#include <errno.h>
#include <liburing.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct io_queue {
	struct io_uring ring;
	struct io *io;
	uint32_t depth;
	uint32_t under_way;
	uint32_t buffers;
	int event_fd;
	bool files_registered;
	bool deferred;
	struct io_request *again_first,
		**again_last; /* a rest to be transferred: no entry was free */
};

static int
make_ring(struct io_queue *queue)
{
	static const unsigned flags[] = {
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CLAMP,
#endif
#ifdef IORING_SETUP_COOP_TASKRUN
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_CLAMP,
#endif
		IORING_SETUP_CLAMP,
	};
	int result = -EINVAL;

	for (size_t i = 0; i < sizeof flags / sizeof flags[0] && result == -EINVAL; i++) {
		result = io_uring_queue_init(queue->depth, &queue->ring, flags[i]);
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
		queue->deferred = result == 0 && (flags[i] & IORING_SETUP_DEFER_TASKRUN);
#endif
	}
	return result;
}

static struct io_queue *
uring_queue_create(struct io *io, const struct io_queue_options *options)
{
	struct io_queue *queue = calloc(1, sizeof *queue);
	int result;

	if (!queue)
		return NULL;
	queue->io = io;
	queue->depth = options->depth;
	queue->again_last = &queue->again_first;
	result = make_ring(queue);
	if (result < 0) {
		free(queue);
		errno = -result;
		return NULL;
	}
	queue->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (queue->event_fd < 0 || io_uring_register_eventfd(&queue->ring, queue->event_fd)) {
		int reason = errno;

		if (queue->event_fd >= 0)
			close(queue->event_fd);
		io_uring_queue_exit(&queue->ring);
		free(queue);
		errno = reason ? reason : ENOMEM;
		return NULL;
	}
	/* Both only save work a request: where the kernel refuses (locked memory), do without. */
	queue->files_registered = io_uring_register_files(&queue->ring, io->fds, io->count) == 0;
	if (options->buffer_count && io_uring_register_buffers(&queue->ring, options->buffers,
					     options->buffer_count) == 0)
		queue->buffers = options->buffer_count;
	return queue;
}

static void
prepare(struct io_queue *queue, struct io_uring_sqe *sqe, struct io_request *request)
{
	int fd = queue->files_registered ? request->file : queue->io->fds[request->file];
	char *data = (char *)request->data + request->done;
	unsigned size = request->size - request->done;
	uint64_t offset = request->offset + request->done;
	bool fixed = request->buffer >= 0 && (uint32_t)request->buffer < queue->buffers;

	switch ((enum io_op)request->op) {
	case IO_READ:
		if (fixed)
			io_uring_prep_read_fixed(sqe, fd, data, size, offset, request->buffer);
		else
			io_uring_prep_read(sqe, fd, data, size, offset);
		break;
	case IO_WRITE:
		if (fixed)
			io_uring_prep_write_fixed(sqe, fd, data, size, offset, request->buffer);
		else
			io_uring_prep_write(sqe, fd, data, size, offset);
		if (request->durable)
			sqe->rw_flags = RWF_DSYNC;
		break;
	case IO_FLUSH:
		io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
		break;
	case IO_DISCARD:
		io_uring_prep_fallocate(sqe, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)request->offset, (off_t)request->size);
		break;
	}
	if (queue->files_registered)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, request);
}

static bool
enter(struct io_queue *queue, struct io_request *request)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);

	if (!sqe) {
		io_uring_submit(&queue->ring);
		sqe = io_uring_get_sqe(&queue->ring);
		if (!sqe)
			return false;
	}
	prepare(queue, sqe, request);
	return true;
}

static void
enter_later(struct io_queue *queue, struct io_request *request)
{
	request->next = NULL;
	*queue->again_last = request;
	queue->again_last = &request->next;
}

static void
enter_rests(struct io_queue *queue)
{
	struct io_request *request;

	while ((request = queue->again_first)) {
		struct io_request *next = request->next;

		if (!enter(queue, request))
			return;
		queue->again_first = next;
		if (!next)
			queue->again_last = &queue->again_first;
	}
}

static bool
uring_submit(struct io_queue *queue, struct io_request **request)
{
	check(io_file_fits(queue->io, *request));
	if (queue->under_way == queue->depth)
		return false;
	(*request)->done = 0;
	queue->under_way++;
	if (!enter(queue, *request))
		enter_later(queue, *request);
	*request = NULL;
	return true;
}

static void
uring_push(struct io_queue *queue)
{
	enter_rests(queue);
	if (io_uring_sq_ready(&queue->ring))
		io_uring_submit(&queue->ring);
}

static struct io_request *
take_done(struct io_queue *queue)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&queue->ring, &cqe) == 0) {
		struct io_request *request = io_uring_cqe_get_data(cqe);
		int result = cqe->res;

		io_uring_cqe_seen(&queue->ring, cqe);
		if (io_file_advance(request, result)) {
			queue->under_way--;
			request->next = NULL;
			return request;
		}
		enter_later(queue, request);
	}
	return NULL;
}

static struct io_request *
uring_poll(struct io_queue *queue)
{
	struct io_request *request;
	uint64_t count;

	if (queue->under_way == 0)
		return NULL;
	request = take_done(queue);
	if (request)
		return request;
	/* Nothing seen: before the caller sleeps, the bell is silenced and all is looked at again. */
	if (read(queue->event_fd, &count, sizeof count) < 0 && !queue->deferred &&
		!queue->again_first)
		return NULL;
#ifdef IORING_SETUP_DEFER_TASKRUN
	if (queue->deferred)
		io_uring_get_events(&queue->ring);
#endif
	request = take_done(queue);
	if (queue->again_first)
		uring_push(queue);
	return request;
}

static void
uring_wait(struct io_queue *queue, int timeout_ms)
{
	struct __kernel_timespec timeout = {
		.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000LL};
	struct io_uring_cqe *cqe;

	enter_rests(queue);
	if (queue->under_way == 0)
		return;
	io_uring_submit(&queue->ring);
	io_uring_wait_cqes(&queue->ring, &cqe, 1, timeout_ms < 0 ? NULL : &timeout, NULL);
}

static int
uring_descriptor(const struct io_queue *queue)
{
	return queue->event_fd;
}

static void
uring_queue_destroy(struct io_queue *queue)
{
	if (!queue)
		return;
	check(queue->under_way == 0);
	io_uring_queue_exit(&queue->ring);
	close(queue->event_fd);
	free(queue);
}

const struct io_backend io_uring_backend = {
	.name = "io_uring",
	.open = io_file_open,
	.file_count = io_file_count,
	.file = io_file_info,
	.close = io_file_close,
	.queue_create = uring_queue_create,
	.submit = uring_submit,
	.push = uring_push,
	.poll = uring_poll,
	.wait = uring_wait,
	.descriptor = uring_descriptor,
	.queue_destroy = uring_queue_destroy,
};

const struct io_backend *
io_choose(char *why, size_t why_size)
{
	struct io_uring ring;
	int result = io_uring_queue_init(2, &ring, 0);

	if (why_size)
		*why = '\0';
	if (result == 0) {
		io_uring_queue_exit(&ring);
		return &io_uring_backend;
	}
	snprintf(why, why_size,
		"io_uring is refused (%s): flash is read by threads, which costs more CPU a read; "
		"%s",
		strerror(-result),
		result == -EPERM || result == -EACCES
			? "allow it in the container's seccomp profile and set "
			  "kernel.io_uring_disabled to 0"
		: result == -ENOMEM ? "raise the limit on locked memory (ulimit -l)"
				    : "Linux 5.10 or newer has it");
	return &io_threads_backend;
}
