// SPDX-License-Identifier: MIT
// First process of a container: confines itself, then starts the one program of the box, and is its init.
//
//   agentbox-box-init run FILTER STATUS       reads a program from stdin (below), runs it to its end, kills what it
//                                             left, writes how it ended to STATUS, exits as it did
//   agentbox-box-init relay FILTER STATUS     the same, and carries its output: in gVisor a large write to a pipe of the
//                                             host is cut short, and few programs look
//   agentbox-box-init wait                    does nothing, until its stdin ends
//   agentbox-box-init become FILTER           reads a program from stdin and becomes it
//
// FILTER is a file with an array of struct sock_filter. A program is a little-endian u32 and so many bytes of strings,
// each with a NUL behind it: the working directory, the number of arguments, the arguments, then the environment. What
// follows on stdin is the program's own. Nothing at all on stdin: the box was given up before it ran anything.
// With the highest bit of the size set (`run` alone) the program gets a terminal of the container, whose other end goes
// to the owner by the socket at TERMINAL; the owner answers with one byte, the sum of 1 and 4 where 0 and 2 are not it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define TERMINAL "/.agentbox/terminal"
#define ON_TERMINAL 0x80000000u
#ifndef TIOCGPTPEER
#define TIOCGPTPEER 0x5441
#endif
#define MAX_PROGRAM_BYTES (16u << 20)
#define MAX_FILTER_BYTES (4096 * sizeof(struct sock_filter))
#define CANNOT_CONFINE 125
#define CANNOT_EXECUTE 126
#define NOT_FOUND 127

static void fail(const char *what) {
    dprintf(2, "agentbox: the box could not be confined: %s: %s\n", what, strerror(errno));
    _exit(CANNOT_CONFINE);
}

static void read_all(int fd, void *into, size_t wanted, int may_be_empty) {
    size_t have = 0;
    while (have < wanted) {
        ssize_t got = read(fd, (char *)into + have, wanted - have);
        if (got < 0 && errno == EINTR) continue;
        if (got == 0 && have == 0 && may_be_empty) _exit(0);
        if (got <= 0) fail("read the program");
        have += (size_t)got;
    }
}

static void confine(const char *path) {
    static struct sock_filter code[MAX_FILTER_BYTES / sizeof(struct sock_filter)];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail(path);
    size_t have = 0;
    ssize_t got;
    while ((got = read(fd, (char *)code + have, sizeof code - have)) > 0) have += (size_t)got;
    close(fd);
    if (got < 0 || have == 0 || have % sizeof(struct sock_filter)) fail(path);
    struct sock_fprog program = {(unsigned short)(have / sizeof(struct sock_filter)), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) fail("seccomp");
}

static char *next(char **at, char *end) {
    char *found = *at;
    if (found >= end) {
        errno = EINVAL;
        fail("read the program");
    }
    *at = found + strlen(found) + 1;
    return found;
}

static char **strings(char **at, char *end, size_t count) {
    char **list = calloc(count + 1, sizeof *list);
    if (!list) fail("memory");
    for (size_t i = 0; i < count; i++) list[i] = next(at, end);
    return list;
}

// Processes of this box that the kernel killed at its memory limit, as its own control group tells; 0 where none does.
static long oom_kills(void) {
    static const char *files[] = {"/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory.events"};
    char text[4096];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t got = read(fd, text, sizeof text - 1);
        close(fd);
        text[got > 0 ? got : 0] = 0;
        for (char *line = text; line; line = strchr(line, '\n')) {
            if (*line == '\n') line++;
            if (strncmp(line, "oom_kill ", 9) == 0) return strtol(line + 9, NULL, 10);
        }
    }
    return 0;
}

static void report(const char *path, int status, const struct rusage *used) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    long ms = (used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000 +
              (used->ru_utime.tv_usec + used->ru_stime.tv_usec) / 1000;
    dprintf(fd, "%d %ld %ld %ld\n", status, ms, used->ru_maxrss, oom_kills());
    close(fd);
}

struct program {
    char *cwd, **argv, **envp;
    int on_terminal;
};

static struct program read_program(void) {
    uint32_t size;
    read_all(0, &size, sizeof size, 1);
    int on_terminal = (size & ON_TERMINAL) != 0;
    size &= ~ON_TERMINAL;
    if (size == 0 || size > MAX_PROGRAM_BYTES) {
        errno = EINVAL;
        fail("read the program");
    }
    char *text = malloc(size + 1u);
    if (!text) fail("memory");
    read_all(0, text, size, 0);
    text[size] = 0;
    char *at = text, *end = text + size;
    char *cwd = next(&at, end);
    size_t count = strtoul(next(&at, end), NULL, 10);
    if (count == 0 || count > size) {
        errno = EINVAL;
        fail("read the program");
    }
    char **argv = strings(&at, end, count);
    size_t variables = 0;
    for (char *each = at; each < end; each++) variables += *each == 0;
    char **envp = strings(&at, end, variables);
    return (struct program){cwd, argv, envp, on_terminal};
}

// Our end of a new terminal; the other one is the owner's when this returns, and has a size. `kept` says which of 0 and 2
// stay as they are.
static int open_terminal(unsigned char *kept) {
    int locked = 0;
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0 || ioctl(master, TIOCSPTLCK, &locked)) fail("open a terminal");
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    int line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un there = {.sun_family = AF_UNIX, .sun_path = TERMINAL};
    if (slave < 0 || line < 0 || connect(line, (struct sockaddr *)&there, sizeof there)) fail("open a terminal");
    char control[CMSG_SPACE(sizeof master)];
    memset(control, 0, sizeof control);
    struct iovec word = {.iov_base = "t", .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &word, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof master);
    memcpy(CMSG_DATA(header), &master, sizeof master);
    if (sendmsg(line, &message, MSG_NOSIGNAL) != 1 || read(line, kept, 1) != 1) fail("hand over the terminal");
    close(master);
    close(line);
    return slave;
}

