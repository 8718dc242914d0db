/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * request: what a client asked for, whichever protocol it spoke, and what it is answered.
 *
 * Parsers turn bytes into requests, composers turn a request with its reply into bytes. Nothing
 * here does I/O, reads a clock, allocates or keeps a global. The engine sees only verbs; how a
 * reply looks is the composer's business.
 */
#ifndef PROTO_REQUEST_H
#define PROTO_REQUEST_H

#include "base/slice.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define KEY_SIZE_MAX 250      /* bytes; of a base64 key both forms obey it */
#define REQUEST_OPAQUE_MAX 32 /* bytes of a meta command's O token */
/* bytes without a line end; longer closes, but for get, gets, gat and gats */
#define TEXT_LINE_MAX 2048

enum protocol { PROTOCOL_UNKNOWN, PROTOCOL_TEXT, PROTOCOL_META, PROTOCOL_BINARY };

enum command {
#define COMMAND(name, text, verb, mode, sentence) COMMAND_##name,
#include "proto/commands.def"
#undef COMMAND
	COMMAND_NONE, /* a line that is no command: status says what is wrong with it */
	COMMAND_COUNT
};

enum verb {
	VERB_FETCH,	 /* get gets gat gats mg, binary get and gat */
	VERB_STORE,	 /* set add replace append prepend cas ms */
	VERB_ARITHMETIC, /* incr decr ma */
	VERB_TOUCH,	 /* touch */
	VERB_DELETE,	 /* delete md */
	VERB_INSPECT,	 /* me */
	VERB_NOOP,
	VERB_FLUSH, /* exptime: the delay in seconds; REQUEST_TTL where one was given */
	VERB_VERSION,
	VERB_VERBOSITY, /* delta: the level */
	VERB_STATS,	/* arguments: the words after 'stats' (binary: the key) */
	VERB_MEMLIMIT,	/* delta: megabytes */
	VERB_SHUTDOWN,	/* arguments: "" or "graceful" */
	VERB_DEBUGTIME, /* arguments */
	VERB_QUIT,
	VERB_REFUSE, /* bad input: answer request.status, do nothing else */
};

enum request_mode {
	MODE_NONE,
	MODE_SET,
	MODE_ADD,
	MODE_REPLACE,
	MODE_APPEND,
	MODE_PREPEND,
	MODE_INCREMENT,
	MODE_DECREMENT,
};

enum status {
#define STATUS(name, text, meta, binary, binary_text) STATUS_##name,
#include "proto/status.def"
#undef STATUS
	STATUS_COUNT
};

/*
 * request.options: what was asked, protocol-neutral. The engine reads those of the first group,
 * composers all.
 */
enum {
	/* FETCH, ARITHMETIC, DELETE: exptime is a new time to live (gat, mg T, ma T, md T) */
	REQUEST_TTL = 1u << 0,
	/* mg/ms/md... N, ma N, binary incr with create: make a missing item, vivify_ttl */
	REQUEST_VIVIFY = 1u << 1,
	/* mg R: hand out the win when less than recache_ttl is left */
	REQUEST_RECACHE = 1u << 2,
	/* cas_compare must match (cas, C token, binary CAS that isn't 0) */
	REQUEST_CAS_COMPARE = 1u << 3,
	REQUEST_CAS_NEW = 1u << 4,    /* E token: the item gets cas_new */
	REQUEST_INVALIDATE = 1u << 5, /* ms/md I: mark stale, or store although the CAS is older */
	REQUEST_NO_BUMP = 1u << 6,    /* mg u, me: leave no trace of this access */
	REQUEST_REMOVE_VALUE = 1u << 7, /* md x: the item stays with an empty value and flags 0 */
	REQUEST_KEY_BINARY = 1u << 8,	/* key was base64 on the wire */
	REQUEST_VALUE_WANTED = 1u << 9, /* the reply may carry the value */
	/* meta q, binary quiet opcodes: the composer leaves out the usual answer */
	REQUEST_QUIET = 1u << 10,
	REQUEST_NOREPLY = 1u << 11,    /* text noreply: no answer at all */
	REQUEST_CAS_WANTED = 1u << 12, /* gets, gats, meta c */
	REQUEST_KEY_WANTED = 1u << 13, /* binary GETK, GATK */
	REQUEST_LAST = 1u << 14,       /* FETCH in text: the last key of its line: END follows */
	REQUEST_CLOSE = 1u << 15,      /* close the connection once this reply has left */
	REQUEST_FETCH_WAS = 1u << 16,  /* meta h, l, t asked: state before this access is wanted */
	REQUEST_CREATE_DENIED = 1u << 17, /* binary incr with expiry 0xffffffff */
	REQUEST_BASE_KEY = 1u << 18,	  /* meta b flag was given: echo b beside k */
	REQUEST_MODE_GIVEN = 1u << 19,	  /* meta M token was given */
};

/*
 * A request. Bytes that it points at belong to the connection (or datagram) until the batch
 * retires; the key may point into the slot's own key_decoded (base64).
 *
 * It starts with what a get has: of a FETCH of the text protocol nothing behind 'arguments' is
 * set, so that one cache line is all that is touched of it.
 */
