# SPDX-License-Identifier: MIT
"""A box that is begun before it is known what it will hold: its processes are there, and have joined its control groups
(the kernel makes them wait for that), while the policy is still being read."""

from __future__ import annotations

from agentbox.isolation.backend import cgroup_limits
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.launcher import wire
from agentbox.light import socket
from agentbox.linux.cgroups import CgroupTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.isolation.launcher.forked import Forked
    from agentbox.models import Limits


def open_facilities(launcher: tuple[Forked, socket.socket] | None, most: Limits) -> Facilities:
    """Facilities for one run. With a forked launcher its box is begun, under the limits `most`, which may be tightened
    when it is built. Blocks, needs no event loop. Raises ConfinementError; nothing is left then."""
    facilities = Facilities(cgroups=CgroupTree.open())
    if launcher is None:
        return facilities
    try:
        if facilities.cgroups is not None:
            facilities.begun = facilities.cgroups.create("run", cgroup_limits(most))
        process, sock = launcher
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        groups = facilities.begun.attach_fds() if facilities.begun is not None else ()
        with theirs:
            wire.send(sock, {"begin": {"namespaces": True}}, [theirs.fileno(), *groups])
        facilities.launcher.adopt(process, sock, ours)
    except BaseException:
        facilities.drop()
        raise
    return facilities
