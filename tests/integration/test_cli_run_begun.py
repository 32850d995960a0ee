# SPDX-License-Identifier: MIT
"""A box that is begun before its policy is read is the box of that policy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import not_here
from tests.policy_run import Project

pytestmark = [pytest.mark.linux, pytest.mark.root]

# Begins a box for one plan, builds it by another, says what came of it.
_PROGRAM = """
import os, sys
from agentbox.isolation.launcher.forked import fork_launcher
launcher = fork_launcher()
from agentbox import light
light.choose()
from agentbox.errors import ConfinementError
from agentbox.isolation.early import open_facilities
from agentbox.isolation.backend import build_in_cgroup
from agentbox.isolation.plan import AgentView, agent_plan
from agentbox.models import Confinement, Limits
from agentbox.records import replace

limits = Limits(timeout_seconds=60.0, memory_mb=512, cpus=1.0, pids=64, disk_mb=512, max_output_bytes=1 << 20)
facilities = open_facilities(launcher, limits)
taken = facilities.begun_ids

def changed(plan):
    CHANGE
    return plan

async def main():
    confinement = Confinement(replace(limits, disk_mb=16))
    uid, gid = facilities.take_ids()
    assert (uid, gid) == taken
    view = AgentView(directory="/tmp", shown=(), files=(), command=("/usr/bin/env", ()), channel="", home="/tmp/home")
    plan = agent_plan(confinement, facilities.host_view(), view, host_uid=uid, host_gid=gid, memory_held_by_cgroup=True)
    plan = changed(replace(plan, exec_rules=None))
    print("begun:", facilities.launcher.has_begun(plan), flush=True)
    try:
        box = await build_in_cgroup(facilities, plan, confinement, lambda: None)
    except ConfinementError as error:
        print("failed:", error.data["step"], error.message)
        return
    try:
        words = ["/bin/sh", "-c", "hostname; cat /proc/self/cgroup; df -m /tmp | tail -1; ls /proc | grep -c '^[0-9]'"]
        ended = await (await box.start(words, {"PATH": "/usr/bin:/bin"}, "/tmp", (0, 1, 2)))
        print("ended:", ended.status, flush=True)
    finally:
        await box.destroy()

try:
    light.asyncio.run(main())
finally:
    facilities.drop()
    process, sock = launcher
    sock.close()
    process.wait()
"""


def _built(change: str = "pass") -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.replace("CHANGE", change)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_begun_box_becomes_that_of_its_plan_with_its_smaller_disk() -> None:
    said = _built().splitlines()
    assert said[:2] == ["begun: True", "box"]
    [size] = [int(line.split()[1]) for line in said if line.endswith(" /tmp")]
    assert 16 <= size < 64
    assert "ended: 0" in said


def test_a_begun_box_is_in_its_control_groups_and_sees_no_others() -> None:
    said = _built().splitlines()
    groups = [line.split(":")[2] for line in said if line.count(":") == 2]
    assert groups
    assert set(groups) == {"/"}


def test_a_plan_that_what_was_begun_does_not_fit_gets_a_box_of_its_own() -> None:
    said = _built("plan = replace(plan, hostname='other')").splitlines()
    assert said[:2] == ["begun: False", "other"]
    assert "ended: 0" in said
    groups = [line.split(":")[2] for line in said if line.count(":") == 2]
    assert set(groups) == {"/"}


def test_what_cannot_be_lent_to_a_begun_box_is_named() -> None:
    said = _built("plan = replace(plan, binds=(*plan.binds, ('/no/such/place', '/place')))").splitlines()
    assert said[0] == "begun: True"
    assert said[1].startswith("failed: open mounts the box could not be built: open mounts:"), said


def test_a_step_inside_that_fails_is_named() -> None:
    said = _built("plan = replace(plan, workspace='/proc/none')").splitlines()
    assert said[1].startswith("failed: working directory"), said


@pytest.fixture
def project(tmp_path: Path) -> Project:
    directory = tmp_path / "project"
    (directory / "own").mkdir(parents=True)
    (directory / "other").mkdir()
    return Project(directory, tmp_path / "state")


def test_files_of_each_owner_are_lent_to_a_begun_box(project: Project) -> None:
    if os.geteuid() != 0:
        not_here("only root can give files away")
    for path, uid in (
        (project.directory, 4711),
        (project.directory / "own", 4711),
        (project.directory / "other", 4712),
    ):
        os.chown(path, uid, uid)
    project.policy("write: ./own/\nwrite: ./other/\nexec: touch\n")
    assert project.run("/usr/bin/touch", "own/a", "other/b").exit_code == 0
    assert (project.directory / "own" / "a").stat().st_uid == 4711
    assert (project.directory / "other" / "b").stat().st_uid == 4712
