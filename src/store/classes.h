/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * classes: memcached's slab classes, by which 'stats items' and 'stats slabs' speak. Halcyon's
 * memory has none; items are only counted under the class that memcached would have put them in,
 * because tools and tests ask by these numbers.
 */
#ifndef STORE_CLASSES_H
#define STORE_CLASSES_H

#include <stdint.h>

#define CLASSES_MAX 64

struct classes_options {
	double factor;		  /* -f */
	uint32_t chunk_bytes;	  /* -n */
	uint32_t chunk_bytes_max; /* -o slab_chunk_max */
	uint32_t page_bytes;	  /* 1 MiB */
	const uint32_t *sizes;	  /* -o slab_sizes, NULL: by factor */
	uint32_t size_count;
};

struct classes {
	uint32_t largest; /* ids are 1 .. largest */
	uint32_t size[CLASSES_MAX];
	uint32_t per_page[CLASSES_MAX];
};

void classes_make(struct classes *classes, const struct classes_options *options);

/* memcached's bytes for such an item: header, CAS, key and its end, flags, value and its end. */
uint64_t classes_item_bytes(uint32_t key_size, uint64_t value_size, uint32_t client_flags, int cas);

/* The id for that many bytes. */
uint32_t classes_find(const struct classes *classes, uint64_t bytes);

#endif
