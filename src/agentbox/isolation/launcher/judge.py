# SPDX-License-Identifier: MIT
"""The exec judge: decides on every program that a box starts, by what really runs, before its first instruction.

It is the process that made the box's user namespace, left behind outside the box's PID namespace with one capability
over that namespace (CAP_SYS_PTRACE). Each execve asks it through seccomp; it seizes the caller, lets the call go on,
and looks at the process in its exec stop: /proc/PID/exe, the argv that the kernel copied, AT_EXECFN. What the caller's
memory said before counts for a friendly refusal only, since other threads can change it.

Nothing of the guest can reach it or the stopped process: it has no PID inside, /proc/PID/mem opens for reading only to
whoever may ptrace, and the guest's filter refuses ptrace and process_vm_writev.
"""

from __future__ import annotations

import errno
import os
import select
from time import monotonic

from agentbox.isolation.launcher import wire
from agentbox.isolation.launcher.exec_rules import ExecRules
from agentbox.isolation.launcher.held import Held
from agentbox.isolation.launcher.reports import Reports
from agentbox.light import contextlib, signal, socket
from agentbox.linux import notify, process, ptrace, seccomp
from agentbox.linux.syscalls import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CALLS = ("execve", "execveat")
WITNESSED = ("open", "openat", "creat", "connect")
# What needs no haste waits so long: reports of what was allowed, and threads that came back from their execve.
_LATER_MS = 10
_SIGNAL_BYTES = 128
_AT_FDCWD = -100
_OWN = (b"/proc/self/", b"/proc/thread-self/")
_ENV = ("/usr/bin/env", "/bin/env")


