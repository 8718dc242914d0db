/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * proto_feed: plays a stream of bytes into the parser as a connection would, cut in any way, and
 * writes the requests that come out as text, a line each. Tests compare those lines; fuzzers
 * compare them between ways of cutting. What the parser promises about pointers and progress is
 * checked on the way: a broken promise aborts.
 */
#ifndef TESTS_PROTO_FEED_H
#define TESTS_PROTO_FEED_H

#include "proto/request.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct feed {
	struct parse_limits limits;
	size_t first; /* bytes in the first read */
	size_t step;  /* bytes in each later one */
	/* also compose replies of every status to every request and check what they promise */
	bool compose;
	/* results */
	char *lines; /* freed by feed_end */
	size_t lines_size;
	size_t lines_room;
	bool closed; /* the last line is CLOSE, or a request that closes */
	size_t left; /* bytes that no request took: an unfinished one */
};

/* Limits as the daemon's defaults have them. */
void feed_begin(struct feed *feed);
/* Plays data; may be called once. */
void feed_run(struct feed *feed, const uint8_t *data, size_t size);
void feed_end(struct feed *feed);

/*
 * Aborts unless all ways of cutting data give the same requests. 'every' cuts at each byte, else at
 * a few.
 */
void feed_compare(const struct parse_limits *limits, const uint8_t *data, size_t size, bool every);

#endif
