# SPDX-License-Identifier: MIT
"""What stands behind `agentbox.client`: where an effect begins, where it ends, and what it gave when it was recorded.

The effect itself is done by the program's own code, between two questions: what it does is judged and observed like
anything else, in a lane that no replay looks at. In a replay nothing of it happens: the host gives what was recorded.
"""

from __future__ import annotations

from time import monotonic

from .channel import scan, text_of
from .effects import Effects
from .net_answers import parse_address
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OPS = frozenset(("fs.read_text", "fs.write_text", "net.get", "proc.run", "clock.now", "rand.random"))
# Members of a result, or of an error, that may be large, and so are handed over before their record.
_LARGE = ("body", "stdout", "stderr")


@sealed
class ClientEffects:
    """The questions by their names."""

    def __init__(self, effects: Effects, answers: Any, large: Any) -> None:
        self._effects = effects
        self._answers = answers
        self._large = large
        # In a replay, by lane: effects that were served before they were asked for, the next one last.
        self._ahead: dict[str, list[Any]] = {}
        self._questions: dict[str, Any] = {
            "begin": self.begin,
            "end": self.end,
            "enter": effects.lanes.enter_effect,
            "leave": effects.lanes.leave_effect,
            "connect": self.connect,
            "other address": self.other_address,
        }

    def ask(self, what: Any, *arguments: Any) -> Any:
        """Answer one question."""
        return self._questions[what](*arguments)

    def begin(self, op: Any, args: Any) -> Any:
        """An effect begins: (False, None) when it is to be done, (True, what was recorded) in a replay."""
        if op not in _OPS:
            raise ValueError("an effect that agentbox.client does not have")
        if self._effects.replay:
            return True, self._served(op, text_of(args))
        self._effects.lanes.enter_effect()
        return False, None

    def end(self, op: Any, args: Any, found: Any) -> None:
        """An effect has ended: with a `result`, or an `error`."""
        self._effects.lanes.leave_effect()
        if op in _OPS and not self._effects.replay:
            self._effects.record(op, text_of(args), text_of(self._recorded(found)))

    def connect(self, host: Any, port: Any) -> None:
        """Raise the refusal of a connection, where the connection itself would not be judged by the guard: a gateway
        judges it then, but with a refusal that says less; and the box's own loopback needs no rule."""
        effects = self._effects
        address = parse_address(host)
        if effects.strict or (address is not None and not _is_loopback(address)):
            return
        if self._answers.connect(host, port, None, monotonic())[0]:
            return
        refused = effects.deny("net", f"{host}:{port}" if self._answers.resolve(host)[0] else host)
        if refused is not None:
            raise refused

    def other_address(self, address: Any) -> None:
        """Raise the refusal of an address that is of no kind that rules speak of."""
        refused = self._effects.deny("net", address)
        if refused is not None:
            raise refused

    def _recorded(self, found: Any) -> Any:
        """The result as it is recorded: what is large beside it."""
        large = self._large
        is_error = "error" in found
        value = found["error" if is_error else "result"]
        if type(value) is str:
            return large.of_text(value)
        if type(value) is not dict:
            return value
        kept = {}
        for name in _LARGE:
            content = value.get(name)
            if content is not None:
                kept[name] = large.of_text(content) if type(content) is str else large.of_bytes(content)
        rest = {name: content for name, content in value.items() if name not in kept}
        return {"error": rest, **kept} if is_error else {**rest, **kept}

    def _served(self, op: str, args_text: str) -> Any:
        result = self._next(op, args_text)
        if op == "fs.read_text" and not (type(result) is dict and "error" in result):
            return {"result": self._whole(op, self._large.text_of(result))}
        if type(result) is not dict:
            return {"result": result}
        error = result.get("error")
        found = dict(error if type(error) is dict else result)
        for name in _LARGE:
            if name in result:
                # Of an error bytes were told, of a result text.
                content = self._large.text_of(result[name]) if error is None else self._large.bytes_of(result[name])
                found[name] = self._whole(op, content)
        if type(found.get("bytes")) is dict:
            found["bytes"] = self._large.bytes_of(found["bytes"])
        return {"result": found} if error is None else {"error": found}

    def _next(self, op: str, args_text: str) -> Any:
        """What was recorded of this effect, the next one of its lane."""
        lane = self._effects.lanes.current()
        ahead = self._ahead.get(lane)
        if ahead:
            known, args, result = ahead.pop()
            if known == op and args == scan(args_text, 0)[0]:
                self._effects.again(op, args_text)
                return result
            ahead.clear()
        refused, answer = self._effects.ask("effect", op, args_text, None, {"ahead": True})
        if refused is not None:
            raise refused
        self._ahead[lane] = (answer.get("ahead") or [])[::-1]
        return answer.get("result")

    def _whole(self, op: str, content: Any) -> Any:
        if content is None:
            raise self._effects.diverged(f"what {op} gave was too large to be kept")
        return content


def _is_loopback(address: Any) -> bool:
    return bool(address == (6, 1) or (address[0] == 4 and address[1] >> 24 == 127))
