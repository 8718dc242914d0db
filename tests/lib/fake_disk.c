/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/lib/fake_disk.h"

#include "base/check.h"
#include "base/crc32c.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SECTOR 512u
#define NOT_PUSHED UINT64_MAX
#define STUCK (UINT64_MAX - 1)
/* Requests that wait for nothing but stuck ones come back after so many ticks without a timeout. */
#define PATIENCE 100000
/* So many writes at most wait in the disk's cache; the oldest go to the medium by themselves. */
#define VOLATILE_MAX 64

struct file {
	char *name;
	uint64_t size;
	uint32_t block, memory_align;
	bool device;
	uint8_t *medium; /* what a crash surely leaves */
	uint8_t *seen;	 /* what reads find: volatile writes included */
};

/* A write that is back and not yet durable. In the order in which they came back. */
struct volatile_write {
	struct volatile_write *next;
	struct file *file;
	uint64_t offset;
	uint32_t size;
	uint64_t back; /* the disk's count of events when it came back */
	uint8_t *live; /* a byte a sector: 0 where something durable came later */
	uint8_t data[];
};

struct under_way {
	struct io_request *request;
	struct file *file;
	uint64_t due;	    /* tick; NOT_PUSHED, STUCK */
	uint64_t submitted; /* the disk's count of events */
	uint32_t crc;	    /* of a write's data */
	int error;	    /* to be given */
};

struct io_queue {
	struct io_queue *next;
	struct io *io;
	struct fake_disk *disk;
	struct under_way *requests;
	uint32_t count, depth;
	struct iovec *buffers;
	uint32_t buffer_count;
	int event_fd; /* -1 until somebody asks */
	bool signalled;
};

struct io {
	struct fake_disk *disk;
	uint32_t count;
	bool read_only;
	struct file *files[IO_FILES_MAX];
	struct io_file_info info[IO_FILES_MAX];
	struct io *next;
};

struct fault {
	struct fake_disk_fault fault;
	uint32_t passed, failed;
};

struct fake_disk {
	pthread_mutex_t lock;
	uint64_t random, tick, events, space;
	unsigned latency, ticks_a_ms;
	struct file *files[IO_FILES_MAX];
	uint32_t file_count;
	struct io *opened;
	struct io_queue *queues;
	struct volatile_write *first, **last;
	uint32_t volatile_count;
	struct fault faults[FAKE_DISK_FAULTS_MAX];
	uint32_t fault_count;
	_Atomic bool cut;
	bool vanished;
	uint64_t vanished_at; /* count of events */
	fake_disk_hook *hook;
	void *hook_context;
	void (*ticked)(void *context);
	void *ticked_context;
	struct fake_disk_counts counts;
};

static struct fake_disk *current;

/* --- chance ------------------------------------------------------------------------------- */

static uint64_t
next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

static uint64_t
draw(struct fake_disk *disk, uint64_t below)
{
	return next_random(&disk->random) % below;
}

static uint64_t
draw_locked(struct fake_disk *disk, uint64_t below)
{
	pthread_mutex_lock(&disk->lock);
	uint64_t drawn = draw(disk, below);
	pthread_mutex_unlock(&disk->lock);
	return drawn;
}

/* --- files -------------------------------------------------------------------------------- */

static struct file *
find_file(const struct fake_disk *disk, const char *name)
{
	for (uint32_t i = 0; i < disk->file_count; i++)
		if (!strcmp(disk->files[i]->name, name))
			return disk->files[i];
	return NULL;
}

static struct file *
add_file(struct fake_disk *disk, const struct fake_disk_file *from)
{
	struct file *file = calloc(1, sizeof *file);

	check(file && disk->file_count < IO_FILES_MAX);
	file->name = strdup(from->name);
	file->size = from->size;
	file->block = from->block ? from->block : SECTOR;
	file->memory_align = from->memory_align ? from->memory_align : SECTOR;
	file->device = from->device;
	file->medium = calloc(1, file->size + 1);
	file->seen = calloc(1, file->size + 1);
	check(file->name && file->medium && file->seen);
	check(file->block % SECTOR == 0 && file->size % file->block == 0);
	disk->files[disk->file_count++] = file;
	return file;
}

