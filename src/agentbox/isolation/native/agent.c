// SPDX-License-Identifier: MIT
// The agent in a durable box: starts commands at its owner's word and carries their input, output and end over one kept
// stream, its stdin and stdout (spec/agent). One thread, one poll. It is a subreaper, or PID 1, and takes everything
// that it started with it when the stream ends.
#include "agent.h"

#include "agent_operations.h"
#include "agent_processes.h"
#include "agent_keeper.h"

// For terminals: how long output may still be on its way inside the kernel when the command has ended.
#define TERMINAL_SETTLE_MS 50
#define TERMINAL_CLOSED_MS 20
#define KILL_LIMIT_MS 10000
// How often a command's remains are looked for where the kernel does not tell of their end.
#define LOOK_MS 1000
#define MAX_PENDING (1 << 20)
#define OPERATION_PIPE (1 << 18)

struct command {
	uint32_t id;
	pid_t keeper, pid;
	uid_t uid;
	gid_t gid;
	int control, in, out, err;
	int terminal, own, direct, started, exited, closed;
	// 1 it ended, 2 it was killed; its status.
	int keeper_gone, keeper_status;
	int in_ending;
	char *pending;
	size_t pending_size;
	uint32_t uncredited;
	// Once the end is known: what must still be passed on before it is told.
	int end_known, out_left, err_left;
	uint64_t settle_at;
	// Nobody has its terminal open; when to look again.
	uint64_t hung_until;
	struct report end;
	// A kill: 0 none, 1 asked politely, 2 not.
	int killing, looked_again, tick_ms;
	uint64_t kill_at, give_up_at, next_tick, next_look;
	// Who was asked to end since the last wish.
	pid_t *asked;
	int n_asked;
};

static struct command *commands[MAX_COMMANDS];
static int n_commands;
static struct population population;
static unsigned char outbox[4 * (MAX_OUTPUT + 16)];
static size_t outbox_size;
static volatile sig_atomic_t child_ended;
static int stream_in, stream_out;

static void on_child(int number)
{
	(void)number;
	child_ended = 1;
}

static void kill_everything(void);

static void flush_outbox(void)
{
	if (outbox_size && write_all(stream_out, outbox, outbox_size) < 0)
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
	free(command->asked);
	free(command);
}

static struct command *by_id(uint32_t id)
{
	for (int i = 0; i < n_commands; i++)
		if (commands[i]->id == id)
			return commands[i];
	return NULL;
}

#include "agent_starting.h"

// ---- input and output

// Whether there may be more of it at once.
static int pass_output(struct command *command, int *fd, int type, int *left)
{
	size_t want = MAX_OUTPUT;
	if (command->uncredited >= WINDOW)
		return 1;
	if (want > WINDOW - command->uncredited)
		want = WINDOW - command->uncredited;
	if (outbox_size + want + 9 > sizeof outbox)
		flush_outbox();
	ssize_t got = read(*fd, outbox + outbox_size + 9, want);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return errno == EINTR;
	if (got <= 0 && command->terminal && !command->end_known) {
		// A terminal answers EIO when nobody has it open any more. Closed now, it would hang up on a program that has
		// closed its streams and is about to end.
		command->hung_until = now_ms() + TERMINAL_CLOSED_MS;
		return 0;
	}
	command->hung_until = 0;
	if (got <= 0) {
		if (command->terminal)
			command->in = -1;
		drop_fd(fd);
		*left = 0;
		return 0;
	}
	frame(type, command->id, got);
	command->uncredited += got;
	*left -= got;
	return (size_t)got == want;
}

#include "agent_ends.h"

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
		struct request request = {.id = id};
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
	ssize_t got = read(stream_in, inbox + inbox_size, sizeof inbox - inbox_size);
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
		if (command->hung_until && !command->end_known && command->hung_until < first)
			first = command->hung_until;
		if (command->next_look && command->next_look < first)
			first = command->next_look;
	}
	return first == UINT64_MAX ? -1 : first <= now ? 0 : (int)(first - now);
}

static void serve(const sigset_t *listening)
{
	static struct pollfd polled[1 + 4 * MAX_COMMANDS];
	for (;;) {
		int count = 1;
		polled[0] = (struct pollfd){.fd = stream_in, .events = POLLIN};
		for (int i = 0; i < n_commands; i++) {
			struct command *command = commands[i];
			int hung = command->hung_until && !command->end_known && now_ms() < command->hung_until;
			int open = command->started && command->uncredited < WINDOW && !hung;
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

// Whether orphans can be had by others than PID 1. To PID 1 every kernel says yes, so that a child is asked there.
static int try_subreaping(void)
{
	int status, mine = prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
	if (!mine || getpid() != 1)
		return mine;
	pid_t pid = fork();
	if (pid == 0)
		_exit(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 ? 0 : 1);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return pid < 0 || status == 0;
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
	subreaping = try_subreaping();
	make_mark();
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	// Nobody of the same uid may look into it, or take its descriptors out of /proc.
	prctl(PR_SET_DUMPABLE, 0);
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	overhear_signals();
	umask(022);
	know_oneself();
	take_stream();
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
