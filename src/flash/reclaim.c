/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * reclaim: the oldest region leaves, its best items are copied on. One region at a time:
 *
 *	footer read -> reads asked of the index -> the best fetched -> VOIDING: FREE header durable
 *	-> CLEARING: entries moved or dropped -> free
 *
 * Copies are made after the old ones are void: there are never two that a recovery would believe. A
 * region that fails goes the same way, without copies, and is retired.
 */
#include "flash/log.h"

#include "store/item_hd.h"

#include <string.h>

#define PERCENT_MAX 50
#define SCALE_BITS 24 /* reads per byte, as an integer */

static uint32_t
footer_room(const struct flash *flash)
{
	return footer_bytes(flash->region_bytes / ENTRY_BYTES);
}

static uint32_t
kept_room(const struct flash *flash)
{
	uint32_t percent = flash->options.reinsert_percent;

	if (percent > PERCENT_MAX)
		percent = PERCENT_MAX;
	return round_up(flash->region_bytes / 100 * percent, FLASH_BLOCK);
}

static uint32_t
window_room(const struct flash *flash)
{
	uint32_t longest = flash->log->chunk_bytes + 2 * FLASH_BLOCK;

	return longest > WINDOW_BYTES ? longest : WINDOW_BYTES;
}

uint32_t
reclaim_bytes(struct flash *flash)
{
	return footer_room(flash) + kept_room(flash) + window_room(flash) + FLASH_BLOCK;
}

uint32_t
reclaim_spare_bytes(struct flash *flash)
{
	return footer_room(flash) - flash->log->list_bytes;
}

void
reclaim_create(struct flash *flash, uint8_t *area)
{
	struct reclaim *reclaim = &flash->log->reclaim;

	reclaim->footer = area;
	reclaim->kept = area + footer_room(flash);
	reclaim->kept_bytes = kept_room(flash);
	reclaim->window = reclaim->kept + reclaim->kept_bytes;
	reclaim->window_bytes = window_room(flash);
	reclaim->block = reclaim->window + reclaim->window_bytes;
}

/* --- entries ------------------------------------------------------------------------------ */

static uint32_t
entry_offset(const struct flash_footer_entry *entry)
{
	return entry->place & BUCKET_OFFSET_MAX;
}

/* Bytes of the region that hold the entry's record, and perhaps some more. */
static uint32_t
entry_bytes(const struct flash *flash, uint32_t i)
{
	const struct reclaim *reclaim = &flash->log->reclaim;
	const struct flash_footer_entry *entry = &reclaim->entries[i];
	uint32_t from = entry_offset(entry) * ITEM_ALIGN;
	uint32_t to = i + 1 < reclaim->count ? entry_offset(entry + 1) * ITEM_ALIGN
					     : flash->regions[reclaim->region].used;
	uint32_t asked =
		round_up(bucket_class_bytes(entry->place >> FLASH_OFFSET_BITS & 0x3f), ITEM_ALIGN);

	if (to <= from || to > flash->region_bytes)
		return 0; /* the checksum was right, so that nobody made this but us */
	return asked != 0 && asked < to - from ? asked : to - from;
}

static bool
entry_is_dead(const struct flash *flash, const struct flash_footer_entry *entry)
{
	uint32_t now_s = (uint32_t)(atomic_load(&flash->now_ns) / 1000000000u);

	return (entry->expiry != 0 && entry->expiry <= now_s) ||
	       flash_position_make(flash->log->reclaim.sequence, entry_offset(entry)) <
		       atomic_load_explicit(&flash->flush_position, memory_order_acquire);
}

/* Reads per byte on a scale of half powers of two. */
static uint32_t
finger_of(uint32_t reads, uint32_t bytes)
{
	uint64_t value = ((uint64_t)bucket_reads_estimate(reads) << SCALE_BITS) / (bytes | 1) + 1;
	uint32_t log2 = hd_log2(value), finger = 2 * log2;

	if (log2 > 0)
		finger += value >> (log2 - 1) & 1;
	return finger < FINGERS ? finger : FINGERS - 1;
}

static uint32_t
entry_finger(const struct flash *flash, uint32_t i)
{
	return finger_of(flash->log->reclaim.entries[i].place >> ENTRY_READS_SHIFT & 0xf,
		entry_bytes(flash, i));
}

/* --- which region ------------------------------------------------------------------------- */

static void
set_reinserting(struct flash *flash, bool reinserting)
{
	pthread_mutex_lock(&flash->log->lock);
	flash->log->reinserting = reinserting;
	pthread_mutex_unlock(&flash->log->lock);
	if (!reinserting)
		log_room(flash);
}

