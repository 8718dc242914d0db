/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * dial: where a server is, and a stream connection to it. For the tools; knows no protocol.
 */
#ifndef TOOLS_COMMON_DIAL_H
#define TOOLS_COMMON_DIAL_H

#include <stddef.h>
#include <sys/socket.h>

#define DIAL_PORT_DEFAULT "11211"

struct dial_address {
	struct sockaddr_storage storage;
	socklen_t length;
	char text[160]; /* as it is named in messages */
};

/*
 * Find the address of "host", "host:port", "[v6]:port" or, where path is not NULL, of a Unix
 * socket. 0, or -1 with one line in error.
 */
int dial_find(const char *server, const char *path, struct dial_address *address, char *error,
	size_t error_size);

/*
 * Connect, waiting at most timeout_ms. The descriptor is non-blocking and close-on-exec, TCP has
 * its delay off. The caller closes it. -1 with one line in error that names the address.
 */
int dial_connect(
	const struct dial_address *address, int timeout_ms, char *error, size_t error_size);

#endif
