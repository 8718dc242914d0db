/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * flash: making and ending, the flash thread's loop, the writes' ways out and back, what becomes of
 * a device that fails.
 */
#include "flash/internal.h"
#include "flash/smart.h"

#include "base/check.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ERRORS_DEAD 8		   /* so many one after the other */
#define ERRORS_DEAD_NS 1000000000u /* over so long: the device is dead */
#define LATE_NS 10000000000ull	   /* a write that takes longer: the same */
#define LATE_CHECK_NS 100000000u
#define PATIENCE_NS 1000000000u
#define SAID_NS 1000000000u /* a line about errors at most each second */
#define ROUND_MS 500	    /* blocking: rounds so long, */
#define ROUNDS 20	    /* so many without an answer, and it isn't waited for any more */

struct dispatch {
	struct write *under_way[WRITER_DEPTH];
	uint32_t count;
	struct io_request *waiting, **waiting_last; /* more than the queue takes at once */
	/*
	 * A clock for what is late: it goes on by a second at most between two rounds, so that a
	 * process that was stopped doesn't take that for the device's silence.
	 */
	uint64_t patience_ns, seen_ns;
	uint64_t late_checked_ns;
	_Atomic uint32_t errors; /* one after the other */
	_Atomic uint64_t errors_since_ns, said_ns;
	_Atomic uint64_t written_bytes, write_errors, write_late;
	int timeout_ms; /* of flash_wait, for the sake of what is put off */
	struct smart *smart;
};

/* --- saying ------------------------------------------------------------------------------- */

void
flash_say(const struct flash *flash, int priority, const char *format, ...)
{
	char line[512];
	va_list arguments;

	if (!flash->options.say)
		return;
	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	flash->options.say(flash->options.wake_context, priority, line);
}

/* --- a device that fails ------------------------------------------------------------------ */

void
flash_void(struct flash *flash, const char *why)
{
	if (!atomic_exchange(&flash->alive, false))
		return;
	flash_say(flash, 3, "flash: %s: its content is void, items stay in memory alone", why);
	super_void(flash);
	flash_wake(flash);
}

void
flash_note_error(struct flash *flash, int error, const char *what)
{
	struct dispatch *dispatch = flash->dispatch;
	uint64_t now_ns = atomic_load_explicit(&flash->now_ns, memory_order_relaxed);
	uint64_t said_ns = atomic_load_explicit(&dispatch->said_ns, memory_order_relaxed);
	uint32_t errors = atomic_fetch_add(&dispatch->errors, 1) + 1;

	if ((said_ns == 0 || now_ns - said_ns >= SAID_NS) &&
		atomic_compare_exchange_strong(&dispatch->said_ns, &said_ns, now_ns))
		flash_say(flash, 4, "flash: %s: %s", what, strerror(error));
	if (errors == 1)
		atomic_store(&dispatch->errors_since_ns, now_ns);
	else if (errors >= ERRORS_DEAD &&
		 now_ns - atomic_load(&dispatch->errors_since_ns) >= ERRORS_DEAD_NS)
		flash_void(flash, "the device gives nothing but errors");
}

void
flash_note_success(struct flash *flash)
{
	/* Read first: the line stays shared while all is well. */
	if (atomic_load_explicit(&flash->dispatch->errors, memory_order_relaxed) != 0)
		atomic_store(&flash->dispatch->errors, 0);
}

/* --- writes ------------------------------------------------------------------------------- */

static void
hand_over(struct flash *flash)
{
	struct dispatch *dispatch = flash->dispatch;

	while (dispatch->waiting && dispatch->count < WRITER_DEPTH) {
		struct io_request *request = dispatch->waiting, *next = request->next;
		struct write *write = request->context;
		uint32_t place = 0;

		if (!flash->options.io->submit(flash->writer, &request))
			return;
		while (dispatch->under_way[place])
			place++;
		dispatch->under_way[place] = write;
		dispatch->count++;
		dispatch->waiting = next;
		if (!next)
			dispatch->waiting_last = &dispatch->waiting;
	}
}

