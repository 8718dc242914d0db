/* SPDX-License-Identifier: BSD-2-Clause */
#include "workload.h"

#include <stdlib.h>
#include <string.h>

#define SMALL_VALUE 4
#define SMALL_VERSIONS 256

unsigned
workload_key_digits(uint64_t keys)
{
	unsigned digits = 1;

	for (uint64_t highest = keys - 1; highest >= 10; highest /= 10)
		digits++;
	return digits;
}

static uint64_t
hash(const struct workload *workload, uint64_t key, uint32_t version)
{
	uint64_t state = workload->seed * UINT64_C(0xd6e8feb86659fd93) ^
			 key * UINT64_C(0xa0761d6478bd642f) ^ ((uint64_t)version << 32 | version);

	return workload_random(&state);
}

static void
prepare_keys(struct workload *workload, const struct options *options)
{
	size_t prefix = strlen(options->key_prefix);

	workload->key_size = (unsigned)options->key_size;
	workload->key_digits =
		workload_key_digits(options->scan > 0 ? WORKLOAD_NUMBERS : options->keys);
	size_t head = workload->key_size - workload->key_digits;
	memset(workload->key_head, '-', sizeof workload->key_head);
	memcpy(workload->key_head, options->key_prefix, prefix < head ? prefix : head);
	if (workload->key_digits > sizeof workload->quick_tail ||
		workload->key_size < sizeof workload->quick_tail)
		return;
	char zeros[WORKLOAD_KEY_SIZE_MAX];
	workload_write_any_key(workload, zeros, 0);
	memcpy(&workload->quick_tail, zeros + workload->key_size - sizeof workload->quick_tail,
		sizeof workload->quick_tail);
	workload->quick_end = (uint32_t)options->keys;
}

static void
prepare_sizes(struct workload *workload, const struct options *options)
{
	workload->value_size_min = options->value_size.first;
	workload->value_size_max = options->value_size.second;
	draw_sizes_start(&workload->sizes, options->value_kind, workload->value_size_min,
		workload->value_size_max, workload->seed);
	if (workload->value_size_min != workload->value_size_max ||
		workload->value_size_max > 999999)
		return;
	char line[16] = {0};
	int length = snprintf(line, sizeof line, "%u\r\n", (unsigned)workload->value_size_max);
	memcpy(&workload->size_line, line, sizeof workload->size_line);
	workload->size_mask = ~UINT64_C(0) >> (64 - 8 * length);
	workload->size_digits = (unsigned)length - 2;
}

int
workload_create(struct workload *workload, const struct options *options)
{
	memset(workload, 0, sizeof *workload);
	workload->keys = options->keys;
	workload->seed = options->seed;
	workload->flags = (uint32_t)options->flags;
	prepare_keys(workload, options);
	prepare_sizes(workload, options);
	if (options->verify) {
		bool many = options_many_writers(options);
		workload->sent = calloc(options->keys, sizeof *workload->sent);
		workload->acked = calloc(options->keys, sizeof *workload->acked);
		if (many)
			workload->answered = calloc(options->keys, sizeof *workload->answered);
		if (workload->sent && workload->acked && (workload->answered || !many))
			return 0;
	} else {
		size_t size = workload->value_size_max + WORKLOAD_SAMPLE_EXTRA;
		workload->sample = malloc(size);
		if (workload->sample) {
			uint64_t state = options->seed;
			for (size_t i = 0; i < size; i++)
				workload->sample[i] = (char)('0' + (workload_random(&state) & 63));
			return 0;
		}
	}
	workload_destroy(workload);
	return -1;
}

void
workload_destroy(struct workload *workload)
{
	free(workload->sent);
	free(workload->acked);
	free(workload->answered);
	free(workload->sample);
	workload->sent = workload->acked = workload->answered = NULL;
	workload->sample = NULL;
}

