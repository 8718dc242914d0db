/* SPDX-License-Identifier: BSD-2-Clause */
/* The fake disk keeps its promises, and breaks what a disk may break. */
#include "tests/lib/fake_disk.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK 4096u
#define BLOCKS 64u

struct rig {
	struct fake_disk *disk;
	const struct io_backend *io;
	struct io *files;
	struct io_queue *queue;
	uint8_t *data; /* BLOCKS blocks, for requests */
	struct io_request requests[BLOCKS];
};

static void
rig_open(struct rig *rig)
{
	char error[200];

	rig->files = rig->io->open(&(struct io_file_options){.path = "a"}, 1, error, sizeof error);
	assert_non_null(rig->files);
	rig->queue = rig->io->queue_create(rig->files, &(struct io_queue_options){.depth = BLOCKS});
	assert_non_null(rig->queue);
}

static void
rig_make(struct rig *rig, uint64_t seed)
{
	memset(rig, 0, sizeof *rig);
	rig->disk = fake_disk_create(
		seed, &(struct fake_disk_file){.name = "a", .size = BLOCKS * BLOCK}, 1);
	rig->io = fake_disk_backend();
	rig->data = aligned_alloc(BLOCK, BLOCKS * BLOCK);
	assert_non_null(rig->data);
	rig_open(rig);
}

static void
rig_free(struct rig *rig)
{
	fake_disk_destroy(rig->disk);
	free(rig->data);
}

/* A request for block n, with data of its own; writes are full of 'byte'. */
static struct io_request *
put(struct rig *rig, uint32_t n, enum io_op op, bool durable, int byte)
{
	struct io_request *request = &rig->requests[n], *taken = request;

	*request = (struct io_request){.op = (uint8_t)op,
		.durable = durable,
		.buffer = -1,
		.size = op == IO_FLUSH ? 0 : BLOCK,
		.offset = n * BLOCK,
		.data = rig->data + n * BLOCK};
	if (op == IO_WRITE)
		memset(request->data, byte, BLOCK);
	assert_true(rig->io->submit(rig->queue, &taken));
	assert_null(taken);
	return request;
}

/* Waits for all that is under way; how many came back. */
static unsigned
settle(struct rig *rig)
{
	struct fake_disk_counts counts;
	unsigned back = 0;

	for (;;) {
		fake_disk_get_counts(rig->disk, &counts);
		if (counts.under_way == 0)
			return back;
		rig->io->wait(rig->queue, -1);
		while (rig->io->poll(rig->queue))
			back++;
	}
}

static void
write_all(struct rig *rig, bool durable, int byte)
{
	for (uint32_t i = 0; i < BLOCKS - 1; i++)
		put(rig, i, IO_WRITE, durable, byte);
	assert_int_equal(settle(rig), BLOCKS - 1);
}

static void
flush(struct rig *rig)
{
	put(rig, BLOCKS - 1, IO_FLUSH, false, 0);
	assert_int_equal(settle(rig), 1);
}

/* Sectors of the first BLOCKS - 1 blocks that are full of 'byte', and of something else. */
static void
count_sectors(struct rig *rig, int byte, unsigned *same, unsigned *other, unsigned *mixed_blocks)
{
	uint8_t block[BLOCK], wanted[512];

	memset(wanted, byte, sizeof wanted);
	*same = *other = *mixed_blocks = 0;
	for (uint32_t i = 0; i < BLOCKS - 1; i++) {
		unsigned here = 0;

		fake_disk_peek(rig->disk, "a", i * BLOCK, block, BLOCK);
		for (unsigned s = 0; s < BLOCK / 512; s++)
			here += memcmp(block + s * 512, wanted, 512) == 0;
		*same += here;
		*other += BLOCK / 512 - here;
		*mixed_blocks += here != 0 && here != BLOCK / 512;
	}
}

