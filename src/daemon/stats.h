/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * stats: every form of the stats command, in text and in binary frames.
 */
#ifndef DAEMON_STATS_H
#define DAEMON_STATS_H

#include "engine/engine.h"

struct worker;

/*
 * request->arguments: the words after 'stats'. Leaves the whole reply in text, or none and says the
 * status to answer.
 */
enum status stats_run(
	struct worker *worker, const struct request *request, struct engine_text *text);

#endif
