# SPDX-License-Identifier: MIT
"""A pooled box that is watched: an exec judge waits beside it, and its warm child is confined when its run comes, since
what a policy shows and allows is known only then.

The layers are those of a watched box that the launcher builds: the view of the workspace, Landlock, limits, the filter
that asks the judge, the guest's filter, the guard. The child puts them on in that order before it looks at anything of
the guest, and ends where one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping, Sequence

from agentbox.errors import ConfinementError, IsolationError
from agentbox.isolation.backend import Watch
from agentbox.isolation.boxes import CommandExit
from agentbox.isolation.channel import Channel
from agentbox.isolation.launcher.reports import shortened
from agentbox.isolation.plan import WorkspaceView, exec_rules_of
from agentbox.isolation.pool.box import MAX_WORDS_BYTES, PooledBox, WarmProgram
from agentbox.isolation.pool.line import Line
from agentbox.isolation.pool.nursery import MadeBox, Nursery, socket_pair, words
from agentbox.isolation.pool.waiting import within
from agentbox.isolation.pool.zygote import Zygote, ended_early, refused
from agentbox.models import Confinement

_CHILD_SECONDS = _JUDGE_SECONDS = 30
_SETTLED_SECONDS = 15
_UNSHOWN, _SHOWN_READ_ONLY, _SHOWN_WRITABLE = range(3)
# As launcher/view.py gives a workspace of which only parts are shown.
_INODES_FOR_EACH = 64


class WatchedBox(PooledBox):
    """See PooledBox. Once its judge is gone it is killed: nothing runs unjudged."""

    def __init__(self, nursery: Nursery, made: MadeBox, joins: Sequence[int], processes: int) -> None:
        super().__init__(nursery, made, joins, processes)
        self.channel = socket.socket(fileno=made.channel_fd) if made.channel_fd >= 0 else None
        self._policy_fd = made.policy_fd
        # What is written there. `on_policy` hears what a run has.
        self._policy = b""
        self.on_policy: Callable[[bytes], None] = lambda _: None
        self._judge: Channel | None = None
        self._judging: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening: asyncio.Task[None] | None = None
        self._watch: Watch | None = None
        self._rules: tuple[tuple[dict[str, object], ...], ...] | None = None
        self._view: list[tuple[tuple[int, int], bytes]] = []
        self._seen_fd = -1
        self._heard = False
        self._child: Line | None = None
        self._child_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.child_pid = 0

    def expect(self, policy: bytes) -> None:
        """Have the guard of the warm child get ready for a policy that may come, as its file has it; before `warm`.
        Raises OSError."""
        if self._policy_fd >= 0 and policy:
            self._policy = policy
            _write_all(self._policy_fd, policy)

    async def warm(self, zygote: Zygote, program: WarmProgram) -> None:
        """Have a warm child forked into it, and a judge beside it, and wait until both are ready. Raises
        IsolationError."""
        loop = asyncio.get_running_loop()
        line, judges = socket.socketpair()
        # To the judge, and to nobody else: a guest could not be told from the child.
        childs, program_line = socket.socketpair()
        mine, theirs = socket_pair()
        self._judge = Channel(line)
        self._listening = loop.create_task(self._listen(self._judge))
        self._seen_fd = os.memfd_create("seen", os.MFD_CLOEXEC)
        self._child_ready = ready = loop.create_future()
        self._ended = loop.create_future()
        self._child = Line(mine, self._from_child, self._child_gone)
        with judges, childs, program_line, theirs:
            try:
                self._nursery.fork_judge(self._made, judges.fileno(), program_line.fileno(), self._seen_fd)
                further = (childs.fileno(),)
                zygote.fork(self._made, theirs.fileno(), further, self._joins, self._child_ended)
            except OSError as error:
                raise IsolationError(f"a warm child cannot be had: {error}", hint="try again") from error
            finally:
                for fd in self._made.writers:
                    os.close(fd)
        try:
            await within(ready, _CHILD_SECONDS)
            await within(self._judging, _JUDGE_SECONDS)
        except TimeoutError:
            raise IsolationError("a watched box did not become ready", hint="try again") from None
        self._warm = program

    def _from_child(self, op: str, key: int, numbers: Sequence[int], text: bytes, fds: list[int]) -> None:
        """What the child says before it has anything to run, and of a step that fails then."""
        del key
        ready, ended = self._child_ready, self._ended
        if op == "r" and fds and not ready.done():
            self.child_pid = pid_of(fds[0])
            ready.set_result(None)
        elif op == "e" and not ready.done():
            ready.set_exception(refused(numbers, text))
        elif op == "e" and ended is not None and not ended.done():
            # It has this line until it is confined and no longer.
            ended.set_exception(refused(numbers, text, "confined"))
        for fd in fds:
            os.close(fd)

    def _child_gone(self) -> None:
        if not self._child_ready.done():
            self._child_ready.set_exception(ended_early())

    def _child_ended(self, status: int, cpu_ms: float, max_rss_bytes: int) -> None:
        self._child_gone()
        if self._ended is not None:
            # After what it may have said before it ended.
            asyncio.get_running_loop().call_soon(self.reaped, status, cpu_ms, max_rss_bytes)

    async def _listen(self, judge: Channel) -> None:
        while (taken := await judge.receive()) is not None:
            message = taken[0]
            if "judging" in message and not self._judging.done():
                self._judging.set_result(None)
            elif "reports" in message and self._watch is not None:
                for report in message["reports"]:
                    self._watch.on_spawn(report)
            elif "settled" in message and not self._settled.done():
                self._settled.set_result(None)
        if not self._judging.done():
            self._judging.set_exception(IsolationError("an exec judge ended", hint="try again"))
            # Nobody may be waiting any more.
            self._judging.exception()
        if not self._settled.done():
            self._settled.set_result(None)
        if self.workspace_fd >= 0:
            self.kill()

    @property
    def fresh(self) -> bool:
        """See PooledBox."""
        return super().fresh and self._child is not None and not self._child.closed and not self._settled.done()

    def watch(self, watch: Watch, confinement: Confinement) -> None:
        """Say what the judge decides by in the run that comes, and who hears of it."""
        self._watch = watch
        self._rules = exec_rules_of(confinement) if confinement.policy_sha256 is not None else None

    async def show(self, view: WorkspaceView) -> None:
        """See boxes.Box. What the child cannot show it says when it is started."""
        for path, text in view.files:
            self._write(path, text.encode())
        workspace, shown = self.plan.workspace, dict(view.shown)
        whole = _UNSHOWN
        if workspace in shown:
            whole = _SHOWN_WRITABLE if shown[workspace] else _SHOWN_READ_ONLY
        entries = [("w" if writable else "r") + path for path, writable in view.shown]
        entries += [f"o{path}" for path in view.read_only] + [f"h{path}" for path in view.hidden]
        numbers = (whole, _INODES_FOR_EACH * (len(shown) + 1))
        parts = [b""]
        for entry in map(os.fsencode, entries):
            if len(parts[-1]) + len(entry) >= MAX_WORDS_BYTES:
                parts.append(b"")
            parts[-1] += entry + b"\0"
        # Told with the run itself: each message wakes the child.
        self._view = [(numbers, part) for part in parts]

    def _write(self, path: str, content: bytes) -> None:
        """What the guard reads of the policy; the file has its place already."""
        if self._policy_fd < 0:
            raise IsolationError(f"{path} has no place in this box", hint="this is a bug in agentbox")
        fd, self._policy_fd = self._policy_fd, -1
        self.on_policy(content)
        try:
            if content != self._policy:
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
                _write_all(fd, content)
        except OSError as error:
            raise ConfinementError(
                f"the box could not be built: write {path}: {error.strerror}",
                step=f"write {path}",
                errno=error.errno or 0,
            ) from error
        finally:
            os.close(fd)

    def _tell(self, op: str, numbers: Sequence[int], text: bytes, descriptors: Sequence[int] = ()) -> None:
        """See PooledBox."""
        if self._child is None:
            raise BrokenPipeError(errno.EPIPE, "the warm child is gone")
        self._child.send(op, 0, numbers, text, descriptors)

    async def start(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        """See boxes.Box. Only what it was taken for is started."""
        del cwd
        program, watch, judge, ended = self._warm, self._watch, self._judge, self._ended
        if program is None or watch is None or judge is None or ended is None or not self.would_be_warm(argv, env):
            raise IsolationError("the warm box cannot be used any more", hint="try again")
        if (self._rules is not None) != bool(self._view):
            raise IsolationError("the box does not show what its policy grants", hint="this is a bug in agentbox")
        workspace, rules = self.plan.workspace, self._rules
        plan = {
            "exec_rules": rules,
            "workspace": workspace,
            "staged": rules is not None,
            "command": None,
            "writable": self._nursery.plan.writable,
            "grants": (),
        }
        self._give(stdio)
        if self._stdin_fd >= 0:
            stdio = (self._stdin_fd,)
        # The judge looks at files of the workspace before they can change.
        waits = any(str(rule["exe"]).startswith(f"{workspace}/") for one in rules or () for rule in one)
        text, counts = words(argv[len(program.argv) :], program.beyond(env))
        self._warm = None
        self._commands.append(ended)
        try:
            for numbers, part in self._view:
                self._tell("V", numbers, part)
            self._tell("R", (*counts, self.process_limit, waits), text, stdio)
        except OSError:
            # What it could not show it said, and how it ended will be said.
            return ended
        # The program is not executed, so the judge does not see it: it is the command itself, granted once.
        watch.on_spawn(
            {
                "spawn": {
                    "pid": self.child_pid,
                    "exe": watch.command[0],
                    "argv": shortened(os.fsencode(word) for word in argv),
                    "allowed": True,
                    "reason": "no exec rules" if rules is None else "the command itself",
                }
            }
        )
        try:
            # Until it has them the judge answers nobody.
            await judge.send({"plan": plan})
        except OSError as error:
            raise IsolationError(f"the exec judge is gone: {error}", hint="try again") from error
        return ended

    @property
    def heard(self) -> bool:
        """Whether its judge has nothing to say any more of a run that has ended."""
        return self._heard

    async def judged(self) -> None:
        """See boxes.Box: what the judge saw before everything was killed is handed over when this returns."""
        self._heard = True
        if self._judge is None or (self._seen_fd >= 0 and not os.pread(self._seen_fd, 1, 0)):
            # It notes that it was asked before it answers: of what is dead now, nothing was let through or refused.
            return
        with contextlib.suppress(OSError):
            await self._judge.send({"settle": True})
        with contextlib.suppress(TimeoutError):
            await within(self._settled, _SETTLED_SECONDS)

    async def hear_out(self) -> None:
        """Of a run that is broken off: end it, and wait for what the judge has to say. Does not raise."""
        if self._heard or not self._commands or self._listening is None:
            return
        self._heard = True
        self.kill()
        await asyncio.wait({self._listening}, timeout=_SETTLED_SECONDS)

    async def destroy(self) -> None:
        """See PooledBox."""
        if self._judge is not None:
            self._judge.close()
        await super().destroy()
        if self._child is not None:
            self._child.close()
        if self._listening is not None:
            await self._listening
        if self.channel is not None:
            self.channel.close()
        for fd in (self._policy_fd, self._seen_fd):
            if fd >= 0:
                os.close(fd)
        self._policy_fd = self._seen_fd = -1


def _write_all(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def is_short_enough(program: WarmProgram, argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether these words fit into one message to a warm child."""
    return len(words(argv[len(program.argv) :], program.beyond(env))[0]) <= MAX_WORDS_BYTES


def pid_of(pidfd: int) -> int:
    """The pid of a process, as this one's PID namespace sees it; 0 when that cannot be told."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pid:"):
                return max(int(line.split()[1]), 0)
    return 0
