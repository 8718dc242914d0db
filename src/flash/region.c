/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * region: the lives of regions, as far as they are not reclaim's: void ones get a header with a new
 * sequence ahead of their use, full ones their footer. And where a position or a place is.
 */
#include "flash/log.h"

#include "base/check.h"
#include "base/rcu.h"

#include <string.h>

/* --- places and positions ----------------------------------------------------------------- */

/*
 * A slot for each of four times as many sequences as there are regions: a new sequence is taken
 * such that its slot is free, so that each is found at once. (Old ones that recovery finds may
 * collide, after a region was retired in a former life; then all are looked at.)
 */
uint32_t
log_region_of(const struct flash *flash, uint64_t sequence)
{
	const struct log *log = flash->log;
	uint32_t region =
		atomic_load_explicit(&log->slots[sequence & log->slot_mask], memory_order_acquire);

	if (sequence == 0)
		return UINT32_MAX;
	if (region != 0 && region_sequence(&flash->regions[region - 1]) == sequence)
		return region - 1;
	if (!atomic_load_explicit(&log->crowded, memory_order_relaxed))
		return UINT32_MAX;
	for (region = 0; region < flash->region_count; region++)
		if (region_sequence(&flash->regions[region]) == sequence)
			return region;
	return UINT32_MAX;
}

void
region_enter(struct flash *flash, uint32_t region, uint64_t sequence)
{
	struct log *log = flash->log;
	_Atomic uint32_t *slot = &log->slots[sequence & log->slot_mask];

	atomic_store_explicit(&flash->regions[region].sequence, sequence, memory_order_release);
	if (atomic_load_explicit(slot, memory_order_relaxed) == 0)
		atomic_store_explicit(slot, region + 1, memory_order_release);
	else
		atomic_store_explicit(&log->crowded, true, memory_order_relaxed);
}

static void
region_leave(struct flash *flash, uint32_t region)
{
	struct log *log = flash->log;
	uint64_t sequence = region_sequence(&flash->regions[region]);
	_Atomic uint32_t *slot = &log->slots[sequence & log->slot_mask];

	if (atomic_load_explicit(slot, memory_order_relaxed) == region + 1)
		atomic_store_explicit(slot, 0, memory_order_release);
	atomic_store_explicit(&flash->regions[region].sequence, 0, memory_order_release);
}

uint64_t
region_sequence_take(struct flash *flash)
{
	struct log *log = flash->log;
	uint64_t sequence = atomic_load_explicit(&log->sequence_next, memory_order_relaxed);

	while (atomic_load_explicit(&log->slots[sequence & log->slot_mask], memory_order_relaxed))
		sequence++;
	atomic_store_explicit(&log->sequence_next, sequence + 1, memory_order_release);
	return sequence;
}

uint64_t
flash_position(const struct flash *flash, uint32_t segment, uint32_t offset)
{
	uint32_t number = flash_region_of(segment);
	const struct region *region;
	uint64_t sequence;

	if (number >= flash->region_count)
		return 0;
	region = &flash->regions[number];
	sequence = region_sequence(region);
	return region_is_readable(region_state(region)) ? flash_position_make(sequence, offset) : 0;
}

bool
flash_place(const struct flash *flash, uint64_t position, uint32_t *segment, uint32_t *offset)
{
	uint32_t region = log_region_of(flash, flash_position_sequence(position));
	uint8_t state;

	if (region == UINT32_MAX)
		return false;
	state = region_state(&flash->regions[region]);
	*segment = flash_segment(region);
	*offset = flash_position_offset(position);
	return state == REGION_OPEN || state == REGION_SEALING || state == REGION_SEALED;
}

bool
flash_believed(const struct flash *flash, uint64_t position)
{
	uint32_t region = log_region_of(flash, flash_position_sequence(position));

	return region != UINT32_MAX && !flash_voided(flash) &&
	       region_is_readable(region_state(&flash->regions[region]));
}

uint32_t
flash_opened_s(const struct flash *flash, uint32_t segment)
{
	uint32_t number = flash_region_of(segment);

	return number < flash->region_count ? flash->regions[number].opened_s : 0;
}

uint64_t
log_oldest_sequence(const struct flash *flash)
{
	return atomic_load_explicit(&flash->log->oldest, memory_order_acquire);
}

uint64_t
log_sequence_next(const struct flash *flash)
{
	return atomic_load_explicit(&flash->log->sequence_next, memory_order_acquire);
}

/* --- the order of sequences --------------------------------------------------------------- */

static uint32_t *
order_at(struct flash *flash, uint32_t i)
{
	struct log *log = flash->log;

	return &log->order[(log->order_first + i) % flash->region_count];
}

static void
set_oldest(struct flash *flash)
{
	struct log *log = flash->log;
	uint64_t oldest = log->order_count > 0
				  ? region_sequence(&flash->regions[*order_at(flash, 0)])
				  : atomic_load(&log->sequence_next);

	atomic_store_explicit(&log->oldest, oldest, memory_order_release);
}

