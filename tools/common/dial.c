/* SPDX-License-Identifier: BSD-2-Clause */
#include "dial.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

static int
find_unix(const char *path, struct dial_address *address, char *error, size_t error_size)
{
	struct sockaddr_un *un = (struct sockaddr_un *)&address->storage;

	if (strlen(path) >= sizeof un->sun_path) {
		snprintf(error, error_size, "socket path is longer than %zu bytes: %s",
			sizeof un->sun_path - 1, path);
		return -1;
	}
	un->sun_family = AF_UNIX;
	memcpy(un->sun_path, path, strlen(path) + 1);
	address->length = sizeof *un;
	snprintf(address->text, sizeof address->text, "%s", path);
	return 0;
}

/* Splits at the last colon; an address with several colons and no brackets is all host (IPv6). */
static int
split(const char *server, char *host, size_t host_size, const char **port)
{
	const char *start = server;
	const char *end;
	const char *colon = strrchr(server, ':');

	*port = DIAL_PORT_DEFAULT;
	if (server[0] == '[') {
		start = server + 1;
		end = strchr(start, ']');
		if (!end || (end[1] != '\0' && end[1] != ':'))
			return -1;
		if (end[1] == ':')
			*port = end + 2;
	} else if (colon && strchr(server, ':') == colon) {
		end = colon;
		*port = colon + 1;
	} else {
		end = server + strlen(server);
	}
	if (end == start || (size_t)(end - start) >= host_size || **port == '\0')
		return -1;
	memcpy(host, start, (size_t)(end - start));
	host[end - start] = '\0';
	return 0;
}

int
dial_find(const char *server, const char *path, struct dial_address *address, char *error,
	size_t error_size)
{
	char host[256];
	const char *port;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;

	memset(address, 0, sizeof *address);
	if (path)
		return find_unix(path, address, error, error_size);
	if (split(server, host, sizeof host, &port)) {
		snprintf(error, error_size, "server is not host:port: %s", server);
		return -1;
	}
	int status = getaddrinfo(host, port, &hints, &found);
	if (status) {
		snprintf(error, error_size, "cannot find %s: %s", server, gai_strerror(status));
		return -1;
	}
	memcpy(&address->storage, found->ai_addr, found->ai_addrlen);
	address->length = found->ai_addrlen;
	snprintf(address->text, sizeof address->text,
		strchr(host, ':') ? "[%.120s]:%s" : "%.120s:%s", host, port);
	freeaddrinfo(found);
	return 0;
}

static int
wait_connected(int fd, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
	int status = poll(&poll_fd, 1, timeout_ms);
	int reason = 0;
	socklen_t length = sizeof reason;

	if (status < 0)
		return errno;
	if (status == 0)
		return ETIMEDOUT;
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &length);
	return reason;
}

int
dial_connect(const struct dial_address *address, int timeout_ms, char *error, size_t error_size)
{
	int reason = 0;
	int one = 1;
	int fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0) {
		snprintf(error, error_size, "cannot open a socket: %s", strerror(errno));
		return -1;
	}
	if (address->storage.ss_family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	/*
	 * A Unix socket with a full backlog answers EAGAIN at once, where TCP waits: try again
	 * until the time is up.
	 */
	for (int waited_ms = 0;; waited_ms += 2) {
		reason = connect(fd, (const struct sockaddr *)&address->storage, address->length)
				 ? errno
				 : 0;
		if (reason != EAGAIN || waited_ms >= timeout_ms)
			break;
		usleep(2000);
	}
	if (reason == EINPROGRESS)
		reason = wait_connected(fd, timeout_ms);
	if (reason) {
		snprintf(error, error_size, "cannot connect to %s: %s", address->text,
			strerror(reason));
		close(fd);
		return -1;
	}
	return fd;
}
