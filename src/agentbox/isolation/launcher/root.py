# SPDX-License-Identifier: MIT
"""The box's view of the file system, from an empty tmpfs to a sealed root."""

from __future__ import annotations

import os

from agentbox.isolation.launcher import unix_listeners, view
from agentbox.isolation.launcher.bundle import NOBODY, ORDINARY_ON_DISK
from agentbox.isolation.launcher.steps import step
from agentbox.light import socket
from agentbox.linux import mounts, namespaces, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Any directory that exists everywhere will do to hang the new root on; pivot_root makes it "/" a moment later.
_STAGE = "/usr"
_READ_ONLY = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV
_WRITABLE = mounts.ATTR_NOSUID | mounts.ATTR_NODEV
_CHANNEL_BACKLOG = 256


def open_trees(plan: dict[str, Any], maps: dict[int, int] | None = None) -> dict[str, int]:
    """Detached copies of everything that the host lends: by target, in the order in which they must be attached.

    Called by root before it gives its identity up, so that directories only root can reach can be lent, or by an
    ordinary user inside its user namespace. `maps` are id maps that were made before, by the owner of what they show;
    this closes them.
    """
    trees = {}
    for source, target in plan["binds"]:
        trees[target] = mounts.clone_tree(source)
        mounts.set_attributes(trees[target], _READ_ONLY)
    for name in plan["devices"]:
        trees[f"/dev/{name}"] = mounts.clone_tree(f"/dev/{name}", recursive=False)
    maps = {} if maps is None else maps
    sources = dict(plan["sources"])
    for source, inside, target, writable in [
        *((sources.get(path, path), None, path, writable) for path, writable in sorted(plan["grants"])),
        *((source, None, target, True) for source, target in plan["lent"]),
        *plan["parts"],
    ]:
        with step(f"lend {target}"):
            tree = mounts.clone_tree(source) if inside is None else mounts.clone_tree_below(source, inside)
        if target in trees:
            # A denial comes after what granted the same, and must cover what lies below that.
            os.close(trees.pop(target))
        trees[target] = tree
        mounts.set_attributes(tree, _WRITABLE if writable else _READ_ONLY)
        if process.has_capability(process.CAP_SYS_ADMIN) and os.geteuid() == 0 and plan["host_uid"] != 0:
            # As root the box has an id of its own; the project's owner must look like that id, and what the box
            # makes must belong to the owner on the disk.
            owner = os.fstat(tree).st_uid
            if owner not in maps:
                maps[owner] = _map_of(owner, plan)
            with step(f"map the owner of {source}"):
                mounts.map_ids(tree, maps[owner])
    for fd in maps.values():
        os.close(fd)
    return trees


def _map_of(owner: int, plan: dict[str, Any]) -> int:
    """What belongs to `owner` on the disk belongs to the box's user, or its root where that is its user."""
    if not plan["runtime"]:
        return namespaces.mapping_namespace(owner, plan["host_uid"])
    other, user, nobody = plan["runtime"]["host_ids"]
    if plan["guest_uid"] != 0:
        # In gVisor the box's root makes what its user then gets.
        return namespaces.mapping_namespace(owner, user, other)
    # A box's root has others beside it, and may have given them the whole.
    root = os.geteuid() if owner in (ORDINARY_ON_DISK, NOBODY) else owner
    # Who has few ids to give has not that one.
    ordinary = ORDINARY_ON_DISK if other > ORDINARY_ON_DISK else other
    return namespaces.namespace_of({ordinary: other, NOBODY: nobody, root: user})


def build(plan: dict[str, Any], trees: dict[str, int], owner: socket.socket) -> socket.socket | None:
    """Make the root of this mount namespace and move into it. `owner` fills the workspace meanwhile, where the plan is
    staged. Returns the listener of the guard's channel, where the plan has one."""
    begin(plan)
    open_writable(plan)
    fill(plan, trees)
    hide(plan)
    own_filesystems(plan)
    return complete(plan, owner)


