/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Items by size class. Halcyon's memory knows none: items are counted under the class that
 * memcached would have put them in.
 */
#include "daemon/stats_output.h"

#include "base/clock.h"
#include "index/index.h"
#include "memory/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WALK_ITEMS_MAX (1u << 20) /* a walk runs within one worker's turn */
#define WALK_BUCKETS_MAX (4u << 20)
#define SIZE_STEP 32 /* bytes, of the histogram */
#define SIZE_STEPS 32768
#define DUMP_BYTES_MAX (2u << 20)

#define CLASS(counters, id, field) counter_get(&(counters)->classes[id].field)

/* One that has ever held an item. */
static bool
class_used(const struct stats_output *output, unsigned id)
{
	return CLASS(&output->now, id, number) || CLASS(&output->now, id, cmd_set) ||
	       CLASS(&output->now, id, evicted) || CLASS(&output->now, id, reclaimed) ||
	       CLASS(&output->now, id, outofmemory);
}

static void
put_class(struct stats_output *output, const char *what, unsigned id, const char *name,
	uint64_t number)
{
	char key[64];

	snprintf(key, sizeof key, "%s%u:%s", what, id, name);
	stats_put_number(output, key, number);
}

static void
put_item_class(struct stats_output *output, unsigned id)
{
	static const char *const lists[] = {
		"crawler_reclaimed",
		"crawler_items_checked",
		"lrutail_reflocked",
		"moves_to_cold",
		"moves_to_warm",
		"moves_within_lru",
		"direct_reclaims",
		"hits_to_hot",
		"hits_to_warm",
	};
	const struct counters *since = &output->since;
	uint64_t number = CLASS(&output->now, id, number);

#define PUT(name, value) put_class(output, "items:", id, name, value)
	PUT("number", number);
	PUT("number_hot", 0);
	PUT("number_warm", 0);
	PUT("number_cold", number);
	PUT("age_hot", 0);
	PUT("age_warm", 0);
	PUT("age", 0);
	PUT("mem_requested", CLASS(&output->now, id, bytes));
	PUT("evicted", CLASS(since, id, evicted));
	PUT("evicted_nonzero", CLASS(since, id, evicted_nonzero));
	PUT("evicted_time", 0);
	PUT("outofmemory", CLASS(since, id, outofmemory));
	PUT("tailrepairs", 0);
	PUT("reclaimed", CLASS(since, id, reclaimed));
	PUT("expired_unfetched", CLASS(since, id, expired_unfetched));
	PUT("evicted_unfetched", CLASS(since, id, evicted_unfetched));
	PUT("evicted_active", CLASS(since, id, evicted) - CLASS(since, id, evicted_unfetched));
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		PUT(lists[i], 0);
	PUT("hits_to_cold", CLASS(since, id, get_hits));
	PUT("hits_to_temp", 0);
#undef PUT
}

void
stats_items(struct stats_output *output)
{
	for (unsigned id = 1; id < SIZE_CLASSES; id++)
		if (class_used(output, id))
			put_item_class(output, id);
}

static bool
put_slab_class(struct stats_output *output, const struct classes *classes, unsigned id)
{
	const struct counters *since = &output->since;
	uint64_t used = CLASS(&output->now, id, number),
		 a_page = classes->per_page[id] ? classes->per_page[id] : 1;
	uint64_t pages = (used + a_page - 1) / a_page;

	if (!class_used(output, id))
		return false;
	pages = pages ? pages : 1;
#define PUT(name, value) put_class(output, "", id, name, value)
	PUT("chunk_size", classes->size[id]);
	PUT("chunks_per_page", a_page);
	PUT("total_pages", pages);
	PUT("total_chunks", pages * a_page);
	PUT("used_chunks", used);
	PUT("free_chunks", pages * a_page - used);
	PUT("free_chunks_end", 0);
	PUT("get_hits", CLASS(since, id, get_hits));
	PUT("cmd_set", CLASS(since, id, cmd_set));
	PUT("delete_hits", CLASS(since, id, delete_hits));
	PUT("incr_hits", CLASS(since, id, incr_hits));
	PUT("decr_hits", CLASS(since, id, decr_hits));
	PUT("cas_hits", CLASS(since, id, cas_hits));
	PUT("cas_badval", CLASS(since, id, cas_badval));
	PUT("touch_hits", CLASS(since, id, touch_hits));
#undef PUT
	return true;
}

void
stats_slabs(struct stats_output *output)
{
	const struct classes *classes = store_classes(output->worker->server->store);
	struct memory_stats memory;
	uint64_t active = 0;

	store_get_memory_stats(output->worker->server->store, &memory);
	for (unsigned id = 1; id <= classes->largest && id < SIZE_CLASSES; id++)
		active += put_slab_class(output, classes, id);
	stats_put_number(output, "active_slabs", active);
	stats_put_number(output, "total_malloced", memory.resident_bytes);
}

