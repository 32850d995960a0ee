# SPDX-License-Identifier: MIT
"""Control groups version 1: one hierarchy per controller, or per set of controllers mounted together."""

from __future__ import annotations

import os

from agentbox.linux.cgroupfs import (
    CONTROLLERS,
    Place,
    Setting,
    Survey,
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
_UNLIMITED_BYTES = 1 << 60
# Absent when the kernel was started without swap accounting.
_SWAP_FILE = "memory.memsw.limit_in_bytes"
# cpuacct limits nothing; a box joins it so that its processor time is counted.
JOINED = frozenset((*CONTROLLERS, "cpuacct"))

# A thread that joins by itself need not wait until no thread of any process is being born or ends, which takes the
# kernel 10 to 20 ms after a pause; and who joins is a fresh fork, of one thread.
JOIN_FILE = "tasks"
USAGE_PEAK = "memory.max_usage_in_bytes"
OOM_FILE = "memory.oom_control"
ANON_KEY = b"\ntotal_rss "
SHARED_KEY = b"\ntotal_shmem "


def survey() -> Survey:
    """Find where groups can be made, without making any."""
    paths, places, missing = memberships(), [], {}
    here = [mount for mount in mounts() if mount.kind == "cgroup"]
    seen: set[str] = set()
    for mount in here:
        controllers = (mount.controllers & JOINED) - seen
        if not controllers:
            continue
        base = _base(mount, paths.get(min(controllers), "/"))
        if base is None:
            reason = f"{why_not_writable(mount.point)} (cgroup v1)"
            missing.update(dict.fromkeys(controllers, reason))
            continue
        seen |= controllers
        places.append(Place(base, controllers))
    for controller in CONTROLLERS:
        if controller in seen:
            missing.pop(controller, None)
        else:
            missing.setdefault(controller, f"the {controller} controller is not mounted (cgroup v1)")
    missing.pop("cpuacct", None)
    return Survey(tuple(places), missing)


def prepare(directory: str, controllers: frozenset[str]) -> frozenset[str]:
    """Make a fresh directory ready to hold groups; returns the controllers that work in it. Raises OSError."""
    if "memory" in controllers:
        use = f"{directory}/memory.use_hierarchy"
        if os.path.exists(use) and read_text(use).strip() == "0":
            write_text(use, "1")
    return controllers


def settle(place: Place) -> Place:
    """Nothing to do: in version 1 a group may hold processes and groups."""
    return place


def reset_peak(fd: int) -> bool:
    """Let the highest use, which this descriptor of USAGE_PEAK tells, begin anew; False where the kernel cannot.
    Raises OSError."""
    os.pwrite(fd, b"0", 0)
    return True


def settings(place: Place, memory_bytes: int, pids: int, cpus: float, *, raised: bool) -> tuple[Setting, ...]:
    """Return the values that hold the limits; `raised`: the memory limit in force is lower than the new one."""
    plan: list[Setting] = []
    if "memory" in place.controllers:
        plain = _exact("memory.limit_in_bytes", memory_bytes)
        # memory plus swap must never be below memory alone, so the order depends on the direction.
        both = _exact(_SWAP_FILE, memory_bytes)
        if not os.path.exists(f"{place.base}/{_SWAP_FILE}"):
            both = _exact("memory.swappiness", 0, optional=True)
        plan += [both, plain] if raised else [plain, both]
    if "pids" in place.controllers:
        plan.append(_exact("pids.max", pids))
    if "cpu" in place.controllers:
        quota = max(1000, round(min(cpus, _allowed_cpus(place.base)) * CPU_PERIOD_US))
        plan += [_exact("cpu.cfs_period_us", CPU_PERIOD_US), _exact("cpu.cfs_quota_us", quota)]
    return tuple(plan)


def _exact(file: str, value: int, *, optional: bool = False) -> Setting:
    return Setting(file, str(value), str(value), optional)


def _allowed_cpus(base: str) -> float:
    """Return the share of the parent: version 1 refuses a child with more, although the parent would hold it."""
    try:
        quota = int(read_text(f"{base}/cpu.cfs_quota_us"))
        return quota / int(read_text(f"{base}/cpu.cfs_period_us")) if quota > 0 else float("inf")
    except OSError:
        return float("inf")


def _base(mount: CgroupMount, path: str) -> str | None:
    """Choose the own group where it (or one above it) is limited, so that boxes stay inside what bounds their owner.

    Otherwise the mount's root: it exists as long as the mount, while the own group may vanish with its session.
    """
    own, root_writable = own_directory(mount, path), why_not_writable(mount.point) is None
    if own is not None and why_not_writable(own) is None and (_is_bounded(own, mount.point) or not root_writable):
        return own
    return mount.point if root_writable else None


def _is_bounded(directory: str, point: str) -> bool:
    while directory != point and directory.startswith(point):
        for file in ("memory.limit_in_bytes", "pids.max", "cpu.cfs_quota_us"):
            try:
                value = read_text(f"{directory}/{file}").strip()
            except OSError:
                continue
            if value.isdigit() and int(value) < _UNLIMITED_BYTES:
                return True
        directory = os.path.dirname(directory)
    return False
