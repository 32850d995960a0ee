# SPDX-License-Identifier: MIT
"""Frozen types that travel between rooms: request, limits, result. Bytes become these once, at an edge."""

from __future__ import annotations

from agentbox.records import StrEnum, dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


# The owner of everything where one key, or none, is known.
DEFAULT_OWNER = "default"


class Outcome(StrEnum):
    """How a run ended."""

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    OOM_KILLED = "oom_killed"
    OUTPUT_LIMITED = "output_limited"
    KILLED = "killed"


class Layer(StrEnum):
    """What holds a resource. `supervisor` is the host's own process watching and killing, which can be late;
    every other layer decides before the effect happens."""

    VM = "vm"
    KERNEL = "kernel"
    GATEWAY = "gateway"
    SUPERVISOR = "supervisor"
    INTERPRETER = "interpreter"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Which layer held each resource during a run, as probed on this host."""

    filesystem: Layer = Layer.NONE
    network: Layer = Layer.NONE
    exec: Layer = Layer.NONE
    memory: Layer = Layer.NONE
    pids: Layer = Layer.NONE
    cpu: Layer = Layer.NONE
    disk: Layer = Layer.NONE


@dataclass(frozen=True, slots=True)
class RequestedLimits:
    """Limits as the caller asked for them; None means the operator's default."""

    timeout_seconds: int | None = None
    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_mb: int | None = None
    max_output_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Effective limits: request, defaults and ceiling combined. All are always set; megabytes are 2**20 bytes."""

    timeout_seconds: float
    memory_mb: int
    cpus: float
    pids: int
    disk_mb: int
    max_output_bytes: int


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One execution, as asked for. `files` maps a relative POSIX path to content; `policy` is the text of one; `trace`
    asks for a trace where the operator does not record every run; `record` for one that can be replayed; `owner` is the
    key's name."""

    code: str
    language: str = "python"
    limits: RequestedLimits = RequestedLimits()
    snapshot: bool = False
    snapshot_id: str | None = None
    egress_allowlist: tuple[str, ...] | None = None
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    backend: str | None = None
    return_files: tuple[str, ...] = ()
    policy: str | None = None
    trace: bool = False
    record: bool = False
    owner: str = DEFAULT_OWNER


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds: waiting for a place, 0 where one was free; building the box; running the program.

    `start` is what was ready before: `warm`, box and interpreter; `forked`, an interpreter that forked into a new box;
    `made`, the view in which a box was made; `cold`, nothing.
    """

    queued_ms: float
    start_ms: float
    run_ms: float
    start: str = "cold"


@dataclass(frozen=True, slots=True)
class Usage:
    """What the box used, from the kernel's counters; None where this host has no such counter.

    `processes` counts processes and threads that were started inside, the interpreter included.
    """

    cpu_ms: float | None
    max_memory_bytes: int | None
    processes: int | None


@dataclass(frozen=True, slots=True)
class CapturedStream:
    """A bounded capture: `data` is everything, or the head half and the tail half of `total_bytes`."""

    data: bytes
    total_bytes: int

    @property
    def truncated(self) -> bool:
        """Whether bytes between head and tail were dropped."""
        return self.total_bytes > len(self.data)


@dataclass(frozen=True, slots=True)
class Denial:
    """Something that the policy did not allow: `effect` is read, write, net, exec or env, `layer` what held it. `rule`
    is the rule that denies it, or `rule_missing` one that would allow it, where either can be told. `trace_index` is
    its record. `hint` says what would help."""

    layer: Layer
    effect: str
    target: str
    reason: str
    trace_index: int
    rule: str | None = None
    rule_missing: str | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """What went to and came from one host during a run."""

    connections: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True)
class TraceHead:
    """How long a sealed trace is, in records, and the hash of its last one."""

    count: int
    sha: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """Everything that is known after a run. `exit_code` is 128+n after signal n."""

    run_id: str
    outcome: Outcome
    exit_code: int
    signal: int | None
    stdout: CapturedStream
    stderr: CapturedStream
    duration_ms: int
    language: str
    backend: str
    limits: Limits
    enforcement: Enforcement
    timings: Timings
    usage: Usage
    oom_killed: bool
    network_isolated: bool
    egress_allowlist: tuple[str, ...] = ()
    snapshot_id: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    denials: tuple[Denial, ...] = ()
    trace: TraceHead | None = None
    egress: Mapping[str, HostTraffic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileGrant:
    """A path that a box may read, and write when `writable`, with everything below it.

    `held_by` is KERNEL where the grant can be given exactly, INTERPRETER where the path is wider than the rule and
    only the guard can narrow it. A path that is not `present` cannot be mounted; a program may want to make it.
    """

    path: str
    writable: bool
    present: bool
    held_by: Layer
    rule: str


@dataclass(frozen=True, slots=True)
class FileDenial:
    """A path taken out of the grants, with everything below it: `hidden`, or else read-only.

    One that is not `present` can be refused by the guard only, until something makes it.
    """

    path: str
    hidden: bool
    present: bool
    rule: str


@dataclass(frozen=True, slots=True)
class ProgramRule:
    """An exec rule: the resolved file, the words its argv begins with (the first is its name), the directories of
    programs that come with it. `program` None matches nothing, or in a denial every program of that name."""

    deny: bool
    program: str | None
    words: tuple[str, ...]
    libexec: tuple[str, ...]
    rule: str


@dataclass(frozen=True, slots=True)
class TextRule:
    """A rule for environment variables or hosts, by its value."""

    deny: bool
    value: str
    rule: str


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a box may touch, compiled from policy and limits; isolation backends are handed this, never a policy.

    `read_only` are directories of the interpreter. The rest is empty where a run has no policy. `programs`,
    `variables` and `hosts` hold one tuple for each policy, and every policy must allow. `interpreter_only` are the
    rules that no layer below the guard can hold completely. `image` is what the box is made of, where that is not the
    host's own view.
    """

    limits: Limits
    read_only: tuple[str, ...] = ()
    files: tuple[FileGrant, ...] = ()
    file_denials: tuple[FileDenial, ...] = ()
    programs: tuple[tuple[ProgramRule, ...], ...] = ()
    variables: tuple[tuple[TextRule, ...], ...] = ()
    hosts: tuple[tuple[TextRule, ...], ...] = ()
    interpreter_only: tuple[str, ...] = ()
    policy_sha256: str | None = None
    image: str = ""


def parse_allowlist(entries: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Lower-case, de-duplicated `host[:port]` entries in their order. Raises ValueError that names the bad entry."""
    import re

    for entry in entries:
        port = entry.rpartition(":")[2] if ":" in entry else "1"
        if not re.match(r"[A-Za-z0-9._-]+(:\d{1,5})?\Z", entry) or not 1 <= int(port) <= 65535:
            raise ValueError(f"Invalid egress allowlist entry: {entry!r}")
    return tuple(dict.fromkeys(entry.lower() for entry in entries))
