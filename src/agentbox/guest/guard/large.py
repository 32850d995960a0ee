# SPDX-License-Identifier: MIT
"""Values that are too large for a record: handed to the host in pieces before the record, and read back in a replay."""

from __future__ import annotations

from posix import getpid

from .channel import base64, from_base64, text_of
from .effects import Effects
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PIECE_BYTES = 384 << 10
MAX_INLINE_BYTES = 16 << 10


@sealed
class Large:
    """What one process hands over and gets back."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._number = 0

    def of_bytes(self, data: bytes) -> Any:
        """What stands for bytes in a record that is sent next."""
        return {"b64": base64(data)} if len(data) <= MAX_INLINE_BYTES else self.keep(data)

    def of_text(self, text: str) -> Any:
        """What stands for a text in a record that is sent next."""
        if len(text) <= MAX_INLINE_BYTES // 4:
            return text
        data = text.encode("utf-8", "surrogatepass")
        return text if len(data) <= MAX_INLINE_BYTES else self.keep(data)

    def keep(self, data: bytes) -> Any:
        """Hand bytes over; what stands for them in a record that is sent next."""
        key = self.key()
        for at in range(0, len(data), _PIECE_BYTES):
            self.piece(key, data[at : at + _PIECE_BYTES])
        return {"kept": key}

    def collector(self) -> Any:
        """Collects the bytes of a stream."""
        return Collector(self)

    def piece(self, key: str, data: bytes) -> None:
        """Hand over a piece of what has a key."""
        args = text_of({"key": key, "b64": base64(data)})
        self._effects.channel.send(f'{{"id":0,"kind":"keep","op":"keep.piece","args":{args}}}'.encode("ascii"))

    def key(self) -> str:
        """A key that no other value of this process has."""
        self._number += 1
        return f"{getpid()}-{self._number}"

    def bytes_of(self, value: Any) -> Any:
        """The bytes that a record has; None when the host has not kept all of them, or there are none."""
        kind = type(value)
        if kind is str:
            return value.encode("utf-8", "surrogatepass")
        if kind is not dict or value.get("cut") is True:
            return None
        if type(value.get("b64")) is str:
            return from_base64(value["b64"])
        return self._read(value["kept"]) if type(value.get("kept")) is str else None

    def text_of(self, value: Any) -> Any:
        """The text that a record has; None when the host has not kept all of it."""
        data = self.bytes_of(value)
        return None if data is None else data.decode("utf-8", "surrogatepass")

    def _read(self, name: str) -> Any:
        pieces: list[bytes] = []
        size = 0
        while True:
            refused, answer = self._effects.ask("serve", "keep.read", text_of({"kept": name, "offset": size}))
            found = answer.get("result")
            if refused is not None or type(found) is not dict:
                return None
            pieces.append(from_base64(found["b64"]))
            size += len(pieces[-1])
            if found.get("end") is True or not pieces[-1]:
                return b"".join(pieces)


@sealed
class Collector:
    """The bytes of one stream, handed over as they come: not much of them stays here."""

    def __init__(self, large: Any) -> None:
        self._large = large
        self._key = ""
        self._held: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> None:
        """Add bytes at the end."""
        self._held.append(data)
        self._size += len(data)
        if self._size >= _PIECE_BYTES:
            self._hand_over()

    def value(self) -> Any:
        """What stands for all of them in a record that is sent next."""
        if not self._key and self._size <= MAX_INLINE_BYTES:
            return {"b64": base64(b"".join(self._held))}
        self._hand_over()
        return {"kept": self._key}

    def _hand_over(self) -> None:
        self._key = self._key or self._large.key()
        data = b"".join(self._held)
        self._held.clear()
        self._size = 0
        for at in range(0, len(data), _PIECE_BYTES):
            self._large.piece(self._key, data[at : at + _PIECE_BYTES])
