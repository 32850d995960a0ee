# SPDX-License-Identifier: MIT
"""What a box shows of its workspace when a policy grants less than all of it.

The owner fills the workspace first, so that what the rules name exists; nothing runs meanwhile. Then this process,
which still has its mount privileges, covers it. The owner keeps a descriptor of a mount that is not in the box: no
cover is in its way.
"""

from __future__ import annotations

import os
import stat

from agentbox.isolation.launcher import wire
from agentbox.isolation.launcher.steps import StepError, step
from agentbox.linux import mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.light import socket

_READ_ONLY = mounts.ATTR_RDONLY | mounts.ATTR_NOSUID | mounts.ATTR_NODEV
_WRITABLE = mounts.ATTR_NOSUID | mounts.ATTR_NODEV
_SKELETON_BYTES = 16 << 20
_INODES_FOR_EACH = 64


def stage(workspace: str, sock: socket.socket) -> None:
    """Let the owner fill the workspace, then show what it says. The root of the box is the current directory."""
    with step("lend workspace"):
        whole = mounts.clone_tree(f".{workspace}", recursive=False)
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=whole)
    wire.send(sock, {"staged": True}, [directory])
    os.close(directory)
    receiver = wire.Receiver(sock)
    while (taken := receiver.take()) is None:
        if not receiver.fill():
            raise StepError("wait for the owner", OSError(0, "the owner is gone"))
    with step("show workspace"):
        _show(workspace, taken[0]["view"])
    for path, text in taken[0]["view"]["files"]:
        with step(f"write {path}"):
            write_file(path, text.encode())
    os.close(whole)


def _show(workspace: str, view: dict[str, Any]) -> None:
    shown: dict[str, bool] = dict(view["shown"])
    trees = {}
    for path, writable in shown.items():
        if path != workspace:
            trees[path] = mounts.clone_tree(f".{path}", recursive=False)
            mounts.set_attributes(trees[path], _WRITABLE if writable else _READ_ONLY)
    if workspace in shown:
        top = os.open(f".{workspace}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        options = {
            "size": str(_SKELETON_BYTES),
            "nr_inodes": str(_INODES_FOR_EACH * (len(shown) + 1)),
            "mode": "0755",
        }
        top = mounts.new_filesystem("tmpfs", _WRITABLE, **options)
        mounts.attach(top, f".{workspace}")
    for path, tree in trees.items():
        make_mount_point(f".{path}", tree)
        mounts.attach(tree, f".{path}")
        os.close(tree)
    if not shown.get(workspace, False):
        mounts.set_attributes(top, _READ_ONLY, recursive=False)
    os.close(top)
    for path in view["read_only"]:
        if os.path.exists(f".{path}"):
            # With what is mounted below: a denial wins over grants there.
            tree = mounts.clone_tree(f".{path}")
            mounts.set_attributes(tree, _READ_ONLY)
            mounts.attach(tree, f".{path}")
            os.close(tree)
    hide(view["hidden"])


def hide(paths: list[str]) -> None:
    """Cover what is shown and denied: a directory with an empty one, all else with a file that opens for nobody."""
    covered = [path for path in paths if os.path.lexists(f".{path}")]
    if not covered:
        return
    os.mkdir("./hidden", 0o700)
    os.mkdir("./hidden/directory", 0)
    os.close(os.open("./hidden/file", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0))
    for path in covered:
        try:
            mode = os.lstat(f".{path}").st_mode
        except OSError:
            # Below one that is covered already.
            continue
        cover = "directory" if stat.S_ISDIR(mode) else "file"
        tree = mounts.clone_tree(f"./hidden/{cover}", recursive=False)
        mounts.set_attributes(tree, _READ_ONLY, recursive=False)
        mounts.attach(tree, f".{path}")
        os.close(tree)
    os.unlink("./hidden/file")
    os.rmdir("./hidden/directory")
    os.rmdir("./hidden")


def write_file(path: str, content: bytes) -> None:
    """A new file of the box that everybody in it may read."""
    os.makedirs(os.path.dirname(f".{path}"), exist_ok=True)
    fd = os.open(f".{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def make_mount_point(path: str, tree: int) -> None:
    """An empty directory or file for a detached mount to be attached at, where there is none yet."""
    if os.path.isdir(f"/proc/self/fd/{tree}"):
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
