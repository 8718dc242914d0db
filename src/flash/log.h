/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The log's own structs: for append.c, region.c, reclaim.c and admit.c.
 *
 *	chunk	FREE -> OPEN -> FULL -> WRITING -> WRITTEN --grace period--> FREE
 *			         |         | fails twice
 *			         +-> HELD <+   until its region's entries are cleared, then WRITTEN
 *
 * Items are readable from a chunk from OPEN to WRITTEN. The mutex is over: which chunk is open and
 * what is in it, chunk states, ready regions, footer lists, the tail. The flash thread alone takes
 * chunks out of FULL and beyond.
 */
#ifndef FLASH_LOG_H
#define FLASH_LOG_H

#include "flash/internal.h"

#define APPEND_HEADER ((uint32_t)sizeof(struct flash_append_header))
#define LISTS 3			 /* regions open, or being sealed, at once */
#define WRITES_MAX 2		 /* of chunks, under way at once */
#define WRITE_TRIES 2		 /* of everything that the log writes */
#define STEP_ENTRIES 512	 /* index call-backs in a step of reclaim */
#define REGION_ERRORS_MAX 8	 /* reads that may fail before a region is given up */
#define AHEAD_MAX 4		 /* regions void and waiting, REGIONS_AHEAD of them ready */
#define CALM_NS 100000000ull	 /* after an error, until the next try */
#define PARTIAL_NS 1000000000ull /* a chunk with PARTIAL_BYTES is written when so old, */
#define PARTIAL_BYTES 65536u	 /* which costs little padding; */
#define STALE_NS 10000000000ull	 /* one with less when so old */
#define PAUSE_MAX_NS 20000000ull /* the writer makes way for reads so long at most */
#define FINGERS 64		 /* steps of reads per byte in the choice of reclaim */
#define ENTRY_BYTES 64		 /* of a region: an item and its footer entry at least */
#define RANGES_MAX 16		 /* reads of reclaim under way at once */
#define GAP_BYTES 16384u	 /* between two items: read on rather than ask twice */
#define WINDOW_BYTES (1u << 20)	 /* of reclaim's reads */
#define ENTRY_READS_SHIFT 26	 /* in a footer's entry in memory: reads, */
#define ENTRY_LIVE (1u << 30)	 /* named by the index, */
#define ENTRY_CHOSEN (1u << 31)	 /* and copied on */

enum chunk_state { CHUNK_FREE, CHUNK_OPEN, CHUNK_FULL, CHUNK_WRITING, CHUNK_WRITTEN, CHUNK_HELD };

struct chunk {
	/*
	 * Positions: of its first byte (0: nothing is to be read here), and behind its last whole
	 * item. begin is cleared, then a grace period passes, before the bytes serve again.
	 */
	_Atomic uint64_t begin, end;
	uint8_t *data;
	uint32_t region;
	uint32_t offset; /* in the region, bytes */
	uint32_t used;	 /* bytes, the append's header included */
	uint32_t items;
	uint8_t state; /* enum chunk_state */
	uint8_t tries;
	uint64_t begun_ns;
	struct write write;
};

enum list_state {
	LIST_FREE,
	LIST_OPEN,
	LIST_DRAINING, /* until its chunks are written */
	LIST_FLUSHING,
	LIST_WRITING, /* the footer, */
	LIST_AGAIN,   /* once more, after a while */
	LIST_FAILED,
};

/* What will be the footer of a region that is open or being sealed. */
struct list {
	uint8_t *bytes; /* of log->list_bytes, the last is the trailer's */
	struct flash_footer_entry *entries;
	uint32_t count;
	uint32_t region;
	uint32_t chunks; /* not yet written */
	uint32_t used;	 /* bytes of the region, up to the next append */
	uint8_t state;
	uint8_t tries;
	bool made; /* it has become a footer */
	struct write write;
};

enum opening_state { OPENING_IDLE, OPENING_WRITING, OPENING_AGAIN };

