/* SPDX-License-Identifier: BSD-2-Clause */
#include "flash/smart.h"

#include <fcntl.h>
#include <linux/nvme_ioctl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define EACH_NS 60000000000ull
#define DEEP 4 /* a file system on a mapping on a partition on a drive */
/* NVM Express base specification: admin command 02h, log page 02h, 'percentage used' at byte 5. */
#define ADMIN_GET_LOG 0x02
#define PAGE_HEALTH 0x02
#define PAGE_BYTES 512
#define PERCENT_USED 5

struct smart {
	pthread_mutex_t lock;
	bool asked;
	uint64_t asked_ns;
	int percent;
};

struct smart *
smart_create(void)
{
	struct smart *smart = calloc(1, sizeof *smart);

	if (smart)
		pthread_mutex_init(&smart->lock, NULL);
	return smart;
}

void
smart_destroy(struct smart *smart)
{
	if (!smart)
		return;
	pthread_mutex_destroy(&smart->lock);
	free(smart);
}

static int
ask(const char *device)
{
	uint8_t page[PAGE_BYTES] = {0};
	struct nvme_admin_cmd command = {
		.opcode = ADMIN_GET_LOG,
		.nsid = 0xffffffff, /* of the whole drive */
		.addr = (uint64_t)(uintptr_t)page,
		.data_len = sizeof page,
		.cdw10 = (PAGE_BYTES / 4 - 1) << 16 | PAGE_HEALTH,
	};
	int fd = open(device, O_RDONLY | O_CLOEXEC | O_NONBLOCK), percent = -1;

	if (fd < 0)
		return -1;
	if (ioctl(fd, NVME_IOCTL_ADMIN_CMD, &command) == 0)
		percent = page[PERCENT_USED];
	close(fd);
	return percent;
}

/* The first device that the one with this name in /sys/class/block stands on; false: none. */
static bool
go_below(char *name, size_t size)
{
	char path[300];
	bool found = false;
	struct dirent *entry;
	DIR *directory;

	snprintf(path, sizeof path, "/sys/class/block/%s/slaves", name);
	directory = opendir(path);
	if (!directory)
		return false;
	while (!found && (entry = readdir(directory)))
		if (entry->d_name[0] != '.' && strlen(entry->d_name) < size) {
			snprintf(name, size, "%.200s", entry->d_name);
			found = true;
		}
	closedir(directory);
	return found;
}

static int
wear_of(const struct io_file_info *info)
{
	char path[300], target[300], name[256];
	struct stat status;
	ssize_t n;
	int percent = -1;

	if (stat(info->name, &status) != 0)
		return -1;

	dev_t device = info->device ? status.st_rdev : status.st_dev;

	snprintf(path, sizeof path, "/sys/dev/block/%u:%u", major(device), minor(device));
	n = readlink(path, target, sizeof target - 1);
	if (n <= 0)
		return -1;
	target[n] = 0;
	snprintf(name, sizeof name, "%.200s",
		strrchr(target, '/') ? strrchr(target, '/') + 1 : target);
	for (int deep = 0; deep < DEEP; deep++) {
		snprintf(path, sizeof path, "/dev/%s", name);
		if (strncmp(name, "nvme", 4) == 0)
			percent = ask(path);
		if (percent >= 0 || !go_below(name, sizeof name))
			return percent;
	}
	return -1;
}

int
smart_wear(
	struct smart *smart, const struct io_backend *backend, const struct io *io, uint64_t now_ns)
{
	int percent;

	pthread_mutex_lock(&smart->lock);
	if (!smart->asked || now_ns - smart->asked_ns >= EACH_NS) {
		smart->asked = true;
		smart->asked_ns = now_ns;
		smart->percent = -1;
		for (uint32_t i = 0; i < backend->file_count(io); i++) {
			percent = wear_of(backend->file(io, i));
			if (percent > smart->percent)
				smart->percent = percent;
		}
	}
	percent = smart->percent;
	pthread_mutex_unlock(&smart->lock);
	return percent;
}
