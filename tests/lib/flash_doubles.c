/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/lib/flash_doubles.h"

#include "flash/internal.h"

static struct flash_doubles doubles;

struct flash_doubles *
flash_doubles(void)
{
	return &doubles;
}

bool
journal_create(struct flash *flash)
{
	(void)flash;
	return true;
}

void
journal_destroy(struct flash *flash)
{
	(void)flash;
}

bool
journal_work(struct flash *flash, uint64_t now_ns)
{
	(void)flash;
	(void)now_ns;
	return false;
}

uint64_t
journal_put(struct flash *flash, enum flash_record_kind kind, uint64_t what)
{
	(void)flash;
	(void)what;
	doubles.region_records += kind == FLASH_RECORD_REGION;
	return doubles.put_fails ? UINT64_MAX : 1;
}

enum flash_durable
journal_settled(const struct flash *flash, uint64_t ticket)
{
	(void)flash;
	(void)ticket;
	return FLASH_DURABLE;
}

bool
journal_wants_room(const struct flash *flash)
{
	(void)flash;
	return doubles.wants_room;
}

void
journal_stats(const struct flash *flash, struct flash_stats *stats)
{
	(void)flash;
	(void)stats;
}

bool
recover_run(struct flash *flash, const struct flash_super *found, char *error, size_t error_size)
{
	(void)found;
	(void)error;
	(void)error_size;
	log_start(flash, 1);
	return true;
}

bool
reads_create(struct flash *flash)
{
	(void)flash;
	return true;
}

void
reads_destroy(struct flash *flash)
{
	(void)flash;
}

uint32_t
reads_recent_us(const struct flash *flash)
{
	(void)flash;
	return doubles.read_us;
}

void
reads_stats(const struct flash *flash, struct flash_stats *stats)
{
	(void)flash;
	(void)stats;
}
