# SPDX-License-Identifier: MIT
"""Sockets that no box has, as the exec judge saw them refused: raw ones, and families beside UNIX and the internet."""

from __future__ import annotations

from agentbox.models import Denial, Layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

_REASON = "no box has sockets of this kind"
_HINT = "use TCP or UDP over IPv4 or IPv6, or a UNIX socket"


def record_of(report: Mapping[str, Any]) -> tuple[Literal["deny"], str, dict[str, Any]]:
    """Kind, operation and arguments of the record; `family`, `type` and `protocol` are the numbers of socket(2)."""
    words = {name: report[name] for name in ("family", "type", "protocol")}
    return "deny", "net", {"target": target_of(report), **words, "enforced": True, "reason": _REASON}


def denial_of(report: Mapping[str, Any], index: int) -> Denial:
    """The same as the result shows it; `index` is its record."""
    return Denial(Layer.KERNEL, "net", target_of(report), _REASON, index, hint=_HINT)


def target_of(report: Mapping[str, Any]) -> str:
    """The kind of socket in the words of socket(7), numbers where Python knows no word."""
    # Its enumerations take long to make, and a run that tries no such thing needs none.
    from socket import AddressFamily, SocketKind

    family, kind, protocol = report["family"], report["type"], report["protocol"]
    words = [
        AddressFamily(family).name if family in AddressFamily._value2member_map_ else f"family {family}",
        SocketKind(kind).name if kind in SocketKind._value2member_map_ else f"type {kind}",
    ]
    return " ".join(words) + (f" protocol {protocol}" if protocol else "")
