# SPDX-License-Identifier: MIT
from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentbox.errors import NotFoundError, QuotaExceededError, UnsafeArchiveError, WorkspaceError
from agentbox.workspace.snapshots import SnapshotStore
from agentbox.workspace.tree import Tree
from tests.conftest import not_here

MIB = 1 << 20
Restore = Callable[[SnapshotStore, str, str], Path]


def open_store(
    root: Path, *, max_bytes: int = 64 * MIB, quota_bytes: int = 64 * MIB, ttl_seconds: int = 0
) -> SnapshotStore:
    return SnapshotStore(root, max_bytes=max_bytes, quota_bytes=quota_bytes, ttl_seconds=ttl_seconds)


@contextmanager
def opened(path: Path) -> Iterator[Tree]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield Tree(fd)
    finally:
        os.close(fd)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
def restored(tmp_path: Path) -> Restore:
    count = iter(range(1000))

    def restore(store: SnapshotStore, owner: str, snapshot_id: str) -> Path:
        path = tmp_path / f"restored-{next(count)}"
        path.mkdir()
        with opened(path) as tree:
            store.restore(owner, snapshot_id, tree)
        return path

    return restore


def test_a_saved_tree_is_restored_and_described(tree: Tree, place: Path, root: Path, restored: Restore) -> None:
    (place / "d").mkdir()
    (place / "d/f").write_bytes(b"x" * 5000)
    (place / "main.py").write_text("code")
    os.mkfifo(place / "pipe")
    store = open_store(root)
    before = time.time()
    info = store.save("default", tree, exclude=frozenset({"main.py"}))
    assert re.fullmatch(r"[0-9a-f]{32}", info.snapshot_id)
    assert before <= info.created_at <= time.time()
    assert info.packed_bytes == (root / f"{info.snapshot_id}.tar.gz").stat().st_size
    assert (info.unpacked_bytes, info.entries) == (5000, 2)
    assert info.warnings == ("pipe: left out, it is a FIFO",)
    path = restored(store, "default", info.snapshot_id)
    assert [p.relative_to(path).as_posix() for p in sorted(path.rglob("*"))] == ["d", "d/f"]
    listed = store.get("default", info.snapshot_id)
    assert listed == store.list("default")[0]
    assert (listed.snapshot_id, listed.entries, listed.created_at) == (info.snapshot_id, 2, info.created_at)


def test_a_restored_and_saved_tree_gets_a_new_id_and_leaves_the_old_one(
    tree: Tree, place: Path, root: Path, restored: Restore
) -> None:
    (place / "a").write_text("1")
    store = open_store(root)
    first = store.save("default", tree)
    again = restored(store, "default", first.snapshot_id)
    (again / "b").write_text("2")
    with opened(again) as second_tree:
        second = store.save("default", second_tree)
    assert sorted(os.listdir(restored(store, "default", first.snapshot_id))) == ["a"]
    assert sorted(os.listdir(restored(store, "default", second.snapshot_id))) == ["a", "b"]
    assert [info.snapshot_id for info in store.list("default")] == [second.snapshot_id, first.snapshot_id]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../evil",
            "..",
            "",
            "/etc/passwd",
            "A" * 32,
            "0" * 31,
            "0" * 33,
            "0" * 32,
            "0" * 32 + "\n",
            "0" * 32 + "/..",
        ),
        *("0" * 32 + "\0", "\ud800", "x" * 100_000, "\x1b[31m", "keys/k/" + "0" * 32, "0" * 28 + ".tar"),
    ],
)
def test_an_id_is_a_token_and_nothing_else_is_found(tree: Tree, root: Path, name: str) -> None:
    store = open_store(root)
    store.save("default", tree)
    for call in (store.get, store.delete, lambda owner, text: store.restore(owner, text, tree)):
        with pytest.raises(NotFoundError) as caught:
            call("default", name)
        assert caught.value.message.startswith("Unknown snapshot: ")
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 100
    assert len(store.list("default")) == 1


def test_an_archive_planted_outside_the_store_is_not_loaded(tree: Tree, root: Path) -> None:
    store = open_store(root)
    with tarfile.open(root.parent / "evil.tar.gz", "w:gz"):
        pass
    with pytest.raises(NotFoundError, match=r"Unknown snapshot: \.\./evil"):
        store.restore("default", "../evil", tree)


