/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * options: what the operator set, from one table (conf/options.def). It reads the command line and
 * the configuration file, and knows nothing of what the values are for but their ranges.
 */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_kind {
	OPTION_FLAG,
	OPTION_COUNT, /* a number on its own line, one more a time on the command line */
	OPTION_NUMBER,
	OPTION_SIZE,
	OPTION_MEGABYTES,
	OPTION_FACTOR,
	OPTION_OCTAL,
	OPTION_TEXT,
	OPTION_LIST,
	OPTION_CHOICE,
};
enum option_state { OPTION_ACTIVE, OPTION_SIZED, OPTION_UNUSED, OPTION_LATER };

#define OPTION_C_FLAG bool
#define OPTION_C_COUNT int64_t
#define OPTION_C_NUMBER int64_t
#define OPTION_C_SIZE uint64_t
#define OPTION_C_MEGABYTES uint64_t
#define OPTION_C_FACTOR double
#define OPTION_C_OCTAL int64_t
#define OPTION_C_TEXT const char *
#define OPTION_C_LIST const char *
#define OPTION_C_CHOICE unsigned

enum option_number {
#define SECTION(title)
#define OPTION(field, name, letter, kind, state, value, min, max, unit, choices, sentence)         \
	OPTION_NUMBER_##field,
#include "conf/options.def"
#undef OPTION
	OPTION_TABLE_SIZE
};

struct options {
#define OPTION(field, name, letter, kind, state, value, min, max, unit, choices, sentence)         \
	OPTION_C_##kind field;
#include "conf/options.def"
#undef OPTION
#undef SECTION
	bool given[OPTION_TABLE_SIZE];	/* set by the operator, by enum option_number */
	char *owned[OPTION_TABLE_SIZE]; /* texts */
};

struct option_row {
	const char *section;
	const char *field;
	const char *name;
	char letter;
	enum option_kind kind;
	enum option_state state;
	size_t offset;
	const char *value; /* default */
	double min, max;
	const char *unit;
	const char *choices;
	const char *sentence;
};

/* OPTION_TABLE_SIZE rows, in the order of the file. */
const struct option_row *options_table(void);

#define OPTIONS_ERROR_MAX 512

/* Defaults. Never fails. */
void options_init(struct options *options);
void options_free(struct options *options);

/*
 * Reads the command line, and first the file that --config names. False: *error says in one line
 * what is wrong, naming the option and its range.
 */
bool options_parse(
	struct options *options, int argc, char *const *argv, char error[OPTIONS_ERROR_MAX]);

/* Reads a configuration file: 'name = value' or 'name value' a line, '#' begins a comment. */
bool options_read_file(struct options *options, const char *path, char error[OPTIONS_ERROR_MAX]);

/* What no single range can say. Called by options_parse at the end. */
bool options_check(const struct options *options, char error[OPTIONS_ERROR_MAX]);

/* The value as it would be written, into text; the default when it was never set. */
void options_format(
	const struct options *options, const struct option_row *row, char *text, size_t size);

/* Bytes: the memory limit, never under 16 MiB. */
uint64_t options_memory_bytes(const struct options *options);

void options_print_help(FILE *file);

#endif
