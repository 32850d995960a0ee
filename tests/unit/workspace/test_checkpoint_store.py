# SPDX-License-Identifier: MIT
"""Checkpoints are whole or not there, cost what changed, and are used only as they were kept."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbox.errors import CheckpointError, NotFoundError
from agentbox.workspace.checkpoint_content import ContentReader
from agentbox.workspace.checkpoint_entries import Entry
from agentbox.workspace.checkpoint_scan import Scope
from agentbox.workspace.checkpoint_store import KEPT
from agentbox.workspace.checkpoint_undo import state_of as undoing_state
from tests.conftest import not_here
from tests.unit.workspace.checkpoints import Project, state_of


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    project.work.mkdir(parents=True)
    for number in range(40):
        (project.work / f"{number}.txt").write_text(f"content of {number}\n")
    (project.work / "large").write_bytes(os.urandom(1 << 21))
    return project


def kept_bytes(project: Project) -> int:
    """Bytes of contents in the store."""
    store = Path(project.store.path)
    return sum(file.stat().st_size for file in store.glob("*/*") if file.name.startswith("content"))


def in_child(work: Callable[[], object], until: Callable[[], bool]) -> None:
    """Do it in a process that is killed as soon as something has come true."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    deadline = time.monotonic() + 30
    while not until() and time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG) != (0, 0):
            return
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_the_same_content_is_kept_once(project: Project) -> None:
    project.begin()
    first = kept_bytes(project)
    (project.work / "0.txt").write_text("other")
    run = project.begin()
    assert kept_bytes(project) == first + len("other")
    (project.work / "large").unlink()
    run.end()
    assert run.undo().is_whole
    assert (project.work / "large").stat().st_size == 1 << 21


def test_only_the_last_checkpoints_are_kept_with_all_that_they_need(project: Project) -> None:
    first = project.begin()
    for number in range(KEPT + 2):
        (project.work / "0.txt").write_text(str(number))
        run = project.begin()
        run.end()
    assert len(project.store.all()) == KEPT
    with pytest.raises(NotFoundError):
        project.store.find(first.name)
    (project.work / "large").unlink()
    (project.work / "39.txt").unlink()
    run.end()
    assert run.undo().is_whole
    assert (project.work / "39.txt").read_text() == "content of 39\n"
    assert (project.work / "large").stat().st_size == 1 << 21


def test_a_checkpoint_is_found_by_the_beginning_of_its_name_or_of_its_runs(project: Project) -> None:
    run = project.begin()
    other = project.begin()
    assert project.store.find("run2").id == other.name
    assert project.store.find(run.name).id == run.name
    with pytest.raises(NotFoundError, match="fits 2"):
        project.store.find("2026")
    for name in ("2027", "../runs", "", "20260101-000000-00000"):
        with pytest.raises(NotFoundError):
            project.store.find(name)


@pytest.mark.parametrize("file", ["content", "content-1", "before", "details", "changes"])
def test_a_flipped_bit_or_a_missing_end_is_found_and_nothing_is_restored(project: Project, file: str) -> None:
    run = project.begin()
    (project.work / "7.txt").write_text("changed")
    (project.work / "large").write_bytes(b"changed")
    run.end()
    now = state_of(project.work)
    path = Path(project.store.path) / run.name / file
    whole = path.read_bytes()
    at = whole.find(b"content of 7") if file == "content" else len(whole) // 2
    for damaged in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at]):
        path.write_bytes(damaged)
        with pytest.raises((CheckpointError, NotFoundError)):
            run.undo()
        assert state_of(project.work) == now
    path.write_bytes(whole)
    assert run.undo().is_whole


def test_files_of_another_checkpoint_are_not_taken_for_this_ones(project: Project) -> None:
    run = project.begin()
    (project.work / "7.txt").write_text("changed")
    other = project.begin()
    store = Path(project.store.path)
    for file in ("details", "before"):
        (store / run.name / file).write_bytes((store / other.name / file).read_bytes())
    with pytest.raises(CheckpointError, match="damaged"):
        project.store.get(run.name)


def test_what_belongs_to_another_user_decides_nothing(project: Project) -> None:
    if os.geteuid() != 0:
        not_here("only root can give files away")
    run = project.begin()
    os.chown(f"{project.store.path}/{run.name}", 12345, 12345)
    with pytest.raises(CheckpointError, match="belongs to another user"):
        run.undo()
    assert project.store.all() == []


def test_a_store_behind_a_link_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (project.top / ".agentbox").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="cannot be made"):
        project.store.make()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_root_that_was_replaced_is_refused_and_never_saved_as_empty(project: Project, tmp_path: Path) -> None:
    status = project.work.stat()
    known = Scope(
        str(project.top), (str(project.work),), identities={str(project.work): (status.st_dev, status.st_ino)}
    )
    (project.top / ".agentbox").mkdir()
    project.store.take("20260101-000000-000001", "run1", known)
    os.rename(project.work, tmp_path / "moved")
    for replace in ("nothing", "a link", "a new directory"):
        if replace == "a link":
            project.work.symlink_to(tmp_path / "moved")
        elif replace == "a new directory":
            project.work.unlink()
            project.work.mkdir()
        with pytest.raises(CheckpointError):
            project.store.take("20260101-000000-000002", "run2", known)
        assert [taken.id for taken in project.store.all()] == ["20260101-000000-000001"]


