/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * rcu: liburcu's quiescent-state flavour, with what ThreadSanitizer must be told about it. A
 * reader is on line from rcu_online to rcu_offline; what it found in a shared structure stays
 * until its next rcu_quiescent or rcu_offline.
 *
 * ThreadSanitizer doesn't see the ordering inside liburcu (assembly barriers): 'all that readers
 * did before they were quiescent comes before the end of a grace period' is stated here once, and
 * not at each place that relies on it.
 */
#ifndef BASE_RCU_H
#define BASE_RCU_H

#include <urcu/urcu-qsbr.h>

#if defined(__SANITIZE_THREAD__)
#define RCU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RCU_TSAN 1
#endif
#endif

#ifdef RCU_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
/* Any one address does; this is an object of liburcu's that its public headers declare. */
#define RCU_TSAN_RELEASE() __tsan_release((void *)&urcu_qsbr_flavor)
#define RCU_TSAN_ACQUIRE() __tsan_acquire((void *)&urcu_qsbr_flavor)
#else
#define RCU_TSAN_RELEASE() ((void)0)
#define RCU_TSAN_ACQUIRE() ((void)0)
#endif

/* Once a thread, before anything else here; the thread is on line then. */
static inline void
rcu_register(void)
{
	urcu_qsbr_register_thread();
}

static inline void
rcu_unregister(void)
{
	RCU_TSAN_RELEASE();
	urcu_qsbr_unregister_thread();
}

static inline void
rcu_online(void)
{
	urcu_qsbr_thread_online();
	RCU_TSAN_ACQUIRE();
}

static inline void
rcu_offline(void)
{
	RCU_TSAN_RELEASE();
	urcu_qsbr_thread_offline();
}

/* The calling reader holds nothing at this moment. */
static inline void
rcu_quiescent(void)
{
	RCU_TSAN_RELEASE();
	urcu_qsbr_quiescent_state();
	RCU_TSAN_ACQUIRE();
}

/*
 * Waits until every reader has been quiescent or off line. The caller holds no lock and no
 * reference; it may be on line.
 */
static inline void
rcu_synchronize(void)
{
	RCU_TSAN_RELEASE();
	urcu_qsbr_synchronize_rcu();
	RCU_TSAN_ACQUIRE();
}

#endif
