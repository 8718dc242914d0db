/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes. A change of one key happens under its bucket's lock from first look to last store: find,
 * decide, append, publish. What is appended is whole before the index names it. Lock order: a
 * bucket, then memory's own.
 */
#include "store/internal.h"

#include "base/check.h"

#include <string.h>

/* items of this many bytes are worth loading lines ahead for, so many at most */
#define LOAD_AHEAD_MIN 512
#define LOAD_AHEAD_MAX 2048

/* What a change works with, between the look and the publication. */
struct change {
	struct store_thread *thread;
	const uint8_t *key;
	uint32_t key_size;
	struct index_locked locked;
	_Atomic uint64_t *slot; /* of the present item, whatever its standing; NULL without one */
	struct store_view view;
	enum store_found found;
	struct store_draft *draft;
	uint8_t kinds;
	uint64_t cas;
	/* Its copy on flash: what it is, or what it was made from; 0: none. */
	uint64_t position;
	uint32_t epoch;	 /* of the present item: DRAM's, or when flash's was judged */
	bool pending;	 /* an item that may be the key's is on its way */
	uint64_t failed; /* an entry that may be the key's, and can't be read; 0: none */
	_Atomic uint64_t *failed_slot;
};

static uint64_t
next_cas(struct store_thread *thread)
{
	struct store *store = thread->store;

	if (!store->options.cas)
		return 0;
	if (thread->cas_next == thread->cas_end) {
		thread->cas_next = atomic_fetch_add_explicit(
			&store->cas_next, CAS_BLOCK, memory_order_relaxed);
		thread->cas_end = thread->cas_next + CAS_BLOCK;
		/* Half of 2^30 ahead of need: nobody has to wait for it. */
		if (store->flash)
			flash_cas_reserve(store->flash, thread->cas_end);
	}
	return thread->cas_next++;
}

/*
 * A key's numbers rise, whichever worker gives them ('ms I' tells older from newer by it): if the
 * present one came from a later block than ours, ours is given up for a new one. Numbers beyond all
 * blocks were set by clients and don't count.
 */
static void
newer_than_present(const struct change *change)
{
	struct store_thread *thread = change->thread;
	uint64_t present = change->slot ? item_cas(change->view.item) : 0;

	if (present >= thread->cas_next &&
		present < atomic_load_explicit(&thread->store->cas_next, memory_order_relaxed))
		thread->cas_next = thread->cas_end;
}

/* The present item is what this entry leads to. */
static void
take_present(struct change *change, _Atomic uint64_t *slot, uint64_t entry)
{
	struct store_view *view = &change->view;

	const struct store *store = change->thread->store;

	change->slot = slot;
	store_view_fill(store, view, entry, slot, change->locked.number);
	change->found = store_judge(change->thread, view->item, view->segment);
	change->epoch = atomic_load_explicit(
		&store->arena.faces[view->segment].epoch, memory_order_relaxed);
	if (view->kinds & ITEM_FLASH)
		change->position = store_flash_origin(store, view->item);
}

/* The present item is in this loan. */
static void
take_from_flash(struct change *change, _Atomic uint64_t *slot, uint64_t entry,
	const struct flash_loan *loan)
{
	const struct store *store = change->thread->store;

	change->slot = slot;
	change->position = loan->position;
	/* Before it is judged: a flush in between is seen by the new item's epoch, or by the judge. */
	change->epoch = memory_epoch(store->memory);
	store_flash_view(store, &change->view, entry, slot, change->locked.number, loan);
	change->found = store_flash_judge(change->thread, change->view.item, loan->position);
}

static void
look_at_nothing(struct change *change)
{
	change->slot = NULL;
	change->found = STORE_ABSENT;
	change->position = change->failed = 0;
	change->pending = false;
}

