/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/sim/oracle.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/*
 * With an asynchronous journal, what was superseded is dead for sure when the flash thread has had
 * so many steps since, and so much time has passed.
 */
#define ASYNC_STEPS 200
#define ASYNC_NS 1000000000u

void
oracle_init(struct oracle *oracle, uint32_t key_count)
{
	*oracle = (struct oracle){.key_count = key_count};
	oracle->keys = calloc(key_count, sizeof *oracle->keys);
	check(oracle->keys);
}

void
oracle_free(struct oracle *oracle)
{
	for (uint32_t i = 0; i < oracle->key_count; i++)
		free(oracle->keys[i].states);
	free(oracle->keys);
}

static void
forget(struct oracle_key *key, uint32_t i)
{
	key->states[i] = key->states[--key->count];
}

/* Something later was acknowledged. Gives false when the state is forgotten. */
static bool
supersede(const struct oracle *oracle, struct oracle_key *key, uint32_t i)
{
	struct oracle_state *state = &key->states[i];

	if (!oracle->flash || oracle->journal == FLASH_JOURNAL_SYNC) {
		forget(key, i);
		return false;
	}
	if (state->standing != ORACLE_LATELY) {
		state->standing = ORACLE_LATELY;
		state->since_ns = oracle->now_ns;
		state->since_step = oracle->step;
	} else if (!oracle->unmarked && oracle->now_ns - state->since_ns > ASYNC_NS &&
		   oracle->step - state->since_step > ASYNC_STEPS) {
		forget(key, i);
		return false;
	}
	return true;
}

static void
add(struct oracle_key *key, const struct oracle_state *state)
{
	if (key->count == key->room) {
		key->room = key->room * 2 + 4;
		key->states = realloc(key->states, key->room * sizeof *key->states);
		check(key->states);
	}
	key->states[key->count] = *state;
	key->states[key->count++].standing = ORACLE_LIVE;
}

bool
oracle_changed(struct oracle *oracle, struct oracle_key *key, const struct oracle_state *state,
	bool surely)
{
	bool good = true;

	if (surely)
		for (uint32_t i = 0; i < key->count;)
			i += supersede(oracle, key, i);
	if (!state)
		return true;
	for (uint32_t i = 0; i < key->count; i++)
		good &= key->states[i].cas != state->cas;
	if (state->cas > oracle->cas_largest)
		oracle->cas_largest = state->cas;
	add(key, state);
	return good && (!oracle->flash || state->cas > oracle->cas_before);
}

static bool
same(const struct oracle_state *a, const struct oracle_state *b)
{
	return a->hash == b->hash && a->size == b->size && a->cas == b->cas &&
	       a->flags == b->flags && a->expiry_s == b->expiry_s && a->stale == b->stale;
}

struct oracle_state *
oracle_seen(struct oracle *oracle, struct oracle_key *key, const struct oracle_state *state,
	bool surely)
{
	uint32_t found = UINT32_MAX;

	for (uint32_t i = 0; i < key->count && found == UINT32_MAX; i++)
		if (key->states[i].standing == ORACLE_LIVE && same(&key->states[i], state))
			found = i;
	if (found == UINT32_MAX ||
		(state->expiry_s && state->expiry_s <= oracle->now_ns / 1000000000u))
		return NULL;
	if (!surely)
		return &key->states[found];
	for (uint32_t i = 0; i < key->count;)
		if (i != found && key->states[i].standing == ORACLE_LIVE) {
			if (found == key->count - 1)
				found = i;
			forget(key, i);
		} else {
			i++;
		}
	return &key->states[found];
}

/* --- flush_all ---------------------------------------------------------------------------- */

static void
flush_live(struct oracle *oracle, uint64_t flush)
{
	for (uint32_t k = 0; k < oracle->key_count; k++)
		for (uint32_t i = 0; i < oracle->keys[k].count; i++)
			if (oracle->keys[k].states[i].standing == ORACLE_LIVE) {
				oracle->keys[k].states[i].standing = ORACLE_PENDING;
				oracle->keys[k].states[i].flush = flush;
			}
}

/* 0: each */
static void
settle_pending(struct oracle *oracle, uint64_t flush)
{
	for (uint32_t k = 0; k < oracle->key_count; k++)
		for (uint32_t i = 0; i < oracle->keys[k].count;) {
			const struct oracle_state *state = &oracle->keys[k].states[i];

			if (state->standing == ORACLE_PENDING && (!flush || state->flush <= flush))
				forget(&oracle->keys[k], i);
			else
				i++;
		}
}

void
oracle_flush(struct oracle *oracle, uint64_t flush, uint64_t at_ns)
{
	oracle->flush_ns = at_ns > oracle->now_ns ? at_ns : 0;
	/* Which of the two holds after a crash isn't known before the answer. */
	oracle->flush_after_crash_ns = 0;
	if (oracle->flush_ns == 0)
		flush_live(oracle, flush);
}

void
oracle_flush_done(struct oracle *oracle, uint64_t flush, uint64_t at_ns, bool kept)
{
	if (kept && oracle->flush_ns != 0 && oracle->flush_ns == at_ns)
		oracle->flush_after_crash_ns = at_ns;
	if (at_ns <= oracle->now_ns)
		settle_pending(oracle, flush);
}

void
oracle_time(struct oracle *oracle)
{
	if (oracle->flush_ns == 0 || oracle->flush_ns > oracle->now_ns)
		return;
	/* Accepted: a crash before it is recorded changes nothing, it is due then too. */
	flush_live(oracle, 1);
	if (oracle->flush_after_crash_ns == oracle->flush_ns)
		settle_pending(oracle, 1);
	oracle->flush_ns = 0;
	oracle->flush_after_crash_ns = 0;
}

/* --- ends --------------------------------------------------------------------------------- */

/* stopping: perhaps the clean mark was durable by then. */
static bool
survives(const struct oracle *oracle, const struct oracle_state *state, bool stopping)
{
	if (!oracle->flash)
		return false;
	if (oracle->journal == FLASH_JOURNAL_OFF)
		return stopping && state->standing == ORACLE_LIVE;
	return state->standing != ORACLE_LATELY || oracle->unmarked ||
	       oracle->now_ns - state->since_ns <= ASYNC_NS ||
	       oracle->step - state->since_step <= ASYNC_STEPS;
}

void
oracle_crashed(struct oracle *oracle, bool stopping)
{
	for (uint32_t k = 0; k < oracle->key_count; k++)
		for (uint32_t i = 0; i < oracle->keys[k].count;) {
			struct oracle_state *state = &oracle->keys[k].states[i];

			if (!survives(oracle, state, stopping)) {
				forget(&oracle->keys[k], i);
				continue;
			}
			state->standing = ORACLE_LIVE;
			state->perhaps_won = true;
			i++;
		}
	if (!oracle->flash)
		oracle->flush_after_crash_ns = 0;
	oracle->flush_ns = oracle->flush_after_crash_ns;
	oracle->cas_before = oracle->cas_largest;
	oracle_time(oracle);
}

void
oracle_stopped(struct oracle *oracle)
{
	settle_pending(oracle, 0);
	for (uint32_t k = 0; k < oracle->key_count; k++)
		for (uint32_t i = 0; i < oracle->keys[k].count;)
			if (!oracle->flash || oracle->keys[k].states[i].standing != ORACLE_LIVE)
				forget(&oracle->keys[k], i);
			else
				i++;
	if (!oracle->flash)
		oracle->flush_ns = 0;
	oracle->flush_after_crash_ns = oracle->flush_ns;
	oracle->cas_before = oracle->cas_largest;
}
