/* SPDX-License-Identifier: BSD-2-Clause */
/* The parts of halcyon-bench and of the tools' common code that can be tested without a server. */
#include "tools/bench/histogram.h"
#include "tools/bench/pause.h"
#include "tools/bench/protocol.h"
#include "tools/bench/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/*
 * Every cell begins where the one before it ended, and no step is wider than 1/128 of its values.
 */
static void
histogram_cells_tile_the_numbers(void **state)
{
	unsigned cell = 0;

	(void)state;
	for (uint64_t value = 0; value >> HISTOGRAM_VALUE_BITS == 0; value += 1 + value / 4096) {
		unsigned now = histogram_cell(value);
		assert_true(now == cell || now == cell + 1);
		assert_true(now < HISTOGRAM_CELLS);
		cell = now;
	}
	assert_int_equal(histogram_cell(UINT64_MAX), HISTOGRAM_CELLS - 1);
	assert_int_equal(
		histogram_cell((UINT64_C(1) << HISTOGRAM_VALUE_BITS) - 1), HISTOGRAM_CELLS - 1);
	for (uint64_t value = 1; value < UINT64_C(1) << 39; value *= 3) {
		uint64_t end = value;
		while (histogram_cell(end + 1) == histogram_cell(value) && end < value * 2)
			end++;
		assert_true(end - value <= value / HISTOGRAM_STEPS);
		if (value > 1000000)
			break;
	}
}

