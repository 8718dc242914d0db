/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * admin: the commands that are about the daemon: stats, verbosity, cache_memlimit, shutdown,
 * debugtime. One a worker.
 */
#ifndef DAEMON_ADMIN_H
#define DAEMON_ADMIN_H

#include "engine/engine.h"

struct admin;
struct worker;

extern const struct engine_admin admin_commands; /* its context is a struct admin */

struct admin *admin_create(struct worker *worker);
void admin_destroy(struct admin *admin);

#endif
