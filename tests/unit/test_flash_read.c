/* SPDX-License-Identifier: BSD-2-Clause */
/* Loans of items in write buffers and on a disk in memory, stepped in one thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rcu.h"
#include "flash/buffers.h"
#include "flash/internal.h"
#include "store/item_hd.h"
#include "tests/lib/fake_disk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEYS 1024u
#define REGION (4u << 20)
#define ITEM_MOST (1u << 20)
#define LONGEST (ITEM_MOST - 4096) /* that the log takes: a quarter of a region */
#define MS 1000000ull
#define BEGIN_NS (1000000000ull * 1000000000ull)

struct key {
	uint32_t segment, offset, bytes, size_class;
	uint64_t position;
};

static struct {
	struct fake_disk *disk;
	struct flash *flash;
	struct flash_thread *thread;
	uint64_t now_ns, random;
	struct key keys[KEYS];
} my;

static uint32_t
draw(uint32_t below)
{
	my.random = my.random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((my.random >> 33) % below);
}

/* --- an index that keeps nothing --------------------------------------------------------- */

static int
items_reads(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	(void)context;
	(void)hash;
	(void)segment;
	(void)offset;
	return -1;
}

static bool
items_move(void *context, const struct item *item, uint64_t hash, uint64_t position,
	uint32_t segment, uint32_t offset, uint32_t opened_s, unsigned reads)
{
	(void)item;
	(void)position;
	(void)opened_s;
	(void)reads;
	return items_reads(context, hash, segment, offset) > 0;
}

static bool
items_drop(void *context, uint64_t hash, uint32_t segment, uint32_t offset)
{
	return items_reads(context, hash, segment, offset) > 0;
}

static void
items_purge(void *context, uint32_t segment)
{
	(void)context;
	(void)segment;
}

static const struct flash_items items = {
	.reads = items_reads, .move = items_move, .drop = items_drop, .purge = items_purge};

static bool
recovered_expect(void *context, uint64_t count)
{
	(void)context;
	return count == 0;
}

/* A new disk has nothing. */
static const struct flash_recovered recovered = {.expect = recovered_expect};

static void
wake(void *context)
{
	(void)context;
}

/* --- steps -------------------------------------------------------------------------------- */

static void
begin(uint32_t depth, unsigned threads)
{
	struct fake_disk_file file = {.name = "disk", .size = 12ull * REGION};
	struct flash_file_options path = {.path = "disk"};
	struct flash_options options = {
		.io = fake_disk_backend(),
		.files = &path,
		.file_count = 1,
		.region_bytes = REGION,
		.memory_bytes = 32 << 20,
		.item_bytes_max = ITEM_MOST,
		.threads = threads,
		.depth = depth,
		.read_timeout_ms = 1000,
		.now_ns = BEGIN_NS,
		.items = &items,
		.recovered = &recovered,
		.wake = wake,
	};
	char error[200];

	memset(&my, 0, sizeof my);
	my.random = 1;
	my.now_ns = BEGIN_NS;
	my.disk = fake_disk_create(3, &file, 1);
	fake_disk_use(my.disk);
	my.flash = flash_create(&options, error, sizeof error);
	if (!my.flash)
		fail_msg("%s", error);
	my.thread = flash_thread_create(my.flash);
	assert_non_null(my.thread);
}

static void
end(void)
{
	flash_thread_destroy(my.thread);
	flash_destroy(my.flash);
	fake_disk_destroy(my.disk);
}

static void
work(unsigned steps)
{
	while (steps-- > 0) {
		my.now_ns += MS / 10;
		fake_disk_tick(my.disk, 4);
		while (flash_work(my.flash, my.now_ns))
			;
	}
}

static void
fill(struct item *item, uint32_t number, uint32_t bytes)
{
	uint8_t *at = (void *)item;
	uint32_t value = bytes - ITEM_HEADER - 4;

	*item = (struct item){.cas_low = number, .sizes = 4 | value << 8};
	memcpy(at + ITEM_HEADER, &number, 4);
	for (uint32_t i = 0; i < value; i++)
		at[ITEM_HEADER + 4 + i] = (uint8_t)(i * 31 + number + (i >> 8));
}

