# SPDX-License-Identifier: MIT
"""The network of a box that was made by somebody else."""

from __future__ import annotations

from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object


@dataclass(frozen=True, slots=True)
class Network:
    """A network namespace that was made for one box, which joins it instead of getting a new one.

    `user_namespace_fd` is the user namespace to enter first, where an ordinary user made both. The descriptors stay the
    caller's. `name_server` is an address that is served there; `unix_listeners` are absolute paths at which sockets are
    made inside the box, for the caller to serve (LiveBox.unix_listeners). `holder` is what of the backend's own keeps
    the namespace, where it was that which made it.
    """

    namespace_fd: int
    user_namespace_fd: int | None
    name_server: str
    unix_listeners: tuple[str, ...] = ()
    holder: str = ""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """In the order in which they are entered."""
        first = () if self.user_namespace_fd is None else (self.user_namespace_fd,)
        return (*first, self.namespace_fd)


class Closable(Protocol):
    """What is kept with a network."""

    def close(self) -> None:
        """Give it up. May be called twice; does not raise."""


class WayOutMaker(Protocol):
    """Who fits out the networks of boxes in stock."""

    # What answers questions for names there.
    name_server: str

    async def fit_out(self, held: HeldNetwork) -> Closable:
        """Fit it out; see HeldNetwork.fitted. Raises IsolationError."""


class HeldNetwork(Protocol):
    """A network namespace that a backend made, since its box can join no other. It leads nowhere, until somebody
    fits it out."""

    @property
    def path(self) -> str:
        """A path by which the namespace can be entered (/proc/PID/ns/net)."""

    @property
    def user_path(self) -> str:
        """A path of the user namespace that has to be entered first; empty where this process needs none."""

    @property
    def holder(self) -> str:
        """See Network."""

    # What the one who fitted it out needs to serve it, where that was done before anybody asked for it; who takes it
    # from here closes it.
    fitted: Closable | None

    async def close(self) -> None:
        """Give it up. May be called twice; does not raise."""
