/* SPDX-License-Identifier: BSD-2-Clause */
#include "store/internal.h"

#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <xxhash.h>

/*
 * A bucket for this many bytes of -m at the start: at 7 entries a bucket that is an item of about
 * 365 bytes.
 */
#define BYTES_PER_BUCKET 2560

static _Thread_local struct store_thread *self;

struct store_thread *
store_self(void)
{
	return self;
}

static uint64_t
random_seed(void)
{
	uint64_t seed;

	check(getrandom(&seed, sizeof seed, 0) == sizeof seed);
	return seed;
}

static struct memory *
make_memory(struct store *store)
{
	const struct store_options *options = &store->options;

	return memory_create(&(struct memory_options){
		.limit_bytes = options->limit_bytes,
		.reserve_factor = options->reserve_factor,
		.workers = options->workers,
		.value_bytes_max = options->value_bytes_max,
		.evict = options->evict,
		.hugepages = options->hugepages,
		.seal_age_s = 60,
		.items = &store_memory_items,
		.items_context = store,
		.observer = options->memory_observer,
		.observer_context = options->memory_observer_context,
		.tuning = options->memory_tuning,
		.wake = options->wake,
		.wake_context = options->wake_context,
	});
}

/*
 * Items on flash lose a bit of their tags with each doubling, so the index begins with room for
 * them, as far as a part of -m goes: an eighth. Values of 1 KiB fill it just so.
 */
uint64_t
store_choose_buckets(const struct store *store)
{
	const struct store_options *options = &store->options;
	uint64_t buckets = options->limit_bytes / BYTES_PER_BUCKET, flash_bytes = 0;
	uint64_t most = options->limit_bytes / 8 / sizeof(struct bucket);

	if (options->buckets_initial)
		return options->buckets_initial;
	for (uint32_t i = 0; options->flash && i < options->flash->file_count; i++)
		flash_bytes += options->flash->files[i].size;
	flash_bytes /= 7 * 1024;
	flash_bytes = flash_bytes < most ? flash_bytes : most;
	return buckets > flash_bytes ? buckets : flash_bytes;
}

struct index *
store_make_index(struct store *store, uint64_t buckets)
{
	const struct store_options *options = &store->options;
	/*
	 * The smallest items take 32 bytes: a full reserved arena of them needs a sixth of its
	 * bytes as index, and room to grow.
	 */
	uint64_t bytes = options->limit_bytes * options->reserve_factor;

	return index_create(&(struct index_options){
		.buckets_initial = buckets,
		.bytes_max = bytes < (64u << 20) ? 64u << 20 : bytes,
		.entries_per_bucket = INDEX_LOAD,
		.keys = &store_index_keys,
		.keys_context = store,
		.observer = options->index_observer,
		.observer_context = options->index_observer_context,
	});
}

struct store *
store_create(const struct store_options *options)
{
	struct store *store = calloc(1, sizeof *store);

	if (!store)
		return NULL;
	store->options = *options;
	store->seed = random_seed();
	atomic_init(&store->cas_next, 1);
	classes_make(&store->classes, &options->classes);
	store->memory = make_memory(store);
	if (!store->memory)
		goto failed;
	store->arena = *memory_arena(store->memory);
	store->pieces_max = (uint32_t)(options->value_bytes_max >> store->arena.segment_shift) + 2;
	store->index = store_make_index(store, store_choose_buckets(store));
	if (!store->index)
		goto failed;
	if (options->error_size)
		options->error[0] = '\0';
	if (options->flash && !store_flash_open(store))
		goto failed;
	return store;
failed:
	store_destroy(store);
	return NULL;
}

void
store_destroy(struct store *store)
{
	int error = errno;

	if (store->flash)
		flash_destroy(store->flash);
	if (store->index)
		index_destroy(store->index);
	if (store->memory)
		memory_destroy(store->memory);
	free(store);
	errno = error;
}

struct store_thread *
store_thread_create(struct store *store, unsigned number, struct counters *counters)
{
	struct store_thread *thread = calloc(1, sizeof *thread);

	if (!thread)
		return NULL;
	thread->store = store;
	thread->counters = counters;
	thread->number = number;
	thread->random = (uint32_t)random_seed() | 1;
	if (number == store->options.workers)
		counter_add(&counters->flash_objects, store->flash_objects_found);
	thread->segments = calloc(store->pieces_max, sizeof *thread->segments);
	thread->memory = memory_thread_create(store->memory, number);
	if (store->flash && number < store->options.workers)
		thread->flash = flash_thread_create(store->flash);
	if (!thread->segments || !thread->memory ||
		(store->flash && number < store->options.workers && !thread->flash)) {
		store_thread_destroy(thread);
		return NULL;
	}
	return thread;
}

