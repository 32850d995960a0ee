# SPDX-License-Identifier: MIT
"""What a forked child of the launcher does to become a box; the whole order is in `build`.

The child runs as root only while it prepares: it opens the mounts that only root can reach, then takes the box's own
uid, and only then makes the user namespace. So no process inside ever has the host's uid 0, not even in /proc's eyes
(/proc/sys/kernel/core_pattern opens for writing for a kernel uid 0, whatever its namespace).
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
from collections.abc import Iterator
from typing import Any

from agentbox.isolation.launcher import init, judge, wire
from agentbox.linux import landlock, mounts, namespaces, notify, process, seccomp

_ALL_NAMESPACES = (
    namespaces.CLONE_NEWUSER
    | namespaces.CLONE_NEWNS
    | namespaces.CLONE_NEWPID
    | namespaces.CLONE_NEWIPC
    | namespaces.CLONE_NEWUTS
    | namespaces.CLONE_NEWNET
    | namespaces.CLONE_NEWCGROUP
)
# Any directory that exists everywhere will do to hang the new root on; pivot_root makes it "/" a moment later.
_STAGE = "/usr"
_GUEST_FILTER = seccomp.build() if os.uname().machine in ("x86_64", "aarch64") else b""


class StepError(Exception):
    """A step of building the box failed; carries the step's name."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error}")
        self.step = step
        self.errno = error.errno or 0
        self.text = str(error)


@contextlib.contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StepError(name, error) from error


def report_failure(sock: socket.socket, error: BaseException) -> None:
    """Tell the owner why the box was not built; the owner may be gone already."""
    step, code = (error.step, error.errno) if isinstance(error, StepError) else ("internal", 0)
    text = error.text if isinstance(error, StepError) else repr(error)
    with contextlib.suppress(OSError, ValueError):
        wire.send(sock, {"error": text, "step": step, "errno": code})


def build(plan: dict[str, Any], sock: socket.socket, descriptors: list[int]) -> None:
    """Become the box of `plan`. Returns only in the box's init process, when the box is to end.

    `descriptors` are the judge's end of the owner's socket, where the plan has a judge, and the cgroup.procs files.
    """
    verdicts = socket.socket(fileno=descriptors[0]) if plan["judge"] else None
    cgroups = descriptors[1:] if verdicts else descriptors
    with _step("join cgroup"):
        for fd in cgroups:
            os.write(fd, b"0")
            os.close(fd)
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
    host_uid, host_gid = plan["host_uid"], plan["host_gid"]
    trees: dict[str, int] = {}
    if process.has_capability(process.CAP_SYS_ADMIN):
        with _step("open mounts"):
            trees = _open_binds(plan)
    if os.geteuid() == 0 and host_uid != 0:
        with _step("take the box's uid"):
            process.become_user(host_uid, host_gid)
    with _step("unshare"):
        namespaces.unshare(_ALL_NAMESPACES)
    with _step("map ids"):
        namespaces.map_own_ids(plan["guest_uid"], host_uid, host_gid)
    with _step("loopback"):
        namespaces.bring_loopback_up()
    with _step("private mounts"):
        mounts.make_private()
    if not trees:
        with _step("open mounts"):
            trees = _open_binds(plan)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    ours, theirs = socket.socketpair()
    with _step("fork init"):
        pid = os.fork()
    if pid != 0:
        wire.send(sock, {"forked": pid}, [os.pidfd_open(pid)])
        theirs.close()
        if verdicts is not None:
            _judge(plan, pid, proc, ours, verdicts)
        os._exit(0)
    os.close(proc)
    ours.close()
    if verdicts is not None:
        verdicts.close()
    _build_root(plan, trees, sock, theirs)


def _judge(plan: dict[str, Any], init_pid: int, proc: int, init: socket.socket, verdicts: socket.socket) -> None:
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


def _open_binds(plan: dict[str, Any]) -> dict[str, int]:
    """Detached, read-only copies of the host's directories, and the device files."""
    trees = {}
    read_only = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV
    for source, target in plan["binds"]:
        tree = mounts.clone_tree(source)
        mounts.set_attributes(tree, read_only)
        trees[target] = tree
    for name in plan["devices"]:
        trees[f"/dev/{name}"] = mounts.clone_tree(f"/dev/{name}", recursive=False)
    return trees


