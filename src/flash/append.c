/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * append: places in the log, the chunks that hold what isn't written yet, their writes.
 *
 * The mutex is held from flash_reserve to flash_commit, that is while one item is copied: so a
 * chunk that is closed has no hole, and the tail rises in the order in which places are given.
 */
#include "flash/log.h"

#include "base/check.h"
#include "base/rcu.h"
#include "store/item_hd.h"

#include <string.h>

#define FILLER_RECORD_MIN 2048 /* shorter items aren't worth a filler, */
#define FILLER_SHARE 16	       /* longer ones so small a part of them */

void
log_lock(struct flash *flash)
{
	pthread_mutex_lock(&flash->log->lock);
}

void
log_unlock(struct flash *flash)
{
	pthread_mutex_unlock(&flash->log->lock);
}

static struct list *
list_of(struct log *log, uint32_t region)
{
	for (unsigned i = 0; i < LISTS; i++)
		if (log->lists[i].state != LIST_FREE && log->lists[i].region == region)
			return &log->lists[i];
	return NULL;
}

/* --- places ------------------------------------------------------------------------------- */

/*
 * Bytes to leave free so that reading the record takes a sector less. A read asks for the sectors
 * that its size class touches; from a sector's beginning they are the fewest.
 */
static uint32_t
filler_before(const struct flash *flash, uint32_t offset, uint32_t bytes, uint32_t record)
{
	uint32_t block = flash->block, into = offset % block, asked;

	if (record < FILLER_RECORD_MIN || into == 0 || block - into > record / FILLER_SHARE)
		return 0;
	asked = bucket_class_bytes(bucket_class_of(bytes + LAYOUT_ITEM_SUM));
	if (asked == 0)
		asked = record;
	return (into + asked + block - 1) / block > (asked + block - 1) / block ? block - into : 0;
}

/* Would the region still have room for its footer after a record at 'offset'? */
static bool
region_fits(const struct flash *flash, const struct list *list, uint32_t offset, uint32_t record)
{
	return list->count < flash->log->entries_max &&
	       (uint64_t)round_up(offset + record, FLASH_BLOCK) + footer_bytes(list->count + 1) <=
		       flash->region_bytes;
}

static bool
chunk_fits(const struct flash *flash, const struct chunk *chunk, uint32_t record)
{
	return chunk->used + record <= flash->log->chunk_bytes &&
	       region_fits(flash, flash->log->filling, chunk->offset + chunk->used, record);
}

void
append_close(struct flash *flash)
{
	struct log *log = flash->log;
	struct chunk *chunk = log->open;
	struct flash_append_header *header;
	uint32_t bytes;

	if (!chunk)
		return;
	log->open = NULL;
	if (chunk->used == APPEND_HEADER) {
		atomic_store_explicit(&chunk->begin, 0, memory_order_release);
		chunk->state = CHUNK_WRITTEN; /* nothing was read here, but somebody may look */
		log->filling->chunks--;
		return;
	}
	bytes = round_up(chunk->used, FLASH_BLOCK);
	memset(chunk->data + chunk->used, 0, bytes - chunk->used);
	header = (void *)chunk->data;
	*header = (struct flash_append_header){
		.magic = FLASH_APPEND_MAGIC,
		.bytes = bytes,
		.items = chunk->items,
		.sequence = region_sequence(&flash->regions[chunk->region]),
		.offset = chunk->offset,
	};
	chunk->state = CHUNK_FULL;
	log->filling->used = chunk->offset + bytes;
	flash_wake(flash);
}

static bool
chunk_open(struct flash *flash, bool reinsertion)
{
	struct log *log = flash->log;
	struct list *list = log->filling;
	struct chunk *chunk = log->chunks;
	uint64_t begin;

	if (log->free_chunks <= (log->reinserting && !reinsertion))
		return false;
	while (chunk->state != CHUNK_FREE)
		chunk++;
	log->free_chunks--;
	chunk->state = CHUNK_OPEN;
	chunk->region = list->region;
	chunk->offset = list->used;
	chunk->used = APPEND_HEADER;
	chunk->items = 0;
	chunk->tries = 0;
	chunk->begun_ns = atomic_load_explicit(&flash->now_ns, memory_order_relaxed);
	begin = flash_position_make(
		region_sequence(&flash->regions[list->region]), chunk->offset / ITEM_ALIGN);
	/* In this order: who sees the new begin must not meet an end of before. */
	atomic_store_explicit(&chunk->end, begin, memory_order_release);
	atomic_store_explicit(&chunk->begin, begin, memory_order_release);
	list->chunks++;
	log->open = chunk;
	flash_wake(flash); /* it must be seen growing old, and regions be had ready */
	return true;
}