/* Nearly always the first. */
static void
order_remove(struct flash *flash, uint32_t region)
{
	struct log *log = flash->log;
	uint32_t at = 0;

	while (at < log->order_count && *order_at(flash, at) != region)
		at++;
	if (at == log->order_count)
		return;
	for (; at > 0; at--)
		*order_at(flash, at) = *order_at(flash, at - 1);
	log->order_first = (log->order_first + 1) % flash->region_count;
	log->order_count--;
}

uint32_t
region_oldest_sealed(const struct flash *flash)
{
	struct flash *mine = (struct flash *)(uintptr_t)flash;
	uint32_t region;

	if (flash->log->order_count == 0)
		return UINT32_MAX;
	region = *order_at(mine, 0);
	return region_state(&flash->regions[region]) == REGION_SEALED ? region : UINT32_MAX;
}

void
region_begin(struct flash *flash, uint32_t region, uint64_t sequence, enum region_state state)
{
	struct log *log = flash->log;

	region_enter(flash, region, sequence);
	region_set_state(&flash->regions[region], state);
	if (state == REGION_SNAPSHOT || state == REGION_RETIRED)
		return;
	check(log->order_count < flash->region_count);
	*order_at(flash, log->order_count++) = region;
	set_oldest(flash);
}

uint32_t
region_take_free(struct flash *flash)
{
	struct log *log = flash->log;
	uint32_t region;

	if (log->free_count == 0)
		return UINT32_MAX;
	region = log->free_ring[log->free_first];
	log->free_first = (log->free_first + 1) % flash->region_count;
	log->free_count--;
	return region;
}

void
region_free(struct flash *flash, uint32_t region, bool retire)
{
	struct log *log = flash->log;
	struct region *freed = &flash->regions[region];

	/* No reader holds a place of this life when the next begins. */
	rcu_synchronize();
	atomic_fetch_sub(&log->counts.used_bytes, freed->used);
	if (atomic_exchange(&freed->errors, 0) >= REGION_ERRORS_MAX)
		atomic_fetch_sub(&log->suspects, 1);
	freed->used = 0;
	order_remove(flash, region);
	region_leave(flash, region);
	set_oldest(flash);
	region_set_state(freed, retire ? REGION_RETIRED : REGION_FREE);
	if (retire) {
		flash_say(flash, 4, "flash: region %u fails and is used no more", region);
		return;
	}
	log->free_ring[(log->free_first + log->free_count++) % flash->region_count] = region;
}

uint32_t
region_void_count(const struct flash *flash)
{
	struct log *log = flash->log;
	uint32_t count = log->free_count + (log->opening != OPENING_IDLE);

	pthread_mutex_lock(&log->lock);
	count += log->ready_count;
	pthread_mutex_unlock(&log->lock);
	return count;
}

/* --- headers ------------------------------------------------------------------------------ */

void
region_header_make(struct flash *flash, uint8_t *block, uint64_t sequence,
	enum flash_region_kind kind, uint32_t opened_s)
{
	struct flash_region_header *header = (void *)block;

	memset(block, 0, FLASH_BLOCK);
	header->magic = FLASH_REGION_MAGIC;
	header->version = FLASH_VERSION;
	memcpy(header->id, flash->id, sizeof header->id);
	header->sequence = sequence;
	header->kind = kind;
	header->opened_s = opened_s;
	layout_region_seal(header);
}

static void
opened(struct flash *flash, struct write *write, int result)
{
	struct log *log = flash->log;

	(void)write;
	if (result != 0)
		log_trouble(flash);
	if (result != 0 && log->opening_tries < WRITE_TRIES) {
		log->opening = OPENING_AGAIN;
		return;
	}
	log->opening = OPENING_IDLE;
	if (result != 0) {
		region_free(flash, log->reopening, true);
		return;
	}
	pthread_mutex_lock(&log->lock);
	region_set_state(&flash->regions[log->reopening], REGION_READY);
	log->ready[log->ready_count++] = log->reopening;
	pthread_mutex_unlock(&log->lock);
	log_room(flash);
}

static void
write_opening(struct flash *flash)
{
	struct log *log = flash->log;

	log->opening = OPENING_WRITING;
	log->opening_tries++;
	log_submit(flash, &log->opening_write, IO_WRITE, log->reopening, 0, log->opening_block,
		FLASH_BLOCK, true, opened);
}

/* One at a time: they must be ready in the order of their sequences. */
void
region_open_work(struct flash *flash)
{
	struct log *log = flash->log;
	struct region *region;
	uint64_t sequence;
	bool enough;

	if (log->opening == OPENING_AGAIN)
		write_opening(flash);
	pthread_mutex_lock(&log->lock);
	enough = log->ready_count >= log->ahead_ready;
	pthread_mutex_unlock(&log->lock);
	if (enough || log->opening != OPENING_IDLE || log->free_count == 0 || log->finishing)
		return;
	log->reopening = region_take_free(flash);
	region = &flash->regions[log->reopening];
	region->opened_s = (uint32_t)(atomic_load(&flash->now_ns) / 1000000000u);
	region->entries = 0;
	region->used = 0;
	sequence = region_sequence_take(flash);
	region_begin(flash, log->reopening, sequence, REGION_OPENING);
	region_header_make(
		flash, log->opening_block, sequence, FLASH_REGION_DATA, region->opened_s);
	log->opening_tries = 0;
	write_opening(flash);
}

