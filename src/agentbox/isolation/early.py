# SPDX-License-Identifier: MIT
"""A box that is begun before it is known what it will hold: while the policy is still being read its processes are
made, join its control groups (the kernel makes them wait for that) and build what every box has."""

from __future__ import annotations

import os

from agentbox.isolation.backend import cgroup_limits
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.launcher import wire
from agentbox.isolation.plan import skeleton_of
from agentbox.light import socket
from agentbox.linux.cgroups import CgroupTree
from agentbox.records import asdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.isolation.launcher.forked import Forked
    from agentbox.models import Limits


def open_facilities(launcher: tuple[Forked, socket.socket] | None, most: Limits, *, joins: bool = False) -> Facilities:
    """Facilities for one run. With a forked launcher its box is begun, under the limits `most`, which may be tightened
    when it is built, and for files of the working directory's owner. `joins` says that it may join a network which is
    made for it: then nothing is begun that must come after that. Blocks, needs no event loop. Raises ConfinementError;
    nothing is left then."""
    facilities = Facilities(cgroups=CgroupTree.open())
    if launcher is None:
        return facilities
    try:
        if facilities.cgroups is not None:
            facilities.begun = facilities.cgroups.create("run", cgroup_limits(most))
        process, sock = launcher
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        groups = facilities.begun.attach_fds() if facilities.begun is not None else ()
        begin: dict[str, Any] = {"namespaces": True}
        skeleton = None
        if not joins:
            uid, gid = facilities.begun_ids = facilities.take_ids()
            skeleton = skeleton_of(most, facilities.host_view(), host_uid=uid, host_gid=gid)
            begin["skeleton"] = {"skeleton": asdict(skeleton), "owner": os.stat(".").st_uid}
        with theirs:
            wire.send(sock, {"begin": begin}, [theirs.fileno(), *groups])
        facilities.launcher.adopt(process, sock, ours, skeleton)
    except BaseException:
        facilities.drop()
        raise
    return facilities
