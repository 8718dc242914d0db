/* SPDX-License-Identifier: BSD-2-Clause */
/* halcyonctl: subcommands, each one question to a server, or to a flash store without one. */
#include "../common/optable.h"
#include "flash.h"
#include "print.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include <string.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "unversioned"
#endif

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define COMMAND_MAX 512

struct options {
	const char *server;
	const char *socket;
	double timeout;
	bool json;
	bool help;
	bool help_man;
	bool version;
};

#define FIELD(name) offsetof(struct options, name)

static const struct optable_row rows[] = {
	{"server", 's', "HOST:PORT", OPTABLE_STRING, FIELD(server), 0, 0, "127.0.0.1:11211",
		"the server, over TCP"},
	{"socket", 'u', "PATH", OPTABLE_STRING, FIELD(socket), 0, 0, NULL,
		"a Unix socket instead of TCP"},
	{"timeout", 't', "S", OPTABLE_SECONDS, FIELD(timeout), 0, 3600, "2",
		"seconds to wait for each answer"},
	{"json", 'j', NULL, OPTABLE_FLAG, FIELD(json), 0, 0, NULL, "print one JSON object"},
	{"help", 'h', NULL, OPTABLE_FLAG, FIELD(help), 0, 0, NULL, "print this help"},
	{"help-man", 0, NULL, OPTABLE_FLAG, FIELD(help_man), 0, 0, NULL, "print the manual page"},
	{"version", 0, NULL, OPTABLE_FLAG, FIELD(version), 0, 0, NULL, "print the version"},
};

/* What a subcommand sends is its command and, as far as it takes any, the words that follow. */
#define SUBCOMMANDS(ROW)                                                                           \
	ROW("stats", "stats", 2,                                                                   \
		"[items|slabs|sizes|conns|settings|halcyon|reset|detail on|off|dump]",             \
		"counters of the server, or of one part of it")                                    \
	ROW("settings", "stats settings", 0, "", "the settings that the server runs with")         \
	ROW("version", "version", 0, "", "the version that the server answers to clients")

/* These ask no server. */
#define FLASH_SUBCOMMANDS(ROW)                                                                     \
	ROW("flash inspect", "FILE...",                                                            \
		"a flash store that no daemon runs on, its files in their order: geometry, "       \
		"state, "                                                                          \
		"journal, and each region with what it holds")                                     \
	ROW("flash verify", "FILE...",                                                             \
		"the same, and every item is read and checked: what is damaged, and what a "       \
		"recovery "                                                                        \
		"would keep")

static const struct subcommand {
	const char *name;
	const char *command;
	int words_max;
	const char *arguments;
	const char *sentence;
} subcommands[] = {
#define ROW(name, command, words_max, arguments, sentence)                                         \
	{name, command, words_max, arguments, sentence},
	SUBCOMMANDS(ROW)
#undef ROW
};

static const struct optable_section sections[] = {
	{"SUBCOMMANDS",
#define ROW(name, command, words_max, arguments, sentence)                                         \
	"  " name " " arguments "\n    " sentence "\n"
		SUBCOMMANDS(ROW)
#undef ROW
#define ROW(name, arguments, sentence) "  " name " " arguments "\n    " sentence "\n"
			FLASH_SUBCOMMANDS(ROW)
#undef ROW
	},
	{"EXIT STATUS", "0: answered. 1: the server could not be reached, did not answer in time "
			"or answered with an error, a flash store could\n"
			"not be read, or verify found damage: told in one line on standard error. "
			"2: the command line was wrong."},
	{"EXAMPLES", "  halcyonctl stats\n"
		     "  halcyonctl --socket /run/halcyond.sock --json stats items\n"
		     "  halcyonctl flash verify /var/lib/halcyon/flash\n"},
	{NULL, NULL},
};

static const struct optable table = {
	.program = "halcyonctl",
	.purpose = "ask a running halcyond, or another server of the protocol, about itself; look "
		   "into "
		   "a flash store",
	.synopsis = "[options] subcommand [argument...]",
	.rows = rows,
	.row_count = sizeof rows / sizeof rows[0],
	.sections = sections,
};

static void
print_help(void)
{
	optable_print_help(&table, stdout);
	fputs("\nsubcommands:\n", stdout);
	for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++)
		printf("  %s %s\n      %s\n", subcommands[i].name, subcommands[i].arguments,
			subcommands[i].sentence);
#define ROW(name, arguments, sentence) printf("  %s %s\n      %s\n", name, arguments, sentence);
	FLASH_SUBCOMMANDS(ROW)
#undef ROW
}

/* The line to send; 0, or -1 with the reason in error. */
static int
compose(int count, char **words, char *command, size_t command_size, char *error, size_t error_size)
{
	const struct subcommand *found = NULL;

	if (count == 0) {
		snprintf(error, error_size, "which subcommand? --help lists them");
		return -1;
	}
	for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++)
		if (strcmp(subcommands[i].name, words[0]) == 0)
			found = &subcommands[i];
	if (!found) {
		snprintf(error, error_size, "unknown subcommand %s, --help lists them", words[0]);
		return -1;
	}
	if (count - 1 > found->words_max) {
		snprintf(error, error_size, "%s: argument not understood: %s", found->name,
			words[found->words_max + 1]);
		return -1;
	}
	int size = snprintf(command, command_size, "%s", found->command);
	for (int i = 1; i < count; i++) {
		if (words[i][0] == '\0' || strpbrk(words[i], " \r\n")) {
			snprintf(error, error_size, "%s: argument %d is not one word", found->name,
				i);
			return -1;
		}
		size += snprintf(command + size, command_size - (size_t)size, " %s", words[i]);
		if ((size_t)size >= command_size) {
			snprintf(error, error_size, "%s: arguments are too long", found->name);
			return -1;
		}
	}
	return 0;
}

static int
ask(const struct options *options, const char *command)
{
	struct dial_address address;
	struct talk_answer answer;
	char error[512];
	int status = 0;

	if (dial_find(options->server, options->socket, &address, error, sizeof error) ||
		talk_ask(&address, command, (int)(options->timeout * 1000), &answer, error,
			sizeof error)) {
		fprintf(stderr, "halcyonctl: %s\n", error);
		return EXIT_FAILED;
	}
	if (strstr(answer.ending, "ERROR") == NULL) {
		if (options->json)
			print_json(&answer, stdout);
		else
			print_plain(&answer, stdout);
	} else {
		fprintf(stderr, "halcyonctl: %s: '%s' was answered: %s\n", address.text, command,
			answer.ending);
		status = EXIT_FAILED;
	}
	talk_free(&answer);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "halcyonctl: cannot write to standard output\n");
		status = EXIT_FAILED;
	}
	return status;
}

int
main(int argc, char **argv)
{
	struct options options = {0};
	char command[COMMAND_MAX];
	char error[512];

	int next = optable_parse(&table, argc, argv, &options, error, sizeof error);
	if (next >= 0 && options.help) {
		print_help();
		return 0;
	}
	if (next >= 0 && options.help_man) {
		optable_print_man(&table, stdout);
		return 0;
	}
	if (next >= 0 && options.version) {
		printf("halcyonctl %s\n", PACKAGE_VERSION);
		return 0;
	}
	if (next >= 0 && next < argc && strcmp(argv[next], "flash") == 0)
		return flash_command(argc - next - 1, argv + next + 1, options.json);
	if (next < 0 ||
		compose(argc - next, argv + next, command, sizeof command, error, sizeof error)) {
		fprintf(stderr, "halcyonctl: %s\n", error);
		return EXIT_USAGE;
	}
	return ask(&options, command);
}
