# SPDX-License-Identifier: MIT
"""Undoing brings back exactly what a run changed, whatever it was, and can be undone itself."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_diff import diffs
from tests.conftest import not_here
from tests.unit.workspace.checkpoints import Project, state_of


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    work = project.work
    (work / "src" / "deep").mkdir(parents=True)
    (work / "src" / "a.py").write_text("one\ntwo\n")
    (work / "src" / "deep" / "b.bin").write_bytes(bytes(range(256)))
    (work / "empty").mkdir()
    (work / "nothing").write_bytes(b"")
    (work / "tool").write_text("#!/bin/sh\n")
    (work / "tool").chmod(0o755)
    (work / "link").symlink_to("src/a.py")
    (work / "dangling").symlink_to("/nowhere/at/all")
    (work / os.fsdecode(b"not-\xff-utf8\n")).write_text("odd")
    (project.top / "outside.txt").write_text("not the run's")
    for path in sorted(work.rglob("*"), reverse=True):
        os.utime(path, ns=(10**18, 10**18 + 123), follow_symlinks=False)
    return project


def test_everything_a_run_did_is_undone_to_the_byte_and_redone_to_the_byte(project: Project) -> None:
    work = project.work
    before = state_of(work)
    run = project.begin()
    (work / "src" / "a.py").write_text("one\nTWO\n")
    (work / "src" / "deep" / "b.bin").unlink()
    (work / "new" / "tree").mkdir(parents=True)
    (work / "new" / "tree" / "file").write_text("new")
    (work / "tool").chmod(0o600)
    (work / "nothing").write_text("something")
    (work / "link").unlink()
    (work / "link").symlink_to("elsewhere")
    (work / "dangling").unlink()
    (work / "dangling").mkdir()
    (work / "dangling" / "inside").write_text("x")
    shutil.rmtree(work / "empty")
    (work / "empty").write_text("a file now")
    os.rename(work / os.fsdecode(b"not-\xff-utf8\n"), work / os.fsdecode(b"other-\xfe"))
    changed = run.end()
    after = state_of(work)
    assert changed == {
        "src/a.py": "M", "src/deep/b.bin": "D", "new": "A", "new/tree": "A", "new/tree/file": "A", "tool": "M",
        "nothing": "M", "link": "M", "dangling": "M", "dangling/inside": "A", "empty": "M",
        os.fsdecode(b"not-\xff-utf8\n"): "D", os.fsdecode(b"other-\xfe"): "A",
    }  # fmt: skip
    assert run.undo().is_whole
    assert state_of(work) == before
    assert run.redo().is_whole
    assert state_of(work) == after
    assert run.undo().is_whole
    assert state_of(work) == before


def test_what_the_run_did_not_touch_stays_even_when_it_was_never_saved(project: Project) -> None:
    run = project.begin()
    (project.work / "src" / "a.py").write_text("changed")
    run.end()
    (project.work / "made-later").write_text("by a person")
    (project.work / "src" / "deep" / "b.bin").write_bytes(b"a person's work")
    assert run.undo().is_whole
    assert (project.work / "made-later").read_text() == "by a person"
    assert (project.work / "src" / "deep" / "b.bin").read_bytes() == b"a person's work"
    assert (project.work / "src" / "a.py").read_text() == "one\ntwo\n"


def test_what_somebody_changed_after_the_run_is_a_conflict_and_is_left(project: Project) -> None:
    run = project.begin()
    (project.work / "src" / "a.py").write_text("by the run")
    (project.work / "new").mkdir()
    (project.work / "new" / "of-the-run").write_text("x")
    (project.work / "tool").unlink()
    run.end()
    (project.work / "src" / "a.py").write_text("by a person, later")
    (project.work / "new" / "of-a-person").write_text("y")
    (project.work / "tool").write_text("another tool")
    done = run.undo()
    assert {os.path.basename(path) for path, _ in done.conflicts} == {"a.py", "tool"}
    assert [os.path.basename(path) for path, _ in done.left] == ["new"]
    assert (project.work / "src" / "a.py").read_text() == "by a person, later"
    assert (project.work / "new" / "of-a-person").read_text() == "y"
    assert not (project.work / "new" / "of-the-run").exists()
    forced = run.undo(force=True)
    assert not forced.conflicts
    assert (project.work / "src" / "a.py").read_text() == "one\ntwo\n"
    assert run.redo().conflicts == []
    assert (project.work / "src" / "a.py").read_text() == "by a person, later"


def test_the_same_content_by_another_way_is_no_conflict(project: Project) -> None:
    run = project.begin()
    (project.work / "src" / "a.py").write_text("by the run")
    run.end()
    (project.work / "src" / "a.py").unlink()
    (project.work / "src" / "a.py").write_text("by the run")
    assert run.undo().is_whole
    assert (project.work / "src" / "a.py").read_text() == "one\ntwo\n"


def test_undoing_twice_says_so_and_redoing_what_was_not_undone_too(project: Project) -> None:
    run = project.begin()
    (project.work / "tool").unlink()
    run.end()
    with pytest.raises(CheckpointError, match="was not undone"):
        run.redo()
    run.undo()
    with pytest.raises(CheckpointError, match="undone already"):
        run.undo()


def test_a_file_edited_after_an_undo_is_not_undone_again(project: Project) -> None:
    run = project.begin()
    (project.work / "src" / "a.py").write_text("by the run")
    run.end()
    run.undo()
    (project.work / "src" / "a.py").write_text("a person went on from here")
    with pytest.raises(CheckpointError, match="undone already"):
        run.undo(force=True)
    done = run.redo()
    assert [os.path.basename(path) for path, _ in done.conflicts] == ["a.py"]
    assert (project.work / "src" / "a.py").read_text() == "a person went on from here"


def test_no_link_is_followed_out_of_what_a_run_may_write(project: Project) -> None:
    outside = project.top / "elsewhere"
    (outside / "deep").mkdir(parents=True)
    (outside / "a.py").write_text("outside")
    run = project.begin()
    shutil.rmtree(project.work / "src")
    (project.work / "src").symlink_to(outside)
    assert run.end()["src"] == "M"
    kept = state_of(outside)
    assert run.undo().is_whole
    assert state_of(outside) == kept
    assert (project.work / "src" / "a.py").read_text() == "one\ntwo\n"


def test_a_directory_that_became_a_link_after_the_run_is_not_walked_through(project: Project) -> None:
    outside = project.top / "elsewhere"
    outside.mkdir()
    run = project.begin()
    (project.work / "src" / "a.py").write_text("by the run")
    run.end()
    os.rename(project.work / "src", outside / "src")
    (project.work / "src").symlink_to(outside / "src")
    done = run.undo()
    assert done.conflicts
    assert (outside / "src" / "a.py").read_text() == "by the run"


def test_names_of_one_file_are_names_of_one_file_again(project: Project) -> None:
    first, second, outside = project.work / "one", project.work / "two", project.top / "three"
    first.write_text("shared")
    os.link(first, second)
    os.link(first, outside)
    run = project.begin()
    first.write_text("written in place")
    assert run.end() == {"one": "M", "two": "M"}
    assert run.undo().is_whole
    assert outside.read_text() == second.read_text() == first.read_text() == "shared"
    assert first.stat().st_ino == second.stat().st_ino == outside.stat().st_ino
    run = project.begin()
    first.unlink()
    second.unlink()
    run.end()
    assert run.undo().is_whole
    assert first.stat().st_ino == second.stat().st_ino
    run = project.begin()
    second.unlink()
    run.end()
    assert run.undo().is_whole
    assert first.stat().st_ino == second.stat().st_ino


def test_a_further_name_that_a_run_made_is_one_again_when_its_undoing_is_undone(project: Project) -> None:
    first, second = project.work / "tool", project.work / "second"
    run = project.begin()
    os.link(first, second)
    assert run.end() == {"second": "A"}
    assert run.undo().is_whole
    assert first.stat().st_nlink == 1
    assert run.redo().is_whole
    assert first.stat().st_ino == second.stat().st_ino


def test_what_is_written_through_a_mapping_is_seen_and_undone(project: Project) -> None:
    target = project.work / "mapped"
    target.write_bytes(b"x" * 5_000_000)
    before = state_of(project.work)
    run = project.begin()
    fd = os.open(target, os.O_RDWR)
    with mmap.mmap(fd, 0) as mapped:
        os.close(fd)
        mapped[4_000_000] = ord("y")
    assert run.end() == {"mapped": "M"}
    assert run.undo().is_whole
    assert state_of(project.work) == before


def test_what_times_were_set_back_on_is_seen(project: Project) -> None:
    target = project.work / "src" / "a.py"
    old = target.stat()
    run = project.begin()
    target.write_text("one\nTWO\n")
    os.utime(target, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert run.end() == {"src/a.py": "M"}


def test_fifos_and_sockets_are_no_trouble(project: Project) -> None:
    os.mkfifo(project.work / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(project.work / "sock"))
        run = project.begin()
        (project.work / "fifo").unlink()
        os.mkfifo(project.work / "new-fifo")
        (project.work / "sock").unlink()
        assert run.end() == {"fifo": "D", "new-fifo": "A", "sock": "D"}
        done = run.undo()
    assert stat.S_ISFIFO((project.work / "fifo").stat().st_mode)
    assert stat.S_IMODE((project.work / "fifo").stat().st_mode) == 0o640
    assert not (project.work / "new-fifo").exists()
    assert [(os.path.basename(path), "socket" in why) for path, why in done.left] == [("sock", True)]


def test_a_file_of_a_terabyte_of_holes_costs_its_data_alone(project: Project) -> None:
    huge = project.work / "huge"
    with open(huge, "wb") as file:
        file.write(b"head")
        file.seek(1 << 39)
        file.write(b"middle")
        file.truncate(1 << 40)
    run = project.begin()
    with open(huge, "r+b") as file:
        file.seek(1 << 39)
        file.write(b"MIDDLE")
    assert run.end() == {"huge": "M"}
    assert run.undo().is_whole
    assert huge.stat().st_size == 1 << 40
    assert huge.stat().st_blocks < 10_000
    with open(huge, "rb") as file:
        file.seek(1 << 39)
        assert file.read(6) == b"middle"


def test_attributes_of_files_come_back(project: Project) -> None:
    target = project.work / "src" / "a.py"
    try:
        os.setxattr(target, "user.kept", b"before")
    except OSError:
        not_here("this file system has no attributes of users")
    run = project.begin()
    os.setxattr(target, "user.kept", b"after")
    os.setxattr(project.work / "src", "user.new", b"x")
    assert run.end() == {"src": "M", "src/a.py": "M"}
    assert run.undo().is_whole
    assert os.getxattr(target, "user.kept") == b"before"
    assert os.listxattr(project.work / "src") == []


def test_a_very_deep_tree_of_a_run_is_undone(project: Project) -> None:
    run = project.begin()
    here = os.open(project.work, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    assert len(run.end()) == 201
    assert run.undo().is_whole
    assert not (project.work / "d").exists()


def test_ignored_paths_are_left_as_the_run_left_them(project: Project) -> None:
    (project.work / "log.txt").write_text("before")
    run = project.begin("*.txt", "work/empty")
    (project.work / "log.txt").write_text("after")
    (project.work / "empty" / "x").write_text("after")
    (project.work / "tool").unlink()
    assert run.end() == {"tool": "D"}
    assert run.undo().is_whole
    assert (project.work / "log.txt").read_text() == "after"
    assert (project.work / "empty" / "x").read_text() == "after"


def test_the_changes_are_shown_as_diffs_before_and_after_they_are_undone(project: Project) -> None:
    run = project.begin()
    (project.work / "src" / "a.py").write_text("one\nTWO")
    (project.work / "src" / "deep" / "b.bin").write_bytes(b"\0\1")
    (project.work / "link").unlink()
    (project.work / "link").symlink_to("tool")
    (project.work / "tool").chmod(0o600)
    run.end()
    expected = {
        "a.py": "--- a/work/src/a.py\n+++ b/work/src/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n"
        "\\ No newline at end of file\n",
        "link": "--- a/work/link\n+++ b/work/link\n@@ -1 +1 @@\n-src/a.py\n+tool\n",
        "b.bin": "",
        "tool": "",
    }
    for go_on in (run.undo, run.redo, lambda: None):
        found = diffs(project.store, project.store.get(run.name))
        assert {os.path.basename(one.path): one.text for one in found} == expected
        notes = {os.path.basename(one.path): one.note for one in found}
        assert notes == {"a.py": "", "link": "", "b.bin": "binary", "tool": "mode 0755 -> 0600"}
        go_on()
