# SPDX-License-Identifier: MIT
"""The init of a box: starts programs on request, reaps every orphan, and takes the box down with it.

In a box with namespaces it is PID 1 of the box's PID namespace: the guest's signals do not reach it, it is not
dumpable (so no guest can look into it), and the kernel kills everything in the namespace when it goes. Without
namespaces (backend subprocess) it is a subreaper: every descendant ends up below it, and it sweeps them.
"""

from __future__ import annotations

import errno
import os
import select
import time

from agentbox.isolation.launcher import wire
from agentbox.light import contextlib, signal
from agentbox.linux import process, terminals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.light import socket

# How often the memory of a box without a memory cgroup is summed up.
_MEMORY_POLL_MS = 50
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Init:
    def __init__(self, sock: socket.socket, plan: dict[str, Any], whole_namespace: bool) -> None:
        self.sock = sock
        self.plan = plan
        self.whole_namespace = whole_namespace
        self.receiver = wire.Receiver(sock)
        self.commands: dict[int, int] = {}
        self.watch_bytes: int = plan["watch_memory_bytes"]

    def serve(self) -> None:
        """Until the owner's end of the socket closes."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            watching = self.watch_bytes and self.commands
            for fd, _ in poller.poll(_MEMORY_POLL_MS if watching else None):
                if fd == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                elif not self.receiver.fill():
                    return
            while (taken := self.receiver.take()) is not None:
                self.handle(*taken)
            self.reap()
            if watching:
                self.check_memory()

    def handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "exec" in message:
            self.execute(message["exec"], descriptors)
        elif "signal" in message:
            self.signal(message["signal"]["id"], message["signal"]["number"])
        elif "kill" in message:
            self.sweep()
            self.reap()
            wire.send(self.sock, {"swept": True})
        for fd in descriptors:
            os.close(fd)

    def signal(self, command: int, number: int) -> None:
        """Send a signal to the session of a program that was started here; one that has ended is passed over."""
        for pid, started in self.commands.items():
            if started == command:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number)

    def execute(self, command: dict[str, Any], descriptors: list[int]) -> None:
        """Fork and exec one program; a failure to exec comes back through a pipe that exec closes. With `tty` the
        program gets a terminal of the box's own, and the owner its other end."""
        terminal: list[int] = []
        if command.get("tty"):
            terminal.append(terminals.open_master())
            slave = terminals.open_slave(terminal[0])
            terminals.set_size(slave, *command["tty"])
            instead = dict(zip(command.get("tty_instead", ()), descriptors, strict=False))
            # The slave comes last too: it becomes the controlling terminal whatever else the program gets.
            descriptors[:] = [instead.get(target, slave) for target in range(3)] + [slave]
        try:
            self.start(command, descriptors, terminal)
        finally:
            for fd in terminal:
                os.close(fd)
            # The terminal was meant three times; `handle` closes each descriptor once.
            descriptors[:] = dict.fromkeys(descriptors)

    def start(self, command: dict[str, Any], descriptors: list[int], terminal: list[int]) -> None:
        """Fork, exec, and tell the owner which of the two worked."""
        report_read, report_write = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(report_read)
            os.close(report_write)
            wire.send(self.sock, {"failed": command["id"], "errno": error.errno, "text": f"fork: {error.strerror}"})
            return
        if pid == 0:
            self._become(command, descriptors, report_write)
        os.close(report_write)
        report = b""
        while chunk := os.read(report_read, 4096):
            report += chunk
        os.close(report_read)
        if report:
            os.waitpid(pid, 0)
            code, _, text = report.partition(b" ")
            wire.send(self.sock, {"failed": command["id"], "errno": int(code), "text": text.decode()})
            return
        self.commands[pid] = command["id"]
        wire.send(self.sock, {"started": command["id"], "pid": pid}, terminal)

    def _become(self, command: dict[str, Any], descriptors: list[int], report: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            if command.get("tty"):
                terminals.take_as_controlling_terminal(descriptors[3])
            for target, fd in enumerate(descriptors[:3]):
                # dup2 onto itself would leave close-on-exec set.
                if fd == target:
                    os.set_inheritable(fd, True)
                else:
                    os.dup2(fd, target)
            if report != 3:
                os.dup2(report, 3, inheritable=False)
                report = 3
            process.close_from(4)
            process.reset_signals()
            os.umask(0o022)
            os.chdir(command["cwd"])
            if self.plan["judge"]:
                # Until its first execve this is a copy of the init, which nobody may trace.
                process.set_dumpable(True)
            os.execve(command["argv"][0], command["argv"], command["env"])  # noqa: S606
        except OSError as error:
            os.write(report, f"{error.errno} {command['argv'][0]}: {error.strerror}".encode())
        except BaseException as error:  # a child must never return into the init's loop
            os.write(report, f"{errno.EINVAL} {error!r}".encode()[:2000])
        os._exit(127)

    def reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            command = self.commands.pop(pid, None)
            if command is not None:
                cpu_ms = (usage.ru_utime + usage.ru_stime) * 1000
                wire.send(
                    self.sock,
                    {
                        "exit": command,
                        "status": status,
                        "cpu_ms": cpu_ms,
                        "max_rss_bytes": usage.ru_maxrss * 1024,
                        "processes": self.processes_started(),
                    },
                )

    def processes_started(self) -> int | None:
        """Processes and threads that ever ran in this PID namespace, this init not counted: the fifth field of
        /proc/loadavg is the newest PID of the reader's namespace."""
        if not self.whole_namespace:
            return None
        try:
            with open("/proc/loadavg", "rb") as file:
                return int(file.read().split()[4]) - 1
        except (OSError, ValueError, IndexError):
            return None

    def everyone(self) -> list[int]:
        """PIDs of all that lives in the box, this init not counted."""
        me = os.getpid()
        if self.whole_namespace:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != me]
        found: list[int] = []
        frontier = [me]
        while frontier:
            parent = frontier.pop()
            try:
                tasks = os.listdir(f"/proc/{parent}/task")
            except OSError:
                continue
            for task in tasks:
                try:
                    with open(f"/proc/{parent}/task/{task}/children", "rb") as file:
                        children = [int(pid) for pid in file.read().split()]
                except OSError:
                    continue
                found += children
                frontier += children
        return found

    def sweep(self) -> None:
        """Kill everything in the box but this init. Stopping all first keeps respawners from winning the race."""
        deadline = time.monotonic() + 10
        while (living := self.everyone()) and time.monotonic() < deadline:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in living:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
            self.reap()

    def check_memory(self) -> None:
        """Kill the box when its anonymous memory is above the limit, or that and shared memory together above it and
        the disk: files in memory and shared mappings are of one kind. Resident pages first, which is cheap but counts
        what processes share once for each; proportional shares only when that is too much.

        Shared memory that no process maps, such as a written memfd, is seen by a memory cgroup alone.
        """
        living = self.everyone()
        both = self.watch_bytes + self.plan["disk_bytes"]
        resident = [_resident_bytes(pid) for pid in living]
        segments = _segment_bytes() if self.whole_namespace else 0
        anonymous, total = sum(one for one, _ in resident), sum(one for _, one in resident) + segments
        if anonymous <= self.watch_bytes and total <= both:
            return
        shares = [_proportional_bytes(pid) for pid in living]
        anonymous, shared = sum(one for one, _ in shares), sum(one for _, one in shares)
        if anonymous > self.watch_bytes or anonymous + max(shared, segments) > both:
            wire.send(self.sock, {"oom": True, "bytes": anonymous + max(shared, segments)})
            self.sweep()


