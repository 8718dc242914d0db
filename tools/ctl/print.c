/* SPDX-License-Identifier: BSD-2-Clause */
#include "print.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#define NAME_COLUMN 34

struct slice {
	const char *at;
	size_t size;
};

/* The next word of the line, or the rest of it; *line moves behind it and one blank. */
static struct slice
next_word(struct slice *line)
{
	const char *blank = memchr(line->at, ' ', line->size);
	struct slice word = {line->at, blank ? (size_t)(blank - line->at) : line->size};
	size_t used = word.size + (blank ? 1 : 0);

	line->at += used;
	line->size -= used;
	return word;
}

static bool
is_word(struct slice slice, const char *word)
{
	return slice.size == strlen(word) && memcmp(slice.at, word, slice.size) == 0;
}

/* The answer's lines one by one, without the ending. */
static bool
next_line(const struct talk_answer *answer, const char **at, struct slice *line)
{
	if (*at >= answer->ending)
		return false;
	const char *newline = memchr(*at, '\n', (size_t)(answer->ending - *at));
	line->at = *at;
	line->size = newline ? (size_t)(newline - *at) : (size_t)(answer->ending - *at);
	*at += line->size + 1;
	return true;
}

void
print_plain(const struct talk_answer *answer, FILE *out)
{
	struct slice line;
	const char *at = answer->text;
	bool any = false;

	for (; next_line(answer, &at, &line); any = true) {
		struct slice rest = line;
		if (is_word(next_word(&rest), "STAT")) {
			struct slice name = next_word(&rest);
			fprintf(out, "%-*.*s %.*s\n", NAME_COLUMN, (int)name.size, name.at,
				(int)rest.size, rest.at);
		} else {
			fprintf(out, "%.*s\n", (int)line.size, line.at);
		}
	}
	if (!any && strcmp(answer->ending, "END") != 0)
		fprintf(out, "%s\n", answer->ending);
}

/* RFC 8259, section 6: -? (0 | [1-9][0-9]*) (. [0-9]+)?; exponents do not occur here. */
static bool
is_number(struct slice text)
{
	size_t i = 0;

	if (i < text.size && text.at[i] == '-')
		i++;
	size_t first = i;
	while (i < text.size && isdigit((unsigned char)text.at[i]))
		i++;
	if (i == first || (text.at[first] == '0' && i - first > 1))
		return false;
	if (i == text.size)
		return true;
	size_t point = i++;
	while (i < text.size && isdigit((unsigned char)text.at[i]))
		i++;
	return text.at[point] == '.' && i == text.size && i > point + 1;
}

/* Bytes outside ASCII are shown as Latin-1 code points: keys may hold any byte, JSON may not. */
static void
print_string(struct slice text, FILE *out)
{
	fputc('"', out);
	for (size_t i = 0; i < text.size; i++) {
		unsigned char c = (unsigned char)text.at[i];
		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c < ' ' || c >= 127)
			fprintf(out, "\\u%04x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

static void
print_value(struct slice text, FILE *out)
{
	if (is_number(text))
		fprintf(out, "%.*s", (int)text.size, text.at);
	else
		print_string(text, out);
}

static void
print_members(struct slice rest, FILE *out)
{
	fputc('{', out);
	for (bool first = true; rest.size > 0; first = false) {
		if (!first)
			fputs(", ", out);
		print_string(next_word(&rest), out);
		fputs(": ", out);
		print_value(next_word(&rest), out);
	}
	fputc('}', out);
}

void
print_json(const struct talk_answer *answer, FILE *out)
{
	struct slice line;
	const char *at = answer->text;
	bool any = false;

	while (next_line(answer, &at, &line)) {
		struct slice kind = next_word(&line);
		if (!is_word(kind, "STAT") && !is_word(kind, "PREFIX"))
			continue;
		fputs(any ? ",\n  " : "{\n  ", out);
		print_string(next_word(&line), out);
		fputs(": ", out);
		if (is_word(kind, "STAT"))
			print_value(line, out);
		else
			print_members(line, out);
		any = true;
	}
	if (any) {
		fputs("\n}\n", out);
	} else {
		struct slice ending = {answer->ending, strlen(answer->ending)};
		fputs("{\"result\": ", out);
		print_string(ending, out);
		fputs("}\n", out);
	}
}
