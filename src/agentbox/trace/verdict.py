# SPDX-License-Identifier: MIT
"""What `verify` finds, and what it trusts."""

from __future__ import annotations

from agentbox.records import StrEnum, dataclass
from agentbox.trace.keys import PublicKey
from agentbox.trace.ledger import Ledger


class Status(StrEnum):
    """One word for the state of a trace."""

    OK = "ok"
    UNSEALED = "unsealed"
    TORN = "torn"
    TRUNCATED = "truncated"
    EDITED = "edited"
    DELETED = "deleted"
    INSERTED = "inserted"
    REORDERED = "reordered"
    REHASHED = "rehashed"
    WRONG_KEY = "wrong_key"
    NOT_A_TRACE = "not_a_trace"


TAMPERED = frozenset(
    {Status.TRUNCATED, Status.EDITED, Status.DELETED, Status.INSERTED, Status.REORDERED, Status.REHASHED}
)


@dataclass(frozen=True, slots=True)
class Trust:
    """Keys that may have signed, never taken from the trace itself; `explicit` when the caller named one.

    `ledger` is the user's own, None where there is none.
    """

    keys: tuple[PublicKey, ...] = ()
    ledger: Ledger | None = None
    explicit: bool = False

    def key(self, key_id: str) -> PublicKey | None:
        """The trusted key of this name."""
        return next((key for key in self.keys if key.id == key_id), None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding. `index` is the first entry that shows what is wrong; `count` the entries that were looked at."""

    status: Status
    count: int
    detail: str = ""
    index: int | None = None
    signed_count: int = 0
    sealed: bool = False
    version: int = 2
    run: str = ""
    key: str = ""

    @property
    def ok(self) -> bool:
        """Whether the trace is whole: nothing missing, nothing changed."""
        return self.status is Status.OK

    @property
    def tampered(self) -> bool:
        """Whether somebody changed it."""
        return self.status in TAMPERED
