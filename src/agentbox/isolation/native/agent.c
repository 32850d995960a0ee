// SPDX-License-Identifier: MIT
// The agent in a durable box: starts commands at its owner's word and carries their input, output and end over one kept
// stream, its stdin and stdout (spec/agent). One thread, one poll. It is a subreaper, or PID 1, and takes everything
// that it started with it when the stream ends.
#include "agent.h"

#include "agent_operations.h"
#include "agent_keeper.h"
#include "agent_processes.h"

// For terminals: how long output may still be on its way inside the kernel when the command has ended.
#define TERMINAL_SETTLE_MS 50
#define KILL_LIMIT_MS 10000
#define MAX_PENDING (1 << 20)
#define OPERATION_PIPE (1 << 18)

struct command {
	uint32_t id;
	pid_t keeper, pid;
	uid_t uid;
	gid_t gid;
	int control, in, out, err;
	int terminal, own, started, exited, closed;
	// 1 it ended, 2 it was killed; its status.
	int keeper_gone, keeper_status;
	int in_ending;
	char *pending;
	size_t pending_size;
	uint32_t uncredited;
	// Once the end is known: what must still be passed on before it is told.
	int end_known, out_left, err_left;
	uint64_t settle_at;
	struct report end;
	// A kill: 0 none, 1 asked politely, 2 not.
	int killing, tick_ms;
	uint64_t kill_at, give_up_at, next_tick;
};

static struct command *commands[MAX_COMMANDS];
static int n_commands;
static struct population population;
static unsigned char outbox[4 * (MAX_OUTPUT + 16)];
static size_t outbox_size;
static volatile sig_atomic_t child_ended;

static void on_child(int number)
{
	(void)number;
	child_ended = 1;
}

static void kill_everything(void);

static void flush_outbox(void)
{
	if (outbox_size && write_all(1, outbox, outbox_size) < 0)
		kill_everything();
	outbox_size = 0;
}

// Room for a frame's payload, which must be filled at once.
static unsigned char *frame(int type, uint32_t id, size_t size)
{
	if (outbox_size + size + 9 > sizeof outbox)
		flush_outbox();
	unsigned char *at = outbox + outbox_size;
	put32(at, size + 5);
	at[4] = type;
	put32(at + 5, id);
	outbox_size += size + 9;
	return at + 9;
}

static void tell_failed(uint32_t id, int why, const char *text)
{
	size_t length = strlen(text);
	unsigned char *at = frame(FAILED, id, 4 + length);
	put32(at, why);
	memcpy(at + 4, text, length);
}

static void tell_number(int type, uint32_t id, uint32_t value)
{
	put32(frame(type, id, 4), value);
}

static void drop_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void drop_input(struct command *command)
{
	if (command->terminal)
		command->in = -1;
	drop_fd(&command->in);
	if (command->pending_size)
		tell_number(TAKEN, command->id, command->pending_size);
	free(command->pending);
	command->pending = NULL;
	command->pending_size = 0;
}

static void forget(int index)
{
	struct command *command = commands[index];
	drop_input(command);
	drop_fd(&command->out);
	drop_fd(&command->err);
	drop_fd(&command->control);
	commands[index] = commands[--n_commands];
	free(command);
}

static struct command *by_id(uint32_t id)
{
	for (int i = 0; i < n_commands; i++)
		if (commands[i]->id == id)
			return commands[i];
	return NULL;
}

// ---- starting

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
		stdio[1] = dup(stdio[0]);
		stdio[2] = dup(stdio[0]);
		return 0;
	}
	int count = request->flags & MERGED ? 2 : 3;
	for (int i = 0; i < count; i++)
		if (pipe2(pipes[i], O_CLOEXEC) < 0) {
			int why = errno;
			for (int j = 0; j < i; j++)
				close(pipes[j][0]), close(pipes[j][1]);
			errno = why;
			return -1;
		}
	if (request->flags & OWN)
		for (int i = 0; i < count; i++)
			// A bigger pipe means fewer turns; it may be refused.
			fcntl(pipes[i][0], F_SETPIPE_SZ, OPERATION_PIPE);
	stdio[0] = pipes[0][0], command->in = pipes[0][1];
	stdio[1] = pipes[1][1], command->out = pipes[1][0];
	if (count == 3)
		stdio[2] = pipes[2][1], command->err = pipes[2][0];
	else
		stdio[2] = dup(stdio[1]);
	if (!(request->flags & WITH_STDIN))
		drop_fd(&command->in);
	return 0;
}

