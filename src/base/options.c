/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/options.h"

#include "base/check.h"
#include "base/options_flash.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES_MIN (2ull << 20)
#define VALUE_MAX 4096
#define SLAB_SIZE_MIN 48
#define SLAB_SIZES_MAX 62

/*
 * Titles of sections stand in an array of their own, by the line of the file that they were written
 * on.
 */
static const struct {
	int line;
	const char *title;
} sections[] = {
#define SECTION(title) {__LINE__, title},
#define OPTION(field, name, letter, kind, state, value, min, max, unit, choices, sentence)
#include "conf/options.def"
#undef OPTION
#undef SECTION
};

static const int lines[OPTION_TABLE_SIZE] = {
#define SECTION(title)
#define OPTION(field, name, letter, kind, state, value, min, max, unit, choices, sentence) __LINE__,
#include "conf/options.def"
#undef OPTION
};

static struct option_row table[OPTION_TABLE_SIZE] = {
#define OPTION(field, name, letter, kind, state, value, min, max, unit, choices, sentence)         \
	{NULL, #field, name, letter, OPTION_##kind, OPTION_##state,                                \
		offsetof(struct options, field), value, min, max, unit, choices, sentence},
#include "conf/options.def"
#undef OPTION
#undef SECTION
};

__attribute__((constructor)) static void
name_sections(void)
{
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++)
		for (size_t k = 0; k < sizeof sections / sizeof *sections; k++)
			if (sections[k].line < lines[i])
				table[i].section = sections[k].title;
}

const struct option_row *
options_table(void)
{
	return table;
}

static void *
field_of(struct options *options, const struct option_row *row)
{
	return (char *)options + row->offset;
}

static const void *
value_of(const struct options *options, const struct option_row *row)
{
	return (const char *)options + row->offset;
}

static bool fail(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool
fail(char *error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error, OPTIONS_ERROR_MAX, format, arguments);
	va_end(arguments);
	return false;
}

/* How messages name an option: by its letter where it has one. */
static const char *
name_of(const struct option_row *row, char name[64])
{
	if (row->letter)
		snprintf(name, 64, "-%c (--%s)", row->letter, row->name);
	else
		snprintf(name, 64, "--%s", row->name);
	return name;
}

/* --- values ------------------------------------------------------------------------------- */

static bool
parse_number(const char *text, int base, int64_t *number)
{
	char *end;

	errno = 0;
	*number = strtoll(text, &end, base);
	return end != text && *end == 0 && errno == 0 && !isspace((unsigned char)*text);
}

static bool
parse_flag(const char *text, bool *flag)
{
	static const char *const words[] = {"no", "yes", "off", "on", "false", "true", "0", "1"};

	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		if (strcasecmp(text, words[i]) == 0) {
			*flag = i & 1;
			return true;
		}
	}
	return false;
}

static bool
parse_choice(const char *text, const char *choices, unsigned *choice)
{
	size_t size = strlen(text);

	for (unsigned i = 0;; i++) {
		size_t end = strcspn(choices, "|");

		if (end == size && memcmp(choices, text, size) == 0) {
			*choice = i;
			return true;
		}
		if (!choices[end])
			return false;
		choices += end + 1;
	}
}

static bool
refuse_value(const struct option_row *row, const char *text, char *error)
{
	char name[64];

	name_of(row, name);
	switch (row->kind) {
	case OPTION_FLAG:
		return fail(error, "option %s: '%.64s' is neither yes nor no", name, text);
	case OPTION_CHOICE:
		return fail(error, "option %s: '%.64s' is not one of %s", name, text, row->choices);
	case OPTION_SIZE:
		return fail(error,
			"option %s: '%.64s' is not a size between %.0f and %.0f bytes (k, m, g and "
			"t may follow the number)",
			name, text, row->min, row->max);
	case OPTION_OCTAL:
		return fail(
			error, "option %s: '%.64s' is not an octal number up to 777", name, text);
	case OPTION_FACTOR:
		return fail(error, "option %s: '%.64s' is not a number between %g and %g", name,
			text, row->min, row->max);
	case OPTION_COUNT:
	case OPTION_NUMBER:
	case OPTION_MEGABYTES:
		return fail(error,
			"option %s: '%.64s' is not a whole number between %.0f and %.0f%s%s", name,
			text, row->min, row->max, *row->unit ? " " : "", row->unit);
	case OPTION_TEXT:
	case OPTION_LIST:
		break;
	}
	return fail(error, "option %s: '%.64s' can't be used", name, text);
}

