/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * memory: items in DRAM, in append-only segments. It owns the arena, who may append where, and the
 * choice of what leaves; it knows no keys and no index: the store says through struct memory_items
 * what is still alive and makes the moves that memory decides.
 *
 * A segment's life. Each arrow has one owner; 'state' is written by it alone (release) and read by
 * all (acquire):
 *
 *	FREE --open--> OPEN --seal--> SEALED --claim--> CLEARING --walked--> GRACE --quiescent, unpinned--> FREE
 *	 by: appender's owner   same       reclaimer       reclaimer       background thread
 *	FREE --borrow--> BODY (dedicated to a large value) --release--> GRACE --> FREE
 *
 * A sealed segment never changes (soft words aside). Before its number is used again all entries
 * that point into it have been cleared or moved under their bucket locks, then a grace period has
 * passed: readers that are on line keep every segment they can have seen. What outlives a turn (a
 * send's leftover) is pinned.
 */
#ifndef MEMORY_MEMORY_H
#define MEMORY_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct item;
struct memory;
struct memory_thread;

enum memory_reason { MEMORY_EVICTED, MEMORY_EXPIRED, MEMORY_FLUSHED };

/* What became of an item that memory has no room for. */
enum memory_dropped {
	MEMORY_GONE,	/* the index didn't name this place */
	MEMORY_DROPPED, /* its key is absent now */
	MEMORY_KEPT,	/* the owner has put it elsewhere: the index names it there */
	MEMORY_BUSY,	/* he is about to, and can't yet: ask again after a wake */
};

/*
 * What memory asks of the items' owner, the store. 'segment' and 'offset' (in units of 16 bytes)
 * name the place of *item. All may be called from any thread that does reclaim work, always on
 * line, holding no memory lock.
 */
struct memory_items {
	/*
	 * reads counter (0..15; exact to 4, each step above r takes 2^(r-3) reads) when the index
	 * still names this place, -1 when it doesn't. Takes no lock. A hint.
	 */
	int (*reads)(void *context, const struct item *item, uint32_t segment, uint32_t offset);
	/*
	 * Under the bucket's lock: if the index still names the source and the source's segment has
	 * epoch 'epoch', copies the soft word to the copy at 'to' (whose other bytes memory has
	 * already copied), makes the index name it with 'reads', and gives true. memory itself
	 * accounts for the bytes of what it moves and drops: no memory_dead for these. Soft times
	 * count from the segment's opened_s: the copy's segment has the source's or an earlier one,
	 * never a later.
	 */
	bool (*move)(void *context, const struct item *item, uint32_t segment, uint32_t offset,
		uint32_t to_segment, uint32_t to_offset, struct item *to, uint32_t epoch,
		unsigned reads);
	/*
	 * Under the bucket's lock: if the index still names this place, clears the entry or points
	 * it elsewhere (then the item is gone from memory; its large body too: memory releases the
	 * body's segments). MEMORY_KEPT and MEMORY_BUSY not for MEMORY_EXPIRED. Counted by reason.
	 */
	enum memory_dropped (*drop)(void *context, const struct item *item, uint32_t segment,
		uint32_t offset, enum memory_reason reason);
	/* The key's hash, for the ghost. */
	uint64_t (*hash)(void *context, const struct item *item);
	/*
	 * The item will be asked about soon: loads what that takes, and gives the key's hash. NULL:
	 * nothing is loaded ahead.
	 */
	uint64_t (*ahead)(void *context, const struct item *item);
};

/*
 * Follows the segments: the GPU's mirror is one, none by default. Called by the segment's owner of
 * that moment.
 */
struct memory_observer {
	void (*opened)(void *context, uint32_t segment, uint32_t epoch);
	/* prefix that will not change any more */
	void (*written)(void *context, uint32_t segment, uint32_t bytes);
	void (*sealed)(void *context, uint32_t segment);
	/* no entry names it; the grace period follows */
	void (*released)(void *context, uint32_t segment);
};

/*
 * How what leaves is chosen. Tests and measurements alone give another than memory_tuning, which
 * is what was measured to be best (tests/model/memory_hits).
 */
enum memory_ranking { MEMORY_BY_READS_A_BYTE, MEMORY_BY_READS, MEMORY_BY_AGE };

struct memory_tuning {
	unsigned segments_min;	    /* as many at least, where they aren't too small then */
	unsigned probation_percent; /* of memory, beside open segments; 0: all goes to main */
	unsigned keep_percent;	    /* of the bytes that are merged */
	unsigned merge_width;	    /* segments; an eighth of all at most; up to 64 */
	unsigned ghost_per_mille;   /* of memory; 0: no ghost */
	unsigned reads_max;	    /* reads count up to here; up to 15 */
	unsigned fade_percent;	    /* of the reads are left after a merge */
	unsigned garbage_min;	    /* dead sixteenths from which a segment of main is compacted */
	enum memory_ranking ranking;
	bool ghost_main;     /* it remembers what left main, too */
	bool admit_by_score; /* into main; else whatever was read */
	/* What leaves unwalked because all of it is dead is walked: named nowhere, or it aborts. */
	bool check_dead;
};
extern const struct memory_tuning memory_tuning;

struct memory_options {
	uint64_t limit_bytes;	  /* -m: segments, ghost and what memory_set_outside reports */
	uint64_t reserve_factor;  /* address range: this many times limit_bytes (4) */
	unsigned workers;	  /* appending threads */
	uint64_t value_bytes_max; /* -I */
	bool evict;		  /* false: -M */
	/* -L: explicit hugepages, else transparent ones are asked for */
	bool hugepages;
	/* open segments older than this are sealed at the turn's end (60) */
	unsigned seal_age_s;
	const struct memory_items *items;
	void *items_context;
	const struct memory_observer *observer;
	void *observer_context;
	const struct memory_tuning *tuning; /* NULL: memory_tuning */
	/* segments came free, or background work waits: any thread may call it */
	void (*wake)(void *context);
	void *wake_context;
};

/*
 * NULL with errno when the address range can't be had. Segment size: limit / (128 * workers), and
 * limit / 512 at most, a power of two in 64 KiB..2 MiB, and larger where the head of a value of
 * value_bytes_max asks for it.
 */
struct memory *memory_create(const struct memory_options *options);
void memory_destroy(struct memory *memory); /* all threads are gone */

/*
 * Per-thread part: appenders and free-segment cache. number 0..workers-1 append; background threads
 * give number >= workers.
 */
struct memory_thread *memory_thread_create(struct memory *memory, unsigned number);
void memory_thread_destroy(struct memory_thread *thread);

/* --- addresses: hot, no locks ------------------------------------------------------------- */

/*
 * What readers ask of a segment at every hit: written by pool_take before anything points here, then
 * constant until the segment is free again.
 */
struct segment_face {
	_Atomic uint32_t epoch;
	_Atomic uint32_t opened_s;   /* Unix second: what soft times count from */
	_Atomic uint32_t generation; /* 0: probation */
};

/*
 * The arena as readers (and the GPU) see it: item = base + ((uint64_t)segment << shift) + offset *
 * 16.
 */
struct memory_arena {
	uint8_t *base; /* of segment number 0, which is never used */
	unsigned segment_shift;
	uint32_t segments_max;
	const struct segment_face *faces;
	const _Atomic uint32_t *epoch; /* see memory_epoch */
};
const struct memory_arena *memory_arena(const struct memory *memory);

static inline void *
memory_address(const struct memory_arena *arena, uint32_t segment, uint32_t offset)
{
	return arena->base + ((uint64_t)segment << arena->segment_shift) + (uint64_t)offset * 16;
}

/* The segment that these bytes of the arena stand in. */
static inline uint32_t
memory_segment_of(const struct memory_arena *arena, const void *bytes)
{
	return (uint32_t)((uint64_t)((const uint8_t *)bytes - arena->base) >> arena->segment_shift);
}

/*
 * Epoch of a segment; Unix second at which it was opened (what soft times count from); true while
 * it is in probation.
 */
uint32_t memory_segment_epoch(const struct memory *memory, uint32_t segment);
uint32_t memory_segment_opened_s(const struct memory *memory, uint32_t segment);
bool memory_segment_probation(const struct memory *memory, uint32_t segment);

/* --- epochs (flush_all) ------------------------------------------------------------------- */

/* Items of segments with an older epoch are dead. */
uint32_t memory_epoch(const struct memory *memory);
/* Opens the next epoch: everything stored before is dead at once. Any thread. */
void memory_flush(struct memory *memory);

/* --- appending ---------------------------------------------------------------------------- */

enum memory_status {
	MEMORY_OK,
	/*
	 * No segment is free at the moment, reclaim was asked for: try again in the next turn. A
	 * thread that does so in every turn comes before all that begin to wait later.
	 */
	MEMORY_WAIT,
	/*
	 * only with evict off, or when nothing that exists can be reclaimed: answer 'out of memory'
	 */
	MEMORY_FULL,
};

struct memory_place {
	struct item *item; /* where to write; valid until memory_append_done */
	uint32_t segment;
	uint32_t offset;
	uint32_t epoch;
	uint32_t opened_s;
};

/*
 * Room for an item of 'bytes' (a multiple of 16, at most half a segment) in an open segment of the
 * current epoch and of the time-to-live class of expiry_s (0: none). main: the generation of keys
 * that came back soon (ghost) or live there already; else probation. The caller writes the whole
 * item at once, then calls memory_append_done before anything else of memory; what it doesn't
 * publish it reports by memory_dead. Never blocks. now_s: Unix seconds.
 */
enum memory_status memory_append(struct memory_thread *thread, uint32_t bytes, uint32_t expiry_s,
	bool main, uint32_t now_s, struct memory_place *place);
void memory_append_done(struct memory_thread *thread, const struct memory_place *place);

/* bytes of this segment are dead: replaced, deleted, or never published. Any thread. */
void memory_dead(struct memory *memory, uint32_t segment, uint32_t bytes);

/*
 * True (once) when the key's hash left not long ago, and an item of so many bytes (its body's
 * segments included) that is read about so often is worth a place in main; forgets the key. Any
 * thread.
 */
bool memory_ghost_take(struct memory *memory, uint64_t hash, uint64_t bytes);
/* Would an item of so many bytes that is read about so often have a place in main? Any thread. */
bool memory_worth(const struct memory *memory, uint32_t reads, uint64_t bytes);
/* Loads what that will look at. */
void memory_ghost_prefetch(const struct memory *memory, uint64_t hash);
/* Remembers what was taken, when the append that it was for has to be tried again. Any thread. */
void memory_ghost_put(struct memory *memory, uint64_t hash);

/* --- large values ------------------------------------------------------------------------- */

/* Values longer than this own dedicated segments: half a segment. */
uint64_t memory_large_min(const struct memory *memory);

/*
 * One dedicated segment for a body that is arriving. At most an eighth of all segments (at least
 * what -I needs) are in unfinished bodies: beyond that MEMORY_WAIT. memory_body_publish says that
 * these now belong to an item; memory_body_release gives segments back, published or not (after a
 * grace period). expiry is the item's, so that dead bodies are known.
 */
enum memory_status memory_body_borrow(
	struct memory_thread *thread, uint32_t now_s, uint32_t *segment);
/*
 * The same for a copy that is made and published, or given back, within the turn. It has no bound
 * of its own: an append holds its upload's segments while it asks for those of the whole value, and
 * two such could wait for each other for ever.
 */
enum memory_status memory_body_borrow_copy(
	struct memory_thread *thread, uint32_t now_s, uint32_t *segment);
void memory_body_publish(struct memory *memory, const uint32_t *segments, uint32_t count);
void memory_body_release(
	struct memory *memory, const uint32_t *segments, uint32_t count, bool published);

/* --- pins: for what a send left over ------------------------------------------------------ */

/*
 * False when an eighth of all segments is pinned already: copy instead. Any thread; on line when
 * pinning.
 */
bool memory_pin(struct memory *memory, uint32_t segment);
void memory_unpin(struct memory *memory, uint32_t segment);

/* --- reclaim ------------------------------------------------------------------------------ */

/*
 * At the end of a worker's turn: seals by age, and helps with one bounded step when writers outrun
 * the background.
 */
void memory_turn_end(struct memory_thread *thread, uint32_t now_s);

/*
 * One bounded step of background work, in reclaim order (dead or expired segments, lowest live
 * share, eviction by merging), and the end of grace periods. true: there is more to do now. false:
 * sleep until wake, or until *next_s (0: no deadline). The calling thread is an RCU reader and on
 * line; it goes off line inside while it waits for a grace period.
 */
bool memory_reclaim(struct memory_thread *thread, uint32_t now_s, uint32_t *next_s);

/*
 * Bytes outside the segments that count against the limit (index, ghost excluded: memory knows its
 * own). Any thread.
 */
void memory_set_outside(struct memory *memory, uint64_t bytes);

/*
 * cache_memlimit: false when out of the reserved range or too small for the open segments. Lowering
 * gives pages back step by step.
 */
bool memory_set_limit(struct memory *memory, uint64_t limit_bytes);

/*
 * Calls visit for every item that stands in a segment, named by the index or not; those of main
 * first. No other thread uses memory meanwhile.
 */
void memory_visit(struct memory *memory,
	void (*visit)(void *context, const struct item *item, uint32_t segment, uint32_t offset),
	void *context);

struct memory_stats {
	uint64_t limit_bytes, segment_bytes;
	uint64_t segments_limit, segments_free, segments_open, segments_probation, segments_main,
		segments_body, segments_grace, segments_pinned;
	uint64_t live_bytes;	 /* of published items, bodies included */
	uint64_t resident_bytes; /* committed segments */
	uint64_t ghost_bytes;
	/*
	 * Reclaimed as what: probation's oldest; main's, merged; expired, flushed or dead as a
	 * whole; low live share.
	 */
	uint64_t evicted_segments, merged_segments, expired_segments, flushed_segments,
		dead_segments, compacted_segments;
	uint64_t moved_items, moved_bytes, dropped_items, ghost_hits, promoted_items;
	uint64_t worker_steps; /* bounded steps done inside workers' turns */
	uint64_t waits;	       /* appends that found no free segment */
	uint64_t pin_refusals;
	/* more or fewer bytes reported dead than appended: a fault of the items' owner; 0 */
	uint64_t accounting_errors;
};
void memory_get_stats(const struct memory *memory, struct memory_stats *stats);

#endif
