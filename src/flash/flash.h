/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * flash: items on files and devices, in one log of regions. It owns the log, its journal, the
 * buffers for reading and writing, and the choice of what leaves; it knows no index: the store says
 * through struct flash_items what is still named, and makes the changes that flash decides.
 *
 * The rule that all of this serves: every copy of an item that a recovery would believe is named by
 * the index, or is the origin of the DRAM item that the index names. So
 *	- a copy is reserved, written into the buffer and named under its key's bucket lock;
 *	- before an entry with a copy is changed or cleared, a record that kills the copy is
 *	  durable (flash-journal = sync), or on its way (async);
 *	- before a region is used again, or given up, its header says so durably; only then are its
 *	  entries cleared and its best items copied on.
 *
 * Threads. Workers (and others that look items up) have a struct flash_thread each: reads. One
 * thread, the flash thread, calls flash_work in a loop: writes, journal, reclaim. What both touch
 * is atomic or under one of the two mutexes (log, journal); lock order: a bucket, then the log's,
 * then the journal's. No mutex is held during I/O.
 *
 *	region	FREE --void header durable--> OPEN --footer written--> SEALED --reclaim--> VOIDING
 *		VOIDING --FREE header durable, entries cleared--> FREE, or RETIRED after errors
 */
#ifndef FLASH_FLASH_H
#define FLASH_FLASH_H

#include "flash/layout.h"
#include "index/bucket_hd.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct flash;
struct flash_thread;
struct io_backend;
struct item;

/* Index entries name regions by segment numbers from the top: the same whatever -m is. */
static inline uint32_t
flash_segment(uint32_t region)
{
	return BUCKET_SEGMENT_MAX - region;
}

static inline uint32_t
flash_region_of(uint32_t segment)
{
	return BUCKET_SEGMENT_MAX - segment;
}

/*
 * What flash asks of the items' owner. Called by the flash thread in a turn of its own (on line),
 * holding no lock. 'segment' and 'offset' (units of 16 bytes) name a place as an index entry does.
 */
struct flash_items {
	/* Reads counter when the index names this place, else -1. Takes no lock. A hint. */
	int (*reads)(void *context, uint64_t hash, uint32_t segment, uint32_t offset);
	/*
	 * Under the key's bucket lock, if the index still names the place: copies the item on
	 * (flash_reserve .. flash_commit) with 'reads', and gives true; else, or when there is no
	 * room, or it was flushed meanwhile, leaves it and gives false. position: the item's, whose
	 * region is void by now.
	 */
	bool (*move)(void *context, const struct item *item, uint64_t hash, uint64_t position,
		uint32_t segment, uint32_t offset, uint32_t opened_s, unsigned reads);
	/* Under the lock: clears the entry if it names the place. True if it did. */
	bool (*drop)(void *context, uint64_t hash, uint32_t segment, uint32_t offset);
	/* Clears every entry that names the segment, by a walk of the whole index. */
	void (*purge)(void *context, uint32_t segment);
	/* Bytes that flash's buffers and tables hold: they count against -m. */
	void (*outside)(void *context, uint64_t bytes);
};

/* A place in the index: segment 0 is none. */
struct flash_named {
	uint32_t segment, offset;
};

/* A piece of memory that a snapshot is written from or read into: page-aligned, whole blocks. */
struct flash_part {
	void *data;
	uint64_t bytes; /* a multiple of FLASH_BLOCK */
};
#define FLASH_PARTS_MAX 8
#define FLASH_GEOMETRY_MAX 512

/* What opening tells the store, before anybody else uses either: recovery is in one thread. */
struct flash_recovered {
	/* After an unclean stop: about so many items will come. false: no memory for the index. */
	bool (*expect)(void *context, uint64_t items);
	/*
	 * An item that nothing killed; they come in the order of the log. Names its place for the
	 * hash. If an entry has the hash's tag already, that one is replaced, and its place given
	 * in *replaced (recovery then records it as dead: were it another key's, it might come back
	 * one day). false: no room, nothing was changed.
	 */
	bool (*item)(void *context, uint64_t hash, uint32_t segment, uint32_t offset,
		uint32_t size_class, struct flash_named *replaced);
	/* Will come soon: may start loading its bucket. NULL: don't. */
	void (*prefetch)(void *context, uint64_t hash);
	/*
	 * After a clean stop: the memory that the saved index is to be read into, 'geometry' is
	 * what flash_save was given. Gives the number of parts (their sizes as saved), 0: it can't
	 * be used (then the footers are replayed). loaded: they were read and are whole (or not:
	 * the index is made empty again).
	 */
	uint32_t (*load)(void *context, const void *geometry, struct flash_part *parts);
	bool (*loaded)(void *context, const void *geometry, bool whole);
	/* Now and then, at least each second: for log and service manager. Units are items or bytes. */
	void (*progress)(void *context, const char *what, uint64_t done, uint64_t total);
};