static bool
grow_file(struct fake_disk *disk, struct file *file, uint64_t size)
{
	uint64_t used = 0;

	for (uint32_t i = 0; i < disk->file_count; i++)
		used += disk->files[i]->size;
	if (used + (size - file->size) > disk->space)
		return false;
	file->medium = realloc(file->medium, size + 1);
	file->seen = realloc(file->seen, size + 1);
	check(file->medium && file->seen);
	memset(file->medium + file->size, 0, size - file->size);
	memset(file->seen + file->size, 0, size - file->size);
	file->size = size;
	return true;
}

struct fake_disk *
fake_disk_create(uint64_t seed, const struct fake_disk_file *files, uint32_t file_count)
{
	struct fake_disk *disk = calloc(1, sizeof *disk);

	check(disk);
	check(pthread_mutex_init(&disk->lock, NULL) == 0);
	disk->random = seed;
	disk->latency = 7;
	disk->ticks_a_ms = 10;
	disk->space = UINT64_MAX;
	disk->last = &disk->first;
	for (uint32_t i = 0; i < file_count; i++)
		add_file(disk, &files[i]);
	current = disk;
	return disk;
}

void
fake_disk_use(struct fake_disk *disk)
{
	current = disk;
}

static void
drop_volatile(struct fake_disk *disk)
{
	struct volatile_write *write;

	while ((write = disk->first)) {
		disk->first = write->next;
		free(write->live);
		free(write);
	}
	disk->last = &disk->first;
	disk->volatile_count = 0;
}

static void
free_queue(struct io_queue *queue)
{
	if (queue->event_fd >= 0)
		close(queue->event_fd);
	free(queue->buffers);
	free(queue->requests);
	free(queue);
}

/* All handles are gone, whatever they still held. */
static void
drop_handles(struct fake_disk *disk)
{
	struct io_queue *queue;
	struct io *io;

	while ((queue = disk->queues)) {
		disk->queues = queue->next;
		free_queue(queue);
	}
	while ((io = disk->opened)) {
		disk->opened = io->next;
		free(io);
	}
}

void
fake_disk_destroy(struct fake_disk *disk)
{
	drop_handles(disk);
	drop_volatile(disk);
	for (uint32_t i = 0; i < disk->file_count; i++) {
		free(disk->files[i]->name);
		free(disk->files[i]->medium);
		free(disk->files[i]->seen);
		free(disk->files[i]);
	}
	if (current == disk)
		current = NULL;
	pthread_mutex_destroy(&disk->lock);
	free(disk);
}

uint64_t
fake_disk_size(const struct fake_disk *disk, const char *name)
{
	const struct file *file = find_file(disk, name);

	return file ? file->size : 0;
}

void
fake_disk_peek(struct fake_disk *disk, const char *name, uint64_t offset, void *to, uint64_t size)
{
	const struct file *file = find_file(disk, name);

	check(file && offset <= file->size && size <= file->size - offset);
	pthread_mutex_lock(&disk->lock);
	memcpy(to, file->seen + offset, size);
	pthread_mutex_unlock(&disk->lock);
}

void
fake_disk_poke(
	struct fake_disk *disk, const char *name, uint64_t offset, const void *from, uint64_t size)
{
	struct file *file = find_file(disk, name);

	check(file && offset <= file->size && size <= file->size - offset);
	pthread_mutex_lock(&disk->lock);
	memcpy(file->seen + offset, from, size);
	memcpy(file->medium + offset, from, size);
	pthread_mutex_unlock(&disk->lock);
}

void
fake_disk_flip(struct fake_disk *disk, const char *name, uint64_t offset, unsigned bit)
{
	struct file *file = find_file(disk, name);

	check(file && offset < file->size);
	pthread_mutex_lock(&disk->lock);
	file->seen[offset] ^= (uint8_t)(1u << bit);
	file->medium[offset] ^= (uint8_t)(1u << bit);
	pthread_mutex_unlock(&disk->lock);
}

