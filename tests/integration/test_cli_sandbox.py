# SPDX-License-Identifier: MIT
"""`agentbox sandbox`: boxes of a real server, from the command line."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentbox.cli import main
from agentbox.cli.sandbox_copy import Bar
from agentbox.cli.server_options import amount
from tests.integration.commands import Finished, assert_is_told_what_to_do
from tests.integration.test_cli_run_terminal import Typist
from tests.running_server import RunningServer, clean_environment

KEY = "key-of-the-command-line"


@dataclass(frozen=True)
class Desk:
    """Where somebody works with a server. `id` is a box that is there."""

    server: RunningServer
    directory: Path
    id: str = ""

    def environ(self, more: dict[str, str] | None = None) -> dict[str, str]:
        return clean_environment({"AGENTBOX_URL": self.server.url, "AGENTBOX_TOKEN": KEY, **(more or {})})

    def sandbox(self, *arguments: str) -> Finished:
        """Run `agentbox sandbox`, in this process: starting one for each would take longer than all else."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("AGENTBOX_URL", "AGENTBOX_TOKEN"):
                patch.setenv(name, self.environ()[name])
            patch.chdir(self.directory)
            patch.setattr(sys, "argv", ["agentbox", "sandbox", *arguments])
            return _caught(lambda: main._guarded(main._run_command))

    def well(self, *arguments: str) -> str:
        """What it printed; it must end with 0."""
        done = self.sandbox(*arguments)
        assert done.exit_code == 0, done
        return done.stdout


def _caught(work: Callable[[], int]) -> Finished:
    """What `work` writes to the descriptors 1 and 2, and the exit code that it gives."""
    kept = [os.dup(fd) for fd in (1, 2)]
    files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
    try:
        for fd, file in zip((1, 2), files, strict=True):
            os.dup2(file.fileno(), fd)
        with pytest.MonkeyPatch.context() as patch:
            for fd, name in ((1, "stdout"), (2, "stderr")):
                patch.setattr(sys, name, open(fd, "w", buffering=1, closefd=False))  # noqa: SIM115
            code = work()
            sys.stdout.flush()
    finally:
        for fd, old in zip((1, 2), kept, strict=True):
            os.dup2(old, fd)
            os.close(old)
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read().decode())
        file.close()
    return Finished(code, *texts)


