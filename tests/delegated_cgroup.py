# SPDX-License-Identifier: MIT
"""Control groups of this host, given to an ordinary user, so that a server of that user can hold limits by them."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from agentbox.linux.cgroup_owners import remove
from agentbox.linux.cgroupfs import CONTROLLERS, memberships, mounts, own_directory, why_not_writable

_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"'


@contextlib.contextmanager
def delegated_cgroup(uid: int) -> Iterator[tuple[str, ...]]:
    """The start of a command line that runs a program inside groups which belong to `uid`. Needs root.

    Empty where this host lets not even root make groups that hold memory, pids and cpu.
    """
    made: list[Path] = []
    try:
        with contextlib.suppress(OSError):
            made = _make(f"agentbox-test-{secrets.token_hex(4)}", uid)
        yield ("sh", "-c", _JOIN, "join", *map(str, made), "--") if made else ()
    finally:
        for directory in made:
            # The server is gone; an empty group of its own directory may be left when it was killed.
            for group in sorted(directory.rglob("*"), reverse=True):
                if group.is_dir():
                    remove([(None, str(group))], str(group))
            remove([(None, str(directory))], str(directory))


def _make(name: str, uid: int) -> list[Path]:
    paths, made, held = memberships(), [], set[str]()
    for mount in mounts():
        wanted = mount.controllers & {*CONTROLLERS, "cpuacct"}
        if mount.kind != "cgroup" or not wanted - held:
            continue
        parent = own_directory(mount, paths.get(min(wanted), "/")) or mount.point
        if why_not_writable(parent) is not None:
            continue
        made.append(_give(Path(parent) / name, uid))
        held |= wanted
    if not held:
        made, held = _make_unified(name, uid)
    if not held >= set(CONTROLLERS):
        for directory in made:
            directory.rmdir()
        return []
    return made


def _make_unified(name: str, uid: int) -> tuple[list[Path], set[str]]:
    """Version 2: only below a group that holds no processes itself, or the root of the hierarchy."""
    for mount in mounts():
        if mount.kind == "cgroup2" and why_not_writable(mount.point) is None:
            top = Path(mount.point)
            offered = set((top / "cgroup.controllers").read_text().split()) & set(CONTROLLERS)
            with contextlib.suppress(OSError):
                (top / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in sorted(offered)))
                return [_give(top / name, uid)], offered
    return [], set()


def _give(directory: Path, uid: int) -> Path:
    directory.mkdir()
    os.chown(directory, uid, uid)
    for file in directory.iterdir():
        # The limits stay root's: what is delegated is the making of groups, not the lifting of the bound.
        if file.name in {"cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks"}:
            os.chown(file, uid, uid)
    return directory