class Judge:
    """Serves one box until its init is gone: a child of this process with the pid `init_pid`, or, in a box of a pool,
    the process of the pidfd `init_fd`."""

    def __init__(
        self,
        listener: int,
        proc: int,
        owner: socket.socket,
        plan: dict[str, Any],
        init_pid: int = 0,
        init_fd: int = -1,
        seen_fd: int = -1,
    ) -> None:
        self.listener = listener
        self.proc = proc
        self.owner = owner
        self.orders = wire.Receiver(owner)
        self.reports = Reports(owner)
        self.init_pid = init_pid
        self.init_fd = init_fd
        # A file in which the owner finds a byte once anything was asked.
        self.seen_fd = seen_fd
        # One set for each policy; every one of them must allow.
        given = plan["exec_rules"]
        workspace = plan["workspace"] if plan["staged"] else ""
        self.rules = None if given is None else [ExecRules(_behind_links(rules, workspace)) for rules in given]
        # The command that the user typed: granted once, as that very file and argv.
        self.command = plan["command"]
        # A script that `env` was started for: the interpreter that env starts in the same process belongs to it.
        self.through_env: dict[int, tuple[str, bytes]] = {}
        # For a thread whose execve is being judged: the file it ran before, and the one that it named.
        self.asking: dict[int, tuple[str, str]] = {}
        # Calls of threads that must wait until another thread of their process is through with its own.
        self.deferred: list[notify.Notification] = []
        self.writable = [path for path, _ in plan["writable"]] + [path for path, writes in plan["grants"] if writes]
        self.writable += [path for _, path in plan.get("lent", ())]
        self.writable += [path for _, _, path, writes in plan.get("parts", ()) if writes]
        self.own_pid = int(os.readlink("self", dir_fd=proc))
        self.execveat = number("execveat")
        self.socket = number("socket")
        self.executing = {number(name) for name in CALLS}
        self.opening = {nr: name for name in WITNESSED if (nr := number(name)) is not None}
        # Nothing that could change a file goes on before the owner has a checkpoint of them all.
        self.held = Held(listener, proc, self.reports) if plan.get("checkpoint") else None
        self.witnesses = plan.get("witness_all", False)

    def serve(self) -> None:
        """Answer until init has died; tracees die with this process."""
        # A handler would interrupt every call here, and the poll after it would be made twice.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        children = process.signal_descriptor(signal.SIGCHLD)
        notify.answer_on_the_same_cpu(self.listener)
        poller = select.poll()
        poller.register(self.listener, select.POLLIN)
        poller.register(children, select.POLLIN)
        poller.register(self.owner, select.POLLIN)
        if self.init_fd >= 0:
            poller.register(self.init_fd, select.POLLIN)
        settled = 0.0
        while True:
            late = self.asking or self.reports.waiting
            events = poller.poll(_LATER_MS if late else None)
            if late and (not events or monotonic() - settled > _LATER_MS / 1000):
                self.settle()
                settled = monotonic()
            for fd, event in events:
                if fd == self.listener:
                    if event & select.POLLIN:
                        self.asked()
                    else:
                        poller.unregister(self.listener)
                elif fd == children:
                    os.read(children, _SIGNAL_BYTES)
                    if not self.collect():
                        self.reports.flush()
                        return
                    self.resume()
                elif fd == self.init_fd:
                    self.collect()
                    self.reports.flush()
                    return
                elif not self.finish():
                    return

    def resume(self) -> None:
        """Consider the calls that waited for other threads."""
        deferred, self.deferred = self.deferred, []
        for call in deferred:
            self.consider(call)

    def finish(self) -> bool:
        """What the owner says; False when it is gone. It has ended all programs, and wants to hear of everything that
        was seen; or it has a checkpoint, or could not take it."""
        if not self.orders.fill():
            return False
        while (taken := self.orders.take()) is not None:
            if "checkpoint" in taken[0]:
                if self.held is not None:
                    self.held.decided(taken[0]["checkpoint"])
            else:
                self.tell_all()
        return True

    def tell_all(self) -> None:
        """Tell everything that was seen, when nothing runs any more."""
        asking = select.poll()
        asking.register(self.listener, select.POLLIN)
        while any(event & select.POLLIN for _, event in asking.poll(0)):
            self.asked()
        self.collect()
        self.reports.flush()
        with contextlib.suppress(OSError):
            wire.send(self.owner, {"settled": True})

    def settle(self) -> None:
        """Tell what was allowed. Stop threads whose execve was let through and has not succeeded so far: most likely
        it failed, and they are to be let go."""
        self.reports.flush()
        for thread in self.asking:
            with contextlib.suppress(OSError):
                ptrace.interrupt(thread)

    def asked(self) -> None:
        """A thread makes a call that the box's filter hands over."""
        call = notify.receive(self.listener)
        if call is None:
            return
        if self.seen_fd >= 0:
            # Before anything comes of it: an owner that finds no byte after the box is dead need not ask.
            os.pwrite(self.seen_fd, b"s", 0)
            self.seen_fd = -1
        if call.number in self.executing:
            if self.held is not None:
                self.held.begun = True
            self.consider(call)
        elif call.number == self.socket:
            self.refuse_socket(call)
        else:
            if self.witnesses and call.number in self.opening:
                self.witness(call)
            if self.held is None or not self.held.takes(call):
                notify.let_through(self.listener, call)

    def refuse_socket(self, call: notify.Notification) -> None:
        """A thread wants a socket that no box has: the filter asks about no other. Its words are in registers, so what
        is reported is what was asked for."""
        family, kind, protocol = (_signed(word) for word in call.arguments[:3])
        notify.refuse(self.listener, call, seccomp.socket_refusal(family, kind, protocol) or errno.EPERM)
        self.reports.socket(call.pid, family, kind, protocol)

    def consider(self, call: notify.Notification) -> None:
        """A thread is about to execve."""
        parent = self.program_of(call.pid) if self.rules is not None else ""
        try:
            named = self.target_of(call)
        except OSError as error:
            # Nothing to run there, as when a program looks along PATH; saying no is safe whatever the caller's memory
            # says by now.
            notify.refuse(self.listener, call, error.errno or errno.ENOENT)
            return
        if not notify.still_waiting(self.listener, call):
            return
        if self.rules is not None and named and not self.worth_a_look(call.pid, named, parent):
            notify.refuse(self.listener, call, errno.EACCES)
            self.reports.spawn(call.pid, named, [], allowed=False, reason="no rule names this program")
            return
        if self.sibling_is_executing(call.pid):
            self.deferred.append(call)
            return
        if not self.hold(call.pid):
            notify.refuse(self.listener, call, errno.EAGAIN)
            return
        self.asking[call.pid] = (parent, named)
        # If it fails it comes back to the program, traced: see `settle`.
        notify.let_through(self.listener, call)

    def sibling_is_executing(self, thread: int) -> bool:
        """Whether another thread of the same process is inside an execve that was let through. It holds its process's
        cred_guard_mutex until its siblings are gone, those that are traced until this process has reaped them; and to
        seize a sibling takes that same mutex. Each would wait for the other."""
        for other in [asking for asking in self.asking if asking != thread]:
            if not _exists(f"{thread}/task/{other}", self.proc):
                continue
            if ptrace.tracer(self.proc, other) == self.own_pid:
                with contextlib.suppress(OSError):
                    ptrace.interrupt(other)
                return True
            del self.asking[other]
        return False

    def hold(self, thread: int) -> bool:
        """Trace a thread; whether it is traced by this process now. It may be still, when an execve of its failed and
        the next one came before its stop was seen. Only the kernel knows: a thread that calls execve takes the leader's
        id, so what was noted about an id may be about a thread that is gone."""
        try:
            ptrace.seize(thread)
        except OSError:
            return ptrace.tracer(self.proc, thread) == self.own_pid
        return True

    def witness(self, call: notify.Notification) -> None:
        """Report an attempt to open or connect. It is what the caller's memory says at this moment: evidence for
        programs that have no guard, and no decision."""
        name = self.opening.get(call.number, "")
        with contextlib.suppress(OSError):
            if name == "connect":
                found = self.address_of(call)
            else:
                at, address, flags = _AT_FDCWD, call.arguments[0], call.arguments[1]
                if name == "openat":
                    at, address, flags = _signed(call.arguments[0]), call.arguments[1], call.arguments[2]
                if name == "creat":
                    flags = os.O_WRONLY | os.O_CREAT
                found = self.opened(call.pid, at, address, flags)
            if found:
                self.reports.witness(call.pid, found)

    def opened(self, pid: int, at: int, address: int, flags: int) -> dict[str, Any]:
        """Path and intent of an open."""
        named = ptrace.read_string(pid, address)
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        found = {"op": "open_write" if writes else "open_read", "path": named.decode(errors="surrogateescape")}
        try:
            found["path"] = self.resolve(pid, named, "cwd" if at == _AT_FDCWD else f"fd/{at}")
        except OSError as error:
            found["error"] = errno.errorcode.get(error.errno or 0, "")
        return found

    def address_of(self, call: notify.Notification) -> dict[str, Any]:
        """The address of a connect, as text."""
        size = min(call.arguments[2] & 0xFFFFFFFF, 128)
        raw = ptrace.read_bytes(call.pid, call.arguments[1], size)
        family = int.from_bytes(raw[:2], "little")
        if family == socket.AF_UNIX:
            name = raw[2:].rstrip(b"\0") if raw[2:3] != b"\0" else b"@" + raw[3:]
            return {"op": "connect", "path": name.decode(errors="surrogateescape")}
        if family in (socket.AF_INET, socket.AF_INET6):
            start, length = (4, 4) if family == socket.AF_INET else (8, 16)
            host = socket.inet_ntop(family, raw[start : start + length])
            return {"op": "connect", "host": host, "port": int.from_bytes(raw[2:4], "big")}
        return {"op": "connect", "family": family}

    def worth_a_look(self, pid: int, path: str, parent: str) -> bool:
        """Whether any rule could allow this file, itself or as the interpreter of an allowed script."""
        if self.rules is None or pid in self.through_env or (self.command and path == self.command["exe"]):
            return True
        return all(rules.may_start(path, parent) for rules in self.rules)

    def program_of(self, pid: int) -> str:
        """The file that a process runs, '' when that cannot be told."""
        try:
            return os.readlink(f"{pid}/exe", dir_fd=self.proc)
        except OSError:
            return ""

    def target_of(self, call: notify.Notification) -> str:
        """The real path of the file that the caller names now. Raises OSError when there is none."""
        at, address = _AT_FDCWD, call.arguments[0]
        if call.number == self.execveat:
            at, address = _signed(call.arguments[0]), call.arguments[1]
        name = ptrace.read_string(call.pid, address)
        return self.resolve(call.pid, name, "cwd" if at == _AT_FDCWD else f"fd/{at}")

    def resolve(self, pid: int, name: bytes, start: str) -> str:
        """Where a path leads for that process. Raises OSError."""
        if not name:
            return os.readlink(f"{pid}/{start}", dir_fd=self.proc)
        if name.startswith(_OWN):
            # Here `self` would be this process, which the box's /proc does not have.
            start, name = ".", name.partition(b"self/")[2]
        if name[:1] == b"/":
            # The box's root is this process's too.
            found = os.open(name, os.O_PATH | os.O_CLOEXEC)
        else:
            base = os.open(f"{pid}/{start}", os.O_PATH | os.O_CLOEXEC, dir_fd=self.proc)
            try:
                found = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=base)
            finally:
                os.close(base)
        try:
            return os.readlink(f"self/fd/{found}", dir_fd=self.proc)
        finally:
            os.close(found)

    def collect(self) -> bool:
        """Handle every stop and death. False when the init is among the dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | ptrace.WALL)
            except ChildProcessError:
                return self.init_fd >= 0
            if pid == 0:
                return True
            if os.WIFSTOPPED(status):
                with contextlib.suppress(ProcessLookupError):
                    self.stopped(pid, status)
            else:
                self.through_env.pop(pid, None)
                self.asking.pop(pid, None)
                if pid == self.init_pid:
                    return False

    def stopped(self, pid: int, status: int) -> None:
        """A traced process has stopped: after its execve, after one that failed, or for a signal."""
        event = ptrace.event(status)
        if event == ptrace.EVENT_EXEC:
            former = ptrace.former_thread(pid)
            parent, named = self.asking.pop(former, ("", ""))
            # The leader, whose id this is now, may have been asking too; and an interpreter's turn was for this one.
            self.asking.pop(pid, None)
            target, argv, reason, refusal = self.judge(pid, parent, named)
            if reason:
                ptrace.detach(pid)
            else:
                os.kill(pid, signal.SIGKILL)
            self.reports.spawn(pid, target, argv, allowed=bool(reason), reason=reason or refusal)
        elif event == ptrace.EVENT_STOP:
            # The execve failed and its caller is on its way back.
            self.asking.pop(pid, None)
            ptrace.detach(pid)
        else:
            ptrace.proceed(pid, os.WSTOPSIG(status))

    def judge(self, pid: int, parent: str, named: str) -> tuple[str, list[bytes], str, str]:
        """Judge a process in its exec stop: what runs, with which words, why it may, '' when it may not, and why not.
        `parent` is the file that it ran before, `named` the one that it named when it asked, which its other threads
        may have changed since."""
        expected = self.through_env.pop(pid, None)
        try:
            exe = os.readlink(f"{pid}/exe", dir_fd=self.proc)
            argv = ptrace.arguments(self.proc, pid)
            # Where the named file is what runs, no script came between.
            name = b"" if exe == named and expected is None else ptrace.executed_name(self.proc, pid)
        except OSError as error:
            return "", [], "", f"cannot be looked at: {error.strerror}"
        script = self.script_of(pid, exe, name)
        if self.rules is None:
            reason = "no exec rules"
        elif script is None:
            reason, script = "", os.fsdecode(name)
        elif expected and self.is_interpreter(pid, exe, argv, name, *expected):
            reason = f"interpreter of {expected[0]}"
        else:
            reason = self.reason_to_allow(script or exe, exe, argv, script, name, parent)
        if reason and script and exe in _ENV and len(argv) > 1:
            self.through_env[pid] = (script, argv[1])
        return script or exe, argv, reason, "no rule allows it"

    def reason_to_allow(self, target: str, exe: str, argv: list[bytes], script: str, name: bytes, parent: str) -> str:
        """Why a program may run, '' when it may not."""
        command = self.command
        if command and target == command["exe"]:
            words = argv[1:] if not script else argv[len(argv) - len(command["args"]) :] if command["args"] else []
            if words == [word.encode(errors="surrogateescape") for word in command["args"]]:
                self.command = None
                return "the command itself"
        found = [rules.decide(exe, argv, script=script, named=name, parent=parent) for rules in self.rules or ()]
        if not found or None in found:
            return ""
        return "; ".join(str(rule["rule"]) for rule in found if rule is not None)

    def script_of(self, pid: int, exe: str, name: bytes) -> str | None:
        """The script that the kernel started `exe` for, '' when `exe` itself was executed. None for a script that was
        named by a path which the box can change: its interpreter opens it again by that name. A script that the box can
        write itself gives nothing away by that."""
        if not name or name.startswith(b"/dev/fd/"):
            return ""
        with contextlib.suppress(OSError):
            target = self.resolve(pid, name, "cwd")
            if target == exe:
                return ""
            if self.can_change(target) and os.access(target, os.W_OK):
                return target
            directory = os.readlink(f"{pid}/cwd", dir_fd=self.proc)
            named = os.path.join(directory, os.fsdecode(name))
            if ".." in named.split("/"):
                return target if not self.can_change(directory) and os.path.normpath(named) == target else None
            named = os.path.normpath(named)
            return target if named == target or not self.can_change(named) else None
        return None

    def can_change(self, path: str) -> bool:
        """Whether the box may write there, and so decide where the path leads."""
        if not any(path == writable or path.startswith(writable.rstrip("/") + "/") for writable in self.writable):
            return False
        try:
            # What a rule for reading, or a denial, covers within it is another mount.
            return not os.statvfs(os.path.dirname(path)).f_flag & os.ST_RDONLY
        except OSError:
            return True

    def is_interpreter(self, pid: int, exe: str, argv: list[bytes], name: bytes, script: str, wanted: bytes) -> bool:
        """Whether this is what `env` was to find for a script's first line: by that very name, where the box cannot
        have put something else."""
        directory, _, base = name.rpartition(b"/")
        return (
            base == wanted
            and not self.can_change(exe)
            and not self.can_change(os.path.normpath(os.fsdecode(directory) or "/"))
            and directory.startswith(b"/")
            and len(argv) > 1
            and self.same_file(pid, argv[1], script)
        )

    def same_file(self, pid: int, word: bytes, path: str) -> bool:
        """Whether a word of a process's argv leads to the file at `path`."""
        try:
            return self.resolve(pid, word, "cwd") == path
        except OSError:
            return False


def _behind_links(rules: list[dict[str, Any]], workspace: str) -> list[dict[str, Any]]:
    """The rules with the files that their programs mean. The host did not follow the links of a workspace which was
    filled after the plan was made; nothing runs in the box yet."""
    if not workspace:
        return list(rules)
    inside = workspace + "/"
    return [
        {**rule, "exe": os.path.realpath(rule["exe"])} if rule["exe"].startswith(inside) else rule for rule in rules
    ]


def _exists(path: str, directory: int) -> bool:
    try:
        os.stat(path, dir_fd=directory)
    except OSError:
        return False
    return True


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
