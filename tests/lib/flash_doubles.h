/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Doubles of what surrounds the log in flash: a journal that takes every record at once, a recovery
 * that finds nothing, reads that take as long as the test says. A program that has them links none
 * of the real ones.
 */
#ifndef TESTS_LIB_FLASH_DOUBLES_H
#define TESTS_LIB_FLASH_DOUBLES_H

#include <stdbool.h>
#include <stdint.h>

struct flash_doubles {
	bool wants_room;	 /* the journal does */
	bool put_fails;		 /* it takes no record any more */
	uint64_t region_records; /* that it got */
	uint32_t read_us;
};

struct flash_doubles *flash_doubles(void);

#endif