/* --- what writes leave -------------------------------------------------------------------- */

static bool
changes_medium(const struct io_request *request)
{
	return request->op == IO_WRITE || request->op == IO_DISCARD;
}

/* Copies the sectors that 'live' says (NULL: all), each kept by chance of per_mille. */
static void
copy_sectors(uint8_t *to, const uint8_t *from, const uint8_t *live, uint32_t size, uint64_t *random,
	unsigned per_mille)
{
	for (uint32_t i = 0; i < size / SECTOR; i++) {
		if (live && !live[i])
			continue;
		if (per_mille < 1000 && next_random(random) % 1000 >= per_mille)
			continue;
		if (from)
			memcpy(to + i * SECTOR, from + i * SECTOR, SECTOR);
		else
			memset(to + i * SECTOR, 0, SECTOR);
	}
}

/* A write is back that is surely on the medium: what came back before it, and overlaps, is gone. */
static void
settle_durable(struct fake_disk *disk, const struct file *file, uint64_t offset, uint32_t size)
{
	for (struct volatile_write *write = disk->first; write; write = write->next) {
		if (write->file != file || write->offset >= offset + size ||
			offset >= write->offset + write->size)
			continue;
		for (uint32_t i = 0; i < write->size / SECTOR; i++) {
			uint64_t at = write->offset + i * SECTOR;

			if (at >= offset && at < offset + size)
				write->live[i] = 0;
		}
	}
}

/* A write goes to the medium, and out of the list. */
static void
write_back(struct fake_disk *disk, struct volatile_write **link)
{
	struct volatile_write *write = *link;

	copy_sectors(write->file->medium + write->offset, write->data, write->live, write->size,
		NULL, 1000);
	*link = write->next;
	if (disk->last == &write->next)
		disk->last = link;
	disk->volatile_count--;
	free(write->live);
	free(write);
}

static void
put_volatile(struct fake_disk *disk, struct file *file, uint64_t offset, const uint8_t *data,
	uint32_t size)
{
	struct volatile_write *write = malloc(sizeof *write + size);

	check(write);
	write->next = NULL;
	write->file = file;
	write->offset = offset;
	write->size = size;
	write->back = ++disk->events;
	write->live = malloc(size / SECTOR);
	check(write->live);
	memset(write->live, 1, size / SECTOR);
	memcpy(write->data, data, size);
	*disk->last = write;
	disk->last = &write->next;
	if (++disk->volatile_count > VOLATILE_MAX)
		write_back(disk, &disk->first);
}

/* What was back before the flush was submitted is on the medium. */
static void
apply_flush(struct fake_disk *disk, uint64_t submitted)
{
	while (disk->first && disk->first->back <= submitted)
		write_back(disk, &disk->first);
}

/*
 * The write has its effect. One that failed may have changed any of its sectors, which are volatile
 * then, whatever was asked for.
 */
static void
apply_write(struct fake_disk *disk, const struct under_way *way)
{
	const struct io_request *request = way->request;
	struct file *file = way->file;
	uint8_t *seen = file->seen + request->offset;
	const uint8_t *data = request->op == IO_DISCARD ? NULL : request->data;
	bool forgets = request->op == IO_DISCARD && draw(disk, 2) == 0;

	if (way->error) {
		if (draw(disk, 2))
			copy_sectors(seen, data, NULL, request->size, &disk->random, 500);
		put_volatile(disk, file, request->offset, seen, request->size);
		return;
	}
	if (request->op == IO_DISCARD && !forgets)
		return;
	copy_sectors(seen, data, NULL, request->size, NULL, 1000);
	if (request->op == IO_WRITE && request->durable) {
		settle_durable(disk, file, request->offset, request->size);
		memcpy(file->medium + request->offset, request->data, request->size);
	} else {
		put_volatile(disk, file, request->offset, seen, request->size);
	}
}

