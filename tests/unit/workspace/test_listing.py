# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentbox.errors import WorkspaceError
from agentbox.workspace.listing import list_tree
from agentbox.workspace.tree import Tree


def test_names_links_and_directories_are_listed(place: Path, tree: Tree) -> None:
    (place / "a" / "deep").mkdir(parents=True)
    (place / "b").mkdir()
    (place / "a" / "deep" / "file").touch()
    (place / "a" / "link").symlink_to("/etc")
    listing = list_tree(tree, 100)
    assert listing.links == {"a/link": "/etc"}
    assert listing.below == {"": ("a", "b"), "a": ("deep", "link"), "a/deep": ("file",), "b": ()}


def test_no_link_is_followed(place: Path, tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (place / "link").symlink_to(tmp_path / "outside")
    assert list_tree(tree, 100).below == {"": ("link",)}


def test_more_entries_than_allowed_are_an_error(place: Path, tree: Tree) -> None:
    for number in range(5):
        (place / str(number)).touch()
    assert len(list_tree(tree, 5).below[""]) == 5
    with pytest.raises(WorkspaceError, match="more than 4 entries"):
        list_tree(tree, 4)


def test_a_directory_that_its_owner_may_not_enter_is_listed_and_keeps_its_mode(place: Path, tree: Tree) -> None:
    (place / "closed").mkdir()
    (place / "closed" / "file").touch()
    (place / "closed").chmod(0)
    assert list_tree(tree, 100).below["closed"] == ("file",)
    assert (place / "closed").stat().st_mode & 0o777 == 0


def test_a_tree_as_deep_as_paths_go_is_listed(place: Path, tree: Tree) -> None:
    descriptor = os.dup(tree.fd)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    assert len(list_tree(tree, 2000).below) == 1501
