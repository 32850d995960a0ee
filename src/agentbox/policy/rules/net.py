# SPDX-License-Identifier: MIT
"""`net: TARGET [@N/min]`: where connections may go.

api.github.com            that name, any port          *.github.com      names below it, not itself
api.github.com:443        that port only               *                 any name or public address
10.0.0.5:5432  ::1  [::1]:443                          an address
cidr/10.0.0.0/8  cidr/10.0.0.0/8:443  cidr/[fd00::/8]:443               the addresses of a network
unix:/run/app.sock  unix:@abstract  unix:*             a UNIX socket
"""

from __future__ import annotations

from agentbox.policy.glob import tokens
from agentbox.policy.hosts import MAX_NAME, ends_in_number, normal_name, parse_address
from agentbox.policy.patterns import Pattern
from agentbox.policy.record import TYPE_CHECKING
from agentbox.policy.rule import HostTarget, Rate, Rule, UnixTarget, Value
from agentbox.policy.rules.path_values import path_target

_AMOUNT = Pattern(r"([0-9]{1,5})/(s|min|h|day)\Z")
_UNIT_SECONDS = {"s": 1, "min": 60, "h": 3600, "day": 86400}
if TYPE_CHECKING:
    from agentbox.policy.hosts import Network
    from agentbox.policy.rule import Surroundings