static void
durable_stays(void **state)
{
	struct rig rig;
	unsigned same, other, mixed;

	(void)state;
	for (uint64_t seed = 1; seed < 20; seed++) {
		rig_make(&rig, seed);
		write_all(&rig, seed % 2, 'x');
		if (seed % 2 == 0)
			flush(&rig);
		/* Something later that isn't durable tears nothing but its own blocks. */
		fake_disk_crash(rig.disk, seed);
		count_sectors(&rig, 'x', &same, &other, &mixed);
		assert_int_equal(other, 0);
		rig_open(&rig);
		put(&rig, 0, IO_READ, false, 0);
		assert_int_equal(settle(&rig), 1);
		assert_int_equal(rig.data[0], 'x');
		rig_free(&rig);
	}
}

static void
volatile_is_lost_torn_or_kept(void **state)
{
	struct rig rig;
	struct fake_disk_counts counts;
	unsigned same, other, mixed;

	(void)state;
	rig_make(&rig, 7);
	write_all(&rig, true, 'a');
	write_all(&rig, false, 'b');
	put(&rig, 0, IO_READ, false, 0);
	settle(&rig);
	assert_int_equal(rig.data[0], 'b');
	fake_disk_crash(rig.disk, 3);
	count_sectors(&rig, 'b', &same, &other, &mixed);
	assert_true(same > 100 && other > 100 && mixed > 5);
	fake_disk_get_counts(rig.disk, &counts);
	assert_int_equal(counts.lost + counts.torn + counts.kept, BLOCKS - 1);
	assert_true(counts.lost > 5 && counts.torn > 5 && counts.kept > 5);
	count_sectors(&rig, 'a', &same, &other, &mixed);
	assert_true(same > 100);
	rig_free(&rig);
}

/* A durable write over one that isn't: the older never comes back, flushed or not. */
static void
durable_beats_older_volatile(void **state)
{
	struct rig rig;
	unsigned same, other, mixed;

	(void)state;
	for (uint64_t seed = 1; seed < 20; seed++) {
		rig_make(&rig, seed);
		write_all(&rig, false, 'b');
		write_all(&rig, true, 'c');
		if (seed % 2)
			flush(&rig);
		fake_disk_crash(rig.disk, seed);
		count_sectors(&rig, 'c', &same, &other, &mixed);
		assert_int_equal(other, 0);
		rig_free(&rig);
	}
}

/* A flush promises nothing about what was not back when it was submitted. */
static void
flush_covers_what_was_back(void **state)
{
	struct rig rig;
	unsigned same, other, mixed, lost = 0;

	(void)state;
	for (uint64_t seed = 1; seed < 20; seed++) {
		rig_make(&rig, seed);
		for (uint32_t i = 0; i < BLOCKS - 1; i++)
			put(&rig, i, IO_WRITE, false, 'd');
		put(&rig, BLOCKS - 1, IO_FLUSH, false, 0);
		assert_int_equal(settle(&rig), BLOCKS);
		fake_disk_crash(rig.disk, seed);
		count_sectors(&rig, 'd', &same, &other, &mixed);
		lost += other;
		rig_free(&rig);
	}
	assert_true(lost > 100);
}

static void
nothing_happens_before_push_and_order_is_random(void **state)
{
	struct rig rig;
	unsigned same, other, mixed, backwards = 0;
	struct io_request *last = NULL, *request;
	struct fake_disk_counts counts;

	(void)state;
	rig_make(&rig, 5);
	for (uint32_t i = 0; i < BLOCKS - 1; i++)
		put(&rig, i, IO_WRITE, true, 'e');
	fake_disk_tick(rig.disk, 1000);
	for (unsigned i = 0; i < 100; i++)
		assert_null(rig.io->poll(rig.queue));
	rig.io->push(rig.queue);
	do {
		while ((request = rig.io->poll(rig.queue))) {
			backwards += last && request < last;
			last = request;
			assert_int_equal(request->result, 0);
			assert_int_equal(request->done, BLOCK);
		}
		fake_disk_get_counts(rig.disk, &counts);
	} while (counts.under_way > 0);
	assert_true(backwards > 10);
	count_sectors(&rig, 'e', &same, &other, &mixed);
	assert_int_equal(other, 0);
	/* What wasn't pushed is surely lost. */
	put(&rig, 0, IO_WRITE, true, 'f');
	fake_disk_crash(rig.disk, 1);
	count_sectors(&rig, 'f', &same, &other, &mixed);
	assert_int_equal(same, 0);
	rig_free(&rig);
}

