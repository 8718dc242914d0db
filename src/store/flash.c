/* SPDX-License-Identifier: BSD-2-Clause */
/* What the store does for items on flash. */
#include "store/internal.h"

void
store_hold(struct store_thread *thread, struct store_held *held)
{
	(void)thread;
	(void)held;
}

bool
store_held_settled(const struct store_thread *thread, const struct store_held *held)
{
	(void)thread;
	(void)held;
	return true;
}

void
store_release(struct store_thread *thread, struct store_held *held)
{
	(void)thread;
	(void)held;
}

void
store_held_spent(struct store_thread *thread)
{
	(void)thread;
}

void
store_ahead(struct store_thread *thread, struct store_held *held, uint64_t entry)
{
	(void)thread;
	(void)held;
	(void)entry;
}

int
store_descriptor(const struct store_thread *thread)
{
	(void)thread;
	return -1;
}

int
store_timeout_ms(const struct store_thread *thread)
{
	(void)thread;
	return -1;
}

bool
store_stop(struct store_thread *thread, uint64_t (*now_ns)(void), uint64_t deadline_ns)
{
	(void)thread;
	(void)now_ns;
	(void)deadline_ns;
	return true;
}

bool
store_background_flash(struct store_thread *thread, uint64_t unix_ns)
{
	(void)thread;
	(void)unix_ns;
	return false;
}

void
store_flash_wait(struct store *store, int timeout_ms)
{
	(void)store;
	(void)timeout_ms;
}

void
store_flash_wake(struct store *store)
{
	(void)store;
}

struct flash *
store_flash(struct store *store)
{
	(void)store;
	return NULL;
}