static void
reserve(uint32_t bytes, struct flash_place_in *place)
{
	for (unsigned i = 0; flash_reserve(my.flash, bytes, false, place) != FLASH_DONE; i++) {
		assert_in_range(i, 0, 1000);
		work(1);
	}
}

static void
put(uint32_t number, uint32_t bytes)
{
	struct key *key = &my.keys[number];
	struct flash_place_in place;

	reserve(bytes, &place);
	fill(place.item, number, bytes);
	*key = (struct key){.segment = place.segment,
		.offset = place.offset,
		.bytes = bytes,
		.size_class = bucket_class_of(bytes + LAYOUT_ITEM_SUM),
		.position = place.position};
	flash_commit(my.flash, &place, number, key->size_class, 0);
}

/* Others follow until everything is on the disk alone. */
static void
settle(void)
{
	struct flash_place_in place;

	for (uint32_t i = 0; i < KEYS; i++)
		while (my.keys[i].position &&
			log_buffered(my.flash, my.keys[i].position, NULL, 0) > 0) {
			reserve(LONGEST, &place);
			fill(place.item, KEYS, LONGEST);
			flash_commit(my.flash, &place, KEYS, BUCKET_CLASS_UNKNOWN, 0);
			work(10);
		}
	work(100);
}

static struct flash_loan *
borrow(uint32_t number)
{
	const struct key *key = &my.keys[number];
	struct flash_loan *loan =
		flash_borrow(my.thread, key->segment, key->offset, key->size_class, my.now_ns);

	if (loan) {
		assert_int_equal(loan->position, key->position);
		assert_int_equal(loan->segment, key->segment);
		assert_int_equal(loan->offset, key->offset);
	}
	return loan;
}

static void
check_item(const struct flash_loan *loan, uint32_t number)
{
	static uint8_t want[ITEM_MOST] __attribute__((aligned(16)));

	assert_int_equal(loan->state, FLASH_LOAN_READY);
	fill((void *)want, number, my.keys[number].bytes);
	assert_memory_equal(loan->item, want, my.keys[number].bytes);
}

/* Turns until the loan is settled. */
static void
await(const struct flash_loan *loan)
{
	for (unsigned i = 0; loan->state == FLASH_LOAN_PENDING; i++) {
		assert_in_range(i, 0, 1000);
		flash_push(my.thread);
		fake_disk_tick(my.disk, 1);
		flash_poll(my.thread, my.now_ns);
	}
}

static struct flash_loan *
read_one(uint32_t number)
{
	struct flash_loan *loan = borrow(number);

	assert_non_null(loan);
	await(loan);
	return loan;
}

static struct flash_stats
stats(void)
{
	struct flash_stats now;

	flash_get_stats(my.flash, &now);
	return now;
}

/* The whole range can be lent at once: nothing is forgotten in it. */
static void
check_all_free(void)
{
	struct flash_loan *loan;
	uint32_t longest = KEYS - 1;

	/* A region that read errors made suspect may go with what was just put there. */
	for (unsigned i = 0; i < 4 && (my.keys[longest].position == 0 ||
					      flash_position(my.flash, my.keys[longest].segment,
						      my.keys[longest].offset) == 0);
		i++) {
		put(longest, LONGEST);
		settle();
	}
	loan = read_one(longest);
	check_item(loan, longest);
	/* Nothing beside it: it had the range for itself. */
	put(KEYS - 2, 100);
	assert_null(borrow(KEYS - 2));
	flash_return(my.thread, &loan);
	assert_null(loan);
	assert_int_equal(stats().reads_in_flight, 0);
}

/* --- tests -------------------------------------------------------------------------------- */

static void
test_buffered(void **state)
{
	static const uint32_t bytes[] = {21, 100, 4095, 4096, 70000, ITEM_MOST / 2, 900000};

	(void)state;
	begin(8, 1);
	for (uint32_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
		struct flash_loan *loan;

		put(i, bytes[i]);
		loan = borrow(i);
		assert_non_null(loan);
		check_item(loan, i);
		assert_int_equal(flash_poll(my.thread, my.now_ns), 0);
		assert_int_equal(flash_timeout_ms(my.thread, my.now_ns), -1);
		flash_return(my.thread, &loan);
		assert_null(loan);
		assert_int_equal(stats().buffer_hits, i + 1);
	}
	assert_int_equal(stats().reads, 0);
	check_all_free();
	end();
}

