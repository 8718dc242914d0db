/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * protocol: the contract of a wire protocol: how requests are written and replies are cut from a
 * stream of bytes. It does no I/O and keeps no state; what a reply answers is the caller's to know,
 * for replies come in order.
 */
#ifndef TOOLS_BENCH_PROTOCOL_H
#define TOOLS_BENCH_PROTOCOL_H

#include "workload.h"

enum reply_kind {
	REPLY_VALUE,	  /* one value of a get, more may follow */
	REPLY_END,	  /* the end of a get */
	REPLY_STORED,	  /* the set took effect */
	REPLY_NOT_STORED, /* it did not, and may not have to */
	REPLY_REFUSED,	  /* out of memory */
	REPLY_ERROR,	  /* the server calls the request wrong, or itself broken */
	REPLY_BROKEN,	  /* not a reply: the stream is lost */
};

/* Slices of the bytes that were parsed; good as long as those. */
struct reply {
	enum reply_kind kind;
	const char *key;
	const char *value;
	const char *line; /* the reply's first line, for messages */
	uint64_t key_size;
	uint64_t value_size;
	uint64_t line_size;
};

struct protocol {
	const char *name;
	/* Bytes that a request takes at most, beside its value. */
	size_t (*get_size_max)(const struct workload *workload, unsigned keys);
	size_t (*set_size_max)(const struct workload *workload);
	/* Write a request; returns its end. */
	char *(*write_get)(
		const struct workload *workload, char *at, const uint32_t *keys, unsigned count);
	char *(*write_set)(
		const struct workload *workload, char *at, uint32_t key, uint32_t version);
	/*
	 * Cut one reply from the bytes; returns how many it took, or 0 when it is not whole yet.
	 * *wanted is then how many bytes the whole will take, as far as that can be told, else 0.
	 */
	size_t (*parse)(const char *at, size_t size, struct reply *reply, size_t *wanted);
};

const struct protocol *protocol_text(void);

#endif