static void
find_locked(struct change *change)
{
	struct store_thread *thread = change->thread;
	const struct store *store = thread->store;
	struct flash_loan *loan;
	_Atomic uint64_t *slot;
	uint64_t entry;

	look_at_nothing(change);
	while ((slot = index_locked_next(&change->locked, &entry))) {
		if (!store_on_flash(store, entry)) {
			if (!item_has_key(store_item(store, entry), change->key, change->key_size))
				continue;
			take_present(change, slot, entry);
			break;
		}
		switch (store_flash_candidate(
			thread, entry, change->key, change->key_size, &loan)) {
		case CANDIDATE_MATCH:
			take_from_flash(change, slot, entry, loan);
			break;
		case CANDIDATE_PENDING:
			change->pending = true;
			break;
		case CANDIDATE_FAILED:
			change->failed = entry;
			change->failed_slot = slot;
			break;
		case CANDIDATE_OTHER:
			break;
		}
		if (change->slot)
			break;
	}
	if (change->slot) {
		change->pending = false;
		change->failed = 0;
	}
}

/* Locks the key's bucket and looks: by the hint alone where the bucket is as it was then. */
static void
lock_and_look(struct change *change, uint64_t hash, const struct store_hint *hint)
{
	struct store_thread *thread = change->thread;
	struct index *index = thread->store->index;

	if (!hint) {
		index_lock(index, hash, thread->number, &change->locked);
		find_locked(change);
	} else if (!index_lock_found(index, hash, thread->number, hint->number, hint->version,
			   &change->locked)) {
		find_locked(change);
	} else {
		look_at_nothing(change);
		if (hint->entry)
			take_present(change, hint->slot,
				atomic_load_explicit(hint->slot, memory_order_relaxed));
	}
}

static void
look_again(struct change *change)
{
	index_locked_rewind(&change->locked);
	find_locked(change);
}

/*
 * What stands on flash under the key's tag must be known before anything is decided: whether it is
 * the key's. What can't be read is taken for it, and dies: by its place, because the key behind it
 * isn't known. STORE_DONE: the change can go on.
 */
static __attribute__((noinline)) enum store_status
settle_flash(struct change *change)
{
	struct store_thread *thread = change->thread;

	while (change->failed && !change->pending) {
		uint64_t position = flash_position(thread->store->flash,
			bucket_entry_segment(change->failed), bucket_entry_offset(change->failed));
		enum store_status status =
			position ? store_flash_kill(thread, FLASH_RECORD_PLACE, position, position)
				 : STORE_DONE;

		if (status != STORE_DONE)
			return status;
		index_locked_remove(&change->locked, change->failed_slot);
		counter_add(&thread->counters->flash_objects, -1ull);
		counter_add(&thread->counters->flash_unreadable, 1);
		look_again(change);
	}
	return change->pending ? STORE_WAIT : STORE_DONE;
}

static inline enum store_status
settle_look(struct change *change)
{
	return __builtin_expect(change->failed || change->pending, 0) ? settle_flash(change)
								      : STORE_DONE;
}

/* The present item's copy on flash, if it has one, must be dead for ever before it is superseded. */
static inline enum store_status
kill_copy(struct change *change)
{
	return __builtin_expect(change->position != 0, 0)
		       ? store_flash_kill(change->thread, FLASH_RECORD_KEY, change->locked.hash,
				 change->position)
		       : STORE_DONE;
}

uint32_t
store_large_list(struct store_thread *thread, const struct item *item)
{
	uint32_t count = item_large_count(item);

	check(count <= thread->store->pieces_max);
	for (uint32_t i = 0; i < count; i++)
		thread->segments[i] = item_large_segment(item, i);
	return count;
}

/* --- accounting --------------------------------------------------------------------------- */

/* memcached's bytes for an item with this value. */
static uint64_t
peer_bytes(const struct change *change, uint64_t value_size, uint8_t kinds)
{
	return classes_item_bytes(change->key_size, value_size, kinds & ITEM_FLAGS,
		change->thread->store->options.cas);
}

/* Counts items that come (1) or go (-1) in the statistics by size class; gives the class. */
static uint32_t
count_items(struct store_thread *thread, uint64_t bytes, int sign)
{
	uint32_t id = classes_find(&thread->store->classes, bytes);

	counter_add(&thread->counters->classes[id].number, (uint64_t)(int64_t)sign);
	counter_add(&thread->counters->classes[id].bytes, sign > 0 ? bytes : -bytes);
	return id;
}

