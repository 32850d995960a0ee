# SPDX-License-Identifier: MIT
"""Workspaces in an image and in directories, as sandboxes use them."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentbox.errors import NotFoundError, WorkspaceError
from agentbox.linux import loop_devices, mounts
from agentbox.workspace import volume_image, volumes
from agentbox.workspace.volumes import Volumes, close_volumes, open_volumes
from tests.conftest import not_here
from tests.state_cycles import tree_of

MIB = 1 << 20
Opened = Callable[..., Volumes]


def need_images() -> None:
    """Skip where no image can be mounted."""
    lacking = volume_image.why_not()
    if os.geteuid() != 0:
        not_here(lacking)
    if lacking:
        pytest.skip(f"{lacking}; `make test` installs what can be installed")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Volumes of the test's state directory, closed in the end."""
    count = 0

    def open_them(choice: str = "image", size_mb: int = 512) -> Volumes:
        nonlocal count
        if choice == "image":
            need_images()
        count += 1
        return open_volumes(tmp_path, choice, size_mb * MIB)

    yield open_them
    for _ in range(count):
        close_volumes(tmp_path)


def fill(path: Path, size: int) -> int:
    """Write until it is refused; the number of the error."""
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno or -1
    return 0


@pytest.mark.parametrize("choice", ["image", "directories"])
def test_snapshot_restore_and_copy_keep_every_file_and_share_no_change(opened: Opened, choice: str) -> None:
    made = opened(choice)
    workspace = made.new("one", 64 * MIB)
    (workspace.path / "sub").mkdir()
    (workspace.path / "sub" / "file").write_bytes(b"1" * 100_000)
    os.symlink("/etc/passwd", workspace.path / "out")
    before = tree_of(str(workspace.path))
    taken = made.snapshots.take(workspace.path, workspace.key, name="before")
    copied = made.new("two", 64 * MIB, made.park(workspace.path, 64 * MIB))
    (workspace.path / "sub" / "file").write_bytes(b"2")
    (workspace.path / "new").write_text("new")
    assert tree_of(str(copied.path)) == before
    made.restore(workspace, taken.snapshot_id, 64 * MIB)
    assert tree_of(str(workspace.path)) == before
    begun = made.new("three", 64 * MIB, made.park_snapshot(taken.snapshot_id, 64 * MIB))
    assert tree_of(str(begun.path)) == before
    assert [info.name for info in made.snapshots.list(workspace.key)] == ["before"]
    assert taken.size_bytes >= 100_000
    made.snapshots.delete(taken.snapshot_id)
    with pytest.raises(NotFoundError):
        made.restore(workspace, taken.snapshot_id, 64 * MIB)
    assert tree_of(str(workspace.path)) == before


@pytest.mark.parametrize("choice", ["image", "directories"])
def test_snapshots_that_are_not_kept_go_with_their_workspace(opened: Opened, choice: str) -> None:
    made = opened(choice)
    workspace = made.new("one", 64 * MIB)
    kept = made.snapshots.take(workspace.path, workspace.key, kept=True)
    made.snapshots.take(workspace.path, workspace.key, kept=False)
    made.remove(workspace)
    assert [info.snapshot_id for info in made.snapshots.list()] == [kept.snapshot_id]
    assert made.snapshots.expire(3600) == 0
    assert made.snapshots.expire(1e-9) == 1


def test_full_workspace_is_refused_more_gives_room_back_and_disturbs_no_other(opened: Opened) -> None:
    made = opened()
    small, other = made.new("small", 16 * MIB), made.new("other", 64 * MIB)
    assert fill(small.path / "big", 100 * MIB) == errno.EDQUOT
    assert fill(other.path / "fine", 32 * MIB) == 0
    taken = made.snapshots.take(small.path, small.key)
    (small.path / "big").unlink()
    # What a snapshot holds on to is not the workspace's any more.
    assert fill(small.path / "again", 8 * MIB) == 0
    fork = made.new("fork", 16 * MIB, made.park_snapshot(taken.snapshot_id, 16 * MIB))
    assert fill(fork.path / "more", 8 * MIB) == errno.EDQUOT
    (fork.path / "big").unlink()
    assert fill(fork.path / "more", 8 * MIB) == 0


def test_full_image_is_told_and_can_be_emptied(opened: Opened) -> None:
    made = opened(size_mb=256)
    one, other = made.new("one", 4096 * MIB), made.new("other", 4096 * MIB)
    assert fill(one.path / "big", 1024 * MIB) == errno.ENOSPC
    assert fill(other.path / "none", 64 * MIB) == errno.ENOSPC
    assert not os.statvfs(one.path).f_flag & os.ST_RDONLY
    with contextlib.suppress(WorkspaceError):
        # There may be room for so little as that; if not, it is an error that says what to do.
        made.snapshots.take(other.path, other.key)
    (one.path / "big").unlink()
    made.remove(other)
    assert fill(one.path / "again", 16 * MIB) == 0
    assert made.new("third", 16 * MIB).path.is_dir()