def _resident_bytes(pid: int) -> tuple[int, int]:
    """Anonymous memory of a process, and all that is resident of it, the files of its program included."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE, int(fields[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0, 0


def _proportional_bytes(pid: int) -> tuple[int, int]:
    """A process's share of anonymous memory and of shared memory."""
    found = {b"Pss_Anon:": 0, b"Pss_Shmem:": 0}
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                name, _, value = line.partition(b" ")
                if name in found:
                    found[name] = int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return _resident_bytes(pid)[0], 0
    return found[b"Pss_Anon:"], found[b"Pss_Shmem:"]


def _segment_bytes() -> int:
    """Resident memory of the System V segments of this IPC namespace, attached or not."""
    try:
        with open("/proc/sysvipc/shm", "rb") as file:
            names, *rows = (line.split() for line in file)
        column = names.index(b"rss")
        return sum(int(row[column]) for row in rows)
    except (OSError, ValueError, IndexError):
        return 0


def serve(sock: socket.socket, plan: dict[str, Any], *, whole_namespace: bool) -> None:
    """Serve the owner until it is gone, then leave nothing behind."""
    box = _Init(sock, plan, whole_namespace)
    try:
        box.serve()
    except OSError:
        # The owner is gone in the middle of a message.
        pass
    finally:
        if not whole_namespace:
            box.sweep()
