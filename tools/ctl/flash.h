/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * flash: a flash store that no daemon runs on, looked into and checked. Nothing is written. What it
 * says a recovery would keep comes from recovery's own reading (flash/replay.h).
 */
#ifndef TOOLS_CTL_FLASH_H
#define TOOLS_CTL_FLASH_H

#include <stdbool.h>

/*
 * words: "inspect" or "verify", then the store's files in their order. Prints to standard output.
 * Gives the exit status: 0; 1 (one line on standard error) when a file can't be read or is none of a
 * store, and from verify when something is damaged; 2 for a wrong command line.
 */
int flash_command(int count, char **words, bool json);

#endif
