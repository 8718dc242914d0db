/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * io_file: opening files and devices, what both kernel backends share. Such a backend's struct io
 * is exactly this.
 */
#ifndef FLASH_IO_FILE_H
#define FLASH_IO_FILE_H

#include "flash/io.h"

struct io {
	uint32_t count;
	int fds[IO_FILES_MAX];
	struct io_file_info info[IO_FILES_MAX];
};

struct io *io_file_open(
	const struct io_file_options *files, uint32_t count, char *error, size_t error_size);
uint32_t io_file_count(const struct io *io);
const struct io_file_info *io_file_info(const struct io *io, uint32_t number);
void io_file_close(struct io *io);

/* Would the device take this request? A request that doesn't fit is the caller's mistake. */
bool io_file_fits(const struct io *io, const struct io_request *request);

/*
 * After a transfer of n bytes, or a negated errno: true when the request is done, with its result;
 * false when the rest is to be transferred (request->done says from where).
 */
bool io_file_advance(struct io_request *request, int64_t n);

#endif
