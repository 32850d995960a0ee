# SPDX-License-Identifier: MIT
"""What a forked child of the launcher does to become a box; the whole order is in `build`.

The child runs as root only while it prepares: it opens the mounts that only root can reach, then takes the box's own
uid, and only then makes the user namespace. So no process inside ever has the host's uid 0, not even in /proc's eyes
(/proc/sys/kernel/core_pattern opens for writing for a kernel uid 0, whatever its namespace).
"""

from __future__ import annotations

import errno
import os
import resource

from agentbox.isolation.launcher import init, judge, root, wire
from agentbox.isolation.launcher.steps import StepError, step
from agentbox.light import contextlib, signal, socket
from agentbox.linux import landlock, mounts, namespaces, notify, process, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ALL_NAMESPACES = (
    namespaces.CLONE_NEWUSER
    | namespaces.CLONE_NEWNS
    | namespaces.CLONE_NEWPID
    | namespaces.CLONE_NEWIPC
    | namespaces.CLONE_NEWUTS
    | namespaces.CLONE_NEWNET
    | namespaces.CLONE_NEWCGROUP
)
_KNOWN_MACHINE = os.uname().machine in seccomp.ARCHITECTURES
_GUEST_FILTER = seccomp.build() if _KNOWN_MACHINE else b""
_JUDGED = notify.build(judge.CALLS) if _KNOWN_MACHINE else b""


def report_failure(sock: socket.socket, error: BaseException) -> None:
    """Tell the owner why the box was not built; the owner may be gone already."""
    step, code = (error.step, error.errno) if isinstance(error, StepError) else ("internal", 0)
    text = error.text if isinstance(error, StepError) else repr(error)
    with contextlib.suppress(OSError, ValueError):
        wire.send(sock, {"error": text, "step": step, "errno": code})


def join(cgroups: list[int]) -> None:
    """Enter the control groups whose files these descriptors are (Cgroup.attach_fds), and close them."""
    with step("join cgroup"):
        for fd in cgroups:
            os.write(fd, b"0")
            os.close(fd)


