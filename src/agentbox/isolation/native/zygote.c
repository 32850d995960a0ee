// SPDX-License-Identifier: MIT
// What a warm interpreter needs besides Python: a loop that forks children into boxes without touching one Python
// object, so that hardly a page is copied, and the whole life of a child.
#include "box.h"
#include "program.h"
#include "view.h"

#include <linux/prctl.h>
#include <poll.h>

static struct config config;
static struct { pid_t pid; uint32_t id; } children[4096];
static int n_children;
static int owner = -1, report = -1, judge = -1;
static pid_t own_pid;
// Of a box that its owner hears of when a child is ready in it: its key, and what the owner gets of it.
enum { HANDED = 5 };
static uint32_t box;
static int handed[HANDED];

static void woken(int number) { (void)number; }

static void reap(void)
{
	struct rusage used;
	int status;
	pid_t pid;
	while ((pid = wait4(-1, &status, WNOHANG, &used)) > 0)
		for (int i = 0; i < n_children; i++)
			if (children[i].pid == pid) {
				tell_end('x', children[i].id, status, &used);
				children[i] = children[--n_children];
				break;
			}
}

static struct prctl_mm_map layout;

// Where the kernel thinks the parts of this process are, which only a whole set of can be changed.
static void read_layout(void)
{
	static char text[4096];
	unsigned long long at[52] = {0};
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC), field = 3;
	ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	char *rest = length > 0 ? strrchr(text, ')') : NULL;
	if (!rest)
		return;
	for (char *one = strtok(rest + 1, " "); one && field < 52; one = strtok(NULL, " "))
		at[field++] = strtoull(one, NULL, 10);
	layout = (struct prctl_mm_map){.start_code = at[26], .end_code = at[27], .start_stack = at[28], .start_data = at[45],
		.end_data = at[46], .start_brk = at[47], .arg_start = at[48], .arg_end = at[49], .env_start = at[50],
		.env_end = at[51], .exe_fd = -1};
}

// Let /proc show the arguments and the environment that this child has. Where it cannot, it shows the interpreter's.
static void show_words(const char *arguments, size_t length)
{
	extern char **environ;
	size_t before = layout.arg_end - layout.arg_start, variables = 0;
	if (!layout.start_code)
		return;
	for (char **one = environ; *one; one++)
		variables += strlen(*one) + 1;
	char *room = malloc(before + length + variables), *next;
	if (!room)
		return;
	next = mempcpy(mempcpy(room, (char *)layout.arg_start, before), arguments, length);
	layout.arg_start = (uintptr_t)room;
	layout.arg_end = layout.env_start = (uintptr_t)next;
	for (char **one = environ; *one; one++)
		next = stpcpy(next, *one) + 1;
	layout.env_end = (uintptr_t)next;
	layout.brk = (uintptr_t)sbrk(0);
	prctl(PR_SET_MM, PR_SET_MM_MAP, &layout, sizeof layout, 0);
}

// In a child: everything is written; the owner need not wait until this process is taken apart. At exit(), whoever calls
// it; a child of the child says nothing.
static void say_exit(int status, void *unused)
{
	(void)unused;
	if (getpid() != own_pid)
		return;
	fflush(NULL);
	unsigned char code = status;
	// A program may have closed it; then the owner hears of the end from the one who reaps.
	ssize_t told = write(report, &code, 1);
	(void)told;
	_exit(status);
}

static void refuse(void)
{
	tell(box ? OWNER_FD : owner, (struct head){'e', box, errno, 0, 0, 0}, current_step, NULL, 0);
	_exit(125);
}

// Close everything beyond stderr but these, of which each is higher than the one before; the last may be none.
static void close_all_but(int one, int two, int three)
{
	int last = three < 0 ? two : three;
	syscall(SYS_close_range, 3, one - 1, 0);
	if (two > one + 1)
		syscall(SYS_close_range, one + 1, two - 1, 0);
	if (three > two + 1)
		syscall(SYS_close_range, two + 1, three - 1, 0);
	syscall(SYS_close_range, last + 1, ~0u, 0);
}