struct flash_file_options {
	const char *path;
	uint64_t size; /* bytes; 0: what is there (a device, or an existing file) */
};

struct flash_options {
	const struct io_backend *io; /* io_choose's, or a test's */
	const struct flash_file_options *files;
	uint32_t file_count;
	bool format;	       /* whatever is there is overwritten; else only what is empty */
	uint32_t region_bytes; /* of a new format; 0: by size, 16 MiB from 1 GiB on */
	uint8_t journal;       /* enum flash_journal_mode */
	uint64_t memory_bytes; /* -m: buffers and tables take an eighth at most; long items more */
	uint32_t item_bytes_max;     /* longest item that may come: header, key, value, trailer */
	unsigned threads;	     /* flash_threads that may be created */
	uint32_t depth;		     /* reads in flight, each thread (128) */
	uint32_t read_timeout_ms;    /* a read that takes longer is answered as a miss (1000) */
	uint32_t reinsert_percent;   /* of a region's bytes at most (7) */
	uint64_t write_budget;	     /* bytes a day; 0: no limit */
	uint32_t read_target_us;     /* the writer makes way when reads take longer (0: 2000) */
	const char *state_directory; /* for the marker that voids the content; NULL: none */
	uint64_t now_ns;	     /* Unix */
	const struct flash_items *items;
	void *items_context;
	const struct flash_recovered *recovered;
	/* A write buffer came free, a record is durable, a state changed. Any thread calls it. */
	void (*wake)(void *context);
	void *wake_context;
	/* Lines for the log: priority as syslog's (3 error, 4 warning, 5 notice). */
	void (*say)(void *context, int priority, const char *line);
};

/*
 * Opens, formats or recovers. Everything is read and replayed when it returns, and the clean mark
 * is cleared durably. NULL with one line in error, naming the file, when a file is foreign, damaged
 * beyond its format, of another geometry or version, in use, or can't be opened; nothing was
 * written then. Blocks; the calling thread is no RCU reader, or off line... but may be on line too.
 */
struct flash *flash_create(const struct flash_options *options, char *error, size_t error_size);
/* All flash_threads are gone. Without flash_save before it, the next start replays the log. */
void flash_destroy(struct flash *flash);

/* For the index: made at format time. */
uint64_t flash_hash_seed(const struct flash *flash);
/* CAS numbers below were perhaps given before this start; the store begins here. */
uint64_t flash_cas_first(const struct flash *flash);
/*
 * Makes numbers below 'next' + 2^30 durably reserved; cheap when they are already. false: not yet,
 * call again in a later turn. Any thread.
 */
bool flash_cas_reserve(struct flash *flash, uint64_t next);

/* --- places ------------------------------------------------------------------------------- */

/*
 * Position of what an entry names; 0 when its region's content is void durably (then the entry is
 * as good as absent, and will be cleared). Lock-free.
 */
uint64_t flash_position(const struct flash *flash, uint32_t segment, uint32_t offset);
/* The place of a position, false when its region is gone or being given up. Lock-free. */
bool flash_place(const struct flash *flash, uint64_t position, uint32_t *segment, uint32_t *offset);
/* Unix second that soft times of items in this region count from. */
uint32_t flash_opened_s(const struct flash *flash, uint32_t segment);
/* Items at lower positions were flushed. Acquire. */
uint64_t flash_flush_position(const struct flash *flash);
/* False when the device is dead or its content was voided: entries that name it are absent. */
bool flash_alive(const struct flash *flash);
/* Is the content void, and durably so? Then nothing on flash will ever come back. */
bool flash_voided(const struct flash *flash);
/*
 * Would a recovery believe a copy at this position, as far as regions go? True from the opening of
 * its region until its FREE header is durable, dead device or not, but for flash_voided. Lock-free.
 * (flash_position, too, gives the position as long as that; flash_place, which lets items return to
 * their old places, stops when the region begins to be voided.)
 */
bool flash_believed(const struct flash *flash, uint64_t position);

/* --- copying into the log: under the item's bucket lock ----------------------------------- */

enum flash_status {
	FLASH_DONE,
	FLASH_BUSY,    /* no write buffer, or no region ready: ask again after a wake */
	FLASH_REFUSED, /* the item is too large, admission or the budget is against it, or it is off */
};

/* Would the log take an item of so many bytes, read about so often? A hint, before the lock. */
enum flash_status flash_admits(
	struct flash *flash, uint32_t bytes, unsigned reads, uint32_t random);

