# SPDX-License-Identifier: MIT
"""The network of a box that was made by somebody else."""

from __future__ import annotations

from agentbox.records import dataclass


@dataclass(frozen=True, slots=True)
class Network:
    """A network namespace that was made for one box, which joins it instead of getting a new one.

    `user_namespace_fd` is the user namespace to enter first, where an ordinary user made both. The descriptors stay the
    caller's. `name_server` is an address that is served there; `unix_listeners` are absolute paths at which sockets are
    made inside the box, for the caller to serve (LiveBox.unix_listeners).
    """

    namespace_fd: int
    user_namespace_fd: int | None
    name_server: str
    unix_listeners: tuple[str, ...] = ()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """In the order in which they are entered."""
        first = () if self.user_namespace_fd is None else (self.user_namespace_fd,)
        return (*first, self.namespace_fd)
