# SPDX-License-Identifier: MIT
"""Policies that were read and compiled before: the same text comes with one request after the other, and to read it
costs more than to run a small program.

What a policy means depends on the host too, as far as programs are looked for. Every such look is remembered with its
answer, and made again before what was read is used again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from agentbox.engine.box_world import BoxWorld
from agentbox.models import Confinement
from agentbox.records import dataclass, field
from agentbox.workspace.listing import EMPTY, Listing

if TYPE_CHECKING:
    from agentbox.policy.document import AnyPolicy

_KEPT = 128
_KEPT_LISTINGS = 8
_MAX_NAMES = 256
# Longer ones are rare, and would fill the memory of a server.
MAX_CHARACTERS = 2048


class Looking(BoxWorld):
    """A box's world that remembers which programs were looked for, and what was found."""

    def __init__(self, search_path: Sequence[str], shown: Sequence[str], listing: Listing = EMPTY) -> None:
        super().__init__(search_path, shown, listing)
        self.looks: list[tuple[str, str, object]] = []

    def find_program(self, name: str) -> str | None:
        """See BoxWorld."""
        found = super().find_program(name)
        self.looks.append(("find_program", name, found))
        return found

    def libexec_of(self, program: str) -> tuple[str, ...]:
        """See BoxWorld."""
        found = super().libexec_of(program)
        self.looks.append(("libexec_of", program, found))
        return found


@dataclass(frozen=True, slots=True)
class Reading:
    """An effective policy as it was read, before the workspace of a run was known. `looks` are what was asked about the
    host. The rest is filled as runs need it."""

    policy: AnyPolicy
    confinement: Confinement
    warnings: tuple[str, ...]
    looks: tuple[tuple[str, str, object], ...] = ()
    by_listing: dict[Hashable, Confinement] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def holds(self, world: BoxWorld) -> bool:
        """Whether the host would answer as it did."""
        return all(getattr(world, look)(name) == found for look, name, found in self.looks)

    def compiled(self, listing: Listing, work: Callable[[], Confinement]) -> Confinement:
        """What `work` compiles, which depends on nothing but this reading and the listing."""
        if listing.links or sum(map(len, listing.below.values())) > _MAX_NAMES:
            return work()
        key = tuple(listing.below.items())
        found = self.by_listing.get(key)
        if found is None:
            if len(self.by_listing) >= _KEPT_LISTINGS:
                self.by_listing.clear()
            found = self.by_listing[key] = work()
        return found

    def guard_file(self, policy: AnyPolicy, work: Callable[[AnyPolicy], str]) -> str:
        """What `work` writes for the guard about a policy that is this one, or was read again."""
        if policy is not self.policy:
            return work(policy)
        if not self.files:
            self.files.append(work(policy))
        return self.files[0]


class Readings:
    """The readings of one server, those used last. A key has its own."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Reading] = OrderedDict()

    def of(self, key: Hashable, text: str | None, world: Looking, read: Callable[[Looking], Reading]) -> Reading:
        """The reading of that key, by `read` where there is none that still holds. Raises what `read` raises."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            if kept.holds(world):
                return kept
        world.looks = []
        made = read(world)
        if text is None or len(text) <= MAX_CHARACTERS:
            self._kept[key] = made
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made