void
workload_write_any_key(const struct workload *workload, char *at, uint32_t key)
{
	static const char pairs[] =
		"00010203040506070809101112131415161718192021222324252627282930313233343536373839"
		"40414243444546474849505152535455565758596061626364656667686970717273747576777879"
		"8081828384858687888990919293949596979899";
	unsigned digits = workload->key_digits;
	char *end = at + workload->key_size;

	memcpy(at, workload->key_head, workload->key_size - digits);
	if (key >= WORKLOAD_NUMBERS) {
		*at = key & WORKLOAD_COUNTER ? '+' : '&';
		key &= WORKLOAD_NUMBERS - 1;
	}
	for (; digits >= 2; digits -= 2, key /= 100) {
		end -= 2;
		memcpy(end, pairs + 2 * (key % 100), 2);
	}
	if (digits)
		*--end = (char)('0' + key % 10);
}

bool
workload_is_any_key(const struct workload *workload, const char *at, uint32_t key)
{
	char bytes[WORKLOAD_KEY_SIZE_MAX];

	workload_write_any_key(workload, bytes, key);
	return memcmp(at, bytes, workload->key_size) == 0;
}

uint64_t
workload_value_size(const struct workload *workload, uint64_t key, uint32_t version)
{
	if (key & WORKLOAD_COUNTER)
		return WORKLOAD_COUNTER_SIZE;
	if (workload->value_size_min == workload->value_size_max)
		return workload->value_size_min;
	return draw_size(&workload->sizes, workload->sample ? key : hash(workload, ~key, version));
}

static uint32_t
version_mask(const struct workload *workload, uint64_t key)
{
	return (uint32_t)hash(workload, key, 0);
}

/*
 * The next word of a value's stream: cheaper than the generator above, and good enough to show a
 * misplaced byte.
 */
static inline uint64_t
stream(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 32)) * UINT64_C(0xe9846af9b1a615d);
	return x ^ (x >> 28);
}

void
workload_write_value(
	const struct workload *workload, char *at, uint64_t size, uint64_t key, uint32_t version)
{
	if (key & WORKLOAD_COUNTER) {
		memcpy(at, "1000000000", WORKLOAD_COUNTER_SIZE);
		return;
	}
	if (workload->sample) {
		memcpy(at, workload->sample + key % WORKLOAD_SAMPLE_EXTRA, size);
		return;
	}
	if (size < SMALL_VALUE) {
		uint64_t bytes = hash(workload, key, version % SMALL_VERSIONS);
		memcpy(at, &bytes, size);
		return;
	}
	uint64_t state = hash(workload, key, version);
	uint32_t masked = version ^ version_mask(workload, key);
	memcpy(at, &masked, sizeof masked);
	at += sizeof masked;
	size -= sizeof masked;
	for (; size >= sizeof state; size -= sizeof state, at += sizeof state) {
		uint64_t word = stream(&state);
		memcpy(at, &word, sizeof word);
	}
	uint64_t word = stream(&state);
	memcpy(at, &word, size);
}

bool
workload_any_value_differs(
	const struct workload *workload, uint64_t key, const char *value, uint64_t size)
{
	const char *expected = workload->sample + key % WORKLOAD_SAMPLE_EXTRA;
	bool differs = size != workload_value_size(workload, key, 1);
	workload_vector difference = {0, 0};
	unsigned char rest = 0;

	/* The sample is as long as any value that is sent, not as any that comes. */
	if (size > workload->value_size_max)
		expected = value;
	for (; size >= sizeof difference; size -= sizeof difference) {
		difference |= *(const workload_vector *)value ^ *(const workload_vector *)expected;
		value += sizeof difference;
		expected += sizeof difference;
	}
	for (; size > 0; size--)
		rest |= (unsigned char)(*value++ ^ *expected++);
	return differs | ((difference[0] | difference[1]) != 0) | (rest != 0);
}

uint32_t
workload_take_version(struct workload *workload, uint64_t key, bool *is_newest)
{
	*is_newest = true;
	if (!workload->sent || key >= workload->keys)
		return 1;
	if (!workload->answered) {
		/* Only this thread writes the key. */
		uint32_t version =
			atomic_load_explicit(&workload->sent[key], memory_order_relaxed) + 1;
		atomic_store_explicit(&workload->sent[key], version, memory_order_release);
		return version;
	}
	/*
	 * Loaded before the number is taken: a version that another thread takes in between and
	 * that is answered may not stand in for an older one that isn't.
	 */
	uint32_t answered = atomic_load_explicit(&workload->answered[key], memory_order_seq_cst);
	uint32_t version =
		atomic_fetch_add_explicit(&workload->sent[key], 1, memory_order_seq_cst) + 1;
	*is_newest = answered == version - 1;
	return version;
}

