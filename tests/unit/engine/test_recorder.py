# SPDX-License-Identifier: MIT
"""The recorder over its real socket, writing a real trace."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentbox.engine.counting import Counting, Sizes
from agentbox.engine.recorder import Recorder
from agentbox.errors import TraceError
from agentbox.policy.parser import parse
from agentbox.trace import frames
from agentbox.workspace.tree import Tree
from tests.unit.trace.recording import Recording

POLICY = "read-once: ./key\nwrite: ./out max=100"


class Recorded:
    """A recorder that listens, and guards that connect to it."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.recording = Recording(directory)
        self.writer = self.recording.writer(**options)
        self.failures: list[TraceError] = []
        self.denials: list[tuple[str, dict[str, Any], int]] = []
        self.recorder = Recorder(
            self.writer, self.failures.append, on_denial=lambda *denial: self.denials.append(denial)
        )
        self.path = str(directory / "channel")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        (directory / "out").mkdir()
        top = os.open(directory, os.O_RDONLY)
        self.counting = Counting(parse(POLICY, root="/work"), Sizes(Tree(top), "/work"))
        os.close(top)

    def listen(self, *, enforced: bool = True) -> None:
        self.recorder.listen(self.listener, self.counting, enforced=enforced)

    async def connect(self) -> Guard:
        return Guard(*await asyncio.open_unix_connection(self.path))

    async def finish(self) -> list[dict[str, Any]]:
        """End and read the trace."""
        await self.recorder.finish(0, {})
        self.listener.close()
        return [json.loads(line) for line in self.writer.path.read_text().splitlines()]


class Guard:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.parser = frames.FrameParser()

    def send(self, kind: str, op: str, args: dict[str, Any], **more: Any) -> None:
        self.writer.write(frames.encode({"id": 1, "kind": kind, "op": op, "args": args, **more}))

    async def ask(self, kind: str, op: str, args: dict[str, Any], **more: Any) -> dict[str, Any]:
        self.send(kind, op, args, ack=True, **more)
        async with asyncio.timeout(20):
            while True:
                for message in self.parser.feed(await self.reader.read(1 << 16)):
                    return message

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncIterator[Recorded]:
    found = Recorded(tmp_path)
    yield found
    await found.recorder.finish(0, {})
    found.listener.close()


def of(records: list[dict[str, Any]], kind: str) -> list[tuple[str, dict[str, Any], str]]:
    return [(one["op"], one["args"], one["origin"]) for one in records if one["kind"] == kind]


async def test_what_a_guard_claims_is_recorded_as_its_claim(recorded: Recorded) -> None:
    recorded.listen()
    guard = await recorded.connect()
    guard.send("observe", "fs.open_read", {"path": "/a"}, lane="main.1")
    assert await guard.ask("observe", "fs.open_write", {"path": "/b"}) == {"id": 1, "ok": True}
    await guard.close()
    records = await recorded.finish()
    claims = [one for one in records if one["kind"] == "observe"]
    assert [(one["op"], one["origin"], one["pid"]) for one in claims] == [
        ("fs.open_read", "guest", os.getpid()),
        ("fs.open_write", "guest", os.getpid()),
    ]
    assert claims[0]["lane"] == "main.1"


async def test_an_answer_comes_when_the_record_is_in_the_file(recorded: Recorded) -> None:
    recorded.listen()
    guard = await recorded.connect()
    await guard.ask("observe", "fs.remove", {"path": "/a"})
    assert '"/a"' in recorded.writer.path.read_text()
    await guard.close()


async def test_denials_of_guards_are_handed_on_with_the_place_of_their_record(recorded: Recorded) -> None:
    recorded.listen()
    guard = await recorded.connect()
    guard.send("deny", "read", {"target": "/etc/passwd", "enforced": True})
    await guard.close()
    records = await recorded.finish()
    [(op, args, index)] = recorded.denials
    assert (op, args["target"]) == ("read", "/etc/passwd")
    assert (records[index]["kind"], records[index]["op"], records[index]["i"]) == ("deny", "read", index)


async def test_a_flood_of_one_denial_is_a_handful_of_records_that_add_up(recorded: Recorded) -> None:
    recorded.listen()
    first, second = await recorded.connect(), await recorded.connect()
    for _ in range(2_500):
        for guard in (first, second):
            guard.send("deny", "net", {"target": "192.0.2.1:53", "enforced": True})
    await first.close()
    await second.close()
    report = {"pid": 5, "exe": "/bin/rm", "argv": ["rm"], "allowed": False, "reason": "no rule names this program"}
    for _ in range(300):
        recorded.recorder.seen({"spawn": report})
    records = await recorded.finish()
    denied = [(op, args.get("count", 1)) for op, args, _ in of(records, "deny")]
    assert sum(count for op, count in denied if op == "net") == 5_000
    assert sum(count for op, count in denied if op == "exec") == 300
    assert len(denied) == 5 + 4
    assert recorded.recorder.counts["deny"] == 5_300
    assert [op for op, _, _ in recorded.denials] == ["net"]


async def test_a_guest_that_breaks_the_protocol_again_and_again_writes_little(recorded: Recorded) -> None:
    recorded.listen()
    for _ in range(12):
        guard = await recorded.connect()
        guard.writer.write(b"\0\0\0\0")
        assert await guard.reader.read() == b""
        await guard.close()
    records = await recorded.finish()
    told = [args.get("count", 1) for op, args, _ in of(records, "observe") if op == "frame.refused"]
    assert told == [1, 9, 2]


