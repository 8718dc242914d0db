/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Items on flash, as the store sees them: found through loans, copied to memory when they are read
 * again, staged when they leave it; and what flash asks of the items' owner.
 *
 * Threads. A loan belongs to one worker. Entries change under their bucket's lock alone. An item
 * that was copied from flash to memory keeps its place there in its trailer (ITEM_FLASH): what
 * supersedes it kills the copy first, and unchanged it goes back there without a write.
 */
#include "store/internal.h"

#include "base/check.h"

#include <string.h>

/* reads from which an item on flash is worth a place in memory */
#define PROMOTE_READS 2
/*
 * so long items that leave memory wait for a write buffer while the device takes nothing; then they
 * are dropped, and counted
 */
#define BUSY_PATIENCE_NS 250000000ull

/* --- what a request holds ----------------------------------------------------------------- */

void
store_hold(struct store_thread *thread, struct store_held *held)
{
	thread->held = held;
}

bool
store_held_settled(const struct store_thread *thread, const struct store_held *held)
{
	if (held->intent.ticket && !flash_intent_settled(thread->store->flash, &held->intent))
		return false;
	for (const struct flash_loan *loan = held->loans; loan; loan = loan->next)
		if (loan->state == FLASH_LOAN_PENDING)
			return false;
	return true;
}

void
store_release(struct store_thread *thread, struct store_held *held)
{
	while (held->loans) {
		struct flash_loan *loan = held->loans;

		held->loans = loan->next;
		loan->next = thread->spent;
		thread->spent = loan;
	}
	held->intent = (struct flash_intent){0};
	held->intended = false;
	if (thread->held == held)
		thread->held = NULL;
}

void
store_held_spent(struct store_thread *thread)
{
	while (thread->spent) {
		struct flash_loan *loan = thread->spent;

		thread->spent = loan->next;
		flash_return(thread->flash, &loan);
	}
}

int
store_descriptor(const struct store_thread *thread)
{
	return thread->flash ? flash_descriptor(thread->flash) : -1;
}

int
store_timeout_ms(const struct store_thread *thread)
{
	return thread->flash ? flash_timeout_ms(thread->flash, thread->now_ns) : -1;
}

/* --- finding ------------------------------------------------------------------------------ */

/* The request's loan of the item at this position; begun now if there is none. NULL: not now. */
static struct flash_loan *
loan_for(struct store_thread *thread, uint64_t entry, uint64_t position)
{
	struct flash_loan *loan = thread->held->loans;

	while (loan && loan->position != position)
		loan = loan->next;
	if (loan)
		return loan;
	loan = flash_borrow(thread->flash, bucket_entry_segment(entry), bucket_entry_offset(entry),
		bucket_entry_class(entry), thread->now_ns);
	if (!loan)
		return NULL;
	loan->next = thread->held->loans;
	thread->held->loans = loan;
	return loan;
}

enum store_candidate
store_flash_candidate(struct store_thread *thread, uint64_t entry, const uint8_t *key,
	uint32_t key_size, struct flash_loan **found)
{
	struct flash *flash = thread->store->flash;
	uint64_t position =
		flash_position(flash, bucket_entry_segment(entry), bucket_entry_offset(entry));
	struct flash_loan *loan;

	if (!thread->held || !thread->flash || flash_voided(flash))
		return CANDIDATE_OTHER;
	/*
	 * Void, but reclaim may be about to copy it on: what a change leaves behind must not be its
	 * key's old item, so it takes the entry out.
	 */
	if (position == 0)
		return CANDIDATE_FAILED;
	/* Not read any more, but a recovery would believe it as yet. */
	if (!flash_alive(flash))
		return CANDIDATE_FAILED;
	loan = loan_for(thread, entry, position);
	if (!loan)
		return CANDIDATE_PENDING;
	*found = loan;
	switch ((enum flash_loan_state)loan->state) {
	case FLASH_LOAN_PENDING:
		return CANDIDATE_PENDING;
	case FLASH_LOAN_READY:
		if (!loan->item)
			return CANDIDATE_OTHER;
		if (item_has_key(loan->item, key, key_size))
			return CANDIDATE_MATCH;
		counter_add(&thread->counters->flash_collisions, 1);
		flash_strip(thread->flash, loan);
		return CANDIDATE_OTHER;
	case FLASH_LOAN_BAD:
	case FLASH_LOAN_FAILED:
	case FLASH_LOAN_LATE:
		break;
	}
	counter_add(&thread->counters->flash_failed, 1);
	flash_strip(thread->flash, loan);
	return CANDIDATE_FAILED;
}

