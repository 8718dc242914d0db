/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Histories of a cache on flash whose power fails, each from a seed: after any crash, fault and
 * recovery a key is what was last acknowledged, or absent.
 *
 * Usage: flash_sim [first seed [how many [processes [memory]]]]
 * 'memory': without flash. With FLASH_SIM_SAY in the environment flash's own lines are printed.
 */
#include "tests/sim/sim.h"

#include "base/check.h"
#include "base/rcu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* A history takes tens of milliseconds; one that needs so many seconds will never end. */
#define PATIENCE_S 10

static struct sim sim;

/* Flash leaves to a device that never answers what that has; no leak is looked for after this. */
static bool was_stuck;

/* LeakSanitizer asks, where there is one. What the device may have, flash_save doesn't free. */
int __lsan_is_turned_off(void);
const char *__lsan_default_suppressions(void);

int
__lsan_is_turned_off(void)
{
	return was_stuck;
}

const char *
__lsan_default_suppressions(void)
{
	return "leak:flash_save\n";
}

static void
fallen(int number)
{
	signal(number, SIG_DFL);
	sim_fail(&sim, SIM_ALL_KEYS, "%s", number == SIGALRM ? "it doesn't end" : "it has fallen");
}

/* --- a life ------------------------------------------------------------------------------- */

static void
flip(struct sim *s)
{
	uint64_t size = fake_disk_size(s->disk, "flash0");
	/* What stands before the regions, the journal above all, is not told from what was torn. */
	uint64_t from = size / 8;

	fake_disk_flip(
		s->disk, "flash0", from + sim_draw(s, size - from), (unsigned)sim_draw(s, 8));
}

static void
step(struct sim *s)
{
	uint64_t r = sim_draw(s, 1000);

	s->totals->steps++;
	sim_pass(s, 1000 * (1 + sim_draw(s, sim_draw(s, 20) ? 1000 : 100000)));
	if (r < 550)
		sim_turn(s, (unsigned)sim_draw(s, s->plan.workers), (unsigned)sim_draw(s, 9));
	else if (r < 680)
		sim_reclaim(s);
	else if (r < 710)
		sim_grow(s);
	else if (r < 940)
		sim_flash(s);
	else if (r < 997)
		fake_disk_tick(s->disk, 1 + (unsigned)sim_draw(s, 20));
	else
		sim_pass(s, sim_draw(s, 30) * SIM_SECOND_NS);
	if (s->plan.flash && sim_chance(s, s->plan.flips_per_mille * 1000))
		flip(s);
	if (s->plan.vanishes && sim_draw(s, 2000) == 0)
		fake_disk_vanish(s->disk, true);
	if (s->plan.stuck_per_million && sim_draw(s, 500) == 0)
		fake_disk_unstick(s->disk, sim_draw(s, 2));
}

/* A number at which the power shall fail: soon, or some time in this life; 0: not by number. */
static uint64_t
draw_crash(struct sim *s, uint64_t writes)
{
	struct fake_disk_counts counts;

	fake_disk_get_counts(s->disk, &counts);
	return counts.numbers + 1 + sim_draw(s, writes);
}

/* Starts until it runs; some starts meet a crash of their own. */
static void
start(struct sim *s)
{
	do {
		s->crash_at = s->life > 0 && sim_draw(s, 3) == 0 ? draw_crash(s, 20) : 0;
	} while (!sim_start(s));
	s->crash_at = 0;
}

static void
end(struct sim *s)
{
	if (sim_cut(s) || sim_draw(s, 5) < 2) {
		sim_crash(s);
		return;
	}
	s->crash_at = sim_draw(s, 3) == 0 ? draw_crash(s, 30) : 0;
	sim_stop(s);
	s->crash_at = 0;
}

static void
live(struct sim *s, uint64_t *hits_after)
{
	unsigned steps = s->plan.steps / 2 + (unsigned)sim_draw(s, s->plan.steps);

	start(s);
	if (s->life > 1) {
		if (sim_draw(s, 4) == 0)
			s->crash_at = draw_crash(s, 100);
		sim_read_all(s, hits_after);
	}
	if (!s->crash_at && sim_draw(s, 2))
		s->crash_at = draw_crash(s, steps);
	for (unsigned i = 0; i < steps && !sim_cut(s); i++)
		step(s);
	s->crash_at = 0;
	end(s);
}