/* With the mutex: an open chunk in which the record has room. */
static bool
make_room(struct flash *flash, uint32_t record, bool reinsertion)
{
	struct log *log = flash->log;

	if (log->open && chunk_fits(flash, log->open, record))
		return true;
	append_close(flash);
	if (log->filling &&
		!region_fits(flash, log->filling, log->filling->used + APPEND_HEADER, record))
		region_close(flash);
	if (!log->filling) {
		if (log->ready_count <= (log->reinserting && !reinsertion) || !region_open(flash))
			return false;
	}
	return chunk_open(flash, reinsertion);
}

enum flash_status
flash_reserve(struct flash *flash, uint32_t bytes, bool reinsertion, struct flash_place_in *place)
{
	struct log *log = flash->log;
	uint32_t record = layout_record_bytes(bytes), filler, offset;
	struct chunk *chunk;

	if (!flash_alive(flash))
		return FLASH_REFUSED;
	if (record > log->record_max) {
		log_count(&log->counts.refused_size, 1);
		return FLASH_REFUSED;
	}
	pthread_mutex_lock(&log->lock);
	if (!log->started || (log->finishing && !reinsertion)) {
		pthread_mutex_unlock(&log->lock);
		return FLASH_REFUSED;
	}
	if (!make_room(flash, record, reinsertion)) {
		/* By the mutex: what makes room comes after it, and sees it. */
		bool first = !atomic_exchange(&log->busy, true);

		pthread_mutex_unlock(&log->lock);
		log_count(&log->counts.busy, 1);
		if (first)
			flash_wake(flash);
		return FLASH_BUSY;
	}
	chunk = log->open;
	filler = filler_before(flash, chunk->offset + chunk->used, bytes, record);
	if (filler != 0 && chunk_fits(flash, chunk, filler + record)) {
		layout_filler_make(chunk->data + chunk->used, filler);
		chunk->used += filler;
	}
	offset = chunk->offset + chunk->used;
	place->item = (void *)(chunk->data + chunk->used);
	place->segment = flash_segment(chunk->region);
	place->offset = offset / ITEM_ALIGN;
	place->position =
		flash_position_make(region_sequence(&flash->regions[chunk->region]), place->offset);
	place->opened_s = flash->regions[chunk->region].opened_s;
	place->bytes = bytes;
	place->record = record;
	place->chunk = chunk;
	chunk->used += record;
	log->reinsertion = reinsertion;
	atomic_store_explicit(
		&flash->tail, place->position + record / ITEM_ALIGN, memory_order_release);
	return FLASH_DONE;
}

void
flash_commit(struct flash *flash, const struct flash_place_in *place, uint64_t hash,
	uint32_t size_class, uint32_t expiry_s)
{
	struct log *log = flash->log;
	struct chunk *chunk = place->chunk;
	struct list *list = log->filling;

	check(chunk == log->open && list->region == chunk->region);
	layout_item_seal(
		place->item, place->bytes, flash->id, flash_position_sequence(place->position));
	list->entries[list->count++] = (struct flash_footer_entry){
		.hash = hash,
		.place = place->offset | size_class << FLASH_OFFSET_BITS,
		.expiry = expiry_s,
	};
	chunk->items++;
	atomic_store_explicit(
		&chunk->end, place->position + place->record / ITEM_ALIGN, memory_order_release);
	log_count(log->reinsertion ? &log->counts.reinserted : &log->counts.items, 1);
	log_count(log->reinsertion ? &log->counts.reinserted_bytes : &log->counts.item_bytes,
		place->bytes);
	pthread_mutex_unlock(&log->lock);
}

