/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/sim/sim.h"

#include "accel/accel.h"
#include "base/check.h"
#include "base/rcu.h"
#include "index/index.h"
#include "memory/memory.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EPOCH_NS 1700000000000000000ull
#define MEMORY_BYTES (2u << 20)
#define BUCKETS 64
#define TICKS_A_MS 10u
#define REGION_BYTES (256u << 10)
#define TRACE (1u << 16)
#define TRACE_SHOWN 120
/* Keys whose hashes agree in so many low bits have one home and one tag. */
#define TWIN_BITS 18
#define TWIN_CANDIDATES 6000

/* --- clock and chance: all that the process asks the system for --------------------------- */

static uint64_t now_ns;
static uint64_t system_random;

uint64_t
sim_now_ns(void)
{
	return now_ns;
}

/* As flash_save asks, where time goes on by itself. */
static uint64_t
passing_now_ns(void)
{
	return now_ns += 1000;
}

static uint64_t
next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

/* These replace the C library's, so that seeds are ours and nothing depends on real time. */
ssize_t
getrandom(void *to, size_t size, unsigned flags)
{
	uint8_t *bytes = to;

	(void)flags;
	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)next_random(&system_random);
	return (ssize_t)size;
}

int
clock_gettime(clockid_t id, struct timespec *to)
{
	(void)id;
	*to = (struct timespec){(time_t)(now_ns / SIM_SECOND_NS), (long)(now_ns % SIM_SECOND_NS)};
	return 0;
}

/* Whoever sleeps on the flash thread's bells: time goes on, and the disk with it. */
static struct fake_disk *ticking;

int
poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	unsigned ms = timeout_ms < 0 ? 1000 : (unsigned)timeout_ms;

	(void)fds;
	(void)count;
	now_ns += ms * 1000000ull;
	fake_disk_tick(ticking, ms * TICKS_A_MS);
	return 0;
}

uint64_t
sim_draw(struct sim *sim, uint64_t below)
{
	return next_random(&sim->random) % below;
}

bool
sim_chance(struct sim *sim, unsigned per_million)
{
	return per_million && sim_draw(sim, 1000000) < per_million;
}

void
sim_pass(struct sim *sim, uint64_t ns)
{
	now_ns += ns;
	sim->oracle.now_ns = now_ns;
}

/* --- trace -------------------------------------------------------------------------------- */

static struct note {
	uint64_t event, now_ns, number;
	uint32_t key, life;
	const char *what;
	uint64_t a, b;
} notes[TRACE];
static uint64_t note_count;

void
sim_note(struct sim *sim, uint32_t key, const char *what, uint64_t a, uint64_t b)
{
	struct fake_disk_counts counts = {0};

	if (sim->disk)
		fake_disk_get_counts(sim->disk, &counts);
	notes[note_count++ % TRACE] =
		(struct note){++sim->event, now_ns, counts.numbers, key, sim->life, what, a, b};
}

static void
print_trace(const struct sim *sim, uint32_t key)
{
	uint64_t first = note_count > TRACE ? note_count - TRACE : 0, shown = 0, from = note_count;

	while (from > first && shown < TRACE_SHOWN) {
		from--;
		shown += notes[from % TRACE].key == key || notes[from % TRACE].key == SIM_ALL_KEYS;
	}
	printf("# event life milliseconds write what\n");
	for (; from < note_count; from++) {
		const struct note *note = &notes[from % TRACE];

		if (note->key != key && note->key != SIM_ALL_KEYS)
			continue;
		printf("# %6llu %u %10.3f %5llu %s %s %llu %llu\n", (unsigned long long)note->event,
			note->life, (double)(note->now_ns - EPOCH_NS) / 1e6,
			(unsigned long long)note->number,
			note->key == SIM_ALL_KEYS ? "--" : sim->oracle.keys[key].name, note->what,
			(unsigned long long)note->a, (unsigned long long)note->b);
	}
}