def build(plan: dict[str, Any], sock: socket.socket, descriptors: list[int]) -> None:
    """Become the box of `plan`. Returns only in the box's init process, when the box is to end.

    `descriptors` are the judge's end of the owner's socket, where the plan has a judge, and the cgroup.procs files.
    """
    verdicts = socket.socket(fileno=descriptors[0]) if plan["judge"] else None
    cgroups = descriptors[1:] if verdicts else descriptors
    joined, cgroups = cgroups[: len(plan["joins"])], cgroups[len(plan["joins"]) :]
    join(cgroups)
    if not plan["namespaces"]:
        process.become_subreaper()
        os.setsid()
        wire.send(sock, {"forked": os.getpid()}, [os.pidfd_open(os.getpid())] if hasattr(os, "pidfd_open") else [])
        _limit_resources(plan)
        workspace = os.open(plan["workspace"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        wire.send(sock, {"ready": True}, [workspace])
        os.close(workspace)
        init.serve(sock, plan, whole_namespace=False)
        return
    trees: dict[str, int] = {}
    if process.has_capability(process.CAP_SYS_ADMIN):
        with step("open mounts"):
            trees = root.open_trees(plan)
    with step("join network"):
        _enter(plan["joins"], joined)
    unshare(plan, network=not joined)
    if not trees:
        with step("open mounts"):
            trees = root.open_trees(plan)
    pid, proc, ours, theirs = fork_init()
    if pid != 0:
        wire.send(sock, {"forked": pid}, [os.pidfd_open(pid)])
        theirs.close()
        if verdicts is not None:
            watch(plan, pid, proc, ours, verdicts)
        os._exit(0)
    os.close(proc)
    ours.close()
    if verdicts is not None:
        verdicts.close()
    finish(plan, root.build(plan, trees, sock), sock, theirs)


def unshare(plan: dict[str, Any], *, network: bool, cgroups: bool = True) -> None:
    """Take the box's id, where root gives it one, and leave all namespaces for new ones; that of the `network` only
    where none was joined, that of control groups only when those were."""
    host_uid, host_gid = plan["host_uid"], plan["host_gid"]
    if os.geteuid() == 0 and host_uid != 0:
        with step("take the box's uid"):
            process.become_user(host_uid, host_gid)
    with step("unshare"):
        kept = (0 if network else namespaces.CLONE_NEWNET) | (0 if cgroups else namespaces.CLONE_NEWCGROUP)
        namespaces.unshare(_ALL_NAMESPACES & ~kept)
    with step("map ids"):
        namespaces.map_own_ids(plan["guest_uid"], host_uid, host_gid)
    if network:
        with step("loopback"):
            namespaces.bring_loopback_up()
    with step("private mounts"):
        mounts.make_private()


def fork_init() -> tuple[int, int, socket.socket, socket.socket]:
    """Fork the init, the first process of the new PID namespace: 0 in it and its pid in the judge, a descriptor of the
    judge's /proc, the judge's end of a socket between both, and the init's."""
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    ours, theirs = socket.socketpair()
    with step("fork init"):
        return os.fork(), proc, ours, theirs


def _enter(kinds: list[str], joined: list[int]) -> None:
    """Enter namespaces that were made for this box, and close them. Whoever made them owns them, or an outer user
    namespace does: once this process has one of its own, no capability of it counts there."""
    flags = {"user": namespaces.CLONE_NEWUSER, "network": namespaces.CLONE_NEWNET}
    for kind, fd in zip(kinds, joined, strict=True):
        namespaces.enter(fd, flags[kind])
        os.close(fd)


def watch(plan: dict[str, Any], init_pid: int, proc: int, init: socket.socket, verdicts: socket.socket) -> None:
    """Stay outside the PID namespace and decide on every execve of the box; see judge.py."""
    try:
        _, listeners, _, _ = socket.recv_fds(init, 1, 1)
        if listeners:
            init.close()
            process.keep_only_ptrace()
            judge.Judge(listeners[0], proc, verdicts, plan, init_pid).serve()
    finally:
        # Whatever ends the judge ends the box: nothing runs unjudged.
        with contextlib.suppress(ProcessLookupError):
            os.kill(init_pid, signal.SIGKILL)


def finish(plan: dict[str, Any], channel: socket.socket | None, sock: socket.socket, judge_end: socket.socket) -> None:
    """The rest, in the box's init, when its root is complete: its confinement, its service. `channel` is the listener
    for guards, if any."""
    with step("open workspace"):
        workspace = os.open(plan["workspace"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with step("host name"):
        socket.sethostname(plan["hostname"])
    os.chdir(plan["workspace"])
    _confine(plan, judge_end)
    wire.send(sock, {"ready": True}, [workspace, *([channel.fileno()] if channel else [])])
    os.close(workspace)
    if channel:
        channel.close()
    init.serve(sock, plan, whole_namespace=True)


def _limit_resources(plan: dict[str, Any]) -> None:
    for name, value in plan["rlimits"]:
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:
            continue
        _, hard = resource.getrlimit(which)
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with step(f"limit {name}"):
            resource.setrlimit(which, (ceiling, ceiling))


def _asking(plan: dict[str, Any]) -> bytes:
    """The filter that asks the judge."""
    if not plan["witness_all"] and not plan["checkpoint"]:
        return _JUDGED
    names = judge.CALLS + (judge.WITNESSED if plan["witness_all"] else ())
    return notify.build(names, changes=plan["checkpoint"])


def _confine(plan: dict[str, Any], judge_end: socket.socket) -> None:
    """Last and in this order: capabilities go (dropping them needs one), then Landlock (opens paths), then
    resource limits, then the filter that refuses all of the above to whatever comes later."""
    with step("capabilities"):
        process.drop_all_capabilities()
    process.set_dumpable(False)
    guest_filter = _GUEST_FILTER
    if not guest_filter:
        raise StepError("seccomp", OSError(errno.ENOSYS, f"no system call table for {os.uname().machine}"))
    with step("landlock"):
        writable = [path for path, _ in plan["writable"]]
        writable += [path for path, granted in plan["grants"] if granted]
        writable += [target for _, target in plan["lent"]]
        writable += [target for _, _, target, granted in plan["parts"] if granted]
        landlock.restrict(plan["landlock_read"], [*writable, "/dev/pts"], [f"/dev/{name}" for name in plan["devices"]])
    _limit_resources(plan)
    if plan["judge"]:
        with step("exec judge"):
            listener = notify.install(_asking(plan))
            socket.send_fds(judge_end, [b"l"], [listener])
            os.close(listener)
        guest_filter = seccomp.leaving_sockets(guest_filter)
    judge_end.close()
    with step("seccomp"):
        seccomp.install(guest_filter)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
