/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * super: the superblocks while the store is open. Changes are numbered; a write takes all that were
 * made before it, to one copy, then the same to the other, so that at rest both say the same, and
 * one that is torn or worn out takes nothing back. A change counts as durable with the first copy.
 *
 * File 0 has everything. The others have the geometry and void_below, and are written only when
 * that changes.
 *
 * The marker file stands in for a superblock that can't be written: see super_void.
 */
#include "flash/internal.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPY_TRIES 3 /* a copy that fails so often is given up for the other */
#define CAS_AHEAD (1ull << 30)
#define MARKER_PATH_MAX 4096

struct super {
	pthread_mutex_t mutex; /* over now, changes, void_change, wants_marker */
	struct flash_super now;
	uint64_t changes;
	uint64_t void_change; /* the last that changed void_below */
	bool wants_marker;
	bool written_off; /* super_void was called */

	_Atomic uint64_t settled; /* changes up to this are durable */
	_Atomic bool failed;
	_Atomic bool void_durable;
	_Atomic uint64_t cas_durable; /* numbers below are reserved */
	_Atomic uint64_t cas_wanted;
	uint64_t cas_first;
	uint64_t flush_due_ns;
	bool marked; /* there is a marker file */
	uint32_t file_count;
	struct super_file files[IO_FILES_MAX];
};

/* --- blocking I/O ------------------------------------------------------------------------- */

static void
run_done(struct flash *flash, struct write *write, int result)
{
	(void)flash;
	*(int *)write->context = result;
}

int
writer_run(struct flash *flash, uint8_t op, uint16_t file, uint64_t offset, void *data,
	uint32_t bytes, bool durable)
{
	struct {
		struct write write;
		int result;
	} *run = calloc(1, sizeof *run);

	if (run == NULL)
		return -ENOMEM;
	run->write.request = (struct io_request){.op = op,
		.durable = durable,
		.file = file,
		.buffer = -1,
		.size = bytes,
		.offset = offset,
		.data = data};
	run->write.done = run_done;
	run->write.context = &run->result;
	writer_submit(flash, &run->write);
	if (!writer_finish(flash, &run->write))
		return -ETIMEDOUT; /* the device has *run for ever */

	int result = run->result;

	free(run);
	return result;
}

/* --- marker ------------------------------------------------------------------------------- */

static bool
marker_path(const struct flash *flash, char path[MARKER_PATH_MAX])
{
	const uint8_t *id = flash->id;
	int n;

	if (flash->options.state_directory == NULL)
		return false;
	n = snprintf(path, MARKER_PATH_MAX, "%s/flash-", flash->options.state_directory);
	for (unsigned i = 0; i < 16 && n > 0 && n < MARKER_PATH_MAX; i++)
		n += snprintf(path + n, (size_t)(MARKER_PATH_MAX - n), "%02x", id[i]);
	if (n > 0 && n < MARKER_PATH_MAX)
		n += snprintf(path + n, (size_t)(MARKER_PATH_MAX - n), ".void");
	return n > 0 && n < MARKER_PATH_MAX;
}

static bool
marker_is_there(const struct flash *flash)
{
	char path[MARKER_PATH_MAX];

	return marker_path(flash, path) && access(path, F_OK) == 0;
}

static bool
sync_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool synced = fd >= 0 && fsync(fd) == 0;

	if (fd >= 0)
		close(fd);
	return synced;
}

static bool
marker_make(const struct flash *flash)
{
	static const char text[] = "The content of the flash store of this name is void: its "
				   "journal or superblock could "
				   "not be written.\n";
	char path[MARKER_PATH_MAX];

	if (!marker_path(flash, path))
		return false;

	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	bool made = fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)(sizeof text - 1) &&
		    fsync(fd) == 0;

	if (fd >= 0)
		close(fd);
	return made && sync_directory(flash->options.state_directory);
}

static void
marker_remove(struct flash *flash)
{
	char path[MARKER_PATH_MAX];

	if (flash->super->marked && marker_path(flash, path) && unlink(path) == 0) {
		sync_directory(flash->options.state_directory);
		flash->super->marked = false;
	}
}

/* --- opening ------------------------------------------------------------------------------ */

