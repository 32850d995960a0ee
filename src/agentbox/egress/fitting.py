# SPDX-License-Identifier: MIT
"""Fits out a network namespace, from inside: addresses, the kernel's rules, the sockets that the gateway serves.

Runs in a process that has entered the namespace and may administrate it (maker.py), in a new namespace or in one that a
container runtime made without a network. What a packet of the guest meets:

    TCP and UDP to port 53 of anything but its own addresses, and of 127.0.0.53   -> the sockets for names
    TCP to anything else but its own addresses                                    -> the stream listeners
    anything to its own addresses (127.0.0.0/8, ::1, GUEST_*)                     stays, and nobody looks at it
    all the rest, that is UDP                                                     dropped and counted; the sender: EPERM

Entries of the kernel's connection table are no box's memory, and a guest can make as many as it can think of addresses.
So what stays inside is not in the table, new connections outwards have a rate, and dead ones are forgotten in seconds.

127.0.0.53 is where systemd's resolver listens: a box that is lent the host's /etc asks there. A guest's own name server
on 127.0.0.1 is its own. GUEST_* is the address that a program finds when it asks for the machine's; servers there work.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
from dataclasses import dataclass, field

from agentbox.egress.names import GATEWAY_IPV4, GATEWAY_IPV6
from agentbox.linux import netlink
from agentbox.linux import nftables as nft

GUEST_IPV4 = "198.18.0.2"
GUEST_IPV6 = "fd61:6762:6f78::c612:2"

# A guest's server on 0.0.0.0 cannot have a port that is taken on any address: these are above the ports that programs
# are given (32768 to 60999) and no service's custom.
STREAM_PORT = 65_530
DNS_PORT = 65_531

_TABLE = "agentbox"
_DROPPED = "dropped"
_BACKLOG = 4096
_SYSTEMD_RESOLVER = "127.0.0.53"
_IPV6_SWITCHES = tuple(f"net/ipv6/conf/{name}/disable_ipv6" for name in ("all", "default", "lo"))
_SETTINGS = (
    # A guest has no privilege, and in here no port needs one.
    ("net/ipv4/ip_unprivileged_port_start", "0", "servers on ports below 1024"),
    # Whoever connects while nobody accepts is refused soon, and does not wait for two minutes.
    ("net/ipv4/tcp_abort_on_overflow", "1", "a refusal for connections that nobody accepts"),
    ("net/ipv4/tcp_syn_retries", "2", "a short wait for connections that nobody accepts"),
    ("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "5", "a small connection table"),
    ("net/netfilter/nf_conntrack_tcp_timeout_close", "5", "a small connection table"),
    # Longer than a resolver waits for an answer.
    ("net/netfilter/nf_conntrack_udp_timeout", "15", "a small connection table"),
    ("net/netfilter/nf_conntrack_udp_timeout_stream", "15", "a small connection table"),
)
# New connections and new askers of names, each second and at once.
_STREAMS = (2_000, 10_000)
_ASKERS = (1_000, 2_000)


@dataclass(slots=True)
class Fitted:
    """The sockets of a namespace, one of each kind for each family, and what could not be had."""

    stream_listeners: list[socket.socket] = field(default_factory=list)
    dns_datagrams: list[socket.socket] = field(default_factory=list)
    dns_streams: list[socket.socket] = field(default_factory=list)
    netfilter: socket.socket | None = None
    ipv6: bool = True
    notes: list[str] = field(default_factory=list)


def fit_out() -> Fitted:
    """Fit out the network namespace of this process. Raises OSError whose text begins with the step that failed."""
    fitted = Fitted()
    fitted.ipv6 = _enable_ipv6(fitted.notes)
    for path, value, what in _SETTINGS:
        try:
            _set(path, value)
        except OSError as error:
            fitted.notes.append(f"not here: {what} (/proc/sys/{path}: {error.strerror})")
    addresses = [(GATEWAY_IPV4, GUEST_IPV4)]
    if fitted.ipv6:
        addresses.append((GATEWAY_IPV6, GUEST_IPV6))
    with netlink.open_socket(netlink.NETLINK_ROUTE) as route:
        messages = [netlink.loopback_up()]
        messages += [netlink.loopback_address(address) for pair in addresses for address in pair]
        netlink.converse(route, messages)
        for gateway, _ in addresses:
            fitted.stream_listeners.append(_listener(gateway, STREAM_PORT))
            fitted.dns_streams.append(_listener(gateway, DNS_PORT))
            fitted.dns_datagrams.append(_bound(gateway, DNS_PORT, socket.SOCK_DGRAM))
        fitted.netfilter = netlink.open_socket(netlink.NETLINK_NETFILTER)
        netlink.converse(fitted.netfilter, rules(ipv6=fitted.ipv6))
        # Last: until now there was no route for the guest of a container that runs already.
        netlink.converse(route, [netlink.everything_is_local(guest) for _, guest in addresses])
    return fitted


def loopback_listeners(port: int) -> list[socket.socket]:
    """Listeners on 127.0.0.1 and, where there is IPv6, ::1 of this process's namespace. Raises OSError."""
    made = [_listener("127.0.0.1", port)]
    try:
        made.append(_listener("::1", port))
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            made[0].close()
            raise
    return made


