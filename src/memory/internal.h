/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parts of memory, shared by its own files only.
 *
 *	memory.c	making, limits, epochs, pins, statistics
 *	pool.c		segments as wholes: free ones, queues of sealed ones, grace periods
 *	append.c	open segments and large bodies
 *	reclaim.c	what leaves and when
 *	walk.c		moving and dropping the items of a segment
 *	rank.c		what an item is worth
 *	ghost.c		keys that left not long ago
 *
 * Locks, outermost first: the reclaim token, an appender's lock, the pool's mutex. No callback of
 * the items' owner runs under the last two, and nothing waits for the token. No lock is held
 * while waiting for a grace period.
 */
#ifndef MEMORY_INTERNAL_H
#define MEMORY_INTERNAL_H

#include "memory/ghost.h"
#include "memory/memory.h"

#include <pthread.h>
#include <stdatomic.h>

#define EXPIRY_NEVER UINT32_MAX
#define MERGE_WIDTH_MAX 64
#define SCORES 1024
#define KEEP_BEHIND 50 /* percent that merges keep at most while writers wait for them */
#define TTL_CLASSES 4
#define GENERATIONS 2
#define TRIM_SEGMENTS 8			     /* given back in a call: a millisecond at most */
#define OPEN_MAX (GENERATIONS * TTL_CLASSES) /* open segments of one appender */

/*
 * Sealed segments stand in lists by garbage: bytes that nothing names, in sixteenths of a
 * segment. The last list holds what is dead as a whole: no live byte, or an old epoch.
 */
#define GARBAGE_LISTS 18
#define GARBAGE_DEAD 17

enum segment_state {
	SEGMENT_BARE, /* free, its pages not committed */
	SEGMENT_FREE,
	SEGMENT_OPEN,
	SEGMENT_SEALED,
	SEGMENT_CLEARING,
	SEGMENT_GRACE,
	SEGMENT_BODY,
};

enum generation { PROBATION, MAIN };

_Static_assert(PROBATION == 0, "segment_face says so to readers");

struct segment_links {
	uint32_t next, previous;
};

struct segment_list {
	uint32_t first, last, count;
};

struct segment {
	_Atomic uint32_t live;	   /* bytes of items named, or about to be. Any thread */
	_Atomic uint32_t pins;	   /* Any thread */
	_Atomic uint32_t bodies;   /* body segments whose heads stand here. Any thread */
	_Atomic uint32_t capacity; /* what garbage counts from: all, or what is used if full */
	_Atomic uint8_t state;	   /* under the pool's mutex */
	uint8_t ttl_class;	   /* from here on: the owner while open, then constant */
	uint32_t used;
	uint32_t expiry;       /* latest of its items, EXPIRY_NEVER when one has none */
	uint32_t first_expiry; /* earliest of them, EXPIRY_NEVER when none has one */
	uint32_t filling_s;    /* since when items are appended here */
	_Atomic uint32_t life; /* times taken; under the pool's mutex */
	uint32_t garbage; /* from here on under the pool's mutex: list that it stands in, 0 none */
	uint32_t heap_at; /* place in the expiry heap, 0 none */
	uint64_t stamp;	  /* grace periods begun when it was sealed, or released */
	struct segment_links age;     /* queue of its generation; also free and grace lists */
	struct segment_links sharing; /* list of its garbage */
	_Atomic uint64_t head;	      /* of a body: life << 32 | segment of the head */
	bool published;		      /* of a body. Its owner */
};

/* The segments of one worker, or of several that share it. */
struct appender {
	atomic_flag lock; /* memory_append to memory_append_done; the sealing reclaimer */
	uint32_t open[OPEN_MAX];
	_Atomic uint32_t checked_s; /* when ages were last looked at */
} __attribute__((aligned(64)));

struct memory_thread {
	struct memory *memory;
	struct appender *appender; /* NULL in background threads */
	unsigned number;
	/* Its place among those who wait for a segment: changed by itself, under the mutex. */
	struct memory_thread *waits_after; /* behind it, NULL at the end */
	uint32_t needs;			   /* segments at once; 0: doesn't wait */
	/* Its own. */
	bool refused;	 /* in this turn */
	uint32_t copies; /* segments that its unfinished copy of a large value holds */
};

enum job_kind {
	JOB_NONE,
	JOB_CLEAR,
	JOB_COMPACT,
	JOB_PROBATION,
	JOB_SCORE,
	JOB_MERGE,
	JOB_EXPIRE, /* drops what has expired; the rest stays where it is */
};

