# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentbox.engine import startup_files
from agentbox.engine.startup_files import StartupFiles, in_words

LONG_AGO = (1_000_000_000, 1_000_000_000)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in which nothing changed for a while, as far as the clock of the watch is concerned."""
    project = tmp_path / "p"
    for name in (".git/hooks/pre-commit", ".git/config", ".vscode/settings.json", "Makefile", "src/a.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("before")
    return project


@pytest.fixture
def watch(project: Path, monkeypatch: pytest.MonkeyPatch) -> StartupFiles:
    """A watch that began when everything was there already."""
    newest = max(os.lstat(path).st_ctime for path in project.rglob("*"))
    monkeypatch.setattr(startup_files.time, "time", lambda: newest + 10)
    made = StartupFiles([str(project), str(project / "src")], [str(project / ".agentbox")])
    made._since = newest + 1e-6
    return made


def names(watch: StartupFiles, project: Path) -> list[str]:
    return [os.path.relpath(one.path, project) for one in watch.written()]


def rewrite_later(path: Path, text: str = "after") -> None:
    """Write, and be sure that the file system's clock has moved."""
    before = os.lstat(path.parent).st_ctime_ns
    while True:
        path.write_text(text)
        if os.lstat(path).st_ctime_ns > before + 1_000:
            return


def test_what_was_there_before_is_not_named(watch: StartupFiles, project: Path) -> None:
    assert names(watch, project) == []


def test_what_was_changed_made_or_renamed_is_named_with_the_reason(watch: StartupFiles, project: Path) -> None:
    rewrite_later(project / ".git/hooks/pre-commit")
    rewrite_later(project / ".envrc")
    rewrite_later(project / "src/a.py")
    rewrite_later(project / "src/plain")
    os.rename(project / "src/plain", project / "src/conftest.py")
    found = {os.path.relpath(one.path, project): one.why for one in watch.written()}
    assert found.keys() == {".git/hooks/pre-commit", ".envrc", "src/conftest.py"}
    assert "git" in found[".git/hooks/pre-commit"]
    assert "shell" in found[".envrc"]


def test_a_file_that_is_run_by_name_is_named_too(watch: StartupFiles, project: Path) -> None:
    rewrite_later(project / "Makefile")
    assert [(os.path.basename(one.path), one.why) for one in watch.written()] == [
        ("Makefile", "somebody runs it by name")
    ]


def test_setting_file_times_back_hides_nothing(watch: StartupFiles, project: Path) -> None:
    rewrite_later(project / ".vscode/settings.json")
    os.utime(project / ".vscode/settings.json", LONG_AGO)
    assert names(watch, project) == [".vscode/settings.json"]


def test_a_directory_that_was_renamed_to_such_a_name_is_named(watch: StartupFiles, project: Path) -> None:
    (project / "src/evil").mkdir()
    rewrite_later(project / "src/evil/x")
    os.utime(project / "src/evil", LONG_AGO)
    os.rename(project / "src/evil", project / "src/.husky")
    assert names(watch, project) == ["src/.husky"]


def test_what_agentbox_itself_writes_is_not_the_runs(watch: StartupFiles, project: Path) -> None:
    (project / ".agentbox").mkdir()
    rewrite_later(project / ".agentbox/trace.jsonl")
    assert names(watch, project) == []


def test_links_are_not_followed(watch: StartupFiles, project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (project / "src/out").symlink_to(tmp_path / "outside")
    rewrite_later(tmp_path / "outside/.envrc")
    assert names(watch, project) == []


def test_a_look_is_bounded_and_says_so(watch: StartupFiles, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_files, "_MAX_ENTRIES", 2)
    watch.written()
    assert not watch.complete
    assert "too many files" in in_words([], str(project), complete=False)[-1]


def test_a_summary_names_some_and_counts_the_rest(project: Path) -> None:
    found = [startup_files.StartupFile(f"{project}/d/.envrc{i}", "why") for i in range(25)]
    lines = in_words(found, str(project), complete=True)
    assert lines[0] == "d/.envrc0 was written: why"
    assert lines[-1] == "5 more files that run later were written; the trace names them"


def test_link_to_itself_does_not_keep_a_watch_from_beginning(project: Path) -> None:
    (project / "loop").symlink_to("loop")
    assert StartupFiles([str(project)]).complete
