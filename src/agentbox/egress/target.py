# SPDX-License-Identifier: MIT
"""Where a guest wants to go, what was reached for it, and the denial of it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from agentbox.egress.events import EgressEvent
from agentbox.egress.rules import Verdict
from agentbox.policy.hosts import is_loopback, parse_address


@dataclass(frozen=True, slots=True)
class Target:
    """Where a guest wants to go.

    `host` is a name, an address in its usual spelling, or the path of a UNIX socket, whose `port` is None. `address` is
    the literal address, None for a name.
    """

    host: str
    port: int | None
    address: str | None = None

    def is_named(self, host: str) -> bool:
        """Whether a host that a client names is this one; all names of the loopback are one."""
        if host == self.host:
            return True
        return self.address is not None and _is_local(self.host) and _is_local(host)


@dataclass(frozen=True, slots=True)
class Reached:
    """A connection that was made: the socket, the address, and the host under whose rule that was allowed."""

    end: socket.socket
    host: str
    address: str | None
    verdict: Verdict


class Denied(Exception):  # noqa: N818 - what happened
    """Raised by a route that the rules close; `event` says which and why."""

    def __init__(self, event: EgressEvent) -> None:
        super().__init__(event.reason)
        self.event = event


def denial_of(target: Target, verdict: Verdict, address: str | None = None) -> EgressEvent:
    """The event of a verdict that does not allow a connection."""
    return EgressEvent(
        "net.unix" if target.port is None else "net.connect", target.host, False, target.port, address, verdict.rule,
        verdict.rule_missing, verdict.reason, verdict.hint,
    )  # fmt: skip


def _is_local(host: str) -> bool:
    address = parse_address(host)
    return host == "localhost" if address is None else is_loopback(address)