def begin(plan: dict[str, Any], stage: str = _STAGE) -> None:
    """An empty root, in which this process is from now on. What the host has at and below `stage` cannot be reached
    any more."""
    os.umask(0o022)
    with step("new root"):
        top = mounts.new_filesystem("tmpfs", mounts.ATTR_NOSUID | mounts.ATTR_NODEV, **_size(plan), mode="0755")
        mounts.attach(top, stage)
        os.close(top)
        os.chdir(stage)


def resize(plan: dict[str, Any]) -> None:
    """Hold the root to the plan's size, whatever it had before."""
    with step("new root"):
        options = ",".join(f"{name}={value}" for name, value in _size(plan).items())
        mounts.mount("tmpfs", ".", None, mounts.MS_REMOUNT | mounts.MS_NOSUID | mounts.MS_NODEV, options)


def _size(plan: dict[str, Any]) -> dict[str, str]:
    return {"size": str(plan["disk_bytes"]), "nr_inodes": str(plan["inodes"])}


def fill(plan: dict[str, Any], trees: dict[str, int]) -> None:
    """Put the plan's files, links and mounts into the root."""
    for path, text in plan["files"]:
        with step(f"write {path}"):
            view.write_file(path, text.encode())
    for path, target in plan["links"]:
        with step(f"link {path}"):
            os.makedirs(os.path.dirname(f".{path}"), exist_ok=True)
            os.symlink(target, f".{path}")
    for target, tree in trees.items():
        with step(f"mount {target}"):
            view.make_mount_point(f".{target}", tree)
            mounts.attach(tree, f".{target}")
            os.close(tree)


def hide(plan: dict[str, Any]) -> None:
    """Cover what the plan's mounts show and must not."""
    with step("hide"):
        view.hide(plan["hidden"])
    with step("working directory"):
        os.makedirs(f".{plan['workspace']}", exist_ok=True)


def own_filesystems(plan: dict[str, Any]) -> None:
    """The box's own processes and terminals."""
    with step("mount /proc"):
        _mount_proc(plan)
    with step("mount /dev/pts"):
        os.makedirs("./dev/pts")
        flags = mounts.MS_NOSUID | mounts.MS_NOEXEC
        mounts.mount("devpts", "./dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620")
        os.symlink("pts/ptmx", "./dev/ptmx")


def complete(plan: dict[str, Any], owner: socket.socket) -> socket.socket | None:
    """Move into the root and seal it; see `build`."""
    channel = None
    if plan["channel"]:
        with step("guard's channel"):
            channel = listen(f".{plan['channel']}")
    if plan["staged"]:
        view.stage(plan["workspace"], owner)
    with step("pivot"):
        mounts.pivot_here()
    for path in plan["unix_listeners"]:
        unix_listeners.open_at(path, owner)
    with step("seal root"):
        top = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        mounts.set_attributes(top, _READ_ONLY, recursive=False)
        os.close(top)
    return channel


def listen(path: str) -> socket.socket:
    """A socket that is made inside and served outside: the owner accepts on it. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(_CHANNEL_BACKLOG)
    return listener


def open_writable(plan: dict[str, Any]) -> None:
    """Directories of the root's tmpfs that stay writable when the root is sealed: each is a mount of its own. They
    share the one file system, so the disk limit holds their sum."""
    with step("writable directories"):
        for path, mode in plan["writable"]:
            os.makedirs(f".{path}")
            os.chmod(f".{path}", mode)
            mounts.bind(f".{path}", f".{path}")


def _mount_proc(plan: dict[str, Any]) -> None:
    os.makedirs("./proc", exist_ok=True)
    flags = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    mounts.mount("proc", "./proc", "proc", flags)
    # Not /dev/null: that opens for writing, as if the kernel's file did. The guest owns this one, so it is read-only.
    os.close(os.open("./nothing", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
    nothing = mounts.clone_tree("./nothing", recursive=False)
    mounts.set_attributes(nothing, mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV)
    mounts.attach(nothing, "./nothing")
    os.close(nothing)
    for path in plan["proc_masked_files"]:
        if os.path.exists(f".{path}"):
            mounts.bind("./nothing", f".{path}")
    mounts.detach("./nothing")
    os.unlink("./nothing")
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
