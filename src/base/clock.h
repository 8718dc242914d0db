/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * clock: the time, for those who pass it on to everybody else. Workers sample it once a turn;
 * modules below the daemon read no clock. All functions may be called from any thread.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define CLOCK_SECOND_NS 1000000000ull

/* Takes the offset between monotonic and Unix time. Once, before any thread is started. */
void clock_start(void);

/* Nanoseconds of a clock that only goes forward, for intervals. */
uint64_t clock_monotonic_ns(void);

/*
 * Unix time in nanoseconds: a clock that only goes forward (and counts while the machine sleeps),
 * plus the offset taken at start. A later step of the wall clock changes no item's life.
 */
uint64_t clock_unix_ns(void);

/* Unix time at which clock_start was called. */
uint64_t clock_started_ns(void);

/* For builds with test hooks: moves Unix time; stops it; lets it run again. */
void clock_move(int64_t seconds);
void clock_pause(bool paused);

#endif
