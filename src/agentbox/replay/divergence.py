# SPDX-License-Identifier: MIT
"""A place where a run is not what was recorded: what was expected, what came, and where the program stands."""

from __future__ import annotations

from agentbox.records import StrEnum, dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_MAX_SHOWN_CHARACTERS = 300
_MAX_DIFF_LINES = 60
_MAX_COMPARED_LINES = 5000


class DivergenceKind(StrEnum):
    """What is different. The first five are seen before the command starts."""

    TRACE = "trace"
    POLICY = "policy"
    COMMAND = "command"
    INTERPRETER = "interpreter"
    INPUT = "input"
    DIFFERENT = "different"
    NEW = "new"
    MISSING = "missing"
    DENIAL = "denial"
    UNANSWERABLE = "unanswerable"
    EXIT_CODE = "exit_code"
    OUTPUT = "output"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent stands: a line, counted from 1, of a file."""

    file: str
    line: int

    @classmethod
    def of(cls, at: Any) -> Place | None:
        """The place that a guest claims, None where it claims none."""
        if not isinstance(at, dict):
            return None
        file, line = at.get("file"), at.get("line")
        if isinstance(file, str) and file and type(line) is int and line >= 0:
            return cls(file[:_MAX_SHOWN_CHARACTERS], line)
        return None


@dataclass(frozen=True, slots=True)
class Divergence:
    """`step` is the number of a record of the trace, as `agentbox show` counts them: the one that was expected, or the
    one after the last of its lane. `expected` and `observed` are what was recorded and what came, None for nothing."""

    kind: DivergenceKind
    step: int
    message: str
    lane: str = ""
    expected: Mapping[str, Any] | None = None
    observed: Mapping[str, Any] | None = None
    place: Place | None = None
    diff: tuple[str, ...] = field(default_factory=tuple)

    def lines(self) -> list[str]:
        """Text for a person, the first line by itself enough."""
        where = f" at {self.place.file}:{self.place.line}" if self.place else ""
        lane = f" (lane {self.lane})" if self.lane not in ("", "main") else ""
        return [f"{self.message}{lane}{where}", *self.diff]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": str(self.kind),
            "step": self.step,
            "message": self.message,
            "lane": self.lane,
            "expected": self.expected,
            "observed": self.observed,
            "file": self.place.file if self.place else None,
            "line": self.place.line if self.place else None,
            "diff": list(self.diff),
        }


def shown(op: str, args: Mapping[str, Any]) -> str:
    """A step in a few words: its operation and what it is about."""
    import json

    for name in ("path", "url", "argv", "call", "host", "address", "target"):
        value = args.get(name)
        if value is None:
            continue
        if isinstance(value, list):
            value = " ".join(str(one) for one in value)
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        more = f" -> {args['to']}" if isinstance(args.get("to"), str) else ""
        more += f" sha256 {args['sha256'][:12]}" if isinstance(args.get("sha256"), str) else ""
        return _cut(f"{op} {text}{more}")
    return _cut(f"{op} {json.dumps(args, sort_keys=True)}" if args else op)


# What the two sides of a diff are called.
SIDES = ("recorded", "replayed")


def json_diff(
    expected: Mapping[str, Any] | None, observed: Mapping[str, Any] | None, sides: tuple[str, str] = SIDES
) -> tuple[str, ...]:
    """A unified diff of two JSON objects, a line for each member."""
    import json

    def lines(value: Mapping[str, Any] | None) -> list[str]:
        return [] if value is None else json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False).split("\n")

    return unified(lines(expected), lines(observed), sides)


def text_diff(expected: bytes, observed: bytes) -> tuple[str, ...]:
    """A unified diff of two outputs; bytes that are no UTF-8 are shown escaped."""

    def lines(data: bytes) -> list[str]:
        return data.decode("utf-8", "backslashreplace").splitlines()[:_MAX_COMPARED_LINES]

    return unified(lines(expected), lines(observed))


def unified(expected: list[str], observed: list[str], sides: tuple[str, str] = SIDES) -> tuple[str, ...]:
    """The diff of two lists of lines, cut after some."""
    import difflib

    found = [_cut(line) for line in difflib.unified_diff(expected, observed, *sides, lineterm="", n=2)]
    if len(found) > _MAX_DIFF_LINES:
        found = [*found[:_MAX_DIFF_LINES], f"... {len(found) - _MAX_DIFF_LINES} more lines"]
    return tuple(found)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}..."
