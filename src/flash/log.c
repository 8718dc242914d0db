/* SPDX-License-Identifier: BSD-2-Clause */
/* log: making and ending it, its work, what recovery enters and a clean stop takes. */
#include "flash/log.h"

#include "base/check.h"
#include "base/pages.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY_SHARE 32	 /* of memory_bytes, chunks at most; and half of that each list */
#define SLOTS_A_REGION 4 /* see log_region_of */
#define ROUND_MS 100
#define ROUNDS 100

void
log_submit(struct flash *flash, struct write *write, enum io_op op, uint32_t region,
	uint32_t offset, void *data, uint32_t bytes, bool durable,
	void (*done)(struct flash *flash, struct write *write, int result))
{
	write->request = (struct io_request){
		.op = (uint8_t)op,
		.durable = durable,
		.file = flash->regions[region].file,
		.buffer = -1,
		.size = bytes,
		.offset = op == IO_FLUSH ? 0 : flash->regions[region].base + offset,
		.data = data,
	};
	write->done = done;
	writer_submit(flash, write);
}

void
log_trouble(struct flash *flash)
{
	flash->log->calm_ns = atomic_load_explicit(&flash->now_ns, memory_order_relaxed) + CALM_NS;
}

void
log_room(struct flash *flash)
{
	struct log *log = flash->log;

	if (atomic_load_explicit(&log->busy, memory_order_relaxed) &&
		atomic_exchange(&log->busy, false) && flash->options.wake)
		flash->options.wake(flash->options.wake_context);
}

/* --- making and ending -------------------------------------------------------------------- */

static void
choose_sizes(struct flash *flash)
{
	struct log *log = flash->log;
	uint64_t longest =
		APPEND_HEADER + (uint64_t)layout_record_bytes(flash->options.item_bytes_max);
	uint64_t bytes = CHUNK_BYTES, count, share = flash->options.memory_bytes / MEMORY_SHARE / 2;
	uint32_t entries = flash->region_bytes / ENTRY_BYTES;

	if (bytes > flash->region_bytes / 4)
		bytes = flash->region_bytes / 4;
	if (longest > bytes) {
		/*
		 * Half a region and a little, so that 8 MiB are taken where regions are 16; and for
		 * all chunks a quarter of memory, where an eighth is too little.
		 */
		uint64_t most = flash->region_bytes / 8 * 5,
			 memory = flash->options.memory_bytes / 4 / CHUNKS_MIN;

		most = most < memory ? most : memory;
		most = most < longest ? most : longest + FLASH_BLOCK - 1;
		if (most > bytes)
			bytes = most / FLASH_BLOCK * FLASH_BLOCK;
	}
	log->chunk_bytes = (uint32_t)bytes;
	log->record_max = log->chunk_bytes - APPEND_HEADER;
	if (longest - APPEND_HEADER < log->record_max)
		log->record_max = (uint32_t)longest - APPEND_HEADER;
	count = flash->options.memory_bytes / MEMORY_SHARE / bytes;
	log->chunk_count = count > CHUNKS_MAX	? CHUNKS_MAX
			   : count < CHUNKS_MIN ? CHUNKS_MIN
						: (uint32_t)count;
	log->free_chunks = log->chunk_count;
	/* With little memory a region of tiny items is sealed before it is full. */
	if (entries > share / sizeof(struct flash_footer_entry) && share >= 65536)
		entries = (uint32_t)(share / sizeof(struct flash_footer_entry));
	log->entries_max = entries;
	log->list_bytes = footer_bytes(entries);
	/* Of few regions, few can wait. */
	log->ahead = flash->region_count < 4 ? 1 : flash->region_count / 32;
	if (log->ahead > AHEAD_MAX)
		log->ahead = AHEAD_MAX;
	if (log->ahead < REGIONS_AHEAD && flash->region_count >= 4)
		log->ahead = REGIONS_AHEAD;
	log->ahead_ready = log->ahead < REGIONS_AHEAD ? log->ahead : REGIONS_AHEAD;
}

static bool
make_tables(struct flash *flash)
{
	struct log *log = flash->log;
	uint64_t slots = 1;

	while (slots < (uint64_t)flash->region_count * SLOTS_A_REGION)
		slots *= 2;
	log->slot_mask = slots - 1;
	log->slots = calloc(slots, sizeof *log->slots);
	log->free_ring = calloc(flash->region_count, sizeof *log->free_ring);
	log->order = calloc(flash->region_count, sizeof *log->order);
	log->memory_bytes +=
		slots * sizeof *log->slots +
		(uint64_t)flash->region_count * (2 * sizeof *log->order + sizeof(struct region));
	return log->slots && log->free_ring && log->order;
}