void
flash_abandon(struct flash *flash, const struct flash_place_in *place)
{
	layout_filler_make(place->item, place->record);
	pthread_mutex_unlock(&flash->log->lock);
}

uint32_t
log_buffered(struct flash *flash, uint64_t position, void *to, uint32_t room)
{
	struct log *log = flash->log;

	for (uint32_t i = 0; i < log->chunk_count; i++) {
		struct chunk *chunk = &log->chunks[i];
		uint64_t begin = atomic_load_explicit(&chunk->begin, memory_order_acquire);
		uint64_t end = atomic_load_explicit(&chunk->end, memory_order_acquire);

		if (begin == 0 || position < begin || position >= end)
			continue;

		const uint8_t *from = chunk->data + (position - begin) * ITEM_ALIGN;
		uint32_t bytes = layout_item_bytes(
			(const void *)from, chunk->data + log->chunk_bytes - from);

		if (bytes != 0 && bytes <= room) {
			memcpy(to, from, bytes);
			log_count(&log->counts.buffer_hits, 1);
		}
		return bytes;
	}
	return 0;
}

/* With the mutex: does a region that is open, or can be, take a record in a new chunk? */
static enum flash_status
region_room(struct flash *flash, uint32_t record)
{
	struct log *log = flash->log;
	bool listed = false, sealing = false;
	uint32_t at = log->filling ? log->filling->used : 0;

	if (log->open && log->open->used > APPEND_HEADER)
		at = round_up(log->open->offset + log->open->used, FLASH_BLOCK);
	if (log->filling && region_fits(flash, log->filling, at + APPEND_HEADER, record))
		return FLASH_DONE;
	if (log->ready_count == 0)
		return log->free_count > 0 || log->opening != OPENING_IDLE ? FLASH_BUSY
									   : FLASH_REFUSED;
	for (unsigned i = 0; i < LISTS; i++) {
		listed |= log->lists[i].state == LIST_FREE;
		sealing |= log->lists[i].state > LIST_OPEN && log->lists[i].state < LIST_FAILED;
	}
	return listed ? FLASH_DONE : sealing ? FLASH_BUSY : FLASH_REFUSED;
}

enum flash_status
append_room(struct flash *flash, uint32_t record)
{
	struct log *log = flash->log;
	enum flash_status status;
	bool soon = false;

	pthread_mutex_lock(&log->lock);
	for (uint32_t i = 0; i < log->chunk_count; i++)
		soon |= log->chunks[i].state == CHUNK_FULL ||
			log->chunks[i].state == CHUNK_WRITING ||
			log->chunks[i].state == CHUNK_WRITTEN;
	status = region_room(flash, record);
	if (status == FLASH_DONE && log->free_chunks == 0)
		status = soon ? FLASH_BUSY : FLASH_REFUSED;
	if (log->open && chunk_fits(flash, log->open, record))
		status = FLASH_DONE;
	if (!log->started || !flash_alive(flash))
		status = FLASH_REFUSED;
	pthread_mutex_unlock(&log->lock);
	return status;
}

/* --- chunks ------------------------------------------------------------------------------- */

static bool
is_old(const struct chunk *chunk, uint64_t now_ns)
{
	uint64_t age_ns = now_ns > chunk->begun_ns ? now_ns - chunk->begun_ns : 0;

	return chunk->used > APPEND_HEADER &&
	       age_ns >= (chunk->used >= PARTIAL_BYTES ? PARTIAL_NS : STALE_NS);
}

void
append_recycle(struct flash *flash, uint64_t now_ns)
{
	struct log *log = flash->log;
	struct chunk *spent[CHUNKS_MAX];
	uint32_t count = 0;

	pthread_mutex_lock(&log->lock);
	if (log->open && is_old(log->open, now_ns))
		append_close(flash);
	if (log->free_chunks <= (log->chunk_count + 3) / 4)
		for (uint32_t i = 0; i < log->chunk_count; i++)
			if (log->chunks[i].state == CHUNK_WRITTEN)
				spent[count++] = &log->chunks[i];
	pthread_mutex_unlock(&log->lock);
	if (count == 0)
		return;
	for (uint32_t i = 0; i < count; i++)
		atomic_store_explicit(&spent[i]->begin, 0, memory_order_release);
	rcu_synchronize();
	pthread_mutex_lock(&log->lock);
	for (uint32_t i = 0; i < count; i++)
		spent[i]->state = CHUNK_FREE;
	log->free_chunks += count;
	pthread_mutex_unlock(&log->lock);
	log_room(flash);
}