@functools.cache
def rules(*, ipv6: bool) -> list[netlink.Message]:
    """The transaction that makes the table of a namespace. Always the same, and known to forks of who asked once."""
    table = nft.Table(_TABLE, nft.FAMILY_INET)
    families = [
        (socket.AF_INET, GATEWAY_IPV4, (b"\x7f", _packed(GUEST_IPV4))),
    ]
    if ipv6:
        families.append((socket.AF_INET6, GATEWAY_IPV6, (_packed("::1"), _packed(GUEST_IPV6))))
    table.counter(_DROPPED)
    table.chain("untracked", "filter", nft.HOOK_OUTPUT, nft.PRIORITY_RAW)
    table.chain("turned", "nat", nft.HOOK_OUTPUT, nft.PRIORITY_DNAT)
    table.chain("kept", "filter", nft.HOOK_OUTPUT, nft.PRIORITY_FILTER)
    # A nat chain is asked about the first packet of each connection alone.
    for protocol, (per_second, burst) in ((nft.TCP, _STREAMS), (nft.UDP, _ASKERS)):
        outwards = [nft.protocol_is(protocol), nft.more_often_than(per_second, burst)]
        _turn_systemd(table, protocol)
        for family, _, own in families:
            for address in own:
                to_itself = [nft.family_is(family), nft.protocol_is(protocol), nft.destination_begins(family, address)]
                table.rule("turned", *to_itself, nft.accept())
        table.rule("turned", *outwards, nft.count(_DROPPED), nft.drop())
        for family, gateway, _ in families:
            of_kind = [nft.family_is(family), nft.protocol_is(protocol)]
            table.rule("turned", *of_kind, nft.destination_port_is(53), nft.dnat(family, _packed(gateway), DNS_PORT))
            if protocol == nft.TCP:
                table.rule("turned", *of_kind, nft.dnat(family, _packed(gateway), STREAM_PORT))
    for family, gateway, own in families:
        of_family = nft.family_is(family)
        for protocol, port in ((nft.UDP, DNS_PORT), (nft.TCP, DNS_PORT), (nft.TCP, STREAM_PORT)):
            # Its answers must be recognised, so that their addresses are turned back.
            from_gateway = [of_family, nft.protocol_is(protocol), nft.source_begins(family, _packed(gateway))]
            table.rule("untracked", *from_gateway, nft.source_port_is(port), nft.accept())
            table.rule("kept", *from_gateway, nft.source_port_is(port), nft.accept())
        for address in own:
            to_itself = [of_family, nft.destination_begins(family, address)]
            table.rule("untracked", *to_itself, nft.do_not_track())
            table.rule("kept", *to_itself, nft.accept())
        to_gateway = [of_family, nft.protocol_is(nft.UDP), nft.destination_begins(family, _packed(gateway))]
        table.rule("kept", *to_gateway, nft.destination_port_is(DNS_PORT), nft.accept())
    table.rule("kept", nft.protocol_is(nft.TCP), nft.accept())
    # The kernel's own words about groups and closed ports; a guest may make no ICMP socket.
    for protocol in (nft.ICMP, nft.ICMPV6):
        table.rule("kept", nft.protocol_is(protocol), nft.drop())
    table.rule("kept", nft.count(_DROPPED), nft.drop())
    return table.transaction()


def _turn_systemd(table: nft.Table, protocol: int) -> None:
    asks = [
        nft.family_is(socket.AF_INET),
        nft.protocol_is(protocol),
        nft.destination_begins(socket.AF_INET, _packed(_SYSTEMD_RESOLVER)),
        nft.destination_port_is(53),
    ]
    table.rule("untracked", *asks, nft.accept())
    per_second, burst = _ASKERS
    table.rule("turned", *asks, nft.more_often_than(per_second, burst), nft.count(_DROPPED), nft.drop())
    table.rule("turned", *asks, nft.dnat(socket.AF_INET, _packed(GATEWAY_IPV4), DNS_PORT))


def read_dropped(netfilter: socket.socket) -> int:
    """How many packets the namespace of that socket has dropped. Raises OSError."""
    request = nft.counter_request(nft.FAMILY_INET, _TABLE, _DROPPED)
    return nft.packets_of(netlink.converse(netfilter, [request]))


def _enable_ipv6(notes: list[str]) -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
        for path in _IPV6_SWITCHES:
            if _get(path) != b"0":
                _set(path, "0")
    except OSError as error:
        notes.append(f"no IPv6: the host has it switched off ({error.strerror}); boxes use IPv4")
        return False
    return True


def _get(path: str) -> bytes:
    fd = os.open(f"/proc/sys/{path}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64).strip()
    finally:
        os.close(fd)


def _set(path: str, value: str) -> None:
    fd = os.open(f"/proc/sys/{path}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _bound(address: str, port: int, kind: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"listen at {address}, port {port}: {error.strerror}") from error
    return sock


def _listener(address: str, port: int) -> socket.socket:
    sock = _bound(address, port, socket.SOCK_STREAM)
    sock.listen(_BACKLOG)
    return sock
