/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * hash: XXH3, the 64-bit form with a seed, for keys of 0 to 250 bytes, in code that a device can
 * run. The host calls libxxhash; tests/unit/test_hash.c holds the two against each other for every
 * length.
 *
 * Written after the algorithm's specification (xxHash project, doc/xxhash_spec.md, 'XXH3
 * algorithm'); the constants are its.
 */
#ifndef BASE_HASH_HD_H
#define BASE_HASH_HD_H

#include "base/hd.h"

#include <stddef.h>
#include <stdint.h>

#define HASH_SIZE_MAX 250

/*
 * The default secret, 192 bytes as little-endian words. A macro: device code can't read a host's
 * constant.
 */
#define HASH_SECRET                                                                                \
	{                                                                                          \
		0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu,                     \
			0x1f67b3b7a4a44072u, 0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u,             \
			0x8e2443f7744608b8u, 0x4c263a81e69035e0u, 0xcb00c391bb52283cu,             \
			0xa32e531b8b65d088u, 0x4ef90da297486471u, 0xd8acdea946ef1938u,             \
			0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au,             \
			0x647378d9c97e9fc8u, 0xc3ebd33483acc5eau, 0xeb6313faffa081c5u,             \
			0x49daf0b751dd0d17u, 0x9e68d429265516d3u, 0xfca1477d58be162bu,             \
			0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu,             \
	}

#define HASH_PRIME32_1 0x9e3779b1u
#define HASH_PRIME32_2 0x85ebca77u
#define HASH_PRIME32_3 0xc2b2ae3du
#define HASH_PRIME64_1 0x9e3779b185ebca87u
#define HASH_PRIME64_2 0xc2b2ae3d27d4eb4fu
#define HASH_PRIME64_3 0x165667b19e3779f9u
#define HASH_PRIME64_4 0x85ebca77c2b2ae63u
#define HASH_PRIME64_5 0x27d4eb2f165667c5u

HD_FUNCTION uint64_t
hash_rotate(uint64_t word, uint32_t bits)
{
	return word << bits | word >> (64 - bits);
}

HD_FUNCTION uint64_t
hash_reverse(uint64_t word)
{
	word = (word & 0x00ff00ff00ff00ffu) << 8 | (word >> 8 & 0x00ff00ff00ff00ffu);
	word = (word & 0x0000ffff0000ffffu) << 16 | (word >> 16 & 0x0000ffff0000ffffu);
	return word << 32 | word >> 32;
}

/* Both halves of the 128-bit product, folded. */
HD_FUNCTION uint64_t
hash_fold(uint64_t a, uint64_t b)
{
	uint64_t high, low = hd_multiply(a, b, &high);

	return low ^ high;
}

HD_FUNCTION uint64_t
hash_avalanche(uint64_t word)
{
	word = (word ^ word >> 37) * 0x165667919e3779f9u;
	return word ^ word >> 32;
}

/* XXH64's, which the shortest inputs take. */
HD_FUNCTION uint64_t
hash_avalanche_xxh64(uint64_t word)
{
	word = (word ^ word >> 33) * HASH_PRIME64_2;
	word = (word ^ word >> 29) * HASH_PRIME64_3;
	return word ^ word >> 32;
}

/* secret: 64-bit words at any byte offset. */
HD_FUNCTION uint64_t
hash_mix16(const uint8_t *data, const uint8_t *secret, uint64_t seed)
{
	return hash_fold(hd_load64(data) ^ (hd_load64(secret) + seed),
		hd_load64(data + 8) ^ (hd_load64(secret + 8) - seed));
}

HD_FUNCTION uint64_t
hash_to16(const uint8_t *data, uint32_t size, const uint8_t *secret, uint64_t seed)
{
	if (size == 0)
		return hash_avalanche_xxh64(seed ^ hd_load64(secret + 56) ^ hd_load64(secret + 64));
	if (size < 4) {
		uint32_t word = (uint32_t)data[0] << 16 | (uint32_t)data[size / 2] << 24 |
				data[size - 1] | size << 8;

		return hash_avalanche_xxh64(
			word ^ ((hd_load32(secret) ^ hd_load32(secret + 4)) + seed));
	}
	if (size <= 8) {
		uint64_t word = hd_load32(data + size - 4) + ((uint64_t)hd_load32(data) << 32);

		seed ^= hash_reverse(seed & 0xffffffffu);
		word ^= (hd_load64(secret + 8) ^ hd_load64(secret + 16)) - seed;
		word ^= hash_rotate(word, 49) ^ hash_rotate(word, 24);
		word *= 0x9fb21c651e98df25u;
		word = (word ^ ((word >> 35) + size)) * 0x9fb21c651e98df25u;
		return word ^ word >> 28;
	}

	uint64_t low = hd_load64(data) ^ ((hd_load64(secret + 24) ^ hd_load64(secret + 32)) + seed);
	uint64_t high = hd_load64(data + size - 8) ^
			((hd_load64(secret + 40) ^ hd_load64(secret + 48)) - seed);

	return hash_avalanche(size + hash_reverse(low) + high + hash_fold(low, high));
}