static void
reads_mix_with_writes_under_way(void **state)
{
	struct rig rig;
	uint8_t *to = aligned_alloc(BLOCK, BLOCK);
	unsigned old = 0, new = 0;

	(void)state;
	rig_make(&rig, 11);
	fake_disk_latency(rig.disk, 0);
	for (unsigned i = 0; i < 50; i++) {
		struct io_request read = {.op = IO_READ, .buffer = -1, .size = BLOCK, .data = to},
				  *request = &read;

		memset(rig.data, 'n', BLOCK);
		fake_disk_poke(rig.disk, "a", 0, memset(to, 'o', BLOCK), BLOCK);
		put(&rig, 0, IO_WRITE, false, 'n');
		assert_true(rig.io->submit(rig.queue, &request));
		rig.io->push(rig.queue);
		settle(&rig);
		for (unsigned s = 0; s < BLOCK; s += 512) {
			old += to[s] == 'o';
			new += to[s] == 'n';
		}
	}
	assert_int_equal(old + new, 50 * BLOCK / 512);
	assert_true(old > 20 && new > 100);
	free(to);
	rig_free(&rig);
}

static void
faults(void **state)
{
	struct rig rig;
	struct fake_disk_counts counts;
	unsigned same, other, mixed;

	(void)state;
	rig_make(&rig, 13);
	write_all(&rig, true, 'g');
	/* The second and third read of block 2 fail. */
	fake_disk_fault(rig.disk, &(struct fake_disk_fault){.kinds = FAKE_DISK_READS,
					  .from = 2 * BLOCK,
					  .to = 3 * BLOCK,
					  .skip = 1,
					  .times = 2,
					  .error = EIO});
	for (int i = 0; i < 4; i++) {
		put(&rig, 2, IO_READ, false, 0);
		put(&rig, 3, IO_READ, false, 0);
		assert_int_equal(settle(&rig), 2);
		assert_int_equal(rig.requests[2].result, i == 1 || i == 2 ? -EIO : 0);
		assert_int_equal(rig.requests[3].result, 0);
	}
	fake_disk_no_faults(rig.disk);
	/* Failed writes leave anything of themselves, and are not durable. */
	fake_disk_fault(
		rig.disk, &(struct fake_disk_fault){.kinds = FAKE_DISK_WRITES, .error = ENOSPC});
	write_all(&rig, true, 'h');
	assert_int_equal(rig.requests[5].result, -ENOSPC);
	count_sectors(&rig, 'h', &same, &other, &mixed);
	assert_true(same > 50 && other > 50);
	fake_disk_no_faults(rig.disk);
	fake_disk_fault(
		rig.disk, &(struct fake_disk_fault){
				  .kinds = FAKE_DISK_READS, .per_million = 500000, .error = EIO});
	unsigned failed = 0;
	for (uint32_t i = 0; i < BLOCKS - 1; i++)
		put(&rig, i, IO_READ, false, 0);
	settle(&rig);
	for (uint32_t i = 0; i < BLOCKS - 1; i++)
		failed += rig.requests[i].result == -EIO;
	assert_true(failed > 10 && failed < 53);
	fake_disk_no_faults(rig.disk);
	fake_disk_get_counts(rig.disk, &counts);
	assert_int_equal(counts.faults, 2 + BLOCKS - 1 + failed);
	fake_disk_flip(rig.disk, "a", 9 * BLOCK + 3, 4);
	uint8_t before[BLOCK];
	fake_disk_peek(rig.disk, "a", 9 * BLOCK, before, BLOCK);
	fake_disk_flip(rig.disk, "a", 9 * BLOCK + 3, 4);
	put(&rig, 9, IO_READ, false, 0);
	settle(&rig);
	assert_int_equal(rig.data[9 * BLOCK + 3] ^ before[3], 1 << 4);
	rig_free(&rig);
}