/* Sizes from the least, and every place in a block. */
static void
test_device(void **state)
{
	uint64_t item_bytes = 0;

	(void)state;
	begin(16, 1);
	for (uint32_t i = 0; i < 900; i++)
		put(i, i % 50 == 49 ? 20 + draw(700000) : 20 + draw(i % 5 == 0 ? 20000 : 1500));
	settle();
	for (uint32_t i = 0; i < 900; i += 6) {
		struct flash_loan *loans[6];

		for (uint32_t k = 0; k < 6; k++) {
			loans[k] = borrow(i + k);
			/* Long ones may be too many for the memory. */
			if (!loans[k])
				continue;
			assert_int_equal(loans[k]->state, FLASH_LOAN_PENDING);
			item_bytes += my.keys[i + k].bytes + LAYOUT_ITEM_SUM;
		}
		assert_non_null(loans[0]);
		for (uint32_t k = 0; k < 6; k++)
			if (loans[k])
				await(loans[k]);
		for (uint32_t k = 0; k < 6; k++)
			if (loans[k]) {
				check_item(loans[k], i + k);
				flash_return(my.thread, &loans[k]);
			}
	}
	assert_true(stats().reads >= 700);
	assert_int_equal(stats().read_asked_bytes, item_bytes);
	assert_int_equal(stats().read_errors, 0);
	assert_int_equal(stats().read_bad, 0);
	check_all_free();
	end();
}

/* What is named by its size costs as few blocks as its class touches. */
static void
test_read_bytes(void **state)
{
	struct fake_disk_counts before, after;
	struct flash_loan *loan;

	(void)state;
	begin(8, 1);
	put(0, 4096 + 20);
	settle();
	fake_disk_get_counts(my.disk, &before);
	loan = read_one(0);
	check_item(loan, 0);
	flash_return(my.thread, &loan);
	fake_disk_get_counts(my.disk, &after);
	assert_int_equal(after.reads - before.reads, 1);
	assert_int_equal(after.read_bytes - before.read_bytes, stats().read_bytes);
	/* Its class is 5 KiB and 128 bytes. */
	assert_in_range(stats().read_bytes, 4608, 6144);
	assert_int_equal(stats().read_asked_bytes, 4096 + 20 + LAYOUT_ITEM_SUM);
	end();
}

/* Beyond the classes the header is read first, then as much as it says. */
static void
test_unknown(void **state)
{
	struct flash_loan *loan;
	uint64_t at;

	(void)state;
	begin(8, 1);
	put(0, 900000);
	put(1, LONGEST);
	assert_int_equal(my.keys[0].size_class, BUCKET_CLASS_UNKNOWN);
	settle();
	loan = read_one(0);
	check_item(loan, 0);
	flash_return(my.thread, &loan);
	assert_int_equal(stats().reads, 2);
	assert_in_range(stats().read_bytes, 900000 + 512, 900000 + 4 * 512);
	loan = read_one(1);
	check_item(loan, 1);
	flash_return(my.thread, &loan);
	assert_int_equal(stats().reads, 4);
	assert_int_equal(stats().read_asked_bytes, 900000 + LONGEST + 2 * LAYOUT_ITEM_SUM);
	/* A header that claims more than there can be is rubbish: nothing more is read. */
	at = my.flash->regions[flash_region_of(my.keys[0].segment)].base +
	     my.keys[0].offset * ITEM_ALIGN;
	fake_disk_flip(my.disk, "disk", at + offsetof(struct item, sizes) + 3, 6);
	loan = read_one(0);
	assert_int_equal(loan->state, FLASH_LOAN_BAD);
	flash_return(my.thread, &loan);
	assert_int_equal(stats().reads, 5);
	/* A shorter one is read, and found wrong. */
	fake_disk_flip(my.disk, "disk", at + offsetof(struct item, sizes) + 3, 6);
	fake_disk_flip(my.disk, "disk", at + offsetof(struct item, sizes) + 2, 6);
	loan = read_one(0);
	assert_int_equal(loan->state, FLASH_LOAN_BAD);
	flash_return(my.thread, &loan);
	assert_int_equal(stats().reads, 7);
	assert_int_equal(stats().read_bad, 2);
	/* One that is given up after its header isn't read any further. */
	loan = borrow(1);
	flash_push(my.thread);
	flash_return(my.thread, &loan);
	for (unsigned i = 0; i < 100; i++)
		flash_poll(my.thread, my.now_ns);
	assert_int_equal(stats().reads, 8);
	assert_int_equal(stats().reads_in_flight, 0);
	check_all_free();
	end();
}

