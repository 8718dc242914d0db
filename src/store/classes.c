/* SPDX-License-Identifier: BSD-2-Clause */
#include "store/classes.h"

#include <string.h>

/*
 * A memcached item: 48 bytes of header, 8 of CAS, a zero behind the key, 4 of flags where they
 * aren't 0, CR LF behind the value.
 */
#define PEER_HEADER 48
#define PEER_CAS 8
#define PEER_FLAGS 4
#define PEER_ALIGN 8

void
classes_make(struct classes *classes, const struct classes_options *options)
{
	uint32_t size = PEER_HEADER + options->chunk_bytes, i = 1;

	memset(classes, 0, sizeof *classes);
	for (; i < CLASSES_MAX - 1; i++) {
		if (options->sizes) {
			if (i > options->size_count)
				break;
			size = options->sizes[i - 1];
		} else if (size >= options->chunk_bytes_max / options->factor) {
			break;
		}
		size = (size + PEER_ALIGN - 1) / PEER_ALIGN * PEER_ALIGN;
		classes->size[i] = size;
		classes->per_page[i] = options->page_bytes / size;
		size = (uint32_t)(size * options->factor);
	}
	classes->largest = i;
	classes->size[i] = options->chunk_bytes_max;
	classes->per_page[i] = options->page_bytes / options->chunk_bytes_max;
}

uint64_t
classes_item_bytes(uint32_t key_size, uint64_t value_size, uint32_t client_flags, int cas)
{
	return PEER_HEADER + (cas ? PEER_CAS : 0) + key_size + 1 + (client_flags ? PEER_FLAGS : 0) +
	       value_size + 2;
}

uint32_t
classes_find(const struct classes *classes, uint64_t bytes)
{
	uint32_t low = 1, high = classes->largest;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (classes->size[middle] >= bytes)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}
