# SPDX-License-Identifier: MIT
"""Questions about names, addresses and UNIX sockets, answered from a policy's tables.

An address is (version, whole number); an IPv4 address in IPv6 form is the IPv4 address.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from .matching import covers, is_plain, matches
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FROM_BYTES = int.from_bytes
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_LOCAL_NAME = "localhost"
_MAPPED = 0xFFFF
_LOOPBACK = ((4, 127 << 24, 8), (6, 1, 128))
# Columns of a host target and of a UNIX target.
_NAME, _PATTERN, _ANY_HOST, _ADDRESS_PATTERN, _ADDRESS, _NETWORK, _PORT, _RATE = range(1, 9)
_PATH, _ABSTRACT, _ANY_SOCKET, _SOCKET_RATE = range(1, 5)
_DENY, _CANONICAL, _TARGET = 1, 4, 5


@sealed
class Network:
    """The net rules of one policy, and when connections were made under its rates."""

    def __init__(self, grants: Any, denials: Any, special: Any, counting: bool) -> None:
        self._grants = [_prepared(row) for row in grants if row[_TARGET][0] == "host"]
        self._denials = [_prepared(row) for row in denials if row[_TARGET][0] == "host"]
        self._sockets = [row for row in grants if row[_TARGET][0] == "unix"]
        self._socket_denials = [row for row in denials if row[_TARGET][0] == "unix"]
        self._special = [_network(network) for network in special]
        self._counting = counting
        self._times: dict[str, list[float]] = {}

    def resolve(self, host: Any) -> Any:
        """Whether a name may be looked up: when a connection to it, on whatever port, may be."""
        found = host_of(host)
        if found is None:
            return False, None, "this is neither a host name nor an address", None
        name, address = found
        for rule in self._matching(self._denials, name, address, None):
            if rule[_TARGET][_PORT] is None:
                return False, rule, "denied", None
        for rule in self._matching(self._grants, name, address, None):
            if address is None or not self._is_special(address) or _names_address(rule):
                return True, rule, "", None
        return False, None, "no `net:` rule names it", None

    def connect(self, host: Any, port: Any, at: Any, now: Any) -> Any:
        """Whether a connection may be made; `at` is the address that the name was resolved to."""
        found = host_of(host)
        if found is None:
            return False, None, "this is neither a host name nor an address", None
        if type(port) is not int or not 1 <= port <= 65535:
            return False, None, "a connection has a port from 1 to 65535", None
        name, address = found
        target = address
        if at is not None:
            target = parse_address(at) if type(at) is str else None
            if target is None:
                return False, None, "this is no address", None
        for asked_name, asked in ((name, address), ("", target)):
            for rule in self._matching(self._denials, asked_name, asked, port):
                return False, rule, "denied", None
        rules = self._matching(self._grants, name, address, port)
        if not rules:
            return False, None, "no `net:` rule names it", None
        if target is not None and self._is_special(target):
            naming = [rule for rule in self._matching(self._grants, "", target, port) if _names_address(rule)]
            if name == _LOCAL_NAME and _is_in_any(target, _LOOPBACK):
                naming += [rule for rule in rules if rule[_TARGET][_NAME] == name]
            if not naming:
                return False, None, "it is a private, local or reserved address, which a rule must name itself", None
            if address is not None:
                rules = naming
        rated = [rule for rule in rules if rule[_TARGET][_RATE] is not None]
        return self._rated(rules[0], rated, _RATE, now)

    def unix(self, path: Any, now: Any) -> Any:
        """Whether a UNIX socket may be used."""
        if type(path) is not str or (path[:1] != "@" and not is_plain(path)):
            return False, None, "no `net: unix:` rule names it", None
        for rule in self._socket_denials:
            if _is_socket(rule[_TARGET], path):
                return False, rule, "denied", None
        found = [rule for rule in self._sockets if _is_socket(rule[_TARGET], path)]
        if not found:
            return False, None, "no `net: unix:` rule names it", None
        return self._rated(found[0], [r for r in found if r[_TARGET][_SOCKET_RATE] is not None], _SOCKET_RATE, now)

    def _rated(self, granted: Any, rated: Any, column: int, now: Any) -> Any:
        if not rated or not self._counting:
            return True, granted, "", None
        after = {}
        for rule in rated:
            count, seconds = rule[_TARGET][column]
            recent = [] if now is None else [t for t in self._times.get(rule[_CANONICAL], ()) if t > now - seconds]
            if now is None or len(recent) >= count:
                return False, rule, "there were as many connections as it allows", None
            after[rule[_CANONICAL]] = [*recent, now]
        return True, granted, "", lambda: self._times.update(after)

    def _matching(self, table: Any, name: str, address: Any, port: Any) -> Any:
        """The rules for a name or an address, those that give the name exactly first; `port` None is any."""
        fitting = [rule for rule in table if port is None or rule[_TARGET][_PORT] in (None, port)]
        exact = [rule for rule in fitting if name and rule[_TARGET][_NAME] == name]
        others = [rule for rule in fitting if not rule[_TARGET][_NAME] and _fits(rule, name, address)]
        return exact + others

    def _is_special(self, address: Any) -> bool:
        return _is_in_any(address, self._special)


def host_of(text: Any) -> Any:
    """Name and address of what a program gave as host, one of them; None when it is neither."""
    if type(text) is not str:
        return None
    address = parse_address(text)
    if address is not None:
        return "", address
    name = normal_name(text)
    return None if name is None else (name, None)


def parse_address(text: str) -> Any:
    """The address that `text` is in its usual spelling, else None."""
    if text[:1] == "[" and text[-1:] == "]":
        text = text[1:-1]
        if ":" not in text:
            return None
    if ":" in text:
        text = text.partition("%")[0]
        family = AF_INET6
    else:
        family = AF_INET
        for part in text.split("."):
            if not part.isdigit() or not part.isascii() or (len(part) > 1 and part[0] == "0"):
                return None
    try:
        packed = inet_pton(family, text)
    except (OSError, ValueError):
        return None
    return _number(packed)


def normal_name(text: str) -> Any:
    """A host name in lower case without its trailing dot; None for what is no name."""
    name = text[:-1] if text.endswith(".") else text
    if not name or len(name) > 253 or not name.isascii():
        return None
    name = name.lower()
    labels = name.split(".")
    for label in labels:
        if not label or len(label) > 63 or not _NAME_CHARACTERS.issuperset(label):
            return None
    last = labels[-1]
    is_number = last.isdigit() or (last[:2] == "0x" and _HEX_DIGITS.issuperset(last[2:]))
    return None if is_number else name


def _number(packed: bytes) -> Any:
    value = _FROM_BYTES(packed, "big")
    if len(packed) == 4:
        return 4, value
    return (4, value & 0xFFFFFFFF) if value >> 32 == _MAPPED else (6, value)


def _network(row: Any) -> Any:
    version, packed, prefix = row
    return version, _FROM_BYTES(bytes.fromhex(packed), "big"), prefix


def _prepared(row: Any) -> Any:
    """A host rule's row with its address and network as numbers."""
    target = list(row[_TARGET])
    if target[_ADDRESS] is not None:
        target[_ADDRESS] = (target[_ADDRESS][0], _FROM_BYTES(bytes.fromhex(target[_ADDRESS][1]), "big"))
    if target[_NETWORK] is not None:
        target[_NETWORK] = _network(target[_NETWORK])
    return [*row[:_TARGET], target]


