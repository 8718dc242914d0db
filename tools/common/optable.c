/* SPDX-License-Identifier: BSD-2-Clause */
#include "optable.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * Reads a number at *at and moves *at behind it. False when there is none or it does not fit 64
 * bits.
 */
static bool
read_number(const char **at, uint64_t *number)
{
	const char *p = *at;
	uint64_t n = 0;

	if (!isdigit((unsigned char)*p))
		return false;
	for (; isdigit((unsigned char)*p) || (*p == ',' && isdigit((unsigned char)p[1])); p++) {
		if (*p == ',')
			continue;
		unsigned digit = (unsigned)(*p - '0');
		if (n > (UINT64_MAX - digit) / 10)
			return false;
		n = n * 10 + digit;
	}
	static const char suffixes[] = "kmg";
	const char *suffix = *p ? strchr(suffixes, tolower((unsigned char)*p)) : NULL;
	if (suffix) {
		unsigned shift = 10 * (unsigned)(suffix - suffixes + 1);
		if (n > UINT64_MAX >> shift)
			return false;
		n <<= shift;
		p++;
	}
	*number = n;
	*at = p;
	return true;
}

static bool
read_pair(const char *text, char separator, struct optable_pair *pair)
{
	if (!read_number(&text, &pair->first))
		return false;
	if (*text == '\0' && separator == '-') {
		pair->second = pair->first;
		return true;
	}
	if (*text++ != separator)
		return false;
	return read_number(&text, &pair->second) && *text == '\0';
}

static bool
within(const struct optable_row *row, uint64_t number)
{
	return number >= row->min && number <= row->max;
}

/* Stores text into the row's field. 0, or -1 with the reason in error. */
static int
store(const struct optable_row *row, const char *text, void *into, char *error, size_t error_size)
{
	void *field = (char *)into + row->offset;
	struct optable_pair pair = {0, 0};
	const char *rest = text;
	bool good = false;
	bool in_range = true;

	switch (row->kind) {
	case OPTABLE_FLAG:
		*(bool *)field = true;
		return 0;
	case OPTABLE_STRING:
		*(const char **)field = text;
		return 0;
	case OPTABLE_NUMBER:
		good = read_number(&rest, &pair.first) && *rest == '\0';
		in_range = within(row, pair.first);
		if (good && in_range)
			*(uint64_t *)field = pair.first;
		break;
	case OPTABLE_SECONDS: {
		char *end;
		errno = 0;
		double seconds = strtod(text, &end);
		good = end != text && *end == '\0' && errno == 0 && isfinite(seconds);
		in_range = seconds >= (double)row->min && seconds <= (double)row->max;
		if (good && in_range)
			*(double *)field = seconds;
		break;
	}
	case OPTABLE_RANGE:
		good = read_pair(text, '-', &pair) && pair.first <= pair.second;
		in_range = within(row, pair.first) && within(row, pair.second);
		if (good && in_range)
			*(struct optable_pair *)field = pair;
		break;
	case OPTABLE_RATIO:
		good = read_pair(text, ':', &pair) && pair.first + pair.second > 0;
		in_range = within(row, pair.first) && within(row, pair.second);
		if (good && in_range)
			*(struct optable_pair *)field = pair;
		break;
	}
	if (good && in_range)
		return 0;
	if (good)
		snprintf(error, error_size, "--%s %s: out of range, it can be %llu to %llu",
			row->name, text, (unsigned long long)row->min,
			(unsigned long long)row->max);
	else
		snprintf(error, error_size, "--%s %s: not of the form %s", row->name, text,
			row->argument);
	return -1;
}

static const struct optable_row *
find_long(const struct optable *table, const char *name, size_t length)
{
	for (size_t i = 0; i < table->row_count; i++) {
		const struct optable_row *row = &table->rows[i];
		if (strlen(row->name) == length && memcmp(row->name, name, length) == 0)
			return row;
	}
	return NULL;
}

static const struct optable_row *
find_letter(const struct optable *table, char letter)
{
	for (size_t i = 0; i < table->row_count; i++)
		if (table->rows[i].letter == letter)
			return &table->rows[i];
	return NULL;
}

int
optable_parse(const struct optable *table, int argc, char **argv, void *into, char *error,
	size_t error_size)
{
	for (size_t i = 0; i < table->row_count; i++) {
		const struct optable_row *row = &table->rows[i];
		if (row->initial && store(row, row->initial, into, error, error_size))
			return -1;
	}
	int i = 1;
	while (i < argc && argv[i][0] == '-' && argv[i][1] != '\0') {
		const char *word = argv[i++];
		const struct optable_row *row;
		const char *value = NULL;

		if (strcmp(word, "--") == 0)
			break;
		if (word[1] == '-') {
			const char *equals = strchr(word, '=');
			size_t length = equals ? (size_t)(equals - word - 2) : strlen(word + 2);
			row = find_long(table, word + 2, length);
			value = equals ? equals + 1 : NULL;
		} else {
			row = find_letter(table, word[1]);
			value = word[2] ? word + 2 : NULL;
		}
		if (!row) {
			snprintf(error, error_size, "unknown option %s", word);
			return -1;
		}
		if (row->kind == OPTABLE_FLAG && value) {
			snprintf(error, error_size, "--%s takes no argument", row->name);
			return -1;
		}
		if (row->kind != OPTABLE_FLAG && !value) {
			if (i == argc) {
				snprintf(error, error_size, "--%s needs an argument: %s", row->name,
					row->argument);
				return -1;
			}
			value = argv[i++];
		}
		if (store(row, value, into, error, error_size))
			return -1;
	}
	return i;
}

