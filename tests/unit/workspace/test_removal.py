# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbox.errors import WorkspaceError
from agentbox.workspace.removal import remove_tree


@pytest.fixture
def remove(tmp_path: Path) -> Callable[[str], None]:
    def call(name: str) -> None:
        fd = os.open(tmp_path, os.O_RDONLY)
        before = len(os.listdir("/proc/self/fd"))
        try:
            remove_tree(fd, name)
        finally:
            assert len(os.listdir("/proc/self/fd")) == before
            os.close(fd)

    return call


def test_removes_a_tree_of_3000_levels(tmp_path: Path, remove: Callable[[str], None]) -> None:
    (tmp_path / "t").mkdir()
    fd = os.open(tmp_path / "t", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    remove("t")
    assert list(tmp_path.iterdir()) == []


def test_removes_20000_files(tmp_path: Path, remove: Callable[[str], None]) -> None:
    (tmp_path / "t").mkdir()
    for n in range(20_000):
        os.close(os.open(tmp_path / "t" / str(n), os.O_CREAT | os.O_WRONLY))
    remove("t")
    assert list(tmp_path.iterdir()) == []


def test_removes_2000_directories_side_by_side(tmp_path: Path, remove: Callable[[str], None]) -> None:
    for n in range(2000):
        (tmp_path / "t" / str(n)).mkdir(parents=True)
    remove("t")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", [b"a\nb", b"-rf", b" ", b"bad-\xff\xfe", b"\xed\xa0\x80", b"*", b"\x1b[31m", b"x" * 255, b"\\"]
)
def test_removes_odd_names(tmp_path: Path, remove: Callable[[str], None], name: bytes) -> None:
    odd = os.fsdecode(name)
    (tmp_path / odd / odd).mkdir(parents=True)
    (tmp_path / odd / odd / odd).write_text("x")
    remove(odd)
    assert list(tmp_path.iterdir()) == []


def test_removes_links_and_never_what_they_point_to(tmp_path: Path, remove: Callable[[str], None]) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").write_text("k")
    (tmp_path / "t/in").mkdir(parents=True)
    (tmp_path / "t/in/dir").symlink_to(keep)
    (tmp_path / "t/in/up").symlink_to("../..")
    (tmp_path / "t/file").symlink_to(keep / "file")
    (tmp_path / "link").symlink_to(keep)
    remove("t")
    remove("link")
    assert (keep / "file").read_text() == "k"
    assert os.listdir(tmp_path) == ["keep"]


def test_a_single_file_and_a_name_that_is_not_there_are_no_error(tmp_path: Path, remove: Callable[[str], None]) -> None:
    (tmp_path / "f").write_text("x")
    remove("f")
    remove("f")
    assert list(tmp_path.iterdir()) == []


def test_an_ordinary_user_removes_directories_without_permissions(tmp_path: Path) -> None:
    for mode in (0o000, 0o111, 0o444, 0o555, 0o600):
        path = tmp_path / "t" / f"{mode:o}" / "inner"
        path.mkdir(parents=True)
        (path / "f").write_text("x")
        path.chmod(mode)
        path.parent.chmod(mode)
    (tmp_path / "t").chmod(0o500)
    if os.geteuid() == 0:
        # The owner of the files, without root's way around permissions, in a process of its own.
        for directory, names, files in os.walk(tmp_path):
            for name in [".", *names, *files]:
                os.chown(os.path.join(directory, name), 54321, 54321)
        for above in tmp_path.parents[:2]:
            above.chmod(0o755)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                fd = os.open(tmp_path, os.O_RDONLY)
                os.setgroups([])
                os.setresgid(54321, 54321, 54321)
                os.setresuid(54321, 54321, 54321)
                remove_tree(fd, "t")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    else:
        fd = os.open(tmp_path, os.O_RDONLY)
        remove_tree(fd, "t")
        os.close(fd)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_reported_after_the_rest_is_gone(
    tmp_path: Path, remove: Callable[[str], None], small_disk: Path
) -> None:
    stuck = tmp_path / "t" / "m" / "stuck"
    stuck.mkdir(parents=True)
    for name in ("a", "m/b", "z"):
        (tmp_path / "t" / name).write_text("x")
    (small_disk / "precious").write_text("p")
    subprocess.run(["mount", "--bind", str(small_disk), str(stuck)], check=True)
    try:
        with pytest.raises(WorkspaceError, match="stuck"):
            remove("t")
    finally:
        subprocess.run(["umount", str(stuck)], check=True)
    assert (small_disk / "precious").read_text() == "p"
    left = [p.relative_to(tmp_path / "t").as_posix() for p in (tmp_path / "t").rglob("*")]
    assert left == ["m", "m/stuck"]
    remove("t")
    assert not (tmp_path / "t").exists()


def test_a_directory_that_moves_away_meanwhile_leads_nowhere_else(
    tmp_path: Path, remove: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t/a/b").mkdir(parents=True)
    (tmp_path / "t/a/b/f").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/precious").write_text("p")
    (tmp_path / "other/empty").mkdir()
    unlink = os.unlink

    def moving(path: str, **arguments: int) -> None:
        if path == "f" and (tmp_path / "t/a/b").exists():
            os.rename(tmp_path / "t/a/b", tmp_path / "other/b")
        unlink(path, **arguments)

    monkeypatch.setattr(os, "unlink", moving)
    remove("t")
    assert not (tmp_path / "t").exists()
    assert sorted(os.listdir(tmp_path / "other")) == ["b", "empty", "precious"]
