/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * read: loans. A thread has a queue of its own, memory for what it borrows, and a bounded number of
 * loans:
 *
 *	FREE --borrow--> UNDER WAY --poll--> DONE --return--> FREE
 *	                     |  return: the device still has the buffer    ^
 *	                     +--> LET GO -----------poll-------------------+
 *
 * What is pinned stays after it is returned, until the last unpin. Everything but the statistics is
 * the thread's own.
 */
#include "flash/buffers.h"
#include "flash/internal.h"

#include "base/check.h"
#include "base/clock.h"
#include "store/item_hd.h"

#include <errno.h>
#include <stdlib.h>

#define LOANS_MORE 256 /* than can be under way: done, and not returned yet */
#define RANGE_MOST (32u << 20)
#define RANGE_SHARE 64 /* of memory_bytes, for all threads together */
/* an item's header, and trailer without a large value's list: what its size is told by */
#define TRAILER_MOST 32
#define RECENT_SHARE 16 /* a new read's part of the moving mean */
#define DESTROY_ROUND_MS 100
#define DESTROY_ROUNDS 50

/* One thread's counts: written by it alone, read by whoever asks. */
struct read_counts {
	_Atomic uint64_t reads, bytes, asked_bytes, errors, bad, late, in_flight;
	struct flash_histogram queue_time, device_time;
};

/* Of all threads. */
struct reads {
	pthread_mutex_t mutex; /* of all but recent_us */
	size_t range_bytes;    /* of each thread */
	uint32_t count;
	struct flash_thread **threads; /* options.threads of them at most */
	struct read_counts gone;       /* of those that are destroyed */
	_Atomic uint32_t recent_us;
};

enum loan_step {
	LOAN_FREE,
	LOAN_UNDER_WAY,
	LOAN_DONE,
};

struct loan {
	struct flash_loan face;
	struct io_request request;
	struct loan *free_next;
	struct loan *older, *younger; /* among those under way that aren't late */
	uint8_t *buffer;
	uint32_t into; /* where in the buffer the item begins */
	uint32_t pins;
	uint8_t step;
	bool listed; /* among those under way */
	bool head;   /* only as much as tells the item's size is being read */
	bool let_go;
	uint64_t begun_ns;
	uint64_t taken_ns, pushed_ns; /* monotonic */
};

struct flash_thread {
	struct flash *flash;
	struct io_queue *queue;
	struct buffers *buffers;
	struct loan *loans, *free;
	struct loan *oldest, *youngest;
	uint32_t under_way;	/* with the device, let go or not */
	uint64_t starved_ns;	/* since when a read could not begin for want of room; 0: none */
	uint32_t starved_bytes; /* the shortest such */
	uint64_t turn_ns;	/* monotonic, of the last poll */
	size_t pinned_bytes;
	struct read_counts counts;
};

static void
count(_Atomic uint64_t *counter, uint64_t more)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more,
		memory_order_relaxed);
}

/* --- histograms --------------------------------------------------------------------------- */

/*
 * Step 4k + j holds up to (1 + (j + 1)/4) * 2^k microseconds; the first four share one microsecond.
 */
uint64_t
flash_histogram_bound(unsigned step)
{
	return (uint64_t)(5 + step % 4) * (250ull << step / 4);
}

void
flash_histogram_add(struct flash_histogram *histogram, uint64_t ns)
{
	unsigned step = 0;

	if (ns > 1250) {
		/* 250 ns * 2^k <= ns / 4 < 250 ns * 2^(k+1), but for the bound itself. */
		uint64_t quarters = (ns - 1) / 250;
		unsigned k = hd_log2(quarters / 4);

		step = 4 * k + (unsigned)(quarters >> k) - 4;
	}
	count(&histogram->count[step < FLASH_HISTOGRAM ? step : FLASH_HISTOGRAM - 1], 1);
}

/* --- making ------------------------------------------------------------------------------- */

bool
reads_create(struct flash *flash)
{
	struct reads *reads = calloc(1, sizeof *reads);
	unsigned threads = flash->options.threads ? flash->options.threads : 1;
	size_t range, longest;

	if (!reads)
		return false;
	flash->reads = reads;
	pthread_mutex_init(&reads->mutex, NULL);
	longest = buffers_rounded(
		flash->options.item_bytes_max + TRAILER_MOST + 2 * (size_t)flash->block);
	if (longest > flash->region_bytes)
		longest = flash->region_bytes;
	range = BUFFERS_LEAST;
	while (range * 2 <= flash->options.memory_bytes / RANGE_SHARE / threads &&
		range * 2 <= RANGE_MOST)
		range *= 2;
	reads->range_bytes = range > longest ? range : longest;
	reads->threads = calloc(threads, sizeof *reads->threads);
	return reads->threads != NULL;
}

