/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * check: assertions about the programmer, never about the world or a client. They stay on in
 * production: a cache that stops is better than one that answers with somebody else's bytes.
 */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

/*
 * Prints what failed and where to standard error, then aborts. Never returns; safe in any thread.
 */
void check_failed(const char *condition, const char *file, int line, const char *function)
	__attribute__((noreturn, cold));

#define check(condition)                                                                           \
	do {                                                                                       \
		if (__builtin_expect(!(condition), 0))                                             \
			check_failed(#condition, __FILE__, __LINE__, __func__);                    \
	} while (0)

#endif