/* A text is kept; one of a list goes behind the others that the same source gave. */
static bool
set_text(struct options *options, const struct option_row *row, const char *text, bool join)
{
	size_t i = (size_t)(row - table);
	char *old = options->owned[i], *joined = NULL;

	if (join && old) {
		if (asprintf(&joined, "%s,%s", old, text) < 0)
			return false;
	} else {
		joined = strdup(text);
	}
	free(old);
	options->owned[i] = joined;
	*(const char **)field_of(options, row) = joined;
	return joined != NULL;
}

static bool
store_value(struct options *options, const struct option_row *row, const char *text, bool join)
{
	void *field = field_of(options, row);
	int64_t number = 0;
	uint64_t bytes = 0;
	char *end;

	switch (row->kind) {
	case OPTION_FLAG:
		return parse_flag(text, field);
	case OPTION_COUNT:
	case OPTION_NUMBER:
		if (!parse_number(text, 10, &number) || (double)number < row->min ||
			(double)number > row->max)
			return false;
		*(int64_t *)field = number;
		return true;
	case OPTION_OCTAL:
		if (!parse_number(text, 8, &number) || (double)number < row->min ||
			(double)number > row->max)
			return false;
		*(int64_t *)field = number;
		return true;
	case OPTION_MEGABYTES:
		if (!parse_number(text, 10, &number) || (double)number < row->min ||
			(double)number > row->max)
			return false;
		*(uint64_t *)field = (uint64_t)number;
		return true;
	case OPTION_SIZE:
		if (!options_parse_size(text, &bytes) || (double)bytes < row->min ||
			(double)bytes > row->max)
			return false;
		*(uint64_t *)field = bytes;
		return true;
	case OPTION_FACTOR:
		errno = 0;
		*(double *)field = strtod(text, &end);
		return end != text && *end == 0 && errno == 0 && *(double *)field >= row->min &&
		       *(double *)field <= row->max;
	case OPTION_CHOICE:
		return parse_choice(text, row->choices, field);
	case OPTION_TEXT:
	case OPTION_LIST:
		return set_text(options, row, text, join && row->kind == OPTION_LIST);
	}
	return false;
}

static bool
set_value(struct options *options, const struct option_row *row, const char *text, char *error)
{
	char name[64];
	size_t i = (size_t)(row - table);

	if (row->state == OPTION_LATER)
		return fail(error, "option %s is not there yet (%s)", name_of(row, name),
			row->sentence);
	if (!store_value(options, row, text, options->given[i]))
		return refuse_value(row, text, error);
	options->given[i] = true;
	return true;
}

/* --- names -------------------------------------------------------------------------------- */

static bool
same_name(const char *name, const char *given, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		if (name[i] == '*')
			return true;
		if (name[i] != (given[i] == '_' ? '-' : given[i]))
			return false;
	}
	return name[size] == 0;
}

static const struct option_row *
find_name(const char *given, size_t size)
{
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++)
		if (size > 0 && same_name(table[i].name, given, size))
			return &table[i];
	return NULL;
}

static const struct option_row *
find_letter(char letter)
{
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++)
		if (letter && table[i].letter == letter)
			return &table[i];
	return NULL;
}

/* A flag's name, or no- and its name; *text gets yes or no. */
static const struct option_row *
find_flag(const char *given, size_t size, const char **text)
{
	const struct option_row *row = find_name(given, size);

	*text = "yes";
	if (!row && size > 3 && (memcmp(given, "no_", 3) == 0 || memcmp(given, "no-", 3) == 0)) {
		row = find_name(given + 3, size - 3);
		*text = "no";
	}
	return row;
}

/* Options that are numbers for memcached, but may stand alone in its lists. */
static const char *
text_alone(const struct option_row *row)
{
	if (row->kind == OPTION_FLAG)
		return "yes";
	if (row->kind == OPTION_COUNT || row == &table[OPTION_NUMBER_slab_automove])
		return "1";
	return NULL;
}

/* What no_ in front of a name may stand for. */
static bool
may_be_off(const struct option_row *row)
{
	return row->kind == OPTION_FLAG || row == &table[OPTION_NUMBER_slab_automove];
}

