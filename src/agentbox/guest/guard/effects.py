# SPDX-License-Identifier: MIT
"""What happens with a verdict: a record for the host, and a refusal that the program understands.

A refusal is returned, not raised: the hook raises it from a frame in which nothing of the guard is left.
"""

from __future__ import annotations

from posix import write

from .channel import Channel, text_of
from .lanes import Lanes
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_EACCES = 13
_MAX_TARGET = 4096


@sealed
class Effects:
    """Records and refusals of one process.

    `enforce` is false when denials are only written down; `strict` is true when there is no wall around the process,
    so that doors which a wall would hold are closed here as far as an interpreter can; `replay` asks the host before
    everything.
    """

    def __init__(self, channel: Channel, lanes: Lanes, enforce: bool, strict: bool, replay: bool) -> None:
        self.channel = channel
        self.lanes = lanes
        self.enforce = enforce
        self.strict = strict
        self.replay = replay

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
        """Record what needs no answer. Gives an error only in a replay that does not agree."""
        if self.replay:
            return self.happens(op, args_text)
        self.channel.send(self._body("observe", op, args_text))
        return None

    def happens(self, op: str, args_text: str) -> Any:
        """Record what changes something, and wait until the host has it. Gives the error to raise when it must not
        happen."""
        return self._asked("observe", op, args_text)[0]

    def counts(self, op: str, args: Any) -> Any:
        """Ask the host for what it counts. Gives the error to raise, if any, and the bytes that it granted."""
        refused, answer = self._asked("count", op, text_of(args))
        granted = answer.get("result")
        size = granted.get("size") if type(granted) is dict else None
        return refused, size if type(size) is int else 0

    def _asked(self, kind: str, op: str, args_text: str) -> Any:
        """The error to raise, if any, and the host's answer."""
        members = f'"kind":"{kind}","op":"{op}","args":{args_text},"lane":{text_of(self.lanes.current())}'
        try:
            answer = self.channel.ask(members)
        except OSError as error:
            return refusal(f"agentbox: {op} is refused because the host cannot record it: {error}"), {}
        if answer.get("ok") is True:
            return None, answer
        text = str(answer.get("error") or op + " is refused by the host")
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        if answer.get("denied") is True and not self.enforce:
            self._would(text.removeprefix("policy denies "))
            return None, answer
        return refusal(f"agentbox: {text}"), answer

    def body(self, op: str, args_text: str) -> bytes:
        """An observation as bytes, up to where the lane stands; it may be kept and sent again."""
        return (f'{{"id":0,"kind":"observe","op":"{op}","args":{args_text},"lane":').encode("ascii")

    def send_again(self, body: bytes) -> None:
        """Send what `body` gave."""
        lane = self.lanes.current()
        self.channel.send(body + (b'"main"}' if lane == "main" else text_of(lane).encode("ascii") + b"}"))

    def _body(self, kind: str, op: str, args_text: str) -> bytes:
        lane = text_of(self.lanes.current())
        return (f'{{"id":0,"kind":"{kind}","op":"{op}","args":{args_text},"lane":{lane}}}').encode("ascii")


def refusal(text: str) -> PermissionError:
    """A PermissionError that says exactly `text`, and has an errno for programs that look at it."""
    error = PermissionError(text)
    error.errno = _EACCES
    return error
