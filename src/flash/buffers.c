/* SPDX-License-Identifier: BSD-2-Clause */
#include "flash/buffers.h"

#include "base/check.h"
#include "base/pages.h"

#include <stdlib.h>

#define ORDERS 16 /* 4 KiB to 128 MiB */
#define NONE UINT32_MAX

/* What is known of a piece, at the number of its first BUFFERS_LEAST bytes. */
struct piece {
	void *owner;		 /* NULL: not lent */
	uint32_t next, previous; /* among free ones of its order */
	uint8_t order;
	bool first; /* a piece begins here */
	bool free;
};

struct buffers {
	uint8_t *range;
	size_t bytes;
	unsigned order_most;
	uint32_t free[ORDERS];
	struct piece *pieces;
};

size_t
buffers_rounded(size_t bytes)
{
	size_t rounded = BUFFERS_LEAST;

	while (rounded < bytes)
		rounded *= 2;
	return rounded;
}

static unsigned
order_of(size_t bytes)
{
	unsigned order = 0;

	while ((size_t)BUFFERS_LEAST << order < bytes)
		order++;
	return order;
}

static void
put_free(struct buffers *buffers, uint32_t number, unsigned order)
{
	struct piece *piece = &buffers->pieces[number];

	*piece = (struct piece){.next = buffers->free[order],
		.previous = NONE,
		.order = (uint8_t)order,
		.first = true,
		.free = true};
	if (piece->next != NONE)
		buffers->pieces[piece->next].previous = number;
	buffers->free[order] = number;
}

static void
take_free(struct buffers *buffers, uint32_t number)
{
	struct piece *piece = &buffers->pieces[number];

	if (piece->next != NONE)
		buffers->pieces[piece->next].previous = piece->previous;
	if (piece->previous != NONE)
		buffers->pieces[piece->previous].next = piece->next;
	else
		buffers->free[piece->order] = piece->next;
	piece->free = false;
}

struct buffers *
buffers_create(size_t bytes)
{
	struct buffers *buffers = calloc(1, sizeof *buffers);

	check(bytes >= BUFFERS_LEAST && (bytes & (bytes - 1)) == 0 && order_of(bytes) < ORDERS);
	if (!buffers)
		return NULL;
	buffers->bytes = bytes;
	buffers->order_most = order_of(bytes);
	buffers->range = pages_reserve(bytes, bytes);
	buffers->pieces = calloc(bytes / BUFFERS_LEAST, sizeof *buffers->pieces);
	if (!buffers->range || !buffers->pieces) {
		buffers_destroy(buffers);
		return NULL;
	}
	for (unsigned order = 0; order < ORDERS; order++)
		buffers->free[order] = NONE;
	put_free(buffers, 0, buffers->order_most);
	return buffers;
}

void
buffers_destroy(struct buffers *buffers)
{
	if (buffers->range)
		pages_release(buffers->range, buffers->bytes);
	free(buffers->pieces);
	free(buffers);
}

void *
buffers_borrow(struct buffers *buffers, size_t bytes, void *owner)
{
	unsigned wanted = order_of(bytes), order = wanted;
	uint32_t number;

	check(owner);
	while (order <= buffers->order_most && buffers->free[order] == NONE)
		order++;
	if (order > buffers->order_most)
		return NULL;
	number = buffers->free[order];
	take_free(buffers, number);
	while (order > wanted) {
		order--;
		put_free(buffers, number + (1u << order), order);
	}
	buffers->pieces[number].order = (uint8_t)wanted;
	buffers->pieces[number].owner = owner;
	return buffers->range + (size_t)number * BUFFERS_LEAST;
}

/* The number of the piece that these bytes stand in. */
static uint32_t
piece_of(const struct buffers *buffers, const void *bytes)
{
	size_t at = (size_t)((const uint8_t *)bytes - buffers->range);
	uint32_t number = (uint32_t)(at / BUFFERS_LEAST);

	/* A piece begins at a multiple of its size. */
	for (unsigned order = 0; order <= buffers->order_most; order++) {
		uint32_t first = number & ~((1u << order) - 1);

		if (buffers->pieces[first].first && buffers->pieces[first].order >= order)
			return first;
	}
	return 0;
}

void
buffers_return(struct buffers *buffers, void *buffer)
{
	uint32_t number = piece_of(buffers, buffer);
	unsigned order = buffers->pieces[number].order;

	check(buffers->pieces[number].owner &&
		buffer == buffers->range + (size_t)number * BUFFERS_LEAST);
	buffers->pieces[number].owner = NULL;
	while (order < buffers->order_most) {
		uint32_t buddy = number ^ (1u << order);

		if (!buffers->pieces[buddy].free || buffers->pieces[buddy].order != order)
			break;
		take_free(buffers, buddy);
		buffers->pieces[buddy > number ? buddy : number].first = false;
		number = buddy < number ? buddy : number;
		order++;
	}
	put_free(buffers, number, order);
}

void *
buffers_owner(const struct buffers *buffers, const void *bytes)
{
	const uint8_t *at = bytes;

	if (at < buffers->range || at >= buffers->range + buffers->bytes)
		return NULL;
	return buffers->pieces[piece_of(buffers, bytes)].owner;
}

size_t
buffers_bytes(const struct buffers *buffers, const void *buffer)
{
	return (size_t)BUFFERS_LEAST << buffers->pieces[piece_of(buffers, buffer)].order;
}
