/* SPDX-License-Identifier: BSD-2-Clause */
#include "daemon/stats_output.h"

#include "base/clock.h"
#include "base/log.h"
#include "daemon/prefixes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static const char *
yes(bool flag)
{
	return flag ? "yes" : "no";
}

static void
put_network(struct stats_output *output, const struct server *server)
{
	const struct options *options = server->options;
	unsigned tcp = 0, udp = 0;

	for (unsigned i = 0; i < server->listeners->count; i++) {
		const struct listener *listener = &server->listeners->at[i];

		if (listener->kind == LISTENER_TCP && !tcp)
			tcp = listener->port;
		if (listener->kind == LISTENER_UDP && !udp)
			udp = listener->port;
	}
	stats_put_number(output, "maxbytes", atomic_load(&server->limit_bytes));
	stats_put_number(output, "maxconns", server->limits.connections_max);
	stats_put_number(output, "tcpport", tcp);
	stats_put_number(output, "udpport", udp);
	stats_put(output, "inter", "%s", options->unix_socket ? "NULL" : options->listen);
	stats_put_number(output, "verbosity", log_verbosity());
	stats_put_number(output, "oldest", 0);
	stats_put(output, "evictions", "%s", options->evictions_off ? "off" : "on");
	stats_put(output, "domain_socket", "%s",
		options->unix_socket ? options->unix_socket : "NULL");
	stats_put(output, "umask", "%llo", (unsigned long long)options->unix_mask);
	stats_put(output, "shutdown_command", "%s", yes(options->shutdown));
}

static void
put_protocol(struct stats_output *output, const struct server *server)
{
	static const char *const protocols[] = {"auto-negotiate", "ascii", "binary"};
	const struct options *options = server->options;

	stats_put(output, "growth_factor", "%.2f", options->growth_factor);
	stats_put_number(output, "chunk_size", (uint64_t)options->chunk_bytes);
	stats_put_number(output, "num_threads", server->worker_count);
	stats_put_number(output, "num_threads_per_udp", server->worker_count);
	stats_put(output, "stat_key_prefix", "%s", options->prefix_delimiter);
	stats_put(output, "detail_enabled", "%s",
		yes(atomic_load(prefixes_enabled(server->prefixes))));
	stats_put_number(output, "reqs_per_event", (uint64_t)options->requests_a_turn);
	stats_put(output, "cas_enabled", "%s", yes(!options->cas_off));
	stats_put_number(output, "tcp_backlog", (uint64_t)options->backlog);
	stats_put(output, "binding_protocol", "%s", protocols[options->protocol]);
	stats_put(output, "auth_enabled_sasl", "no");
	stats_put(output, "auth_enabled_ascii", "no");
	stats_put_number(output, "item_size_max", options->value_bytes_max);
	stats_put(output, "maxconns_fast", "%s", yes(options->connections_refuse));
	stats_put_number(output, "hashpower_init", (uint64_t)options->hashpower);
}

/* What memcached's page mover, crawler and lists were told: accepted, and shown as given. */
static void
put_memory(struct stats_output *output, const struct options *options)
{
	stats_put(output, "slab_reassign", "%s", yes(options->slab_reassign));
	stats_put_number(output, "slab_automove", (uint64_t)options->slab_automove);
	stats_put(output, "slab_automove_ratio", "%.2f", options->slab_automove_ratio);
	stats_put_number(output, "slab_automove_window", (uint64_t)options->slab_automove_window);
	stats_put_number(output, "slab_chunk_max", (uint64_t)options->chunk_kib_max * 1024);
	stats_put(output, "lru_crawler", "%s", yes(options->lru_crawler));
	stats_put_number(output, "lru_crawler_sleep", (uint64_t)options->lru_crawler_sleep);
	stats_put_number(output, "lru_crawler_tocrawl", (uint64_t)options->lru_crawler_tocrawl);
	stats_put_number(output, "tail_repair_time", (uint64_t)options->tail_repair_time);
	stats_put(output, "flush_enabled", "%s", yes(!options->flush_off));
	stats_put(output, "dump_enabled", "%s", yes(!options->dump_off));
	stats_put(output, "hash_algorithm", "xxh3");
	stats_put(output, "lru_maintainer_thread", "%s", yes(options->lru_maintainer));
	stats_put(output, "lru_segmented", "%s", yes(options->lru_maintainer));
	stats_put_number(output, "hot_lru_pct", (uint64_t)options->hot_lru_pct);
	stats_put_number(output, "warm_lru_pct", (uint64_t)options->warm_lru_pct);
	stats_put(output, "hot_max_factor", "%.2f", options->hot_max_factor);
	stats_put(output, "warm_max_factor", "%.2f", options->warm_max_factor);
	stats_put(output, "temp_lru", "%s", yes(options->given[OPTION_NUMBER_temporary_ttl]));
	stats_put_number(output, "temporary_ttl", (uint64_t)options->temporary_ttl);
}

