/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * pages: address space from the system. A reserved range costs nothing until it is touched:
 * touching commits (the bytes are zero then), pages_decommit gives back. For arenas whose limit
 * may rise while they are in use.
 */
#ifndef BASE_PAGES_H
#define BASE_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Read- and writable, zero, aligned to 'alignment' (a power of two, at least a page). NULL with
 * errno when it can't be had.
 */
void *pages_reserve(size_t bytes, size_t alignment);
void pages_release(void *pages, size_t bytes);

/*
 * Gives the whole pages within back; they read as zero afterwards. Any thread; nobody may use
 * them at that moment. False when the system keeps them.
 */
bool pages_decommit(void *pages, size_t bytes);

/*
 * Asks for transparent huge pages, or no longer. Refusal costs nothing but speed and isn't
 * reported.
 */
void pages_advise_huge(void *pages, size_t bytes, bool huge);

/*
 * Replaces untouched pages of a reserved range by explicit huge pages (2 MiB), all of them taken
 * from the system's pool at once. 'pages' and 'bytes' are multiples of 2 MiB. False with errno
 * when the pool hasn't so many: the range stays as it was.
 */
bool pages_take_huge(void *pages, size_t bytes);

#define PAGES_HUGE ((size_t)2 << 20)

#endif
