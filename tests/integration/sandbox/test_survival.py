# SPDX-License-Identifier: MIT
"""A sandbox outlives what runs in it, and goes with its owner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentbox import AsyncSandbox, Sandbox, SandboxError
from agentbox.config import load
from agentbox.errors import SandboxGoneError
from agentbox.isolation import durable_registry
from agentbox.sandbox.collecting import collect
from agentbox.workspace.volumes import close_volumes, open_volumes
from tests.integration.sandbox.conftest import MakeSandbox

OWNER = """
import sys
from agentbox import Sandbox
sandbox = Sandbox(backend=sys.argv[1], workspace=sys.argv[2] or None)
sandbox.start()
sandbox.shell_exec("echo work > kept; sleep 1000 & sleep 0.1")
print(sandbox.container_id, sandbox.workspace, flush=True)
sys.stdin.read()
"""

FILL = """
import os, time
for _ in range(200):
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        break
os._exit(0)
"""


@pytest.mark.parametrize("deed", ["kill -9 1", "kill -9 -1", "kill -9 1; kill -TERM 1; kill -9 -1"])
def test_the_next_command_works_or_says_that_the_sandbox_is_gone(sandbox: Sandbox, deed: str) -> None:
    sandbox.exec("echo work > kept")
    sandbox.shell_exec(deed, 20)
    answer = sandbox.shell_exec("echo $((40+2))")
    if answer != "exit=0\noutput:\n42\n":
        assert answer.startswith("ERROR: sandbox is gone")
        with pytest.raises(SandboxGoneError):
            sandbox.exec("true")
        sandbox.reset()
    assert sandbox.exec("cat kept").stdout == b"work\n"


def test_reset_makes_the_box_anew_around_the_same_work(sandbox: Sandbox) -> None:
    sandbox.exec("echo work > kept; echo scratch > /tmp/scratch")
    sandbox.shell_exec("sleep 1000", timeout=0)
    sandbox.reset()
    assert sandbox.shell_wait() == "ERROR: no command is currently running"
    assert sandbox.exec("cat kept; cat /tmp/scratch 2>&1 | head -c 3").stdout == b"work\ncat"


def test_a_box_without_processes_says_what_is_wrong_and_can_be_freed(make_sandbox: MakeSandbox) -> None:
    with make_sandbox("jail", pids_limit=32, memory="256m") as sandbox:
        # Not by the shell, which waits and tries again.
        sandbox.files.write("fill.py", FILL)
        assert sandbox.shell_exec("python3 fill.py").startswith("exit=0")
        answer = sandbox.shell_exec("echo hello")
        assert answer.startswith("ERROR: the command cannot be started: every process")
        assert sandbox.shell_kill().startswith("killed (exit=137)")
        assert sandbox.shell_exec("echo hello") == "exit=0\noutput:\nhello\n"


def test_a_fork_bomb_is_killed_to_the_last_process(make_sandbox: MakeSandbox) -> None:
    with make_sandbox("jail", pids_limit=48, memory="256m") as sandbox:
        bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
        assert sandbox.shell_exec(f"python3 -c '{bomb}'", 1).startswith("still running")
        assert sandbox.shell("kill", 0.2).render().startswith("killed")
        assert sandbox.shell_exec("echo hello") == "exit=0\noutput:\nhello\n"


def test_a_box_that_is_gone_is_an_error_and_its_work_can_be_fetched(make_sandbox: MakeSandbox, place: Path) -> None:
    with make_sandbox("jail", idle_timeout=0.2) as sandbox:
        sandbox.files.write("kept", "work")
        sandbox.exec("sleep 0.6")
        _expired(sandbox)
        assert sandbox.shell_exec("true").startswith("ERROR: sandbox is gone: it was idle for 0.2 s")
        with pytest.raises(SandboxGoneError, match="idle"):
            sandbox.files.read("kept")
        assert sandbox.fetch_workspace(place).files == 1
        sandbox.reset()
        assert sandbox.files.read("kept") == b"work"


def _expired(sandbox: Sandbox) -> None:
    async def expired() -> None:
        async with asyncio.timeout(20):
            while sandbox.asynchronous.core._box is not None:
                await asyncio.sleep(0.02)

    from agentbox.sandbox.loops import call

    call(expired())


def test_a_lifetime_ends_also_what_runs(make_sandbox: MakeSandbox) -> None:
    with make_sandbox("jail", max_lifetime=0.5) as sandbox:
        command = sandbox.exec("sleep 1000")
        assert command.lost
        _expired(sandbox)
        with pytest.raises(SandboxGoneError, match="its lifetime"):
            sandbox.exec("true")


async def test_many_sandboxes_live_in_one_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBOX_STATE_DIR", str(tmp_path))
    async with AsyncSandbox(backend="jail") as one, AsyncSandbox(backend="jail", env={"NAME": "two"}) as two:
        done = await asyncio.gather(one.exec("echo ${NAME-one}"), two.exec("echo $NAME"))
        assert [command.text().text for command in done] == ["one\n", "two\n"]
        assert one.workspace != two.workspace
    assert not one.running
    assert list((tmp_path / "sandboxes").iterdir()) == []


def test_a_box_dies_with_its_owner_and_a_named_workspace_stays(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTBOX_STATE_DIR", str(tmp_path))
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, backend, "named"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    name, workspace = owner.stdout.readline().split()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    settings, _ = load()
    assert any(name in one.what for one in asyncio.run(collect(settings, remove=False)))
    assert not [one for one in asyncio.run(collect(settings, remove=True)) if one.problem]
    assert not [one for one in asyncio.run(collect(settings, remove=False)) if name in one.what]
    open_volumes(tmp_path, settings.workspace_volumes, 0)
    try:
        assert Path(workspace, "kept").read_text() == "work\n"
    finally:
        close_volumes(tmp_path)
    assert list((tmp_path / "sandboxes").iterdir()) == []


def test_the_command_line_tells_what_was_left_and_removes_it(tmp_path: Path) -> None:
    left = tmp_path / "sandboxes" / f"{2**22 + 1}-1-{os.stat('/proc/self/ns/pid').st_ino}" / "agentbox-left"
    left.mkdir(parents=True)

    settings, _ = load({"AGENTBOX_STATE_DIR": str(tmp_path)})
    assert "agentbox-left" in str(asyncio.run(collect(settings, remove=False)))
    assert left.exists()
    done = subprocess.run(
        [sys.executable, "-m", "agentbox.cli.main", "gc", "--json"],
        env={**os.environ, "AGENTBOX_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "agentbox-left" in str(json.loads(done.stdout)["found"])
    assert not left.exists()


def test_a_kept_workspace_is_found_again(make_sandbox: MakeSandbox) -> None:
    with make_sandbox("jail", workspace="again") as first:
        first.files.write("file", "work")
    with make_sandbox("jail", workspace="again") as second:
        assert second.files.read("file") == b"work"


def test_root_of_the_box_is_root_there_alone(make_sandbox: MakeSandbox) -> None:
    with make_sandbox("jail", user="root") as sandbox:
        assert sandbox.exec("id -u; touch /work/file; cat /proc/sys/kernel/core_pattern > /dev/null").stdout == b"0\n"
        assert sandbox.exec("echo x > /proc/sys/kernel/core_pattern").exit_code != 0
        assert os.stat(f"{sandbox.workspace}/file").st_uid == os.geteuid()


def test_a_backend_that_is_not_there_is_an_error_that_names_the_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTBOX_STATE_DIR", str(tmp_path))
    with pytest.raises(SandboxError, match="no backend 'jial'") as caught:
        Sandbox(backend="jial").start()
    assert "jail" in caught.value.hint
    monkeypatch.setattr(durable_registry, "PREFERRED", ("docker-runsc",))
    monkeypatch.setenv("AGENTBOX_DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    async def start() -> None:
        await AsyncSandbox().start()

    with pytest.raises(SandboxError, match="kernel of its own") as caught:
        asyncio.run(start())
    assert "jail" in caught.value.hint