static int
compare_numbers(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Against the sorted values themselves. */
static void
histogram_quantiles_are_close(void **state)
{
	enum { COUNT = 20000 };
	uint64_t *values = malloc(COUNT * sizeof *values);
	struct histogram *histogram = calloc(2, sizeof *histogram);
	uint64_t seed = 7;

	(void)state;
	for (unsigned i = 0; i < COUNT; i++) {
		values[i] = workload_random(&seed) >> (24 + i % 36);
		histogram_add(&histogram[i % 2], values[i]);
	}
	histogram_merge(&histogram[0], &histogram[1]);
	qsort(values, COUNT, sizeof *values, compare_numbers);
	assert_int_equal(histogram->count, COUNT);
	assert_int_equal(histogram->max, values[COUNT - 1]);
	static const double shares[] = {0.0001, 0.1, 0.5, 0.9, 0.99, 0.9999, 1.0};
	for (unsigned i = 0; i < sizeof shares / sizeof *shares; i++) {
		uint64_t exact = values[(size_t)(shares[i] * COUNT + 0.999999) - 1];
		uint64_t told = histogram_quantile(histogram, shares[i]);
		assert_true(told >= exact);
		assert_true(told - exact <= exact / HISTOGRAM_STEPS);
	}
	free(histogram);
	free(values);
}

static void
create(struct workload *workload, uint64_t size_min, uint64_t size_max)
{
	struct options options = {
		.keys = 1000,
		.key_size = 20,
		.key_prefix = "test",
		.value_size = {size_min, size_max},
		.value_kind = size_min == size_max ? DRAW_SIZE_FIXED : DRAW_SIZE_UNIFORM,
		.seed = 5,
		.verify = true,
	};

	assert_int_equal(workload_create(workload, &options), 0);
}

static void
keys_are_different_and_of_their_size(void **state)
{
	struct workload workload;
	char before[WORKLOAD_KEY_SIZE_MAX] = "", key[WORKLOAD_KEY_SIZE_MAX];

	(void)state;
	create(&workload, 1, 1);
	for (unsigned i = 0; i < 1000; i++, memcpy(before, key, sizeof before)) {
		memset(key, 0, sizeof key);
		workload_write_key(&workload, key, i);
		assert_int_equal(strlen(key), 20);
		assert_true(strcmp(before, key) < 0);
	}
	assert_string_equal(key, "test-------------999");
	workload_destroy(&workload);
}

/* Any byte changed, any other key's or version's value, any older one: none is taken for right. */
static void
values_are_told_apart(void **state)
{
	struct workload workload;
	uint32_t version;
	char value[300];

	(void)state;
	create(&workload, 1, 300);
	for (uint32_t key = 0; key < 200; key++) {
		uint64_t size = workload_value_size(&workload, key, 3);
		workload_write_value(&workload, value, size, key, 3);
		atomic_store(&workload.sent[key], 4);
		atomic_store(&workload.sent[key + 1], 4);
		assert_int_equal(workload_check_value(&workload, key, 3, value, size, &version),
			WORKLOAD_RIGHT);
		assert_int_equal(workload_check_value(&workload, key, 1, value, size, &version),
			WORKLOAD_RIGHT);
		assert_int_equal(version, 3);
		for (uint64_t at = 0; at < size; at++) {
			value[at] ^= 0x10;
			assert_int_not_equal(
				workload_check_value(&workload, key, 3, value, size, &version),
				WORKLOAD_RIGHT);
			value[at] ^= 0x10;
		}
		assert_int_not_equal(
			workload_check_value(&workload, key, 3, value, size - 1, &version),
			WORKLOAD_RIGHT);
		if (size < 8)
			continue; /* few bytes may be right by chance */
		assert_int_not_equal(
			workload_check_value(&workload, key + 1, 3, value, size, &version),
			WORKLOAD_RIGHT);
		assert_int_equal(workload_check_value(&workload, key, 4, value, size, &version),
			WORKLOAD_STALE);
		atomic_store(&workload.sent[key], 2);
		assert_int_equal(workload_check_value(&workload, key, 1, value, size, &version),
			WORKLOAD_UNKNOWN);
		/* Not yet set in this run: of an earlier one. */
		atomic_store(&workload.sent[key], 0);
		assert_int_equal(workload_check_value(&workload, key, 0, value, size, &version),
			WORKLOAD_RIGHT);
	}
	workload_destroy(&workload);
}

/*
 * Several writers: only a version that was numbered when all before it were answered bounds what
 * may come back.
 */
static void
versions_of_several_writers_have_bounds(void **state)
{
	struct options options = {
		.keys = 10,
		.key_size = 20,
		.key_prefix = "test",
		.value_size = {8, 8},
		.verify = true,
		.cache_aside = true,
	};
	struct workload workload;
	bool first, second, third;

	(void)state;
	assert_int_equal(workload_create(&workload, &options), 0);
	assert_int_equal(workload_take_version(&workload, 7, &first), 1);
	assert_int_equal(workload_take_version(&workload, 7, &second), 2);
	assert_true(first);
	assert_false(second);
	workload_end_version(&workload, 7, 2, second, true);
	assert_int_equal(workload_oldest(&workload, 7), 0);
	workload_end_version(&workload, 7, 1, first, true);
	assert_int_equal(workload_oldest(&workload, 7), 1);
	assert_int_equal(workload_take_version(&workload, 7, &third), 3);
	assert_true(third);
	/* Refused: nothing is newer, but the next has no rival. */
	workload_end_version(&workload, 7, 3, third, false);
	assert_int_equal(workload_oldest(&workload, 7), 1);
	assert_int_equal(workload_take_version(&workload, 7, &third), 4);
	assert_true(third);
	workload_end_version(&workload, 7, 4, third, true);
	assert_int_equal(workload_oldest(&workload, 7), 4);
	assert_int_equal(workload_newest(&workload, 7), 4);
	/* Keys of scans, counters and tails are not followed. */
	assert_int_equal(workload_take_version(&workload, 10, &third), 1);
	assert_int_equal(workload_take_version(&workload, 10, &third), 1);
	workload_end_version(&workload, WORKLOAD_COUNTER | 7, 1, true, true);
	assert_int_equal(workload_oldest(&workload, 7), 4);
	workload_destroy(&workload);
}

/* The quick way of writing keys gives what the plain one does, for each count of digits. */
static void
quick_keys_are_the_same(void **state)
{
	static const uint64_t key_counts[] = {
		9, 10, 11, 1000, 100000, 1234567, 100000000, 999999999};
	static const unsigned sizes[] = {9, 10, 15, 16, 17, 40, 250};

	(void)state;
	for (unsigned i = 0; i < sizeof key_counts / sizeof *key_counts; i++) {
		for (unsigned j = 0; j < sizeof sizes / sizeof *sizes; j++) {
			struct options options = {
				.keys = key_counts[i],
				.key_size = sizes[j],
				.key_prefix = "prefix:",
			};
			struct workload workload;
			uint64_t random = i;
			assert_int_equal(workload_create(&workload, &options), 0);
			for (unsigned k = 0; k < 1000; k++) {
				char quick[250], plain[250], number[16];
				uint32_t key = (uint32_t)workload_below(
					workload_random(&random), key_counts[i]);
				workload_write_key(&workload, quick, key);
				workload_write_any_key(&workload, plain, key);
				assert_memory_equal(quick, plain, sizes[j]);
				int digits = snprintf(number, sizeof number, "%u", key);
				assert_memory_equal(
					plain + sizes[j] - digits, number, (size_t)digits);
				assert_true(workload_is_key(&workload, quick, key));
				quick[workload_random(&random) % sizes[j]] ^= 1;
				assert_false(workload_is_key(&workload, quick, key));
			}
			workload_destroy(&workload);
		}
	}
}

/* Without --verify: any byte that differs is seen, at each length. */
static void
foreign_values_are_seen(void **state)
{
	(void)state;
	for (unsigned size = 1; size < 100; size++) {
		struct options options = {
			.keys = 5000,
			.key_size = 20,
			.key_prefix = "",
			.value_size = {size, size},
		};
		struct workload workload;
		char value[101];
		assert_int_equal(workload_create(&workload, &options), 0);
		workload_write_value(&workload, value, size, 4999, 1);
		assert_false(workload_value_differs(&workload, 4999, value, size));
		assert_true(workload_value_differs(&workload, 4999, value, size - 1));
		assert_true(workload_value_differs(&workload, 4999, value, size + 1));
		for (unsigned at = 0; at < size; at++) {
			value[at] ^= 1;
			assert_true(workload_value_differs(&workload, 4999, value, size));
			value[at] ^= 1;
		}
		workload_destroy(&workload);
	}
}

/* Replies cut at every byte: nothing is taken before it is whole, and then it is the same. */
static void
replies_are_cut_from_any_piece(void **state)
{
	static const char stream[] =
		"VALUE key 0 5\r\nab\r\nc\r\nVALUE k2 0 0\r\n\r\nEND\r\nSTORED\r\n"
		"NOT_STORED\r\nERROR\r\nSERVER_ERROR out of memory storing object\r\n"
		"VALUE key 7 1\r\na\r\nEND\r\nTOUCHED\r\nNOT_FOUND\r\n1000000001\r\n"
		"NOT_FOUND\r\nSTORED\r\nDELETED\r\nNOT_FOUND\r\n";
	static const struct {
		enum operation operation;
		enum reply_kind kind;
		bool last;
	} cases[] = {
		{OPERATION_GET, REPLY_VALUE, false},
		{OPERATION_GET, REPLY_VALUE, false},
		{OPERATION_GET, REPLY_END, true},
		{OPERATION_SET, REPLY_DONE, true},
		{OPERATION_SET, REPLY_NOT_STORED, true},
		{OPERATION_GET, REPLY_ERROR, true},
		{OPERATION_SET, REPLY_REFUSED, true},
		{OPERATION_GAT, REPLY_VALUE, false},
		{OPERATION_GAT, REPLY_END, true},
		{OPERATION_TOUCH, REPLY_DONE, true},
		{OPERATION_TOUCH, REPLY_MISS, true},
		{OPERATION_INCR, REPLY_NUMBER, true},
		{OPERATION_INCR, REPLY_MISS, true},
		{OPERATION_APPEND, REPLY_DONE, true},
		{OPERATION_DELETE, REPLY_DONE, true},
		{OPERATION_DELETE, REPLY_MISS, true},
	};
	const struct protocol *protocol = protocol_text();
	size_t at = 0, wanted;
	struct reply reply;

	(void)state;
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		size_t size = 1;
		char *piece = NULL;
		for (;; size++) {
			/*
			 * A block of just that size, so that a sanitizer sees a byte read too far.
			 */
			piece = realloc(piece, size);
			memcpy(piece, stream + at, size);
			size_t used = protocol->parse(
				piece, size, cases[i].operation, 1, &reply, &wanted);
			if (used == 0)
				continue;
			assert_int_equal(used, size);
			assert_int_equal(reply.kind, cases[i].kind);
			assert_int_equal(reply.last, cases[i].last);
			break;
		}
		if (i == 0) {
			assert_int_equal(reply.key_size, 3);
			assert_memory_equal(reply.value, "ab\r\nc", 5);
		}
		at += size;
		free(piece);
	}
	assert_int_equal(at, sizeof stream - 1);
	static const char *const broken[] = {"\r\n", "\n", "END\n", "ENDE\r\n",
		"VALUE k 0 1\r\nabc\r\n", "VALUE k 0\r\n", "VALUE k 0 x\r\n",
		"VALUE k -1 0\r\n\r\n", "STORED\r\n", "TOUCHED\r\n", "12\r\n",
		"HTTP/1.1 200 OK\r\n"};
	for (unsigned i = 0; i < sizeof broken / sizeof *broken; i++) {
		assert_int_not_equal(protocol->parse(broken[i], strlen(broken[i]), OPERATION_GET, 1,
					     &reply, &wanted),
			0);
		assert_int_equal(reply.kind, REPLY_BROKEN);
	}
}