void
optable_print_help(const struct optable *table, FILE *out)
{
	fprintf(out, "%s: %s\nusage: %s %s\n\n", table->program, table->purpose, table->program,
		table->synopsis);
	for (size_t i = 0; i < table->row_count; i++) {
		const struct optable_row *row = &table->rows[i];
		char left[64];

		snprintf(left, sizeof left, "%c%c%c --%s %s", row->letter ? '-' : ' ',
			row->letter ? row->letter : ' ', row->letter ? ',' : ' ', row->name,
			row->argument ? row->argument : "");
		fprintf(out, "  %-28s %s", left, row->sentence);
		if (row->initial)
			fprintf(out, " (default %s)", row->initial);
		fputc('\n', out);
	}
}

void
optable_print_json_string(const char *text, FILE *out)
{
	fputc('"', out);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		if (c < ' ')
			fprintf(out, "\\u%04x", c);
		else
			fprintf(out, c == '"' || c == '\\' ? "\\%c" : "%c", c);
	}
	fputc('"', out);
}

void
optable_print_json(const struct optable *table, const void *values, FILE *out)
{
	for (size_t i = 0; i < table->row_count; i++) {
		const struct optable_row *row = &table->rows[i];
		const void *field = (const char *)values + row->offset;
		const struct optable_pair *pair = field;

		fprintf(out, "%s\"%s\": ", i ? ", " : "{", row->name);
		switch (row->kind) {
		case OPTABLE_FLAG:
			fputs(*(const bool *)field ? "true" : "false", out);
			break;
		case OPTABLE_NUMBER:
			fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)field);
			break;
		case OPTABLE_SECONDS:
			fprintf(out, "%.9g", *(const double *)field);
			break;
		case OPTABLE_STRING:
			if (*(const char *const *)field)
				optable_print_json_string(*(const char *const *)field, out);
			else
				fputs("null", out);
			break;
		case OPTABLE_RANGE:
		case OPTABLE_RATIO:
			fprintf(out, "\"%llu%c%llu\"", (unsigned long long)pair->first,
				row->kind == OPTABLE_RANGE ? '-' : ':',
				(unsigned long long)pair->second);
			break;
		}
	}
	fputc('}', out);
}

/* Text with what roff would take for a request or an escape made harmless. */
static void
print_roff(const char *text, FILE *out)
{
	bool line_start = true;

	for (; *text; text++) {
		if (line_start && (*text == '.' || *text == '\''))
			fputs("\\&", out);
		if (*text == '\\')
			fputs("\\e", out);
		else if (*text == '-')
			fputs("\\-", out);
		else
			fputc(*text, out);
		line_start = *text == '\n';
	}
}

static void
print_section(const struct optable_section *section, FILE *out)
{
	fprintf(out, ".SH %s\n", section->title);
	for (const char *line = section->text; *line;) {
		const char *end = strchr(line, '\n');
		size_t length = end ? (size_t)(end - line) : strlen(line);
		char copy[512];

		snprintf(copy, sizeof copy, "%.*s", (int)length, line);
		if (copy[0] == ' ') {
			fputs(".nf\n", out);
			print_roff(copy, out);
			fputs("\n.fi\n", out);
		} else if (copy[0] == '\0') {
			fputs(".PP\n", out);
		} else {
			print_roff(copy, out);
			fputc('\n', out);
		}
		line += length + (end ? 1 : 0);
	}
}

void
optable_print_man(const struct optable *table, FILE *out)
{
	fprintf(out,
		".\\\" SPDX-License-Identifier: BSD-2-Clause\n.\\\" Generated by %s --help-man; do "
		"not edit.\n.TH ",
		table->program);
	for (const char *p = table->program; *p; p++)
		fputc(toupper((unsigned char)*p), out);
	fprintf(out, " 1 \"\" Halcyon\n.SH NAME\n");
	print_roff(table->program, out);
	fputs(" \\- ", out);
	print_roff(table->purpose, out);
	fputs("\n.SH SYNOPSIS\n.B ", out);
	print_roff(table->program, out);
	fputs("\n", out);
	print_roff(table->synopsis, out);
	fputs("\n.SH OPTIONS\n", out);
	for (size_t i = 0; i < table->row_count; i++) {
		const struct optable_row *row = &table->rows[i];

		fputs(".TP\n\\fB", out);
		if (row->letter)
			fprintf(out, "\\-%c\\fR, \\fB", row->letter);
		fputs("\\-\\-", out);
		print_roff(row->name, out);
		fprintf(out, "\\fR");
		if (row->argument)
			fprintf(out, " \\fI%s\\fR", row->argument);
		fputc('\n', out);
		print_roff(row->sentence, out);
		fputs(".\n", out);
		if (row->initial) {
			fputs("The default is ", out);
			print_roff(row->initial, out);
			fputs(".\n", out);
		}
		if (row->kind == OPTABLE_NUMBER || row->kind == OPTABLE_RANGE)
			fprintf(out, "It can be %llu to %llu.\n", (unsigned long long)row->min,
				(unsigned long long)row->max);
	}
	for (const struct optable_section *section = table->sections; section && section->title;
		section++)
		print_section(section, out);
}
