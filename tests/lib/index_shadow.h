/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * index_shadow: a second index, rebuilt from nothing but what an observer is told. After any run it
 * must equal the real one, bucket by bucket, reads and order in the chain aside.
 */
#ifndef TESTS_LIB_INDEX_SHADOW_H
#define TESTS_LIB_INDEX_SHADOW_H

#include "index/index.h"

struct index_shadow;

struct index_shadow *index_shadow_create(uint64_t buckets_max);
void index_shadow_destroy(struct index_shadow *shadow);

/* The index that is followed; set right after its creation. */
void index_shadow_attach(struct index_shadow *shadow, const struct index *index, uint64_t buckets);

/*
 * Goes into index_options, with the shadow as context. Threads may call it at once: changes come
 * under bucket locks.
 */
extern const struct index_observer index_shadow_observer;

/* Compares while nobody writes. Prints the first difference and gives false, or gives true. */
bool index_shadow_equals(const struct index_shadow *shadow);

/*
 * Checks the real index's own promises while nobody writes: chains have holes only in their first
 * unit, no lock is held, 'entries' are as many as the statistics say. Prints what is broken and
 * gives false, or gives true.
 */
bool index_shadow_sound(const struct index *index);

#endif