/* extstore's, shown whether there is flash or not, as memcached does. */
static void
put_ext(struct stats_output *output, const struct options *options)
{
	stats_put_number(output, "ext_item_size",
		options->given[OPTION_NUMBER_ext_item_size]
			? (uint64_t)options->ext_item_size
			: (uint64_t)options->flash_item_size_min);
	stats_put_number(output, "ext_item_age", (uint64_t)options->ext_item_age);
	stats_put_number(output, "ext_low_ttl", (uint64_t)options->ext_low_ttl);
	stats_put_number(output, "ext_recache_rate", (uint64_t)options->ext_recache_rate);
	stats_put_number(output, "ext_wbuf_size", (uint64_t)options->ext_wbuf_size << 20);
	stats_put_number(output, "ext_compact_under", (uint64_t)options->ext_compact_under);
	stats_put_number(output, "ext_drop_under", (uint64_t)options->ext_drop_under);
	stats_put_number(output, "ext_max_sleep", (uint64_t)options->ext_max_sleep);
	stats_put(output, "ext_max_frag", "%.2f", options->ext_max_frag);
}

void
stats_settings(struct stats_output *output)
{
	const struct server *server = output->worker->server;
	const struct options *options = server->options;

	put_network(output, server);
	put_protocol(output, server);
	put_memory(output, options);
	stats_put_number(output, "idle_timeout", (uint64_t)options->idle_timeout_s);
	stats_put_number(output, "watcher_logbuf_size", (uint64_t)options->watcher_logbuf * 1024);
	stats_put_number(output, "worker_logbuf_size", (uint64_t)options->worker_logbuf * 1024);
	stats_put_number(output, "read_buf_mem_limit", (uint64_t)options->read_buf_mem_limit);
	stats_put(output, "track_sizes", "%s", yes(options->track_sizes));
	stats_put(output, "inline_ascii_response", "%s", yes(options->inline_ascii_resp));
	put_ext(output, options);
	stats_put(output, "slab_automove_freeratio", "%.3f", options->slab_automove_freeratio);
	stats_put(output, "ext_drop_unread", "%s", yes(options->ext_drop_unread));
	stats_put_number(output, "num_napi_ids", (uint64_t)options->napi_ids);
	stats_put(output, "memory_file", "(null)");
	stats_put_number(output, "client_flags_size", 4);
}

/* --- connections -------------------------------------------------------------------------- */

static void
put_connection(struct stats_output *output, int fd, const char *name, const char *value)
{
	char key[48];

	snprintf(key, sizeof key, "%d:%s", fd, name);
	stats_put(output, key, "%s", value);
}

static void
put_idle(struct stats_output *output, int fd, uint64_t seconds)
{
	char text[24];

	snprintf(text, sizeof text, "%llu", (unsigned long long)seconds);
	put_connection(output, fd, "secs_since_last_cmd", text);
}

/* A Unix peer has no name of its own: the listener's is shown. */
static void
write_peer(char *text, size_t size, int fd, const char *listen_name)
{
	struct sockaddr_storage address;
	socklen_t address_size = sizeof address;
	char host[INET6_ADDRSTRLEN];

	snprintf(text, size, "%s", listen_name);
	if (getpeername(fd, (struct sockaddr *)&address, &address_size) != 0)
		return;
	if (address.ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)&address;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
		snprintf(text, size, "tcp:%s:%u", host, ntohs(in->sin_port));
	} else if (address.ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&address;

		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
		snprintf(text, size, "tcp6:[%s]:%u", host, ntohs(in6->sin6_port));
	}
}

static void
visit_connection(void *context, const struct event_connection_view *view)
{
	struct stats_output *output = context;
	char peer[LISTEN_NAME_MAX];

	write_peer(peer, sizeof peer, view->fd, view->listen_name);
	put_connection(output, view->fd, "addr", peer);
	put_connection(output, view->fd, "listen_addr", view->listen_name);
	put_connection(output, view->fd, "state", view->state);
	put_idle(output, view->fd, view->idle_ns / CLOCK_SECOND_NS);
}

void
stats_connections(struct stats_output *output)
{
	const struct server *server = output->worker->server;

	for (unsigned i = 0; i < server->listeners->count; i++) {
		const struct listener *listener = &server->listeners->at[i];

		put_connection(output, listener->fd, "addr", listener->name);
		put_connection(output, listener->fd, "state",
			listener->kind == LISTENER_UDP ? "conn_read" : "conn_listening");
		put_idle(output, listener->fd,
			(clock_unix_ns() - clock_started_ns()) / CLOCK_SECOND_NS);
	}
	for (unsigned i = 0; i < server->worker_count; i++)
		event_front_visit(server->workers[i].front, visit_connection, output);
}
