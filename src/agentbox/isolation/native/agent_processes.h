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