enum reclaim_state {
	RECLAIM_IDLE,
	RECLAIM_FOOTER,	  /* being read */
	RECLAIM_CHOOSING, /* asking for reads */
	RECLAIM_FETCHING, /* items to be copied on */
	RECLAIM_VOIDING,  /* the FREE header is on its way */
	RECLAIM_RECORD,	  /* it failed: a record of the journal does instead */
	RECLAIM_CLEARING, /* moving and dropping */
};

struct range {
	uint32_t offset, bytes; /* in the region */
	uint32_t at;		/* in the window */
	struct write read;
};

struct reclaim {
	enum reclaim_state state;
	uint32_t region;
	uint64_t sequence;
	bool retire;   /* the region is given up */
	bool keep;     /* something may be copied on */
	bool unlisted; /* its footer can't be read: purge */
	bool troubled; /* the error was seen, and waited after */
	uint8_t tries;
	int result;	   /* of the last I/O */
	struct list *list; /* of a region that was never sealed; else */
	uint8_t *footer;   /* log->list_bytes, read here */
	uint32_t footer_bytes;
	struct flash_footer_entry *entries;
	uint32_t count, next;
	uint64_t finger_bytes[FINGERS]; /* bytes of live items by reads per byte */
	uint32_t finger_least;
	uint64_t budget;
	uint8_t *kept; /* records of chosen items, one after the other */
	uint32_t kept_bytes, kept_used, kept_next;
	uint8_t *window;
	uint32_t window_bytes;
	struct range ranges[RANGES_MAX];
	uint32_t range_count, ranges_under_way, range_entry; /* the batch's first entry */
	uint64_t ticket;
	struct write write;
	uint8_t *block;
};

/* Tokens of the write budget: bytes. */
struct budget {
	uint64_t day; /* 0: no limit */
	int64_t burst;
	_Atomic int64_t left;
	uint64_t filled_ns, written; /* as of the last filling */
};

struct log_counts {
	_Atomic uint64_t items, item_bytes, reinserted, reinserted_bytes, dropped, reclaimed,
		hurried, refused_budget, refused_size, busy, buffer_hits, used_bytes;
};

struct log {
	pthread_mutex_t lock;
	_Atomic uint64_t sequence_next, oldest;
	bool started;
	bool finishing;		   /* nothing more is taken, nothing begun */
	bool making_room;	   /* but a free region is wanted for the snapshot */
	uint64_t calm_ns;	   /* after an error: when the next try is made */
	_Atomic bool busy;	   /* somebody was told so */
	_Atomic uint32_t suspects; /* regions with too many errors, not looked for yet */

	/* chunks */
	uint32_t chunk_bytes, chunk_count;
	uint32_t record_max;
	struct chunk chunks[CHUNKS_MAX];
	struct chunk *open;   /* NULL: none */
	struct list *filling; /* of the open region, NULL: none */
	bool reinsertion;     /* what is being written between reserve and commit */
	bool reinserting;     /* the last chunk and the last ready region are reclaim's */
	uint32_t free_chunks, writing;
	uint64_t write_ns, pause_until_ns; /* how long the last one took */
	struct list lists[LISTS];
	uint32_t list_bytes, entries_max;

	/* regions */
	uint32_t ahead, ahead_ready;
	uint32_t ready[AHEAD_MAX], ready_count; /* in order of sequence */
	uint32_t *free_ring, free_first, free_count;
	uint32_t *order, order_first, order_count; /* of sequence: all from OPENING to CLEARING */
	_Atomic uint32_t *slots;		   /* by sequence: region + 1 */
	uint64_t slot_mask;
	_Atomic bool crowded; /* two sequences wanted one slot: regions are searched */
	uint32_t reopening;   /* the region whose header is being written */
	enum opening_state opening;
	uint8_t opening_tries;
	struct write opening_write;
	uint8_t *opening_block;
	struct write snapshot_write;
	uint8_t *snapshot_block;

	struct reclaim reclaim;
	struct budget budget;
	struct log_counts counts;
	uint8_t *area; /* all buffers */
	size_t area_bytes;
	uint64_t memory_bytes;
};

static inline uint32_t
round_up(uint32_t bytes, uint32_t unit)
{
	return (bytes + unit - 1) & ~(unit - 1);
}