void
reads_destroy(struct flash *flash)
{
	struct reads *reads = flash->reads;

	check(reads->count == 0);
	pthread_mutex_destroy(&reads->mutex);
	free(reads->threads);
	free(reads);
	flash->reads = NULL;
}

static bool
enroll(struct flash_thread *thread)
{
	struct reads *reads = thread->flash->reads;
	bool room;

	pthread_mutex_lock(&reads->mutex);
	room = reads->count < thread->flash->options.threads;
	if (room)
		reads->threads[reads->count++] = thread;
	pthread_mutex_unlock(&reads->mutex);
	return room;
}

static void
add_counts(struct read_counts *to, const struct read_counts *from)
{
	_Atomic uint64_t *sum = (_Atomic uint64_t *)to;
	const _Atomic uint64_t *part = (const _Atomic uint64_t *)from;

	for (size_t i = 0; i < sizeof *to / sizeof *sum; i++)
		count(&sum[i], atomic_load_explicit(&part[i], memory_order_relaxed));
}

static void
leave(struct flash_thread *thread)
{
	struct reads *reads = thread->flash->reads;

	pthread_mutex_lock(&reads->mutex);
	for (uint32_t i = 0; i < reads->count; i++)
		if (reads->threads[i] == thread) {
			reads->threads[i] = reads->threads[--reads->count];
			add_counts(&reads->gone, &thread->counts);
			break;
		}
	pthread_mutex_unlock(&reads->mutex);
}

struct flash_thread *
flash_thread_create(struct flash *flash)
{
	uint32_t depth = flash->options.depth, loans = depth + LOANS_MORE;
	struct flash_thread *thread = calloc(1, sizeof *thread);

	if (!thread)
		return NULL;
	thread->flash = flash;
	thread->loans = calloc(loans, sizeof *thread->loans);
	thread->buffers = buffers_create(flash->reads->range_bytes);
	if (thread->loans && thread->buffers)
		thread->queue = flash->options.io->queue_create(
			flash->io, &(struct io_queue_options){.depth = depth});
	if (!thread->queue || !enroll(thread)) {
		int reason = errno;

		flash_thread_destroy(thread);
		errno = reason ? reason : ENOMEM;
		return NULL;
	}
	for (uint32_t i = 0; i < loans; i++) {
		thread->loans[i].free_next = thread->free;
		thread->free = &thread->loans[i];
	}
	return thread;
}

void
flash_thread_destroy(struct flash_thread *thread)
{
	const struct io_backend *io = thread->flash->options.io;

	for (unsigned round = 0; thread->under_way > 0 && round < DESTROY_ROUNDS; round++) {
		io->wait(thread->queue, DESTROY_ROUND_MS);
		if (flash_poll(thread, 0) > 0)
			round = 0;
	}
	leave(thread);
	/* A device that doesn't answer keeps what it was lent. */
	if (thread->under_way > 0)
		return;
	if (thread->queue)
		io->queue_destroy(thread->queue);
	if (thread->buffers)
		buffers_destroy(thread->buffers);
	free(thread->loans);
	free(thread);
}

/* --- loans -------------------------------------------------------------------------------- */

static void
list(struct flash_thread *thread, struct loan *loan)
{
	loan->listed = true;
	loan->younger = NULL;
	loan->older = thread->youngest;
	*(loan->older ? &loan->older->younger : &thread->oldest) = loan;
	thread->youngest = loan;
}

static void
unlist(struct flash_thread *thread, struct loan *loan)
{
	if (!loan->listed)
		return;
	*(loan->older ? &loan->older->younger : &thread->oldest) = loan->younger;
	*(loan->younger ? &loan->younger->older : &thread->youngest) = loan->older;
	loan->listed = false;
}

static void
loan_free(struct flash_thread *thread, struct loan *loan)
{
	if (loan->buffer)
		buffers_return(thread->buffers, loan->buffer);
	loan->buffer = NULL;
	loan->step = LOAN_FREE;
	loan->free_next = thread->free;
	thread->free = loan;
}

/* The part of the region, in whole blocks, that holds so many bytes from the item's beginning. */
static void
cover(const struct flash *flash, uint32_t offset, uint32_t bytes, uint32_t *first, uint32_t *end)
{
	uint64_t begin = (uint64_t)offset * ITEM_ALIGN, last = begin + bytes;

	*first = (uint32_t)(begin & ~(uint64_t)(flash->block - 1));
	last = (last + flash->block - 1) & ~(uint64_t)(flash->block - 1);
	*end = last < flash->region_bytes ? (uint32_t)last : flash->region_bytes;
}