static void
begin(struct flash *flash, uint32_t region, bool retire, bool keep)
{
	struct reclaim *reclaim = &flash->log->reclaim;

	reclaim->region = region;
	reclaim->sequence = region_sequence(&flash->regions[region]);
	reclaim->retire = retire;
	reclaim->keep = keep && reclaim->kept_bytes > 0;
	reclaim->unlisted = false;
	reclaim->tries = 0;
	reclaim->troubled = false;
	reclaim->list = NULL;
	reclaim->next = 0;
	reclaim->kept_used = 0;
	reclaim->kept_next = 0;
	/* Early, so that what is chosen will surely find room. */
	set_reinserting(flash, reclaim->keep);
}

/* A region that was never sealed, whose writes failed and are all back. */
static struct list *
failed_list(struct flash *flash)
{
	struct log *log = flash->log;
	struct list *found = NULL;

	pthread_mutex_lock(&log->lock);
	for (unsigned i = 0; i < LISTS; i++)
		if (log->lists[i].state == LIST_FAILED && !log->lists[i].write.under_way)
			found = &log->lists[i];
	pthread_mutex_unlock(&log->lock);
	return found && !append_under_way(flash, found->region) ? found : NULL;
}

static uint32_t
suspect(struct flash *flash)
{
	struct log *log = flash->log;

	if (atomic_load_explicit(&log->suspects, memory_order_relaxed) == 0)
		return UINT32_MAX;
	for (uint32_t i = 0; i < flash->region_count; i++)
		if (region_state(&flash->regions[i]) == REGION_SEALED &&
			atomic_load(&flash->regions[i].errors) >= REGION_ERRORS_MAX)
			return i;
	return UINT32_MAX;
}

/* The journal's ring is nearly full: the oldest region goes, though it isn't full yet. */
static void
close_oldest(struct flash *flash)
{
	struct log *log = flash->log;

	pthread_mutex_lock(&log->lock);
	if (log->filling && region_sequence(&flash->regions[log->filling->region]) ==
				    log_oldest_sequence(flash))
		region_close(flash);
	pthread_mutex_unlock(&log->lock);
}

static void footer_ask(struct flash *flash);
static void void_begin(struct flash *flash);

/* Is there anything to be reclaimed? Begins with it. */
static bool
choose_region(struct flash *flash)
{
	struct log *log = flash->log;
	struct list *list = failed_list(flash);
	bool hurried;
	uint32_t region;

	if (list) {
		begin(flash, list->region, true, false);
		log->reclaim.list = list;
		log->reclaim.entries = list->entries;
		log->reclaim.count = list->count;
		void_begin(flash);
		return true;
	}
	if (log->finishing && !log->making_room)
		return false;
	region = suspect(flash);
	if (region != UINT32_MAX) {
		begin(flash, region, true, false);
		footer_ask(flash);
		return true;
	}
	hurried = journal_wants_room(flash);
	if (log->making_room ? log->free_count > 0
			     : !hurried && region_void_count(flash) >= log->ahead)
		return false;
	region = region_oldest_sealed(flash);
	if (region == UINT32_MAX) {
		if (hurried)
			close_oldest(flash);
		return false;
	}
	if (hurried)
		log_count(&log->counts.hurried, 1);
	begin(flash, region, false, !hurried && !log->making_room);
	footer_ask(flash);
	return true;
}

/* --- footer ------------------------------------------------------------------------------- */

static void
io_done(struct flash *flash, struct write *write, int result)
{
	(void)write;
	flash->log->reclaim.result = result;
}

static void
footer_ask(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;
	uint32_t entries = flash->regions[reclaim->region].entries;

	reclaim->state = RECLAIM_FOOTER;
	reclaim->tries++;
	if (entries > flash->region_bytes / ENTRY_BYTES)
		entries = 0; /* no footer of ours; it will be found wrong */
	reclaim->footer_bytes = footer_bytes(entries);
	log_submit(flash, &reclaim->write, IO_READ, reclaim->region,
		flash->region_bytes - reclaim->footer_bytes, reclaim->footer, reclaim->footer_bytes,
		false, io_done);
}