/* Region r of the store: the files take turns, as long as they have one more. */
static bool
place_regions(struct flash *flash, const struct super_file *files)
{
	uint32_t number = 0;

	flash->region_bytes = files[0].block->region_bytes;
	flash->region_count = files[0].block->regions;
	flash->regions = calloc(flash->region_count, sizeof *flash->regions);
	if (flash->regions == NULL)
		return false;
	for (uint32_t round = 0; number < flash->region_count; round++)
		for (uint32_t file = 0; file < flash->options.file_count; file++)
			if (round < files[file].block->file_regions) {
				struct region *region = &flash->regions[number++];

				region->file = (uint16_t)file;
				region->base = files[file].block->data_offset +
					       (uint64_t)round * flash->region_bytes;
			}
	return true;
}

static bool
super_create(struct flash *flash, char *error, size_t error_size)
{
	struct super *super = calloc(1, sizeof *super);

	if (super != NULL) {
		flash->super = super;
		pthread_mutex_init(&super->mutex, NULL);
		super->file_count = flash->options.file_count;
		for (uint32_t i = 0; i < super->file_count; i++) {
			super->files[i].block = aligned_alloc(FLASH_BLOCK, FLASH_BLOCK);
			if (super->files[i].block == NULL)
				break;
			memset(super->files[i].block, 0, FLASH_BLOCK);
			if (i + 1 == super->file_count)
				return true;
		}
	}
	snprintf(error, error_size, "%s: no memory", flash->options.files[0].path);
	return false;
}

static bool
open_files(struct flash *flash, char *error, size_t error_size)
{
	const struct io_queue_options queue = {.depth = WRITER_DEPTH, .moves = true};
	struct io_file_options files[IO_FILES_MAX];
	uint32_t count = flash->options.file_count;

	if (count == 0 || count > IO_FILES_MAX) {
		snprintf(error, error_size, "flash: 1 to %d files can be used", IO_FILES_MAX);
		return false;
	}
	for (uint32_t i = 0; i < count; i++)
		files[i] = (struct io_file_options){.path = flash->options.files[i].path,
			.size = flash->options.files[i].size,
			.read_only = flash->inspected};
	flash->io = flash->options.io->open(files, count, error, error_size);
	if (flash->io == NULL)
		return false;
	flash->writer = flash->options.io->queue_create(flash->io, &queue);
	if (flash->writer == NULL)
		snprintf(error, error_size, "%s: no queue for writing: %s", files[0].path,
			strerror(errno));
	return flash->writer != NULL;
}

bool
super_open(struct flash *flash, struct flash_super *found, char *error, size_t error_size)
{
	if (!open_files(flash, error, error_size) || !super_create(flash, error, error_size))
		return false;

	struct super *super = flash->super;

	if (!format_open(flash, super->files, error, error_size))
		return false;
	super->now = *super->files[0].block;
	memcpy(flash->id, super->now.id, sizeof flash->id);
	flash->hash_seed = super->now.hash_seed;
	super->marked = marker_is_there(flash);
	if (super->marked)
		super->now.void_below = FLASH_VOID_ALL;
	for (uint32_t i = 0; i < super->file_count; i++) {
		uint32_t block = flash->options.io->file(flash->io, i)->block;

		flash->block = flash->block > block ? flash->block : block;
		if (super->files[i].block->void_below > super->now.void_below)
			super->now.void_below = super->files[i].block->void_below;
	}
	*found = super->now;
	super->cas_first = super->now.cas_next != 0 ? super->now.cas_next : 1;
	super->flush_due_ns =
		super->now.flush_at_ns > flash->options.now_ns ? super->now.flush_at_ns : 0;
	/* The first write of this start, which takes the clean mark away, makes the reserve too. */
	super->now.cas_next = super->cas_first + CAS_AHEAD;
	atomic_store(&super->cas_wanted, super->now.cas_next);
	super->now.journal_mode = flash->options.journal;
	atomic_store(&flash->flush_position, super->now.flush_position);
	if (place_regions(flash, super->files))
		return true;
	snprintf(error, error_size, "%s: no memory for the table of %u regions",
		flash->options.files[0].path, super->now.regions);
	return false;
}

uint32_t
super_journal_blocks(const struct flash *flash)
{
	return flash->super->now.journal_blocks;
}

void
super_destroy(struct flash *flash)
{
	struct super *super = flash->super;

	if (super == NULL)
		return;
	for (uint32_t i = 0; i < super->file_count; i++)
		/* A device that doesn't answer keeps its block. */
		if (!super->files[i].write.under_way)
			free(super->files[i].block);
	pthread_mutex_destroy(&super->mutex);
	free(super);
	free(flash->regions);
	flash->regions = NULL;
	flash->super = NULL;
}

/* --- changes ------------------------------------------------------------------------------ */

