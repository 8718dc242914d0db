/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parts of flash, shared by its own files only.
 *
 *	flash.c		making, the work loop, states of the device, statistics
 *	layout.c	seeds, checks and parsing of what stands on the medium (also for halcyonctl)
 *	super.c		superblocks: format, open, changes; the void marker
 *	region.c	the table of regions: opening, voiding, retiring
 *	append.c	reserving, chunks, their writes, footers
 *	admit.c		admission and the write budget
 *	reclaim.c	what leaves and what is copied on
 *	journal.c	records, group commit, the ring
 *	recover.c	replay of footers, open regions and journal
 *	snapshot.c	the saved index
 *	read.c		loans
 *	buffers.c	the memory that loans stand in
 *
 * The flash thread owns what no comment gives to another. It never blocks on the device: each part is
 * a small machine that submits to the one write queue (writer) and goes on when its request is back.
 */
#ifndef FLASH_INTERNAL_H
#define FLASH_INTERNAL_H

#include "flash/flash.h"
#include "flash/io.h"

#include <pthread.h>

/* chunks: buffers of appends. So many at most, and at least */
#define CHUNKS_MAX 16
#define CHUNKS_MIN 3
#define CHUNK_BYTES (1u << 20) /* more where an item can be longer */
#define REGIONS_AHEAD 2	       /* kept void and open-able ahead of the open one */
#define WRITER_DEPTH 64

enum region_state {
	REGION_FREE,	/* nothing readable */
	REGION_OPENING, /* its new header is on its way */
	REGION_READY,	/* header durable, nothing appended: the next to be open */
	REGION_OPEN,
	REGION_SEALING, /* full; appends or the footer are on their way */
	REGION_SEALED,
	/*
	 * Its FREE header, or the record that voids it, is on its way: a recovery might still
	 * believe it, so places have positions and changes of its keys need records; but no entry
	 * may come to name it any more (flash_place refuses).
	 */
	REGION_VOIDING,
	REGION_CLEARING, /* durably void; its entries are being cleared, and absent already */
	REGION_SNAPSHOT,
	REGION_RETIRED, /* fails: never used again by this process */
};

/*
 * sequence and state are written by the flash thread (release; OPEN and SEALING under the log's
 * mutex) and read by all (acquire). A place may be read while region_is_readable, and named anew
 * while it is OPEN, SEALING or SEALED. A grace period lies between CLEARING and FREE: no reader on
 * line holds a place of an old life.
 */
struct region {
	_Atomic uint64_t sequence; /* 0: none */
	_Atomic uint8_t state;
	_Atomic uint16_t errors; /* reads that failed since it was opened */
	uint16_t file;
	uint32_t opened_s;
	uint32_t entries;      /* items in it, */
	_Atomic uint32_t used; /* and bytes, its header included */
	uint64_t base;	       /* bytes from the file's beginning */
};

static inline bool
region_is_readable(uint8_t state)
{
	return state == REGION_OPEN || state == REGION_SEALING || state == REGION_SEALED ||
	       state == REGION_VOIDING;
}

/*
 * A write under way for one of the machines. done runs in the flash thread, in flash_work.
 * result: 0 or a negated errno.
 */
struct write {
	struct io_request request;
	void (*done)(struct flash *flash, struct write *write, int result);
	void *context;
	uint64_t submitted_ns;
	bool under_way;
};

/* --- flash.c ------------------------------------------------------------------------------ */

/* Hands a request of the flash thread to its queue; all fields but result are set. */
void writer_submit(struct flash *flash, struct write *write);
/* Calls done of all that have come back. Only flash_work and those who block need it. */
bool writer_poll(struct flash *flash);
/*
 * Blocks until this write is done (others' done functions run meanwhile). false: the device doesn't
 * answer; the write is under way still, and must be left alone.
 */
