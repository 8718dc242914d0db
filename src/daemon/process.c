/* SPDX-License-Identifier: BSD-2-Clause */
#include "daemon/process.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#define FILES_BESIDE_CONNECTIONS 64 /* listeners, the log, each worker's polling */
#define FILES_A_WORKER 4
#define PID_TEXT 24

static void
say_unused(const struct options *options)
{
	char names[512] = "";
	size_t used = 0;

	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++) {
		const struct option_row *row = &options_table()[i];

		if (row->state == OPTION_UNUSED && options->given[i] && used < sizeof names)
			used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
				used ? ", " : "", row->name);
	}
	if (used)
		log_notice("accepted, but without a meaning here: %s", names);
}

static bool
raise_limit(int what, rlim_t wanted)
{
	struct rlimit limit;

	if (getrlimit(what, &limit) != 0)
		return false;
	if (limit.rlim_cur != RLIM_INFINITY &&
		(wanted == RLIM_INFINITY || limit.rlim_cur < wanted)) {
		limit.rlim_cur = wanted;
		if (limit.rlim_max != RLIM_INFINITY &&
			(wanted == RLIM_INFINITY || limit.rlim_max < wanted))
			limit.rlim_max = wanted;
	}
	return setrlimit(what, &limit) == 0;
}

/*
 * A limit of files that is too low lowers the connections, unless the operator asked for that many.
 */
static int
limit_files(struct options *options)
{
	rlim_t beside = FILES_BESIDE_CONNECTIONS + FILES_A_WORKER * (rlim_t)options->threads;
	rlim_t wanted = (rlim_t)options->connections_max + beside;
	struct rlimit limit;

	if (raise_limit(RLIMIT_NOFILE, wanted))
		return EX_OK;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
		options->given[OPTION_NUMBER_connections_max] || limit.rlim_max <= beside) {
		log_error("option -c (--conn-limit): %lld connections need %llu open files, more "
			  "than this process may have",
			(long long)options->connections_max, (unsigned long long)wanted);
		return EX_OSERR;
	}
	raise_limit(RLIMIT_NOFILE, limit.rlim_max);
	options->connections_max = (int64_t)(limit.rlim_max - beside);
	log_warning("the limit of open files allows %lld connections",
		(long long)options->connections_max);
	return EX_OK;
}

void
process_fill_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* The option's text, from the root folder on. */
static bool
make_absolute(struct options *options, size_t number, const char **path)
{
	char *folder, *absolute = NULL;
	bool fine;

	if (!*path || **path == '/' || !**path)
		return true;
	folder = getcwd(NULL, 0);
	fine = folder && asprintf(&absolute, "%s/%s", folder, *path) >= 0;
	free(folder);
	if (!fine) {
		log_error("option --%s: cannot tell the folder of %s: %s",
			options_table()[number].name, *path, strerror(errno));
		return false;
	}
	free(options->owned[number]);
	options->owned[number] = absolute;
	*path = absolute;
	return true;
}

/* A daemon leaves the folder that relative paths start from. */
static bool
make_paths_absolute(struct options *options)
{
	return make_absolute(options, OPTION_NUMBER_pidfile, &options->pidfile) &&
	       make_absolute(options, OPTION_NUMBER_log_file, &options->log_file) &&
	       make_absolute(options, OPTION_NUMBER_unix_socket, &options->unix_socket);
}

int
process_prepare(struct options *options)
{
	log_set_verbosity((unsigned)options->verbose);
	if (options->daemonize && !make_paths_absolute(options))
		return EX_OSERR;
	if (!log_open(options->log_file)) {
		fprintf(stderr, "halcyond: option --log-file: cannot open %s: %s\n",
			options->log_file, strerror(errno));
		return EX_CANTCREAT;
	}
	say_unused(options);
	if (options->memory < 2)
		log_notice("-m %llu: works as 2 megabytes, the least that there can be",
			(unsigned long long)options->memory);
	if (geteuid() == 0 && !options->user) {
		log_error("option -u (--user): refusing to run as root without it; '-u root' says "
			  "that root is meant");
		return EX_USAGE;
	}
	if (options->coredumps && !raise_limit(RLIMIT_CORE, RLIM_INFINITY))
		log_warning(
			"option -r (--enable-coredumps): cannot raise the limit of core files: %s",
			strerror(errno));
	return limit_files(options);
}

static bool
become_user(const char *name)
{
	struct passwd *user;

	if (!name || geteuid() != 0)
		return true;
	user = getpwnam(name);
	if (!user) {
		log_error("option -u (--user): there is no user %.64s", name);
		return false;
	}
	if (user->pw_uid == 0)
		return true;
	log_give(user->pw_uid, user->pw_gid);
	if (initgroups(name, user->pw_gid) != 0 || setgid(user->pw_gid) != 0 ||
		setuid(user->pw_uid) != 0) {
		log_error("option -u (--user): cannot become %.64s: %s", name, strerror(errno));
		return false;
	}
	return true;
}

/* Reads one byte: the child serves. Without it, the child's exit code is the parent's. */
static void
wait_for_child(int fd, pid_t child)
{
	int status = 0;
	char byte;

	if (read(fd, &byte, 1) == 1)
		_exit(0);
	waitpid(child, &status, 0);
	_exit(WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : EX_OSERR);
}

