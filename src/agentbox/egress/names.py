# SPDX-License-Identifier: MIT
"""Addresses that stand for names, one table a box.

A box never learns where an allowed name leads: it gets an address that only the gateway understands, and a connection
to it is a connection to that name. The addresses are of networks that nobody routes (198.18.0.0/15 is for benchmarks,
the IPv6 network is a private one with an IPv4 address in its last 32 bits), so one that leaks leads nowhere.
"""

from __future__ import annotations

import ipaddress
import socket

IPV4_NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
IPV6_NETWORK = ipaddress.IPv6Network("fd61:6762:6f78::/96")

# The first 256 addresses of each stand for no name: listeners of the gateway are there.
GATEWAY_IPV4 = "198.18.0.1"
GATEWAY_IPV6 = "fd61:6762:6f78::c612:1"
_RESERVED = 256

MAX_NAMES = 4096


class SyntheticNames:
    """Names and their addresses; both families of a name have the same number.

    At most `limit` names are kept, the least recently used one goes first. Its number is given to another name only
    after all the others, about 130,000 of them: who still holds the old address is refused rather than led elsewhere.
    """

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = min(limit, (IPV4_NETWORK.num_addresses - _RESERVED) // 2)
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next = _RESERVED

    def address_of(self, name: str, family: int) -> str:
        """The address of a name in lower case without trailing dot; `family` is AF_INET or AF_INET6."""
        number = self._numbers.pop(name, None)
        if number is None:
            number = self._free_number()
            self._names[number] = name
        self._numbers[name] = number
        if family == socket.AF_INET6:
            return str(IPV6_NETWORK[int(IPV4_NETWORK[number])])
        return str(IPV4_NETWORK[number])

    def name_of(self, address: str) -> str | None:
        """The name that an address stands for; None for any other address. Counts as a use of the name."""
        number = _number(address)
        name = None if number is None else self._names.get(number)
        if name is not None:
            self._numbers[name] = self._numbers.pop(name)
        return name

    def __len__(self) -> int:
        """How many names are kept."""
        return len(self._numbers)

    def _free_number(self) -> int:
        if len(self._numbers) >= self._limit:
            oldest = next(iter(self._numbers))
            del self._names[self._numbers.pop(oldest)]
        # There are at least twice as many numbers as names, so the search ends soon.
        while self._next in self._names:
            self._next = _after(self._next)
        number, self._next = self._next, _after(self._next)
        return number


def is_synthetic(address: str) -> bool:
    """Whether an address is of the networks of this module, whether or not it stands for a name now."""
    return _number(address) is not None


def _after(number: int) -> int:
    return number + 1 if number + 1 < IPV4_NETWORK.num_addresses else _RESERVED


def _number(address: str) -> int | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed in IPV6_NETWORK:
            parsed = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        elif parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
    if parsed not in IPV4_NETWORK:
        return None
    number = int(parsed) - int(IPV4_NETWORK.network_address)
    return number if number >= _RESERVED else None
