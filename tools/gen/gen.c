/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * halcyon-gen: prints from the tables what people read about them. 'halcyon-gen
 * man8|man5|man7|example'; what it prints stands in the source tree (man/, conf/), and a test
 * compares.
 */
#include "base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

/* A text for the manual: '-' stays a minus, and no line begins with a control character. */
static void
print_roff(const char *text)
{
	if (*text == '.' || *text == '\'')
		fputs("\\&", stdout);
	for (; *text; text++) {
		if (*text == '-')
			fputs("\\-", stdout);
		else if (*text == '\\')
			fputs("\\e", stdout);
		else
			putchar(*text);
	}
}

static const char *
argument_name(const struct option_row *row)
{
	switch (row->kind) {
	case OPTION_FLAG:
	case OPTION_COUNT:
		return "";
	case OPTION_SIZE:
		return "BYTES";
	case OPTION_MEGABYTES:
		return "MEGABYTES";
	case OPTION_OCTAL:
		return "OCTAL";
	case OPTION_LIST:
		return "LIST";
	case OPTION_TEXT:
		return "TEXT";
	case OPTION_CHOICE:
		return row->choices;
	case OPTION_NUMBER:
	case OPTION_FACTOR:
		return "NUMBER";
	}
	return "";
}

/* The sentence behind each option: default and range. */
static void
print_range(const struct option_row *row)
{
	if (*row->value)
		printf("\nDefault: %s%s%s.", row->value,
			*row->unit && row->kind != OPTION_SIZE ? " " : "",
			row->kind == OPTION_SIZE ? "" : row->unit);
	if (row->max > row->min && row->kind != OPTION_FLAG && row->kind != OPTION_OCTAL)
		printf("\nRange: %.17g to %.17g%s%s.", row->min, row->max, *row->unit ? " " : "",
			row->unit);
}

static void
print_section(const char *title)
{
	fputs(".SS ", stdout);
	for (; *title; title++)
		putchar(*title);
	putchar('\n');
}

static void
print_option(const struct option_row *row, bool command_line)
{
	const char *argument = argument_name(row);

	puts(".TP");
	if (command_line && row->letter)
		printf("\\fB\\-%c\\fR, ", row->letter);
	printf(command_line ? "\\fB\\-\\-" : "\\fB");
	print_roff(row->name);
	printf("\\fR");
	if (*argument) {
		printf(command_line ? "=\\fI" : " = \\fI");
		print_roff(argument);
		printf("\\fR");
	} else if (!command_line) {
		printf(row->kind == OPTION_COUNT ? " = \\fINUMBER\\fR" : " = \\fIyes|no\\fR");
	}
	putchar('\n');
	print_roff(row->sentence);
	print_range(row);
	putchar('\n');
}

/* A file can't name a file, nor ask to be left at once. */
static bool
only_on_command_line(const struct option_row *row)
{
	static const char *const names[] = {"config", "check-config", "help", "license", "version"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(row->name, names[i]) == 0)
			return true;
	return false;
}

static void
print_options(bool command_line)
{
	const char *section = NULL;

	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++) {
		const struct option_row *row = &options_table()[i];

		if (row->state == OPTION_LATER || (!command_line && only_on_command_line(row)))
			continue;
		if (row->section != section)
			print_section(row->section);
		section = row->section;
		print_option(row, command_line);
	}
}

static void
print_later(void)
{
	puts(".SH NOT THERE YET\nThese options of memcached are refused by name:");
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++) {
		const struct option_row *row = &options_table()[i];

		if (row->state != OPTION_LATER)
			continue;
		printf(".TP\n\\fB");
		if (row->letter)
			printf("\\-%c\\fR, \\fB\\-\\-", row->letter);
		else
			printf("\\-o ");
		print_roff(row->name);
		printf("\\fR\n");
		print_roff(row->sentence);
		putchar('\n');
	}
}

