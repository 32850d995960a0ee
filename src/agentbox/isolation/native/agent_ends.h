// SPDX-License-Identifier: MIT
// How commands end, by themselves and by force, and how that is told.

static int waiting_bytes(int fd)
{
	int count = 0;
	return fd >= 0 && ioctl(fd, FIONREAD, &count) == 0 ? count : 0;
}

// What is in its pipe is told before its end; how much of that is left. As a rule nobody else has the pipe, so that its
// end is seen at once.
static int pass_waiting(struct command *command, int *fd, int type)
{
	int left = 0;
	if (*fd < 0)
		return 0;
	if (!command->started || pass_output(command, fd, type, &left))
		return waiting_bytes(*fd);
	if (*fd >= 0)
		pass_output(command, fd, type, &left);
	return 0;
}

static void know_end(struct command *command, const struct report *end)
{
	if (command->end_known)
		return;
	command->end = *end;
	command->end_known = 1;
	command->out_left = command->terminal ? 0 : pass_waiting(command, &command->out, STDOUT);
	command->err_left = pass_waiting(command, &command->err, STDERR);
	if (command->terminal)
		command->settle_at = now_ms() + TERMINAL_SETTLE_MS;
	drop_input(command);
}

static void hear_keeper(struct command *command, int index)
{
	struct report report;
	ssize_t got = read(command->control, &report, sizeof report);
	if (got < 0 && errno == EAGAIN)
		return;
	if (got != sizeof report) {
		drop_fd(&command->control);
		if (!command->started && command->pid) {
			command->started = 1;
			tell_number(STARTED, command->id, command->pid);
		} else if (!command->started) {
			// Killed before it had started anything that we know of.
			tell_failed(command->id, EINTR, "the command was killed before it started");
			forget(index);
		}
		return;
	}
	if (report.kind == TRYING) {
		command->pid = report.status;
	} else if (report.kind == STARTED) {
		command->pid = report.status;
		command->started = 1;
		tell_number(STARTED, command->id, command->pid);
	} else if (report.kind == FAILED && !command->started) {
		report.text[sizeof report.text - 1] = 0;
		tell_failed(command->id, report.status, report.text);
		forget(index);
	} else {
		if (!command->started) {
			command->started = 1;
			tell_number(STARTED, command->id, command->keeper);
		}
		// An operation of our own that failed on its way.
		if (report.kind == FAILED)
			report.status = (report.status & 0xff) << 8;
		know_end(command, &report);
	}
}

// Whether a child of this process may run still. An agent that gets no orphans has those alone that it started.
static int has_children(void)
{
	if (subreaping || own.pid == 1)
		return 1;
	for (int i = 0; i < n_commands; i++)
		if (!commands[i]->keeper_gone)
			return 1;
	return 0;
}

static void reap(void)
{
	int status;
	struct rusage usage;
	pid_t pid;
	while (has_children() && (pid = wait4(-1, &status, WNOHANG, &usage)) > 0)
		for (int i = 0; i < n_commands; i++) {
			struct command *command = commands[i];
			if (command->keeper == pid) {
				// Its reports are still in the pipe.
				command->keeper_gone = WIFEXITED(status) ? 1 : 2;
				command->keeper_status = status;
				if (command->direct) {
					struct report end = {.kind = EXIT, .status = status};
					count_usage(&end, &usage);
					command->keeper_gone = 1;
					know_end(command, &end);
				}
			} else if (command->pid == pid && !command->own) {
				struct report end = {.kind = EXIT, .status = status};
				count_usage(&end, &usage);
				know_end(command, &end);
			}
		}
}

// A keeper that was killed says no more; its command is our own child from then on.
static void miss_keeper(struct command *command)
{
	struct report end = {.kind = EXIT, .status = SIGKILL};
	if (command->end_known || command->control >= 0 || !command->keeper_gone)
		return;
	if (command->own)
		end.status = command->keeper_status;
	else if (kill(command->pid, 0) == 0 || errno == EPERM)
		return;
	know_end(command, &end);
}

