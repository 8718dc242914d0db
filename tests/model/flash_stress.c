/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The log under threads: writers copy items in under locks of their own, readers look for them in
 * buffers and in the file, the flash thread writes and reclaims. What an entry names must be its
 * key's item, whole and not older than the entry was, wherever it is found.
 */
#include "base/check.h"
#include "base/clock.h"
#include "base/rcu.h"
#include "flash/log.h"
#include "store/item_hd.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEYS 4096u
#define LOCKS 64u
#define WRITERS 3
#define READERS 2
#define FILE_BYTES (12u << 20)
#define REGION (256u << 10)
#define ITEM_MAX 8192u
#define RECLAIMED 60 /* regions: the log has gone round, */
#define SECONDS 40   /* or the device is too slow for this test */

/* segment << 32 | offset; 0: not there */
struct key {
	_Atomic uint64_t place;
	_Atomic uint32_t version;
	_Atomic uint32_t reads;
	uint32_t bytes; /* by its lock */
};

static struct {
	struct flash *flash;
	int fd;
	struct key keys[KEYS];
	pthread_mutex_t locks[LOCKS];
	_Atomic bool stop, flash_stop;
	_Atomic uint64_t puts, busy, abandoned, buffered, read, absent, moved;
} my;

struct thread {
	pthread_t thread;
	uint64_t random;
};

static uint32_t
draw(struct thread *thread, uint32_t below)
{
	thread->random = thread->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((thread->random >> 33) % below);
}

static uint64_t
hash_of(uint32_t key)
{
	return (uint64_t)key * 0x9e3779b97f4a7c15ull << 16 | key;
}

static uint64_t
place_of(uint32_t segment, uint32_t offset)
{
	return (uint64_t)segment << 32 | offset;
}

static void
item_fill(struct item *item, uint32_t key, uint32_t version, uint32_t bytes)
{
	uint32_t words[2] = {key, ~key}, value = bytes - ITEM_HEADER - 8;

	*item = (struct item){.cas_low = version, .sizes = 8 | value << 8};
	memcpy(item + 1, words, sizeof words);
	memset((uint8_t *)(item + 1) + 8, (int)(key * 31 + version), value);
}

static void
item_check(const struct item *item, uint32_t key, uint32_t version_least, uint32_t bytes)
{
	uint32_t words[2];
	const uint8_t *value = (const uint8_t *)(item + 1) + 8;

	memcpy(words, item + 1, sizeof words);
	check(words[0] == key && words[1] == ~key);
	check(item->cas_low >= version_least);
	for (uint32_t i = 0; i < bytes - ITEM_HEADER - 8; i++)
		check(value[i] == (uint8_t)(key * 31 + item->cas_low));
}

/* --- the index ---------------------------------------------------------------------------- */

static int
items_reads(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	struct key *key = &my.keys[hash % 65536];

	(void)context;
	return atomic_load(&key->place) == place_of(segment, offset) ? (int)atomic_load(&key->reads)
								     : -1;
}

static bool
items_move(void *context, const struct item *item, uint64_t hash, uint64_t position,
	uint32_t segment, uint32_t offset, uint32_t opened_s, unsigned reads)
{
	uint32_t number = hash % 65536;
	struct key *key = &my.keys[number];
	struct flash_place_in place;
	bool moved = false;

	(void)context;
	(void)position;
	(void)opened_s;
	pthread_mutex_lock(&my.locks[number % LOCKS]);
	if (atomic_load(&key->place) == place_of(segment, offset) &&
		flash_reserve(my.flash, key->bytes, true, &place) == FLASH_DONE) {
		memcpy(place.item, item, key->bytes);
		flash_commit(my.flash, &place, hash, bucket_class_of(key->bytes + 4), 0);
		atomic_store(&key->place, place_of(place.segment, place.offset));
		atomic_store(&key->reads, reads);
		atomic_fetch_add(&my.moved, 1);
		moved = true;
	}
	pthread_mutex_unlock(&my.locks[number % LOCKS]);
	return moved;
}

