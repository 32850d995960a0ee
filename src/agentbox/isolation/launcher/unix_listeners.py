# SPDX-License-Identifier: MIT
"""UNIX sockets at paths that the guest knows, made inside the box and served by its owner outside."""

from __future__ import annotations

import errno
import os
import stat

from agentbox.isolation.launcher import wire
from agentbox.isolation.launcher.steps import step
from agentbox.light import socket
from agentbox.linux import mounts

_BACKLOG = 256
_MAX_PATH_BYTES = 107
_SCRATCH = "/.listener"


def open_at(path: str, owner: socket.socket) -> None:
    """Listen at an absolute path of the box, and send the listener to the owner.

    The box's root is this process's root by now, and not sealed yet, so a link of the guest's project leads to where it
    leads inside. A socket that a grant shows there, the host's own, is covered by this one. Nothing is ever made on the
    host's disk. Raises StepError.
    """
    with step(f"listen at {path}"):
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"a socket's path has at most {_MAX_PATH_BYTES} bytes")
        listener = _covering(path) if os.path.exists(path) else _new(path)
    wire.send(owner, {"listening": path}, [listener.fileno()])
    listener.close()


def _covering(path: str) -> socket.socket:
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise OSError(errno.EEXIST, "the box shows something else there; only a socket can be replaced by a listener")
    listener = _listen(_SCRATCH)
    tree = mounts.clone_tree(_SCRATCH, recursive=False)
    mounts.attach(tree, os.path.realpath(path))
    os.close(tree)
    os.unlink(_SCRATCH)
    return listener


def _new(path: str) -> socket.socket:
    directory = os.path.dirname(path)
    there = directory
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if os.stat(there).st_dev != os.stat("/").st_dev:
        raise OSError(
            errno.EROFS,
            f"{there} is the host's, and no socket is there that the listener could cover; start the service first, or "
            "grant less than that directory",
        )
    os.makedirs(directory, exist_ok=True)
    return _listen(path)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(_BACKLOG)
    return listener
