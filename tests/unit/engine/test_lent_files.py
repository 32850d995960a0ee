# SPDX-License-Identifier: MIT
"""What of the host a policy's rules lend to a box."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentbox.engine.lent_files import Lent, lend
from agentbox.models import Confinement, FileDenial, FileGrant, Layer, Limits

LIMITS = Limits(60.0, 64, 1.0, 16, 16, 1024)


def _grant(path: Path | str, *, writable: bool = False, rule: str = "") -> FileGrant:
    return FileGrant(str(path), writable, os.path.lexists(path), Layer.KERNEL, rule or str(path))


def _lend(
    tmp_path: Path, *grants: FileGrant, denials: tuple[FileDenial, ...] = (), private: tuple[Path, ...] = ()
) -> Lent:
    trace = tmp_path / "trace.jsonl"
    return lend(Confinement(LIMITS, files=grants, file_denials=denials), trace=trace, private=private)


def test_missing_write_grants_are_made_and_taken_back_when_unused(tmp_path: Path) -> None:
    grants = [_grant(tmp_path / name, writable=True) for name in ("out", "a/b/result.json", "used")]
    lent = _lend(tmp_path, *grants)
    assert (tmp_path / "out").is_dir()
    assert (tmp_path / "a" / "b" / "result.json").is_file()
    assert all(grant.present for grant in lent.confinement.files)
    (tmp_path / "used" / "file").touch()
    lent.take_back()
    assert sorted(os.listdir(tmp_path)) == ["used"]


def test_read_grants_that_are_missing_stay_missing(tmp_path: Path) -> None:
    lent = _lend(tmp_path, _grant(tmp_path / "nothing"))
    assert not lent.made
    assert not lent.confinement.files[0].present


@pytest.mark.parametrize("path", ["/proc", "/proc/cpuinfo", "/dev/null", "/dev", "/sys/class", "/run/agentbox"])
def test_what_the_box_has_of_its_own_is_not_lent(tmp_path: Path, path: str) -> None:
    assert _lend(tmp_path, _grant(path)).confinement.files == ()


def test_the_root_is_lent_around_the_box_s_own_directories(tmp_path: Path) -> None:
    paths = {grant.path for grant in _lend(tmp_path, _grant("/")).confinement.files}
    assert {"/usr", "/etc"} <= paths
    assert not paths & {"/", "/proc", "/sys", "/dev", "/tmp", "/run"}


def test_agentbox_s_state_is_hidden_where_a_grant_would_show_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    lent = _lend(tmp_path, _grant(tmp_path), private=(state, Path("/var/elsewhere")))
    (denial,) = lent.confinement.file_denials
    assert (denial.path, denial.hidden, denial.present) == (str(state), True, True)


def test_the_trace_is_read_only_below_a_write_grant(tmp_path: Path) -> None:
    lent = _lend(tmp_path, _grant(tmp_path, writable=True))
    assert [(one.path, one.hidden) for one in lent.confinement.file_denials] == [(str(tmp_path / "trace.jsonl"), False)]


def test_links_are_not_covered_and_late_directories_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "late").mkdir()
    denials = tuple(FileDenial(str(tmp_path / name), False, name == "link", "own") for name in ("link", "late"))
    found = _lend(tmp_path, _grant(tmp_path), denials=denials).confinement.file_denials
    assert [(Path(one.path).name, one.present) for one in found] == [("link", False), ("late", True)]
