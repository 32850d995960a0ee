// SPDX-License-Identifier: MIT
// The maker of boxes: PID 1 of a nursery. It holds the view of the file system that every box begins with, makes boxes
// (namespaces and an init, nothing else) at its owner's word, and starts programs in them. When the owner's socket
// closes it ends, and with it, by the kernel, everything in its PID namespace: every box and every warm interpreter.
#include "box.h"

#include <linux/audit.h>
#include <net/if.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/un.h>

#define CHANNEL_BACKLOG 256
#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif

static struct config config;
static uid_t own_uid;
// A pidfd of this process.
static int self = -1;

// `line` is of a warm interpreter: what its owner says to it, box inits say too.
struct child {
	pid_t pid;
	uint32_t op, id;
	int line;
};
static struct child *children;
static int n_children, room_for_children;

static void remember(pid_t pid, uint32_t op, uint32_t id, int line)
{
	if (n_children == room_for_children) {
		room_for_children = room_for_children ? 2 * room_for_children : 64;
		children = realloc(children, room_for_children * sizeof *children);
		if (!children)
			_exit(70);
	}
	children[n_children++] = (struct child){pid, op, id, line};
}

static struct child *child_of(uint32_t op, uint32_t id)
{
	for (int i = 0; i < n_children; i++)
		if (children[i].op == op && children[i].id == id)
			return children + i;
	return NULL;
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t length = strlen(text), sent = write(fd, text, length);
	close(fd);
	return sent == length ? 0 : -1;
}

static int map_ids(uid_t uid, gid_t gid)
{
	char line[64];
	if (write_file("/proc/self/setgroups", "deny") < 0)
		return -1;
	snprintf(line, sizeof line, "%u %u 1", config.guest_uid, uid);
	if (write_file("/proc/self/uid_map", line) < 0)
		return -1;
	snprintf(line, sizeof line, "%u %u 1", config.guest_gid, gid);
	if (write_file("/proc/self/gid_map", line) < 0)
		return -1;
	if (setresgid(config.guest_gid, config.guest_gid, config.guest_gid) < 0)
		return -1;
	return setresuid(config.guest_uid, config.guest_uid, config.guest_uid);
}

static int loopback_up(void)
{
	struct ifreq request = {.ifr_name = "lo"};
	int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (sock < 0 || ioctl(sock, SIOCGIFFLAGS, &request) < 0)
		return -1;
	request.ifr_flags |= IFF_UP;
	int result = ioctl(sock, SIOCSIFFLAGS, &request);
	close(sock);
	return result;
}