void
store_ahead(struct store_thread *thread, struct store_held *held, uint64_t entry)
{
	struct flash *flash = thread->store->flash;
	uint64_t position;

	if (!thread->flash || entry == 0 || !store_on_flash(thread->store, entry) ||
		!flash_alive(flash))
		return;
	position = flash_position(flash, bucket_entry_segment(entry), bucket_entry_offset(entry));
	thread->held = held;
	if (position)
		loan_for(thread, entry, position);
	thread->held = NULL;
}

void
store_flash_view(const struct store *store, struct store_view *view, uint64_t entry,
	_Atomic uint64_t *slot, uint64_t bucket, const struct flash_loan *loan)
{
	const struct item *item = loan->item;

	*view = (struct store_view){
		.item = item,
		.slot = slot,
		.entry = entry,
		.bucket = bucket,
		.segment = bucket_entry_segment(entry),
		.kinds = item_kinds(item),
		.flash = true,
		/* What was read since it was staged is known by its counter alone. */
		.soft = (uint16_t)(item->soft |
				   (bucket_entry_reads(entry) ? ITEM_SOFT_FETCHED : 0)),
		.opened_s = flash_opened_s(store->flash, bucket_entry_segment(entry)),
		.value_size = item_value_length(item),
	};
}

enum store_found
store_flash_judge(const struct store_thread *thread, const struct item *item, uint64_t position)
{
	if (position < flash_flush_position(thread->store->flash))
		return STORE_FLUSHED;
	return item_expired(item, thread->now_s) ? STORE_EXPIRED : STORE_PRESENT;
}

uint64_t
store_flash_origin(const struct store *store, const struct item *item)
{
	uint64_t position;

	if (!(item_kinds(item) & ITEM_FLASH))
		return 0;
	memcpy(&position, item_trailer_field(item_trailer(item), ITEM_FLASH), sizeof position);
	return flash_believed(store->flash, position) ? position : 0;
}

enum store_status
store_flash_kill(
	struct store_thread *thread, enum flash_record_kind kind, uint64_t what, uint64_t position)
{
	struct flash_intent unheld = {0};
	struct flash_intent *intent = thread->held ? &thread->held->intent : &unheld;

	switch (flash_invalidate(thread->store->flash, kind, what, position, intent)) {
	case FLASH_DURABLE:
		return STORE_DONE;
	case FLASH_NOT_YET:
		return STORE_WAIT;
	case FLASH_NEVER:
		break;
	}
	return STORE_REFUSED;
}

static uint64_t
position_of_loan(const struct store_thread *thread, const struct item *item)
{
	for (const struct flash_loan *loan = thread->held ? thread->held->loans : NULL; loan;
		loan = loan->next)
		if (loan->item == item)
			return loan->position;
	return 0;
}

void
store_intend(struct store_thread *thread, struct store_held *held, const uint8_t *key,
	uint32_t key_size, uint64_t hash)
{
	struct store *store = thread->store;
	struct store_view view;
	enum store_found found;
	uint64_t position = 0;

	if (held->intended || held->intent.ticket ||
		store->options.flash->journal != FLASH_JOURNAL_SYNC)
		return;
	if (!store_held_settled(thread, held))
		return;
	store_hold(thread, held);
	found = store_find(thread, key, key_size, hash, NULL, &view, NULL);
	if (found == STORE_PRESENT || found == STORE_EXPIRED)
		position = view.flash ? position_of_loan(thread, view.item)
				      : store_flash_origin(store, view.item);
	/*
	 * Without the bucket's lock: a copy that is made after this has a place above what the record
	 * covers, and the change asks for another.
	 */
	if (position)
		flash_invalidate(store->flash, FLASH_RECORD_KEY, hash, position, &held->intent);
	held->intended = found != STORE_PENDING && (!position || held->intent.ticket);
	store_hold(thread, NULL);
}