static void
test_bad(void **state)
{
	struct region *region;
	struct flash_loan *loan;
	uint64_t at, sequence;

	(void)state;
	begin(8, 1);
	for (uint32_t i = 0; i < 8; i++)
		put(i, 3000);
	settle();
	region = &my.flash->regions[flash_region_of(my.keys[0].segment)];
	/* Each field of the item, and its checksum. */
	for (uint32_t i = 0; i < 5; i++) {
		static const uint32_t where[] = {0, 9, 18, 2999, 3001};

		at = region->base + my.keys[i].offset * ITEM_ALIGN + where[i];
		fake_disk_flip(my.disk, "disk", at, i);
		loan = read_one(i);
		assert_int_equal(loan->state, FLASH_LOAN_BAD);
		assert_int_equal(
			flash_position(my.flash, loan->segment, loan->offset), my.keys[i].position);
		flash_return(my.thread, &loan);
		assert_int_equal(stats().read_bad, i + 1);
		assert_int_equal(atomic_load(&region->errors), i + 1);
		fake_disk_flip(my.disk, "disk", at, i);
		loan = read_one(i);
		check_item(loan, i);
		flash_return(my.thread, &loan);
	}
	/* The region got another life while it was read: it isn't the device's fault. */
	loan = borrow(5);
	sequence = atomic_load(&region->sequence);
	atomic_store(&region->sequence, sequence + 1);
	at = region->base + my.keys[5].offset * ITEM_ALIGN;
	fake_disk_flip(my.disk, "disk", at, 1);
	await(loan);
	assert_int_equal(loan->state, FLASH_LOAN_BAD);
	assert_null(loan->item);
	assert_int_equal(stats().read_bad, 5);
	assert_int_equal(atomic_load(&region->errors), 5);
	flash_return(my.thread, &loan);
	atomic_store(&region->sequence, sequence);
	end();
}

static void
test_failed(void **state)
{
	struct fake_disk_fault fault = {.kinds = FAKE_DISK_READS, .times = 1, .error = EIO};
	struct flash_loan *loan, *other;

	(void)state;
	begin(8, 1);
	put(0, 500);
	put(1, 600);
	put(2, 900000);
	settle();
	fake_disk_fault(my.disk, &fault);
	loan = read_one(0);
	assert_int_equal(loan->state, FLASH_LOAN_FAILED);
	other = read_one(1);
	check_item(other, 1);
	flash_return(my.thread, &loan);
	flash_return(my.thread, &other);
	assert_int_equal(stats().read_errors, 1);
	assert_int_equal(stats().read_bad, 0);
	/* Of two reads the second. */
	fault.skip = 1;
	fake_disk_no_faults(my.disk);
	fake_disk_fault(my.disk, &fault);
	loan = read_one(2);
	assert_int_equal(loan->state, FLASH_LOAN_FAILED);
	flash_return(my.thread, &loan);
	assert_int_equal(stats().read_errors, 2);
	/* One that was given back counts too: the region is suspect all the same. */
	fault.skip = 0;
	fake_disk_no_faults(my.disk);
	fake_disk_fault(my.disk, &fault);
	loan = borrow(0);
	flash_push(my.thread);
	flash_return(my.thread, &loan);
	for (unsigned i = 0; i < 100; i++)
		flash_poll(my.thread, my.now_ns);
	assert_int_equal(stats().read_errors, 3);
	assert_int_equal(
		atomic_load(&my.flash->regions[flash_region_of(my.keys[0].segment)].errors), 3);
	fake_disk_no_faults(my.disk);
	check_all_free();
	end();
}

