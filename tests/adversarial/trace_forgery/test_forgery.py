# SPDX-License-Identifier: MIT
"""Attacks on a trace by who can write its file but has not the key: each is seen, most with the entry named."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from agentbox.errors import TraceError
from agentbox.trace.canonical import is_canonical, loads
from agentbox.trace.frames import FrameError, FrameParser, encode, request_of
from agentbox.trace.keys import SigningKey
from agentbox.trace.ledger import Ledger
from agentbox.trace.signature import sign
from agentbox.trace.verdict import Status, Trust
from agentbox.trace.verify import verify
from tests.unit.trace.recording import Recording
from tests.vectors.make_trace_vectors import rehash


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def save(path: Path, lines: list[bytes], end: bytes = b"\n") -> Path:
    out = path.with_name("out.jsonl")
    out.write_bytes(b"\n".join(lines) + end)
    return out


def python_dump(fields: dict[str, object], **options: object) -> bytes:
    defaults: dict[str, object] = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False}
    return json.dumps(fields, **{**defaults, **options}).encode()  # type: ignore[arg-type]


@pytest.fixture
def whole(recording: Recording) -> Path:
    return recording.trace(20)


def test_detects_edited_value(recording: Recording, whole: Path) -> None:
    lines = lines_of(whole)
    at = len(lines) // 2
    fields = json.loads(lines[at])
    lines[at] = python_dump({**fields, "op": fields["op"] + "x"})
    verdict = recording.verdict(save(whole, lines))
    assert (verdict.status, verdict.index) == (Status.EDITED, at)


def test_detects_deleted_line(recording: Recording, whole: Path) -> None:
    lines = lines_of(whole)
    del lines[11]
    verdict = recording.verdict(save(whole, lines))
    assert (verdict.status, verdict.index) == (Status.DELETED, 11)


def test_detects_swapped_lines(recording: Recording, whole: Path) -> None:
    lines = lines_of(whole)
    lines[10], lines[11] = lines[11], lines[10]
    verdict = recording.verdict(save(whole, lines))
    assert (verdict.status, verdict.index) == (Status.REORDERED, 10)


def test_detects_repeated_line(recording: Recording, whole: Path) -> None:
    lines = lines_of(whole)
    verdict = recording.verdict(save(whole, [*lines[:12], lines[11], *lines[12:]]))
    assert (verdict.status, verdict.index) == (Status.INSERTED, 12)


@pytest.mark.parametrize("dropped", [1, 2, 10, 22])
def test_detects_truncated_tail(recording: Recording, whole: Path, dropped: int) -> None:
    cut = save(whole, lines_of(whole)[:-dropped])
    verdict = recording.verdict(cut)
    assert (verdict.status, verdict.index) == (Status.TRUNCATED, verdict.count)
    elsewhere = verify(cut, Trust(recording.store.trusted()))
    assert elsewhere.status is Status.UNSEALED
    assert "a cut end would look the same" in elsewhere.detail


def test_detects_rewrite_of_the_whole_chain(recording: Recording, whole: Path) -> None:
    lines = rehash(lines_of(whole), lambda fields: fields.update(op="forged.op"), 1)
    assert all(is_canonical(line, loads(line)) for line in lines)
    for trust in (recording.trust, Trust(recording.store.trusted())):
        assert verify(save(whole, lines), trust).status is Status.REHASHED


def test_detects_rewrite_signed_with_the_attackers_key(recording: Recording, whole: Path) -> None:
    attacker = SigningKey(b"e" * 32)

    def sign_again(fields: dict[str, object]) -> None:
        args = fields["args"]
        assert isinstance(args, dict)
        args |= {"key": attacker.public.id, "head": prev}
        args["sig"] = sign({**fields, "prev": prev}, attacker)

    lines = rehash(lines_of(whole), lambda fields: fields.update(op="forged.op"), 1)
    prev = json.loads(lines[-2])["sha"]
    forged = save(whole, rehash(lines, sign_again, len(lines) - 1))
    assert not recording.verdict(forged).ok
    assert not verify(forged, Trust(recording.store.trusted())).ok


@pytest.mark.parametrize("change", ["drop the seal", "replace the seal by a record"])
def test_detects_rewrite_without_signatures(recording: Recording, whole: Path, change: str) -> None:
    lines = lines_of(whole)
    if change == "drop the seal":
        lines = rehash(lines[:-1], lambda fields: fields.update(op="forged.op"), 1)
    else:
        lines = rehash(lines, lambda fields: fields.update(op="clock.now", args={}), len(lines) - 1)
    assert not recording.verdict(save(whole, lines)).ok


def test_byte_spelling_is_exact(recording: Recording, whole: Path) -> None:
    lines = lines_of(whole)
    at = 11
    fields = json.loads(lines[at])
    respaced = [*lines[:at], python_dump(fields, separators=(", ", ": ")), *lines[at + 1 :]]
    reordered = [*lines[:at], python_dump(dict(reversed(fields.items())), sort_keys=False), *lines[at + 1 :]]
    for changed in (respaced, reordered):
        verdict = recording.verdict(save(whole, changed))
        assert (verdict.status, verdict.index) == (Status.EDITED, at)
    returns = whole.with_name("crlf.jsonl")
    returns.write_bytes(b"\r\n".join(lines) + b"\r\n")
    assert recording.verdict(returns).status is Status.EDITED


def test_detects_duplicate_keys(recording: Recording, whole: Path) -> None:
    lines = lines_of(whole)
    lines[11] = lines[11].replace(b"{", b'{"op":"looks.harmless","args":{"path":"docs/readme"},', 1)
    verdict = recording.verdict(save(whole, lines))
    assert (verdict.status, verdict.index) == (Status.EDITED, 11)
    assert "duplicate" in verdict.detail


def test_unicode_forms_are_different_bytes(recording: Recording, whole: Path) -> None:
    lines = lines_of(whole)
    at = next(number for number, line in enumerate(lines) if not line.isascii())
    text = lines[at].decode()
    forms = [
        text.replace('"op":"f', '"op":"\\u0066', 1),
        unicodedata.normalize("NFD", text),
        text.replace('"op":"', '"op":"\\ud800', 1),
    ]
    for form in forms:
        assert form != text
        verdict = recording.verdict(save(whole, [*lines[:at], form.encode(), *lines[at + 1 :]]))
        assert (verdict.status, verdict.index) == (Status.EDITED, at)


def test_torn_last_line_is_not_called_tampering_and_is_never_continued(recording: Recording) -> None:
    path = recording.trace(20, seal=False)
    lines = lines_of(path)
    path.write_bytes(b"\n".join([*lines[:-1], lines[-1][: len(lines[-1]) // 2]]))
    verdict = recording.verdict(path)
    assert (verdict.status, verdict.index, verdict.tampered) == (Status.TORN, len(lines) - 1, False)
    torn = path.read_bytes()
    recording.trace(1, "run-2")
    assert path.read_bytes() == torn


def test_writers_that_start_together_get_one_file(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from agentbox.errors import TraceError\n"
        "from agentbox.trace.keys import KeyStore\n"
        "from agentbox.trace.ledger import Ledger\n"
        "from agentbox.trace.writer import Run, TraceWriter\n"
        "store = KeyStore(Path(sys.argv[1]) / 'keys')\n"
        "key = store.load_or_create()\n"
        "try:\n"
        "    writer = TraceWriter(Path(sys.argv[1]) / 't.jsonl', Run(sys.argv[2], '0' * 64, {}), key,"
        " Ledger(store.ledger_path))\n"
        "except TraceError as error:\n"
        "    sys.exit('exists already' not in error.message and 2 or 3)\n"
        "for number in range(300): writer.append('effect', 'clock.now', {'n': number})\n"
        "writer.seal()\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"run-{number}"]) for number in range(6)]
    assert sorted(process.wait() for process in started) == [0, 3, 3, 3, 3, 3]
    recording = Recording(tmp_path)
    verdict = recording.verdict(tmp_path / "t.jsonl")
    assert verdict.status is Status.OK
    assert verdict.count >= 303


@pytest.mark.parametrize(
    "attack",
    [
        lambda path: path.open("a").write('{"op":"forged"}\n'),
        lambda path: os.truncate(path, 10),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.symlink_to("/dev/null")),
        lambda path: (path.rename(path.with_name("old")), path.write_text("{}\n")),
        lambda path: os.link(path, path.with_name("hard")) or path.with_name("hard").open("r+").write("#"),
    ],
    ids=["append", "truncate", "unlink", "link in its place", "file in its place", "through a hard link"],
)
def test_attack_on_the_open_file_never_leaves_a_trace_that_verifies(
    recording: Recording, attack: Callable[[Path], object]
) -> None:
    writer = recording.writer()
    writer.append("effect", "fs.write_text", {"path": "secret"})
    writer.flush()
    attack(writer.path)
    writer.append("meta", "run.end", {"returncode": 0})
    with contextlib.suppress(TraceError):
        writer.seal()
    found = recording.verdict(writer.path).status if writer.path.is_file() else None
    assert found is not Status.OK


def test_injected_text_stays_inside_one_line(recording: Recording) -> None:
    names = [
        'a\n{"i":1,"op":"forged"}', "esc\x1b[2J\x1b]0;pwn\x07", "u2028\u2028x", "sur\udcff", "n" * 300, "nul\0x",
        "rtl\u202etxt.exe", "x" * (1 << 20),
    ]  # fmt: skip
    writer = recording.writer()
    for name in names:
        writer.append("deny", "read", {"target": name, "enforced": True}, origin="guest")
    writer.seal()
    lines = lines_of(writer.path)
    assert len(lines) == len(names) + 2
    assert all(is_canonical(line, loads(line)) for line in lines)
    assert recording.verdict(writer.path).ok


@pytest.mark.parametrize("at", [1, 5, 20, 22])
def test_detects_tail_of_another_run(recording: Recording, at: int) -> None:
    one, other = recording.trace(20, "run-a"), recording.trace(20, "run-b")
    spliced = save(one, lines_of(one)[:at] + lines_of(other)[at:])
    assert recording.verdict(spliced).tampered
    assert not verify(spliced, Trust(recording.store.trusted())).ok


def test_detects_tail_of_another_run_that_was_hashed_to_fit(recording: Recording) -> None:
    one, other = recording.trace(20, "run-a"), recording.trace(20, "run-b")
    lines = rehash(lines_of(one)[:10] + lines_of(other)[10:], lambda fields: None, 0)
    assert recording.verdict(save(one, lines)).status is Status.REHASHED
    assert verify(save(one, lines), Trust(recording.store.trusted())).status is Status.REHASHED


def test_detects_header_of_another_policy(recording: Recording, whole: Path) -> None:
    def other_policy(fields: dict[str, object]) -> None:
        args = fields["args"]
        assert isinstance(args, dict)
        args["policy_sha256"] = "0" * 64

    lines = rehash(lines_of(whole), other_policy, 0)
    assert verify(save(whole, lines), Trust(recording.store.trusted())).status is Status.REHASHED


def test_detects_old_form_in_place_of_a_signed_trace(recording: Recording, whole: Path) -> None:
    def downgrade(lines: list[bytes]) -> list[bytes]:
        done, prev = [], "0" * 64
        for line in lines[:-1]:
            fields = {name: value for name, value in json.loads(line).items() if name not in {"v", "sha", "origin"}}
            fields["prev"] = prev
            prev = hashlib.sha256((prev + python_dump(fields).decode()).encode()).hexdigest()
            done.append(python_dump({**fields, "sha": prev}))
        return done

    forged = save(whole, downgrade(lines_of(whole)))
    assert verify(forged, Trust(recording.store.trusted(), explicit=True)).status is Status.WRONG_KEY
    place = recording.directory / "runs" / "run-1"
    place.mkdir(parents=True)
    forged.rename(place / "trace.jsonl")
    assert recording.verdict(place / "trace.jsonl").status is Status.REHASHED


def test_guest_cannot_write_the_hosts_records() -> None:
    for kind, op in (("meta", "run.end"), ("meta", "trace.seal"), ("meta", "trace.checkpoint")):
        (message,) = FrameParser().feed(encode({"id": 1, "kind": kind, "op": op, "args": {}}))
        with pytest.raises(FrameError):
            request_of(message)


def test_record_of_a_guest_that_looks_like_a_seal_seals_nothing(recording: Recording) -> None:
    writer = recording.writer()
    real = json.loads(lines_of(recording.trace(1, "run-0"))[-1])["args"]
    writer.append("effect", "trace.seal", real, origin="guest")
    writer.append("effect", "fs.read_text", {"count": 1, "x": '"op":"trace.seal"'}, result=real, origin="guest")
    writer.flush()
    writer.close()
    assert recording.verdict(writer.path).status is Status.UNSEALED
    second = recording.writer("run-2")
    second.append("observe", "trace.checkpoint", real, origin="guest")
    second.seal()
    assert recording.verdict(second.path).ok


def test_deleted_ledger_takes_no_evidence_from_a_sealed_trace(recording: Recording, whole: Path) -> None:
    recording.store.ledger_path.unlink()
    assert recording.verdict(whole).ok
    lines = rehash(lines_of(whole), lambda fields: fields.update(op="x"), 2)
    assert verify(save(whole, lines), Trust(recording.store.trusted(), Ledger(whole.with_name("no")))).tampered


@pytest.mark.parametrize("records", [3, 700])
def test_killed_writer_leaves_a_trace_whose_verdict_is_true(tmp_path: Path, records: int) -> None:
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from agentbox.trace.keys import KeyStore\n"
        "from agentbox.trace.ledger import Ledger\n"
        "from agentbox.trace.writer import Run, TraceWriter\n"
        "store = KeyStore(Path(sys.argv[1]) / 'keys')\n"
        "writer = TraceWriter(Path(sys.argv[1]) / 't.jsonl', Run('r', '0' * 64, {}), store.load_or_create(),"
        " Ledger(store.ledger_path))\n"
        "for number in range(int(sys.argv[2])): writer.append('effect', 'clock.now', {'n': number})\n"
        "writer.flush()\n"
        "writer.append('effect', 'clock.now', {'lost': True})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), str(records)], check=False)
    assert done.returncode == -9
    verdict = Recording(tmp_path).verdict(tmp_path / "t.jsonl")
    assert verdict.status is Status.UNSEALED
    assert verdict.count > records
    assert verdict.count - verdict.signed_count <= 257
    assert b"lost" not in (tmp_path / "t.jsonl").read_bytes()