/* --- copies of items ---------------------------------------------------------------------- */

/* Bytes of an item as it stands on flash: whole, without a place there. */
static uint64_t
flash_item_bytes(const struct item *item)
{
	uint8_t kinds = item_kinds(item) & (uint8_t) ~(ITEM_FLASH | ITEM_LARGE);

	return ITEM_HEADER + item_key_size(item) + item_value_length(item) +
	       item_trailer_size(kinds, 0);
}

static uint32_t
flash_class(uint64_t item_bytes)
{
	return bucket_class_of(item_bytes + 4 /* the checksum */);
}

/*
 * The trailer of a copy with these kinds, from that of the item; 'place' where kinds has
 * ITEM_FLASH.
 */
static void
copy_trailer(uint8_t *to, const struct item *item, uint8_t kinds, uint64_t place)
{
	const uint8_t *from = item_trailer(item);

	if (!kinds)
		return;
	*to++ = kinds;
	if (kinds & ITEM_FLAGS) {
		memcpy(to, item_trailer_field(from, ITEM_FLAGS), 4);
		to += 4;
	}
	if (kinds & ITEM_CAS) {
		memcpy(to, item_trailer_field(from, ITEM_CAS), 8);
		to += 8;
	}
	if (kinds & ITEM_FLASH)
		memcpy(to, &place, 8);
}

/* The header of a copy; its soft time is told from another opening. */
static void
copy_header(struct item *to, const struct item *from, uint32_t value_size, bool trailer,
	uint32_t from_opened_s, uint32_t to_opened_s)
{
	uint16_t soft = __atomic_load_n(&from->soft, __ATOMIC_RELAXED);
	uint32_t at = from_opened_s + item_soft_seconds(soft);

	to->cas_low = from->cas_low;
	to->cas_high = from->cas_high;
	__atomic_store_n(&to->soft,
		(uint16_t)((soft & ~ITEM_SOFT_TIME) |
			   item_soft_time(at > to_opened_s ? at - to_opened_s : 0)),
		__ATOMIC_RELAXED);
	to->expiry = from->expiry;
	to->sizes = item_key_size(from) | value_size << 8 | (trailer ? 1u << 31 : 0);
}

/* Key and value, the latter from its segments where it is large. Gives the end. */
static uint8_t *
copy_body(const struct store *store, uint8_t *to, const struct item *item)
{
	uint64_t segment_bytes = 1ull << store->arena.segment_shift;
	uint64_t left = item_value_length(item);

	memcpy(to, item_key(item), item_key_size(item));
	to += item_key_size(item);
	if (!(item_kinds(item) & ITEM_LARGE)) {
		memcpy(to, item_value(item), left);
		return to + left;
	}
	for (uint32_t i = 0; left > 0; i++) {
		uint64_t here = left < segment_bytes ? left : segment_bytes;

		memcpy(to, memory_address(&store->arena, item_large_segment(item, i), 0), here);
		to += here;
		left -= here;
	}
	return to;
}

static void
copy_to_flash(const struct store *store, struct item *to, const struct item *item,
	uint32_t from_opened_s, uint32_t to_opened_s)
{
	uint8_t kinds = item_kinds(item) & (uint8_t) ~(ITEM_FLASH | ITEM_LARGE);

	copy_header(to, item, (uint32_t)item_value_length(item), kinds != 0, from_opened_s,
		to_opened_s);
	copy_trailer(copy_body(store, (uint8_t *)to + ITEM_HEADER, item), item, kinds, 0);
}

/* --- promoting ---------------------------------------------------------------------------- */