def test_a_snapshot_of_another_owner_is_not_found(tree: Tree, place: Path, root: Path, restored: Restore) -> None:
    (place / "mine").write_text("x")
    store = open_store(root)
    owners = ["default", "alice", "Alice", "../alice", "a/b", "keys", "", "é" * 300, "alice\n", ".", "al.ice"]
    ids = {owner: store.save(owner, tree).snapshot_id for owner in owners}
    for owner in owners:
        assert [info.snapshot_id for info in store.list(owner)] == [ids[owner]]
        assert os.listdir(restored(store, owner, ids[owner])) == ["mine"]
        for other in owners:
            if other == owner:
                continue
            for call in (store.get, store.delete, lambda who, text: store.restore(who, text, tree)):
                with pytest.raises(NotFoundError, match=f"Unknown snapshot: {ids[other]}"):
                    call(owner, ids[other])
    assert {p.name for p in root.parent.iterdir() if not p.name.startswith("restored")} == {"snapshots", "tree"}


def test_a_deleted_snapshot_is_gone_with_all_its_files(tree: Tree, root: Path) -> None:
    store = open_store(root)
    for owner, directory in (("default", root), ("bob", root / "keys/bob")):
        snapshot_id = store.save(owner, tree).snapshot_id
        store.delete(owner, snapshot_id)
        assert [name for name in os.listdir(directory) if snapshot_id in name] == []
        assert store.list(owner) == ()
        for call in (store.get, store.delete):
            with pytest.raises(NotFoundError):
                call(owner, snapshot_id)


def test_an_owner_without_snapshots_has_an_empty_list(root: Path) -> None:
    assert open_store(root).list("nobody") == ()
    assert not (root / "keys").exists()


def test_only_the_servers_user_can_look_into_the_store(tree: Tree, root: Path) -> None:
    root.mkdir(mode=0o755)
    store = open_store(root)
    store.save("default", tree)
    store.save("bob", tree)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_root_that_others_control_is_refused_with_a_way_out(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "file").write_text("")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    for path in (tmp_path / "link", tmp_path / "file", open_to_all):
        with pytest.raises(WorkspaceError, match=path.name) as caught:
            open_store(path)
        assert "AGENTBOX_SNAPSHOT_DIR" in caught.value.hint


def test_a_root_of_another_user_is_refused(root: Path) -> None:
    if os.geteuid() != 0:
        not_here("only root may give a directory away")
    root.mkdir()
    os.chown(root, 54321, 54321)
    with pytest.raises(WorkspaceError, match="belongs to uid 54321"):
        open_store(root)


def test_an_owners_directory_swapped_for_a_link_is_refused(tree: Tree, root: Path, tmp_path: Path) -> None:
    store = open_store(root)
    store.save("bob", tree)
    os.rename(root / "keys/bob", tmp_path / "moved")
    (root / "keys/bob").symlink_to(tmp_path / "moved")
    for call in (lambda: store.save("bob", tree), lambda: store.list("bob")):
        with pytest.raises(WorkspaceError):
            call()


def test_the_quota_of_an_owner_says_how_much_is_stored_and_how_to_delete(tree: Tree, place: Path, root: Path) -> None:
    (place / "f").write_bytes(os.urandom(300_000))
    store = open_store(root, quota_bytes=700_000)
    first = store.save("bob", tree)
    store.save("bob", tree)
    with pytest.raises(QuotaExceededError, match="of 700000 bytes") as caught:
        store.save("bob", tree)
    assert "DELETE /v1/snapshots" in caught.value.hint
    assert len(store.list("bob")) == 2
    assert not [n for n in os.listdir(root / "keys/bob") if n.startswith(".new")]
    store.save("alice", tree)
    store.delete("bob", first.snapshot_id)
    store.save("bob", tree)


def test_saves_at_once_get_ids_of_their_own_and_never_pass_the_quota_together(
    tree: Tree, place: Path, root: Path, restored: Restore
) -> None:
    (place / "f").write_bytes(os.urandom(100_000))
    stores = [open_store(root, quota_bytes=450_000) for _ in range(2)]

    def save(n: int) -> str | None:
        try:
            return stores[n % 2].save("default", tree).snapshot_id
        except QuotaExceededError:
            return None

    with ThreadPoolExecutor(8) as pool:
        ids = [snapshot_id for snapshot_id in pool.map(save, range(12)) if snapshot_id]
    assert len(set(ids)) == 4
    for snapshot_id in ids:
        assert (restored(stores[0], "default", snapshot_id) / "f").read_bytes() == (place / "f").read_bytes()


def test_a_workspace_over_the_cap_is_refused_and_nothing_is_stored(tree: Tree, place: Path, root: Path) -> None:
    with open(place / "sparse", "wb") as file:
        file.truncate(1 << 40)
    store = open_store(root)
    with pytest.raises(QuotaExceededError, match="over 67108864 bytes"):
        store.save("default", tree)
    assert store.list("default") == ()
    assert os.listdir(root) == [".lock"]


def test_a_full_disk_leaves_no_half_file(tree: Tree, place: Path, small_disk: Path) -> None:
    (place / "f").write_bytes(os.urandom(3 * MIB))
    store = open_store(small_disk)
    with pytest.raises(WorkspaceError, match="No space left") as caught:
        store.save("default", tree)
    assert "room" in caught.value.hint
    assert os.listdir(small_disk) == [".lock"]