def _is_in_any(address: Any, networks: Any) -> bool:
    version, value = address
    for of, base, prefix in networks:
        if of == version and (value ^ base) >> ((32 if of == 4 else 128) - prefix) == 0:
            return True
    return False


def _fits(rule: Any, name: str, address: Any) -> bool:
    target = rule[_TARGET]
    if target[_ANY_HOST]:
        return rule[_DENY] or not (name == _LOCAL_NAME or name.endswith("." + _LOCAL_NAME))
    if address is not None:
        if target[_ADDRESS] is not None:
            return bool(target[_ADDRESS] == address)
        if target[_NETWORK] is not None:
            return _is_in_any(address, (target[_NETWORK],))
        return target[_ADDRESS_PATTERN] and matches(target[_PATTERN], _address_text(address))
    return bool(name and target[_PATTERN]) and not target[_ADDRESS_PATTERN] and matches(target[_PATTERN], name)


def _address_text(address: Any) -> str:
    version, value = address
    return (
        inet_ntop(AF_INET, value.to_bytes(4, "big")) if version == 4 else inet_ntop(AF_INET6, value.to_bytes(16, "big"))
    )


def _names_address(rule: Any) -> bool:
    return not rule[_TARGET][_ANY_HOST] and not rule[_TARGET][_NAME]


def _is_socket(target: Any, path: str) -> bool:
    if target[_ANY_SOCKET]:
        return True
    if path.startswith("@"):
        return bool(target[_ABSTRACT]) and matches(target[_ABSTRACT], path[1:])
    return target[_PATH] is not None and covers(target[_PATH], path)