static bool
footer_take(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;
	const struct flash_footer *footer =
		(const void *)(reclaim->footer + reclaim->footer_bytes - sizeof *footer);

	if (reclaim->result != 0 ||
		!layout_footer_valid(footer, flash->region_bytes, flash->id, reclaim->sequence) ||
		footer_bytes(footer->entries) != reclaim->footer_bytes ||
		!layout_footer_whole(footer, flash->id))
		return false;
	reclaim->count = footer->entries;
	reclaim->entries =
		(void *)((uint8_t *)(uintptr_t)footer - reclaim->count * sizeof *reclaim->entries);
	return true;
}

static void
footer_work(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;

	if (footer_take(flash)) {
		reclaim->tries = 0;
		memset(reclaim->finger_bytes, 0, sizeof reclaim->finger_bytes);
		if (reclaim->keep)
			reclaim->state = RECLAIM_CHOOSING;
		else
			void_begin(flash);
	} else if (reclaim->tries < WRITE_TRIES) {
		footer_ask(flash);
	} else {
		flash_say(flash, 4,
			"flash: the list of region %u's items is bad: the index is searched",
			reclaim->region);
		reclaim->unlisted = true;
		reclaim->count = 0;
		void_begin(flash);
	}
}

/* --- choosing and fetching ---------------------------------------------------------------- */

static void
set_least(struct reclaim *reclaim, uint64_t budget)
{
	uint64_t bytes = 0;
	uint32_t finger = FINGERS;

	while (finger > 0 && bytes + reclaim->finger_bytes[finger - 1] <= budget)
		bytes += reclaim->finger_bytes[--finger];
	/* All from 'finger' on, and of the step below as many as there is room for. */
	reclaim->finger_least = finger;
	reclaim->budget = budget - bytes;
}

static bool
choose_work(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;
	uint32_t segment = flash_segment(reclaim->region);
	uint32_t end = reclaim->count - reclaim->next < STEP_ENTRIES ? reclaim->count
								     : reclaim->next + STEP_ENTRIES;

	for (uint32_t i = reclaim->next; i < end; i++) {
		struct flash_footer_entry *entry = &reclaim->entries[i];
		int reads = -1;

		entry->place &= (1u << ENTRY_READS_SHIFT) - 1;
		if (!entry_is_dead(flash, entry))
			reads = flash->options.items->reads(flash->options.items_context,
				entry->hash, segment, entry_offset(entry));
		if (reads < 0)
			continue;
		entry->place |= ENTRY_LIVE | ((uint32_t)reads & 0xf) << ENTRY_READS_SHIFT;
		if (reads > 0)
			reclaim->finger_bytes[entry_finger(flash, i)] += entry_bytes(flash, i);
	}
	reclaim->next = end;
	if (end < reclaim->count)
		return true;
	set_least(reclaim, (uint64_t)flash->regions[reclaim->region].used *
				   flash->options.reinsert_percent / 100);
	reclaim->next = 0;
	reclaim->range_count = 0;
	reclaim->range_entry = 0;
	reclaim->state = RECLAIM_FETCHING;
	return true;
}

static bool
is_chosen(struct flash *flash, uint32_t i)
{
	struct reclaim *reclaim = &flash->log->reclaim;
	uint32_t place = reclaim->entries[i].place, bytes = entry_bytes(flash, i), finger;

	if (!(place & ENTRY_LIVE) || (place >> ENTRY_READS_SHIFT & 0xf) == 0 || bytes == 0)
		return false;
	finger = entry_finger(flash, i);
	if (finger >= reclaim->finger_least)
		return true;
	if (finger + 1 < reclaim->finger_least || bytes > reclaim->budget)
		return false;
	reclaim->budget -= bytes;
	return true;
}

static void
range_done(struct flash *flash, struct write *write, int result)
{
	struct range *range = write->context;

	if (result != 0)
		range->bytes = 0;
	flash->log->reclaim.ranges_under_way--;
}

/* Adds what [from, to) of the region needs to the batch; false: it is full. */
static bool
range_add(struct reclaim *reclaim, uint32_t from, uint32_t to)
{
	struct range *last =
		reclaim->range_count > 0 ? &reclaim->ranges[reclaim->range_count - 1] : NULL;
	uint32_t at = 0;

	if (last && from <= last->offset + last->bytes + GAP_BYTES &&
		last->at + (to - last->offset) <= reclaim->window_bytes) {
		if (to > last->offset + last->bytes)
			last->bytes = to - last->offset;
		return true;
	}
	if (last)
		at = round_up(last->at + last->bytes, FLASH_BLOCK);
	if (reclaim->range_count == RANGES_MAX || at + (to - from) > reclaim->window_bytes)
		return false;
	reclaim->ranges[reclaim->range_count].offset = from;
	reclaim->ranges[reclaim->range_count].bytes = to - from;
	reclaim->ranges[reclaim->range_count++].at = at;
	return true;
}