static void
test_late(void **state)
{
	struct fake_disk_fault stuck = {
		.kinds = FAKE_DISK_READS, .times = 3, .error = FAKE_DISK_STUCK};
	struct flash_loan *first, *second, *third, *prompt;

	(void)state;
	begin(8, 1);
	for (uint32_t i = 0; i < 5; i++)
		put(i, 2000);
	settle();
	fake_disk_fault(my.disk, &stuck);
	assert_int_equal(flash_timeout_ms(my.thread, my.now_ns), -1);
	first = borrow(0);
	flash_push(my.thread);
	assert_int_equal(flash_timeout_ms(my.thread, my.now_ns), 1001);
	my.now_ns += 300 * MS;
	second = borrow(1);
	third = borrow(2);
	flash_push(my.thread);
	assert_in_range(flash_timeout_ms(my.thread, my.now_ns), 700, 701);
	prompt = read_one(3);
	check_item(prompt, 3);
	flash_return(my.thread, &prompt);
	my.now_ns += 700 * MS - 1;
	assert_int_equal(flash_poll(my.thread, my.now_ns), 0);
	assert_int_equal(first->state, FLASH_LOAN_PENDING);
	assert_int_equal(flash_timeout_ms(my.thread, my.now_ns), 1);
	my.now_ns += 1;
	assert_int_equal(flash_timeout_ms(my.thread, my.now_ns), 0);
	assert_int_equal(flash_poll(my.thread, my.now_ns), 1);
	assert_int_equal(first->state, FLASH_LOAN_LATE);
	assert_int_equal(second->state, FLASH_LOAN_PENDING);
	assert_int_equal(stats().read_late, 1);
	/* Given back while it is under way, late or not. */
	flash_return(my.thread, &first);
	flash_return(my.thread, &second);
	my.now_ns += 5000 * MS;
	assert_int_equal(flash_poll(my.thread, my.now_ns), 1);
	assert_int_equal(third->state, FLASH_LOAN_LATE);
	assert_int_equal(flash_timeout_ms(my.thread, my.now_ns), -1);
	assert_int_equal(stats().read_late, 2);
	assert_int_equal(stats().reads_in_flight, 3);
	prompt = read_one(4);
	check_item(prompt, 4);
	flash_return(my.thread, &prompt);
	/* They come back after all: what was late stays so. */
	fake_disk_unstick(my.disk, false);
	for (unsigned i = 0; i < 200; i++)
		flash_poll(my.thread, my.now_ns);
	assert_int_equal(stats().reads_in_flight, 0);
	assert_int_equal(third->state, FLASH_LOAN_LATE);
	assert_null(third->item);
	flash_return(my.thread, &third);
	fake_disk_no_faults(my.disk);
	check_all_free();
	end();
}

/* A thread that ends while the device has reads, which come back; all is freed. */
static void
test_destroy(void **state)
{
	struct flash_loan *loan;

	(void)state;
	begin(8, 2);
	put(0, 2000);
	settle();
	for (uint32_t i = 0; i < 5; i++) {
		loan = borrow(0);
		assert_non_null(loan);
		flash_return(my.thread, &loan);
	}
	flash_thread_destroy(my.thread);
	assert_int_equal(stats().reads, 5);
	my.thread = flash_thread_create(my.flash);
	assert_non_null(my.thread);
	assert_int_equal(stats().reads_in_flight, 0);
	end();
}

static void
test_depth(void **state)
{
	struct flash_loan *loans[4], *more;

	(void)state;
	begin(4, 1);
	for (uint32_t i = 0; i < 6; i++)
		put(i, 300);
	settle();
	for (uint32_t i = 0; i < 4; i++) {
		loans[i] = borrow(i);
		assert_non_null(loans[i]);
	}
	assert_int_equal(stats().reads_in_flight, 4);
	assert_null(borrow(4));
	/* What is in a write buffer needs no device. */
	put(5, 300);
	more = borrow(5);
	assert_non_null(more);
	check_item(more, 5);
	flash_return(my.thread, &more);
	/* Given back, but the device has it still. */
	flash_return(my.thread, &loans[0]);
	assert_null(borrow(4));
	await(loans[1]);
	for (unsigned i = 0; i < 100; i++)
		flash_poll(my.thread, my.now_ns);
	more = read_one(4);
	check_item(more, 4);
	flash_return(my.thread, &more);
	for (uint32_t i = 1; i < 4; i++) {
		check_item(loans[i], i);
		flash_return(my.thread, &loans[i]);
	}
	check_all_free();
	end();
}

