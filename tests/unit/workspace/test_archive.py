# SPDX-License-Identifier: MIT
from __future__ import annotations

import io
import os
import socket
import stat
import tarfile
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbox.errors import QuotaExceededError, UnsafeArchiveError, WorkspaceError
from agentbox.workspace.archive import ArchiveSummary, read_archive, write_archive
from agentbox.workspace.tree import Tree

CAP = 64 << 20


def pack(
    place: Path, *, exclude: frozenset[str] = frozenset(), max_bytes: int = CAP, max_entries: int = 10_000
) -> tuple[bytes, ArchiveSummary]:
    fd = os.open(place, os.O_RDONLY)
    out = io.BytesIO()
    try:
        summary = write_archive(Tree(fd), out, exclude=exclude, max_bytes=max_bytes, max_entries=max_entries)
    finally:
        os.close(fd)
    return out.getvalue(), summary


def unpack(packed: bytes, place: Path, *, max_bytes: int = CAP, max_entries: int = 10_000) -> ArchiveSummary:
    place.mkdir()
    fd = os.open(place, os.O_RDONLY)
    try:
        return read_archive(io.BytesIO(packed), Tree(fd), max_bytes=max_bytes, max_entries=max_entries)
    finally:
        os.close(fd)


def listing(place: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything below a directory that an archive keeps, by its raw path."""
    found: dict[bytes, tuple[object, ...]] = {}
    for directory, names, files in os.walk(os.fsencode(place)):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            mode = stat.S_IMODE(status.st_mode)
            content: object = None
            if stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(status.st_mode):
                content, mode = os.readlink(path), 0
            kind = stat.S_IFMT(status.st_mode)
            found[os.path.relpath(path, os.fsencode(place))] = (kind, mode, status.st_mtime_ns, content)
    return found


def test_a_tree_comes_back_as_it_was(place: Path, tmp_path: Path) -> None:
    (place / "empty/inner").mkdir(parents=True)
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "bin").write_bytes(bytes(range(256)) * 4000)
    (place / "none").write_bytes(b"")
    (place / "locked").mkdir()
    (place / "locked/f").write_text("f")
    (place / "locked/f").chmod(0o000)
    os.utime(place / "bin", ns=(0, 1_000_000_000_123_456_789))
    os.utime(place / "none", ns=(0, -5_500_000_000))
    (place / "link").symlink_to("run.sh")
    (place / "dirlink").symlink_to("empty/inner")
    (place / "empty/up").symlink_to("../run.sh")
    (place / "dangling").symlink_to("nowhere")
    (place / "absolute").symlink_to("/work/run.sh")
    (place / "python").symlink_to("/usr/bin/python3")
    (place / ("n" * 200)).symlink_to("t" * 250)
    (place / "locked").chmod(0o500)
    packed, summary = pack(place)
    restored = unpack(packed, tmp_path / "back")
    assert listing(tmp_path / "back") == listing(place)
    assert restored == summary
    assert summary == ArchiveSummary(14, 256 * 4000 + 10 + 1, ())


def test_the_standard_library_reads_what_we_write(place: Path, tmp_path: Path) -> None:
    for name in (b"plain", b"caf\xc3\xa9", b"bad-\xff", b"x" * 255, b"a\nb"):
        (place / os.fsdecode(name)).write_bytes(name)
    (place / "dir").mkdir()
    (place / "dir/link").symlink_to("../plain")
    packed, _ = pack(place)
    (tmp_path / "back").mkdir()
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        archive.extractall(tmp_path / "back", filter="data")
    assert set(listing(tmp_path / "back")) == set(listing(place))


@pytest.mark.parametrize(
    "name",
    [
        *(b"a\nb", b"-rf", b"trail ", b"dot.", b"x" * 255, b"bad-\xff\xfe", b"Case", b"case", b"q'\"`$(x)", b"tab\t"),
        *(b"\x1b[31mred", b"*", b"?", b"\\back", b".hidden", b" ", b"\xed\xa0\x80", b"..\\..\\up", b"C:\\x", b"..."),
        *("caf\u00e9".encode(), "cafe\u0301".encode(), "\u00e9".encode() * 60),
    ],
)
def test_a_name_comes_back_byte_for_byte(place: Path, tmp_path: Path, name: bytes) -> None:
    odd = os.fsdecode(name)
    (place / "d" / odd).mkdir(parents=True)
    (place / "d" / odd / odd).write_bytes(name)
    (place / "link").symlink_to("d/" + odd)
    packed, _ = pack(place)
    unpack(packed, tmp_path / "back")
    assert listing(tmp_path / "back") == listing(place)


def test_hard_links_stay_one_file_and_count_once(place: Path, tmp_path: Path) -> None:
    (place / "a").write_bytes(b"x" * 1000)
    (place / "d").mkdir()
    os.link(place / "a", place / "d/b")
    packed, summary = pack(place, max_bytes=1500)
    unpack(packed, tmp_path / "back", max_bytes=1500)
    assert os.path.samefile(tmp_path / "back/a", tmp_path / "back/d/b")
    assert summary.unpacked_bytes == 1000


def test_excluded_names_are_left_out_at_the_top_only(place: Path, tmp_path: Path) -> None:
    for path in ("main.py", "d/main.py", ".hook/x"):
        (place / path).parent.mkdir(exist_ok=True)
        (place / path).write_text(path)
    os.link(place / "main.py", place / "z")
    packed, _ = pack(place, exclude=frozenset({"main.py", ".hook"}))
    unpack(packed, tmp_path / "back")
    assert set(listing(tmp_path / "back")) == {b"d", b"d/main.py", b"z"}
    assert (tmp_path / "back/z").read_text() == "main.py"


def test_special_files_are_left_out_by_name_and_never_opened(place: Path, tmp_path: Path) -> None:
    os.mkfifo(place / "pipe")
    here = os.getcwd()
    os.chdir(place)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("sock")
    finally:
        os.chdir(here)
    expected = {"pipe: left out, it is a FIFO", "sock: left out, it is a socket"}
    if os.geteuid() == 0:
        os.mknod(place / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        expected.add("null: left out, it is a device")
    (place / "plain").write_text("p")
    packed, summary = pack(place)
    assert set(summary.warnings) == expected
    unpack(packed, tmp_path / "back")
    assert set(listing(tmp_path / "back")) == {b"plain"}


def test_links_to_the_host_are_stored_as_text_and_left_out_on_restore(place: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("CANARY-x")
    texts = {"abs": str(canary), "rel": "../canary", "far": "../" * 12 + str(canary)[1:], "proc": "/proc/self/root"}
    texts |= {"root": "/", "etc": "/usr/../etc/passwd", "work": "/work/../etc", "loop": "loop", "hidden": "d/../../x"}
    for name, text in texts.items():
        (place / name).symlink_to(text)
    (place / "good").symlink_to("d/../good2")
    packed, _ = pack(place)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {m.name: m.linkname for m in archive if m.issym()} == texts | {"good": "d/../good2"}
        assert not [m for m in archive if m.isreg()]
    summary = unpack(packed, tmp_path / "back")
    assert set(listing(tmp_path / "back")) == {b"good"}
    assert {warning.split(":")[0] for warning in summary.warnings} == set(texts)


def test_a_terabyte_of_holes_is_refused_before_it_is_read(place: Path) -> None:
    with open(place / "sparse", "wb") as file:
        file.write(b"head")
        file.truncate(1 << 40)
    before = time.process_time()
    with pytest.raises(QuotaExceededError, match=str(CAP)) as caught:
        pack(place)
    assert time.process_time() - before < 5
    assert "AGENTBOX_SNAPSHOT_MAX_BYTES" in caught.value.hint


def test_holes_below_the_cap_come_back_as_holes(place: Path, tmp_path: Path) -> None:
    with open(place / "sparse", "wb") as file:
        file.seek(30 << 20)
        file.write(b"middle")
        file.truncate(60 << 20)
    packed, _ = pack(place)
    unpack(packed, tmp_path / "back")
    restored = tmp_path / "back/sparse"
    assert restored.read_bytes() == (place / "sparse").read_bytes()
    assert restored.stat().st_blocks * 512 < 1 << 20
    assert len(packed) < 1 << 20


def test_many_files_together_over_the_cap_are_refused(place: Path) -> None:
    for n in range(10):
        (place / str(n)).write_bytes(b"x" * 100)
    pack(place, max_bytes=1000)
    with pytest.raises(QuotaExceededError):
        pack(place, max_bytes=999)


def test_too_many_entries_are_refused_and_exactly_enough_are_not(place: Path, tmp_path: Path) -> None:
    for n in range(10):
        (place / f"d{n}").mkdir()
        (place / f"d{n}/f").write_text("")
    packed, summary = pack(place, max_entries=20)
    assert summary.entries == 20
    assert unpack(packed, tmp_path / "back", max_entries=20).entries == 20
    with pytest.raises(QuotaExceededError, match="over 19 files"):
        pack(place, max_entries=19)


def test_a_tree_of_3000_levels_is_stored_to_the_64th_and_says_so(place: Path, tmp_path: Path) -> None:
    fd = os.open(place, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    packed, summary = pack(place)
    assert summary.entries == 64
    assert "64 levels" in summary.warnings[0]
    assert unpack(packed, tmp_path / "back").entries == 64


def test_setuid_bits_are_not_stored(place: Path, tmp_path: Path) -> None:
    (place / "f").write_text("x")
    (place / "f").chmod(0o6755)
    (place / "d").mkdir()
    (place / "d").chmod(0o7777)
    packed, _ = pack(place)
    unpack(packed, tmp_path / "back")
    assert stat.S_IMODE((tmp_path / "back/f").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "back/d").stat().st_mode) == 0o1777


def test_a_file_that_shrinks_while_it_is_read_is_a_clear_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "f").write_bytes(os.urandom(1 << 20))
    read = os.read
    calls = []

    def shrinking(fd: int, size: int) -> bytes:
        calls.append(size)
        if len(calls) == 2:
            os.truncate(place / "f", 300_000)
        return read(fd, size)

    monkeypatch.setattr(os, "read", shrinking)
    with pytest.raises(WorkspaceError, match="f: became shorter"):
        pack(place)


def test_memory_does_not_grow_with_the_size_of_the_files(place: Path, tmp_path: Path) -> None:
    with open(place / "big", "wb") as file:
        for _ in range(24):
            file.write(os.urandom(1 << 20))
    with open(tmp_path / "packed", "w+b") as out:
        fd, back = os.open(place, os.O_RDONLY), tmp_path / "back"
        back.mkdir()
        back_fd = os.open(back, os.O_RDONLY)
        tracemalloc.start()
        write_archive(Tree(fd), out, max_bytes=CAP)
        out.seek(0)
        read_archive(out, Tree(back_fd), max_bytes=CAP)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        os.close(fd)
        os.close(back_fd)
    assert (back / "big").read_bytes() == (place / "big").read_bytes()
    assert peak < 4 << 20


def test_a_full_disk_while_restoring_names_the_limit(place: Path, small_disk: Path) -> None:
    (place / "big").write_bytes(os.urandom(2 << 20))
    packed, _ = pack(place)
    fd = os.open(small_disk, os.O_RDONLY)
    try:
        with pytest.raises(WorkspaceError, match="big") as caught:
            read_archive(io.BytesIO(packed), Tree(fd), max_bytes=CAP)
    finally:
        os.close(fd)
    assert not isinstance(caught.value, UnsafeArchiveError)
    assert "limits.disk_mb" in caught.value.hint


_NAMES = st.binary(min_size=1, max_size=40).filter(
    lambda n: n not in (b".", b"..") and b"/" not in n and b"\0" not in n
)
_LEAVES = st.one_of(
    st.binary(max_size=2000),
    st.lists(_NAMES, min_size=1, max_size=3).map(lambda parts: b"/".join(parts)).map(lambda text: ("link", text)),
)
_BRANCHES = st.recursive(_LEAVES, lambda inner: st.dictionaries(_NAMES, inner, max_size=4))
_TREES = st.dictionaries(_NAMES, _BRANCHES, max_size=5)


def _build(place: bytes, content: dict[bytes, object]) -> None:
    for name, what in content.items():
        path = os.path.join(place, name)
        match what:
            case bytes():
                with open(path, "wb") as file:
                    file.write(what)
            case ("link", text):
                os.symlink(text, path)
            case dict():
                os.mkdir(path)
                _build(path, what)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(_TREES)
def test_any_tree_comes_back_as_it_was(content: dict[bytes, object]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        first = Path(scratch, "first")
        first.mkdir()
        _build(os.fsencode(first), content)
        packed, summary = pack(first)
        back = unpack(packed, Path(scratch, "back"))
        expected, found = listing(first), listing(Path(scratch, "back"))
        # Loops of links are the only thing that may be missing, and each is named.
        missing = {path for path in expected if path not in found}
        assert found == {path: what for path, what in expected.items() if path not in missing}
        assert len(missing) == len(back.warnings)
        assert summary.entries - len(missing) == back.entries