/* Rises whenever the device has taken something. Any thread. */
uint64_t flash_progress(const struct flash *flash);

struct flash_place_in {
	struct item *item; /* where to write 'bytes' bytes; in the write buffer */
	uint32_t segment, offset;
	uint64_t position;
	uint32_t opened_s;
	uint32_t bytes;	 /* private from here */
	uint32_t record; /* with checksum and padding */
	void *chunk;
};

/*
 * Reserves room in the log and takes its mutex; with FLASH_DONE the caller writes the whole item
 * (no more than a copy's time) and calls one of the next two. reinsertion: from flash_items.move.
 */
enum flash_status flash_reserve(
	struct flash *flash, uint32_t bytes, bool reinsertion, struct flash_place_in *place);
/* The item is whole: it can be read from now on. size_class as the index entry's. */
void flash_commit(struct flash *flash, const struct flash_place_in *place, uint64_t hash,
	uint32_t size_class, uint32_t expiry_s);
/* It isn't to be: a filler stands there. */
void flash_abandon(struct flash *flash, const struct flash_place_in *place);

/* --- what supersedes what ----------------------------------------------------------------- */

/* A record on its way to the journal. All zero: none. Kept by the request that waits for it. */
struct flash_intent {
	uint64_t ticket; /* 0: none */
	uint64_t covers; /* copies at lower positions die by it */
	bool flush;	 /* the ticket is a flush's: flash_flushed knows it */
};

enum flash_durable {
	FLASH_DURABLE,
	FLASH_NOT_YET,
	FLASH_NEVER, /* the journal can't be written, nor the content voided: refuse the write */
};

/*
 * Before a change of a key that has a copy on flash at 'position', under its bucket lock. kind:
 * KEY (what: the hash) or PLACE (what: the position). FLASH_DURABLE: go on. FLASH_NOT_YET: let go
 * of the lock, keep *intent, and come back in a later turn: the record was put into the journal, or
 * could not yet (ticket 0). With the journal off, or asynchronous, it never waits; when the content
 * is void, there is nothing to wait for.
 */
enum flash_durable flash_invalidate(struct flash *flash, enum flash_record_kind kind, uint64_t what,
	uint64_t position, struct flash_intent *intent);
/* Has what this waits for happened? Cheap: asked each turn. */
bool flash_intent_settled(const struct flash *flash, const struct flash_intent *intent);

/*
 * flush_all: with the log's mutex held, items below the present tail are dead and 'bump' (memory's
 * new epoch) is called; then it is made durable. FLASH_NOT_YET: wait with *intent and ask
 * flash_flushed.
 */
void flash_flush(struct flash *flash, void (*bump)(void *context), void *context,
	struct flash_intent *intent);
/* A delayed one is accepted: durable like the above. at_ns 0 takes an earlier one back. */
void flash_flush_at(struct flash *flash, uint64_t at_ns, struct flash_intent *intent);
enum flash_durable flash_flushed(const struct flash *flash, const struct flash_intent *intent);
/* What was accepted before this start and isn't due yet; 0: none. */
uint64_t flash_flush_due_ns(const struct flash *flash);

/* --- reading ------------------------------------------------------------------------------ */

enum flash_loan_state {
	FLASH_LOAN_PENDING,
	FLASH_LOAN_READY,
	FLASH_LOAN_BAD, /* the checksum is wrong: see flash_position whether the place is still it */
	FLASH_LOAN_FAILED, /* the device says so */
	FLASH_LOAN_LATE,   /* it doesn't answer in time */
};

/* An item on its way from flash, or there. One thread's; memory is flash's until returned. */
struct flash_loan {
	struct flash_loan *next; /* the borrower's */
	const struct item *item; /* READY: checked; stands until flash_return */
	uint64_t position;
	uint32_t segment, offset;
	uint8_t state; /* enum flash_loan_state, as of the last flash_poll */
};

/* By the thread that uses it. NULL with errno. */
struct flash_thread *flash_thread_create(struct flash *flash);
void flash_thread_destroy(struct flash_thread *thread); /* waits for what is under way */

/*
 * Starts to read the item at a place, of this size class; what is still in a write buffer is there
 * at once. NULL: as much as may be is under way: in a later turn. On line.
 */
struct flash_loan *flash_borrow(struct flash_thread *thread, uint32_t segment, uint32_t offset,
	uint32_t size_class, uint64_t now_ns);
/*
 * What it has read isn't wanted: its memory serves others, so that who waits for another loan holds
 * nothing meanwhile. The loan stays, its item is NULL. In any state but LATE and PENDING, else nothing
 * happens.
 */
