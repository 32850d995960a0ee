# SPDX-License-Identifier: MIT
"""Golden plans: what the launcher is told, down to each mount."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from agentbox.isolation.plan import HostView, jail_plan, unisolated_plan
from agentbox.models import Confinement, Limits

LIMITS = Limits(timeout_seconds=30, memory_mb=256, cpus=1.0, pids=64, disk_mb=128, max_output_bytes=1 << 20)
HOST = HostView(
    top=(("/usr", None), ("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib64")),
    etc=("alternatives", "ld.so.cache", "ssl/certs"),
)
GOLDEN = Path(__file__).parent / "golden"

PLANS = {
    "jail_with_cgroup": jail_plan(
        Confinement(LIMITS), HOST, host_uid=1_900_000_001, host_gid=1_900_000_001, memory_held_by_cgroup=True
    ),
    "jail_without_cgroup": jail_plan(
        Confinement(LIMITS, ("/opt/python",)), HOST, host_uid=1000, host_gid=1000, memory_held_by_cgroup=False
    ),
    "subprocess": unisolated_plan(
        Confinement(LIMITS), workspace="/state/boxes/1/work", host_uid=0, host_gid=0, memory_held_by_cgroup=True
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_the_golden_one(name: str) -> None:
    found = json.loads(json.dumps(dataclasses.asdict(PLANS[name])))
    assert found == json.loads((GOLDEN / f"{name}.json").read_text())


def test_every_directory_of_the_host_is_shown_at_its_own_place() -> None:
    for plan in PLANS.values():
        assert all(source == target for source, target in plan.binds)


def test_nothing_private_of_the_host_is_shown() -> None:
    private = ("/root", "/home", "/var", "/run", "/sys", "/tmp", "/etc/shadow", "/etc/machine-id")
    for plan in PLANS.values():
        assert not [source for source, _ in plan.binds if source in private or source.startswith("/var/")]


def test_the_writable_places_share_one_disk_limit() -> None:
    plan = PLANS["jail_with_cgroup"]
    assert 128 << 20 <= plan.disk_bytes < 129 << 20
    assert [path for path, _ in plan.writable] == ["/work", "/tmp", "/dev/shm"]


def test_the_memory_watch_stands_in_where_no_cgroup_holds_memory() -> None:
    assert PLANS["jail_with_cgroup"].watch_memory_bytes == 0
    assert PLANS["jail_without_cgroup"].watch_memory_bytes == 256 << 20


def test_address_space_is_never_limited() -> None:
    for plan in PLANS.values():
        assert "AS" not in dict(plan.rlimits)


def test_the_same_directory_is_not_mounted_twice() -> None:
    plan = jail_plan(Confinement(LIMITS, ("/usr",)), HOST, host_uid=1, host_gid=1, memory_held_by_cgroup=True)
    targets = [target for _, target in plan.binds]
    assert len(targets) == len(set(targets))
