# SPDX-License-Identifier: MIT
"""What control groups promise, as plain functions of a CgroupTree: run by pytest here, without it inside the VM."""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from agentbox.errors import ConfinementError
from agentbox.linux.cgroup_owners import owner_name
from agentbox.linux.cgroupfs import members, mounts
from agentbox.linux.cgroups import Cgroup, CgroupLimits, CgroupTree

MIB = 1 << 20
CLONE_NEWUSER = 0x10000000
LIMITS = CgroupLimits(memory_bytes=64 * MIB, pids=32, cpus=1.0)

_OWNER_PROGRAM = """
import subprocess, sys
from agentbox.linux.cgroups import CgroupLimits, CgroupTree
tree = CgroupTree.open()
group = tree.create("left", CgroupLimits(64 << 20, 32, 1.0))
def join():
    import os
    for fd in group.attach_fds():
        os.write(fd, b"0")
sleeper = subprocess.Popen(["sleep", "1000"], preexec_fn=join, stdout=subprocess.DEVNULL)
print(sleeper.pid, flush=True)
sys.stdin.read()
"""


def start(group: Cgroup, program: str, **options: int | None) -> subprocess.Popen[bytes]:
    """Start a Python program inside the group."""

    def join() -> None:
        for fd in group.attach_fds():
            os.write(fd, b"0")

    return subprocess.Popen([sys.executable, "-ISc", program], preexec_fn=join, **options)  # type: ignore[call-overload,no-any-return]


def directories(tree: CgroupTree, box_id: str) -> list[str]:
    """The directories that a box has or would have."""
    return [f"{hierarchy.path}/{box_id}" for hierarchy in tree._ownership.hierarchies]


def control_file(tree: CgroupTree, box_id: str, controller: str, name: str) -> str:
    hierarchy = tree._ownership.hierarchy(controller)
    assert hierarchy is not None
    with open(f"{hierarchy.path}/{box_id}/{name}") as file:
        return file.read()