/* A read gets what is seen, or any mixture of it and of writes that are under way. */
static void
apply_read(struct fake_disk *disk, const struct under_way *way)
{
	const struct io_request *read = way->request;

	memcpy(read->data, way->file->seen + read->offset, read->size);
	for (struct io_queue *queue = disk->queues; queue; queue = queue->next)
		for (uint32_t i = 0; i < queue->count; i++) {
			const struct under_way *other = &queue->requests[i];
			const struct io_request *write = other->request;
			uint64_t from, to;

			if (other->due == NOT_PUSHED || write->op != IO_WRITE ||
				other->file != way->file)
				continue;
			from = write->offset > read->offset ? write->offset : read->offset;
			to = write->offset + write->size < read->offset + read->size
				     ? write->offset + write->size
				     : read->offset + read->size;
			if (from < to)
				copy_sectors((uint8_t *)read->data + (from - read->offset),
					(const uint8_t *)write->data + (from - write->offset), NULL,
					(uint32_t)(to - from), &disk->random, 500);
		}
}

/* --- faults ------------------------------------------------------------------------------- */

static bool
fault_meets(const struct fake_disk_fault *fault, const struct under_way *way)
{
	const struct io_request *request = way->request;
	unsigned kind = request->op == IO_READ	  ? FAKE_DISK_READS
			: request->op == IO_WRITE ? FAKE_DISK_WRITES
			: request->op == IO_FLUSH ? FAKE_DISK_FLUSHES
						  : 0;

	if (!(fault->kinds & kind) || (fault->name && strcmp(fault->name, way->file->name) != 0))
		return false;
	return request->op == IO_FLUSH || (request->offset + request->size > fault->from &&
						  (fault->to == 0 || request->offset < fault->to));
}

static int
fault_of(struct fake_disk *disk, const struct under_way *way)
{
	for (uint32_t i = 0; i < disk->fault_count; i++) {
		struct fault *fault = &disk->faults[i];

		if (!fault_meets(&fault->fault, way))
			continue;
		if (fault->passed < fault->fault.skip) {
			fault->passed++;
			continue;
		}
		if (fault->fault.times && fault->failed == fault->fault.times)
			continue;
		if (fault->fault.per_million && draw(disk, 1000000) >= fault->fault.per_million)
			continue;
		fault->failed++;
		disk->counts.faults++;
		return fault->fault.error;
	}
	return 0;
}

void
fake_disk_fault(struct fake_disk *disk, const struct fake_disk_fault *fault)
{
	pthread_mutex_lock(&disk->lock);
	check(disk->fault_count < FAKE_DISK_FAULTS_MAX && fault->error > 0);
	disk->faults[disk->fault_count++] = (struct fault){.fault = *fault};
	pthread_mutex_unlock(&disk->lock);
}

void
fake_disk_no_faults(struct fake_disk *disk)
{
	pthread_mutex_lock(&disk->lock);
	disk->fault_count = 0;
	pthread_mutex_unlock(&disk->lock);
}

void
fake_disk_unstick(struct fake_disk *disk, bool failed)
{
	pthread_mutex_lock(&disk->lock);
	for (struct io_queue *queue = disk->queues; queue; queue = queue->next)
		for (uint32_t i = 0; i < queue->count; i++)
			if (queue->requests[i].due == STUCK) {
				queue->requests[i].due = disk->tick + 1 + draw(disk, 8);
				queue->requests[i].error = failed ? EIO : 0;
			}
	pthread_mutex_unlock(&disk->lock);
}

void
fake_disk_vanish(struct fake_disk *disk, bool vanished)
{
	pthread_mutex_lock(&disk->lock);
	disk->vanished = vanished;
	disk->vanished_at = ++disk->events;
	pthread_mutex_unlock(&disk->lock);
}

void
fake_disk_space(struct fake_disk *disk, uint64_t bytes)
{
	disk->space = bytes;
}

/* --- crashes ------------------------------------------------------------------------------ */