_SCHEME = Pattern(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PATTERN_CHARACTERS = Pattern(r"[A-Za-z0-9._*?\[\]!-]+\Z")
_ADDRESS_PATTERN = Pattern(r"[0-9.*?]*[0-9][0-9.*?]*\Z")
# The library would also read netmasks, zones and a missing length.
_CIDR = Pattern(r"[0-9A-Fa-f:.]+/[0-9]{1,3}\Z")
_SIX_TO_FOUR_BITS = 96
MAX_RATE = 10_000


def read_rule(value: Value, surroundings: Surroundings, deny: bool) -> Rule:
    """The rule of one value. Raises PolicySyntaxError."""
    place, rate = _split_rate(value)
    if deny and rate is not None:
        value.fail("bad_rate", "a rate has no meaning after 'deny: net'", "leave the rate out", len(place.text))
    target: HostTarget | UnixTarget
    target = _unix(place, surroundings, rate) if place.text.startswith("unix:") else _host(place, rate)
    return Rule("net", value.text, value.text, target, deny, value.place)


def _split_rate(value: Value) -> tuple[Value, Rate | None]:
    at = max(value.text.rfind(" @"), value.text.rfind("\t@"))
    if at < 0:
        return value, None
    text = value.text[at + len(" @") :]
    amount = _AMOUNT.match(text)
    if amount is None or not 1 <= int(amount.group(1)) <= MAX_RATE:
        value.fail(
            "bad_rate",
            f"@{text} is no rate",
            f"for example @10/min; units are s, min, h, day, at most {MAX_RATE}",
            at + len(" @"),
        )
    rate = Rate(int(amount.group(1)), _UNIT_SECONDS[amount.group(2)])
    return Value(value.text[:at].rstrip(" \t"), value.place, value.source), rate


def _unix(value: Value, surroundings: Surroundings, rate: Rate | None) -> UnixTarget:
    text = value.text[len("unix:") :]
    if not text or text == "@":
        value.fail("bad_host", "unix: names no socket", "write unix:/path/to.sock")
    if text == "*":
        return UnixTarget(any_socket=True, rate=rate)
    if text.startswith("@"):
        return UnixTarget(abstract=tokens(text[1:], classes=True), rate=rate)
    return UnixTarget(path=path_target(Value(text, value.place, value.source), surroundings), rate=rate)


def _host(value: Value, rate: Rate | None) -> HostTarget:
    text = value.text
    if _SCHEME.match(text):
        name = text.split("://", 1)[1].split("/")[0]
        value.fail(
            "bad_host", f"{text!r} is a URL, not a host", f"write {name or 'the host'} alone, with :PORT if wanted"
        )
    for sign, what in (("@", "a user name"), (" ", "white space"), ("\t", "white space"), ("#", "a fragment")):
        if sign in text:
            value.fail("bad_host", f"a host has {what} in it: {text!r}", "write the host alone", text.index(sign))
    if text.startswith("cidr/"):
        return _network(value, rate)
    if "/" in text:
        advice = f"write cidr/{text}" if parse_address(text.split("/")[0]) else "write the host without a path"
        value.fail("bad_host", f"a host has no '/': {text!r}", advice, text.index("/"))
    host, port = _split_port(value)
    address = parse_address(host)
    if address is not None:
        return HostTarget(address=address, port=port, rate=rate)
    return _named(value, host, port, rate)


def _named(value: Value, host: str, port: int | None, rate: Rate | None) -> HostTarget:
    if host == "*":
        return HostTarget(any_host=True, port=port, rate=rate)
    if not host.isascii():
        value.fail("bad_host", f"{host!r} is not ASCII", "write the name in its xn-- form")
    name = host[:-1] if host.endswith(".") else host
    if any(sign in name for sign in "*?["):
        if len(name) > MAX_NAME or not _PATTERN_CHARACTERS.match(name) or ".." in name or name.startswith("."):
            value.fail("bad_host", f"{host!r} cannot match a host", "for example *.example.com")
        is_address = bool(_ADDRESS_PATTERN.match(name))
        return HostTarget(pattern=tokens(name.lower(), classes=True), address_pattern=is_address, port=port, rate=rate)
    normal = normal_name(name)
    if normal is None:
        if ends_in_number(name.rpartition(".")[2]):
            value.fail("bad_host", f"{host!r} is no address", "write an IPv4 address as four numbers from 0 to 255")
        value.fail("bad_host", f"{host!r} is no host name", "letters, digits, '-' and '.'; for example api.example.com")
    return HostTarget(name=normal, port=port, rate=rate)


def _network(value: Value, rate: Rate | None) -> HostTarget:
    text = value.text[len("cidr/") :]
    port = None
    if text.startswith("["):
        text, _, after = text[1:].partition("]")
        if after:
            port = _port(value, after[1:] if after[0] == ":" else "")
    elif text.count(":") == 1:
        text, _, after = text.partition(":")
        port = _port(value, after)
    import ipaddress

    try:
        if not _CIDR.match(text):
            raise ValueError("it is not written as address/length")
        network: Network = ipaddress.ip_network(text)
    except ValueError as error:
        value.fail("bad_cidr", f"{text!r} is no network: {error}", _network_advice(text), len("cidr/"))
    # An address is compared in its IPv4 form, so a network of the IPv6 forms is one of IPv4 addresses.
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _SIX_TO_FOUR_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            network = ipaddress.IPv4Network((mapped, network.prefixlen - _SIX_TO_FOUR_BITS))
    return HostTarget(network=network, port=port, rate=rate)


def _network_advice(text: str) -> str:
    import ipaddress

    try:
        return f"write cidr/{ipaddress.ip_network(text, strict=False)}"
    except ValueError:
        return "for example cidr/10.0.0.0/8"


def _split_port(value: Value) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, `address`, `[address]` or `[address]:port`."""
    text = value.text
    if text.startswith("[") and ":" in text.partition("]")[0]:
        inside, bracket, after = text[1:].partition("]")
        if not bracket or parse_address(f"[{inside}]") is None:
            value.fail("bad_host", f"{text!r} is no address", "for example [::1]:443", 1)
        if not after:
            return f"[{inside}]", None
        return f"[{inside}]", _port(value, after[1:] if after[0] == ":" else "")
    if text.count(":") > 1:
        if parse_address(text) is None:
            value.fail("bad_host", f"{text!r} is no address", "write an IPv6 address with a port as [::1]:443")
        return text, None
    host, colon, after = text.partition(":")
    if not host:
        value.fail("bad_host", "there is no host before the port", "write * for any host")
    return host, _port(value, after) if colon else None


def _port(value: Value, text: str) -> int:
    """The number of a port; an error points at it."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        value.fail(
            "bad_port",
            f"{text!r} is no port",
            "write a number from 1 to 65535, or leave the port out for any",
            value.text.rindex(text) if text else len(value.text) - 1,
        )
    return int(text)