/* More is wanted than the memory holds. */
static void
test_exhaustion(void **state)
{
	struct flash_loan *loans[64];
	uint32_t count = 0;

	(void)state;
	begin(128, 1);
	for (uint32_t i = 0; i < 64; i++)
		put(i, 100000);
	settle();
	while (count < 64 && (loans[count] = borrow(count)))
		count++;
	assert_in_range(count, 4, 63);
	assert_int_equal(stats().reads_in_flight, count);
	for (uint32_t i = 0; i < count; i++) {
		await(loans[i]);
		check_item(loans[i], i);
	}
	/* Done, they still hold it. */
	assert_null(borrow(63));
	flash_return(my.thread, &loans[0]);
	loans[0] = read_one(63);
	check_item(loans[0], 63);
	for (uint32_t i = 0; i < count; i++)
		flash_return(my.thread, &loans[i]);
	check_all_free();
	end();
}

static void
test_pins(void **state)
{
	struct flash_loan *loan, *other;
	const uint8_t *bytes, *at[512];
	uint32_t count = 0;
	char elsewhere;

	(void)state;
	begin(8, 1);
	for (uint32_t i = 0; i < 600; i++)
		put(i, 5000);
	put(KEYS - 1, LONGEST);
	settle();
	assert_int_equal(flash_pin(my.thread, &elsewhere), FLASH_ELSEWHERE);
	loan = read_one(0);
	bytes = (const uint8_t *)loan->item + 700;
	assert_int_equal(flash_pin(my.thread, bytes), FLASH_PINNED);
	assert_int_equal(flash_pin(my.thread, bytes + 9), FLASH_PINNED);
	flash_return(my.thread, &loan);
	/* It stands, whatever else is read. */
	for (uint32_t i = 1; i < 300; i++) {
		other = read_one(i);
		check_item(other, i);
		assert_true((const uint8_t *)other->item > bytes + 4300 ||
			    (const uint8_t *)other->item + 5000 <= bytes - 700);
		flash_return(my.thread, &other);
	}
	assert_int_equal(bytes[0], (uint8_t)((700 - 20) * 31 + ((700 - 20) >> 8)));
	/* No room for what needs all. */
	assert_null(borrow(KEYS - 1));
	flash_unpin(my.thread, bytes);
	assert_null(borrow(KEYS - 1));
	flash_unpin(my.thread, bytes + 9);
	check_all_free();
	/* Unpinned before it is given back. */
	loan = read_one(0);
	assert_int_equal(flash_pin(my.thread, loan->item), FLASH_PINNED);
	flash_unpin(my.thread, loan->item);
	check_item(loan, 0);
	flash_return(my.thread, &loan);
	/* Half of the memory at most. */
	for (;;) {
		enum flash_pinned answer;

		loan = read_one(count);
		at[count] = (const uint8_t *)loan->item;
		answer = flash_pin(my.thread, at[count]);
		if (answer != FLASH_PINNED) {
			assert_int_equal(answer, FLASH_PIN_REFUSED);
			flash_return(my.thread, &loan);
			break;
		}
		flash_return(my.thread, &loan);
		assert_in_range(++count, 1, 500);
	}
	/* Buffers of 8 KiB, half of 2 MiB. */
	assert_int_equal(count, (1u << 20) / 8192);
	/* A second pin of the same needs nothing more. */
	assert_int_equal(flash_pin(my.thread, at[3]), FLASH_PINNED);
	flash_unpin(my.thread, at[3]);
	while (count > 0)
		flash_unpin(my.thread, at[--count]);
	check_all_free();
	/* What fills the range by itself is never pinned. */
	loan = read_one(KEYS - 1);
	assert_int_equal(flash_pin(my.thread, loan->item), FLASH_PIN_REFUSED);
	flash_return(my.thread, &loan);
	check_all_free();
	end();
}

