/* SPDX-License-Identifier: BSD-2-Clause */
/* The server's part in flash: its options, its thread, what is said at start, and the clean stop. */
#include "daemon/server.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/options_flash.h"
#include "base/rcu.h"
#include "daemon/notify.h"
#include "flash/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRESS_NOTIFY_NS CLOCK_SECOND_NS
#define PROGRESS_LOG_NS (5 * CLOCK_SECOND_NS)
#define EXTEND_S 30 /* told to the service manager with each progress */

static void
say(void *context, int priority, const char *line)
{
	(void)context;
	log_line((enum log_level)priority, "%s", line);
}

/* Recovery goes on: the service manager learns of it each second, the log each fifth. */
static void
progress(void *context, const char *what, uint64_t done, uint64_t total)
{
	struct server_flash *flash = &((struct server *)context)->flash;
	uint64_t now = clock_monotonic_ns();
	unsigned percent = total ? (unsigned)(done * 100 / total) : 0;
	char state[256];

	if (flash->began_ns == 0)
		flash->began_ns = flash->told_ns = flash->logged_ns = now;
	if (now - flash->told_ns >= PROGRESS_NOTIFY_NS) {
		snprintf(state, sizeof state,
			"STATUS=Recovering flash: %u%% (%llu of %llu %s)\n"
			"EXTEND_TIMEOUT_USEC=%u000000",
			percent, (unsigned long long)done, (unsigned long long)total, what,
			EXTEND_S);
		notify(state);
		flash->told_ns = now;
	}
	if (now - flash->logged_ns >= PROGRESS_LOG_NS) {
		log_notice("flash: %u%% recovered (%llu of %llu %s)", percent,
			(unsigned long long)done, (unsigned long long)total, what);
		flash->logged_ns = now;
	}
}

static const struct io_backend *
choose_io(const struct options *options)
{
	enum { IO_AUTO, IO_URING, IO_THREADS };
	const struct io_backend *io;
	char why[256];

	if (options->flash_io == IO_THREADS)
		return &io_threads_backend;
	if (options->flash_io == IO_URING)
		return &io_uring_backend;
	io = io_choose(why, sizeof why);
	if (*why)
		log_warning("%s", why);
	return io;
}

static bool
fill(struct server *server, const struct options *options)
{
	struct server_flash *flash = &server->flash;
	const char *state_directory = options->state_directory && *options->state_directory
					      ? options->state_directory
					      : getenv("STATE_DIRECTORY");

	flash->files = calloc(flash->named.count, sizeof *flash->files);
	if (!flash->files)
		return false;
	for (unsigned i = 0; i < flash->named.count; i++) {
		if (options->daemonize && flash->named.files[i].path[0] != '/') {
			log_error("option --flash-path: with -d, %s must be an absolute path",
				flash->named.files[i].path);
			return false;
		}
		flash->files[i] = (struct flash_file_options){
			flash->named.files[i].path, flash->named.files[i].size};
	}
	flash->options = (struct flash_options){
		.io = choose_io(options),
		.files = flash->files,
		.file_count = flash->named.count,
		.format = options->flash_format,
		.journal = (uint8_t)options->flash_journal,
		.depth = (uint32_t)options->flash_depth,
		.read_timeout_ms = (uint32_t)options->flash_read_timeout_ms,
		.reinsert_percent = (uint32_t)options->flash_reinsert,
		.write_budget = options->flash_write_budget,
		.read_target_us = READ_TARGET_US,
		.state_directory = state_directory && *state_directory ? state_directory : NULL,
		.now_ns = clock_unix_ns(),
		.say = say,
	};
	return true;
}

bool
server_flash_options(struct server *server, struct store_options *store)
{
	const struct options *options = server->options;
	struct server_flash *flash = &server->flash;

	/* They were checked: what can be wrong now is memory. */
	if (!options_flash_read(options, &flash->named, flash->error)) {
		log_error("%s", flash->error);
		return false;
	}
	if (flash->named.count == 0)
		return true;
	if (!fill(server, options))
		return false;
	store->flash = &flash->options;
	store->flash_item_bytes_min = options->given[OPTION_NUMBER_ext_item_size]
					      ? (uint32_t)options->ext_item_size
					      : (uint32_t)options->flash_item_size_min;
	store->progress = progress;
	store->progress_context = server;
	store->error = flash->error;
	store->error_size = sizeof flash->error;
	return true;
}

void
server_flash_opened(struct server *server)
{
	struct flash_stats stats;

	if (!store_flash(server->store))
		return;
	flash_get_stats(store_flash(server->store), &stats);
	log_notice("flash: %llu megabytes in %llu regions by %s; %llu items %s in %llu ms",
		(unsigned long long)(stats.bytes >> 20), (unsigned long long)stats.regions,
		stats.backend, (unsigned long long)stats.recovered_items,
		stats.recovered_clean ? "taken up as they were saved" : "recovered from the log",
		(unsigned long long)(stats.recovered_ns / 1000000));
}

void *
server_flash_run(void *argument)
{
	struct background *background = argument;
	struct server *server = background->server;

	rcu_register();
	while (!atomic_load(&server->stop)) {
		if (store_background_flash(background->store, clock_unix_ns())) {
			rcu_quiescent();
			continue;
		}
		rcu_offline();
		store_flash_wait(server->store, -1);
		rcu_online();
	}
	rcu_unregister();
	return NULL;
}

void
server_flash_save(struct server *server)
{
	uint64_t began_ns = clock_unix_ns();
	uint64_t timeout_ns = (uint64_t)server->options->stop_timeout_s * CLOCK_SECOND_NS;
	char state[128];

	if (!server->store || !store_flash(server->store) ||
		!server->background[BACKGROUND_FLASH].store)
		return;
	snprintf(state, sizeof state, "STATUS=Saving memory to flash\nEXTEND_TIMEOUT_USEC=%llu",
		(unsigned long long)(timeout_ns / 1000 + EXTEND_S * 1000000ull));
	notify(state);
	atomic_store(&server->flash.saving, true);
	if (store_stop(server->background[BACKGROUND_FLASH].store, clock_unix_ns,
		    began_ns + timeout_ns))
		log_notice("flash: all is saved, after %llu ms",
			(unsigned long long)((clock_unix_ns() - began_ns) / 1000000));
	else
		log_warning("flash: the index could not be saved: the next start replays the log");
	atomic_store(&server->flash.saving, false);
}

void
server_flash_free(struct server *server)
{
	free(server->flash.files);
	options_flash_free(&server->flash.named);
}