/* What becomes of one write that isn't durable. */
static void
settle_lost(struct fake_disk *disk, uint8_t *medium, const uint8_t *data, const uint8_t *live,
	uint32_t size, uint64_t *random)
{
	switch (next_random(random) % 3) {
	case 0:
		disk->counts.lost++;
		break;
	case 1:
		disk->counts.kept++;
		copy_sectors(medium, data, live, size, random, 1000);
		break;
	case 2:
		disk->counts.torn++;
		copy_sectors(medium, data, live, size, random, 500);
		break;
	}
}

static void
show_medium(const struct file *file, uint64_t offset, uint32_t size)
{
	memcpy(file->seen + offset, file->medium + offset, size);
}

/* Writes under way; show: what is seen there becomes what is on the medium, else it is settled. */
static void
cut_under_way(struct fake_disk *disk, bool show, uint64_t *random)
{
	for (struct io_queue *queue = disk->queues; queue; queue = queue->next)
		for (uint32_t i = 0; i < queue->count; i++) {
			const struct under_way *way = &queue->requests[i];
			const struct io_request *request = way->request;

			if (way->due == NOT_PUSHED || !changes_medium(request))
				continue;
			if (show) {
				show_medium(way->file, request->offset, request->size);
				continue;
			}
			if (request->op == IO_WRITE)
				check(crc32c(0, request->data, request->size) == way->crc);
			settle_lost(disk, way->file->medium + request->offset,
				request->op == IO_WRITE ? request->data : NULL, NULL, request->size,
				random);
		}
}

static void
cut(struct fake_disk *disk, uint64_t seed)
{
	struct volatile_write *write;

	if (disk->cut)
		return;
	for (write = disk->first; write; write = write->next)
		settle_lost(disk, write->file->medium + write->offset, write->data, write->live,
			write->size, &seed);
	cut_under_way(disk, false, &seed);
	for (write = disk->first; write; write = write->next)
		show_medium(write->file, write->offset, write->size);
	cut_under_way(disk, true, NULL);
	drop_volatile(disk);
	disk->cut = true;
}

void
fake_disk_cut(struct fake_disk *disk, uint64_t seed)
{
	pthread_mutex_lock(&disk->lock);
	cut(disk, seed);
	pthread_mutex_unlock(&disk->lock);
}

bool
fake_disk_is_cut(const struct fake_disk *disk)
{
	return disk->cut;
}

void
fake_disk_crash(struct fake_disk *disk, uint64_t seed)
{
	cut(disk, seed);
	drop_handles(disk);
	disk->cut = false;
}

void
fake_disk_on_write(struct fake_disk *disk, fake_disk_hook *hook, void *context)
{
	disk->hook = hook;
	disk->hook_context = context;
}

static void
tell(struct fake_disk *disk, const struct io_request *request, bool done)
{
	if (request->op == IO_READ)
		return;
	pthread_mutex_lock(&disk->lock);
	uint64_t number = ++disk->counts.numbers;
	bool is_cut = disk->cut;
	pthread_mutex_unlock(&disk->lock);
	if (!is_cut && disk->hook && disk->hook(disk->hook_context, number, request, done))
		fake_disk_cut(disk, number);
}

/* --- opening ------------------------------------------------------------------------------ */

static bool
open_file(struct fake_disk *disk, const struct io_file_options *options, struct file **file,
	char *error, size_t error_size)
{
	*file = find_file(disk, options->path);
	for (struct io *io = disk->opened; io && *file; io = io->next)
		for (uint32_t i = 0; i < io->count; i++)
			if (io->files[i] == *file && !(io->read_only && options->read_only)) {
				snprintf(error, error_size, "%s is in use", options->path);
				return false;
			}
	if (disk->vanished || disk->cut || (!*file && (options->read_only || options->size == 0))) {
		snprintf(error, error_size, "%s: no such device", options->path);
		return false;
	}
	if (!*file)
		*file = add_file(disk, &(struct fake_disk_file){.name = options->path});
	if (options->size <= (*file)->size)
		return true;
	if ((*file)->device || options->read_only || options->size % (*file)->block != 0 ||
		!grow_file(disk, *file, options->size)) {
		snprintf(error, error_size, "%s: no space", options->path);
		return false;
	}
	return true;
}

