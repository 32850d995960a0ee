# SPDX-License-Identifier: MIT
"""Random bytes that a replay has again: they follow from the seed of the run, the lane and how many were drawn there.

Block n of a lane is HMAC-SHA-256 of the seed over `LANE NUL n`. A draw takes whole blocks, at least one; a long one
takes one block and stretches it with SHAKE-256.
"""

from __future__ import annotations

from .lanes import Lanes
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOCK_BYTES = 32
_KEY_BYTES = 64
_DRAWN = "random"
_MOST_BLOCKS = 8
_READY_BLOCKS = 32
# Of one draw; the real function has the same limit.
_MAX_BYTES = (1 << 31) - 1


@sealed
class Randomness:
    """The streams of one process. `seed` is the run's."""

    def __init__(self, lanes: Lanes, seed: bytes, sha256: Any) -> None:
        self._lanes = lanes
        self._inner = sha256(bytes([byte ^ 0x36 for byte in seed.ljust(_KEY_BYTES, b"\0")]))
        self._outer = sha256(bytes([byte ^ 0x5C for byte in seed.ljust(_KEY_BYTES, b"\0")]))

    def draw(self, size: int) -> bytes:
        """The next bytes of the caller's lane. Raises ValueError and OverflowError as `os.urandom` does."""
        if size < 0:
            raise ValueError("negative argument not allowed")
        lane = self._lanes.here()
        if size <= _BLOCK_BYTES:
            return self._block(lane)[:size]
        if size <= _BLOCK_BYTES * _MOST_BLOCKS:
            return b"".join([self._block(lane) for _ in range(-(-size // _BLOCK_BYTES))])[:size]
        return self.stretched(self._block(lane), size)

    def stretched(self, block: bytes, size: int) -> bytes:
        """So many bytes made of one block. Raises OverflowError."""
        if size > _MAX_BYTES:
            raise OverflowError("Python int too large to convert to C int")
        return bytes(_shake(block).digest(size))

    def blocks(self) -> Any:
        """The next blocks of the caller's lane, the first one last."""
        lane = self._lanes.here()
        return [self._block(lane) for _ in range(_READY_BLOCKS)][::-1]

    def _block(self, lane: Any) -> bytes:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(f"{lane.name}\0{self._lanes.number(lane, _DRAWN)}".encode("utf-8", "backslashreplace"))
        outer.update(inner.digest())
        return bytes(outer.digest())


def _shake(data: bytes) -> Any:
    # Most programs never draw as much.
    try:
        from _sha3 import shake_256  # type: ignore[import-not-found]
    except ImportError:
        from hashlib import shake_256
    return shake_256(data)