def test_image_grows_to_the_size_that_is_set_and_keeps_what_it_holds(opened: Opened, tmp_path: Path) -> None:
    made = opened(size_mb=256)
    (made.named("kept", 64 * MIB).path / "file").write_text("here")
    close_volumes(tmp_path)
    assert mounts.below(str(tmp_path)) == []
    assert loop_devices.of_file(str(tmp_path / "volumes" / "image")) is None
    again = open_volumes(tmp_path, "image", 600 * MIB)
    assert (again.named("kept", 64 * MIB).path / "file").read_text() == "here"
    space = os.statvfs(again.named("kept", 64 * MIB).path)
    assert space.f_blocks * space.f_frsize == 600 * MIB


def test_image_that_a_killed_process_left_mounted_is_used_on(opened: Opened, tmp_path: Path) -> None:
    need_images()
    left = (
        "import os, signal, sys; from pathlib import Path\n"
        "from agentbox.workspace.volumes import open_volumes\n"
        "made = open_volumes(Path(sys.argv[1]), 'image', 256 << 20)\n"
        "live = made.new('mine', 16 << 20); (live.path / 'file').write_text('lost')\n"
        "made.snapshots.take(live.path, live.key, kept=False)\n"
        "made.park(live.path, 16 << 20)\n"
        "(made.named('kept', 16 << 20).path / 'file').write_text('here')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", left, str(tmp_path)], check=False, timeout=60)
    assert str(tmp_path / "volumes" / "mounted") in mounts.below(str(tmp_path))
    made = opened()
    assert (made.named("kept", 16 * MIB).path / "file").read_text() == "here"
    assert "mine" in made.sweep()
    assert list((tmp_path / "volumes" / "mounted" / "live").iterdir()) == []
    assert made.snapshots.list() == []


def test_image_stays_mounted_while_another_process_uses_it(opened: Opened, tmp_path: Path) -> None:
    need_images()
    program = (
        "import sys; from pathlib import Path\n"
        "from agentbox.workspace.volumes import close_volumes, open_volumes\n"
        "open_volumes(Path(sys.argv[1]), 'image', 256 << 20).new('other', 1 << 24)\n"
        "print('open', flush=True); sys.stdin.read(); close_volumes(Path(sys.argv[1]))"
    )
    made = opened()
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        made.new("mine", 16 * MIB)
        open_volumes(tmp_path, "image", 0)
        close_volumes(tmp_path)
        assert mounts.below(str(tmp_path))
    finally:
        other.communicate(timeout=60)
    assert mounts.below(str(tmp_path))


def test_workspace_in_an_image_that_cannot_be_mounted_does_not_seem_to_be_empty(opened: Opened, tmp_path: Path) -> None:
    opened(size_mb=256).named("kept", 16 * MIB)
    close_volumes(tmp_path)
    made = open_volumes(tmp_path, "directories", 0)
    with pytest.raises(WorkspaceError, match="lies in the image"):
        made.named("kept", 16 * MIB)
    assert made.named("another", 16 * MIB).path.is_dir()
    assert not made.held


def test_workspace_that_lay_in_a_directory_stays_there_and_says_that_nothing_holds_it(
    opened: Opened, tmp_path: Path
) -> None:
    (tmp_path / "workspaces" / "old").mkdir(parents=True)
    (tmp_path / "workspaces" / "old" / "file").write_text("here")
    made = opened()
    old = made.named("old", 16 * MIB)
    assert (old.path, old.held) == (tmp_path / "workspaces" / "old", False)
    taken = made.snapshots.take(old.path, old.key)
    (old.path / "file").write_text("changed")
    made.restore(old, taken.snapshot_id, 16 * MIB)
    assert (old.path / "file").read_text() == "here"


def test_what_a_restore_that_was_cut_off_left_is_removed(opened: Opened, tmp_path: Path) -> None:
    made = opened("directories")
    kept = made.named("kept", 0)
    dead = kept.path.with_name(f".new.{dead_owner()}.new.0011")
    dead.mkdir()
    (dead / "file").write_text("x")
    made.sweep()
    assert sorted(os.listdir(kept.path.parent)) == ["kept"]


def dead_owner() -> str:
    """The name of an owner that has ended."""
    done = subprocess.run(
        [sys.executable, "-c", "from agentbox.linux.cgroup_owners import owner_name; print(owner_name())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_image_that_was_asked_for_and_cannot_be_had_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume_image, "mkfs", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(WorkspaceError, match=r"mkfs\.btrfs is not installed|no loop devices"):
        open_volumes(tmp_path, "image", 0)
    made = open_volumes(tmp_path, "auto", 0)
    try:
        assert not made.held
        assert made.lacking
    finally:
        close_volumes(tmp_path)
    assert str(tmp_path) not in volumes._OPENED