static bool
set_extended_one(struct options *options, const char *item, size_t size, char *error)
{
	const char *equals = memchr(item, '=', size), *text;
	size_t name_size = equals ? (size_t)(equals - item) : size;
	const struct option_row *row = find_flag(item, name_size, &text);
	char value[VALUE_MAX];

	if (!row)
		return fail(error, "option -o: there is no '%.*s'",
			(int)(name_size < 64 ? name_size : 64), item);
	if (row->state == OPTION_LATER)
		return fail(error, "option -o: %.*s is not there yet (%s)",
			(int)(name_size < 64 ? name_size : 64), item, row->sentence);
	if (strcmp(text, "no") == 0 && (equals || !may_be_off(row)))
		return fail(error, "option -o: %.*s: %s", (int)(name_size < 64 ? name_size : 64),
			item,
			equals ? "no_ in front takes no value"
			       : "only what is on or off can be off");
	if (equals) {
		if (size - name_size - 1 >= sizeof value)
			return fail(error, "option -o: the value of %s is too long", row->name);
		memcpy(value, equals + 1, size - name_size - 1);
		value[size - name_size - 1] = 0;
		text = value;
	} else if (strcmp(text, "no") == 0) {
		/* memcached's no_slab_automove is slab_automove=0 */
		text = row->kind == OPTION_FLAG ? "no" : "0";
	} else {
		text = text_alone(row);
		if (!text)
			return fail(error, "option -o: %s needs a value", row->name);
	}
	return set_value(options, row, text, error);
}

static bool
set_extended(struct options *options, const char *list, char *error)
{
	while (*list) {
		size_t size = strcspn(list, ",");

		if (size > 0 && !set_extended_one(options, list, size, error))
			return false;
		list += size;
		if (*list == ',')
			list++;
	}
	options->given[OPTION_NUMBER_extended] = true;
	return true;
}

static bool
set_any(struct options *options, const struct option_row *row, const char *text, char *error)
{
	if (row == &table[OPTION_NUMBER_extended])
		return set_extended(options, text, error);
	return set_value(options, row, text, error);
}

/* One more step of a count. */
static bool
set_more(struct options *options, const struct option_row *row, char *error)
{
	char text[24];

	if (row->kind == OPTION_FLAG)
		return set_value(options, row, "yes", error);
	snprintf(text, sizeof text, "%lld", (long long)*(int64_t *)field_of(options, row) + 1);
	return set_value(options, row, text, error);
}

static bool
stands_alone(const struct option_row *row)
{
	return row->kind == OPTION_FLAG || row->kind == OPTION_COUNT;
}

/* --- command line ------------------------------------------------------------------------- */

struct words {
	int argc;
	char *const *argv;
	int at;
};

static const char *
next_word(struct words *words)
{
	return words->at + 1 < words->argc ? words->argv[++words->at] : NULL;
}

static bool
parse_long(struct options *options, const char *word, struct words *words, char *error)
{
	size_t size = strcspn(word, "=");
	const char *text;
	const struct option_row *row = find_flag(word, size, &text);

	if (!row || (strcmp(text, "no") == 0 && row->kind != OPTION_FLAG))
		return fail(error, "there is no option --%.*s", (int)(size < 64 ? size : 64), word);
	if (word[size] == '=' && strcmp(text, "no") == 0)
		return fail(error, "option --%.*s: no- in front takes no value",
			(int)(size < 64 ? size : 64), word);
	if (word[size] == '=')
		return set_any(options, row, word + size + 1, error);
	if (row->kind == OPTION_FLAG)
		return set_value(options, row, text, error);
	if (stands_alone(row))
		return set_more(options, row, error);
	text = next_word(words);
	if (!text)
		return fail(error, "option --%s needs a value", row->name);
	return set_any(options, row, text, error);
}

/*
 * Letters behind one '-': those that stand alone may be followed by others, a value is the rest of
 * the word or the next one.
 */
static bool
parse_letters(struct options *options, const char *word, struct words *words, char *error)
{
	for (; *word; word++) {
		const struct option_row *row = find_letter(*word);
		const char *text = word + 1;

		if (!row)
			return fail(error, "there is no option -%c", *word);
		if (stands_alone(row)) {
			if (!set_more(options, row, error))
				return false;
			continue;
		}
		if (!*text)
			text = next_word(words);
		if (!text)
			return fail(
				error, "option -%c (--%s) needs a value", row->letter, row->name);
		return set_any(options, row, text, error);
	}
	return true;
}

static bool
parse_words(struct options *options, int argc, char *const *argv, char *error)
{
	struct words words = {argc, argv, 0};

	while (++words.at < argc) {
		const char *word = argv[words.at];
		bool fine;

		if (word[0] != '-' || !word[1])
			return fail(error, "'%.64s' is not an option", word);
		if (word[1] == '-')
			fine = parse_long(options, word + 2, &words, error);
		else
			fine = parse_letters(options, word + 1, &words, error);
		if (!fine)
			return false;
	}
	return true;
}

/* --- configuration file ------------------------------------------------------------------- */