def test_a_content_that_was_removed_by_hand_is_kept_again(project: Project) -> None:
    first = project.begin()
    (Path(project.store.path) / first.name / "content-1").unlink()
    run = project.begin()
    (project.work / "large").unlink()
    (project.work / "1.txt").unlink()
    run.end()
    assert run.undo().is_whole
    assert (project.work / "large").stat().st_size == 1 << 21


def test_the_checkpoint_of_a_run_that_goes_on_is_not_tidied_away(project: Project) -> None:
    run = project.begin()
    held = project.store.hold(run.name)
    for _ in range(KEPT + 1):
        project.begin()
    (project.work / "1.txt").unlink()
    run.end()
    os.close(held)
    assert run.undo().is_whole
    assert (project.work / "1.txt").exists()


def test_a_full_disk_is_said_and_leaves_nothing(small_disk: Path) -> None:
    project = Project(small_disk)
    project.work.mkdir()
    (project.work / "half").write_bytes(os.urandom(700_000))
    with pytest.raises(CheckpointError, match="the disk is full"):
        project.begin()
    assert os.listdir(project.store.path) == []
    (project.work / "half").write_bytes(os.urandom(100_000))
    run = project.begin()
    (project.work / "half").write_bytes(b"x")
    run.end()
    (project.work / "filler").write_bytes(b"y" * 780_000)
    assert run.undo().is_whole


def test_what_somebody_writes_through_a_mapping_between_two_checkpoints_is_in_the_second(project: Project) -> None:
    target = project.work / "0.txt"
    with target.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = ord("1")
        project.begin()
        mapped[1] = ord("2")
        run = project.begin()
    target.unlink()
    run.end()
    assert run.undo().is_whole
    assert target.read_text().startswith("12ntent")


def test_a_mapping_is_seen_where_the_file_system_notes_no_time_of_it(small_disk: Path) -> None:
    project = Project(small_disk)
    project.work.mkdir()
    target = project.work / "mapped"
    target.write_bytes(b"x" * 100_000)
    os.utime(target, (1, 1))
    for _ in range(2):
        with target.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[7] = ord("x")
            run = project.begin()
            mapped[50_000] = ord("y")
        assert run.end() == {"mapped": "M"}
        assert run.undo().is_whole
        assert target.read_bytes() == b"x" * 100_000


def test_a_killed_taking_leaves_no_checkpoint_and_is_swept(project: Project) -> None:
    for number in range(500):
        (project.work / f"more-{number}").write_text(str(number))
    project.store.make()
    store = Path(project.store.path)
    new = f".new-20260101-000000-{1:06x}"
    in_child(project.begin, (store / new).exists)
    assert project.store.all() == [] or not (store / new).exists()
    project.count = 1
    run = project.begin()
    assert not list(store.glob(".new-*"))
    (project.work / "more-1").unlink()
    run.end()
    assert run.undo().is_whole


@pytest.mark.parametrize("done_before", [1, 60])
def test_a_killed_undoing_goes_on_where_it_was(project: Project, done_before: int) -> None:
    for number in range(120):
        (project.work / f"more-{number:03}").write_text(str(number))
    os.link(project.work / "more-000", project.work / "zz-linked")
    before = state_of(project.work)
    run = project.begin()
    for number in range(120):
        (project.work / f"more-{number:03}").write_text("by the run")
    run.end()
    after = state_of(project.work)

    def restored() -> bool:
        return (project.work / f"more-{done_before:03}").read_text() == str(done_before)

    in_child(run.undo, restored)
    assert undoing_state(project.store, project.store.get(run.name)).word in ("undoing", "undone")
    if undoing_state(project.store, project.store.get(run.name)).word == "undoing":
        assert run.undo().is_whole
    assert state_of(project.work) == before
    assert run.redo().is_whole
    assert {path: (one[0], one[4]) for path, one in state_of(project.work).items()} == {
        path: (one[0], one[4]) for path, one in after.items()
    }


def test_a_file_that_is_written_in_place_when_it_is_killed_is_whole_the_next_time(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = project.work / "one", project.work / "two"
    first.write_text("a long content that can be cut off")
    os.link(first, second)
    run = project.begin()
    first.write_text("by the run")
    run.end()

    def cut_off(self: object, path: str, entry: Entry, target: int) -> None:
        del self, path, entry
        os.write(target, b"a long con")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ContentReader, "write", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run.undo()
    assert first.read_text() == "a long con"
    assert run.undo().is_whole
    assert second.read_text() == "a long content that can be cut off"
    assert run.redo().is_whole
    assert second.read_text() == "by the run"


def test_a_checkpoint_of_a_run_that_goes_on_cannot_be_undone_yet(project: Project) -> None:
    run = project.begin()
    held = project.store.hold(run.name)
    run.end()
    with pytest.raises(CheckpointError, match="goes on"):
        run.undo()
    os.close(held)
    assert run.undo().is_whole


def test_a_project_that_was_moved_is_not_restored_into(project: Project, tmp_path: Path) -> None:
    run = project.begin()
    (project.work / "0.txt").unlink()
    run.end()
    os.rename(project.top, tmp_path / "moved")
    run.project = Project(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="was taken in"):
        run.undo()