/* Submits the read of so many bytes of the item, for which the buffer has room. false: not now. */
static bool
read_submit(struct flash_thread *thread, struct loan *loan, uint32_t bytes)
{
	struct flash *flash = thread->flash;
	const struct region *region = &flash->regions[flash_region_of(loan->face.segment)];
	struct io_request *request = &loan->request;
	uint32_t first, end;

	cover(flash, loan->face.offset, bytes, &first, &end);
	loan->into = loan->face.offset * ITEM_ALIGN - first;
	*request = (struct io_request){
		.op = IO_READ,
		.file = region->file,
		.buffer = -1,
		.size = end - first,
		.offset = region->base + first,
		.data = loan->buffer,
		.context = loan,
	};
	if (!flash->options.io->submit(thread->queue, &request))
		return false;
	loan->step = LOAN_UNDER_WAY;
	loan->taken_ns = thread->turn_ns;
	loan->pushed_ns = 0;
	thread->under_way++;
	count(&thread->counts.in_flight, 1);
	return true;
}

/* The read of an item that takes so many bytes, its header first where 'head'. false: not now. */
static bool
read_begin(struct flash_thread *thread, struct loan *loan, uint32_t bytes)
{
	uint32_t first, end;

	cover(thread->flash, loan->face.offset, bytes, &first, &end);
	loan->buffer = buffers_borrow(thread->buffers, end - first, loan);
	if (!loan->buffer)
		return false;
	if (read_submit(thread, loan, loan->head ? ITEM_HEADER : bytes))
		return true;
	buffers_return(thread->buffers, loan->buffer);
	loan->buffer = NULL;
	return false;
}

/* What is in a write buffer is copied. false: it isn't there, or there is no room for it. */
static bool
take_buffered(struct flash_thread *thread, struct loan *loan)
{
	uint32_t room = log_buffered(thread->flash, loan->face.position, NULL, 0);

	if (room == 0)
		return false;
	loan->buffer = buffers_borrow(thread->buffers, room, loan);
	if (!loan->buffer)
		return false;
	/* In this turn it stays where it is. */
	if (log_buffered(thread->flash, loan->face.position, loan->buffer, room) != room) {
		buffers_return(thread->buffers, loan->buffer);
		loan->buffer = NULL;
		return false;
	}
	loan->step = LOAN_DONE;
	loan->face.state = FLASH_LOAN_READY;
	loan->face.item = (const struct item *)(const void *)loan->buffer;
	return true;
}

/*
 * There is no room for a read of so many bytes: later. But what the device never gives back is no
 * room for ever: a read that could not even begin for so long is late as well.
 */
static struct flash_loan *
starve(struct flash_thread *thread, struct loan *loan, uint32_t bytes, uint64_t now_ns)
{
	uint64_t timeout_ns = thread->flash->options.read_timeout_ms * 1000000ull;

	if (thread->starved_ns == 0) {
		thread->starved_ns = now_ns;
		thread->starved_bytes = bytes;
	} else if (bytes < thread->starved_bytes) {
		thread->starved_bytes = bytes;
	}
	if (now_ns < thread->starved_ns + timeout_ns)
		return NULL;
	loan->step = LOAN_DONE;
	loan->face.state = FLASH_LOAN_LATE;
	thread->free = loan->free_next;
	count(&thread->counts.late, 1);
	return &loan->face;
}

struct flash_loan *
flash_borrow(struct flash_thread *thread, uint32_t segment, uint32_t offset, uint32_t size_class,
	uint64_t now_ns)
{
	struct flash *flash = thread->flash;
	uint64_t position = flash_position(flash, segment, offset);
	uint32_t bytes = bucket_class_bytes(size_class);
	struct loan *loan = thread->free;

	if (!loan || position == 0)
		return NULL;
	loan->face = (struct flash_loan){.position = position,
		.segment = segment,
		.offset = offset,
		.state = FLASH_LOAN_PENDING};
	loan->pins = 0;
	loan->let_go = false;
	loan->begun_ns = now_ns;
	if (take_buffered(thread, loan)) {
		thread->free = loan->free_next;
		return &loan->face;
	}
	/* Of a class without a size the header is read first, to where the longest would fit. */
	loan->head = bytes == 0;
	if (loan->head)
		bytes = flash->options.item_bytes_max + TRAILER_MOST;
	if (thread->under_way >= flash->options.depth || !read_begin(thread, loan, bytes))
		return starve(thread, loan, bytes, now_ns);
	if (bytes >= thread->starved_bytes)
		thread->starved_ns = 0;
	thread->free = loan->free_next;
	list(thread, loan);
	return &loan->face;
}

