/* SPDX-License-Identifier: BSD-2-Clause */
/* Flash at its two ends: what is taken up at the start, what is saved at a clean stop. */
#include "store/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define EVACUATE_WAIT_MS 1

/* --- opening ------------------------------------------------------------------------------ */

/* Growth that recovery would ask for is done at once: the index is empty as yet. */
static bool
recovered_expect(void *context, uint64_t items)
{
	struct store *store = context;
	uint64_t buckets = items / (uint64_t)INDEX_LOAD + 1;
	uint64_t most = store->options.limit_bytes / 2 / sizeof(struct bucket);
	struct index_stats stats;

	index_get_stats(store->index, &stats);
	if (buckets > most)
		buckets = most;
	if (buckets <= stats.buckets)
		return true;
	/* The index rounds up to a power of two, which may be too much by nearly half. */
	while (buckets & (buckets - 1))
		buckets &= buckets - 1;
	if (buckets <= stats.buckets)
		return true;

	struct index *larger = store_make_index(store, buckets);

	if (!larger)
		return false;
	index_destroy(store->index);
	store->index = larger;
	return true;
}

static bool
recovered_item(void *context, uint64_t hash, uint32_t segment, uint32_t offset, uint32_t size_class,
	struct flash_named *replaced)
{
	struct store *store = context;
	unsigned writer = store->options.workers;
	uint64_t new = bucket_entry_make(segment, offset, size_class), entry;
	struct index_locked locked;
	_Atomic uint64_t *slot;
	bool fine = true;

	*replaced = (struct flash_named){0, 0};
	index_lock(store->index, hash, writer, &locked);
	slot = index_locked_next(&locked, &entry);
	if (slot) {
		*replaced = (struct flash_named){
			bucket_entry_segment(entry), bucket_entry_offset(entry)};
		index_locked_replace(&locked, slot, new, 0);
	} else {
		fine = index_locked_insert(&locked, new, 0);
	}
	index_unlock(&locked);
	if (store->options.growth && index_wants_growth(store->index))
		index_grow(store->index, 8, writer);
	return fine;
}

static void
recovered_prefetch(void *context, uint64_t hash)
{
	struct store *store = context;

	index_prefetch(store->index, hash);
}

static uint32_t
recovered_load(void *context, const void *geometry, struct flash_part *parts)
{
	struct store *store = context;
	struct index_image image;
	struct index *fresh;

	memcpy(&image, geometry, sizeof image);
	if (image.buckets * sizeof(struct bucket) > store->options.limit_bytes ||
		image.bits_initial >= 40)
		return 0;
	fresh = store_make_index(store, 1ull << image.bits_initial);
	if (!fresh)
		return 0;
	struct index_part memory[INDEX_PARTS];
	uint32_t count = index_image_begin(fresh, &image, memory);

	for (uint32_t i = 0; i < count; i++)
		parts[i] = (struct flash_part){memory[i].data, memory[i].bytes};
	if (count == 0) {
		index_destroy(fresh);
		return 0;
	}
	index_destroy(store->index);
	store->index = fresh;
	return count;
}

static bool
recovered_loaded(void *context, const void *geometry, bool whole)
{
	struct store *store = context;
	struct index_image image;

	memcpy(&image, geometry, sizeof image);
	if (whole && index_image_end(store->index, &image))
		return true;
	index_destroy(store->index);
	store->index = store_make_index(store, store_choose_buckets(store));
	return store->index != NULL;
}

static void
recovered_progress(void *context, const char *what, uint64_t done, uint64_t total)
{
	struct store *store = context;

	if (store->options.progress)
		store->options.progress(store->options.progress_context, what, done, total);
}

static const struct flash_recovered flash_recovered = {
	.expect = recovered_expect,
	.item = recovered_item,
	.prefetch = recovered_prefetch,
	.load = recovered_load,
	.loaded = recovered_loaded,
	.progress = recovered_progress,
};

/* Longest item that memory could hand over: header, key, value, trailer. */
static uint32_t
item_bytes_max(const struct store *store)
{
	uint64_t value = store->options.value_bytes_max;

	value = value < ITEM_VALUE_MAX ? value : ITEM_VALUE_MAX;
	return (uint32_t)(ITEM_HEADER + 255 + value + item_trailer_size(ITEM_FLAGS | ITEM_CAS, 0));
}

