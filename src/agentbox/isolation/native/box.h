// SPDX-License-Identifier: MIT
// What the maker of boxes and a warm interpreter share: messages, the configuration, and how a process enters a box.
//
// Messages travel over SOCK_SEQPACKET sockets whose other end is the owner (isolation/pool), so each is read whole.
// Integers are of this machine; both ends are one machine.
#ifndef AGENTBOX_BOX_H
#define AGENTBOX_BOX_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <grp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#define OWNER_FD 3
#define CONFIG_FD 4
#define MAX_DESCRIPTORS 16
#define MAX_MESSAGE (160 * 1024)
#define MAX_PATHS 64

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLONE_NEWCGROUP
#define CLONE_NEWCGROUP 0x02000000
#endif
#ifndef SECCOMP_FILTER_FLAG_NEW_LISTENER
#define SECCOMP_FILTER_FLAG_NEW_LISTENER 8
#endif
// As linux/notify.py: a waiter is only woken by what kills it.
#define WAIT_KILLABLE_RECV 32
#ifndef PR_CAP_AMBIENT
#define PR_CAP_AMBIENT 47
#define PR_CAP_AMBIENT_CLEAR_ALL 4
#endif

// The head of every message, both ways. `id` names a box, a zygote or a program, as the owner counts them.
struct head {
	uint32_t op;
	uint32_t id;
	int64_t a, b, c, d;
};

struct path {
	const char *name;
	mode_t mode;
};

struct config {
	uid_t guest_uid;
	gid_t guest_gid;
	const char *workspace;
	struct path writable[8];
	int n_writable;
	const char *masked_files[MAX_PATHS], *masked_directories[MAX_PATHS], *read_only[MAX_PATHS], *devices[MAX_PATHS];
	int n_masked_files, n_masked_directories, n_read_only, n_devices;
	struct { int which; rlim_t value; } limits[16];
	int n_limits;
	struct sock_fprog filter;
	// Where boxes are judged: what asks the judge, before the filter, and where a box shows the files that it has for
	// the guard.
	struct sock_fprog asking;
	const char *channel, *policy;
	int landlock;
};

// What failed, for the owner: the last step that was begun.
static const char *current_step = "";
#define STEP(name) (current_step = (name))

static int read_config(struct config *config)
{
	size_t room = 64 * 1024, used = 0;
	char *text = malloc(room);
	ssize_t got;
	if (!text)
		return -1;
	while ((got = pread(CONFIG_FD, text + used, room - used - 1, used)) > 0)
		used += got;
	text[used] = 0;
	memset(config, 0, sizeof *config);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char *value = strchr(line, ' ');
		if (!value)
			return -1;
		*value++ = 0;
#define LIST(key, list, count)                          \
	if (!strcmp(line, key)) {                       \
		if (config->count >= MAX_PATHS)         \
			return -1;                      \
		config->list[config->count++] = value;  \
		continue;                               \
	}
		LIST("masked-file", masked_files, n_masked_files)
		LIST("masked-directory", masked_directories, n_masked_directories)
		LIST("read-only", read_only, n_read_only)
		LIST("device", devices, n_devices)
#undef LIST
		if (!strcmp(line, "ids")) {
			config->guest_uid = config->guest_gid = strtoul(value, NULL, 10);
		} else if (!strcmp(line, "workspace")) {
			config->workspace = value;
		} else if (!strcmp(line, "writable")) {
			if (config->n_writable >= 8)
				return -1;
			char *path = strchr(value, ' ');
			*path++ = 0;
			config->writable[config->n_writable++] = (struct path){path, strtoul(value, NULL, 8)};
		} else if (!strcmp(line, "limit")) {
			char *end;
			if (config->n_limits >= 16)
				return -1;
			int which = strtol(value, &end, 10);
			config->limits[config->n_limits].which = which;
			config->limits[config->n_limits++].value = strtoull(end, NULL, 10);
		} else if (!strcmp(line, "channel")) {
			config->channel = value;
		} else if (!strcmp(line, "policy")) {
			config->policy = value;
		} else if (!strcmp(line, "filter") || !strcmp(line, "asking")) {
			struct sock_fprog *into = line[0] == 'f' ? &config->filter : &config->asking;
			size_t bytes = strlen(value) / 2;
			unsigned char *program = malloc(bytes);
			for (size_t i = 0; i < bytes; i++) {
				unsigned one;
				if (sscanf(value + 2 * i, "%2x", &one) != 1)
					return -1;
				program[i] = one;
			}
			into->len = bytes / sizeof(struct sock_filter);
			into->filter = (struct sock_filter *)program;
		} else {
			return -1;
		}
	}
	config->landlock = syscall(SYS_landlock_create_ruleset, NULL, 0, 1);
	return config->workspace && config->filter.len ? 0 : -1;
}

