# SPDX-License-Identifier: MIT
"""What a client speaks, by its first bytes, without I/O.

Text that may yet become a request goes on while that is open, so that no protocol waits for its inspection: before its
line is complete no server can act on it, and when it is complete it is known what it is. A TLS hello is held back
until it can be read.
"""

from __future__ import annotations

from collections.abc import Callable

from agentbox.egress.http import MAX_FIRST_LINE_BYTES, begins_as_http, begins_as_http2
from agentbox.egress.tls import ClientHello, MalformedHello, begins_as_tls, read_client_hello

_HTTP2 = b"PRI * HTTP/2.0\r\n\r\n"


class Opening:
    """Sees the client's bytes until it is known what they are; then says so, once, and is replaced.

    `on_tls`, `on_http` and `on_other` are called with what came so far and return what of it may go on. `on_malformed`
    is called instead when it is known and wrong. `on_http` also gets how many of those bytes went on already.
    """

    __slots__ = ("_buffer", "_forwarded", "_on_http", "_on_malformed", "_on_other", "_on_tls", "free", "waiting")

    def __init__(
        self,
        on_tls: Callable[[ClientHello, bytes], bytes],
        on_http: Callable[[bytes, int], bytes],
        on_other: Callable[[bytes], bytes],
        on_malformed: Callable[[str, bool], bytes],
    ) -> None:
        self._buffer = bytearray()
        self._forwarded = 0
        self._on_tls = on_tls
        self._on_http = on_http
        self._on_other = on_other
        self._on_malformed = on_malformed
        self.free = 0
        self.waiting = False

    @property
    def holding(self) -> bool:
        """Whether there are bytes that wait for more of them."""
        return len(self._buffer) > self._forwarded

    def passed(self, size: int) -> None:
        """Nothing passes without being looked at here."""

    def feed(self, data: bytes) -> bytes:
        """What may go on now."""
        buffer = self._buffer
        buffer += data
        is_tls = begins_as_tls(buffer)
        if is_tls:
            return self._read_hello()
        if is_tls is None:
            return b""
        is_http = begins_as_http(buffer)
        if is_http is None:
            if len(buffer) > MAX_FIRST_LINE_BYTES:
                return self._on_malformed("its first line is too long to be judged", False)
            return self._go_on()
        if not is_http:
            return self._on_other(self._go_on())
        if buffer.startswith(_HTTP2[: len(buffer)]):
            return self._on_other(self._go_on()) if begins_as_http2(buffer) else b""
        return self._on_http(bytes(buffer), self._forwarded)

    def _read_hello(self) -> bytes:
        try:
            hello = read_client_hello(self._buffer)
        except MalformedHello as error:
            return self._on_malformed(str(error), True)
        return b"" if hello is None else self._on_tls(hello, bytes(self._buffer))

    def _go_on(self) -> bytes:
        out = bytes(self._buffer[self._forwarded :])
        self._forwarded = len(self._buffer)
        return out