struct request {
	uint8_t verb;	  /* enum verb */
	uint8_t protocol; /* enum protocol: the form of the reply */
	uint8_t command;  /* enum command */
	uint8_t mode;	  /* enum request_mode */
	/*
	 * enum status; set by the parser for VERB_REFUSE (and STORE: TOO_LARGE), else by the engine
	 */
	uint8_t status;
	uint8_t opcode; /* binary */
	uint8_t key_size;
	uint8_t pad;
	uint32_t options;
	uint32_t opaque; /* binary, in wire order */
	const uint8_t *key;
	uint64_t hash; /* of the key; set by the hash stage */
	/* seconds as the client gave them: > 30 days is a Unix time, negative is now */
	int64_t exptime;
	uint32_t client_flags;
	int32_t pad2;
	/* meta: the flags' text, to be echoed; stats, shutdown, debugtime: the words */
	struct slice arguments;
	struct slice value; /* STORE: the body, when it stands in one piece */
	uint64_t body_size; /* STORE: bytes of the body without its line end */
	int64_t vivify_ttl;
	int64_t recache_ttl;
	uint64_t cas_compare;
	uint64_t cas_new;
	uint64_t delta;	  /* ARITHMETIC; also the number of verbosity and cache_memlimit */
	uint64_t initial; /* ARITHMETIC with REQUEST_VIVIFY */
};

/* What the engine found or did; the composer's other input. Slices live until the batch retires. */
struct reply {
	uint8_t status;	    /* enum status */
	bool won;	    /* W: this client may recache */
	bool stale;	    /* X */
	bool win_sent;	    /* Z: another client has the win */
	bool fetched;	    /* h: was hit before */
	bool key_binary;    /* the item's key is binary (me, echo) */
	uint8_t size_class; /* memcached's class id, for me */
	uint8_t key_size;
	uint32_t client_flags;
	uint32_t last_access_s; /* l: seconds since the last access */
	int64_t ttl_s;		/* t: seconds left, -1 without expiry */
	const uint8_t *key;
	uint64_t cas;
	uint64_t number;	    /* ARITHMETIC: the new value */
	uint64_t value_size;	    /* s */
	uint64_t item_bytes;	    /* me: size= */
	const struct slice *pieces; /* the value; one piece unless it is large */
	uint32_t piece_count;
	/*
	 * STATUS_TEXT: a whole reply composed elsewhere, sent as it is; VERB_VERSION: the bare
	 * version
	 */
	struct slice text;
};

/*
 * Where composers write. Small things are copied to 'text' (room is made by the caller: see
 * COMPOSE_ROOM), large values are referred to by iovecs. Neighbouring text grows one iovec.
 */
struct reply_out {
	uint8_t *text;
	size_t text_used;
	size_t text_size;
	struct iovec *pieces;
	uint32_t piece_used;
	uint32_t piece_size;
	/* first iovec of the present connection: text never joins an iovec before it */
	uint32_t piece_first;
	/* values up to this many bytes are copied beside their header (512) */
	uint32_t copy_max;
	uint64_t bytes; /* all bytes of the present connection's replies in this batch */
};

/*
 * Text bytes that one reply may take at most, but for reply.text, which is referred to; iovecs: 3 +
 * reply.piece_count.
 */
#define COMPOSE_ROOM 2048

enum parse_status {
	PARSE_REQUEST, /* *request is filled, *consumed bytes are done with */
	/*
	 * not whole yet: parser.wanted bytes in all are needed in one window, 0 if unknown; nothing
	 * consumed
	 */
	PARSE_MORE,
	/*
	 * a STORE whose body doesn't fit the read buffer: *request is filled but for its value,
	 * *consumed ends behind the line; body_size bytes and parser.body_end bytes (2 in text:
	 * "\r\n", 0 in binary) follow
	 */
	PARSE_BODY,
	/* *consumed bytes were swallowed, no request in them; call again if bytes are left */
	PARSE_SKIP,
	PARSE_CLOSE, /* nothing can be made of it: close without an answer */
};

/*
 * A connection's parser: what must be remembered between two windows. All zero is a new connection.
 */
struct parser {
	/* PROTOCOL_UNKNOWN until the first byte, then TEXT or BINARY for good */
	uint8_t protocol;
	uint8_t multiget; /* enum command of the get line that goes on, with multiget_open */
	bool multiget_open;
	uint8_t body_end;
	uint64_t swallow; /* bytes of a refused body still to come */
	int64_t multiget_exptime;
	uint64_t wanted;
	uint64_t scanned; /* leading bytes of the window that are known to hold no line end */
};

struct parse_limits {
	uint64_t value_bytes_max; /* -I */
	/*
	 * a request up to this size is waited for in the read buffer; larger bodies give PARSE_BODY
	 */
	uint64_t window_bytes_max;
	uint64_t line_bytes_max; /* get lines up to this long */
	uint8_t protocol;	 /* -B: PROTOCOL_UNKNOWN negotiates */
	bool datagram;		 /* a UDP payload: no body ever comes later */
	/* -o strict_protocol=close: close after an unknown command or unparsable length */
	bool strict;
};

/*
 * Parses the next request of a connection from its unread bytes (size > 0). key_decoded has
 * KEY_SIZE_MAX bytes of room that live as long as *request. Implemented in proto/parse.c, which
 * hands to text_parse or binary_parse.
 */
enum parse_status request_parse(struct parser *parser, const struct parse_limits *limits,
	const uint8_t *data, size_t size, size_t *consumed, struct request *request,
	uint8_t *key_decoded);

/* Appends the reply's bytes, or none where it is quiet. */
void reply_compose(struct reply_out *out, const struct request *request, const struct reply *reply);

/* Appends size bytes to out, by copy. */
void reply_put(struct reply_out *out, const void *data, size_t size);

/* Appends a reference to bytes that live until the batch retires, or a copy where they are few. */
void reply_refer(struct reply_out *out, const void *data, size_t size);

/* The command word of the text protocol, "" for none; the verb's row of commands.def. */
const char *command_text(enum command command);

#endif
