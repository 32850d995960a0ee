# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentbox.errors import InvalidRequestError, WorkspaceError
from agentbox.workspace.placing import place_files
from agentbox.workspace.tree import Tree


def test_files_are_written_whole_below_new_directories_whatever_the_umask(tree: Tree, place: Path) -> None:
    before = os.umask(0o077)
    try:
        place_files(tree, {"a/b/c.bin": bytes(range(256)) * 5000, "top": b"", "a/é": b"2"})
    finally:
        os.umask(before)
    assert (place / "a/b/c.bin").read_bytes() == bytes(range(256)) * 5000
    assert (place / "top").read_bytes() == b""
    assert (place / "a/é").read_bytes() == b"2"
    assert stat.S_IMODE((place / "top").stat().st_mode) == 0o644
    assert stat.S_IMODE((place / "a/b").stat().st_mode) == 0o755


def test_an_existing_file_is_replaced_and_its_other_hard_links_keep_their_content(tree: Tree, place: Path) -> None:
    (place / "a").write_text("old")
    (place / "a").chmod(0o400)
    os.link(place / "a", place / "b")
    place_files(tree, {"a": b"new"})
    assert (place / "a").read_text() == "new"
    assert (place / "b").read_text() == "old"
    assert stat.S_IMODE((place / "a").stat().st_mode) == 0o644


@pytest.mark.parametrize("path", ["link/x", "dangling/x", "file/x", "flink", "dir", "dir/up/x", "dangling"])
def test_a_component_that_is_a_link_or_no_directory_is_refused(
    tree: Tree, place: Path, tmp_path: Path, path: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    (place / "link").symlink_to(outside)
    (place / "flink").symlink_to(outside / "secret")
    (place / "dangling").symlink_to(outside / "new")
    (place / "file").write_text("f")
    (place / "dir").mkdir()
    (place / "dir/up").symlink_to("..")
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        place_files(tree, {path: b"planted"})
    assert [(p.name, p.read_text()) for p in outside.iterdir()] == [("secret", "s")]
    assert (place / "file").read_text() == "f"


def test_two_files_in_each_others_way_are_refused(tree: Tree) -> None:
    with pytest.raises(InvalidRequestError):
        place_files(tree, {"a": b"", "a/b": b""})
    with pytest.raises(InvalidRequestError):
        place_files(tree, {"c/d": b"", "c": b""})


def test_nothing_is_written_when_one_path_is_bad(tree: Tree, place: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"\.\./evil"):
        place_files(tree, {"good": b"1", "../evil": b"2"})
    assert list(place.iterdir()) == []


def test_a_full_disk_names_the_file_and_the_limit_and_leaves_no_half_file(small_disk: Path) -> None:
    fd = os.open(small_disk, os.O_RDONLY)
    try:
        with pytest.raises(WorkspaceError, match=r"data/big\.bin") as caught:
            place_files(Tree(fd), {"data/big.bin": b"x" * (2 << 20)})
    finally:
        os.close(fd)
    assert "limits.disk_mb" in caught.value.hint
    assert list((small_disk / "data").iterdir()) == []


def test_no_descriptor_is_left_open(tree: Tree) -> None:
    before = len(os.listdir("/proc/self/fd"))
    place_files(tree, {f"d{n}/e/f": b"" for n in range(50)})
    with pytest.raises(InvalidRequestError):
        place_files(tree, {"d1/e": b"", "x/y/z": b""})
    assert len(os.listdir("/proc/self/fd")) == before