static inline uint32_t
footer_bytes(uint32_t entries)
{
	return round_up(entries * (uint32_t)sizeof(struct flash_footer_entry) +
				(uint32_t)sizeof(struct flash_footer),
		FLASH_BLOCK);
}

static inline uint8_t
region_state(const struct region *region)
{
	return atomic_load_explicit(&region->state, memory_order_acquire);
}

static inline void
region_set_state(struct region *region, enum region_state state)
{
	atomic_store_explicit(&region->state, (uint8_t)state, memory_order_release);
}

static inline uint64_t
region_sequence(const struct region *region)
{
	return atomic_load_explicit(&region->sequence, memory_order_acquire);
}

static inline void
log_count(_Atomic uint64_t *counter, uint64_t more)
{
	atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

/* Fills a write of 'bytes' bytes at 'offset' of a region, and submits it. */
void log_submit(struct flash *flash, struct write *write, enum io_op op, uint32_t region,
	uint32_t offset, void *data, uint32_t bytes, bool durable,
	void (*done)(struct flash *flash, struct write *write, int result));
/* A write failed: a device that is resetting itself needs some time. */
void log_trouble(struct flash *flash);
/* Somebody who was told BUSY may ask again. */
void log_room(struct flash *flash);

/* --- append.c ----------------------------------------------------------------------------- */

/* With the mutex: the open chunk, if any, takes no more. */
void append_close(struct flash *flash);
/* Chunks that have been written long enough become free; partial ones are closed when old. */
void append_recycle(struct flash *flash, uint64_t now_ns);
void append_write(struct flash *flash, uint64_t now_ns);
/* With the mutex: chunks of this region aren't to be written any more. */
void append_hold(struct flash *flash, uint32_t region);
/* Its entries are cleared: its chunks' bytes aren't wanted. */
void append_release(struct flash *flash, uint32_t region);
/* Is a write of this region under way? */
bool append_under_way(const struct flash *flash, uint32_t region);
/* Could a record of so many bytes be reserved for reclaim now, soon, or not? */
enum flash_status append_room(struct flash *flash, uint32_t record);

/* --- region.c ----------------------------------------------------------------------------- */

/* With the mutex: a ready region with a list for it becomes the open one. false: none. */
bool region_open(struct flash *flash);
/* With the mutex: the open region takes no more; its last chunk is closed. */
void region_close(struct flash *flash);
void region_seal_work(struct flash *flash, uint64_t now_ns);
void region_open_work(struct flash *flash);
/*
 * With the mutex: a write of this open or sealing region failed for good, and it is given up as
 * soon as reclaim can.
 */
void region_fail(struct flash *flash, struct list *list);
/* Its entries are cleared: FREE, or RETIRED. */
void region_free(struct flash *flash, uint32_t region, bool retire);
/* A new life begins: sequence, place in the order unless it is the snapshot's, state. */
void region_begin(struct flash *flash, uint32_t region, uint64_t sequence, enum region_state state);
/* Takes one out of the free ones; UINT32_MAX: none. */
uint32_t region_take_free(struct flash *flash);
/* Makes it findable by its sequence. */
void region_enter(struct flash *flash, uint32_t region, uint64_t sequence);
/* The next sequence that no slot is taken for. */
uint64_t region_sequence_take(struct flash *flash);
void region_header_make(struct flash *flash, uint8_t *block, uint64_t sequence,
	enum flash_region_kind kind, uint32_t opened_s);
/* Regions that are void: free, or ready. */
uint32_t region_void_count(const struct flash *flash);
/* The one with the lowest sequence, if it is sealed; else, or when there is none, UINT32_MAX. */
uint32_t region_oldest_sealed(const struct flash *flash);

/* --- reclaim.c, admit.c ------------------------------------------------------------------- */

/* true: call again at once. */
bool reclaim_work(struct flash *flash);
void reclaim_create(struct flash *flash, uint8_t *area);
/* Bytes of its buffers; those of them that only a footer made with more memory needs. */
uint32_t reclaim_bytes(struct flash *flash);
uint32_t reclaim_spare_bytes(struct flash *flash);

void budget_create(struct flash *flash);
void budget_work(struct flash *flash, uint64_t now_ns);

#endif
