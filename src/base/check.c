/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void
check_failed(const char *condition, const char *file, int line, const char *function)
{
	fprintf(stderr, "halcyon: check failed: %s (%s:%d, %s)\n", condition, file, line, function);
	abort();
}
