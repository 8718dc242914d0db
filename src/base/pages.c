/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/pages.h"

#include "base/check.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t
page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t
round_up(size_t bytes, size_t unit)
{
	return (bytes + unit - 1) & ~(unit - 1);
}

void *
pages_reserve(size_t bytes, size_t alignment)
{
	size_t page = page_size(), spare = alignment > page ? alignment : 0;

	check(alignment != 0 && (alignment & (alignment - 1)) == 0);
	bytes = round_up(bytes, page);
	if (bytes == 0 || bytes + spare < bytes) {
		errno = ENOMEM;
		return NULL;
	}
	uint8_t *range = mmap(NULL, bytes + spare, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (range == MAP_FAILED)
		return NULL;
	if (spare == 0)
		return range;

	/* Cut what stands before and behind the aligned part. */
	uint8_t *pages = (uint8_t *)round_up((uintptr_t)range, alignment);
	size_t before = (size_t)(pages - range), behind = spare - before;
	if (before)
		munmap(range, before);
	if (behind)
		munmap(pages + bytes, behind);
	return pages;
}

void
pages_release(void *pages, size_t bytes)
{
	if (pages)
		munmap(pages, round_up(bytes, page_size()));
}

/* Of locked pages (mlockall); Linux 5.18. */
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

bool
pages_decommit(void *pages, size_t bytes)
{
	size_t page = page_size();
	uintptr_t from = round_up((uintptr_t)pages, page);
	uintptr_t to = ((uintptr_t)pages + bytes) & ~(uintptr_t)(page - 1);

	return from >= to || madvise((void *)from, to - from, MADV_DONTNEED) == 0 ||
	       madvise((void *)from, to - from, MADV_DONTNEED_LOCKED) == 0;
}

void
pages_advise_huge(void *pages, size_t bytes, bool huge)
{
	madvise(pages, round_up(bytes, page_size()), huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

bool
pages_take_huge(void *pages, size_t bytes)
{
	check((uintptr_t)pages % PAGES_HUGE == 0 && bytes % PAGES_HUGE == 0);
	/* A failing MAP_FIXED leaves a hole: see first, elsewhere, whether the pool has so many. */
	void *probe = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (probe == MAP_FAILED)
		return false;
	munmap(probe, bytes);
	if (mmap(pages, bytes, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB, -1, 0) == pages)
		return true;

	/* Somebody else was quicker. */
	int error = errno;
	void *range = mmap(pages, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	check(range == pages);
	errno = error;
	return false;
}
