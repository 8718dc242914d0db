/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Does the order of the index's stores and loads matter, and is it right? The index's own sources
 * are compiled here with their atomics replaced. A writer does something (a move within a chain, a
 * split, a replacement ...) and each of its stores is kept as a message: value, and for a release
 * store all that the writer had stored until then. Then a reader runs, and each of its loads may
 * return any message that C11's release and acquire allow it to see: not older than what it knows
 * of the location; an acquire load of a release store, or of a read-modify-write that follows one,
 * makes it know what the writer knew there. All such executions are tried.
 *
 *	location   messages, oldest first
 *	header     [0] start  [1] locked        [2] bumped {count 1, e3 1}   [3] unlocked {all}
 *	count      [0] start  [1] grown {header 1, new bucket's ...}
 *	e3         [0] start  [1] cleared {header 2, count 1}
 *
 * In each scenario the key sought is present all the time, so a miss is a fault; so is an entry
 * whose item isn't there yet, and a hint that holds although what it says is no longer so. Then the
 * same with one rule broken at a time (an order weakened, a version not bumped, a re-check left
 * out): each of these must be found out, else this test can't see what it is for.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <urcu-qsbr.h>

static void hook_store(void *at, size_t size, uint64_t value, memory_order order);
static bool hook_exchange(
	void *at, size_t size, void *expected, uint64_t value, memory_order order);
static uint64_t hook_load(const void *at, memory_order order);

#undef atomic_store_explicit
#undef atomic_load_explicit
#undef atomic_compare_exchange_weak_explicit
#undef atomic_compare_exchange_strong_explicit
#define atomic_store_explicit(at, value, order)                                                    \
	hook_store((void *)(at), sizeof *(at), (uint64_t)(value), order)
#define atomic_load_explicit(at, order) (*(at)) /* the writer's: it sees its own stores */
#define atomic_compare_exchange_weak_explicit(at, expected, value, order, otherwise)               \
	hook_exchange((void *)(at), sizeof *(at), expected, (uint64_t)(value), order)
#define atomic_compare_exchange_strong_explicit atomic_compare_exchange_weak_explicit
#define __atomic_load_n(at, order) hook_load(at, (memory_order)(order)) /* what hd.h loads by */
#define BUCKET_SCALAR 1

#include "index/index.c"
#include "index/chain.c"
#include "index/grow.c"

/* --- rules that can be broken ------------------------------------------------------------- */

enum mutation {
	NONE,
	ENTRIES_RELAXED,   /* the writer stores entries without release */
	BUMP_RELAXED,	   /* the writer bumps versions without release */
	COUNT_RELAXED,	   /* the writer publishes the bucket count without release */
	NO_BUMP,	   /* neither a move before it clears, nor a split before it trims, bumps */
	NO_UNLOCK_VERSION, /* unlocking doesn't publish a new version */
	COUNT_LATE,	   /* a split publishes the count after it has trimmed */
	READ_RELAXED,	   /* the reader loads entries without acquire */
	NO_VERSION_CHECK,  /* the reader doesn't re-check the version */
	NO_HOME_CHECK,	   /* the reader doesn't re-check home and bits */
	ONE_TAG,	   /* the reader doesn't take the old tag in a bucket that is being split */
	MUTATIONS
};
static const char *const mutation_names[] = {"none", "entries stored relaxed",
	"version bumped relaxed", "count stored relaxed", "no bump before the clear",
	"no new version at unlock", "count published after the trim", "entries loaded relaxed",
	"no re-check of the version", "no re-check of the home", "one tag in a split"};

/* --- messages ----------------------------------------------------------------------------- */

#define LOCATIONS 64
#define MESSAGES 24
#define CHOICES 256
#define EXECUTIONS_MAX 20000000u

typedef uint8_t view[LOCATIONS]; /* newest message known of each location */

struct message {
	uint64_t value;
	view known;
};

struct location {
	const void *at;
	uint32_t count;
	struct message messages[MESSAGES];
};

enum phase { SETUP, WRITE, READ, READ_CHECK };

static struct world {
	enum mutation mutation;
	enum phase phase;
	struct location locations[LOCATIONS];
	uint32_t location_count;
	view writer, reader;
	/* One execution: the options of each load that had several, and which was taken. */
	uint32_t taken[CHOICES], options[CHOICES], choice_count, choice;
	uint64_t delayed_count; /* COUNT_LATE */
	struct index *index;
	struct index_find find;
	uint64_t executions;
} world;

static struct location *
location_of(const void *at)
{
	for (uint32_t i = 0; i < world.location_count; i++)
		if (world.locations[i].at == at)
			return &world.locations[i];
	return NULL;
}

/* replaces: a read-modify-write, which goes on with the release sequence of what it replaces. */
static void
message_add(void *at, uint64_t value, bool release, bool replaces)
{
	struct location *location = location_of(at);

	if (location == NULL) {
		check(world.location_count < LOCATIONS);
		location = &world.locations[world.location_count++];
		*location = (struct location){.at = at, .count = 1};
		location->messages[0].value = *(uint64_t *)at;
	}
	check(location->count < MESSAGES);

	struct message *message = &location->messages[location->count];
	size_t number = (size_t)(location - world.locations);

	world.writer[number] = (uint8_t)location->count++;
	message->value = value;
	if (replaces)
		memcpy(message->known, message[-1].known, sizeof(view));
	if (release)
		memcpy(message->known, world.writer, sizeof(view));
	message->known[number] = world.writer[number];
}

static bool
is_header(const void *at)
{
	const uint8_t *byte = at;

	return byte >= world.index->area &&
	       byte < world.index->area + world.index->table.count * 64 + 64 &&
	       (uintptr_t)at % 64 == 0;
}

static bool
is_entry(const void *at)
{
	const uint8_t *byte = at;

	return byte >= world.index->area && byte < world.index->area + world.index->area_bytes &&
	       !is_header(at);
}

static void
store(void *at, size_t size, uint64_t value, bool release, bool replaces)
{
	if (size != 8) {
		*(uint32_t *)at = (uint32_t)value;
		return;
	}
	if (world.phase == WRITE) {
		uint64_t before = *(uint64_t *)at;

		if (is_header(at)) {
			bool bump = (before & value & 1) != 0 && before >> 32 != value >> 32;

			if (world.mutation == NO_BUMP && bump)
				return;
			if (world.mutation == BUMP_RELAXED && bump)
				release = false;
			if (world.mutation == NO_UNLOCK_VERSION && (before & 1) != 0 &&
				(value & 1) == 0)
				value = (value & 0xffffffff) | before >> 32 << 32;
			if (world.delayed_count != 0 && (value & 1) == 0) {
				message_add(&world.index->table.count, world.delayed_count, true,
					false);
				world.delayed_count = 0;
			}
		}
		if (world.mutation == ENTRIES_RELAXED && is_entry(at))
			release = false;
		if (at == (void *)&world.index->table.count) {
			if (world.mutation == COUNT_RELAXED)
				release = false;
			if (world.mutation == COUNT_LATE) {
				world.delayed_count = value;
				*(uint64_t *)at = value;
				return;
			}
		}
		message_add(at, value, release, replaces);
	}
	*(uint64_t *)at = value;
}

static void
hook_store(void *at, size_t size, uint64_t value, memory_order order)
{
	store(at, size, value, order == memory_order_release, false);
}

static bool
hook_exchange(void *at, size_t size, void *expected, uint64_t value, memory_order order)
{
	if (memcmp(at, expected, size) != 0) {
		memcpy(expected, at, size);
		return false;
	}
	store(at, size, value, order == memory_order_release, true);
	return true;
}

/* Which of 'options' this load takes in this execution. */
static uint32_t
choose(uint32_t options)
{
	if (options == 1)
		return 0;
	if (world.choice == world.choice_count) {
		check(world.choice_count < CHOICES);
		world.options[world.choice_count] = options;
		world.taken[world.choice_count++] = 0;
	}
	check(world.options[world.choice] == options);
	return world.taken[world.choice++];
}

/* The next execution; false when all were tried. */
static bool
choose_next(void)
{
	while (world.choice_count > 0) {
		uint32_t last = world.choice_count - 1;

		if (++world.taken[last] < world.options[last])
			return true;
		world.choice_count--;
	}
	return false;
}

static uint64_t
hook_load(const void *at, memory_order order)
{
	struct location *location = world.phase >= READ ? location_of(at) : NULL;

	if (location == NULL)
		return *(const uint64_t *)at;
	if (world.phase == READ_CHECK) {
		if (world.mutation == NO_VERSION_CHECK && is_header(at))
			return (uint64_t)world.find.version << 32;
		if (world.mutation == NO_HOME_CHECK &&
			at == (const void *)&world.index->table.count)
			return location->messages[0].value;
	}

	size_t number = (size_t)(location - world.locations);
	uint32_t known = world.reader[number], newest = known + choose(location->count - known);
	const struct message *message = &location->messages[newest];

	world.reader[number] = (uint8_t)newest;
	if (order != memory_order_relaxed && !(world.mutation == READ_RELAXED && is_entry(at)))
		for (size_t i = 0; i < LOCATIONS; i++)
			if (world.reader[i] < message->known[i])
				world.reader[i] = message->known[i];
	if (world.mutation == ONE_TAG && is_header(at))
		return message->value & ~1ull;
	return message->value;
}

/* --- items -------------------------------------------------------------------------------- */

/*
 * Item i, behind an entry of offset i in segment 1 (key at hand) or 2 (not). Its word says whose it
 * is; 0: not yet written.
 */
#define ITEMS 64
#define SOUGHT 1u
static uint64_t items[ITEMS];
static uint64_t hashes[ITEMS]; /* by key */

static bool
item_hash(void *context, uint64_t entry, uint64_t *hash)
{
	(void)context;
	*hash = hashes[items[bucket_entry_offset(entry)]];
	return bucket_entry_segment(entry) == 1;
}

static const struct index_keys item_keys = {.hash = item_hash};

static void
put(uint32_t key, uint32_t item, uint32_t segment)
{
	struct index_locked locked;
	uint64_t entry;
	_Atomic uint64_t *slot;

	hook_store(&items[item], 8, key, memory_order_relaxed);
	index_lock(world.index, hashes[key], 0, &locked);
	while ((slot = index_locked_next(&locked, &entry)) != NULL &&
		items[bucket_entry_offset(entry)] != key)
		;
	if (slot != NULL)
		index_locked_replace(&locked, slot, bucket_entry_make(segment, item, 0), -1);
	else
		check(index_locked_insert(&locked, bucket_entry_make(segment, item, 0), 0));
	index_unlock(&locked);
}

static void
drop(uint32_t key)
{
	struct index_locked locked;
	uint64_t entry;
	_Atomic uint64_t *slot;

	index_lock(world.index, hashes[key], 0, &locked);
	while ((slot = index_locked_next(&locked, &entry)) != NULL &&
		items[bucket_entry_offset(entry)] != key)
		;
	check(slot != NULL);
	index_locked_remove(&locked, slot);
	index_unlock(&locked);
}

static void
split(void)
{
	uint64_t count = world.index->table.count;

	check(index_split(world.index, 0) && world.index->table.count == count + 1);
}

/* --- scenarios ---------------------------------------------------------------------------- */

/*
 * Low six bits: the bucket of 64. Bit 6: the side of the first split; the tag starts at bit 6,
 * afterwards at bit 7.
 */
#define HOME(bucket, side, tag) ((uint64_t)(tag) << 7 | (uint64_t)(side) << 6 | (bucket))

struct scenario {
	const char *name;
	void (*setup)(void);
	void (*write)(void);
	bool gone;     /* at the end the key isn't there any more: a miss is right */
	uint32_t item; /* behind the key at the end */
};

/* Others' tags differ from the sought key's in both levels. */
static void
fill(uint32_t first, uint32_t count, uint64_t side)
{
	for (uint32_t key = first; key < first + count; key++) {
		hashes[key] = HOME(0, side, 0x400 + 2 * key);
		put(key, key, 1);
	}
}

static void
alone_stays(void)
{
	hashes[SOUGHT] = HOME(0, 0, 0x5a);
	put(SOUGHT, SOUGHT, 1);
	fill(2, 1, 1);
}

static void
alone_moves(void)
{
	hashes[SOUGHT] = HOME(0, 1, 0x5a);
	put(SOUGHT, SOUGHT, 1);
	fill(2, 1, 0);
}

static void
flash_stays(void)
{
	hashes[SOUGHT] = HOME(0, 0, 0x85a);
	put(SOUGHT, SOUGHT, 2);
	fill(2, 1, 1);
}

static void
flash_moves(void)
{
	hashes[SOUGHT] = HOME(0, 1, 0x85a);
	put(SOUGHT, SOUGHT, 2);
	fill(2, 1, 0);
}

/* Seven in the bucket, the sought one in a unit. */
static void
chained(void)
{
	fill(2, 7, 0);
	hashes[SOUGHT] = HOME(0, 0, 0x5a);
	put(SOUGHT, SOUGHT, 1);
}

/* The bucket's own all leave at the split: the sought one is retagged, then moved up. */
static void
chained_among_leavers(void)
{
	fill(2, 7, 1);
	hashes[SOUGHT] = HOME(0, 0, 0x5a);
	put(SOUGHT, SOUGHT, 1);
}

static void
chained_and_leaves(void)
{
	fill(2, 7, 0);
	hashes[SOUGHT] = HOME(0, 1, 0x5a);
	put(SOUGHT, SOUGHT, 1);
}

/* Two units: when something leaves the second one, what stands in the first moves there. */
static void
two_units(void)
{
	fill(2, 11, 0);
	hashes[SOUGHT] = HOME(0, 0, 0x5a);
	put(SOUGHT, SOUGHT, 1);
}

static void
second_bucket(void)
{
	hashes[SOUGHT] = HOME(1, 0, 0x5a);
	put(SOUGHT, SOUGHT, 1);
	hashes[2] = HOME(1, 1, 0x33);
	put(2, 2, 1);
	fill(3, 1, 1);
}

static void
four_in_a_unit(void)
{
	fill(2, 10, 0);
	hashes[SOUGHT] = HOME(0, 0, 0x5a);
	put(SOUGHT, SOUGHT, 1);
	hashes[40] = HOME(0, 0, 0x77);
}

static void
drop_other(void)
{
	drop(2);
}

static void
drop_in_second_unit(void)
{
	drop(10);
}

static void
drop_both_ways(void)
{
	drop(2);
	put(2, 2 + 32, 1);
	drop(3);
}

static void
insert_one(void)
{
	put(40, 40, 1);
}

static void
replace(void)
{
	put(SOUGHT, 50, 1);
}

static void
replace_twice(void)
{
	put(SOUGHT, 50, 1);
	put(SOUGHT, 51, 2);
}

static void
split_twice(void)
{
	split();
	split();
}

static void
split_and_replace(void)
{
	split();
	put(SOUGHT, 50, 1);
}

static void
drop_sought(void)
{
	drop(SOUGHT);
}

static const struct scenario scenarios[] = {
	{"a move up from a unit", chained, drop_other, false, SOUGHT},
	{"a move into the second unit", two_units, drop_in_second_unit, false, SOUGHT},
	{"moves up and a new unit", chained, drop_both_ways, false, SOUGHT},
	{"a new unit", four_in_a_unit, insert_one, false, SOUGHT},
	{"a replacement", alone_stays, replace, false, 50},
	{"two replacements", alone_stays, replace_twice, false, 51},
	{"a split, it stays", alone_stays, split, false, SOUGHT},
	{"a split, it moves", alone_moves, split, false, SOUGHT},
	{"a split, key not at hand, it stays", flash_stays, split, false, SOUGHT},
	{"a split, key not at hand, it moves", flash_moves, split, false, SOUGHT},
	{"a split, chained, it moves up", chained_among_leavers, split, false, SOUGHT},
	{"a split, chained, it leaves", chained_and_leaves, split, false, SOUGHT},
	{"two splits", second_bucket, split_twice, false, SOUGHT},
	{"a split and a replacement, it stays", alone_stays, split_and_replace, false, 50},
	{"a split and a replacement, it moves", alone_moves, split_and_replace, false, 50},
	{"a deletion", alone_stays, drop_sought, true, 0},
};

/*
 * The reader: the item found, 0 for a miss. *unwritten: an entry led to an item that isn't there
 * yet.
 */
static uint32_t
read_sought(bool *unwritten)
{
	struct index_find *find = &world.find;
	uint64_t entry;

	*unwritten = false;
	world.phase = READ;
	index_find_begin(world.index, hashes[SOUGHT], find);
	for (;;) {
		while ((entry = index_find_next(find)) != 0) {
			uint64_t key =
				hook_load(&items[bucket_entry_offset(entry)], memory_order_relaxed);

			*unwritten |= key == 0;
			if (key == SOUGHT)
				return bucket_entry_offset(entry);
		}
		world.phase = READ_CHECK;
		bool sure = bucket_find_is_current(&find->at);

		world.phase = READ;
		if (sure)
			return 0;
		index_find_restart(find);
	}
}

/* One execution; true when it is right. */
static bool
execute(const struct scenario *scenario)
{
	bool unwritten;

	memset(world.reader, 0, sizeof world.reader);
	world.choice = 0;

	uint32_t item = read_sought(&unwritten);

	if (unwritten || (item == 0 && !scenario->gone))
		return false;
	/* The last change is acknowledged; then the hint is asked. */
	memcpy(world.reader, world.writer, sizeof world.reader);

	bool holds = index_hint_holds(
		world.index, hashes[SOUGHT], world.find.number, world.find.version);

	return !holds || item == scenario->item;
}

/* True when every execution is right. */
static bool
scenario_run(const struct scenario *scenario, enum mutation mutation)
{
	struct index_options options = {.buckets_initial = 64,
		.bytes_max = 4096,
		.entries_per_bucket = 0,
		.keys = &item_keys};
	bool right = true;
	uint64_t executions = 0;

	memset(&world, 0, sizeof world);
	memset(items, 0, sizeof items);
	world.index = index_create(&options);
	check(world.index != NULL);
	scenario->setup();
	world.mutation = mutation;
	world.phase = WRITE;
	scenario->write();
	do {
		right = execute(scenario);
		check(++executions < EXECUTIONS_MAX);
	} while (right && choose_next());
	world.phase = SETUP;
	index_destroy(world.index);
	world.executions = executions;
	return right;
}

int
main(void)
{
	unsigned failures = 0;

	for (enum mutation mutation = NONE; mutation < MUTATIONS; mutation++) {
		unsigned found_out = 0;
		uint64_t executions = 0;

		for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
			bool right = scenario_run(&scenarios[i], mutation);

			executions += world.executions;
			if (mutation == NONE)
				printf("%s: %s, %llu executions\n", scenarios[i].name,
					right ? "right" : "WRONG",
					(unsigned long long)world.executions);
			else if (!right)
				printf("  found out by: %s\n", scenarios[i].name);
			found_out += !right;
		}
		bool as_wanted = (mutation == NONE) == (found_out == 0);

		printf("rule broken: %s: %u of %zu scenarios fail, %llu executions%s\n",
			mutation_names[mutation], found_out, sizeof scenarios / sizeof *scenarios,
			(unsigned long long)executions, as_wanted ? "" : "  UNEXPECTED");
		failures += !as_wanted;
	}
	return failures != 0;
}