void
writer_submit(struct flash *flash, struct write *write)
{
	struct dispatch *dispatch = flash->dispatch;

	check(!write->under_way);
	write->under_way = true;
	write->submitted_ns = atomic_load_explicit(&flash->now_ns, memory_order_relaxed);
	write->request.started = dispatch->patience_ns;
	write->request.context = write;
	write->request.next = NULL;
	*dispatch->waiting_last = &write->request;
	dispatch->waiting_last = &write->request.next;
	hand_over(flash);
}

static void
take_back(struct flash *flash, struct io_request *request)
{
	struct dispatch *dispatch = flash->dispatch;
	struct write *write = request->context;
	int result = request->result;
	uint32_t place = 0;

	while (dispatch->under_way[place] != write)
		place++;
	dispatch->under_way[place] = NULL;
	dispatch->count--;
	if (result == 0)
		flash_note_success(flash);
	if (result == 0 && request->op == IO_WRITE)
		atomic_fetch_add_explicit(
			&dispatch->written_bytes, request->size, memory_order_relaxed);
	if (result != 0 && request->op != IO_DISCARD) {
		if (request->op != IO_READ)
			atomic_fetch_add_explicit(&dispatch->write_errors, 1, memory_order_relaxed);
		flash_note_error(flash, -result,
			request->op == IO_READ	  ? "reading a region"
			: request->op == IO_WRITE ? "writing"
						  : "flushing the device's cache");
	}
	write->under_way = false;
	write->done(flash, write, result);
}

bool
writer_poll(struct flash *flash)
{
	struct io_request *request;
	bool any = false;

	while ((request = flash->options.io->poll(flash->writer))) {
		take_back(flash, request);
		any = true;
	}
	hand_over(flash);
	return any;
}

bool
writer_finish(struct flash *flash, const struct write *write)
{
	unsigned rounds = 0;

	while (write->under_way && rounds < ROUNDS) {
		flash->options.io->wait(flash->writer, ROUND_MS);
		rounds = writer_poll(flash) ? 0 : rounds + 1;
	}
	return !write->under_way;
}

uint64_t
writer_bytes(const struct flash *flash)
{
	return atomic_load_explicit(&flash->dispatch->written_bytes, memory_order_relaxed);
}

static void
check_late(struct flash *flash)
{
	struct dispatch *dispatch = flash->dispatch;

	if (dispatch->count == 0 ||
		dispatch->patience_ns - dispatch->late_checked_ns < LATE_CHECK_NS)
		return;
	dispatch->late_checked_ns = dispatch->patience_ns;
	for (uint32_t i = 0; i < WRITER_DEPTH; i++) {
		const struct write *write = dispatch->under_way[i];

		if (!write || dispatch->patience_ns < write->request.started + LATE_NS ||
			!atomic_load_explicit(&flash->alive, memory_order_relaxed))
			continue;
		atomic_fetch_add_explicit(&dispatch->write_late, 1, memory_order_relaxed);
		flash_void(flash, "a write hasn't come back for 10 s");
	}
}

static void
pass_time(struct flash *flash, uint64_t now_ns)
{
	struct dispatch *dispatch = flash->dispatch;
	uint64_t passed_ns = now_ns > dispatch->seen_ns ? now_ns - dispatch->seen_ns : 0;

	atomic_store_explicit(&flash->now_ns, now_ns, memory_order_relaxed);
	dispatch->seen_ns = now_ns;
	dispatch->patience_ns += passed_ns < PATIENCE_NS ? passed_ns : PATIENCE_NS;
}

/* --- the loop ----------------------------------------------------------------------------- */