uint64_t
super_change(struct flash *flash, void (*change)(struct flash_super *super, void *context),
	void *context)
{
	struct super *super = flash->super;

	pthread_mutex_lock(&super->mutex);
	uint64_t void_before = super->now.void_below, ticket = ++super->changes;

	change(&super->now, context);
	if (super->written_off)
		super->now.void_below = FLASH_VOID_ALL;
	if (super->now.void_below != void_before)
		super->void_change = ticket;
	pthread_mutex_unlock(&super->mutex);
	flash_wake(flash);
	return ticket;
}

enum flash_durable
super_settled(const struct flash *flash, uint64_t ticket)
{
	const struct super *super = flash->super;

	if (atomic_load_explicit(&super->settled, memory_order_acquire) >= ticket)
		return FLASH_DURABLE;
	return atomic_load_explicit(&super->failed, memory_order_acquire) ? FLASH_NEVER
									  : FLASH_NOT_YET;
}

static void
set_void(struct flash_super *now, void *context)
{
	(void)context;
	now->void_below = FLASH_VOID_ALL;
}

void
super_void(struct flash *flash)
{
	struct super *super = flash->super;

	pthread_mutex_lock(&super->mutex);
	bool first = !super->written_off;

	super->written_off = super->wants_marker = true;
	pthread_mutex_unlock(&super->mutex);
	if (first)
		super_change(flash, set_void, NULL);
}

bool
super_void_settled(const struct flash *flash)
{
	return atomic_load_explicit(&flash->super->void_durable, memory_order_acquire);
}

/* --- writing: the flash thread ------------------------------------------------------------ */

static void
tell(const struct flash *flash)
{
	if (flash->options.wake != NULL)
		flash->options.wake(flash->options.wake_context);
}

static void
void_is_durable(struct flash *flash)
{
	atomic_store_explicit(&flash->super->void_durable, true, memory_order_release);
	tell(flash);
}

static void
write_succeeded(struct flash *flash, struct super_file *file, unsigned copy)
{
	struct super *super = flash->super;

	file->written[copy] = file->writing;
	file->failed[copy] = 0;
	if (file->writing_void)
		void_is_durable(flash);
	if (file != &super->files[0])
		return;
	if (file->writing > atomic_load_explicit(&super->settled, memory_order_relaxed)) {
		atomic_store_explicit(&super->cas_durable, file->writing_cas, memory_order_release);
		atomic_store_explicit(&super->settled, file->writing, memory_order_release);
	}
	/* What a marker said, the superblock says now. */
	if (file->writing_void || !super->written_off)
		marker_remove(flash);
	tell(flash);
}

static void
write_done(struct flash *flash, struct write *write, int result)
{
	struct super *super = flash->super;
	struct super_file *file = write->context;
	unsigned copy = write->request.offset != 0;

	if (result == 0) {
		write_succeeded(flash, file, copy);
		file->turn = !copy;
		return;
	}
	/* The same once more, before the other, which is whole, is put at stake. */
	if (++file->failed[copy] >= COPY_TRIES)
		file->turn = !copy;
	if (file == &super->files[0] && file->failed[0] >= COPY_TRIES &&
		file->failed[1] >= COPY_TRIES && !atomic_exchange(&super->failed, true)) {
		flash_void(flash, "the superblock cannot be written");
		tell(flash);
	}
}

/* The newest change that this file should have. By super's mutex. */
static uint64_t
wanted_change(const struct super *super, const struct super_file *file)
{
	return file == &super->files[0] ? super->changes : super->void_change;
}

/* Is there something to be written, and a copy that takes it? */
static bool
file_lacks(const struct super *super, struct super_file *file)
{
	uint64_t wanted = wanted_change(super, file);

	for (unsigned i = 0; i < 2; i++) {
		unsigned copy = file->turn;

		if (file->written[copy] < wanted && file->failed[copy] < COPY_TRIES)
			return true;
		file->turn = !copy;
	}
	return false;
}

static void
file_write(struct flash *flash, struct super_file *file)
{
	struct super *super = flash->super;
	struct flash_super *block = file->block;

	pthread_mutex_lock(&super->mutex);
	bool lacks = file_lacks(super, file);

	if (lacks) {
		if (file == &super->files[0])
			*block = super->now;
		block->void_below = super->now.void_below;
		file->writing = super->changes;
		file->writing_cas = super->now.cas_next;
		file->writing_void = super->written_off && super->now.void_below == FLASH_VOID_ALL;
	}
	pthread_mutex_unlock(&super->mutex);
	if (!lacks)
		return;
	block->generation = ++file->generation;
	layout_super_seal(block);
	file->write.request = (struct io_request){.op = IO_WRITE,
		.durable = true,
		.file = (uint16_t)(file - super->files),
		.buffer = -1,
		.size = FLASH_BLOCK,
		.offset = file->turn ? FLASH_SUPER_SECOND : 0,
		.data = block};
	file->write.done = write_done;
	file->write.context = file;
	writer_submit(flash, &file->write);
}

