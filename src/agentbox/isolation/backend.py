# SPDX-License-Identifier: MIT
"""What an isolation backend is, and the live box that it hands out."""

from __future__ import annotations

import errno
import os

from agentbox.errors import IsolationError
from agentbox.isolation.plan import attached_plan
from agentbox.light import asyncio, contextlib
from agentbox.linux.cgroups import CgroupLimits
from agentbox.models import Usage
from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol

    from agentbox.isolation.boxes import CommandExit
    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.interpreters import Found
    from agentbox.isolation.network import HeldNetwork, Network
    from agentbox.isolation.plan import GuardView, LaunchPlan, WorkspaceView
    from agentbox.isolation.requirement import Requirement
    from agentbox.light import socket
    from agentbox.linux.cgroups import Cgroup
    from agentbox.linux.freezing import Freezer
    from agentbox.models import Confinement, Enforcement, Limits
else:
    Protocol = object

_MIB = 1 << 20
_MEMORY_POLL_SECONDS = 0.05
# What a start answers in a box that has ended; ENOSYS is the kernel's answer where the box's judge has.
ENDED = (errno.ESRCH, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ENOSYS)


class ShownPlan(Protocol):
    """What of a box's plan is asked for when it is there: the rest is behind it."""

    @property
    def workspace(self) -> str:
        """Where its programs see the workspace."""

    @property
    def namespaces(self) -> bool:
        """Whether it has namespaces of its own."""

    @property
    def host_uid(self) -> int:
        """uid of its programs as the host sees them."""

    @property
    def host_gid(self) -> int:
        """gid of its programs as the host sees them."""


