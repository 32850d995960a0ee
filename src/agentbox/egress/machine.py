# SPDX-License-Identifier: MIT
"""Which addresses are this machine's own, also the public ones: what listens there trusts its neighbours."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct

from agentbox.linux import netlink

_RTM_GETROUTE = 26
_RTA_DST = 1
_RTN_LOCAL = 2
_ROUTE = struct.Struct("=BBBBBBBBI")
_TYPE_FIELD = 7
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.EAFNOSUPPORT})


def is_own_address(address: str) -> bool:
    """Whether packets to an address in its usual spelling stay on this machine, as the kernel routes them now.

    An address behind which a router hides this machine cannot be told from others. Where the kernel does not say, the
    answer is yes, so that a rule must name the address.
    """
    target = ipaddress.ip_address(address)
    family = socket.AF_INET if target.version == 4 else socket.AF_INET6
    payload = _ROUTE.pack(family, target.max_prefixlen, 0, 0, 0, 0, 0, 0, 0)
    payload += netlink.attribute(_RTA_DST, target.packed)
    try:
        with netlink.open_socket(netlink.NETLINK_ROUTE) as asking:
            replies = netlink.converse(
                asking, [netlink.Message(f"the route to {address}", _RTM_GETROUTE, netlink.NLM_F_ACK, payload)]
            )
    except OSError as error:
        return error.errno not in _NO_ROUTE
    return not replies or _ROUTE.unpack_from(replies[0])[_TYPE_FIELD] == _RTN_LOCAL
