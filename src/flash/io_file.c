/* SPDX-License-Identifier: BSD-2-Clause */
#include "flash/io_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_LEAST 512
#define BLOCK_MOST 65536
/*
 * A ring of a process that was killed lets its files go a little after the process is gone: so often,
 * so many milliseconds apart, a lock is tried.
 */
#define LOCK_TRIES 300
#define LOCK_PAUSE_MS 10

static int
say(char *error, size_t size, const char *path, const char *what, int reason)
{
	snprintf(error, size, "%s: %s%s%s", path, what, reason ? ": " : "",
		reason ? strerror(reason) : "");
	return -1;
}

/* What transfers must be multiples of, and how long the file is. */
static int
measure(int fd, const char *path, struct io_file_info *info, char *error, size_t error_size)
{
	struct stat status;

	if (fstat(fd, &status))
		return say(error, error_size, path, "cannot be examined", errno);
	info->block = info->memory_align = BLOCK_LEAST;
	if (S_ISBLK(status.st_mode)) {
		unsigned int block;

		info->device = true;
		if (ioctl(fd, BLKGETSIZE64, &info->size) || ioctl(fd, BLKSSZGET, &block))
			return say(error, error_size, path, "cannot be measured", errno);
		info->block = info->memory_align = block;
		return 0;
	}
	if (!S_ISREG(status.st_mode))
		return say(error, error_size, path, "is neither a file nor a block device", 0);
	info->size = (uint64_t)status.st_size;
#ifdef STATX_DIOALIGN
	struct statx extended;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &extended) == 0 &&
		(extended.stx_mask & STATX_DIOALIGN) && extended.stx_dio_offset_align) {
		info->block = extended.stx_dio_offset_align;
		info->memory_align = extended.stx_dio_mem_align;
	}
#endif
	return 0;
}

/* Blocks are reserved now, so that a full file system is found out at start (where it can be). */
static int
make_longer(int fd, const struct io_file_options *options, struct io_file_info *info, char *error,
	size_t error_size)
{
	off_t size = (off_t)options->size;
	int result;

	if (options->size <= info->size)
		return 0;
	if (info->device || options->read_only)
		return say(error, error_size, options->path, "is smaller than it should be", 0);
	do
		result = fallocate(fd, 0, 0, size);
	while (result && errno == EINTR);
	if (result && errno == EOPNOTSUPP)
		result = ftruncate(fd, size);
	if (result)
		return say(error, error_size, options->path, "cannot be made so large", errno);
	info->size = options->size;
	return 0;
}

static int
lock(int fd, bool read_only)
{
	static const struct timespec pause = {0, LOCK_PAUSE_MS * 1000000L};
	int result;

	for (int i = 0; (result = flock(fd, (read_only ? LOCK_SH : LOCK_EX) | LOCK_NB)) != 0 &&
			errno == EWOULDBLOCK && i < LOCK_TRIES;
		i++)
		nanosleep(&pause, NULL);
	return result;
}

static int
open_one(const struct io_file_options *options, struct io_file_info *info, char *error,
	size_t error_size)
{
	int flags = (options->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
	int create = options->read_only || options->size == 0 ? 0 : O_CREAT;
	int fd = open(options->path, flags | create | O_DIRECT, 0600);

	info->direct = fd >= 0;
	if (fd < 0 && errno == EINVAL)
		fd = open(options->path, flags | create, 0600);
	if (fd < 0)
		return say(error, error_size, options->path, "cannot be opened", errno);
	snprintf(info->name, sizeof info->name, "%s", options->path);
	if (lock(fd, options->read_only)) {
		say(error, error_size, options->path,
			errno == EWOULDBLOCK ? "another process has it" : "cannot be locked",
			errno == EWOULDBLOCK ? 0 : errno);
	} else if (measure(fd, options->path, info, error, error_size) == 0 &&
		   make_longer(fd, options, info, error, error_size) == 0) {
		if (info->block >= BLOCK_LEAST && info->block <= BLOCK_MOST &&
			(info->block & (info->block - 1)) == 0) {
			info->size -= info->size % info->block;
			return fd;
		}
		say(error, error_size, options->path, "has blocks of an unusual size", 0);
	}
	flock(fd, LOCK_UN);
	close(fd);
	return -1;
}

struct io *
io_file_open(const struct io_file_options *files, uint32_t count, char *error, size_t error_size)
{
	struct io *io;

	if (count == 0 || count > IO_FILES_MAX) {
		snprintf(error, error_size, "%u files: 1 to %d can be used", count, IO_FILES_MAX);
		return NULL;
	}
	io = calloc(1, sizeof *io);
	if (!io) {
		snprintf(error, error_size, "%s: no memory", files[0].path);
		return NULL;
	}
	for (; io->count < count; io->count++) {
		int fd = open_one(&files[io->count], &io->info[io->count], error, error_size);

		if (fd < 0) {
			io_file_close(io);
			return NULL;
		}
		io->fds[io->count] = fd;
	}
	return io;
}

uint32_t
io_file_count(const struct io *io)
{
	return io->count;
}

const struct io_file_info *
io_file_info(const struct io *io, uint32_t number)
{
	return &io->info[number];
}

void
io_file_close(struct io *io)
{
	if (!io)
		return;
	for (uint32_t i = 0; i < io->count; i++) {
		/* A ring that is being taken down may keep the file open, and its lock. */
		flock(io->fds[i], LOCK_UN);
		close(io->fds[i]);
	}
	free(io);
}

bool
io_file_fits(const struct io *io, const struct io_request *request)
{
	const struct io_file_info *info;

	if (request->file >= io->count)
		return false;
	info = &io->info[request->file];
	if (request->op == IO_FLUSH)
		return true;
	if (request->offset % info->block || request->size % info->block || request->size == 0 ||
		request->size > INT32_MAX || request->offset > info->size ||
		request->size > info->size - request->offset)
		return false;
	return request->op == IO_DISCARD || (uintptr_t)request->data % info->memory_align == 0;
}

bool
io_file_advance(struct io_request *request, int64_t n)
{
	if (n == -EINTR || n == -EAGAIN)
		return false;
	/* A rest that begins within a block: the file ends there. */
	if (n == -EINVAL && request->done > 0)
		n = -EIO;
	if (n < 0) {
		request->result = request->op == IO_DISCARD ? 0 : (int32_t)n;
		return true;
	}
	request->result = 0;
	if (request->op != IO_READ && request->op != IO_WRITE)
		return true;
	/* Nothing more where there should be something: the file was cut. */
	if (n == 0) {
		request->result = -EIO;
		return true;
	}
	request->done += (uint32_t)n;
	return request->done >= request->size;
}
