# SPDX-License-Identifier: MIT
"""How a nursery comes to be: the namespaces and the view in which the maker of boxes and warm interpreters live.

A nursery has a user namespace of its own, so that neither it nor any box made in it has a power over the host; the ids
that boxes take are mapped into it one to one. Its process 1 is the maker (isolation/native/maker.c): when that ends,
the kernel ends everything in it.
"""

from __future__ import annotations

import os

from agentbox.isolation.launcher import judges, root, view
from agentbox.isolation.launcher.steps import step
from agentbox.light import socket
from agentbox.linux import mounts, namespaces, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STAGE = "/usr"
_VIEW_BYTES = 8 << 20
_OWNER_FD, _CONFIG_FD = 3, 4
_NAMESPACES = (
    namespaces.CLONE_NEWNS
    | namespaces.CLONE_NEWIPC
    | namespaces.CLONE_NEWUTS
    | namespaces.CLONE_NEWNET
    | namespaces.CLONE_NEWCGROUP
)


def build(nursery: dict[str, Any], owner: socket.socket, descriptors: list[int]) -> None:
    """Become the nursery of that description (pool/nursery.py). Never returns: a child executes the maker.

    `owner` is its end of the owner's socket. `descriptors` are the maker's program, the library of warm interpreters,
    the configuration of both, and where boxes are judged the judges' end of another socket. Raises StepError.
    """
    plan = nursery["plan"]
    trees: dict[str, int] = {}
    if process.has_capability(process.CAP_SYS_ADMIN):
        with step("open mounts"):
            trees = root.open_trees(plan)
    ready_read, ready_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    with step("fork"):
        pid = os.fork()
    if pid != 0:
        os.close(ready_write)
        if os.read(ready_read, 1) == b"r" and nursery["maps"]:
            with step("map ids"):
                namespaces.write_maps(pid, nursery["maps"])
        os.write(mapped_write, b"m")
        os._exit(0)
    # In the new namespace no id is mapped yet, and each looks like nobody's.
    own_uid, own_gid = os.geteuid(), os.getegid()
    with step("unshare"):
        namespaces.unshare(namespaces.CLONE_NEWUSER)
    os.write(ready_write, b"r")
    if not nursery["maps"]:
        with step("map ids"):
            namespaces.map_own_ids(0, own_uid, own_gid)
    os.read(mapped_read, 1)
    with step("take the nursery's uid"):
        if nursery["maps"]:
            os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    with step("unshare"):
        namespaces.unshare(_NAMESPACES)
    with step("private mounts"):
        mounts.make_private()
    if not trees:
        with step("open mounts"):
            trees = root.open_trees(plan)
    maker, library, config, *judged = descriptors
    if judged:
        with step("fork the judges"):
            pid = os.fork()
        if pid == 0:
            # With the host's process ids, as a judge of any other box has.
            for fd in (owner.detach(), maker, library, config, *trees.values()):
                os.close(fd)
            judges.serve(socket.socket(fileno=judged[0]))
        os.close(judged[0])
    with step("unshare"):
        namespaces.unshare(namespaces.CLONE_NEWPID)
    with step("fork"):
        pid = os.fork()
    if pid != 0:
        os._exit(0)
    for end in (ready_read, ready_write, mapped_read, mapped_write):
        os.close(end)
    _build_view(nursery, trees, library)
    with step("host name"):
        socket.sethostname(plan["hostname"])
    nothing = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1):
        os.dup2(nothing, target)
    # Beyond what is about to be replaced.
    kept = [_above(fd) for fd in (owner.fileno(), config, maker)]
    os.dup2(kept[0], _OWNER_FD, inheritable=True)
    os.dup2(kept[1], _CONFIG_FD, inheritable=True)
    process.reset_signals()
    with step("execute the maker"):
        os.execve(kept[2], ["agentbox-init"], {})  # noqa: S606


def _above(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)


def _build_view(nursery: dict[str, Any], trees: dict[str, int], library: int) -> None:
    """What every box begins with. A box puts its own /proc, terminals and writable directories over this one's, and so
    hides what lies there: the script and library of warm interpreters, and the covers of masked files."""
    plan = nursery["plan"]
    os.umask(0o022)
    with step("new root"):
        options = {"size": str(_VIEW_BYTES), "mode": "0755"}
        top = mounts.new_filesystem("tmpfs", mounts.ATTR_NOSUID | mounts.ATTR_NODEV, **options)
        mounts.attach(top, _STAGE)
        os.close(top)
        os.chdir(_STAGE)
    for path, mode in plan["writable"]:
        os.makedirs(f".{path}")
        os.chmod(f".{path}", mode)
    for path in nursery["places"]:
        # A box puts a file of its own over each.
        view.write_file(path, b"")
    with step("write the library"):
        view.write_file(nursery["library"], _content(library))
    root.fill({**plan, "files": [*plan["files"], *nursery["files"]]}, trees)
    with step("mount /proc"):
        os.makedirs("./proc", exist_ok=True)
        flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
        # A box may mount its own only where a whole one is seen.
        mounts.mount("proc", "./proc", "proc", flags)
        os.close(os.open("./tmp/nothing", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
        os.mkdir("./tmp/empty", 0o555)
    with step("terminals"):
        os.makedirs("./dev/pts")
        os.symlink("pts/ptmx", "./dev/ptmx")
    with step("pivot"):
        mounts.pivot_here()
    with step("seal root"):
        top = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        mounts.set_attributes(top, mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV, recursive=False)
        os.close(top)


def _content(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)
