/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * halcyon-null: a server that does nothing but answer, as fast as it can: the ceiling of what
 * sockets and a load generator allow. It stores nothing. Every key of a 'get' is a hit whose value
 * is always the same, every 'set' is STORED after its value was copied once. It knows no other
 * command and checks nothing.
 *
 *     halcyon-null [-s PATH | -p PORT] [-v BYTES]
 *
 * One thread; it ends at a signal.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define IN_SIZE (1024 * 1024)
#define OUT_SIZE (1024 * 1024)
#define EVENTS 256
#define VALUE_MAX (64 * 1024)
#define ANSWER_MAX (VALUE_MAX + 512) /* of one key */
#define BODY_MAX (IN_SIZE / 2)

struct connection {
	int fd;
	size_t size; /* of an unfinished request */
	char *rest;
};

struct server {
	int epoll_fd;
	int listen_fd;
	char *in;
	char *out;
	char *store; /* where the value of a set is copied to */
	size_t out_size;
	size_t tail_size;
	char tail[ANSWER_MAX]; /* what follows the key of a VALUE */
};

static void
die(const char *what)
{
	fprintf(stderr, "halcyon-null: %s: %s\n", what, errno ? strerror(errno) : "not understood");
	exit(1);
}

static void
flush(struct server *server, int fd)
{
	size_t done = 0;

	while (done < server->out_size) {
		ssize_t sent = send(fd, server->out + done, server->out_size - done, MSG_NOSIGNAL);
		if (sent > 0) {
			done += (size_t)sent;
			continue;
		}
		if (errno != EAGAIN && errno != EINTR)
			break;
		struct pollfd ready = {.fd = fd, .events = POLLOUT};
		poll(&ready, 1, -1);
	}
	server->out_size = 0;
}

static void
append(struct server *server, const char *bytes, size_t size)
{
	memcpy(server->out + server->out_size, bytes, size);
	server->out_size += size;
}

/* "get key key ..": from the first key to the end of the line. */
static void
answer_get(struct server *server, int fd, const char *at, const char *end)
{
	while (at < end) {
		const char *space = memchr(at, ' ', (size_t)(end - at));
		size_t size = (size_t)((space ? space : end) - at);
		if (server->out_size + ANSWER_MAX + size > OUT_SIZE)
			flush(server, fd);
		append(server, "VALUE ", 6);
		append(server, at, size);
		append(server, server->tail, server->tail_size);
		at += size + 1;
	}
	append(server, "END\r\n", 5);
}

/* The number at the end of a line. */
static size_t
last_number(const char *line, const char *end)
{
	size_t number = 0;
	size_t place = 1;

	while (end > line && end[-1] >= '0' && end[-1] <= '9') {
		number += place * (size_t)(*--end - '0');
		place *= 10;
	}
	return number;
}

/* Answers all whole requests; returns how many bytes they took. */
static size_t
answer(struct server *server, int fd, const char *from, size_t size)
{
	const char *at = from;
	const char *end = from + size;

	while (at < end) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		if (!newline || newline - at < 5)
			break;
		const char *line_end = newline - 1; /* at \r */
		if (*at == 'g') {
			answer_get(server, fd, at + 4, line_end);
			at = newline + 1;
			continue;
		}
		size_t body = last_number(at, line_end);
		if (body > BODY_MAX || (size_t)(end - newline) - 1 < body + 2)
			break;
		memcpy(server->store, newline + 1, body);
		if (server->out_size + 8 > OUT_SIZE)
			flush(server, fd);
		append(server, "STORED\r\n", 8);
		at = newline + 1 + body + 2;
	}
	return (size_t)(at - from);
}

static void
drop(struct connection *connection)
{
	close(connection->fd);
	free(connection->rest);
	free(connection);
}

static void
serve(struct server *server, struct connection *connection)
{
	size_t size = connection->size;

	if (size)
		memcpy(server->in, connection->rest, size);
	ssize_t got = recv(connection->fd, server->in + size, IN_SIZE - size, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		drop(connection);
		return;
	}
	size += (size_t)got;
	size_t used = answer(server, connection->fd, server->in, size);
	flush(server, connection->fd);
	connection->size = size - used;
	if (connection->size == 0)
		return;
	connection->rest = realloc(connection->rest, connection->size);
	if (!connection->rest || connection->size == IN_SIZE) {
		errno = 0;
		die("a request that has no room");
	}
	memcpy(connection->rest, server->in + used, connection->size);
}

static void
accept_one(struct server *server)
{
	struct connection *connection = calloc(1, sizeof *connection);
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
	int one = 1;

	if (!connection)
		die("memory");
	connection->fd = accept4(server->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (connection->fd < 0) {
		free(connection);
		return;
	}
	/* Fails on a Unix socket, where there is nothing to turn off. */
	setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, connection->fd, &event))
		die("epoll_ctl");
}

static int
listen_on(const char *path, unsigned port)
{
	struct sockaddr_un local = {.sun_family = AF_UNIX};
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	int one = 1;
	int fd = socket(path ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		die("socket");
	if (path) {
		if (strlen(path) >= sizeof local.sun_path) {
			errno = ENAMETOOLONG;
			die(path);
		}
		memcpy(local.sun_path, path, strlen(path) + 1);
		unlink(path);
		if (bind(fd, (struct sockaddr *)&local, sizeof local))
			die(path);
	} else {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(fd, (struct sockaddr *)&address, sizeof address))
			die("bind");
	}
	if (listen(fd, 1024))
		die("listen");
	return fd;
}

static void
make_tail(struct server *server, size_t value_size)
{
	int head = snprintf(server->tail, sizeof server->tail, " 0 %zu\r\n", value_size);

	memset(server->tail + head, 'x', value_size);
	memcpy(server->tail + (size_t)head + value_size, "\r\n", 2);
	server->tail_size = (size_t)head + value_size + 2;
}

int
main(int argc, char **argv)
{
	static struct server server;
	struct epoll_event events[EVENTS];
	const char *path = NULL;
	unsigned long port = 0;
	unsigned long value_size = 64;
	int option;

	while ((option = getopt(argc, argv, "s:p:v:")) != -1) {
		if (option == 's')
			path = optarg;
		else if (option == 'p')
			port = strtoul(optarg, NULL, 10);
		else if (option == 'v')
			value_size = strtoul(optarg, NULL, 10);
		else
			return 2;
	}
	if (optind < argc || value_size > VALUE_MAX || port > 65535 || (!path && !port)) {
		fprintf(stderr, "usage: halcyon-null -s PATH | -p PORT [-v BYTES]\n");
		return 2;
	}
	server.in = malloc(IN_SIZE);
	server.out = malloc(OUT_SIZE);
	server.store = malloc(BODY_MAX);
	if (!server.in || !server.out || !server.store)
		die("memory");
	make_tail(&server, value_size);
	server.listen_fd = listen_on(path, (unsigned)port);
	server.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
	if (server.epoll_fd < 0 ||
		epoll_ctl(server.epoll_fd, EPOLL_CTL_ADD, server.listen_fd, &event))
		die("epoll");
	for (;;) {
		int count = epoll_wait(server.epoll_fd, events, EVENTS, -1);
		for (int i = 0; i < count; i++) {
			if (events[i].data.ptr)
				serve(&server, events[i].data.ptr);
			else
				accept_one(&server);
		}
	}
}
