// SPDX-License-Identifier: MIT
// The agent's own operations on files. Each runs in a process of its own, as the user of its request: what it follows,
// it follows as the guest. `begun` is called before the first byte; errors before it are told by errno.

static void begun(void);

static int usage(void)
{
	errno = EINVAL;
	return -1;
}

static int make_parents(const char *path)
{
	char each[PATH_MAX];
	if (strlen(path) >= sizeof each) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(each, path);
	for (char *slash = strchr(each + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		if (mkdir(each, 0755) < 0 && errno != EEXIST)
			return -1;
		*slash = '/';
	}
	return 0;
}

static int read_file(char **argv)
{
	static char chunk[MAX_OUTPUT];
	long long offset = atoll(argv[2]), left = atoll(argv[3]);
	int fd = open(argv[1], O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct stat status;
	if (fd < 0 || fstat(fd, &status) < 0)
		return -1;
	if (!S_ISREG(status.st_mode)) {
		errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
		return -1;
	}
	if (offset && lseek(fd, offset, SEEK_SET) < 0)
		return -1;
	begun();
	while (left) {
		size_t want = left > 0 && left < MAX_OUTPUT ? (size_t)left : MAX_OUTPUT;
		ssize_t got = read(fd, chunk, want);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -1;
		if (got == 0)
			break;
		if (write_all(1, chunk, got) < 0)
			return -1;
		if (left > 0)
			left -= got;
	}
	return 0;
}

static int copy_all(int from, int to)
{
	static char chunk[MAX_OUTPUT];
	for (;;) {
		ssize_t got = read(from, chunk, sizeof chunk);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got;
		if (write_all(to, chunk, got) < 0)
			return -1;
	}
}

static int write_in_place(const char *path, int flags, mode_t mode)
{
	int fd = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags, mode);
	struct stat status;
	if (fd < 0 || fstat(fd, &status) < 0)
		return -1;
	if (!S_ISREG(status.st_mode)) {
		errno = EINVAL;
		return -1;
	}
	begun();
	return copy_all(0, fd);
}

// Put what was written beside a file into its place. Over a file that something is mounted on, as on one that alone is
// shown of a directory, nothing can be renamed: that is written anew.
static int put_in_place(int fd, const char *beside, const char *path)
{
	// What a file system tells of its writes no sooner than a descriptor of it is closed.
	int other = dup(fd);
	if (other < 0 || close(other) < 0)
		return -1;
	if (rename(beside, path) == 0)
		return close(fd);
	if (errno != EBUSY && errno != EXDEV)
		return -1;
	int to = open(path, O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (to < 0 || lseek(fd, 0, SEEK_SET) < 0 || copy_all(fd, to) < 0 || close(to) < 0)
		return -1;
	return unlink(beside);
}

static int write_file(char **argv)
{
	char real[PATH_MAX], beside[PATH_MAX + 32];
	struct stat status;
	const char *path = argv[1], *how = argv[3];
	int chosen = strcmp(argv[2], "-") != 0;
	mode_t mode = chosen ? strtoul(argv[2], NULL, 8) & 0777 : 0644;
	if (make_parents(path) < 0)
		return -1;
	if (!strcmp(how, "new"))
		return write_in_place(path, O_CREAT | O_EXCL, mode);
	if (!strcmp(how, "append"))
		return write_in_place(path, O_CREAT | O_APPEND, mode);
	if (strcmp(how, "replace"))
		return usage();
	int there = stat(path, &status) == 0;
	if (there) {
		if (!S_ISREG(status.st_mode)) {
			errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
			return -1;
		}
		if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) < 0 || !realpath(path, real))
			return -1;
		path = real;
		if (!chosen)
			mode = status.st_mode & 0777;
	} else if (errno != ENOENT)
		return -1;
	const char *slash = strrchr(path, '/');
	// Process ids begin anew in each box: what a write left that was cut off, here or in the box that this is a fork of,
	// must not be in the way.
	unsigned long long unique;
	if (getrandom(&unique, sizeof unique, 0) != sizeof unique)
		return -1;
	snprintf(beside, sizeof beside, "%.*s.agentbox-%016llx", slash ? (int)(slash + 1 - path) : 0, path, unique);
	int fd = open(beside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0) {
		// A file that may be written in a directory that may not, or a link that leads to nothing.
		if (there && (errno == EACCES || errno == EPERM || errno == EROFS))
			return write_in_place(path, O_TRUNC, mode);
		return -1;
	}
	begun();
	if (copy_all(0, fd) < 0 || fchmod(fd, mode) < 0 || put_in_place(fd, beside, path) < 0) {
		int why = errno;
		unlink(beside);
		errno = why;
		return -1;
	}
	return 0;
}

static char type_of(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG: return 'f';
	case S_IFDIR: return 'd';
	case S_IFLNK: return 'l';
	case S_IFIFO: return 'p';
	case S_IFSOCK: return 's';
	case S_IFCHR: return 'c';
	default: return 'b';
	}
}