static void
print_states(const struct sim *sim, uint32_t key)
{
	const struct oracle_key *of = &sim->oracle.keys[key];
	static const char *const standings[] = {"live", "pending flush", "lately superseded"};

	printf("# key %s (%u), hash %016llx, may be absent", of->name, key,
		(unsigned long long)of->hash);
	for (uint32_t i = 0; i < of->count; i++)
		printf(", or size %u cas %llu flags %u expiry %u stale %d (%s)", of->states[i].size,
			(unsigned long long)of->states[i].cas, of->states[i].flags,
			of->states[i].expiry_s, of->states[i].stale,
			standings[of->states[i].standing]);
	printf("\n");
}

void
sim_fail(struct sim *sim, uint32_t key, const char *format, ...)
{
	static const char *const modes[] = {"sync", "async", "off"};
	va_list arguments;

	if (key != SIM_ALL_KEYS)
		print_states(sim, key);
	print_trace(sim, key);
	printf("FAILED: seed %llu, %s, %u workers, event %llu, life %u: ",
		(unsigned long long)sim->seed,
		sim->plan.flash ? modes[sim->plan.journal] : "no flash", sim->plan.workers,
		(unsigned long long)sim->event, sim->life);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

/* --- the marker's folder ------------------------------------------------------------------ */

static char folder[64];
/* What stood in it when the power failed: what came later must not be. */
static char markers[4][256];
static unsigned marker_count;

static void
list_folder(void (*each)(const char *name))
{
	DIR *open = opendir(folder);
	struct dirent *entry;

	check(open);
	while ((entry = readdir(open)))
		if (entry->d_name[0] != '.')
			each(entry->d_name);
	closedir(open);
}

static void
remember(const char *name)
{
	check(marker_count < sizeof markers / sizeof *markers);
	snprintf(markers[marker_count++], sizeof *markers, "%s", name);
}

static void
remove_marker(const char *name)
{
	char path[400];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	check(unlink(path) == 0);
}

static void
remove_if_new(const char *name)
{
	for (unsigned i = 0; i < marker_count; i++)
		if (!strcmp(markers[i], name))
			return;
	remove_marker(name);
}

static void
make_folder(void)
{
	if (folder[0] == '\0') {
		snprintf(folder, sizeof folder, "/dev/shm/flash_sim.%d", (int)getpid());
		if (mkdir(folder, 0700) != 0) {
			snprintf(folder, sizeof folder, "/tmp/flash_sim.%d", (int)getpid());
			check(mkdir(folder, 0700) == 0);
		}
	} else {
		list_folder(remove_marker);
	}
}

void
sim_remove_folder(void)
{
	if (folder[0] == '\0')
		return;
	list_folder(remove_marker);
	rmdir(folder);
	folder[0] = '\0';
}

/* --- plans -------------------------------------------------------------------------------- */

static void
make_plan(struct sim *sim, bool flash)
{
	struct sim_plan *plan = &sim->plan;
	uint64_t journal = sim_draw(sim, 10);

	*plan = (struct sim_plan){.flash = flash,
		.journal = journal < 7	 ? FLASH_JOURNAL_SYNC
			   : journal < 9 ? FLASH_JOURNAL_ASYNC
					 : FLASH_JOURNAL_OFF,
		.workers = 1 + (unsigned)sim_draw(sim, SIM_WORKERS_MAX),
		.hot = 8 + (uint32_t)sim_draw(sim, 40),
		.twins = flash ? 16 : 0,
		.fillers = 100 + (uint32_t)sim_draw(sim, 500),
		.filler_bytes = 2000 + (uint32_t)sim_draw(sim, 14000),
		.file_count = sim_draw(sim, 4) == 0 ? 2 : 1,
		.lives = 2 + (unsigned)sim_draw(sim, 4),
		.steps = 200 + (unsigned)sim_draw(sim, 1000)};
	plan->file_bytes = ((4u + (unsigned)sim_draw(sim, 3)) << 20) / plan->file_count;
	if (sim_draw(sim, 3) == 0)
		plan->flush_per_million = 500 + (unsigned)sim_draw(sim, 3000);
	if (sim_draw(sim, 10) == 0)
		plan->flush_per_million = 30000;
	if (sim_draw(sim, 4) == 0)
		plan->abandon_per_mille = (unsigned)sim_draw(sim, 50);
	if (sim_draw(sim, 3) == 0)
		plan->read_errors_per_million = (unsigned)sim_draw(sim, 100000);
	if (sim_draw(sim, 6) == 0)
		plan->write_errors_per_million = (unsigned)sim_draw(sim, 50000);
	if (sim_draw(sim, 12) == 0)
		plan->stuck_per_million = (unsigned)sim_draw(sim, 5000);
	if (sim_draw(sim, 4) == 0)
		plan->flips_per_mille = (unsigned)sim_draw(sim, 40);
	plan->vanishes = sim_draw(sim, 20) == 0;
	plan->marker = sim_draw(sim, 3) == 0;
}

static void
name_keys(struct sim *sim)
{
	const struct sim_plan *plan = &sim->plan;

	oracle_init(&sim->oracle, plan->hot + plan->twins + plan->fillers);
	for (uint32_t i = 0; i < sim->oracle.key_count; i++) {
		struct oracle_key *key = &sim->oracle.keys[i];
		const char *kind = i < plan->hot		 ? "hot"
				   : i < plan->hot + plan->twins ? "twin"
								 : "filler";

		key->name_size = (uint32_t)snprintf(key->name, sizeof key->name, "%s-%u", kind, i);
	}
	sim->oracle.journal = plan->journal;
	sim->oracle.flash = plan->flash;
	sim->oracle.now_ns = now_ns;
}

void
sim_create(struct sim *sim, uint64_t seed, bool flash, struct sim_totals *totals)
{
	memset(sim, 0, offsetof(struct sim, value));
	sim->seed = seed;
	sim->random = seed * 0x9e3779b97f4a7c15u + 1;
	sim->totals = totals;
	system_random = seed ^ 0x5851f42d4c957f2du;
	now_ns = EPOCH_NS;
	note_count = 0;
	make_plan(sim, flash);
	name_keys(sim);
	sim->disk = fake_disk_create(seed, NULL, 0);
	ticking = sim->disk;
	fake_disk_latency(sim->disk, (unsigned)sim_draw(sim, 30));
	if (sim->plan.marker)
		make_folder();
}

void
sim_destroy(struct sim *sim)
{
	oracle_free(&sim->oracle);
	fake_disk_destroy(sim->disk);
}

/* --- twins: keys of one home and one tag -------------------------------------------------- */

struct candidate {
	uint32_t low, number;
};

static int
compare_candidates(const void *a, const void *b)
{
	const struct candidate *left = a, *right = b;

	return left->low < right->low ? -1 : left->low > right->low;
}

static void
find_twins(struct sim *sim)
{
	static struct candidate candidates[TWIN_CANDIDATES];
	uint32_t found = 0;

	for (uint32_t i = 0; i < TWIN_CANDIDATES; i++) {
		char name[32];
		int size = snprintf(name, sizeof name, "twin%u", i);

		candidates[i].number = i;
		candidates[i].low =
			(uint32_t)store_hash(sim->store, (const uint8_t *)name, (uint32_t)size) &
			((1u << TWIN_BITS) - 1);
	}
	qsort(candidates, TWIN_CANDIDATES, sizeof *candidates, compare_candidates);
	for (uint32_t i = 1; i < TWIN_CANDIDATES && found + 1 < sim->plan.twins; i++) {
		if (candidates[i].low != candidates[i - 1].low)
			continue;
		for (uint32_t j = 0; j < 2; j++) {
			struct oracle_key *key = &sim->oracle.keys[sim->plan.hot + found++];

			key->name_size = (uint32_t)snprintf(
				key->name, sizeof key->name, "twin%u", candidates[i - j].number);
		}
		i++;
	}
}

static void
hash_keys(struct sim *sim)
{
	for (uint32_t i = 0; i < sim->oracle.key_count; i++) {
		struct oracle_key *key = &sim->oracle.keys[i];

		key->hash = store_hash(sim->store, (const uint8_t *)key->name, key->name_size);
	}
}

/* --- faults ------------------------------------------------------------------------------- */

static const char *const file_names[] = {"flash0", "flash1"};

static void
make_faults(struct sim *sim)
{
	const struct sim_plan *plan = &sim->plan;

	fake_disk_no_faults(sim->disk);
	fake_disk_vanish(sim->disk, false);
	if (plan->read_errors_per_million)
		fake_disk_fault(sim->disk, &(struct fake_disk_fault){.kinds = FAKE_DISK_READS,
						   .per_million = plan->read_errors_per_million,
						   .error = EIO});
	if (plan->write_errors_per_million)
		fake_disk_fault(sim->disk,
			&(struct fake_disk_fault){.kinds = FAKE_DISK_WRITES | FAKE_DISK_FLUSHES,
				.per_million = plan->write_errors_per_million,
				.error = sim_draw(sim, 2) ? EIO : ENOSPC});
	if (plan->stuck_per_million)
		fake_disk_fault(sim->disk,
			&(struct fake_disk_fault){.kinds = FAKE_DISK_READS | FAKE_DISK_WRITES,
				.per_million = plan->stuck_per_million,
				.error = FAKE_DISK_STUCK});
}

/* --- starts ------------------------------------------------------------------------------- */

static bool
on_write(void *context, uint64_t number, const struct io_request *request, bool done)
{
	struct sim *sim = context;

	(void)request;
	if (sim->crash_at == 0 || number < sim->crash_at)
		return false;
	sim->crash_at = 0;
	sim_note(sim, SIM_ALL_KEYS, "the power fails: write, done", number, done);
	fake_disk_cut(sim->disk, sim_draw(sim, UINT64_MAX));
	marker_count = 0;
	if (sim->plan.marker)
		list_folder(remember);
	return false;
}

bool
sim_cut(const struct sim *sim)
{
	return sim->disk && fake_disk_is_cut(sim->disk);
}

static void
on_tick(void *context)
{
	sim_pass(context, 1000000 / TICKS_A_MS);
}

static void
no_wake(void *context)
{
	(void)context;
}

static void
say(void *context, int priority, const char *line)
{
	(void)context;
	(void)priority;
	if (getenv("FLASH_SIM_SAY"))
		printf("# %s\n", line);
}

static bool
create_store(struct sim *sim, bool format, char *error, size_t error_size)
{
	const struct flash_file_options files[] = {
		{file_names[0], sim->plan.file_bytes}, {file_names[1], sim->plan.file_bytes}};
	const struct flash_options flash = {
		.io = fake_disk_backend(),
		.files = files,
		.file_count = sim->plan.file_count,
		.format = format,
		.region_bytes = REGION_BYTES,
		.journal = sim->plan.journal,
		.threads = sim->plan.workers,
		.depth = 32,
		.read_timeout_ms = 1000,
		.reinsert_percent = 7,
		.read_target_us = 2000,
		.state_directory = sim->plan.marker ? folder : NULL,
		.now_ns = now_ns,
		.say = say,
	};
	struct memory_tuning tuning = memory_tuning;

	tuning.check_dead = true;
	sim->store = store_create(&(struct store_options){
		.limit_bytes = MEMORY_BYTES,
		.reserve_factor = 4,
		.workers = sim->plan.workers,
		.value_bytes_max = 1 << 20,
		.evict = true,
		.cas = true,
		.buckets_initial = BUCKETS,
		.growth = true,
		.classes = {.factor = 1.25,
			.chunk_bytes = 48,
			.chunk_bytes_max = 524288,
			.page_bytes = 1 << 20},
		.memory_tuning = &tuning,
		.wake = no_wake,
		.flash = sim->plan.flash ? &flash : NULL,
		.error = error,
		.error_size = error_size,
	});
	return sim->store != NULL;
}

static void
create_threads(struct sim *sim)
{
	struct store_arena arena;

	for (unsigned i = 0; i < sim->plan.workers + 3; i++) {
		sim->counters[i] = aligned_alloc(128, sizeof *sim->counters[i]);
		check(sim->counters[i]);
		memset(sim->counters[i], 0, sizeof *sim->counters[i]);
		sim->threads[i] = store_thread_create(sim->store, i, sim->counters[i]);
		check(sim->threads[i]);
	}
	store_get_arena(sim->store, &arena);
	for (unsigned i = 0; i < sim->plan.workers; i++) {
		sim->accels[i] =
			accel_cpu.create(&(struct accel_options){.index = store_index(sim->store),
				.view = {arena.base, arena.segment_shift, arena.segments_max},
				.seed = store_hash_seed(sim->store)});
		check(sim->accels[i]);
	}
}

static void
destroy_thread(struct sim *sim, unsigned i)
{
	if (!sim->threads[i])
		return;
	if (i < sim->plan.workers)
		accel_cpu.destroy(sim->accels[i]);
	store_thread_destroy(sim->threads[i]);
	sim->totals->promoted += counter_get(&sim->counters[i]->flash_promoted);
	sim->totals->flipped += counter_get(&sim->counters[i]->flash_flipped);
	sim->totals->collisions += counter_get(&sim->counters[i]->flash_collisions);
	sim->totals->unreadable += counter_get(&sim->counters[i]->flash_unreadable);
	free(sim->counters[i]);
	sim->threads[i] = NULL;
}

/* Markers that were made after the power had failed weren't. */
static void
power_on(struct sim *sim)
{
	if (sim->plan.marker && fake_disk_is_cut(sim->disk))
		list_folder(remove_if_new);
	fake_disk_crash(sim->disk, sim_draw(sim, UINT64_MAX));
}

bool
sim_start(struct sim *sim)
{
	char error[300] = "";
	bool first = sim->oracle.keys[0].hash == 0;

	if (sim->life++ > 0 && sim_draw(sim, 2))
		sim_pass(sim, sim_draw(sim, 20 * SIM_SECOND_NS));
	fake_disk_on_write(sim->disk, on_write, sim);
	fake_disk_on_tick(sim->disk, on_tick, sim, TICKS_A_MS);
	fake_disk_vanish(sim->disk, false);
	/* Of a device that fails a recovery may say that it can't be used. */
	bool faults = !sim->failed_start && sim_draw(sim, 2);

	fake_disk_no_faults(sim->disk);
	if (faults)
		make_faults(sim);
	sim_note(sim, SIM_ALL_KEYS, "starts: life, crash at", sim->life, sim->crash_at);
	if (!create_store(sim, first, error, sizeof error)) {
		sim->failed_start = !sim_cut(sim);
		if (sim->failed_start && !faults)
			sim_fail(sim, SIM_ALL_KEYS, "it doesn't start: %s", error);
		sim_note(sim, SIM_ALL_KEYS, "has not started: cut", sim_cut(sim), 0);
		sim->totals->recovery_crashes += sim_cut(sim);
		power_on(sim);
		return false;
	}
	sim->failed_start = false;
	make_faults(sim);
	create_threads(sim);
	if (first && sim->plan.twins)
		find_twins(sim);
	if (first || !sim->plan.flash)
		hash_keys(sim);
	for (uint32_t i = 0; i < sim->oracle.key_count; i += 7)
		check(sim->oracle.keys[i].hash == store_hash(sim->store,
							  (const uint8_t *)sim->oracle.keys[i].name,
							  sim->oracle.keys[i].name_size));
	return true;
}

/* --- background --------------------------------------------------------------------------- */

void
sim_reclaim(struct sim *sim)
{
	uint32_t next_s;

	oracle_time(&sim->oracle);
	store_background_reclaim(sim->threads[sim->plan.workers], now_ns, &next_s);
	rcu_quiescent();
}

void
sim_grow(struct sim *sim)
{
	oracle_time(&sim->oracle);
	store_turn_begin(sim->threads[sim->plan.workers + 1], now_ns);
	store_background_grow(sim->threads[sim->plan.workers + 1]);
	rcu_quiescent();
}

void
sim_flash(struct sim *sim)
{
	oracle_time(&sim->oracle);
	sim->oracle.step++;
	if (sim->plan.flash) {
		store_background_flash(sim->threads[sim->plan.workers + 2], now_ns);
		sim->oracle.unmarked = !flash_alive(store_flash(sim->store)) &&
				       !flash_voided(store_flash(sim->store));
	}
	rcu_quiescent();
}

/* --- ends --------------------------------------------------------------------------------- */

static void
add_totals(struct sim *sim)
{
	struct sim_totals *totals = sim->totals;
	struct flash_stats stats;

	if (!store_flash(sim->store))
		return;
	flash_get_stats(store_flash(sim->store), &stats);
	totals->written += stats.written_bytes;
	totals->regions_reclaimed += stats.regions_reclaimed;
	totals->items_reinserted += stats.items_reinserted;
	totals->items_written += stats.items_written;
	totals->regions_hurried += stats.regions_hurried;
	totals->regions_retired += stats.regions_retired;
	totals->bad_reads += stats.read_bad;
	totals->late_reads += stats.read_late;
	totals->voided += stats.voided;
}

static void
check_memory(struct sim *sim)
{
	struct memory_stats stats;

	store_get_memory_stats(sim->store, &stats);
	if (stats.accounting_errors)
		sim_fail(sim, SIM_ALL_KEYS, "%llu segments' live bytes don't add up",
			(unsigned long long)stats.accounting_errors);
}

static void
destroy_store(struct sim *sim)
{
	for (unsigned i = 0; i < SIM_THREADS_MAX; i++)
		destroy_thread(sim, i);
	add_totals(sim);
	check_memory(sim);
	store_destroy(sim->store);
	sim->store = NULL;
}

static void
crash(struct sim *sim, bool stopping)
{
	if (!sim_cut(sim)) {
		sim->crash_at = 1;
		on_write(sim, UINT64_MAX, NULL, false);
	}
	sim_abandon(sim, SIM_WORKERS_MAX);
	destroy_store(sim);
	power_on(sim);
	oracle_crashed(&sim->oracle, stopping);
	sim->totals->crashes++;
}

void
sim_crash(struct sim *sim)
{
	crash(sim, false);
}

void
sim_stop(struct sim *sim)
{
	uint64_t deadline = now_ns + (sim_draw(sim, 8) ? 90 : sim_draw(sim, 2)) * SIM_SECOND_NS;
	unsigned background = sim->plan.workers;
	bool clean;

	sim_note(sim, SIM_ALL_KEYS, "stops: deadline", deadline, sim->crash_at);
	sim_abandon(sim, SIM_WORKERS_MAX);
	/* Threads wait for what the device has. */
	fake_disk_unstick(sim->disk, sim_draw(sim, 2));
	for (unsigned i = 0; i < SIM_THREADS_MAX; i++)
		if (i != background)
			destroy_thread(sim, i);
	oracle_time(&sim->oracle);
	clean = store_stop(sim->threads[background], passing_now_ns, deadline);
	rcu_quiescent();
	sim_note(sim, SIM_ALL_KEYS, "has stopped: clean, cut", clean, sim_cut(sim));
	sim->oracle.now_ns = now_ns;
	if (sim_cut(sim) || !clean) {
		sim->totals->stop_crashes += sim_cut(sim);
		sim->totals->unclean_stops += !sim_cut(sim);
		crash(sim, true);
		return;
	}
	destroy_store(sim);
	/* Whatever is done after the mark is durable can't matter. */
	power_on(sim);
	oracle_stopped(&sim->oracle);
	sim->totals->stops++;
}
