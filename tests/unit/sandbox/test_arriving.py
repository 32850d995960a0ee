# SPDX-License-Identifier: MIT
"""A file that the host writes into a workspace itself goes nowhere that the guest could not write."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentbox.sandbox.arriving import ArrivingFile, parts_inside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="O_TMPFILE is Linux's")


def arrived(workspace: Path, path: str, content: bytes, mode: int | None = None) -> None:
    file = ArrivingFile.open(workspace, path.split("/"), mode)
    assert file is not None
    try:
        os.write(file.fd, content)
        file.commit()
    finally:
        file.close()


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/work/a/b", ["a", "b"]),
        ("/root/a", ["a"]),
        ("/work", None),
        ("/tmp/a", None),
        ("/work/../etc/a", None),
        ("/worker/a", None),
        ("/work//a", None),
    ],
)
def test_only_names_below_the_workspace_are_taken(path: str, parts: list[str] | None) -> None:
    assert parts_inside(path) == parts


def test_file_takes_its_name_whole_with_parents_and_mode(tmp_path: Path) -> None:
    arrived(tmp_path, "a/b/c", b"new", 0o750)
    target = tmp_path / "a/b/c"
    assert (target.read_bytes(), target.stat().st_mode & 0o7777) == (b"new", 0o750)
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o755


def test_file_that_exists_keeps_its_mode_and_its_other_names_their_content(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "f").chmod(0o640)
    os.link(tmp_path / "f", tmp_path / "other")
    arrived(tmp_path, "f", b"new")
    assert ((tmp_path / "f").read_bytes(), (tmp_path / "other").read_bytes()) == (b"new", b"old")
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["f", "other"]


def test_file_that_is_given_up_was_never_there(tmp_path: Path) -> None:
    file = ArrivingFile.open(tmp_path, ["f"], None)
    assert file is not None
    os.write(file.fd, b"half")
    assert os.listdir(tmp_path) == []
    file.close()
    assert os.listdir(tmp_path) == []


def test_links_and_what_is_no_file_are_left_to_the_agent(tmp_path: Path) -> None:
    (outside := tmp_path / "outside").mkdir()
    (work := tmp_path / "work").mkdir()
    (work / "directory").symlink_to(outside)
    (work / "link").symlink_to(outside / "f")
    (work / "d").mkdir()
    os.mkfifo(work / "fifo")
    for path in ("directory/f", "link", "d", "fifo", "fifo/f"):
        assert ArrivingFile.open(work, path.split("/"), None) is None
    assert os.listdir(outside) == []


def test_what_the_guest_may_not_write_is_left_to_the_agent(tmp_path: Path) -> None:
    (tmp_path / "read-only").mkdir(mode=0o555)
    (tmp_path / "closed").mkdir(mode=0o600)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "file").chmod(0o444)
    for path in ("read-only/f", "read-only/new/f", "closed/f", "file"):
        assert ArrivingFile.open(tmp_path, path.split("/"), None) is None


def test_link_that_takes_the_place_of_the_file_meanwhile_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (outside := tmp_path / "outside").write_bytes(b"host")
    (work := tmp_path / "work").mkdir()
    file = ArrivingFile.open(work, ["f"], None)
    assert file is not None
    (work / "f").symlink_to(outside)
    os.write(file.fd, b"new")
    file.commit()
    file.close()
    assert (outside.read_bytes(), (work / "f").read_bytes(), (work / "f").is_symlink()) == (b"host", b"new", False)