bool
region_open(struct flash *flash)
{
	struct log *log = flash->log;
	struct list *list = log->lists;

	while (list < log->lists + LISTS && list->state != LIST_FREE)
		list++;
	if (list == log->lists + LISTS || log->ready_count == 0)
		return false;
	list->region = log->ready[0];
	list->state = LIST_OPEN;
	list->entries = (void *)list->bytes;
	list->count = 0;
	list->chunks = 0;
	list->used = FLASH_BLOCK;
	list->tries = 0;
	list->made = false;
	log->ready_count--;
	memmove(log->ready, log->ready + 1, log->ready_count * sizeof *log->ready);
	log->filling = list;
	region_set_state(&flash->regions[list->region], REGION_OPEN);
	return true;
}

/* --- footers ------------------------------------------------------------------------------ */

void
region_close(struct flash *flash)
{
	struct log *log = flash->log;
	struct list *list = log->filling;
	struct region *region;

	if (!list)
		return;
	append_close(flash);
	region = &flash->regions[list->region];
	region->entries = list->count;
	region->used = list->used;
	log_count(&log->counts.used_bytes, list->used);
	region_set_state(region, REGION_SEALING);
	list->state = LIST_DRAINING;
	log->filling = NULL;
	flash_wake(flash);
}

void
region_fail(struct flash *flash, struct list *list)
{
	if (list->state == LIST_OPEN)
		region_close(flash);
	list->state = LIST_FAILED;
	append_hold(flash, list->region);
}

/* Moves the entries to where they end in front of the trailer, which ends the last block. */
static uint32_t
footer_make(struct flash *flash, struct list *list)
{
	uint32_t bytes = footer_bytes(list->count);
	uint32_t entries_bytes = list->count * (uint32_t)sizeof *list->entries;
	struct flash_footer *footer = (void *)(list->bytes + bytes - sizeof *footer);
	uint8_t *first = (uint8_t *)footer - entries_bytes;

	if (list->made)
		return bytes;
	list->made = true;
	memmove(first, list->bytes, entries_bytes);
	memset(list->bytes, 0, (size_t)(first - list->bytes));
	list->entries = (void *)first;
	*footer = (struct flash_footer){
		.magic = FLASH_FOOTER_MAGIC,
		.sequence = region_sequence(&flash->regions[list->region]),
		.entries = list->count,
		.used = list->used,
	};
	layout_footer_seal(footer, flash->id);
	return bytes;
}

static void footer_written(struct flash *flash, struct write *write, int result);

static void
footer_write(struct flash *flash, struct list *list)
{
	uint32_t bytes = footer_make(flash, list);

	list->state = LIST_WRITING;
	list->tries++;
	list->write.context = list;
	log_submit(flash, &list->write, IO_WRITE, list->region, flash->region_bytes - bytes,
		list->bytes, bytes, true, footer_written);
}

/* What the footer promises is on the medium. */
static void
flushed(struct flash *flash, struct write *write, int result)
{
	struct list *list = write->context;

	pthread_mutex_lock(&flash->log->lock);
	if (result == 0) {
		footer_write(flash, list);
	} else {
		log_trouble(flash);
		region_fail(flash, list);
	}
	pthread_mutex_unlock(&flash->log->lock);
}

static void
footer_written(struct flash *flash, struct write *write, int result)
{
	struct log *log = flash->log;
	struct list *list = write->context;

	pthread_mutex_lock(&log->lock);
	if (result == 0) {
		region_set_state(&flash->regions[list->region], REGION_SEALED);
		list->state = LIST_FREE;
	} else {
		log_trouble(flash);
		if (list->tries < WRITE_TRIES)
			list->state = LIST_AGAIN;
		else
			region_fail(flash, list);
	}
	pthread_mutex_unlock(&log->lock);
	log_room(flash);
}

void
region_seal_work(struct flash *flash, uint64_t now_ns)
{
	struct log *log = flash->log;

	pthread_mutex_lock(&log->lock);
	for (unsigned i = 0; i < LISTS; i++) {
		struct list *list = &log->lists[i];

		if (list->state == LIST_AGAIN && now_ns >= log->calm_ns)
			footer_write(flash, list);
		if (list->state != LIST_DRAINING || list->chunks > 0)
			continue;
		list->state = LIST_FLUSHING;
		list->write.context = list;
		log_submit(flash, &list->write, IO_FLUSH, list->region, 0, NULL, 0, false, flushed);
	}
	pthread_mutex_unlock(&log->lock);
}
