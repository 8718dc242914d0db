/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/lib/flash_rig.h"

#include "base/hash_hd.h"
#include "store/item_hd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VALUE_MIN 8u /* key number and version stand in it */
#define TRIES 200000u

struct rig rig;

static struct flash_file_options paths[IO_FILES_MAX];
static char names[IO_FILES_MAX][16];

/* --- reads: doubles ----------------------------------------------------------------------- */

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
	return 0;
}

void
reads_stats(const struct flash *flash, struct flash_stats *stats)
{
	(void)flash;
	(void)stats;
}

/* --- keys and items ----------------------------------------------------------------------- */

uint32_t
rig_draw(uint32_t below)
{
	rig.random = rig.random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((rig.random >> 33) % below);
}

uint32_t
rig_key_bytes(uint32_t key, uint8_t *to)
{
	return (uint32_t)sprintf((char *)to, "key-%u", key);
}

uint64_t
rig_hash(uint32_t key)
{
	uint8_t bytes[256]; /* a key is at most 14; gcc sees reads of longer ones */
	uint32_t size = rig_key_bytes(key, bytes);

	return hash_bytes(bytes, size, flash_hash_seed(rig.flash));
}

static void
item_fill(struct item *item, uint32_t key, uint32_t bytes, uint32_t version, uint32_t expiry)
{
	uint32_t size = rig_key_bytes(key, (uint8_t *)(item + 1)), words[2] = {key, version};
	uint32_t value = bytes - ITEM_HEADER - size;

	*item = (struct item){.cas_low = version, .expiry = expiry, .sizes = size | value << 8};
	memset((uint8_t *)(item + 1) + size, (int)(key + version), value);
	memcpy((uint8_t *)(item + 1) + size, words, sizeof words);
}

static uint32_t
least_bytes(uint32_t key)
{
	uint8_t bytes[32];

	return ITEM_HEADER + rig_key_bytes(key, bytes) + VALUE_MIN;
}

/* --- items: what flash asks --------------------------------------------------------------- */

static struct rig_key *
key_named(uint64_t hash, uint32_t segment, uint32_t offset)
{
	for (uint32_t i = 0; i < RIG_KEYS; i++)
		if (rig.keys[i].segment == segment && rig.keys[i].offset == offset &&
			rig_hash(i) == hash)
			return &rig.keys[i];
	return NULL;
}

static int
items_reads(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	(void)context;
	return key_named(hash, segment, offset) != NULL ? 1 : -1;
}

static bool
items_move(void *context, const struct item *item, uint64_t hash, uint64_t position,
	uint32_t segment, uint32_t offset, uint32_t opened_s, unsigned reads)
{
	struct rig_key *key = key_named(hash, segment, offset);
	struct flash_place_in place;

	(void)context;
	(void)position;
	(void)opened_s;
	(void)reads;
	if (key == NULL || flash_reserve(rig.flash, key->bytes, true, &place) != FLASH_DONE)
		return false;
	memcpy(place.item, item, key->bytes);
	flash_commit(rig.flash, &place, hash, bucket_class_of(key->bytes + 4), key->expiry);
	key->segment = place.segment;
	key->offset = place.offset;
	return true;
}

static bool
items_drop(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	struct rig_key *key = key_named(hash, segment, offset);

	(void)context;
	if (key != NULL)
		key->segment = 0;
	return key != NULL;
}

static void
items_purge(void *context, uint32_t segment)
{
	(void)context;
	rig.purges++;
	for (uint32_t i = 0; i < RIG_KEYS; i++)
		if (rig.keys[i].segment == segment)
			rig.keys[i].segment = 0;
}

static const struct flash_items items = {
	.reads = items_reads, .move = items_move, .drop = items_drop, .purge = items_purge};

/* --- recovered ---------------------------------------------------------------------------- */

static bool
recovered_expect(void *context, uint64_t count)
{
	(void)context;
	rig.expected = count;
	return true;
}

static bool
recovered_item(void *context, uint64_t hash, uint32_t segment, uint32_t offset, uint32_t size_class,
	struct flash_named *replaced)
{
	struct rig_found new = {hash, segment, offset};

	(void)context;
	(void)size_class;
	*replaced = (struct flash_named){0, 0};
	for (uint32_t i = 0; i < rig.found_count; i++)
		if ((rig.found[i].hash & rig.tag_mask) == (hash & rig.tag_mask)) {
			*replaced = (struct flash_named){rig.found[i].segment, rig.found[i].offset};
			rig.found[i] = new;
			rig.replaced++;
			return true;
		}
	if (rig.found_count >= rig.room)
		return false;
	rig.found[rig.found_count++] = new;
	return true;
}