// Say that it is ready: with what there is of the box, or which process it is.
static void say_ready(void)
{
	if (box) {
		if (tell(OWNER_FD, (struct head){'r', box, 0, 0, 0, 0}, NULL, handed, HANDED) < 0)
			_exit(0);
		return;
	}
	int self = syscall(SYS_pidfd_open, getpid(), 0);
	if (self < 0 || tell(owner, (struct head){'r', 0, 0, 0, 0, 0}, NULL, &self, 1) < 0)
		_exit(0);
	close(self);
}

// Wait for what it shall run. A child of a judged box is confined only now: what it shows ('V') and the rules of the
// judge are of this run. Nothing of the guest was looked at before.
static ssize_t wait_for_run(char *message, size_t room, struct head *head, int *descriptors, int *count)
{
	struct view view = {0};
	for (;;) {
		ssize_t length = receive(owner, message, room - 1, descriptors, count);
		if (length < (ssize_t)sizeof *head)
			_exit(0);
		memcpy(head, message, sizeof *head);
		message[length] = 0;
		if (head->op == 'R' || head->op == 'C') {
			if (!config.asking.len)
				return length;
			STEP("show workspace");
			if (view.begun && end_view(&view) < 0)
				refuse();
			wait_for_judge = head->d;
			if (confine(&config, judge) < 0)
				refuse();
			close(judge);
			if (view.begun) {
				close(view.workspace);
				close(view.top);
			}
			return length;
		}
		STEP("show workspace");
		if (head->op != 'V' || *count || !config.asking.len)
			_exit(125);
		if (!view.begun && begin_view(&view, config.workspace, head->a, head->b) < 0)
			refuse();
		if (extend_view(&view, config.workspace, message + sizeof *head, length - sizeof *head) < 0)
			refuse();
	}
}

// A program that came with its order becomes the guest's own file, as if its owner had placed it.
static void place_program(const char *path, const char *text, size_t length)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		_exit(125);
	while (length) {
		ssize_t put = write(fd, text, length);
		if (put < 0)
			_exit(125);
		text += put;
		length -= put;
	}
	close(fd);
}

// What is behind so many words of a message.
static const char *behind(const char *text, const char *end, int64_t words)
{
	while (words-- > 0 && text < end)
		text += strlen(text) + 1;
	return text;
}

// Wait until there is something to run, run it, end as it ended.
static void live(const struct world *world)
{
	static char message[MAX_MESSAGE + 1];
	int descriptors[MAX_DESCRIPTORS], count;
	struct head head;
	// The zygote has one thread, so nothing in it has to be mended here.
	if (world->hooked)
		PyOS_AfterFork_Child();
	touch();
	if (config.channel)
		drop(PyObject_CallFunction(world->prepare, "zLL", NULL, 0ll, 0ll));
	say_ready();
	close_all_but(owner, report, judge);
	ssize_t length = wait_for_run(message, sizeof message, &head, descriptors, &count);
	// What can carry descriptors to the owner is not for the program.
	close(owner);
	// Its stdin, or all three.
	for (int i = 0; i < count && i < 3; i++)
		if (dup2(descriptors[i], i) < 0)
			_exit(125);
	while (count)
		close(descriptors[--count]);
	const char *text = message + sizeof head, *last = message + length;
	if (head.op == 'C') {
		const char *program = behind(text, last, head.a + head.b);
		place_program(world->path, program, last - program);
		last = program;
	}
	if (head.c && limit(RLIMIT_NPROC, head.c) < 0)
		_exit(125);
	if (world->changing || head.a || head.b) {
		PyObject *words = PyBytes_FromStringAndSize(text, last - text);
		PyObject *done = PyObject_CallFunction(world->prepare, "OLL", words, (long long)head.a, (long long)head.b);
		if (!done) {
			PyErr_Print();
			_exit(125);
		}
		drop(done);
		drop(words);
	}
	if (head.a || head.b)
		show_words(text, behind(text, last, head.a) - text);
	own_pid = getpid();
#ifdef __GLIBC__
	on_exit(say_exit, NULL);
#endif
	int status = end(run(world->path), world);
	if (status < 0) {
		signal(-status, SIG_DFL);
		kill(own_pid, -status);
		status = 128 - status;
	}
#ifndef __GLIBC__
	say_exit(status, NULL);
#endif
	exit(status);
}

