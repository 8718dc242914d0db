/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The backend without io_uring: a queue has threads that pread and pwrite. Requests go to them
 * through a list, and come back through another, both under the queue's lock; an eventfd is readable
 * exactly while the latter holds something. As many requests are at the device at once as there are
 * threads.
 */
#include "flash/io_file.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#define THREADS_MAX 32

struct list {
	struct io_request *first, **last;
};

struct io_queue {
	struct io *io;
	uint32_t depth;
	uint32_t under_way;    /* the owner's */
	struct list submitted; /* the owner's, until push */
	struct list done;      /* the owner's: taken from 'finished' at once */
	int event_fd;

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t wake;
	struct list queued;
	struct list finished;
	bool stop;
	uint32_t thread_count;
	pthread_t threads[THREADS_MAX];
};

static void
list_init(struct list *list)
{
	list->first = NULL;
	list->last = &list->first;
}

static void
list_put(struct list *list, struct io_request *request)
{
	request->next = NULL;
	*list->last = request;
	list->last = &request->next;
}

static struct io_request *
list_take(struct list *list)
{
	struct io_request *request = list->first;

	if (request) {
		list->first = request->next;
		if (!list->first)
			list->last = &list->first;
		request->next = NULL;
	}
	return request;
}

/* Empties 'from' behind 'to'. */
static void
list_move(struct list *to, struct list *from)
{
	if (!from->first)
		return;
	*to->last = from->first;
	to->last = from->last;
	list_init(from);
}

static int64_t
transfer(int fd, const struct io_request *request)
{
	struct iovec piece = {(char *)request->data + request->done, request->size - request->done};
	off_t offset = (off_t)(request->offset + request->done);
	int64_t n = -1;

	switch ((enum io_op)request->op) {
	case IO_READ:
		n = preadv(fd, &piece, 1, offset);
		break;
	case IO_WRITE:
		n = pwritev2(fd, &piece, 1, offset, request->durable ? RWF_DSYNC : 0);
		break;
	case IO_FLUSH:
		n = fdatasync(fd);
		break;
	case IO_DISCARD:
		n = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			(off_t)request->offset, (off_t)request->size);
		break;
	}
	return n < 0 ? -errno : n;
}

static void *
serve(void *argument)
{
	struct io_queue *queue = argument;

	pthread_mutex_lock(&queue->lock);
	while (!queue->stop) {
		struct io_request *request = list_take(&queue->queued);

		if (!request) {
			pthread_cond_wait(&queue->wake, &queue->lock);
			continue;
		}
		pthread_mutex_unlock(&queue->lock);
		while (!io_file_advance(request, transfer(queue->io->fds[request->file], request)))
			;
		pthread_mutex_lock(&queue->lock);
		if (!queue->finished.first)
			check(eventfd_write(queue->event_fd, 1) == 0);
		list_put(&queue->finished, request);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

static void
end_threads(struct io_queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	queue->stop = true;
	pthread_cond_broadcast(&queue->wake);
	pthread_mutex_unlock(&queue->lock);
	for (uint32_t i = 0; i < queue->thread_count; i++)
		pthread_join(queue->threads[i], NULL);
	pthread_cond_destroy(&queue->wake);
	pthread_mutex_destroy(&queue->lock);
	if (queue->event_fd >= 0)
		close(queue->event_fd);
	free(queue);
}

static struct io_queue *
threads_queue_create(struct io *io, const struct io_queue_options *options)
{
	struct io_queue *queue = calloc(1, sizeof *queue);
	uint32_t wanted = options->depth < THREADS_MAX ? options->depth : THREADS_MAX;
	sigset_t all, before;
	int reason = 0;

	if (!queue)
		return NULL;
	queue->io = io;
	queue->depth = options->depth;
	list_init(&queue->submitted);
	list_init(&queue->done);
	list_init(&queue->queued);
	list_init(&queue->finished);
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->wake, NULL);
	queue->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (queue->event_fd < 0)
		reason = errno;
	/* The daemon's signals aren't theirs. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (reason == 0 && queue->thread_count < wanted) {
		reason = pthread_create(&queue->threads[queue->thread_count], NULL, serve, queue);
		queue->thread_count += reason == 0;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (queue->event_fd >= 0 && queue->thread_count > 0)
		return queue;
	end_threads(queue);
	errno = reason;
	return NULL;
}

static bool
threads_submit(struct io_queue *queue, struct io_request **request)
{
	check(io_file_fits(queue->io, *request));
	if (queue->under_way == queue->depth)
		return false;
	(*request)->done = 0;
	queue->under_way++;
	list_put(&queue->submitted, *request);
	*request = NULL;
	return true;
}

static void
threads_push(struct io_queue *queue)
{
	if (!queue->submitted.first)
		return;
	pthread_mutex_lock(&queue->lock);
	list_move(&queue->queued, &queue->submitted);
	pthread_cond_broadcast(&queue->wake);
	pthread_mutex_unlock(&queue->lock);
}

static struct io_request *
threads_poll(struct io_queue *queue)
{
	struct io_request *request = list_take(&queue->done);
	eventfd_t count;

	if (!request && queue->under_way > 0) {
		pthread_mutex_lock(&queue->lock);
		if (queue->finished.first) {
			list_move(&queue->done, &queue->finished);
			check(eventfd_read(queue->event_fd, &count) == 0);
		}
		pthread_mutex_unlock(&queue->lock);
		request = list_take(&queue->done);
	}
	queue->under_way -= request != NULL;
	return request;
}

static void
threads_wait(struct io_queue *queue, int timeout_ms)
{
	struct pollfd bell = {.fd = queue->event_fd, .events = POLLIN};

	threads_push(queue);
	if (queue->under_way == 0 || queue->done.first)
		return;
	while (poll(&bell, 1, timeout_ms) < 0 && errno == EINTR)
		;
}

static int
threads_descriptor(const struct io_queue *queue)
{
	return queue->event_fd;
}

static void
threads_queue_destroy(struct io_queue *queue)
{
	if (!queue)
		return;
	check(queue->under_way == 0);
	end_threads(queue);
}

const struct io_backend io_threads_backend = {
	.name = "threads",
	.open = io_file_open,
	.file_count = io_file_count,
	.file = io_file_info,
	.close = io_file_close,
	.queue_create = threads_queue_create,
	.submit = threads_submit,
	.push = threads_push,
	.poll = threads_poll,
	.wait = threads_wait,
	.descriptor = threads_descriptor,
	.queue_destroy = threads_queue_destroy,
};
