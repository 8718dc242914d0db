/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * optable: a table of command-line options from which the parser, --help and the manual page of a
 * tool come.
 *
 * A row says where the value goes (an offset into the tool's struct), its limits and its default as
 * a user would type it, so a new option is one row and one field. It knows nothing of what the
 * options mean.
 */
#ifndef TOOLS_COMMON_OPTABLE_H
#define TOOLS_COMMON_OPTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum optable_kind {
	OPTABLE_FLAG,	 /* bool, no argument */
	OPTABLE_NUMBER,	 /* uint64_t; k, m, g are powers of 1024; commas between digits */
	OPTABLE_SECONDS, /* double */
	OPTABLE_STRING,	 /* const char *, borrowed from argv */
	OPTABLE_RANGE,	 /* struct optable_pair, 'A-B' or 'A' for A-A; A <= B */
	OPTABLE_RATIO,	 /* struct optable_pair, 'A:B', not both 0 */
};

struct optable_pair {
	uint64_t first;
	uint64_t second;
};

struct optable_row {
	const char *name;     /* long name, without the dashes */
	char letter;	      /* short name, 0 for none */
	const char *argument; /* the argument's name in help, NULL for a flag */
	enum optable_kind kind;
	size_t offset; /* of the field in the tool's struct */
	uint64_t min;  /* limits of numbers, seconds and both ends of a range or ratio */
	uint64_t max;
	const char *initial; /* default as a user would type it; NULL leaves the field zero */
	const char *sentence;
};

struct optable_section {
	const char *title;
	const char *text; /* paragraphs; a line that starts with a blank is shown as it is */
};

struct optable {
	const char *program;
	const char *purpose;  /* the NAME line */
	const char *synopsis; /* what follows the program's name */
	const struct optable_row *rows;
	size_t row_count;
	const struct optable_section
		*sections; /* ends with a NULL title; for the manual, after the options */
};

/*
 * Fill *into with the defaults, then with what argv says. Options end at the first argument that
 * does not start with a dash, or at "--". Returns the index of the first argument left over, or -1
 * with one line in error that names the option.
 */
int optable_parse(const struct optable *table, int argc, char **argv, void *into, char *error,
	size_t error_size);

void optable_print_help(const struct optable *table, FILE *out);

/*
 * The values that optable_parse left, as one JSON object in one line: numbers, true and false,
 * strings, and strings for ranges and ratios; null for a string that was not given.
 */
void optable_print_json(const struct optable *table, const void *values, FILE *out);

/* A string in JSON's quotes. */
void optable_print_json_string(const char *text, FILE *out);

/* The manual page, roff with the man macros, section 1. */
void optable_print_man(const struct optable *table, FILE *out);

#endif
