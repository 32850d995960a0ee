# SPDX-License-Identifier: MIT
"""Writes spec/trace/vectors anew: `python -m tests.vectors.make_trace_vectors`. Clock, run id and key are fixed.

`old_python.jsonl` and `old_node.jsonl` were written by agentbox-runtime 0.3.0 and are only read here.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentbox.trace.keys import KeyStore, SigningKey
from agentbox.trace.ledger import Ledger
from agentbox.trace.writer import Run, TraceWriter

VECTORS = Path(__file__).resolve().parents[2] / "spec" / "trace" / "vectors"
OWN = SigningKey(bytes(range(32)))
OTHER = SigningKey(bytes(range(32, 64)))
RUN = Run("run-a", hashlib.sha256(b"read: ./data\n").hexdigest(), {"argv": ["python", "agent.py"], "agentbox": "1.0.0"})
START_NANOSECONDS = 1_796_004_783_000_000_000

RECORDS: list[dict[str, Any]] = [
    {"kind": "effect", "op": "fs.read_text", "args": {"path": "data/café.txt"}, "result": "héllo\n", "origin": "guest",
     "pid": 41, "lane": "main"},
    {"kind": "effect", "op": "clock.now", "args": {}, "result": 1796004783.25, "origin": "guest", "pid": 41,
     "lane": "main"},
    {"kind": "observe", "op": "fs.open_read", "args": {"path": 'a\n{"i":1}\u0000\u001b[2J\u2028\u202e', "bytes": 0},
     "origin": "guest", "pid": 42, "lane": "thread-1"},
    {"kind": "deny", "op": "net", "args": {"target": "evil.test:443", "enforced": True}, "origin": "gateway"},
    {"checkpoint": True},
    {"kind": "effect", "op": "proc.run", "args": {"argv": ["git", "status"]},
     "result": {"code": 0, "stdout": "", "stderr": "", "\ufb33": 1, "\U0001f600": 2}, "origin": "guest", "pid": 41},
    {"kind": "observe", "op": "proc.spawn", "args": {"argv": ["/usr/bin/git", "status"]}, "origin": "kernel",
     "pid": 43},
    {"kind": "effect", "op": "rand.random", "args": {"odd": [1e21, 1e-7, -0.0, 1e16, 0.1, None, True]},
     "result": 5e-324, "origin": "guest", "pid": 41},
    {"kind": "effect", "op": "fs.read_text", "args": {"path": {"b64": "c3Vy/w=="}}, "result": {"truncated": {
        "bytes": 2097152, "sha256": "0" * 64}}, "origin": "guest", "pid": 41, "lane": "main"},
    {"kind": "meta", "op": "run.end", "args": {"returncode": 0}},
]  # fmt: skip


def clock() -> Callable[[], int]:
    """A clock that goes on by 0.01 s at each look, and once goes back by an hour."""
    looks = iter(range(1, 10_000))

    def now() -> int:
        look = next(looks)
        return START_NANOSECONDS + look * 10_000_000 - (3_600_000_000_000 if look == 4 else 0)

    return now


def write(path: Path, records: list[dict[str, Any]], run: Run = RUN, key: SigningKey = OWN, seal: bool = True) -> None:
    """A trace as the product writes it."""
    store = KeyStore(path.parent / f".{path.name}.keys")
    store.directory.mkdir(mode=0o700)
    writer = TraceWriter(path, run, key, Ledger(store.ledger_path), clock=clock())
    for fields in records:
        if "checkpoint" in fields:
            writer.checkpoint()
        else:
            writer.append(**fields)
    if seal:
        writer.seal()
    else:
        writer.flush()
        writer.close()
    store.ledger_path.unlink()
    store.directory.rmdir()


def rehash(lines: list[bytes], edit: Callable[[dict[str, Any]], None], at: int) -> list[bytes]:
    """Edit one entry and compute every later hash anew, as someone without the key can."""
    done = []
    prev = "0" * 64
    for index, line in enumerate(lines):
        fields = json.loads(line)
        if index == at:
            edit(fields)
        fields["prev"] = prev
        del fields["sha"]
        body = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        body = body.replace("1e-07", "1e-7").replace("1e+16", "10000000000000000").replace("-0.0", "0")
        body = body.replace(
            '"stderr":"","stdout":"","\ufb33":1,"\U0001f600":2', '"stderr":"","stdout":"","\U0001f600":2,"\ufb33":1'
        )
        prev = hashlib.sha256((prev + body).encode()).hexdigest()
        done.append(body.replace(',"ts":', f',"sha":"{prev}","ts":').encode())
    return done


def rechain_one(line: bytes, **changes: Any) -> bytes:
    """One entry edited, with the hash of its new content."""
    fields = {**json.loads(line), **changes}
    del fields["sha"]
    body = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    sha = hashlib.sha256((fields["prev"] + body).encode()).hexdigest()
    return body.replace(',"ts":', f',"sha":"{sha}","ts":').encode()


def tampered(whole: list[bytes], other_run: list[bytes]) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Name, bytes and expected finding of every changed copy."""

    def text(lines: list[bytes], end: bytes = b"\n") -> bytes:
        return b"\n".join(lines) + end

    n = len(whole)
    last = n - 1

    def case(name: str, data: bytes, status: str, index: int | None = None, **more: Any) -> Any:
        return name, data, {"status": status, "index": index, **more}

    def changed(at: int, old: bytes, new: bytes) -> list[bytes]:
        assert old in whole[at], (at, old)
        return [*whole[:at], whole[at].replace(old, new, 1), *whole[at + 1 :]]

    yield case("edited_value", text(changed(2, b"1796004783.25", b"1796004783.26")), "edited", 2)
    yield case("edited_after_checkpoint", text(changed(6, b'"git"', b'"rm"')), "edited", 6)
    yield case("edited_first", text(changed(0, b"agent.py", b"other.py")), "edited", 0)
    yield case("edited_last", text(changed(last, b"trace.seal", b"trace.sea1")), "edited", last)
    yield case("edited_sha", text(changed(3, b'"sha":"', b'"sha":"0')), "edited", 3)
    one = json.loads(whole[4])["sha"]
    flipped = ("0" if one[0] != "0" else "1") + one[1:]
    yield case(
        "edited_sha_digit", text(changed(4, f'"sha":"{one}'.encode(), f'"sha":"{flipped}'.encode())), "edited", 4
    )
    yield case("edited_and_hashed", text([*whole[:2], rechain_one(whole[2], result=1), *whole[3:]]), "edited", 2)
    yield case("deleted_middle", text(whole[:3] + whole[4:]), "deleted", 3)
    yield case("deleted_three", text(whole[:7] + whole[10:]), "deleted", 7)
    yield case("deleted_checkpoint", text(whole[:5] + whole[6:]), "deleted", 5)
    yield case("deleted_first", text(whole[1:]), "deleted", 0)
    yield case("inserted_copy", text([*whole[:4], whole[3], *whole[4:]]), "inserted", 4)
    yield case("inserted_forged", text([*whole[:4], rechain_one(whole[4], op="read"), *whole[4:]]), "inserted", 4)
    yield case("inserted_blank_line", text([*whole[:4], b"", *whole[4:]]), "inserted", 4)
    yield case("inserted_garbage", text([*whole[:4], b"# hello", *whole[4:]]), "inserted", 4)
    yield case("inserted_after_seal", text([*whole, whole[1]]), "inserted", n)
    yield case("two_traces_in_one_file", text(whole + other_run), "inserted", n)
    yield case("swapped", text([*whole[:2], whole[3], whole[2], *whole[4:]]), "reordered", 2)
    yield case("moved_to_end", text([*whole[:2], *whole[3:], whole[2]]), "reordered", 2)
    yield case("truncated_seal", text(whole[:-1]), "truncated", last)
    yield case("truncated_two", text(whole[:-2]), "truncated", last - 1)
    yield case("truncated_at_checkpoint", text(whole[:6]), "truncated", 6)
    yield case("truncated_to_first", text(whole[:1]), "truncated", 1)
    yield case("truncated_without_ledger", text(whole[:-2]), "unsealed", None, ledger=False)
    yield case("killed", text(whole[:-2]), "unsealed", None, ledger_count=6)
    yield case("torn", text([*whole[:8], whole[8][:40]], b""), "torn", 8, ledger_count=6)
    yield case("torn_line_end_only", text(whole[:9], b""), "torn", 8, ledger_count=6)
    yield case("torn_seal", text([*whole[:-1], whole[-1][:40]], b""), "torn", last)
    yield case("torn_and_truncated", text([*whole[:8], whole[8][:40]], b""), "truncated", 8)
    yield case("rehashed", text(rehash(whole, lambda e: e.update(op="fs.write_text"), 2)), "rehashed", 0)
    yield case(
        "rehashed_after_checkpoint", text(rehash(whole, lambda e: e.update(op="fs.write_text"), 7)), "rehashed", 6
    )
    yield case(
        "seal_edited_and_hashed",
        text([*whole[:-1], rechain_one(whole[-1], ts=1796004999)]),
        "rehashed",
        6,
        ledger=False,
    )
    yield case(
        "seal_without_signature", text(rehash(whole, lambda e: e["args"].pop("sig"), last)), "rehashed", 6, ledger=False
    )
    cut = rehash(whole[:5], lambda e: e.update(op="fs.write_text"), 2)
    yield case("rehashed_without_signatures", text(cut), "truncated", 5)
    yield case("rehashed_tail_of_killed", text(rehash(whole[:-2], lambda e: e.update(pid=1), 8)), "rehashed", 6,
               ledger_count=9)  # fmt: skip
    yield case("signed_by_other_key", text(other_key(whole)), "wrong_key", None, ledger=False)
    yield case("signed_by_other_key_in_ledger", text(other_key(whole)), "rehashed", 0)
    yield case("spliced_tail", text(whole[:6] + other_run[6:]), "edited", 6)
    yield case("spliced_seal", text([*whole[:-1], other_run[-1]]), "edited", last)
    yield case("respaced", text([*whole[:3], whole[3].replace(b'":', b'": '), *whole[4:]]), "edited", 3)
    back = json.dumps(dict(reversed(json.loads(whole[3]).items())), separators=(",", ":"), ensure_ascii=False).encode()
    yield case("keys_in_other_order", text([*whole[:3], back, *whole[4:]]), "edited", 3)
    yield case("carriage_returns", b"\r\n".join(whole) + b"\r\n", "edited", 0)
    yield case("escaped_letter", text(changed(2, b"clock.now", b"cl\\u006fck.now")), "edited", 2)
    yield case("decomposed_letter", text(changed(1, "é".encode(), "e\u0301".encode())), "edited", 1)
    yield case("half_character", text(changed(2, b"clock.now", b"clock.\\ud800")), "edited", 2)
    yield case("no_utf8", text(changed(2, b"clock.now", b"clock.\xff")), "edited", 2)
    yield case("key_twice", text(changed(3, b'{"args"', b'{"op":"harmless","args"')), "edited", 3)
    yield case(
        "key_twice_inside", text(changed(4, b'"enforced":true', b'"enforced":false,"enforced":true')), "edited", 4
    )
    sha = json.loads(whole[3])["sha"].encode()
    moved = whole[3].replace(b',"sha":"' + sha + b'"', b"").replace(b',"v":2}', b',"sha":"' + sha + b'","v":2}')
    yield case("sha_in_another_place", text([*whole[:3], moved, *whole[4:]]), "edited", 3)
    yield case("number_spelled_otherwise", text(changed(2, b"1796004783.25", b"1796004783.250")), "edited", 2)
    yield case("huge_number", text(changed(2, b"1796004783.25", b"9" * 6000)), "edited", 2)
    yield case("deep_nesting", text(changed(2, b"1796004783.25", b"[" * 3000 + b"]" * 3000)), "edited", 2)
    yield case("version_removed", text([line.replace(b',"v":2}', b"}") for line in whole]), "edited", 0, version=1)
    yield case("empty", b"", "not_a_trace")
    yield case("one_newline", b"\n", "not_a_trace")
    yield case("text", b"agent started\nagent ended\n", "not_a_trace")
    yield case("other_json", b'{"level":"info"}\n{"level":"info"}\n', "not_a_trace")


