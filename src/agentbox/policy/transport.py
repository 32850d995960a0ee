# SPDX-License-Identifier: MIT
"""A policy on its way to another process: read once, on the host, and carried as plain data.

Inside a box paths may resolve otherwise and programs may be hidden, so a guard does not read the text anew. `pack`
gives strings, numbers, lists and objects, so JSON or marshal can carry them; `unpack` needs no parser and imports
nothing but what evaluation needs.
"""

from __future__ import annotations

from agentbox.errors import PolicyError
from agentbox.policy.document import Conjunction, Policy, policies_of
from agentbox.policy.record import TYPE_CHECKING
from agentbox.policy.rule import (
    EnvTarget,
    ExecTarget,
    HostTarget,
    LimitTarget,
    PathTarget,
    Place,
    Rate,
    Rule,
    SwitchTarget,
    UnixTarget,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agentbox.policy.document import AnyPolicy

FORMAT = "agentbox-policy/1"
# The names of the records are part of the form.
_RECORDS = {
    record.__name__: record
    for record in (
        Rule,
        Place,
        PathTarget,
        HostTarget,
        UnixTarget,
        ExecTarget,
        EnvTarget,
        LimitTarget,
        SwitchTarget,
        Rate,
    )
}


def pack(policy: AnyPolicy) -> dict[str, Any]:
    """A policy as plain data."""
    return {
        "format": FORMAT,
        "policies": [
            {
                "rules": [_packed(rule) for rule in single.rules],
                "root": single.root,
                "home": single.home,
                "real_root": single.real_root,
                "sources": list(single.sources),
            }
            for single in policies_of(policy)
        ],
    }


def unpack(document: Mapping[str, Any]) -> AnyPolicy:
    """The policy of `pack`. Raises PolicyError when the data is none."""
    try:
        if document["format"] != FORMAT:
            raise PolicyError(f"a policy of the form {document['format']!r}", hint="use one version of agentbox")
        policies = tuple(
            Policy(
                tuple(_unpacked(rule) for rule in single["rules"]),
                single["root"],
                single["home"],
                single["real_root"],
                tuple(single["sources"]),
            )
            for single in document["policies"]
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"this is no packed policy: {error!r}", hint="it comes from `pack`") from error
    return policies[0] if len(policies) == 1 else Conjunction(policies)


def _packed(value: Any) -> Any:
    """A value as plain data: what is no string, number or None becomes a list that begins with its kind."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, tuple):
        return ["tuple", *(_packed(item) for item in value)]
    kind = type(value).__name__
    if kind in _RECORDS:
        # Defaults stay out: most fields of most records have theirs.
        given = {name: item for name, item in vars(value).items() if item != vars(_RECORDS[kind]).get(name, _PACKED)}
        return [kind, {name: _packed(item) for name, item in given.items()}]
    return ["network" if hasattr(value, "prefixlen") else "address", str(value)]


_PACKED = object()


def _unpacked(data: Any) -> Any:
    if not isinstance(data, list):
        return data
    kind, *rest = data
    if kind == "tuple":
        return tuple(_unpacked(item) for item in rest)
    if kind in ("network", "address"):
        import ipaddress

        return ipaddress.ip_network(rest[0]) if kind == "network" else ipaddress.ip_address(rest[0])
    return _RECORDS[kind](**{name: _unpacked(item) for name, item in rest[0].items()})
