# SPDX-License-Identifier: MIT
"""What a recorded run changes: what files were before, and what they are in the end."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

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
        # What nobody asked about, by what was written.
        self.found: list[str] = []
        self.touched = Touched([str(self.out)], [str(self.out / "own")], Keeping(str(self.blobs)))

    def asks(self, op: str, **paths: Path) -> None:
        request = Request(1, "observe", op, {name: str(path) for name, path in paths.items()}, ack=True)
        asyncio.run(self.touched.ask(request))

    def written(self) -> dict[str, tuple[Any, Any]]:
        found: dict[str, tuple[Any, Any]] = {}

        def note(path: str, before: Any, after: Any, asked: bool) -> None:
            found[os.path.relpath(path, self.out)] = (_content(before), _content(after))
            if not asked:
                self.found.append(os.path.relpath(path, self.out))

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


def test_files_that_nobody_may_write_are_not_told(watched: Watched) -> None:
    for path in (watched.out.parent / "elsewhere", watched.out / "own"):
        path.write_text("x")
        watched.asks("fs.open_write", path=path)
        path.write_text("y")
    assert watched.written() == {}


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("fs.open_write", lambda path: path.write_text("x")),
        ("fs.remove", lambda path: (path.unlink(), path.write_text("x"))),
        ("fs.truncate", lambda path: os.truncate(path, 1)),
        ("fs.chmod", lambda path: path.chmod(path.stat().st_mode)),
        ("fs.utime", lambda path: os.utime(path, (1, 1))),
        ("fs.open_write", lambda _: None),
    ],
    ids=["written", "made again", "cut", "mode", "time", "only opened"],
)
def test_a_file_that_comes_out_as_it_was_is_told_and_kept(
    watched: Watched, op: str, change: Callable[[Path], None]
) -> None:
    path = watched.out / "same"
    path.write_text("x")
    watched.asks(op, path=path)
    change(path)
    assert watched.written() == {"same": (_hash("x"), _hash("x"))}
    assert Kept(str(watched.blobs)).read(_hash("x")) == b"x"


def test_what_is_there_only_for_a_while_is_told_as_what_was_not_there(watched: Watched) -> None:
    watched.asks("fs.open_write", path=watched.out / "file")
    watched.asks("fs.mkdir", path=watched.out / "directory")
    assert watched.written() == {"file": (None, None), "directory": (None, None)}


def test_a_device_that_is_as_it_was_is_not_told(watched: Watched) -> None:
    os.mkfifo(watched.out / "pipe")
    watched.asks("fs.open_write", path=watched.out / "pipe")
    assert watched.written() == {}


def test_what_nobody_asked_about_is_told_as_found(watched: Watched) -> None:
    for path in ("asked", "unseen", "own"):
        (watched.out / path).write_text("x")
    watched.asks("fs.open_write", path=watched.out / "asked")
    watched.touched.changed([str(watched.out / path) for path in ("asked", "unseen", "own", "gone")])
    assert watched.written() == {"asked": (_hash("x"), _hash("x")), "unseen": (None, _hash("x"))}
    assert watched.found == ["unseen"]


def test_what_is_older_than_the_run_was_something_that_nobody_knows(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "old").write_text("before")
    moment = os.stat(path / "old").st_mtime_ns + 10**9
    with mock.patch("time.time_ns", return_value=moment):
        touched = Touched([str(path)], [], Keeping(""))
    touched.changed([str(path), str(path / "old")])
    told: list[Any] = []
    asyncio.run(touched.finish(lambda *found: told.append(found)))
    assert [(name, before, _content(after), asked) for name, before, after, asked in told] == [
        (str(path / "old"), {"unknown": True}, _hash("before"), False)
    ]


def test_too_much_that_changed_is_said_to_be_incomplete(watched: Watched) -> None:
    watched.touched.changed(None)
    assert watched.touched.complete is False


def test_what_code_without_a_guard_does_to_a_box_is_told(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("before")
    inside = Touched([str(tmp_path)], [], Keeping(""))
    inside.begin()
    (tmp_path / "there").write_text("after it")
    (tmp_path / "new").write_text("new")
    told: list[Any] = []
    asyncio.run(inside.finish(lambda *found: told.append(found)))
    assert [(os.path.basename(name), before, _content(after), asked) for name, before, after, asked in told] == [
        ("new", None, _hash("new"), True),
        ("there", {"unknown": True}, _hash("after it"), True),
    ]


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
    assert watched.written() == {
        "link": (None, {"link": str(tmp_path / "secret")}),
        "through/file": (None, None),
    }
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