/* The piece of reclaim work in progress; whoever holds the token. */
struct job {
	enum job_kind kind;
	uint32_t sources[MERGE_WIDTH_MAX];
	uint32_t count, at;	   /* sources, and the one being walked */
	uint32_t offset;	   /* bytes into it */
	uint32_t opened_s;	   /* the oldest source's */
	enum memory_reason reason; /* why those leave that aren't kept */
	uint32_t first_expiry;	   /* JOB_EXPIRE: of what stays */
	uint32_t expired;	   /* JOB_EXPIRE: items found expired */
	/*
	 * Merging: reads as seen when scoring, one byte an item in the order of the walk; bytes
	 * by score; what fits.
	 */
	uint32_t item;
	uint32_t taken; /* segments to move to */
	uint64_t weight[SCORES];
	unsigned threshold;	  /* scores above stay */
	uint64_t threshold_bytes; /* so many bytes of this very score stay too */
};

struct memory {
	struct memory_arena arena;
	struct memory_options options;
	struct memory_tuning tuning;
	struct segment *segments;
	struct segment_face *faces;
	uint8_t *tables; /* one range: segments, ghost, faces, heap, reads */
	size_t tables_bytes, arena_bytes;
	uint32_t segment_bytes;
	bool huge_pages;	 /* explicit ones: nothing is given back */
	_Atomic bool pages_stay; /* the system took none back: it isn't asked again */
	_Atomic uint64_t limit_bytes, outside_bytes;
	_Atomic uint32_t epoch;

	/* Appending: constant after start. */
	unsigned appenders_count;
	struct appender *appenders;
	unsigned slots[GENERATIONS]; /* open segments of an appender, by generation */
	unsigned outputs_classes;

	/* The pool: under its mutex; what is atomic is read without. */
	pthread_mutex_t pool;
	struct segment_list free, bare, grace, held;
	struct memory_thread *waiting; /* the longest first */
	struct segment_list age[GENERATIONS];
	struct segment_list garbage[GARBAGE_LISTS];
	uint32_t *heap; /* of expiring sealed segments, heap[1] the first */
	uint32_t heap_count;
	uint32_t bare_from; /* numbers from here on were never used */
	uint32_t resident, open_count;
	uint32_t flush_cursor; /* sealed segments below: compared with the epoch */
	/* The sweep for expired items: the next segment (0: none goes on), begun, next due. */
	uint32_t sweep_cursor, sweep_begun_s, sweep_due_s;
	_Atomic uint32_t used;	  /* neither free nor bare */
	_Atomic uint32_t allowed; /* segments that the limit leaves */
	_Atomic uint32_t low, target, reserve;
	_Atomic uint32_t boost; /* more free ones, for large values that were refused some */
	_Atomic uint32_t generation_count[GENERATIONS]; /* open and sealed */
	_Atomic uint32_t bodies_count, bodies_unfinished, pinned_count;
	_Atomic uint32_t generation_bodies[GENERATIONS];
	_Atomic bool exhausted;	     /* reclaim found nothing to free */
	_Atomic bool starved;	     /* somebody waits for a segment */
	_Atomic bool bodies_starved; /* somebody waits for unfinished bodies to become fewer */
	_Atomic bool woken;
	_Atomic bool held_ready;

	/* Grace periods, begun and over. */
	_Atomic uint64_t grace_begun, grace_over;

	/* Reclaim: whoever holds the token. */
	atomic_flag token;
	struct job job;
	uint8_t *reads;
	size_t reads_bytes;
	uint32_t outputs[GENERATIONS][TTL_CLASSES];
	uint32_t upkeep_s;
	uint32_t squeeze;    /* merges one after the other that made no room */
	uint64_t waits_seen; /* 'waits' when the last merge was decided */
	uint64_t random;

	/*
	 * The score that has a place in main, set by merges, 0 none yet; bytes that came back since
	 * then and weren't let in. Relaxed: hints.
	 */
	_Atomic uint32_t bar;
	_Atomic uint64_t refused_bytes;
	struct ghost ghost;

	/* Statistics; relaxed. */
	_Atomic uint64_t evicted_segments, merged_segments, expired_segments, flushed_segments,
		dead_segments, compacted_segments;
	_Atomic uint64_t moved_items, moved_bytes, dropped_items, ghost_hits, promoted_items;
	_Atomic uint64_t worker_steps, waits, pin_refusals, accounting_errors;
};

#define COUNT(counter, n) atomic_fetch_add_explicit(&(counter), (n), memory_order_relaxed)
#define READ(word) atomic_load_explicit(&(word), memory_order_relaxed)

uint32_t memory_ghost_sets(const struct memory *memory, uint64_t limit_bytes);

/* --- pool.c: segments as wholes ----------------------------------------------------------- */

/*
 * Takes a free segment into 'state' (OPEN or BODY) for a worker's thread, or for reclaim (NULL); 0
 * when there is none for it: the last ones are kept for reclaim and for those who wait longer.
 */
uint32_t pool_take(struct memory *memory, struct memory_thread *thread, enum segment_state state,
	enum generation generation, uint32_t epoch, uint32_t opened_s);
/*
 * The thread was refused, and will ask again in its next turn for so many segments: nobody who asks
 * later comes before it. What it gets ends that, or a turn in which it wasn't refused.
 */