/*
 * The present item is no longer named by the index: its bytes are dead, and its body's segments
 * free unless kept. 'bytes' are memcached's.
 */
static void
bury(struct change *change, uint64_t bytes, bool keep_body)
{
	struct store_thread *thread = change->thread;
	struct memory *memory = thread->store->memory;
	const struct item *item = change->view.item;

	if (change->view.flash) {
		counter_add(&thread->counters->flash_objects, -1ull);
		return;
	}
	if (change->found != STORE_PRESENT)
		store_count_reclaimed(thread, item, classes_find(&thread->store->classes, bytes));
	memory_dead(memory, change->view.segment, item_size(item));
	if ((change->view.kinds & ITEM_LARGE) && !keep_body)
		memory_body_release(memory, thread->segments, store_large_list(thread, item), true);
}

static void
count_and_bury_removed(struct change *change)
{
	uint64_t bytes = peer_bytes(change, change->view.value_size, change->view.kinds);

	if (!change->view.flash)
		count_items(change->thread, bytes, -1);
	bury(change, bytes, false);
}

/* The new item is published; the present one, where there is one, is buried. */
static void
count_and_bury_replaced(struct change *change)
{
	struct store_thread *thread = change->thread;
	uint64_t bytes = peer_bytes(change, change->draft->value_size, change->kinds);

	if (!change->slot || change->view.flash) {
		count_items(thread, bytes, 1);
		if (change->slot)
			bury(change, bytes, false);
		return;
	}
	uint64_t before = peer_bytes(change, change->view.value_size, change->view.kinds);

	if (before != bytes) {
		count_items(thread, before, -1);
		count_items(thread, bytes, 1);
	}
	bury(change, before, change->draft->keep_body);
}

/* --- composing an item -------------------------------------------------------------------- */

/*
 * The soft word of the new item: the access is now, or as the present item's where it is carried
 * over.
 */
static uint16_t
first_soft(const struct change *change, uint32_t opened_s)
{
	const struct store_draft *draft = change->draft;
	uint32_t at = change->thread->now_s;
	uint16_t bits = draft->win_sent ? ITEM_SOFT_WIN : 0;

	if (draft->keep_access) {
		bits |= change->view.soft & ~ITEM_SOFT_TIME;
		if (!draft->access_now)
			at = change->view.opened_s + item_soft_seconds(change->view.soft);
	}
	if (draft->access_now)
		bits |= ITEM_SOFT_FETCHED;
	return (uint16_t)(bits | item_soft_time(at > opened_s ? at - opened_s : 0));
}

static void
write_trailer(uint8_t *to, const struct change *change, const uint32_t *segments, uint32_t count)
{
	const struct store_draft *draft = change->draft;

	*to++ = change->kinds;
	if (change->kinds & ITEM_FLAGS) {
		memcpy(to, &draft->client_flags, 4);
		to += 4;
	}
	if (change->kinds & ITEM_CAS) {
		memcpy(to, &change->cas, 8);
		to += 8;
	}
	if (change->kinds & ITEM_LARGE) {
		memcpy(to, &draft->value_size, 8);
		memcpy(to + 8, &count, 4);
		memcpy(to + 12, segments, (size_t)count * 4);
	}
}

/*
 * Starts loading the lines behind an item, where the next one of its kind will be written: copying
 * a value of 1 KiB would wait for them. Small items come with what the processor loads by itself.
 */
static void
load_ahead(const struct memory_place *place, uint32_t bytes)
{
	const uint8_t *next = (const uint8_t *)place->item + bytes;
	uint32_t ahead = bytes < LOAD_AHEAD_MAX ? bytes : LOAD_AHEAD_MAX;

	if (bytes < LOAD_AHEAD_MIN)
		return;
	for (uint32_t at = 0; at < ahead; at += 64)
		__builtin_prefetch(next + at + 63, 1);
}