static void
print_man8(void)
{
	printf(".\\\" Printed by halcyon-gen from conf/options.def: change that.\n"
	       ".TH HALCYOND 8 \"\" \"halcyon %s\" \"System administration\"\n",
		PACKAGE_VERSION);
	puts(".SH NAME\nhalcyond \\- cache daemon that speaks memcached\\(aqs protocols");
	puts(".SH SYNOPSIS\n.B halcyond\n[\\fIOPTION\\fR...]");
	puts(".SH DESCRIPTION\n"
	     "halcyond keeps values under keys in memory, for clients of memcached: text, meta and "
	     "binary protocol on one TCP port,\n"
	     "over Unix sockets, and the UDP form.\n"
	     "Without options it serves 64 megabytes on port 11211 of 127.0.0.1 and ::1.\n"
	     "It asks nobody for a password: let it be reached only by hosts that may read and "
	     "change everything in it.\n"
	     ".PP\n"
	     "Every option has a long name, which is also its name in the configuration file, "
	     "see\n.BR halcyond.conf (5).\n"
	     "What the command line gives wins over the file.\n"
	     "A flag\\(aqs name with \\fBno\\-\\fR in front switches it off.");
	puts(".SH OPTIONS");
	print_options(true);
	print_later();
	puts(".SH SIGNALS\n.TP\nSIGINT, SIGTERM, SIGUSR1\nStop; with flash, after what is in "
	     "memory was "
	     "saved there (\\-\\-stop\\-timeout), which a second one cuts "
	     "short.\n.TP\nSIGHUP\nOpen the log file "
	     "anew.");
	puts(".SH ENVIRONMENT\n"
	     ".TP\nSTATE_DIRECTORY\nSee \\fB\\-\\-state\\-directory\\fR; systemd sets it.\n"
	     ".TP\nMEMCACHED_PORT_FILENAME\nA file that gets the numbers of the ports, a line "
	     "each.\n"
	     ".TP\nNOTIFY_SOCKET, WATCHDOG_USEC\nAs systemd sets them: readiness, state and sign "
	     "of life are told.\n"
	     ".TP\nLISTEN_FDS, LISTEN_PID\nSockets passed by systemd are served instead of those "
	     "of \\-p, \\-U and \\-s.");
	puts(".SH EXIT STATUS\n"
	     "0 after a stop; 64 for an option that can\\(aqt be used; 1 when an address can\\(aqt "
	     "be listened on; 71 when the system\n"
	     "refuses something else.");
	puts(".SH SEE ALSO\n.BR halcyond.conf (5),\n.BR halcyon\\-stats (7),\n.BR halcyonctl "
	     "(1),\n.BR halcyon\\-bench (1)");
}

static void
print_man5(void)
{
	printf(".\\\" Printed by halcyon-gen from conf/options.def: change that.\n"
	       ".TH HALCYOND.CONF 5 \"\" \"halcyon %s\" \"File formats\"\n",
		PACKAGE_VERSION);
	puts(".SH NAME\nhalcyond.conf \\- configuration of halcyond");
	puts(".SH DESCRIPTION\n"
	     "The file that \\fBhalcyond \\-\\-config\\fR \\fIFILE\\fR reads: one option a line, "
	     "\\fIname\\fR = \\fIvalue\\fR or \\fIname value\\fR;\n"
	     "empty lines, and lines that begin with #, are left out.\n"
	     "A flag without a value is yes.\n"
	     "The names are those of the long options, see\n.BR halcyond (8);\nwhat the command "
	     "line gives wins.");
	puts(".SH OPTIONS");
	print_options(false);
	puts(".SH SEE ALSO\n.BR halcyond (8)");
}

struct counter_row {
	const char *field, *name, *sentence;
};

static const struct counter_row counters[] = {
#define COUNTER(field, name, sentence) {#field, name, sentence},
#include "base/counters.def"
#undef COUNTER
};

static void
print_counters(bool ours)
{
	for (size_t i = 0; i < sizeof counters / sizeof *counters; i++) {
		const struct counter_row *row = &counters[i];

		if (ours != !*row->name)
			continue;
		printf(".TP\n\\fB%s\\fR\n", ours ? row->field : row->name);
		print_roff(row->sentence);
		putchar('\n');
	}
}

