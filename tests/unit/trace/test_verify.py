# SPDX-License-Identifier: MIT
"""Verifying: any change of a trace is seen, nothing crashes it, and its memory does not grow with the file."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbox.errors import TraceError
from agentbox.trace import record
from agentbox.trace.keys import SigningKey
from agentbox.trace.ledger import Ledger
from agentbox.trace.record import GENESIS, Entry
from agentbox.trace.verdict import Status, Trust
from agentbox.trace.verify import _Scan, verify
from tests.unit.trace.recording import Recording, clock_of
from tests.vectors.make_trace_vectors import rehash

EDITS = 1000


def flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def replace_byte(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] = dice.randrange(256)


def cut_out(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    del data[at : at + dice.randrange(1, 400)]


def cut_end(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def insert_bytes(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data) + 1)
    choices = [b"\n", b"\r", b" ", b"\0", b"}", b'"op":"x",', b"{}\n", b"\xff", b"9" * 5000, b"[" * 5000]
    data[at:at] = dice.choice([*choices, dice.randbytes(dice.randrange(1, 40))])


def on_lines(edit: Callable[[list[bytes], random.Random], None]) -> Callable[[bytearray, random.Random], None]:
    def apply(data: bytearray, dice: random.Random) -> None:
        lines = bytes(data).split(b"\n")[:-1]
        edit(lines, dice)
        data[:] = b"".join(line + b"\n" for line in lines)

    apply.__name__ = edit.__name__
    return apply


@on_lines
def swap_lines(lines: list[bytes], dice: random.Random) -> None:
    one, other = dice.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]


@on_lines
def drop_lines(lines: list[bytes], dice: random.Random) -> None:
    at = dice.randrange(len(lines))
    del lines[at : at + dice.randrange(1, 10)]


@on_lines
def repeat_line(lines: list[bytes], dice: random.Random) -> None:
    lines.insert(dice.randrange(len(lines) + 1), dice.choice(lines))


@on_lines
def return_at_line_end(lines: list[bytes], dice: random.Random) -> None:
    lines[dice.randrange(len(lines))] += b"\r"


@on_lines
def blank_line(lines: list[bytes], dice: random.Random) -> None:
    lines.insert(dice.randrange(len(lines) + 1), dice.choice([b"", b" ", b"\t"]))


@on_lines
def key_twice(lines: list[bytes], dice: random.Random) -> None:
    at = dice.randrange(len(lines))
    lines[at] = lines[at].replace(b"{", b'{"op":"x",', 1)


@on_lines
def respaced(lines: list[bytes], dice: random.Random) -> None:
    at = dice.randrange(len(lines))
    lines[at] = lines[at].replace(b'":', b'": ')


@on_lines
def hashed_anew(lines: list[bytes], dice: random.Random) -> None:
    at = dice.randrange(len(lines) - 1)
    lines[:] = rehash(lines, lambda fields: fields.update(op="forged.op"), at)


@on_lines
def hashed_anew_and_cut(lines: list[bytes], dice: random.Random) -> None:
    hashed_anew_lines = rehash(lines, lambda fields: fields.update(kind="deny"), dice.randrange(len(lines) - 1))
    lines[:] = hashed_anew_lines[: dice.randrange(1, len(lines))]


ALL_EDITS = (
    flip, replace_byte, cut_out, cut_end, insert_bytes, swap_lines, drop_lines, repeat_line, return_at_line_end,
    blank_line, key_twice, respaced, hashed_anew, hashed_anew_and_cut,
)  # fmt: skip


def test_a_thousand_random_edits_are_all_seen_and_none_crashes(recording: Recording) -> None:
    whole = recording.trace(40).read_bytes()
    spliced = recording.trace(40, "run-2").read_bytes()
    path = recording.directory / "edited.jsonl"
    dice = random.Random(20261130)
    missed = []
    for number in range(EDITS):
        edit = ALL_EDITS[number % len(ALL_EDITS)]
        data = bytearray(whole)
        while bytes(data) == whole:
            edit(data, dice)
        path.write_bytes(data)
        verdict = recording.verdict(path)
        # Nothing that is left of a sealed run passes for a run that was killed: the ledger knows its end.
        if verdict.ok or verdict.status is Status.UNSEALED or verdict.status is Status.WRONG_KEY:
            missed.append((number, edit.__name__, verdict))
    for at in range(1, 43):
        lines, others = whole.splitlines(keepends=True), spliced.splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:at] + others[at:]))
        if recording.verdict(path).ok:
            missed.append((at, "splice", recording.verdict(path)))
    assert missed == []


def test_random_edits_of_an_unsigned_end_are_seen_or_look_like_a_crash(recording: Recording) -> None:
    whole = recording.trace(20, seal=False).read_bytes()
    path = recording.directory / "edited.jsonl"
    dice = random.Random(1)
    for number in range(300):
        data = bytearray(whole)
        ALL_EDITS[number % len(ALL_EDITS)](data, dice)
        path.write_bytes(data)
        assert not recording.verdict(path).ok


@pytest.mark.parametrize("edit", [flip, cut_out, insert_bytes, key_twice, swap_lines], ids=lambda edit: edit.__name__)
def test_edited_old_trace_never_crashes(tmp_path: Path, edit: Callable[[bytearray, random.Random], None]) -> None:
    old = Path(__file__).parents[3] / "spec/trace/vectors/files/old_python.jsonl"
    path = tmp_path / "old.jsonl"
    dice = random.Random(2)
    for _ in range(100):
        data = bytearray(old.read_bytes())
        edit(data, dice)
        path.write_bytes(data)
        assert verify(path, Trust()).status in set(Status)


def _scan() -> _Scan:
    return _Scan(Entry(0, 0.0, "meta", "", {}, None, GENESIS, GENESIS), Trust(()), check_each=False)


def _state(scan: _Scan) -> tuple[object, ...]:
    return scan._head, scan._count, scan._offset, scan._tree.root()


def _linked(befores: list[bytes], dice: random.Random) -> bytearray:
    """Lines of which each states the hash of itself, its end in one of several forms."""
    text, head = bytearray(), GENESIS.encode()
    for before in befores:
        end = dice.choice(
            [b',"ts":17.25,"v":2}', b',"ts":1,"v":2}', b',1"ts":1,"v":2}', b',"ts":"x","v":2}', b',"v":2}']
        )
        digits = hashlib.sha256(head + before + end).hexdigest().encode()
        head = dice.choice([digits] * 9 + [digits.upper()])
        text += before + b',"sha":"' + head + b'"' + end + b"\n"
    return text


def test_what_is_accepted_in_few_steps_is_accepted_line_by_line_and_nothing_else() -> None:
    dice = random.Random(7)
    nested = b'{"args":{"sha":"' + b"ab" * 32 + b'","ts":1,"v":2}'
    starts = [b'{"args":{},"i":1', b'{"args":{"a":",\\"sha\\":\\""}', nested, nested + b',"i":5', b"", b"5"]
    accepted = [0, 0]
    for _ in range(3000):
        text = _linked(dice.choices(starts, k=dice.randrange(1, 4)), dice)
        for edit in dice.choices([flip, replace_byte, insert_bytes, cut_out], k=dice.choice([0, 0, 0, 1])):
            edit(text, dice)
        if not text.endswith(b"\n"):
            text += b"\n"
        quick, slow = _scan(), _scan()
        first, second = quick._chain_as_written(bytes(text)), slow._chain_by_commas(bytes(text))
        accepted = [accepted[0] + first, accepted[1] + second]
        assert second or not first, text
        if first:
            assert _state(quick) == _state(slow)
    assert 100 < accepted[0] < accepted[1]


def test_checkpoints_below_a_good_seal_need_no_look_and_everything_they_cover_is_hashed(recording: Recording) -> None:
    path = recording.trace(600)
    first = Entry(0, 0.0, record.RUN_START, "", {"run": "run-1", "policy_sha256": "p" * 64}, None, GENESIS, GENESIS)
    anchors = []
    for seals_only in (True, False):
        scan = _Scan(first, recording.trust, check_each=False, seals_only=seals_only)
        with path.open("rb") as file:
            assert scan.run(file)
        assert scan.last_is_good()
        anchor = scan.anchor
        anchors.append((anchor.offset, anchor.count, anchor.head, anchor.tree.root(), anchor.sealed, anchor.key))
    assert anchors[0] == anchors[1]
    assert anchors[0][0] == path.stat().st_size


def test_lines_hashed_to_follow_a_seal_are_seen_though_the_last_is_a_good_seal_too(recording: Recording) -> None:
    path = recording.trace(3)
    lines = path.read_bytes().split(b"\n")[:-1]
    again = rehash([*lines, lines[-2], lines[-1]], lambda fields: None, len(lines))
    path.write_bytes(b"".join(line + b"\n" for line in again))
    assert not recording.verdict(path).ok


def test_prefix_of_every_length_of_a_killed_run_is_unsealed_or_torn(recording: Recording) -> None:
    whole = recording.trace(5, seal=False).read_bytes()
    first = whole.index(b"\n") + 1
    path = recording.directory / "prefix.jsonl"
    for size in range(first, len(whole) + 1):
        path.write_bytes(whole[:size])
        expected = Status.UNSEALED if whole[size - 1 : size] == b"\n" else Status.TORN
        assert recording.verdict(path).status is expected


def test_prefix_that_ends_before_what_the_ledger_knows_is_truncated(recording: Recording) -> None:
    writer = recording.writer(clock=clock_of(100.0, 102.0, 102.1, 104.5, 104.6))
    for _ in range(8):
        writer.append("effect", "clock.now", {})
    writer.flush()
    writer.close()
    lines = writer.path.read_bytes().splitlines(keepends=True)
    standing = recording.ledger.find("run-1")
    assert standing is not None
    assert 3 < standing.count < len(lines)
    for count in range(1, len(lines) + 1):
        writer.path.write_bytes(b"".join(lines[:count]))
        expected = Status.TRUNCATED if count < standing.count else Status.UNSEALED
        assert recording.verdict(writer.path).status is expected


def test_checkpoints_say_how_much_of_a_killed_run_is_signed(recording: Recording) -> None:
    path = recording.trace(600, seal=False)
    verdict = recording.verdict(path)
    assert (verdict.status, verdict.count, verdict.signed_count) == (Status.UNSEALED, 604, 514)


def test_edit_is_named_by_its_index_wherever_it_is(recording: Recording) -> None:
    lines = recording.trace(600).read_bytes().splitlines(keepends=True)
    path = recording.directory / "edited.jsonl"
    for at in (0, 1, 255, 256, 257, 400, 514, 600, len(lines) - 1):
        changed = lines[:]
        changed[at] = changed[at].replace(b'"ts":1', b'"ts":2')
        path.write_bytes(b"".join(changed))
        verdict = recording.verdict(path)
        assert (verdict.status, verdict.index) == (Status.EDITED, at)


def test_own_former_key_is_trusted_and_a_named_other_key_is_not(recording: Recording) -> None:
    path = recording.trace(3)
    recording.store.replace()
    assert recording.verdict(path).ok
    other = Trust((SigningKey(b"o" * 32).public,), None, explicit=True)
    assert verify(path, other).status is Status.WRONG_KEY
    assert verify(path, Trust()).status is Status.WRONG_KEY


def test_ledger_that_knows_another_end_of_a_run_is_believed(recording: Recording, tmp_path: Path) -> None:
    path = recording.trace(3)
    second = recording.trace(4)
    assert recording.verdict(path).status is Status.REHASHED
    assert recording.verdict(second).ok
    assert verify(path, Trust(recording.store.trusted(), Ledger(tmp_path / "none"))).ok


def test_signed_trace_rewritten_in_the_old_form_is_refused_in_its_place(recording: Recording) -> None:
    old = Path(__file__).parents[3] / "spec/trace/vectors/files/old_python.jsonl"
    recording.trace(3, "0123abcd")
    place = recording.directory / "runs" / "0123abcd"
    place.mkdir(parents=True)
    (place / "trace.jsonl").write_bytes(old.read_bytes())
    link = recording.directory / "trace.jsonl"
    link.symlink_to(place / "trace.jsonl")
    assert recording.verdict(link).status is Status.REHASHED
    (place / "trace.jsonl").rename(recording.directory / "moved.jsonl")
    assert recording.verdict(recording.directory / "moved.jsonl").ok


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "device"])
def test_path_that_is_no_regular_file_is_an_error_with_a_hint(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / kind
    if kind == "directory":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(TraceError) as caught:
        verify(path, Trust())
    assert caught.value.hint


@pytest.mark.parametrize("start", [b"", b'{"args":{'], ids=["from the start", "after a good start"])
def test_line_without_an_end_does_not_fill_the_memory(recording: Recording, start: bytes) -> None:
    path = recording.directory / "long.jsonl"
    if start:
        path.write_bytes(recording.trace(2, seal=False).read_bytes() + start)
    os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 3 << 30)
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from agentbox.trace.verdict import Trust\n"
        "from agentbox.trace.verify import verify\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "print(verify(Path(sys.argv[1]), Trust()).status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() in {"edited", "not_a_trace"}, done.stderr


def test_memory_does_not_grow_with_the_trace(recording: Recording) -> None:
    def peak_kb(path: Path) -> int:
        code = (
            "import resource, sys\n"
            "from pathlib import Path\n"
            "from agentbox.trace.keys import KeyStore\n"
            "from agentbox.trace.verdict import Trust\n"
            "from agentbox.trace.verify import verify\n"
            "assert verify(Path(sys.argv[1]), Trust(KeyStore(Path(sys.argv[2])).trusted())).ok\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        arguments = [sys.executable, "-c", code, str(path), str(recording.store.directory)]
        return int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)

    small, large = recording.trace(2000), recording.trace(60_000)
    assert large.stat().st_size > 20 * small.stat().st_size
    assert peak_kb(large) - peak_kb(small) < 4096
