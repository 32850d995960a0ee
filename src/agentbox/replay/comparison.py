# SPDX-License-Identifier: MIT
"""The end of a replay against the end that was recorded, and what must fit before one begins."""

from __future__ import annotations

from agentbox.records import dataclass, field
from agentbox.replay.divergence import Divergence, DivergenceKind, json_diff, text_diff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from agentbox.replay.recording import Recording

STREAMS = ("stdout", "stderr", "output", "terminal")


@dataclass(frozen=True, slots=True)
class Written:
    """What a command wrote to one stream. `held` is as much of it as was kept."""

    size: int
    sha256: str
    held: bytes = b""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a replay ended. `files` are those that it changed: what each is now, None for one that is gone."""

    exit_code: int
    streams: Mapping[str, Written] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a replay would run under."""

    policy_sha256: str
    argv: tuple[str, ...]
    directory: str
    python: str
    interpreter: Mapping[str, Any]
    stdin: Mapping[str, Any]
    script: Mapping[str, Any] | None = None


def preconditions(recording: Recording, now: Conditions) -> list[Divergence]:
    """What does not fit, before anything is started: policy, command, interpreter, stdin."""
    found = []
    start = recording.start
    if recording.policy_sha256 != now.policy_sha256:
        found.append(
            _before(
                DivergenceKind.POLICY,
                "the policy is not the one that it was recorded under",
                {"policy_sha256": recording.policy_sha256},
                {"policy_sha256": now.policy_sha256},
            )
        )
    if recording.argv != list(now.argv):
        found.append(
            _before(
                DivergenceKind.COMMAND,
                "the command is another than was recorded",
                {"argv": recording.argv},
                {"argv": list(now.argv)},
            )
        )
    if start.get("directory") not in (None, now.directory):
        found.append(
            _before(
                DivergenceKind.COMMAND,
                f"it was recorded in the directory {start['directory']}, not in {now.directory}",
                {"directory": start["directory"]},
                {"directory": now.directory},
            )
        )
    recorded = start.get("interpreter")
    if isinstance(recorded, dict) and not found and recorded != dict(now.interpreter):
        found.append(
            _before(
                DivergenceKind.INTERPRETER,
                "the interpreter is another than the one that it was recorded with",
                recorded,
                now.interpreter,
            )
        )
    stdin = start.get("stdin")
    if isinstance(stdin, dict) and stdin.get("kind") == "file" and stdin != dict(now.stdin):
        found.append(_before(DivergenceKind.INPUT, "stdin is not what it was when it was recorded", stdin, now.stdin))
    return found


def changed_code(recording: Recording, now: Conditions) -> str:
    """What to say of an entry script that is not the recorded one, '' where it is."""
    recorded = recording.start.get("script")
    if not isinstance(recorded, dict) or now.script is None or recorded == dict(now.script):
        return ""
    return f"{recorded.get('path')} was changed since it was recorded"


def compare_ends(
    recording: Recording, ending: Ending, read: Callable[[Mapping[str, Any]], bytes | None]
) -> list[Divergence]:
    """What is different at the end: output, files, exit code. `read` gives recorded bytes, where they were kept."""
    end, index = recording.end or {}, recording.end_index
    found = [
        divergence
        for name in STREAMS
        if name in end and (divergence := _stream(name, end[name], ending.streams.get(name), index, read)) is not None
    ]
    found += _files(recording, ending)
    if end.get("returncode") != ending.exit_code:
        found.append(
            Divergence(
                DivergenceKind.EXIT_CODE,
                index,
                f"step {index}: recorded exit code {end.get('returncode')}, but the program exited with"
                f" {ending.exit_code}",
                expected={"exit_code": end.get("returncode")},
                observed={"exit_code": ending.exit_code},
            )
        )
    return found


def _stream(
    name: str,
    recorded: Mapping[str, Any],
    written: Written | None,
    index: int,
    read: Callable[[Mapping[str, Any]], bytes | None],
) -> Divergence | None:
    now = written or Written(0, "")
    if recorded.get("typed"):
        # What was typed is shown among what was written, where nobody can tell it apart.
        return None
    if recorded.get("sha256") == now.sha256:
        return None
    before = read(recorded) if recorded.get("bytes") else b""
    facts = {key: recorded.get(key) for key in ("bytes", "sha256")}
    return Divergence(
        DivergenceKind.OUTPUT,
        index,
        f"step {index}: {name} is not what was recorded: {facts['bytes']} bytes then, {now.size} now",
        expected={"stream": name, **facts},
        observed={"stream": name, "bytes": now.size, "sha256": now.sha256},
        diff=() if before is None else text_diff(before, now.held),
    )


def _files(recording: Recording, ending: Ending) -> list[Divergence]:
    found = []
    for path, (index, args) in recording.written.items():
        if args.get("found") is True and path not in ending.files:
            # Nobody saw who changed it: it may not have been the run.
            continue
        after = args.get("after")
        now = ending.files.get(path, args.get("before"))
        if _content(after) != _content(now):
            found.append(
                Divergence(
                    DivergenceKind.FILE,
                    index,
                    f"step {index}: {path} {_state(now)} after the replay, and {_state(after)} after the recorded run",
                    expected={"path": path, "after": after},
                    observed={"path": path, "after": now},
                    diff=json_diff(_content(after), _content(now)),
                )
            )
    end = recording.end_index
    found += [
        Divergence(
            DivergenceKind.FILE,
            end,
            f"step {end}: the replay changed {path}, which the recorded run did not",
            expected={"path": path},
            observed={"path": path, "after": now},
        )
        for path, now in ending.files.items()
        if path not in recording.written
    ]
    return found


def _content(state: Any) -> dict[str, Any] | None:
    """What is compared of a file: not where its bytes are kept, nor its times."""
    if not isinstance(state, dict):
        return None
    return {name: value for name, value in state.items() if name in ("bytes", "sha256", "directory", "link", "mode")}


def _state(state: Any) -> str:
    if not isinstance(state, dict):
        return "is not there"
    if "link" in state:
        return f"is a link to {state['link']}"
    return "is a directory" if state.get("directory") else f"has sha256 {str(state.get('sha256'))[:12]}"


def _before(
    kind: DivergenceKind, message: str, expected: Mapping[str, Any] | None, observed: Mapping[str, Any] | None
) -> Divergence:
    return Divergence(kind, 0, message, expected=expected, observed=observed, diff=json_diff(expected, observed))
