# SPDX-License-Identifier: MIT
"""May a name be looked up, a connection be made, a UNIX socket be used."""

from __future__ import annotations

from agentbox.policy.decision import Decision
from agentbox.policy.glob import matches
from agentbox.policy.hosts import is_loopback, is_special, normal_name, parse_address
from agentbox.policy.paths import covers, is_plain
from agentbox.policy.record import TYPE_CHECKING, MappingProxyType, replace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentbox.policy.decision import Counters
    from agentbox.policy.hosts import Address
    from agentbox.policy.index import HostTable, Index
    from agentbox.policy.questions import Connect, Resolve, Unix
    from agentbox.policy.rule import HostTarget, Rate, UnixTarget

_NO_HOST = Decision(False, None, "gateway", "this is neither a host name nor an address in its usual form")
_NO_PORT = Decision(False, None, "gateway", "a connection has a port from 1 to 65535")
_NO_RULE = Decision(False, None, "gateway", "no `net:` rule names it")
_SPECIAL = Decision(False, None, "gateway", "it is a private, local or reserved address, which a rule must name itself")
_OWN = Decision(False, None, "gateway", "it is an address of this machine, which a rule must name itself")
_NO_SOCKET = Decision(False, None, "gateway", "no `net: unix:` rule names it")
_LOCAL_NAME = "localhost"


def resolve(index: Index, question: Resolve, _counters: Counters | None, _scope: int) -> Decision:
    """Whether a name may be looked up: when a connection to it, on whatever port, may be."""
    host = _host(question.host)
    if host is None:
        return _NO_HOST
    name, address = host
    for target, decision in _matching(index.host_denials, name, address, None):
        if target.port is None:
            return decision
    for target, decision in _matching(index.hosts, name, address, None):
        if address is None or _names_address(target) or not is_special(address):
            return decision
    return _NO_RULE


def connect(index: Index, question: Connect, counters: Counters | None, scope: int) -> Decision:
    """Whether a connection may be made."""
    host = _host(question.host)
    if host is None:
        return _NO_HOST
    port = question.port
    if type(port) is not int or not 1 <= port <= 65535:
        return _NO_PORT
    name, address = host
    target = address
    if question.address is not None:
        target = parse_address(question.address) if type(question.address) is str else None
        if target is None:
            return _NO_HOST
    for host_name, at in ((name, address), ("", target)):
        for _, denial in _matching(index.host_denials, host_name, at, port):
            return denial
    granting = list(_matching(index.hosts, name, address, port))
    if not granting:
        return _NO_RULE
    if target is not None and (question.own or is_special(target)):
        naming = [found for found in _matching(index.hosts, "", target, port) if _names_address(found[0])]
        if name == _LOCAL_NAME and is_loopback(target):
            naming += [found for found in granting if found[0].name == name]
        if not naming:
            return _SPECIAL if is_special(target) else _OWN
        granting = granting if address is None else naming
    rated = [found for found in granting if found[0].rate is not None]
    return _rated(granting[0][1], rated, question.now_seconds, counters, scope)


def unix(index: Index, question: Unix, counters: Counters | None, scope: int) -> Decision:
    """Whether a UNIX socket may be used."""
    path = question.path
    if type(path) is not str or (path[:1] != "@" and not is_plain(path)):
        return _NO_SOCKET
    for target, decision in index.socket_denials:
        if _is_socket(target, path):
            return decision
    found = [(target, decision) for target, decision in index.sockets if _is_socket(target, path)]
    if not found:
        return _NO_SOCKET
    rated = [(target, decision) for target, decision in found if target.rate is not None]
    return _rated(found[0][1], rated, question.now_seconds, counters, scope)


def _host(text: str) -> tuple[str, Address | None] | None:
    """Name and address of what a program gave as host: one of them; None when it is neither."""
    if type(text) is not str:
        return None
    address = parse_address(text)
    if address is not None:
        return "", address
    name = normal_name(text)
    return None if name is None else (name, None)


def _matching(
    table: HostTable, name: str, address: Address | None, port: int | None
) -> Iterator[tuple[HostTarget, Decision]]:
    """The rules for a name or an address; `port` None is any."""
    if name:
        for target, decision in table.names.get(name, ()):
            if port is None or target.port is None or target.port == port:
                yield target, decision
    for target, decision in table.others:
        if (port is None or target.port is None or target.port == port) and _fits(
            target, name, address, not decision.allowed
        ):
            yield target, decision


def _fits(target: HostTarget, name: str, address: Address | None, deny: bool) -> bool:
    if target.any_host:
        # A denial of everything is a denial of everything; a grant of everything does not name this host.
        return deny or not (name == _LOCAL_NAME or name.endswith(f".{_LOCAL_NAME}"))
    if address is not None:
        if target.address is not None:
            return target.address == address
        if target.network is not None:
            return address.version == target.network.version and address in target.network
        return target.address_pattern and matches(target.pattern, str(address))
    return bool(name and target.pattern) and not target.address_pattern and matches(target.pattern, name)


def _names_address(target: HostTarget) -> bool:
    """Whether a rule that matches an address does so by naming it, and not by being for everything."""
    return not target.any_host and not target.name


def _is_socket(target: UnixTarget, path: str) -> bool:
    if target.any_socket:
        return True
    if path.startswith("@"):
        return bool(target.abstract) and matches(target.abstract, path[1:])
    return target.path is not None and covers(target.path, path)


def _rated(
    granted: Decision,
    rated: Sequence[tuple[HostTarget | UnixTarget, Decision]],
    now_seconds: float | None,
    counters: Counters | None,
    scope: int,
) -> Decision:
    """The verdict where some of the rules that allow it have a rate: each of them must have room."""
    if not rated:
        return granted
    granted = replace(granted, counting=tuple(decision.rule for _, decision in rated if decision.rule is not None))
    if counters is None:
        return granted
    times = dict(counters.times)
    for target, decision in rated:
        rule, rate = decision.rule, target.rate
        if rule is None or rate is None:
            continue
        key = (scope, rule.canonical)
        after = None if now_seconds is None else _within(times.get(key, ()), rate, now_seconds)
        if after is None:
            return Decision(False, rule, "gateway", f"`{rule.text}`: there were as many connections as it allows")
        times[key] = after
    return replace(granted, counters=replace(counters, times=MappingProxyType(times)))


def _within(times: tuple[float, ...], rate: Rate, now_seconds: float) -> tuple[float, ...] | None:
    """The times with this one, None when the last `rate.seconds` have no room for it."""
    recent = tuple(time for time in times if time > now_seconds - rate.seconds)
    return None if len(recent) >= rate.count else (*recent, now_seconds)