/* Writes the item at its place: header, key, value pieces, trailer. Nobody else can see it yet. */
static void
write_item(const struct change *change, const struct memory_place *place, const uint32_t *segments,
	uint32_t count)
{
	const struct store_draft *draft = change->draft;
	bool large = change->kinds & ITEM_LARGE;
	struct item *item = place->item;
	uint8_t *to = (uint8_t *)item + ITEM_HEADER;

	item->cas_low = (uint32_t)change->cas;
	item->cas_high = (uint16_t)(change->cas >> 32);
	__atomic_store_n(&item->soft, first_soft(change, place->opened_s), __ATOMIC_RELAXED);
	item->expiry = draft->expiry_s;
	item->sizes = change->key_size | (large ? 0 : (uint32_t)draft->value_size << 8) |
		      (change->kinds ? 1u << 31 : 0);
	memcpy(to, change->key, change->key_size);
	to += change->key_size;
	if (!large)
		for (uint32_t i = 0; i < draft->piece_count; i++) {
			memcpy(to, draft->pieces[i].data, draft->pieces[i].size);
			to += draft->pieces[i].size;
		}
	if (change->kinds)
		write_trailer(to, change, segments, count);
}

/*
 * Copies a value that is large, but came in other pieces, into dedicated segments, named in
 * thread->segments.
 */
static enum memory_status
copy_to_body(struct change *change, uint32_t *count)
{
	struct store_thread *thread = change->thread;
	const struct store *store = thread->store;
	uint64_t segment_bytes = 1ull << store->arena.segment_shift, used = segment_bytes;
	uint8_t *to = NULL;

	*count = 0;
	for (uint32_t i = 0; i < change->draft->piece_count; i++) {
		struct slice piece = change->draft->pieces[i];

		while (piece.size > 0) {
			size_t here;

			if (used == segment_bytes) {
				enum memory_status status = memory_body_borrow_copy(
					thread->memory, thread->now_s, &thread->segments[*count]);

				if (status != MEMORY_OK) {
					memory_body_release(
						store->memory, thread->segments, *count, false);
					return status;
				}
				to = memory_address(&store->arena, thread->segments[(*count)++], 0);
				used = 0;
			}
			here = piece.size < segment_bytes - used ? piece.size
								 : segment_bytes - used;
			memcpy(to + used, piece.data, here);
			used += here;
			piece.data += here;
			piece.size -= here;
		}
	}
	return MEMORY_OK;
}

/* --- replacing ---------------------------------------------------------------------------- */

/*
 * Settles what the draft leaves open: CAS number, kinds, and the value where the present one is
 * kept.
 */
static void
settle(struct change *change, struct slice *kept)
{
	struct store_draft *draft = change->draft;

	if (draft->keep_body) {
		draft->value_size = change->view.value_size;
		if (!(change->view.kinds & ITEM_LARGE)) {
			*kept = slice_make(item_value(change->view.item), draft->value_size);
			draft->pieces = kept;
			draft->piece_count = draft->value_size > 0;
		}
	}
	change->kinds =
		(uint8_t)((draft->client_flags ? ITEM_FLAGS : 0) | (draft->stale ? ITEM_STALE : 0) |
			  (draft->key_binary ? ITEM_KEY_BINARY : 0));
	switch (draft->cas_policy) {
	case STORE_CAS_NEW:
		newer_than_present(change);
		change->cas = next_cas(change->thread);
		change->kinds |= change->cas > ITEM_CAS_MAX ? ITEM_CAS : 0;
		break;
	case STORE_CAS_KEEP:
		change->cas = item_cas(change->view.item);
		change->kinds |= change->view.kinds & ITEM_CAS;
		break;
	case STORE_CAS_GIVEN:
		change->cas = change->thread->store->options.cas ? draft->cas : 0;
		change->kinds |= ITEM_CAS;
		break;
	}
}

