// SPDX-License-Identifier: MIT
// Who descends from whom, by /proc, and signals to all of them.

struct living {
	pid_t pid, parent;
	int marked;
};

struct population {
	struct living *all;
	int count, room;
};

static int read_stat(int proc, const char *name, struct living *found)
{
	char path[64], text[512], *after;
	snprintf(path, sizeof path, "%s/stat", name);
	int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t size = read(fd, text, sizeof text - 1);
	close(fd);
	if (size <= 0)
		return -1;
	text[size] = 0;
	// The name of a program may hold anything, a ')' too.
	after = strrchr(text, ')');
	char state;
	int parent;
	if (!after || sscanf(after + 1, " %c %d", &state, &parent) != 2 || state == 'Z' || state == 'X')
		return -1;
	*found = (struct living){atoi(name), parent, 0};
	return 0;
}

// Every process that is not dead yet; -1 without a /proc.
static int take_census(struct population *them)
{
	them->count = 0;
	DIR *directory = opendir("/proc");
	if (!directory)
		return -1;
	struct dirent *entry;
	while ((entry = readdir(directory))) {
		if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
			continue;
		if (them->count == them->room) {
			int room = them->room ? 2 * them->room : 256;
			void *grown = realloc(them->all, room * sizeof *them->all);
			if (!grown)
				break;
			them->all = grown;
			them->room = room;
		}
		if (read_stat(dirfd(directory), entry->d_name, &them->all[them->count]) == 0)
			them->count++;
	}
	closedir(directory);
	return 0;
}

// Some kernels, gVisor's of old, have no subreapers: what a command leaves behind goes to PID 1. There each command has a
// mark in its environment, which its children inherit.
#define MARK "AGENTBOX_COMMAND="
static int subreaping;
static char mark_of_agent[32];

static void make_mark(void)
{
	uint64_t random = now_ms() << 20 ^ getpid();
	int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && read(fd, &random, sizeof random) < 0)
		random ^= getpid();
	if (fd >= 0)
		close(fd);
	snprintf(mark_of_agent, sizeof mark_of_agent, "%016llx", (unsigned long long)random);
}

// Whether the environment of an orphan has the mark of this command, or of none.
static int may_belong(pid_t pid, uint32_t id)
{
	static char content[1 << 20];
	char path[64], mark[96];
	size_t size = 0;
	ssize_t got;
	snprintf(path, sizeof path, "/proc/%d/environ", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno != ENOENT;
	while (size < sizeof content && (got = read(fd, content + size, sizeof content - size)) > 0)
		size += got;
	close(fd);
	int length = snprintf(mark, sizeof mark, MARK "%s-%u", mark_of_agent, id);
	// With the zero byte behind it.
	if (memmem(content, size, mark, length + 1))
		return 1;
	return !memmem(content, size, mark, strlen(MARK) + strlen(mark_of_agent));
}

static int is_marked(const struct population *them, pid_t pid)
{
	for (int i = 0; i < them->count; i++)
		if (them->all[i].pid == pid)
			return them->all[i].marked;
	return 0;
}

// Mark all that descend from who is marked; returns how many were added.
static int mark_descendants(struct population *them)
{
	int added = 0, again = 1;
	while (again) {
		again = 0;
		for (int i = 0; i < them->count; i++)
			if (!them->all[i].marked && is_marked(them, them->all[i].parent)) {
				them->all[i].marked = again = 1;
				added++;
			}
	}
	return added;
}

static void signal_marked(const struct population *them, int number, uid_t uid, gid_t gid)
{
	int refused = 0;
	for (int i = 0; i < them->count; i++)
		if (them->all[i].marked == 1 && kill(them->all[i].pid, number) < 0 && errno == EPERM)
			refused = 1;
	if (!refused || geteuid() != 0 || uid == 0)
		return;
	// A root without CAP_KILL: as the user it may.
	pid_t child = fork();
	if (child == 0) {
		if (setresgid(gid, gid, gid) == 0 && setresuid(uid, uid, uid) == 0)
			for (int i = 0; i < them->count; i++)
				if (them->all[i].marked == 1)
					kill(them->all[i].pid, number);
		_exit(0);
	}
	if (child > 0)
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
}
