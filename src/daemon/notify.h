/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * notify: tells the service manager how the daemon is: one datagram to the socket that
 * $NOTIFY_SOCKET names, nothing without it.
 */
#ifndef DAEMON_NOTIFY_H
#define DAEMON_NOTIFY_H

#include <stdint.h>

/* state: lines of NAME=VALUE, as systemd's sd_notify(3) documents them. */
void notify(const char *state);

/* Nanoseconds within which WATCHDOG=1 is wanted, 0 for never. */
uint64_t notify_watchdog_ns(void);

#endif
