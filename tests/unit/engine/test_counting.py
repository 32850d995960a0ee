# SPDX-License-Identifier: MIT
"""What the host counts for all processes of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentbox.engine import counting
from agentbox.engine.counting import Counting, Sizes
from agentbox.policy.parser import parse
from agentbox.workspace.tree import Tree

ONE, OTHER = 1, 2


class Place:
    """A directory with a cap of 1,000 bytes for what is in `out`."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        (directory / "out").mkdir()
        top = os.open(directory, os.O_RDONLY)
        self.sizes = Sizes(Tree(top), "/work")
        os.close(top)
        self.counting = Counting(parse(text, root="/work"), self.sizes)

    def file(self, name: str, size: int = 0) -> str:
        """Make a file; its identity."""
        path = self.directory / name
        path.write_bytes(b"x" * size)
        found = path.stat()
        return f"{found.st_dev}:{found.st_ino}"

    async def ask(self, identity: str, size: int, holder: int = ONE, name: str = "out/f") -> bool:
        return (await self.counting.grow(f"/work/{name}", identity, size, holder))[1] == ""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path, "write: ./out max=1000\nwrite: ./free\nread-once: ./key")
    yield found
    found.sizes.close()


async def test_files_share_the_bytes_whoever_asks(place: Place) -> None:
    first, second = place.file("out/a"), place.file("out/b")
    assert await place.ask(first, 700, ONE)
    assert not await place.ask(second, 700, OTHER)
    assert await place.ask(second, 250, OTHER)


async def test_what_was_there_counts(place: Place) -> None:
    place.file("out/old", 900)
    assert not await place.ask(place.file("out/new"), 200)
    assert await place.ask(place.file("out/newer"), 50)


async def test_a_file_may_keep_its_size_when_the_cap_is_passed_already(place: Place) -> None:
    old = place.file("out/old", 1500)
    assert await place.ask(old, 1500)
    assert not await place.ask(old, 1501)


async def test_what_was_removed_gives_its_bytes_back(place: Place) -> None:
    assert await place.ask(place.file("out/a", 900), 900)
    os.remove(place.directory / "out/a")
    assert await place.ask(place.file("out/b"), 900)


async def test_what_programs_without_a_guard_wrote_is_seen_when_the_next_file_is_begun(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_PAUSE", 0)
    assert await place.ask(place.file("out/a"), 300)
    place.file("out/by another program", 600)
    assert not await place.ask(place.file("out/b"), 200)
    assert await place.ask(place.file("out/b"), 50)


async def test_a_process_that_has_ended_holds_what_it_wrote_and_no_more(place: Place) -> None:
    assert await place.ask(place.file("out/a", 10), 900, ONE)
    second = place.file("out/b")
    assert not await place.ask(second, 900, OTHER)
    place.counting.release(ONE)
    assert await place.ask(second, 900, OTHER)


async def test_more_than_asked_for_is_granted_only_as_long_as_much_is_left(tmp_path: Path) -> None:
    place = Place(tmp_path, "write: ./out max=1MB")
    granted, _ = await place.counting.grow("/work/out/a", place.file("out/a"), 10, ONE)
    assert 10 < granted <= 10 + (1 << 20) // 64
    granted, _ = await place.counting.grow("/work/out/a", place.file("out/a"), 1 << 20, ONE)
    assert granted == 1 << 20
    place.sizes.close()


async def test_a_file_below_no_cap_is_free(place: Place) -> None:
    assert await place.counting.grow("/work/free/x", "1:1", 1 << 40, ONE) == (1 << 40, "")


async def test_a_file_with_two_names_counts_once(place: Place) -> None:
    identity = place.file("out/a", 600)
    os.link(place.directory / "out/a", place.directory / "out/b")
    assert await place.ask(identity, 950)


@pytest.mark.parametrize(
    ("path", "identity", "size"),
    [(None, "1:1", 1), ("/work/out/x", 7, 1), ("/work/out/x", "", 1), ("/work/out/x", "1:1", -1),
     ("/work/out/x", "1:1", True), ("/work/out/x", "1:1", 1.5), ("/work/out/x", "9" * 65, 1)],
)  # fmt: skip
async def test_a_question_that_is_none_is_refused(place: Place, path: object, identity: object, size: object) -> None:
    granted, why = await place.counting.grow(path, identity, size, ONE)
    assert (granted, bool(why)) == (0, True)


async def test_more_files_than_can_be_counted_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_COUNTED_FILES", 2)
    new = [place.file(f"out/{number}") for number in range(4)]
    assert not await place.ask(new[0], 1)


async def test_a_look_never_follows_a_link_out_of_the_place(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(b"x" * 5000)
    (tmp_path / "out" / "link").symlink_to(outside)
    assert await place.ask(place.file("out/a"), 900)


def test_a_file_is_read_once_by_its_identity(place: Place) -> None:
    assert place.counting.read_once("1:1") == ""
    assert place.counting.read_once("1:1") == "this file was read before"
    assert place.counting.read_once("1:2") == ""
    assert place.counting.read_once(None) != ""


def test_nothing_is_counted_where_no_rule_counts_reads(tmp_path: Path) -> None:
    place = Place(tmp_path, "read: ./key")
    assert [place.counting.read_once("1:1") for _ in range(2)] == ["", ""]
    place.sizes.close()


async def test_after_its_end_nothing_is_looked_at(place: Place) -> None:
    await place.counting.close()
    await place.counting.close()
    assert place.sizes.below("/work/out") == {}
