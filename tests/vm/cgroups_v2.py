# SPDX-License-Identifier: MIT
"""Runs inside the virtual machine as root: every claim on cgroup v2, in each situation; prints one line of JSON."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from agentbox.linux.cgroups import CgroupLimits, CgroupTree
from tests.vm import cgroup_claims
from tests.vm.cgroup_claims import CLAIMS

ROOT = Path("/sys/fs/cgroup")
USER = 1000
CLONE_NEWNS, CLONE_NEWCGROUP = 0x00020000, 0x02000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18

MNT_DETACH = 2

Answers = dict[str, str]
Claim = Callable[[CgroupTree], None]

# What depends on where the groups are made; an emulated machine is too slow for everything everywhere.
ESSENTIAL: tuple[Claim, ...] = (
    cgroup_claims.all_controllers_are_usable,
    cgroup_claims.memory_beyond_the_limit_is_killed_and_counted_by_the_kernel,
    cgroup_claims.no_more_processes_than_the_limit_can_exist,
    cgroup_claims.destroying_kills_removes_and_closes_and_may_be_repeated,
    cgroup_claims.what_a_killed_owner_left_is_swept_and_a_living_owner_is_not_touched,
)


def claims(*chosen: Claim) -> Answers:
    """Run the chosen claims, or every one, with one tree; "ok" or the traceback for each."""
    tree = CgroupTree.open()
    if tree is None:
        return {"open": CgroupTree.explain()}
    base = tree._ownership.hierarchies[0].place.base
    answers = {claim.__name__: _answer(lambda claim=claim: claim(tree)) for claim in chosen or CLAIMS}  # type: ignore[misc]
    answers["cost"] = _cost(tree)
    tree.close()
    answers["nothing is left"] = "ok" if not os.path.exists(f"{base}/agentbox") else str(os.listdir(f"{base}/agentbox"))
    answers["base"] = base
    return answers


def as_root() -> Answers:
    """The machine's first processes sit in the real root group."""
    return claims()


def as_user_with_a_delegated_group() -> Answers:
    """A group that belongs to an ordinary user, with that user's process alone in it."""
    _become_user(_delegate("delegated"))
    return claims()


def as_user_below_a_delegated_group() -> Answers:
    """Like a terminal under a user's service manager: others sit in the own group, the one above is the user's too."""
    above = _delegate("manager")
    group = _group(above / "terminal", USER)
    with _sleeper(group):
        _become_user(group)
        return claims(*ESSENTIAL)


def as_root_of_a_container() -> Answers:
    """A cgroup namespace whose root looks like "/" and is none."""
    group = _group(ROOT / "container")
    _enter(group)
    _unshare(CLONE_NEWCGROUP | CLONE_NEWNS)
    # The same file system is refused on the same mount point.
    _call("umount2", str(ROOT).encode(), MNT_DETACH)
    _mount("cgroup2", str(ROOT), "cgroup2", 0)
    return claims(*ESSENTIAL)


def user_without_delegation() -> Answers:
    """An ordinary user in root's group."""
    group = _group(ROOT / "plain")
    _enter(group)
    _become_user(None)
    return _unavailable("not writable")


def others_in_the_group() -> Answers:
    """A delegated group that holds another process, and nothing above it is ours."""
    group = _delegate("shared")
    with _sleeper(group):
        _become_user(group)
        return _unavailable("other process")


def read_only() -> Answers:
    """A container's usual view: the file system cannot be written."""
    _unshare(CLONE_NEWNS)
    _mount("", str(ROOT), "", MS_REMOUNT | MS_BIND | MS_RDONLY)
    return _unavailable("read-only")


SITUATIONS: tuple[Callable[[], Answers], ...] = (
    as_root,
    as_user_with_a_delegated_group,
    as_user_below_a_delegated_group,
    as_root_of_a_container,
    user_without_delegation,
    others_in_the_group,
    read_only,
)


def in_a_child(situation: Callable[[], Answers]) -> Answers:
    """Run a situation in a process of its own: it changes identity, group and namespaces."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answers = situation()
        except BaseException:
            answers = {"situation": traceback.format_exc()}
        os.write(writing, json.dumps(answers).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(text))


def _answer(claim: Callable[[], None]) -> str:
    try:
        claim()
    except BaseException:
        return traceback.format_exc()
    return "ok"


def _cost(tree: CgroupTree) -> str:
    limits, times = CgroupLimits(64 << 20, 32, 1.0), []
    for number in range(30):
        started = time.perf_counter()
        tree.create(f"cost{number}", limits).destroy()
        times.append(time.perf_counter() - started)
    return f"create and destroy: {sorted(times)[15] * 1e6:.0f} us"


def _unavailable(words: str) -> Answers:
    tree, text = CgroupTree.open(), CgroupTree.explain()
    if tree is not None:
        return {"open": f"gave {tree.controllers}"}
    return {"unavailable with a reason": "ok" if words in text and "how to get it" in text else text}


def _group(path: Path, owner: int = 0) -> Path:
    (path.parent / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    path.mkdir()
    if owner:
        for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(path / name, owner, owner)
    return path


def _delegate(name: str) -> Path:
    return _group(ROOT / name, USER)


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text("0")


def _become_user(group: Path | None) -> None:
    if group is not None:
        _enter(group)
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


def _sleeper(group: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, preexec_fn=lambda: _enter(group))
    assert process.stdin is not None
    return process


def _unshare(flags: int) -> None:
    _call("unshare", flags)
    if flags & CLONE_NEWNS:
        _mount("", "/", "", MS_REC | MS_PRIVATE)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def main() -> None:
    """Print {situation: {claim: answer}}."""
    chosen = sys.argv[1:]
    report = {
        situation.__name__: in_a_child(situation)
        for situation in SITUATIONS
        if not chosen or situation.__name__ in chosen
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
