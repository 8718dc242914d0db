/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What memory and index ask of the items' owner, and the store's background work. All of it runs in
 * the turn of some thread.
 */
#include "store/internal.h"

#include "base/check.h"

/*
 * Splits in one background step, and in a worker's turn when growth is behind: each takes a few
 * microseconds.
 */
#define SPLITS_BACKGROUND 64
#define SPLITS_BEHIND 512 /* the background can't keep up: workers help */
#define SPLITS_TURN 64	  /* a turn of 256 inserts asks for 37 */
/* Overflow units taken out of chains for which the grower is woken: 8 KiB, one grace period. */
#define UNITS_RETIRED 256

static uint64_t
item_hash(const struct store *store, const struct item *item)
{
	return store_hash(store, item_key(item), item_key_size(item));
}

_Atomic uint64_t *
store_slot_of_place(struct index_locked *locked, uint32_t segment, uint32_t offset, uint64_t *entry)
{
	uint64_t place = bucket_entry_make(segment, offset, 0);
	_Atomic uint64_t *slot;

	while ((slot = index_locked_next(locked, entry)))
		if (bucket_entry_same_place(*entry, place))
			return slot;
	return NULL;
}

static int
items_reads(void *context, const struct item *item, uint32_t segment, uint32_t offset)
{
	const struct store *store = context;
	uint64_t place = bucket_entry_make(segment, offset, 0), entry;
	struct index_find find;

	index_find_begin(store->index, item_hash(store, item), &find);
	do {
		while ((entry = index_find_next(&find)))
			if (bucket_entry_same_place(entry, place))
				return (int)bucket_entry_reads(entry);
	} while (index_find_again(&find));
	return -1;
}

/* The soft word of a copy: the same access, told from the opening of its new segment. */
static uint16_t
soft_moved(const struct store *store, uint16_t soft, uint32_t from, uint32_t to)
{
	uint32_t at = memory_segment_opened_s(store->memory, from) + item_soft_seconds(soft);
	uint32_t opened = memory_segment_opened_s(store->memory, to);

	return (uint16_t)((soft & ~ITEM_SOFT_TIME) | item_soft_time(at > opened ? at - opened : 0));
}

static bool
items_move(void *context, const struct item *item, uint32_t segment, uint32_t offset,
	uint32_t to_segment, uint32_t to_offset, struct item *to, uint32_t epoch, unsigned reads)
{
	struct store *store = context;
	struct index_locked locked;
	_Atomic uint64_t *slot;
	uint64_t entry;
	bool moved = false;

	index_lock(store->index, item_hash(store, item), store_self()->number, &locked);
	slot = store_slot_of_place(&locked, segment, offset, &entry);
	if (slot && memory_segment_epoch(store->memory, segment) == epoch) {
		uint16_t soft = __atomic_load_n(&item->soft, __ATOMIC_RELAXED);

		__atomic_store_n(
			&to->soft, soft_moved(store, soft, segment, to_segment), __ATOMIC_RELAXED);
		index_locked_replace(&locked, slot,
			bucket_entry_make(to_segment, to_offset, bucket_entry_class(entry)),
			(int)reads);
		moved = true;
	}
	index_unlock(&locked);
	return moved;
}

/*
 * As memcached counts: an expired and a flushed item alike, whether reclaim takes it or a store of
 * its key.
 */
void
store_count_reclaimed(struct store_thread *thread, const struct item *item, uint32_t id)
{
	struct counters *counters = thread->counters;
	bool fetched = __atomic_load_n(&item->soft, __ATOMIC_RELAXED) & ITEM_SOFT_FETCHED;

	counter_add(&counters->reclaimed, 1);
	counter_add(&counters->classes[id].reclaimed, 1);
	counter_add(&counters->expired_unfetched, !fetched);
	counter_add(&counters->classes[id].expired_unfetched, !fetched);
}

static void
count_drop(struct store_thread *thread, const struct item *item, enum memory_reason reason)
{
	struct counters *counters = thread->counters;
	bool fetched = __atomic_load_n(&item->soft, __ATOMIC_RELAXED) & ITEM_SOFT_FETCHED;
	uint32_t id = store_account(thread, item, -1);

	switch (reason) {
	case MEMORY_EVICTED:
		counter_add(&counters->evictions, 1);
		counter_add(&counters->classes[id].evicted, 1);
		counter_add(&counters->classes[id].evicted_nonzero, item->expiry != 0);
		counter_add(fetched ? &counters->evicted_active : &counters->evicted_unfetched, 1);
		counter_add(&counters->classes[id].evicted_unfetched, !fetched);
		break;
	case MEMORY_EXPIRED:
	case MEMORY_FLUSHED:
		store_count_reclaimed(thread, item, id);
		break;
	}
}