static void
test_threads(void **state)
{
	struct flash_thread *other;
	struct flash_loan *loan;

	(void)state;
	begin(8, 2);
	put(0, 400);
	settle();
	other = flash_thread_create(my.flash);
	assert_non_null(other);
	errno = 0;
	assert_null(flash_thread_create(my.flash));
	assert_int_not_equal(errno, 0);
	loan = read_one(0);
	flash_return(my.thread, &loan);
	loan = flash_borrow(
		other, my.keys[0].segment, my.keys[0].offset, my.keys[0].size_class, my.now_ns);
	flash_push(other);
	while (loan->state == FLASH_LOAN_PENDING)
		flash_poll(other, my.now_ns);
	check_item(loan, 0);
	/* Each has memory of its own. */
	assert_int_equal(flash_pin(my.thread, loan->item), FLASH_ELSEWHERE);
	flash_return(other, &loan);
	assert_int_equal(stats().reads, 2);
	/* What it counted stays. */
	flash_thread_destroy(other);
	assert_int_equal(stats().reads, 2);
	other = flash_thread_create(my.flash);
	assert_non_null(other);
	flash_thread_destroy(other);
	end();
}

static uint64_t
sum_of(const struct flash_histogram *histogram)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < FLASH_HISTOGRAM; i++)
		sum += atomic_load(&histogram->count[i]);
	return sum;
}

/* A duration is counted in the first step whose bound it doesn't exceed. */
static void
check_step(uint64_t ns)
{
	struct flash_histogram histogram = {0};
	unsigned step = 0;

	flash_histogram_add(&histogram, ns);
	while (step < FLASH_HISTOGRAM - 1 && flash_histogram_bound(step) < ns)
		step++;
	if (atomic_load(&histogram.count[step]) != 1)
		fail_msg("%llu ns isn't in step %u", (unsigned long long)ns, step);
	assert_int_equal(sum_of(&histogram), 1);
}

static void
test_histograms(void **state)
{
	struct flash_stats now;
	struct flash_loan *loan;

	(void)state;
	assert_int_equal(flash_histogram_bound(0), 1250);
	assert_int_equal(flash_histogram_bound(3), 2000);
	assert_int_equal(flash_histogram_bound(4 * 10 + 3), 2000 * 1024);
	for (unsigned step = 0; step < FLASH_HISTOGRAM; step++) {
		uint64_t bound = flash_histogram_bound(step);

		assert_true(step == 0 || bound > flash_histogram_bound(step - 1));
		check_step(bound - 1);
		check_step(bound);
		check_step(bound + 1);
	}
	check_step(0);
	check_step(1);
	check_step(UINT64_MAX);
	for (uint64_t ns = 1; ns < 1ull << 40; ns += ns / 37 + 1)
		check_step(ns);
	/* Each read is counted once in both. */
	begin(8, 1);
	for (uint32_t i = 0; i < 20; i++)
		put(i, 400 + i);
	settle();
	for (uint32_t i = 0; i < 20; i++) {
		flash_poll(my.thread, my.now_ns);
		loan = read_one(i);
		flash_return(my.thread, &loan);
	}
	now = stats();
	assert_int_equal(sum_of(&now.queue_time), 20);
	assert_int_equal(sum_of(&now.device_time), 20);
	end();
}

/* The mean follows what reads take, by the turns' clock. */
static void
test_recent(void **state)
{
	struct flash_loan *loan;

	(void)state;
	begin(8, 1);
	put(0, 400);
	settle();
	for (uint32_t i = 0; i < 100; i++) {
		loan = borrow(0);
		flash_push(my.thread);
		my.now_ns += i < 50 ? 3 * MS : MS / 10;
		await(loan);
		flash_return(my.thread, &loan);
		if (i == 49)
			assert_in_range(reads_recent_us(my.flash), 2700, 3000);
	}
	assert_in_range(reads_recent_us(my.flash), 100, 300);
	end();
}