def _flip(archive: Path, other: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)


def _flip_in_header(archive: Path, other: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[4] ^= 1
    archive.write_bytes(data)


def _cut(archive: Path, other: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-100])


def _empty(archive: Path, other: Path) -> None:
    archive.write_bytes(b"")


def _swap(archive: Path, other: Path) -> None:
    archive.write_bytes(other.read_bytes())


def _append(archive: Path, other: Path) -> None:
    archive.write_bytes(archive.read_bytes() + other.read_bytes())


def _break_note(archive: Path, other: Path) -> None:
    Path(str(archive).replace(".tar.gz", ".json")).write_text("[" * 3000)


def _swap_note(archive: Path, other: Path) -> None:
    note = str(archive).replace(".tar.gz", ".json")
    Path(note).write_text(Path(str(other).replace(".tar.gz", ".json")).read_text())


def _fifo(archive: Path, other: Path) -> None:
    archive.unlink()
    os.mkfifo(archive)


@pytest.mark.parametrize(
    "damage", [_flip, _flip_in_header, _cut, _empty, _swap, _append, _break_note, _swap_note, _fifo]
)
def test_a_snapshot_changed_at_rest_is_refused_before_anything_is_restored(
    tree: Tree, place: Path, root: Path, tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    (place / "f").write_bytes(os.urandom(50_000))
    store = open_store(root)
    snapshot_id = store.save("default", tree).snapshot_id
    (place / "f").write_bytes(os.urandom(50_000))
    other_id = store.save("default", tree).snapshot_id
    damage(root / f"{snapshot_id}.tar.gz", root / f"{other_id}.tar.gz")
    back = tmp_path / "back"
    back.mkdir()
    with opened(back) as empty, pytest.raises(UnsafeArchiveError, match=f"{snapshot_id} is damaged or was changed"):
        store.restore("default", snapshot_id, empty)
    assert os.listdir(back) == []
    if damage is not _fifo:
        store.delete("default", snapshot_id)
    assert [info.snapshot_id for info in store.list("default")] == [other_id]


@pytest.mark.parametrize("damage", [_flip, _cut, _empty, _append])
def test_an_archive_of_s1_that_was_damaged_is_refused(
    tree: Tree, place: Path, root: Path, tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    (place / "f").write_bytes(os.urandom(50_000))
    store = open_store(root)
    snapshot_id = store.save("default", tree).snapshot_id
    (root / f"{snapshot_id}.json").unlink()
    archive = root / f"{snapshot_id}.tar.gz"
    damage(archive, archive)
    back = tmp_path / "back"
    back.mkdir()
    with opened(back) as empty, pytest.raises(UnsafeArchiveError, match="damaged archive"):
        store.restore("default", snapshot_id, empty)


def test_an_archive_of_s1_is_listed_restored_and_deleted(root: Path, tmp_path: Path, restored: Restore) -> None:
    """The form that S1 wrote: the standard library's default format, files and links without their directories."""
    root.mkdir()
    source = tmp_path / "source"
    (source / "d/e").mkdir(parents=True)
    (source / "d/e/f").write_text("deep")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    (source / "abs").symlink_to("/etc/hostname")
    os.link(source / "run.sh", source / "hard")
    (source / os.fsdecode(b"bad-\xff")).write_text("odd")
    (source / "é").write_text("name")
    snapshot_id = "0123456789abcdef" * 2
    with tarfile.open(root / f"{snapshot_id}.tar.gz", "w:gz") as archive:
        for number, path in enumerate(sorted(p for p in source.rglob("*") if p.is_file() or p.is_symlink())):
            name = path.relative_to(source).as_posix()
            archive.add(path, ("./" if number % 2 else "") + name, recursive=False)
    store = open_store(root)
    info = store.get("default", snapshot_id)
    assert (info.unpacked_bytes, info.entries) == (None, None)
    assert info.created_at == (root / f"{snapshot_id}.tar.gz").stat().st_mtime
    path = restored(store, "default", snapshot_id)
    assert (path / "d/e/f").read_text() == "deep"
    assert os.access(path / "run.sh", os.X_OK)
    assert os.readlink(path / "link") == "run.sh"
    assert not os.path.lexists(path / "abs")
    assert (path / os.fsdecode(b"bad-\xff")).read_text() == "odd"
    assert (path / "é").read_text() == "name"
    assert (path / "run.sh").stat().st_mtime_ns // 10**9 == (source / "run.sh").stat().st_mtime_ns // 10**9
    store.delete("default", snapshot_id)
    assert store.list("default") == ()


def test_a_snapshot_that_has_expired_no_longer_counts_against_the_quota(tree: Tree, place: Path, root: Path) -> None:
    (place / "data").write_bytes(os.urandom(300_000))
    store = open_store(root, quota_bytes=500_000, ttl_seconds=1000)
    old = store.save("default", tree)
    note = root / f"{old.snapshot_id}.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "created_at": time.time() - 1000}))
    new = store.save("default", tree)
    assert [path.name for path in root.glob("*.tar.gz")] == [f"{new.snapshot_id}.tar.gz"]


def test_snapshots_expire_at_their_age_for_every_owner(tree: Tree, root: Path) -> None:
    store = open_store(root, ttl_seconds=1000)
    old = [store.save(owner, tree).snapshot_id for owner in ("default", "bob")]
    young = store.save("bob", tree).snapshot_id
    for path in (root / f"{old[0]}.json", root / f"keys/bob/{old[1]}.json"):
        note = json.loads(path.read_text())
        path.write_text(json.dumps(note | {"created_at": time.time() - 1001}))
    s1 = "ab" * 16
    (root / f"{s1}.tar.gz").write_bytes(b"")
    os.utime(root / f"{s1}.tar.gz", (time.time() - 1001,) * 2)
    assert store.list("default") == ()
    with pytest.raises(NotFoundError):
        store.get("bob", old[1])
    assert open_store(root).expire() == 0
    assert store.expire() == 3
    assert [p.name for p in root.rglob("*.tar.gz")] == [f"{young}.tar.gz"]
    assert [p.name for p in root.rglob("*.json")] == [f"{young}.json"]
    assert [info.snapshot_id for info in store.list("bob")] == [young]


_KILLED = """
import os, sys
from pathlib import Path
from agentbox.workspace import snapshots
from agentbox.workspace.tree import Tree
store = snapshots.SnapshotStore(Path(sys.argv[1]), max_bytes=1 << 40, quota_bytes=1 << 40, ttl_seconds=0)
def stop(*arguments, **named):
    print("writing", flush=True)
    sys.stdin.read()
snapshots.write_archive = stop
store.save(sys.argv[3], Tree(os.open(sys.argv[2], os.O_RDONLY)))
"""


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(
    tree: Tree, place: Path, root: Path
) -> None:
    store = open_store(root)
    kept = store.save("default", tree).snapshot_id
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(root), str(place), owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for owner in ("default", "bob")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
    assert store.sweep() == 0
    assert len(list(root.rglob(".new-*"))) == 2
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    (root / f"{'cd' * 16}.json").write_text("{}")
    assert store.sweep() == 3
    assert list(root.rglob(".new-*")) == []
    assert sorted(p.name for p in root.iterdir() if p.is_file()) == [".lock", f"{kept}.json", f"{kept}.tar.gz"]


def test_deleting_and_listing_at_once_is_no_error(tree: Tree, place: Path, root: Path) -> None:
    store = open_store(root)
    ids = [store.save("default", tree).snapshot_id for _ in range(30)]
    failures: list[BaseException] = []

    def look() -> None:
        try:
            while store.list("default"):
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for snapshot_id in ids:
        store.delete("default", snapshot_id)
    thread.join(30)
    assert failures == []
    assert not thread.is_alive()


def test_no_descriptor_is_left_open(tree: Tree, root: Path) -> None:
    store = open_store(root, quota_bytes=400)
    before = len(os.listdir("/proc/self/fd"))
    snapshot_id = store.save("bob", tree).snapshot_id
    store.restore("bob", snapshot_id, tree)
    store.list("bob")
    store.get("bob", snapshot_id)
    store.sweep()
    for _ in range(20):
        try:
            store.save("bob", tree)
        except QuotaExceededError:
            break
    with pytest.raises(NotFoundError):
        store.restore("bob", "../x", tree)
    store.delete("bob", snapshot_id)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_that_changes_while_it_is_saved_gives_a_whole_archive_or_a_clear_error(
    tree: Tree, place: Path, root: Path, restored: Restore
) -> None:
    store = open_store(root)
    stop = threading.Event()
    changed: list[WorkspaceError] = []

    def change() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            path = place / f"f{n % 7}"
            try:
                match n % 5:
                    case 0:
                        path.write_bytes(b"x" * 700_000)
                    case 1:
                        os.truncate(path, 300_000)
                    case 2:
                        os.rename(path, place / f"f{n % 3}")
                    case 3:
                        path.unlink()
                        path.mkdir()
                    case 4:
                        path.rmdir()
                        path.symlink_to("f1")
            except OSError:
                continue

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(25):
            try:
                info = store.save("default", tree)
            except WorkspaceError as error:
                changed.append(error)
                continue
            restored(store, "default", info.snapshot_id)
    finally:
        stop.set()
        writer.join(30)
    assert not writer.is_alive()
    assert all(error.hint for error in changed)
