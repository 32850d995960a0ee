// SPDX-License-Identifier: MIT
// What a warm interpreter needs besides Python: a loop that forks children into boxes without touching one Python
// object, so that hardly a page is copied, and what a child does before and after the guest's code.
#include "box.h"

#include <poll.h>

static struct config config;
static struct { pid_t pid; uint32_t id; } children[4096];
static int n_children;
static int owner = -1;

static void woken(int number) { (void)number; }

static void reap(void)
{
	struct rusage used;
	int status;
	pid_t pid;
	while ((pid = wait4(-1, &status, WNOHANG, &used)) > 0)
		for (int i = 0; i < n_children; i++)
			if (children[i].pid == pid) {
				int64_t cpu = (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000ll
					+ used.ru_utime.tv_usec + used.ru_stime.tv_usec;
				tell(OWNER_FD, (struct head){'x', children[i].id, status, cpu, used.ru_maxrss, 0}, NULL, NULL, 0);
				children[i] = children[--n_children];
				break;
			}
}

// Fork a child into a box for every message: [init of the box, the owner's socket, control groups...]. Returns in a
// child (0), which is in its box and confined, or when the owner is gone (-1).
int zygote_loop(void)
{
	struct sigaction action = {.sa_handler = woken}, old;
	sigset_t child, before;
	if (read_config(&config) < 0)
		return -1;
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	sigaction(SIGCHLD, &action, &old);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	if (tell(OWNER_FD, (struct head){'r', 0, 0, 0, 0, 0}, NULL, NULL, 0) < 0)
		return -1;
	for (;;) {
		struct pollfd waiting = {OWNER_FD, POLLIN, 0};
		int ready = ppoll(&waiting, 1, NULL, &before);
		reap();
		if (ready <= 0)
			continue;
		int descriptors[MAX_DESCRIPTORS], count;
		struct head head;
		ssize_t length = receive(OWNER_FD, &head, sizeof head, descriptors, &count);
		if (length == 0 || (length < 0 && errno != EINTR && errno != EMSGSIZE))
			return -1;
		pid_t pid = -1;
		if (length != sizeof head || head.op != 'F' || count < 2 || n_children == 4096)
			errno = EINVAL;
		else if (syscall(SYS_setns, descriptors[0], CLONE_NEWPID) == 0)
			pid = fork();
		if (pid == 0) {
			owner = fcntl(descriptors[1], F_DUPFD_CLOEXEC, 1000);
			sigaction(SIGCHLD, &old, NULL);
			sigprocmask(SIG_SETMASK, &before, NULL);
			if (enter(&config, descriptors[0], descriptors + 2, count - 2) < 0) {
				tell(owner, (struct head){'e', head.id, errno, 0, 0, 0}, current_step, NULL, 0);
				_exit(125);
			}
			syscall(SYS_close_range, 3, owner - 1, 0);
			syscall(SYS_close_range, owner + 1, ~0u, 0);
			return 0;
		}
		if (pid < 0)
			tell(OWNER_FD, (struct head){'x', head.id, -1, errno, 0, 0}, NULL, NULL, 0);
		else {
			children[n_children].pid = pid;
			children[n_children++].id = head.id;
		}
		while (count)
			close(descriptors[--count]);
	}
}

// In a child: say that it is ready, and wait for what it shall run: the text of the message. `counts` become the numbers
// of arguments and variables in it, and its length. NULL when the owner is gone.
const char *zygote_wait(long *counts)
{
	int descriptors[MAX_DESCRIPTORS], count;
	struct head head;
	static char message[MAX_MESSAGE];
	if (tell(owner, (struct head){'r', 0, 0, 0, 0, 0}, NULL, NULL, 0) < 0)
		return NULL;
	ssize_t length = receive(owner, message, sizeof message, descriptors, &count);
	if (length < (ssize_t)sizeof head || count != 3)
		return NULL;
	memcpy(&head, message, sizeof head);
	if (place_stdio(descriptors) < 0)
		return NULL;
	while (count)
		if (descriptors[--count] > 2)
			close(descriptors[count]);
	if (head.c && limit(RLIMIT_NPROC, head.c) < 0)
		return NULL;
	counts[0] = head.a;
	counts[1] = head.b;
	counts[2] = length - sizeof head;
	return message + sizeof head;
}

// In a child: everything is written; the owner need not wait until this process is taken apart.
void zygote_finish(int code)
{
	tell(owner, (struct head){'x', 0, code & 255, 0, 0, 0}, NULL, NULL, 0);
	_exit(code);
}