def other_key(whole: list[bytes]) -> list[bytes]:
    """The same records, written by somebody with another key."""
    path = VECTORS / "files" / "draft.jsonl"
    write(path, RECORDS, key=OTHER)
    lines = path.read_bytes().splitlines()
    path.unlink()
    assert len(lines) == len(whole)
    return lines


def main() -> None:
    """Write everything."""
    files = VECTORS / "files"
    files.mkdir(parents=True, exist_ok=True)
    for path in files.glob("*.jsonl"):
        if not path.name.startswith("old_"):
            path.unlink()
    write(files / "whole.jsonl", RECORDS)
    write(files / "other_run.jsonl", RECORDS, Run("run-b", RUN.policy_sha256, RUN.details))
    whole = (files / "whole.jsonl").read_bytes().split(b"\n")[:-1]
    other_run = (files / "other_run.jsonl").read_bytes().split(b"\n")[:-1]
    verdicts = [{"file": "whole.jsonl", "status": "ok", "index": None}]
    verdicts.append({"file": "whole.jsonl", "status": "wrong_key", "index": None, "key": "other", "ledger": False})
    verdicts.append({"file": "whole.jsonl", "status": "wrong_key", "index": None, "key": "none", "ledger": False})
    for name, data, expected in tampered(whole, other_run):
        (files / f"{name}.jsonl").write_bytes(data)
        verdicts.append({"file": f"{name}.jsonl", **expected})
    verdicts += list(old_verdicts(files))
    head = [{"count": index + 1, "head": json.loads(line)["sha"]} for index, line in enumerate(whole)]
    (VECTORS / "verdicts.json").write_text(
        json.dumps(
            {
                "about": "`status` and `index` that verify finds. Trusted is keys.own, or what `key` says. The ledger"
                " holds the sealed run of whole.jsonl; with `ledger_count` only its first entries, not sealed; with"
                " `ledger`: false nothing.",
                "run": RUN.id,
                "heads": head,
                "keys": {"own": OWN.public.pem(), "other": OTHER.public.pem()},
                "verdicts": verdicts,
            },
            indent=1,
        )
        + "\n"
    )
    (VECTORS / "chain.json").write_text(
        json.dumps(
            {
                "about": "What is recorded, and the file that comes out. The clock goes on by 10 ms at each look and"
                " once goes back by an hour. `seed` is the private key.",
                "seed": base64.b64encode(OWN.seed).decode(),
                "run": {"id": RUN.id, "policy_sha256": RUN.policy_sha256, "details": RUN.details},
                "start_nanoseconds": START_NANOSECONDS,
                "records": RECORDS,
                "file": "whole.jsonl",
            },
            indent=1,
        )
        + "\n"
    )


def old_verdicts(files: Path) -> Iterator[dict[str, Any]]:
    """The two old traces, and what the old rules see and do not see."""
    for name in ("old_python", "old_node"):
        lines = (files / f"{name}.jsonl").read_bytes().splitlines()
        yield {"file": f"{name}.jsonl", "status": "ok", "index": None, "version": 1}
        yield {"file": f"{name}.jsonl", "status": "wrong_key", "index": 0, "version": 1, "explicit": True}
        for what, kept, status, index in (
            ("edited", [*lines[:2], lines[2].replace(b"report", b"report2"), *lines[3:]], "edited", 2),
            ("deleted", [*lines[:2], *lines[3:]], "edited", 2),
            ("truncated", lines[:-2], "ok", None),
            ("key_twice", [*lines[:2], lines[2].replace(b"{", b'{"op":"harmless",', 1), *lines[3:]], "edited", 2),
        ):
            (files / f"changed_{name}_{what}.jsonl").write_bytes(b"\n".join(kept) + b"\n")
            yield {"file": f"changed_{name}_{what}.jsonl", "status": status, "index": index, "version": 1}


if __name__ == "__main__":
    main()
