# SPDX-License-Identifier: MIT
"""A trace's file as a recording: what repeats is parsed once, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

from agentbox.replay.reading import recording_in, replayable
from agentbox.replay.recording import Recording
from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.record import RUN_END
from agentbox.trace.writer import Run, TraceWriter

# Names and members that look like the borders of a record.
STRANGE = '/a","i":7,"kind":"observe","prev":"' + "0" * 64 + '","sha":"'


def _steps(recording: Recording) -> dict[str, list[tuple[object, ...]]]:
    return {
        lane: [(one.index, one.kind, one.op, one.args, one.result, one.call) for one in steps]
        for lane, steps in recording.lanes.items()
    }


def test_records_that_repeat_are_read_as_each_for_itself(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    path = tmp_path / "trace.jsonl"
    run = Run("run-1", "p" * 64, {"argv": ["x"], "random_seed": "5e" * 32})
    writer = TraceWriter(path, run, keys.load_or_create(), Ledger(keys.ledger_path))
    for _ in range(3):
        for name, lane in (("/a", "main"), ("/b", "main"), ("/a", "main.0"), (STRANGE, "main"), ("/a", STRANGE[:20])):
            writer.append("observe", "fs.open_read", {"path": name, "sha256": "x"}, origin="guest", pid=3, lane=lane)
        writer.append("observe", "x.y", {"i": 5, "prev": {"i": 7}, "sha": "s"}, origin="guest", pid=3, lane="main")
        writer.append("effect", "clock.now", {}, result=1.5, origin="guest", pid=3, lane="main")
        writer.append("effect", "rand.random", {}, result={"prev": STRANGE}, origin="guest", pid=3, lane="main")
        writer.append("observe", "clock.values", {"calls": [["t", 1], ["t", 2]]}, origin="guest", pid=3, lane="main")
        writer.append("observe", "proc.exec", {"argv": ["x"]}, origin="kernel", pid=4)
        writer.append("observe", "fs.open_read", {"path": "/a"}, origin="guest", pid=3, lane="!main")
        writer.append("deny", "read", {"target": "/c", "enforced": True}, origin="guest", pid=3, lane="main")
    writer.append("meta", RUN_END, {"returncode": 0})
    writer.seal()
    found, careful = replayable(path), recording_in(path)
    assert _steps(found) == _steps(careful)
    assert (found.total, len(found.lanes)) == (3 * 10, 3)
    assert (found.denials, found.start, found.end) == (careful.denials, careful.start, careful.end)
