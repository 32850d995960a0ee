# SPDX-License-Identifier: MIT
"""Control groups of this host's kernel, whatever its version; version 2 is shown by tests/vm/test_cgroups_v2.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from agentbox.errors import ConfinementError
from agentbox.linux import cgroups_v1, cgroups_v2
from agentbox.linux.cgroup_owners import is_dead, owner_name, subgroups
from agentbox.linux.cgroupfs import Place, mounts, own_directory, parse_memberships, parse_mounts
from agentbox.linux.cgroups import CgroupLimits, CgroupTree
from tests.conftest import not_here
from tests.vm.cgroup_claims import CLAIMS

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/0a /sys/fs/cgroup/mem\\040ory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
"""


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    tree = CgroupTree.open()
    if tree is None:
        not_here(CgroupTree.explain())
        return
    paths = [hierarchy.path for hierarchy in tree._ownership.hierarchies]
    # A sandbox of another test in this process may have boxes there still.
    before = {path: set(subgroups(path)) for path in paths}
    yield tree
    tree.close()
    tree.close()
    left = {path: set(subgroups(path)) - before[path] for path in paths}
    assert not any(left.values()), left
    assert not any(os.path.exists(path) for path in paths if not before[path])


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_control_group(claim: Callable[[CgroupTree], None], tree: CgroupTree) -> None:
    claim(tree)


def test_shared_memory_of_what_others_made_in_a_group_is_seen_at_once(tree: CgroupTree) -> None:
    memory = tree._ownership.hierarchy("memory")
    if memory is None or tree._ownership.version != "v1":
        not_here("no memory controller of version 1")
        return
    group = tree.create("nesting", CgroupLimits(256 << 20, 64, 1.0))
    nested = f"{memory.path}/nesting/made-by-an-engine"
    program = (
        "import mmap, sys\nsys.stdin.readline()\nblock = mmap.mmap(-1, 20 << 20)\nblock.write(b'f' * (20 << 20))\n"
        "print(flush=True)\nsys.stdin.read()"
    )
    os.mkdir(nested)
    try:
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            with open(f"{nested}/cgroup.procs", "w") as file:
                file.write(str(child.pid))
            assert (group.shared_bytes() or 0) < 1 << 20
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"\n"
            shared = group.shared_bytes()
        assert shared is not None
        assert shared >= 19 << 20
    finally:
        os.rmdir(nested)
        group.destroy()


def test_mounts_are_read_from_mountinfo_with_their_controllers_and_escapes() -> None:
    cpu, memory, unified = parse_mounts(HYBRID)
    assert cpu.controllers >= {"cpu", "cpuacct"}
    assert (memory.root, memory.point) == ("/docker/0a", "/sys/fs/cgroup/mem ory")
    assert (unified.kind, unified.point) == ("cgroup2", "/sys/fs/cgroup/unified")


def test_memberships_give_each_controller_its_path_even_with_colons() -> None:
    found = parse_memberships("5:cpu,cpuacct:/a:b\n1:name=systemd:/x\n0::/user.slice\n")
    assert found == {"cpu": "/a:b", "cpuacct": "/a:b", "name=systemd": "/x", "": "/user.slice"}


def test_own_directory_outside_of_what_is_mounted_is_not_believed() -> None:
    for mount in mounts():
        assert own_directory(mount, "/not/a/group/of/this/process") is None


def test_explain_names_every_controller_and_says_how_to_get_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups_v1, "mounts", tuple)
    monkeypatch.setattr(cgroups_v2, "mounts", tuple)
    text = CgroupTree.explain()
    assert all(f"{controller}: " in text for controller in ("memory", "pids", "cpu"))
    assert "how to get it" in text
    assert CgroupTree.open() is None


@pytest.mark.parametrize(
    ("memory", "pids", "cpus"), [(0, 1, 1.0), (1 << 20, 0, 1.0), (1 << 20, 1, 0.0), (1 << 20, 1, float("nan"))]
)
def test_limits_that_no_kernel_holds_are_refused(memory: int, pids: int, cpus: float) -> None:
    with pytest.raises(ConfinementError):
        CgroupLimits(memory, pids, cpus)


def test_version_2_writes_no_swap_and_a_quota_of_a_tenth_of_a_second() -> None:
    place = Place("/sys/fs/cgroup", frozenset({"memory", "pids", "cpu"}))
    plan = cgroups_v2.settings(place, 1 << 20, 5, 0.05, raised=False)
    assert [(setting.file, setting.value) for setting in plan] == [
        ("memory.max", "1048576"),
        ("memory.swap.max", "0"),
        ("pids.max", "5"),
        ("cpu.max", "5000 100000"),
    ]


def test_memory_and_swap_are_raised_in_the_other_order_than_lowered(tmp_path: os.PathLike[str]) -> None:
    place = Place(str(tmp_path), frozenset({"memory"}))
    with open(f"{place.base}/memory.memsw.limit_in_bytes", "w") as file:
        file.write("1")
    up, down = (cgroups_v1.settings(place, 1 << 20, 5, 1.0, raised=raised) for raised in (True, False))
    assert [setting.file for setting in up] == ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]
    assert up == down[::-1]


def test_this_process_is_alive_and_names_that_are_no_owners_are_not_judged() -> None:
    assert not is_dead(owner_name())
    assert not any(map(is_dead, ("", "1", "1-2", "x-1-2", "1-2-3-4", f"{2**80}-1-1")))
