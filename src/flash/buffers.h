/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * buffers: memory for reads, lent in powers of two from one range: a buddy allocator (Knowlton, "A fast
 * storage allocator", CACM 8(10), 1965). One thread's.
 */
#ifndef FLASH_BUFFERS_H
#define FLASH_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUFFERS_LEAST 4096u

struct buffers;

/* bytes: a power of two, at least BUFFERS_LEAST. NULL with errno. */
struct buffers *buffers_create(size_t bytes);
void buffers_destroy(struct buffers *buffers);

/* Aligned to its own size, which is 'bytes' rounded up to a power of two. NULL: none so large is free. */
void *buffers_borrow(struct buffers *buffers, size_t bytes, void *owner);
void buffers_return(struct buffers *buffers, void *buffer);
/* Of the lent buffer that these bytes stand in; NULL: they stand in none. */
void *buffers_owner(const struct buffers *buffers, const void *bytes);
/* Bytes of the range that a lent buffer takes. */
size_t buffers_bytes(const struct buffers *buffers, const void *buffer);
/* What a buffer of so many bytes takes of the range. */
size_t buffers_rounded(size_t bytes);

#endif