// One message with its descriptors; the length, 0 when the peer is gone, -1 with errno.
static ssize_t receive(int sock, void *buffer, size_t room, int *descriptors, int *count)
{
	struct iovec part = {buffer, room};
	union { struct cmsghdr align; char room[CMSG_SPACE(sizeof(int) * MAX_DESCRIPTORS)]; } control;
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t length = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
	*count = 0;
	if (length <= 0)
		return length;
	for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one; one = CMSG_NXTHDR(&message, one))
		if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_RIGHTS) {
			int n = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(descriptors + *count, CMSG_DATA(one), n * sizeof(int));
			*count += n;
		}
	if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		while (*count)
			close(descriptors[--*count]);
		errno = EMSGSIZE;
		return -1;
	}
	return length;
}

static int tell(int sock, struct head head, const char *text, const int *descriptors, int count)
{
	struct iovec parts[2] = {{&head, sizeof head}, {(void *)text, text ? strlen(text) : 0}};
	union { struct cmsghdr align; char room[CMSG_SPACE(sizeof(int) * MAX_DESCRIPTORS)]; } control;
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	if (count) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		struct cmsghdr *one = CMSG_FIRSTHDR(&message);
		one->cmsg_level = SOL_SOCKET;
		one->cmsg_type = SCM_RIGHTS;
		one->cmsg_len = CMSG_LEN(sizeof(int) * count);
		memcpy(CMSG_DATA(one), descriptors, sizeof(int) * count);
	}
	int sent;
	do
		sent = sendmsg(sock, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -1 : 0;
}

// Say how a process ended, with what it used: processor time in microseconds, the most memory in kilobytes.
static void tell_end(uint32_t op, uint32_t id, int status, const struct rusage *used)
{
	int64_t cpu = (used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000000ll + used->ru_utime.tv_usec
		+ used->ru_stime.tv_usec;
	tell(OWNER_FD, (struct head){op, id, status, cpu, used->ru_maxrss, 0}, NULL, NULL, 0);
}

// Of this process; what it executes is another matter, see below.
static int drop_powers(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	// NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each with its lock.
	if (prctl(PR_SET_SECUREBITS, 0xcf, 0, 0, 0) < 0)
		return -1;
	return syscall(SYS_capset, &head, none);
}

static int drop_capabilities(void)
{
	for (int one = 0; one < 64; one++)
		if (prctl(PR_CAPBSET_DROP, one, 0, 0, 0) < 0)
			break;
	return drop_powers();
}

struct landlock_attr { uint64_t files, net, scoped; };
struct landlock_path { uint64_t access; int32_t fd; } __attribute__((packed));

static int landlock_allow(int ruleset, const char *path, uint64_t access)
{
	struct stat about;
	int fd = open(path, O_PATH | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -1;
	if (fstat(fd, &about) == 0 && !S_ISDIR(about.st_mode))
		// Execute, write, read, truncate and device control are the rights that a file can have.
		access &= 1 | 2 | 4 | 1 << 14 | 1 << 15;
	struct landlock_path rule = {access, fd};
	int result = syscall(SYS_landlock_add_rule, ruleset, 1, &rule, 0);
	close(fd);
	return result;
}

// As linux/landlock.py: read and execute everywhere, write where the box is writable, use the devices.
static int landlock_confine(const struct config *config)
{
	int abi = config->landlock;
	if (abi <= 0)
		return 0;
	int rights = abi == 1 ? 13 : abi == 2 ? 14 : abi <= 4 ? 15 : 16;
	struct landlock_attr attr = {(1ull << rights) - 1, 0, abi >= 6 ? 3 : 0};
	int ruleset = syscall(SYS_landlock_create_ruleset, &attr, abi >= 6 ? 24 : abi >= 4 ? 16 : 8, 0);
	uint64_t readable = 1 | 4 | 8, device = readable | 2 | 1 << 14 | 1 << 15;
	if (ruleset < 0 || landlock_allow(ruleset, "/", readable) < 0)
		return -1;
	for (int i = 0; i < config->n_writable; i++)
		if (landlock_allow(ruleset, config->writable[i].name, attr.files) < 0)
			return -1;
	if (landlock_allow(ruleset, "/dev/pts", attr.files) < 0)
		return -1;
	for (int i = 0; i < config->n_devices; i++)
		if (landlock_allow(ruleset, config->devices[i], device & attr.files) < 0)
			return -1;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || syscall(SYS_landlock_restrict_self, ruleset, 0) < 0)
		return -1;
	return close(ruleset);
}

static int limit(int which, rlim_t value)
{
	struct rlimit old;
	if (getrlimit(which, &old) < 0)
		return -1;
	if (old.rlim_max != RLIM_INFINITY && old.rlim_max < value)
		value = old.rlim_max;
	struct rlimit new = {value, value};
	return setrlimit(which, &new);
}

// Hand the judge the listener: `l` and the descriptor, or `w` where it says when it is ready. -1 when it is gone.
static int wait_for_judge;
static int tell_judge(int judge, int listener)
{
	char word = wait_for_judge ? 'w' : 'l';
	struct iovec part = {&word, 1};
	union { struct cmsghdr align; char room[CMSG_SPACE(sizeof(int))]; } control;
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
		.msg_controllen = CMSG_SPACE(sizeof(int))};
	struct cmsghdr *one = CMSG_FIRSTHDR(&message);
	one->cmsg_level = SOL_SOCKET;
	one->cmsg_type = SCM_RIGHTS;
	one->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(one), &listener, sizeof(int));
	if (sendmsg(judge, &message, MSG_NOSIGNAL) != 1)
		return -1;
	return !wait_for_judge || recv(judge, &word, 1, 0) == 1 ? 0 : -1;
}