void
store_thread_destroy(struct store_thread *thread)
{
	store_held_spent(thread);
	if (thread->flash)
		flash_thread_destroy(thread->flash);
	if (thread->memory)
		memory_thread_destroy(thread->memory);
	free(thread->segments);
	free(thread);
}

static void
flush_memory(void *context)
{
	struct store *store = context;

	memory_flush(store->memory);
}

/*
 * The worker whose turn finds a delayed flush due, and wins the race to clear it, opens the new
 * epoch.
 */
static void
apply_due_flush(struct store *store, uint64_t unix_ns)
{
	uint64_t at = atomic_load_explicit(&store->flush_at_ns, memory_order_acquire);

	struct flash_intent unasked = {0};

	if (at == 0 || at > unix_ns || !atomic_compare_exchange_strong(&store->flush_at_ns, &at, 0))
		return;
	/* Nobody waits for this one: on flash it was durable when it was accepted. */
	if (store->flash)
		flash_flush(store->flash, flush_memory, store, &unasked);
	else
		memory_flush(store->memory);
}

void
store_turn_begin(struct store_thread *thread, uint64_t unix_ns)
{
	self = thread;
	thread->now_ns = unix_ns;
	thread->now_s = (uint32_t)(unix_ns / 1000000000u);
	apply_due_flush(thread->store, unix_ns);
	if (thread->flash)
		flash_poll(thread->flash, unix_ns);
}

static enum store_status
flush_with_flash(struct store_thread *thread, uint64_t at_ns)
{
	struct store *store = thread->store;
	struct flash_intent unheld = {0};
	struct flash_intent *intent = thread->held ? &thread->held->intent : &unheld;

	if (intent->ticket == 0 && at_ns <= thread->now_ns) {
		atomic_store_explicit(&store->flush_at_ns, 0, memory_order_release);
		flash_flush(store->flash, flush_memory, store, intent);
	} else if (intent->ticket == 0) {
		atomic_store_explicit(&store->flush_at_ns, at_ns, memory_order_release);
		flash_flush_at(store->flash, at_ns, intent);
	}
	if (!thread->held)
		return STORE_DONE;
	switch (flash_flushed(store->flash, intent)) {
	case FLASH_DURABLE:
		return STORE_DONE;
	case FLASH_NOT_YET:
		return STORE_WAIT;
	case FLASH_NEVER:
		break;
	}
	return STORE_REFUSED;
}

enum store_status
store_flush(struct store_thread *thread, uint64_t at_ns)
{
	struct store *store = thread->store;

	if (store->flash)
		return flush_with_flash(thread, at_ns);
	atomic_store_explicit(
		&store->flush_at_ns, at_ns > thread->now_ns ? at_ns : 0, memory_order_release);
	if (at_ns <= thread->now_ns)
		memory_flush(store->memory);
	return STORE_DONE;
}

bool
store_set_limit(struct store *store, uint64_t limit_bytes)
{
	return memory_set_limit(store->memory, limit_bytes);
}

uint64_t
store_hash(const struct store *store, const uint8_t *key, uint32_t key_size)
{
	return XXH3_64bits_withSeed(key, key_size, store->seed);
}

uint64_t
store_hash_seed(const struct store *store)
{
	return store->seed;
}

struct index *
store_index(struct store *store)
{
	return store->index;
}

const struct classes *
store_classes(const struct store *store)
{
	return &store->classes;
}

/* --- look-ups ----------------------------------------------------------------------------- */

static inline __attribute__((always_inline)) enum store_found
judge(const struct store_thread *thread, const struct item *item, uint32_t segment)
{
	const struct memory_arena *arena = &thread->store->arena;
	uint32_t epoch = atomic_load_explicit(&arena->faces[segment].epoch, memory_order_relaxed);

	if (epoch != atomic_load_explicit(arena->epoch, memory_order_acquire))
		return STORE_FLUSHED;
	return item_expired(item, thread->now_s) ? STORE_EXPIRED : STORE_PRESENT;
}

