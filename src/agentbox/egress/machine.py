# SPDX-License-Identifier: MIT
"""Which addresses are this machine's own, also the public ones: what listens there trusts its neighbours."""

from __future__ import annotations

import ipaddress
import socket

_DISCARD_PORT = 9


def is_own_address(address: str) -> bool:
    """Whether an address in its usual spelling belongs to this machine.

    The kernel is asked which source it would use, and no packet is sent: only for an address of the machine is it that
    very address. An address behind which a router hides this machine cannot be told from others.
    """
    target = ipaddress.ip_address(address)
    family = socket.AF_INET if target.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(target), _DISCARD_PORT))
            source: str = probe.getsockname()[0]
    except OSError:
        # No route or no such family: nothing can be connected to there either.
        return False
    return ipaddress.ip_address(source.partition("%")[0]) == target