/* Under the lock: the copy in memory, which the index names from now on. */
static void
promote(struct store_thread *thread, struct index_locked *locked, _Atomic uint64_t *slot,
	const struct store_view *view, uint64_t position, uint32_t bytes)
{
	struct store *store = thread->store;
	/* Before it is judged: a flush in between makes the epochs differ. */
	uint32_t epoch = memory_epoch(store->memory);
	struct memory_place place;

	if (store_flash_judge(thread, view->item, position) != STORE_PRESENT ||
		memory_append(thread->memory, bytes, view->item->expiry, true, thread->now_s,
			&place) != MEMORY_OK)
		return;
	copy_header(place.item, view->item, (uint32_t)view->value_size, true, view->opened_s,
		place.opened_s);
	copy_trailer(copy_body(store, (uint8_t *)place.item + ITEM_HEADER, view->item), view->item,
		view->kinds | ITEM_FLASH, position);
	memory_append_done(thread->memory, &place);
	if (place.epoch != epoch) {
		memory_dead(store->memory, place.segment, bytes);
		return;
	}
	index_locked_replace(locked, slot,
		bucket_entry_make(place.segment, place.offset, bucket_class_of(bytes)), -1);
	store_account(thread, place.item, 1);
	counter_add(&thread->counters->flash_objects, -1ull);
	counter_add(&thread->counters->flash_promoted, 1);
}

void
store_flash_promote(struct store_thread *thread, const struct store_view *view)
{
	struct store *store = thread->store;
	uint64_t position = position_of_loan(thread, view->item), entry, bytes;
	uint32_t reads = bucket_entry_reads(atomic_load_explicit(view->slot, memory_order_relaxed));
	struct index_locked locked;
	_Atomic uint64_t *slot;

	counter_add(&thread->counters->flash_hits, 1);
	bytes = ITEM_HEADER + item_key_size(view->item) + view->value_size +
		item_trailer_size(view->kinds | ITEM_FLASH, 0);
	bytes = (bytes + ITEM_ALIGN - 1) & ~(uint64_t)(ITEM_ALIGN - 1);
	if (position == 0 || reads < PROMOTE_READS || bytes > memory_large_min(store->memory) ||
		!memory_worth(store->memory, reads, bytes))
		return;
	index_lock(store->index, store_hash(store, item_key(view->item), item_key_size(view->item)),
		thread->number, &locked);
	slot = store_slot_of_place(
		&locked, view->segment, bucket_entry_offset(view->entry), &entry);
	if (slot &&
		flash_position(store->flash, view->segment, bucket_entry_offset(entry)) == position)
		promote(thread, &locked, slot, view, position, (uint32_t)bytes);
	index_unlock(&locked);
}

/* --- staging ------------------------------------------------------------------------------ */

/* Reads say less about what has just left: one more and it is worth promoting again. */
static int
reads_on_flash(uint64_t entry)
{
	return (int)bucket_entry_reads(entry) / 2;
}

static void
entry_to_flash(struct store_thread *thread, struct index_locked *locked, _Atomic uint64_t *slot,
	uint64_t entry, const struct item *item, uint32_t segment, uint32_t offset)
{
	index_locked_replace(locked, slot,
		bucket_entry_make(segment, offset, flash_class(flash_item_bytes(item))),
		reads_on_flash(entry));
	store_account(thread, item, -1);
	counter_add(&thread->counters->flash_objects, 1);
}

/*
 * No room to be had. As long as the device takes what it is given, memory waits for it, and so do
 * those who want room in memory; from one that doesn't, nobody waits for long.
 */
static enum memory_dropped
wait_or_lose(struct store_thread *thread)
{
	struct store *store = thread->store;
	uint64_t progress = flash_progress(store->flash);
	uint64_t since = atomic_load_explicit(&store->flash_busy_ns, memory_order_relaxed);

	/* By whoever holds reclaim's token: one thread at a time. */
	if (since == 0 ||
		progress != atomic_load_explicit(&store->flash_progress, memory_order_relaxed)) {
		atomic_store_explicit(&store->flash_progress, progress, memory_order_relaxed);
		atomic_store_explicit(&store->flash_busy_ns, thread->now_ns, memory_order_relaxed);
		return MEMORY_BUSY;
	}
	/* Another thread's turn may have begun after this one's. */
	if (thread->now_ns < since + BUSY_PATIENCE_NS)
		return MEMORY_BUSY;
	counter_add(&thread->counters->flash_lost_busy, 1);
	return MEMORY_DROPPED;
}