enum store_found
store_judge(const struct store_thread *thread, const struct item *item, uint32_t segment)
{
	return judge(thread, item, segment);
}

static inline __attribute__((always_inline)) void
view_fill(const struct store *store, struct store_view *view, uint64_t entry,
	_Atomic uint64_t *slot, uint64_t bucket)
{
	uint32_t segment = bucket_entry_segment(entry);
	const struct segment_face *face = &store->arena.faces[segment];
	const struct item *item = store_item(store, entry);

	view->item = item;
	view->slot = slot;
	view->entry = entry;
	view->bucket = bucket;
	view->segment = segment;
	view->main = atomic_load_explicit(&face->generation, memory_order_relaxed) != 0;
	view->flash = false;
	view->opened_s = atomic_load_explicit(&face->opened_s, memory_order_relaxed);
	view->soft = __atomic_load_n(&item->soft, __ATOMIC_RELAXED);
	view->kinds = 0;
	view->value_size = item_value_size(item);
	if (item_has_trailer(item)) {
		view->kinds = item_kinds(item);
		view->value_size = item_value_length(item);
	}
}

void
store_view_fill(const struct store *store, struct store_view *view, uint64_t entry,
	_Atomic uint64_t *slot, uint64_t bucket)
{
	view_fill(store, view, entry, slot, bucket);
}

/* Scans the key's bucket; the view is filled when an item with this key is there. */
static __attribute__((noinline)) enum store_found
scan(struct store_thread *thread, const uint8_t *key, uint32_t key_size, uint64_t hash,
	struct store_view *view)
{
	const struct store *store = thread->store;
	struct flash_loan *loan;
	struct index_find find;
	uint64_t entry;
	bool pending;

	index_find_begin(store->index, hash, &find);
	do {
		pending = false;
		while ((entry = index_find_next(&find))) {
			if (!store_on_flash(store, entry)) {
				if (!item_has_key(store_item(store, entry), key, key_size))
					continue;
				view_fill(store, view, entry, find.slot, find.number);
				return judge(thread, view->item, view->segment);
			}
			switch (store_flash_candidate(thread, entry, key, key_size, &loan)) {
			case CANDIDATE_MATCH:
				store_flash_view(store, view, entry, find.slot, find.number, loan);
				return store_flash_judge(thread, view->item, loan->position);
			case CANDIDATE_PENDING:
				pending = true;
				break;
			case CANDIDATE_FAILED: /* a miss, unless another one is the key's */
			case CANDIDATE_OTHER:
				break;
			}
		}
	} while (index_find_again(&find));
	return pending ? STORE_PENDING : STORE_ABSENT;
}

static inline __attribute__((always_inline)) enum store_found
find(struct store_thread *thread, const uint8_t *key, uint32_t key_size, uint64_t hash,
	const struct store_hint *hint, struct store_view *view, bool *stale_hint)
{
	const struct store *store = thread->store;

	*stale_hint = false;
	if (!hint || !index_hint_holds(store->index, hash, hint->number, hint->version)) {
		*stale_hint = hint != NULL;
		return scan(thread, key, key_size, hash, view);
	}
	if (hint->entry == 0)
		return STORE_ABSENT;
	view_fill(store, view, hint->entry, hint->slot, hint->number);
	return judge(thread, view->item, view->segment);
}

enum store_found
store_find(struct store_thread *thread, const uint8_t *key, uint32_t key_size, uint64_t hash,
	const struct store_hint *hint, struct store_view *view, bool *stale_hint)
{
	bool stale;

	return find(thread, key, key_size, hash, hint, view, stale_hint ? stale_hint : &stale);
}

uint32_t
store_random(struct store_thread *thread)
{
	uint32_t x = thread->random;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return thread->random = x;
}

