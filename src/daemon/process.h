/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * process: what the daemon is to the operating system: its user, limits, locks, files, and whether
 * it runs in the background.
 */
#ifndef DAEMON_PROCESS_H
#define DAEMON_PROCESS_H

#include "base/options.h"

#include <stdbool.h>
#include <stdio.h>

struct process {
	const struct options *options;
	int parent; /* the waiting parent's pipe, -1 for none */
	int pid_fd; /* of the pid file, -1 for none */
	bool pid_created;
};

/*
 * First of all: closed standard descriptors are opened to nowhere, so that no socket or file gets
 * their numbers.
 */
void process_fill_descriptors(void);

/*
 * Opens the log, says which options have no meaning, refuses root without -u, sets the limits of
 * files and cores, makes paths absolute when the folder will change. EX_OK or the process's exit code, with a line in the log.
 */
int process_prepare(struct options *options);

/*
 * Goes into the background, opens the pid file, becomes the user, locks memory. Sockets are open,
 * no thread exists. False with a line in the log.
 */
bool process_begin(struct process *process);
/*
 * About to serve: the pid file, which until now is as another instance may have left it, names this
 * process. False with a line in the log.
 */
bool process_write_pid(struct process *process);
/* It serves: lets the parent go. */
void process_ready(struct process *process);
/* Removes the pid file when it is ours. */
void process_end(struct process *process);

void process_print_licenses(FILE *file);

#endif
