/* SPDX-License-Identifier: BSD-2-Clause */
#include "pause.h"

#include <stdlib.h>

bool
pauses_create(struct pauses *pauses, uint32_t room)
{
	pauses->entries = calloc(room ? room : 1, sizeof *pauses->entries);
	pauses->count = 0;
	pauses->room = pauses->entries ? room : 0;
	return pauses->entries != NULL;
}

void
pauses_destroy(struct pauses *pauses)
{
	free(pauses->entries);
	*pauses = (struct pauses){0};
}

void
pauses_add(struct pauses *pauses, uint32_t which, uint64_t until_ns)
{
	uint32_t at = pauses->count++;

	while (at > 0 && pauses->entries[(at - 1) / 2].until_ns > until_ns) {
		pauses->entries[at] = pauses->entries[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	pauses->entries[at] = (struct pause_entry){until_ns, which};
}

uint64_t
pauses_next_ns(const struct pauses *pauses)
{
	return pauses->count ? pauses->entries[0].until_ns : UINT64_MAX;
}

uint32_t
pauses_take(struct pauses *pauses)
{
	uint32_t which = pauses->entries[0].which;
	struct pause_entry last = pauses->entries[--pauses->count];
	uint32_t at = 0;

	for (;;) {
		uint32_t child = 2 * at + 1;
		if (child >= pauses->count)
			break;
		if (child + 1 < pauses->count &&
			pauses->entries[child + 1].until_ns < pauses->entries[child].until_ns)
			child++;
		if (pauses->entries[child].until_ns >= last.until_ns)
			break;
		pauses->entries[at] = pauses->entries[child];
		at = child;
	}
	pauses->entries[at] = last;
	return which;
}
