/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * smart: how much of their life the drives below the files have used, as NVMe drives count it.
 * Asked of the device itself, or of that below the file system, at most once a minute.
 */
#ifndef FLASH_SMART_H
#define FLASH_SMART_H

#include "flash/io.h"

struct smart;

struct smart *smart_create(void);
void smart_destroy(struct smart *smart);
/* Percent used, of the worst; over 100 is possible. -1: no drive tells. Any thread. */
int smart_wear(struct smart *smart, const struct io_backend *backend, const struct io *io,
	uint64_t now_ns);

#endif
