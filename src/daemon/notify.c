/* SPDX-License-Identifier: BSD-2-Clause */
#include "daemon/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void
notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t size = path ? strlen(path) : 0;
	int fd;

	if (size == 0 || size >= sizeof address.sun_path || (*path != '/' && *path != '@'))
		return;
	memcpy(address.sun_path, path, size);
	if (*path == '@')
		address.sun_path[0] = 0; /* the abstract namespace */
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&address,
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + size));
	close(fd);
}

uint64_t
notify_watchdog_ns(void)
{
	const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

	if (!us || (pid && atol(pid) != (long)getpid()))
		return 0;
	return strtoull(us, NULL, 10) * 1000;
}
