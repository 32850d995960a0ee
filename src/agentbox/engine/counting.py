# SPDX-License-Identifier: MIT
"""What a run has used of the rules that count: files that may be read once, and bytes below a cap.

Guards ask here, so that all processes of a run share one count; spec/frames says how. What a guard does not tell is not
counted, so this is no wall: it makes a rule hold for programs that a guard watches. The sizes are the host's own look
at the files, and what was granted beyond them to processes that are still connected.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from agentbox.light import asyncio
from agentbox.policy.decision import MAX_COUNTED_FILES
from agentbox.policy.document import policies_of
from agentbox.policy.paths import covers
from agentbox.policy.rule import PathTarget, Rule
from agentbox.workspace.sizes import sizes_below
from agentbox.workspace.tree import Tree

if TYPE_CHECKING:
    from agentbox.policy.document import AnyPolicy

# How much more than asked for is granted at once: a question for each small write would be slow. Never more than this
# part of what is left, so that little of a cap lies idle in one process.
_AHEAD_BYTES = 1 << 16
_AHEAD_PART = 64
# Looking at all files takes at most one part in five of the time, however often a guest asks.
_PAUSE = 4
_MAX_IDENTITY_CHARACTERS = 64


class Sizes:
    """A look at a run's files from the host. `tree` is what lies at `top` for the run; its descriptor is copied, since
    a look may still go on when the box is gone."""

    def __init__(self, tree: Tree, top: str = "/") -> None:
        self._tree = Tree(os.dup(tree.fd), tree.uid, tree.gid)
        self._prefix = top.rstrip("/") + "/"
        self._lock = threading.Lock()
        self._closed = False

    def below(self, place: str) -> dict[str, tuple[str, int]] | None:
        """The files at and below a place: `DEVICE:INODE` -> (path, bytes); None for too many."""
        with self._lock:
            if self._closed:
                return {}
            inner = place[len(self._prefix) :] if place.startswith(self._prefix) else ""
            found = sizes_below(self._tree, inner, MAX_COUNTED_FILES)
        if found is None:
            return None
        return {identity: (self._prefix + path, size) for identity, (path, size) in found.items()}

    def close(self) -> None:
        """Wait until nobody looks, and let go. May be called twice."""
        with self._lock:
            if not self._closed:
                os.close(self._tree.fd)
            self._closed = True


class Counting:
    """The counts of one run, until `close`. `sizes` is looked at in a thread."""

    def __init__(self, policy: AnyPolicy, sizes: Sizes) -> None:
        self._files = sizes
        rules = [rule for one in policies_of(policy) for rule in one.rules if not rule.deny]
        self._once = any(rule.verb == "read-once" for rule in rules)
        self._spent: set[str] = set()
        self._caps = [
            _Cap(rule, rule.target, sizes)
            for rule in rules
            if isinstance(rule.target, PathTarget) and rule.target.max_bytes is not None
        ]
        self._one_at_a_time = asyncio.Lock()

    def read_once(self, identity: object) -> str:
        """Count a file as read; why it may not be read, '' when it may."""
        if not self._once:
            return ""
        if not _is_identity(identity):
            return "the file has no identity"
        if identity in self._spent:
            return "this file was read before"
        if len(self._spent) >= MAX_COUNTED_FILES:
            return "more files than can be counted"
        self._spent.add(str(identity))
        return ""

    async def grow(self, path: object, identity: object, size: object, holder: int) -> tuple[int, str]:
        """The bytes that a file may have now, and why it may not grow to `size`, '' when it may. `holder` is the
        connection for which they are kept."""
        if not (isinstance(path, str) and _is_identity(identity) and type(size) is int and size >= 0):
            return 0, "the file has no path, identity or size"
        async with self._one_at_a_time:
            caps = [cap for cap in self._caps if covers(cap.target, path)]
            for cap in caps:
                if why := await cap.why_not(str(identity), size, holder):
                    return 0, why
            granted = min((size + cap.ahead(str(identity), size) for cap in caps), default=size)
            for cap in caps:
                cap.grant(str(identity), granted, holder)
        return granted, ""

    @property
    def looks(self) -> bool:
        """Whether it may be looking at files, so that `close` has to wait for that."""
        return bool(self._caps)

    def close_now(self) -> None:
        """See `close`; of what does not look at files."""
        self._files.close()

    async def close(self) -> None:
        """Let go of the files. May be called twice."""
        if self.looks:
            await asyncio.to_thread(self._files.close)
        else:
            self.close_now()

    def release(self, holder: int) -> None:
        """A connection has ended: from now on its files count with what they really have."""
        for cap in self._caps:
            cap.release(holder)


class _Cap:
    """One capped rule. `_sizes` holds what each file counts with, `_held` what was granted, by file and holder."""

    def __init__(self, rule: Rule, target: PathTarget, look: Sizes) -> None:
        assert target.max_bytes is not None
        self.target = target
        self._rule = rule
        self._most = target.max_bytes
        self._look = look
        self._sizes: dict[str, int] = {}
        self._held: dict[str, dict[int, int]] = {}
        self._files: dict[int, set[str]] = {}
        self._total = 0
        self._looked = False
        self._not_before = 0.0

    async def why_not(self, identity: str, size: int, holder: int) -> str:
        """Why a file may not have `size` bytes, '' when it may."""
        # A process asks about a file for the first time: what programs without a guard wrote meanwhile counts too.
        begins = holder not in self._held.get(identity, {}) and time.monotonic() >= self._not_before
        if (begins or not self._looked) and (why := await self._look_again()):
            return why
        if self._fits(identity, size):
            return ""
        if why := await self._look_again():
            return why
        return "" if self._fits(identity, size) else f"the files below it would pass {self._most} bytes"

    def ahead(self, identity: str, size: int) -> int:
        """How much more than `size` may be granted now."""
        left = self._most - (self._total - self._sizes.get(identity, 0) + size)
        return max(0, min(_AHEAD_BYTES, left // _AHEAD_PART))

    def grant(self, identity: str, size: int, holder: int) -> None:
        """Keep `size` bytes for a file as long as `holder` is there."""
        held = self._held.setdefault(identity, {})
        held[holder] = size
        self._files.setdefault(holder, set()).add(identity)
        self._count(identity, max(held.values()))

    def release(self, holder: int) -> None:
        """Forget what a holder was granted; what it used is seen at the next look."""
        for identity in self._files.pop(holder, ()):
            held = self._held.get(identity, {})
            held.pop(holder, None)
            if not held:
                self._held.pop(identity, None)

    def _fits(self, identity: str, size: int) -> bool:
        before = self._sizes.get(identity, 0)
        if identity not in self._sizes and len(self._sizes) >= MAX_COUNTED_FILES:
            return False
        return size <= before or self._total - before + size <= self._most

    def _count(self, identity: str, size: int) -> None:
        self._total += size - self._sizes.get(identity, 0)
        self._sizes[identity] = size

    async def _look_again(self) -> str:
        """Count what is there; why that is impossible, '' when it was possible."""
        await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
        began = time.monotonic()
        found = await asyncio.to_thread(self._look.below, self.target.path)
        ended = time.monotonic()
        self._not_before = ended + _PAUSE * (ended - began)
        if found is None:
            return "there are more files below it than can be counted"
        self._looked = True
        self._sizes = {}
        self._total = 0
        for identity, (path, size) in found.items():
            if covers(self.target, path):
                self._count(identity, max(size, *self._held.get(identity, {}).values(), 0))
        # What is not there any more gives its bytes back, whoever still writes to it.
        for gone in self._held.keys() - self._sizes.keys():
            for holder in self._held.pop(gone):
                self._files[holder].discard(gone)
        return ""


def _is_identity(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_IDENTITY_CHARACTERS


__all__ = ["Counting", "Sizes"]