/* Does the item go to flash? What stays of it in the index, stays there as it is. */
static enum memory_dropped
drop_locked(struct store_thread *thread, struct index_locked *locked, _Atomic uint64_t *slot,
	uint64_t entry, const struct item *item, enum memory_reason reason)
{
	enum memory_dropped dropped = MEMORY_DROPPED;

	if (thread->store->flash && reason == MEMORY_EVICTED)
		dropped = store_flash_stage(thread, locked, slot, entry, item);
	else if (thread->store->flash && reason == MEMORY_FLUSHED)
		dropped = store_flash_flushed(thread, locked, slot, entry, item);
	else if (thread->store->flash && reason == MEMORY_EXPIRED)
		store_flash_forget(thread, item, locked->hash);
	if (dropped != MEMORY_DROPPED)
		return dropped;
	count_drop(thread, item, reason);
	index_locked_remove(locked, slot);
	return MEMORY_DROPPED;
}

static enum memory_dropped
items_drop(void *context, const struct item *item, uint32_t segment, uint32_t offset,
	enum memory_reason reason)
{
	struct store *store = context;
	struct store_thread *thread = store_self();
	struct index_locked locked;
	_Atomic uint64_t *slot;
	enum memory_dropped dropped = MEMORY_GONE;
	uint64_t entry;

	index_lock(store->index, item_hash(store, item), thread->number, &locked);
	slot = store_slot_of_place(&locked, segment, offset, &entry);
	if (slot)
		dropped = drop_locked(thread, &locked, slot, entry, item, reason);
	index_unlock(&locked);
	return dropped;
}

static uint64_t
items_hash(void *context, const struct item *item)
{
	return item_hash(context, item);
}

static uint64_t
items_ahead(void *context, const struct item *item)
{
	const struct store *store = context;
	uint64_t hash = item_hash(store, item);

	index_prefetch(store->index, hash);
	return hash;
}

const struct memory_items store_memory_items = {
	.reads = items_reads,
	.move = items_move,
	.drop = items_drop,
	.hash = items_hash,
	.ahead = items_ahead,
};

/*
 * The key is at hand where the item is in DRAM: an entry keeps its segment from being used again.
 */
static bool
keys_hash(void *context, uint64_t entry, uint64_t *hash)
{
	const struct store *store = context;

	if (bucket_entry_segment(entry) >= store->arena.segments_max)
		return false;
	*hash = item_hash(store, store_item(store, entry));
	return true;
}

static void
keys_prefetch(void *context, uint64_t entry)
{
	if (!store_on_flash(context, entry))
		__builtin_prefetch(store_item(context, entry));
}

const struct index_keys store_index_keys = {.hash = keys_hash, .prefetch = keys_prefetch};

void
store_report_outside(struct store *store)
{
	uint64_t flash_bytes = atomic_load_explicit(&store->flash_bytes, memory_order_relaxed);
	uint64_t bytes;

	/* Several report: who read less may come later, but then sees here what it missed. */
	do {
		bytes = index_bytes(store->index);
		memory_set_outside(store->memory, bytes + flash_bytes);
	} while (index_bytes(store->index) != bytes);
}

/* Where keys come and go, the index grows by the units that nobody makes usable again. */
static bool
units_wait(const struct store *store)
{
	return index_units_retired(store->index) >= UNITS_RETIRED;
}

void
store_turn_end(struct store_thread *thread)
{
	struct store *store = thread->store;

	memory_turn_end(thread->memory, thread->now_s);
	if (thread->flash)
		flash_push(thread->flash);

	uint64_t lack = store->options.growth ? index_growth_lack(store->index) : 0;

	if (lack == 0 && !units_wait(store))
		return;
	if (!atomic_exchange_explicit(&store->grow_awake, true, memory_order_acq_rel))
		store->options.wake(store->options.wake_context);
	if (lack > SPLITS_BEHIND)
		index_grow(store->index, SPLITS_TURN, thread->number);
	store_report_outside(store);
}

bool
store_background_reclaim(struct store_thread *thread, uint64_t unix_ns, uint32_t *next_s)
{
	store_turn_begin(thread, unix_ns);
	store_report_outside(thread->store);
	return memory_reclaim(thread->memory, thread->now_s, next_s);
}

bool
store_background_grow(struct store_thread *thread)
{
	struct store *store = thread->store;
	bool more;

	if (store->options.growth)
		index_touch_ahead(store->index);
	more = store->options.growth && index_grow(store->index, SPLITS_BACKGROUND, thread->number);
	index_reclaim_units(store->index);
	store_report_outside(store);
	if (more)
		return true;
	/* Asleep now; whoever finds the table or units wanting after this wakes us again. */
	atomic_store_explicit(&store->grow_awake, false, memory_order_release);
	return ((store->options.growth && index_wants_growth(store->index)) || units_wait(store)) &&
	       !atomic_exchange_explicit(&store->grow_awake, true, memory_order_acq_rel);
}