static void take_terminal(int slave, unsigned char kept) {
    setsid();
    if (ioctl(slave, TIOCSCTTY, 0)) fail("take the terminal");
    for (int fd = 0; fd < 3; fd++)
        if (!(kept & 1 << fd) && dup2(slave, fd) < 0) fail("take the terminal");
}

static void execute(struct program program) {
    signal(SIGPIPE, SIG_DFL);
    setsid();
    if (chdir(program.cwd)) {
        dprintf(2, "agentbox: %s: %s\n", program.cwd, strerror(errno));
        _exit(CANNOT_EXECUTE);
    }
    // Its PATH is where execvpe looks.
    environ = program.envp;
    execvpe(program.argv[0], program.argv, program.envp);
    int code = errno == ENOENT ? NOT_FOUND : CANNOT_EXECUTE;
    dprintf(2, "agentbox: %s: %s\n", program.argv[0], strerror(errno));
    _exit(code);
}

// What a relay carries: our ends of pipes that were made in here, and the descriptors that they end in.
static int carried[2] = {-1, -1};
static char carrying[1 << 16];

static void ignore(int number) { (void)number; }

// Copy what there is, or everything that will come; 0 when a pipe has ended or nobody reads on the other side.
static int carry(int index) {
    ssize_t got = read(carried[index], carrying, sizeof carrying);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return 1;
    for (ssize_t at = 0; at < got;) {
        ssize_t put = write(index + 1, carrying + at, (size_t)(got - at));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && errno == EAGAIN) {
            struct pollfd writable = {.fd = index + 1, .events = POLLOUT};
            poll(&writable, 1, -1);
            continue;
        }
        if (put < 0) got = 0;
        at += put;
    }
    if (got > 0) return 1;
    close(carried[index]);
    carried[index] = -1;
    return 0;
}

// Wait for a child to end, carrying meanwhile.
static pid_t await_child(int *status, struct rusage *its, int relays, const sigset_t *unblocked) {
    for (;;) {
        pid_t ended = wait4(-1, status, relays ? WNOHANG : 0, its);
        if (ended != 0) return ended;
        struct pollfd readable[2];
        for (int i = 0; i < 2; i++) readable[i] = (struct pollfd){.fd = carried[i], .events = POLLIN};
        if (ppoll(readable, 2, NULL, unblocked) < 0) continue;
        for (int i = 0; i < 2; i++)
            if (readable[i].revents) carry(i);
    }
}

static pid_t program_pid;

// What the owner sends is the program's and its group's. Nobody can be sent SIGSTOP to pass on, so another stands for it.
static void pass_on(int number) {
    if (program_pid > 0) kill(-program_pid, number == SIGTSTP ? SIGSTOP : number);
}

static int run(const char *filter, const char *status_path, int relays) {
    // A guest of the same uid must not trace us or read our memory.
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    struct program program = read_program();
    unsigned char kept = 0;
    int slave = program.on_terminal ? open_terminal(&kept) : -1;
    confine(filter);
    int inside[2] = {-1, -1};
    sigset_t unblocked, children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    for (int i = 0; relays && i < 2; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC)) fail("pipe");
        carried[i] = ends[0];
        inside[i] = ends[1];
    }
    if (relays) {
        signal(SIGCHLD, ignore);
        signal(SIGPIPE, SIG_IGN);
        sigprocmask(SIG_BLOCK, &children, &unblocked);
    }
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        for (int i = 0; relays && i < 2; i++)
            if (dup2(inside[i], i + 1) < 0) fail("pipe");
        if (relays) {
            signal(SIGCHLD, SIG_DFL);
            sigprocmask(SIG_SETMASK, &unblocked, NULL);
        }
        if (slave >= 0) take_terminal(slave, kept);
        execute(program);
    }
    if (slave >= 0) close(slave);
    program_pid = child;
    static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
    for (size_t i = 0; i < sizeof passed / sizeof *passed; i++) {
        struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
        sigaction(passed[i], &action, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (inside[i] >= 0) close(inside[i]);
    close(0);
    int status = 0, code = 0;
    struct rusage used;
    memset(&used, 0, sizeof used);
    for (;;) {
        struct rusage its;
        pid_t ended = await_child(&status, &its, relays, &unblocked);
        if (ended < 0 && errno == EINTR) continue;
        if (ended < 0) fail("wait");
        if (ended == child) {
            used = its;
            break;
        }
    }
    code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // Nothing may write after the report; what forks faster than it is killed goes with this process.
    for (;;) {
        kill(-1, SIGKILL);
        if (wait4(-1, NULL, 0, NULL) < 0 && errno == ECHILD) break;
    }
    for (int i = 0; i < 2; i++)
        while (carried[i] >= 0 && carry(i)) continue;
    report(status_path, status, &used);
    return code;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "run") == 0) return run(argv[2], argv[3], 0);
    if (argc == 4 && strcmp(argv[1], "relay") == 0) return run(argv[2], argv[3], 1);
    if (argc == 2 && strcmp(argv[1], "wait") == 0) {
        char byte;
        ssize_t got;
        while ((got = read(0, &byte, 1)) > 0 || (got < 0 && errno == EINTR)) continue;
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "become") == 0) {
        struct program program = read_program();
        confine(argv[2]);
        execute(program);
    }
    dprintf(2, "use: %s run|relay FILTER STATUS | become FILTER | wait\n", argv[0]);
    return 2;
}