def eventually(condition: Callable[[], bool]) -> bool:
    """Wait for something that must happen, half a minute at most (the emulated machine is slow)."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def all_controllers_are_usable(tree: CgroupTree) -> None:
    assert tree.controllers == {"memory", "pids", "cpu"}, CgroupTree.explain()


def memory_beyond_the_limit_is_killed_and_counted_by_the_kernel(tree: CgroupTree) -> None:
    group = tree.create("oom", LIMITS)
    try:
        assert group.oom_kills() == 0
        child = start(group, "b'x' * (200 << 20)")
        assert child.wait() == -signal.SIGKILL
        usage = group.usage()
        assert usage.oom_kills >= 1
        assert usage.oom_kills == group.oom_kills()
        assert usage.max_memory_bytes is not None
        assert 32 * MIB < usage.max_memory_bytes <= 64 * MIB
    finally:
        group.destroy()
    assert group.usage() == usage


def a_program_survives_its_child_being_killed_for_memory_and_the_kill_is_counted(tree: CgroupTree) -> None:
    group = tree.create("child", LIMITS)
    try:
        program = (
            "import os\npid = os.fork()\nif pid == 0:\n b'x' * (200 << 20)\n"
            "else:\n _, status = os.wait()\n raise SystemExit(7 if status == 9 else 1)"
        )
        assert start(group, program).wait() == 7
        assert group.oom_kills() >= 1
    finally:
        group.destroy()


def no_more_processes_than_the_limit_can_exist(tree: CgroupTree) -> None:
    group = tree.create("pids", CgroupLimits(64 * MIB, 8, 1.0))
    try:
        program = (
            "import os, signal\nmade = []\ntry:\n while len(made) < 100:\n  pid = os.fork()\n"
            "  if pid == 0:\n   signal.pause()\n  made.append(pid)\n"
            "except BlockingIOError:\n pass\nfor pid in made: os.kill(pid, 9)\nprint(len(made))"
        )
        child = start(group, program, stdout=subprocess.PIPE)
        assert child.communicate()[0] == b"7\n"
    finally:
        group.destroy()


def processor_time_is_cut_to_the_share(tree: CgroupTree) -> None:
    group = tree.create("cpu", CgroupLimits(64 * MIB, 8, 0.05))
    try:
        if tree.version == "v2":
            assert control_file(tree, "cpu", "cpu", "cpu.max") == "5000 100000\n"
        else:
            assert control_file(tree, "cpu", "cpu", "cpu.cfs_quota_us") == "5000\n"
            assert control_file(tree, "cpu", "cpu", "cpu.cfs_period_us") == "100000\n"
        assert start(group, "import time\nwhile time.process_time() < 0.05: pass").wait() == 0
        statistics = dict(line.split() for line in control_file(tree, "cpu", "cpu", "cpu.stat").splitlines())
        assert int(statistics["nr_throttled"]) > 0
    finally:
        group.destroy()


def used_processor_time_is_what_the_program_used(tree: CgroupTree) -> None:
    group = tree.create("usage", LIMITS)
    try:
        child = start(
            group, "import time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time())", stdout=-1
        )
        said = float(child.communicate()[0])
        counted = group.usage().cpu_ms
        assert counted is not None
        assert said * 1000 * 0.7 <= counted <= said * 1000 + 2000
        assert group.usage().oom_kills == 0
    finally:
        group.destroy()


def anonymous_memory_is_seen_without_files(tree: CgroupTree) -> None:
    group = tree.create("anon", CgroupLimits(256 * MIB, 8, 1.0))
    program = (
        "import os, sys\nfd = os.memfd_create('x')\nos.write(fd, b'f' * (1 << 20))\n"
        "for _ in range(39): os.write(fd, b'f' * (1 << 20))\n"
        "block = b'x' * (20 << 20)\nprint(flush=True)\nsys.stdin.read()"
    )
    try:
        assert group.anon_bytes() == 0
        child = start(group, program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        assert eventually(lambda: 20 * MIB <= (group.anon_bytes() or 0) < 40 * MIB), group.anon_bytes()
        child.communicate()
        peak = group.usage().max_memory_bytes
        assert peak is not None
        assert peak >= 55 * MIB
    finally:
        group.destroy()
    assert group.anon_bytes() is None


def a_fork_bomb_is_killed_to_the_last_process(tree: CgroupTree) -> None:
    group = tree.create("bomb", CgroupLimits(64 * MIB, 24, 1.0))
    try:
        program = (
            "import os\nos.setsid()\nprint(flush=True)\n"
            "while True:\n try:\n  if os.fork() and os.fork(): os._exit(0)\n except BlockingIOError: pass"
        )
        child = start(group, program, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"
        group.kill()
        assert eventually(lambda: not any(members(path) for path in directories(tree, "bomb")))
        child.wait()
        child.stdout.close()
        assert start(group, "pass").wait() == 0, "a box that was emptied can be used again"
    finally:
        group.destroy()
    assert not any(map(os.path.exists, directories(tree, "bomb")))


def destroying_kills_removes_and_closes_and_may_be_repeated(tree: CgroupTree) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    group = tree.create("gone", LIMITS)
    child = start(group, "import signal; signal.pause()")
    group.anon_bytes()
    group.destroy()
    group.destroy()
    group.kill()
    assert child.wait() == -signal.SIGKILL
    assert not any(map(os.path.exists, directories(tree, "gone")))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert group.attach_fds() == ()


def limits_of_a_living_box_can_be_raised_and_lowered(tree: CgroupTree) -> None:
    group = tree.create("live", LIMITS)
    memory, pids = ("memory.max", "pids.max") if tree.version == "v2" else ("memory.limit_in_bytes", "pids.max")
    try:
        for mib, count in ((128, 64), (32, 5)):
            group.set_limits(CgroupLimits(mib * MIB + 1, count, 0.5))
            assert int(control_file(tree, "live", "memory", memory)) == mib * MIB
            assert int(control_file(tree, "live", "pids", pids)) == count
    finally:
        group.destroy()


def a_limit_that_the_kernel_refuses_is_an_error_and_leaves_nothing(tree: CgroupTree) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    _refused(tree, "refused", CgroupLimits(64 * MIB, 10**12, 1.0))
    assert not any(map(os.path.exists, directories(tree, "refused")))
    assert sorted(os.listdir("/proc/self/fd")) == before


def odd_names_are_refused(tree: CgroupTree) -> None:
    for name in ("", ".", "..", "a/b", "../x", "-x", "a b", "a\n", "a\0b", "é", "x" * 65, "cgroup.procs"):
        _refused(tree, name, LIMITS)


def a_name_in_use_is_refused_and_its_box_stays(tree: CgroupTree) -> None:
    group = tree.create("twice", LIMITS)
    try:
        _refused(tree, "twice", LIMITS)
        assert all(map(os.path.exists, directories(tree, "twice")))
        assert start(group, "pass").wait() == 0
    finally:
        group.destroy()


def what_a_killed_owner_left_is_swept_and_a_living_owner_is_not_touched(tree: CgroupTree) -> None:
    group = tree.create("alive", LIMITS)
    mine = start(group, "import signal; signal.pause()")
    owner = subprocess.Popen([sys.executable, "-c", _OWNER_PROGRAM], stdin=-1, stdout=-1)
    assert owner.stdout is not None
    try:
        sleeper = int(owner.stdout.readline())
        left = _groups_of(owner.pid)
        assert left
        CgroupTree.sweep()
        assert not is_gone(sleeper), "the second owner lives: nothing of it may be swept"
        owner.kill()
        # Not reaped yet: a zombie owner is as dead as one that is gone.
        assert eventually(lambda: is_gone(owner.pid))
        _sweep_one_box()
        assert eventually(lambda: is_gone(sleeper))
        assert eventually(lambda: not any(map(os.path.exists, left)))
        assert mine.poll() is None
        assert all(map(os.path.exists, directories(tree, "alive")))
    finally:
        owner.kill()
        owner.communicate()
        group.destroy()
        mine.wait()


def a_second_owner_that_ends_leaves_the_first_one_working(tree: CgroupTree) -> None:
    program = "from agentbox.linux.cgroups import CgroupTree\ntree = CgroupTree.open()\nassert tree\ntree.close()"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    group = tree.create("first", LIMITS)
    group.destroy()


def a_reused_pid_does_not_protect_and_another_pid_namespace_does(tree: CgroupTree) -> None:
    pid, started, namespace = owner_name().split("-")
    hierarchy = tree._ownership.hierarchies[0]
    parent = os.path.dirname(hierarchy.path)
    reused, foreign = f"{parent}/{pid}-{int(started) + 1}-{namespace}", f"{parent}/1-1-{int(namespace) + 1}"
    for path in (reused, foreign):
        os.makedirs(f"{path}/box")
    try:
        _sweep_one_box()
        assert eventually(lambda: not os.path.exists(reused))
        assert os.path.exists(f"{foreign}/box")
    finally:
        os.rmdir(f"{foreign}/box")
        os.rmdir(foreign)


def a_child_joins_after_it_gave_up_its_rights(tree: CgroupTree) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    group = tree.create("dropped", LIMITS)

    def drop_and_join() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        if libc.unshare(CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for fd in group.attach_fds():
            os.write(fd, b"0")

    try:
        child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, preexec_fn=drop_and_join)
        assert all(members(path) == [child.pid] for path in directories(tree, "dropped"))
        child.communicate()
    finally:
        group.destroy()


def many_boxes_made_at_once_are_all_removed(tree: CgroupTree) -> None:
    def live(number: int) -> bool:
        group = tree.create(f"many{number}", LIMITS)
        with open(os.devnull) as null:
            child = subprocess.Popen(["/bin/sleep", "1000"], stdin=null)
        try:
            for fd in _procs_descriptors(tree, f"many{number}"):
                os.write(fd, str(child.pid).encode())
                os.close(fd)
        finally:
            group.destroy()
        return child.wait() == -signal.SIGKILL

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(live, range(24)))
    assert not any(os.path.exists(path) for number in range(24) for path in directories(tree, f"many{number}"))


CLAIMS: tuple[Callable[[CgroupTree], None], ...] = (
    all_controllers_are_usable,
    memory_beyond_the_limit_is_killed_and_counted_by_the_kernel,
    a_program_survives_its_child_being_killed_for_memory_and_the_kill_is_counted,
    no_more_processes_than_the_limit_can_exist,
    processor_time_is_cut_to_the_share,
    used_processor_time_is_what_the_program_used,
    anonymous_memory_is_seen_without_files,
    a_fork_bomb_is_killed_to_the_last_process,
    destroying_kills_removes_and_closes_and_may_be_repeated,
    limits_of_a_living_box_can_be_raised_and_lowered,
    a_limit_that_the_kernel_refuses_is_an_error_and_leaves_nothing,
    odd_names_are_refused,
    a_name_in_use_is_refused_and_its_box_stays,
    a_child_joins_after_it_gave_up_its_rights,
    many_boxes_made_at_once_are_all_removed,
    what_a_killed_owner_left_is_swept_and_a_living_owner_is_not_touched,
    a_second_owner_that_ends_leaves_the_first_one_working,
    a_reused_pid_does_not_protect_and_another_pid_namespace_does,
)


def _sweep_one_box() -> None:
    swept = CgroupTree.sweep()
    # On a shared host another owner may start, and sweep, at the same moment.
    if "AGENTBOX_TEST_IN_VM" in os.environ:
        assert swept == 1


def _procs_descriptors(tree: CgroupTree, box_id: str) -> list[int]:
    return [os.open(f"{path}/cgroup.procs", os.O_WRONLY) for path in directories(tree, box_id)]


def _groups_of(pid: int) -> list[str]:
    found = []
    for mount in mounts():
        for path, names, _ in os.walk(mount.point):
            if os.path.basename(path) == "agentbox":
                found += [f"{path}/{name}" for name in names if name.startswith(f"{pid}-")]
    return found


def _refused(tree: CgroupTree, name: str, limits: CgroupLimits) -> None:
    error: ConfinementError | None = None
    try:
        tree.create(name, limits)
    except ConfinementError as raised:
        error = raised
    assert error is not None, f"{name!r} was not refused"
    assert error.hint
