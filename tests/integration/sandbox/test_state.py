# SPDX-License-Identifier: MIT
"""Pause, snapshots, restores and forks of sandboxes, on every backend."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentbox import Sandbox
from agentbox.errors import NotFoundError, SandboxError, SandboxPausedError
from agentbox.models import Layer
from agentbox.workspace import volume_image
from tests.integration.sandbox.conftest import MakeSandbox
from tests.running_server import RunningServer
from tests.state_cycles import Cycles, tree_of

COUNTING = "i=0; while :; do i=$((i+1)); echo $i > counter; done"
SUBVOLUMES = """
import fcntl, os, struct
here = os.open("/work", os.O_RDONLY)
for command, value in ((14, struct.pack("=q", 0) + b"sub".ljust(4088, b"\\0")),
                       (24, struct.pack("=qQQ32x", 0, 0, 0) + b"sub".ljust(4040, b"\\0"))):
    try:
        fcntl.ioctl(here, 1 << 30 | 4096 << 16 | 0x9400 | command, bytearray(value))
        print("made")
    except OSError as error:
        print(error.errno)
"""
# The case SNP-15: a tree that changes all the while.
RACE = """
import os, random, time
end = time.monotonic() + 20
os.makedirs("snp15", exist_ok=True)
n = 0
while time.monotonic() < end:
    p = "snp15/f%d" % random.randrange(20); n += 1
    try:
        k = n % 4
        if k == 0: open(p, "ab").write(os.urandom(70000))
        elif k == 1: open(p, "wb").close()
        elif k == 2: os.rename(p, p + "r")
        else: os.unlink(p)
    except OSError:
        pass