struct parsed {
	bool flag;
	uint64_t number;
	double seconds;
	const char *string;
	struct optable_pair range;
	struct optable_pair ratio;
};

static const struct optable_row rows[] = {
	{"flag", 'f', NULL, OPTABLE_FLAG, offsetof(struct parsed, flag), 0, 0, NULL, "a"},
	{"number", 'n', "N", OPTABLE_NUMBER, offsetof(struct parsed, number), 2, 1 << 21, "7", "b"},
	{"seconds", 's', "S", OPTABLE_SECONDS, offsetof(struct parsed, seconds), 0, 9, "1.5", "c"},
	{"string", 0, "T", OPTABLE_STRING, offsetof(struct parsed, string), 0, 0, NULL, "d"},
	{"range", 'r', "A-B", OPTABLE_RANGE, offsetof(struct parsed, range), 1, 9999, "3", "e"},
	{"ratio", 'q', "A:B", OPTABLE_RATIO, offsetof(struct parsed, ratio), 0, 99, "1:9", "f"},
};

static const struct optable parsed_table = {
	.program = "program",
	.rows = rows,
	.row_count = sizeof rows / sizeof *rows,
};

static void
options_are_parsed(void **state)
{
	char *argv[] = {"program", "-f", "--number=1,234k", "-s", "0.25", "--string", "-x",
		"-r4-8k", "--ratio", "0:5", "rest", "-f", NULL};
	struct parsed parsed = {0};
	char error[200];

	(void)state;
	assert_int_equal(optable_parse(&parsed_table, 12, argv, &parsed, error, sizeof error), 10);
	assert_true(parsed.flag);
	assert_int_equal(parsed.number, 1234 * 1024);
	assert_true(parsed.seconds == 0.25);
	assert_string_equal(parsed.string, "-x");
	assert_int_equal(parsed.range.first, 4);
	assert_int_equal(parsed.range.second, 8192);
	assert_int_equal(parsed.ratio.second, 5);
	struct parsed defaults = {0};
	assert_int_equal(optable_parse(&parsed_table, 1, argv, &defaults, error, sizeof error), 1);
	assert_int_equal(defaults.number, 7);
	assert_int_equal(defaults.range.second, 3);
	assert_int_equal(defaults.ratio.second, 9);
}