static int mount_proc(void)
{
	unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	if (mount("proc", "/proc", "proc", flags, NULL) < 0)
		return -1;
	// The sources lie where the box's own /tmp will cover them.
	for (int i = 0; i < config.n_masked_files; i++)
		if (mount("/tmp/nothing", config.masked_files[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
			return -1;
	for (int i = 0; i < config.n_masked_directories; i++)
		if (mount("/tmp/empty", config.masked_directories[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
			return -1;
	for (int i = 0; i < config.n_read_only; i++) {
		const char *path = config.read_only[i];
		if (mount(path, path, NULL, MS_BIND | MS_REC, NULL) < 0) {
			if (errno == ENOENT)
				continue;
			return -1;
		}
		if (mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | flags, NULL) < 0)
			return -1;
	}
	return 0;
}

// The listener of the guard's channel, made inside and served outside, and the file of the policy, which the owner
// writes when a run begins. Both are on the box's own disk, beside what it may write.
static int place_guard_files(const char *disk, int *listener, int *policy)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char file[64];
	snprintf(address.sun_path, sizeof address.sun_path, "%s/channel", disk);
	*listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (*listener < 0 || bind(*listener, (struct sockaddr *)&address, sizeof address) < 0
	    || listen(*listener, CHANNEL_BACKLOG) < 0)
		return -1;
	snprintf(file, sizeof file, "%s/policy", disk);
	*policy = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (*policy < 0)
		return -1;
	const char *pairs[2][2] = {{address.sun_path, config.channel}, {file, config.policy}};
	for (int i = 0; i < 2; i++)
		if (mount(pairs[i][0], pairs[i][1], NULL, MS_BIND, NULL) < 0
		    || mount(NULL, pairs[i][1], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
			return -1;
	return 0;
}

// The writable directories are parts of one file system, so the disk limit holds their sum. It hangs for a moment where
// the terminals will be.
static int mount_disk(int64_t bytes, int64_t inodes, int *listener, int *policy)
{
	char text[128], part[32];
	snprintf(text, sizeof text, "size=%lld,nr_inodes=%lld,mode=0755", (long long)bytes, (long long)inodes);
	if (mount("tmpfs", "/dev/pts", "tmpfs", MS_NOSUID | MS_NODEV, text) < 0)
		return -1;
	umask(0);
	for (int i = 0; i < config.n_writable; i++) {
		snprintf(part, sizeof part, "/dev/pts/%d", i);
		if (mkdir(part, config.writable[i].mode) < 0 || mount(part, config.writable[i].name, NULL, MS_BIND, NULL) < 0)
			return -1;
	}
	umask(022);
	if (config.channel && place_guard_files("/dev/pts", listener, policy) < 0)
		return -1;
	if (umount2("/dev/pts", MNT_DETACH) < 0)
		return -1;
	return mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620");
}

// Processes and threads that ever ran in this PID namespace, the init not counted.
static long started(void)
{
	char text[128];
	int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	if (length <= 0)
		return 0;
	text[length] = 0;
	char *last = strrchr(text, ' ');
	return last ? strtol(last, NULL, 10) - 1 : 0;
}

static volatile sig_atomic_t asked;

static void end_was_asked(int number)
{
	(void)number;
	asked = 1;
}

static void woken(int number) { (void)number; }

// The exit code that the program told by its report, or -1. A guest may take away what it wrote there.
static int told_code(int report)
{
	unsigned char code;
	return report >= 0 && read(report, &code, 1) == 1 ? code : -1;
}

// End everything in this box but its init, which is about to end too, and say so: how many processes there ever were,
// and the exit code that the program told, by `report` if it did so only now, or -1.
static void end(uint32_t id, int code, int report)
{
	// The first process of a PID namespace after its init is its second, and once it is killed it starts no other. To
	// kill all of them the kernel looks at every process of the host.
	kill(2, SIGKILL);
	long count = started();
	if (count != 1)
		kill(-1, SIGKILL);
	if (code < 0)
		code = told_code(report);
	tell(OWNER_FD, (struct head){'c', id, count, code, 0, 0}, NULL, NULL, 0);
	_exit(0);
}

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define MACHINE AUDIT_ARCH_AARCH64
#endif

// All that an init does from now on. It is small because the kernel asks a filter about every call when it is put on.
static int keep_to_own_calls(void)
{
#ifdef MACHINE
	static const int calls[] = {SYS_ppoll, SYS_read, SYS_wait4, SYS_kill, SYS_openat, SYS_close, SYS_sendmsg,
		SYS_rt_sigreturn, SYS_exit_group};
	enum { N = sizeof calls / sizeof *calls };
	struct sock_filter filter[N + 5] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 0, N + 1),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	for (int i = 0; i < N; i++)
		filter[3 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], N - i, 0);
	filter[N + 3] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	filter[N + 4] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {N + 5, filter};
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
#else
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &config.filter);
#endif
}

// The init of a box: reaps, and ends everything when its owner sends SIGUSR1, or when a warm child says by `report` that
// its program has ended.
static void live(uint32_t id, int report)
{
	struct sigaction action = {.sa_handler = woken};
	struct pollfd told = {report, POLLIN, 0};
	sigset_t none;
	sigemptyset(&none);
	sigaction(SIGCHLD, &action, NULL);
	action.sa_handler = end_was_asked;
	sigaction(SIGUSR1, &action, NULL);
	if (keep_to_own_calls() < 0)
		_exit(1);
	for (;;) {
		if (asked)
			end(id, -1, told.fd);
		int ready = ppoll(&told, told.fd >= 0, NULL, &none);
		if (ready > 0 && told.revents & POLLIN) {
			// Only who has told it is killed: a program whose code was taken away ends by itself, with that code.
			int code = told_code(told.fd);
			if (code >= 0)
				end(id, code, -1);
		} else if (ready > 0) {
			// Every process that had it is gone, or has closed it.
			close(told.fd);
			told.fd = -1;
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}

// Pipes for a warm child's exit code, stdout and stderr: the ends to read from in `read`, those to write in `write`.
static int make_pipes(int *read, int *write)
{
	for (int i = 0; i < 3; i++) {
		int ends[2];
		// Who reads must not be blocked: a guest may open its own pipes again, and take away what it has written.
		if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0 || fcntl(ends[1], F_SETFL, O_WRONLY) < 0)
			return -1;
		read[i] = ends[0];
		write[i] = ends[1];
	}
	return 0;
}

// Op 'B' asks for a box alone, 'P' for one with pipes for a warm child, 'W' for one in which such a child waits: by
// `zygote`, with `joins`. That child tells the owner of itself and of the box.
static void become_init(const struct head *head, int zygote, const int *joins, int n_joins)
{
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigaddset(&mask, SIGUSR1);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	signal(SIGCHLD, SIG_DFL);
	prctl(PR_SET_NAME, "agentbox-init", 0, 0, 0);
	// The init and the workspace; with a guard its channel and its policy; the owner's ends and a child's ends of pipes.
	int given[MAX_DESCRIPTORS] = {-1, -1}, n_given = 2, from[3] = {-1, -1, -1}, into[3], line[2];
	// Until its maps are written its /proc files must be its own.
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	if (STEP("map ids") && map_ids(head->a, head->b) < 0)
		goto failed;
	if (STEP("loopback") && loopback_up() < 0)
		goto failed;
	if (STEP("mount /proc") && mount_proc() < 0)
		goto failed;
	if (STEP("writable directories") && mount_disk(head->c, head->d, given + 2, given + 3) < 0)
		goto failed;
	if (config.channel)
		n_given = 4;
	STEP("open workspace");
	// Where a run may show less of it, by a mount that is not in the box.
	int whole = !config.channel ? AT_FDCWD
		: (int)syscall(SYS_open_tree, AT_FDCWD, config.workspace, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	if (whole == -1)
		goto failed;
	given[1] = openat(whole, config.channel ? "." : config.workspace, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (given[1] < 0)
		goto failed;
	STEP("init");
	if ((given[0] = syscall(SYS_pidfd_open, getpid(), 0)) < 0 || chdir("/") < 0)
		goto failed;
	if (head->op != 'B') {
		STEP("pipes");
		if (make_pipes(from, into) < 0)
			goto failed;
		memcpy(given + n_given, from + 1, 2 * sizeof(int));
		n_given += 2;
	}
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	STEP("capabilities");
	if (drop_capabilities() < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		goto failed;
	if (head->op == 'W') {
		// [init, its own line, pipes..., what it tells the owner of..., control groups]
		int message[MAX_DESCRIPTORS] = {given[0]}, count = 5;
		STEP("warm child");
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) < 0)
			goto failed;
		message[1] = line[0];
		memcpy(message + 2, into, sizeof into);
		message[count++] = given[1];
		message[count++] = line[1];
		memcpy(message + count, from + 1, 2 * sizeof(int));
		memcpy(message + count + 2, joins, n_joins * sizeof(int));
		if (tell(zygote, (struct head){'W', head->id, 0, 0, 0, 0}, NULL, message, count + 2 + n_joins) < 0)
			goto failed;
	} else {
		if (head->op == 'P') {
			memcpy(given + n_given, into, sizeof into);
			n_given += 3;
		}
		tell(OWNER_FD, (struct head){'b', head->id, 0, 0, 0, 0}, NULL, given, n_given);
	}
	// A box lives as long as its owner has the socket; nothing else is for its init to hold.
	int report = from[0] < 0 ? -1 : dup2(from[0], CONFIG_FD);
	syscall(SYS_close_range, CONFIG_FD + (report >= 0), ~0u, 0);
	live(head->id, report);
failed:
	tell(OWNER_FD, (struct head){'b', head->id, errno, 0, 0, 0}, current_step, NULL, 0);
	_exit(1);
}

// The user namespace of a box belongs to the box's own id, so that id makes it; capabilities stay (see main).
static void make_box(const struct head *head, const char *text, const int *joins, int n_joins)
{
	struct child *zygote = head->op == 'W' ? child_of('z', strtoul(text, NULL, 10)) : NULL;
	STEP("take the box's uid");
	pid_t pid = -1;
	if (head->op == 'W' && (!zygote || n_joins > MAX_DESCRIPTORS - 9)) {
		STEP("warm child");
		errno = ESRCH;
	} else if (setresgid(head->b, head->b, 0) == 0 && setresuid(head->a, head->a, 0) == 0) {
		STEP("unshare");
		pid = syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET
			| SIGCHLD, NULL, NULL, NULL, NULL);
	}
	if (pid == 0)
		become_init(head, zygote ? zygote->line : -1, joins, n_joins);
	int code = errno;
	if (setresuid(own_uid, own_uid, own_uid) < 0 || setresgid(own_uid, own_uid, own_uid) < 0)
		_exit(70);
	if (pid < 0)
		tell(OWNER_FD, (struct head){'b', head->id, code, 0, 0, 0}, current_step, NULL, 0);
	else
		remember(pid, 'b', head->id, -1);
}

// `a` arguments and then `b` variables, each ended by NUL.
static char **words(char **text, const char *end, int count)
{
	char **list = calloc(count + 1, sizeof *list);
	for (int i = 0; list && i < count; i++) {
		if (*text >= end)
			return NULL;
		list[i] = *text;
		*text += strlen(*text) + 1;
	}
	return list;
}

static int place_stdio(const int *descriptors)
{
	for (int target = 0; target < 3; target++) {
		if (descriptors[target] == target)
			fcntl(target, F_SETFD, 0);
		else if (dup2(descriptors[target], target) < 0)
			return -1;
	}
	return 0;
}

// Start a program: in a box ('E', whose descriptors begin with the box's init), or a warm interpreter in the nursery's
// own view ('Z'). `descriptors`: [init of the box,] stdin, stdout, stderr, report or owner's socket, the other end of that
// socket for inits, or `d` that a program in a box shall have as 3 and up (two at most), control groups.
static void start(const struct head *head, char *text, size_t length, int *descriptors, int count)
{
	int in_box = head->op == 'E', further = in_box && head->d > 0 && head->d <= 2 ? head->d : 0;
	uint32_t answer = in_box ? 'x' : 'z';
	pid_t pid = -1;
	char *end = text + length;
	char **argv = words(&text, end, head->a), **envp = argv ? words(&text, end, head->b) : NULL;
	if (!envp || !head->a || count < 5 + further) {
		errno = EINVAL;
	} else if (!in_box || syscall(SYS_setns, descriptors[0], CLONE_NEWPID) == 0) {
		pid = fork();
	}
	if (pid == 0) {
		const int *stdio = descriptors + in_box;
		int report = stdio[3];
		sigset_t none;
		sigemptyset(&none);
		signal(SIGCHLD, SIG_DFL);
		sigprocmask(SIG_SETMASK, &none, NULL);
		if (in_box) {
			int fd = fcntl(report, F_DUPFD_CLOEXEC, 64);
			int failed = enter(&config, descriptors[0], stdio + 4 + further, count - 5 - further) < 0
				|| (head->c && limit(RLIMIT_NPROC, head->c) < 0) || place_stdio(stdio) < 0
				|| (further > 0 && dup2(stdio[4], 3) < 0) || (further > 1 && dup2(stdio[5], 4) < 0);
			if (!failed) {
				dup3(fd, 3 + further, O_CLOEXEC);
				fd = 3 + further;
				syscall(SYS_close_range, fd + 1, ~0u, 0);
				execve(argv[0], argv, envp);
			}
			dprintf(fd, "%d %s", errno, current_step[0] ? current_step : argv[0]);
		} else {
			place_stdio(stdio);
			if (dup2(report, OWNER_FD) < 0 || fcntl(CONFIG_FD, F_SETFD, 0) < 0)
				_exit(126);
			syscall(SYS_close_range, 5, ~0u, 0);
			if (chdir(config.workspace) == 0)
				execve(argv[0], argv, envp);
		}
		_exit(127);
	}
	int code = errno;
	// The kernel makes no box for one whose children belong to another.
	if (in_box && syscall(SYS_setns, self, CLONE_NEWPID) < 0)
		_exit(70);
	if (pid < 0)
		tell(OWNER_FD, (struct head){answer, head->id, -1, code, 0, 0}, NULL, NULL, 0);
	else
		remember(pid, answer, head->id, in_box ? -1 : fcntl(descriptors[4], F_DUPFD_CLOEXEC, CONFIG_FD + 1));
	free(argv);
	free(envp);
}

static void reap(void)
{
	struct rusage used;
	int status;
	pid_t pid;
	while ((pid = wait4(-1, &status, WNOHANG, &used)) > 0)
		for (int i = 0; i < n_children; i++)
			if (children[i].pid == pid) {
				struct child ended = children[i];
				children[i] = children[--n_children];
				if (ended.line >= 0)
					close(ended.line);
				tell_end(ended.op == 'b' ? 'g' : ended.op, ended.id, status, &used);
				break;
			}
}

int main(void)
{
	static char buffer[MAX_MESSAGE];
	sigset_t child, before;
	own_uid = getuid();
	signal(SIGPIPE, SIG_IGN);
	if (read_config(&config) < 0)
		return 78;
	prctl(PR_SET_NAME, "agentbox-maker", 0, 0, 0);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	// Changing the uid must not take the capabilities: SECBIT_NO_SETUID_FIXUP.
	if (prctl(PR_SET_SECUREBITS, 4, 0, 0, 0) < 0)
		return 77;
	struct sigaction action = {.sa_handler = woken};
	sigaction(SIGCHLD, &action, NULL);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	self = syscall(SYS_pidfd_open, getpid(), 0);
	if (self < 0 || tell(OWNER_FD, (struct head){'r', 0, 0, 0, 0, 0}, NULL, &self, 1) < 0)
		return 0;
	for (;;) {
		struct pollfd waiting = {OWNER_FD, POLLIN, 0};
		int ready = ppoll(&waiting, 1, NULL, &before);
		reap();
		if (ready <= 0)
			continue;
		int descriptors[MAX_DESCRIPTORS], count;
		struct head head;
		ssize_t length = receive(OWNER_FD, buffer, sizeof buffer - 1, descriptors, &count);
		if (length == 0 || (length < 0 && errno != EINTR && errno != EMSGSIZE))
			return 0;
		if (length < (ssize_t)sizeof head)
			continue;
		buffer[length] = 0;
		memcpy(&head, buffer, sizeof head);
		struct child *known;
		if (head.op == 'B' || head.op == 'P' || head.op == 'W')
			make_box(&head, buffer + sizeof head, descriptors, count);
		// A box that its owner has no descriptor of yet.
		else if (head.op == 'K' && (known = child_of('b', head.id)))
			kill(known->pid, SIGKILL);
		// A warm interpreter of which no more children are wanted.
		else if (head.op == 'D' && (known = child_of('z', head.id)) && known->line >= 0) {
			close(known->line);
			known->line = -1;
		}
		else if (head.op == 'E' || head.op == 'Z')
			start(&head, buffer + sizeof head, length - sizeof head, descriptors, count);
		while (count)
			close(descriptors[--count]);
	}
}
