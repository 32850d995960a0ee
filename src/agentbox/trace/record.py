# SPDX-License-Identifier: MIT
"""What one line of a trace is: its fields, its bytes and its hash. spec/trace/README.md is the specification."""

from __future__ import annotations

from agentbox.light import digests
from agentbox.records import dataclass, field
from agentbox.trace.canonical import NotCanonicalError, dumps, loads, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Kind = Literal["meta", "effect", "observe", "deny"]
    Origin = Literal["supervisor", "gateway", "guest", "kernel"]

VERSION = 2
GENESIS = "0" * 64
# Arguments and result are capped when they are written (storable.py); what else a line holds is short.
MAX_LINE_BYTES = 2 << 20

KINDS = frozenset({"meta", "effect", "observe", "deny"})
ORIGINS = frozenset({"supervisor", "gateway", "guest", "kernel"})

RUN_START = "run.start"
RUN_END = "run.end"
CHECKPOINT = "trace.checkpoint"
SEAL = "trace.seal"

_REQUIRED = frozenset({"args", "i", "kind", "op", "origin", "prev", "sha", "ts", "v"})
_OPTIONAL = frozenset({"lane", "pid", "result"})
_OLD_REQUIRED = frozenset({"args", "i", "kind", "op", "prev", "sha", "ts"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One record. `ts` is in seconds since 1970; `version` is 1 for the form that had no `v`."""

    i: int
    ts: float
    kind: str
    op: str
    args: dict[str, Any]
    result: Any
    prev: str
    sha: str
    version: int = VERSION
    origin: str = ""
    pid: int | None = None
    lane: str | None = None
    fields: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


def spelled(
    kind: str,
    op: str,
    args: str,
    *,
    result: str | None = None,
    origin: str = "supervisor",
    pid: int | None = None,
    lane: str | None = None,
) -> tuple[str, str, str]:
    """What of a line does not depend on its place in the trace: before `i`, between `i` and the hash before it, and
    between that and its own. `args` and `result` are canonical texts, the strings hold no half characters.

    Raises ValueError for a kind or origin that is none.
    """
    if kind not in KINDS or origin not in ORIGINS:
        raise ValueError(f"{kind} by {origin} is no record")
    return (
        f'{{"args":{args},"i":',
        f',"kind":"{kind}"'
        f'{"" if lane is None else f""","lane":{quoted(lane)}"""}'
        f',"op":{quoted(op)},"origin":"{origin}"'
        f'{"" if pid is None else f""","pid":{pid}"""},"prev":"',
        '"' if result is None else f'","result":{result}',
    )


def timestamp(microseconds: int) -> str:
    """Seconds since 1970 as a canonical number; exact until the year 2255."""
    text = repr(microseconds / 1e6)
    return text[:-2] if text.endswith(".0") else text


def body_hash(prev: str, fields: dict[str, Any]) -> str:
    """The hash that a record with these fields, `sha` left out, must carry. Raises NotCanonicalError."""
    body = dumps({name: value for name, value in fields.items() if name != "sha"})
    return digests.sha256((prev + body).encode()).hexdigest()


def parse(line: bytes) -> Entry:
    """A line of either form, without its line end.

    Raises NotCanonicalError: a reason of `canonical.loads`, or `shape` when it is JSON but no record.
    """
    fields = loads(line)
    if not isinstance(fields, dict):
        raise NotCanonicalError("shape", "not an object")
    version = fields.get("v", 1)
    names = fields.keys()
    if version == VERSION and type(version) is int:
        _expect(names >= _REQUIRED and names <= _REQUIRED | _OPTIONAL, "its fields")
        _expect(fields["origin"] in ORIGINS and fields["kind"] in KINDS, "kind or origin")
        _expect(_is_count(fields.get("pid", 0)), "pid")
        _expect(isinstance(fields.get("lane", ""), str), "lane")
    else:
        _expect("v" not in fields, "its version")
        _expect(names >= _OLD_REQUIRED, "its fields")
        _expect(isinstance(fields["kind"], str), "kind")
    _expect(_is_count(fields["i"]), "i")
    _expect(type(fields["ts"]) in (int, float) and fields["ts"] >= 0, "ts")
    _expect(isinstance(fields["op"], str) and isinstance(fields["args"], dict), "op or args")
    _expect(_is_hash(fields["prev"]) and _is_hash(fields["sha"]), "prev or sha")
    return Entry(
        i=fields["i"],
        ts=fields["ts"],
        kind=fields["kind"],
        op=fields["op"],
        args=fields["args"],
        result=fields.get("result"),
        prev=fields["prev"],
        sha=fields["sha"],
        version=version,
        origin=fields.get("origin", "") if version == VERSION else "",
        pid=fields.get("pid") if version == VERSION else None,
        lane=fields.get("lane") if version == VERSION else None,
        fields=fields,
    )


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise NotCanonicalError("shape", f"{what} cannot be those of a record")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and not value.strip("0123456789abcdef")