static char *
trim(char *text)
{
	char *end = text + strlen(text);

	while (isspace((unsigned char)*text))
		text++;
	while (end > text && isspace((unsigned char)end[-1]))
		*--end = 0;
	return text;
}

static bool
parse_line(struct options *options, char *line, char *error)
{
	const struct option_row *row;
	const char *text;
	size_t size;

	line = trim(line);
	if (*line == 0 || *line == '#')
		return true;
	size = strcspn(line, " \t=");
	row = find_name(line, size);
	if (!row)
		return fail(error, "there is no option '%.*s'", (int)(size < 64 ? size : 64), line);
	text = trim(line + size);
	if (*text == '=')
		text = trim(line + (text - line) + 1);
	if (!*text && row->kind == OPTION_FLAG)
		text = "yes";
	if (!*text && row->kind != OPTION_TEXT)
		return fail(error, "option %s needs a value", row->name);
	if (!set_any(options, row, text, error))
		return false;
	if (options->given[OPTION_NUMBER_config])
		return fail(error, "option config: a configuration file can't name another");
	return true;
}

bool
options_read_file(struct options *options, const char *path, char error[OPTIONS_ERROR_MAX])
{
	FILE *file = fopen(path, "re");
	char *line = NULL, reason[OPTIONS_ERROR_MAX];
	size_t room = 0;
	unsigned number = 0;
	bool fine = true;

	if (!file)
		return fail(
			error, "option --config: cannot open %.200s: %s", path, strerror(errno));
	errno = 0;
	while (fine && getline(&line, &room, file) >= 0) {
		number++;
		fine = parse_line(options, line, reason);
	}
	if (!fine)
		fail(error, "%.160s, line %u: %.300s", path, number, reason);
	else if (ferror(file))
		fine = fail(
			error, "option --config: cannot read %.200s: %s", path, strerror(errno));
	free(line);
	fclose(file);
	return fine;
}

/* --- all of it ---------------------------------------------------------------------------- */

void
options_init(struct options *options)
{
	memset(options, 0, sizeof *options);
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++) {
		const struct option_row *row = &table[i];

		if (*row->value)
			check(store_value(options, row, row->value, false));
	}
}

void
options_free(struct options *options)
{
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++)
		free(options->owned[i]);
	memset(options, 0, sizeof *options);
}

/* What the command line gave wins over the file, lists included. */
static bool
merge_file(struct options *options, int argc, char *const *argv, char *error)
{
	bool from_file[OPTION_TABLE_SIZE];
	char *path = strdup(options->config);
	bool fine;

	if (!path)
		return fail(error, "out of memory");
	options_free(options);
	options_init(options);
	fine = options_read_file(options, path, error);
	free(path);
	memcpy(from_file, options->given, sizeof from_file);
	memset(options->given, 0, sizeof options->given);
	fine = fine && parse_words(options, argc, argv, error);
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++)
		options->given[i] |= from_file[i];
	return fine;
}

bool
options_parse(struct options *options, int argc, char *const *argv, char error[OPTIONS_ERROR_MAX])
{
	if (!parse_words(options, argc, argv, error))
		return false;
	if (options->config && !merge_file(options, argc, argv, error))
		return false;
	return options_check(options, error);
}

uint64_t
options_memory_bytes(const struct options *options)
{
	uint64_t bytes = options->memory << 20;

	return bytes < MEMORY_BYTES_MIN ? MEMORY_BYTES_MIN : bytes;
}

/* Sizes in ascending order, joined by '-'. */
static bool
check_sizes(const struct options *options, char *error)
{
	uint64_t most = (uint64_t)options->chunk_kib_max * 1024, size = 0;
	const char *text = options->slab_sizes;
	unsigned count = 0;

	while (text) {
		uint64_t before = size;
		char *end;

		if (!isdigit((unsigned char)*text))
			return fail(error,
				"option --slab-sizes: '%.64s' is not a list of sizes, "
				"joined by '-'",
				options->slab_sizes);
		errno = 0;
		size = strtoull(text, &end, 10);
		if (errno != 0 || size < SLAB_SIZE_MIN || size > most || size <= before)
			return fail(error,
				"option --slab-sizes: %.*s is not between %d and %llu "
				"bytes, and above the size before it",
				(int)(end - text < 64 ? end - text : 64), text, SLAB_SIZE_MIN,
				(unsigned long long)most);
		if (++count > SLAB_SIZES_MAX)
			return fail(
				error, "option --slab-sizes: more than %d sizes", SLAB_SIZES_MAX);
		if (*end != '-' && *end)
			return fail(error,
				"option --slab-sizes: '%.64s' is not a list of sizes, "
				"joined by '-'",
				options->slab_sizes);
		text = *end ? end + 1 : NULL;
	}
	return true;
}

