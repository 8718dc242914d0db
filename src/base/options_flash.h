/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * options_flash: the files and devices that several options name together.
 */
#ifndef BASE_OPTIONS_FLASH_H
#define BASE_OPTIONS_FLASH_H

#include "base/options.h"

#define OPTIONS_FLASH_MAX 64

struct options_flash {
	unsigned count; /* 0: there is no flash */
	struct {
		char *path;
		uint64_t size; /* bytes; 0: as it is */
	} files[OPTIONS_FLASH_MAX];
};

/*
 * flash-path with flash-size, then ext-path. False: *error says in one line what is wrong. Give back
 * by options_flash_free, then too.
 */
bool options_flash_read(
	const struct options *options, struct options_flash *flash, char error[OPTIONS_ERROR_MAX]);
void options_flash_free(struct options_flash *flash);

/* Bytes, with k, m, g, t or p behind them. False: it isn't one. */
bool options_parse_size(const char *text, uint64_t *bytes);

#endif