bool
log_create(struct flash *flash)
{
	struct log *log = calloc(1, sizeof *log);
	uint8_t *at;

	if (!log)
		return false;
	flash->log = log;
	pthread_mutex_init(&log->lock, NULL);
	choose_sizes(flash);
	log->area_bytes = (size_t)log->chunk_count * log->chunk_bytes +
			  (size_t)LISTS * log->list_bytes + 2 * FLASH_BLOCK + reclaim_bytes(flash);
	log->area = pages_reserve(log->area_bytes, FLASH_BLOCK);
	log->memory_bytes = sizeof *log + log->area_bytes - reclaim_spare_bytes(flash);
	if (!make_tables(flash) || !log->area)
		return false;
	at = log->area;
	for (uint32_t i = 0; i < log->chunk_count; i++, at += log->chunk_bytes)
		log->chunks[i].data = at;
	for (unsigned i = 0; i < LISTS; i++, at += log->list_bytes)
		log->lists[i].bytes = at;
	log->opening_block = at;
	log->snapshot_block = at + FLASH_BLOCK;
	reclaim_create(flash, at + 2 * FLASH_BLOCK);
	budget_create(flash);
	return true;
}

void
log_destroy(struct flash *flash)
{
	struct log *log = flash->log;

	if (log->area)
		pages_release(log->area, log->area_bytes);
	free(log->slots);
	free(log->free_ring);
	free(log->order);
	pthread_mutex_destroy(&log->lock);
	free(log);
	flash->log = NULL;
}

/* --- recovery ----------------------------------------------------------------------------- */

void
log_region_found(struct flash *flash, uint32_t region, uint64_t sequence, enum region_state state,
	uint32_t opened_s, uint32_t entries, uint32_t used)
{
	struct region *found = &flash->regions[region];

	check(!flash->log->started);
	check(state == REGION_FREE || state == REGION_SEALED || state == REGION_SNAPSHOT ||
		state == REGION_RETIRED);
	if (state == REGION_FREE)
		return;
	found->opened_s = opened_s;
	found->entries = entries;
	found->used = used;
	log_count(&flash->log->counts.used_bytes, used);
	region_begin(flash, region, sequence, state);
}

void
log_start(struct flash *flash, uint64_t sequence)
{
	struct log *log = flash->log;
	uint64_t tail = flash_position_make(sequence, 0);

	atomic_store_explicit(&log->sequence_next, sequence, memory_order_release);
	for (uint32_t i = 0; i < flash->region_count; i++)
		if (region_state(&flash->regions[i]) == REGION_FREE)
			log->free_ring[log->free_count++] = i;
	if (log->order_count == 0)
		atomic_store_explicit(&log->oldest, sequence, memory_order_release);
	pthread_mutex_lock(&log->lock);
	atomic_store_explicit(&flash->tail, tail, memory_order_release);
	log->started = true;
	pthread_mutex_unlock(&log->lock);
}

/* --- work --------------------------------------------------------------------------------- */

bool
log_work(struct flash *flash, uint64_t now_ns)
{
	struct log *log = flash->log;
	bool again;

	if (!log->started || !flash_alive(flash))
		return false;
	budget_work(flash, now_ns);
	append_recycle(flash, now_ns);
	append_write(flash, now_ns);
	region_seal_work(flash, now_ns);
	if (now_ns < log->calm_ns)
		return false;
	region_open_work(flash);
	again = reclaim_work(flash);
	/* What it freed is made ready at once. */
	region_open_work(flash);
	if (log->order_count == 0 && log->free_count == 0 && !log->finishing)
		flash_void(flash, "no region is left that can be written");
	return again;
}

int
log_timeout_ms(const struct flash *flash, uint64_t now_ns)
{
	struct log *log = flash->log;
	uint64_t least_ns = UINT64_MAX;

	pthread_mutex_lock(&log->lock);
	if (log->open) {
		uint64_t due_ns = log->open->begun_ns + PARTIAL_NS;

		least_ns = due_ns > now_ns ? due_ns - now_ns : PARTIAL_NS;
	}
	pthread_mutex_unlock(&log->lock);
	if (log->pause_until_ns > now_ns && log->pause_until_ns - now_ns < least_ns)
		least_ns = log->pause_until_ns - now_ns;
	if (log->calm_ns > now_ns && log->calm_ns - now_ns < least_ns)
		least_ns = log->calm_ns - now_ns;
	if (!flash_alive(flash) || least_ns == UINT64_MAX)
		return -1;
	return (int)((least_ns + 999999) / 1000000);
}

/* --- a clean stop ------------------------------------------------------------------------- */

static bool
is_quiet(struct flash *flash)
{
	struct log *log = flash->log;
	bool quiet;

	pthread_mutex_lock(&log->lock);
	if (log->reclaim.state == RECLAIM_IDLE)
		region_close(flash);
	quiet = !log->filling && log->writing == 0 && log->opening == OPENING_IDLE &&
		log->reclaim.state == RECLAIM_IDLE;
	for (unsigned i = 0; i < LISTS; i++)
		quiet &= log->lists[i].state == LIST_FREE;
	pthread_mutex_unlock(&log->lock);
	return quiet;
}

bool
log_finish(struct flash *flash, uint64_t (*now_ns)(void), uint64_t deadline_ns)
{
	struct log *log = flash->log;

	pthread_mutex_lock(&log->lock);
	log->finishing = true;
	pthread_mutex_unlock(&log->lock);
	while (!is_quiet(flash)) {
		uint64_t now = now_ns();

		if (now >= deadline_ns || !flash_alive(flash))
			return false;
		if (!flash_work(flash, now))
			flash->options.io->wait(flash->writer, 1);
	}
	return true;
}