static void
bad_options_are_named(void **state)
{
	static const char *const bad[][2] = {{"--number", "1"}, {"--number", "3m"},
		{"--number", "x"}, {"--number", "99999999999999999999"}, {"--number", ""},
		{"--number", "5 "}, {"--seconds", "-1"}, {"--seconds", "nan"}, {"--seconds", "1e9"},
		{"--range", "5-4"}, {"--range", "0-4"}, {"--range", "4-"}, {"--ratio", "0:0"},
		{"--ratio", "5"}, {"--ratio", "1:100"}, {"--flag=x", "x"}, {"--numbers", "3"},
		{"-z", "x"}};
	char error[200];

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char *argv[] = {"program", (char *)bad[i][0], (char *)bad[i][1], NULL};
		struct parsed parsed = {0};
		error[0] = '\0';
		assert_int_equal(
			optable_parse(&parsed_table, 3, argv, &parsed, error, sizeof error), -1);
		char name[32];
		snprintf(name, sizeof name, "%.*s", (int)strcspn(bad[i][0], "="), bad[i][0]);
		assert_non_null(strstr(error, name));
	}
	char *argv[] = {"program", "--number", NULL};
	struct parsed parsed = {0};
	assert_int_equal(optable_parse(&parsed_table, 2, argv, &parsed, error, sizeof error), -1);
	assert_non_null(strstr(error, "--number needs an argument"));
}

