# SPDX-License-Identifier: MIT
"""What a recorded run leaves beside its trace: bytes that are too large for a record, each in a file that is named by
its SHA-256. The trace holds the hash, so whoever changes such a file is found out when it is read."""

from __future__ import annotations

import binascii
import os
import stat

from agentbox.light import contextlib, digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_KEPT_BYTES = 64 << 20
MAX_KEPT_IN_RUN_BYTES = 256 << 20
_MAX_KEYS = 256
_MAX_KEY_CHARACTERS = 64
_MAX_PIECE_BYTES = 1 << 20
# Directory of kept bytes below a run's own, or beside a trace that has none.
BLOBS = "blobs"
_BESIDE = ".blobs"


def blobs_of(trace: str, *, explicit: bool) -> str:
    """Where the bytes of a run lie whose trace is at that path; `explicit` when the user named it."""
    return f"{trace}{_BESIDE}" if explicit else f"{os.path.dirname(trace)}/{BLOBS}"


def find_blobs(trace: str) -> str:
    """The directory that belongs to a trace, by either of the two ways in which it was named."""
    trace = os.path.realpath(trace)
    beside = blobs_of(trace, explicit=True)
    return beside if os.path.isdir(beside) else blobs_of(trace, explicit=False)


class Growing:
    """Bytes that come piece by piece: their hash is over all of them, kept are only the first."""

    def __init__(self, most: int) -> None:
        self.size = 0
        self._most = most
        self._hash = digests.sha256(b"")
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """How many of them are in memory."""
        return self._held_bytes

    @property
    def sha256(self) -> str:
        """Of all that came."""
        return self._hash.hexdigest()

    def feed(self, data: bytes) -> None:
        """Add bytes at the end."""
        self.size += len(data)
        self._hash.update(data)
        room = self._most - self._held_bytes
        if room > 0:
            piece = bytes(data[:room])
            self._held.append(piece)
            self._held_bytes += len(piece)

    def held(self) -> bytes:
        """What was kept of them."""
        return b"".join(self._held)


class Keeping:
    """Keeps the bytes of one run in `directory`, which is made when there are any; with none, only their hashes are
    known."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._growing: dict[tuple[int, str], Growing] = {}
        self._room = MAX_KEPT_IN_RUN_BYTES

    def piece(self, holder: int, args: dict[str, Any]) -> None:
        """Add a piece that a guest sends for one of its keys. What is none, or beyond the bounds, is passed over."""
        key, text = args.get("key"), args.get("b64")
        if not (isinstance(key, str) and 0 < len(key) <= _MAX_KEY_CHARACTERS and isinstance(text, str)):
            return
        try:
            data = binascii.a2b_base64(text, strict_mode=True)
        except (binascii.Error, ValueError):
            return
        growing = self._growing.get((holder, key))
        if growing is None:
            if len(self._growing) >= _MAX_KEYS or len(data) > _MAX_PIECE_BYTES:
                return
            growing = self._growing[holder, key] = Growing(min(MAX_KEPT_BYTES, self._room))
        before = growing.held_bytes
        growing.feed(data)
        self._room -= growing.held_bytes - before

    def resolved(self, holder: int, value: Any) -> Any:
        """A record's arguments or result, with hashes in place of the keys at its top level."""
        if not isinstance(value, dict):
            return value
        if self._is_key(value):
            return self._kept(holder, value["kept"])
        if not any(self._is_key(item) for item in value.values()):
            return value
        return {name: self._kept(holder, item["kept"]) if self._is_key(item) else item for name, item in value.items()}

    def forget(self, holder: int) -> None:
        """A connection is closed: what it sent and no record used is gone."""
        for key in [key for key in self._growing if key[0] == holder]:
            self._room += self._growing.pop(key).held_bytes

    def keep(self, data: bytes) -> str:
        """Keep some bytes; their hash. What cannot be written is found missing later. Nothing where they are none."""
        return self._keep(data)[0]

    def _keep(self, data: bytes) -> tuple[str, bool]:
        name = digests.sha256(data).hexdigest()
        return name, self._write(name, data)

    @staticmethod
    def _is_key(value: Any) -> bool:
        return isinstance(value, dict) and value.keys() == {"kept"} and isinstance(value["kept"], str)

    def _kept(self, holder: int, key: str) -> dict[str, Any]:
        growing = self._growing.pop((holder, key), None)
        if growing is None:
            return {"kept": "", "bytes": 0, "cut": True}
        held = growing.held()
        name, written = self._keep(held)
        kept: dict[str, Any] = {"kept": name, "bytes": growing.size}
        if len(held) < growing.size or not written:
            kept["cut"] = True
        return kept

    def _write(self, name: str, data: bytes) -> bool:
        """Whether the bytes are where they belong, or belong nowhere."""
        if not self._directory:
            return True
        path = f"{self._directory}/{name}"
        with contextlib.suppress(OSError):
            if not os.path.isdir(self._directory):
                os.mkdir(self._directory, 0o700)
                _give_to(self._directory, os.path.dirname(self._directory) or ".")
            if os.path.exists(path):
                return True
            draft = f"{path}.{os.urandom(4).hex()}"
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
            _give_to(draft, self._directory)
            os.replace(draft, path)
            return True
        return False


class Kept:
    """Reads what a recorded run left."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # A guest asks for large ones piece by piece.
        self._last: tuple[str, bytes] = ("", b"")

    def read(self, sha256: str) -> bytes | None:
        """The bytes of that hash; None where they are not there, or are others."""
        if len(sha256) != 64 or not sha256.isalnum():
            return None
        if self._last[0] == sha256:
            return self._last[1]
        try:
            data = _content(f"{self._directory}/{sha256}")
        except OSError:
            return None
        if data is None or digests.sha256(data).hexdigest() != sha256:
            return None
        self._last = sha256, data
        return data

    def bytes_of(self, value: Any) -> bytes | None:
        """The bytes that a record tells of: `{"b64"}`, or `{"kept"}` in its file; None where they are not whole."""
        if not isinstance(value, dict):
            return None
        text = value.get("b64")
        if isinstance(text, str):
            try:
                return binascii.a2b_base64(text)
            except (binascii.Error, ValueError):
                return None
        name = value.get("kept")
        return self.read(name) if isinstance(name, str) and not value.get("cut") else None


def _content(path: str) -> bytes | None:
    """The content of a file, None for what no recorded run left. Raises OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_KEPT_IN_RUN_BYTES:
            return None
        return file.read(facts.st_size)


def _give_to(path: str, like: str) -> None:
    """What root made belongs to the owner of what lies around it."""
    if os.geteuid() == 0:
        owner = os.stat(like)
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
