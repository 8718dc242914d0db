/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * crc32c: CRC-32C (Castagnoli; RFC 3720, B.4) by ISA-L, which uses the processor's instructions. Without
 * the inversions at both ends: a checksum goes on from the one before, and begins with any seed.
 */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <isa-l/crc.h>
#include <stddef.h>
#include <stdint.h>

/* ISA-L takes an int of bytes. */
#define CRC32C_PIECE (1u << 30)

static inline uint32_t
crc32c(uint32_t crc, const void *data, size_t size)
{
	const uint8_t *at = data;

	while (size > 0) {
		size_t here = size < CRC32C_PIECE ? size : CRC32C_PIECE;

		crc = crc32_iscsi((unsigned char *)at, (int)here, crc);
		at += here;
		size -= here;
	}
	return crc;
}

#endif
