# SPDX-License-Identifier: MIT
"""The frame protocol between a guest and the host: spec/frames/README.md is the specification.

Used on both sides, so: standard library only, clean for Python 3.9, no I/O. Everything that the parser gives back was
written by a guest and is believed by nobody: it says what a program *claims* to have done. Who it was comes from the
socket, never from a frame.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Optional  # noqa: UP035 - Python 3.9

    encode_basestring_ascii: Any
    make_encoder: Any
    make_scanner: Any
else:
    try:
        # The compiled parts alone: what surrounds them takes longer to import than most programs to run.
        from _json import encode_basestring_ascii, make_encoder, make_scanner
    except ImportError:
        make_encoder = make_scanner = None

MAX_FRAME_BYTES = 1 << 20
MAX_DEPTH = 64
HEADER_BYTES = 4
# `count` and `serve` ask and are not recorded, so they always wait.
KINDS = frozenset({"effect", "observe", "deny", "count", "keep", "serve"})
_ASKING = frozenset({"count", "serve"})
_MAX_ID = (1 << 53) - 1
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz")
_NAME_CHARACTERS = _LETTERS | frozenset("0123456789_")
_MAX_NAME_CHARACTERS = 64
_MAX_KNOWN_OPS = 256
_known_ops: set[str] = set()
_REQUEST_FIELDS = frozenset({"id", "ack", "kind", "op", "args", "result", "lane", "at"})


class FrameError(ValueError):
    """Bytes that no guest of ours sends; `reason` is a word of the specification. The connection must be closed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Request:
    """What a guest says it did. `ack`: it waits for an answer with this `id`. `at`: where its program stands."""

    # One is made for each frame.
    __slots__ = ("ack", "args", "at", "id", "kind", "lane", "op", "result")

    def __init__(
        self,
        id: int,  # noqa: A002 - the member's name
        kind: str,
        op: str,
        args: dict[str, Any],
        result: Any = None,
        lane: Optional[str] = None,  # noqa: UP045 - Python 3.9
        ack: bool = False,
        at: Optional[dict[str, Any]] = None,  # noqa: UP045 - Python 3.9
    ) -> None:
        self.at = at
        self.id = id
        self.kind = kind
        self.op = op
        self.args = args
        self.result = result
        self.lane = lane
        self.ack = ack

    def __eq__(self, other: object) -> bool:
        return type(other) is Request and self.fields() == other.fields()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Request({self.fields()!r})"

    def fields(self) -> dict[str, Any]:
        """The members of its frame; those that have their default are left out."""
        found: dict[str, Any] = {"id": self.id, "kind": self.kind, "op": self.op, "args": self.args}
        if self.result is not None:
            found["result"] = self.result
        if self.lane is not None:
            found["lane"] = self.lane
        if self.ack:
            found["ack"] = True
        if self.at is not None:
            found["at"] = self.at
        return found


def _make_encoder() -> Any:
    """JSON text of a value, by functions bound now: a guest that replaces `json.dumps` later changes nothing here."""
    if make_encoder is None:
        import json

        return json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), check_circular=False).encode
    encode = make_encoder(None, _refuse_type, encode_basestring_ascii, None, ":", ",", False, False, False)
    join = "".join
    return lambda value: join(encode(value, 0))


def _refuse_type(_: Any) -> Any:
    raise FrameError("type")


_encode = _make_encoder()
_length_bytes = int.to_bytes
_from_bytes = int.from_bytes


def encode(message: dict[str, Any]) -> bytes:
    """The frame of a message. Raises FrameError: `type`, `number`, `depth`, `length` (more than 1 MiB)."""
    try:
        body: bytes = _encode(message).encode("ascii")
    except FrameError:
        raise
    except RecursionError:
        raise FrameError("depth") from None
    except ValueError:
        raise FrameError("number") from None
    except TypeError:
        raise FrameError("type") from None
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError("length")
    return _length_bytes(len(body), HEADER_BYTES, "little") + body


def answer(
    request_id: int,
    *,
    ok: bool = True,
    result: Any = None,
    error: str = "",
    denied: bool = False,
    diverged: bool = False,
    checkpoint: bool = False,
    ahead: Any = None,
) -> bytes:
    """The frame by which the host answers: `ok`, with a result for a replayed effect or granted bytes, or why not;
    `denied` when the policy is why, `diverged` when a replay does not go as what was recorded, `checkpoint` when the
    checkpoint that must come first could not be taken. `ahead` are effects that come after a replayed one."""
    message: dict[str, Any] = {"id": request_id, "ok": ok}
    if result is not None:
        message["result"] = result
    if denied:
        message["denied"] = True
    if diverged:
        message["diverged"] = True
    if ahead:
        message["ahead"] = ahead
    if checkpoint:
        message["checkpoint"] = True
    if error:
        message["error"] = error
    return encode(message)


