# SPDX-License-Identifier: MIT
"""The egress allowlist of a request, checked against the operator's."""

from __future__ import annotations

from agentbox.errors import InvalidRequestError
from agentbox.models import parse_allowlist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def host_of(entry: str) -> str:
    """The host of a `host[:port]` entry."""
    return entry.partition(":")[0]


def effective_allowlist(requested: Sequence[str] | None, operator: Sequence[str] | None) -> tuple[str, ...]:
    """The entries that apply to one run.

    `requested` None means the operator's list, an empty list means no network. `operator` None means that no list was
    set, so the request's own list applies; an empty one denies everything. Only hosts are compared: a port narrows an
    entry and never widens it. Raises InvalidRequestError that names what is wrong.
    """
    if requested is None:
        return tuple(operator or ())
    try:
        entries = parse_allowlist(tuple(requested))
    except ValueError as error:
        raise InvalidRequestError(
            str(error), hint="write a host name or an IPv4 address, and a port if wanted"
        ) from None
    if operator is None:
        return entries
    allowed = {host_of(entry) for entry in operator}
    foreign = [entry for entry in entries if host_of(entry) not in allowed]
    if foreign:
        raise InvalidRequestError(
            f"egress_allowlist entries not permitted by AGENTBOX_EGRESS_ALLOWLIST: {', '.join(map(host_of, foreign))}",
            hint="ask the operator to add the host, or leave the entry out",
        )
    return entries
