/* SPDX-License-Identifier: BSD-2-Clause */
#include "net/listen.h"

#include "proto/request.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define INHERITED_FIRST 3 /* the service manager's first descriptor */

static bool fail(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool
fail(char *error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error, LISTEN_ERROR_MAX, format, arguments);
	va_end(arguments);
	return false;
}

/* --- what an address is ------------------------------------------------------------------- */

/*
 * Networks that the internet doesn't route to: loopback, private, shared, link-local, for tests and
 * documentation.
 */
static bool
private_inet(uint32_t address)
{
	static const struct {
		uint32_t network;
		unsigned bits;
	} networks[] = {
		{0x7f000000, 8},
		{0x0a000000, 8},
		{0xac100000, 12},
		{0xc0a80000, 16},
		{0xa9fe0000, 16},
		{0x64400000, 10},
		{0xc0000200, 24},
		{0xc6336400, 24},
		{0xcb007100, 24},
		{0xc6120000, 15},
	};

	for (size_t i = 0; i < sizeof networks / sizeof *networks; i++)
		if ((address ^ networks[i].network) >> (32 - networks[i].bits) == 0)
			return true;
	return false;
}

static bool
private_inet6(const struct in6_addr *address)
{
	const uint8_t *byte = address->s6_addr;

	if (IN6_IS_ADDR_V4MAPPED(address))
		return private_inet((uint32_t)byte[12] << 24 | (uint32_t)byte[13] << 16 |
				    (uint32_t)byte[14] << 8 | byte[15]);
	return IN6_IS_ADDR_LOOPBACK(address) || IN6_IS_ADDR_LINKLOCAL(address) ||
	       (byte[0] & 0xfe) == 0xfc || memcmp(byte, "\x20\x01\x0d\xb8", 4) == 0;
}

static bool
is_private(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return private_inet(ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr));
	if (address->sa_family == AF_INET6)
		return private_inet6(&((const struct sockaddr_in6 *)address)->sin6_addr);
	return true;
}