static inline __attribute__((always_inline)) void
accessed(struct store_thread *thread, const struct store_view *view)
{
	struct item *item = (struct item *)view->item;
	uint32_t age = thread->now_s > view->opened_s ? thread->now_s - view->opened_s : 0;
	uint16_t soft = view->soft;
	uint16_t now = (uint16_t)((soft & ITEM_SOFT_WIN) | ITEM_SOFT_FETCHED | item_soft_time(age));

	index_count_read(view->slot, view->entry, store_random(thread));
	if (__builtin_expect(view->flash, 0)) {
		store_flash_promote(thread, view);
		return;
	}
	if (now != soft)
		__atomic_compare_exchange_n(
			&item->soft, &soft, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void
store_accessed(struct store_thread *thread, const struct store_view *view)
{
	accessed(thread, view);
}

enum store_found
store_read(struct store_thread *thread, const uint8_t *key, uint32_t key_size, uint64_t hash,
	const struct store_hint *hint, struct store_view *view, bool *stale_hint)
{
	enum store_found found = find(thread, key, key_size, hash, hint, view, stale_hint);

	if (found == STORE_PRESENT)
		accessed(thread, view);
	return found;
}

uint32_t
store_last_access_s(const struct store_thread *thread, const struct store_view *view)
{
	uint32_t at = view->opened_s + item_soft_seconds(view->soft);

	return thread->now_s > at ? thread->now_s - at : 0;
}

uint32_t
store_pieces_max(const struct store *store)
{
	return store->pieces_max;
}

uint32_t
store_pieces(const struct store *store, const struct store_view *view, struct slice *pieces)
{
	uint64_t segment_bytes = 1ull << store->arena.segment_shift, left = view->value_size;
	uint32_t count = 0;

	if (left == 0)
		return 0;
	if (!(view->kinds & ITEM_LARGE)) {
		pieces[0] = slice_make(item_value(view->item), left);
		return 1;
	}
	for (; left > 0; count++) {
		uint64_t here = left < segment_bytes ? left : segment_bytes;

		check(count < store->pieces_max);
		pieces[count] = slice_make(
			memory_address(&store->arena, item_large_segment(view->item, count), 0),
			here);
		left -= here;
	}
	return count;
}

/* --- time --------------------------------------------------------------------------------- */

#define RELATIVE_MAX_S (60 * 60 * 24 * 30)
#define EXPIRED_LONG_AGO 1

uint32_t
store_expiry(uint64_t unix_ns, int64_t exptime)
{
	if (exptime == 0)
		return 0;
	if (exptime < 0)
		return EXPIRED_LONG_AGO;
	if (exptime <= RELATIVE_MAX_S)
		return (uint32_t)((unix_ns + (uint64_t)exptime * 1000000000u + 999999999u) /
				  1000000000u);
	if (exptime > UINT32_MAX)
		exptime = UINT32_MAX;
	return (uint64_t)exptime <= unix_ns / 1000000000u ? EXPIRED_LONG_AGO : (uint32_t)exptime;
}

int64_t
store_ttl_s(uint64_t unix_ns, uint32_t expiry_s)
{
	if (expiry_s == 0)
		return -1;
	if (expiry_s * 1000000000ull <= unix_ns)
		return 0;
	return (int64_t)((expiry_s * 1000000000ull - unix_ns) / 1000000000u);
}

/* --- statistics --------------------------------------------------------------------------- */

uint32_t
store_account(struct store_thread *thread, const struct item *item, int sign)
{
	uint64_t bytes = classes_item_bytes(item_key_size(item), item_value_length(item),
		item_client_flags(item), thread->store->options.cas);
	uint32_t id = classes_find(&thread->store->classes, bytes);

	counter_add(&thread->counters->classes[id].number, (uint64_t)(int64_t)sign);
	counter_add(&thread->counters->classes[id].bytes, sign > 0 ? bytes : -bytes);
	return id;
}

void
store_get_index_stats(const struct store *store, struct index_stats *stats)
{
	index_get_stats(store->index, stats);
}

void
store_get_memory_stats(const struct store *store, struct memory_stats *stats)
{
	memory_get_stats(store->memory, stats);
}

struct walk {
	struct store_thread *thread;
	bool (*visit)(void *context, const struct store_view *view);
	void *context;
};

static bool
walk_entry(void *context, uint64_t entry)
{
	const struct walk *walk = context;
	struct store_view view;

	if (store_on_flash(walk->thread->store, entry))
		return true;
	store_view_fill(walk->thread->store, &view, entry, NULL, 0);
	if (store_judge(walk->thread, view.item, view.segment) != STORE_PRESENT)
		return true;
	return walk->visit(walk->context, &view);
}

void
store_walk(struct store_thread *thread, bool (*visit)(void *context, const struct store_view *view),
	void *context)
{
	struct walk walk = {thread, visit, context};

	index_walk(thread->store->index, thread->number, walk_entry, &walk);
}