static void
write_marker(struct flash *flash)
{
	struct super *super = flash->super;

	pthread_mutex_lock(&super->mutex);
	bool wanted = super->wants_marker;

	super->wants_marker = false;
	pthread_mutex_unlock(&super->mutex);
	if (!wanted || super_void_settled(flash))
		return;
	if (marker_make(flash)) {
		super->marked = true;
		void_is_durable(flash);
	}
}

void
super_work(struct flash *flash, uint64_t now_ns)
{
	struct super *super = flash->super;

	(void)now_ns;
	for (uint32_t i = 0; i < super->file_count; i++)
		if (!super->files[i].write.under_way)
			file_write(flash, &super->files[i]);
	write_marker(flash);
}

bool
super_write_now(struct flash *flash)
{
	struct super *super = flash->super;

	for (;;) {
		bool under_way = false;

		super_work(flash, 0);
		for (uint32_t i = 0; i < super->file_count; i++) {
			struct write *write = &super->files[i].write;

			if (!write->under_way)
				continue;
			under_way = true;
			if (!writer_finish(flash, write))
				return false;
		}
		if (!under_way)
			return super_settled(flash, super->changes) == FLASH_DURABLE;
	}
}

/* --- what others see of it ---------------------------------------------------------------- */

uint64_t
flash_cas_first(const struct flash *flash)
{
	return flash->super->cas_first;
}

static void
set_cas(struct flash_super *now, void *context)
{
	const uint64_t *wanted = context;

	if (now->cas_next < *wanted)
		now->cas_next = *wanted;
}

bool
flash_cas_reserve(struct flash *flash, uint64_t next)
{
	struct super *super = flash->super;
	uint64_t durable = atomic_load_explicit(&super->cas_durable, memory_order_acquire);
	uint64_t wanted = next + CAS_AHEAD;
	uint64_t asked = atomic_load_explicit(&super->cas_wanted, memory_order_relaxed);

	/* Asked for when half of the last is used, so that nobody waits. */
	if (asked < wanted - CAS_AHEAD / 2 &&
		atomic_compare_exchange_strong(&super->cas_wanted, &asked, wanted))
		super_change(flash, set_cas, &wanted);
	/* Where nothing can be reserved any more, nothing of it will be seen again either. */
	return next < durable || !flash_alive(flash);
}

uint64_t
flash_flush_position(const struct flash *flash)
{
	return atomic_load_explicit(&flash->flush_position, memory_order_acquire);
}

static void
set_flush(struct flash_super *now, void *context)
{
	const uint64_t *position = context;

	if (now->flush_position < *position)
		now->flush_position = *position;
	now->flush_at_ns = 0;
	now->flushes++;
}

void
flash_flush(struct flash *flash, void (*bump)(void *context), void *context,
	struct flash_intent *intent)
{
	log_lock(flash);
	uint64_t tail = atomic_load_explicit(&flash->tail, memory_order_relaxed);

	if (tail > atomic_load_explicit(&flash->flush_position, memory_order_relaxed))
		atomic_store_explicit(&flash->flush_position, tail, memory_order_release);
	bump(context);
	log_unlock(flash);
	intent->covers = tail;
	intent->flush = true;
	intent->ticket = super_change(flash, set_flush, &tail);
}

static void
set_flush_at(struct flash_super *now, void *context)
{
	now->flush_at_ns = *(const uint64_t *)context;
}

void
flash_flush_at(struct flash *flash, uint64_t at_ns, struct flash_intent *intent)
{
	intent->covers = 0;
	intent->flush = true;
	intent->ticket = super_change(flash, set_flush_at, &at_ns);
}

enum flash_durable
flash_flushed(const struct flash *flash, const struct flash_intent *intent)
{
	enum flash_durable settled = super_settled(flash, intent->ticket);

	if (settled == FLASH_DURABLE)
		return settled;
	if (!flash_alive(flash))
		return super_void_settled(flash) ? FLASH_DURABLE : FLASH_NEVER;
	return settled;
}

uint64_t
flash_flush_due_ns(const struct flash *flash)
{
	return flash->super->flush_due_ns;
}
