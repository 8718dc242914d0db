/* SPDX-License-Identifier: BSD-2-Clause */
/* Frames of datagrams, and replies cut into datagrams. */
#include "proto/udp.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void
test_read(void **state)
{
	struct udp_frame frame;

	(void)state;
	assert_true(udp_frame_read(
		&frame, (const uint8_t *)"\x00\xa1\x00\x00\x00\x01\x00\x00get foo\r\n", 17));
	assert_int_equal(frame.request_id, 161);
	assert_int_equal(frame.datagrams, 1);
	/* What is reserved doesn't matter. */
	assert_true(udp_frame_read(&frame, (const uint8_t *)"\xff\xff\x00\x00\x00\x01\x12\x34", 8));
	assert_int_equal(frame.request_id, 65535);
	for (size_t size = 0; size < UDP_FRAME_SIZE; size++)
		assert_false(udp_frame_read(
			&frame, (const uint8_t *)"\x00\xa1\x00\x00\x00\x01\x00\x00", size));
	/* Parts of longer requests. */
	assert_false(
		udp_frame_read(&frame, (const uint8_t *)"\x00\xa1\x00\x00\x00\x02\x00\x00", 8));
	assert_false(
		udp_frame_read(&frame, (const uint8_t *)"\x00\xa1\x00\x01\x00\x02\x00\x00", 8));
	assert_false(
		udp_frame_read(&frame, (const uint8_t *)"\x00\xa1\x00\x01\x00\x01\x00\x00", 8));
}

static void
test_write(void **state)
{
	uint8_t bytes[UDP_FRAME_SIZE];
	struct udp_frame frame = {.request_id = 0x1234, .sequence = 14, .datagrams = 0x0102};

	(void)state;
	udp_frame_write(bytes, &frame);
	assert_memory_equal(bytes, "\x12\x34\x00\x0e\x01\x02\x00\x00", 8);
}

static void
test_count(void **state)
{
	(void)state;
	assert_int_equal(udp_datagram_count(0), 0);
	assert_int_equal(udp_datagram_count(1), 1);
	assert_int_equal(udp_datagram_count(1392), 1);
	assert_int_equal(udp_datagram_count(1393), 2);
	/* A value of 20000 bytes with its lines takes 15. */
	assert_int_equal(
		udp_datagram_count(20000 + sizeof "VALUE big 0 20000\r\n\r\nEND\r\n" - 1), 15);
	assert_int_equal(udp_datagram_count((uint64_t)UINT16_MAX * UDP_PAYLOAD_MAX), UINT16_MAX);
	assert_int_equal(udp_datagram_count((uint64_t)UINT16_MAX * UDP_PAYLOAD_MAX + 1), 0);
	assert_int_equal(udp_datagram_count(UINT64_MAX / 2), 0);
}

/*
 * Cuts pieces of the given sizes; what comes out is the same bytes, in full datagrams but for the
 * last.
 */
static void
split(const size_t *sizes, uint32_t count)
{
	size_t total = 0;
	struct iovec pieces[8], iovecs[8];

	for (uint32_t i = 0; i < count; i++)
		total += sizes[i];
	uint8_t *bytes = malloc(total + 1), *out = malloc(total + 1);

	assert_non_null(bytes);
	assert_non_null(out);
	for (size_t i = 0; i < total; i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	size_t at = 0;

	for (uint32_t i = 0; i < count; at += sizes[i++])
		pieces[i] = (struct iovec){bytes + at, sizes[i]};
	struct udp_split walk = {.pieces = pieces, .piece_count = count};
	uint32_t datagrams = 0, used;
	size_t got = 0, payload;

	while ((used = udp_split_next(&walk, iovecs, 8, &payload)) > 0) {
		size_t sum = 0;

		datagrams++;
		assert_true(payload <= UDP_PAYLOAD_MAX);
		for (uint32_t i = 0; i < used; i++) {
			assert_true(iovecs[i].iov_len > 0);
			memcpy(out + got + sum, iovecs[i].iov_base, iovecs[i].iov_len);
			sum += iovecs[i].iov_len;
		}
		assert_int_equal(sum, payload);
		got += sum;
		assert_true(payload == UDP_PAYLOAD_MAX || got == total);
	}
	assert_int_equal(got, total);
	assert_memory_equal(out, bytes, total);
	assert_int_equal(datagrams, udp_datagram_count(total));
	assert_int_equal(udp_split_next(&walk, iovecs, 8, &payload), 0);
	free(bytes);
	free(out);
}

static void
test_split(void **state)
{
	static const size_t edges[] = {0, 1, 5, 1387, 1391, 1392, 1393, 2784, 20000};

	(void)state;
	split(NULL, 0);
	for (size_t a = 0; a < 9; a++) {
		for (size_t b = 0; b < 9; b++) {
			for (size_t c = 0; c < 9; c++) {
				size_t sizes[] = {edges[a], edges[b], edges[c]};

				split(sizes, 3);
			}
		}
	}
	split((const size_t[]){1, 1, 1, 1, 1, 1, 1, 1}, 8);
}

/* With few iovecs datagrams get shorter, but nothing is lost. */
static void
test_few_iovecs(void **state)
{
	uint8_t bytes[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
	struct iovec pieces[] = {{bytes, 3}, {bytes + 3, 3}, {bytes + 6, 4}}, one;
	struct udp_split walk = {.pieces = pieces, .piece_count = 3};
	size_t payload, got = 0;

	(void)state;
	while (udp_split_next(&walk, &one, 1, &payload)) {
		assert_ptr_equal(one.iov_base, bytes + got);
		got += payload;
	}
	assert_int_equal(got, 10);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_write),
		cmocka_unit_test(test_count),
		cmocka_unit_test(test_split),
		cmocka_unit_test(test_few_iovecs),
	};

	return cmocka_run_group_tests_name("proto_udp", tests, NULL, NULL);
}