bool
flash_work(struct flash *flash, uint64_t now_ns)
{
	const struct io_backend *io = flash->options.io;
	int timeout_ms;
	bool again;

	pass_time(flash, now_ns);
	/* What is wanted after this is seen by this round, or keeps flash_wait awake. */
	atomic_exchange(&flash->woken, false);
	again = writer_poll(flash);
	/* The journal goes first, and to the device at once: acknowledgements wait for it. */
	again |= journal_work(flash, now_ns);
	super_work(flash, now_ns);
	io->push(flash->writer);
	again |= log_work(flash, now_ns);
	io->push(flash->writer);
	check_late(flash);
	timeout_ms = log_timeout_ms(flash, now_ns);
	if (flash->dispatch->count > 0 && (timeout_ms < 0 || timeout_ms > 500))
		timeout_ms = 500; /* to see a write that is late */
	flash->dispatch->timeout_ms = timeout_ms;
	return again;
}

void
flash_wait(struct flash *flash, int timeout_ms)
{
	struct pollfd bells[2] = {
		{.fd = flash->wake_fd, .events = POLLIN},
		{.fd = flash->options.io->descriptor(flash->writer), .events = POLLIN},
	};
	int own_ms = flash->dispatch->timeout_ms;
	uint64_t rings;

	if (own_ms >= 0 && (timeout_ms < 0 || own_ms < timeout_ms))
		timeout_ms = own_ms;
	atomic_store(&flash->asleep, true);
	if (!atomic_load(&flash->woken))
		poll(bells, 2, timeout_ms);
	atomic_store(&flash->asleep, false);
	/* Empty when nobody rang. */
	if (read(flash->wake_fd, &rings, sizeof rings) < 0)
		return;
}

void
flash_wake(struct flash *flash)
{
	uint64_t one = 1;

	if (atomic_load_explicit(&flash->woken, memory_order_relaxed) ||
		atomic_exchange(&flash->woken, true))
		return;
	/* A full counter rings as well. */
	if (atomic_load(&flash->asleep) && write(flash->wake_fd, &one, sizeof one) < 0)
		return;
}

uint64_t
flash_progress(const struct flash *flash)
{
	return writer_bytes(flash);
}

/* --- making and ending -------------------------------------------------------------------- */

static bool
make_dispatch(struct flash *flash)
{
	struct dispatch *dispatch = calloc(1, sizeof *dispatch);

	if (!dispatch)
		return false;
	dispatch->waiting_last = &dispatch->waiting;
	dispatch->timeout_ms = -1;
	flash->dispatch = dispatch;
	dispatch->smart = smart_create();
	return dispatch->smart != NULL;
}

static bool
make_parts(struct flash *flash, char *error, size_t error_size)
{
	struct flash_super *found = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);
	struct flash_stats stats;
	bool made = false;

	if (!found || !make_dispatch(flash)) {
		snprintf(error, error_size, "flash: no memory");
		goto out;
	}
	if (!super_open(flash, found, error, error_size))
		goto out;
	if (!log_create(flash) || !journal_create(flash) || !reads_create(flash)) {
		snprintf(error, error_size, "flash: no memory for buffers and tables");
		goto out;
	}
	if (flash->options.items->outside) {
		flash_get_stats(flash, &stats);
		flash->options.items->outside(flash->options.items_context, stats.memory_bytes);
	}
	made = recover_run(flash, found, error, error_size);
out:
	free(found);
	return made;
}

struct flash *
flash_inspect(const struct flash_options *options, struct flash_super *found, char *error,
	size_t error_size)
{
	struct flash *flash = calloc(1, sizeof *flash);

	if (!flash) {
		snprintf(error, error_size, "flash: no memory");
		return NULL;
	}
	flash->options = *options;
	flash->inspected = true;
	flash->wake_fd = -1;
	atomic_store(&flash->alive, true);
	atomic_store(&flash->now_ns, options->now_ns);
	if (!make_dispatch(flash))
		snprintf(error, error_size, "flash: no memory");
	else if (super_open(flash, found, error, error_size))
		return flash;
	flash_destroy(flash);
	return NULL;
}

