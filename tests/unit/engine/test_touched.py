# SPDX-License-Identifier: MIT
"""What a recorded run changes: what files were before, and what they are in the end."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbox.engine import touched as module
from agentbox.engine.keeping import Keeping, Kept
from agentbox.engine.touched import Touched
from agentbox.trace.frames import Request


class Watched:
    """A run that writes below one directory."""

    def __init__(self, directory: Path) -> None:
        self.out = directory / "out"
        self.out.mkdir()
        self.blobs = directory / "blobs"
        self.touched = Touched([str(self.out)], [str(self.out / "own")], Keeping(str(self.blobs)))

    def asks(self, op: str, **paths: Path) -> None:
        request = Request(1, "observe", op, {name: str(path) for name, path in paths.items()}, ack=True)
        asyncio.run(self.touched.ask(request))

    def written(self) -> dict[str, tuple[Any, Any]]:
        found: dict[str, tuple[Any, Any]] = {}

        def note(path: str, before: Any, after: Any) -> None:
            found[os.path.relpath(path, self.out)] = (_content(before), _content(after))

        asyncio.run(self.touched.finish(note))
        return found


def _content(state: Any) -> Any:
    return state.get("sha256", state) if isinstance(state, dict) else state


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.touched.close()


def test_what_a_file_was_is_kept_before_it_is_changed(watched: Watched) -> None:
    path = watched.out / "log"
    path.write_text("before")
    watched.asks("fs.open_write", path=path)
    path.write_text("after")
    assert watched.written() == {"log": (_hash("before"), _hash("after"))}
    assert Kept(str(watched.blobs)).read(_hash("before")) == b"before"


def test_files_that_are_as_they_were_and_files_that_nobody_may_write_are_not_told(watched: Watched) -> None:
    same, elsewhere, own = watched.out / "same", watched.out.parent / "elsewhere", watched.out / "own"
    for path in (same, elsewhere, own):
        path.write_text("x")
        watched.asks("fs.open_write", path=path)
        path.write_text("x" if path is same else "y")
    assert watched.written() == {}


def test_a_moved_directory_is_told_with_everything_in_it(watched: Watched) -> None:
    (watched.out / "old").mkdir()
    (watched.out / "old" / "file").write_text("text")
    watched.asks("fs.rename", path=watched.out / "old", to=watched.out / "new")
    (watched.out / "old").rename(watched.out / "new")
    found = watched.written()
    assert found["old/file"] == (_hash("text"), None)
    assert found["new/file"] == (None, _hash("text"))
    assert found["new"][1]["directory"] is True


def test_what_another_program_changed_is_found_with_its_content(watched: Watched) -> None:
    (watched.out / "there").write_text("before")
    asyncio.run(watched.touched.starts(7))
    (watched.out / "made").write_text("made")
    (watched.out / "there").unlink()
    files = asyncio.run(watched.touched.ended(7))
    assert files is not None
    assert {os.path.basename(path): _content(state) for path, state in files.items()} == {
        "made": _hash("made"),
        "there": None,
    }
    assert Kept(str(watched.blobs)).read(_hash("made")) == b"made"
    assert watched.written() == {"made": (None, _hash("made")), "there": ({"unknown": True}, None)}


def test_links_are_told_and_not_followed(watched: Watched, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    link = watched.out / "link"
    watched.asks("fs.symlink", path=link)
    link.symlink_to(tmp_path / "secret")
    watched.asks("fs.open_write", path=watched.out / "through" / "file")
    (watched.out / "through").symlink_to(tmp_path)
    assert watched.written() == {"link": (None, {"link": str(tmp_path / "secret")})}
    assert Kept(str(watched.blobs)).read(_hash("secret")) is None


def test_large_files_are_compared_and_not_kept(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_FILE_BYTES", 3)
    path = watched.out / "large"
    path.write_text("before")
    watched.asks("fs.open_write", path=path)
    path.write_text("after!")
    before, after = watched.written()["large"]
    assert "sha256" not in before
    assert after == _hash("after!")
    assert not watched.blobs.exists()


def test_too_many_files_are_said_to_be_incomplete(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOOKED_AT", 1)
    for name in "abc":
        (watched.out / name).write_text(name)
    asyncio.run(watched.touched.starts(1))
    assert asyncio.run(watched.touched.ended(1)) is None
    assert watched.touched.complete is False


def test_paths_of_a_box_are_looked_at_below_its_own_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    base = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    inside = Touched(["/work"], [], Keeping(""), base=base, prefix="/work")
    os.close(base)
    look = inside.look()
    assert look is not None
    assert list(look) == ["/work/file"]
    (tmp_path / "new").write_text("new")
    changed = inside.changed_since(look)
    assert changed is not None
    assert {path: _content(state) for path, state in changed.items()} == {"/work/new": _hash("new")}
    inside.close()
