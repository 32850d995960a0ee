# SPDX-License-Identifier: MIT
"""Control groups version 2: one hierarchy; a group that gives controllers to its children holds no process itself.

memory.oom.group stays 0: the kernel then kills one process of a box that is out of memory, as version 1 always does,
so a program may survive its greedy child and a durable box survives one command; the counter tells it either way.
"""

from __future__ import annotations

import os

from agentbox.light import contextlib
from agentbox.linux.cgroupfs import (
    CONTROLLERS,
    Place,
    Setting,
    Survey,
    members,
    memberships,
    mounts,
    own_directory,
    read_text,
    why_not_writable,
    write_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.linux.cgroupfs import CgroupMount

CPU_PERIOD_US = 100_000
# Where the owner itself goes when its group is to hold boxes.
LEAF = "agentbox.owner"

JOIN_FILE = "cgroup.procs"
USAGE_PEAK = "memory.peak"
OOM_FILE = "memory.events"
ANON_KEY = b"\nanon "
SHARED_KEY = b"\nshmem "


def survey() -> Survey:
    """Find where groups can be made, without making any or moving anything."""
    here = [mount for mount in mounts() if mount.kind == "cgroup2"]
    if not here:
        return Survey((), dict.fromkeys(CONTROLLERS, "no cgroup2 file system is mounted"))
    mount = here[0]
    reasons: list[str] = []
    for directory in _candidates(mount):
        reason = _why_not(directory)
        if reason is None:
            offered = _words(f"{directory}/cgroup.controllers") & set(CONTROLLERS)
            absent = set(CONTROLLERS) - offered
            missing = dict.fromkeys(absent, f"{directory} was not given the controller (cgroup v2)")
            return Survey((Place(directory, frozenset(offered)),), missing)
        reasons.append(reason)
    return Survey((), dict.fromkeys(CONTROLLERS, "; ".join(reasons) or "no control group is visible"))


def settle(place: Place) -> Place:
    """Move this process into a leaf where its own group is to hold boxes, and hand the controllers down.

    Returns the place with the controllers that could be handed down. Raises OSError.
    """
    if not _is_true_root(place.base) and os.getpid() in members(place.base):
        leaf = f"{place.base}/{LEAF}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(leaf, 0o755)
        write_text(f"{leaf}/cgroup.procs", str(os.getpid()))
    return Place(place.base, prepare(place.base, place.controllers))


def prepare(directory: str, controllers: frozenset[str]) -> frozenset[str]:
    """Hand controllers down to the groups in a directory; returns those that could be. Raises OSError."""
    enabled = _words(f"{directory}/cgroup.subtree_control")
    for controller in controllers - enabled:
        # One at a time: a controller may be refused alone (cpu, while a real-time process exists).
        with contextlib.suppress(OSError):
            write_text(f"{directory}/cgroup.subtree_control", f"+{controller}")
    return controllers & _words(f"{directory}/cgroup.subtree_control")


def reset_peak(fd: int) -> bool:
    """Let the highest use, which this descriptor of USAGE_PEAK tells, begin anew; False where the kernel cannot.
    Raises OSError."""
    # Linux 6.12: for readers of this descriptor. Before, the file cannot be written.
    try:
        os.pwrite(fd, b"reset\n", 0)
    except OSError:
        return False
    return True


def settings(place: Place, memory_bytes: int, pids: int, cpus: float, *, raised: bool) -> tuple[Setting, ...]:
    """Return the values that hold the limits; the order does not depend on `raised` in version 2."""
    del raised
    plan: list[Setting] = []
    if "memory" in place.controllers:
        plan.append(Setting("memory.max", str(memory_bytes), str(memory_bytes)))
        plan.append(Setting("memory.swap.max", "0", "0", optional=True))
    if "pids" in place.controllers:
        plan.append(Setting("pids.max", str(pids), str(pids)))
    if "cpu" in place.controllers:
        value = f"{max(1000, round(cpus * CPU_PERIOD_US))} {CPU_PERIOD_US}"
        plan.append(Setting("cpu.max", value, value))
    return tuple(plan)


def _candidates(mount: CgroupMount) -> list[str]:
    """Return the directories to try, best first.

    A group that was delegated to us comes first. Otherwise root takes the real root, which outlives sessions and
    services; everybody else goes from the own group upwards (a user's own service manager owns some of these).
    """
    own = own_directory(mount, memberships().get("", "/"))
    upwards: list[str] = []
    directory = own
    while directory is not None and len(directory) >= len(mount.point):
        if not directory.endswith("/" + LEAF):
            upwards.append(directory)
        directory = os.path.dirname(directory) if directory != mount.point else None
    if mount.point not in upwards:
        upwards.append(mount.point)
    root_first = os.geteuid() == 0 and _is_true_root(mount.point) and not any(map(_is_delegated, upwards))
    return [mount.point, *upwards[:-1]] if root_first else upwards


def _why_not(directory: str) -> str | None:
    unwritable = why_not_writable(directory)
    if unwritable is not None:
        return unwritable
    if not os.access(f"{directory}/cgroup.subtree_control", os.W_OK):
        return f"{directory} may not hand controllers down for uid {os.geteuid()}"
    if not _words(f"{directory}/cgroup.controllers") & set(CONTROLLERS):
        return f"{directory} has no controllers"
    others = [pid for pid in members(directory) if pid != os.getpid()]
    if others and not _is_true_root(directory):
        return f"{directory} holds {len(others)} other process(es)"
    return None


def _is_true_root(directory: str) -> bool:
    # Every group but the root of the whole hierarchy has this file; the root of a cgroup namespace has it too.
    return not os.path.exists(f"{directory}/cgroup.events")


def _is_delegated(directory: str) -> bool:
    for name in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(directory, name) == b"1"
    return False


def _words(path: str) -> set[str]:
    try:
        return set(read_text(path).split())
    except OSError:
        return set()
