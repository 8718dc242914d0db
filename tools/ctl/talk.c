/* SPDX-License-Identifier: BSD-2-Clause */
#include "talk.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_SIZE 16384

static bool
starts(const char *line, const char *word)
{
	return strncmp(line, word, strlen(word)) == 0;
}

static bool
ends_answer(const char *line)
{
	return strcmp(line, "END") == 0 || strcmp(line, "RESET") == 0 || strcmp(line, "OK") == 0 ||
	       starts(line, "ERROR") || starts(line, "CLIENT_ERROR") ||
	       starts(line, "SERVER_ERROR") || starts(line, "VERSION ");
}

static int
wait_for(int fd, short events, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = fd, .events = events};
	int status;

	do
		status = poll(&poll_fd, 1, timeout_ms);
	while (status < 0 && errno == EINTR);
	return status > 0 ? 0 : -1;
}

static int
send_command(int fd, const char *command, int timeout_ms)
{
	char line[1024];
	int size = snprintf(line, sizeof line, "%s\r\n", command);

	if (size < 0 || (size_t)size >= sizeof line) {
		errno = EMSGSIZE;
		return -1;
	}
	for (int sent = 0; sent < size;) {
		if (wait_for(fd, POLLOUT, timeout_ms)) {
			errno = ETIMEDOUT;
			return -1;
		}
		ssize_t count = send(fd, line + sent, (size_t)(size - sent), MSG_NOSIGNAL);
		if (count < 0)
			return -1;
		sent += (int)count;
	}
	return 0;
}

/*
 * Look at the lines that came since 'from' (a line's start): strips '\r', finds the ending. Returns
 * true when the answer is whole; *from moves to the first incomplete line.
 */
static bool
scan(struct talk_answer *answer, size_t *from)
{
	for (;;) {
		char *line = answer->text + *from;
		char *newline = memchr(line, '\n', answer->size - *from);
		if (!newline)
			return false;
		char *end = newline > line && newline[-1] == '\r' ? newline - 1 : newline;
		char kept = *end;
		*end = '\0';
		if (ends_answer(line)) {
			answer->ending = line;
			answer->size = (size_t)(end - answer->text);
			return true;
		}
		*end = kept;
		if (end != newline) {
			memmove(end, newline, answer->size - (size_t)(newline - answer->text));
			answer->size--;
		}
		*from = (size_t)(end - answer->text) + 1;
	}
}

int
talk_ask(const struct dial_address *address, const char *command, int timeout_ms,
	struct talk_answer *answer, char *error, size_t error_size)
{
	size_t room = 0;
	size_t scanned = 0;
	const char *why = NULL;

	memset(answer, 0, sizeof *answer);
	int fd = dial_connect(address, timeout_ms, error, error_size);
	if (fd < 0)
		return -1;
	if (send_command(fd, command, timeout_ms))
		why = strerror(errno);
	while (!why) {
		if (room - answer->size < READ_SIZE) {
			char *bigger = room < TALK_ANSWER_MAX
					       ? realloc(answer->text, room + 4 * READ_SIZE)
					       : NULL;
			if (!bigger) {
				why = "the answer is too long";
				break;
			}
			answer->text = bigger;
			room += 4 * READ_SIZE;
		}
		if (wait_for(fd, POLLIN, timeout_ms)) {
			why = "no answer in time";
			break;
		}
		ssize_t count = recv(fd, answer->text + answer->size, room - answer->size - 1, 0);
		if (count < 0 && errno != EAGAIN && errno != EINTR)
			why = strerror(errno);
		else if (count == 0)
			why = "connection closed before the answer was whole";
		else if (count > 0) {
			answer->size += (size_t)count;
			if (scan(answer, &scanned))
				break;
		}
	}
	close(fd);
	if (!why)
		return 0;
	snprintf(error, error_size, "%s: %s", address->text, why);
	talk_free(answer);
	return -1;
}

void
talk_free(struct talk_answer *answer)
{
	free(answer->text);
	memset(answer, 0, sizeof *answer);
}
