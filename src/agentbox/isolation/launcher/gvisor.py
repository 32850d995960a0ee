# SPDX-License-Identifier: MIT
"""What a forked child of the launcher does to become a gVisor box: namespaces, the guest's root, and runsc in them.

Everything that gVisor consists of, its kernel and the process that opens files for it, runs inside namespaces of ours,
as ids of its box that mean nothing on the host, in a root that shows the guest's files and nothing else. Whoever gets
out of gVisor is where a guest of the jail would be, and not the host's root.

    /               a file system of this box; nobody but gVisor sees it
    /box            the guest's root, as the jail makes it
    /bundle /state  what runsc reads and keeps
    /runsc          the program
"""

from __future__ import annotations

import os

from agentbox.isolation.launcher import gvisor_init, root, unix_listeners, view, wire
from agentbox.isolation.launcher.box import join
from agentbox.isolation.launcher.bundle import NAME, NOBODY, ORDINARY, bundle_of
from agentbox.isolation.launcher.steps import step
from agentbox.light import jsons, signal, socket
from agentbox.linux import mounts, namespaces, seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Any directory of the host that the guest's own root does not cover meanwhile.
_OUTER_STAGE = "/sys"
_OUTER = {"size": str(64 << 20), "nr_inodes": "4096", "mode": "0755"}
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LOG_BYTES = 4000
_CHANNEL_MODE = 0o666
_READ_ONLY = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV
_NO_SET_ID = seccomp.build_without_set_id() if os.uname().machine in seccomp.ARCHITECTURES else b""
_NAMESPACES = (
    namespaces.CLONE_NEWNS
    | namespaces.CLONE_NEWPID
    | namespaces.CLONE_NEWIPC
    | namespaces.CLONE_NEWUTS
    | namespaces.CLONE_NEWCGROUP
)


def build(plan: dict[str, Any], sock: socket.socket, descriptors: list[int]) -> None:
    """Become the box of `plan`. Returns only in the box's init process, when the box is to end. `descriptors` are the
    network namespace that is joined, if any, and the cgroup.procs files."""
    joined, cgroups = descriptors[: len(plan["joins"])], descriptors[len(plan["joins"]) :]
    join(cgroups)
    runtime = plan["runtime"]
    with step("open mounts"):
        trees = root.open_trees(plan)
        own = [(f"/dev/{name}", mounts.clone_tree(f"/dev/{name}", recursive=False)) for name in _DEVICES]
        program = mounts.clone_tree(os.path.realpath(runtime["program"]), recursive=False)
        mounts.set_attributes(program, _READ_ONLY)
        own.append(("/runsc", program))
    for fd in joined:
        with step("join network"):
            namespaces.enter(fd, namespaces.CLONE_NEWNET)
            os.close(fd)
    _take_ids(plan)
    with step("unshare"):
        namespaces.unshare(_NAMESPACES | (0 if joined else namespaces.CLONE_NEWNET))
    if not joined:
        with step("loopback"):
            namespaces.bring_loopback_up()
    with step("private mounts"):
        mounts.make_private()
    with step("fork init"):
        pid = os.fork()
    if pid != 0:
        wire.send(sock, {"forked": pid}, [os.pidfd_open(pid)])
        os._exit(0)
    _live(plan, sock, trees, own)


