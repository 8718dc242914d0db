/* SPDX-License-Identifier: BSD-2-Clause */
/* talk: ask a server one text command and gather its lines. */
#ifndef TOOLS_CTL_TALK_H
#define TOOLS_CTL_TALK_H

#include "../common/dial.h"

#define TALK_ANSWER_MAX (64 * 1024 * 1024)

struct talk_answer {
	char *text; /* lines that end in '\n', without '\r'; a final 0 byte */
	size_t size;
	char *ending; /* the line that ended the answer: END, RESET, OK or an error; in text */
};

/*
 * Connect, send the command (without its line end) and read up to the line that ends the answer:
 * END, RESET, OK, or a line that starts with ERROR, CLIENT_ERROR, SERVER_ERROR or VERSION.
 * timeout_ms bounds each wait for bytes. 0 and the answer, for talk_free; or -1 with one line in
 * error that names the server.
 */
int talk_ask(const struct dial_address *address, const char *command, int timeout_ms,
	struct talk_answer *answer, char *error, size_t error_size);

void talk_free(struct talk_answer *answer);

#endif