/* --- sizes -------------------------------------------------------------------------------- */

static uint64_t
bytes_of(const struct worker *worker, const struct store_view *view)
{
	return classes_item_bytes(item_key_size(view->item), view->value_size,
		item_client_flags(view->item), !worker->server->options->cas_off);
}

static uint64_t
count_items(const struct stats_output *output)
{
	uint64_t items = 0;

	for (unsigned id = 1; id < SIZE_CLASSES; id++)
		items += CLASS(&output->now, id, number);
	return items;
}

/*
 * Whether a walk meets its bound of items, or the index's end, before too many buckets: few items
 * in a large index are far apart.
 */
static bool
walk_is_short(const struct stats_output *output, uint64_t items)
{
	struct index_stats index;

	store_get_index_stats(output->worker->server->store, &index);
	if (items > WALK_ITEMS_MAX)
		return index.buckets / items <= WALK_BUCKETS_MAX / WALK_ITEMS_MAX;
	return index.buckets <= WALK_BUCKETS_MAX;
}

struct size_walk {
	const struct worker *worker;
	uint32_t *counts;
	uint32_t visited;
};

static bool
count_size(void *context, const struct store_view *view)
{
	struct size_walk *walk = context;
	uint64_t step = (bytes_of(walk->worker, view) + SIZE_STEP - 1) / SIZE_STEP;

	walk->counts[step < SIZE_STEPS ? step : SIZE_STEPS - 1]++;
	return ++walk->visited < WALK_ITEMS_MAX;
}

static void
put_size(struct stats_output *output, uint64_t bytes, uint64_t count)
{
	char key[24];

	snprintf(key, sizeof key, "%llu", (unsigned long long)bytes);
	if (count)
		stats_put_number(output, key, count);
}

/*
 * Exact up to a million items, unless they stand in an index of millions of buckets; beyond, by
 * size class, because nobody else would be served while they are walked over.
 */
void
stats_sizes(struct stats_output *output)
{
	const struct classes *classes = store_classes(output->worker->server->store);
	struct size_walk walk = {.worker = output->worker};
	uint64_t items = count_items(output);

	if (items < WALK_ITEMS_MAX && walk_is_short(output, items))
		walk.counts = calloc(SIZE_STEPS, sizeof *walk.counts);
	if (walk.counts) {
		store_walk(engine_store_thread(output->worker->engine), count_size, &walk);
		for (uint64_t step = 0; step < SIZE_STEPS; step++)
			put_size(output, step * SIZE_STEP, walk.counts[step]);
		free(walk.counts);
		return;
	}
	for (unsigned id = 1; id <= classes->largest && id < SIZE_CLASSES; id++)
		put_size(output, classes->size[id], CLASS(&output->now, id, number));
}

/* --- cachedump ---------------------------------------------------------------------------- */

struct dump_walk {
	const struct worker *worker;
	struct engine_text *text;
	uint32_t id;
	uint64_t left; /* items still to be written */
	uint32_t visited;
};

static bool
dump_item(void *context, const struct store_view *view)
{
	struct dump_walk *walk = context;
	uint64_t bytes = bytes_of(walk->worker, view);

	if (++walk->visited >= WALK_ITEMS_MAX || walk->text->size >= DUMP_BYTES_MAX)
		return false;
	if (classes_find(store_classes(walk->worker->server->store), bytes) != walk->id)
		return true;
	if (!engine_text_put(walk->text, "ITEM ", 5) ||
		!engine_text_put(walk->text, item_key(view->item), item_key_size(view->item)) ||
		!engine_text_printf(walk->text, " [%llu b; %u s]\r\n",
			(unsigned long long)view->value_size, view->item->expiry))
		return false;
	return --walk->left > 0;
}

static bool
read_number(struct slice *words, uint64_t *number)
{
	size_t digits = 0;

	while (words->size > 0 && *words->data == ' ') {
		words->data++;
		words->size--;
	}
	*number = 0;
	for (; words->size > 0 && *words->data >= '0' && *words->data <= '9' && digits < 10;
		digits++) {
		*number = *number * 10 + (*words->data - '0');
		words->data++;
		words->size--;
	}
	return digits > 0 && (words->size == 0 || *words->data == ' ');
}

/* Nothing is dumped where the walk would take too long. */
bool
stats_cachedump(struct stats_output *output, struct slice words)
{
	uint64_t id, limit;
	struct dump_walk walk = {.worker = output->worker, .text = output->text};

	if (!read_number(&words, &id) || !read_number(&words, &limit) || id == 0 ||
		id >= SIZE_CLASSES)
		return false;
	walk.id = (uint32_t)id;
	walk.left = limit ? limit : UINT64_MAX;
	if (walk_is_short(output, count_items(output)))
		store_walk(engine_store_thread(output->worker->engine), dump_item, &walk);
	output->failed = !engine_text_put(output->text, "END\r\n", 5);
	return true;
}
