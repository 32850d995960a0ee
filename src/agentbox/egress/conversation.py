# SPDX-License-Identifier: MIT
"""The requests and answers of one HTTP connection, without I/O: each request is judged before a byte of it goes on.

Requests go on as they came. Answers are only followed, to know where a refusal may be written between them, and
whether an `Upgrade` or a `CONNECT` was accepted: from there on the connection is a tunnel.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from agentbox.egress.http import (
    CHUNKED,
    MAX_HEAD_BYTES,
    UNTIL_CLOSE,
    BadRequest,
    ChunkReader,
    RequestHead,
    find_head_end,
    read_request_head,
    read_response_head,
)

# Requests that may be on their way without an answer; more stay with the client.
MAX_PIPELINED = 64
UNLIMITED = 1 << 62
_ANSWER_END = re.compile(rb"\r?\n\r?\n")
_HEAD, _UPGRADE, _CONNECT = 1, 2, 4
_SWITCHING = 101


class Refused(Exception):  # noqa: N818 - what happened to the request
    """Raised by whoever judges a request that must not go on; `answer` are the bytes of the answer to it."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


class Conversation:
    """Both directions of a connection.

    `judge` is called with each head and raises Refused; `complain` makes the answer to what is no proper request.
    `refusal` is set once an answer of ours may be written to the client, after which the connection ends. While an
    answer of the server is under way that only its close ends, there is no place for one: what follows is not passed
    on, and the connection ends with that answer.
    """

    def __init__(
        self, judge: Callable[[RequestHead], None], complain: Callable[[str], bytes], forwarded: int = 0
    ) -> None:
        """`forwarded` bytes of the first request went on before it was known to be one."""
        self._judge = judge
        self._complain = complain
        self._answer: bytes | None = None
        self.pending: deque[int] = deque()
        self.accepted = False
        self.requests = Requests(self, forwarded)
        self.answers = Answers(self)

    @property
    def refusal(self) -> bytes | None:
        """The answer that ends the connection, when its turn has come."""
        return None if self.pending else self._answer

    def judged(self, head: bytes) -> RequestHead | None:
        """The head of a request that may go on, None after it was refused."""
        try:
            request = read_request_head(head)
            self._judge(request)
        except BadRequest as error:
            self.refuse(self._complain(str(error)))
            return None
        except Refused as refused:
            self.refuse(refused.answer)
            return None
        kind = _HEAD if request.method == "HEAD" else _UPGRADE if request.upgrade else 0
        self.pending.append(_CONNECT if request.connect else kind)
        return request

    def refuse(self, answer: bytes) -> None:
        """Nothing of the client goes on any more; it gets this answer after those that are under way."""
        self._answer = answer
        self.requests.stop()

    def abandon(self, reason: str) -> None:
        """The request whose body is under way is broken: the server will not answer it."""
        if self.pending and not (len(self.pending) == 1 and self.answers.begun):
            self.pending.pop()
        self.refuse(self._complain(reason))