static void
run_history(uint64_t seed, bool flash, struct sim_totals *totals)
{
	uint64_t crashes = 0, ignored = 0;

	alarm(PATIENCE_S);
	sim_create(&sim, seed, flash, totals);
	was_stuck |= sim.plan.stuck_per_million > 0;
	for (unsigned i = 0; i < sim.plan.lives; i++) {
		bool crashed = totals->crashes != crashes;

		crashes = totals->crashes;
		live(&sim, i == 0    ? &ignored
			   : crashed ? &totals->after_crash_hits
				     : &totals->after_stop_hits);
	}
	/* What all of that has left. */
	start(&sim);
	sim_read_all(&sim,
		totals->crashes != crashes ? &totals->after_crash_hits : &totals->after_stop_hits);
	sim_crash(&sim);
	sim_destroy(&sim);
	totals->histories++;
}

/* --- many --------------------------------------------------------------------------------- */

static void
print_totals(const struct sim_totals *t)
{
#define PRINT(name) printf(" " #name " %llu", (unsigned long long)t->name)
	printf("#");
	PRINT(histories);
	PRINT(steps);
	PRINT(requests);
	PRINT(reads);
	PRINT(hits);
	PRINT(flash_hits);
	PRINT(after_crash_hits);
	PRINT(after_stop_hits);
	printf("\n#");
	PRINT(crashes);
	PRINT(recovery_crashes);
	PRINT(stops);
	PRINT(stop_crashes);
	PRINT(unclean_stops);
	PRINT(refused);
	PRINT(voided);
	printf("\n#");
	PRINT(written);
	PRINT(items_written);
	PRINT(items_reinserted);
	PRINT(regions_reclaimed);
	PRINT(regions_hurried);
	PRINT(regions_retired);
	printf("\n#");
	PRINT(promoted);
	PRINT(flipped);
	PRINT(collisions);
	PRINT(unreadable);
	PRINT(bad_reads);
	PRINT(late_reads);
	printf("\n");
#undef PRINT
}

/* A run in which nothing is ever found would see nothing wrong. */
static bool
was_worth_it(const struct sim_totals *t, bool flash)
{
	if (t->hits < t->reads / 10 || t->histories == 0)
		return false;
	if (!flash || t->histories < 10)
		return true;
	return t->flash_hits > t->hits / 50 && t->after_crash_hits > t->crashes &&
	       t->after_stop_hits > 10 * t->stops && t->stops > 0 && t->recovery_crashes > 0 &&
	       t->stop_crashes > 0 && t->regions_reclaimed > t->histories &&
	       t->items_reinserted > 0;
}

static void
run_some(uint64_t first, uint64_t count, uint64_t stride, bool flash, struct sim_totals *totals)
{
	rcu_register();
	rcu_online();
	for (uint64_t i = 0; i < count; i += stride)
		run_history(first + i, flash, totals);
	rcu_offline();
	rcu_unregister();
	sim_remove_folder();
}

static void
add_up(struct sim_totals *sum, const struct sim_totals *part)
{
	uint64_t *to = (uint64_t *)sum;
	const uint64_t *from = (const uint64_t *)part;

	for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
		to[i] += from[i];
}

int
main(int argc, char **argv)
{
	uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 10) : 20;
	unsigned processes = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 1;
	bool flash = argc <= 4, good = true;
	struct sim_totals sum = {0}, *totals;

	setvbuf(stdout, NULL, _IOFBF, 1 << 20);
	processes = processes < 1 ? 1 : processes;
	totals = mmap(NULL, processes * sizeof *totals, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(totals != MAP_FAILED);
	for (unsigned i = 0; i < processes; i++) {
		if (fork() != 0)
			continue;
		signal(SIGABRT, fallen);
		signal(SIGSEGV, fallen);
		signal(SIGBUS, fallen);
		signal(SIGFPE, fallen);
		signal(SIGALRM, fallen);
		if (i < count)
			run_some(first + i, count - i, processes, flash, &totals[i]);
		fflush(stdout);
		exit(0);
	}
	for (unsigned i = 0; i < processes; i++) {
		int status;

		good &= wait(&status) > 0 && status == 0;
	}
	for (unsigned i = 0; i < processes; i++)
		add_up(&sum, &totals[i]);
	print_totals(&sum);
	if (good && !was_worth_it(&sum, flash)) {
		printf("FAILED: too little happened\n");
		good = false;
	}
	return !good;
}
