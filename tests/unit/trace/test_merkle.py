# SPDX-License-Identifier: MIT
"""The growing tree has the roots that the definition of RFC 6962 gives."""

from __future__ import annotations

import hashlib

from agentbox.trace.merkle import EMPTY_ROOT, MerkleTree


def defined_root(leaves: list[bytes]) -> bytes:
    """MTH of section 2.1, with leaves that are hashes already."""
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    return hashlib.sha256(b"\x01" + defined_root(leaves[:left]) + defined_root(leaves[left:])).digest()


def leaf(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def test_root_is_that_of_the_definition_for_every_size() -> None:
    leaves = [leaf(number) for number in range(70)]
    for size in range(1, len(leaves)):
        tree = MerkleTree()
        for one in leaves[:size]:
            tree.append(one)
        assert tree.root() == defined_root(leaves[:size]).hex()


def test_root_does_not_depend_on_how_the_leaves_were_added() -> None:
    leaves = [leaf(number) for number in range(300)]
    for step in (1, 2, 3, 7, 64, 299):
        tree = MerkleTree()
        for at in range(0, len(leaves), step):
            tree.extend(leaves[at : at + step])
            tree.root()
        assert tree.root() == defined_root(leaves).hex()


def test_copy_grows_on_its_own() -> None:
    tree = MerkleTree()
    tree.extend([leaf(1), leaf(2), leaf(3)])
    twin = tree.copy()
    twin.append(leaf(4))
    assert tree.root() == defined_root([leaf(1), leaf(2), leaf(3)]).hex()
    assert twin.root() == defined_root([leaf(1), leaf(2), leaf(3), leaf(4)]).hex()


def test_tree_without_leaves_has_the_hash_of_nothing() -> None:
    assert MerkleTree().root() == EMPTY_ROOT == hashlib.sha256(b"").hexdigest()