"""


def test_paused_box_stands_still_and_what_it_was_doing_goes_on(sandbox: Sandbox) -> None:
    running = sandbox.exec(COUNTING, wait=0)
    counter = Path(str(sandbox.workspace), "counter")
    while not counter.exists() or not counter.read_text():
        pass
    sandbox.pause()
    try:
        assert sandbox.paused
        before = counter.read_text()
        with pytest.raises(SandboxPausedError, match="paused"):
            sandbox.exec("true")
        assert sandbox.shell_exec("true").startswith("ERROR: the sandbox is paused")
        sandbox.pause()
        assert counter.read_text() == before
    finally:
        sandbox.resume()
    while counter.read_text() in ("", before):
        pass
    assert running.running
    assert running.kill() == 0
    sandbox.exec("rm counter")


def test_workspace_is_restored_and_forked_as_it_was_at_one_moment(sandbox: Sandbox) -> None:
    sandbox.exec("mkdir -p kept; echo one > kept/file; ln -s /etc/passwd kept/link; chmod 640 kept/file")
    before = tree_of(str(sandbox.workspace))
    taken = sandbox.snapshot("as it was")
    sandbox.exec("rm -rf kept; echo two > other")
    (fork,) = sandbox.fork()
    try:
        assert tree_of(str(fork.workspace)) == tree_of(str(sandbox.workspace))
        fork.restore(taken.snapshot_id)
        assert fork.exec("cat kept/file; echo x >> kept/file && stat -c %a kept/file").stdout == b"one\n640\n"
        assert not Path(str(sandbox.workspace), "kept").exists()
    finally:
        fork.stop()
    running = sandbox.exec("sleep 1000", wait=0)
    sandbox.restore(taken.snapshot_id)
    assert running.wait(60)
    assert tree_of(str(sandbox.workspace)) == before
    assert [info.snapshot_id for info in sandbox.snapshots()] == [taken.snapshot_id]
    sandbox.delete_snapshot(taken.snapshot_id)
    with pytest.raises(NotFoundError):
        sandbox.restore(taken.snapshot_id)
    assert tree_of(str(sandbox.workspace)) == before
    sandbox.exec("rm -rf kept other")


def test_what_is_in_a_box_can_make_no_subvolume_which_no_limit_would_hold(sandbox: Sandbox) -> None:
    made = sandbox.exec(["python3", "-c", SUBVOLUMES])
    assert made.stdout.split() == [b"25", b"25"]


@pytest.fixture
def held(make_sandbox: MakeSandbox) -> Iterator[Sandbox]:
    """A jail with little disk."""
    if volume_image.why_not():
        pytest.skip(volume_image.why_not())
    made = make_sandbox("jail", disk="16m")
    yield made
    made.stop()


def test_full_workspace_is_the_boxs_own_trouble_and_can_be_emptied(held: Sandbox, jailed: Sandbox) -> None:
    assert held.enforcement.disk is Layer.KERNEL
    full = held.exec("head -c 100000000 /dev/zero > big")
    assert full.exit_code != 0
    assert b"quota" in full.stdout
    assert held.exec("echo still here && rm big && echo x > small && cat small").stdout == b"still here\nx\n"
    assert jailed.exec("head -c 30000000 /dev/zero > fine && rm fine").exit_code == 0


def test_directory_of_the_host_is_copied_but_never_replaced(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "file").write_text("mine")
    made = make_sandbox("jail", workspace=str(project))
    try:
        assert made.enforcement.disk is Layer.NONE
        taken = made.snapshot(keep=True)
        with pytest.raises(SandboxError, match="directory of the host"):
            made.restore(taken.snapshot_id)
        other = make_sandbox("jail", snapshot=taken.snapshot_id)
        assert other.files.read_text("file") == "mine"
        other.files.write("file", "other")
        other.stop()
        assert (project / "file").read_text() == "mine"
        made.delete_snapshot(taken.snapshot_id)
    finally:
        made.stop()


def test_unknown_snapshot_begins_no_sandbox(make_sandbox: MakeSandbox) -> None:
    with pytest.raises(NotFoundError):
        make_sandbox("jail", snapshot="0" * 32)


def test_cycles_of_every_state_lose_nothing(make_sandbox: MakeSandbox) -> None:
    cycles = Cycles(lambda **how: make_sandbox("jail", **how), seed=8)
    cycles.run(20)
    assert set(cycles.done) == {"pause", "restart", "fork", "snapshot", "restore", "begin_with_snapshot"}


def test_cycles_without_an_image_lose_nothing(
    make_sandbox: MakeSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTBOX_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("AGENTBOX_WORKSPACE_VOLUMES", "directories")

    def make(**how: object) -> Sandbox:
        made = Sandbox(backend="jail", **how)  # type: ignore[arg-type]
        made.start()
        assert made.enforcement.disk is Layer.NONE
        return made

    Cycles(make, seed=9).run(6)


def test_snapshots_of_a_tree_that_changes_are_whole_and_serve_runs_as_those_of_runs_serve_sandboxes(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    monkeypatch.setenv("AGENTBOX_STATE_DIR", str(server.state_dir))
    with Sandbox(backend="jail") as sandbox, server.client() as client:
        racing = sandbox.exec(["python3", "-c", RACE], wait=0)
        while not Path(str(sandbox.workspace), "snp15").is_dir():
            time.sleep(0)
        for _ in range(2):
            taken = sandbox.snapshot("racing")
            (fork,) = sandbox.fork()
            fork.restore(taken.snapshot_id)
            here = {name: len(fork.files.read(f"snp15/{name}")) for name in os.listdir(f"{fork.workspace}/snp15")}
            code = "import os, json; print(json.dumps({n: os.path.getsize('snp15/' + n) for n in os.listdir('snp15')}))"
            answer = client.post("/v1/run", json={"code": code, "snapshot_id": taken.snapshot_id})
            assert answer.status_code == 200, answer.text
            assert answer.json()["stdout"].strip() not in ("", "{}")
            assert {str(name): int(size) for name, size in json.loads(answer.json()["stdout"]).items()} == here
            fork.stop()
        racing.kill()
        made = client.post("/v1/run", json={"code": "open('by-a-run', 'w').write('x')", "snapshot": True})
        with Sandbox(backend="jail", snapshot=made.json()["snapshot_id"]) as begun:
            assert begun.exec("cat by-a-run; echo y >> by-a-run && cat by-a-run").stdout == b"xxy\n"
