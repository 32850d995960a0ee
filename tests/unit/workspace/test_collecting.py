# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from agentbox.errors import InvalidRequestError
from agentbox.workspace import collecting
from agentbox.workspace.collecting import collect_files
from agentbox.workspace.tree import Tree

CAP = 1 << 20


def _fill(place: Path) -> None:
    for path in ("out.txt", ".hidden", "a/x.csv", "a/b/y.csv", "a/b/c/z.csv", "a/b/c/z.png", "main.py"):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(path)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["out.txt"], ["out.txt"]),
        (["*"], [".hidden", "main.py", "out.txt"]),
        (["a/*.csv"], ["a/x.csv"]),
        (["a/**/*.csv"], ["a/b/c/z.csv", "a/b/y.csv", "a/x.csv"]),
        (["**/*.csv"], ["a/b/c/z.csv", "a/b/y.csv", "a/x.csv"]),
        (["**"], [".hidden", "a/b/c/z.csv", "a/b/c/z.png", "a/b/y.csv", "a/x.csv", "main.py", "out.txt"]),
        (["a/**"], ["a/b/c/z.csv", "a/b/c/z.png", "a/b/y.csv", "a/x.csv"]),
        (["**/b/**/z.*"], ["a/b/c/z.csv", "a/b/c/z.png"]),
        (["a/?/[xy].csv", "a/[!z].csv"], ["a/b/y.csv", "a/x.csv"]),
        (["a/b/c/z.???", "a/b/c/z.png"], ["a/b/c/z.csv", "a/b/c/z.png"]),
    ],
)
def test_a_pattern_brings_exactly_its_files(tree: Tree, place: Path, patterns: list[str], expected: list[str]) -> None:
    _fill(place)
    files, warnings = collect_files(tree, patterns, CAP, CAP)
    assert sorted(files) == sorted(expected)
    assert all(content == path.encode() for path, content in files.items())
    assert warnings == []


def test_an_excluded_name_at_the_top_is_not_returned(tree: Tree, place: Path) -> None:
    _fill(place)
    (place / "a/main.py").write_text("mine")
    files, _ = collect_files(tree, ["**/main.py"], CAP, CAP, exclude=frozenset({"main.py"}))
    assert list(files) == ["a/main.py"]


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "./a", "a/", "**/../x"])
def test_a_pattern_that_leaves_the_workspace_is_refused(tree: Tree, pattern: str) -> None:
    with pytest.raises(InvalidRequestError):
        collect_files(tree, [pattern], CAP, CAP)


def test_too_many_patterns_are_refused(tree: Tree) -> None:
    with pytest.raises(InvalidRequestError):
        collect_files(tree, [str(n) for n in range(101)], CAP, CAP)


def test_a_pattern_without_a_file_gives_a_warning(tree: Tree, place: Path) -> None:
    (place / "dir").mkdir()
    files, warnings = collect_files(tree, ["*.none", "dir"], CAP, CAP)
    assert files == {}
    assert warnings == ["no file matches '*.none'", "no file matches 'dir'"]


def test_files_over_a_cap_are_left_out_with_their_size_and_the_cap(tree: Tree, place: Path) -> None:
    for name, size in (("a", 60), ("b", 60), ("c", 101), ("d", 40)):
        (place / name).write_bytes(b"x" * size)
    files, warnings = collect_files(tree, ["*"], 100, 100)
    assert sorted(files) == ["a", "d"]
    assert len(warnings) == 2
    assert warnings[0].startswith("b: ")
    assert "60" in warnings[0]
    assert "100" in warnings[0]
    assert warnings[1].startswith("c: ")
    assert "101" in warnings[1]


def test_a_terabyte_of_holes_costs_no_memory(tree: Tree, place: Path) -> None:
    with open(place / "sparse", "wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    files, warnings = collect_files(tree, ["*"], CAP, 8 * CAP)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert files == {}
    assert str(1 << 40) in warnings[0]
    assert peak < 4 * CAP


def test_links_pipes_and_sockets_are_named_and_not_read(tree: Tree, place: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("CANARY")
    (place / "link").symlink_to(tmp_path / "secret")
    (place / "dirlink").symlink_to(tmp_path)
    os.mkfifo(place / "pipe")
    here = os.getcwd()
    os.chdir(place)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("sock")
    finally:
        os.chdir(here)
    listener.close()
    files, warnings = collect_files(tree, ["**", "dirlink/secret"], CAP, CAP)
    assert files == {}
    assert [w.split(":")[0] for w in warnings[:-1]] == ["dirlink", "link", "pipe", "sock"]
    assert warnings[-1] == "no file matches 'dirlink/secret'"


def test_a_name_that_is_not_utf8_is_left_out_with_a_warning(tree: Tree, place: Path) -> None:
    (place / os.fsdecode(b"bad-\xff")).write_text("x")
    files, warnings = collect_files(tree, ["*"], CAP, CAP)
    assert files == {}
    assert warnings == ["bad-\\xff: not returned, its name is not UTF-8"]


def test_the_walk_ends_at_its_bounds_and_says_so(tree: Tree, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        (place / f"f{n:02}").write_text("")
    monkeypatch.setattr(collecting, "MAX_ENTRIES", 20)
    files, warnings = collect_files(tree, ["*"], CAP, CAP)
    assert len(files) <= 20
    assert "over 20 entries" in warnings[0]


def test_what_lies_too_deep_is_named(tree: Tree, place: Path) -> None:
    deep = place
    for _ in range(70):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "file").write_text("x")
    files, warnings = collect_files(tree, ["**/file"], CAP, CAP)
    assert files == {}
    assert "64 levels" in warnings[0]


def test_warnings_are_bounded(tree: Tree, place: Path) -> None:
    for n in range(500):
        (place / f"{n}").write_text("xx")
    _, warnings = collect_files(tree, ["*"], 1, CAP)
    assert len(warnings) == 51
    assert warnings[-1].startswith("450 more")