/* Everything at once, with faults; at the end nothing is held. */
static void
test_random(void **state)
{
	struct fake_disk_fault faults[] = {
		{.kinds = FAKE_DISK_READS, .per_million = 20000, .error = EIO},
		{.kinds = FAKE_DISK_READS, .per_million = 10000, .error = FAKE_DISK_STUCK},
	};
	struct held {
		struct flash_loan *loan;
		uint32_t number;
		const uint8_t *pinned;
	} held[200] = {{0}};
	uint64_t refused = 0, good = 0, other = 0, pins = 0;

	(void)state;
	begin(64, 1);
	for (uint32_t i = 0; i < 500; i++)
		put(i, 21 + draw(i % 100 == 0 ? 1000000 : i % 5 == 0 ? 60000 : 3000));
	settle();
	for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++)
		fake_disk_fault(my.disk, &faults[i]);
	for (unsigned round = 0; round < 40000; round++) {
		struct held *one = &held[draw(200)];
		struct flash_loan *loan = one->loan;

		if (!loan && !one->pinned) {
			one->number = draw(500);
			one->loan = borrow(one->number);
			refused += one->loan == NULL;
		} else if (!loan) {
			const uint8_t *first = one->pinned - ITEM_HEADER;

			/* Pinned and given back: it still stands. */
			assert_memory_equal(one->pinned, &one->number, 4);
			assert_int_equal(
				((const struct item *)(const void *)first)->cas_low, one->number);
			flash_unpin(my.thread, one->pinned);
			one->pinned = NULL;
		} else if (loan->state == FLASH_LOAN_READY) {
			check_item(loan, one->number);
			good++;
			if (draw(3) == 0 &&
				flash_pin(my.thread, item_key(loan->item)) == FLASH_PINNED) {
				one->pinned = item_key(loan->item);
				pins++;
			}
			flash_return(my.thread, &one->loan);
		} else if (loan->state != FLASH_LOAN_PENDING || draw(8) == 0) {
			other += loan->state != FLASH_LOAN_PENDING;
			flash_return(my.thread, &one->loan);
		}
		if (round % 8 == 0) {
			flash_push(my.thread);
			my.now_ns += draw(40) * MS;
			flash_poll(my.thread, my.now_ns);
		}
		if (round % 512 == 0)
			fake_disk_unstick(my.disk, draw(2) == 0);
	}
	fake_disk_no_faults(my.disk);
	fake_disk_unstick(my.disk, false);
	for (unsigned i = 0; i < 200; i++) {
		if (held[i].loan)
			flash_return(my.thread, &held[i].loan);
		if (held[i].pinned)
			flash_unpin(my.thread, held[i].pinned);
	}
	flash_push(my.thread);
	for (unsigned i = 0; i < 300; i++)
		flash_poll(my.thread, my.now_ns);
	assert_int_equal(stats().reads_in_flight, 0);
	/* So many errors make regions suspect: they go, before the last item comes. */
	work(300);
	assert_int_equal(flash_position(my.flash, my.keys[0].segment, my.keys[0].offset), 0);
	assert_null(borrow(0));
	assert_true(good > 1000 && pins > 100 && other > 100 && refused > 100);
	assert_true(stats().read_late > 0 && stats().read_errors > 0);
	check_all_free();
	end();
}

/* What never ends is killed, and fails so. */
static int
bound(void **state)
{
	(void)state;
	alarm(60);
	return 0;
}

#define BOUNDED(test) cmocka_unit_test_setup(test, bound)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		BOUNDED(test_buffered),
		BOUNDED(test_device),
		BOUNDED(test_read_bytes),
		BOUNDED(test_unknown),
		BOUNDED(test_bad),
		BOUNDED(test_failed),
		BOUNDED(test_late),
		BOUNDED(test_destroy),
		BOUNDED(test_depth),
		BOUNDED(test_exhaustion),
		BOUNDED(test_pins),
		BOUNDED(test_threads),
		BOUNDED(test_histograms),
		BOUNDED(test_recent),
		BOUNDED(test_random),
	};

	rcu_register();
	return cmocka_run_group_tests_name("flash_read", tests, NULL, NULL);
}