static bool
go_into_background(struct process *process)
{
	int ends[2], nowhere;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) != 0 || (child = fork()) < 0) {
		log_error("option -d (--daemon): cannot start a process: %s", strerror(errno));
		return false;
	}
	if (child > 0) {
		close(ends[1]);
		wait_for_child(ends[0], child);
	}
	close(ends[0]);
	process->parent = ends[1];
	setsid();
	nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (nowhere >= 0) {
		dup2(nowhere, STDIN_FILENO);
		dup2(nowhere, STDOUT_FILENO);
		close(nowhere);
	}
	return true;
}

/*
 * Opened as the user that started us, written when we serve: until then it may be another
 * instance's.
 */
static bool
open_pid(struct process *process)
{
	const char *path = process->options->pidfile;
	int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;

	process->pid_fd = open(path, flags | O_CREAT | O_EXCL, 0644);
	process->pid_created = process->pid_fd >= 0;
	if (process->pid_fd < 0 && errno == EEXIST)
		process->pid_fd = open(path, flags);
	if (process->pid_fd < 0)
		log_error("option -P (--pidfile): cannot open %s: %s", path, strerror(errno));
	return process->pid_fd >= 0;
}

bool
process_write_pid(struct process *process)
{
	char text[PID_TEXT];
	int size = snprintf(text, sizeof text, "%ld\n", (long)getpid());

	if (process->pid_fd < 0)
		return true;
	/* What isn't a regular file has no length. */
	if ((ftruncate(process->pid_fd, 0) == 0 || errno == EINVAL) &&
		pwrite(process->pid_fd, text, (size_t)size, 0) == size)
		return true;
	log_error("option -P (--pidfile): cannot write %s: %s", process->options->pidfile,
		strerror(errno));
	return false;
}

/* Whether the path leads to the file that was opened, and this names us, or nobody if we made it. */
static bool
is_our_pid_file(const struct process *process)
{
	char text[PID_TEXT] = "";
	struct stat named, opened;
	ssize_t size = pread(process->pid_fd, text, sizeof text - 1, 0);

	return lstat(process->options->pidfile, &named) == 0 && S_ISREG(named.st_mode) &&
	       fstat(process->pid_fd, &opened) == 0 && named.st_dev == opened.st_dev &&
	       named.st_ino == opened.st_ino &&
	       ((size == 0 && process->pid_created) || (size > 0 && atol(text) == (long)getpid()));
}

/* From a folder that is root's it can't go any more after the change of user: it becomes empty. */
static void
remove_pid(struct process *process)
{
	int reason;

	if (process->pid_fd < 0)
		return;
	if (is_our_pid_file(process) && unlink(process->options->pidfile) != 0 && errno != ENOENT) {
		reason = errno;
		if (ftruncate(process->pid_fd, 0) != 0 || (reason != EACCES && reason != EPERM))
			log_warning("cannot remove %s: %s", process->options->pidfile,
				strerror(reason));
	}
	close(process->pid_fd);
	process->pid_fd = -1;
}

/*
 * Locked mappings count whole against their limit, reserved address ranges too, and would then fail
 * later and elsewhere: memory is locked only where there is no limit. Pages are locked when they
 * are first used, so that these ranges aren't filled.
 */
static void
lock_memory(void)
{
	struct rlimit limit = {0};

	if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY)
		log_warning("option -k (--lock-memory): memory isn't locked, because this process "
			    "may lock only %llu bytes (ulimit -l)",
			(unsigned long long)limit.rlim_cur);
	else if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0)
		log_warning("option -k (--lock-memory): cannot lock memory: %s", strerror(errno));
}

bool
process_begin(struct process *process)
{
	const struct options *options = process->options;

	if (options->daemonize && !go_into_background(process))
		return false;
	if (options->pidfile && !open_pid(process))
		return false;
	if (options->lock_memory && geteuid() == 0)
		raise_limit(RLIMIT_MEMLOCK, RLIM_INFINITY);
	if (!become_user(options->user))
		return false;
	if (options->lock_memory)
		lock_memory();
	return true;
}

void
process_ready(struct process *process)
{
	int nowhere;

	if (process->parent < 0)
		return;
	if (write(process->parent, "1", 1) != 1)
		log_warning("the parent process is gone: %s", strerror(errno));
	close(process->parent);
	process->parent = -1;
	/* Only now: messages until here were the starter's to read. */
	nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (nowhere >= 0) {
		if (!process->options->verbose)
			dup2(nowhere, STDERR_FILENO);
		close(nowhere);
	}
	if (!process->options->coredumps && chdir("/") != 0)
		log_warning("cannot change to the root folder: %s", strerror(errno));
}

void
process_end(struct process *process)
{
	if (process->parent >= 0)
		close(process->parent);
	process->parent = -1;
	remove_pid(process);
}

void
process_print_licenses(FILE *file)
{
	fprintf(file, "halcyond is distributed under the 2-clause BSD license (file COPYING).\n"
		      "It uses libevent (3-clause BSD), liburcu (LGPL 2.1), xxHash (2-clause BSD), "
		      "liburing (LGPL 2.1 or MIT)\n"
		      "and jemalloc (2-clause BSD), each under its own license.\n");
}