class AnyBox(Protocol):
    """What boxes.Box and pool/box.py have in common; see there."""

    workspace_fd: int
    oom: bool
    fell_silent: bool
    processes: int | None

    @property
    def plan(self) -> ShownPlan:
        """What of its plan is asked for."""

    @property
    def channel(self) -> socket.socket | None:
        """The listener of guards."""

    @property
    def unix_listeners(self) -> Mapping[str, socket.socket]:
        """Listeners inside, by path."""

    async def start(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        """Start a program; the future tells its end. Raises OSError."""

    async def start_with_signals(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> tuple[int, asyncio.Future[CommandExit]]:
        """As `start`, with an id for `signal`. Raises OSError."""

    async def start_on_terminal(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        cwd: str,
        size: tuple[int, int],
        instead: Mapping[int, int] | None = None,
    ) -> tuple[int, asyncio.Future[CommandExit], int]:
        """As `start`, on a terminal of the box. Raises OSError."""

    async def decide_on_changes(self, *, allowed: bool) -> None:
        """Let calls that wait for a checkpoint go on, or not. Raises OSError."""

    async def signal(self, key: int, number: int) -> None:
        """Send a signal to a program's process group."""

    async def show(self, view: WorkspaceView) -> None:
        """Say what a staged box shows of its workspace."""

    async def judged(self) -> None:
        """Wait for what the exec judge has to say."""

    def kill(self) -> None:
        """Begin killing everything in it."""

    async def kill_programs(self) -> None:
        """Kill everything that runs in it."""

    async def destroy(self) -> None:
        """Kill, wait, release."""


class LiveBox:
    """A box that was built for one run: starts programs, watches memory, reads counters, dies completely.

    `workspace_fd` stays readable after everything in the box was killed, until `destroy`.
    """

    def __init__(
        self, box: AnyBox, confinement: Confinement, cgroup: Cgroup | None, on_gone: Callable[[], None]
    ) -> None:
        self._box = box
        self._cgroup = cgroup
        self._confinement = confinement
        self._on_gone = on_gone
        self._oom = False
        self._last_exit: CommandExit | None = None
        self.start_kind = "cold"

    @property
    def workspace_fd(self) -> int:
        """Directory descriptor of the workspace, on the host's side."""
        return self._box.workspace_fd

    @property
    def workspace_path(self) -> str:
        """Where the box's programs see the workspace."""
        return self._box.plan.workspace

    @property
    def ids(self) -> tuple[int, int]:
        """uid and gid of the guest as the host sees them."""
        return self._box.plan.host_uid, self._box.plan.host_gid

    def ready_streams(self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, int] | None:
        """Where this program has started already, and waits: give it what it shall read, and get non-blocking
        descriptors, the caller's own, of its stdout and stderr; `start` is then called without any. None where it
        has not."""
        del argv, env, stdin
        return None

    def entrust(self, argv: Sequence[str], env: Mapping[str, str], content: bytes) -> bool:
        """Where this program has started already, and its file would be the first in an empty workspace: let it write
        `content` there by itself when it is started. False where the caller must place it."""
        del argv, env, content
        return False

    async def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, stdio: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        """Start a program. Raises OSError when it cannot be executed, IsolationError when the box has ended."""
        try:
            return await self._box.start(argv, dict(env), cwd, stdio)
        except OSError as error:
            self._check_lives(error)
            raise

    async def start_with_signals(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, stdio: Sequence[int]
    ) -> tuple[int, asyncio.Future[CommandExit]]:
        """Start a program and get its id for `signal` too. Raises as `start`."""
        try:
            return await self._box.start_with_signals(argv, dict(env), cwd, stdio)
        except OSError as error:
            self._check_lives(error)
            raise

    async def start_on_terminal(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        size: tuple[int, int],
        instead: Mapping[int, int] | None = None,
    ) -> tuple[int, asyncio.Future[CommandExit], int]:
        """Start a program on a new terminal of the box; see Box.start_on_terminal. Raises as `start`."""
        try:
            return await self._box.start_on_terminal(argv, dict(env), cwd, size, instead)
        except OSError as error:
            self._check_lives(error)
            raise

    def _check_lives(self, error: OSError) -> None:
        """Raise IsolationError where a program could not be started because the box, or its exec judge, has ended:
        whatever its caller would be told of the program would be wrong."""
        if error.errno in ENDED:
            raise IsolationError(
                f"the box ended before its program began: {error}", hint="nothing has run; try again"
            ) from error

    @property
    def has_terminals(self) -> bool:
        """Whether a program can have a terminal of the box."""
        return getattr(self._box, "terminal", self) is not None

    def pid_of(self, key: int) -> int:
        """The process of a started program; 0 where the box has processes of its own."""
        known = getattr(self._box, "pid_of", None)
        return 0 if known is None else int(known(key))

    async def signal(self, key: int, number: int) -> None:
        """Send a signal to a program's process group."""
        await self._box.signal(key, number)

    async def decide_on_changes(self, *, allowed: bool) -> None:
        """Say whether there is a checkpoint, and calls that wait for it may go on. Raises OSError."""
        await self._box.decide_on_changes(allowed=allowed)

    def kill(self) -> None:
        """Begin killing everything in the box."""
        self._box.kill()

    def freezer(self, name: str) -> Freezer:
        """What stops everything in it, and lets it go on."""
        from agentbox.linux.freezing import Freezer, of_namespace

        if self._cgroup is not None:
            return Freezer(name, self._cgroup.pids, self._cgroup.own_path())
        return Freezer(name, lambda: of_namespace(getattr(self._box, "pidfd", -1)))

    @property
    def channel(self) -> socket.socket | None:
        """The listener on which guards connect, where the plan has one."""
        return self._box.channel

    @property
    def unix_listeners(self) -> Mapping[str, socket.socket]:
        """The listeners inside that its Network asked for, by path; closed when the box is destroyed."""
        return self._box.unix_listeners

    def ended(self, ending: CommandExit) -> None:
        """Note how the main program ended, for `usage` on hosts without cgroups."""
        self._last_exit = ending

    async def watch_memory(self) -> None:
        """Kill the box when its anonymous memory passes memory_mb. The memory cgroup alone would let it grow by
        disk_mb, since tmpfs pages are charged to it too. Runs until cancelled."""
        if self._cgroup is None:
            return
        limit = self._confinement.limits.memory_mb * _MIB
        while True:
            await asyncio.sleep(_MEMORY_POLL_SECONDS)
            used = self._cgroup.anon_bytes()
            if used is not None and used > limit:
                self._oom = True
                self._box.kill()
                if not self._box.plan.namespaces:
                    self._cgroup.kill()

    def oom_killed(self) -> bool:
        """Whether the kernel or the memory watch killed something in this box for its memory."""
        if self._cgroup is None:
            return self._oom or self._box.oom
        return self._oom or self._box.oom or self._cgroup.oom_kills() > 0 or self._died_at_its_limit(self._cgroup)

    def _died_at_its_limit(self, cgroup: Cgroup) -> bool:
        """Groups of version 1 count a kill in the group of who was killed, which may be gone with its container."""
        if not self._box.fell_silent:
            return False
        highest = cgroup.usage().max_memory_bytes
        return highest is not None and highest >= cgroup_limits(self._confinement.limits).memory_bytes - _MIB

    def usage(self) -> Usage:
        """Counters of the whole box from its cgroup, or of the main program where there is none."""
        ending = self._last_exit
        processes = self._box.processes
        if processes is None and ending is not None:
            processes = ending.processes
        if self._cgroup is not None:
            return Usage(*self._cgroup.spent(), processes)
        if ending is None:
            return Usage(None, None, processes)
        return Usage(ending.cpu_ms, ending.max_rss_bytes, processes)

    async def show(self, view: WorkspaceView) -> None:
        """Say what a box under a policy shows of its workspace, which is filled by now. Raises ConfinementError."""
        await self._box.show(view)

    async def judged(self) -> None:
        """Wait until everything that the exec judge saw was handed over, after `kill_programs`."""
        await self._box.judged()

    async def kill_programs(self) -> None:
        """Kill everything that runs in the box and wait until it is gone."""
        try:
            await self._box.kill_programs()
        finally:
            if self._cgroup is not None and not self._box.plan.namespaces:
                self._cgroup.kill()

    async def taken_apart(self) -> None:
        """Wait until no process of it is left, after `kill_programs`."""

    async def gone(self) -> None:
        """Kill and wait until nothing of the box is left but its control group, which `destroy` removes."""
        await self._box.destroy()

    def let_go(self) -> bool:
        """Whether somebody else sees to it from now on that the box is destroyed; else `destroy` must be called."""
        return False

    async def destroy(self) -> None:
        """Kill, wait, release. May be called twice; does not raise."""
        try:
            await self._box.destroy()
        finally:
            if self._cgroup is not None:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(self._cgroup.destroy)
            self._on_gone()


async def build_in_cgroup(
    facilities: Facilities,
    plan: LaunchPlan,
    confinement: Confinement,
    on_gone: Callable[[], None],
    on_spawn: Callable[[dict[str, Any]], None] | None = None,
    network: Network | None = None,
    limits: CgroupLimits | None = None,
    kind: type[LiveBox] = LiveBox,
) -> LiveBox:
    """Build the box of `plan` inside a control group of its own, where this host has them. `on_spawn` gets what the
    exec judge reports. `network` is joined in place of a new one. The group has other `limits` than the confinement's
    where the box has parts of its own.

    Raises IsolationError; nothing is left then, and `on_gone` was not called.
    """
    network_fds: tuple[int, ...] = ()
    if network is not None:
        plan = attached_plan(
            plan,
            name_server=network.name_server,
            through_user_namespace=network.user_namespace_fd is not None,
            unix_listeners=network.unix_listeners,
        )
        network_fds = network.descriptors
    limits = limits or cgroup_limits(confinement.limits)
    cgroup, facilities.begun = facilities.begun, None
    group_fds: tuple[int, ...] = ()
    try:
        if cgroup is not None:
            cgroup.set_limits(limits)
            if not facilities.launcher.has_begun(plan):
                group_fds = cgroup.attach_fds()
        elif facilities.cgroups is not None:
            cgroup = facilities.cgroups.create(os.urandom(8).hex(), limits)
            group_fds = cgroup.attach_fds()
        box = await facilities.launcher.build(plan, group_fds, on_spawn, network_fds)
    except BaseException:
        if cgroup is not None:
            await asyncio.to_thread(cgroup.destroy)
        raise
    return kind(box, confinement, cgroup, on_gone)


def cgroup_limits(limits: Limits) -> CgroupLimits:
    """tmpfs pages are charged to the group beside memory, and the box's init counts as a process."""
    return CgroupLimits((limits.memory_mb + limits.disk_mb) * _MIB, limits.pids + 1, limits.cpus)


@dataclass(frozen=True, slots=True)
class Watch:
    """What the exec judge needs: the real path of the program that will be started and the words behind its name, and
    who gets its reports. `guard` is what the program's interpreter loads, if anything."""

    command: tuple[str, tuple[str, ...]]
    on_spawn: Callable[[dict[str, Any]], None]
    guard: GuardView | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """What will be started in a box, and for whom, as far as a warm pool wants to know: interpreters that owners share
    would tell one of them about another. `started_with` is what of `env` an interpreter may have when it starts, where
    that is not all."""

    owner: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    started_with: Mapping[str, str] | None = None


class Backend(Protocol):
    """An isolation backend. Looked up by name in registry.BACKENDS. One that `judges` decides on every program that is
    started in a box under a policy; with an `own_kernel` the programs never speak to the host's."""

    name: str
    isolated: bool
    needs_directory: bool
    judges: bool

    @property
    def guards(self) -> bool:
        """Whether a guard in an interpreter can speak to its owner from inside of a box."""

    @property
    def own_kernel(self) -> bool:
        """Whether its programs speak to a kernel that is not the host's."""

    def requirements(self) -> tuple[Requirement, ...]:
        """What it needs of the host, as far as can be told without building a box."""

    def claims(self) -> Enforcement:
        """The layers that should hold each resource here; selfcheck.py proves or drops each claim."""

    async def interpreters(self) -> Mapping[str, Found] | None:
        """The programs of its own images, by language, in place of the host's; None where boxes show the host's.
        Raises IsolationError."""

    def refuses(self, confinement: Confinement) -> str:
        """Why a policy cannot be held here, naming the rule; empty where it can."""

    async def hold_network(
        self, confinement: Confinement | None = None, watch: Watch | None = None, program: Program | None = None
    ) -> HeldNetwork | None:
        """A namespace for one box that will have a way out; None where boxes join any that is made for them. Raises
        IsolationError. With what `launch` will be given it may be that of a box which waits already."""

    async def close(self) -> None:
        """Give up what it keeps beside its boxes."""

    async def launch(
        self,
        confinement: Confinement,
        directory: str | None = None,
        watch: Watch | None = None,
        network: Network | None = None,
        program: Program | None = None,
    ) -> LiveBox:
        """A box, confined and ready for its first program; under a policy, ready for `show`. `directory` is the
        workspace of backends that need one. A backend without a wall has nothing to watch with. `network` is a network
        namespace that the box joins; without one it has a network of its own that leads nowhere. Who says which
        `program` comes may get a box that is warm; LiveBox.start_kind tells.

        Raises IsolationError; nothing is left then.
        """
