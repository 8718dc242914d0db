/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * sim: the whole store over a fake disk and a fake clock, in one thread. Worker, reclaim, growth and
 * flash threads are struct store_threads that take turns as the seed says, so a history is a
 * function of its seed.
 *
 *	flash_sim.c	histories and their lives, the command line
 *	world.c		store, threads, disk and clock; starts and ends
 *	request.c	requests, run as the engine runs them
 *	oracle.c	what each key may be
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "base/counters.h"
#include "store/store.h"
#include "tests/lib/fake_disk.h"
#include "tests/sim/oracle.h"

#define SIM_WORKERS_MAX 2
#define SIM_THREADS_MAX (SIM_WORKERS_MAX + 3)
#define SIM_REQUESTS 16
#define SIM_VALUE_MAX (200u << 10)
#define SIM_SECOND_NS 1000000000u

enum sim_kind {
	SIM_GET,
	SIM_WIN,
	SIM_SET,
	SIM_ADD,
	SIM_DELETE,
	SIM_TOUCH,
	SIM_INCR,
	SIM_APPEND,
	SIM_CAS,
	SIM_STALE,
	SIM_FLUSH,
};

/* A request in its slot, over the turns that it takes. */
struct sim_request {
	bool used;
	uint8_t kind; /* enum sim_kind */
	uint8_t worker;
	uint32_t key;
	struct store_held held;
	bool hinted;
	struct store_hint hint; /* of this turn's find */
	/* what it would store */
	uint64_t event, at_ns;
	uint32_t size, flags, expiry_s;
	uint64_t cas; /* that it was told to compare with */
	/* what was decided last */
	bool present;
	uint8_t action; /* enum store_action */
	struct oracle_state next;
};

/* What a history may do; drawn at its beginning. */
struct sim_plan {
	bool flash;
	enum flash_journal_mode journal;
	unsigned workers;
	uint32_t hot, twins, fillers; /* keys: often used, of equal tags, and the rest */
	uint32_t filler_bytes;	      /* of values at most */
	uint32_t file_count;
	uint64_t file_bytes;
	unsigned lives, steps;
	unsigned flush_per_million, abandon_per_mille;
	unsigned read_errors_per_million, write_errors_per_million, stuck_per_million;
	unsigned flips_per_mille; /* of steps */
	bool vanishes;
	bool marker; /* there is a state directory */
};

struct accel_state;

struct sim_totals {
	uint64_t histories, steps, requests, reads, hits, flash_hits;
	uint64_t after_crash_hits, after_stop_hits;
	uint64_t crashes, recovery_crashes, stop_crashes, stops, unclean_stops, refused, voided;
	uint64_t written, regions_reclaimed, regions_hurried, regions_retired;
	uint64_t items_written, items_reinserted, bad_reads, late_reads;
	uint64_t promoted, flipped, collisions, unreadable;
};

struct sim {
	uint64_t seed, random;
	struct sim_plan plan;
	struct fake_disk *disk;
	struct store *store;
	struct store_thread *threads[SIM_THREADS_MAX]; /* workers, reclaim, growth, flash */
	struct counters *counters[SIM_THREADS_MAX];
	struct accel_state *accels[SIM_WORKERS_MAX];
	struct oracle oracle;
	struct sim_request requests[SIM_REQUESTS];
	uint64_t event; /* of the trace */
	unsigned life;
	bool failed_start; /* without a crash: the device has faults */
	uint64_t crash_at; /* number of a write, 0: none */
	uint64_t last_cas[16];
	struct sim_totals *totals;
	uint8_t value[SIM_VALUE_MAX];
};

uint64_t sim_draw(struct sim *sim, uint64_t below);
/* True by a chance of so many in a million. */
bool sim_chance(struct sim *sim, unsigned per_million);

/* --- the trace: what happened to keys, printed when something is wrong -------------------- */

#define SIM_ALL_KEYS UINT32_MAX
void sim_note(struct sim *sim, uint32_t key, const char *what, uint64_t a, uint64_t b);
/* Prints seed and trace of the key, and ends the process. */
void sim_fail(struct sim *sim, uint32_t key, const char *format, ...)
	__attribute__((format(printf, 3, 4), noreturn));

/* --- world -------------------------------------------------------------------------------- */

uint64_t sim_now_ns(void);
/* The folder of void markers, if there was one. */
void sim_remove_folder(void);
void sim_pass(struct sim *sim, uint64_t ns);
/* Makes disk and keys; nothing runs yet. */
void sim_create(struct sim *sim, uint64_t seed, bool flash, struct sim_totals *totals);
void sim_destroy(struct sim *sim);
/* Starts the store on what the disk has. false: the power failed meanwhile; nothing runs. */
bool sim_start(struct sim *sim);
bool sim_cut(const struct sim *sim);
/* Ends it in whatever state it is, after a cut too: no snapshot. The next start finds a crash. */
void sim_crash(struct sim *sim);
/* A clean stop; false: the power failed meanwhile, or the deadline: see oracle. */
void sim_stop(struct sim *sim);
/* A turn of a background thread. */
void sim_reclaim(struct sim *sim);
void sim_grow(struct sim *sim);
void sim_flash(struct sim *sim);

/* --- requests ----------------------------------------------------------------------------- */

/* A turn of a worker: what waits goes on, and so many new requests begin. */
void sim_turn(struct sim *sim, unsigned worker, unsigned new_requests);
/* All keys are read, until each has had an answer or the power fails. */
void sim_read_all(struct sim *sim, uint64_t *hits);
/* Connections are gone: no request waits any more. Of one worker, or of all (SIM_WORKERS_MAX). */
void sim_abandon(struct sim *sim, unsigned worker);

#endif
