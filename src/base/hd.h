/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * hd: what the headers shared by host and device code (*_hd.h) need from both compilers: function
 * qualifiers, unaligned loads, copies and comparisons, and 64-bit atomics. gcc and clang compile it
 * as C11, nvcc as CUDA C++.
 *
 * Shared words are declared hd_atomic64. On the device they are plain words read by volatile asm
 * with system scope: a kernel may live while the host writes them, so nothing here may go through
 * the non-coherent cache.
 */
#ifndef BASE_HD_H
#define BASE_HD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HD_FUNCTION __host__ __device__ static inline
#else
#define HD_FUNCTION static inline
#endif

#ifdef __cplusplus
typedef uint64_t hd_atomic64;
#else
typedef _Atomic uint64_t hd_atomic64;
#endif

/* Copies of a few bytes, of any alignment. */
HD_FUNCTION void
hd_copy(void *to, const void *from, size_t size)
{
#ifdef __CUDA_ARCH__
	for (size_t i = 0; i < size; i++)
		((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
#else
	__builtin_memcpy(to, from, size);
#endif
}

HD_FUNCTION int
hd_equal(const void *a, const void *b, size_t size)
{
#ifdef __CUDA_ARCH__
	for (size_t i = 0; i < size; i++)
		if (((const uint8_t *)a)[i] != ((const uint8_t *)b)[i])
			return 0;
	return 1;
#else
	return __builtin_memcmp(a, b, size) == 0;
#endif
}

/* Little-endian loads of any alignment. Both sides are little-endian. */
HD_FUNCTION uint32_t
hd_load32(const void *from)
{
	uint32_t word;

	hd_copy(&word, from, sizeof word);
	return word;
}

HD_FUNCTION uint64_t
hd_load64(const void *from)
{
	uint64_t word;

	hd_copy(&word, from, sizeof word);
	return word;
}

/* Low and high halves of the product. */
HD_FUNCTION uint64_t
hd_multiply(uint64_t a, uint64_t b, uint64_t *high)
{
#ifdef __CUDA_ARCH__
	*high = __umul64hi(a, b);
	return a * b;
#else
	__extension__ typedef unsigned __int128 wide;
	wide product = (wide)a * b;

	*high = (uint64_t)(product >> 64);
	return (uint64_t)product;
#endif
}

/* The position of the highest set bit; word isn't 0. */
HD_FUNCTION uint32_t
hd_log2(uint64_t word)
{
#ifdef __CUDA_ARCH__
	return 63 - (uint32_t)__clzll((long long)word);
#else
	return 63 - (uint32_t)__builtin_clzll(word);
#endif
}

/* The position of the lowest set bit; word isn't 0. */
HD_FUNCTION uint32_t
hd_lowest_bit(uint32_t word)
{
#ifdef __CUDA_ARCH__
	return (uint32_t)__ffs((int)word) - 1;
#else
	return (uint32_t)__builtin_ctz(word);
#endif
}

/* Acquire: later loads of this thread see what the word's writer stored before its release. */
HD_FUNCTION uint64_t
hd_load_acquire(const hd_atomic64 *word)
{
#ifdef __CUDA_ARCH__
	uint64_t value;

	asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
	return value;
#else
	return __atomic_load_n((const uint64_t *)word, __ATOMIC_ACQUIRE);
#endif
}

HD_FUNCTION uint64_t
hd_load_relaxed(const hd_atomic64 *word)
{
#ifdef __CUDA_ARCH__
	uint64_t value;

	asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
	return value;
#else
	return __atomic_load_n((const uint64_t *)word, __ATOMIC_RELAXED);
#endif
}

#endif
