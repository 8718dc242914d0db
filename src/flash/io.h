/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * io: blocks of files and devices, asynchronously. It knows no item, no region and no clock.
 *
 * A store of blocks (struct io) is opened once and shared by all threads; each thread that reads or
 * writes has a queue of its own, and alone uses it:
 *
 *	submit(queue, &request) ... push(queue)		the backend has the requests
 *	poll(queue)					gives them back, done, in any order
 *
 * A request and its data belong to the backend from submit until poll gives it back, however long
 * the device takes: who gives up waiting must leave both alone until then.
 *
 * Backends: io_uring (one ring a queue), io_threads (pread and pwrite in threads, where io_uring is
 * refused), and in the tests a disk that tears, loses, reorders and fails.
 */
#ifndef FLASH_IO_H
#define FLASH_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define IO_FILES_MAX 64

enum io_op {
	IO_READ,
	IO_WRITE,
	IO_FLUSH,   /* what completed before it was submitted is durable when it completes */
	IO_DISCARD, /* the bytes may be forgotten; a hint, which never fails */
};

struct io_request {
	uint8_t op;	/* enum io_op */
	bool durable;	/* WRITE: when it completes it is on the medium */
	uint16_t file;	/* number of the file or device, in the order of opening */
	int16_t buffer; /* which of the queue's buffers data lies in; -1: none */
	uint16_t pad;
	uint32_t size;		 /* bytes; a multiple of the file's block */
	int32_t result;		 /* filled: 0, or a negated errno */
	uint64_t offset;	 /* a multiple of the file's block */
	void *data;		 /* aligned to the file's memory_align */
	void *context;		 /* the caller's */
	uint64_t started;	 /* the caller's: when it was submitted, for its own deadlines */
	struct io_request *next; /* the caller's before submit and after poll */
	uint32_t done;		 /* the backend's: bytes transferred so far */
	uint32_t pad2;
};

struct io_file_info {
	char name[256];
	uint64_t size;	       /* bytes, a multiple of block */
	uint32_t block;	       /* bytes: offsets and sizes are multiples of it */
	uint32_t memory_align; /* bytes */
	bool device;	       /* a block device, else a regular file */
	bool direct;	       /* O_DIRECT; false where the file system has none */
};

struct io;
struct io_queue;

struct io_file_options {
	const char *path;
	/*
	 * Bytes. A regular file is created, or made longer, with blocks reserved; 0 takes what is
	 * there. A device must have at least so many.
	 */
	uint64_t size;
	bool read_only; /* for inspection: nothing is created or changed */
};

struct io_queue_options {
	uint32_t depth; /* requests that the backend has at once, at most */
	/*
	 * Several threads use it one after the other; nothing is under way when it changes hands.
	 * Else one thread alone does: the one that pushes first. It must not end before all is back.
	 */
	bool moves;
	/* buffers that live as long as the queue, so that the kernel need not map them each time */
	const struct iovec *buffers;
	uint32_t buffer_count;
};

struct io_backend {
	const char *name;
	/*
	 * NULL with one line of what is wrong, the file named, in error. Files are numbered from 0.
	 * The order of two opens of the same files in two processes is settled by a lock on them.
	 */
	struct io *(*open)(const struct io_file_options *files, uint32_t count, char *error,
		size_t error_size);
	uint32_t (*file_count)(const struct io *io);
	const struct io_file_info *(*file)(const struct io *io, uint32_t number);
	void (*close)(struct io *io); /* no queue is left */

	/* Any thread: who uses it is told by its first push (but see 'moves'). NULL with errno. */
	struct io_queue *(*queue_create)(struct io *io, const struct io_queue_options *options);
	/* Takes *request (sets it to NULL); false when depth requests are taken already. */
	bool (*submit)(struct io_queue *queue, struct io_request **request);
	/* Hands what was submitted to the device: one system call at most. */
	void (*push)(struct io_queue *queue);
	/* One that is done, or NULL. Never blocks. Transfers are whole: a short one is continued. */
	struct io_request *(*poll)(struct io_queue *queue);
	/*
	 * Pushes, and blocks until poll may have something, or for timeout_ms (-1: without limit);
	 * not at all when nothing is under way. poll may give NULL afterwards.
	 */
	void (*wait)(struct io_queue *queue, int timeout_ms);
	/*
	 * Readable when poll may have something, so that a loop can sleep on it. Who sleeps on it
	 * must have called poll until it gave NULL; and calls it each time that it is readable, be
	 * anything under way or not: it may be so for nothing now and then.
	 */
	int (*descriptor)(const struct io_queue *queue);
	/* Any thread. Nothing is under way: all was given back by poll. */
	void (*queue_destroy)(struct io_queue *queue);
};

/* Refused by kernel or container: open gives NULL with 'refused' in the error's first word. */
extern const struct io_backend io_uring_backend;
extern const struct io_backend io_threads_backend;

/*
 * io_uring where the kernel lets us, else threads; *why says in one line why not, with the remedy,
 * "" otherwise.
 */
const struct io_backend *io_choose(char *why, size_t why_size);

#endif
