# SPDX-License-Identifier: MIT
"""The tree of a box: a file system mounted in a user namespace, which knows the guest's uid and no other."""

from __future__ import annotations

import array
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbox.errors import InvalidRequestError, WorkspaceError
from agentbox.workspace.collecting import collect_files
from agentbox.workspace.placing import place_files
from agentbox.workspace.removal import remove_tree
from agentbox.workspace.snapshots import SnapshotStore
from agentbox.workspace.tree import Tree
from tests.conftest import not_here

GUEST = 654321

# As the guest: a user and a mount namespace, a small disk in it, its descriptor sent out, and its files left behind.
_MOUNTS = """
import array, ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
guest, channel = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
os.setgroups([]); os.setresgid(guest, guest, guest); os.setresuid(guest, guest, guest)
call("unshare", 0x10000000 | 0x00020000)
# A process that changed its uid is not dumpable, so that its maps belong to root; the host writes them.
channel.send(b"m"); channel.recv(1)
call("mount", b"none", b"/", None, (1 << 14) | (1 << 18), None)
call("mount", b"tmpfs", b"/mnt", b"tmpfs", 0, b"size=2m,mode=0755")
fd = os.open("/mnt", os.O_RDONLY)
for name in ("work", "other"):
    os.mkdir(name, 0o755, dir_fd=fd)
work = os.open("work", os.O_RDONLY, dir_fd=fd)
channel.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd, work]))])
channel.recv(1)
"""


@pytest.fixture
def box() -> Iterator[tuple[int, Tree]]:
    """The disk, and the tree in it."""
    if os.geteuid() != 0:
        not_here("only root may map another uid")
    here, there = socket.socketpair()
    with here, there:
        child = subprocess.Popen(
            [sys.executable, "-c", _MOUNTS, str(GUEST), str(there.fileno())], pass_fds=[there.fileno()]
        )
        there.close()
        here.settimeout(30)
        assert here.recv(1) == b"m"
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child.pid}/{name}").write_text(f"0 {GUEST} 1")
        here.send(b"g")
        _, ancillary, _, _ = here.recvmsg(1, 64)
        descriptors = array.array("i", ancillary[0][2])
        yield descriptors[0], Tree(descriptors[1], GUEST, GUEST)
        for fd in descriptors:
            os.close(fd)
        here.close()
        child.wait(30)


def test_files_are_placed_and_collected_as_the_guest(box: tuple[int, Tree]) -> None:
    _, tree = box
    place_files(tree, {"data/in.csv": b"1,2", "top": b"t"})
    status = os.stat("data/in.csv", dir_fd=tree.fd)
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (GUEST, GUEST, 0o644)
    files, warnings = collect_files(tree, ["**"], 1000, 1000)
    assert (files, warnings) == ({"data/in.csv": b"1,2", "top": b"t"}, [])
    with pytest.raises(InvalidRequestError):
        place_files(tree, {"top/x": b""})
    with pytest.raises(WorkspaceError) as caught:
        place_files(tree, {"big": b"x" * (3 << 20)})
    assert "limits.disk_mb" in caught.value.hint
    assert os.geteuid() == 0
    assert Path("/etc/shadow").read_bytes()


def test_a_snapshot_comes_back_though_its_owner_closed_everything(box: tuple[int, Tree], tmp_path: Path) -> None:
    disk, tree = box
    place_files(tree, {"shut/f": b"1", "shut/deep/g": b"2", "open": b"3"})
    for path, mode in (("shut/f", 0), ("shut/deep", 0o111), ("shut", 0), ("open", 0o200)):
        os.chmod(path, mode, dir_fd=tree.fd)
    os.fchmod(tree.fd, 0)
    files, warnings = collect_files(tree, ["**"], 1000, 1000)
    assert files == {"open": b"3", "shut/f": b"1", "shut/deep/g": b"2"}
    store = SnapshotStore(tmp_path / "snapshots", max_bytes=1 << 20, quota_bytes=1 << 20, ttl_seconds=0)
    info = store.save("default", tree)
    assert (info.entries, info.warnings, warnings) == (5, (), [])
    assert stat.S_IMODE(os.fstat(tree.fd).st_mode) == 0
    other = os.open("other", os.O_RDONLY, dir_fd=disk)
    try:
        assert store.restore("default", info.snapshot_id, Tree(other, GUEST, GUEST)) == ()
        for name in ("shut", "shut/f", "shut/deep", "shut/deep/g", "open"):
            first, second = os.stat(name, dir_fd=tree.fd), os.stat(name, dir_fd=other)
            assert (second.st_mode, second.st_uid, second.st_mtime_ns) == (first.st_mode, GUEST, first.st_mtime_ns)
        again = collect_files(Tree(other, GUEST, GUEST), ["**"], 1000, 1000)[0]
        assert again == files
    finally:
        os.close(other)
    remove_tree(disk, "work")
    assert os.listdir(disk) == ["other"]