class FrameParser:
    """Cuts a stream of bytes into messages. Holds at most one frame besides what was fed last."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        # How many bytes the buffer must hold before there is something to do.
        self._needed = HEADER_BYTES
        self._reason = ""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that `data` completes.

        Raises FrameError: `length` (none, or more than 1 MiB), `encoding`, `json`, `duplicate`, `number`, `depth`,
        `object`. After that the parser refuses everything.
        """
        for body in self.bodies(data):
            try:
                message = message_of(body)
            except FrameError as error:
                self._reason = error.reason
                raise
            yield message

    def bodies(self, data: bytes) -> Iterator[bytes]:
        """The bodies of the frames that `data` completes, for `message_of`.

        Raises FrameError `length` (none, or more than 1 MiB). After that the parser refuses everything.
        """
        if self._reason:
            raise FrameError(self._reason)
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed:
                return
            data = bytes(buffer)
            buffer.clear()
        start, size = 0, len(data)
        needed = HEADER_BYTES
        try:
            while size - start >= HEADER_BYTES:
                length = _from_bytes(data[start : start + HEADER_BYTES], "little")
                if not 0 < length <= MAX_FRAME_BYTES:
                    self._reason = "length"
                    raise FrameError("length")
                end = start + HEADER_BYTES + length
                if size < end:
                    needed = HEADER_BYTES + length
                    break
                body = data[start + HEADER_BYTES : end]
                start = end
                yield body
        finally:
            self._needed = needed
            buffer += data[start:]

    @property
    def is_between_frames(self) -> bool:
        """Whether nothing is half received; at the end of a stream anything else is a frame that was cut."""
        return not self._buffer


def request_of(message: dict[str, Any]) -> Request:
    """A message as a request of a guest. Raises FrameError `fields`, naming nothing of what it held."""
    found = message.get
    number, kind, op, args, lane, ack, at = (
        found("id"),
        found("kind"),
        found("op"),
        found("args"),
        found("lane"),
        found("ack", False),
        found("at"),
    )
    if not (
        message.keys() <= _REQUEST_FIELDS
        and type(number) is int
        and 0 <= number <= _MAX_ID
        and type(ack) is bool
        and type(kind) is str
        and kind in KINDS
        and (kind not in _ASKING or ack)
        and type(op) is str
        and len(op) <= _MAX_NAME_CHARACTERS
        and (op in _known_ops or _is_op(op))
        and type(args) is dict
        and (lane is None or (type(lane) is str and len(lane) <= _MAX_NAME_CHARACTERS))
        and (at is None or type(at) is dict)
    ):
        raise FrameError("fields")
    return Request(number, kind, op, args, found("result"), lane, ack, at)


def message_of(body: bytes) -> dict[str, Any]:
    """The message in the body of a frame.

    Raises FrameError: `encoding`, `json`, `duplicate`, `number`, `depth`, `object`.
    """
    try:
        text = body.decode("utf-8")
        try:
            message, end = _scan(text, 0)
        except (StopIteration, SystemError):
            # SystemError: the compiled scanner has no words for an error before `json` is imported.
            end = -1
        if end != len(text):
            # White space around it, or no JSON: the whole decoder finds out.
            import json

            message = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        # Every level has a bracket of its own, so few brackets need no counting of levels.
        if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _depth_of(message) > MAX_DEPTH:
            raise FrameError("depth")
    except FrameError:
        raise
    except UnicodeDecodeError:
        raise FrameError("encoding") from None
    except RecursionError:
        raise FrameError("depth") from None
    except ValueError as error:
        raise FrameError("number" if "digits" in str(error) else "json") from None
    if type(message) is not dict:
        raise FrameError("object")
    return message


def _depth_of(value: Any) -> int:
    """Levels of objects and arrays, counted without recursion and no deeper than one past MAX_DEPTH."""
    level = [value]
    for depth in range(MAX_DEPTH + 2):
        level = [
            item
            for holder in level
            if isinstance(holder, (dict, list))
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return depth + 1
    return MAX_DEPTH + 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FrameError("duplicate")
    return found


def _no_constant(_: str) -> Any:
    raise FrameError("number")


def _is_op(op: str) -> bool:
    """Whether it is words of lower case joined by dots. What was found so is remembered, as far as it is bounded."""
    if not all(part and part[0] in _LETTERS and _NAME_CHARACTERS.issuperset(part) for part in op.split(".")):
        return False
    if len(_known_ops) < _MAX_KNOWN_OPS:
        _known_ops.add(op)
    return True


class _Scanning:
    """What the compiled scanner asks of a decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_unique)
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)
    memo: dict[str, str] = {}  # noqa: RUF012


def _make_scanner() -> Any:
    if make_scanner is not None:
        return make_scanner(_Scanning())
    import json

    return json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant).scan_once  # type: ignore[attr-defined]


_scan = _make_scanner()