static uint32_t
bytes_needed(const struct change *change, uint64_t value_size, uint32_t segments)
{
	uint64_t size = ITEM_HEADER + change->key_size + value_size +
			item_trailer_size(change->kinds, segments);

	return (uint32_t)((size + ITEM_ALIGN - 1) & ~(uint64_t)(ITEM_ALIGN - 1));
}

/*
 * Whether the value stands in dedicated segments, and which: thread->segments, *count of them;
 * *borrowed of them are new ones.
 */
static enum memory_status
settle_body(struct change *change, uint32_t *count, uint32_t *borrowed)
{
	struct store_thread *thread = change->thread;
	struct store_draft *draft = change->draft;

	*count = 0;
	*borrowed = 0;
	if (draft->body) {
		check(draft->body_count <= thread->store->pieces_max);
		memcpy(thread->segments, draft->body, draft->body_count * sizeof *thread->segments);
		*count = draft->body_count;
	} else if (draft->keep_body && (change->view.kinds & ITEM_LARGE)) {
		*count = store_large_list(thread, change->view.item);
	} else if (draft->value_size > ITEM_VALUE_MAX ||
		   bytes_needed(change, draft->value_size, 0) >
			   memory_large_min(thread->store->memory)) {
		enum memory_status status = copy_to_body(change, count);

		if (status != MEMORY_OK)
			return status;
		*borrowed = *count;
	} else {
		return MEMORY_OK;
	}
	change->kinds |= ITEM_LARGE;
	return MEMORY_OK;
}

/* Names the new item in the index. False when the index can take no more. */
static bool
publish(struct change *change, const struct memory_place *place, uint32_t bytes)
{
	uint64_t entry = bucket_entry_make(place->segment, place->offset, bucket_class_of(bytes));

	if (change->slot) {
		uint32_t reads = bucket_entry_reads(
			atomic_load_explicit(change->slot, memory_order_relaxed));

		/* An update that is a read as well counts as one. */
		if (change->draft->access_now)
			reads = index_reads_more(reads, store_random(change->thread));
		index_locked_replace(&change->locked, change->slot, entry, (int)reads);
		return true;
	}
	return index_locked_insert(&change->locked, entry, 0);
}

/*
 * What replace() says, beside enum store_status: the present item was flushed between the look and
 * the append; look again.
 */
#define STORE_AGAIN 100

static int
refuse(struct change *change, enum memory_status status, uint32_t borrowed)
{
	if (borrowed)
		memory_body_release(
			change->thread->store->memory, change->thread->segments, borrowed, false);
	return status == MEMORY_WAIT ? STORE_WAIT : STORE_NO_MEMORY;
}

/*
 * Room for the new item, of 'bytes' and 'count' segments of its own: where the present one lives,
 * or the ghost says.
 */
static inline enum memory_status
append(struct change *change, uint32_t bytes, uint32_t count, struct memory_place *place)
{
	struct store_thread *thread = change->thread;
	struct memory *memory = thread->store->memory;
	uint64_t body_bytes = (uint64_t)count << thread->store->arena.segment_shift;
	bool main = change->slot && !change->view.flash
			    ? change->view.main
			    : memory_ghost_take(memory, change->locked.hash, bytes + body_bytes);
	enum memory_status status = memory_append(
		thread->memory, bytes, change->draft->expiry_s, main, thread->now_s, place);

	if (status != MEMORY_OK && main && (!change->slot || change->view.flash))
		memory_ghost_put(memory, change->locked.hash);
	return status;
}

