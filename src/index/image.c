/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * image: the whole table written down and taken up again. Buckets grow up from the beginning of the
 * area, units down from its end, so both are one piece of whole pages; links are numbers, so they hold
 * wherever the area is.
 */
#include "index/table.h"

#include "base/check.h"

#include <urcu-qsbr.h>

#define PAGE_BYTES 4096u
#define UNITS_MAX ((1u << 31) - 1)

static uint64_t
whole_pages(uint64_t bytes)
{
	return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static uint32_t
parts_of(const struct index *index, const struct index_image *image, struct index_part *parts)
{
	uint64_t units = whole_pages(image->units_made * sizeof(struct bucket_unit));

	parts[0] = (struct index_part){
		index->area, whole_pages(image->buckets * sizeof(struct bucket))};
	if (units == 0)
		return 1;
	parts[1] = (struct index_part){index->area + index->area_bytes - units, units};
	return 2;
}

uint32_t
index_image_get(
	struct index *index, struct index_image *image, struct index_part parts[INDEX_PARTS])
{
	struct index_stats stats;

	/* What was taken out of chains is nobody's any more. */
	index_reclaim_units(index);
	index_get_stats(index, &stats);
	*image = (struct index_image){
		.bits_initial = index->table.bits_initial,
		.buckets = stats.buckets,
		.units_made = atomic_load(&index->units_made),
		.units_free = (uint32_t)atomic_load(&index->units_free),
		.units_in_chains = stats.overflow_units,
		.tag_bits_lost = atomic_load(&index->table.tag_bits_lost),
		.entries = stats.entries,
	};
	return parts_of(index, image, parts);
}

uint32_t
index_image_begin(
	struct index *index, const struct index_image *image, struct index_part parts[INDEX_PARTS])
{
	uint64_t count = atomic_load(&index->table.count);

	if (image->bits_initial != index->table.bits_initial || image->buckets < count ||
		image->buckets > index->area_bytes / sizeof(struct bucket) ||
		image->units_made > UNITS_MAX || image->units_free > image->units_made ||
		image->units_in_chains > image->units_made ||
		image->tag_bits_lost > BUCKET_TAG_LOST_MAX || image->entries > INT64_MAX ||
		whole_pages(image->buckets * sizeof(struct bucket)) +
				whole_pages(image->units_made * sizeof(struct bucket_unit)) >
			index->area_bytes)
		return 0;
	return parts_of(index, image, parts);
}

/* Of so many words, which aren't the header. */
static uint64_t
count_entries(const _Atomic uint64_t *words, unsigned count)
{
	uint64_t entries = 0;

	for (unsigned i = 0; i < count; i++) {
		uint64_t word = atomic_load_explicit(&words[i], memory_order_relaxed);

		entries += !bucket_entry_is_empty(word) && !bucket_entry_is_link(word);
	}
	return entries;
}

/*
 * No lock is held, no link leads out of the units. The entries are counted: some may have been taken
 * out after the image was made, and what stands in units that are free are no entries.
 */
static bool
makes_sense(const struct index *index, const struct index_image *image, uint64_t *entries)
{
	*entries = 0;
	for (uint64_t number = 0; number < image->buckets; number++) {
		const struct bucket *bucket = &index->table.buckets[number];
		uint64_t header = atomic_load_explicit(&bucket->header, memory_order_relaxed);

		if (bucket_header_is_locked(header) ||
			bucket_header_link(header) > image->units_made)
			return false;
		*entries += count_entries(bucket->entries, BUCKET_ENTRIES);
	}
	for (uint32_t unit = 1; unit <= image->units_made; unit++) {
		const struct bucket_unit *at = bucket_unit_at(&index->table, unit);
		uint64_t last = atomic_load_explicit(
			&at->entries[BUCKET_UNIT_ENTRIES - 1], memory_order_relaxed);

		if (bucket_entry_is_link(last) && bucket_number_gather(last) > image->units_made)
			return false;
		*entries += count_entries(at->entries, BUCKET_UNIT_ENTRIES);
	}
	return true;
}

bool
index_image_end(struct index *index, const struct index_image *image)
{
	uint64_t entries;

	if (!makes_sense(index, image, &entries))
		return false;
	atomic_store(&index->units_made, image->units_made);
	atomic_store(&index->units_free, image->units_free);
	atomic_store(&index->units_in_chains, image->units_in_chains);
	atomic_store(&index->space_used, image->buckets * sizeof(struct bucket) +
						 image->units_made * sizeof(struct bucket_unit));
	atomic_store(&index->entries, (int64_t)entries);
	atomic_store(&index->table.tag_bits_lost, image->tag_bits_lost);
	atomic_store_explicit(&index->table.count, image->buckets, memory_order_release);
	return true;
}

/* --- purging ------------------------------------------------------------------------------ */

/* A locked bucket: how many of its entries were cleared. */
static uint64_t
purge_bucket(struct index *index, struct bucket *bucket,
	bool (*match)(void *context, uint64_t entry), void *context)
{
	struct chain_walk walk;
	_Atomic uint64_t *slot;
	uint64_t cleared = 0;

	chain_walk_begin(&walk, index, bucket);
	while ((slot = chain_walk_next(&walk)) != NULL) {
		uint64_t entry = atomic_load_explicit(slot, memory_order_relaxed);

		if (bucket_entry_is_empty(entry) || !match(context, entry))
			continue;
		atomic_store_explicit(slot, 0, memory_order_release);
		cleared++;
	}
	return cleared;
}

uint64_t
index_purge(struct index *index, unsigned writer, bool (*match)(void *context, uint64_t entry),
	void *context)
{
	uint64_t purged = 0;

	check(writer < INDEX_WRITERS);
	/* A split moves entries to buckets that are still to come. */
	for (uint64_t number = 0;
		number < atomic_load_explicit(&index->table.count, memory_order_acquire);
		number++) {
		struct bucket *bucket = &index->table.buckets[number];

		if (bucket_is_untouched(bucket))
			continue;
		uint64_t header = bucket_lock(bucket);
		uint64_t cleared = purge_bucket(index, bucket, match, context);

		if (cleared) {
			index_count_entries(index, writer, -(int64_t)cleared);
			chain_compact(index, bucket);
			index_tell(index, writer, number, bucket_header_version(header) + 1);
		}
		bucket_unlock(bucket, cleared != 0);
		purged += cleared;
	}
	return purged;
}
