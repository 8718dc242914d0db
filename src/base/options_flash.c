/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/options_flash.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

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

bool
options_parse_size(const char *text, uint64_t *bytes)
{
	static const char units[] = "kmgtp";
	const char *unit;
	unsigned shift = 0;
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*bytes = strtoull(text, &end, 10);
	if (errno != 0)
		return false;
	unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
	if (unit) {
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
	}
	if (*end != 0 || *bytes > UINT64_MAX >> shift)
		return false;
	*bytes <<= shift;
	return true;
}

/* The next of a list's words, copied; NULL at its end, or without memory. *list moves on. */
static char *
next_word(const char **list)
{
	const char *at = *list;
	size_t size;

	if (!at || !*at)
		return NULL;
	size = strcspn(at, ",");
	*list = at[size] ? at + size + 1 : at + size;
	return strndup(at, size);
}

static bool
add(struct options_flash *flash, char *path, const char *option, char *error)
{
	bool fine = true;

	if (!*path)
		fine = fail(error, "option %s: a path is empty", option);
	else if (flash->count == OPTIONS_FLASH_MAX)
		fine = fail(error, "option %s: more than %d paths", option, OPTIONS_FLASH_MAX);
	for (unsigned i = 0; fine && i < flash->count; i++)
		if (strcmp(flash->files[i].path, path) == 0)
			fine = fail(error, "option %s: %.200s is named twice", option, path);
	if (!fine) {
		free(path);
		return false;
	}
	flash->files[flash->count].path = path;
	flash->files[flash->count++].size = 0;
	return true;
}

static bool
add_paths(const struct options *options, struct options_flash *flash, char *error)
{
	const char *list = options->flash_path;
	char *word;

	while ((word = next_word(&list)))
		if (!add(flash, word, "--flash-path", error))
			return false;
	return true;
}

static bool
add_sizes(const struct options *options, struct options_flash *flash, char *error)
{
	const char *list = options->flash_size;
	bool fine = true;
	char *word;

	for (unsigned i = 0; fine && (word = next_word(&list)); i++) {
		if (i >= flash->count)
			fine = fail(error, "option --flash-size: %.64s has no --flash-path", word);
		else if (!options_parse_size(word, &flash->files[i].size))
			fine = fail(error,
				"option --flash-size: '%.64s' is not a size in bytes (k, m, g and "
				"t may follow the number)",
				word);
		free(word);
	}
	return fine;
}

/* FILE:SIZE, and memcached's bucket behind another colon, which means nothing here. */
static bool
add_ext(struct options_flash *flash, char *word, char *error)
{
	static const char *const buckets[] = {
		"default", "compact", "lowttl", "chunked", "coldcompact", "old"};
	char *size = strchr(word, ':'), *bucket = size ? strchr(size + 1, ':') : NULL;
	size_t known = 0;
	uint64_t bytes = 0;

	if (bucket)
		*bucket++ = 0;
	while (bucket && known < sizeof buckets / sizeof *buckets &&
		strcmp(buckets[known], bucket) != 0)
		known++;
	if (size)
		*size++ = 0;
	if (!size || !options_parse_size(size, &bytes) || bytes == 0 ||
		isdigit((unsigned char)size[strlen(size) - 1]) ||
		known == sizeof buckets / sizeof *buckets) {
		fail(error,
			"option -o: ext_path=%.200s%s%.32s%s%.32s is not FILE:SIZE with m, g, t or "
			"p "
			"behind the number",
			word, size ? ":" : "", size ? size : "", bucket ? ":" : "",
			bucket ? bucket : "");
		free(word);
		return false;
	}
	if (!add(flash, word, "-o ext_path", error))
		return false;
	flash->files[flash->count - 1].size = bytes;
	return true;
}

bool
options_flash_read(
	const struct options *options, struct options_flash *flash, char error[OPTIONS_ERROR_MAX])
{
	const char *list = options->ext_path;
	char *word;

	memset(flash, 0, sizeof *flash);
	if (!add_paths(options, flash, error) || !add_sizes(options, flash, error))
		return false;
	while ((word = next_word(&list)))
		if (!add_ext(flash, word, error))
			return false;
	return true;
}

void
options_flash_free(struct options_flash *flash)
{
	for (unsigned i = 0; i < flash->count; i++)
		free(flash->files[i].path);
	flash->count = 0;
}
