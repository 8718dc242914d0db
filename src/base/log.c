/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/log.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024
#define LINES_A_SECOND 100 /* errors, warnings, notices */
#define DETAIL_A_SECOND 20 /* below these */

static char *file_path;
static _Atomic int file = STDERR_FILENO;
static bool journal;
static _Atomic unsigned verbosity;
static _Atomic uint64_t dropped;
static _Atomic uint64_t second[2];
static _Atomic uint32_t lines_this_second[2];

/*
 * systemd names the device and inode of the journal's stream; only then do lines begin with their
 * priority.
 */
static bool
is_journal(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat status;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       fstat(fd, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

bool
log_open(const char *path)
{
	int fd;

	journal = is_journal(STDERR_FILENO);
	if (!path)
		return true;
	fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
	if (fd < 0)
		return false;
	free(file_path);
	file_path = strdup(path);
	atomic_store(&file, fd);
	journal = false;
	return true;
}

void
log_give(unsigned user, unsigned group)
{
	int fd = atomic_load(&file);
	struct stat status;

	if (file_path && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == 0 &&
		status.st_nlink == 1 && fchown(fd, user, group) != 0)
		log_warning("cannot give %s to the user: %s", file_path, strerror(errno));
}

void
log_reopen(void)
{
	int fd;

	if (!file_path)
		return;
	fd = open(file_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
	if (fd < 0) {
		log_error("cannot open the log file %s again: %s", file_path, strerror(errno));
		return;
	}
	/* The number stays, so a thread that is writing at this moment has a valid one. */
	dup3(fd, atomic_load(&file), O_CLOEXEC);
	close(fd);
}

void
log_close(void)
{
	int fd = atomic_exchange(&file, STDERR_FILENO);

	if (fd != STDERR_FILENO)
		close(fd);
	free(file_path);
	file_path = NULL;
}

void
log_set_verbosity(unsigned level)
{
	atomic_store_explicit(&verbosity, level, memory_order_relaxed);
}

unsigned
log_verbosity(void)
{
	return atomic_load_explicit(&verbosity, memory_order_relaxed);
}

uint64_t
log_dropped(void)
{
	return atomic_load_explicit(&dropped, memory_order_relaxed);
}

static bool
within_rate(enum log_level level)
{
	unsigned kind = level > LOG_LEVEL_NOTICE;
	uint64_t now = clock_monotonic_ns() / CLOCK_SECOND_NS;

	if (atomic_exchange_explicit(&second[kind], now, memory_order_relaxed) != now)
		atomic_store_explicit(&lines_this_second[kind], 0, memory_order_relaxed);
	return atomic_fetch_add_explicit(&lines_this_second[kind], 1, memory_order_relaxed) <
	       (kind ? DETAIL_A_SECOND : LINES_A_SECOND);
}

/* A pipe whose reader sleeps must not stop the caller: only what can be written at once is. */
static bool
write_now(int fd, const char *line, size_t size)
{
	struct pollfd ready = {.fd = fd, .events = POLLOUT};

	return poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT) &&
	       write(fd, line, size) == (ssize_t)size;
}

static size_t
put_prefix(char *line, size_t size, enum log_level level)
{
	struct timespec now;
	struct tm parts;
	int used;

	if (journal)
		return (size_t)snprintf(line, size, "<%d>", (int)level);
	if (!file_path)
		return (size_t)snprintf(line, size, "halcyond: ");
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &parts);
	used = (int)strftime(line, size, "%Y-%m-%dT%H:%M:%S", &parts);
	return (size_t)used + (size_t)snprintf(line + used, size - (size_t)used, ".%03ldZ ",
				      now.tv_nsec / 1000000);
}

void
log_line(enum log_level level, const char *format, ...)
{
	char line[LINE_MAX_BYTES];
	va_list arguments;
	size_t used;
	int size;

	if ((unsigned)level > LOG_LEVEL_NOTICE + log_verbosity())
		return;
	if (!within_rate(level)) {
		atomic_fetch_add_explicit(&dropped, 1, memory_order_relaxed);
		return;
	}
	used = put_prefix(line, sizeof line, level);
	va_start(arguments, format);
	size = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
	va_end(arguments);
	if (size < 0)
		return;
	used += (size_t)size < sizeof line - used - 1 ? (size_t)size : sizeof line - used - 2;
	line[used++] = '\n';
	if (!write_now(atomic_load(&file), line, used))
		atomic_fetch_add_explicit(&dropped, 1, memory_order_relaxed);
}