/* Copies a chosen item out of what was read; false: it is bad, or too much. */
static bool
keep_item(struct flash *flash, uint32_t i)
{
	struct reclaim *reclaim = &flash->log->reclaim;
	uint32_t from = entry_offset(&reclaim->entries[i]) * ITEM_ALIGN, bytes, record;

	for (uint32_t r = 0; r < reclaim->range_count; r++) {
		const struct range *range = &reclaim->ranges[r];
		const struct item *item;
		uint32_t room;

		if (from < range->offset || from >= range->offset + range->bytes)
			continue;
		item = (const void *)(reclaim->window + range->at + (from - range->offset));
		room = range->offset + range->bytes - from;
		if (!layout_item_valid(item, room, flash->id, reclaim->sequence))
			return false;
		bytes = layout_item_bytes(item, room);
		record = layout_record_bytes(bytes);
		if (record > reclaim->kept_bytes - reclaim->kept_used)
			return false;
		memcpy(reclaim->kept + reclaim->kept_used, item, bytes);
		memset(reclaim->kept + reclaim->kept_used + bytes, 0, record - bytes);
		reclaim->kept_used += record;
		return true;
	}
	return false;
}

static bool
fetch_work(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;
	uint32_t scanned = 0;

	if (reclaim->ranges_under_way > 0)
		return false;
	for (uint32_t i = reclaim->range_entry; i < reclaim->next; i++)
		if ((reclaim->entries[i].place & ENTRY_CHOSEN) && !keep_item(flash, i))
			reclaim->entries[i].place &= ~ENTRY_CHOSEN;
	reclaim->range_count = 0;
	reclaim->range_entry = reclaim->next;
	for (; reclaim->next < reclaim->count && scanned < 16 * STEP_ENTRIES; scanned++) {
		uint32_t i = reclaim->next, from, to;

		if (!(reclaim->entries[i].place & ENTRY_CHOSEN) && !is_chosen(flash, i)) {
			reclaim->next++;
			continue;
		}
		reclaim->entries[i].place |= ENTRY_CHOSEN;
		from = entry_offset(&reclaim->entries[i]) * ITEM_ALIGN;
		to = round_up(from + entry_bytes(flash, i), flash->block);
		from &= ~(flash->block - 1);
		if (!range_add(reclaim, from, to)) {
			if (reclaim->range_count > 0)
				break; /* the next batch has it */
			reclaim->entries[i].place &= ~ENTRY_CHOSEN;
		}
		reclaim->next++;
	}
	for (uint32_t r = 0; r < reclaim->range_count; r++) {
		struct range *range = &reclaim->ranges[r];

		range->read.context = range;
		reclaim->ranges_under_way++;
		log_submit(flash, &range->read, IO_READ, reclaim->region, range->offset,
			reclaim->window + range->at, range->bytes, false, range_done);
	}
	if (reclaim->range_count > 0)
		return false;
	if (reclaim->next == reclaim->count)
		void_begin(flash);
	return true;
}

/* --- voiding ------------------------------------------------------------------------------ */

static void
void_write(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;

	reclaim->state = RECLAIM_VOIDING;
	reclaim->tries++;
	log_submit(flash, &reclaim->write, IO_WRITE, reclaim->region, 0, reclaim->block,
		FLASH_BLOCK, true, io_done);
}

static void
void_begin(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;

	/* From here on no entry comes to name it; those that do are still right. */
	region_set_state(&flash->regions[reclaim->region], REGION_VOIDING);
	region_header_make(flash, reclaim->block, region_sequence_take(flash), FLASH_REGION_FREE,
		(uint32_t)(atomic_load(&flash->now_ns) / 1000000000u));
	reclaim->tries = 0;
	if (reclaim->kept_used == 0)
		set_reinserting(flash, false);
	void_write(flash);
}

static void
clear_begin(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;

	region_set_state(&flash->regions[reclaim->region], REGION_CLEARING);
	reclaim->next = 0;
	reclaim->state = RECLAIM_CLEARING;
	if (reclaim->unlisted)
		flash->options.items->purge(
			flash->options.items_context, flash_segment(reclaim->region));
}