static struct io *
fake_open(const struct io_file_options *files, uint32_t count, char *error, size_t error_size)
{
	struct fake_disk *disk = current;
	struct io *io = calloc(1, sizeof *io);

	check(disk && io && count <= IO_FILES_MAX);
	io->disk = disk;
	pthread_mutex_lock(&disk->lock);
	for (uint32_t i = 0; i < count; i++) {
		struct io_file_info *info = &io->info[i];

		if (!open_file(disk, &files[i], &io->files[i], error, error_size)) {
			pthread_mutex_unlock(&disk->lock);
			free(io);
			return NULL;
		}
		io->read_only |= files[i].read_only;
		snprintf(info->name, sizeof info->name, "%s", files[i].path);
		info->size = io->files[i]->size;
		info->block = io->files[i]->block;
		info->memory_align = io->files[i]->memory_align;
		info->device = io->files[i]->device;
		info->direct = true;
	}
	io->count = count;
	io->next = disk->opened;
	disk->opened = io;
	pthread_mutex_unlock(&disk->lock);
	return io;
}

static uint32_t
fake_file_count(const struct io *io)
{
	return io->count;
}

static const struct io_file_info *
fake_file(const struct io *io, uint32_t number)
{
	check(number < io->count);
	return &io->info[number];
}

static void
fake_close(struct io *io)
{
	struct fake_disk *disk = io->disk;

	pthread_mutex_lock(&disk->lock);
	for (struct io_queue *queue = disk->queues; queue; queue = queue->next)
		check(queue->io != io);
	for (struct io **link = &disk->opened; *link; link = &(*link)->next)
		if (*link == io) {
			*link = io->next;
			break;
		}
	pthread_mutex_unlock(&disk->lock);
	free(io);
}

/* --- queues ------------------------------------------------------------------------------- */

static struct io_queue *
fake_queue_create(struct io *io, const struct io_queue_options *options)
{
	struct io_queue *queue = calloc(1, sizeof *queue);

	check(queue && options->depth > 0);
	queue->io = io;
	queue->disk = io->disk;
	queue->depth = options->depth;
	queue->event_fd = -1;
	queue->requests = calloc(options->depth, sizeof *queue->requests);
	queue->buffers = calloc(options->buffer_count + 1, sizeof *queue->buffers);
	check(queue->requests && queue->buffers);
	queue->buffer_count = options->buffer_count;
	if (options->buffer_count)
		memcpy(queue->buffers, options->buffers,
			options->buffer_count * sizeof *queue->buffers);
	pthread_mutex_lock(&io->disk->lock);
	queue->next = io->disk->queues;
	io->disk->queues = queue;
	pthread_mutex_unlock(&io->disk->lock);
	return queue;
}

static void
fake_queue_destroy(struct io_queue *queue)
{
	struct fake_disk *disk = queue->disk;

	check(queue->count == 0);
	pthread_mutex_lock(&disk->lock);
	for (struct io_queue **link = &disk->queues; *link; link = &(*link)->next)
		if (*link == queue) {
			*link = queue->next;
			break;
		}
	pthread_mutex_unlock(&disk->lock);
	free_queue(queue);
}

/* What doesn't fit is a mistake of the code under test. */
static void
check_fits(const struct io_queue *queue, const struct io_request *request)
{
	const struct file *file;

	check(request->op <= IO_DISCARD && request->file < queue->io->count);
	if (request->op == IO_FLUSH)
		return;
	file = queue->io->files[request->file];
	check(request->size > 0 && request->size % file->block == 0);
	check(request->offset % file->block == 0 && request->offset < file->size);
	check(request->size <= file->size - request->offset);
	check(request->op == IO_READ || !queue->io->read_only);
	if (request->op == IO_DISCARD)
		return;
	check(request->data && (uintptr_t)request->data % file->memory_align == 0);
	if (request->buffer >= 0) {
		check((uint32_t)request->buffer < queue->buffer_count);

		const struct iovec *buffer = &queue->buffers[request->buffer];
		const uint8_t *base = buffer->iov_base, *data = request->data;

		check(data >= base && data + request->size <= base + buffer->iov_len);
	}
}