def _take_ids(plan: dict[str, Any]) -> None:
    """Make a user namespace with the ids of this box: its root, its user, nobody. The last two of the maps are not this
    process's own, so a child that stays outside writes them."""
    # Where the user is the box's root, it has an ordinary one beside it.
    inside = (0, plan["guest_uid"], NOBODY) if plan["guest_uid"] else (ORDINARY, 0, NOBODY)
    ids = dict(zip(inside, plan["runtime"]["host_ids"], strict=True))
    extents = [(one, outside, 1) for one, outside in ids.items()]
    read, write = os.pipe()
    me = os.getpid()
    with step("map ids"):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(write)
                if os.read(read, 1):
                    namespaces.write_maps(me, extents)
                    code = 0
            finally:
                os._exit(code)
        os.close(read)
        try:
            namespaces.unshare(namespaces.CLONE_NEWUSER)
            os.write(write, b"u")
        finally:
            os.close(write)
            _, status = os.waitpid(pid, 0)
        if status:
            raise OSError(1, "the kernel refused the id maps of the box")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def _live(plan: dict[str, Any], sock: socket.socket, trees: dict[str, int], own: list[tuple[str, int]]) -> None:
    """The init's life."""
    root.begin(plan)
    root.open_writable(plan)
    root.fill(plan, trees)
    root.hide(plan)
    uid = plan["guest_uid"]
    for path, mode in plan["writable"]:
        if not mode & 0o002:
            os.chown(f".{path}", uid, uid)
    channel = _listen(plan["channel"]) if plan["channel"] else None
    if plan["staged"]:
        view.stage(plan["workspace"], sock)
    _surround(own)
    _open_listeners(plan, sock)
    with step("seal root"):
        top = os.open("/box", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        mounts.set_attributes(top, _READ_ONLY, recursive=False)
        os.close(top)
    with step("open workspace"):
        workspace = os.open(f"/box{plan['workspace']}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with step("write the bundle"):
        os.makedirs("/bundle")
        with open("/bundle/config.json", "w", encoding="utf-8") as file:
            file.write(jsons.dumps(bundle_of(plan)))
    runsc = start_runsc(plan)
    wire.send(sock, {"ready": True}, [workspace, *([channel.fileno()] if channel else [])])
    os.close(workspace)
    if channel:
        channel.close()
    gvisor_init.serve(sock, plan, runsc)


def _listen(path: str) -> socket.socket:
    """The guard's channel; the guest is not its owner, and must be able to connect all the same."""
    with step("guard's channel"):
        listener = root.listen(f".{path}")
        os.chmod(f".{path}", _CHANNEL_MODE)
    return listener


def _surround(own: list[tuple[str, int]]) -> None:
    """Put the guest's root, which is the current directory, into the root of the processes that gVisor is made of."""
    with step("outer root"):
        top = mounts.new_filesystem("tmpfs", mounts.ATTR_NOSUID | mounts.ATTR_NODEV, **_OUTER)
        mounts.attach(top, _OUTER_STAGE)
        os.close(top)
        for name in ("box", "proc", "dev/pts", "state", "tmp"):
            os.makedirs(f"{_OUTER_STAGE}/{name}")
        mounts.mount(".", f"{_OUTER_STAGE}/box", None, mounts.MS_MOVE)
        os.chdir(_OUTER_STAGE)
        for path, tree in own:
            view.make_mount_point(f".{path}", tree)
            mounts.attach(tree, f".{path}")
            os.close(tree)
    with step("mount /proc"):
        mounts.mount("proc", "./proc", "proc", mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC)
    with step("mount /dev/pts"):
        flags = mounts.MS_NOSUID | mounts.MS_NOEXEC
        mounts.mount("devpts", "./dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620")
        os.symlink("pts/ptmx", "./dev/ptmx")
    with step("pivot"):
        mounts.pivot_here()


def _open_listeners(plan: dict[str, Any], sock: socket.socket) -> None:
    """Sockets at the paths that the plan names, made by a process whose root is the guest's: a link there must lead
    where it leads inside."""
    if not plan["unix_listeners"]:
        return
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chroot("/box")
            os.chdir("/")
            for path in plan["unix_listeners"]:
                unix_listeners.open_at(path, sock)
                os.chmod(path, _CHANNEL_MODE)
            code = 0
        finally:
            os._exit(code)
    with step("open listeners"):
        if os.waitpid(pid, 0)[1]:
            raise OSError(1, "a socket of the host could not be offered inside")


def start_runsc(plan: dict[str, Any]) -> int:
    """Start gVisor and wait until its first process runs; the pid of `runsc`. Raises StepError with its last words."""
    arguments = [
        "runsc",
        "--root=/state",
        f"--platform={plan['runtime']['platform']}",
        f"--network={plan['runtime']['network']}",
        "--ignore-cgroups",
        # What a directory of the host has besides is not for the guest to speak to.
        *(["--host-uds=open"] if plan["channel"] or plan["unix_listeners"] else ()),
        "--oci-seccomp",
        # A root may change what it sees: in memory.
        *(["--overlay2=root:memory"] if plan["runtime"]["changes"] else ()),
        "--log=/runsc.log",
        "run",
        "--bundle=/bundle",
        NAME,
    ]
    read, write = os.pipe()
    with step("start gVisor"):
        pid = os.fork()
        if pid == 0:
            _become_runsc(arguments, write)
        os.close(write)
        if not os.read(read, 1):
            os.waitpid(pid, 0)
            raise OSError(0, _last_words())
        os.close(read)
    return pid


def _become_runsc(arguments: list[str], ready: int) -> None:
    try:
        nothing = os.open("/dev/null", os.O_RDWR)
        complaints = os.open("/runsc.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(nothing, 0)
        os.dup2(ready, 1)
        os.dup2(complaints, 2)
        os.closerange(3, 1 << 12)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # What a guest makes in a directory of the host belongs to that directory's owner there.
        seccomp.install(_NO_SET_ID)
        os.execve("/runsc", arguments, {"PATH": "/", "HOME": "/"})  # noqa: S606
    finally:
        os._exit(127)


def _last_words() -> str:
    """What runsc said before it ended."""
    said = []
    for path in ("/runsc.err", "/runsc.log"):
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
                said.append(file.read().decode(errors="replace").strip())
        except OSError:
            continue
    return "gVisor did not start: " + (" ".join(filter(None, said)) or "it said nothing")
