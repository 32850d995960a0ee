# SPDX-License-Identifier: MIT
"""Where a run may connect to: the request's allowlist and policy, as far as the operator lets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agentbox.egress.rules import EgressRules
from agentbox.errors import PolicyError
from agentbox.policy.allowlist import effective_allowlist
from agentbox.policy.document import intersect, policies_of
from agentbox.policy.hosts import is_loopback
from agentbox.policy.rule import HostTarget, Rule, UnixTarget
from agentbox.records import dataclass

if TYPE_CHECKING:
    from agentbox.config import Settings
    from agentbox.policy.document import AnyPolicy, Policy

NOT_PERMITTED = (
    "the run had no network: this server's operator has set no AGENTBOX_EGRESS_ALLOWLIST, and requests may not choose "
    "hosts themselves"
)
NO_RULE = "egress_allowlist opens nothing: the policy has no `net:` rule that allows one of its hosts"


@dataclass(frozen=True, slots=True)
class RunNetwork:
    """`rules` None is a box without a way out; `allowlist` is what the result shows."""

    rules: EgressRules | None
    allowlist: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def decide_network(
    requested: Sequence[str] | None, asked: Policy | None, ceiling: Policy | None, settings: Settings
) -> RunNetwork:
    """The way out of a run. `asked` is the request's policy, `ceiling` the operator's.

    Raises InvalidRequestError for an allowlist that is wrong or not a subset of the operator's, and PolicyError for
    `net:` rules where the operator permits no network at all.
    """
    operator = settings.egress_allowlist
    allowlist = effective_allowlist(requested, operator)
    limited = operator is not None or any(net_grants(ceiling))
    permitted = limited or settings.allow_request_egress
    grant = next(net_grants(asked), None)
    if not permitted:
        if grant is not None:
            raise PolicyError(
                f"`{grant.text}` (line {grant.place.line}) cannot be granted: this server permits no network",
                hint="take the net: rules out of the policy, or ask the operator for AGENTBOX_EGRESS_ALLOWLIST",
            )
        return RunNetwork(None, allowlist, (NOT_PERMITTED,) if allowlist else ())
    narrowed = allowlist if requested is not None or operator is not None else None
    if asked is None and ceiling is None and narrowed is None:
        return RunNetwork(None, ())
    policy: AnyPolicy | None = intersect(asked, ceiling) if asked and ceiling else asked or ceiling
    # Callers whom no list and no ceiling limits may name any public host, and nothing of this machine or its networks.
    rules = EgressRules.of(policy, narrowed, operator=operator, public_only=not limited)
    if not rules:
        return RunNetwork(None, allowlist, (NO_RULE,) if requested and policy is not None else ())
    warnings = [*portless_loopback(policy, narrowed or ()), *_useless(rules, asked, requested or ())]
    return RunNetwork(rules, allowlist, tuple(warnings))


def _useless(rules: EgressRules, asked: Policy | None, requested: Sequence[str]) -> Iterator[str]:
    """Warnings for what a request names on this machine and the operator does not."""
    for rule in net_grants(asked):
        target = rule.target
        path = target.path if isinstance(target, UnixTarget) else None
        if isinstance(target, UnixTarget) and (path is None or path.path not in rules.unix_paths):
            yield f"`{rule.text}` opens nothing: only the operator's own policy can name a socket of the server"
        if isinstance(target, HostTarget) and _is_loopback(target) and target.port not in (None, *rules.loopback_ports):
            yield f"`{rule.text}` opens nothing: the operator does not allow this port of the server"
    for entry in requested:
        host, _, port = entry.partition(":")
        if host.lower() in ("localhost", "127.0.0.1") and port and int(port) not in rules.loopback_ports:
            yield f"egress_allowlist: {entry} opens nothing: the operator does not allow this port of the server"


def net_grants(policy: AnyPolicy | None) -> Iterator[Rule]:
    """The `net:` rules that grant something."""
    for single in () if policy is None else policies_of(policy):
        yield from (rule for rule in single.rules if rule.verb == "net" and not rule.deny)


def portless_loopback(policy: AnyPolicy | None, allowlist: Sequence[str] = ()) -> Iterator[str]:
    """Warnings for entries that name the host's loopback without a port: the box has a loopback of its own, and only
    single ports of the host's are forwarded into it."""
    for rule in net_grants(policy):
        target = rule.target
        if isinstance(target, HostTarget) and target.port is None and _is_loopback(target):
            yield f"`{rule.text}` opens nothing: name the port of this host that it means, as in {rule.value}:8080"
    for entry in allowlist:
        if entry in ("localhost", "127.0.0.1"):
            yield f"egress_allowlist: {entry} opens nothing: name the port of the host that it means, as {entry}:8080"


def _is_loopback(target: HostTarget) -> bool:
    return target.name == "localhost" or (target.address is not None and is_loopback(target.address))