static bool
fake_submit(struct io_queue *queue, struct io_request **request)
{
	struct fake_disk *disk = queue->disk;
	struct io_request *taken = *request;
	struct under_way *way;

	if (queue->count == queue->depth)
		return false;
	check_fits(queue, taken);
	tell(disk, taken, false);
	*request = NULL;
	taken->done = 0;
	taken->result = 0;
	pthread_mutex_lock(&disk->lock);
	way = &queue->requests[queue->count++];
	*way = (struct under_way){.request = taken,
		.file = queue->io->files[taken->file],
		.due = NOT_PUSHED,
		.submitted = ++disk->events};
	if (taken->op == IO_WRITE)
		way->crc = crc32c(0, taken->data, taken->size);
	else if (taken->op == IO_READ)
		memset(taken->data, (int)draw(disk, 256), taken->size);
	pthread_mutex_unlock(&disk->lock);
	return true;
}

static void
signal_queue(struct io_queue *queue, bool on)
{
	uint64_t one = 1;

	if (queue->event_fd < 0 || queue->signalled == on)
		return;
	queue->signalled = on;
	check(on ? write(queue->event_fd, &one, 8) == 8 : read(queue->event_fd, &one, 8) == 8);
}

static void
push_locked(struct io_queue *queue)
{
	struct fake_disk *disk = queue->disk;

	for (uint32_t i = 0; i < queue->count; i++) {
		struct under_way *way = &queue->requests[i];
		uint64_t takes = 1 + draw(disk, disk->latency + 1);
		int error;

		if (way->due != NOT_PUSHED)
			continue;
		if (draw(disk, 16) == 0)
			takes *= 1 + draw(disk, 8);
		way->due = disk->tick + takes;
		error = fault_of(disk, way);
		if (error == FAKE_DISK_STUCK)
			way->due = STUCK;
		else
			way->error = error;
	}
	signal_queue(queue, queue->count > 0);
}

static void
fake_push(struct io_queue *queue)
{
	if (queue->count == 0)
		return;
	pthread_mutex_lock(&queue->disk->lock);
	push_locked(queue);
	pthread_mutex_unlock(&queue->disk->lock);
}

/* The request has its effect and its result. */
static void
finish(struct fake_disk *disk, struct under_way *way)
{
	struct io_request *request = way->request;

	if (request->op == IO_WRITE)
		check(crc32c(0, request->data, request->size) == way->crc);
	if (disk->cut || disk->vanished) {
		request->result = disk->cut ? -EIO : -ENODEV;
		way->error = -request->result;
		if (!disk->cut && way->submitted < disk->vanished_at && changes_medium(request))
			apply_write(disk, way);
		return;
	}
	request->result = -way->error;
	switch (request->op) {
	case IO_READ:
		disk->counts.reads++;
		disk->counts.read_bytes += request->size;
		if (!way->error)
			apply_read(disk, way);
		break;
	case IO_WRITE:
		disk->counts.writes++;
		disk->counts.write_bytes += request->size;
		apply_write(disk, way);
		break;
	case IO_DISCARD:
		apply_write(disk, way);
		request->result = 0;
		break;
	case IO_FLUSH:
		disk->counts.flushes++;
		if (!way->error)
			apply_flush(disk, way->submitted);
		break;
	}
	if (request->result == 0 && request->op != IO_FLUSH)
		request->done = request->size;
}

/* Index of a request that is due, one of them by chance; count: none. */
static uint32_t
pick_due(struct io_queue *queue)
{
	struct fake_disk *disk = queue->disk;
	uint32_t picked = queue->count, due = 0;

	for (uint32_t i = 0; i < queue->count; i++) {
		const struct under_way *way = &queue->requests[i];
		bool broken = (disk->cut || disk->vanished) && way->due != NOT_PUSHED;

		if ((broken || way->due <= disk->tick) && draw(disk, ++due) == 0)
			picked = i;
	}
	return picked;
}

