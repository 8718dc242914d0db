/* SPDX-License-Identifier: BSD-2-Clause */
#include "store/classes.h"

#include <string.h>

void
classes_make(struct classes *classes, const struct classes_options *options)
{
	uint32_t size = CLASSES_PEER_HEADER + options->chunk_bytes, i = 1;

	memset(classes, 0, sizeof *classes);
	for (; i < CLASSES_MAX - 1; i++) {
		if (options->sizes) {
			if (i > options->size_count)
				break;
			size = options->sizes[i - 1];
		} else if (size >= options->chunk_bytes_max / options->factor) {
			break;
		}
		size = (size + CLASSES_ALIGN - 1) / CLASSES_ALIGN * CLASSES_ALIGN;
		classes->size[i] = size;
		classes->per_page[i] = options->page_bytes / size;
		size = (uint32_t)(size * options->factor);
	}
	classes->largest = i;
	classes->size[i] = options->chunk_bytes_max;
	classes->per_page[i] = options->page_bytes / options->chunk_bytes_max;
	for (i = 0; i <= CLASSES_NEAR_BYTES / CLASSES_ALIGN; i++)
		classes->near[i] = (uint8_t)classes_find_far(classes, (uint64_t)i * CLASSES_ALIGN);
}

uint32_t
classes_find_far(const struct classes *classes, uint64_t bytes)
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