bool writer_finish(struct flash *flash, const struct write *write);
/* Bytes that writes have brought to the device, of all kinds. Any thread. */
uint64_t writer_bytes(const struct flash *flash);
/* A log line through options.say, with wake_context. Any thread. */
void flash_say(const struct flash *flash, int priority, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/*
 * Counts an error; too many one after the other, and the device is dead. Any thread. Those of
 * writer_submit's writes are counted already when done is called.
 */
void flash_note_error(struct flash *flash, int error, const char *what);
void flash_note_success(struct flash *flash);
/*
 * The content can no longer be trusted to stay right (the journal fails), or the device is dead: all
 * entries are absent from now on, and the superblock, or the marker, says so for ever.
 */
void flash_void(struct flash *flash, const char *why);

/*
 * The store as it stands there, for replay.h alone: nothing is written, made or locked against
 * readers. *found: FLASH_BLOCK bytes. NULL with one line in error. flash_destroy ends it.
 */
struct flash *flash_inspect(const struct flash_options *options, struct flash_super *found,
	char *error, size_t error_size);

struct dispatch;
struct log;
struct journal;
struct super;
struct reads;

/*
 * Each part makes its own struct in its _create, and alone looks into it. options, io, id and the
 * geometry are constant once flash_create is through.
 */
struct flash {
	struct flash_options options;
	struct io *io;
	struct io_queue *writer; /* the flash thread's; recovery's before it starts */
	uint8_t id[16];
	uint64_t hash_seed;
	uint32_t region_bytes;
	uint32_t region_count;
	struct region *regions;
	uint32_t block;	    /* of reads: the largest of the files' */
	_Atomic bool alive; /* false: entries are absent (dead device, or void content) */
	_Atomic uint64_t flush_position;
	/*
	 * The reserved tail: positions below are given. Written under the log's mutex (release),
	 * read under any bucket's lock (acquire).
	 */
	_Atomic uint64_t tail;
	_Atomic uint64_t now_ns; /* Unix, as of the last flash_work */
	struct log *log;
	struct journal *journal;
	struct super *super;
	struct reads *reads;
	/* What recovery found, for the statistics. */
	struct {
		uint64_t items, killed, bad_regions, ns;
		bool clean;
	} recovered;
	bool inspected; /* by flash_inspect */
	int wake_fd;	/* eventfd: flash_wake */
	_Atomic bool asleep;
	_Atomic bool woken;	   /* since flash_work began */
	struct dispatch *dispatch; /* flash.c's own */
};

#define LAYOUT_ITEM_SUM 4u /* bytes of an item's checksum */

/* --- layout.c: pure ----------------------------------------------------------------------- */

/* True when these FLASH_BLOCK bytes are one (magic, version, checksum, sane numbers). */
bool layout_super_valid(const void *block);
bool layout_region_valid(const void *block, const uint8_t id[16]);
bool layout_journal_valid(const void *block, const uint8_t id[16]);
/* Each fills crc: call it last. */
void layout_super_seal(struct flash_super *super /* FLASH_BLOCK bytes */);
void layout_region_seal(struct flash_region_header *header /* FLASH_BLOCK bytes */);
void layout_journal_seal(struct flash_journal_block *block, const uint8_t id[16]);
void layout_append_seal(void *append, const uint8_t id[16]); /* its header says bytes, sequence */
/* 'room': bytes from the append's beginning to the region's end. */
bool layout_append_valid(const void *append, uint64_t room, const uint8_t id[16], uint64_t sequence,
	uint32_t offset);
/* The header's numbers alone; 'append' has a block at least. */
bool layout_append_header_valid(
	const void *append, uint64_t room, uint64_t sequence, uint32_t offset);
/*
 * The footer: entries (count of them, ending where *footer begins) and trailer. bytes: of the whole
 * footer, from the first entry.
 */
void layout_footer_seal(struct flash_footer *footer, const uint8_t id[16]);
bool layout_footer_valid(const struct flash_footer *footer, uint32_t region_bytes,
	const uint8_t id[16], uint64_t sequence); /* the trailer's numbers alone */
bool layout_footer_whole(const struct flash_footer *footer, const uint8_t id[16]); /* checksum */
/* An item in 'room' bytes: exact length with key, value, trailer, without checksum; 0: not one. */
uint32_t layout_item_bytes(const struct item *item, uint64_t room);
/* Bytes that it takes in the log, checksum and padding included, a multiple of 16. */
uint32_t layout_record_bytes(uint32_t item_bytes);
/* Writes the checksum and zeros behind the item. */
void layout_item_seal(struct item *item, uint32_t bytes, const uint8_t id[16], uint64_t sequence);
bool layout_item_valid(
	const struct item *item, uint64_t room, const uint8_t id[16], uint64_t sequence);
/* A filler of so many bytes, a multiple of 16. */
void layout_filler_make(void *at, uint32_t bytes);
/*
 * What stands at a 16-byte boundary of an append, of which 'room' bytes are left: its bytes in the
 * log, 0 at the end of the items (or of sense). *item_bytes: without checksum; 0 for a filler.
 */
uint32_t layout_record_at(const void *at, uint64_t room, uint32_t *item_bytes);

/* --- super.c, format.c -------------------------------------------------------------------- */

/*
 * One request on the writer's queue, blocking: before the flash thread runs, or after it ended.
 * Gives 0 or a negated errno; -ETIMEDOUT: the device doesn't answer, and data is its own for ever.
 */
int writer_run(struct flash *flash, uint8_t op, uint16_t file, uint64_t offset, void *data,
	uint32_t bytes, bool durable);
/*
 * Opens the files (io, writer) and their superblocks, or formats; fills id, hash_seed, block, regions and their places.
 * false: error says why, and nothing was written but where the format was wanted. What was found
 * stays in *found; void_below is FLASH_VOID_ALL where a marker or another file says so.
 */
bool super_open(struct flash *flash, struct flash_super *found, char *error, size_t error_size);
void super_destroy(struct flash *flash);
/*
 * Changes what the superblock says and writes it: change runs at once, under super's own mutex
 * (innermost). Gives a ticket, never 0. Any thread: the flash thread writes.
 */
uint64_t super_change(struct flash *flash, void (*change)(struct flash_super *super, void *context),
	void *context);
/* durable, not yet, or never (writing fails for good). */
enum flash_durable super_settled(const struct flash *flash, uint64_t ticket);
/* The same at once, blocking: before the flash thread runs, or after it ended. false: it failed. */
bool super_write_now(struct flash *flash);
void super_work(struct flash *flash, uint64_t now_ns);
/* Marks the content void for ever in superblock or marker file: any thread, and super_work writes. */
void super_void(struct flash *flash);
/* True once either is durable. */
bool super_void_settled(const struct flash *flash);

/* Blocks of the journal's ring. */
uint32_t super_journal_blocks(const struct flash *flash);

/* format.c */
struct super_file {
	struct flash_super *block; /* FLASH_BLOCK bytes: what the next write is made of */
	uint64_t generation;
	uint64_t written[2]; /* the newest change that this copy has */
	uint8_t failed[2];   /* writes of this copy that failed one after the other */
	uint8_t turn;	     /* the copy to be written next */
	uint64_t writing;    /* the newest change in the write under way */
	uint64_t writing_cas;
	bool writing_void;
	struct write write;
};
/* Finds, or makes, each file's superblock in files[].block. */
bool format_open(struct flash *flash, struct super_file *files, char *error, size_t error_size);

/* --- region.c, append.c, reclaim.c, admit.c: the log -------------------------------------- */

/* After super_open: buffers, empty table. */
bool log_create(struct flash *flash);
void log_destroy(struct flash *flash);
/* After recovery filled the table: 'sequence' is the first that may be given. */
void log_start(struct flash *flash, uint64_t sequence);
bool log_work(struct flash *flash, uint64_t now_ns);
/* How long flash_wait may sleep after log_work for the log's sake; -1: any time. */
int log_timeout_ms(const struct flash *flash, uint64_t now_ns);
/* The log's mutex, for flash_flush: no place is reserved meanwhile, tail and epoch rise together. */
void log_lock(struct flash *flash);
void log_unlock(struct flash *flash);
/* All regions with lower sequences are void, durably. Any thread. */
uint64_t log_oldest_sequence(const struct flash *flash);
/* Next to be given; lower than all that will be. */
uint64_t log_sequence_next(const struct flash *flash);
/* Region with this sequence, or UINT32_MAX. Lock-free, any thread. */
uint32_t log_region_of(const struct flash *flash, uint64_t sequence);
/* Enters a region as recovery found it, in rising order of sequences. */
void log_region_found(struct flash *flash, uint32_t region, uint64_t sequence,
	enum region_state state, uint32_t opened_s, uint32_t entries, uint32_t used);
/*
 * An item that is still in a write buffer, copied to 'to' (room bytes); gives its exact bytes, 0 when
 * it isn't there (any more: then the device has it). More than room: it is there, and nothing
 * was copied. On line.
 */
uint32_t log_buffered(struct flash *flash, uint64_t position, void *to, uint32_t room);
/* Seals what is open and writes everything, blocking: for a clean stop. */
bool log_finish(struct flash *flash, uint64_t (*now_ns)(void), uint64_t deadline_ns);
/*
 * A region for the snapshot, its header written durably; blocking. UINT32_MAX: none. May drop the
 * oldest region's items: ask for all regions before the index is read. After log_finish.
 */
uint32_t log_snapshot_region(struct flash *flash);
/* An error on reading this region: retired when there are many. Any thread. */
void log_region_error(struct flash *flash, uint32_t region);
void log_stats(const struct flash *flash, struct flash_stats *stats);

/* --- journal.c ---------------------------------------------------------------------------- */

bool journal_create(struct flash *flash);
void journal_destroy(struct flash *flash);
bool journal_work(struct flash *flash, uint64_t now_ns);
/* Puts a record with the present tail; its ticket, 0: no room now, -1 (UINT64_MAX): never. */
uint64_t journal_put(struct flash *flash, enum flash_record_kind kind, uint64_t what);
enum flash_durable journal_settled(const struct flash *flash, uint64_t ticket);
/* All that was put is durable. */
bool journal_is_quiet(const struct flash *flash);
/*
 * Recovery: each valid block of the ring as it stands there; then journal_start, before any put.
 * oldest: no region that may be believed has lower positions.
 */
void journal_found(struct flash *flash, uint32_t place, uint64_t number, uint64_t position);
void journal_start(struct flash *flash, uint64_t oldest);
/* The ring is nearly full: the log drops its oldest regions without copying anything on. */
bool journal_wants_room(const struct flash *flash);
void journal_stats(const struct flash *flash, struct flash_stats *stats);

/* --- recover.c, snapshot.c ---------------------------------------------------------------- */

/*
 * After super_open, log_create, journal_create: fills the table of regions and the index. Ends with
 * log_start. false: error.
 */
bool recover_run(
	struct flash *flash, const struct flash_super *found, char *error, size_t error_size);
/* Why nothing of what was found can be believed; NULL: it can. clean: by the saved index. */
const char *recover_why_void(
	const struct flash_super *found, bool clean, bool journal_damaged, uint64_t now_ns);
/* Reads the saved index through: is it whole? */
bool snapshot_is_whole(struct flash *flash, const struct flash_super *found);
/* Called by it after a clean stop. false: the snapshot isn't whole; the index is empty. */
bool snapshot_load(struct flash *flash, const struct flash_super *found);

/* --- read.c ------------------------------------------------------------------------------- */

bool reads_create(struct flash *flash);
void reads_destroy(struct flash *flash);
/* Counts a duration in the first step whose bound it doesn't exceed. One thread's. */
void flash_histogram_add(struct flash_histogram *histogram, uint64_t ns);
/* Mean microseconds that reads took lately: the writer makes way above options.read_target_us. */
uint32_t reads_recent_us(const struct flash *flash);
void reads_stats(const struct flash *flash, struct flash_stats *stats);

#endif