static struct io_request *
fake_poll(struct io_queue *queue)
{
	struct fake_disk *disk = queue->disk;
	struct io_request *request;
	uint32_t i;

	if (queue->count == 0) {
		signal_queue(queue, false);
		return NULL;
	}
	pthread_mutex_lock(&disk->lock);
	i = pick_due(queue);
	if (i == queue->count) {
		disk->tick++;
		pthread_mutex_unlock(&disk->lock);
		return NULL;
	}
	request = queue->requests[i].request;
	finish(disk, &queue->requests[i]);
	queue->requests[i] = queue->requests[--queue->count];
	pthread_mutex_unlock(&disk->lock);
	tell(disk, request, true);
	return request;
}

/* Ticks until something is due: 0 now. UINT64_MAX: nothing but stuck ones. */
static uint64_t
until_due(const struct io_queue *queue)
{
	const struct fake_disk *disk = queue->disk;
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < queue->count; i++) {
		uint64_t due = queue->requests[i].due;

		if (disk->cut || disk->vanished || due <= disk->tick)
			return 0;
		if (due != STUCK && due - disk->tick < least)
			least = due - disk->tick;
	}
	return least;
}

static void
fake_wait(struct io_queue *queue, int timeout_ms)
{
	struct fake_disk *disk = queue->disk;
	uint64_t ticks = timeout_ms < 0 ? PATIENCE : (uint64_t)timeout_ms * disk->ticks_a_ms;

	fake_push(queue);
	/* Who waits must bear that nothing came. */
	if (queue->count == 0 || draw_locked(disk, 16) == 0)
		return;
	for (uint64_t i = 0; i < ticks; i++) {
		pthread_mutex_lock(&disk->lock);
		uint64_t left = until_due(queue);
		disk->tick += left > 0;
		pthread_mutex_unlock(&disk->lock);
		if (left == 0)
			return;
		if (disk->ticked)
			disk->ticked(disk->ticked_context);
	}
	if (timeout_ms < 0)
		fake_disk_unstick(disk, true);
}

static int
fake_descriptor(const struct io_queue *queue)
{
	struct io_queue *mine = (struct io_queue *)queue;

	pthread_mutex_lock(&mine->disk->lock);
	if (mine->event_fd < 0) {
		mine->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		check(mine->event_fd >= 0);
		signal_queue(mine, mine->count > 0);
	}
	pthread_mutex_unlock(&mine->disk->lock);
	return mine->event_fd;
}

static const struct io_backend backend = {
	.name = "fake",
	.open = fake_open,
	.file_count = fake_file_count,
	.file = fake_file,
	.close = fake_close,
	.queue_create = fake_queue_create,
	.submit = fake_submit,
	.push = fake_push,
	.poll = fake_poll,
	.wait = fake_wait,
	.descriptor = fake_descriptor,
	.queue_destroy = fake_queue_destroy,
};

const struct io_backend *
fake_disk_backend(void)
{
	return &backend;
}

/* --- time and counts ---------------------------------------------------------------------- */

void
fake_disk_tick(struct fake_disk *disk, unsigned ticks)
{
	pthread_mutex_lock(&disk->lock);
	disk->tick += ticks;
	pthread_mutex_unlock(&disk->lock);
}

void
fake_disk_latency(struct fake_disk *disk, unsigned ticks)
{
	disk->latency = ticks;
}

void
fake_disk_on_tick(
	struct fake_disk *disk, void (*ticked)(void *context), void *context, unsigned ticks_a_ms)
{
	disk->ticked = ticked;
	disk->ticked_context = context;
	disk->ticks_a_ms = ticks_a_ms;
}

void
fake_disk_get_counts(struct fake_disk *disk, struct fake_disk_counts *counts)
{
	pthread_mutex_lock(&disk->lock);
	*counts = disk->counts;
	for (struct io_queue *queue = disk->queues; queue; queue = queue->next)
		counts->under_way += queue->count;
	pthread_mutex_unlock(&disk->lock);
}
