# SPDX-License-Identifier: MIT
"""A Merkle tree that grows by appending, with the shape of RFC 6962, section 2.1.

The leaves are the hashes of the records. They need no leaf prefix: what a record's hash was made of starts with a
hexadecimal digit, what a node's hash was made of starts with the byte 1, so one cannot be shown as the other.
"""

from __future__ import annotations

from agentbox.light import digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_NODE = b"\x01"
EMPTY_ROOT = digests.sha256(b"").hexdigest()


class MerkleTree:
    """The right edge of the tree: memory grows with the logarithm of the number of leaves."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        # At each level the one complete subtree, if any, that still waits for its right neighbour.
        self._pending: list[bytes | None] = []
        self.append = self._waiting.append

    def extend(self, leaves: Sequence[bytes]) -> None:
        """Add the hashes of records, 32 bytes each. (`append` adds one, and costs nothing until the next fold.)"""
        self._waiting.extend(leaves)
        self.fold()

    def fold(self) -> None:
        """Turn the leaves that were added into subtrees, level by level."""
        nodes = self._waiting[:]
        self._waiting.clear()
        sha256 = digests.sha256
        level = 0
        while nodes:
            if level == len(self._pending):
                self._pending.append(None)
            left = self._pending[level]
            if left is not None:
                nodes.insert(0, left)
            self._pending[level] = nodes.pop() if len(nodes) % 2 else None
            pairs = iter(nodes)
            nodes = [sha256(_NODE + one + other).digest() for one, other in zip(pairs, pairs, strict=True)]
            level += 1

    def root(self) -> str:
        """The root over all leaves so far, in hexadecimal."""
        self.fold()
        root: bytes | None = None
        for subtree in self._pending:
            if subtree is not None:
                root = subtree if root is None else digests.sha256(_NODE + subtree + root).digest()
        return EMPTY_ROOT if root is None else root.hex()

    def copy(self) -> MerkleTree:
        """The same tree, growing on its own."""
        self.fold()
        twin = MerkleTree()
        twin._pending = self._pending[:]
        return twin