static bool
void_work(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;

	if (reclaim->result == 0) {
		clear_begin(flash);
		return true;
	}
	if (!reclaim->troubled) {
		log_trouble(flash);
		reclaim->troubled = true;
		return false;
	}
	reclaim->troubled = false;
	if (reclaim->tries < WRITE_TRIES) {
		void_write(flash);
		return false;
	}
	/* The medium doesn't take it: the journal shall say so. */
	reclaim->retire = true;
	reclaim->ticket = 0;
	reclaim->state = RECLAIM_RECORD;
	return true;
}

static bool
record_work(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;
	enum flash_durable durable;

	if (reclaim->ticket == 0)
		reclaim->ticket = journal_put(flash, FLASH_RECORD_REGION, reclaim->sequence);
	if (reclaim->ticket == 0)
		return false;
	durable = reclaim->ticket == UINT64_MAX ? FLASH_NEVER
						: journal_settled(flash, reclaim->ticket);
	if (durable == FLASH_NEVER)
		flash_void(flash, "neither a region nor the journal can be written");
	if (durable != FLASH_DURABLE)
		return false;
	clear_begin(flash);
	return true;
}

/* --- clearing ----------------------------------------------------------------------------- */

/* Copies a chosen item on; FLASH_BUSY: later. */
static enum flash_status
move(struct flash *flash, uint32_t i)
{
	struct reclaim *reclaim = &flash->log->reclaim;
	const struct flash_footer_entry *entry = &reclaim->entries[i];
	const struct item *item = (const void *)(reclaim->kept + reclaim->kept_next);
	uint32_t reads = entry->place >> ENTRY_READS_SHIFT & 0xf;
	uint32_t bytes = layout_item_bytes(item, reclaim->kept_used - reclaim->kept_next);
	enum flash_status status = append_room(flash, layout_record_bytes(bytes));

	if (status == FLASH_BUSY)
		return status;
	reclaim->kept_next += layout_record_bytes(bytes);
	if (status == FLASH_REFUSED || entry_is_dead(flash, entry))
		return FLASH_REFUSED;
	return flash->options.items->move(flash->options.items_context, item, entry->hash,
		       flash_position_make(reclaim->sequence, entry_offset(entry)),
		       flash_segment(reclaim->region), entry_offset(entry),
		       flash->regions[reclaim->region].opened_s, reads - 1)
		       ? FLASH_DONE
		       : FLASH_REFUSED;
}

static void
finish(struct flash *flash)
{
	struct log *log = flash->log;
	struct reclaim *reclaim = &log->reclaim;

	set_reinserting(flash, false);
	if (reclaim->list) {
		append_release(flash, reclaim->region);
		pthread_mutex_lock(&log->lock);
		reclaim->list->state = LIST_FREE;
		pthread_mutex_unlock(&log->lock);
	}
	region_free(flash, reclaim->region, reclaim->retire);
	log_count(&log->counts.reclaimed, 1);
	reclaim->state = RECLAIM_IDLE;
	log_room(flash);
}

static bool
clear_work(struct flash *flash)
{
	struct log *log = flash->log;
	struct reclaim *reclaim = &log->reclaim;
	uint32_t end = reclaim->count - reclaim->next < STEP_ENTRIES ? reclaim->count
								     : reclaim->next + STEP_ENTRIES;

	for (; reclaim->next < end; reclaim->next++) {
		const struct flash_footer_entry *entry = &reclaim->entries[reclaim->next];

		if (reclaim->keep && (entry->place & ENTRY_CHOSEN)) {
			enum flash_status status = move(flash, reclaim->next);

			if (status == FLASH_BUSY)
				return false;
			if (status == FLASH_DONE)
				continue;
		}
		if (flash->options.items->drop(flash->options.items_context, entry->hash,
			    flash_segment(reclaim->region), entry_offset(entry)) &&
			!entry_is_dead(flash, entry))
			log_count(&log->counts.dropped, 1);
	}
	if (reclaim->next == reclaim->count)
		finish(flash);
	return true;
}

bool
reclaim_work(struct flash *flash)
{
	struct reclaim *reclaim = &flash->log->reclaim;

	if (reclaim->write.under_way)
		return false;
	switch (reclaim->state) {
	case RECLAIM_IDLE:
		choose_region(flash);
		return false;
	case RECLAIM_FOOTER:
		footer_work(flash);
		return true;
	case RECLAIM_CHOOSING:
		return choose_work(flash);
	case RECLAIM_FETCHING:
		return fetch_work(flash);
	case RECLAIM_VOIDING:
		return void_work(flash);
	case RECLAIM_RECORD:
		return record_work(flash);
	case RECLAIM_CLEARING:
		return clear_work(flash);
	}
	return false;
}
