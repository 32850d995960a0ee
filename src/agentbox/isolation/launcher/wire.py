# SPDX-License-Identifier: MIT
"""Frames between owner, launcher and init: u32 length (little-endian) + JSON, descriptors beside the first byte.

Both ends of every such socket are ours; guests never hold one.
"""

from __future__ import annotations

import os
import struct

from agentbox.light import jsons, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAX_FRAME_BYTES = 8 << 20
MAX_DESCRIPTORS = 16
_HEADER = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
_DESCRIPTOR = struct.Struct("=i")


def encode(message: dict[str, Any], descriptors: int) -> bytes:
    """The frame of a message that travels with that many descriptors."""
    body = jsons.dumps({**message, "fds": descriptors} if descriptors else message).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {len(body)} bytes; the most is {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(body)) + body


def send(sock: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Write one frame on a blocking socket. Raises OSError when the peer is gone."""
    frame = encode(message, len(descriptors))
    sent = socket.send_fds(sock, [frame], list(descriptors)) if descriptors else sock.send(frame)
    if sent < len(frame):
        sock.sendall(frame[sent:])


class Receiver:
    """Collects bytes and descriptors of one socket and cuts them into messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._bytes = bytearray()
        self._descriptors: list[int] = []

    def fill(self) -> bool:
        """One recvmsg. False at end of file. Raises BlockingIOError on a non-blocking socket with nothing to read."""
        data, ancillary, flags, _ = self._sock.recvmsg(
            1 << 16, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors += (fd for (fd,) in _DESCRIPTOR.iter_unpack(payload[: len(payload) // 4 * 4]))
        if flags & socket.MSG_CTRUNC:
            raise OSError("descriptors were lost on the way (descriptor limit reached)")
        self._bytes += data
        return bool(data)

    def take(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next whole message and its descriptors, None when more bytes are needed."""
        if len(self._bytes) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._bytes)
        if length > MAX_FRAME_BYTES:
            raise OSError(f"frame of {length} bytes announced; the most is {MAX_FRAME_BYTES}")
        end = _HEADER.size + length
        if len(self._bytes) < end:
            return None
        message: dict[str, Any] = jsons.loads(bytes(self._bytes[_HEADER.size : end]))
        del self._bytes[:end]
        count = message.pop("fds", 0)
        descriptors, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        if len(descriptors) != count:
            raise OSError(f"{count} descriptors announced, {len(descriptors)} came")
        return message, descriptors

    def close(self) -> None:
        """Close descriptors that nobody took."""
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
