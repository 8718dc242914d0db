/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Runs a fuzzer's function over files of a corpus without a fuzzing engine: replay [FILE-OR-FOLDER...]
 * Without arguments, over its own corpus: REPLAY_CORPUS is the folder's name, and top_srcdir in the environment where the sources are.
 * Exit code 0 when nothing aborted, 1 when a file couldn't be read or none was found.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned files;

static int
replay_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	uint8_t *data = NULL;
	long size = -1;

	if (file && fseek(file, 0, SEEK_END) == 0)
		size = ftell(file);
	if (size >= 0) {
		/* Exactly as many bytes as the file has: the address sanitizer sees what is read behind them. */
		data = malloc((size_t)size + (size == 0));
		rewind(file);
	}
	if (!data || fread(data, 1, (size_t)size, file) != (size_t)size) {
		fprintf(stderr, "replay: can't read %s\n", path);
		free(data);
		if (file)
			fclose(file);
		return 1;
	}
	fclose(file);
	LLVMFuzzerTestOneInput(data, (size_t)size);
	free(data);
	files++;
	return 0;
}

static int
replay(const char *path)
{
	struct stat status;
	int failed = 0;

	if (stat(path, &status) != 0) {
		perror(path);
		return 1;
	}
	if (!S_ISDIR(status.st_mode))
		return replay_file(path);
	DIR *folder = opendir(path);

	if (!folder) {
		perror(path);
		return 1;
	}
	for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
		char *name;

		if (entry->d_name[0] == '.')
			continue;
		if (asprintf(&name, "%s/%s", path, entry->d_name) < 0)
			abort();
		failed |= replay(name);
		free(name);
	}
	closedir(folder);
	return failed;
}

int
main(int argc, char **argv)
{
	int failed = 0;

	if (argc == 1) {
		const char *top = getenv("top_srcdir");
		char *corpus;

		if (asprintf(&corpus, "%s/tests/fuzz/corpus/%s", top ? top : ".", REPLAY_CORPUS) <
			0)
			abort();
		failed |= replay(corpus);
		free(corpus);
	}
	for (int i = 1; i < argc; i++)
		failed |= replay(argv[i]);
	printf("%u files\n", files);
	return failed || files == 0;
}
