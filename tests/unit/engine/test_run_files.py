# SPDX-License-Identifier: MIT
"""Where traces of runs lie, and what leads to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentbox.engine.run_files import RunFiles
from agentbox.errors import TraceError


def _run(directory: Path) -> RunFiles:
    files = RunFiles(str(directory), None)
    files.open()
    Path(files.trace).write_text("x")
    files.link()
    return files


def test_each_run_has_a_file_and_the_link_leads_to_the_last(tmp_path: Path) -> None:
    first, second = _run(tmp_path), _run(tmp_path)
    assert first.trace != second.trace
    assert (tmp_path / "trace.jsonl").samefile(second.trace)
    assert not os.path.isabs(os.readlink(tmp_path / "trace.jsonl"))


def test_a_file_that_is_no_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("old")
    assert _run(tmp_path).close() == []
    assert (tmp_path / "trace.jsonl").read_text() == "old"


@pytest.mark.parametrize("put", ["link", "file", "nothing"])
def test_a_changed_link_is_put_right_and_said(tmp_path: Path, put: str) -> None:
    older, files = _run(tmp_path), _run(tmp_path)
    link = tmp_path / "trace.jsonl"
    link.unlink()
    if put == "link":
        link.symlink_to(older.trace)
    elif put == "file":
        link.write_text("forged")
    (said,) = files.close()
    assert "leads to the trace of this run again" in said
    assert link.samefile(files.trace)
    assert files.close() == []


def test_an_explicit_trace_must_be_new_and_have_a_directory(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    for name in ("there", "no/such/t.jsonl"):
        with pytest.raises(TraceError):
            RunFiles(str(tmp_path), str(tmp_path / name)).open()


def test_a_run_is_alone_only_without_others(tmp_path: Path) -> None:
    first, second = _run(tmp_path), _run(tmp_path)
    first.join()
    second.join()
    with first.alone() as alone:
        assert not alone
    with second.alone() as alone:
        assert alone