class Requests:
    """What comes from the client. `free` bytes may pass without being fed; `waiting`: none should be read now."""

    __slots__ = ("_buffer", "_chunks", "_conversation", "_hold", "_left", "_seen", "_skip", "_stopped", "waiting")

    def __init__(self, conversation: Conversation, forwarded: int) -> None:
        self._conversation = conversation
        self._buffer = bytearray()
        self._chunks: ChunkReader | None = None
        self._left = 0
        self._seen = 0
        self._skip = forwarded
        self._hold = False
        self._stopped = False
        self.waiting = False

    @property
    def free(self) -> int:
        """Bytes of the present body or chunk that are still to come."""
        if self._buffer:
            return 0
        return self._chunks.left if self._chunks is not None else self._left

    @property
    def within_head(self) -> bool:
        """Whether a request has begun whose head is not complete."""
        return bool(self._buffer) and not self.waiting

    def passed(self, size: int) -> None:
        """So many of the `free` bytes went by."""
        if self._chunks is not None:
            self._chunks.passed(size)
        else:
            self._left -= size
            self._after_body()

    def feed(self, data: bytes) -> bytes:
        """What may go on to the server, now that `data` came. After `waiting` ended: with nothing new."""
        buffer = self._buffer
        buffer += data
        parts: list[bytes] = []
        while buffer and not self.waiting:
            size = self._take()
            if not size:
                break
            parts.append(bytes(buffer[:size]))
            del buffer[:size]
        if self._stopped:
            buffer.clear()
        out = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._skip and out:
            out, self._skip = out[self._skip :], max(0, self._skip - len(out))
        return out

    def rest(self) -> bytes:
        """What came after the request that made a tunnel."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def stop(self) -> None:
        """Take nothing more."""
        self._stopped = self.waiting = True

    def answered(self) -> None:
        """An answer is complete: go on with what waited for it."""
        if self._stopped or self._conversation.accepted or (self._hold and self._conversation.pending):
            return
        self._hold = self.waiting = False

    def _take(self) -> int:
        """How much of the front of the buffer may go on; 0 when more is needed or nothing may."""
        buffer = self._buffer
        if self._left:
            size = min(self._left, len(buffer))
            self._left -= size
            self._after_body()
            return size
        if self._chunks is not None:
            try:
                size = self._chunks.read(buffer, 0)
            except BadRequest as error:
                self._conversation.abandon(str(error))
                return 0
            if self._chunks.done:
                self._chunks = None
                self._after_body()
            return size
        return self._take_head()

    def _take_head(self) -> int:
        buffer = self._buffer
        # Some clients end a body with a line of its own, which belongs to no request.
        while buffer.startswith(b"\r\n") and not self._skip:
            del buffer[:2]
            self._seen = 0
        try:
            end = find_head_end(buffer, self._seen)
        except BadRequest as error:
            self._conversation.refuse(self._conversation._complain(str(error)))
            return 0
        if end < 0:
            self._seen = len(buffer)
            return 0
        self._seen = 0
        request = self._conversation.judged(bytes(buffer[:end]))
        if request is None:
            return 0
        if request.body == CHUNKED:
            self._chunks = ChunkReader()
        else:
            self._left = request.body
        self._hold = request.connect or request.upgrade
        if not request.body:
            self._after_body()
        return end

    def _after_body(self) -> None:
        if not self._left and (self._hold or len(self._conversation.pending) >= MAX_PIPELINED):
            self.waiting = True


class Answers:
    """What comes from the server; all of it goes on. `free` bytes may pass without being fed."""

    __slots__ = ("_buffer", "_chunks", "_conversation", "_left", "begun", "waiting")

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._buffer = bytearray()
        self._chunks: ChunkReader | None = None
        self._left = 0
        self.begun = False
        self.waiting = False

    @property
    def free(self) -> int:
        """Bytes of the present answer that are still to come; UNLIMITED when only the server knows."""
        if self._buffer:
            return 0
        return self._chunks.left if self._chunks is not None else self._left

    def passed(self, size: int) -> None:
        """So many of the `free` bytes went by."""
        if self._chunks is not None:
            self._chunks.passed(size)
        elif self._left != UNLIMITED:
            self._left -= size
            if not self._left:
                self._complete()

    def feed(self, data: bytes) -> bytes:
        """Follow what came."""
        at = 0
        while at < len(data) and not self._conversation.accepted:
            if self._left == UNLIMITED:
                break
            if self._left:
                size = min(self._left, len(data) - at)
                at += size
                self.passed(size)
            elif self._chunks is not None:
                at = self._follow_chunks(self._chunks, data, at)
            else:
                at = self._follow_head(data, at)
        return data

    def _follow_chunks(self, chunks: ChunkReader, data: bytes, at: int) -> int:
        before = len(self._buffer)
        part = bytes(self._buffer) + data[at:]
        self._buffer.clear()
        try:
            read = chunks.read(part, 0)
        except BadRequest:
            self._lose()
            return len(data)
        if chunks.done:
            self._complete()
            return at + read - before
        self._buffer += part[read:]
        return len(data)

    def _follow_head(self, data: bytes, at: int) -> int:
        if not self._conversation.pending:
            self._lose()
            return len(data)
        self.begun = True
        before = len(self._buffer)
        self._buffer += data[at:]
        end = _ANSWER_END.search(self._buffer, max(0, before - 3))
        if end is None:
            if len(self._buffer) > MAX_HEAD_BYTES:
                self._lose()
            return len(data)
        kind = self._conversation.pending[0]
        head = read_response_head(bytes(self._buffer[: end.end()]), to_head=kind == _HEAD)
        self._buffer.clear()
        at += end.end() - before
        if head is None:
            self._lose()
        elif head.status < 200:
            self.begun = False
            if head.status == _SWITCHING:
                self._switch(accepted=kind == _UPGRADE)
        elif kind == _CONNECT and head.status < 300:
            self._switch(accepted=True)
        elif head.body == CHUNKED:
            self._chunks = ChunkReader()
        elif head.body == UNTIL_CLOSE:
            self._left = UNLIMITED
        elif head.body:
            self._left = head.body
        else:
            self._complete()
        return at

    def _switch(self, *, accepted: bool) -> None:
        if accepted:
            self._conversation.accepted = True
        else:
            self._lose()

    def _complete(self) -> None:
        self._chunks = None
        self.begun = False
        if self._conversation.pending:
            self._conversation.pending.popleft()
        self._conversation.requests.answered()

    def _lose(self) -> None:
        """Follow no further: an answer that is not understood lasts until the server closes."""
        self._buffer.clear()
        self._chunks = None
        self._left = UNLIMITED
