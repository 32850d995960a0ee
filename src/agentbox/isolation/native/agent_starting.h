// SPDX-License-Identifier: MIT
// How the agent starts a command: its pipes or terminal, its keeper.

static int open_terminal(const struct request *request, uid_t uid, int *master)
{
	char path[64];
	int unlock = 0, number, slave = -1;
	struct winsize size = {.ws_row = request->rows, .ws_col = request->columns};
	// A terminal belongs to whoever opens it.
	int lent = geteuid() == 0 && uid != 0 && seteuid(uid) == 0;
	*master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (*master >= 0 && ioctl(*master, TIOCSPTLCK, &unlock) == 0 && ioctl(*master, TIOCGPTN, &number) == 0) {
		snprintf(path, sizeof path, "/dev/pts/%d", number);
		slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	}
	int why = errno;
	if (lent && seteuid(0) < 0)
		_exit(71);
	if (slave >= 0)
		ioctl(slave, TIOCSWINSZ, &size);
	errno = why;
	return slave;
}

// From here on 0 and 1 are nobody's, and the stream is where no command gets it.
static void take_stream(void)
{
	int ends[2];
	stream_in = fcntl(0, F_DUPFD_CLOEXEC, 3);
	stream_out = fcntl(1, F_DUPFD_CLOEXEC, 3);
	if (stream_in < 0 || stream_out < 0 || pipe2(ends, O_CLOEXEC) < 0)
		_exit(71);
	close(ends[1]);
	nothing = ends[0];
	if (dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0)
		_exit(71);
}

// Descriptors for the command in `stdio`, the agent's ends in `command`. Returns -1 with errno; all are closed then.
static int open_stdio(struct command *command, const struct request *request, int stdio[3])
{
	int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
	if (request->flags & TERMINAL) {
		stdio[0] = open_terminal(request, command->uid, &command->out);
		if (stdio[0] < 0)
			return -1;
		command->in = command->out;
		command->terminal = 1;
		stdio[1] = stdio[2] = stdio[0];
		return 0;
	}
	int count = request->flags & MERGED ? 2 : 3;
	int first = request->flags & WITH_STDIN ? 0 : 1;
	for (int i = first; i < count; i++)
		if (pipe2(pipes[i], O_CLOEXEC) < 0) {
			int why = errno;
			for (int j = first; j < i; j++)
				close(pipes[j][0]), close(pipes[j][1]);
			errno = why;
			return -1;
		}
	if (request->flags & OWN)
		for (int i = first; i < count; i++)
			// A bigger pipe means fewer turns; it may be refused.
			fcntl(pipes[i][0], F_SETPIPE_SZ, OPERATION_PIPE);
	stdio[0] = first ? nothing : pipes[0][0], command->in = pipes[0][1];
	stdio[1] = pipes[1][1], command->out = pipes[1][0];
	stdio[2] = stdio[1];
	if (count == 3)
		stdio[2] = pipes[2][1], command->err = pipes[2][0];
	return 0;
}

// A keeper must hold nothing that lets another command's input or output, or the stream, live on.
static void leave_agents_descriptors(const struct command *command)
{
	close(stream_in), close(stream_out);
	for (int i = 0; i < n_commands; i++) {
		struct command *other = commands[i];
		int fds[] = {other->control, other->in, other->out, other->err};
		for (int j = 0; j < 4; j++)
			if (fds[j] >= 0)
				close(fds[j]);
	}
	int fds[] = {command->control, command->in, command->out, command->err};
	for (int j = 0; j < 4; j++)
		if (fds[j] >= 0)
			close(fds[j]);
}

// Each descriptor once, whatever it is used for.
static void close_stdio(const int stdio[3])
{
	for (int i = 0; i < 3; i++)
		if (stdio[i] >= 0 && stdio[i] != nothing && (i == 0 || stdio[i] != stdio[i - 1]))
			close(stdio[i]);
}

// Where the kernel has no subreapers a keeper keeps nothing: the command is the agent's own child. Returns its pid; -1
// when that was told to have failed.
static pid_t start_directly(uint32_t id, const struct request *request, struct command *command, const int stdio[3])
{
	struct identity identity;
	const char *what = "environment";
	pid_t pid = -1;
	if (resolve_user(request->user, &identity.uid, &identity.gid) < 0) {
		tell_failed(id, EINVAL, "the box has no such user");
		return -1;
	}
	char **variables = merged_environment(request);
	if (variables)
		pid = spawn(request, variables, stdio, &identity, &what);
	if (pid < 0) {
		char text[PATH_MAX + 64];
		int why = errno;
		snprintf(text, sizeof text, "%s: %s", what, strerror(why));
		tell_failed(id, why, text);
	} else {
		command->pid = pid;
		command->direct = command->started = 1;
		tell_number(STARTED, id, pid);
	}
	free(variables);
	return pid;
}

static void start(uint32_t id, const struct request *request)
{
	int stdio[3] = {-1, -1, -1}, control[2];
	if (n_commands == MAX_COMMANDS || by_id(id)) {
		tell_failed(id, EBUSY, "too many commands, or this id is in use");
		return;
	}
	struct command *command = calloc(1, sizeof *command);
	if (!command) {
		tell_failed(id, ENOMEM, "the agent has no memory");
		return;
	}
	command->id = id;
	command->control = command->in = command->out = command->err = -1;
	command->own = request->flags & OWN;
	resolve_user(request->user, &command->uid, &command->gid);
	if (open_stdio(command, request, stdio) < 0) {
		tell_failed(id, errno, request->flags & TERMINAL ? "terminal" : "pipe");
		drop_fd(&command->out);
		free(command);
		return;
	}
	int told = 0;
	control[0] = control[1] = -1;
	if (!subreaping && !command->own) {
		command->keeper = start_directly(id, request, command, stdio);
		told = command->keeper < 0;
	} else if (pipe2(control, O_CLOEXEC) < 0) {
		command->keeper = -1;
	} else {
		command->control = control[0];
		command->keeper = fork();
		if (command->keeper == 0) {
			leave_agents_descriptors(command);
			keep(request, stdio, control[1]);
		}
	}
	int why = errno;
	close_stdio(stdio);
	if (command->keeper < 0) {
		char text[128];
		snprintf(text, sizeof text, "fork: %s", strerror(why));
		if (!told)
			tell_failed(id, why, text);
		if (control[0] >= 0)
			close(control[0]), close(control[1]);
		if (command->terminal)
			command->in = -1;
		drop_fd(&command->in), drop_fd(&command->out), drop_fd(&command->err);
		free(command);
		return;
	}
	if (control[1] >= 0)
		close(control[1]);
	int fds[] = {command->in, command->out, command->err, command->control};
	for (int i = 0; i < 4; i++)
		if (fds[i] >= 0)
			fcntl(fds[i], F_SETFL, O_NONBLOCK);
	commands[n_commands++] = command;
}
