/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * log: lines for the operator, on standard error or in a file. It never blocks the caller for long
 * and never fails: what can't be written (a full disk, a full pipe) is dropped and counted. Any
 * thread.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

/* With their numbers in the system log, which go in front of lines for the journal. */
enum log_level {
	LOG_LEVEL_ERROR = 3,
	LOG_LEVEL_WARNING = 4,
	LOG_LEVEL_NOTICE = 5, /* what happens once: start, stop, an option without meaning */
	LOG_LEVEL_INFO = 6,   /* -v */
	LOG_LEVEL_DEBUG = 7,  /* -vv */
};

/* Without a path lines go to standard error. False, with errno, when the file can't be opened. */
bool log_open(const char *path);
/*
 * The file becomes the user's that the process is about to become, so that it can be opened anew.
 * Root's regular files only.
 */
void log_give(unsigned user, unsigned group);
/* Opens the file anew (after a rotation). */
void log_reopen(void);
void log_close(void);

/* -v: lines up to NOTICE are always written, each step of verbosity adds a level. */
void log_set_verbosity(unsigned verbosity);
unsigned log_verbosity(void);

/*
 * One line, without its end. At most 20 lines a second of INFO and below that importance, 100 of
 * the others.
 */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Lines dropped: by the limits of rate, and because they couldn't be written. */
uint64_t log_dropped(void);

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_notice(...) log_line(LOG_LEVEL_NOTICE, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
