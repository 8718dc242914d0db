/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * replay: what stands on the medium, read and judged: which regions there are, what the journal
 * kills, which items are left. It only reads, and knows no index: recovery acts on what it says, and
 * halcyonctl prints it.
 *
 *	replay_survey	headers and trailers of all regions, their order
 *	replay_journal	the ring once: regions that are void, and how large the tables must be
 *	then for each pass, 0 to passes - 1:
 *	replay_load	the records of this pass's hashes
 *	replay_items	the items of this pass's hashes, in the order of the log
 *
 * Memory is bounded by options.memory_bytes: a pass takes the hashes with the same low bits, so
 * that the records' table fits, and what can share a bucket is in the same pass.
 */
#ifndef FLASH_REPLAY_H
#define FLASH_REPLAY_H

#include "flash/internal.h"

enum replay_header {
	REPLAY_NOTHING, /* zeros, or what is no header */
	REPLAY_UNREADABLE,
	REPLAY_FREE,
	REPLAY_DATA,
	REPLAY_SNAPSHOT,
};

struct replay_region {
	uint64_t sequence;
	uint64_t void_below; /* by NUMBER records: lower sequences are */
	uint32_t opened_s;
	uint32_t entries, used; /* as the trailer says */
	uint8_t header;		/* enum replay_header */
	bool sealed;		/* the trailer makes sense */
	bool dead;		/* a record says so, or another region has the sequence */
	bool damaged;		/* something is there that makes no sense */
};

/* What an item meets; counted. */
enum replay_verdict {
	REPLAY_LIVE,
	REPLAY_VOIDED,	/* below void_below */
	REPLAY_FLUSHED, /* below flush_position */
	REPLAY_KILLED,	/* by a record */
	REPLAY_EXPIRED,
	REPLAY_VERDICTS
};

#define REPLAY_TORN_MAX 128

struct replay_table;

struct replay {
	struct flash *flash;
	/* Set by the caller after replay_begin: now_s, and the rest by replay_judge_by. */
	uint64_t void_below, flush_position, expired_below;
	uint32_t expired_s, now_s;
	/* Found: */
	struct replay_region *regions;
	uint32_t *order; /* DATA regions that aren't dead, in rising sequence */
	uint32_t order_count;
	uint64_t sequence_max; /* of headers and records */
	uint64_t entries;      /* of sealed regions, as their trailers say */
	uint64_t journal_valid, journal_records;
	/*
	 * Blocks of the ring that are neither valid nor zeros. A write that was under way at a crash
	 * leaves such near the newest block; elsewhere, or where a block can't be read, records are
	 * lost: journal_damaged, and what they killed can't be known.
	 */
	uint32_t torn[REPLAY_TORN_MAX];
	uint32_t torn_count;
	bool journal_damaged;
	uint32_t passes;
	bool overflow; /* the journal kills more than the tables can hold: nothing can be believed */
	bool silent;   /* the device doesn't answer: all is off, and its buffers are lost */
	uint64_t verdicts[REPLAY_VERDICTS];
	uint64_t nonsense; /* footer entries that can't be */
	/* Private. */
	uint32_t pass;
	uint64_t journal_number; /* of the newest block, */
	uint32_t journal_place;	 /* and where it stands */
	uint64_t key_records, place_records;
	struct replay_table *keys, *places;
	uint8_t *body;	 /* of a region that is scanned */
	uint8_t *footer; /* and what its footer is made in; a footer that is long */
	uint32_t footer_guess;
};

/* false: no memory. */
bool replay_begin(struct replay *replay, struct flash *flash);
void replay_end(struct replay *replay);

/* After an unclean stop: what the superblock says of items. */
void replay_judge_by(struct replay *replay, const struct flash_super *found);

bool replay_survey(struct replay *replay);
/* found: NULL, or told each valid block of the ring. */
bool replay_journal(struct replay *replay,
	void (*found)(struct flash *flash, uint32_t place, uint64_t number, uint64_t position));
bool replay_load(struct replay *replay, uint32_t pass);

/*
 * The entries of a region without a footer, by its appends up to the first bad one: they end where
 * *footer begins, a footer as it should be written, in replay's memory until the next call.
 */
struct flash_footer *replay_scan(struct replay *replay, uint32_t region);

struct replay_visitor {
	/*
	 * A region in turn. It has no footer that is whole: 'scanned' is what replay_scan makes of
	 * it, else NULL. false: leave it out.
	 */
	bool (*region)(void *context, uint32_t region, const struct flash_footer *scanned);
	/* An item of this pass; class: of its size. false: stop. */
	bool (*item)(void *context, uint32_t region, const struct flash_footer_entry *entry,
		enum replay_verdict verdict);
	/* Going to be told of this hash: a hint. NULL: none. */
	void (*prefetch)(void *context, uint64_t hash);
	void (*progress)(void *context, uint64_t done, uint64_t total);
};
/* false: stopped. */
bool replay_items(struct replay *replay, const struct replay_visitor *visitor, void *context);

static inline uint64_t
replay_position(
	const struct replay *replay, uint32_t region, const struct flash_footer_entry *entry)
{
	return flash_position_make(
		replay->regions[region].sequence, entry->place & ((1u << FLASH_OFFSET_BITS) - 1));
}

static inline uint32_t
replay_class(const struct flash_footer_entry *entry)
{
	return entry->place >> FLASH_OFFSET_BITS & 0x3f;
}

/* No region that a recovery might believe has lower positions, dead ones included. */
uint64_t replay_journal_oldest(const struct replay *replay);
/* The region with this sequence in order, UINT32_MAX: none. */
uint32_t replay_region_of(const struct replay *replay, uint64_t sequence);

#endif