@pytest.fixture(scope="module")
def desk(start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    found = Desk(start_server(AGENTBOX_TOKEN=KEY), tmp_path_factory.mktemp("desk"))
    number = found.well("create", "--backend", "jail", "--memory", "512m", "--env", "NAME=box").strip()
    yield Desk(found.server, found.directory, number)
    assert found.well("rm", number) == f"{number}\n"
    assert number not in found.well("ls", "--json")


def test_a_box_is_listed_with_what_it_is(desk: Desk) -> None:
    title, *rows = desk.well("ls").splitlines()
    assert title.split() == ["ID", "STATUS", "BACKEND", "IMAGE", "WORKSPACE", "AGE", "UNUSED"]
    assert next(row for row in rows if desk.id in row).split()[:3] == [desk.id, "running", "jail"]
    assert desk.id in desk.well("ls", "-q").split()


def test_exec_gives_streams_exit_code_and_signal_of_a_command(desk: Desk) -> None:
    done = desk.sandbox("exec", desk.id, "echo $NAME; echo err >&2; exit 5")
    assert (done.stdout, done.stderr, done.exit_code) == ("box\n", "err\n", 5)
    done = desk.sandbox(
        "exec", "--cwd", "/tmp", "--env", "A=b c", desk.id, "--", "sh", "-c", 'pwd; echo "$A"; kill -9 $$'
    )
    assert (done.stdout, done.exit_code) == ("/tmp\nb c\n", 137)
    missing = desk.sandbox("exec", desk.id, "--", "no-such-program", "-x")
    assert missing.exit_code == 127
    assert missing.stderr == "agentbox: no-such-program: No such file or directory\n"
    told = json.loads(desk.well("exec", "--json", desk.id, "printf 'a\\377'; echo e >&2"))
    assert (told["exit_code"], told["stderr"], told["stdout_b64"]) == (0, "e\n", "Yf8=")


def test_exec_passes_its_input_on(desk: Desk) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentbox.cli.main", "sandbox", "exec", "-i", desk.id, "--", "sha256sum"],
        input=b"x" * 500_000,
        env=desk.environ(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.decode().split()[0] == hashlib.sha256(b"x" * 500_000).hexdigest()


def test_a_detached_command_is_listed_followed_and_ended(desk: Desk) -> None:
    number = desk.well("exec", "-d", desk.id, "echo begun; exec sleep 1000").strip()
    assert number.startswith("cmd-")
    row = next(one for one in desk.well("ps", desk.id).splitlines() if number in one)
    assert "running" in row
    assert row.endswith("echo begun; exec sleep 1000")
    deadline = time.monotonic() + 60
    while not (said := desk.well("logs", desk.id, number)):
        assert time.monotonic() < deadline
    assert said == "begun\n"
    desk.well("kill", "--grace", "0", desk.id, number)
    ended = next(one for one in json.loads(desk.well("ps", "--json", desk.id)) if one["id"] == number)
    assert (ended["running"], ended["exit_code"]) == (False, 137)
    assert desk.well("logs", "-f", desk.id, number) == "begun\n"


def test_copies_go_both_ways_as_cp_has_it(desk: Desk) -> None:
    tree = desk.directory / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").write_text("in\n")
    (tree / "tool").write_text("#!/bin/sh\necho ran\n")
    (tree / "tool").chmod(0o755)
    desk.well("cp", "tree", f"{desk.id}:copied")
    desk.well("cp", "tree/tool", f"{desk.id}:copied/below/")
    assert desk.well("exec", desk.id, "copied/below/tool; cat copied/below/file") == "ran\nin\n"
    desk.well("cp", f"{desk.id}:copied", "back")
    assert (desk.directory / "back/below/tool").read_text() == (tree / "tool").read_text()
    done = desk.sandbox("cp", f"{desk.id}:copied/tool", ".")
    assert done.stderr == "agentbox: copied 19 B to ./tool\n"
    assert (desk.directory / "tool").stat().st_mode & 0o777 == 0o755
    # Over a file that is there, whole or not at all.
    (desk.directory / "tool").write_text("old")
    desk.well("cp", f"{desk.id}:copied/tool", "tool")
    assert (desk.directory / "tool").read_text() == (tree / "tool").read_text()
    assert list(desk.directory.glob("*.part")) == []
    missing = desk.sandbox("cp", f"{desk.id}:nothing", ".")
    assert (missing.exit_code, missing.stderr) == (1, "agentbox: /work/nothing: No such file or directory\n")
    assert_is_told_what_to_do(desk.sandbox("cp", "tree", "other"), 2, "ID:PATH")


def test_state_is_kept_brought_back_and_forked(desk: Desk) -> None:
    desk.well("exec", desk.id, "echo one >state")
    taken = desk.well("snapshot", desk.id, "--name", "first").strip()
    desk.well("exec", desk.id, "echo two >state")
    assert "first" in next(row for row in desk.well("snapshots", desk.id).splitlines() if taken in row)
    (fork,) = desk.well("fork", desk.id).split()
    assert desk.well("restore", desk.id, taken) == f"{desk.id}\n"
    both = [desk.well("exec", one, "cat state") for one in (desk.id, fork)]
    assert both == ["one\n", "two\n"]
    desk.well("rm", fork)
    desk.well("snapshots", desk.id, "--rm", taken)


def test_a_shell_is_a_terminal_whose_size_follows_ours(desk: Desk) -> None:
    # A shell without line editing, which takes no key for itself.
    somebody = Typist(desk, f"{sys.executable} -m agentbox.cli.main sandbox shell {desk.id} -- sh")  # type: ignore[arg-type]
    somebody.expect("$ ")
    somebody.type("stty size; echo $((6 * 7)) $NAME\n")
    assert "30 100" in somebody.expect("42 box")
    somebody.resize(41, 123)
    somebody.expect("$ ")
    # Ctrl-C is the program's in the box, not ours.
    somebody.type("""sh -c 'echo re""ady; exec cat'\n""")
    somebody.expect("ready\r\n")
    somebody.type("\x03")
    somebody.expect("$ ")
    somebody.type("stty size; echo o''ver\n")
    assert "41 123" in somebody.expect("over\r\n")
    somebody.type("exit 7\n")
    assert somebody.exit_code() == 7


def test_a_shell_without_a_terminal_is_refused(desk: Desk) -> None:
    assert_is_told_what_to_do(desk.sandbox("shell", desk.id), 2, "terminal", "agentbox sandbox exec")


def test_what_is_not_there_is_said_so(desk: Desk) -> None:
    assert_is_told_what_to_do(desk.sandbox("exec", "sbx-0000000000000000", "true"), 1, "No sandbox", "sandbox ls")
    assert_is_told_what_to_do(desk.sandbox("exec", "../runs", "true"), 1, "no id of a sandbox")
    assert_is_told_what_to_do(desk.sandbox("ls", "--key", "wrong"), 1, "key")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert_is_told_what_to_do(desk.sandbox("ls", "--url", url), 1, f"no server answers at {url}", "agentbox serve")


def test_a_bar_says_how_far_a_copy_is() -> None:
    times = iter((100.0, 100.5, 102.0))
    bar = Bar(lambda: next(times))
    bar.total = 4 << 20
    bar.show(0)
    assert bar.text(1 << 20, 102.0) == f"[{'#' * 6}{'.' * 18}]  25%  1.0 MB of 4.0 MB  512.0 KB/s"
    bar.total = None
    assert bar.text(3 << 30, 104.0) == "3.0 GB  768.0 MB/s"
    assert amount(999) == "999 B"