struct flash *
flash_create(const struct flash_options *options, char *error, size_t error_size)
{
	struct flash *flash = calloc(1, sizeof *flash);

	if (!flash) {
		snprintf(error, error_size, "flash: no memory");
		return NULL;
	}
	flash->options = *options;
	atomic_store(&flash->alive, true);
	atomic_store(&flash->now_ns, options->now_ns);
	flash->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (flash->wake_fd < 0)
		snprintf(error, error_size, "flash: no eventfd: %s", strerror(errno));
	if (flash->wake_fd >= 0 && make_parts(flash, error, error_size))
		return flash;
	flash_destroy(flash);
	return NULL;
}

/* Everything that the device still has is waited for. false: it doesn't answer. */
static bool
drain(struct flash *flash)
{
	struct dispatch *dispatch = flash->dispatch;
	unsigned rounds = 0;

	while (dispatch->count > 0 && rounds < ROUNDS) {
		flash->options.io->wait(flash->writer, ROUND_MS);
		rounds = writer_poll(flash) ? 0 : rounds + 1;
	}
	return dispatch->count == 0;
}

void
flash_destroy(struct flash *flash)
{
	const struct io_backend *io = flash->options.io;

	if (flash->writer && !drain(flash)) {
		/* The device may still write to or read from what was lent to it. */
		flash_say(flash, 4, "flash: the device doesn't give back its buffers");
		return;
	}
	if (flash->reads)
		reads_destroy(flash);
	if (flash->journal)
		journal_destroy(flash);
	if (flash->log)
		log_destroy(flash);
	if (flash->writer)
		io->queue_destroy(flash->writer);
	if (flash->super)
		super_destroy(flash);
	if (flash->io)
		io->close(flash->io);
	if (flash->dispatch)
		smart_destroy(flash->dispatch->smart);
	free(flash->dispatch);
	if (flash->wake_fd >= 0)
		close(flash->wake_fd);
	free(flash);
}

bool
flash_alive(const struct flash *flash)
{
	return atomic_load_explicit(&flash->alive, memory_order_acquire);
}

bool
flash_voided(const struct flash *flash)
{
	return !flash_alive(flash) && super_void_settled(flash);
}

uint64_t
flash_hash_seed(const struct flash *flash)
{
	return flash->hash_seed;
}

/* --- statistics --------------------------------------------------------------------------- */

void
flash_get_stats(const struct flash *flash, struct flash_stats *stats)
{
	struct dispatch *dispatch = flash->dispatch;
	const struct io_backend *io = flash->options.io;

	memset(stats, 0, sizeof *stats);
	stats->alive = flash_alive(flash);
	stats->voided = !stats->alive;
	stats->backend = io->name;
	for (uint32_t i = 0; i < io->file_count(flash->io); i++)
		stats->bytes += io->file(flash->io, i)->size;
	stats->region_bytes = flash->region_bytes;
	stats->regions = flash->region_count;
	stats->recovered_items = flash->recovered.items;
	stats->recovered_ns = flash->recovered.ns;
	stats->recovery_killed = flash->recovered.killed;
	stats->recovery_bad_regions = flash->recovered.bad_regions;
	stats->recovered_clean = flash->recovered.clean;
	stats->written_bytes = writer_bytes(flash);
	stats->write_errors = atomic_load(&dispatch->write_errors);
	stats->write_late = atomic_load(&dispatch->write_late);
	stats->recovered_items = flash->recovered.items;
	stats->recovered_ns = flash->recovered.ns;
	stats->recovery_killed = flash->recovered.killed;
	stats->recovery_bad_regions = flash->recovered.bad_regions;
	stats->recovered_clean = flash->recovered.clean;
	if (flash->log)
		log_stats(flash, stats);
	if (flash->journal)
		journal_stats(flash, stats);
	if (flash->reads)
		reads_stats(flash, stats);
	stats->wear_percent =
		smart_wear(dispatch->smart, io, flash->io, atomic_load(&flash->now_ns));
}
