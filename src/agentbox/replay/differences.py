# SPDX-License-Identifier: MIT
"""Two recorded runs held against each other: where they are different first."""

from __future__ import annotations

from agentbox.replay.comparison import STREAMS
from agentbox.replay.divergence import Divergence, DivergenceKind, json_diff, shown
from agentbox.replay.recording import compared_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.replay.recording import Recording, Step

_SIDES = ("one", "other")
# What of the first records says how the runs began, in the order in which it is looked at.
_STARTS = (
    ("policy_sha256", DivergenceKind.POLICY, "the policies are different"),
    ("argv", DivergenceKind.COMMAND, "the commands are different"),
    ("directory", DivergenceKind.COMMAND, "the directories are different"),
    ("interpreter", DivergenceKind.INTERPRETER, "the interpreters are different"),
    ("script", DivergenceKind.COMMAND, "the scripts are different"),
    ("stdin", DivergenceKind.INPUT, "what lies on stdin is different"),
)


def differences(one: Recording, other: Recording) -> list[Divergence]:
    """What is different: how they began, the first different step of each lane in the order of the first trace, and how
    they ended. `expected` and `step` are those of `one`."""
    found = [
        Divergence(kind, 0, text, expected=pair[0], observed=pair[1], diff=json_diff(*pair, _SIDES))
        for name, kind, text in _STARTS
        if one.start.get(name) != other.start.get(name)
        for pair in [({name: one.start.get(name)}, {name: other.start.get(name)})]
    ]
    lanes = {**one.lanes, **other.lanes}
    steps = [
        divergence
        for lane in lanes
        if (divergence := _first_of(lane, one.lanes.get(lane, []), other.lanes.get(lane, []))) is not None
    ]
    found += sorted(steps, key=lambda divergence: divergence.step)
    return found + _denials(one, other) + _ends(one, other)


def _first_of(lane: str, ours: list[Step], theirs: list[Step]) -> Divergence | None:
    for mine, other in zip(ours, theirs, strict=False):
        if not _same(mine, other):
            expected, observed = _told(mine), _told(other)
            theirs_is = "has another result" if _asks_the_same(mine, other) else f"is {_named(other)}"
            message = f"step {mine.index}: {_named(mine)}, which {theirs_is} in the other (step {other.index})"
            return Divergence(
                DivergenceKind.DIFFERENT,
                mine.index,
                message,
                lane,
                expected,
                observed,
                diff=json_diff(expected, observed, _SIDES),
            )
    if len(ours) > len(theirs):
        step = ours[len(theirs)]
        message = f"step {step.index}: {_named(step)}, and nothing more in this lane of the other"
        return Divergence(DivergenceKind.MISSING, step.index, message, lane, _told(step))
    if len(theirs) > len(ours):
        step = theirs[len(ours)]
        index = ours[-1].index + 1 if ours else 1
        message = f"step {index}: nothing more in this lane, and {_named(step)} in the other (step {step.index})"
        return Divergence(DivergenceKind.NEW, index, message, lane, None, _told(step))
    return None


def _same(mine: Step, other: Step) -> bool:
    if mine.call is not None or other.call is not None:
        # What a clock says is another thing each time; which one is asked is the program's own.
        return mine.call is not None and other.call is not None and mine.call[0] == other.call[0]
    if (mine.kind, mine.op, mine.text) != (other.kind, other.op, other.text):
        return False
    return compared_text({"result": mine.result}) == compared_text({"result": other.result})


def _asks_the_same(mine: Step, other: Step) -> bool:
    return mine.call is None and other.call is None and (mine.op, mine.text) == (other.op, other.text)


def _denials(one: Recording, other: Recording) -> list[Divergence]:
    found = [
        Divergence(
            DivergenceKind.DENIAL,
            index,
            f"step {index}: {denial.op} {denial.target} was denied, and not in the other",
            expected={"kind": "deny", "op": denial.op, "args": {"target": denial.target}},
        )
        for denial, index in one.denials.items()
        if denial not in other.denials
    ]
    return found + [
        Divergence(
            DivergenceKind.DENIAL,
            one.end_index,
            f"{denial.op} {denial.target} was denied in the other only (step {index})",
            observed={"kind": "deny", "op": denial.op, "args": {"target": denial.target}},
        )
        for denial, index in other.denials.items()
        if denial not in one.denials
    ]


def _ends(one: Recording, other: Recording) -> list[Divergence]:
    index = one.end_index
    found = []
    for path in sorted({**one.written, **other.written}):
        mine, theirs = one.written.get(path), other.written.get(path)
        after = [None if found_one is None else _content(found_one[1].get("after")) for found_one in (mine, theirs)]
        if after[0] != after[1] or (mine is None) != (theirs is None):
            at = mine[0] if mine else index
            expected, observed = {"path": path, "after": after[0]}, {"path": path, "after": after[1]}
            change = "is different in the end"
            if mine is None or theirs is None:
                change = f"was written by {'the other' if mine is None else 'this run'} only"
            message = f"step {at}: {path} {change}"
            found.append(
                Divergence(
                    DivergenceKind.FILE, at, message, "", expected, observed, diff=json_diff(expected, observed, _SIDES)
                )
            )
    ends = [recording.end or {} for recording in (one, other)]
    for name in STREAMS:
        hashes = [end[name].get("sha256") if isinstance(end.get(name), dict) else None for end in ends]
        if hashes[0] != hashes[1]:
            message = f"step {index}: {name} is different"
            found.append(
                Divergence(DivergenceKind.OUTPUT, index, message, "", {"sha256": hashes[0]}, {"sha256": hashes[1]})
            )
    codes = [end.get("returncode") for end in ends]
    if codes[0] != codes[1]:
        message = f"step {index}: exit code {codes[0]}, and {codes[1]} in the other"
        found.append(
            Divergence(DivergenceKind.EXIT_CODE, index, message, "", {"exit_code": codes[0]}, {"exit_code": codes[1]})
        )
    return found


def _content(state: Any) -> Any:
    if not isinstance(state, dict):
        return None
    return {name: value for name, value in state.items() if name not in ("mtime_ns", "kept")}


def _told(step: Step) -> dict[str, Any]:
    found = step.as_dict()
    return found if step.result is None else {**found, "result": step.result}


def _named(step: Step) -> str:
    return str(step.call[0]) if step.call is not None else shown(step.op, step.args)
