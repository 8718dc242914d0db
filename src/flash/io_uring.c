/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The io_uring backend. A queue is a ring that one thread alone enters (SINGLE_ISSUER: the one that
 * pushes first, R_DISABLED until then); where the kernel has it, completions wait until that thread
 * asks for them (DEFER_TASKRUN), instead of interrupting it. A bit in the ring says that some wait
 * (TASKRUN_FLAG): asking when nothing is done costs no system call.
 *
 * A loop sleeps on an eventfd that the kernel rings: the ring's own descriptor doesn't wake a
 * sleeper for completions that wait. It is silenced only after something was seen, since only then
 * can it have rung, and what came meanwhile is looked for after that. The kernel may ring a little
 * after its completion can be seen; such a ring is silenced when poll finds nothing QUIET_MOST times.
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
#include <sys/syscall.h>
#include <unistd.h>

#define QUIET_MOST 16

struct io_queue {
	struct io_uring ring;
	struct io *io;
	uint32_t depth;
	uint32_t under_way;
	uint32_t buffers;
	int event_fd;
	unsigned quiet; /* polls that found nothing since event_fd was read */
	bool seen;	/* something came since event_fd was read */
	bool disabled;	/* until the first push */
	bool files_registered;
	bool refused; /* the kernel took not all at the last push */
	/* Rests to be transferred, and what found no free entry. */
	struct io_request *again_first, **again_last;
};

static int
make_ring(struct io_queue *queue, bool moves)
{
	/* From the best: each kernel refuses the flags that it doesn't know. */
	static const unsigned flags[] = {
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
		IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CLAMP,
#endif
#if defined(IORING_SETUP_COOP_TASKRUN) && defined(IORING_SETUP_TASKRUN_FLAG)
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CLAMP,
#endif
		IORING_SETUP_CLAMP,
	};
	int result = -EINVAL;

	for (size_t i = 0; i < sizeof flags / sizeof flags[0] && result == -EINVAL; i++) {
		queue->disabled = (flags[i] & IORING_SETUP_R_DISABLED) != 0;
		if (moves && queue->disabled)
			continue;
		result = io_uring_queue_init(queue->depth, &queue->ring, flags[i]);
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
	result = make_ring(queue, options->moves);
	if (result < 0) {
		free(queue);
		errno = -result;
		return NULL;
	}
	queue->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	result = queue->event_fd < 0 ? -errno
				     : io_uring_register_eventfd(&queue->ring, queue->event_fd);
	if (result < 0) {
		io_uring_queue_exit(&queue->ring);
		if (queue->event_fd >= 0)
			close(queue->event_fd);
		free(queue);
		errno = -result;
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

static void
hand_over(struct io_queue *queue)
{
	if (queue->disabled)
		/* Not every liburing exports its function for it. */
		queue->disabled = syscall(__NR_io_uring_register, queue->ring.ring_fd,
					  IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0;
	queue->refused = io_uring_submit(&queue->ring) < 0 || io_uring_sq_ready(&queue->ring) > 0;
	/* Nothing else may wake the caller: it comes back, and poll tries again. */
	if (queue->refused)
		queue->seen = eventfd_write(queue->event_fd, 1) == 0 || queue->seen;
}

static bool
enter(struct io_queue *queue, struct io_request *request)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&queue->ring);

	if (!sqe) {
		hand_over(queue);
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
		hand_over(queue);
}

static struct io_request *
take_done(struct io_queue *queue)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&queue->ring, &cqe) == 0) {
		struct io_request *request = io_uring_cqe_get_data(cqe);
		int result = cqe->res;

		io_uring_cqe_seen(&queue->ring, cqe);
		queue->seen = true;
		if (io_file_advance(request, result)) {
			queue->under_way--;
			request->next = NULL;
			return request;
		}
		enter_later(queue, request);
	}
	return NULL;
}

/* Nothing was seen: silences the bell if it may have rung. true: it had, so look again. */
static bool
silence(struct io_queue *queue)
{
	eventfd_t rings;

	if (!queue->seen && ++queue->quiet < QUIET_MOST)
		return false;
	queue->seen = false;
	queue->quiet = 0;
	return eventfd_read(queue->event_fd, &rings) == 0;
}

static struct io_request *
uring_poll(struct io_queue *queue)
{
	struct io_request *request = queue->under_way > 0 ? take_done(queue) : NULL;

	if (request)
		return request;
	if (silence(queue) && queue->under_way > 0)
		request = take_done(queue);
	/* Before the caller sleeps on the descriptor, everything that can ring it is under way. */
	if (!request && (queue->again_first || queue->refused))
		uring_push(queue);
	return request;
}

static void
uring_wait(struct io_queue *queue, int timeout_ms)
{
	struct __kernel_timespec timeout = {
		.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000LL};
	struct io_uring_cqe *cqe;

	uring_push(queue);
	if (queue->under_way > 0)
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

/* 0, or why the kernel doesn't let us: a negated errno. */
static int
probe(void)
{
	struct io_uring ring;
	int result = io_uring_queue_init(2, &ring, 0);

	if (result == 0)
		io_uring_queue_exit(&ring);
	return result;
}

static struct io *
uring_open(const struct io_file_options *files, uint32_t count, char *error, size_t error_size)
{
	int result = probe();

	if (result == 0)
		return io_file_open(files, count, error, error_size);
	snprintf(error, error_size, "refused: io_uring, by the kernel: %s", strerror(-result));
	return NULL;
}

const struct io_backend io_uring_backend = {
	.name = "io_uring",
	.open = uring_open,
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
	int result = probe();

	if (why_size)
		*why = '\0';
	if (result == 0)
		return &io_uring_backend;
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