static int
replace(struct change *change)
{
	struct store_thread *thread = change->thread;
	struct memory *memory = thread->store->memory;
	struct memory_place place;
	struct slice kept;
	enum memory_status status;
	uint32_t bytes, count, borrowed;

	settle(change, &kept);
	status = settle_body(change, &count, &borrowed);
	if (status != MEMORY_OK)
		return refuse(change, status, 0);
	bytes = bytes_needed(change, count ? 0 : change->draft->value_size, count);
	status = append(change, bytes, count, &place);
	if (status != MEMORY_OK)
		return refuse(change, status, borrowed);
	write_item(change, &place, thread->segments, count);
	memory_append_done(thread->memory, &place);
	load_ahead(&place, bytes);
	/*
	 * What the draft took from the present item (its value, or just that it was there) must not
	 * outlive a flush_all that came between: the successor would stand in a segment of the new
	 * epoch.
	 */
	if (change->found == STORE_PRESENT && place.epoch != change->epoch) {
		memory_dead(memory, place.segment, bytes);
		refuse(change, MEMORY_OK, borrowed);
		return STORE_AGAIN;
	}
	if (!publish(change, &place, bytes)) {
		memory_dead(memory, place.segment, bytes);
		return refuse(change, MEMORY_FULL, borrowed);
	}
	if (borrowed || change->draft->body)
		memory_body_publish(memory, thread->segments, count);
	count_and_bury_replaced(change);
	return STORE_DONE;
}

enum store_status
store_change(struct store_thread *thread, const uint8_t *key, uint32_t key_size, uint64_t hash,
	const struct store_update *update, uint64_t *cas)
{
	struct store_draft draft;
	struct change change;
	enum store_action action;
	int status;

	*cas = 0;
	change.thread = thread;
	change.key = key;
	change.key_size = key_size;
	change.draft = &draft;
	lock_and_look(&change, hash, update->hint);
	for (;;) {
		action = STORE_KEEP;
		status = settle_look(&change);
		if (status != STORE_DONE)
			break;
		memset(&draft, 0, sizeof draft);
		action = update->decide(update->context,
			change.found == STORE_PRESENT ? &change.view : NULL, change.found, &draft);
		if (action != STORE_KEEP)
			status = kill_copy(&change);
		if (status != STORE_DONE)
			break;
		if (action == STORE_REPLACE) {
			status = replace(&change);
		} else if (action == STORE_REMOVE && change.slot) {
			index_locked_remove(&change.locked, change.slot);
			count_and_bury_removed(&change);
		}
		if (status != STORE_AGAIN)
			break;
		look_again(&change);
	}
	index_unlock(&change.locked);
	if (action == STORE_REPLACE && status == STORE_DONE)
		*cas = change.cas;
	return (enum store_status)status;
}

enum store_status
store_set(struct store_thread *thread, const uint8_t *key, uint32_t key_size, uint64_t hash,
	const struct store_hint *hint, struct store_draft *draft, uint64_t *cas)
{
	struct change change;
	int status;

	change.thread = thread;
	change.key = key;
	change.key_size = key_size;
	change.draft = draft;
	lock_and_look(&change, hash, hint);
	for (;;) {
		status = settle_look(&change);
		if (status == STORE_DONE)
			status = kill_copy(&change);
		if (status == STORE_DONE)
			status = replace(&change);
		if (status != STORE_AGAIN)
			break;
		look_again(&change);
	}
	index_unlock(&change.locked);
	*cas = status == STORE_DONE ? change.cas : 0;
	return (enum store_status)status;
}

bool
store_take_win(struct store_thread *thread, const struct store_view *view, uint64_t hash)
{
	struct item *item = (struct item *)view->item;
	struct index_locked locked;
	_Atomic uint64_t *slot;
	uint64_t entry;
	bool won = false;

	if (view->flash)
		return false;

	index_lock(thread->store->index, hash, thread->number, &locked);
	while ((slot = index_locked_next(&locked, &entry)))
		if (bucket_entry_same_place(entry, view->entry))
			break;
	if (slot) {
		uint16_t soft = __atomic_load_n(&item->soft, __ATOMIC_RELAXED);

		/*
		 * Readers may change time and fetched meanwhile: try again then. Only lock holders
		 * set the win.
		 */
		while (!(soft & ITEM_SOFT_WIN) && !won)
			won = __atomic_compare_exchange_n(&item->soft, &soft,
				(uint16_t)(soft | ITEM_SOFT_WIN), 0, __ATOMIC_RELAXED,
				__ATOMIC_RELAXED);
	}
	index_unlock(&locked);
	return won;
}

void
store_expect(const struct store *store, uint64_t hash)
{
	memory_ghost_prefetch(store->memory, hash);
}