void
workload_end_version(
	struct workload *workload, uint64_t key, uint32_t version, bool is_newest, bool done)
{
	if (!workload->sent || key >= workload->keys)
		return;
	if (!workload->answered) {
		if (done)
			atomic_store_explicit(&workload->acked[key], version, memory_order_release);
		return;
	}
	uint32_t acked = atomic_load_explicit(&workload->acked[key], memory_order_relaxed);
	while (done && is_newest && acked < version)
		if (atomic_compare_exchange_weak_explicit(&workload->acked[key], &acked, version,
			    memory_order_release, memory_order_relaxed))
			break;
	atomic_fetch_add_explicit(&workload->answered[key], 1, memory_order_seq_cst);
}

static bool
bytes_are_right(const struct workload *workload, uint64_t key, uint32_t version, const char *value,
	uint64_t size)
{
	if (size < SMALL_VALUE) {
		uint64_t bytes = hash(workload, key, version % SMALL_VERSIONS);
		return memcmp(value, &bytes, size) == 0;
	}
	uint64_t state = hash(workload, key, version);
	uint64_t wrong = 0;
	uint64_t word;
	value += SMALL_VALUE;
	size -= SMALL_VALUE;
	for (; size >= sizeof word; size -= sizeof word, value += sizeof word) {
		memcpy(&word, value, sizeof word);
		wrong |= word ^ stream(&state);
	}
	word = stream(&state);
	return wrong == 0 && memcmp(value, &word, size) == 0;
}

/* Values that tell no version: right if any version that may be seen gives these bytes. */
static enum workload_verdict
check_small(const struct workload *workload, uint64_t key, uint32_t oldest, uint32_t newest,
	const char *value, uint64_t size, uint32_t *version)
{
	uint32_t first = oldest ? oldest : 1;
	uint32_t last = oldest ? newest : first + SMALL_VERSIONS - 1;
	enum workload_verdict verdict = WORKLOAD_WRONG_LENGTH;

	for (uint32_t v = first; v <= last; v++) {
		/*
		 * The spread of lengths goes by the whole version, the bytes by its low eight bits.
		 */
		if (oldest && workload_value_size(workload, key, v) != size)
			continue;
		if (size < workload->value_size_min || size > workload->value_size_max)
			break;
		verdict = WORKLOAD_WRONG_BYTES;
		if (bytes_are_right(workload, key, v, value, size)) {
			*version = v;
			return WORKLOAD_RIGHT;
		}
	}
	*version = 0;
	return verdict;
}

enum workload_verdict
workload_check_value(const struct workload *workload, uint64_t key, uint32_t oldest,
	const char *value, uint64_t size, uint32_t *version)
{
	uint32_t newest = workload_newest(workload, key);

	if (size < SMALL_VALUE)
		return check_small(workload, key, oldest, newest, value, size, version);
	memcpy(version, value, sizeof *version);
	*version ^= version_mask(workload, key);
	if (*version == 0 || workload_value_size(workload, key, *version) != size)
		return WORKLOAD_WRONG_LENGTH;
	if (!bytes_are_right(workload, key, *version, value, size))
		return WORKLOAD_WRONG_BYTES;
	if (*version < oldest)
		return WORKLOAD_STALE;
	/* Before the first set of this run the value may be any of an earlier run. */
	if (*version > newest && oldest)
		return WORKLOAD_UNKNOWN;
	return WORKLOAD_RIGHT;
}

const char *
workload_verdict_text(enum workload_verdict verdict)
{
	switch (verdict) {
	case WORKLOAD_RIGHT:
		return "right";
	case WORKLOAD_WRONG_LENGTH:
		return "wrong length or version";
	case WORKLOAD_WRONG_BYTES:
		return "wrong bytes";
	case WORKLOAD_STALE:
		return "an older version than one that was acknowledged before the get was sent";
	case WORKLOAD_UNKNOWN:
		return "a version that was never sent";
	}
	return "?";
}
