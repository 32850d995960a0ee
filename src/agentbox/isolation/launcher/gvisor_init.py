# SPDX-License-Identifier: MIT
"""The init of a gVisor box: has gVisor start programs on request, tells of their ends, and takes the box down with it.

It speaks with the owner as the jail's init does (init.py), and runs outside of gVisor: PID 1 of the namespace around
it, so that the kernel kills everything that gVisor is made of when it goes.
"""

from __future__ import annotations

import errno
import os
import select

from agentbox.isolation.launcher import sentry, wire
from agentbox.isolation.launcher.bundle import INSIDE, NAME
from agentbox.light import contextlib, signal
from agentbox.linux import process, terminals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agentbox.light import socket

_KEYS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH)


class Keys:
    """A process that has a terminal of the host as its own, as no process of gVisor can, and so gets the signals of its
    keys and of its size: it passes them on to what the terminal has in the foreground inside. Raises OSError."""

    def __init__(self, slave: int, kernel: sentry.Sentry) -> None:
        read, self._write = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                self._live(slave, kernel, read)
            finally:
                os._exit(0)
        os.close(read)

    def _live(self, slave: int, kernel: sentry.Sentry, read: int) -> None:
        signal.set_wakeup_fd(-1)
        process.die_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK, _KEYS)
        os.setsid()
        terminals.take_as_controlling_terminal(slave)
        os.close(self._write)
        pid = int(os.read(read, 16) or b"0")
        while pid:
            with contextlib.suppress(OSError):
                kernel.signal(pid, signal.sigwait(_KEYS), foreground=True)

    def follow(self, pid: int) -> None:
        """The program inside that leads the terminal."""
        os.write(self._write, b"%d" % pid)
        os.close(self._write)

    def end(self) -> None:
        """There will be no program."""
        os.close(self._write)


class _Init:
    def __init__(self, sock: socket.socket, plan: dict[str, Any], runsc: int) -> None:
        self.sock = sock
        self.uid: int = plan["guest_uid"]
        self.capabilities: int = plan["runtime"]["capabilities"]
        self.runsc = runsc
        self.receiver = wire.Receiver(sock)
        self.sentry = sentry.Sentry(NAME)
        self.nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.poller = select.poll()
        # By id of the owner: pid inside, and what passes on its terminal's signals, 0 where it leads none.
        self.programs: dict[int, tuple[int, int]] = {}
        self.waits: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> None:
        """Until the owner's end of the socket closes, or gVisor ends."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.poller.register(self.sock, select.POLLIN)
        self.poller.register(wake_read, select.POLLIN)
        while self.runsc_lives():
            for fd, _ in self.poller.poll():
                if fd == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                elif fd in self.waits:
                    self.ended(fd)
                elif fd == self.sock.fileno() and not self.receiver.fill():
                    return
            while (taken := self.receiver.take()) is not None:
                self.handle(*taken)

    def runsc_lives(self) -> bool:
        """Reap what ended; False when it was gVisor."""
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if pid == self.runsc:
                    return False
        return True

    def handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            if "trace" in message.get("exec", ()):
                self.trace(message["exec"], descriptors)
            elif "exec" in message:
                self.execute(message["exec"], descriptors)
            elif "signal" in message:
                self.signal(message["signal"]["id"], message["signal"]["number"])
            elif "kill" in message:
                self.sweep()
                wire.send(self.sock, {"swept": True})
        finally:
            for fd in descriptors:
                os.close(fd)

    def execute(self, command: Mapping[str, Any], descriptors: list[int]) -> None:
        """Start one program, and tell the owner whether that worked. With `tty` it gets a new terminal, and the owner
        its other end; where some of 0, 1 and 2 are something else, that terminal controls nothing."""
        terminal: list[int] = []
        slave = -1
        given = descriptors
        keys: Keys | None = None
        try:
            if command.get("tty"):
                terminal.append(terminals.open_master())
                slave = terminals.open_slave(terminal[0])
                terminals.set_size(slave, *command["tty"])
                os.fchown(slave, self.uid, self.uid)
                instead = dict(zip(command.get("tty_instead", ()), descriptors, strict=False))
                given = [instead.get(target, slave) for target in range(3)]
                keys = None if instead else Keys(slave, self.sentry)
            pid = self.sentry.start(
                command["argv"],
                command["env"],
                command["cwd"],
                given,
                uid=self.uid,
                gid=self.uid,
                terminal=keys is not None,
                capabilities=self.capabilities,
            )
            wait = self.sentry.waiting_for(pid)
        except OSError as error:
            if keys is not None:
                keys.end()
            text = f"{command['argv'][0]}: {error.strerror}"
            wire.send(self.sock, {"failed": command["id"], "errno": error.errno or errno.EIO, "text": text})
        else:
            if keys is not None:
                keys.follow(pid)
            self.programs[command["id"]] = (pid, keys.process if keys is not None else 0)
            self.waits[wait.fileno()] = (command["id"], wait)
            self.poller.register(wait, select.POLLIN)
            wire.send(self.sock, {"started": command["id"], "pid": pid}, terminal)
        finally:
            for fd in (*terminal, *((slave,) if slave >= 0 else ())):
                os.close(fd)

    def ended(self, fd: int) -> None:
        """Tell the owner how a program ended."""
        command, wait = self.waits.pop(fd)
        self.poller.unregister(fd)
        _, keys = self.programs.pop(command, (0, 0))
        if keys:
            os.kill(keys, signal.SIGKILL)
        with wait:
            status = sentry.status_from(wait)
        told = {"exit": command, "status": status, "cpu_ms": None, "max_rss_bytes": None, "processes": None}
        wire.send(self.sock, told)

    def signal(self, command: int, number: int) -> None:
        """Send a signal to the group that a program leads, or to what its terminal has in the foreground."""
        pid, keys = self.programs.get(command, (0, 0))
        if not pid:
            return
        with contextlib.suppress(OSError):
            if keys:
                self.sentry.signal(pid, number, foreground=True)
            else:
                self.sentry.run_own((INSIDE, "signal", str(number), str(pid)), self.nothing)

    def sweep(self) -> None:
        """End every program. Where that cannot be, the box ends."""
        try:
            left = self.sentry.wait(self.sentry.run_own((INSIDE, "sweep"), self.nothing))
        except OSError:
            left = None
        if left != 0:
            raise OSError(errno.EBUSY, "programs of the box cannot be ended")

    def trace(self, command: Mapping[str, Any], descriptors: list[int]) -> None:
        """Have gVisor report to a socket, and tell the owner whether it will."""
        try:
            self.sentry.trace(command["trace"], descriptors[0])
        except OSError as error:
            text = error.strerror or "gVisor did not answer"
            wire.send(self.sock, {"failed": command["id"], "errno": error.errno or errno.EIO, "text": text})
        else:
            wire.send(self.sock, {"started": command["id"], "pid": 0})


def serve(sock: socket.socket, plan: dict[str, Any], runsc: int) -> None:
    """Serve the owner until it is gone, then leave nothing behind."""
    # The owner or gVisor is gone in the middle of a message.
    with contextlib.suppress(OSError):
        _Init(sock, plan, runsc).serve()
