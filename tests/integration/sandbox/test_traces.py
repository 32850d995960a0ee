# SPDX-License-Identifier: MIT
"""What a sandbox's trace tells, where it lies, and what is left of it when its owner is killed."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbox import Sandbox
from agentbox.errors import SandboxError, SandboxGoneError
from agentbox.sandbox.loops import call
from agentbox.trace.reader import read
from agentbox.trace.record import Entry
from tests.conftest import not_here
from tests.integration.commands import agentbox
from tests.integration.sandbox.conftest import MakeSandbox


def records(sandbox: Sandbox) -> list[Entry]:
    """What is recorded so far."""
    call(sandbox.asynchronous.core.recording.settled())  # type: ignore[attr-defined]
    assert sandbox.trace is not None
    return entries(sandbox.trace)


def entries(path: str | Path) -> list[Entry]:
    return [entry for entry in read(path) if isinstance(entry, Entry)]


def last(found: list[Entry], op: str) -> dict[str, Any]:
    """Arguments of the last record of that operation."""
    return next(entry.args for entry in reversed(found) if entry.op == op)


def test_a_command_is_recorded_before_it_runs_and_when_it_has_ended(sandbox: Sandbox) -> None:
    sandbox.exec("echo told; echo apart >&2; exit 3", env={"NAMED": "value"}, cwd="/tmp", merged=False)
    found = records(sandbox)
    start, end = last(found, "command.start"), last(found, "command.end")
    assert start == {
        "command": end["command"],
        "argv": ["bash", "-c", "echo told; echo apart >&2; exit 3"],
        "cwd": "/tmp",
        "env": ["NAMED"],
    }
    assert end["exit_code"] == 3
    assert (end["stdout_bytes"], end["stdout_sha256"]) == (5, hashlib.sha256(b"told\n").hexdigest())
    assert (end["stderr_bytes"], end["stderr_sha256"]) == (6, hashlib.sha256(b"apart\n").hexdigest())
    assert end["cpu_us"] >= 0
    assert {entry.op: entry.origin for entry in found if entry.op.startswith("command.")} == {
        **{entry.op: "guest" for entry in found if entry.op in ("command.end", "command.output", "command.failed")},
        **{
            entry.op: "supervisor" for entry in found if entry.op in ("command.start", "command.kill", "command.signal")
        },
    }


def test_kills_files_and_tools_are_recorded(sandbox: Sandbox) -> None:
    running = sandbox.exec(["sleep", "60"], wait=0)
    running.kill()
    sandbox.files.write("traced/file", b"content")
    assert sandbox.files.read("traced/file") == b"content"
    with pytest.raises(FileNotFoundError):
        sandbox.files.read("traced/none")
    with pytest.raises(FileNotFoundError):
        sandbox.exec(["no-such-program"])
    sandbox.dispatch("shell_exec", {"command": "true"})
    found = records(sandbox)
    kill = last(found, "command.kill")
    assert kill["left"] == 0
    [end] = [entry for entry in found if entry.op == "command.end" and entry.args["command"] == kill["command"]]
    assert end.args["signal"] == signal.SIGTERM
    facts = {"path": "/work/traced/file", "bytes": 7, "sha256": hashlib.sha256(b"content").hexdigest()}
    assert last(found, "file.write") == {**facts, "how": "replace"}
    reads = [entry.args for entry in found if entry.op == "file.read"]
    assert reads[-2] == facts
    assert reads[-1]["errno"] == 2
    assert last(found, "command.failed")["errno"] == 2
    assert last(found, "tool.call") == {"tool": "shell_exec", "characters": len("exit=0\noutput:\n")}


def test_what_is_left_running_is_told_when_it_has_ended(jailed: Sandbox) -> None:
    done = jailed.exec("(until [ -e go ]; do sleep 0.02; done; echo later) & echo now")
    jailed.files.write("go", "")
    assert call(done.asynchronous.wait_closed(20))
    found = records(jailed)
    end = last(found, "command.end")
    assert end["stdout_bytes"] == len("now\n")
    assert last(found, "command.output")["stdout_bytes"] == len("now\nlater\n")


def test_a_trace_that_was_asked_for_is_kept_and_verifies(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    sandbox = make_sandbox(
        "jail", trace=str(path), policy="net: allowed.test:80\nlimits: pids=64\n", env={"KEY": "s3cret"}
    )
    sandbox.exec(["python3", "-c", "import socket; socket.getaddrinfo('other.test', 80)"])
    sandbox.reset()
    sandbox.stop()
    found = entries(path)
    ops = [entry.op for entry in found]
    assert ops[0] == "run.start"
    assert ops[-3:] == ["sandbox.end", "run.end", "trace.seal"]
    assert ops.count("sandbox.start") == 2
    assert "sandbox.reset" in ops
    start = next(entry.args for entry in found if entry.op == "sandbox.start")
    assert start["limits"]["pids"] == 64
    assert start["enforcement"]["network"] == "gateway"
    assert "KEY" in start["env"]
    assert b"s3cret" not in path.read_bytes()
    [denied, *_] = [entry for entry in found if entry.kind == "deny"]
    assert (denied.origin, denied.args["target"]) == ("gateway", "other.test")
    assert sandbox.denials[0].trace_index == denied.i
    state = Path(sandbox.asynchronous.core._settings.resolved_state_dir())  # type: ignore[attr-defined]
    done = agentbox("verify", "-t", str(path), environment={"AGENTBOX_STATE_DIR": str(state)})
    assert (done.exit_code, done.stdout.startswith("agentbox: trace ok")) == (0, True), done


def test_what_was_written_to_a_kept_workspace_that_runs_later_is_told(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / ".git" / "hooks").mkdir(parents=True)
    with make_sandbox("jail", workspace=str(work), trace=str(tmp_path / "trace.jsonl")) as sandbox:
        sandbox.exec("echo evil > .git/hooks/post-checkout; echo fine > notes.txt")
    found = [entry.args["path"] for entry in entries(tmp_path / "trace.jsonl") if entry.op == "fs.startup_file"]
    assert found == ["/work/.git/hooks/post-checkout"]


def test_a_trace_that_nobody_asked_for_goes_with_its_sandbox(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox("jail")
    path = sandbox.trace
    assert path is not None
    assert Path(path).is_file()
    sandbox.stop()
    assert not Path(path).exists()
    with make_sandbox("jail", trace=False) as silent:
        assert silent.trace is None
        assert silent.exec("echo 1").stdout == b"1\n"


OWNER = """
import sys
from agentbox import Sandbox