/* 17 to 128 bytes: pairs of 16 from both ends inwards. */
HD_FUNCTION uint64_t
hash_to128(const uint8_t *data, uint32_t size, const uint8_t *secret, uint64_t seed)
{
	uint64_t sum = size * HASH_PRIME64_1;

	for (uint32_t i = 0; i <= (size - 1) / 32; i++) {
		sum += hash_mix16(data + 16 * i, secret + 32 * i, seed);
		sum += hash_mix16(data + size - 16 * (i + 1), secret + 32 * i + 16, seed);
	}
	return hash_avalanche(sum);
}

/* 129 to 240 bytes. */
HD_FUNCTION uint64_t
hash_to240(const uint8_t *data, uint32_t size, const uint8_t *secret, uint64_t seed)
{
	uint64_t sum = size * HASH_PRIME64_1;

	for (uint32_t i = 0; i < 8; i++)
		sum += hash_mix16(data + 16 * i, secret + 16 * i, seed);
	sum = hash_avalanche(sum);
	for (uint32_t i = 8; i < size / 16; i++)
		sum += hash_mix16(data + 16 * i, secret + 16 * (i - 8) + 3, seed);
	return hash_avalanche(sum + hash_mix16(data + size - 16, secret + 136 - 17, seed));
}

HD_FUNCTION void
hash_stripe(uint64_t *lanes, const uint8_t *data, const uint8_t *secret)
{
	for (uint32_t i = 0; i < 8; i++) {
		uint64_t word = hd_load64(data + 8 * i), key = word ^ hd_load64(secret + 8 * i);

		lanes[i ^ 1] += word;
		lanes[i] += (key & 0xffffffffu) * (key >> 32);
	}
}

/*
 * 241 to 1024 bytes: one block of 64-byte stripes, the last one aligned to the end. The secret is
 * mixed with the seed.
 */
HD_FUNCTION uint64_t
hash_to1024(const uint8_t *data, uint32_t size, const uint64_t *secret_words, uint64_t seed)
{
	uint64_t lanes[8] = {HASH_PRIME32_3, HASH_PRIME64_1, HASH_PRIME64_2, HASH_PRIME64_3,
		HASH_PRIME64_4, HASH_PRIME32_2, HASH_PRIME64_5, HASH_PRIME32_1};
	uint64_t seeded[24], sum = size * HASH_PRIME64_1;
	const uint8_t *secret = (const uint8_t *)seeded;

	for (uint32_t i = 0; i < 24; i += 2) {
		seeded[i] = secret_words[i] + seed;
		seeded[i + 1] = secret_words[i + 1] - seed;
	}
	for (uint32_t i = 0; i < (size - 1) / 64; i++)
		hash_stripe(lanes, data + 64 * i, secret + 8 * i);
	hash_stripe(lanes, data + size - 64, secret + 192 - 64 - 7);
	for (uint32_t i = 0; i < 8; i += 2)
		sum += hash_fold(lanes[i] ^ hd_load64(secret + 11 + 8 * i),
			lanes[i + 1] ^ hd_load64(secret + 19 + 8 * i));
	return hash_avalanche(sum);
}

/* XXH3_64bits_withSeed for size <= HASH_SIZE_MAX. */
HD_FUNCTION uint64_t
hash_bytes(const void *bytes, uint32_t size, uint64_t seed)
{
	const uint64_t words[24] = HASH_SECRET;
	const uint8_t *data = (const uint8_t *)bytes, *secret = (const uint8_t *)words;

	if (size <= 16)
		return hash_to16(data, size, secret, seed);
	if (size <= 128)
		return hash_to128(data, size, secret, seed);
	if (size <= 240)
		return hash_to240(data, size, secret, seed);
	return hash_to1024(data, size, words, seed);
}

#endif