void
flash_strip(struct flash_thread *thread, struct flash_loan *face)
{
	struct loan *loan = (struct loan *)face;

	if (loan->step != LOAN_DONE || loan->pins > 0 || !loan->buffer)
		return;
	buffers_return(thread->buffers, loan->buffer);
	loan->buffer = NULL;
	face->item = NULL;
}

void
flash_return(struct flash_thread *thread, struct flash_loan **face)
{
	struct loan *loan = (struct loan *)*face;

	*face = NULL;
	loan->let_go = true;
	unlist(thread, loan);
	if (loan->step == LOAN_DONE && loan->pins == 0)
		loan_free(thread, loan);
}

/* --- what the device gives back ----------------------------------------------------------- */

static void
note_failure(struct flash_thread *thread, const struct loan *loan, int error)
{
	struct flash *flash = thread->flash;

	if (error) {
		count(&thread->counts.errors, 1);
		flash_note_error(flash, error, "reading an item");
	} else {
		count(&thread->counts.bad, 1);
	}
	log_region_error(flash, flash_region_of(loan->face.segment));
}

/* The item's header is there: the whole of it is read now. false: it can't be one. */
static bool
read_rest(struct flash_thread *thread, struct loan *loan)
{
	const struct item *item = (const void *)(loan->buffer + loan->into);
	uint32_t bytes = ITEM_HEADER + item_key_size(item) + item_value_size(item) + TRAILER_MOST;

	loan->head = false;
	/* Rubbish may claim to be as long as a header can say. */
	return bytes <= thread->flash->options.item_bytes_max + TRAILER_MOST &&
	       read_submit(thread, loan, bytes);
}

/* The whole item is there, or what stands in its place. */
static void
verify(struct flash_thread *thread, struct loan *loan)
{
	struct flash *flash = thread->flash;
	const struct item *item = (const void *)(loan->buffer + loan->into);
	uint32_t room = loan->request.size - loan->into;

	if (layout_item_valid(
		    item, room, flash->id, flash_position_sequence(loan->face.position))) {
		loan->face.state = FLASH_LOAN_READY;
		loan->face.item = item;
		count(&thread->counts.asked_bytes, layout_item_bytes(item, room) + LAYOUT_ITEM_SUM);
		return;
	}
	loan->face.state = FLASH_LOAN_BAD;
	/* Where the region serves again meanwhile, nothing is wrong. */
	if (flash_position(flash, loan->face.segment, loan->face.offset) == loan->face.position)
		note_failure(thread, loan, 0);
}

static void
complete(struct flash_thread *thread, struct loan *loan, uint64_t now_ns)
{
	struct flash *flash = thread->flash;
	_Atomic uint32_t *recent_us = &flash->reads->recent_us;
	uint32_t mean = atomic_load_explicit(recent_us, memory_order_relaxed);
	uint64_t took_us = now_ns > loan->begun_ns ? (now_ns - loan->begun_ns) / 1000 : 0;
	int error = -loan->request.result;

	thread->under_way--;
	count(&thread->counts.in_flight, -1ull);
	count(&thread->counts.reads, 1);
	count(&thread->counts.bytes, loan->request.size);
	if (loan->pushed_ns) {
		flash_histogram_add(&thread->counts.queue_time, loan->pushed_ns - loan->taken_ns);
		flash_histogram_add(&thread->counts.device_time, thread->turn_ns - loan->pushed_ns);
	}
	/* Whichever thread's store comes last: a hint. */
	took_us = took_us < UINT32_MAX / 2 ? took_us : UINT32_MAX / 2;
	atomic_store_explicit(recent_us,
		mean + (uint32_t)(((int64_t)took_us - (int64_t)mean) / RECENT_SHARE),
		memory_order_relaxed);
	if (error == 0)
		flash_note_success(flash);
	if (error == 0 && loan->head && !loan->let_go && loan->listed && read_rest(thread, loan))
		return;
	loan->step = LOAN_DONE;
	unlist(thread, loan);
	if (error)
		note_failure(thread, loan, error);
	/* Late, or let go: nobody waits for it. */
	if (loan->face.state == FLASH_LOAN_PENDING && !loan->let_go) {
		if (error)
			loan->face.state = FLASH_LOAN_FAILED;
		else
			verify(thread, loan);
	}
	if (loan->let_go && loan->pins == 0)
		loan_free(thread, loan);
}

