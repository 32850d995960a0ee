# SPDX-License-Identifier: MIT
"""The agent itself: one thread, one poll."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import time
from typing import NoReturn

from .commands import Command, is_readable, next_milliseconds, set_size, waiting_bytes
from .family import Family
from .keeper import REPORT, TRYING, Keeper, resolve_user
from .operations import write_all
from .processes import MARK, mark_of, signal_all
from .protocol import (
    CLOSED,
    CREDIT,
    EXIT,
    FAILED,
    HEAD,
    KILL,
    KILLED,
    MAX_COMMANDS,
    MAX_OUTPUT,
    MAX_PENDING,
    MAX_REQUEST,
    MERGED,
    OVER,
    RESIZE,
    SIGNAL,
    START,
    STARTED,
    STDERR,
    STDIN,
    STDIN_END,
    STDOUT,
    TAKEN,
    WINDOW,
    WITH_STDIN,
    Request,
)

SETTLE_SECONDS = 0.05
CLOSED_SECONDS = 0.02
KILL_LIMIT_SECONDS = 10.0
LOOK_SECONDS = 1.0


class Agent:
    """One thread, one poll."""

    def __init__(self, *, subreaping: bool) -> None:
        self.subreaping = subreaping
        self.commands: dict[int, Command] = {}
        self.family = Family(self.commands, subreaping=subreaping)
        self.outbox = bytearray()
        self.inbox = bytearray()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Queue a frame."""
        self.outbox += HEAD.pack(len(payload) + 5, kind, number) + payload

    def send_number(self, kind: int, number: int, value: int) -> None:
        """Queue a frame with one number."""
        self.send(kind, number, struct.pack(">I", value))

    def fail(self, number: int, code: int, text: str) -> None:
        """Queue a FAILED frame."""
        self.send(FAILED, number, struct.pack(">I", code) + text.encode(errors="replace"))

    def flush(self) -> None:
        """Write what is queued; without a reader everything ends."""
        data, self.outbox = self.outbox, bytearray()
        try:
            write_all(1, data)
        except OSError:
            self.kill_everything()

    @staticmethod
    def close(fd: int) -> int:
        """Close a descriptor if it is one; returns -1."""
        if fd >= 0:
            os.close(fd)
        return -1

    def drop_input(self, command: Command) -> None:
        """Nobody reads what would come."""
        command.input = -1 if command.terminal else self.close(command.input)
        if command.pending:
            self.send_number(TAKEN, command.id, len(command.pending))
        command.pending = bytearray()

    def forget(self, command: Command) -> None:
        """Give everything of it back."""
        self.drop_input(command)
        for name in ("out", "err", "control"):
            setattr(command, name, self.close(getattr(command, name)))
        self.commands.pop(command.id, None)

    # -- starting

    def open_terminal(self, command: Command, request: Request) -> int:
        """The slave of a new terminal, which belongs to the command's user. Raises OSError."""
        lent = os.geteuid() == 0 and command.uid != 0
        if lent:
            os.seteuid(command.uid)
        try:
            command.out = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            fcntl.ioctl(command.out, 0x40045431, struct.pack("i", 0))
            number = struct.unpack("I", fcntl.ioctl(command.out, 0x80045430, b"\0" * 4))[0]
            slave = os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            if lent:
                os.seteuid(0)
        command.input = command.out
        set_size(slave, request.rows, request.columns)
        return slave

    def open_stdio(self, command: Command, request: Request) -> list[int]:
        """The three descriptors of the command. Raises OSError."""
        if command.terminal:
            slave = self.open_terminal(command, request)
            return [slave, slave, slave]
        theirs_in, command.input = os.pipe()
        command.out, theirs_out = os.pipe()
        theirs_err = theirs_out
        if not request.flags & MERGED:
            command.err, theirs_err = os.pipe()
        if not request.flags & WITH_STDIN:
            command.input = self.close(command.input)
        return [theirs_in, theirs_out, theirs_err]

    def start(self, number: int, request: Request) -> None:
        """Start a command, or say why not."""
        if number in self.commands or len(self.commands) >= MAX_COMMANDS:
            self.fail(number, errno.EBUSY, "too many commands, or this id is in use")
            return
        command = Command(number, request)
        stdio: list[int] = []
        with contextlib.suppress(KeyError, OSError):
            command.uid, command.gid = resolve_user(request.user)
        try:
            stdio = self.open_stdio(command, request)
            command.control, report = os.pipe()
            command.keeper = os.fork()
        except OSError as error:
            self.fail(number, error.errno or errno.EIO, f"fork: {error.strerror}")
            for fd in set(stdio):
                os.close(fd)
            self.forget(command)
            return
        if command.keeper == 0:
            try:
                self.leave_descriptors(command)
                if not self.subreaping:
                    request.variables.insert(0, f"{MARK}={mark_of(number)}")
                Keeper(request, stdio, report).live()
            finally:
                os._exit(127)
        os.close(report)
        for fd in set(stdio):
            os.close(fd)
        for fd in (command.input, command.out, command.err, command.control):
            if fd >= 0:
                os.set_blocking(fd, False)
        self.commands[number] = command

    def leave_descriptors(self, own: Command) -> None:
        """In a keeper: nothing that lets another command's streams, or the agent's, live on."""
        # So that nothing that is opened later gets the numbers 0 and 1, which a command's streams are put at.
        os.dup2(2, 0)
        os.dup2(2, 1)
        open_ones = {fd for one in [own, *self.commands.values()] for fd in (one.control, one.input, one.out, one.err)}
        for fd in open_ones:
            if fd >= 0:
                os.close(fd)

    # -- ends

    def know_end(self, command: Command, status: int, cpu: int, rss: int) -> None:
        """How it ended, to be told when its output is through."""
        if command.end is not None:
            return
        command.end = (status, cpu, rss)
        command.left = [0 if command.terminal else waiting_bytes(command.out), waiting_bytes(command.err)]
        command.settle_at = time.monotonic() + SETTLE_SECONDS
        self.drop_input(command)

    def settle(self, command: Command) -> None:
        """Tell what can be told; forget it when it is over."""
        if command.end is None or not command.started:
            return
        through = not command.terminal or command.out < 0 or time.monotonic() >= command.settle_at
        if not command.exited and max(command.left) <= 0 and through:
            self.send(EXIT, command.id, struct.pack(">IQQ", *command.end))
            command.exited = True
        self.close_terminal(command)
        if command.exited and not command.closed and command.out < 0 and command.err < 0:
            self.send(CLOSED, command.id)
            command.closed = True
        if command.closed and command.keeper_gone and not self.lingers(command):
            if command.killing:
                self.send_number(KILLED, command.id, 0)
            self.send(OVER, command.id)
            self.forget(command)

    def close_terminal(self, command: Command) -> None:
        """A kernel without subreapers is one whose terminals do not tell either that nobody has them open any more."""
        if not self.subreaping and command.has_terminal and not self.lingers(command) and not is_readable(command.out):
            command.input, command.out = -1, self.close(command.out)

    def lingers(self, command: Command) -> bool:
        """Whether something of it runs, where the kernel does not tell; looked at now and then, not at once."""
        if self.subreaping or command.own:
            return False
        now = time.monotonic()
        if not command.next_look and not command.killing:
            command.next_look = now + (0 if command.terminal else LOOK_SECONDS)
        if now < command.next_look:
            return True
        if not self.family.of(command):
            return False
        command.next_look = now + LOOK_SECONDS
        return True

    def hear_keeper(self, command: Command) -> bool:
        """One report, if there is one."""
        try:
            data = os.read(command.control, REPORT.size)
        except BlockingIOError:
            return False
        if len(data) != REPORT.size:
            command.control = self.close(command.control)
            if not command.started and command.pid:
                command.started = True
                self.send_number(STARTED, command.id, command.pid)
            elif not command.started:
                self.fail(command.id, errno.EINTR, "the command was killed before it started")
                self.forget(command)
            return False
        kind, status, cpu, rss, text = REPORT.unpack(data)
        if kind == TRYING:
            command.pid = status
            return True
        if kind == FAILED and not command.started:
            self.fail(command.id, status, text.rstrip(b"\0").decode(errors="replace"))
            self.forget(command)
            return False
        if not command.started:
            command.started = True
            command.pid = status if kind == STARTED else command.keeper
            self.send_number(STARTED, command.id, command.pid)
        if kind != STARTED:
            self.know_end(command, (status & 0xFF) << 8 if kind == FAILED else status, cpu, rss)
        return True

    def reap(self) -> None:
        """Take note of everybody who ended below us."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for command in list(self.commands.values()):
                if command.keeper == pid:
                    command.keeper_gone = 1 if os.WIFEXITED(status) else 2
                    command.keeper_status = status
                elif command.pid == pid and not command.own:
                    self.know_end(command, status, 0, usage.ru_maxrss * 1024)

    def miss_keeper(self, command: Command) -> None:
        """A keeper that was killed says no more."""
        if command.end is not None or command.control >= 0 or not command.keeper_gone:
            return
        if command.own:
            self.know_end(command, command.keeper_status, 0, 0)
            return
        try:
            os.kill(command.pid, 0)
        except ProcessLookupError:
            self.know_end(command, signal.SIGKILL, 0, 0)
        except PermissionError:
            pass

    # -- killing

    def begin_kill(self, command: Command, grace: float) -> None:
        """TERM to all of it; the rest by `tick_kill`."""
        now = time.monotonic()
        if not command.killing or now + grace < command.kill_at:
            command.kill_at = now + grace
        command.give_up_at = command.kill_at + KILL_LIMIT_SECONDS
        command.next_tick = now
        command.tick = 0.001
        command.asked.clear()
        if grace and command.killing != 2:
            self._ask(command, self.family.of(command))
        command.killing = 1 if grace else 2

    @staticmethod
    def _ask(command: Command, living: list[int]) -> None:
        """Ask each to end, once: what a shell starts between two looks belongs to it."""
        new = [pid for pid in living if pid not in command.asked]
        command.asked.update(new)
        signal_all(new, signal.SIGTERM, command.uid, command.gid)
        signal_all(new, signal.SIGCONT, command.uid, command.gid)

    def tick_kill(self, command: Command) -> None:
        """Look whether it is gone, and help."""
        now = time.monotonic()
        if now < command.next_tick:
            return
        living = self.family.of(command)
        if command.killing == 1 and living and now >= command.kill_at:
            command.killing = 2
        if command.killing == 1:
            self._ask(command, living)
        if command.killing == 2 and living:
            signal_all(living, signal.SIGSTOP, command.uid, command.gid)
            living = self.family.of(command)
            signal_all(living, signal.SIGKILL, command.uid, command.gid)
        unsure = command.keeper_gone == 2 or not self.subreaping
        missed = not living and (not command.keeper_gone or (unsure and not command.looked_again))
        command.looked_again = not living
        if (not living and not missed) or now >= command.give_up_at:
            self.send_number(KILLED, command.id, len(living) + missed)
            command.killing = 0
            command.next_look = 0.0
            return
        command.tick = min(0.02, command.tick * 2)
        command.next_tick = now + command.tick

    def kill_everything(self) -> NoReturn:
        """The end of the agent."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        self.family.end(KILL_LIMIT_SECONDS)
        os._exit(0)

    # -- input and output

    def pass_output(self, command: Command, name: str, kind: int, index: int) -> None:
        """Some of what it wrote, as far as the owner has room."""
        want = min(MAX_OUTPUT, WINDOW - command.uncredited)
        fd = getattr(command, name)
        if want <= 0 or fd < 0:
            return
        try:
            data = os.read(fd, want)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data and command.terminal and command.end is None:
            # Closed now, it would hang up on a program that has closed its streams and is about to end.
            command.hung_until = time.monotonic() + CLOSED_SECONDS
            return
        command.hung_until = 0.0
        if not data:
            if command.terminal:
                command.input = -1
            setattr(command, name, self.close(fd))
            command.left[index] = 0
            return
        self.send(kind, command.id, data)
        command.uncredited += len(data)
        command.left[index] -= len(data)

    def pass_input(self, command: Command) -> None:
        """Some of what it is to read, as far as it reads."""
        while command.pending and command.input >= 0:
            try:
                sent = os.write(command.input, command.pending)
            except BlockingIOError:
                return
            except OSError:
                self.drop_input(command)
                return
            self.send_number(TAKEN, command.id, sent)
            del command.pending[:sent]
        if command.ending and command.input >= 0 and not command.terminal:
            command.input = self.close(command.input)

    def take_input(self, command: Command, data: bytes) -> None:
        """Input of the owner."""
        if command.input < 0 or len(command.pending) + len(data) > MAX_PENDING:
            self.send_number(TAKEN, command.id, len(data))
            return
        command.pending += data
        self.pass_input(command)

    # -- requests

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        """One frame. Raises ValueError, struct.error for what is none."""
        if kind == START:
            self.start(number, Request(payload))
            return
        command = self.commands.get(number)
        if command is None:
            return
        if kind == STDIN:
            self.take_input(command, payload)
        elif kind == STDIN_END:
            if command.terminal:
                self.take_input(command, b"\x04")
            command.ending = True
            self.pass_input(command)
        elif kind == RESIZE:
            if command.terminal and command.out >= 0:
                set_size(command.out, *struct.unpack(">HH", payload))
        elif kind == SIGNAL:
            if command.pid > 0 and not command.exited and not command.own:
                self.signal_group(command.pid, payload[0])
        elif kind == KILL:
            self.begin_kill(command, struct.unpack(">I", payload)[0] / 1000)
        elif kind == CREDIT:
            command.uncredited = max(0, command.uncredited - struct.unpack(">I", payload)[0])
        else:
            raise ValueError(kind)

    @staticmethod
    def signal_group(pid: int, number: int) -> None:
        """To the group, or to the one."""
        try:
            os.killpg(pid, number)
        except OSError:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def hear_owner(self) -> None:
        """What the owner sent."""
        data = os.read(0, MAX_REQUEST)
        if not data:
            self.kill_everything()
        inbox = self.inbox
        inbox += data
        at = 0
        while len(inbox) - at >= HEAD.size:
            size, kind, number = HEAD.unpack_from(inbox, at)
            if not 5 <= size <= MAX_REQUEST:
                self.kill_everything()
            if len(inbox) - at < size + 4:
                break
            try:
                self.handle(kind, number, bytes(inbox[at + HEAD.size : at + 4 + size]))
            except (ValueError, IndexError, struct.error):
                self.kill_everything()
            at += size + 4
        del inbox[:at]

    # -- the loop

    def serve(self, wake: int) -> NoReturn:
        """Until the owner is gone."""
        while True:
            poller = select.poll()
            poller.register(0, select.POLLIN)
            poller.register(wake, select.POLLIN)
            for command in self.commands.values():
                readable = [command.control]
                hung = command.end is None and time.monotonic() < command.hung_until
                if command.started and command.uncredited < WINDOW and not hung:
                    readable += [command.out, command.err]
                flags = {fd: select.POLLIN for fd in readable if fd >= 0}
                if command.pending and command.input >= 0:
                    flags[command.input] = flags.get(command.input, 0) | select.POLLOUT
                for fd, events in flags.items():
                    poller.register(fd, events)
            self.flush()
            ready = {fd for fd, _ in poller.poll(next_milliseconds(self.commands.values()))}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self.reap()
            for command in list(self.commands.values()):
                # What a keeper said last is in its pipe when it is gone.
                while command.control >= 0 and (command.control in ready or wake in ready):
                    if not self.hear_keeper(command):
                        break
                if command.out in ready:
                    self.pass_output(command, "out", STDOUT, 0)
                if command.err in ready:
                    self.pass_output(command, "err", STDERR, 1)
                if command.input in ready:
                    self.pass_input(command)
                self.miss_keeper(command)
                if command.killing:
                    self.tick_kill(command)
                self.settle(command)
            if 0 in ready:
                self.hear_owner()
