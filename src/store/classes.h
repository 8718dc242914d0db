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
/* up to this size an item's class is read off a table */
#define CLASSES_NEAR_BYTES 16384
/* every class but the largest is a multiple of this */
#define CLASSES_ALIGN 8

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
	/* near[n]: the class of n * CLASSES_ALIGN bytes */
	uint8_t near[CLASSES_NEAR_BYTES / CLASSES_ALIGN + 1];
};

void classes_make(struct classes *classes, const struct classes_options *options);

/*
 * A memcached item: 48 bytes of header, 8 of CAS, a zero behind the key, 4 of flags where they
 * aren't 0, CR LF behind the value.
 */
#define CLASSES_PEER_HEADER 48
#define CLASSES_PEER_CAS 8
#define CLASSES_PEER_FLAGS 4

/* memcached's bytes for such an item. */
static inline uint64_t
classes_item_bytes(uint32_t key_size, uint64_t value_size, uint32_t client_flags, int cas)
{
	return CLASSES_PEER_HEADER + (cas ? CLASSES_PEER_CAS : 0) + key_size + 1 +
	       (client_flags ? CLASSES_PEER_FLAGS : 0) + value_size + 2;
}

uint32_t classes_find_far(const struct classes *classes, uint64_t bytes);

/* The id for that many bytes. */
static inline uint32_t
classes_find(const struct classes *classes, uint64_t bytes)
{
	if (bytes <= CLASSES_NEAR_BYTES)
		return classes->near[(bytes + CLASSES_ALIGN - 1) / CLASSES_ALIGN];
	return classes_find_far(classes, bytes);
}

#endif
