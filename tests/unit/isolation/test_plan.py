# SPDX-License-Identifier: MIT
"""Golden plans: what the launcher is told, down to each mount."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from agentbox.isolation.plan import (
    WORKSPACE,
    AgentView,
    GuardView,
    HostView,
    agent_plan,
    attached_plan,
    jail_plan,
    unisolated_plan,
    watched_plan,
    workspace_view,
)
from agentbox.models import Confinement, FileDenial, FileGrant, Layer, Limits, ProgramRule

LIMITS = Limits(timeout_seconds=30, memory_mb=256, cpus=1.0, pids=64, disk_mb=128, max_output_bytes=1 << 20)
HOST = HostView(
    top=(("/usr", None), ("/bin", "usr/bin"), ("/lib", "usr/lib"), ("/lib64", "usr/lib64")),
    etc=("alternatives", "ld.so.cache", "ssl/certs"),
)
ENTRY = f"{WORKSPACE}/main.py"
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


def grant(path: str, writable: bool = False, present: bool = True) -> FileGrant:
    return FileGrant(path, writable, present, Layer.KERNEL, "rule")


def shown(*files: FileGrant) -> tuple[tuple[str, bool], ...]:
    return workspace_view(Confinement(LIMITS, files=files), ENTRY).shown


def test_the_programs_own_file_is_shown_without_any_grant() -> None:
    assert shown() == ((ENTRY, False),)


def test_grants_of_the_whole_workspace_need_no_mount_below_it() -> None:
    assert shown(grant("/work"), grant("/work/a")) == (("/work", False),)
    assert shown(grant("/"), grant("/work/a")) == (("/work", False),)
    assert shown(grant("/work", writable=True), grant("/work/a")) == (("/work", True),)


def test_a_narrower_grant_stays_where_the_one_above_is_wider_than_its_rule() -> None:
    wide = FileGrant("/work", True, True, Layer.INTERPRETER, "write: ./*.txt")
    assert shown(wide, grant("/work/a")) == (("/work", True), ("/work/a", False), (ENTRY, False))
    assert shown(wide, grant("/work/a", writable=True)) == (("/work", True), (ENTRY, False))


def agent_grants(*files: FileGrant) -> tuple[tuple[str, bool], ...]:
    view = AgentView("/p", (), (), ("/usr/bin/python3", ()), "/run/agentbox/channel", "/tmp/home")
    confinement = Confinement(LIMITS, files=files)
    return agent_plan(confinement, HOST, view, host_uid=1, host_gid=1, memory_held_by_cgroup=True).grants


def test_an_agents_grant_of_reading_does_not_narrow_a_wider_one_of_writing() -> None:
    assert agent_grants(grant("/p/a", writable=True), grant("/p/a/b")) == (("/p/a", True),)
    assert agent_grants(grant("/p"), grant("/p/a", writable=True)) == (("/p", False), ("/p/a", True))
    wide = FileGrant("/p/a", True, True, Layer.INTERPRETER, "write: ./a/*.txt")
    assert agent_grants(wide, grant("/p/a/b")) == (("/p/a", True), ("/p/a/b", False))


def test_a_writable_directory_in_a_read_only_one_has_a_mount_of_its_own_after_it() -> None:
    assert shown(grant("/work/a/out", writable=True), grant("/work")) == (("/work", False), ("/work/a/out", True))


def test_a_name_that_only_begins_like_a_granted_one_is_not_covered_by_it() -> None:
    found = shown(grant("/work/a", writable=True), grant("/work/a-b", writable=True))
    assert found == (("/work/a", True), ("/work/a-b", True), (ENTRY, False))


def test_grants_outside_the_workspace_and_of_what_is_not_there_are_no_mounts() -> None:
    assert shown(grant("/etc/shadow"), grant("/workshop"), grant("/work/x", present=False)) == shown()


def test_denials_that_exist_are_covered_or_read_only() -> None:
    denials = (
        FileDenial("/work/a", hidden=True, present=True, rule="r"),
        FileDenial("/work/b", hidden=False, present=True, rule="r"),
        FileDenial("/work/c", hidden=True, present=False, rule="r"),
    )
    view = workspace_view(Confinement(LIMITS, file_denials=denials), ENTRY)
    assert (view.hidden, view.read_only) == (("/work/a",), ("/work/b",))


def test_without_a_policy_the_exec_judge_only_watches() -> None:
    plan = PLANS["jail_with_cgroup"]
    watched = watched_plan(plan, Confinement(LIMITS), ("/usr/bin/python3", ("main.py",)))
    assert (watched.judge, watched.exec_rules, watched.staged) == (True, None, False)


def test_a_policy_without_exec_rules_allows_the_command_alone() -> None:
    plan = PLANS["jail_with_cgroup"]
    held = watched_plan(plan, Confinement(LIMITS, programs=((),), policy_sha256="0"), ("/usr/bin/python3", ()))
    assert (held.exec_rules, held.staged) == (((),), True)
    rule = ProgramRule(deny=False, program="/usr/bin/ls", words=("ls", "-l"), libexec=(), rule="exec: ls -l")
    held = watched_plan(plan, Confinement(LIMITS, programs=((rule,),), policy_sha256="0"), ("/usr/bin/python3", ()))
    assert held.exec_rules is not None
    assert (held.exec_rules[0][0]["exe"], held.exec_rules[0][0]["args"]) == ("/usr/bin/ls", ("-l",))


def test_a_guard_is_shown_read_only_and_has_a_channel() -> None:
    plan = PLANS["jail_with_cgroup"]
    guard = GuardView("/state/guards/1", "/run/agentbox/guard", "/run/agentbox/channel")
    held = watched_plan(plan, Confinement(LIMITS, policy_sha256="0"), ("/usr/bin/python3", ()), guard)
    assert held.binds[-1] == ("/state/guards/1", "/run/agentbox/guard")
    assert held.channel == "/run/agentbox/channel"


def test_a_box_that_joins_a_network_asks_its_name_server_and_is_otherwise_the_same() -> None:
    plan = PLANS["jail_with_cgroup"]
    attached = attached_plan(plan, name_server="198.18.0.1", through_user_namespace=False, unix_listeners=("/run/s",))
    assert (attached.joins, attached.unix_listeners) == (("network",), ("/run/s",))
    assert dict(attached.files)["/etc/resolv.conf"] == "nameserver 198.18.0.1\n"
    assert dict(plan.files)["/etc/resolv.conf"] == ""
    unchanged = dataclasses.replace(attached, joins=(), unix_listeners=(), files=plan.files)
    assert unchanged == plan
    assert sorted(path for path, _ in attached.files) == sorted(path for path, _ in plan.files)


def test_an_ordinary_user_s_network_is_entered_through_its_user_namespace() -> None:
    plan = attached_plan(PLANS["jail_without_cgroup"], name_server="198.18.0.1", through_user_namespace=True)
    assert plan.joins == ("user", "network")
