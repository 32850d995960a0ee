# SPDX-License-Identifier: MIT
"""A trace as a replay reads it: the steps of each lane, what spawns gave, which files were written, how it ended."""

from __future__ import annotations

from agentbox.records import dataclass, field
from agentbox.trace import record
from agentbox.trace.storable import args_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from agentbox.trace.record import Entry

MAIN = "main"
CLOCK_VALUES = "clock.values"
PROC_SPAWN = "proc.spawn"
PROC_RESULT = "proc.result"
FILE_WRITTEN = "fs.written"
# The device and number of a file are others in a copy.
_NOT_COMPARED = frozenset({"identity"})


class Step:
    """One thing that happened in a lane. `call` is set for a value of a clock."""

    # Some ten thousand of them in a long run.
    __slots__ = ("_text", "args", "call", "index", "kind", "op", "result")

    def __init__(
        self, index: int, kind: str, op: str, args: dict[str, Any], result: Any = None, call: list[Any] | None = None
    ) -> None:
        self.index = index
        self.kind = kind
        self.op = op
        self.args = args
        self.result = result
        self.call = call
        self._text: str | None = None

    @property
    def text(self) -> str:
        """The canonical text of what must be equal."""
        if self._text is None:
            self._text = "" if self.call is not None else compared_text(self.args)
        return self._text

    def as_dict(self) -> dict[str, Any]:
        """What a report shows of it."""
        if self.call is not None:
            return {"kind": "clock", "op": str(self.call[0]), "args": {}}
        return {"kind": self.kind, "op": self.op, "args": self.args}


@dataclass(frozen=True, slots=True)
class Denied:
    """A denial, by what it is compared with: how often it came does not count."""

    op: str
    target: str


@dataclass(slots=True)
class Recording:
    """One recorded run. `start` and `end` are the arguments of its first record and of its end (None without one);
    `lanes` the steps by lane, in their order; `denials` and `written` by what they are about, with their records;
    `spawned` what started programs gave, by the record of the start; `reached` the hosts and ports that the gateway
    connected it to."""

    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    end_index: int = 0
    lanes: dict[str, list[Step]] = field(default_factory=dict)
    denials: dict[Denied, int] = field(default_factory=dict)
    spawned: dict[int, dict[str, Any]] = field(default_factory=dict)
    written: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    reached: set[tuple[str, Any]] = field(default_factory=set)

    @property
    def total(self) -> int:
        """Steps of all lanes together."""
        return sum(map(len, self.lanes.values()))

    @property
    def policy_sha256(self) -> str:
        """The policy under which it ran."""
        return str(self.start.get("policy_sha256") or "")

    @property
    def argv(self) -> list[str]:
        """The command."""
        argv = self.start.get("argv")
        return [str(word) for word in argv] if isinstance(argv, list) else []

    @property
    def seed(self) -> str:
        """What its randomness came from, '' where it was not recorded for a replay."""
        return str(self.start.get("random_seed") or "")

    def changes_files(self) -> bool:
        """Whether anything in it wrote, renamed or removed a file, or may have."""
        ops = {step.op for steps in self.lanes.values() for step in steps}
        return (
            bool(self.written)
            or PROC_SPAWN in ops
            or any(op.startswith("fs.") for op in ops - {"fs.open_read", "fs.read_text"})
        )


def recording_of(entries: Iterable[Entry]) -> Recording:
    """What a trace tells, whatever it is."""
    found = Recording()
    for entry in entries:
        add(found, entry)
    return found


def add(found: Recording, entry: Entry) -> list[Step] | None:
    """Take a record into a recording. The steps to which it was added where it is one step
    and nothing else: another record that differs only in its place is one more of the same."""
    if entry.kind == "meta":
        if entry.op == record.RUN_START and not found.start:
            found.start = entry.args
        elif entry.op == record.RUN_END:
            found.end, found.end_index = entry.args, entry.i
        return None
    lane = entry.lane or MAIN
    if entry.kind == "deny":
        if entry.origin in ("guest", "supervisor") and is_compared(lane):
            found.denials.setdefault(denied_of(entry.op, entry.args), entry.i)
        return None
    if entry.op == FILE_WRITTEN and entry.origin == "supervisor":
        found.written[str(entry.args.get("path"))] = (entry.i, entry.args)
        return None
    if entry.origin == "gateway" and entry.op == "net.connect":
        found.reached.add((str(entry.args.get("host")), entry.args.get("port")))
    if entry.origin != "guest":
        return None
    if entry.op == PROC_RESULT:
        spawn = entry.args.get("spawn")
        if type(spawn) is int:
            found.spawned[spawn] = entry.args
        return None
    if not is_compared(lane) or entry.op.startswith("hook."):
        return None
    steps = found.lanes.setdefault(lane, [])
    if entry.op == CLOCK_VALUES:
        calls = entry.args.get("calls")
        for call in calls if isinstance(calls, list) else ():
            steps += [Step(entry.i, "clock", entry.op, {}, call=one) for one in calls_of(call)]
        return None
    steps.append(Step(entry.i, entry.kind, entry.op, entry.args, entry.result))
    return steps


def calls_of(call: Any) -> list[list[Any]]:
    """The calls that an element of a `clock.values` stands for: one, or one and others of the same clock, told by how
    much later they were. None for what no guard of ours sends."""
    if not isinstance(call, list) or not 2 <= len(call) <= 3 or not isinstance(call[0], str):
        return []
    found = [call[:2]]
    if len(call) == 2 or not isinstance(call[2], list):
        return found
    try:
        at = int(call[1])
        for step in call[2]:
            if isinstance(step, list):
                # So many calls saw the same.
                found[-1] = [call[0], found[-1][1], int(step[0]) + 1]
            else:
                at += int(step)
                found.append([call[0], str(at)])
    except (ValueError, TypeError, IndexError):
        return []
    return found


def is_compared(lane: str) -> bool:
    """Whether what happens in a lane is part of a replay: not what an effect did inside itself, which is served whole,
    and not what another program did."""
    return not (lane.startswith("!") or ">" in lane)


def compared_text(args: dict[str, Any]) -> str:
    """The canonical text of what must be equal of two steps' arguments."""
    if _NOT_COMPARED.isdisjoint(args):
        return args_text(args)
    return args_text({name: value for name, value in args.items() if name not in _NOT_COMPARED})


def denied_of(op: str, args: dict[str, Any]) -> Denied:
    """What a denial is compared by."""
    target = args.get("target")
    return Denied(op, target if isinstance(target, str) else args_text({"target": target}))