static bool
items_drop(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	uint32_t number = hash % 65536;
	uint64_t place = place_of(segment, offset);
	bool dropped;

	(void)context;
	pthread_mutex_lock(&my.locks[number % LOCKS]);
	dropped = atomic_compare_exchange_strong(&my.keys[number].place, &place, 0);
	pthread_mutex_unlock(&my.locks[number % LOCKS]);
	return dropped;
}

static void
items_purge(void *context, uint32_t segment)
{
	(void)context;
	(void)segment;
	check(!"a footer was bad");
}

static const struct flash_items items = {items_reads, items_move, items_drop, items_purge, NULL};

/* --- threads ------------------------------------------------------------------------------ */

static void *
write_items(void *argument)
{
	struct thread *thread = argument;

	rcu_register();
	while (!atomic_load(&my.stop)) {
		uint32_t number = draw(thread, KEYS), version;
		uint32_t bytes = ITEM_HEADER + 9 + draw(thread, draw(thread, 4) ? 300 : 5000);
		struct key *key = &my.keys[number];
		struct flash_place_in place;
		enum flash_status status;

		pthread_mutex_lock(&my.locks[number % LOCKS]);
		status = flash_reserve(my.flash, bytes, false, &place);
		if (status == FLASH_DONE && draw(thread, 8) == 0) {
			flash_abandon(my.flash, &place);
			atomic_fetch_add(&my.abandoned, 1);
		} else if (status == FLASH_DONE) {
			version = atomic_load(&key->version) + 1;
			item_fill(place.item, number, version, bytes);
			flash_commit(
				my.flash, &place, hash_of(number), bucket_class_of(bytes + 4), 0);
			key->bytes = bytes;
			/* The version first: a reader asks for it before it looks the place up. */
			atomic_store(&key->place, place_of(place.segment, place.offset));
			atomic_store(&key->version, version);
			atomic_fetch_add(&my.puts, 1);
		}
		pthread_mutex_unlock(&my.locks[number % LOCKS]);
		rcu_quiescent();
		if (status == FLASH_BUSY) {
			atomic_fetch_add(&my.busy, 1);
			rcu_offline();
			usleep(100);
			rcu_online();
		}
	}
	rcu_unregister();
	return NULL;
}

/* Nothing else is asked of the kernel: whoever is on line may read until it is quiescent. */
static void
read_item(struct thread *thread, uint32_t number)
{
	static _Thread_local uint8_t bytes_at[ITEM_MAX] __attribute__((aligned(16)));
	struct key *key = &my.keys[number];
	uint32_t version = atomic_load(&key->version), bytes, segment, offset;
	uint64_t place = atomic_load(&key->place), position;
	const struct region *region;

	(void)thread;
	segment = (uint32_t)(place >> 32);
	offset = (uint32_t)place;
	position = place == 0 ? 0 : flash_position(my.flash, segment, offset);
	if (position == 0) {
		atomic_fetch_add(&my.absent, 1);
		return;
	}
	atomic_fetch_add_explicit(&key->reads, atomic_load(&key->reads) < 15, memory_order_relaxed);
	bytes = log_buffered(my.flash, position, bytes_at, sizeof bytes_at);
	if (bytes != 0) {
		item_check((void *)bytes_at, number, version, bytes);
		atomic_fetch_add(&my.buffered, 1);
		return;
	}
	region = &my.flash->regions[flash_region_of(segment)];
	check(pread(my.fd, bytes_at, sizeof bytes_at, (off_t)(region->base + offset * 16ull)) > 0);
	check(layout_item_valid((void *)bytes_at, sizeof bytes_at, my.flash->id,
		flash_position_sequence(position)));
	item_check((void *)bytes_at, number, version,
		layout_item_bytes((void *)bytes_at, sizeof bytes_at));
	atomic_fetch_add(&my.read, 1);
}

static void *
read_items(void *argument)
{
	struct thread *thread = argument;

	rcu_register();
	while (!atomic_load(&my.stop)) {
		/* Some far more often than others. */
		read_item(thread, draw(thread, 2) ? draw(thread, 64) : draw(thread, KEYS));
		rcu_quiescent();
	}
	rcu_unregister();
	return NULL;
}

