# SPDX-License-Identifier: MIT
"""Host names and addresses in one spelling, and which addresses are special."""

from __future__ import annotations

from agentbox.policy.record import TYPE_CHECKING

if TYPE_CHECKING:
    import ipaddress
    from typing import Union

    Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]  # noqa: UP007 - CPython 3.9
    Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]  # noqa: UP007 - CPython 3.9


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")
MAX_NAME = 253
_MAX_LABEL = 63

# The product's own list, so that every interpreter and Node give the same answer: the registries of special-purpose
# addresses, multicast, and the IPv6 forms that carry an IPv4 address.
SPECIAL_NETWORKS = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    "::ffff:0:0:0/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
)
# Masks and networks as numbers, by version: this is asked for every connection.
_special: dict[int, list[tuple[int, int]]] = {}


def parse_address(text: str) -> Address | None:
    """The address that `text` is in its usual spelling, else None. An IPv4 address in IPv6 form is the IPv4 address.

    Brackets around an IPv6 address and a zone after `%` are left out. Octal, hexadecimal, decimal and short forms of
    IPv4 are no address here.
    """
    if text[:1] == "[" and text[-1:] == "]":
        text = text[1:-1]
        if ":" not in text:
            return None
    if not text:
        return None
    if ":" in text:
        text = text.partition("%")[0]
    elif text[-1] not in "0123456789":
        return None
    elif any(len(part) > 1 and part[0] == "0" for part in text.split(".")):
        # Some patch releases of CPython 3.9 read these as decimal, a resolver reads them as octal.
        return None
    import ipaddress

    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_special(address: Address) -> bool:
    """Whether the address is private, loopback, link-local, multicast or reserved: a rule must name it."""
    if not _special:
        import ipaddress

        for network in map(ipaddress.ip_network, SPECIAL_NETWORKS):
            masked = (int(network.netmask), int(network.network_address))
            _special.setdefault(network.version, []).append(masked)
    number = int(address)
    return any(number & mask == network for mask, network in _special[address.version])


def is_loopback(address: Address) -> bool:
    """Whether the address is this host's own."""
    return address.is_loopback


def normal_name(text: str) -> str | None:
    """A host name in lower case without its trailing dot; None for what is no name.

    What ends in a number (`2130706433`, `127.1`, `0x7f.1`) is no name: a resolver may read it as an address.
    """
    name = text[:-1] if text.endswith(".") else text
    if not name or len(name) > MAX_NAME or not name.isascii():
        return None
    name = name.lower()
    labels = name.split(".")
    for label in labels:
        if not label or len(label) > _MAX_LABEL or not _NAME_CHARACTERS.issuperset(label):
            return None
    return None if ends_in_number(labels[-1]) else name


def ends_in_number(label: str) -> bool:
    """Whether a last label would be read as part of an IPv4 address."""
    if label.isascii() and label.isdigit():
        return True
    return label[:2].lower() == "0x" and all(c in "0123456789abcdefABCDEF" for c in label[2:])