void pool_wait(struct memory_thread *thread, uint32_t needs);
void pool_wait_no_more(struct memory_thread *thread);
/* OPEN to SEALED. full: more didn't fit. */
void pool_seal(struct memory *memory, uint32_t segment, bool full);
/* After a change of 'live' or 'bodies': to the list that it belongs in. */
void pool_relist(struct memory *memory, uint32_t segment);
void pool_relist_locked(struct memory *memory, uint32_t segment);
/* SEALED to CLEARING and back. */
void pool_claim_locked(struct memory *memory, uint32_t segment);
void pool_unclaim(struct memory *memory, uint32_t segment);
/*
 * CLEARING or BODY to GRACE; to FREE where a grace period has passed and nobody pins. Gives how
 * many came free.
 */
void pool_release(struct memory *memory, uint32_t segment);
uint32_t pool_free_ready(struct memory *memory);
/*
 * Gives pages back until the resident segments are within the limit, or none is free; of a few
 * segments a call, since each takes long. True: there may be more.
 */
bool pool_trim(struct memory *memory);
/* Allowed segments and watermarks, from the limit. */
void pool_set_allowed(struct memory *memory);
/* Free segments that the limit allows, negative when over it. */
int64_t pool_free_count(const struct memory *memory);
/* True when all uses of the segment from before it was sealed are over. */
bool pool_settled(const struct memory *memory, uint32_t segment);
void pool_wake(struct memory *memory);
/* Wakes who waits for a segment, if anybody does. */
void pool_tell_starved(struct memory *memory);
/*
 * Nothing can be freed: who waits for a segment is told. Until something changes reclaim doesn't
 * try to compact.
 */
void pool_set_exhausted(struct memory *memory);

/* --- append.c ----------------------------------------------------------------------------- */

unsigned append_ttl_class(uint32_t expiry_s, uint32_t now_s, unsigned classes);
void append_choose_slots(struct memory *memory);
/* Seals what is older than the age, of an old epoch, or everything. Gives how many were sealed. */
unsigned append_seal(struct memory *memory, struct appender *appender, uint32_t now_s, bool all);
void append_expect(struct segment *segment, uint32_t expiry_s);
/* The heads of these bodies now stand in 'segment'. */
void body_own(struct memory *memory, const struct item *item, uint32_t segment);
/* True when an open segment should be sealed now. */
bool append_seal_due(const struct memory *memory, uint32_t segment, uint32_t now_s, bool all);
uint32_t body_count_max(const struct memory *memory);
/* With so many body segments behind its heads, a segment is sealed. */
uint32_t body_seal_count(const struct memory *memory);

/* --- rank.c ------------------------------------------------------------------------------- */

unsigned rank_score(const struct memory *memory, uint32_t reads, uint64_t weight);
uint32_t rank_fade(struct memory *memory, uint32_t reads);
/* Segments in a generation, bodies included; and how many probation should have. */
uint32_t rank_weight(const struct memory *memory, enum generation generation);
uint32_t rank_probation_share(const struct memory *memory);
/* After a merge that kept what was over this score. */
void rank_set_bar(struct memory *memory, unsigned threshold);
/* Has an item a place in main? */
bool rank_worth(const struct memory *memory, uint32_t reads, uint64_t weight);

/* --- reclaim.c, walk.c -------------------------------------------------------------------- */

enum step {
	STEP_IDLE,
	STEP_WORKED,
	STEP_GRACE, /* nothing can go on before a grace period */
	STEP_BUSY,  /* nor before the items' owner has room for what leaves */
};

struct budget {
	uint32_t items, bytes;
};

bool reclaim_token_take(struct memory *memory);
void reclaim_token_return(struct memory *memory);
enum step reclaim_step(struct memory *memory, uint32_t now_s, struct budget budget);
unsigned reclaim_merge_width(const struct memory *memory);

/* Goes on with the job's sources; when the last is done, the job is over. */
enum step walk_sources(struct memory *memory, uint32_t now_s, struct budget budget);
enum step walk_scores(struct memory *memory, uint32_t now_s, struct budget budget);
/* JOB_EXPIRE; at the end the segment is sealed again, in the list that its garbage belongs in. */
enum step walk_expired(struct memory *memory, uint32_t now_s, struct budget budget);
/* Seals reclaim's own open segments: those due, or all. */
unsigned walk_seal_outputs(struct memory *memory, uint32_t now_s, bool all);

/* Free segments below which the background is called, and up to which it works. */
static inline int64_t
pool_low(const struct memory *memory)
{
	return (int64_t)READ(memory->low) + READ(memory->boost);
}

static inline int64_t
pool_target(const struct memory *memory)
{
	return (int64_t)READ(memory->target) + READ(memory->boost);
}

static inline struct segment *
segment_at(const struct memory *memory, uint32_t segment)
{
	return &memory->segments[segment];
}

static inline uint32_t
segment_epoch(const struct memory *memory, uint32_t segment)
{
	return READ(memory->faces[segment].epoch);
}

#endif
