/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The engine's own structs, for its files: engine.c (the stages of a batch), merge.c (what becomes
 * of batches that wait), command.c (who runs which verb; what the verbs' files share is in verbs.h),
 * upload.c (bodies that arrive in pieces).
 */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "accel/accel.h"
#include "base/counters.h"
#include "engine/engine.h"
#include "store/store.h"

#include <stdatomic.h>

/* per worker: this many may be pending at once */
#define BATCHES_MAX 32
/* bytes of memory that are lent to an arriving body at a time */
#define UPLOAD_CHUNK 16384
/* the 20 digits of 2^64 - 1, and zeros before or spaces behind; longer values are no numbers */
#define NUMBER_TEXT_MAX 64
/* without progress for so long, an upload's memory may be taken back */
#define UPLOAD_STALL_NS 3000000000ull
/*
 * bytes of a body that must have come before memory is lent to it: till then they stay in the
 * window
 */
#define UPLOAD_FIRST 4096
/* who waited for memory must use it within that time while others wait */
#define UPLOAD_GRACE_NS 1000000000ull
/* parked for so long without a byte, a large one may lose its segments */
#define UPLOAD_PARKED_NS 10000000000ull
#define UPLOAD_RETRY_NS 50000000ull /* a parked upload is tried again at least this often */

/*
 * A body that arrives in pieces, and the request that it belongs to. In its engine's list, least
 * recent progress first.
 */
struct upload {
	struct upload *previous, *next;
	struct stream *stream;
	struct request request; /* key and arguments stand behind this struct */
	uint64_t received;	/* bytes of the body */
	uint64_t progress_ns;	/* when the last ones came */
	/* and in which turn: after a long one, bytes may be there that were not looked at */
	uint32_t progress_turn;
	uint32_t piece_count;
	uint32_t piece_room;
	uint32_t since;	  /* bytes that have come since progress_ns was set */
	uint8_t end_size; /* bytes of line end behind the body */
	bool large;	  /* pieces are segments of the store, else chunks of ours */
	bool parked;	  /* waits for us, not we for its client */
	bool waited;	  /* was parked, and no byte has come since */
	bool aborted;	  /* its memory was taken back: the rest is swallowed */
	/* aborted because there is no memory for it and none will come (-M) */
	bool full;
	bool published; /* an item owns the segments now */
	union {
		uint8_t **chunks;
		uint32_t *segments;
	};
};

struct engine {
	struct engine_options options;
	struct store *store;
	struct store_thread *thread;
	struct store_arena arena;
	const struct accel *accel;
	struct accel_state *accel_state;
	struct counters *counters;
	struct engine_time time;
	struct parse_limits limits;
	struct batch *pool;
	uint32_t pool_count;
	bool flash;   /* requests can wait for items on flash, and hold something meanwhile */
	bool starved; /* one found no room in this turn: nothing is read ahead of it */
	struct reply_out out;
	struct slice *pieces;		   /* of one large value */
	uint32_t pieces_max;		   /* that one value may have */
	uint32_t *segments;		   /* of one body, for the draft */
	char number_text[NUMBER_TEXT_MAX]; /* the value of the present arithmetic request */
	uint64_t turn_ns;		   /* the present turn's time, */
	uint32_t turn;			   /* and its number, as engine_unpark sees them */
	uint64_t upload_bytes;		   /* lent as chunks */
	/*
	 * These two may pass the bounds on chunks and on segments, so that of uploads that all wait
	 * for more, one ends.
	 */
	struct upload *favoured, *favoured_large;
	struct upload *upload_first, *upload_last;
	struct stream *parked_first, *parked_last;
	uint32_t parked_count;
	struct engine_text texts[BATCH_SLOTS]; /* of this run's replies */
	uint32_t text_count;
	/* keys of the batch that is parsed, and which slots they are of */
	struct accel_request finds[BATCH_SLOTS];
	uint16_t find_slots[BATCH_SLOTS];
	uint32_t find_count;
};

/* Does the slot hold anything that store_release has to give back? */
static inline bool
engine_holds(const struct store_held *held)
{
	return held->loans || held->intent.ticket || held->intent.covers;
}

/* The bytes of a dedicated segment. */
static inline uint8_t *
engine_segment(const struct engine *engine, uint32_t segment)
{
	return engine->arena.base + ((uint64_t)segment << engine->arena.segment_shift);
}

/* --- command.c --- */

/* Runs one request; false when it must wait. Otherwise *reply is ready to be composed. */
bool command_run(
	struct engine *engine, struct batch_run *run, struct slot *slot, struct reply *reply);

/* --- merge.c --- */

/* The first 'keep' of a run's requests stay, the others go back into the stream's window. */
void merge_give_back(
	struct engine *engine, struct batch *batch, struct batch_run *run, uint16_t keep);

/* --- upload.c --- */

enum upload_status {
	UPLOAD_DONE,   /* the body is whole: slot has the request */
	UPLOAD_MORE,   /* more bytes must be read */
	UPLOAD_PARKED, /* there is no room at the moment */
	UPLOAD_SKIP,   /* it was aborted: the rest is being swallowed, the slot holds the refusal */
};

/*
 * The line of a storage command was parsed, its body doesn't fit the window. False when memory ran
 * out: slot holds a refusal.
 */
bool upload_begin(struct engine *engine, struct stream *stream, struct slot *slot);
/* key_decoded: room for the key of a request whose upload ends here. */
enum upload_status upload_advance(
	struct engine *engine, struct stream *stream, struct slot *slot, uint8_t *key_decoded);
/*
 * Gives back what no item owns now, and the upload itself (with it the key and the flags of its
 * request).
 */
void upload_end(struct engine *engine, struct upload *upload);

#endif
