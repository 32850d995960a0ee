# SPDX-License-Identifier: MIT
"""The owner's side of a nursery: have it made, have boxes made in it, programs and warm interpreters started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentbox.errors import ConfinementError, IsolationError
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.launcher import judge, wire
from agentbox.isolation.plan import LaunchPlan
from agentbox.isolation.pool.line import Line
from agentbox.isolation.pool.waiting import within
from agentbox.linux import notify, seccomp
from agentbox.records import asdict, dataclass, field

_NATIVE = Path(__file__).parent.parent / "native"
MAKER = _NATIVE / "agentbox-maker"
LIBRARY = _NATIVE / "zygote.so"
_ZYGOTE = Path(__file__).parent.parent.parent / "guest" / "zygote.py"
_START_SECONDS = 20
_BOX_SECONDS = 30
_GONE_SECONDS = 15
_REAPED_SECONDS = 2
_REAPED_POLL_SECONDS = 0.002
# Frames of a warm interpreter below a guest's say where they come from.
_STUB = "exec(compile(open({path!r}).read(), '<agentbox>', 'exec'), {{'__name__': '<agentbox>'}})\n"

OnEnd = Callable[[int, float, int], None]
# How many processes there were in a box, and the exit code that its warm child told, or -1.
OnCount = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class GuardFiles:
    """A guard directory of the host, and where the boxes of a nursery show it, the socket of its channel and the file
    of its policy. `sample` is a policy as that file has it, with which the guard is tried in advance, and `variables`
    are what loads the guard."""

    source: str
    directory: str
    channel: str
    policy: str
    sample: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MadeBox:
    """A box with an init and no program yet: descriptors of the init (a pidfd) and of the workspace, and where boxes
    have a guard of the listener of its channel and of the file of its policy (else -1).

    `readers` are where a warm child's stdout and stderr come out, `writers` the other ends of those and of its report,
    while there is no child yet; `line_fd` is the line to it when there is."""

    key: int
    host_uid: int
    host_gid: int
    init_fd: int
    workspace_fd: int
    channel_fd: int = -1
    policy_fd: int = -1
    readers: tuple[int, ...] = ()
    writers: tuple[int, ...] = ()
    line_fd: int = -1


class Nursery:
    """A maker of boxes. Everything in it is gone when `close` returns; `on_gone` is called when it ends otherwise.

    With a plan that has a judge, its boxes are watched (watched.py): `guard` is what their interpreter loads, if
    anything."""

    def __init__(
        self, facilities: Facilities, plan: LaunchPlan, modules: Sequence[str], guard: GuardFiles | None = None
    ) -> None:
        self._facilities = facilities
        self.plan = plan
        self._modules = tuple(modules)
        self._guard = guard
        self._judges: socket.socket | None = None
        self._line: Line | None = None
        self._pidfd = -1
        self._next = 0
        self._own_id = 0
        self._rooted = False
        self._ready: asyncio.Future[None] | None = None
        self._made: dict[int, asyncio.Future[list[int]]] = {}
        self._ends: dict[int, OnEnd] = {}
        self._counts: dict[int, OnCount] = {}
        # Boxes that there are, and who hears that one is gone.
        self._ours: dict[int, Callable[[], None] | None] = {}
        self.on_gone: Callable[[], None] = lambda: None
        self.gone = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether boxes can be made in it."""
        return self._line is not None and not self._line.closed and self._pidfd >= 0

    async def start(self) -> None:
        """Raises ConfinementError when the kernel refused a step, IsolationError otherwise; nothing is left then."""
        loop = asyncio.get_running_loop()
        ids = self._facilities.ids
        self._own_id, _ = ids.take()
        maps = ids.extents_without(self._own_id)
        self._rooted = bool(maps)
        description: dict[str, Any] = {
            "plan": asdict(self.plan),
            "maps": maps,
            "files": [
                (f"{self.plan.workspace}/main.py", _STUB.format(path=f"{self.plan.workspace}/zygote")),
                (f"{self.plan.workspace}/zygote", _ZYGOTE.read_text(encoding="utf-8")),
                (f"{self.plan.workspace}/modules", "\n".join(self._modules)),
            ],
            "library": f"{self.plan.workspace}/zygote.so",
            "places": [],
        }
        if self._guard is not None:
            description["files"].append((f"{self.plan.workspace}/guard", _rehearsal(self._guard)))
            description["places"] = [self._guard.channel, self._guard.policy]
        fds = [os.open(MAKER, os.O_RDONLY | os.O_CLOEXEC), os.open(LIBRARY, os.O_RDONLY | os.O_CLOEXEC)]
        self._ready = loop.create_future()
        try:
            fds.append(_configuration(self.plan, self._guard))
            if self.plan.judge:
                self._judges, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                fds.append(theirs.detach())
            sock = await self._facilities.launcher.start_nursery(description, fds)
            self._line = Line(sock, self._received, self._lost)
            if self._judges is not None:
                # It says nothing; this is its end.
                loop.add_reader(self._judges.fileno(), self._judges_gone)
            async with asyncio.timeout(_START_SECONDS):
                await self._ready
        except TimeoutError:
            await self.close()
            raise IsolationError("the maker of boxes did not start", hint="its own message is on stderr") from None
        except BaseException:
            await self.close()
            raise
        finally:
            for fd in fds:
                os.close(fd)

    def _received(self, op: str, key: int, numbers: Sequence[int], text: bytes, fds: list[int]) -> None:
        if op == "b":
            made = self._made.pop(key, None)
            if made is None or made.done():
                for fd in fds:
                    os.close(fd)
            elif len(fds) >= 2:
                made.set_result(fds)
            else:
                step = text.decode()
                made.set_exception(
                    ConfinementError(
                        f"the box could not be built: {step}: {os.strerror(numbers[0])}",
                        hint="`agentbox doctor` names what this host is missing",
                        step=step,
                        errno=numbers[0],
                    )
                )
        elif op in "xz":
            ended = self._ends.pop(key, None)
            if ended is not None:
                ended(numbers[0], numbers[1] / 1000, numbers[2] * 1024)
        elif op == "c":
            counted = self._counts.pop(key, None)
            if counted is not None:
                counted(numbers[0], numbers[1])
        elif op == "g":
            self._counts.pop(key, None)
            gone = self._ours.pop(key, None)
            if gone is not None:
                gone()
        elif op == "r" and self._ready is not None and not self._ready.done():
            self._pidfd = fds[0]
            asyncio.get_running_loop().add_reader(self._pidfd, self._died)
            self._ready.set_result(None)
        elif self._ready is not None and not self._ready.done():
            self._ready.set_exception(_refusal(op, key, numbers, text))

    def _judges_gone(self) -> None:
        """Without judges there are no boxes to be had here: everything begins anew."""
        self._close_judges()
        if self._line is not None and not self._line.closed:
            self._line.close()
            self._lost()

    def _close_judges(self) -> None:
        judges, self._judges = self._judges, None
        if judges is not None:
            asyncio.get_running_loop().remove_reader(judges.fileno())
            judges.close()

    def _died(self) -> None:
        """The kernel has taken apart all that was in it."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.gone.set()
        ours, self._ours = self._ours, {}
        for gone in ours.values():
            if gone is not None:
                gone()

    def _lost(self) -> None:
        error = IsolationError("the maker of boxes is gone", hint="try again; it is started again")
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        for made in self._made.values():
            if not made.done():
                made.set_exception(error)
        ends, self._ends = self._ends, {}
        for ended in ends.values():
            ended(-1, 0.0, 0)
        self._counts.clear()
        self.on_gone()

    def _next_key(self) -> int:
        self._next = self._next % 0xFFFFFFFF + 1
        return self._next

    async def make_box(
        self, disk_bytes: int, inodes: int, host_uid: int, host_gid: int, *, pipes: bool = False
    ) -> MadeBox:
        """A box whose processes have that uid and gid of the host, with `pipes` for a warm child. Raises
        IsolationError."""
        key, made = self.order("P" if pipes else "B", (host_uid, host_gid), disk_bytes, inodes)
        fds = await self.delivered(key, made)
        init, workspace, *rest = fds
        channel, policy = rest[:2] if self._guard is not None else (-1, -1)
        own = tuple(rest[len(rest) - 5 :]) if pipes else ()
        return MadeBox(key, host_uid, host_gid, init, workspace, channel, policy, own[:2], own[2:])

    def order(
        self,
        op: str,
        host_ids: tuple[int, int],
        disk_bytes: int,
        inodes: int,
        zygote: int = 0,
        joins: Sequence[int] = (),
    ) -> tuple[int, asyncio.Future[list[int]]]:
        """Order a box: bare ('B'), with pipes ('P'), or with a warm child of that zygote, which joins those groups
        ('W'). Its key, and who will have the descriptors. Raises IsolationError."""
        line = self._line
        if line is None or line.closed:
            raise IsolationError("the maker of boxes is gone", hint="try again; it is started again")
        key = self._next_key()
        text = b"%d" % zygote if zygote else b""
        try:
            line.send(op, key, (*self._inside(*host_ids), disk_bytes, inodes), text, joins)
        except OSError as error:
            raise IsolationError(f"the maker of boxes is gone: {error}", hint="try again") from error
        self._ours[key] = None
        made = self._made[key] = asyncio.get_running_loop().create_future()
        return key, made

    async def delivered(self, key: int, made: asyncio.Future[list[int]]) -> list[int]:
        """The descriptors of a box that was ordered. Raises IsolationError; then there is no box."""
        try:
            return await within(made, _BOX_SECONDS)
        except BaseException as error:
            self._cancel(key)
            if isinstance(error, OSError):
                raise IsolationError("a box did not become ready", hint="try again") from error
            raise
        finally:
            self._made.pop(key, None)

    def _cancel(self, key: int) -> None:
        """Have a box killed of which nobody has a descriptor yet."""
        if self._line is not None and not self._line.closed:
            with contextlib.suppress(OSError):
                self._line.send("K", key)

    def _inside(self, host_uid: int, host_gid: int) -> tuple[int, int]:
        """Ids of the host as the nursery has them."""
        return (host_uid, host_gid) if self._rooted else (0, 0)

    def follow(self, box: MadeBox, on_count: OnCount, on_gone: Callable[[], None]) -> None:
        """Hear when its init has ended everything in a box, and when nothing of the box is left."""
        if box.key in self._ours:
            self._counts[box.key] = on_count
            self._ours[box.key] = on_gone
        else:
            asyncio.get_running_loop().call_soon(on_gone)

    def execute(
        self,
        box: MadeBox,
        argv: Sequence[str],
        env: Mapping[str, str],
        stdio: Sequence[int],
        report: int,
        joins: Sequence[int],
        processes: int,
        on_end: OnEnd,
        further: Sequence[int] = (),
    ) -> int:
        """Start a program in a box, confined; on `report`, a pipe's end, it says why it could not be executed. `joins`
        are cgroup.procs files; `further` are at most two, which it gets as its 3 and 4. Returns its key. Raises
        OSError, and ValueError when the words are too many."""
        text, counts = words(argv, env)
        numbers = (*counts, processes, len(further))
        return self._start("E", numbers, text, (box.init_fd, *stdio, report, *further, *joins), on_end)

    def start_zygote(self, path: str, env: Mapping[str, str], output: int, owner: int, mine: int, on_end: OnEnd) -> int:
        """Start a warm interpreter whose owner's end, `mine`, is on the other side of `owner`; stdout and stderr are
        `output`. Returns its key. Raises OSError."""
        text, counts = words((path, f"{self.plan.workspace}/main.py"), env)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self._start("Z", counts, text, (nothing, output, output, owner, mine), on_end)
        finally:
            os.close(nothing)

    def _start(self, op: str, numbers: Sequence[int], text: bytes, fds: Sequence[int], on_end: OnEnd) -> int:
        if self._line is None or self._line.closed:
            raise BrokenPipeError("the maker of boxes is gone")
        key = self._next_key()
        self._ends[key] = on_end
        try:
            self._line.send(op, key, numbers, text, fds)
        except BaseException:
            self._ends.pop(key, None)
            raise
        return key

    def let_go_zygote(self, key: int) -> None:
        """Nothing more will be asked of a warm interpreter by this nursery's boxes. Does not raise."""
        if self._line is not None and not self._line.closed:
            with contextlib.suppress(OSError):
                self._line.send("D", key)

    def fork_judge(self, box: MadeBox, line: int, program: int, seen: int) -> None:
        """Have a judge forked for a box. `line` is its end of the line to its owner, `program` that of the line to the
        program whose calls it decides on; into the file `seen` it writes when it is asked. Raises OSError."""
        if self._judges is None:
            raise BrokenPipeError("the judges are gone")
        wire.send(self._judges, {"judge": self._inside(box.host_uid, box.host_gid)}, (box.init_fd, line, program, seen))

    async def close(self) -> None:
        """End it, and wait until it is gone with everything in it."""
        self._close_judges()
        if self._line is not None:
            self._line.close()
            self._lost()
        if self._pidfd >= 0:
            try:
                async with asyncio.timeout(_GONE_SECONDS):
                    await self.gone.wait()
                    await self._reaped()
            except TimeoutError:
                asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._own_id:
            self._facilities.ids.give_back(self._own_id)
            self._own_id = 0

    async def _reaped(self) -> None:
        """Let the launcher, whose process it is, take note of its end: when that ends first, a dead process stays."""
        deadline = time.monotonic() + _REAPED_SECONDS
        while time.monotonic() < deadline:
            try:
                signal.pidfd_send_signal(self._pidfd, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(_REAPED_POLL_SECONDS)


def words(arguments: Sequence[str], env: Mapping[str, str]) -> tuple[bytes, tuple[int, int]]:
    """Arguments and variables as one text, each ended by NUL, and how many there are of each."""
    parts = [os.fsencode(one) for one in arguments]
    parts += [os.fsencode(f"{name}={value}") for name, value in env.items()]
    return b"".join(part + b"\0" for part in parts), (len(arguments), len(env))


def _refusal(op: str, key: int, numbers: Sequence[int], text: bytes) -> Exception:
    """What a nursery that could not be made said: a frame of launcher/wire.py."""
    raw = Line.pack(op, key, numbers) + text
    try:
        message = json.loads(raw[4:])
        return ConfinementError(
            f"the warm pool could not be made: {message['error']}",
            hint="`agentbox doctor` names what this host is missing",
            step=message["step"],
            errno=message["errno"],
        )
    except (ValueError, KeyError):
        return IsolationError("the maker of boxes did not start", hint="its own message is on stderr")


def _rehearsal(guard: GuardFiles) -> str:
    """What a warm interpreter (guest/zygote.py) is told of the guard."""
    variables = {"AGENTBOX_POLICY": guard.policy, "AGENTBOX_CHANNEL": guard.channel, **guard.variables}
    lines = [guard.directory, *(f"{name}={value}" for name, value in variables.items())]
    return "\n".join(lines) + "\n\n" + guard.sample


def _configuration(plan: LaunchPlan, guard: GuardFiles | None) -> int:
    """A descriptor of what native/box.h reads."""
    import resource

    guest_filter = seccomp.build()
    lines = [f"ids {plan.guest_uid}", f"workspace {plan.workspace}"]
    if plan.judge:
        guest_filter = seccomp.leaving_sockets(guest_filter)
        lines.append(f"asking {notify.build(judge.CALLS).hex()}")
    if guard is not None:
        lines += [f"channel {guard.channel}", f"policy {guard.policy}"]
    lines.append(f"filter {guest_filter.hex()}")
    lines += [f"writable {mode:o} {path}" for path, mode in plan.writable]
    lines += [f"masked-file {path}" for path in plan.proc_masked_files if os.path.exists(path)]
    lines += [f"masked-directory {path}" for path in plan.proc_masked_directories if os.path.isdir(path)]
    lines += [f"read-only {path}" for path in plan.proc_read_only if os.path.exists(path)]
    lines += [f"device /dev/{name}" for name in plan.devices]
    for name, value in plan.rlimits:
        # The number of processes is a run's own; it is set when the run begins.
        if name != "NPROC":
            lines.append(f"limit {getattr(resource, f'RLIMIT_{name}')} {value}")
    fd = os.memfd_create("nursery", os.MFD_CLOEXEC)
    os.write(fd, "\n".join(lines).encode() + b"\n")
    return fd


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a line."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