static bool
is_any(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return ((const struct sockaddr_in *)address)->sin_addr.s_addr == 0;
	return address->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool
is_loopback(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
	return address->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/*
 * Can the internet reach it? 'Every address' can be reached by the most public one that this host
 * has.
 */
static bool
internet_reaches(const struct sockaddr *address)
{
	struct ifaddrs *list, *one;
	bool reaches = false;

	if (!is_any(address))
		return !is_private(address);
	if (getifaddrs(&list) != 0)
		return true;
	for (one = list; one; one = one->ifa_next)
		if (one->ifa_addr && !is_private(one->ifa_addr) &&
			(address->sa_family == AF_INET6 || one->ifa_addr->sa_family == AF_INET))
			reaches = true;
	freeifaddrs(list);
	return reaches;
}

static void
write_name(struct listener *listener, const struct sockaddr *address, socklen_t size)
{
	char host[NI_MAXHOST], port[NI_MAXSERV];
	const char *kind = listener->kind == LISTENER_UDP ? "udp" : "tcp";

	if (getnameinfo(address, size, host, sizeof host, port, sizeof port,
		    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
		snprintf(listener->name, sizeof listener->name, "%s", kind);
		return;
	}
	listener->port = (uint16_t)atoi(port);
	listener->inet6 = address->sa_family == AF_INET6;
	snprintf(listener->name, sizeof listener->name,
		listener->inet6 ? "%s:[%.100s]:%.10s" : "%s:%.100s:%.10s", kind, host, port);
}

/* --- opening ------------------------------------------------------------------------------ */

static struct listener *
add_listener(struct listeners *listeners)
{
	struct listener *grown = realloc(listeners->at, (listeners->count + 1) * sizeof *grown);

	if (!grown)
		return NULL;
	listeners->at = grown;
	memset(&grown[listeners->count], 0, sizeof *grown);
	grown[listeners->count].fd = -1;
	return &grown[listeners->count++];
}

static void
drop_last(struct listeners *listeners)
{
	struct listener *last = &listeners->at[--listeners->count];

	if (last->fd >= 0)
		close(last->fd);
}

/* UDP replies leave in bursts: as large a send buffer as the system gives. */
static void
set_options(int fd, const struct addrinfo *info)
{
	int on = 1, bytes = 4 << 20;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (info->ai_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
	if (info->ai_socktype == SOCK_DGRAM) {
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
		return;
	}
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

struct wanted {
	const char *host; /* NULL: every address */
	int port;	  /* -1: any free one */
	int socktype;
	uint8_t protocol;
	char tag[LISTEN_TAG_MAX];
	bool optional; /* an address family that this host may not have */
};

/* One address of a wanted host. 0, or what errno says. */
static int
open_one(struct listeners *listeners, const struct listen_options *options,
	const struct wanted *wanted, const struct addrinfo *info)
{
	struct sockaddr_storage bound;
	socklen_t size = sizeof bound;
	struct listener *listener = add_listener(listeners);
	int reason;

	if (!listener)
		return ENOMEM;
	listener->kind = wanted->socktype == SOCK_DGRAM ? LISTENER_UDP : LISTENER_TCP;
	listener->protocol = wanted->protocol;
	memcpy(listener->tag, wanted->tag, sizeof listener->tag);
	listener->public_address = !is_loopback(info->ai_addr);
	write_name(listener, info->ai_addr, info->ai_addrlen);
	listener->fd = socket(info->ai_family, info->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
		info->ai_protocol);
	if (listener->fd < 0)
		goto failed;
	set_options(listener->fd, info);
	if (bind(listener->fd, info->ai_addr, info->ai_addrlen) != 0)
		goto failed;
	if (listener->kind == LISTENER_TCP && listen(listener->fd, options->backlog) != 0)
		goto failed;
	if (getsockname(listener->fd, (struct sockaddr *)&bound, &size) == 0)
		write_name(listener, (struct sockaddr *)&bound, size);
	return 0;
failed:
	reason = errno;
	drop_last(listeners);
	return reason;
}

/* Port -1 means one number for all addresses: the first socket's. */
static bool
open_host(struct listeners *listeners, const struct listen_options *options, struct wanted *wanted,
	int *chosen, char *error)
{
	struct addrinfo hints = {.ai_flags = AI_PASSIVE,
				.ai_family = AF_UNSPEC,
				.ai_socktype = wanted->socktype},
			*list, *one;
	const char *kind = wanted->socktype == SOCK_DGRAM ? "UDP" : "TCP";
	char port[16];
	int code, reason = 0;
	unsigned before = listeners->count;

	snprintf(port, sizeof port, "%d",
		wanted->port >= 0 ? wanted->port
		: *chosen > 0	  ? *chosen
				  : 0);
	code = getaddrinfo(wanted->host, port, &hints, &list);
	if (code != 0)
		return fail(error, "cannot listen on %s: %s", wanted->host ? wanted->host : "*",
			gai_strerror(code));
	for (one = list; one; one = one->ai_next) {
		if (wanted->socktype == SOCK_DGRAM && !options->udp_public &&
			internet_reaches(one->ai_addr)) {
			freeaddrinfo(list);
			return fail(error,
				"UDP on %s port %s can be reached from the internet, where it "
				"serves attackers as an amplifier; "
				"--udp-public allows it",
				wanted->host ? wanted->host : "every address", port);
		}
		code = open_one(listeners, options, wanted, one);
		if (code == 0 && wanted->port < 0 && *chosen <= 0) {
			*chosen = listeners->at[listeners->count - 1].port;
			snprintf(port, sizeof port, "%d", *chosen);
			for (struct addrinfo *next = one->ai_next; next; next = next->ai_next)
				((struct sockaddr_in *)next->ai_addr)->sin_port =
					htons((uint16_t)*chosen);
		}
		if (code != 0)
			reason = code;
		/* A family that the host doesn't have is none of the operator's fault. */
		if (code == EADDRINUSE || code == EACCES)
			break;
	}
	freeaddrinfo(list);
	if (reason == EADDRINUSE || reason == EACCES ||
		(listeners->count == before && !wanted->optional))
		return fail(error, "cannot listen on %s port %s (%s): %s",
			wanted->host ? wanted->host : "*", port, kind, strerror(reason));
	return true;
}

/* Takes 'proto[ascii]:' and the like from the front of an address. */
static bool
take_prefixes(char **text, struct wanted *wanted, char *error)
{
	char *end;

	for (;;) {
		if (strncmp(*text, "notls:", 6) == 0) {
			*text += 6;
		} else if (strncmp(*text, "btls:", 5) == 0 || strncmp(*text, "mtls:", 5) == 0) {
			return fail(
				error, "option -l (--listen): TLS (%.4s:) is not there yet", *text);
		} else if (strncmp(*text, "proto[", 6) == 0) {
			end = strstr(*text, "]:");
			if (!end)
				return fail(error,
					"option -l (--listen): '%.64s' has no end of 'proto['",
					*text);
			*end = 0;
			*text += 6;
			if (strcmp(*text, "ascii") == 0)
				wanted->protocol = PROTOCOL_TEXT;
			else if (strcmp(*text, "binary") == 0)
				wanted->protocol = PROTOCOL_BINARY;
			else if (strncmp(*text, "auto", 4) == 0 ||
				 strcmp(*text, "negotiating") == 0)
				wanted->protocol = PROTOCOL_UNKNOWN;
			else
				return fail(error,
					"option -l (--listen): proto[%.32s] is not one of auto, "
					"ascii, binary",
					*text);
			*text = end + 2;
		} else if (strncmp(*text, "tag[", 4) == 0) {
			end = strstr(*text, "]:");
			if (!end || end - (*text + 4) >= LISTEN_TAG_MAX)
				return fail(error,
					"option -l (--listen): '%.64s': a tag has 1 to 8 "
					"characters and ends with ']:'",
					*text);
			snprintf(wanted->tag, sizeof wanted->tag, "%.*s", (int)(end - (*text + 4)),
				*text + 4);
			*text = end + 2;
		} else {
			return true;
		}
	}
}

static bool
parse_port(const char *text, int *port)
{
	char *end;
	long number = strtol(text, &end, 10);

	*port = (int)number;
	return end != text && *end == 0 && number > 0 && number <= 65535;
}

/* HOST, HOST:PORT, [HOST]:PORT; a host with several colons is IPv6 without a port. */
static bool
split_port(char *text, struct wanted *wanted, char *error)
{
	char *colon = strrchr(text, ':'), *bracket = NULL;

	if (*text == '[') {
		text++;
		bracket = strchr(text, ']');
		if (!bracket)
			return fail(error, "option -l (--listen): '[%.64s' has no ']'", text);
		*bracket = 0;
		colon = bracket[1] == ':' ? bracket + 1 : NULL;
	} else if (colon && strchr(text, ':') != colon) {
		colon = NULL;
	}
	if (colon) {
		if (!parse_port(colon + 1, &wanted->port))
			return fail(
				error, "option -l (--listen): '%.32s' is not a port", colon + 1);
		*colon = 0;
	}
	wanted->host = strcmp(text, "*") == 0 ? NULL : text;
	return true;
}

static bool
open_list(struct listeners *listeners, const struct listen_options *options, int socktype, int port,
	char *error)
{
	char *copy = strdup(options->addresses), *place = NULL, *text;
	int chosen = 0;
	bool fine = true;

	if (!copy)
		return fail(error, "out of memory");
	for (text = strtok_r(copy, ", ;", &place); fine && text;
		text = strtok_r(NULL, ", ;", &place)) {
		struct wanted wanted = {.port = port,
			.socktype = socktype,
			.protocol = options->protocol,
			.optional = !options->addresses_given && strcmp(text, "::1") == 0};

		fine = take_prefixes(&text, &wanted, error) && split_port(text, &wanted, error) &&
		       open_host(listeners, options, &wanted, &chosen, error);
	}
	free(copy);
	return fine;
}

/* --- sockets passed by the service manager ------------------------------------------------ */

static bool
take_inherited(
	struct listeners *listeners, const struct listen_options *options, bool *taken, char *error)
{
	const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");

	*taken = false;
	if (!pid || !count || atol(pid) != (long)getpid())
		return true;
	for (int i = 0; i < atoi(count); i++) {
		struct sockaddr_storage address;
		socklen_t size = sizeof address, type_size = sizeof(int);
		struct listener *listener = add_listener(listeners);
		int fd = INHERITED_FIRST + i, type;

		if (!listener)
			return fail(error, "out of memory");
		if (getsockname(fd, (struct sockaddr *)&address, &size) != 0 ||
			getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0)
			return fail(error, "LISTEN_FDS: descriptor %d is no socket: %s", fd,
				strerror(errno));
		listener->fd = fd;
		listener->inherited = true;
		listener->protocol = options->protocol;
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
		if (address.ss_family == AF_UNIX) {
			listener->kind = LISTENER_UNIX;
			snprintf(listener->name, sizeof listener->name, "unix:%.100s",
				((struct sockaddr_un *)&address)->sun_path);
		} else {
			listener->kind = type == SOCK_DGRAM ? LISTENER_UDP : LISTENER_TCP;
			listener->public_address = !is_loopback((struct sockaddr *)&address);
			write_name(listener, (struct sockaddr *)&address, size);
		}
		*taken = true;
	}
	return true;
}

bool
listeners_open(struct listeners *listeners, const struct listen_options *options,
	char error[LISTEN_ERROR_MAX])
{
	bool inherited, fine;

	*listeners = (struct listeners){0};
	fine = take_inherited(listeners, options, &inherited, error);
	if (fine && !inherited && !options->unix_path) {
		fine = (options->port == 0 ||
			       open_list(listeners, options, SOCK_STREAM, options->port, error)) &&
		       (options->udp_port == 0 ||
			       open_list(listeners, options, SOCK_DGRAM, options->udp_port, error));
	}
	if (!fine)
		listeners_close(listeners);
	return fine;
}

/* --- Unix socket -------------------------------------------------------------------------- */

/* A socket file that nobody answers on is the rest of an earlier process. Anything else stays. */
static bool
remove_stale(const char *path, const struct sockaddr_un *address, char *error)
{
	struct stat status;
	int fd, code;

	if (lstat(path, &status) != 0)
		return errno == ENOENT ? true
				       : fail(error, "option -s (--unix-socket): %s: %s", path,
						 strerror(errno));
	if (!S_ISSOCK(status.st_mode))
		return fail(
			error, "option -s (--unix-socket): %s exists and is not a socket", path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	code = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) != 0
		       ? errno
		       : 0;
	if (fd >= 0)
		close(fd);
	if (code != ECONNREFUSED)
		return fail(error, "option -s (--unix-socket): %s is in use", path);
	if (unlink(path) != 0)
		return fail(error, "option -s (--unix-socket): cannot remove %s: %s", path,
			strerror(errno));
	return true;
}

bool
listeners_open_unix(struct listeners *listeners, const struct listen_options *options,
	char error[LISTEN_ERROR_MAX])
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *path = options->unix_path;
	struct listener *listener;
	mode_t mask;
	int code;

	for (unsigned i = 0; i < listeners->count; i++)
		if (listeners->at[i].inherited)
			return true;
	if (!path)
		return true;
	if (strlen(path) >= sizeof address.sun_path)
		return fail(error,
			"option -s (--unix-socket): %.120s... is longer than %zu characters", path,
			sizeof address.sun_path - 1);
	memcpy(address.sun_path, path, strlen(path) + 1);
	if (!remove_stale(path, &address, error))
		return false;
	listener = add_listener(listeners);
	if (!listener)
		return fail(error, "out of memory");
	listener->kind = LISTENER_UNIX;
	listener->protocol = options->protocol;
	snprintf(listener->name, sizeof listener->name, "unix:%.110s", path);
	listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (listener->fd < 0)
		return fail(error, "cannot listen on %s: %s", path, strerror(errno));
	mask = umask((mode_t)(0777 & ~options->unix_mask));
	code = bind(listener->fd, (struct sockaddr *)&address, sizeof address);
	umask(mask);
	if (code == 0) {
		listeners->unix_path = strdup(path);
		code = listen(listener->fd, options->backlog);
	}
	return code == 0 || fail(error, "cannot listen on %s: %s", path, strerror(errno));
}

void
listeners_close(struct listeners *listeners)
{
	for (unsigned i = 0; i < listeners->count; i++)
		if (listeners->at[i].fd >= 0)
			close(listeners->at[i].fd);
	if (listeners->unix_path)
		unlink(listeners->unix_path);
	free(listeners->unix_path);
	free(listeners->at);
	*listeners = (struct listeners){0};
}

bool
listeners_write_ports(const struct listeners *listeners, const char *path)
{
	char temporary[4096];
	FILE *file;
	bool fine = true;

	if ((size_t)snprintf(temporary, sizeof temporary, "%s.lck", path) >= sizeof temporary) {
		errno = ENAMETOOLONG;
		return false;
	}
	file = fopen(temporary, "we");
	if (!file)
		return false;
	for (unsigned i = 0; fine && i < listeners->count; i++) {
		const struct listener *listener = &listeners->at[i];

		if (listener->kind != LISTENER_UNIX)
			fine = fprintf(file, "%s INET%s: %u\n",
				       listener->kind == LISTENER_UDP ? "UDP" : "TCP",
				       listener->inet6 ? "6" : "", listener->port) > 0;
	}
	fine = fclose(file) == 0 && fine;
	return fine && rename(temporary, path) == 0;
}
