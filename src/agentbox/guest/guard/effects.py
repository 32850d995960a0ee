# SPDX-License-Identifier: MIT
"""What happens with a verdict: a record for the host, and a refusal that the program understands.

A refusal is returned, not raised: the hook raises it from a frame in which nothing of the guard is left.
"""

from __future__ import annotations

import sys
from posix import write

from .channel import Channel, frame_of, text_of
from .lanes import Lanes
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_EACCES = 13
_MAX_TARGET = 4096
_LIBRARY = (str(getattr(sys.modules.get("encodings"), "__file__", "")).rpartition("/encodings/")[0] or "<none>") + "/"
_PACKAGES = ("/site-packages/", "/dist-packages/")


@sealed
class Effects:
    """Records and refusals of one process.

    `enforce` is false when denials are only written down; `strict` is true when there is no wall around the process,
    so that doors which a wall would hold are closed here as far as an interpreter can; `replay` asks the host before
    everything; `recorded` is true in a replay and in a run that can be replayed. `own_code` is where the guard's own
    frames come from.
    """

    def __init__(
        self,
        channel: Channel,
        lanes: Lanes,
        enforce: bool,
        strict: bool,
        replay: bool,
        recorded: bool = False,
        own_code: str = "",
    ) -> None:
        self.channel = channel
        self.lanes = lanes
        self.enforce = enforce
        self.strict = strict
        self.replay = replay
        self.recorded = recorded or replay
        # In a run that can be replayed: what the clocks said is told before anything else of a lane is.
        self.clocks: Any = None
        # Where a program stands is said by the innermost frame of none of these.
        self._below = (*([own_code] if own_code else []), _LIBRARY, "<frozen ")

    def deny(self, op: str, target: str, more: Any = None) -> Any:
        """Record a denial, with `more` members beside the target. Gives the error to raise, None when denials are not
        enforced."""
        return self.deny_again(self.denial(op, target, more))

    def denial(self, op: str, target: str, more: Any = None) -> Any:
        """A denial that is ready for `deny_again`: its record up to where the lane stands, and what it says."""
        shown = target if len(target) <= _MAX_TARGET else target[:_MAX_TARGET]
        args = {"target": shown, "enforced": self.enforce, **(more or {})}
        body = f'{{"id":0,"kind":"deny","op":"{op}","args":{text_of(args)},"lane":'.encode("ascii")
        printable = shown.encode("utf-8", "backslashreplace").decode("utf-8")
        return body, f"{op} {printable}"

    def deny_again(self, ready: Any) -> Any:
        """Record a denial that `denial` prepared. Gives the error to raise, None when denials are not enforced."""
        body, text = ready
        self.send_again(body)
        if self.enforce:
            return refusal(f"agentbox: policy denies {text}")
        self._would(text)
        return None

    def _would(self, text: str) -> None:
        try:
            write(2, f"agentbox[observe]: would deny {text}\n".encode("utf-8", "backslashreplace"))
        except OSError:
            return

    def observed(self, op: str, args_text: str) -> Any:
        """Record what needs no answer."""
        if self.replay:
            self.send_again(self.body(op, args_text))
        else:
            self.channel.send(self._body("observe", op, args_text))

    def happens(self, op: str, args_text: str) -> Any:
        """Record what changes something, and wait until the host has it. Gives the error to raise when it must not
        happen. In a replay it changes a copy, and the host ends what diverges: nobody waits."""
        if not self.replay:
            return self.ask("observe", op, args_text)[0]
        self.send_again(self.body(op, args_text))
        return None

    def may(self, op: str, args_text: str) -> Any:
        """The same for what the host decides on, also in a replay."""
        return self.ask("observe", op, args_text)[0]

    def again(self, op: str, args_text: str) -> None:
        """Say in a replay that an effect comes whose result is known already."""
        self.send_again(f'{{"id":0,"kind":"effect","op":"{op}","args":{args_text},"lane":'.encode("ascii"))

    def counts(self, op: str, args: Any) -> Any:
        """Ask the host for what it counts. Gives the error to raise, if any, and the bytes that it granted."""
        refused, answer = self.ask("count", op, text_of(args))
        granted = answer.get("result")
        size = granted.get("size") if type(granted) is dict else None
        return refused, size if type(size) is int else 0

    def ask(self, kind: str, op: str, args_text: str, lane: Any = None, more: Any = None) -> Any:
        """Ask the host, in `lane` or the caller's own: the error to raise, if any, and the answer. `more` are members
        of `at` in a replay."""
        if lane is None:
            lane = self.lane()
            if self.replay and self.clocks is not None:
                more = {**(self.clocks.left() or {}), **(more or {})}
        if self.replay:
            if ">" in lane and kind in ("effect", "observe"):
                # What a served effect does inside itself was not compared when it was recorded either.
                return None, {}
            at = text_of({**self.place(), **(more or {})})
            members = f'"kind":"{kind}","op":"{op}","args":{args_text},"lane":{text_of(lane)},"at":{at}'
        else:
            members = f'"kind":"{kind}","op":"{op}","args":{args_text},"lane":{text_of(lane)}'
        try:
            answer = self.channel.ask(members)
        except OSError as error:
            return refusal(f"agentbox: {op} is refused because the host cannot record it: {error}"), {}
        if answer.get("ok") is True:
            return None, answer
        text = str(answer.get("error") or op + " is refused by the host")
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        if answer.get("diverged") is True:
            return named_error("ReplayDivergence", text), answer
        if answer.get("checkpoint") is True:
            return named_error("CheckpointError", text), answer
        if answer.get("denied") is True and not self.enforce:
            self._would(text.removeprefix("policy denies "))
            return None, answer
        return refusal(f"agentbox: {text}"), answer

    def record(self, op: str, args_text: str, result_text: str, lane: Any = None) -> None:
        """Record an effect that has happened, with its result."""
        own = self.lane()
        lane = text_of(own if lane is None else lane)
        body = f'{{"id":0,"kind":"effect","op":"{op}","args":{args_text},"result":{result_text},"lane":{lane}}}'
        self.channel.send(body.encode("ascii"))

    def diverged(self, text: str) -> Any:
        """The error of a replay that cannot go on here."""
        return named_error("ReplayDivergence", text)

    def lane(self) -> str:
        """The lane of the caller, for a record: what its clocks said is told before."""
        if self.clocks is not None:
            self.clocks.tell_first()
        return str(self.lanes.current())

    def place(self) -> Any:
        """Where the program stands: file and line of the innermost frame that is neither the standard library's nor
        the guard's."""
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if self.is_programs(name):
                return {"file": name, "line": frame.f_lineno or 0}
            frame = frame.f_back  # type: ignore[assignment]
        return {}

    def is_programs(self, name: str) -> bool:
        """Whether a file of code is neither the standard library's nor the guard's."""
        return not name.startswith(self._below) or (name.startswith(_LIBRARY) and _is_package(name))

    def frame_at(self, body: bytes, lane: str, file: str, line: int) -> bytes:
        """The whole frame of what `body` gave, in a replay, for a lane and a place."""
        at = text_of({"file": file, "line": line})
        return frame_of(body + f'{text_of(lane)},"at":{at}}}'.encode("ascii"))

    def body(self, op: str, args_text: str) -> bytes:
        """An observation as bytes, up to where the lane stands; it may be kept and sent again."""
        return (f'{{"id":0,"kind":"observe","op":"{op}","args":{args_text},"lane":').encode("ascii")

    def send_again(self, body: bytes) -> None:
        """Send what `body` gave."""
        lane = self.lane()
        if self.replay:
            if ">" not in lane:
                left = self.clocks.left() if self.clocks is not None else None
                at = text_of({**self.place(), **(left or {})})
                self.channel.send(body + f'{text_of(lane)},"at":{at}}}'.encode("ascii"))
            return
        self.channel.send(body + (b'"main"}' if lane == "main" else text_of(lane).encode("ascii") + b"}"))

    def _body(self, kind: str, op: str, args_text: str) -> bytes:
        lane = text_of(self.lane())
        return (f'{{"id":0,"kind":"{kind}","op":"{op}","args":{args_text},"lane":{lane}}}').encode("ascii")


def refusal(text: str) -> PermissionError:
    """A PermissionError that says exactly `text`, and has an errno for programs that look at it."""
    error = PermissionError(text)
    error.errno = _EACCES
    return error


class ReplayDivergence(RuntimeError):  # noqa: N818
    """A replay went another way than its record; the host ends it, whatever the program does with this."""


class CheckpointError(PermissionError):
    """A checkpoint could not be taken, so nothing was changed."""


for _kind in (ReplayDivergence, CheckpointError):
    _kind.__module__ = "agentbox"
_ERRORS = {kind.__name__: kind for kind in (ReplayDivergence, CheckpointError)}


def named_error(name: str, text: str) -> Any:
    """An error of agentbox by its name: of the public class where the program has loaded that."""
    loaded = sys.modules.get("agentbox.errors")
    kind = loaded.__dict__.get(name) if type(loaded) is type(sys) else None
    return (kind if type(kind) is type and issubclass(kind, BaseException) else _ERRORS[name])(text)


def _is_package(name: str) -> bool:
    return any(part in name for part in _PACKAGES)
