# SPDX-License-Identifier: MIT
"""Archives that try to write, read or link outside the tree they are restored into, or to use the host up."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import tarfile
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentbox.errors import UnsafeArchiveError, WorkspaceError
from agentbox.workspace.archive import ArchiveSummary, read_archive
from agentbox.workspace.tree import Tree
from tests.adversarial.archive.hostile import DIRECTORY, FILE, HARD, LINK, add, extended, header, made, packed, record

Build = Callable[[tarfile.TarFile], object]


@dataclass(frozen=True)
class Ground:
    """A canary that must stay as it is, and an empty directory that archives are restored into."""

    canary: Path
    target: Path
    before: dict[str, tuple[int, int, int]]

    @classmethod
    def at(cls, base: Path) -> Ground:
        canary, target = base / "canary", base / "restored" / "tree"
        canary.mkdir()
        target.mkdir(parents=True)
        (canary / "secret.txt").write_text("CANARY-secret")
        return cls(canary, target, _state(canary))

    @property
    def up(self) -> str:
        return "../" * 20 + str(self.canary)[1:]

    def restore(self, archive: bytes, *, max_bytes: int = 1 << 20, max_entries: int = 1000) -> ArchiveSummary:
        fd = os.open(self.target, os.O_RDONLY)
        try:
            return read_archive(io.BytesIO(archive), Tree(fd), max_bytes=max_bytes, max_entries=max_entries)
        finally:
            os.close(fd)

    def refuse(self, archive: bytes, rule: str, **limits: int) -> UnsafeArchiveError:
        with pytest.raises(UnsafeArchiveError, match=rule) as caught:
            self.restore(archive, **limits)
        assert caught.value.hint
        assert caught.value.message.isprintable()
        self.check()
        return caught.value

    def check(self) -> None:
        """Nothing outside changed, no path inside shows the canary, nothing is special or privileged."""
        assert _state(self.canary) == self.before
        assert os.listdir(self.target.parent) == ["tree"]
        for directory, names, files in os.walk(self.target):
            for name in [*names, *files]:
                path = os.path.join(directory, name)
                mode = os.lstat(path).st_mode
                assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
                assert stat.S_ISLNK(mode) or not mode & (stat.S_ISUID | stat.S_ISGID)
                for shown in (path, os.path.join(path, "secret.txt")):
                    if not os.path.isfile(shown):
                        continue
                    with open(shown, "rb") as file:
                        assert file.read(7) != b"CANARY-", shown


def _state(path: Path) -> dict[str, tuple[int, int, int]]:
    # The number of links tells a hard link to the canary wherever it is.
    status = {name: os.lstat(path / name) for name in os.listdir(path)}
    return {name: (s.st_mode, s.st_nlink, s.st_mtime_ns) for name, s in status.items()}


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground.at(tmp_path)
    yield ground
    ground.check()


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("{up}/planted", r"'\.\.' part"),
        ("{canary}/planted", "absolute"),
        ("ok/../{up}/planted", r"'\.\.' part"),
        ("./{up}/planted", r"'\.\.' part"),
        ("/{canary}/planted", "absolute"),
        (".//planted", "absolute"),
        ("././planted", r"'\.' part"),
        ("a//b", "empty part"),
        ("a/./b", r"'\.' part"),
        ("..", r"'\.\.' part"),
        ("./..", r"'\.\.' part"),
        ("a/..", r"'\.\.' part"),
        (".", r"'\.' part"),
        ("./", "is empty"),
        ("", "is empty"),
        ("a/", "ends with"),
        ("x" * 256, "over 255 bytes"),
        ("/".join(["x" * 200] * 21), "over 4096 bytes"),
        ("d/" * 64 + "f", "over 64 parts"),
        ("d/" * 1500 + "f", "over 64 parts"),
    ],
)
@pytest.mark.parametrize("kind", [FILE, LINK, DIRECTORY, HARD])
def test_blocks_a_name_that_is_no_plain_relative_path(ground: Ground, name: str, rule: str, kind: bytes) -> None:
    name = name.format(up=ground.up, canary=ground.canary)
    plain = kind == DIRECTORY and name in (".", "a/", "./")

    def build(archive: tarfile.TarFile) -> None:
        add(archive, "t", data=b"t")
        add(archive, name, kind, "t" if kind in (LINK, HARD) else "", b"planted" if kind == FILE else b"")

    if plain:
        ground.restore(made(build))
    elif kind == DIRECTORY and name == "":
        ground.refuse(made(build), "empty or absolute|is absolute|is empty")
    else:
        ground.refuse(made(build), rule)


def test_a_backslash_is_only_a_character(ground: Ground) -> None:
    name = ground.up.replace("/", "\\") + "\\planted"
    ground.restore(made(lambda archive: add(archive, name, data=b"planted")))
    assert os.listdir(ground.target) == [name]


@pytest.mark.parametrize("field", [b"path", b"linkpath"])
def test_blocks_a_nul_in_an_extended_header(ground: Ground, field: bytes) -> None:
    archive = packed(extended(record(field, b"a\0b")), header(b"f", b"2", link=b"x"))
    ground.refuse(archive, "NUL")


def test_blocks_a_path_override_that_leaves_the_tree(ground: Ground) -> None:
    ground.refuse(packed(extended(record(b"path", ground.up.encode() + b"/p")), header(b"good")), r"'\.\.' part")
    ground.refuse(packed(header(b"p", prefix=b"/etc")), "absolute")
    ground.refuse(packed(header(b"p", prefix=b"a/..")), r"'\.\.' part")


_DEEP = "/".join(f"d{n}" for n in range(14))


def _deep_link(archive: tarfile.TarFile, ground: Ground, *, exists: bool) -> None:
    for n in range(14):
        add(archive, "/".join(f"d{m}" for m in range(n + 1)), DIRECTORY)
    if exists:
        add(archive, f"d0{ground.canary}", DIRECTORY)
        add(archive, f"d0{ground.canary}/secret.txt", data=b"inside")
    add(archive, _DEEP + "/s", LINK, "../" * 13 + str(ground.canary)[1:] + "/secret.txt")


@pytest.mark.parametrize("exists", [True, False])
def test_blocks_a_hard_link_that_shifts_a_relative_link(ground: Ground, exists: bool) -> None:
    """A link that is legal deep in the tree would point outside, made again at the top by a hard link."""

    def build(archive: tarfile.TarFile) -> None:
        _deep_link(archive, ground, exists=exists)
        add(archive, "top", HARD, _DEEP + "/s", mode=0o600)

    ground.refuse(made(build), "no file that came before")


@pytest.mark.parametrize("target", ["{canary}/secret.txt", "{up}/secret.txt", "a/../{up}/secret.txt", "later", "", "."])
def test_blocks_a_hard_link_to_anything_but_an_earlier_file(ground: Ground, target: str) -> None:
    text = target.format(canary=ground.canary, up=ground.up)

    def build(archive: tarfile.TarFile) -> None:
        add(archive, "h", HARD, text)
        add(archive, "later", data=b"x")

    ground.refuse(made(build), "hard link")


def test_blocks_a_hard_link_to_a_directory_to_itself_and_through_a_link(ground: Ground) -> None:
    for members in (
        [("d", DIRECTORY, ""), ("h", HARD, "d")],
        [("h", HARD, "h")],
        [("l", LINK, str(ground.canary)), ("h", HARD, "l/secret.txt")],
        [("l", LINK, "f"), ("h", HARD, "l")],
    ):
        archive = made(lambda t, members=members: [add(t, name, kind, link) for name, kind, link in members])
        with tempfile.TemporaryDirectory() as fresh:
            Ground.at(Path(fresh)).refuse(archive, "no file that came before")


@pytest.mark.parametrize("order", ["link first", "file first"])
@pytest.mark.parametrize("target", ["{canary}", "{up}", ".", "other"])
def test_blocks_writing_through_a_link_in_any_order(ground: Ground, order: str, target: str) -> None:
    members: list[tuple[str, bytes, str, bytes]] = [
        ("l", LINK, target.format(canary=ground.canary, up=ground.up), b""),
        ("l/planted", FILE, "", b"planted"),
    ]
    if order == "file first":
        members.reverse()
    archive = made(lambda t: [add(t, *member) for member in members])
    with contextlib.suppress(UnsafeArchiveError):
        ground.restore(archive)
    assert not (ground.target / "l").is_symlink()


def test_blocks_a_file_that_takes_the_place_of_a_link(ground: Ground) -> None:
    target = f"{ground.canary}/secret.txt"
    for first, second in ((LINK, FILE), (FILE, LINK), (LINK, LINK), (LINK, DIRECTORY), (DIRECTORY, LINK)):
        archive = made(lambda t, kinds=(first, second): [add(t, "x", kind, target) for kind in kinds])
        with tempfile.TemporaryDirectory() as fresh:
            inner = Ground.at(Path(fresh))
            with contextlib.suppress(UnsafeArchiveError):
                inner.restore(archive)
            assert not (inner.target / "x").is_symlink()
            inner.check()


@pytest.mark.parametrize(
    "members",
    [
        [("x", FILE, ""), ("x", FILE, "")],
        [("x", FILE, ""), ("x/y", FILE, "")],
        [("x/y", FILE, ""), ("x", FILE, "")],
        [("x", DIRECTORY, ""), ("x", FILE, "")],
        [("x", FILE, ""), ("x", DIRECTORY, "")],
        [("x", LINK, "y"), ("x", LINK, "y")],
        [("x", LINK, "y"), ("x", DIRECTORY, "")],
        [("x", LINK, "y"), ("x/z", FILE, "")],
        [("x", FILE, ""), ("x", HARD, "x")],
        [("x", FILE, ""), ("./x", FILE, "")],
    ],
)
def test_blocks_two_members_in_each_others_way(ground: Ground, members: list[tuple[str, bytes, str]]) -> None:
    archive = made(lambda t: [add(t, *member) for member in members])
    ground.refuse(archive, "appears twice|no directory")


@pytest.mark.parametrize(
    "links",
    [
        {"a": "/etc/passwd"},
        {"a": "{canary}"},
        {"a": "{up}/secret.txt"},
        {"a": ".."},
        {"a": "../tree"},
        {"d/a": "../.."},
        {"a": "d/../../x"},
        {"b": "d", "a": "b/../../x"},
        {"d/e": "..", "a": "d/e/../x"},
        {"d/e": "/work", "a": "d/e/../x"},
        {"d/e": "/work/d", "a": "d/e/../../x"},
        {"a": "b", "b": "c", "c": "{canary}"},
        {"a": "b/secret.txt", "b": "{canary}"},
        {"a": "/usr/../{canary}/secret.txt"},
        {"u": "/usr/lib", "a": "u/../../{canary}/secret.txt"},
        {"a": "/usr/lib/../../{canary}/secret.txt"},
        {"a": "/workshop"},
        {"a": "/usrx/y"},
        {"a": "//proc/self/root"},
        {"a": "/"},
        {"a": "a"},
        {"a": "b", "b": "a"},
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_link_that_leads_out_is_left_out_in_any_order(ground: Ground, links: dict[str, str], reverse: bool) -> None:
    filled = {name: text.format(up=ground.up, canary=ground.canary) for name, text in links.items()}

    def build(archive: tarfile.TarFile) -> None:
        add(archive, "d", DIRECTORY)
        for name, text in sorted(filled.items(), reverse=reverse):
            add(archive, name, LINK, text)
        add(archive, "x", data=b"inside")

    summary = ground.restore(made(build))
    assert not os.path.lexists(ground.target / "a")
    assert any(warning.startswith(("a:", "d/a:")) for warning in summary.warnings)
    for directory, names, files in os.walk(ground.target):
        for name in [*names, *files]:
            text = os.path.join(directory, name)
            if os.path.islink(text) and not os.readlink(text).startswith(("/work", "/usr")):
                assert Path(os.path.realpath(text)).is_relative_to(ground.target)


def test_links_doubled_into_a_huge_path_cost_no_time(ground: Ground) -> None:
    def build(archive: tarfile.TarFile) -> None:
        add(archive, "l0", DIRECTORY)
        for n in range(1, 900):
            add(archive, f"l{n}", LINK, "/".join([f"l{n - 1}"] * 600))

    summary = ground.restore(made(build))
    assert summary.warnings


def test_links_are_made_only_after_the_archive_is_verified(ground: Ground) -> None:
    archive = bytearray(made(lambda t: (add(t, "l", LINK, "f"), add(t, "f", data=os.urandom(600_000)))))
    archive[-8] ^= 1
    ground.refuse(bytes(archive), "damaged")
    assert os.listdir(ground.target) == ["f"]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *((b"3", "character device"), (b"4", "block device"), (b"6", "FIFO"), (b"7", "contiguous"), (b"X", "Solaris")),
        *((b"L", "GNU long"), (b"K", "GNU long"), (b"S", "sparse"), (b"D", "dump"), (b"M", "volume"), (b"V", "volume")),
        *((b"g", "global header"), (b"Z", "not known"), (b"\xff", "not known")),
    ],
)
def test_blocks_a_member_that_is_no_file_directory_or_link(ground: Ground, kind: bytes, what: str) -> None:
    ground.refuse(packed(header(b"dev", kind)), what)


def test_setuid_setgid_and_sticky_bits_are_dropped(ground: Ground) -> None:
    ground.restore(made(lambda t: (add(t, "f", data=b"x", mode=0o7755), add(t, "d", DIRECTORY, mode=0o6777))))
    assert stat.S_IMODE((ground.target / "f").stat().st_mode) == 0o755
    assert stat.S_IMODE((ground.target / "d").stat().st_mode) == 0o777


@pytest.mark.parametrize("key", ["GNU.sparse.major", "GNU.sparse.name", "GNU.sparse.map", "SCHILY.realsize"])
def test_blocks_sparse_maps_in_extended_headers(ground: Ground, key: str) -> None:
    ground.refuse(made(lambda t: add(t, "f", data=b"0", pax={key: "1"})), "sparse")


def test_blocks_a_real_sparse_archive_of_gnu_tar(ground: Ground) -> None:
    block = bytearray(header(b"big", b"S", 512, magic=b"ustar  \0"))
    block[386:410] = b"%011o\0%011o\0" % (0, 512)
    block[483:495] = b"%011o\0" % (8**10)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    ground.refuse(packed(bytes(block), bytes(512)), "sparse")


@pytest.mark.parametrize(
    "size", [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-0000000001\0", b"0000009\0", b"12x\0", b"\x80" + bytes(11)]
)
def test_blocks_a_negative_or_binary_size(ground: Ground, size: bytes) -> None:
    ground.refuse(packed(header(b"f", size=size)), "negative, binary or no octal")


@pytest.mark.parametrize("size", [b"-1", b"1e9", b"0x10", b" 1", b"", b"9" * 19])
def test_blocks_an_extended_size_that_is_no_number(ground: Ground, size: bytes) -> None:
    ground.refuse(packed(extended(record(b"size", size)), header(b"f")), "size that is no number")


def test_a_size_beyond_the_cap_is_refused_before_anything_is_written(ground: Ground) -> None:
    ground.refuse(packed(header(b"f", size=(1 << 20) + 1)), "over 1048576 bytes")
    ground.refuse(packed(extended(record(b"size", b"9" * 18)), header(b"f")), "over 1048576 bytes")
    assert os.listdir(ground.target) == []


def test_blocks_content_behind_a_directory_or_link(ground: Ground) -> None:
    for kind in (b"1", b"2", b"5"):
        ground.refuse(packed(header(b"d", kind, 512, link=b"x"), header(b"../evil")), "content")


@pytest.mark.parametrize("body", [b"x", b"5 a=b\n", b"99 a=b\n", b"0 \n", b"4 a\n", b"6 a=b", b"06 a=b\n", b"7 a=b\nx"])
def test_blocks_a_malformed_extended_header(ground: Ground, body: bytes) -> None:
    ground.refuse(packed(extended(body), header(b"f")), "extended header")


def test_blocks_two_values_of_one_field_and_two_extended_headers(ground: Ground) -> None:
    twice = record(b"path", b"a") + record(b"path", b"../b")
    ground.refuse(packed(extended(twice), header(b"f")), "one thing twice")
    ground.refuse(packed(extended(record(b"path", b"a")), extended(record(b"path", b"b")), header()), "two extended")
    ground.refuse(packed(extended(record(b"path", b"a"), b"g"), header()), "global header")


def test_a_huge_extended_header_costs_no_memory(ground: Ground) -> None:
    archive = packed(header(b"pax", b"x", 64 << 20), bytes(64 << 20))
    tracemalloc.start()
    ground.refuse(archive, "extended header over")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_a_compression_bomb_stops_at_the_cap(ground: Ground) -> None:
    archive = packed(
        header(b"a", size=1 << 19), bytes(1 << 19), header(b"zeros", size=256 << 20), *([bytes(1 << 20)] * 256)
    )
    assert len(archive) < 2 << 20
    tracemalloc.start()
    ground.refuse(archive, "'zeros' would make it unpack to over 1048576 bytes")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20
    assert os.listdir(ground.target) == ["a"]


def test_a_bomb_of_entries_stops_at_the_cap(ground: Ground) -> None:
    ground.refuse(packed(*(header(b"f%d" % n) for n in range(1001))), "over 1000 files")
    assert len(os.listdir(ground.target)) == 1000


def test_directories_that_are_only_implied_count_too(ground: Ground) -> None:
    deep = [header(b"%d/" % n + b"d/" * 40 + b"f") for n in range(100)]
    ground.refuse(packed(*deep), "over 1000 files")
    assert sum(len(names) for _, names, _ in os.walk(ground.target)) <= 1000


def test_a_bomb_of_repeated_directories_stops_at_the_cap(ground: Ground) -> None:
    ground.refuse(packed(*(header(b"d", b"5") for _ in range(1001))), "over 1000 files")


def test_zeros_after_the_end_are_bounded(ground: Ground) -> None:
    ground.restore(packed(header(b"f"), end=bytes(10240)))
    with tempfile.TemporaryDirectory() as fresh:
        Ground.at(Path(fresh)).refuse(packed(header(b"f"), end=bytes(64 << 20)), "data after its end")


_DAMAGED = [
    (b"", "ends too early"),
    (b"\x1f\x8b", "ends too early"),
    (b"not gzip at all" * 100, "not valid"),
    (gzip.compress(b""), "ends too early"),
    (gzip.compress(b"plain text, no archive" * 100), "no.* tar archive"),
    (packed(header(b"f"), end=b""), "ends too early"),
    (packed(header(b"f"), end=bytes(512)), "ends too early"),
    (packed(header(b"f", size=600), bytes(512), end=b""), "ends too early"),
    (packed(header(b"f"), bytes(512), header(b"../hidden")), "empty block"),
    (packed(header(b"f"), end=bytes(1024) + header(b"../hidden")), "data after its end"),
    (packed(header(b"f")) + packed(header(b"../hidden")), "data after its end"),
    (packed(header(b"f")) + b"garbage", "data after its end"),
    (packed(header(b"f")) + bytes(512), "data after its end"),
    (packed(header(b"f"))[:-4] + b"\0\0\0\0", "not valid"),
    (packed(header(b"f"))[:-9], "ends too early"),
    (packed(header(b"f", checksum=1)), "checksum"),
    (packed(header(b"f", magic=bytes(8))), "no.* tar archive"),
    (zlib.compress(header(b"f") + bytes(1024)), "not valid"),
]


@pytest.mark.parametrize(("archive", "rule"), _DAMAGED, ids=[str(n) for n in range(len(_DAMAGED))])
def test_blocks_an_archive_that_is_damaged_or_says_more_than_one_thing(
    ground: Ground, archive: bytes, rule: str
) -> None:
    ground.refuse(archive, rule)


def test_every_cut_of_an_archive_is_an_error(tmp_path: Path) -> None:
    archive = made(lambda t: (add(t, "f", data=b"content"), add(t, "l", LINK, "f")))
    for length in range(0, len(archive), 7):
        base = tmp_path / str(length)
        base.mkdir()
        Ground.at(base).refuse(archive[:length], "damaged")


def test_a_tree_that_already_holds_links_is_not_written_through(ground: Ground) -> None:
    (ground.target / "l").symlink_to(ground.canary)
    for name in ("l/planted", "l/secret.txt"):
        with pytest.raises(UnsafeArchiveError, match="no directory"):
            ground.restore(made(lambda t, name=name: add(t, name, data=b"planted")))
    with pytest.raises(UnsafeArchiveError):
        ground.restore(made(lambda t: add(t, "l", DIRECTORY, mode=0o777)))
    (ground.target / "l").unlink()


_PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "d\\e", "canary", "secret.txt", "tree"])
_TEXTS = st.one_of(
    st.lists(_PARTS, min_size=1, max_size=6).map("/".join),
    st.sampled_from(["/work/a", "/work/..", "/usr/a", "/usr/..", "UP", "CANARY", "a/UP", "CANARY/secret.txt"]),
)
_MEMBERS = st.lists(st.tuples(_TEXTS, st.sampled_from([FILE, LINK, HARD, DIRECTORY]), _TEXTS), max_size=8)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(_MEMBERS, st.booleans())
def test_no_archive_writes_or_leads_outside(members: list[tuple[str, bytes, str]], keep_going: bool) -> None:
    """Whole archives, and (so that one bad member does not hide the next) their members one by one into one tree."""
    with tempfile.TemporaryDirectory() as scratch:
        ground = Ground.at(Path(scratch))

        def fill(text: str) -> str:
            return text.replace("UP", ground.up).replace("CANARY", str(ground.canary))

        def build(chosen: list[tuple[str, bytes, str]]) -> bytes:
            return made(lambda t: [add(t, fill(n), k, fill(x), b"planted" if k == FILE else b"") for n, k, x in chosen])

        for chosen in [[member] for member in members] if keep_going else [members]:
            try:
                ground.restore(build(chosen))
            except WorkspaceError:
                continue
        ground.check()
        if not keep_going:
            for directory, names, files in os.walk(ground.target):
                for name in [*names, *files]:
                    path = os.path.join(directory, name)
                    if os.path.islink(path) and not os.readlink(path).startswith("/"):
                        real = os.path.realpath(path)
                        inside = Path(real).is_relative_to(os.path.realpath(ground.target))
                        assert inside or real.startswith(("/work", "/usr")), (path, os.readlink(path))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=3000), st.booleans())
def test_any_bytes_are_an_archive_or_a_clear_error(data: bytes, pack: bool) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        ground = Ground.at(Path(scratch))
        with contextlib.suppress(WorkspaceError):
            ground.restore(gzip.compress(data) if pack else data)
        ground.check()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_header_with_any_bytes_changed_is_an_archive_or_a_clear_error(data: st.DataObject) -> None:
    blocks = bytearray(extended(record(b"path", b"dir/f") + record(b"mtime", b"1.5")) + header(b"f", size=3))
    for _ in range(data.draw(st.integers(1, 4))):
        blocks[data.draw(st.integers(0, len(blocks) - 1))] = data.draw(st.integers(0, 255))
    for start in (0, 1024):
        blocks[start + 148 : start + 156] = b" " * 8
        blocks[start + 148 : start + 156] = b"%06o\0 " % sum(blocks[start : start + 512])
    with tempfile.TemporaryDirectory() as scratch:
        ground = Ground.at(Path(scratch))
        with contextlib.suppress(WorkspaceError):
            ground.restore(packed(bytes(blocks), b"abc".ljust(512, b"\0")))
        ground.check()
