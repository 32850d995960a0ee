# SPDX-License-Identifier: MIT
"""A warm box that is taken before its run begins, so that its network can be fitted out: it can enter no other."""

from __future__ import annotations

import itertools
import os
import select

from agentbox.errors import IsolationError
from agentbox.isolation.pool.watched import pid_of
from agentbox.linux import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.isolation.network import Closable
    from agentbox.isolation.pool.pool import PooledLiveBox

_counter = itertools.count(1)


class HeldBox:
    """See HeldNetwork. The box is whoever's takes it; one that nobody took goes with this. `held` are those that are
    held, by what names them."""

    def __init__(self, box: PooledLiveBox, network: int, user: int, held: dict[str, HeldBox]) -> None:
        self.fitted: Closable | None = box.fitted
        box.fitted = None
        self.holder = f"warm-{next(_counter)}"
        self._box: PooledLiveBox | None = box
        self._network = network
        self._user = user
        self._held = held
        held[self.holder] = self

    @classmethod
    def of(cls, box: PooledLiveBox, held: dict[str, HeldBox]) -> HeldBox | None:
        """That box with its namespaces open, entered in `held` until it is closed; None where this process may not
        open them, or the box has ended."""
        init = box.pooled.init_fd
        opened: list[int] = []
        try:
            pid = pid_of(init)
            opened += (os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "user"))
            ended = select.select([init], [], [], 0)[0]
        except OSError:
            ended = [init]
        # The number may be somebody else's as soon as the init has ended; what was opened before that is the box's.
        if ended:
            for fd in opened:
                os.close(fd)
            return None
        return cls(box, opened[0], opened[1], held)

    @property
    def path(self) -> str:
        """See HeldNetwork."""
        return f"/proc/self/fd/{self._network}"

    @property
    def user_path(self) -> str:
        """See HeldNetwork."""
        return "" if process.has_capability(process.CAP_SYS_ADMIN) else f"/proc/self/fd/{self._user}"

    def take(self) -> PooledLiveBox:
        """The box, which is the caller's from now on. Raises IsolationError when it was taken already."""
        box, self._box = self._box, None
        if box is None:
            raise IsolationError("the box of this network was taken already", hint="this is a bug in agentbox")
        return box

    def leave(self) -> None:
        """Let go of the box, which stays where it was, with what its network was fitted out with."""
        box = self.take()
        box.fitted, self.fitted = self.fitted, None
        self._close()

    async def close(self) -> None:
        """See HeldNetwork."""
        self._close()
        box, self._box = self._box, None
        if box is not None:
            await box.destroy()

    def _close(self) -> None:
        if self._network >= 0:
            for fd in (self._network, self._user):
                os.close(fd)
            self._network = self._user = -1
            del self._held[self.holder]
        if self.fitted is not None:
            self.fitted.close()
