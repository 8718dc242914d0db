/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A folder with one file, "flash", whose bytes are those of another file; what is read and written there fails, waits or
 * hangs as rules say. The rules stand in a third file, which the test maps as this program does:
 *
 *	flash_fuse BACKING RULES MOUNTPOINT
 *
 * For tests of what a daemon does when its device misbehaves. A rule that hangs lets go when it is taken back.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OP_READ = 1, OP_WRITE = 2, OP_SYNC = 4 };
enum { ACT_NONE, ACT_ERROR, ACT_DELAY, ACT_HANG };

/* tests/system/flash_faults.py writes these. */
struct rule {
	_Atomic uint32_t action; /* written last */
	uint32_t operations;
	uint32_t error;
	uint32_t delay_us;
	uint64_t from, to; /* offsets that it holds for; all for a sync */
	_Atomic uint64_t hits;
	uint64_t pad[3];
};
_Static_assert(sizeof(struct rule) == 64, "the test's struct");

#define RULES 16

static struct rule *rules;
static int backing;

/* 0, or the error to answer with. */
static int
obey(uint32_t operation, uint64_t from, uint64_t to)
{
	for (unsigned i = 0; i < RULES; i++) {
		struct rule *rule = &rules[i];
		uint32_t action = atomic_load(&rule->action);
		if (action == ACT_NONE || !(rule->operations & operation) ||
			(operation != OP_SYNC && (from >= rule->to || to <= rule->from)))
			continue;
		atomic_fetch_add(&rule->hits, 1);
		if (action == ACT_ERROR)
			return -(int)rule->error;
		if (action == ACT_DELAY)
			usleep(rule->delay_us);
		while (action == ACT_HANG && atomic_load(&rule->action) == ACT_HANG)
			usleep(2000);
	}
	return 0;
}

static int
is_flash(const char *path)
{
	return strcmp(path, "/flash") == 0;
}

static int
get_attributes(const char *path, struct stat *stat, struct fuse_file_info *info)
{
	(void)info;
	memset(stat, 0, sizeof *stat);
	if (strcmp(path, "/") == 0) {
		stat->st_mode = S_IFDIR | 0777;
		stat->st_nlink = 2;
		return 0;
	}
	if (!is_flash(path))
		return -ENOENT;
	if (fstat(backing, stat))
		return -errno;
	stat->st_mode = S_IFREG | 0666;
	return 0;
}

static int
read_folder(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
	struct fuse_file_info *info, enum fuse_readdir_flags flags)
{
	(void)offset, (void)info, (void)flags;
	if (strcmp(path, "/") != 0)
		return -ENOENT;
	fill(buffer, ".", NULL, 0, 0);
	fill(buffer, "..", NULL, 0, 0);
	fill(buffer, "flash", NULL, 0, 0);
	return 0;
}

static int
open_file(const char *path, struct fuse_file_info *info)
{
	if (!is_flash(path))
		return -ENOENT;
	info->direct_io = 1;
	return 0;
}

static int
create_file(const char *path, mode_t mode, struct fuse_file_info *info)
{
	(void)mode;
	return open_file(path, info);
}

static int
read_file(const char *path, char *buffer, size_t size, off_t offset, struct fuse_file_info *info)
{
	(void)path, (void)info;
	int error = obey(OP_READ, (uint64_t)offset, (uint64_t)offset + size);
	if (error)
		return error;
	ssize_t got = pread(backing, buffer, size, offset);
	return got < 0 ? -errno : (int)got;
}

static int
write_file(const char *path, const char *buffer, size_t size, off_t offset,
	struct fuse_file_info *info)
{
	(void)path, (void)info;
	int error = obey(OP_WRITE, (uint64_t)offset, (uint64_t)offset + size);
	if (error)
		return error;
	ssize_t put = pwrite(backing, buffer, size, offset);
	return put < 0 ? -errno : (int)put;
}

static int
sync_file(const char *path, int data_only, struct fuse_file_info *info)
{
	(void)path, (void)data_only, (void)info;
	return obey(OP_SYNC, 0, 0);
}

static int
truncate_file(const char *path, off_t size, struct fuse_file_info *info)
{
	(void)info;
	if (!is_flash(path))
		return -ENOENT;
	return ftruncate(backing, size) ? -errno : 0;
}

static int
allocate_file(const char *path, int mode, off_t offset, off_t size, struct fuse_file_info *info)
{
	(void)path, (void)info;
	return fallocate(backing, mode, offset, size) ? -errno : 0;
}

/* So that whatever it does to the file's attributes succeeds. */
static int
change_mode(const char *path, mode_t mode, struct fuse_file_info *info)
{
	(void)path, (void)mode, (void)info;
	return 0;
}

static int
change_owner(const char *path, uid_t user, gid_t group, struct fuse_file_info *info)
{
	(void)path, (void)user, (void)group, (void)info;
	return 0;
}

static void *
begin(struct fuse_conn_info *connection, struct fuse_config *config)
{
	(void)config;
	connection->max_background = 512; /* else twelve that hang keep all others out */
	connection->congestion_threshold = 512;
	return NULL;
}

static const struct fuse_operations operations = {
	.init = begin,
	.getattr = get_attributes,
	.readdir = read_folder,
	.open = open_file,
	.create = create_file,
	.read = read_file,
	.write = write_file,
	.fsync = sync_file,
	.truncate = truncate_file,
	.fallocate = allocate_file,
	.chmod = change_mode,
	.chown = change_owner,
};

/* Until it is unmounted. By hand, for fuse_main has too few threads where many requests hang. */
static int
serve(const char *program, const char *mountpoint)
{
	char *options[] = {(char *)program, "-o", "allow_other", NULL};
	struct fuse_args arguments = FUSE_ARGS_INIT(3, options);
	struct fuse *fuse = fuse_new(&arguments, &operations, sizeof operations, NULL);
	struct fuse_loop_config *config = fuse_loop_cfg_create();

	if (!fuse || !config || fuse_mount(fuse, mountpoint)) {
		fprintf(stderr, "flash_fuse: cannot mount on %s\n", mountpoint);
		return 1;
	}
	fuse_set_signal_handlers(fuse_get_session(fuse));
	fuse_loop_cfg_set_max_threads(config, 600);
	fuse_loop_cfg_set_idle_threads(config, 600);
	int status = fuse_loop_mt(fuse, config);
	fuse_loop_cfg_destroy(config);
	fuse_unmount(fuse);
	fuse_destroy(fuse);
	return status != 0;
}

int
main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: flash_fuse BACKING RULES MOUNTPOINT\n");
		return 2;
	}
	backing = open(argv[1], O_RDWR | O_CLOEXEC);
	int file = open(argv[2], O_RDWR | O_CLOEXEC);
	if (backing < 0 || file < 0) {
		perror("flash_fuse");
		return 1;
	}
	rules = mmap(NULL, RULES * sizeof *rules, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (rules == MAP_FAILED) {
		perror("flash_fuse");
		return 1;
	}
	return serve(argv[0], argv[3]);
}
