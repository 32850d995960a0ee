# SPDX-License-Identifier: MIT
"""Where a replay stands in what was recorded: a position in each lane, moved by what the program does now.

Order across lanes is not compared. The first divergence is kept; after it nothing matches any more.
"""

from __future__ import annotations

from agentbox.records import dataclass
from agentbox.replay.divergence import Divergence, DivergenceKind, Place, json_diff, shown
from agentbox.replay.recording import MAIN, PROC_SPAWN, Denied, Step, compared_text, denied_of, is_compared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.replay.recording import Recording

MAX_SERVED_CALLS = 1024
# So many steps are looked at, and so much of them is served, before they are asked for.
MAX_AHEAD_STEPS = 256
MAX_AHEAD_CHARACTERS = 64 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """What a guest is told: a result, or that it diverged; `step` is the one that matched, if one did."""

    result: Any = None
    divergence: Divergence | None = None
    step: Step | None = None
    denied: bool = False


class Cursor:
    """Answers a program from a recording. `divergence` is the first that was met, None as long as everything
    is as it was."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        # How many steps of each lane are done.
        self.positions: dict[str, int] = {}
        self._seen_denials: set[Denied] = set()
        self.divergence: Divergence | None = None

    @property
    def matched(self) -> int:
        """Steps that happened again."""
        return sum(self.positions.values())

    @property
    def total(self) -> int:
        """Steps that were recorded."""
        return self._recording.total

    @property
    def reached(self) -> set[tuple[str, Any]]:
        """Hosts and ports outside the box that the recorded run was connected to."""
        return self._recording.reached

    def steps(self, lane: str) -> list[Step]:
        """All steps of a lane."""
        return self._recording.lanes.get(lane, [])

    def last(self, lane: str) -> Step | None:
        """The step of a lane that was done last."""
        position = self.positions.get(lane, 0)
        return self._recording.lanes[lane][position - 1] if position else None

    def asked(self, kind: str, lane: str | None, op: str, args: dict[str, Any], at: Any = None) -> Answer:
        """An effect that is about to happen, or an observation. An effect is answered with its recorded result, the
        spawn of a program with what it gave."""
        lane = lane or MAIN
        if not is_compared(lane):
            return Answer()
        step = self._next(lane, at)
        if step is None or step.call is not None or (step.kind, step.op) != (kind, op):
            return self._other(lane, step, kind, op, args, at)
        if step.args != args and step.text != compared_text(args):
            return self._other(lane, step, kind, op, args, at)
        self.positions[lane] += 1
        if kind == "effect":
            return Answer(step.result, step=step)
        if op != PROC_SPAWN:
            return Answer(step=step)
        given = self._recording.spawned.get(step.index)
        if given is None:
            return self.unanswerable(
                lane, step, "the recording does not tell what the program gave, and no program is started again", at
            )
        return Answer({name: value for name, value in given.items() if name not in ("spawn", "files")}, step=step)

    def again(self, lane: str | None, op: str, args: dict[str, Any]) -> bool:
        """A short way for an observation that needs no answer and came before: whether it is what comes next. When it
        is not, nothing has happened."""
        lane = lane or MAIN
        steps, position = self._recording.lanes.get(lane), self.positions.get(lane, 0)
        if steps is None or position >= len(steps) or self.divergence is not None:
            return False
        step = steps[position]
        if step.op != op or step.call is not None or step.kind != "observe" or step.args != args:
            return False
        self.positions[lane] = position + 1
        return True

    def expects(self, lane: str | None, op: str, args: dict[str, Any], at: Any = None) -> bool:
        """Whether that observation is what comes next in a lane."""
        step = self._next(lane or MAIN, at)
        return step is not None and step.call is None and step.op == op and step.text == compared_text(args)

    def calls(self, lane: str | None, name: str, at: Any = None) -> Answer:
        """The next values of clocks in a lane, for a program that calls `name` now."""
        lane = lane or MAIN
        if not is_compared(lane):
            return Answer({"calls": []})
        step = self._next(lane, at)
        if step is None or step.call is None or step.call[0] != name:
            return self._other(lane, step, "clock", name, {}, at)
        return self._served(lane, step)

    def calls_ahead(self, lane: str | None, at: Any = None) -> Answer:
        """As `calls`, for a program that wants to know what it will call; none where something else comes next."""
        lane = lane or MAIN
        step = self._next(lane, at) if is_compared(lane) else None
        if step is None or step.call is None:
            return Answer({"calls": []})
        return self._served(lane, step)

    def _served(self, lane: str, step: Step) -> Answer:
        start = self.positions[lane]
        steps = self._recording.lanes[lane][start : start + MAX_SERVED_CALLS]
        served = []
        for one in steps:
            if one.call is None:
                break
            served.append(one.call)
        self.positions[lane] = start + len(served)
        return Answer({"calls": served}, step=step)

    def ahead(self, lane: str | None) -> list[list[Any]]:
        """The effects that come next in a lane, whatever is between them: operation, arguments and result."""
        lane = lane or MAIN
        steps = self._recording.lanes.get(lane, [])
        found: list[list[Any]] = []
        left = MAX_AHEAD_CHARACTERS
        for step in steps[self.positions.get(lane, 0) :][:MAX_AHEAD_STEPS]:
            if step.kind != "effect":
                continue
            left -= len(str(step.args)) + len(str(step.result))
            if left < 0:
                break
            found.append([step.op, step.args, step.result])
        return found

    def steps_ahead(self, lane: str | None, at: Any = None) -> list[list[Any]]:
        """What comes next in a lane without a gap, up to what only the host can answer: kind, operation, arguments,
        and the result of an effect."""
        lane = lane or MAIN
        self._next(lane, at)
        start = self.positions.get(lane, 0)
        found: list[list[Any]] = []
        left = MAX_AHEAD_CHARACTERS
        for step in self._recording.lanes.get(lane, [])[start : start + MAX_AHEAD_STEPS]:
            if step.call is not None or step.op == PROC_SPAWN or "once" in step.args:
                break
            left -= len(str(step.args)) + len(str(step.result))
            if left < 0:
                break
            found.append([step.kind, step.op, step.args, step.result])
        return found

    def rest(self, lane: str | None, at: Any = None) -> None:
        """A process ends, and did not use all values of a lane that it was served."""
        self._next(lane or MAIN, at)

    def denied(self, lane: str | None, op: str, args: dict[str, Any], at: Any = None) -> Answer:
        """Something was refused."""
        lane = lane or MAIN
        if not is_compared(lane):
            return Answer()
        found = denied_of(op, args)
        if found in self._recording.denials:
            self._seen_denials.add(found)
            return Answer(denied=True)
        step = self._next(lane, at)
        index = step.index if step is not None else self._after(lane)
        return self._diverged(
            Divergence(
                DivergenceKind.DENIAL,
                index,
                f"step {index}: {op} {found.target} is denied, which was not when it was recorded",
                lane,
                step.as_dict() if step is not None else None,
                {"kind": "deny", "op": op, "args": args},
                Place.of(at),
            )
        )

    def was_denied(self, op: str, target: str) -> bool:
        """Whether the recording has such a denial by the host's own count; then it counts as seen."""
        found = Denied(op, target)
        if found not in self._recording.denials:
            return False
        self._seen_denials.add(found)
        return True

    def unanswerable(self, lane: str, step: Step, why: str, at: Any) -> Answer:
        """What matches and still cannot be given again."""
        return self._diverged(
            Divergence(
                DivergenceKind.UNANSWERABLE,
                step.index,
                f"step {step.index}: {shown(step.op, step.args)} cannot be replayed: {why}",
                lane,
                step.as_dict(),
                step.as_dict(),
                Place.of(at),
            )
        )

    def lost(self, name: str, lane: str | None, at: Any) -> Answer:
        """The bytes of a result are not where they were kept; `name` is their hash."""
        lane = lane or MAIN
        steps = self._recording.lanes.get(lane, [])
        position = self.positions.get(lane, 0)
        # What was served last is what the program asks about.
        step = steps[position - 1] if position else Step(self._after(lane), "serve", "keep.read", {})
        return self.unanswerable(
            lane, step, f"the bytes of its result are not beside the trace, or were changed ({name[:12]})", at
        )

    def unfinished(self) -> list[Divergence]:
        """After the program ended as by itself: what was recorded and did not happen, the first of each lane; denials
        that did not come again."""
        found = []
        for lane, steps in self._recording.lanes.items():
            at = self.positions.get(lane, 0)
            if at < len(steps):
                step, left = steps[at], len(steps) - at
                more = f", and {left - 1} more after it in its lane" if left > 1 else ""
                found.append(
                    Divergence(
                        DivergenceKind.MISSING,
                        step.index,
                        f"step {step.index}: recorded {_named(step)}, but the program ended without it{more}",
                        lane,
                        step.as_dict(),
                    )
                )
        for denial, index in self._recording.denials.items():
            if denial not in self._seen_denials:
                found.append(
                    Divergence(
                        DivergenceKind.DENIAL,
                        index,
                        f"step {index}: recorded a denial of {denial.op} {denial.target}, which did not come again",
                        expected={"kind": "deny", "op": denial.op, "args": {"target": denial.target}},
                    )
                )
        return sorted(found, key=lambda one: one.step)

    def _next(self, lane: str, at: Any) -> Step | None:
        """The step that is next in a lane, after what a process says that it was served and did not use."""
        steps = self._recording.lanes.get(lane, [])
        position = self.positions.get(lane, 0)
        unused = at.get("unused") if isinstance(at, dict) else None
        if type(unused) is int and 0 < unused <= MAX_SERVED_CALLS:
            # No further back than the calls that were served last.
            while unused and position and steps[position - 1].call is not None:
                position -= 1
                unused -= 1
        self.positions[lane] = position
        return steps[position] if position < len(steps) else None

    def _other(self, lane: str, step: Step | None, kind: str, op: str, args: dict[str, Any], at: Any) -> Answer:
        """Something else came than what is next."""
        observed = {"kind": kind, "op": op, "args": args}
        issued = shown(op, args)
        if step is None:
            index = self._after(lane)
            more = "nothing more" if lane in self._recording.lanes else "nothing at all"
            message = f"step {index}: the program goes on with {issued}, but {more} was recorded in its lane"
            return self._diverged(Divergence(DivergenceKind.NEW, index, message, lane, None, observed, Place.of(at)))
        expected = step.as_dict()
        named = _named(step)
        if issued == named and step.call is None:
            members = step.args.keys() | args.keys()
            other = sorted(name for name in members if step.args.get(name) != args.get(name))
            issued = f"it with other {', '.join(other)}" if other else issued
        later = self._later(lane, kind, op, args)
        again = f", which was recorded as step {later}" if later is not None else ""
        message = f"step {step.index}: recorded {named}, but the program does {issued}{again}"
        return self._diverged(
            Divergence(
                DivergenceKind.DIFFERENT,
                step.index,
                message,
                lane,
                expected,
                observed,
                Place.of(at),
                json_diff(expected, observed),
            )
        )

    def _later(self, lane: str, kind: str, op: str, args: dict[str, Any]) -> int | None:
        """Where something that came too early was recorded, in the steps that are next in a lane."""
        start = self.positions.get(lane, 0) + 1
        for step in self._recording.lanes.get(lane, [])[start : start + MAX_AHEAD_STEPS]:
            if kind == "clock":
                if step.call is not None and step.call[0] == op:
                    return step.index
            elif step.call is None and (step.kind, step.op) == (kind, op) and step.text == compared_text(args):
                return step.index
        return None

    def _after(self, lane: str) -> int:
        """Where something belongs that is more than was recorded in a lane: after its last step, and in a lane that
        is new, where the lane stands that began it."""
        lanes = self._recording.lanes
        if steps := lanes.get(lane):
            return steps[-1].index + 1
        while lane := _beginner(lane):
            if steps := lanes.get(lane):
                position = self.positions.get(lane, 0)
                return steps[position].index if position < len(steps) else steps[-1].index + 1
        return self._recording.end_index or 1

    def _diverged(self, divergence: Divergence) -> Answer:
        if self.divergence is None:
            self.divergence = divergence
        return Answer(divergence=divergence)


def _beginner(lane: str) -> str:
    """The lane that began another, '' where the name does not tell."""
    return lane[: max(lane.rfind(mark) for mark in "./:~|")] if any(mark in lane for mark in "./:~|") else ""


def _named(step: Step) -> str:
    return str(step.call[0]) if step.call is not None else shown(step.op, step.args)