static int is_keeper(pid_t pid)
{
	for (int i = 0; i < n_commands; i++)
		if (commands[i]->keeper == pid && commands[i]->keeper_gone == 0)
			return 1;
	return 0;
}

static int is_orphan(const struct living *one)
{
	if (one->pid == getpid() || one->pid == 1 || is_keeper(one->pid))
		return 0;
	return one->parent == getpid() || (!subreaping && one->parent == 1);
}

// Mark what belongs to a command: all below its keeper, and what dead keepers left. Returns how many.
static int mark_in(const struct command *command, int recently)
{
	int orphans = 0;
	if (!recently && take_census(&population) < 0)
		return 0;
	for (int i = 0; i < population.count; i++) {
		struct living *one = &population.all[i];
		one->marked = 0;
		if (one->pid == command->keeper && !command->keeper_gone)
			// The process of an operation is its own keeper, and so is a command that has none.
			one->marked = command->own || command->direct ? 1 : 2, orphans += one->marked == 1;
		else if (is_orphan(one) && (subreaping || may_belong(one->pid, command->id)))
			one->marked = 1, orphans++;
	}
	return orphans + mark_descendants(&population);
}

static int mark_command(const struct command *command)
{
	return mark_in(command, 0);
}

// Where this process is all that there is, but for a first process of somebody else's. To be asked in gVisor alone, whose
// count is that of the box.
static int is_alone(void)
{
	struct sysinfo system;
	for (int i = 0; i < n_commands; i++)
		if (!commands[i]->keeper_gone)
			return 0;
	return sysinfo(&system) == 0 && system.procs <= 1 + (own.pid != 1);
}

// Where the kernel does not tell: whether something of a command may still run. Looks now and then.
static int may_remain(struct command *command)
{
	uint64_t now = now_ms();
	static uint64_t looked_at;
	int first = !command->next_look;
	if (first && command->terminal)
		command->next_look = now;
	else if (first && !command->killing)
		// Not at once, which would hold up what comes next; and at the same time as all others, who then share a census.
		command->next_look = (now / LOOK_MS + 2) * LOOK_MS;
	if (now < command->next_look)
		return 1;
	int recently = !first && !command->killing && now - looked_at < LOOK_MS / 4;
	if (!recently)
		looked_at = now;
	if (!mark_in(command, recently))
		return 0;
	command->next_look = (now / LOOK_MS + 1) * LOOK_MS;
	return 1;
}

static int is_readable(int fd)
{
	struct pollfd one = {.fd = fd, .events = POLLIN};
	return poll(&one, 1, 0) > 0;
}

// A kernel without subreapers is one whose terminals do not tell either that nobody has them open any more.
static void close_terminal(struct command *command)
{
	if (!command->exited || !command->terminal || command->out < 0 || subreaping || may_remain(command))
		return;
	if (is_readable(command->out))
		return;
	command->in = -1;
	drop_fd(&command->out);
}

// Tell what can be told; returns whether the command is over.
static int settle(struct command *command)
{
	if (!command->end_known || !command->started)
		return 0;
	if (!command->exited && command->out_left <= 0 && command->err_left <= 0 &&
	    (!command->terminal || command->out < 0 || now_ms() >= command->settle_at)) {
		unsigned char *at = frame(EXIT, command->id, 20);
		put32(at, command->end.status);
		put64(at + 4, command->end.cpu_us);
		put64(at + 12, command->end.rss);
		command->exited = 1;
	}
	close_terminal(command);
	if (command->exited && !command->closed && command->out < 0 && command->err < 0) {
		frame(CLOSED, command->id, 0);
		command->closed = 1;
	}
	if (!command->closed || !command->keeper_gone)
		return 0;
	if (!subreaping && !command->own && !is_alone() && may_remain(command))
		return 0;
	if (command->killing)
		tell_number(KILLED, command->id, 0);
	frame(OVER, command->id, 0);
	return 1;
}

