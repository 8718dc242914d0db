/* SPDX-License-Identifier: BSD-2-Clause */
/* print: a gathered answer for people (as it came, without the STAT) or as one JSON object. */
#ifndef TOOLS_CTL_PRINT_H
#define TOOLS_CTL_PRINT_H

#include "talk.h"

#include <stdio.h>

/* 'STAT name value' lines become 'name value' in two columns; other lines stay as they are. */
void print_plain(const struct talk_answer *answer, FILE *out);

/*
 * 'STAT name value' becomes "name": value, with a number where the value is one in JSON's sense,
 * else a string. 'PREFIX name get 1 hit 0 ...' becomes "name": {"get": 1, ...}. An answer without
 * such lines is {"result": "its ending"}.
 */
void print_json(const struct talk_answer *answer, FILE *out);

#endif
