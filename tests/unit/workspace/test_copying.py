# SPDX-License-Identifier: MIT
"""Copies of guests' trees."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agentbox.workspace.copying import copy_tree
from tests.state_cycles import tree_of

DEPTH = 300


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    return made


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "target"
    made.mkdir()
    return made


def test_files_links_modes_times_and_names_are_the_same(source: Path, target: Path) -> None:
    (source / "caf\udce9").write_bytes(b"x" * 100_000)
    (source / "closed").mkdir()
    (source / "closed" / "file").write_text("inside")
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    os.symlink("/etc/passwd", source / "out")
    os.mkfifo(source / "pipe", 0o640)
    os.utime(source / "run", ns=(10**18, 10**18 + 7))
    (source / "closed").chmod(0o500)
    size = copy_tree(source, target)
    assert size == 100_000 + len("inside") + len("#!/bin/sh\n")
    assert tree_of(str(target)) == tree_of(str(source))
    assert (target / "run").stat().st_mtime_ns == 10**18 + 7
    assert (target / "closed").stat().st_mode & 0o777 == 0o500
    assert (target / "pipe").is_fifo()


def test_names_of_one_file_stay_names_of_one_file(source: Path, target: Path) -> None:
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "first").write_text("one")
    os.link(source / "a" / "b" / "first", source / "second")
    copy_tree(source, target)
    (target / "second").write_text("both")
    assert (target / "a" / "b" / "first").read_text() == "both"
    assert (source / "second").read_text() == "one"


def test_holes_stay_holes(source: Path, target: Path) -> None:
    with open(source / "sparse", "wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"here")
    copy_tree(source, target)
    copied = (target / "sparse").stat()
    assert copied.st_size == 1 << 30
    assert copied.st_blocks * 512 < 1 << 20
    with open(target / "sparse", "rb") as file:
        file.seek(1 << 29)
        assert file.read(4) == b"here"


def test_trees_deeper_than_any_path_are_copied(source: Path, target: Path) -> None:
    os.chdir(source)
    try:
        for _ in range(DEPTH):
            os.mkdir("d" * 50)
            os.chdir("d" * 50)
        Path("last").write_text("deep")
    finally:
        os.chdir("/")
    told: list[int] = []
    assert copy_tree(source, target, told.append) == len("deep")
    assert told == [len("deep")]


def test_sockets_are_left_out(source: Path, target: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "listening"))
    (source / "file").write_text("x")
    copy_tree(source, target)
    assert sorted(os.listdir(target)) == ["file"]


def test_directory_that_is_a_link_by_now_is_not_followed(source: Path, target: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (source / "z").mkdir()
    (source / "first").write_text("x")

    def swap(_: int) -> None:
        (source / "z").rmdir()
        os.symlink(outside, source / "z")

    copy_tree(source, target, swap)
    assert not (target / "z").is_dir() or (target / "z").is_symlink()