static enum memory_dropped
stage_copy(struct store_thread *thread, struct index_locked *locked, _Atomic uint64_t *slot,
	uint64_t entry, const struct item *item)
{
	struct store *store = thread->store;
	uint32_t segment = bucket_entry_segment(entry);
	uint64_t bytes = flash_item_bytes(item);
	struct flash_place_in place;
	enum flash_status status = FLASH_REFUSED;

	if (item_value_length(item) <= ITEM_VALUE_MAX &&
		item_key_size(item) + item_value_length(item) >=
			store->options.flash_item_bytes_min)
		status = flash_admits(store->flash, (uint32_t)bytes, bucket_entry_reads(entry),
			store_random(thread));
	if (status == FLASH_DONE)
		status = flash_reserve(store->flash, (uint32_t)bytes, false, &place);
	if (status == FLASH_BUSY)
		return wait_or_lose(thread);
	atomic_store_explicit(&store->flash_busy_ns, 0, memory_order_relaxed);
	if (status == FLASH_REFUSED) {
		counter_add(&thread->counters->flash_refused, 1);
		return MEMORY_DROPPED;
	}
	/*
	 * A flush moves on the epoch with the log's mutex held: either it came before this
	 * reservation, then it shows here; or it comes after, and the place is below its position.
	 */
	if (memory_segment_epoch(store->memory, segment) != memory_epoch(store->memory)) {
		flash_abandon(store->flash, &place);
		return MEMORY_DROPPED;
	}
	copy_to_flash(store, place.item, item, memory_segment_opened_s(store->memory, segment),
		place.opened_s);
	flash_commit(store->flash, &place, locked->hash, flash_class(bytes), item->expiry);
	entry_to_flash(thread, locked, slot, entry, item, place.segment, place.offset);
	counter_add(&thread->counters->flash_staged, 1);
	return MEMORY_KEPT;
}

/* The item goes back to its copy at 'origin', without a write. */
static enum memory_dropped
flip(struct store_thread *thread, struct index_locked *locked, _Atomic uint64_t *slot,
	uint64_t entry, const struct item *item, uint64_t origin)
{
	struct flash *flash = thread->store->flash;
	uint32_t segment, offset;

	if (!flash_place(flash, origin, &segment, &offset)) {
		/* Its region is being given up: until that is durable the copy is there. */
		if (flash_alive(flash))
			return MEMORY_BUSY;
		return store_flash_kill(thread, FLASH_RECORD_KEY, locked->hash, origin) ==
				       STORE_DONE
			       ? MEMORY_DROPPED
			       : MEMORY_BUSY;
	}
	entry_to_flash(thread, locked, slot, entry, item, segment, offset);
	counter_add(&thread->counters->flash_flipped, 1);
	return MEMORY_KEPT;
}

enum memory_dropped
store_flash_stage(struct store_thread *thread, struct index_locked *locked, _Atomic uint64_t *slot,
	uint64_t entry, const struct item *item)
{
	struct flash *flash = thread->store->flash;
	uint64_t origin = store_flash_origin(thread->store, item);
	bool win = __atomic_load_n(&item->soft, __ATOMIC_RELAXED) & ITEM_SOFT_WIN;
	struct flash_intent unasked = {0};
	enum memory_dropped dropped;

	if (origin && (!win || !flash_alive(flash)))
		return flip(thread, locked, slot, entry, item, origin);
	/*
	 * The win was handed out since, and must not be again: a new copy. The old one's record goes
	 * first; nobody need wait for it, since the journal keeps its order.
	 */
	if (origin &&
		flash_invalidate(flash, FLASH_RECORD_KEY, locked->hash, origin, &unasked) !=
			FLASH_DURABLE &&
		unasked.ticket == 0)
		return MEMORY_BUSY;
	dropped =
		flash_alive(flash) ? stage_copy(thread, locked, slot, entry, item) : MEMORY_DROPPED;
	/* But who stores the key next must find what that record speaks of, to wait for it. */
	return origin && dropped == MEMORY_DROPPED ? flip(thread, locked, slot, entry, item, origin)
						   : dropped;
}

