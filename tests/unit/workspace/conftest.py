# SPDX-License-Identifier: MIT
"""Trees on plain directories, and small disks that fill up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbox.workspace.removal import remove_tree
from agentbox.workspace.tree import Tree
from tests.conftest import not_here


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The directory of `tree`. Removed here: the standard library, which clears up after tests, cannot remove a tree of
    any depth."""
    path = tmp_path / "tree"
    path.mkdir()
    yield path
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        remove_tree(parent, path.name)
    finally:
        os.close(parent)


@pytest.fixture
def tree(place: Path) -> Iterator[Tree]:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    yield Tree(fd)
    os.close(fd)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of one megabyte."""
    if os.geteuid() != 0:
        not_here("only root may mount a small disk")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
