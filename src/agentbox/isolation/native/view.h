// SPDX-License-Identifier: MIT
// What a box shows of its workspace when a policy grants less than all of it: as launcher/view.py does for a box that
// the launcher builds. The owner has filled the workspace, nothing of the guest runs, and the caller has the powers over
// the box's mounts. Its owner keeps a descriptor of a mount that is not in the box: no cover is in its way.
#ifndef AGENTBOX_VIEW_H
#define AGENTBOX_VIEW_H

#include <sys/stat.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif

enum { TREE_CLONE = 1, TREE_RECURSIVE = 0x8000, TREE_ITSELF = 0x1000, MOVE_FROM_DESCRIPTOR = 4 };
enum { ATTR_READ_ONLY = 1, ATTR_NO_SETUID = 2, ATTR_NO_DEVICES = 4 };
enum { WRITABLE = ATTR_NO_SETUID | ATTR_NO_DEVICES, READ_ONLY = ATTR_READ_ONLY | WRITABLE };

static const char *const covers = "/dev/pts";

static int clone_tree(int at, const char *path, int recursive)
{
	return syscall(SYS_open_tree, at, path, TREE_CLONE | O_CLOEXEC | (recursive ? TREE_RECURSIVE : 0));
}

static int set_attributes(int tree, uint64_t attributes, int recursive)
{
	uint64_t attr[4] = {attributes, 0, 0, 0};
	return syscall(SYS_mount_setattr, tree, "", TREE_ITSELF | (recursive ? TREE_RECURSIVE : 0), attr, sizeof attr);
}

// Attach a detached mount, and close it.
static int attach(int tree, const char *path)
{
	int result = syscall(SYS_move_mount, tree, "", AT_FDCWD, path, MOVE_FROM_DESCRIPTOR), code = errno;
	close(tree);
	errno = code;
	return result;
}

static int make_directories(char *path)
{
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		int failed = mkdir(path, 0777) < 0 && errno != EEXIST;
		*slash = '/';
		if (failed)
			return -1;
	}
	return 0;
}

// An empty directory or file for a detached mount to be attached at, where there is none yet.
static int make_mount_point(char *path, int tree)
{
	struct stat about;
	if (fstat(tree, &about) < 0)
		return -1;
	if (S_ISDIR(about.st_mode))
		return make_directories(path) < 0 || (mkdir(path, 0777) < 0 && errno != EEXIST) ? -1 : 0;
	if (lstat(path, &about) == 0)
		return 0;
	int fd = make_directories(path) < 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	return fd < 0 ? -1 : close(fd);
}

// The view as it comes, in messages of any number of entries: a letter and a path, ended by NUL. First what is shown,
// writable (w) or read-only (r), in an order in which it can be mounted; then what becomes read-only (o), with all below
// it, since a denial wins over grants there; then what is hidden (h).
struct view {
	int begun, workspace, top, sealed, covered;
};

// What the workspace itself is, as the first message says.
enum { UNSHOWN, SHOWN_READ_ONLY, SHOWN_WRITABLE };

static int begin_view(struct view *view, const char *workspace, int workspace_is, long long inodes)
{
	char options[96];
	view->begun = 1;
	view->sealed = workspace_is == SHOWN_WRITABLE;
	view->workspace = open(workspace, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (view->workspace < 0)
		return -1;
	if (workspace_is == UNSHOWN) {
		snprintf(options, sizeof options, "size=%d,nr_inodes=%lld,mode=0755", 16 << 20, inodes);
		if (mount("tmpfs", workspace, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
			return -1;
	}
	view->top = open(workspace, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return view->top;
}

static int seal_view(struct view *view)
{
	if (view->sealed)
		return 0;
	view->sealed = 1;
	return set_attributes(view->top, READ_ONLY, 0);
}

static int show(struct view *view, const char *workspace, char *path, int writable)
{
	size_t above = strlen(workspace);
	if (!strcmp(path, workspace))
		return 0;
	int tree = clone_tree(view->workspace, path + above + 1, 0);
	if (tree < 0 || set_attributes(tree, writable ? WRITABLE : READ_ONLY, 1) < 0 || make_mount_point(path, tree) < 0)
		return -1;
	return attach(tree, path);
}

static int make_read_only(const char *path)
{
	struct stat about;
	if (stat(path, &about) < 0)
		return 0;
	int tree = clone_tree(AT_FDCWD, path, 1);
	if (tree < 0 || set_attributes(tree, READ_ONLY, 1) < 0)
		return -1;
	return attach(tree, path);
}

// Cover a directory with an empty one, all else with a file that opens for nobody.
static int hide(struct view *view, const char *path)
{
	char cover[64];
	struct stat about;
	// What is below one that is covered already is not there.
	if (lstat(path, &about) < 0)
		return 0;
	if (!view->covered) {
		view->covered = 1;
		if (mount("tmpfs", covers, "tmpfs", MS_NOSUID | MS_NODEV, "size=64k,nr_inodes=8,mode=0755") < 0)
			return -1;
		snprintf(cover, sizeof cover, "%s/directory", covers);
		if (mkdir(cover, 0) < 0)
			return -1;
		snprintf(cover, sizeof cover, "%s/file", covers);
		int fd = open(cover, O_WRONLY | O_CREAT | O_CLOEXEC, 0);
		if (fd < 0)
			return -1;
		close(fd);
	}
	snprintf(cover, sizeof cover, "%s/%s", covers, S_ISDIR(about.st_mode) ? "directory" : "file");
	int tree = clone_tree(AT_FDCWD, cover, 0);
	if (tree < 0 || set_attributes(tree, READ_ONLY, 0) < 0)
		return -1;
	return attach(tree, path);
}

static int extend_view(struct view *view, const char *workspace, char *text, size_t length)
{
	char *end = text + length;
	while (text < end && *text) {
		char kind = *text, *path = text + 1;
		int failed = kind == 'w' || kind == 'r' ? show(view, workspace, path, kind == 'w')
			: seal_view(view) < 0  ? -1
			: kind == 'o'          ? make_read_only(path)
			: kind == 'h'          ? hide(view, path)
					       : (errno = EINVAL, -1);
		if (failed < 0)
			return -1;
		text = path + strlen(path) + 1;
	}
	return 0;
}

static int end_view(struct view *view)
{
	char cover[64];
	if (seal_view(view) < 0)
		return -1;
	if (view->covered) {
		snprintf(cover, sizeof cover, "%s/file", covers);
		unlink(cover);
		snprintf(cover, sizeof cover, "%s/directory", covers);
		rmdir(cover);
		if (umount2(covers, MNT_DETACH) < 0)
			return -1;
	}
	return 0;
}

#endif