/* Runs reclaim until a region is free. */
static void
make_free_region(struct flash *flash)
{
	struct log *log = flash->log;
	unsigned rounds = 0;

	log->making_room = true;
	while (log->free_count == 0 && rounds < ROUNDS && flash_alive(flash) &&
		(log->reclaim.state != RECLAIM_IDLE || region_oldest_sealed(flash) != UINT32_MAX)) {
		bool again = flash_work(flash, atomic_load(&flash->now_ns));

		if (!again)
			flash->options.io->wait(flash->writer, ROUND_MS);
		rounds = again ? 0 : rounds + 1;
	}
	log->making_room = false;
}

/* One that was made ready serves as well: nothing stands in it. */
static uint32_t
take_ready(struct flash *flash)
{
	struct log *log = flash->log;

	if (log->ready_count == 0)
		return UINT32_MAX;
	region_free(flash, log->ready[--log->ready_count], false);
	return region_take_free(flash);
}

static void
snapshot_header_written(struct flash *flash, struct write *write, int result)
{
	(void)flash;
	write->context = result == 0 ? write : NULL;
}

uint32_t
log_snapshot_region(struct flash *flash)
{
	struct log *log = flash->log;

	while (flash_alive(flash) && !log->snapshot_write.under_way) {
		uint32_t region = region_take_free(flash);
		uint64_t sequence;

		if (region == UINT32_MAX)
			region = take_ready(flash);
		if (region == UINT32_MAX) {
			make_free_region(flash);
			region = region_take_free(flash);
		}
		if (region == UINT32_MAX)
			return region;
		sequence = region_sequence_take(flash);
		region_begin(flash, region, sequence, REGION_SNAPSHOT);
		region_header_make(flash, log->snapshot_block, sequence, FLASH_REGION_SNAPSHOT,
			(uint32_t)(atomic_load(&flash->now_ns) / 1000000000u));
		log_submit(flash, &log->snapshot_write, IO_WRITE, region, 0, log->snapshot_block,
			FLASH_BLOCK, true, snapshot_header_written);
		if (!writer_finish(flash, &log->snapshot_write))
			return UINT32_MAX;
		if (log->snapshot_write.context)
			return region;
		region_free(flash, region, true);
	}
	return UINT32_MAX;
}

/* --- errors and statistics ---------------------------------------------------------------- */

void
log_region_error(struct flash *flash, uint32_t region)
{
	_Atomic uint16_t *errors = &flash->regions[region].errors;

	/* Its count stays where it is, so that it is a suspect once. */
	if (atomic_load(errors) >= REGION_ERRORS_MAX ||
		atomic_fetch_add(errors, 1) + 1 != REGION_ERRORS_MAX)
		return;
	atomic_fetch_add(&flash->log->suspects, 1);
	flash_wake(flash);
}

void
log_stats(const struct flash *flash, struct flash_stats *stats)
{
	struct log *log = flash->log;
	struct log_counts *counts = &log->counts;

	for (uint32_t i = 0; i < flash->region_count; i++) {
		uint8_t state = region_state(&flash->regions[i]);

		stats->regions_free +=
			state == REGION_FREE || state == REGION_OPENING || state == REGION_READY;
		stats->regions_sealed += state == REGION_SEALED;
		stats->regions_retired += state == REGION_RETIRED;
	}
	stats->sequence =
		flash_position_sequence(atomic_load_explicit(&flash->tail, memory_order_relaxed));
	stats->oldest_sequence = log_oldest_sequence(flash);
	stats->used_bytes = atomic_load(&counts->used_bytes);
	stats->items_written = atomic_load(&counts->items);
	stats->item_bytes_written = atomic_load(&counts->item_bytes);
	stats->items_reinserted = atomic_load(&counts->reinserted);
	stats->item_bytes_reinserted = atomic_load(&counts->reinserted_bytes);
	stats->items_dropped = atomic_load(&counts->dropped);
	stats->regions_reclaimed = atomic_load(&counts->reclaimed);
	stats->regions_hurried = atomic_load(&counts->hurried);
	stats->refused_budget = atomic_load(&counts->refused_budget);
	stats->refused_size = atomic_load(&counts->refused_size);
	stats->busy = atomic_load(&counts->busy);
	stats->buffer_hits = atomic_load(&counts->buffer_hits);
	stats->budget_bytes = log->budget.day;
	if (log->budget.day != 0 && atomic_load(&log->budget.left) > 0)
		stats->budget_left_bytes = (uint64_t)atomic_load(&log->budget.left);
	stats->memory_bytes += log->memory_bytes;
}

void
flash_look_at_region(
	const struct flash *flash, uint32_t region, uint64_t *sequence, uint32_t *bytes)
{
	const struct region *looked = &flash->regions[region];
	bool holds = region_is_readable(region_state(looked));

	*sequence = holds ? atomic_load_explicit(&looked->sequence, memory_order_acquire) : 0;
	*bytes = holds ? atomic_load_explicit(&looked->used, memory_order_relaxed) : 0;
}