static void
written(struct flash *flash, struct write *write, int result)
{
	struct log *log = flash->log;
	struct chunk *chunk = write->context;
	uint64_t now_ns = atomic_load_explicit(&flash->now_ns, memory_order_relaxed);
	struct list *list;

	log->writing--;
	log->write_ns = now_ns - write->submitted_ns;
	log->pause_until_ns =
		now_ns + (log->write_ns < PAUSE_MAX_NS ? log->write_ns : PAUSE_MAX_NS);
	pthread_mutex_lock(&log->lock);
	list = list_of(log, chunk->region);
	check(list);
	if (result == 0) {
		chunk->state = CHUNK_WRITTEN;
		list->chunks--;
	} else {
		log_trouble(flash);
		chunk->state = chunk->tries < WRITE_TRIES && list->state != LIST_FAILED
				       ? CHUNK_FULL
				       : CHUNK_HELD;
	}
	if (chunk->state == CHUNK_HELD)
		region_fail(flash, list);
	pthread_mutex_unlock(&log->lock);
}

/* The oldest that waits to be written. */
static struct chunk *
next_full(struct log *log)
{
	struct chunk *first = NULL;

	for (uint32_t i = 0; i < log->chunk_count; i++) {
		struct chunk *chunk = &log->chunks[i];

		if (chunk->state == CHUNK_FULL &&
			(!first || atomic_load(&chunk->begin) < atomic_load(&first->begin)))
			first = chunk;
	}
	return first;
}

void
append_write(struct flash *flash, uint64_t now_ns)
{
	struct log *log = flash->log;
	uint32_t most = WRITES_MAX;

	if (reads_recent_us(flash) > flash->options.read_target_us && !log->finishing)
		most = 1;
	while (log->writing < WRITES_MAX) {
		struct chunk *chunk;

		pthread_mutex_lock(&log->lock);
		chunk = next_full(log);
		/* Readers go first, until staging would have to wait. */
		if (chunk && log->free_chunks > 0 && most == 1 &&
			(log->writing >= most || now_ns < log->pause_until_ns))
			chunk = NULL;
		if (chunk && chunk->tries > 0 && now_ns < log->calm_ns)
			chunk = NULL;
		if (chunk)
			chunk->state = CHUNK_WRITING;
		pthread_mutex_unlock(&log->lock);
		if (!chunk)
			return;
		if (chunk->tries++ == 0)
			layout_append_seal(chunk->data, flash->id);
		log->writing++;
		chunk->write.context = chunk;
		log_submit(flash, &chunk->write, IO_WRITE, chunk->region, chunk->offset,
			chunk->data, ((struct flash_append_header *)(void *)chunk->data)->bytes,
			false, written);
	}
}

void
append_hold(struct flash *flash, uint32_t region)
{
	struct log *log = flash->log;

	for (uint32_t i = 0; i < log->chunk_count; i++)
		if (log->chunks[i].region == region && log->chunks[i].state == CHUNK_FULL)
			log->chunks[i].state = CHUNK_HELD;
}

void
append_release(struct flash *flash, uint32_t region)
{
	struct log *log = flash->log;

	pthread_mutex_lock(&log->lock);
	for (uint32_t i = 0; i < log->chunk_count; i++)
		if (log->chunks[i].region == region && log->chunks[i].state == CHUNK_HELD)
			log->chunks[i].state = CHUNK_WRITTEN;
	pthread_mutex_unlock(&log->lock);
}

bool
append_under_way(const struct flash *flash, uint32_t region)
{
	struct log *log = flash->log;
	bool under_way = false;

	pthread_mutex_lock(&log->lock);
	for (uint32_t i = 0; i < log->chunk_count; i++)
		under_way |=
			log->chunks[i].state == CHUNK_WRITING && log->chunks[i].region == region;
	pthread_mutex_unlock(&log->lock);
	return under_way;
}
