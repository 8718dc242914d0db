/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * oracle: what each key may be. It is told what was acknowledged, and asked whether what a read gave
 * may be. Absent is always allowed: a cache may lose what it likes.
 *
 * A key has states: those that a read may give now (LIVE: one, or several after a crash, until a
 * read shows which), those that the process must not show any more but that a crash may bring back
 * (PENDING: a flush isn't acknowledged; LATELY: what superseded it was acknowledged a moment ago,
 * with a journal that promises no more). All others are forgotten: a read that gives one is the
 * failure that is looked for.
 */
#ifndef TESTS_SIM_ORACLE_H
#define TESTS_SIM_ORACLE_H

#include "flash/layout.h"

#include <stdbool.h>
#include <stdint.h>

enum oracle_standing { ORACLE_LIVE, ORACLE_PENDING, ORACLE_LATELY };

struct oracle_state {
	uint64_t hash; /* of the value's bytes */
	uint64_t cas;
	uint32_t size, flags, expiry_s;
	bool stale;
	bool won, perhaps_won; /* its win was handed out, or nobody knows any more */
	uint8_t standing;      /* enum oracle_standing */
	uint64_t flush;	       /* PENDING: by this one */
	uint64_t since_ns;     /* LATELY: by the clock, */
	uint64_t since_step;   /* and by the flash thread's steps */
	uint64_t made;	       /* event, for messages */
};

struct oracle_key {
	char name[32];
	uint32_t name_size;
	uint64_t hash;
	struct oracle_state *states;
	uint32_t count, room;
};

struct oracle {
	struct oracle_key *keys;
	uint32_t key_count;
	enum flash_journal_mode journal;
	bool flash;
	uint64_t now_ns, step; /* the caller keeps them */
	/*
	 * He says so: flash has failed, and neither records nor the mark that it is void could be
	 * made durable yet. With an asynchronous journal what was acknowledged just before is lost.
	 */
	bool unmarked;
	/* A delayed flush_all: when the process will do it, and when one that crashed will have. */
	uint64_t flush_ns, flush_after_crash_ns;
	uint64_t cas_largest; /* that was ever given, */
	uint64_t cas_before;  /* and before this life */
};

void oracle_init(struct oracle *oracle, uint32_t key_count);
void oracle_free(struct oracle *oracle);

/*
 * The key's state is this one from now on; NULL: absent. surely: the client has been told. Gives
 * false when the new CAS number was given before.
 */
bool oracle_changed(struct oracle *oracle, struct oracle_key *key, const struct oracle_state *state,
	bool surely);
/*
 * A read gave this: the live state that it is, NULL when it may not be. Other live ones can't be any
 * more, where the read counts (surely).
 */
struct oracle_state *oracle_seen(struct oracle *oracle, struct oracle_key *key,
	const struct oracle_state *state, bool surely);

/*
 * flush_all at at_ns (0: now) has had its effect, and (done) was acknowledged. kept: there is
 * something that will remember it, should it be for later; what is void needs no flush.
 */
void oracle_flush(struct oracle *oracle, uint64_t flush, uint64_t at_ns);
void oracle_flush_done(struct oracle *oracle, uint64_t flush, uint64_t at_ns, bool kept);
/* The clock went on: a delayed flush may have come. */
void oracle_time(struct oracle *oracle);

/* stopping: while a clean stop was under way, or after it. */
void oracle_crashed(struct oracle *oracle, bool stopping);
void oracle_stopped(struct oracle *oracle);

#endif
