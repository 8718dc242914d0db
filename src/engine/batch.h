/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * batch: what fronts and the engine hand each other. A front knows streams of bytes and nothing of
 * commands; the engine knows requests and nothing of sockets.
 *
 *	front_receive  puts streams with unread bytes into a batch
 *	engine_run makes requests of the bytes (256 slots at most), runs their stages, leaves
 *	replies as iovecs a stream
 *	front_send writes each stream's iovecs, keeps what the peer didn't take, and takes the
 *	finished streams back
 *
 * A stream is in one batch at a time. While it is in one, its front neither reads from it nor moves
 * its input. A batch whose requests wait (for a segment, a device, a peer) stays pending, its slots
 * as they are; each turn runs the waiting stages again. When few batches are left, those that wait
 * are put together (engine_batch_merge). Everything here belongs to one worker thread.
 */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include "base/slice.h"
#include "proto/request.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

struct store_held;

#define BATCH_SLOTS 256
#define BATCH_STREAMS 256
#define BATCH_BYTES 65536 /* a front stops adding streams once they hold this many unread bytes */

enum slot_stage { SLOT_FIND, SLOT_EXECUTE, SLOT_WAITING, SLOT_DONE };

/*
 * One request of a batch, and how far it has come: three cache lines. What is rarely touched stands
 * beside the slots, in struct batch.
 */
struct slot {
	struct request request;
	uint64_t hint_number; /* accel_find's result: home bucket, */
	uint64_t hint_entry;  /* entry found (0: none), */
	_Atomic uint64_t *hint_slot;
	uint32_t hint_version; /* and the bucket's version */
	uint16_t run;	       /* index into batch.runs */
	uint8_t stage;
	bool hinted;
	struct upload *upload; /* the body, when it came in pieces */
	/*
	 * where the stream stood before this request; NULL: not to be parsed again. Its parser
	 * stood as a new one does, or as batch.parser_before says.
	 */
	const uint8_t *input_before;
	bool parser_kept;
} __attribute__((aligned(64)));

static_assert(sizeof(struct slot) <= 192, "a slot has three cache lines");

/*
 * A stream's part of a batch: a run of neighbouring slots, in the order in which its requests came.
 */
struct batch_run {
	struct stream *stream;
	uint16_t slot_first;
	uint16_t slot_count;
	uint16_t slot_next; /* first slot that isn't done */
	/*
	 * a request of this stream changed something in this batch: accelerator results no longer
	 * hold
	 */
	bool wrote;
	/*
	 * the front still has unsent bytes of this stream: its slots are not run, but go back into
	 * its window
	 */
	bool blocked;
	/* set by the engine: all slots done, the front may take the stream back */
	bool finished;
	/*
	 * this turn's replies: pieces[piece_first .. piece_first + piece_count) of the batch's
	 * reply_out
	 */
	uint32_t piece_first;
	uint32_t piece_count;
};

struct batch {
	struct batch *next; /* in the pool, or in the list of pending ones */
	struct batch_run runs[BATCH_STREAMS];
	uint32_t run_count;
	uint32_t slot_count;
	uint64_t bytes; /* unread bytes that front_receive saw */
	/*
	 * set by engine_run: replies found no room; run again after sending, without waiting for
	 * events
	 */
	bool again;
	/* set by engine_run: a request waits for what nobody may tell of: run it again soon */
	bool poll;
	/* the engine's: what slots hold while they wait for flash, one each; NULL without flash */
	struct store_held *held;
	struct reply_out *out; /* the worker's: reset at each run, valid until front_send returns */
	struct slot slots[BATCH_SLOTS];
	struct parser parser_before[BATCH_SLOTS]; /* of slots with parser_kept */
	/* where a request's key stands when its bytes came in another form, or from an upload */
	uint8_t key_decoded[BATCH_SLOTS][KEY_SIZE_MAX + 6];
};

/* What a stream wants of its front when the batch gives it back. */
enum stream_wish {
	/* more bytes: poll, unless input is left to be parsed at once (stream.more) */
	STREAM_READ,
	STREAM_CLOSE, /* close once all replies have left */
	/* neither: the engine has it in its list and will hand it back by engine_unpark */
	STREAM_PARKED,
};

/*
 * The engine's view of a connection or datagram, embedded in the front's own struct. Who may change
 * what is said at each field; outside a batch the front may touch all but those marked 'engine'.
 */
struct stream {
	/* front: unread bytes; engine: moves input forward as it consumes */
	const uint8_t *input;
	size_t input_size;
	/*
	 * engine: the window must be able to hold this many bytes for the request to go on (0:
	 * any); a front that can't closes
	 */
	uint64_t wanted;
	/*
	 * engine: where the next bytes of a large body go; the front reads straight to it (not into
	 * the window) while sink_size is not 0. front: sink_filled bytes were read there; then it
	 * puts the stream into a batch.
	 */
	uint8_t *sink;
	size_t sink_size;
	size_t sink_filled;
	/*
	 * engine: the window holds bytes that no batch has parsed yet: receive again without
	 * polling
	 */
	bool more;
	bool datagram; /* front */
	uint8_t wish;  /* engine: enum stream_wish, valid when the run is finished */
	/* front, at creation: -B or the listener's protocol (enum protocol) */
	uint8_t protocol_fixed;
	/* front: the peer closed its sending half; what is buffered is still answered */
	bool end_of_input;
	struct parser parser;	    /* engine */
	struct upload *upload;	    /* engine */
	struct stream *parked_next; /* engine */
	uint32_t last_command;	    /* engine: enum command last run, for stats conns */
	uint64_t id;		    /* front: for logs */
};

/*
 * What the front may ask about reply bytes that a peer didn't take. Set once by the daemon; 'bytes'
 * is one iovec's base.
 */
enum batch_bytes {
	BATCH_PINNED, /* the bytes stand in the store's memory and are pinned until unpin(bytes) */
	/* they stand in the store's memory, but too much is pinned already: copy or close */
	BATCH_REFUSED,
	BATCH_PLAIN, /* text of this batch: copy */
};
struct batch_pins {
	enum batch_bytes (*pin)(void *context, const void *bytes, size_t size);
	void (*unpin)(void *context, const void *bytes, size_t size);
};

#endif