bool
store_flash_open(struct store *store)
{
	struct flash_options options = *store->options.flash;
	struct flash_stats stats;
	struct index_stats found;

	options.memory_bytes = store->options.limit_bytes;
	options.item_bytes_max = item_bytes_max(store);
	options.threads = store->options.workers;
	options.items = &store_flash_items;
	options.items_context = store;
	options.recovered = &flash_recovered;
	options.wake = store->options.wake;
	options.wake_context = store->options.wake_context;
	store->flash = flash_create(&options, store->options.error, store->options.error_size);
	if (!store->flash)
		return false;
	flash_get_stats(store->flash, &stats);
	if (store->arena.segments_max > flash_segment((uint32_t)stats.regions - 1)) {
		snprintf(store->options.error, store->options.error_size,
			"memory and flash have too many segments together");
		errno = EINVAL;
		return false;
	}
	store->seed = flash_hash_seed(store->flash);
	atomic_store(&store->cas_next, flash_cas_first(store->flash));
	atomic_store(&store->flush_at_ns, flash_flush_due_ns(store->flash));
	index_get_stats(store->index, &found);
	store->flash_objects_found = found.entries;
	return true;
}

struct flash *
store_flash(struct store *store)
{
	return store->flash;
}

/* --- background and stop ------------------------------------------------------------------ */

bool
store_background_flash(struct store_thread *thread, uint64_t unix_ns)
{
	store_turn_begin(thread, unix_ns);
	return flash_work(thread->store->flash, unix_ns);
}

void
store_flash_wait(struct store *store, int timeout_ms)
{
	flash_wait(store->flash, timeout_ms);
}

void
store_flash_wake(struct store *store)
{
	flash_wake(store->flash);
}

/* Everything out of memory, by one thread alone. */
struct evacuation {
	struct store_thread *thread;
	uint64_t (*now_ns)(void);
	uint64_t deadline_ns;
	bool late;
	uint64_t left; /* items that were dropped */
};

static void
evacuate_item(void *context, const struct item *item, uint32_t segment, uint32_t offset)
{
	struct evacuation *evacuation = context;
	struct store_thread *thread = evacuation->thread;
	struct store *store = thread->store;
	enum memory_dropped dropped;

	for (;;) {
		enum store_found found = store_judge(thread, item, segment);
		enum memory_reason reason = found == STORE_PRESENT   ? MEMORY_EVICTED
					    : found == STORE_EXPIRED ? MEMORY_EXPIRED
								     : MEMORY_FLUSHED;

		atomic_store_explicit(&store->flash_busy_ns, 0, memory_order_relaxed);
		dropped = store_memory_items.drop(store, item, segment, offset, reason);
		if (dropped != MEMORY_BUSY || evacuation->late)
			break;
		store_turn_begin(thread, evacuation->now_ns());
		evacuation->late = thread->now_ns >= evacuation->deadline_ns;
		if (!flash_work(store->flash, thread->now_ns))
			flash_wait(store->flash, EVACUATE_WAIT_MS);
	}
	evacuation->left += dropped == MEMORY_BUSY;
}

static bool
entry_is_in_memory(void *context, uint64_t entry)
{
	return !store_on_flash(context, entry);
}

bool
store_stop(struct store_thread *thread, uint64_t (*now_ns)(void), uint64_t deadline_ns)
{
	struct store *store = thread->store;
	struct evacuation evacuation = {
		.thread = thread, .now_ns = now_ns, .deadline_ns = deadline_ns};
	struct flash_part parts[INDEX_PARTS];
	struct index_part memory[INDEX_PARTS];
	struct index_stats stats;
	struct index_image image;
	uint32_t count;

	if (!store->flash)
		return true;
	store_turn_begin(thread, now_ns());
	memory_visit(store->memory, evacuate_item, &evacuation);
	/* What found no room in time; a copy on flash of such an item has been killed, or is void. */
	index_purge(store->index, thread->number, entry_is_in_memory, store);
	index_get_stats(store->index, &stats);
	count = index_image_get(store->index, &image, memory);
	for (uint32_t i = 0; i < count; i++)
		parts[i] = (struct flash_part){memory[i].data, memory[i].bytes};
	return flash_save(store->flash, &image, sizeof image, parts, count,
		atomic_load(&store->cas_next), stats.entries, now_ns, deadline_ns);
}