static void print_entry(int directory, const char *name, const char *path, const struct stat *status)
{
	char target[PATH_MAX + 1];
	printf("%c %o %lld %lld%09ld %u %u\t%s", type_of(status->st_mode), status->st_mode & 07777,
	       (long long)status->st_size, (long long)status->st_mtim.tv_sec, status->st_mtim.tv_nsec, status->st_uid,
	       status->st_gid, path);
	if (S_ISLNK(status->st_mode)) {
		ssize_t size = readlinkat(directory, name, target, PATH_MAX);
		target[size < 0 ? 0 : size] = 0;
		printf("%c%s", 0, target);
	}
	fwrite("\0", 1, 2, stdout);
}

// Each level holds a descriptor, so there is an end to them.
#define MAX_LEVELS 256

static int list_below(int directory, char *path, size_t size, int depth, int level)
{
	DIR *entries = fdopendir(directory);
	struct dirent *entry;
	if (!entries)
		return -1;
	while ((entry = readdir(entries))) {
		struct stat status;
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		size_t longer = size + strlen(entry->d_name) + 1;
		if (longer >= 8 * PATH_MAX)
			continue;
		snprintf(path + size, 8 * PATH_MAX - size, "/%s", entry->d_name);
		print_entry(directory, entry->d_name, path, &status);
		if (depth < 0 && S_ISDIR(status.st_mode) && level < MAX_LEVELS) {
			int below = openat(directory, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			if (below >= 0)
				list_below(below, path, longer, depth, level + 1);
		}
		path[size] = 0;
	}
	closedir(entries);
	return 0;
}

static int list_files(char **argv)
{
	static char path[8 * PATH_MAX];
	int depth = atoi(argv[2]);
	struct stat status;
	if (strlen(argv[1]) >= PATH_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(path, argv[1]);
	if (depth == 0) {
		if (lstat(path, &status) < 0)
			return -1;
		begun();
		print_entry(AT_FDCWD, path, path, &status);
	} else {
		int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (directory < 0)
			return -1;
		begun();
		size_t size = strlen(path);
		while (size && path[size - 1] == '/')
			path[--size] = 0;
		if (list_below(directory, path, size, depth, 0) < 0)
			return -1;
	}
	return fflush(stdout);
}

static int make_directory(char **argv)
{
	struct stat status;
	if (make_parents(argv[1]) < 0)
		return -1;
	if (mkdir(argv[1], strtoul(argv[2], NULL, 8) & 0777) == 0)
		return 0;
	if (errno == EEXIST && stat(argv[1], &status) == 0 && S_ISDIR(status.st_mode))
		return 0;
	return -1;
}

// Two descriptors however deep it is: go down to a directory without directories, empty it, come up, remove it.
static int remove_below(const char *path)
{
	char **names = NULL;
	int level = 0, room = 0, failed = 0;
	int here = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (here < 0)
		return -1;
	for (;;) {
		char *down = NULL;
		int copy = openat(here, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		DIR *entries = copy < 0 ? NULL : fdopendir(copy);
		struct dirent *entry;
		if (!entries)
			failed = errno;
		while (entries && !failed && (entry = readdir(entries))) {
			if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
				continue;
			if (unlinkat(here, entry->d_name, 0) == 0 || errno == ENOENT)
				continue;
			int why = errno;
			if (unlinkat(here, entry->d_name, AT_REMOVEDIR) == 0)
				continue;
			if (errno == ENOTEMPTY || errno == EEXIST) {
				down = strdup(entry->d_name);
				break;
			}
			failed = errno == ENOTDIR ? why : errno;
		}
		if (entries)
			closedir(entries);
		if (failed)
			break;
		int next = openat(here, down ? down : "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC | (down ? O_NOFOLLOW : 0));
		if (!down && level == 0) {
			close(next);
			break;
		}
		if (next < 0) {
			failed = errno;
			break;
		}
		close(here);
		here = next;
		if (down) {
			if (level == room)
				names = realloc(names, (room = room ? 2 * room : 64) * sizeof *names);
			names[level++] = down;
		} else {
			if (unlinkat(here, names[--level], AT_REMOVEDIR) < 0 && errno != ENOENT) {
				failed = errno;
				break;
			}
			free(names[level]);
		}
	}
	close(here);
	errno = failed;
	return failed ? -1 : rmdir(path);
}

static int remove_file(char **argv)
{
	if (unlink(argv[1]) == 0)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -1;
	int why = errno;
	struct stat status;
	if (lstat(argv[1], &status) < 0 || !S_ISDIR(status.st_mode)) {
		errno = why;
		return -1;
	}
	return remove_below(argv[1]);
}

static int rename_file(char **argv)
{
	return rename(argv[1], argv[2]);
}

static const struct {
	const char *name;
	uint32_t argc;
	int (*run)(char **argv);
} OPERATIONS[] = {
    {"read", 4, read_file},        {"write", 4, write_file},   {"list", 3, list_files},
    {"mkdir", 3, make_directory},  {"remove", 2, remove_file}, {"rename", 3, rename_file},
};

// The exit code, or -1 with errno where nothing has begun.
static int operate(uint32_t argc, char **argv)
{
	for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
		if (!strcmp(argv[0], OPERATIONS[i].name) && argc == OPERATIONS[i].argc)
			return OPERATIONS[i].run(argv);
	return usage();
}