static uint8_t *saved;
#define SAVED_BYTES ((sizeof rig.keys + FLASH_BLOCK - 1) / FLASH_BLOCK * FLASH_BLOCK)

static uint32_t
recovered_load(void *context, const void *geometry, struct flash_part *parts)
{
	(void)context;
	rig.loads++;
	if (rig.refuse_load || memcmp(geometry, "rig", 4) != 0)
		return 0;
	parts[0] = (struct flash_part){saved, SAVED_BYTES};
	return 1;
}

static bool
recovered_loaded(void *context, const void *geometry, bool whole)
{
	(void)context;
	(void)geometry;
	if (whole)
		memcpy(rig.keys, saved, sizeof rig.keys);
	return true;
}

static void
recovered_progress(void *context, const char *what, uint64_t done, uint64_t total)
{
	(void)context;
	assert_true(what != NULL && done <= total);
}

static const struct flash_recovered recovered = {.expect = recovered_expect,
	.item = recovered_item,
	.load = recovered_load,
	.loaded = recovered_loaded,
	.progress = recovered_progress};

/* RIG_SAY=1 shows what is said. */
static void
say(void *context, int priority, const char *line)
{
	(void)context;
	(void)priority;
	if (getenv("RIG_SAY") != NULL)
		fprintf(stderr, "# %s\n", line);
}

/* --- starts and stops --------------------------------------------------------------------- */

void
rig_make(uint32_t files, uint64_t bytes)
{
	struct fake_disk_file disks[IO_FILES_MAX] = {{0}};

	memset(&rig, 0, sizeof rig);
	for (uint32_t i = 0; i < files; i++) {
		sprintf(names[i], "disk%u", i);
		disks[i] = (struct fake_disk_file){.name = names[i], .size = bytes};
		paths[i] = (struct flash_file_options){.path = names[i]};
	}
	rig.random = 1;
	rig.now_ns = RIG_BEGIN_NS;
	rig.tag_mask = UINT64_MAX;
	rig.room = RIG_KEYS * 4;
	rig.disk = fake_disk_create(7, disks, files);
	fake_disk_use(rig.disk);
	rig.options = (struct flash_options){
		.io = fake_disk_backend(),
		.files = paths,
		.file_count = files,
		.region_bytes = FLASH_REGION_BYTES_MIN,
		.memory_bytes = 64 << 20,
		.item_bytes_max = 20000,
		.reinsert_percent = 7,
		.items = &items,
		.recovered = &recovered,
		.say = say,
	};
	if (saved == NULL)
		saved = aligned_alloc(FLASH_BLOCK, SAVED_BYTES);
}

void
rig_end(void)
{
	if (rig.flash != NULL)
		rig_stop();
	fake_disk_destroy(rig.disk);
}

bool
rig_start(void)
{
	rig.found_count = 0;
	rig.expected = rig.loads = rig.replaced = rig.purges = 0;
	rig.options.now_ns = rig.now_ns;
	for (uint32_t i = 0; i < RIG_KEYS; i++)
		rig.keys[i].segment = 0;
	rig.flash = flash_create(&rig.options, rig.error, sizeof rig.error);
	if (rig.flash == NULL)
		return false;
	for (uint32_t f = 0; f < rig.found_count; f++) {
		uint32_t i = 0;

		while (i < RIG_KEYS && rig_hash(i) != rig.found[f].hash)
			i++;
		if (i == RIG_KEYS)
			continue; /* only where somebody forged it */
		rig.keys[i].segment = rig.found[f].segment;
		rig.keys[i].offset = rig.found[f].offset;
	}
	return true;
}

void
rig_stop(void)
{
	flash_destroy(rig.flash);
	rig.flash = NULL;
}

static uint64_t
clock_ns(void)
{
	rig.now_ns += 1000000;
	return rig.now_ns;
}

bool
rig_save(void)
{
	struct flash_part part = {saved, SAVED_BYTES};

	memset(saved, 0, SAVED_BYTES);
	memcpy(saved, rig.keys, sizeof rig.keys);

	bool clean = flash_save(rig.flash, "rig", 4, &part, 1, 1000, RIG_KEYS, clock_ns,
		rig.now_ns + 1000000000000ull);

	rig_stop();
	return clean;
}

void
rig_crash(uint64_t seed)
{
	if (!fake_disk_is_cut(rig.disk))
		fake_disk_cut(rig.disk, seed);
	if (rig.flash != NULL)
		rig_stop();
	fake_disk_crash(rig.disk, seed);
}

