# SPDX-License-Identifier: MIT
"""Copies for a replay: as the files were before the recorded run, and never a way out of the copy."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from agentbox.engine.scratch import Scratch
from agentbox.errors import InvalidRequestError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    (directory / "out" / "deep").mkdir(parents=True)
    (directory / "out" / "log").write_text("after\n")
    (directory / "out" / "new").write_text("new\n")
    (directory / "out" / "deep" / "kept").write_text("kept\n")
    (directory / "out" / ".agentbox").mkdir()
    (tmp_path / "near").mkdir()
    return directory


def _file(content: bytes) -> dict[str, Any]:
    return {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "mode": 0o640,
        "mtime_ns": "5000000000",
    }


def _read(*contents: bytes) -> Any:
    known = {hashlib.sha256(content).hexdigest(): content for content in contents}
    return known.get


def test_copies_are_put_back_and_the_files_stay_as_they_are(project: Path, tmp_path: Path) -> None:
    out = str(project / "out")
    scratch = Scratch([out], str(tmp_path / "near"))
    written = {
        f"{out}/log": (1, {"before": _file(b"before\n"), "after": _file(b"after\n")}),
        f"{out}/new": (2, {"before": None, "after": _file(b"new\n")}),
        f"{out}/gone/far": (4, {"before": _file(b"gone\n"), "after": None}),
        f"{out}/gone": (3, {"before": {"directory": True, "mode": 0o755}, "after": None}),
    }
    assert scratch.put_back(written, _read(b"before\n", b"gone\n")) == []
    copy = Path(scratch.sources[out])
    assert (copy / "log").read_text() == "before\n"
    assert ((copy / "log").stat().st_mode & 0o777, (copy / "log").stat().st_mtime_ns) == (0o640, 5_000_000_000)
    assert (copy / "gone" / "far").read_text() == "gone\n"
    assert (copy / "deep" / "kept").read_text() == "kept\n"
    assert not (copy / "new").exists()
    assert not (copy / ".agentbox").exists()
    assert (project / "out" / "log").read_text() == "after\n"
    scratch.close()
    assert list((tmp_path / "near").iterdir()) == []


def test_what_was_not_kept_is_named(project: Path, tmp_path: Path) -> None:
    out = str(project / "out")
    scratch = Scratch([out], str(tmp_path / "near"))
    lost = {"bytes": 5, "mode": 0o644}
    assert scratch.put_back({f"{out}/log": (1, {"before": lost, "after": None})}, _read()) == [f"{out}/log"]
    scratch.close()


def test_changes_are_what_happened_since_it_began(project: Path, tmp_path: Path) -> None:
    out = str(project / "out")
    with_copies = Scratch([out, str(project / "out" / "deep")], str(tmp_path / "near"))
    with_copies.begin()
    copy = Path(with_copies.sources[out])
    (copy / "log").write_text("changed")
    (copy / "deep" / "kept").unlink()
    found = with_copies.changes()
    assert {path: state and state.get("sha256") for path, state in found.items()} == {
        f"{out}/log": hashlib.sha256(b"changed").hexdigest(),
        f"{out}/deep/kept": None,
    }
    with_copies.close()


@pytest.mark.parametrize("state", [None, _file(b"planted\n"), {"directory": True, "mode": 0o755}, {"link": "x"}])
def test_no_path_is_followed_through_a_link_out_of_a_copy(project: Path, tmp_path: Path, state: Any) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("untouched\n")
    (project / "out" / "link").symlink_to(outside)
    out = str(project / "out")
    scratch = Scratch([out], str(tmp_path / "near"))
    scratch.apply({f"{out}/link/file": state, f"{out}/link/other": state}, _read(b"planted\n"))
    scratch.put_back({f"{out}/link/file": (1, {"before": state, "after": None})}, _read(b"planted\n"))
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "untouched\n"
    scratch.close()


def test_a_link_is_replaced_and_what_it_leads_to_stays(project: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("untouched\n")
    (project / "out" / "log").unlink()
    (project / "out" / "log").symlink_to(tmp_path / "target")
    out = str(project / "out")
    scratch = Scratch([out], str(tmp_path / "near"))
    scratch.apply({f"{out}/log": _file(b"mine\n")}, _read(b"mine\n"))
    assert Path(scratch.sources[out], "log").read_text() == "mine\n"
    assert (tmp_path / "target").read_text() == "untouched\n"
    scratch.close()


def test_too_much_is_refused_before_it_is_copied(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbox.engine.scratch.MAX_SCRATCH_FILES", 2)
    with pytest.raises(InvalidRequestError, match="too much to copy"):
        Scratch([str(project / "out")], str(tmp_path / "near"))
    assert list((tmp_path / "near").iterdir()) == []