// Go from the nursery into the box whose init is `init`; `joins` are cgroup.procs files. The caller, a fresh fork, keeps
// the powers over that box. -1 with errno and current_step on failure, as in what follows.
static int go_in(const struct config *config, int init, const int *joins, int n_joins)
{
	STEP("join cgroup");
	for (int i = 0; i < n_joins; i++)
		if (write(joins[i], "0", 1) != 1)
			return -1;
	STEP("new session");
	if (setsid() < 0)
		return -1;
	STEP("enter the box");
	if (syscall(SYS_setns, init, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET) < 0)
		return -1;
	STEP("own control group");
	if (unshare(CLONE_NEWCGROUP) < 0)
		return -1;
	STEP("take the guest's ids");
	if (setresgid(config->guest_gid, config->guest_gid, config->guest_gid) < 0
	    || setresuid(config->guest_uid, config->guest_uid, config->guest_uid) < 0)
		return -1;
	umask(022);
	return 0;
}

static int install(const struct sock_fprog *filter, unsigned flags)
{
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, filter);
}

// Give up everything: the caller is a process of the guest afterwards. Where boxes are judged, `judge` is where the
// filter's listener goes, before anything could ask it.
static int confine(const struct config *config, int judge)
{
	STEP("working directory");
	if (chdir(config->workspace) < 0)
		return -1;
	STEP("capabilities");
	if (drop_capabilities() < 0)
		return -1;
	STEP("landlock");
	if (landlock_confine(config) < 0)
		return -1;
	STEP("limits");
	for (int i = 0; i < config->n_limits; i++)
		if (limit(config->limits[i].which, config->limits[i].value) < 0)
			return -1;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -1;
	if (config->asking.len) {
		STEP("exec judge");
		if (judge < 0) {
			errno = EBADF;
			return -1;
		}
		int listener = install(&config->asking, SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV);
		if (listener < 0 && errno == EINVAL)
			listener = install(&config->asking, SECCOMP_FILTER_FLAG_NEW_LISTENER);
		if (listener < 0 || tell_judge(judge, listener) < 0)
			return -1;
		close(listener);
	}
	STEP("seccomp");
	if (install(&config->filter, 0) < 0)
		return -1;
	// As after an execve: its own /proc files are its own.
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	STEP("");
	return 0;
}

static int enter(const struct config *config, int init, const int *joins, int n_joins)
{
	return go_in(config, init, joins, n_joins) < 0 ? -1 : confine(config, -1);
}

#endif