enum memory_dropped
store_flash_flushed(struct store_thread *thread, struct index_locked *locked,
	_Atomic uint64_t *slot, uint64_t entry, const struct item *item)
{
	uint64_t origin = store_flash_origin(thread->store, item);

	return origin ? flip(thread, locked, slot, entry, item, origin) : MEMORY_DROPPED;
}

/* --- what flash asks ---------------------------------------------------------------------- */

static int
flash_items_reads(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	const struct store *store = context;
	uint64_t place = bucket_entry_make(segment, offset, 0), entry;
	struct index_find find;

	index_find_begin(store->index, hash, &find);
	do {
		while ((entry = index_find_next(&find)))
			if (bucket_entry_same_place(entry, place))
				return (int)bucket_entry_reads(entry);
	} while (index_find_again(&find));
	return -1;
}

static bool
flash_items_move(void *context, const struct item *item, uint64_t hash, uint64_t position,
	uint32_t segment, uint32_t offset, uint32_t opened_s, unsigned reads)
{
	struct store *store = context;
	uint64_t bytes = flash_item_bytes(item), entry;
	struct flash_place_in place;
	struct index_locked locked;
	_Atomic uint64_t *slot;
	bool moved = false;

	if (item_expired(item, store_self()->now_s))
		return false;
	index_lock(store->index, hash, store_self()->number, &locked);
	slot = store_slot_of_place(&locked, segment, offset, &entry);
	if (slot && flash_reserve(store->flash, (uint32_t)bytes, true, &place) == FLASH_DONE) {
		/* As for staging: a flush has the log's mutex. */
		if (position < flash_flush_position(store->flash)) {
			flash_abandon(store->flash, &place);
			goto out;
		}
		copy_to_flash(store, place.item, item, opened_s, place.opened_s);
		flash_commit(store->flash, &place, hash, flash_class(bytes), item->expiry);
		index_locked_replace(&locked, slot,
			bucket_entry_make(place.segment, place.offset, flash_class(bytes)),
			(int)reads);
		moved = true;
	}
out:
	index_unlock(&locked);
	return moved;
}

static bool
flash_items_drop(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	struct store *store = context;
	struct store_thread *thread = store_self();
	struct index_locked locked;
	_Atomic uint64_t *slot;
	uint64_t entry;

	index_lock(store->index, hash, thread->number, &locked);
	slot = store_slot_of_place(&locked, segment, offset, &entry);
	if (slot) {
		index_locked_remove(&locked, slot);
		counter_add(&thread->counters->flash_objects, -1ull);
		counter_add(&thread->counters->flash_evicted, 1);
	}
	index_unlock(&locked);
	return slot != NULL;
}

static bool
entry_is_of_segment(void *context, uint64_t entry)
{
	return bucket_entry_segment(entry) == *(const uint32_t *)context;
}

static void
flash_items_purge(void *context, uint32_t segment)
{
	struct store *store = context;
	struct store_thread *thread = store_self();
	/* While flash is being opened nobody has a turn, and objects aren't counted yet. */
	bool opening = store->flash == NULL;
	uint64_t purged = index_purge(store->index,
		opening ? store->options.workers : thread->number, entry_is_of_segment, &segment);

	if (opening)
		return;
	counter_add(&thread->counters->flash_objects, -purged);
	counter_add(&thread->counters->flash_evicted, purged);
}

static void
flash_items_outside(void *context, uint64_t bytes)
{
	struct store *store = context;

	atomic_store_explicit(&store->flash_bytes, bytes, memory_order_relaxed);
	store_report_outside(store);
}

const struct flash_items store_flash_items = {
	.reads = flash_items_reads,
	.move = flash_items_move,
	.drop = flash_items_drop,
	.purge = flash_items_purge,
	.outside = flash_items_outside,
};

void
store_flash_forget(struct store_thread *thread, const struct item *item, uint64_t hash)
{
	uint64_t origin = store_flash_origin(thread->store, item);
	struct flash_intent unasked = {0};

	if (origin)
		flash_invalidate(thread->store->flash, FLASH_RECORD_KEY, hash, origin, &unasked);
}