// In a fresh fork: go into the box, be confined (where boxes are judged that is later), have streams. `descriptors`: init
// of the box, the owner's line, pipes for the exit code, stdout and stderr, then of op 'F' [the judge's line,] and of op
// 'W', which comes from the box itself, what the owner shall get, then control groups.
static void become_child(const struct head *head, const int *descriptors, int count)
{
	int judged = config.asking.len != 0, further = head->op == 'W' ? HANDED - 1 : judged;
	box = head->op == 'W' ? head->id : 0;
	owner = fcntl(descriptors[1], F_DUPFD_CLOEXEC, 999);
	report = fcntl(descriptors[2], F_DUPFD_CLOEXEC, owner + 1);
	if (judged)
		judge = fcntl(descriptors[5], F_DUPFD_CLOEXEC, report + 1);
	handed[0] = descriptors[0];
	if (box)
		memcpy(handed + 1, descriptors + 5, sizeof handed - sizeof *handed);
	const int *joins = descriptors + 5 + further;
	int n_joins = count - 5 - further;
	if (judged ? go_in(&config, descriptors[0], joins, n_joins) < 0
		   : enter(&config, descriptors[0], joins, n_joins) < 0)
		refuse();
	STEP("streams");
	// One of its own: flags of an open file are shared by all who have it.
	int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(descriptors[3], 1) < 0 || dup2(descriptors[4], 2) < 0)
		refuse();
	close(nothing);
	STEP("");
}

// Fork a child into a box for every message, which runs a program there. Returns when the owner is gone.
static void serve_owner(const struct world *world)
{
	struct sigaction action = {.sa_handler = woken}, old;
	sigset_t child, before;
	if (read_config(&config) < 0)
		return;
	rehearse();
	read_layout();
	// Nobody returns to the frames below: what is forked begins with none.
	forget_frames();
	drop(PyObject_CallMethod(world->gc, "collect", NULL));
	drop(PyObject_CallMethod(world->gc, "freeze", NULL));
	// Not among what is frozen: a program's names are found by the collector.
	drop(PyObject_CallObject(world->renew, NULL));
	drop(PyObject_CallMethod(world->gc, "enable", NULL));
	// Once for all children, each of which gives back what this takes: the lock of imports.
	if (world->hooked)
		PyOS_BeforeFork();
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	sigaction(SIGCHLD, &action, &old);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	if (tell(OWNER_FD, (struct head){'r', 0, 0, 0, 0, 0}, NULL, NULL, 0) < 0)
		return;
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
			return;
		pid_t pid = -1;
		int least = 5 + (head.op == 'W' ? HANDED - 1 : config.asking.len != 0);
		if (length != sizeof head || (head.op != 'F' && head.op != 'W') || count < least || n_children == 4096)
			errno = EINVAL;
		else if (syscall(SYS_setns, descriptors[0], CLONE_NEWPID) == 0)
			pid = fork();
		if (pid == 0) {
			sigaction(SIGCHLD, &old, NULL);
			sigprocmask(SIG_SETMASK, &before, NULL);
			become_child(&head, descriptors, count);
			live(world);
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

// serve(path, prepare, renew, modules, builtins, atexit, gc, thread, plain, changing, hooked): see struct world. Never
// returns.
PyObject *zygote_serve(PyObject *module, PyObject *arguments)
{
	static struct world world;
	(void)module;
	if (!PyArg_ParseTuple(arguments, "sOOOOOOOOii", &world.path, &world.prepare, &world.renew, &world.modules,
		    &world.builtins, &world.atexit, &world.gc, &world.thread, &world.plain, &world.changing, &world.hooked))
		return NULL;
	serve_owner(&world);
	// There is nobody to end in order for.
	_exit(0);
}

// An extension module, as its loader sees one. The layout is that of the stable ABI.
static struct { const char *name; PyObject *(*function)(PyObject *, PyObject *); int flags; const char *doc; } functions[] =
	{{"serve", zygote_serve, 1, NULL}, {NULL, NULL, 0, NULL}};
static struct { int slot; void *value; } slots[] = {{0, NULL}};
static struct {
	ssize_t references;
	void *type, *init;
	ssize_t index;
	PyObject *copy;
	const char *name, *doc;
	ssize_t size;
	void *methods, *slots, *traverse, *clear, *free;
} definition = {1, NULL, NULL, 0, NULL, "zygote", NULL, 0, functions, slots, NULL, NULL, NULL};

PyObject *PyInit_zygote(void) { return PyModuleDef_Init(&definition); }