static void
count_ticks(void *context)
{
	++*(unsigned *)context;
}

static void
stuck_and_gone(void **state)
{
	struct rig rig;
	unsigned ticks = 0;

	(void)state;
	rig_make(&rig, 17);
	fake_disk_on_tick(rig.disk, count_ticks, &ticks, 4);
	fake_disk_fault(
		rig.disk, &(struct fake_disk_fault){
				  .kinds = FAKE_DISK_WRITES, .times = 1, .error = FAKE_DISK_STUCK});
	put(&rig, 1, IO_WRITE, true, 'i');
	rig.io->push(rig.queue);
	fake_disk_tick(rig.disk, 100000);
	assert_null(rig.io->poll(rig.queue));
	/* wait may come back for nothing */
	for (int i = 0; i < 100 && ticks == 0; i++)
		rig.io->wait(rig.queue, 25);
	assert_int_equal(ticks, 100);
	assert_null(rig.io->poll(rig.queue));
	fake_disk_unstick(rig.disk, false);
	assert_int_equal(settle(&rig), 1);
	assert_int_equal(rig.requests[1].result, 0);
	fake_disk_vanish(rig.disk, true);
	put(&rig, 1, IO_READ, false, 0);
	put(&rig, 2, IO_WRITE, true, 'j');
	assert_int_equal(settle(&rig), 2);
	assert_int_equal(rig.requests[1].result, -ENODEV);
	fake_disk_vanish(rig.disk, false);
	put(&rig, 1, IO_READ, false, 0);
	put(&rig, 2, IO_READ, false, 0);
	assert_int_equal(settle(&rig), 2);
	assert_int_equal(rig.data[BLOCK], 'i');
	assert_int_equal(rig.data[2 * BLOCK], 0);
	/* Without a timeout, the driver gives up one day. */
	fake_disk_fault(rig.disk,
		&(struct fake_disk_fault){
			.kinds = FAKE_DISK_FLUSHES, .times = 1, .error = FAKE_DISK_STUCK});
	put(&rig, 3, IO_FLUSH, false, 0);
	assert_int_equal(settle(&rig), 1);
	assert_int_equal(rig.requests[3].result, -EIO);
	rig_free(&rig);
}

struct crash_at {
	uint64_t number;
	unsigned calls, done;
	jmp_buf *jump;
};

static bool
crash_at(void *context, uint64_t number, const struct io_request *request, bool done)
{
	struct crash_at *at = context;

	assert_int_not_equal(request->op, IO_READ);
	at->calls++;
	at->done += done;
	if (number == at->number && at->jump)
		longjmp(*at->jump, 1);
	return number == at->number;
}

static void
crash_at_each_number(void **state)
{
	(void)state;
	for (uint64_t number = 1; number <= 6; number++) {
		struct crash_at at = {.number = number};
		struct rig rig;
		unsigned back;
		uint8_t byte;

		rig_make(&rig, number);
		fake_disk_on_write(rig.disk, crash_at, &at);
		for (uint32_t i = 0; i < 3; i++) {
			put(&rig, i, IO_WRITE, true, 'k');
			settle(&rig);
		}
		/* Before n is submitted (odd), after it had its effect (even); then all is in vain. */
		assert_true(fake_disk_is_cut(rig.disk));
		assert_int_equal(at.calls, number);
		assert_int_equal(at.done, number / 2);
		back = 0;
		for (uint32_t i = 0; i < 3; i++) {
			fake_disk_peek(rig.disk, "a", i * BLOCK, &byte, 1);
			back += byte == 'k';
		}
		assert_int_equal(back, number / 2);
		assert_int_equal(rig.requests[2].result, number == 6 ? 0 : -EIO);
		fake_disk_crash(rig.disk, 1);
		assert_false(fake_disk_is_cut(rig.disk));
		rig_open(&rig);
		put(&rig, 0, IO_WRITE, true, 'l');
		assert_int_equal(settle(&rig), 1);
		assert_int_equal(rig.requests[0].result, 0);
		rig_free(&rig);
	}
}