async def test_a_second_process_is_denied_a_file_that_is_read_once(recorded: Recorded) -> None:
    recorded.listen()
    args = {"path": "/work/key", "identity": "1:7", "once": True}
    first, second = await recorded.connect(), await recorded.connect()
    assert (await first.ask("observe", "fs.open_read", args))["ok"]
    answer = await second.ask("observe", "fs.open_read", args)
    assert answer == {"id": 1, "ok": False, "denied": True, "error": "policy denies read /work/key"}
    await first.close()
    await second.close()
    records = await recorded.finish()
    assert [one[0] for one in of(records, "observe")] == ["fs.open_read"]
    denied = {"target": "/work/key", "enforced": True, "reason": "this file was read before"}
    assert of(records, "deny") == [("read", denied, "supervisor")]


async def test_bytes_are_granted_until_the_cap_and_leave_no_record(recorded: Recorded, tmp_path: Path) -> None:
    recorded.listen()
    guard = await recorded.connect()
    (tmp_path / "out/a").touch()
    found = (tmp_path / "out/a").stat()
    args = {"path": "/work/out/a", "identity": f"{found.st_dev}:{found.st_ino}"}
    assert (await guard.ask("count", "fs.write", {**args, "size": 60}))["result"] == {"size": 60}
    answer = await guard.ask("count", "fs.write", {**args, "size": 101})
    assert (answer["ok"], answer["denied"]) == (False, True)
    await guard.close()
    records = await recorded.finish()
    assert of(records, "observe") == []
    assert [one[1]["reason"] for one in of(records, "deny")] == ["the files below it would pass 100 bytes"]


async def test_a_denial_that_is_only_observed_says_so_in_its_record(recorded: Recorded) -> None:
    recorded.listen(enforced=False)
    guard = await recorded.connect()
    for _ in range(2):
        await guard.ask("observe", "fs.open_read", {"path": "/work/key", "identity": "1:7", "once": True})
    await guard.close()
    assert [one[1]["enforced"] for one in of(await recorded.finish(), "deny")] == [False]


@pytest.mark.parametrize("args", [{}, {"path": 7, "identity": [], "size": "x"}, {"path": "/x" * 9000, "size": -1}])
async def test_a_forged_count_is_refused_and_the_others_go_on(recorded: Recorded, args: dict[str, Any]) -> None:
    recorded.listen()
    forger, honest = await recorded.connect(), await recorded.connect()
    assert (await forger.ask("count", "fs.write", args))["ok"] is False
    assert (await honest.ask("observe", "fs.remove", {"path": "/a"}))["ok"] is True
    await forger.close()
    await honest.close()


async def test_a_guest_that_breaks_the_protocol_loses_its_connection_alone(recorded: Recorded) -> None:
    recorded.listen()
    forger, honest = await recorded.connect(), await recorded.connect()
    forger.send("meta", "trace.seal", {})
    assert await forger.reader.read() == b""
    assert (await honest.ask("observe", "fs.remove", {"path": "/a"}))["ok"] is True
    await honest.close()
    records = await recorded.finish()
    assert ("frame.refused", {"reason": "fields"}, "supervisor") in of(records, "observe")


def last_of(records: list[dict[str, Any]]) -> str:
    """The last operation before the seal; checkpoints come at any time."""
    return [record["op"] for record in records[:-1] if record["op"] != "trace.checkpoint"][-1]


async def test_what_waits_in_the_sockets_is_recorded_before_the_end(recorded: Recorded) -> None:
    recorded.listen()
    guard = await recorded.connect()
    for number in range(1000):
        guard.send("observe", "fs.open_read", {"path": f"/{number}"})
    await guard.writer.drain()
    await guard.close()
    records = await recorded.finish()
    assert len(of(records, "observe")) == 1000
    assert last_of(records) == "run.end"
    assert recorded.recording.verdict(recorded.writer.path).status == "ok"


async def test_a_trace_that_grew_too_long_refuses_effects_and_is_reported_once(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, max_bytes=2000)
    recorded.listen()
    guard = await recorded.connect()
    answers = [await guard.ask("observe", "fs.remove", {"path": "x" * 500}) for _ in range(8)]
    assert answers[0]["ok"] is True
    assert answers[-1]["ok"] is False
    assert len(recorded.failures) == 1
    await guard.close()
    records = await recorded.finish()
    assert last_of(records) == "run.end"


async def test_reports_of_the_kernel_are_records_of_the_kernel(recorded: Recorded) -> None:
    spawn = {"pid": 9, "exe": "/bin/ls", "argv": ["ls"], "allowed": True, "reason": "exec: ls"}
    recorded.recorder.seen({"spawn": spawn})
    recorded.recorder.seen({"spawn": {**spawn, "exe": "/bin/id", "allowed": False, "reason": "no rule allows it"}})
    recorded.recorder.seen({"witness": {"pid": 9, "op": "open_read", "path": "/etc/passwd"}})
    records = await recorded.finish()
    assert [(op, origin) for op, _, origin in of(records, "observe")] == [
        ("proc.exec", "kernel"),
        ("fs.open_read", "kernel"),
    ]
    assert [(op, args["target"]) for op, args, _ in of(records, "deny")] == [("exec", "/bin/id")]
