// SPDX-License-Identifier: MIT
// What the parts of the in-box agent share. The frames are those of spec/agent.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VERSION 1
#define MAX_REQUEST (1 << 22)
#define MAX_OUTPUT (1 << 16)
#define WINDOW (1 << 20)
#define MAX_COMMANDS 4096

enum { START = 1, STDIN, STDIN_END, RESIZE, SIGNAL, KILL, CREDIT };
enum { HELLO = 65, STARTED, FAILED, STDOUT, STDERR, EXIT, CLOSED, TAKEN, KILLED, OVER };
enum { TERMINAL = 1, WITH_STDIN = 2, MERGED = 4, OWN = 8 };

extern char **environ;

// What a keeper tells the agent; TRYING comes from the process that is about to become the command.
#define TRYING 1
struct report {
	uint32_t kind, status;
	uint64_t cpu_us, rss;
	char text[256];
};

struct request {
	int flags, rows, columns;
	uint32_t id, argc, envc;
	const char *user, *directory;
	char **argv, **variables;
};

static inline uint32_t get32(const unsigned char *at)
{
	return (uint32_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

static inline void put32(unsigned char *at, uint32_t value)
{
	at[0] = value >> 24, at[1] = value >> 16, at[2] = value >> 8, at[3] = value;
}

static inline void put64(unsigned char *at, uint64_t value)
{
	put32(at, value >> 32);
	put32(at + 4, value);
}

static inline int write_all(int fd, const void *data, size_t size)
{
	const char *at = data;
	while (size) {
		ssize_t sent = write(fd, at, size);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN) {
			poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
			continue;
		}
		if (sent <= 0)
			return -1;
		at += sent;
		size -= sent;
	}
	return 0;
}

static inline uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
