/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/clock.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic uint64_t offset_ns; /* Unix time less boot time */
static _Atomic uint64_t paused_ns; /* 0: running, else the Unix time at which it stands */
static uint64_t started_ns;

static uint64_t
read_clock(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return (uint64_t)now.tv_sec * CLOCK_SECOND_NS + (uint64_t)now.tv_nsec;
}

/*
 * With test hooks time goes in whole seconds, as memcached's does: a test that moves the clock by a
 * time to live finds the item expired, whatever part of a second it started in.
 */
static uint64_t
shown(uint64_t unix_ns)
{
#ifdef HALCYON_TEST_HOOKS
	unix_ns -= unix_ns % CLOCK_SECOND_NS;
#endif
	return unix_ns;
}

void
clock_start(void)
{
	atomic_store(&offset_ns, read_clock(CLOCK_REALTIME) - read_clock(CLOCK_BOOTTIME));
	started_ns = clock_unix_ns();
}

uint64_t
clock_monotonic_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t
clock_unix_ns(void)
{
	uint64_t stands = atomic_load_explicit(&paused_ns, memory_order_relaxed);

	if (stands)
		return stands;
	return shown(read_clock(CLOCK_BOOTTIME) +
		     atomic_load_explicit(&offset_ns, memory_order_relaxed));
}

uint64_t
clock_started_ns(void)
{
	return started_ns;
}

void
clock_move(int64_t seconds)
{
	uint64_t by = (uint64_t)seconds * CLOCK_SECOND_NS;

	atomic_fetch_add(&offset_ns, by);
	if (atomic_load(&paused_ns))
		atomic_fetch_add(&paused_ns, by);
}

void
clock_pause(bool paused)
{
	if (!paused) {
		atomic_store(&paused_ns, 0);
	} else if (!atomic_load(&paused_ns)) {
		atomic_store(&paused_ns, clock_unix_ns());
	}
}
