/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fake_disk: an io backend over memory that does what a disk may do, all of it drawn from a seed.
 *
 * Files live by name as long as the struct fake_disk: closing, a crash and another open find what
 * was left. A request does nothing until it is pushed; then it is done after a random number of
 * ticks, out of order. A tick passes with fake_disk_tick, with each poll that gives NULL while
 * something is under way, and inside wait.
 *
 * What a crash leaves of a write that isn't durable, completed or under way, is drawn for each by
 * itself: nothing, all of it, or any of its sectors of 512 bytes. Durable is what a write with
 * 'durable' wrote when it is back, and what was back before a flush was submitted that is back.
 * Reads that meet a write under way get any mixture of both. Data of a write that changes while the
 * disk has it, requests that don't fit, and buffers that aren't the queue's, abort the test.
 *
 * Any thread may use it: one mutex is over all.
 */
#ifndef TESTS_LIB_FAKE_DISK_H
#define TESTS_LIB_FAKE_DISK_H

#include "flash/io.h"

#include <stdbool.h>
#include <stdint.h>

struct fake_disk;

struct fake_disk_file {
	const char *name;
	uint64_t size;
	uint32_t block;	       /* 0: 512 */
	uint32_t memory_align; /* 0: 512 */
	bool device;
};

/*
 * A disk with these files, full of zeros; open makes others (regular ones) where it is given a size.
 * It is the current one: open finds it. Neither files nor names need to stay.
 */
struct fake_disk *fake_disk_create(
	uint64_t seed, const struct fake_disk_file *files, uint32_t file_count);
void fake_disk_destroy(struct fake_disk *disk);
/* Makes another one the current disk. */
void fake_disk_use(struct fake_disk *disk);
const struct io_backend *fake_disk_backend(void);

/* Time passes: what is due can be polled. */
void fake_disk_tick(struct fake_disk *disk, unsigned ticks);
/* A request takes 1 to ticks + 1 ticks, one in 16 up to eight times that. 7 at first. */
void fake_disk_latency(struct fake_disk *disk, unsigned ticks);
/*
 * Each tick inside wait calls this, so that a test's clock can go on; wait's timeout ends after as
 * many ticks as it has milliseconds, times ticks_a_ms (10 at first).
 */
void fake_disk_on_tick(
	struct fake_disk *disk, void (*ticked)(void *context), void *context, unsigned ticks_a_ms);

/* --- crashes ------------------------------------------------------------------------------ */

/*
 * The power fails: what is on the medium is settled now and stays so. Whatever is under way and
 * whatever comes gives -EIO at once, so that the code under test can be taken down in good order.
 */
void fake_disk_cut(struct fake_disk *disk, uint64_t seed);
bool fake_disk_is_cut(const struct fake_disk *disk);
/*
 * fake_disk_cut where it wasn't yet, then the power is back: all that was opened and all queues are
 * gone, requests forgotten. What still holds one of them must not use it any more.
 */
void fake_disk_crash(struct fake_disk *disk, uint64_t seed);
/*
 * Called at each write, flush and discard: before it is submitted, and (done) after it has had its
 * effect and before poll gives it back. They are numbered from 1, both kinds in one sequence. true:
 * the power fails now (seed: the number). It may also longjmp; no lock is held.
 */
typedef bool fake_disk_hook(
	void *context, uint64_t number, const struct io_request *request, bool done);
void fake_disk_on_write(struct fake_disk *disk, fake_disk_hook *hook, void *context);

/* --- faults ------------------------------------------------------------------------------- */

enum {
	FAKE_DISK_READS = 1,
	FAKE_DISK_WRITES = 2,
	FAKE_DISK_FLUSHES = 4,
	/* instead of an errno: it doesn't come back until fake_disk_unstick */
	FAKE_DISK_STUCK = 100000,
};

/*
 * Requests of these kinds that touch [from, to) of the file fail. A write that fails has left any of
 * its sectors changed. All fields of 0 but kinds and error: each such request, for ever.
 */
struct fake_disk_fault {
	unsigned kinds;
	const char *name;     /* NULL: any file. Needs to stay */
	uint64_t from, to;    /* bytes; to 0: the end */
	uint32_t skip;	      /* so many that match pass before, */
	uint32_t times;	      /* so many fail then; 0: all */
	uint32_t per_million; /* of those, by chance; 0: all */
	int error;	      /* errno, or FAKE_DISK_STUCK */
};
#define FAKE_DISK_FAULTS_MAX 16
void fake_disk_fault(struct fake_disk *disk, const struct fake_disk_fault *fault);
void fake_disk_no_faults(struct fake_disk *disk);
/* What is stuck is done as usual from now on; failed: with -EIO. */
void fake_disk_unstick(struct fake_disk *disk, bool failed);
/* The device vanishes, or is there again: everything gives -ENODEV, the medium stays. */
void fake_disk_vanish(struct fake_disk *disk, bool vanished);
/* Bytes that all files together may have from now on: open fails where one would be made longer. */
void fake_disk_space(struct fake_disk *disk, uint64_t bytes);

/* --- the medium --------------------------------------------------------------------------- */

/* Size of a file, 0 when there is none. */
uint64_t fake_disk_size(const struct fake_disk *disk, const char *name);
/* Bytes as a read would find them, and changes at rest that are durable at once. */
void fake_disk_peek(
	struct fake_disk *disk, const char *name, uint64_t offset, void *to, uint64_t size);
void fake_disk_poke(
	struct fake_disk *disk, const char *name, uint64_t offset, const void *from, uint64_t size);
void fake_disk_flip(struct fake_disk *disk, const char *name, uint64_t offset, unsigned bit);

struct fake_disk_counts {
	uint64_t numbers;		 /* as the hook's */
	uint64_t reads, writes, flushes; /* that came back, whatever their result */
	uint64_t read_bytes, write_bytes;
	uint64_t faults;	   /* requests that failed or stuck by a fault */
	uint64_t lost, torn, kept; /* writes that weren't durable at crashes */
	uint64_t under_way;	   /* requests, at this moment */
};
void fake_disk_get_counts(struct fake_disk *disk, struct fake_disk_counts *counts);

#endif