sandbox = Sandbox(backend="jail", workspace="kept-by-name")
sandbox.start()
sandbox.exec("echo before")
sandbox.asynchronous.core.recording.log.settled().result()
print(sandbox.trace, flush=True)
sys.stdin.read()
"""


def test_of_a_killed_owner_the_trace_is_left_without_an_end_and_verify_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "AGENTBOX_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        path = owner.stdout.readline().strip()
        owner.kill()
    # Whoever starts next sweeps what dead owners left, traces of kept workspaces not.
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as successor:
        assert successor.stdout is not None
        other = successor.stdout.readline().strip()
        successor.communicate("")
    assert path != other
    assert [entry.args.get("argv") for entry in entries(path) if entry.op == "command.start"]
    done = agentbox("verify", "-t", path, environment={"AGENTBOX_STATE_DIR": str(tmp_path)})
    assert done.exit_code == 5, done
    assert "INCOMPLETE" in done.stdout + done.stderr


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for little."""
    if os.geteuid() != 0:
        not_here("only root mounts file systems")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_sandbox_does_not_go_on_when_nothing_more_can_be_recorded(make_sandbox: MakeSandbox, small: Path) -> None:
    sandbox = make_sandbox("jail", trace=str(small / "trace.jsonl"))
    with pytest.raises(SandboxGoneError, match="nothing more can be recorded"):
        _until_it_is_gone(sandbox)
    sandbox.stop()


def _until_it_is_gone(sandbox: Sandbox) -> None:
    for _ in range(200):
        try:
            sandbox.exec(["true", "x" * 3000])
        except SandboxGoneError:
            raise
        except SandboxError:
            # Its box is ended under it.
            continue