static void *
run_flash(void *argument)
{
	(void)argument;
	rcu_register();
	while (!atomic_load(&my.flash_stop)) {
		bool again = flash_work(my.flash, clock_unix_ns());

		rcu_quiescent();
		if (again)
			continue;
		rcu_offline();
		flash_wait(my.flash, 20);
		rcu_online();
	}
	rcu_unregister();
	return NULL;
}

/* --- all ---------------------------------------------------------------------------------- */

static void
say(void *context, int priority, const char *line)
{
	(void)context;
	(void)priority;
	printf("# %s\n", line);
}

static void
open_all(const char *path)
{
	const struct flash_file_options file = {.path = path, .size = FILE_BYTES};
	const struct flash_options options = {
		.io = &io_threads_backend,
		.files = &file,
		.file_count = 1,
		.region_bytes = REGION,
		.memory_bytes = 64 << 20,
		.item_bytes_max = ITEM_MAX,
		.reinsert_percent = 7,
		.read_target_us = 2000,
		.now_ns = clock_unix_ns(),
		.items = &items,
		.say = say,
	};
	char error[200];

	my.flash = flash_create(&options, error, sizeof error);
	if (!my.flash) {
		fprintf(stderr, "%s\n", error);
		exit(1);
	}
	my.fd = open(path, O_RDONLY | O_CLOEXEC);
	check(my.fd >= 0);
}

int
main(void)
{
	struct thread threads[WRITERS + READERS], verifier = {.random = 0};
	const char *directory = getenv("TMPDIR");
	char path[300];
	pthread_t flash_thread;
	struct flash_stats stats;
	uint32_t left = 0;

	clock_start();
	snprintf(path, sizeof path, "%s/flash_stress.%d", directory ? directory : "/tmp",
		(int)getpid());
	unlink(path);
	for (unsigned i = 0; i < LOCKS; i++)
		pthread_mutex_init(&my.locks[i], NULL);
	open_all(path);
	pthread_create(&flash_thread, NULL, run_flash, NULL);
	for (unsigned i = 0; i < WRITERS + READERS; i++) {
		threads[i].random = i + 1;
		pthread_create(&threads[i].thread, NULL, i < WRITERS ? write_items : read_items,
			&threads[i]);
	}
	for (unsigned i = 0; i < SECONDS * 10; i++) {
		usleep(100000);
		flash_get_stats(my.flash, &stats);
		if (i >= 10 && stats.regions_reclaimed >= RECLAIMED)
			break;
	}
	atomic_store(&my.stop, true);
	for (unsigned i = 0; i < WRITERS + READERS; i++)
		pthread_join(threads[i].thread, NULL);
	atomic_store(&my.flash_stop, true);
	flash_wake(my.flash);
	pthread_join(flash_thread, NULL);

	rcu_register();
	check(log_finish(my.flash, clock_unix_ns, clock_unix_ns() + 20000000000ull));
	for (uint32_t i = 0; i < KEYS; i++) {
		left += atomic_load(&my.keys[i].place) != 0;
		read_item(&verifier, i);
	}
	flash_get_stats(my.flash, &stats);
	printf("# %u puts, %u abandoned, %u busy, %u moved; %u read from buffers, %u from the "
	       "file, "
	       "%u absent; %u regions reclaimed; %u keys left; write amplification %.3f\n",
		(unsigned)my.puts, (unsigned)my.abandoned, (unsigned)my.busy, (unsigned)my.moved,
		(unsigned)my.buffered, (unsigned)my.read, (unsigned)my.absent,
		(unsigned)stats.regions_reclaimed, left,
		(double)stats.written_bytes / (double)stats.item_bytes_written);
	check(stats.alive && stats.write_errors == 0 && stats.regions_retired == 0);
	check(stats.items_written == my.puts && stats.items_reinserted == my.moved);
	check(my.buffered > 0 && my.read > 0 && left > KEYS / 8);
	check(stats.regions_reclaimed > 0 && my.moved > 0);
	flash_destroy(my.flash);
	close(my.fd);
	unlink(path);
	rcu_unregister();
	return 0;
}