static struct rig jumped;

static void
crash_by_longjmp(void **state)
{
	jmp_buf jump;
	struct crash_at at = {.number = 3, .jump = &jump};

	(void)state;
	rig_make(&jumped, 23);
	fake_disk_on_write(jumped.disk, crash_at, &at);
	if (setjmp(jump) == 0) {
		for (uint32_t i = 0; i < 3; i++)
			put(&jumped, i, IO_WRITE, true, 'm');
		fail();
	}
	fake_disk_crash(jumped.disk, 2);
	rig_open(&jumped);
	put(&jumped, 0, IO_READ, false, 0);
	assert_int_equal(settle(&jumped), 1);
	assert_int_equal(jumped.data[0], 0);
	rig_free(&jumped);
}

static void
files(void **state)
{
	const struct fake_disk_file made = {
		.name = "dev", .size = 4 * BLOCK, .block = BLOCK, .device = true};
	struct io_file_options both[] = {
		{.path = "dev", .size = 4 * BLOCK}, {.path = "new", .size = 8 * BLOCK}};
	struct fake_disk *disk = fake_disk_create(1, &made, 1);
	const struct io_backend *io = fake_disk_backend();
	char error[200];
	struct io *opened, *again;

	(void)state;
	fake_disk_space(disk, 11 * BLOCK);
	assert_null(io->open(both, 2, error, sizeof error));
	fake_disk_space(disk, 12 * BLOCK);
	opened = io->open(both, 2, error, sizeof error);
	assert_non_null(opened);
	assert_int_equal(io->file_count(opened), 2);
	assert_int_equal(io->file(opened, 0)->block, BLOCK);
	assert_true(io->file(opened, 0)->device);
	assert_string_equal(io->file(opened, 1)->name, "new");
	assert_int_equal(io->file(opened, 1)->size, 8 * BLOCK);
	again = io->open(both + 1, 1, error, sizeof error);
	assert_null(again);
	assert_string_equal(error, "new is in use");
	io->close(opened);
	both[1].size = 0;
	opened = io->open(both, 2, error, sizeof error);
	assert_non_null(opened);
	assert_int_equal(io->file(opened, 1)->size, 8 * BLOCK);
	io->close(opened);
	both[0].size = 5 * BLOCK; /* a device doesn't grow */
	assert_null(io->open(both, 2, error, sizeof error));
	both[0] = (struct io_file_options){.path = "none"};
	assert_null(io->open(both, 2, error, sizeof error));
	assert_int_equal(fake_disk_size(disk, "none"), 0);
	assert_int_equal(fake_disk_size(disk, "new"), 8 * BLOCK);
	fake_disk_destroy(disk);
}

static bool
readable(int fd)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	return poll(&poll_fd, 1, 0) == 1;
}

static void
descriptor_follows(void **state)
{
	struct rig rig;
	int fd;

	(void)state;
	rig_make(&rig, 29);
	fd = rig.io->descriptor(rig.queue);
	assert_false(readable(fd));
	put(&rig, 0, IO_WRITE, true, 'n');
	rig.io->push(rig.queue);
	assert_true(readable(fd));
	settle(&rig);
	assert_null(rig.io->poll(rig.queue));
	assert_false(readable(fd));
	rig_free(&rig);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(durable_stays),
		cmocka_unit_test(volatile_is_lost_torn_or_kept),
		cmocka_unit_test(durable_beats_older_volatile),
		cmocka_unit_test(flush_covers_what_was_back),
		cmocka_unit_test(nothing_happens_before_push_and_order_is_random),
		cmocka_unit_test(reads_mix_with_writes_under_way),
		cmocka_unit_test(faults),
		cmocka_unit_test(stuck_and_gone),
		cmocka_unit_test(crash_at_each_number),
		cmocka_unit_test(crash_by_longjmp),
		cmocka_unit_test(files),
		cmocka_unit_test(descriptor_follows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