def _build_root(plan: dict[str, Any], trees: dict[str, int], sock: socket.socket, judge_end: socket.socket) -> None:
    os.umask(0o022)
    with _step("new root"):
        options = {"size": str(plan["disk_bytes"]), "nr_inodes": str(plan["inodes"]), "mode": "0755"}
        root = mounts.new_filesystem("tmpfs", mounts.ATTR_NOSUID | mounts.ATTR_NODEV, **options)
        mounts.attach(root, _STAGE)
        os.close(root)
        os.chdir(_STAGE)
    with _step("writable directories"):
        _open_writable(plan)
    for path, text in plan["files"]:
        with _step(f"write {path}"):
            _write(path, text.encode())
    for path, target in plan["links"]:
        with _step(f"link {path}"):
            os.makedirs(os.path.dirname(f".{path}"), exist_ok=True)
            os.symlink(target, f".{path}")
    for target, tree in trees.items():
        with _step(f"mount {target}"):
            _make_mount_point(f".{target}", tree)
            mounts.attach(tree, f".{target}")
            os.close(tree)
    with _step("mount /proc"):
        _mount_proc(plan)
    with _step("mount /dev/pts"):
        os.makedirs("./dev/pts")
        flags = mounts.MS_NOSUID | mounts.MS_NOEXEC
        mounts.mount("devpts", "./dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620")
        os.symlink("pts/ptmx", "./dev/ptmx")
    with _step("open workspace"):
        workspace = os.open(f".{plan['workspace']}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with _step("pivot"):
        mounts.pivot_here()
    with _step("seal root"):
        top = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        mounts.set_attributes(top, mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV, recursive=False)
        os.close(top)
    with _step("host name"):
        socket.sethostname(plan["hostname"])
    os.chdir(plan["workspace"])
    _confine(plan, judge_end)
    wire.send(sock, {"ready": True}, [workspace])
    os.close(workspace)
    init.serve(sock, plan, whole_namespace=True)


def _open_writable(plan: dict[str, Any]) -> None:
    """Directories of the root's tmpfs that stay writable when the root is sealed: each is a mount of its own. They
    share the one file system, so the disk limit holds their sum."""
    for path, mode in plan["writable"]:
        os.makedirs(f".{path}")
        os.chmod(f".{path}", mode)
        mounts.bind(f".{path}", f".{path}")


def _mount_proc(plan: dict[str, Any]) -> None:
    os.makedirs("./proc", exist_ok=True)
    flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    mounts.mount("proc", "./proc", "proc", flags)
    for path in plan["proc_masked_files"]:
        if os.path.exists(f".{path}"):
            mounts.bind("./dev/null", f".{path}")
    empty = None
    for path in plan["proc_masked_directories"]:
        if os.path.isdir(f".{path}"):
            if empty is None:
                os.mkdir("./empty", 0o555)
                empty = "./empty"
            mounts.bind(empty, f".{path}")
    if empty is not None:
        os.rmdir(empty)
    for path in plan["proc_read_only"]:
        if os.path.exists(f".{path}"):
            tree = mounts.clone_tree(f".{path}")
            mounts.set_attributes(tree, mounts.ATTR_RDONLY)
            mounts.attach(tree, f".{path}")
            os.close(tree)


def _make_mount_point(path: str, tree: int) -> None:
    if os.path.isdir(f"/proc/self/fd/{tree}"):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))


def _write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(f".{path}"), exist_ok=True)
    fd = os.open(f".{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def _limit_resources(plan: dict[str, Any]) -> None:
    for name, value in plan["rlimits"]:
        which = getattr(resource, f"RLIMIT_{name}", None)
        if which is None:
            continue
        _, hard = resource.getrlimit(which)
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with _step(f"limit {name}"):
            resource.setrlimit(which, (ceiling, ceiling))


def _confine(plan: dict[str, Any], judge_end: socket.socket) -> None:
    """Last and in this order: capabilities go (dropping them needs one), then Landlock (opens paths), then
    resource limits, then the filter that refuses all of the above to whatever comes later."""
    with _step("capabilities"):
        process.drop_all_capabilities()
    process.set_dumpable(False)
    with _step("landlock"):
        writable = [path for path, _ in plan["writable"]]
        landlock.restrict(plan["landlock_read"], [*writable, "/dev/pts"], [f"/dev/{name}" for name in plan["devices"]])
    _limit_resources(plan)
    if plan["judge"]:
        with _step("exec judge"):
            listener = notify.install(notify.build(judge.CALLS))
            socket.send_fds(judge_end, [b"l"], [listener])
            os.close(listener)
    judge_end.close()
    if not _GUEST_FILTER:
        raise StepError("seccomp", OSError(errno.ENOSYS, f"no system call table for {os.uname().machine}"))
    with _step("seccomp"):
        seccomp.install(_GUEST_FILTER)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
