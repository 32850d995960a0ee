# SPDX-License-Identifier: MIT
"""gVisor's boxes as far as nothing need run: their bundle, their limits, what their kernel says, their stock."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agentbox.errors import IsolationError
from agentbox.isolation.backends.gvisor import planning
from agentbox.isolation.backends.gvisor.building import must_load, refusal
from agentbox.isolation.backends.gvisor.durable import own_limits
from agentbox.isolation.backends.gvisor.events import packet_of
from agentbox.isolation.backends.gvisor.stock import Stock
from agentbox.isolation.launcher.bundle import bundle_of
from agentbox.isolation.plan import HostView, LaunchPlan, durable_plan, jail_plan
from agentbox.models import Confinement, Limits, ProgramRule
from agentbox.records import asdict, replace
from tests.fuzz import gvisor_events

LIMITS = Limits(timeout_seconds=30, memory_mb=256, cpus=1.0, pids=64, disk_mb=128, max_output_bytes=1 << 20)
IDS = (1_900_000_001, 1_900_000_002, 1_900_000_003)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> LaunchPlan:
    monkeypatch.setattr(planning, "program", lambda: "/usr/bin/runsc")
    base = jail_plan(
        Confinement(LIMITS),
        HostView((("/usr", None), ("/bin", "usr/bin")), ("ssl/certs",)),
        host_uid=IDS[1],
        host_gid=IDS[1],
        memory_held_by_cgroup=True,
    )
    return planning.gvisor_plan(base, LIMITS, IDS, joins_network=False, alone=True)


def test_bundle_has_a_first_process_without_any_right_and_a_root_that_is_read_only(plan: LaunchPlan) -> None:
    bundle = bundle_of(asdict(plan))
    assert bundle["process"]["args"] == ["/.agentbox/inside", "init"]
    assert (bundle["process"]["user"]["uid"], bundle["process"]["capabilities"]) == (65534, {})
    assert bundle["root"] == {"path": "/box", "readonly": True}
    assert {"type": "RLIMIT_NPROC", "hard": 64, "soft": 64} in bundle["process"]["rlimits"]
    assert [one["destination"] for one in bundle["mounts"]] == ["/proc", "/tmp", "/work", "/dev/shm"]


def test_namespace_of_the_gateway_is_used_and_any_other_network_is_gvisors_own(plan: LaunchPlan) -> None:
    assert plan.runtime is not None
    joined = replace(plan, runtime=replace(plan.runtime, network="host"))
    kinds = [{one["type"] for one in bundle_of(asdict(which))["linux"]["namespaces"]} for which in (plan, joined)]
    assert kinds == [{"pid", "ipc", "uts", "mount", "network"}, {"pid", "ipc", "uts", "mount"}]


def test_what_the_host_lends_is_writable_once_and_nothing_below_it_is_mounted_again(plan: LaunchPlan) -> None:
    lent = durable_plan(plan, workspace="/srv/work", home="/root", user="root", files=())
    nested = replace(lent, grants=(("/work/out", True), ("/data", False)))
    assert [one["destination"] for one in bundle_of(asdict(nested))["mounts"]] == [
        "/proc",
        "/tmp",
        "/root",
        "/work",
        "/dev/shm",
    ]


def test_nothing_of_the_hosts_kernel_is_planned_and_programs_load_what_keeps_them_alone(plan: LaunchPlan) -> None:
    assert (plan.devices, plan.proc_masked_files, plan.landlock_read, plan.rlimits, plan.judge) == (
        (),
        (),
        (),
        (),
        False,
    )
    assert dict(plan.files)["/etc/ld.so.preload"].splitlines()[0] == "/.agentbox/alone.so"
    assert not any(path.startswith("/dev/") for path, _ in plan.links)


def test_group_has_room_for_gvisors_own_parts() -> None:
    group = planning.group_limits(LIMITS)
    assert group.memory_bytes == (256 + 128 + 128) << 20
    assert group.pids > 4 * LIMITS.pids


def test_memory_of_a_durable_box_holds_what_it_may_write_beside_its_workspace() -> None:
    own = own_limits(LIMITS)
    assert own.memory_mb + own.disk_mb == LIMITS.memory_mb
    assert own.pids > LIMITS.pids


def test_rule_that_grants_a_program_is_refused_by_name_and_one_that_denies_is_not() -> None:
    def with_rule(*, deny: bool) -> Confinement:
        return Confinement(LIMITS, programs=((ProgramRule(deny, "/usr/bin/git", ("git",), (), "exec: git"),),))

    assert refusal(with_rule(deny=True)) == refusal(Confinement(LIMITS)) == ""
    assert "`exec: git`" in refusal(with_rule(deny=False))


def test_program_that_loads_nothing_cannot_be_kept_alone(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh -e\necho\n")
    for program in (sys.executable, os.fspath(script)):
        must_load(program)
    plain = tmp_path / "plain"
    plain.write_bytes(b"\x7fELF\2\1\1" + bytes(200))
    with pytest.raises(IsolationError, match="linked statically"):
        must_load(os.fspath(plain))


def test_kernel_tells_of_programs_without_their_variables() -> None:
    packet = packet_of(gvisor_events.EXECVE)
    assert packet.report == {
        "spawn": {
            "pid": 3,
            "exe": "/usr/bin/echo",
            "argv": ["/bin/echo", "hello_from"],
            "allowed": True,
            "reason": "no exec rules",
        }
    }


@pytest.mark.parametrize(
    ("packet", "report"),
    [
        (gvisor_events.OPEN, {"op": "open_write", "path": "/etc", "error": "ENOENT"}),
        (gvisor_events.CONNECT, {"op": "connect", "host": "127.0.0.1", "port": 99}),
        (gvisor_events.CONNECT_UNIX, {"op": "connect", "path": "/run/a.sock"}),
    ],
    ids=["open", "connect", "connect_unix"],
)
def test_kernel_tells_where_and_what_came_of_it(packet: bytes, report: dict[str, object]) -> None:
    found = packet_of(packet).report
    assert found is not None
    assert {name: value for name, value in found["witness"].items() if name != "pid"} == report


def test_what_the_kernel_had_to_drop_is_counted() -> None:
    assert packet_of(gvisor_events.CONNECT).dropped == 7


class Box:
    """Something that waits."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.alive = True
        self.ended = False

    def is_alive(self) -> bool:
        return self.alive

    async def destroy(self) -> None:
        self.ended = True


def test_stock_gives_each_box_once_and_ends_those_of_another_kind() -> None:
    made: list[Box] = []

    async def make(kind: str) -> Box:
        made.append(Box(kind))
        return made[-1]

    async def main() -> None:
        stock = Stock(2, make)
        assert stock.take("a") is None
        await stock.filled()
        first, second = stock.take("a"), stock.take("a")
        assert {first, second} == set(made)
        await stock.filled()
        made[2].alive = False
        third = stock.take("a")
        assert third is made[3]
        assert stock.take("b") is None
        await stock.filled()
        await stock.close()
        assert stock.waiting == 0
        assert stock.take("b") is None

    asyncio.run(main())
    assert made[2].ended
    assert all(box.ended for box in made if box.kind == "b")


def test_box_that_cannot_be_made_is_tried_again_at_the_next_question() -> None:
    tries = []

    async def make(kind: str) -> Box:
        tries.append(kind)
        raise IsolationError("no room")

    async def main() -> None:
        stock = Stock(1, make)
        for _ in range(2):
            assert stock.take("a") is None
            await stock.filled()
        await stock.close()

    asyncio.run(main())
    assert tries == ["a", "a"]
