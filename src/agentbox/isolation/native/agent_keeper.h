// SPDX-License-Identifier: MIT
// A keeper: the fork of the agent below which one command runs. It is a subreaper, so nothing that the command starts
// gets away from below it. It knows the command's end, tells the agent, and stays until no child is left.

static int report_fd = -1;

// Whom the agent runs as, and its directory where that is one that something is mounted on.
struct identity {
	uid_t uid;
	gid_t gid;
	pid_t pid;
};
static struct identity own;
static char home[PATH_MAX];

// What a command without input reads, also the agent's own descriptor 0: a pipe that nobody writes to.
static int nothing = -1;

static void close_stdio(const int stdio[3]);

static void know_oneself(void)
{
	struct stat here, above;
	own = (struct identity){geteuid(), getegid(), getpid()};
	int mounted = stat(".", &here) == 0 && stat("..", &above) == 0 && here.st_dev != above.st_dev;
	if (!mounted || !getcwd(home, sizeof home))
		*home = 0;
}

static void count_usage(struct report *report, const struct rusage *usage)
{
	report->cpu_us = (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000ull + usage->ru_utime.tv_usec +
			 usage->ru_stime.tv_usec;
	report->rss = (uint64_t)usage->ru_maxrss * 1024;
}

static void tell(uint32_t kind, uint32_t status, const struct rusage *usage, const char *text)
{
	struct report report = {.kind = kind, .status = status};
	if (usage)
		count_usage(&report, usage);
	snprintf(report.text, sizeof report.text, "%s", text ? text : "");
	write_all(report_fd, &report, sizeof report);
}

static void begun(void)
{
	tell(STARTED, getpid(), NULL, NULL);
}

// Its uid, gid and home in a file of lines like /etc/passwd's; -1 where it has no such line.
static int find_user(const char *name, uid_t *uid, gid_t *gid)
{
	char line[1024];
	size_t length = strlen(name);
	FILE *file = fopen("/etc/passwd", "re");
	if (!file)
		return -1;
	int found = -1;
	while (found < 0 && fgets(line, sizeof line, file))
		if (!strncmp(line, name, length) && line[length] == ':') {
			char *field = strchr(line + length + 1, ':');
			unsigned a, b;
			if (field && sscanf(field, ":%u:%u", &a, &b) == 2)
				*uid = a, *gid = b, found = 0;
		}
	fclose(file);
	return found;
}

static int resolve_user(const char *user, uid_t *uid, gid_t *gid)
{
	unsigned a, b;
	int end = 0;
	*uid = own.uid, *gid = own.gid;
	if (!*user)
		return 0;
	if (sscanf(user, "%u:%u%n", &a, &b, &end) == 2 && !user[end]) {
		*uid = a, *gid = b;
		return 0;
	}
	if (sscanf(user, "%u%n", &a, &end) == 1 && !user[end]) {
		*uid = *gid = a;
		return 0;
	}
	return find_user(user, uid, gid);
}

struct caps {
	struct {
		uint32_t version;
		int pid;
	} header;
	struct {
		uint32_t effective, permitted, inheritable;
	} data[2];
};

// What a root of the box keeps of the agent's capabilities: CHOWN, DAC_OVERRIDE, FOWNER, SETGID, SETUID.
#define KEPT_BY_ROOT (1u << 0 | 1u << 1 | 1u << 3 | 1u << 6 | 1u << 7)

static void narrow_capabilities(void)
{
	struct caps caps = {.header = {0x20080522, 0}};
	if (syscall(SYS_capget, &caps.header, caps.data) < 0)
		return;
	uint32_t kept = caps.data[0].permitted & KEPT_BY_ROOT;
	caps.data[0].effective = caps.data[0].permitted = kept;
	caps.data[0].inheritable = 0;
	memset(&caps.data[1], 0, sizeof caps.data[1]);
	syscall(SYS_capset, &caps.header, caps.data);
}

static int become(uid_t uid, gid_t gid)
{
	if (own.uid == 0) {
		if (uid != 0 || gid != 0) {
			if (setgroups(1, &gid) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
				return -1;
		}
		// Of no account for others than root, whose capabilities are gone.
		narrow_capabilities();
		return 0;
	}
	if (uid == own.uid && gid == own.gid)
		return 0;
	errno = EPERM;
	return -1;
}

// Go to the directory of a request.
static int enter(const char *directory, uid_t uid)
{
	// What something is mounted on cannot be another directory by now.
	if (!*directory || (uid == own.uid && !strcmp(directory, home)))
		return 0;
	return chdir(directory);
}

static char **merged_environment(const struct request *request)
{
	size_t count = 0;
	while (environ[count])
		count++;
	char **merged = malloc((count + request->envc + 2) * sizeof *merged);
	if (!merged)
		return NULL;
	size_t used = 0;
	if (!subreaping) {
		static char mark[96];
		snprintf(mark, sizeof mark, MARK "%s-%u", mark_of_agent, request->id);
		merged[used++] = mark;
	}
	for (size_t i = 0; i < count + request->envc; i++) {
		char *each = i < count ? environ[i] : request->variables[i - count];
		size_t length = strcspn(each, "=");
		for (size_t j = 0; j < used; j++)
			if (!strncmp(merged[j], each, length) && merged[j][length] == '=') {
				merged[j] = merged[--used];
				break;
			}
		if (each[length] == '=')
			merged[used++] = each;
	}
	merged[used] = NULL;
	return merged;
}

// As execvpe of libc, which takes PATH from another environment and starts /bin/sh for what is no program.
static void execute(char **argv, char **variables)
{
	const char *path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
	char full[PATH_MAX];
	int denied = 0;
	if (strchr(argv[0], '/')) {
		execve(argv[0], argv, variables);
		return;
	}
	for (char **each = variables; *each; each++)
		if (!strncmp(*each, "PATH=", 5))
			path = *each + 5;
	errno = ENOENT;
	for (const char *at = path; *at;) {
		size_t length = strcspn(at, ":");
		if ((size_t)snprintf(full, sizeof full, "%.*s/%s", (int)length, at, argv[0]) < sizeof full) {
			execve(full, argv, variables);
			if (errno == EACCES)
				denied = 1;
			else if (errno != ENOENT && errno != ENOTDIR)
				return;
		}
		at += length + (at[length] == ':');
	}
	errno = denied ? EACCES : ENOENT;
}

static void overhear(int number)
{
	(void)number;
}

// What means nothing to an agent. Handled, not ignored: a program that is executed has it as any other program then,
// without a call for each, of which every one counts in gVisor.
static void overhear_signals(void)
{
	static const int OVERHEARD[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE};
	for (size_t i = 0; i < sizeof OVERHEARD / sizeof *OVERHEARD; i++)
		signal(OVERHEARD[i], overhear);
}

static void plain_signals(void)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static int take_stdio(const int stdio[3], int terminal)
{
	if (setsid() < 0)
		return -1;
	if (terminal && ioctl(stdio[0], TIOCSCTTY, 0) < 0)
		return -1;
	// Where there is to be nothing to read, there is nothing already.
	for (int target = stdio[0] == nothing; target < 3; target++)
		if (dup2(stdio[target], target) < 0)
			return -1;
	return 0;
}

// Start the command; -1 with errno, and what it was that failed. `identity` is who it becomes, in `directory`, where
// this process is not that already. By vfork: no page of the agent is copied.
static pid_t spawn(const struct request *request, char **variables, const int stdio[3], const struct identity *identity,
		   const char **what)
{
	volatile int why = 0;
	const char *volatile failed = NULL;
	pid_t pid = vfork();
	if (pid == 0) {
		failed = "stdio";
		if (take_stdio(stdio, request->flags & TERMINAL) == 0) {
			failed = NULL;
			if (identity) {
				if (become(identity->uid, identity->gid) < 0)
					failed = "cannot become that user";
				else if (enter(request->directory, identity->uid) < 0)
					failed = request->directory;
			}
			if (!failed) {
				failed = request->argv[0];
				if (report_fd >= 0)
					// Whom a keeper has that is killed before it can tell.
					tell(TRYING, getpid(), NULL, NULL);
				plain_signals();
				execute(request->argv, variables);
			}
		}
		why = errno;
		_exit(127);
	}
	*what = failed ? failed : "fork";
	if (pid > 0 && why) {
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		errno = why;
		return -1;
	}
	return pid;
}

static void fail(const char *what)
{
	char text[sizeof ((struct report *)0)->text];
	int why = errno;
	snprintf(text, sizeof text, "%s: %s", what, strerror(why));
	tell(FAILED, why, NULL, text);
	_exit(127);
}

static void keep_operation(const struct request *request, const int stdio[3])
{
	if (take_stdio(stdio, 0) < 0)
		fail("stdio");
	prctl(PR_SET_NAME, "agentbox-files");
	signal(SIGPIPE, SIG_IGN);
	int code = operate(request->argc, request->argv), why = errno;
	struct rusage usage;
	getrusage(RUSAGE_SELF, &usage);
	close(0), close(1), close(2);
	if (code < 0)
		// The agent knows whether it has begun.
		tell(FAILED, why, &usage, strerror(why));
	else
		tell(EXIT, 0, &usage, NULL);
	_exit(0);
}

// The whole life of a keeper. `stdio` are at 3 or above, as everything here is.
static void keep(const struct request *request, const int stdio[3], int report)
{
	uid_t uid;
	gid_t gid;
	report_fd = report;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_NAME, "agentbox-keeper");
	signal(SIGCHLD, SIG_DFL);
	plain_signals();
	if (resolve_user(request->user, &uid, &gid) < 0) {
		errno = EINVAL;
		fail("the box has no such user");
	}
	if (become(uid, gid) < 0)
		fail("cannot become that user");
	if (enter(request->directory, uid) < 0)
		fail(request->directory);
	if (request->flags & OWN)
		keep_operation(request, stdio);
	char **variables = merged_environment(request);
	if (!variables)
		fail("environment");
	const char *what;
	pid_t pid = spawn(request, variables, stdio, NULL, &what);
	if (pid < 0)
		fail(what);
	tell(STARTED, pid, NULL, NULL);
	close_stdio(stdio);
	for (;;) {
		int status;
		struct rusage usage;
		pid_t ended = wait4(-1, &status, 0, &usage);
		if (ended < 0 && errno != EINTR)
			break;
		if (ended == pid)
			tell(EXIT, status, &usage, NULL);
	}
	_exit(0);
}
