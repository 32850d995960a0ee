# SPDX-License-Identifier: MIT
"""The process below which one command runs: a subreaper, so that nothing gets away from below it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
import termios
from typing import NoReturn

from .operations import operate, write_all
from .protocol import EXIT, FAILED, OWN, STARTED, TERMINAL, Request

REPORT = struct.Struct("=IIQQ256s")
# From the process that is about to become the command: whom a keeper has that is killed before it can tell.
TRYING = 1
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE)
_KEPT_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7
_SUBREAPER = 36
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def prctl(option: int, value: int) -> bool:
    """As prctl(2): whether the kernel has done it."""
    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


def become_subreaper() -> bool:
    """Whether orphans of this process's descendants become its children from now on."""
    return prctl(_SUBREAPER, 1)


def resolve_user(user: str) -> tuple[int, int]:
    """uid and gid. Raises KeyError for a name that the box does not have."""
    if not user:
        return os.geteuid(), os.getegid()
    first, _, second = user.partition(":")
    if first.isdigit() and (not second or second.isdigit()):
        return int(first), int(second or first)
    with open("/etc/passwd", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split(":")
            if fields[0] == user and len(fields) > 3:
                return int(fields[2]), int(fields[3])
    raise KeyError(user)


def narrow_capabilities() -> None:
    """Keep of the capabilities what a root of the box is to have."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) == 0:
        kept = data[1] & _KEPT_CAPABILITIES
        libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0))


def become(uid: int, gid: int) -> None:
    """Be that user from now on. Raises OSError."""
    if os.geteuid() == 0:
        if uid or gid:
            os.setgroups([gid])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        narrow_capabilities()
    elif (uid, gid) != (os.geteuid(), os.getegid()):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


class Keeper:
    """The life of the process below which one command runs."""

    def __init__(self, request: Request, stdio: list[int], report: int) -> None:
        self.request, self.stdio, self.report = request, stdio, report

    def tell(self, kind: int, status: int, usage: resource.struct_rusage | None = None, text: str = "") -> None:
        """One report for the agent."""
        cpu = int((usage.ru_utime + usage.ru_stime) * 1e6) if usage else 0
        rss = usage.ru_maxrss * 1024 if usage else 0
        write_all(self.report, REPORT.pack(kind, status, cpu, rss, text.encode(errors="replace")[:255]))

    def fail(self, what: str, error: OSError) -> NoReturn:
        """Report why nothing starts, and end."""
        code = error.errno or errno.EIO
        self.tell(FAILED, code, None, f"{what}: {os.strerror(code)}")
        os._exit(127)

    def live(self) -> NoReturn:
        """To the end; does not return."""
        become_subreaper()
        signal.set_wakeup_fd(-1)
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        request = self.request
        try:
            uid, gid = resolve_user(request.user)
        except (KeyError, OSError):
            self.fail("the box has no such user", OSError(errno.EINVAL, ""))
        try:
            become(uid, gid)
        except OSError as error:
            self.fail("cannot become that user", error)
        try:
            if request.directory:
                os.chdir(request.directory)
        except OSError as error:
            self.fail(request.directory, error)
        os.umask(0o022)
        if request.flags & OWN:
            self.operate()
        self.run()

    def operate(self) -> NoReturn:
        """An operation of our own, in this process."""
        code = 0
        try:
            self.take_stdio()
            operate(self.request.argv, lambda: self.tell(STARTED, os.getpid()))
        except OSError as error:
            code = error.errno or errno.EIO
        except ValueError:
            code = errno.EINVAL
        usage = resource.getrusage(resource.RUSAGE_SELF)
        for fd in range(3):
            os.close(fd)
        if code:
            self.tell(FAILED, code, usage, os.strerror(code))
        else:
            self.tell(EXIT, 0, usage)
        os._exit(0)

    def take_stdio(self) -> None:
        """A session of its own, its terminal, its three descriptors. Raises OSError."""
        os.setsid()
        if self.request.flags & TERMINAL:
            fcntl.ioctl(self.stdio[0], termios.TIOCSCTTY, 0)
        for target in range(3):
            os.dup2(self.stdio[target], target)

    def run(self) -> NoReturn:
        """Start the command, tell how it ends, and stay until no child is left."""
        request = self.request
        trouble_read, trouble_write = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            self.fail("fork", error)
        if pid == 0:
            try:
                self.take_stdio()
                self.tell(TRYING, os.getpid())
                for number in IGNORED:
                    signal.signal(number, signal.SIG_DFL)
                self.execute(request.argv, request.environment())
            except OSError as error:
                os.write(trouble_write, str(error.errno or errno.EIO).encode())
            finally:
                os._exit(127)
        os.close(trouble_write)
        trouble = os.read(trouble_read, 64)
        if trouble:
            self.fail(request.argv[0], OSError(int(trouble), ""))
        os.close(trouble_read)
        self.tell(STARTED, pid)
        for fd in set(self.stdio):
            os.close(fd)
        while True:
            try:
                ended, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                os._exit(0)
            if ended == pid:
                self.tell(EXIT, status, usage)

    @staticmethod
    def execute(argv: list[str], environment: dict[str, str]) -> NoReturn:
        """As execvpe. Raises OSError."""
        name = argv[0]
        places = [""] if "/" in name else [f"{one}/" for one in environment.get("PATH", _PATH).split(":") if one]
        worst = errno.ENOENT
        for place in places:
            try:
                os.execve(place + name, argv, environment)  # noqa: S606
            except OSError as error:
                if error.errno == errno.EACCES:
                    worst = errno.EACCES
                elif error.errno not in (errno.ENOENT, errno.ENOTDIR) or "/" in name:
                    raise
                if "/" in name:
                    raise
        raise OSError(worst, os.strerror(worst))
