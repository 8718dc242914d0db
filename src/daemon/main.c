/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * halcyond: a table of contents. Set up in order of dependence, run, tear down in reverse.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "daemon/notify.h"
#include "daemon/process.h"
#include "daemon/server.h"
#include "net/listen.h"
#include "proto/request.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

#ifdef HAVE_JEMALLOC
/* Few arenas, and pages go back after a second: what clients made us allocate doesn't stay. */
extern const char *malloc_conf;
const char *malloc_conf = "narenas:4,tcache_max:16384,dirty_decay_ms:1000,muzzy_decay_ms:0";
#endif

static struct server server;
static _Atomic bool reopen;

static void
on_stop(int signal)
{
	(void)signal;
	/* Asked for twice: what isn't saved by now is lost, and the next start replays the log. */
	if (atomic_load(&server.flash.saving))
		_exit(1);
	server_stop(&server);
}

static void
on_reopen(int signal)
{
	(void)signal;
	atomic_store(&reopen, true);
	server_wake(&server);
}

static void
catch_signals(void)
{
	struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART},
			 ignore = {.sa_handler = SIG_IGN};
	struct sigaction hangup = {.sa_handler = on_reopen, .sa_flags = SA_RESTART};

	sigaction(SIGINT, &stop, NULL);
	sigaction(SIGTERM, &stop, NULL);
	sigaction(SIGUSR1, &stop, NULL);
	sigaction(SIGHUP, &hangup, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

static struct listen_options
listen_options(const struct options *options)
{
	static const uint8_t protocols[] = {PROTOCOL_UNKNOWN, PROTOCOL_TEXT, PROTOCOL_BINARY};
	bool only_udp = options->given[OPTION_NUMBER_udp_port] && options->udp_port != 0 &&
			!options->given[OPTION_NUMBER_port];

	return (struct listen_options){
		.addresses = options->listen,
		.addresses_given = options->given[OPTION_NUMBER_listen],
		.port = (int)(only_udp ? options->udp_port : options->port),
		.udp_port = (int)options->udp_port,
		.unix_path = options->unix_socket,
		.unix_mask = (unsigned)options->unix_mask,
		.backlog = (int)options->backlog,
		.protocol = protocols[options->protocol],
		.udp_public = options->udp_public,
	};
}

static int
print_and_exit(const struct options *options)
{
	if (options->help)
		options_print_help(stdout);
	else if (options->print_version)
		printf("halcyond %s (memcached %s)\n", PACKAGE_VERSION, SERVER_VERSION);
	else
		process_print_licenses(stdout);
	return fflush(stdout) == 0 ? EX_OK : EX_IOERR;
}

/* One line a listener; a warning for those that other hosts can reach. */
static void
say_ready(const struct options *options, const struct listeners *listeners, uint64_t began_ns)
{
	char ports[1024] = "";
	size_t used = 0;

	for (unsigned i = 0; i < listeners->count; i++) {
		const struct listener *listener = &listeners->at[i];

		if (used < sizeof ports)
			used += (size_t)snprintf(ports + used, sizeof ports - used, "%s%s",
				i ? ", " : "", listener->name);
		if (listener->public_address)
			log_warning("%s can be reached from other hosts, and asks nobody for a "
				    "password",
				listener->name);
	}
	log_notice("version %s is ready after %llu ms on %s: %llu megabytes, %u threads, %llu "
		   "connections",
		PACKAGE_VERSION, (unsigned long long)(clock_monotonic_ns() - began_ns) / 1000000,
		used ? ports : "no socket",
		(unsigned long long)(options_memory_bytes(options) >> 20),
		(unsigned)options->threads, (unsigned long long)options->connections_max);
	notify("READY=1\nSTATUS=Serving");
}

/* With the server made: from here to the end. */
static int
serve(const struct options *options, struct listeners *listeners, struct process *process,
	uint64_t began_ns)
{
	const char *port_file = getenv("MEMCACHED_PORT_FILENAME");

	if (!server_create(&server, options, listeners) || !server_start(&server) ||
		!process_write_pid(process)) {
		server_destroy(&server);
		return EX_OSERR;
	}
	if (port_file && !listeners_write_ports(listeners, port_file))
		log_warning("cannot write %s: %s", port_file, strerror(errno));
	say_ready(options, listeners, began_ns);
	process_ready(process);
	while (!atomic_load(&server.stop)) {
		server_run(&server, &reopen);
		if (atomic_exchange(&reopen, false))
			log_reopen();
	}
	notify("STOPPING=1\nSTATUS=Stopping");
	log_notice("stopping");
	server_destroy(&server);
	return EX_OK;
}

static int
run(const struct options *options, uint64_t began_ns)
{
	struct listen_options listen = listen_options(options);
	struct process process = {.options = options, .parent = -1, .pid_fd = -1};
	struct listeners listeners;
	char error[LISTEN_ERROR_MAX];
	int code = EX_OSERR;

	catch_signals();
	if (!listeners_open(&listeners, &listen, error)) {
		log_error("%s", error);
		return 1;
	}
	if (process_begin(&process)) {
		if (listeners_open_unix(&listeners, &listen, error)) {
			code = serve(options, &listeners, &process, began_ns);
		} else {
			log_error("%s", error);
			code = 1;
		}
	}
	listeners_close(&listeners);
	process_end(&process);
	return code;
}

int
main(int argc, char **argv)
{
	uint64_t began_ns = clock_monotonic_ns();
	char error[OPTIONS_ERROR_MAX];
	struct options options;
	int code;

	process_fill_descriptors();
	clock_start();
	options_init(&options);
	if (!options_parse(&options, argc, argv, error)) {
		fprintf(stderr, "halcyond: %s\n", error);
		options_free(&options);
		return EX_USAGE;
	}
	if (options.help || options.print_version || options.license) {
		code = print_and_exit(&options);
		options_free(&options);
		return code;
	}
	code = process_prepare(&options);
	if (code == EX_OK && !options.check_config)
		code = run(&options, began_ns);
	log_close();
	options_free(&options);
	return code;
}