// A keeper must hold nothing that lets another command's input or output, or the stream, live on.
static void leave_agents_descriptors(const struct command *command)
{
	close(0), close(1);
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
	if (pipe2(control, O_CLOEXEC) < 0) {
		control[0] = control[1] = -1;
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
	for (int i = 0; i < 3; i++)
		if (stdio[i] >= 0)
			close(stdio[i]);
	if (command->keeper < 0) {
		char text[128];
		snprintf(text, sizeof text, "fork: %s", strerror(why));
		tell_failed(id, why, text);
		if (control[0] >= 0)
			close(control[0]), close(control[1]);
		if (command->terminal)
			command->in = -1;
		drop_fd(&command->in), drop_fd(&command->out), drop_fd(&command->err);
		free(command);
		return;
	}
	close(control[1]);
	int fds[] = {command->in, command->out, command->err, command->control};
	for (int i = 0; i < 4; i++)
		if (fds[i] >= 0)
			fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK);
	commands[n_commands++] = command;
}

// ---- ends

static int waiting_bytes(int fd)
{
	int count = 0;
	return fd >= 0 && ioctl(fd, FIONREAD, &count) == 0 ? count : 0;
}

static void know_end(struct command *command, const struct report *end)
{
	if (command->end_known)
		return;
	command->end = *end;
	command->end_known = 1;
	command->out_left = command->terminal ? 0 : waiting_bytes(command->out);
	command->err_left = waiting_bytes(command->err);
	if (command->terminal)
		command->settle_at = now_ms() + TERMINAL_SETTLE_MS;
	drop_input(command);
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
	if (command->exited && !command->closed && command->out < 0 && command->err < 0) {
		frame(CLOSED, command->id, 0);
		command->closed = 1;
	}
	if (!command->closed || !command->keeper_gone)
		return 0;
	if (command->killing)
		tell_number(KILLED, command->id, 0);
	frame(OVER, command->id, 0);
	return 1;
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

static void reap(void)
{
	int status;
	struct rusage usage;
	pid_t pid;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0)
		for (int i = 0; i < n_commands; i++) {
			struct command *command = commands[i];
			if (command->keeper == pid) {
				// Its reports are still in the pipe.
				command->keeper_gone = WIFEXITED(status) ? 1 : 2;
				command->keeper_status = status;
			} else if (command->pid == pid && !command->own) {
				struct report end = {.kind = EXIT, .status = status, .rss = (uint64_t)usage.ru_maxrss * 1024};
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

// ---- killing

static int is_keeper(pid_t pid)
{
	for (int i = 0; i < n_commands; i++)
		if (commands[i]->keeper == pid && commands[i]->keeper_gone == 0)
			return 1;
	return 0;
}

// Mark what belongs to a command: all below its keeper, and what dead keepers left. Returns how many.
static int mark_command(const struct command *command)
{
	int orphans = 0;
	if (take_census(&population) < 0)
		return 0;
	for (int i = 0; i < population.count; i++) {
		struct living *one = &population.all[i];
		if (one->pid == command->keeper && !command->keeper_gone)
			// The process of an operation is its own keeper.
			one->marked = command->own ? 1 : 2, orphans += one->marked == 1;
		else if (one->parent == getpid() && one->pid != getpid() && !is_keeper(one->pid))
			one->marked = 1, orphans++;
	}
	return orphans + mark_descendants(&population);
}

static void tick_kill(struct command *command)
{
	uint64_t now = now_ms();
	if (now < command->next_tick)
		return;
	int living = mark_command(command);
	if (command->killing == 1 && living && now >= command->kill_at)
		command->killing = 2;
	if (command->killing == 2 && living) {
		// Who is stopped starts nothing new between the two.
		signal_marked(&population, SIGSTOP, command->uid, command->gid);
		living = mark_command(command);
		signal_marked(&population, SIGKILL, command->uid, command->gid);
	}
	if (!living || now >= command->give_up_at) {
		tell_number(KILLED, command->id, living);
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
	if (grace && command->killing != 2 && mark_command(command)) {
		signal_marked(&population, SIGTERM, command->uid, command->gid);
		signal_marked(&population, SIGCONT, command->uid, command->gid);
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

// ---- input and output

static void pass_output(struct command *command, int *fd, int type, int *left)
{
	size_t want = MAX_OUTPUT;
	if (command->uncredited >= WINDOW)
		return;
	if (want > WINDOW - command->uncredited)
		want = WINDOW - command->uncredited;
	if (outbox_size + want + 9 > sizeof outbox)
		flush_outbox();
	ssize_t got = read(*fd, outbox + outbox_size + 9, want);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		// A terminal answers EIO when nobody has it open any more.
		if (command->terminal)
			command->in = -1;
		drop_fd(fd);
		*left = 0;
		return;
	}
	frame(type, command->id, got);
	command->uncredited += got;
	*left -= got;
}

static void pass_input(struct command *command)
{
	while (command->pending_size) {
		ssize_t sent = write(command->in, command->pending, command->pending_size);
		if (sent < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (sent < 0) {
			// It does not read any more; what else comes is passed over.
			drop_input(command);
			return;
		}
		tell_number(TAKEN, command->id, sent);
		command->pending_size -= sent;
		memmove(command->pending, command->pending + sent, command->pending_size);
	}
	if (command->in_ending && command->in >= 0 && !command->terminal)
		drop_fd(&command->in);
}

static void take_input(struct command *command, const unsigned char *data, size_t size)
{
	if (command->in < 0 || command->pending_size + size > MAX_PENDING) {
		tell_number(TAKEN, command->id, size);
		return;
	}
	char *grown = realloc(command->pending, command->pending_size + size);
	if (!grown) {
		tell_number(TAKEN, command->id, size);
		return;
	}
	memcpy(grown + command->pending_size, data, size);
	command->pending = grown;
	command->pending_size += size;
	pass_input(command);
}

static void end_input(struct command *command)
{
	// What a terminal takes for the end of input.
	if (command->terminal)
		take_input(command, (const unsigned char *)"\x04", 1);
	command->in_ending = 1;
	if (command->in >= 0)
		pass_input(command);
}

// ---- requests

static char *take_string(char **at, char *end)
{
	char *string = *at, *zero = string < end ? memchr(string, 0, end - string) : NULL;
	if (zero)
		*at = zero + 1;
	return zero ? string : NULL;
}

static int parse_start(char *payload, size_t size, struct request *request)
{
	unsigned char *head = (unsigned char *)payload;
	char *at = payload + 13, *end = payload + size;
	if (size < 13)
		return -1;
	request->flags = head[0];
	request->rows = head[1] << 8 | head[2];
	request->columns = head[3] << 8 | head[4];
	request->argc = get32(head + 5);
	request->envc = get32(head + 9);
	if (!request->argc || request->argc > size || request->envc > size)
		return -1;
	request->user = take_string(&at, end);
	request->directory = take_string(&at, end);
	char **all = calloc((size_t)request->argc + request->envc + 2, sizeof *all);
	if (!all || !request->user || !request->directory)
		goto broken;
	request->argv = all;
	request->variables = all + request->argc + 1;
	for (uint32_t i = 0; i < request->argc; i++)
		if (!(request->argv[i] = take_string(&at, end)))
			goto broken;
	for (uint32_t i = 0; i < request->envc; i++)
		if (!(request->variables[i] = take_string(&at, end)))
			goto broken;
	return 0;
broken:
	free(all);
	return -1;
}

static int handle(int type, uint32_t id, unsigned char *payload, size_t size)
{
	if (type == START) {
		struct request request;
		if (parse_start((char *)payload, size, &request) < 0)
			return -1;
		start(id, &request);
		free(request.argv);
		return 0;
	}
	struct command *command = by_id(id);
	if (!command)
		return 0;
	if (type == STDIN)
		take_input(command, payload, size);
	else if (type == STDIN_END)
		end_input(command);
	else if (type == RESIZE && size == 4 && command->terminal && command->out >= 0)
		ioctl(command->out, TIOCSWINSZ,
		      &(struct winsize){.ws_row = payload[0] << 8 | payload[1], .ws_col = payload[2] << 8 | payload[3]});
	else if (type == SIGNAL && size == 1) {
		if (command->pid > 0 && !command->exited && !command->own && kill(-command->pid, payload[0]) < 0)
			kill(command->pid, payload[0]);
	} else if (type == KILL && size == 4)
		begin_kill(command, get32(payload));
	else if (type == CREDIT && size == 4) {
		uint32_t bytes = get32(payload);
		command->uncredited -= bytes < command->uncredited ? bytes : command->uncredited;
	} else
		return -1;
	return 0;
}

static unsigned char inbox[MAX_REQUEST + 64];
static size_t inbox_size;

static void hear_owner(void)
{
	ssize_t got = read(0, inbox + inbox_size, sizeof inbox - inbox_size);
	if (got < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (got <= 0)
		kill_everything();
	inbox_size += got;
	size_t at = 0;
	while (inbox_size - at >= 9) {
		uint32_t size = get32(inbox + at);
		if (size < 5 || size > MAX_REQUEST)
			kill_everything();
		if (inbox_size - at < size + 4)
			break;
		if (handle(inbox[at + 4], get32(inbox + at + 5), inbox + at + 9, size - 5) < 0)
			kill_everything();
		at += size + 4;
	}
	inbox_size -= at;
	memmove(inbox, inbox + at, inbox_size);
}

// ---- the loop

static int timeout_of(void)
{
	uint64_t now = now_ms(), first = UINT64_MAX;
	for (int i = 0; i < n_commands; i++) {
		struct command *command = commands[i];
		if (command->killing && command->next_tick < first)
			first = command->next_tick;
		if (command->terminal && command->end_known && !command->exited && command->settle_at < first)
			first = command->settle_at;
	}
	return first == UINT64_MAX ? -1 : first <= now ? 0 : (int)(first - now);
}

static void serve(const sigset_t *listening)
{
	static struct pollfd polled[1 + 4 * MAX_COMMANDS];
	for (;;) {
		int count = 1;
		polled[0] = (struct pollfd){.fd = 0, .events = POLLIN};
		for (int i = 0; i < n_commands; i++) {
			struct command *command = commands[i];
			int open = command->started && command->uncredited < WINDOW;
			polled[count++] = (struct pollfd){.fd = command->control, .events = POLLIN};
			polled[count++] = (struct pollfd){.fd = open ? command->out : -1, .events = POLLIN};
			polled[count++] = (struct pollfd){.fd = open ? command->err : -1, .events = POLLIN};
			polled[count++] = (struct pollfd){.fd = command->pending_size ? command->in : -1, .events = POLLOUT};
		}
		flush_outbox();
		int wait = timeout_of();
		struct timespec timeout = {wait / 1000, wait % 1000 * 1000000};
		int ready = child_ended ? 0 : ppoll(polled, count, wait < 0 ? NULL : &timeout, listening);
		if (ready < 0 && errno != EINTR)
			kill_everything();
		if (child_ended) {
			child_ended = 0;
			reap();
			// What a keeper said last is in its pipe, whatever poll said.
			for (int i = 1; i < count; i += 4)
				polled[i].revents = polled[i].fd >= 0 ? POLLIN : 0;
			if (ready <= 0)
				for (int i = 0; i < count; i++)
					if (i % 4 != 1)
						polled[i].revents = 0;
		} else if (ready < 0)
			continue;
		// Backwards, since who is forgotten gives its place to the last.
		for (int i = n_commands - 1; i >= 0; i--) {
			struct command *command = commands[i];
			struct pollfd *its = polled + 1 + 4 * i;
			if (its[0].revents && command->control >= 0) {
				hear_keeper(command, i);
				if (i >= n_commands || commands[i] != command)
					continue;
				// What follows often comes with it.
				if (command->control >= 0 && !command->end_known)
					hear_keeper(command, i);
				if (i >= n_commands || commands[i] != command)
					continue;
			}
			if (its[1].revents && command->out >= 0)
				pass_output(command, &command->out, STDOUT, &command->out_left);
			if (its[2].revents && command->err >= 0)
				pass_output(command, &command->err, STDERR, &command->err_left);
			if (its[3].revents && command->in >= 0)
				pass_input(command);
			miss_keeper(command);
			if (command->killing)
				tick_kill(command);
			if (settle(command))
				forget(i);
		}
		if (polled[0].revents)
			hear_owner();
	}
}

int main(void)
{
	sigset_t blocked, listening;
	// Descriptors below 3 that nobody gave us would become the commands'.
	for (int fd; (fd = open("/", O_RDONLY)) >= 0;)
		if (fd > 2) {
			close(fd);
			break;
		}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	// Nobody of the same uid may look into it, or take its descriptors out of /proc.
	prctl(PR_SET_DUMPABLE, 0);
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGQUIT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	struct sigaction action = {.sa_handler = on_child};
	sigaction(SIGCHLD, &action, NULL);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGCHLD);
	sigprocmask(SIG_BLOCK, &blocked, &listening);
	sigdelset(&listening, SIGCHLD);
	unsigned char *hello = frame(HELLO, 0, 6);
	hello[0] = VERSION;
	put32(hello + 1, geteuid());
	hello[5] = 1;
	serve(&listening);
}
