# SPDX-License-Identifier: MIT
"""A jail's plan -> that of a gVisor box. Pure but for `program`, `inside` and `missing`, which look at the host."""

from __future__ import annotations

import os
import struct

from agentbox.isolation.host import kernel_requirements
from agentbox.isolation.launcher.bundle import INSIDE
from agentbox.isolation.plan import Runtime
from agentbox.isolation.requirement import Requirement
from agentbox.linux.cgroups import CgroupLimits
from agentbox.records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.isolation.plan import LaunchPlan
    from agentbox.models import Limits

PLATFORM = "ptrace"
_MIB = 1 << 20
_OPEN_FILES = 4096
_SCRIPTS_DEEP = 5
# PT_INTERP
_INTERPRETED = 3
_PLACES = ("/usr/bin/runsc", "/usr/local/bin/runsc", "/usr/local/sbin/runsc")
_NATIVE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "native")
_INSIDE = f"{_NATIVE}/agentbox-inside"
_ALONE = f"{_NATIVE}/alone.so"
_STAT = f"{_NATIVE}/gvisor-stat.so"
# Where a box shows what its programs load first: what keeps one from starting others, and what makes `ls` and `stat`
# of newer coreutils work there.
_SHOWN_ALONE = "/.agentbox/alone.so"
_SHOWN_STAT = "/.agentbox/stat.so"
_PRELOAD = "/etc/ld.so.preload"
# What gVisor itself takes: its kernel, the process that opens files, their threads; and on the platform ptrace a
# process of the host for each one inside, with their threads: between six and seven.
_OWN_MEMORY_MB = 128
_OWN_TASKS = 256
_TASKS_FOR_EACH = 8


def program() -> str | None:
    """Where this host has runsc."""
    return next((path for path in _PLACES if os.access(path, os.X_OK)), None)


def requirements() -> tuple[Requirement, ...]:
    """What gVisor boxes need of this host, as far as can be told without building one."""
    runsc, root, compiled = program(), os.geteuid() == 0, all(os.access(path, os.R_OK) for path in (_INSIDE, _ALONE))
    return (
        *kernel_requirements(),
        Requirement(
            "runsc",
            runsc is not None,
            runsc or f"none at {', '.join(_PLACES)}",
            "" if runsc else "install gVisor: `apt-get install runsc`, or its release at /usr/local/bin/runsc",
        ),
        Requirement(
            "root",
            root,
            f"uid {os.geteuid()}",
            "" if root else "start agentbox as root: a gVisor box has three ids of its own; or use backend jail",
        ),
        Requirement(
            "the compiled part of agentbox",
            compiled,
            _INSIDE if compiled else f"{_INSIDE} or {os.path.basename(_ALONE)} is missing",
            "" if compiled else "install a C compiler and then agentbox again (`pip install .`)",
        ),
    )


def gvisor_plan(
    plan: LaunchPlan,
    limits: Limits,
    host_ids: tuple[int, int, int],
    *,
    joins_network: bool,
    alone: bool = False,
    capabilities: int = 0,
) -> LaunchPlan:
    """The plan of a box that shows what `plan` shows, with gVisor's kernel in place of the host's. Its programs are
    each `alone`, where they may start no other. `capabilities` are those of its programs in that kernel."""
    runsc = program()
    assert runsc is not None
    loaded = [(_ALONE, _SHOWN_ALONE)] if alone else []
    if os.path.isfile(_STAT):
        loaded.append((_STAT, _SHOWN_STAT))
    return replace(
        plan,
        host_uid=host_ids[1],
        host_gid=host_ids[1],
        binds=(*plan.binds, (_INSIDE, INSIDE), *loaded),
        files=(*plan.files, (_PRELOAD, "".join(f"{shown}\n" for _, shown in loaded))),
        # These and /proc are gVisor's own.
        links=tuple((path, target) for path, target in plan.links if not path.startswith("/dev/")),
        devices=(),
        proc_masked_files=(),
        proc_masked_directories=(),
        proc_read_only=(),
        # No judge of ours sees what runs there, and gVisor has filters of its own.
        judge=False,
        witness_all=False,
        checkpoint=False,
        exec_rules=None,
        landlock_read=(),
        rlimits=(),
        watch_memory_bytes=0,
        runtime=Runtime(
            runsc,
            PLATFORM,
            "host" if joins_network else "none",
            host_ids,
            (("NPROC", limits.pids), ("NOFILE", _OPEN_FILES), ("CORE", 0)),
            capabilities,
            changes=capabilities != 0,
        ),
    )


def is_dynamic(path: str) -> bool:
    """Whether the program at `path`, or the interpreter of the script there, is started by the dynamic loader, which
    loads what it is told to before anything of the program. Raises OSError."""
    for _ in range(_SCRIPTS_DEEP):
        with open(path, "rb") as file:
            head = file.read(1 << 16)
        if head[:2] != b"#!":
            break
        path = os.fsdecode((head[2:].split(b"\n", 1)[0].split() or [b"/bin/sh"])[0])
    if head[:4] != b"\x7fELF" or head[4:6] != b"\2\1":
        return False
    (table,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    places = (table + index * size for index in range(count))
    kinds = [struct.unpack_from("<I", head, place)[0] for place in places if place + 4 <= len(head)]
    return _INTERPRETED in kinds


def group_limits(limits: Limits) -> CgroupLimits:
    """Of everything that the box consists of, gVisor's own parts included."""
    return CgroupLimits(
        (limits.memory_mb + limits.disk_mb + _OWN_MEMORY_MB) * _MIB,
        limits.pids * _TASKS_FOR_EACH + _OWN_TASKS,
        limits.cpus,
    )