/* Whatever the order in which they come, they leave by time; some leave while others come. */
static void
pauses_end_in_their_order(void **state)
{
	enum { ROOM = 300 };
	struct pauses pauses;
	uint64_t random = 5, now = 0, until[ROOM];
	bool inside[ROOM] = {false};
	unsigned taken = 0;

	(void)state;
	assert_true(pauses_create(&pauses, ROOM));
	assert_true(pauses_next_ns(&pauses) == UINT64_MAX);
	for (unsigned turn = 0; turn < 20000; turn++) {
		uint32_t which = (uint32_t)workload_below(workload_random(&random), ROOM);
		if (!inside[which]) {
			until[which] = now + workload_below(workload_random(&random), 500);
			pauses_add(&pauses, which, until[which]);
			inside[which] = true;
		}
		now += workload_below(workload_random(&random), 5);
		while (pauses_next_ns(&pauses) <= now) {
			uint64_t next_ns = pauses_next_ns(&pauses);
			which = pauses_take(&pauses);
			assert_true(inside[which]);
			assert_true(until[which] == next_ns);
			inside[which] = false;
			taken++;
		}
		for (unsigned i = 0; i < ROOM; i++)
			assert_false(inside[i] && until[i] <= now);
	}
	assert_true(taken > 10000);
	pauses_destroy(&pauses);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(histogram_cells_tile_the_numbers),
		cmocka_unit_test(histogram_quantiles_are_close),
		cmocka_unit_test(keys_are_different_and_of_their_size),
		cmocka_unit_test(values_are_told_apart),
		cmocka_unit_test(versions_of_several_writers_have_bounds),
		cmocka_unit_test(quick_keys_are_the_same),
		cmocka_unit_test(foreign_values_are_seen),
		cmocka_unit_test(replies_are_cut_from_any_piece),
		cmocka_unit_test(options_are_parsed),
		cmocka_unit_test(pauses_end_in_their_order),
		cmocka_unit_test(bad_options_are_named),
	};

	return cmocka_run_group_tests_name("bench_tool", tests, NULL, NULL);
}