/* Which files there are, and what doesn't go with flash. */
static bool
check_flash(const struct options *options, char *error)
{
	struct options_flash flash;
	bool fine = options_flash_read(options, &flash, error);

	if (fine && flash.count > 0 && options->evictions_off)
		fine = fail(error,
			"option -M (--disable-evictions): not together with %s, where room is made "
			"by leaving items out",
			options->flash_path ? "--flash-path" : "-o ext_path");
	options_flash_free(&flash);
	return fine;
}

bool
options_check(const struct options *options, char error[OPTIONS_ERROR_MAX])
{
	if (options->value_bytes_max > options_memory_bytes(options) / 2)
		return fail(error,
			"option -I (--max-item-size): %llu is more than half of the memory limit "
			"(-m %llu); Cannot set item size limit higher than 1/2 of memory max.",
			(unsigned long long)options->value_bytes_max,
			(unsigned long long)options->memory);
	if (options->prefix_delimiter && strlen(options->prefix_delimiter) != 1)
		return fail(error, "option -D (--prefix-delimiter): '%.64s' is not one character",
			options->prefix_delimiter);
	if (options->unix_socket && !*options->unix_socket)
		return fail(error, "option -s (--unix-socket): the path is empty");
	return check_sizes(options, error) && check_flash(options, error);
}

void
options_format(const struct options *options, const struct option_row *row, char *text, size_t size)
{
	const void *value = value_of(options, row);

	switch (row->kind) {
	case OPTION_FLAG:
		snprintf(text, size, "%s", *(const bool *)value ? "yes" : "no");
		break;
	case OPTION_COUNT:
	case OPTION_NUMBER:
		snprintf(text, size, "%lld", (long long)*(const int64_t *)value);
		break;
	case OPTION_OCTAL:
		snprintf(text, size, "%llo", (unsigned long long)*(const int64_t *)value);
		break;
	case OPTION_SIZE:
	case OPTION_MEGABYTES:
		snprintf(text, size, "%llu", (unsigned long long)*(const uint64_t *)value);
		break;
	case OPTION_FACTOR:
		snprintf(text, size, "%g", *(const double *)value);
		break;
	case OPTION_TEXT:
	case OPTION_LIST:
		snprintf(text, size, "%s",
			*(const char *const *)value ? *(const char *const *)value : "");
		break;
	case OPTION_CHOICE: {
		const char *choice = row->choices;

		for (unsigned i = 0; i < *(const unsigned *)value; i++)
			choice += strcspn(choice, "|") + 1;
		snprintf(text, size, "%.*s", (int)strcspn(choice, "|"), choice);
		break;
	}
	}
}

static const char *
argument_word(const struct option_row *row)
{
	switch (row->kind) {
	case OPTION_FLAG:
	case OPTION_COUNT:
		return "";
	case OPTION_NUMBER:
	case OPTION_MEGABYTES:
	case OPTION_FACTOR:
		return "=<num>";
	case OPTION_SIZE:
		return "=<bytes>";
	case OPTION_OCTAL:
		return "=<octal>";
	case OPTION_CHOICE:
		return row->choices;
	case OPTION_LIST:
		return "=<list>";
	case OPTION_TEXT:
		return "=<text>";
	}
	return "";
}

void
options_print_help(FILE *file)
{
	const char *section = NULL;

	fprintf(file, "halcyond: a cache that speaks memcached's protocols\n\nUsage: halcyond "
		      "[OPTION...]\n");
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++) {
		const struct option_row *row = &table[i];
		char left[80];

		if (row->state == OPTION_LATER)
			continue;
		if (row->section != section)
			fprintf(file, "\n%s:\n", row->section);
		section = row->section;
		snprintf(left, sizeof left, "%c%c%c --%s%s%s", row->letter ? '-' : ' ',
			row->letter ? row->letter : ' ', row->letter ? ',' : ' ', row->name,
			row->kind == OPTION_CHOICE ? "=" : "", argument_word(row));
		fprintf(file, "%-36s %s", left, row->sentence);
		if (*row->value && row->kind != OPTION_FLAG)
			fprintf(file, " (%s%s%s)", row->value, *row->unit ? " " : "", row->unit);
		fputc('\n', file);
	}
	fprintf(file, "\nEvery long option may also stand in the file that --config names, or in "
		      "memcached's form behind -o.\n");
}
