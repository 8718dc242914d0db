/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * listen: the sockets that clients come to. It knows addresses and the rules about them, and serves
 * nobody.
 */
#ifndef NET_LISTEN_H
#define NET_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

#define LISTEN_ERROR_MAX 512
#define LISTEN_NAME_MAX 160
#define LISTEN_TAG_MAX 9

enum listener_kind { LISTENER_TCP, LISTENER_UDP, LISTENER_UNIX };

struct listener {
	int fd;
	enum listener_kind kind;
	bool inet6;
	bool inherited;	     /* from the service manager */
	bool public_address; /* reachable from other hosts' networks */
	/* 0: by the first byte, else 1 text, 3 binary (as enum protocol has them) */
	uint8_t protocol;
	uint16_t port;
	char tag[LISTEN_TAG_MAX];
	char name[LISTEN_NAME_MAX]; /* tcp:127.0.0.1:11211, udp:[::1]:11211, unix:/path */
};

struct listeners {
	struct listener *at;
	unsigned count;
	char *unix_path; /* removed when they are closed */
};

struct listen_options {
	const char *addresses; /* -l */
	/* by the operator: an address of his that can't be had is an error, one of ours is not */
	bool addresses_given;
	int port; /* -1: any free one, 0: none */
	int udp_port;
	const char *unix_path; /* NULL: TCP and UDP */
	unsigned unix_mask;
	int backlog;
	uint8_t protocol; /* of listeners that name none */
	bool udp_public;
};

/*
 * Opens TCP and UDP sockets, or takes those that the service manager passed (LISTEN_FDS). False:
 * *error says in one line what failed and where, and nothing is left open.
 */
bool listeners_open(struct listeners *listeners, const struct listen_options *options,
	char error[LISTEN_ERROR_MAX]);
/*
 * Opens the Unix socket where one is asked for; separate, because its file is to belong to the user
 * that the daemon became.
 */
bool listeners_open_unix(struct listeners *listeners, const struct listen_options *options,
	char error[LISTEN_ERROR_MAX]);
void listeners_close(struct listeners *listeners);

/* Writes 'TCP INET: port' lines, a temporary file first. False with errno. */
bool listeners_write_ports(const struct listeners *listeners, const char *path);

#endif
