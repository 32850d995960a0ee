# SPDX-License-Identifier: MIT
"""The guard's end of the channel to the host: frames of `spec/frames`, written at once and by one call each.

Every process has a connection of its own, made at its first effect and again after a fork. The descriptor lies high,
where programs that close or count theirs do not meet it; when it is closed nevertheless, the next effect connects anew.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket  # noqa: N812 - it is a class
from _thread import allocate_lock, get_ident
from posix import close, dup2, fstat

from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_FRAME_BYTES = 1 << 20
_HIGH_DESCRIPTORS = (1000, 500, 250, 60)
# From <sys/socket.h>; a closed channel must not kill a program that has SIGPIPE at its default.
_MSG_NOSIGNAL = 0x4000
_TO_BYTES = int.to_bytes
_FROM_BYTES = int.from_bytes


class _Scanning:
    """What the JSON scanner wants to know."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = None
    memo: Any = None


_make: Any = make_scanner
scan = _make(_Scanning())


@sealed
class Channel:
    """One process's connection. `send` hands a record over; `ask` also waits until the host has it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: Any = None
        self._lock = allocate_lock()
        self._owner = 0
        self._number = 0
        # The sockets that are being made for the channel itself, which no rule is asked about.
        self.opening: dict[int, Any] = {}

    def send(self, body: bytes) -> None:
        """Hand a record over. A host that is gone is no reason to stop what needs no answer."""
        try:
            self._exchange(body, None)
        except OSError:
            return

    def send_ready(self, frame: bytes) -> bool:
        """Send a small frame that is ready, without waiting for other threads: one call writes it whole. False when
        that was not possible."""
        channel = self._socket
        if channel is None:
            return False
        try:
            sent = channel.send(frame, _MSG_NOSIGNAL)
        except OSError:
            return False
        if sent != len(frame):
            self._drop()
        return True

    def forked(self) -> None:
        """In the child after a fork: the parent's connection and its lock are not ours."""
        self._lock = allocate_lock()
        self._owner = 0
        self._drop()

    def ask(self, members: str) -> Any:
        """Hand a record over and give back the host's answer; `members` are those after `id`. Raises
        OSError: nothing that must be recorded may happen then."""
        return self._exchange(b"", members)

    def _exchange(self, body: bytes, members: Any) -> Any:
        me = get_ident()
        if self._owner == me:
            # A signal handler, or a destructor, in the middle of another record: a connection for this one alone.
            alone = self._connect()
            try:
                return self._transfer(alone, body, members)
            finally:
                alone.close()
        self._lock.acquire()
        self._owner = me
        try:
            for attempt in (0, 1):
                if self._socket is None:
                    self._socket = self._placed_high(self._connect())
                try:
                    return self._transfer(self._socket, body, members)
                except OSError:
                    self._drop()
                    if attempt:
                        raise
                except BaseException:
                    # Interrupted in the middle: what is left of the frame must not run into the next one.
                    self._drop()
                    raise
        finally:
            self._owner = 0
            self._lock.release()
        return None

    def _transfer(self, channel: Any, body: bytes, members: Any) -> Any:
        number = 0
        if members is not None:
            self._number = number = self._number + 1
            body = f'{{"id":{number},{members},"ack":true}}'.encode("ascii")
        if len(body) > _MAX_FRAME_BYTES:
            raise OSError("a record of more than 1 MiB")
        frame = frame_of(body)
        sent = channel.send(frame, _MSG_NOSIGNAL)
        while sent < len(frame):
            sent += channel.send(frame[sent:], _MSG_NOSIGNAL)
        if members is None:
            return None
        length = _FROM_BYTES(_received(channel, 4), "little")
        if not 0 < length <= _MAX_FRAME_BYTES:
            raise OSError("an answer that is none")
        answer, _ = scan(_received(channel, length).decode("utf-8"), 0)
        if answer.get("id") != number:
            raise OSError("an answer to something else")
        return answer

    def _connect(self) -> Any:
        made: Any = Socket.__new__(Socket)
        self.opening[id(made)] = made
        try:
            made.__init__(AF_UNIX, SOCK_STREAM)
            # A program may have set a default timeout for sockets.
            made.settimeout(None)
            made.connect(self._path)
        finally:
            del self.opening[id(made)]
        return made

    def _placed_high(self, made: Any) -> Any:
        for number in _HIGH_DESCRIPTORS:
            try:
                fstat(number)
            except OSError:
                try:
                    dup2(made.fileno(), number, False)
                except OSError:
                    continue
                high: Any = Socket.__new__(Socket)
                self.opening[id(high)] = high
                try:
                    high.__init__(AF_UNIX, SOCK_STREAM, 0, number)
                finally:
                    del self.opening[id(high)]
                high.settimeout(None)
                made.close()
                return high
        return made

    def _drop(self) -> None:
        old, self._socket = self._socket, None
        if old is not None:
            number = old.detach()
            try:
                close(number)
            except OSError:
                return


def frame_of(body: bytes) -> bytes:
    """A record's bytes with their length before them."""
    return _TO_BYTES(len(body), 4, "little") + body


def _received(channel: Any, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = channel.recv(count - len(data))
        if not more:
            raise OSError("the host closed the channel")
        data += more
    return data


def text_of(value: Any) -> str:
    """JSON of what a record holds: strings (`{"b64":...}` where a name is bytes that are no UTF-8), numbers (text where
    one is not finite), true, false, null, lists and dictionaries of those."""
    kind = type(value)
    if kind is str:
        return _string(value)
    if value is True:
        return "true"
    if value is False:
        return "false"
    if value is None:
        return "null"
    if kind is int:
        return int.__repr__(value)
    if kind is float:
        text = float.__repr__(value)
        return f'"{text}"' if text[-1] in "fn" else text
    if kind is bytes:
        return f'{{"b64":"{base64(value)}"}}'
    if kind is dict:
        return "{{{}}}".format(",".join([_string(key) + ":" + text_of(item) for key, item in value.items()]))
    return "[{}]".format(",".join([text_of(item) for item in value]))


def _string(text: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            try:
                return '{{"b64":"{}"}}'.format(base64(text.encode("utf-8", "surrogateescape")))
            except UnicodeEncodeError:
                return '{{"b64":"{}"}}'.format(base64(text.encode("utf-8", "surrogatepass")))
    return encode_basestring_ascii(text)


def base64(data: bytes) -> str:
    """Base64 of data."""
    # Most programs never need it.
    from binascii import b2a_base64

    return b2a_base64(data, newline=False).decode("ascii")


def from_base64(text: str) -> bytes:
    """The data of base64. Raises ValueError."""
    from binascii import a2b_base64

    return a2b_base64(text)
