/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * protocol: the contract of a wire protocol: how requests are written and replies are cut from a
 * stream of bytes. It does no I/O and keeps no state. Replies come in the order of their requests;
 * the caller knows which request is the oldest without its whole answer, and says so when it parses.
 *
 * What each operation is on the wire, and which replies belong to it:
 *
 *                text           meta                     binary            replies
 *   get          get k          mg k f k v               GETK              VALUE last | END last
 *   get, n keys  get k k ..     mg k f k v q .. mn       GETKQ .. NOOP     VALUE*, then END last
 *   gat          gat t k        mg k f k v Tt            GATK              VALUE last | END last
 *   set          set            ms k n Ff Tt             SET               DONE, NOT_STORED
 *   append       append         ms k n MA                APPEND            DONE, NOT_STORED
 *   touch        touch k t      mg k Tt                  TOUCH             DONE, MISS
 *   incr         incr k 1       ma k v                   INCREMENT         NUMBER, MISS
 *   delete       delete k       md k                     DELETE            DONE, MISS
 *
 * In text each VALUE is followed by an END of its own reply, so there no VALUE is last. INCREMENT
 * of the binary protocol doesn't create what is missing (expiration 0xffffffff). To all of them
 * REFUSED and ERROR can be the answer. What doesn't fit the operation, as STORED to a get or a
 * VALUE to a touch, is BROKEN.
 */
#ifndef TOOLS_BENCH_PROTOCOL_H
#define TOOLS_BENCH_PROTOCOL_H

#include "workload.h"

/* A request on one key. */
struct request {
	enum operation operation;
	uint32_t key;	  /* as workload.h numbers them */
	uint32_t version; /* of set and append: which value */
	uint32_t ttl;	  /* seconds, 0 is for ever; of set, gat and touch */
};

enum reply_kind {
	REPLY_VALUE,	  /* one value of a get or gat */
	REPLY_END,	  /* the end of a get or gat, whose further keys were missed */
	REPLY_DONE,	  /* set, append, touch or delete took effect */
	REPLY_NUMBER,	  /* incr took effect; the digits are in value */
	REPLY_NOT_STORED, /* set or append did not, and may not have to */
	REPLY_MISS,	  /* touch, incr or delete of a key that is not there */
	REPLY_REFUSED,	  /* out of memory */
	REPLY_ERROR,	  /* the server calls the request wrong, or itself broken */
	REPLY_BROKEN,	  /* not a reply to this request: the stream is lost */
};

/* Slices of the bytes that were parsed; good as long as those. */
struct reply {
	enum reply_kind kind;
	bool last;	   /* nothing more comes for this request */
	uint32_t flags;	   /* of a VALUE */
	const char *key;   /* of a VALUE */
	const char *value; /* of a VALUE or NUMBER */
	const char *line;  /* for messages: the reply's first line, or what the server says of an
			      error */
	uint64_t key_size;
	uint64_t value_size;
	uint64_t line_size;
};

/* A slice of the bytes that were parsed. */
struct value {
	const char *at;
	uint64_t size;
};

struct protocol {
	const char *name;
	/* Bytes that a get of so many keys takes at most. */
	size_t (*get_size_max)(const struct workload *workload, unsigned keys);
	/* Bytes that any other request takes at most, beside its value. */
	size_t (*request_size_max)(const struct workload *workload);
	/* Write a get; returns its end. */
	char *(*write_get)(
		const struct workload *workload, char *at, const uint32_t *keys, unsigned count);
	/* Write count gets of one key each; returns their end. NULL: write_get has to do. */
	char *(*write_gets)(
		const struct workload *workload, char *at, const uint32_t *keys, unsigned count);
	/*
	 * Write any other request (and get of one key); returns its end. The flags of a set are
	 * those of the workload.
	 */
	char *(*write)(const struct workload *workload, char *at, const struct request *request);
	/*
	 * Cut one reply from the size bytes (at least 1), an answer to the operation on so many
	 * keys. Returns how many bytes it took, or 0 when it is not whole yet. *wanted is then how
	 * many bytes the whole will take, as far as that can be told, else 0. Every field of *reply
	 * that belongs to its kind is set, line always.
	 */
	size_t (*parse)(const char *at, size_t size, enum operation operation, unsigned keys,
		struct reply *reply, size_t *wanted);
	/*
	 * A quick look: when the bytes begin with the whole answer of a hit to a get of this one
	 * key, with the workload's flags, returns how many it takes and sets the value's slice.
	 * Else 0 and *value and *value_size are undefined; parse then says what it is.
	 */
	size_t (*match)(const struct workload *workload, const char *at, size_t size, uint32_t key,
		const char **value, uint64_t *value_size);
	/*
	 * The same for gets of count keys in a row, one key each: as far as their answers are whole
	 * hits, sets their values; returns how many, and in *used the bytes that they take. Where
	 * it is NULL or returns 0, match has to do.
	 */
	unsigned (*match_run)(const struct workload *workload, const char *at, size_t size,
		const uint32_t *keys, unsigned count, struct value *values, size_t *used);
	/* The answer to a set that was stored, where it is always the same; else NULL. */
	const char *stored;
	size_t stored_size;
};

const struct protocol *protocol_text(void);
const struct protocol *protocol_meta(void);
const struct protocol *protocol_binary(void);

#endif
