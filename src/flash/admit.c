/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * admit: what is worth a write. The budget is a bucket of tokens, a day's bytes dripping in and an
 * hour's fitting; everything that was brought to the device is taken out. Unread items come only
 * while it is half full, then by chance, so that what is written keeps to the rate without stopping
 * and starting; items that were read come before them.
 */
#include "flash/log.h"

#define DAY_NS 86400000000000.0
#define HOURS 24 /* a day's share that may be spent at once */

void
budget_create(struct flash *flash)
{
	struct budget *budget = &flash->log->budget;

	budget->day = flash->options.write_budget;
	budget->burst = (int64_t)(budget->day / HOURS);
	atomic_store(&budget->left, budget->burst);
	budget->filled_ns = flash->options.now_ns;
	budget->written = writer_bytes(flash);
}

void
budget_work(struct flash *flash, uint64_t now_ns)
{
	struct budget *budget = &flash->log->budget;
	uint64_t written = writer_bytes(flash);
	double drip;
	int64_t left;

	if (budget->day == 0 || now_ns <= budget->filled_ns)
		return;
	drip = (double)budget->day * (double)(now_ns - budget->filled_ns) / DAY_NS;
	/* Less than this would be lost in rounding. */
	if (drip < 4096 && written == budget->written)
		return;
	left = atomic_load_explicit(&budget->left, memory_order_relaxed);
	if (drip >= 4096) {
		left += drip < (double)budget->burst ? (int64_t)drip : budget->burst;
		budget->filled_ns = now_ns;
	}
	left -= (int64_t)(written - budget->written);
	budget->written = written;
	if (left > budget->burst)
		left = budget->burst;
	atomic_store_explicit(&budget->left, left, memory_order_relaxed);
}

/* Does the budget bear it? */
static bool
bears(const struct budget *budget, unsigned reads, uint32_t random)
{
	int64_t left = atomic_load_explicit(&budget->left, memory_order_relaxed);
	/* Full admission from so much on. */
	int64_t enough = reads > 0 ? budget->burst / 8 : budget->burst / 2;

	if (left <= 0)
		return false;
	return left >= enough || (double)random < (double)left / (double)enough * 4294967296.0;
}

enum flash_status
flash_admits(struct flash *flash, uint32_t bytes, unsigned reads, uint32_t random)
{
	struct log *log = flash->log;

	if (!flash_alive(flash))
		return FLASH_REFUSED;
	if (layout_record_bytes(bytes) > log->record_max) {
		log_count(&log->counts.refused_size, 1);
		return FLASH_REFUSED;
	}
	if (log->budget.day != 0 && !bears(&log->budget, reads, random)) {
		log_count(&log->counts.refused_budget, 1);
		return FLASH_REFUSED;
	}
	return atomic_load_explicit(&log->busy, memory_order_relaxed) ? FLASH_BUSY : FLASH_DONE;
}