void
flash_push(struct flash_thread *thread)
{
	uint64_t now_ns = 0;

	if (thread->under_way == 0)
		return;
	for (struct loan *loan = thread->youngest; loan && loan->pushed_ns == 0;
		loan = loan->older) {
		now_ns = now_ns ? now_ns : clock_monotonic_ns();
		loan->pushed_ns = now_ns;
	}
	thread->flash->options.io->push(thread->queue);
}

static unsigned
settle_late(struct flash_thread *thread, uint64_t now_ns)
{
	uint64_t timeout_ns = thread->flash->options.read_timeout_ms * 1000000ull;
	unsigned late = 0;

	while (thread->oldest && now_ns >= thread->oldest->begun_ns + timeout_ns) {
		struct loan *loan = thread->oldest;

		unlist(thread, loan);
		loan->face.state = FLASH_LOAN_LATE;
		count(&thread->counts.late, 1);
		late++;
	}
	return late;
}

unsigned
flash_poll(struct flash_thread *thread, uint64_t now_ns)
{
	const struct io_backend *io = thread->flash->options.io;
	struct io_request *request;
	unsigned settled = 0;

	/* For the statistics alone: turns are told the time. */
	thread->turn_ns = clock_monotonic_ns();
	while ((request = io->poll(thread->queue))) {
		complete(thread, request->context, now_ns);
		settled++;
	}
	return settled + settle_late(thread, now_ns);
}

int
flash_descriptor(const struct flash_thread *thread)
{
	return thread->flash->options.io->descriptor(thread->queue);
}

int
flash_timeout_ms(const struct flash_thread *thread, uint64_t now_ns)
{
	const struct loan *oldest = thread->oldest;
	uint64_t due_ns;

	if (!oldest)
		return -1;
	due_ns = oldest->begun_ns + thread->flash->options.read_timeout_ms * 1000000ull;
	return due_ns > now_ns ? (int)((due_ns - now_ns) / 1000000) + 1 : 0;
}

/* --- pins --------------------------------------------------------------------------------- */

enum flash_pinned
flash_pin(struct flash_thread *thread, const void *bytes)
{
	struct loan *loan = buffers_owner(thread->buffers, bytes);
	size_t size;

	if (!loan)
		return FLASH_ELSEWHERE;
	check(loan->step == LOAN_DONE);
	size = buffers_bytes(thread->buffers, loan->buffer);
	if (loan->pins == 0) {
		if (thread->pinned_bytes + size > thread->flash->reads->range_bytes / 2)
			return FLASH_PIN_REFUSED;
		thread->pinned_bytes += size;
	}
	loan->pins++;
	return FLASH_PINNED;
}

void
flash_unpin(struct flash_thread *thread, const void *bytes)
{
	struct loan *loan = buffers_owner(thread->buffers, bytes);

	check(loan && loan->pins > 0);
	if (--loan->pins > 0)
		return;
	thread->pinned_bytes -= buffers_bytes(thread->buffers, loan->buffer);
	if (loan->let_go)
		loan_free(thread, loan);
}

/* --- statistics --------------------------------------------------------------------------- */

uint32_t
reads_recent_us(const struct flash *flash)
{
	return atomic_load_explicit(&flash->reads->recent_us, memory_order_relaxed);
}

void
reads_stats(const struct flash *flash, struct flash_stats *stats)
{
	struct reads *reads = flash->reads;
	struct read_counts sum = {0};

	pthread_mutex_lock(&reads->mutex);
	add_counts(&sum, &reads->gone);
	for (uint32_t i = 0; i < reads->count; i++)
		add_counts(&sum, &reads->threads[i]->counts);
	pthread_mutex_unlock(&reads->mutex);
	stats->reads = sum.reads;
	stats->read_bytes = sum.bytes;
	stats->read_asked_bytes = sum.asked_bytes;
	stats->read_errors = sum.errors;
	stats->read_bad = sum.bad;
	stats->read_late = sum.late;
	stats->reads_in_flight = sum.in_flight;
	stats->memory_bytes +=
		reads->range_bytes * (flash->options.threads ? flash->options.threads : 1);
	for (unsigned i = 0; i < FLASH_HISTOGRAM; i++) {
		stats->queue_time.count[i] = sum.queue_time.count[i];
		stats->device_time.count[i] = sum.device_time.count[i];
	}
}