/* --- steps -------------------------------------------------------------------------------- */

void
rig_step(uint64_t ns)
{
	rig.now_ns += ns;
	fake_disk_tick(rig.disk, 4);
	for (unsigned i = 0; flash_work(rig.flash, rig.now_ns); i++)
		assert_in_range(i, 0, 100000);
}

void
rig_settle(void)
{
	for (unsigned i = 0; i < 400; i++)
		rig_step(1000000);
}

/* The key's copy, if there is one that a recovery would believe, is dead durably. */
static bool
invalidate(uint32_t number)
{
	struct rig_key *key = &rig.keys[number];
	struct flash_intent intent = {0};

	for (unsigned i = 0; i < TRIES; i++) {
		uint64_t position = key->segment != 0
					    ? flash_position(rig.flash, key->segment, key->offset)
					    : 0;

		switch (flash_invalidate(
			rig.flash, FLASH_RECORD_KEY, rig_hash(number), position, &intent)) {
		case FLASH_DURABLE:
			key->segment = 0;
			return true;
		case FLASH_NEVER:
			return false;
		case FLASH_NOT_YET:
			break;
		}
		while (!flash_intent_settled(rig.flash, &intent)) {
			if (fake_disk_is_cut(rig.disk))
				return false;
			rig_step(100000);
		}
	}
	fail_msg("a record never settles");
	return false;
}

bool
rig_delete(uint32_t key)
{
	if (!invalidate(key))
		return false;
	rig.keys[key].absent = true;
	return true;
}

bool
rig_put(uint32_t number, uint32_t bytes)
{
	struct rig_key *key = &rig.keys[number];
	struct flash_place_in place;

	bytes = bytes > least_bytes(number) ? bytes : least_bytes(number);
	if (!invalidate(number))
		return false;
	for (unsigned i = 0; flash_reserve(rig.flash, bytes, false, &place) != FLASH_DONE; i++) {
		if (i == TRIES || fake_disk_is_cut(rig.disk) || !flash_alive(rig.flash))
			return false;
		rig_step(100000);
	}
	key->bytes = bytes;
	key->version++;
	key->absent = false;
	item_fill(place.item, number, bytes, key->version, key->expiry);
	flash_commit(rig.flash, &place, rig_hash(number), bucket_class_of(bytes + 4), key->expiry);
	key->segment = place.segment;
	key->offset = place.offset;
	return true;
}

static void
forget_all(void)
{
	for (uint32_t i = 0; i < RIG_KEYS; i++) {
		rig.keys[i].segment = 0;
		rig.keys[i].absent = true;
	}
}

static void
nothing(void *context)
{
	(void)context;
}

void
rig_flush(uint64_t at_ns)
{
	struct flash_intent intent = {0};

	if (at_ns != 0)
		flash_flush_at(rig.flash, at_ns, &intent);
	else
		flash_flush(rig.flash, nothing, NULL, &intent);
	for (unsigned i = 0; flash_flushed(rig.flash, &intent) == FLASH_NOT_YET; i++) {
		assert_in_range(i, 0, TRIES);
		rig_step(100000);
	}
	if (at_ns == 0 && flash_flushed(rig.flash, &intent) == FLASH_DURABLE)
		forget_all();
}

/* --- checks ------------------------------------------------------------------------------- */

uint32_t
rig_verify(void)
{
	static uint8_t have[FLASH_REGION_BYTES_MIN] __attribute__((aligned(16)));
	static uint8_t want[FLASH_REGION_BYTES_MIN] __attribute__((aligned(16)));
	uint32_t count = 0;

	for (uint32_t i = 0; i < RIG_KEYS; i++) {
		struct rig_key *key = &rig.keys[i];
		uint64_t position;
		const struct region *region;

		if (key->segment == 0)
			continue;
		position = flash_position(rig.flash, key->segment, key->offset);
		if (position == 0 || position < flash_flush_position(rig.flash) ||
			!flash_alive(rig.flash))
			continue;
		if (key->absent)
			fail_msg("key %u came back", i);
		region = &rig.flash->regions[flash_region_of(key->segment)];
		if (log_buffered(rig.flash, position, have, sizeof have) == 0)
			fake_disk_peek(rig.disk, names[region->file],
				region->base + key->offset * 16ull, have,
				layout_record_bytes(key->bytes));
		item_fill((struct item *)want, i, key->bytes, key->version, key->expiry);
		if (memcmp(have, want, key->bytes) != 0)
			fail_msg("key %u: another value than the newest, version %u", i,
				key->version);
		count++;
	}
	return count;
}