static int was_asked(const struct command *command, pid_t pid)
{
	for (int i = 0; i < command->n_asked; i++)
		if (command->asked[i] == pid)
			return 1;
	return 0;
}

// Ask those who are marked to end, each once: what a shell starts between two looks belongs to it.
static void ask_marked(struct command *command)
{
	int asks = 0;
	for (int i = 0; i < population.count; i++) {
		struct living *one = &population.all[i];
		if (one->marked != 1)
			continue;
		pid_t *more = was_asked(command, one->pid)
				      ? NULL
				      : realloc(command->asked, (command->n_asked + 1) * sizeof(*more));
		if (!more) {
			one->marked = 3;
			continue;
		}
		command->asked = more;
		command->asked[command->n_asked++] = one->pid;
		asks = 1;
	}
	if (asks) {
		signal_marked(&population, SIGTERM, command->uid, command->gid);
		signal_marked(&population, SIGCONT, command->uid, command->gid);
	}
	for (int i = 0; i < population.count; i++)
		if (population.all[i].marked == 3)
			population.all[i].marked = 1;
}

static void tick_kill(struct command *command)
{
	uint64_t now = now_ms();
	if (now < command->next_tick)
		return;
	int living = mark_command(command);
	if (command->killing == 1 && living && now >= command->kill_at)
		command->killing = 2;
	if (command->killing == 1 && living)
		ask_marked(command);
	if (command->killing == 2 && living) {
		// Who is stopped starts nothing new between the two.
		signal_marked(&population, SIGSTOP, command->uid, command->gid);
		living = mark_command(command);
		signal_marked(&population, SIGKILL, command->uid, command->gid);
	}
	// A keeper that lives has a child that lives: the census missed one whose parent died while it was taken. Without a
	// keeper only a second look tells.
	int unsure = command->keeper_gone == 2 || !subreaping;
	int missed = !living && (!command->keeper_gone || (unsure && !command->looked_again));
	command->looked_again = !living;
	if ((!living && !missed) || now >= command->give_up_at) {
		command->next_look = 0;
		tell_number(KILLED, command->id, living + missed);
		command->killing = 0;
		return;
	}
	command->tick_ms = command->tick_ms < 16 ? command->tick_ms * 2 : 20;
	command->next_tick = now + command->tick_ms;
}

static void begin_kill(struct command *command, uint32_t grace)
{
	uint64_t now = now_ms();
	if (!command->killing || now + grace < command->kill_at)
		command->kill_at = now + grace;
	command->give_up_at = command->kill_at + KILL_LIMIT_MS;
	command->tick_ms = 1;
	command->next_tick = now;
	command->n_asked = 0;
	if (grace && command->killing != 2 && mark_command(command)) {
		ask_marked(command);
		command->next_tick = now + 1;
	}
	command->killing = grace ? 1 : 2;
}

static void kill_everything(void)
{
	uint64_t until = now_ms() + KILL_LIMIT_MS;
	signal(SIGCHLD, SIG_IGN);
	do {
		int living = 0;
		for (int number = SIGSTOP;; number = SIGKILL) {
			if (take_census(&population) < 0)
				_exit(0);
			for (int i = 0; i < population.count; i++)
				if (population.all[i].pid == getpid())
					population.all[i].marked = 2;
				else if (!subreaping && is_orphan(&population.all[i]))
					population.all[i].marked = 1;
			living = mark_descendants(&population);
			signal_marked(&population, number, 0, 0);
			for (int i = 0; i < n_commands; i++)
				if (commands[i]->uid)
					signal_marked(&population, number, commands[i]->uid, commands[i]->gid);
			if (number == SIGKILL)
				break;
		}
		if (!living)
			_exit(0);
		usleep(1000);
	} while (now_ms() < until);
	_exit(0);
}