static void
print_man7(void)
{
	static const struct {
		const char *text, *sentence;
	} commands[] = {
#define COMMAND(name, text, verb, mode, sentence) {text, sentence},
#include "proto/commands.def"
#undef COMMAND
	};
	static const struct {
		const char *text, *sentence;
	} flash[] = {
#define FIGURE(name, sentence) {#name, sentence},
#define MADE(name, written, sentence) {#name, sentence},
#include "daemon/stats_flash.def"
#undef MADE
#undef FIGURE
	};

	printf(".\\\" Printed by halcyon-gen from src/base/counters.def, "
	       "src/daemon/stats_flash.def "
	       "and proto/commands.def: change these.\n"
	       ".TH HALCYON\\-STATS 7 \"\" \"halcyon %s\" \"Miscellaneous\"\n",
		PACKAGE_VERSION);
	puts(".SH NAME\nhalcyon\\-stats \\- commands and counters of halcyond");
	puts(".SH COMMANDS");
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
		if (!*commands[i].text || strcmp(commands[i].text, "debugtime") == 0)
			continue;
		printf(".TP\n\\fB%s\\fR\n", commands[i].text);
		print_roff(commands[i].sentence);
		putchar('\n');
	}
	puts(".SH FORMS OF STATS\n"
	     ".TP\n\\fBstats\\fR\nmemcached\\(aqs names and no others.\n"
	     ".TP\n\\fBstats settings\\fR\nThe options as they work.\n"
	     ".TP\n\\fBstats items\\fR, \\fBstats slabs\\fR\nItems by the size class that "
	     "memcached would have put them in; halcyond\\(aqs memory is not divided by size.\n"
	     ".TP\n\\fBstats sizes\\fR\nItems by size, in steps of 32 bytes; by size class when "
	     "there are more than a million.\n"
	     ".TP\n\\fBstats conns\\fR\nListeners and connections.\n"
	     ".TP\n\\fBstats cachedump\\fR \\fICLASS\\fR \\fILIMIT\\fR\nSome keys of a size "
	     "class.\n"
	     ".TP\n\\fBstats detail\\fR on|off|dump\nCommands by the prefix of their keys.\n"
	     ".TP\n\\fBstats extstore\\fR\nRegions of flash, by the names of extstore\\(aqs pages: "
	     "version is a region\\(aqs number in the log, 0 when nothing\nis in it.\n"
	     ".TP\n\\fBstats reset\\fR\nCounters start again from zero.\n"
	     ".TP\n\\fBstats halcyon\\fR\nThe counters that memcached has no name for, the index "
	     "and the memory.");
	puts(".SH COUNTERS OF STATS");
	print_counters(false);
	puts(".SH COUNTERS OF STATS HALCYON");
	print_counters(true);
	puts(".SH FLASH IN STATS HALCYON");
	for (size_t i = 0; i < sizeof flash / sizeof *flash; i++) {
		printf(".TP\n\\fBflash_%s\\fR\n", flash[i].text);
		print_roff(flash[i].sentence);
		putchar('\n');
	}
	puts(".SH SEE ALSO\n.BR halcyond (8)");
}

static void
print_example(void)
{
	const char *section = NULL;

	puts("# Configuration of halcyond, see halcyond.conf(5). Every option with its default: "
	     "remove the '#' in front of those to be changed.");
	for (size_t i = 0; i < OPTION_TABLE_SIZE; i++) {
		const struct option_row *row = &options_table()[i];

		if ((row->state != OPTION_ACTIVE && row->state != OPTION_SIZED) ||
			only_on_command_line(row) || strcmp(row->name, "extended") == 0)
			continue;
		if (row->section != section)
			printf("\n# --- %s ---\n", row->section);
		section = row->section;
		printf("\n# %s\n#%s = %s\n", row->sentence, row->name, row->value);
	}
}

int
main(int argc, char **argv)
{
	static const struct {
		const char *word;
		void (*print)(void);
	} kinds[] = {{"man8", print_man8}, {"man5", print_man5}, {"man7", print_man7},
		{"example", print_example}};

	for (size_t i = 0; argc == 2 && i < sizeof kinds / sizeof *kinds; i++) {
		if (strcmp(argv[1], kinds[i].word) != 0)
			continue;
		kinds[i].print();
		return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
	}
	fprintf(stderr, "usage: halcyon-gen man8|man5|man7|example\n");
	return EXIT_FAILURE;
}
