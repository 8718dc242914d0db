/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * prefixes: what 'stats detail' counts: commands by the part of the key before a delimiter. At most
 * 65536 prefixes; keys without the delimiter are not counted. Any thread.
 */
#ifndef DAEMON_PREFIXES_H
#define DAEMON_PREFIXES_H

#include "base/slice.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct prefixes;

enum prefix_event { PREFIX_GET, PREFIX_HIT, PREFIX_SET, PREFIX_DELETE, PREFIX_EVENTS };

struct prefixes *prefixes_create(char delimiter, bool enabled);
void prefixes_destroy(struct prefixes *prefixes);

/* True while commands are to be counted. */
const _Atomic bool *prefixes_enabled(const struct prefixes *prefixes);
void prefixes_enable(struct prefixes *prefixes, bool enabled);

/* PREFIX_HIT counts as a get too. */
void prefixes_count(struct prefixes *prefixes, struct slice key, enum prefix_event event);
void prefixes_clear(struct prefixes *prefixes);
void prefixes_visit(struct prefixes *prefixes,
	void (*visit)(void *context, struct slice prefix, const uint64_t counts[PREFIX_EVENTS]),
	void *context);

#endif