void flash_strip(struct flash_thread *thread, struct flash_loan *loan);
/* In any state; one that is pending is let go when the device gives it back. Sets *loan to NULL. */
void flash_return(struct flash_thread *thread, struct flash_loan **loan);
/* At a turn's end: hands what was borrowed to the device. */
void flash_push(struct flash_thread *thread);
/* At a turn's beginning: settles what the device has done, or is late with. Gives how many. */
unsigned flash_poll(struct flash_thread *thread, uint64_t now_ns);
/* Readable when flash_poll may have something; valid after flash_poll. */
int flash_descriptor(const struct flash_thread *thread);
/* Milliseconds until a read is late, -1: none is under way. */
int flash_timeout_ms(const struct flash_thread *thread, uint64_t now_ns);
/*
 * Keeps the loan that these bytes stand in beyond flash_return, until flash_unpin with the same
 * bytes. By the loan's thread. ELSEWHERE: not in its buffers; REFUSED: half of them are pinned.
 */
enum flash_pinned { FLASH_PINNED, FLASH_PIN_REFUSED, FLASH_ELSEWHERE };
enum flash_pinned flash_pin(struct flash_thread *thread, const void *bytes);
void flash_unpin(struct flash_thread *thread, const void *bytes);

/* --- the flash thread --------------------------------------------------------------------- */

/*
 * A bounded step of everything that is to be written, and of reclaim; in a turn, on line. Never
 * blocks on the device. true: call again at once; false: call flash_wait, off line.
 */
bool flash_work(struct flash *flash, uint64_t now_ns);
/* Sleeps until something is done, or wanted, or for timeout_ms. Not on line. */
void flash_wait(struct flash *flash, int timeout_ms);
/* Ends flash_wait. Any thread; cheap when it isn't asleep. */
void flash_wake(struct flash *flash);

/*
 * A clean stop. All other threads are gone; everything that should stay was copied into the log,
 * the index names nothing else. Writes what is buffered, then the snapshot of these parts, then the
 * clean mark with cas_next. false: not before the deadline (Unix ns), or the device fails: the next
 * start replays the log instead, which is as good but slower.
 */
bool flash_save(struct flash *flash, const void *geometry, uint32_t geometry_bytes,
	const struct flash_part *parts, uint32_t part_count, uint64_t cas_next, uint64_t objects,
	uint64_t (*now_ns)(void), uint64_t deadline_ns);

/* --- statistics --------------------------------------------------------------------------- */

/* Durations by powers of two with four steps each, in microseconds; see flash_histogram_at. */
#define FLASH_HISTOGRAM 96
struct flash_histogram {
	_Atomic uint64_t count[FLASH_HISTOGRAM];
};
/* The step's upper bound in nanoseconds. */
uint64_t flash_histogram_bound(unsigned step);

struct flash_stats {
	bool alive, voided;
	const char *backend;
	uint64_t bytes, region_bytes, regions, regions_free, regions_sealed, regions_retired;
	uint64_t sequence,
		oldest_sequence; /* of the open region, and of the oldest that is there */
	uint64_t used_bytes;	 /* of regions that hold something, as far as they are filled */
	/* Since the start; bytes as the device got them. */
	uint64_t items_written, item_bytes_written; /* admitted: reinsertions not included */
	uint64_t items_reinserted, item_bytes_reinserted;
	uint64_t written_bytes; /* everything: appends, footers, headers, journal, superblocks */
	uint64_t journal_bytes, journal_records, journal_commits, journal_blocks, journal_used;
	uint64_t items_dropped; /* by reclaim: live ones that weren't copied on */
	uint64_t regions_reclaimed, regions_hurried;  /* the latter: for the journal's sake */
	uint64_t refused_budget, refused_size, busy;  /* items */
	uint64_t reads, read_bytes, read_asked_bytes; /* bytes of I/O, and of the items in it */
	uint64_t buffer_hits;			      /* read from the write buffer */
	uint64_t read_errors, read_bad, read_late, write_errors, write_late;
	uint64_t reads_in_flight;
	uint64_t budget_bytes, budget_left_bytes;
	uint64_t memory_bytes; /* buffers and tables */
	/* The last start: */
	uint64_t recovered_items, recovered_ns, recovery_killed, recovery_bad_regions;
	bool recovered_clean;
	/* NVMe SMART where there is one, else -1: percent of the device's life used. */
	int wear_percent;
	struct flash_histogram queue_time, device_time; /* sums over all threads */
};
void flash_get_stats(const struct flash *flash, struct flash_stats *stats);
/* Of a region, below stats.regions: its sequence, 0 when it holds nothing, and bytes written to it. */
void flash_look_at_region(
	const struct flash *flash, uint32_t region, uint64_t *sequence, uint32_t *bytes);

#endif
