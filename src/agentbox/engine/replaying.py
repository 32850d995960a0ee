# SPDX-License-Identifier: MIT
"""The host's end of the guards' channel in a replay: every question is answered from the recording, and the first that
cannot be ends the run. Nothing is recorded."""

from __future__ import annotations

import binascii

from agentbox.engine.guard_channel import GuardChannel
from agentbox.engine.keeping import Keeping
from agentbox.engine.processes import Processes
from agentbox.replay.recording import MAIN, PROC_SPAWN
from agentbox.trace import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from agentbox.engine.keeping import Kept
    from agentbox.light import socket
    from agentbox.replay.cursor import Answer, Cursor
    from agentbox.replay.recording import Step

_PIECE_BYTES = 512 << 10
_MAX_SEEN = 1024
_MAX_SEEN_BYTES = 1024
_OWN_NAMES = frozenset({"localhost", "ip6-localhost", "box", ""})


class Player:
    """Answers the guards of one replay. `on_divergence` is called once, when the run must end; `on_spawn` before a
    program's recorded result is given, for the files that it wrote."""

    def __init__(
        self,
        cursor: Cursor,
        kept: Kept,
        on_divergence: Callable[[], None],
        on_spawn: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self._cursor = cursor
        self._kept = kept
        self._on_divergence = on_divergence
        self._on_spawn = on_spawn
        self._keeping = Keeping("")
        self._processes = Processes()
        self._channel = GuardChannel(
            lambda pid, holder: _Conversation(self, holder, is_other=self._processes.is_other_program(pid))
        )
        self._told = False
        # By the bytes of an observation that matched: its request, its lane with that lane's steps, and the arguments,
        # which steps that are the same share.
        self._seen: dict[bytes, tuple[frames.Request, str, list[Step], dict[str, Any]]] = {}

    @property
    def cursor(self) -> Cursor:
        """Where each lane is."""
        return self._cursor

    def listen(self, listener: socket.socket) -> None:
        """Serve the guards that connect to a box's channel."""
        self._channel.listen(listener)

    def started(self, pid: int) -> None:
        """The command's own process, where it is known."""
        self._processes.started(pid)

    def seen(self, message: dict[str, Any]) -> None:
        """What the exec judge reports: only which process is the command's matters."""
        if "spawn" in message and message["spawn"]["allowed"]:
            self._processes.started(message["spawn"]["pid"])

    async def finish(self) -> None:
        """Read what is still in the sockets, when nothing in the box is alive."""
        await self._channel.finish()

    def taken(self, bodies: Iterable[bytes], holder: int, *, is_other: bool) -> bytes:
        """Answer what a guard sent. Raises FrameError."""
        answers = []
        cursor, seen = self._cursor, self._seen
        positions = cursor.positions
        for body in bodies:
            known = None if is_other else seen.get(body)
            if known is not None:
                request, lane, steps, shared = known
                at = positions[lane]
                if at < len(steps) and steps[at].args is shared and cursor.divergence is None:
                    positions[lane] = at + 1
                    continue
                if cursor.again(lane, request.op, request.args):
                    continue
            else:
                request = frames.request_of(frames.message_of(body))
            answer = {"ok": True} if is_other else self._answer(request, holder)
            if request.ack:
                answers.append(frames.answer(request.id, **answer))
            elif known is None and not is_other:
                self._remember(body, request)
        if self._cursor.divergence is not None and not self._told:
            self._told = True
            self._on_divergence()
        return b"".join(answers)

    def forget(self, holder: int) -> None:
        """A connection is closed."""
        self._keeping.forget(holder)

    def _remember(self, body: bytes, request: frames.Request) -> None:
        """A program that reads a file again says so in the same bytes."""
        plain = request.kind == "observe" and request.op == "fs.open_read" and self._cursor.divergence is None
        if not plain or len(body) > _MAX_SEEN_BYTES or "unused" in (request.at or ()):
            return
        lane = request.lane or MAIN
        step = self._cursor.last(lane)
        if step is None or step.op != request.op:
            return
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen[body] = request, lane, self._cursor.steps(lane), step.args

    def _answer(self, request: frames.Request, holder: int) -> dict[str, Any]:
        """The members of an answer besides `id`."""
        kind, args, lane, at = request.kind, request.args, request.lane, request.at
        if self._cursor.divergence is not None:
            return _diverged(self._cursor.divergence.message)
        if kind == "keep":
            self._keeping.piece(holder, args)
            return {"ok": True}
        if kind == "serve":
            return self._served(request)
        if kind == "deny":
            return _members(self._cursor.denied(lane, request.op, args, at))
        if kind == "count":
            path = args.get("path")
            return self._refused("write", path) or {"ok": True, "result": {"size": args.get("size")}}
        args = self._keeping.resolved(holder, args)
        if args.get("once") is True and not self._cursor.expects(lane, request.op, args, at):
            refused = self._refused("read", args.get("path"))
            if refused is not None:
                return refused
        answer = self._cursor.asked(kind, lane, request.op, args, at)
        step = answer.step
        if step is not None and step.op == PROC_SPAWN and answer.divergence is None:
            self._on_spawn(step)
        elif step is not None and kind == "observe" and _leads_out(step, self._cursor.reached):
            answer = self._cursor.unanswerable(
                lane or "", step, "a connection that was not made by agentbox.client is not recorded", at
            )
        members = _members(answer)
        if kind == "effect" and isinstance(at, dict) and answer.divergence is None:
            if at.get("ahead") is True:
                members["ahead"] = self._cursor.ahead(lane)
            elif at.get("ahead") == "steps":
                members["ahead"] = self._cursor.steps_ahead(lane)
        return members

    def _served(self, request: frames.Request) -> dict[str, Any]:
        args = request.args
        if request.op == "clock.values":
            return _members(self._cursor.calls(request.lane, str(args.get("call")), request.at))
        if request.op == "clock.next":
            return _members(self._cursor.calls_ahead(request.lane, request.at))
        if request.op == "clock.rest":
            self._cursor.rest(request.lane, request.at)
            return {"ok": True}
        if request.op == "steps.next":
            return {"ok": True, "result": {"steps": self._cursor.steps_ahead(request.lane, request.at)}}
        if request.op == "keep.read":
            name, offset = str(args.get("kept")), args.get("offset")
            data = self._kept.read(name)
            if data is None:
                return _members(self._cursor.lost(name, request.lane, request.at))
            if type(offset) is not int or offset < 0:
                return {"ok": False, "error": "there is no such piece"}
            piece = data[offset : offset + _PIECE_BYTES]
            text = binascii.b2a_base64(piece, newline=False).decode("ascii")
            return {"ok": True, "result": {"b64": text, "end": offset + len(piece) >= len(data)}}
        return {"ok": False, "error": f"{request.op} is not served"}

    def _refused(self, op: str, path: Any) -> dict[str, Any] | None:
        """A refusal that was recorded: only the host counted, so only the recording knows."""
        if not isinstance(path, str) or not self._cursor.was_denied(op, path):
            return None
        return {"ok": False, "denied": True, "error": f"policy denies {op} {path}"}


class _Conversation:
    """What one guard says in a replay."""

    def __init__(self, player: Player, holder: int, *, is_other: bool) -> None:
        self._player = player
        self._holder = holder
        self._is_other = is_other
        self._parser = frames.FrameParser()

    async def take(self, data: bytes) -> bytes | None:
        """What came; the answers."""
        try:
            return self._player.taken(self._parser.bodies(data), self._holder, is_other=self._is_other)
        except frames.FrameError:
            return None

    def over(self) -> None:
        """The connection is closed."""
        self._player.forget(self._holder)


def _members(answer: Answer) -> dict[str, Any]:
    if answer.divergence is not None:
        return _diverged(answer.divergence.message)
    return {"ok": True} if answer.result is None else {"ok": True, "result": answer.result}


def _diverged(message: str) -> dict[str, Any]:
    return {"ok": False, "diverged": True, "error": message}


def _leads_out(step: Step, reached: set[tuple[str, Any]]) -> bool:
    """Whether it is a connection to, or a question about, something outside the box."""
    if step.op not in ("net.connect", "net.resolve"):
        return False
    host = step.args.get("host")
    if not isinstance(host, str):
        # A socket at a path, of which a replay has none of the host's.
        return step.op == "net.connect"
    if (host, step.args.get("port")) in reached:
        return True
    return not (host.lower().rstrip(".") in _OWN_NAMES or host.startswith("127.") or host == "::1")
