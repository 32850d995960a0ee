# SPDX-License-Identifier: MIT
"""Where the trusted part of a trace ends."""

from __future__ import annotations

from agentbox.records import dataclass, field
from agentbox.trace import record
from agentbox.trace.merkle import MerkleTree


@dataclass(frozen=True, slots=True)
class Anchor:
    """How far trusted signatures reach: the byte, the number of records, the head and the tree after the last one."""

    run: str = ""
    policy_sha256: str = ""
    key: str = ""
    offset: int = 0
    count: int = 0
    head: str = record.GENESIS
    tree: MerkleTree = field(default_factory=MerkleTree)
    sealed: bool = False
