/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What flash does, by memcached's names of extstore where something corresponds (0 where nothing
 * does), and by our own.
 */
#include "daemon/stats_output.h"

#include "flash/flash.h"
#include "flash/layout.h"

#include <stdio.h>

#define PAGES_MAX 65536 /* regions in 'stats extstore': some 7 MB of reply */

static struct flash *
flash_of(const struct stats_output *output)
{
	return store_flash(output->worker->server->store);
}

#define SINCE(field) counter_get(&output->since.field)

/* --- memcached's names -------------------------------------------------------------------- */

void
stats_flash_lookups(struct stats_output *output)
{
	struct flash_stats stats;

	if (!flash_of(output))
		return;
	flash_get_stats(flash_of(output), &stats);
	stats_put_number(output, "get_extstore", SINCE(flash_hits) + SINCE(flash_failed));
	stats_put_number(output, "get_aborted_extstore", 0);
	stats_put_number(output, "get_oom_extstore", 0);
	stats_put_number(output, "recache_from_extstore", SINCE(flash_promoted));
	stats_put_number(output, "miss_from_extstore", SINCE(flash_failed));
	stats_put_number(output, "badcrc_from_extstore", stats.read_bad);
}

/* Regions that hold something. */
static uint64_t
regions_used(const struct flash_stats *stats)
{
	uint64_t without = stats->regions_free + stats->regions_retired;

	return stats->regions > without ? stats->regions - without : 0;
}

/* Live bytes aren't known: bytes_used is what the regions are filled with, dead items included. */
static void
put_extstore_log(struct stats_output *output, const struct flash_stats *stats)
{
	uint64_t used = regions_used(stats), room = used * stats->region_bytes;

	stats_put_number(output, "extstore_page_allocs", used + stats->regions_reclaimed);
	stats_put_number(output, "extstore_page_evictions", stats->regions_reclaimed);
	stats_put_number(output, "extstore_page_reclaims", stats->regions_reclaimed);
	stats_put_number(output, "extstore_pages_free", stats->regions_free);
	stats_put_number(output, "extstore_pages_used", used);
	stats_put_number(output, "extstore_objects_evicted", SINCE(flash_evicted));
	stats_put_number(output, "extstore_objects_read", stats->reads + stats->buffer_hits);
	stats_put_number(
		output, "extstore_objects_written", stats->items_written + stats->items_reinserted);
	stats_put_number(output, "extstore_objects_used", counter_get(&output->now.flash_objects));
	stats_put_number(output, "extstore_bytes_evicted", 0);
	stats_put_number(output, "extstore_bytes_written",
		stats->item_bytes_written + stats->item_bytes_reinserted);
	stats_put_number(output, "extstore_bytes_read", stats->read_asked_bytes);
	stats_put_number(output, "extstore_bytes_used", stats->used_bytes);
	stats_put_number(output, "extstore_bytes_fragmented",
		room > stats->used_bytes ? room - stats->used_bytes : 0);
	stats_put_number(output, "extstore_limit_maxbytes", stats->regions * stats->region_bytes);
	stats_put_number(output, "extstore_io_queue", stats->reads_in_flight);
}

void
stats_flash_extstore(struct stats_output *output)
{
	struct flash_stats stats;

	if (!flash_of(output))
		return;
	flash_get_stats(flash_of(output), &stats);
	stats_put(output, "extstore_memory_pressure", "%.2f", 0.0);
	stats_put_number(output, "extstore_compact_lost", 0);
	stats_put_number(output, "extstore_compact_rescues", stats.items_reinserted);
	stats_put_number(output, "extstore_compact_resc_cold", 0);
	stats_put_number(output, "extstore_compact_resc_old", 0);
	stats_put_number(output, "extstore_compact_skipped", 0);
	put_extstore_log(output, &stats);
}

static void
put_page(struct stats_output *output, uint32_t region, const char *name, uint64_t value)
{
	char key[32];

	snprintf(key, sizeof key, "%u:%s", region, name);
	stats_put_number(output, key, value);
}

void
stats_flash_pages(struct stats_output *output)
{
	struct flash_stats stats;
	uint64_t sequence;
	uint32_t bytes;

	if (!flash_of(output))
		return;
	flash_get_stats(flash_of(output), &stats);
	for (uint32_t i = 0; i < stats.regions && i < PAGES_MAX; i++) {
		flash_look_at_region(flash_of(output), i, &sequence, &bytes);
		put_page(output, i, "version", sequence);
		put_page(output, i, "bytes", bytes);
		put_page(output, i, "bucket", 0);
		put_page(output, i, "free_bucket", 0);
	}
}

/* --- ours: stats_flash.def ---------------------------------------------------------------- */

static const char *
state_of(const struct stats_output *output, const struct flash_stats *stats)
{
	if (stats->alive)
		return "alive";
	return flash_voided(flash_of(output)) ? "voided" : "dead";
}

static const char *
journal_of(const struct stats_output *output)
{
	static const char *const modes[] = {"sync", "async", "off"};

	return modes[output->worker->server->options->flash_journal];
}

/* Neither items nor journal. */
static unsigned long long
overhead_of(const struct flash_stats *stats)
{
	uint64_t told =
		stats->item_bytes_written + stats->item_bytes_reinserted + stats->journal_bytes;

	return stats->written_bytes > told ? stats->written_bytes - told : 0;
}

static double
amplification_of(const struct flash_stats *stats)
{
	return stats->item_bytes_written
		       ? (double)stats->written_bytes / (double)stats->item_bytes_written
		       : 0;
}

/* What so many thousandths of the times don't exceed, by the histogram's steps; 0 without any. */
static double
percentile_us(const struct flash_histogram *times, uint64_t thousandths)
{
	uint64_t total = 0, seen = 0, rank, ns = 0;

	for (unsigned step = 0; step < FLASH_HISTOGRAM; step++)
		total += counter_get(&times->count[step]);
	rank = (total * thousandths + 999) / 1000;
	for (unsigned step = 0; step < FLASH_HISTOGRAM && seen < rank; step++) {
		seen += counter_get(&times->count[step]);
		ns = flash_histogram_bound(step);
	}
	return (double)ns / 1000;
}

void
stats_flash_own(struct stats_output *output)
{
	struct flash_stats filled, *stats = &filled;

	if (!flash_of(output))
		return;
	flash_get_stats(flash_of(output), stats);
#define UNWRAPPED(...) __VA_ARGS__
#define FIGURE(field, sentence) stats_put_number(output, "flash_" #field, stats->field);
#define MADE(name, written, sentence) stats_put(output, "flash_" #name, UNWRAPPED written);
#include "daemon/stats_flash.def"
#undef MADE
#undef FIGURE
#undef UNWRAPPED
}
