/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * flash_rig: a flash store over a disk in memory with an index of the test's own, stepped in one
 * thread with a clock of its own, over crashes and restarts. Reads are doubles: what stands on the
 * disk is looked at directly.
 *
 * The index keeps a place for each key, and what a correct store may give for it.
 */
#ifndef TESTS_LIB_FLASH_RIG_H
#define TESTS_LIB_FLASH_RIG_H

#include "flash/internal.h"
#include "tests/lib/fake_disk.h"

#define RIG_KEYS 2048u
#define RIG_BEGIN_NS (1000000000ull * 1000000000ull)

struct rig_key {
	uint32_t segment, offset; /* the index's; segment 0: absent */
	uint32_t bytes, version;  /* of its newest value */
	uint32_t expiry;
	bool absent; /* acknowledged: nothing may be there */
};

struct rig_found {
	uint64_t hash;
	uint32_t segment, offset;
};

struct rig {
	struct fake_disk *disk;
	struct flash *flash;
	struct flash_options options; /* for the next start */
	uint64_t now_ns, random;
	struct rig_key keys[RIG_KEYS];
	uint64_t tag_mask; /* of a hash: equal ones are one entry to recovery */
	uint32_t room;	   /* entries that recovery finds room for */
	/* Of the last start. */
	struct rig_found found[RIG_KEYS * 4];
	uint32_t found_count;
	uint64_t expected, loads, replaced, purges;
	bool refuse_load;
	char error[256];
};

extern struct rig rig;

uint32_t rig_draw(uint32_t below);
/* Disks 'disk0' .. of so many bytes each. */
void rig_make(uint32_t files, uint64_t bytes);
void rig_end(void);

/* flash_create with rig.options; false: rig.error. What was recovered is in the keys' places. */
bool rig_start(void);
void rig_stop(void); /* without saving */
bool rig_save(void); /* a clean stop */
/* The power fails; the flash is taken down. */
void rig_crash(uint64_t seed);

void rig_step(uint64_t ns);
void rig_settle(void);
/* A new value of so many bytes all in all: the old copy is invalidated first. false: refused. */
bool rig_put(uint32_t key, uint32_t bytes);
bool rig_delete(uint32_t key);
void rig_flush(uint64_t at_ns);

uint64_t rig_hash(uint32_t key);
uint32_t rig_key_bytes(uint32_t key, uint8_t *to);
/* Fails the test if something is named that may not be. Gives how many keys are there. */
uint32_t rig_verify(void);

#endif
