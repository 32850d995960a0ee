# SPDX-License-Identifier: MIT
"""What spec/agent says, of both agents, spoken to without a box."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentbox.sandbox import frames
from agentbox.sandbox.frames import Frames, StartFlag, ToAgent, ToHost
from tests.conftest import REPOSITORY, not_here

NATIVE = REPOSITORY / "src/agentbox/isolation/native/agentbox-agent"
GUEST = REPOSITORY / "src/agentbox/guest"


class Spoken:
    """An agent, and its frames in order."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._reader = Frames()
        self._frames = self._read()

    def _read(self) -> Iterator[tuple[ToHost, int, bytes]]:
        assert self.process.stdout is not None
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            yield from self._reader.feed(data)

    def next(self) -> tuple[ToHost, int, bytes]:
        return next(self._frames)

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def start(self, number: int, argv: Sequence[str], flags: StartFlag = StartFlag.MERGED, **how: object) -> None:
        given = {"user": "", "directory": "", "environment": {}, **how}
        self.send(frames.start(number, argv, flags=flags, **given))  # type: ignore[arg-type]

    def until(self, kind: ToHost, number: int) -> list[tuple[ToHost, bytes]]:
        seen = []
        for one, of, payload in self._frames:
            if of == number:
                seen.append((one, payload))
                if one is kind:
                    return seen
        raise AssertionError(f"the agent ended before {kind!r}: {seen}")

    def output(self, number: int) -> tuple[bytes, int]:
        """All output of a command, and its wait status."""
        seen = self.until(ToHost.OVER, number)
        status = next(frames.read_exit(payload)[0] for kind, payload in seen if kind is ToHost.EXIT)
        return b"".join(payload for kind, payload in seen if kind is ToHost.STDOUT), status

    def end(self) -> None:
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait(20)


def speak(kind: str, *before: str) -> Spoken:
    """An agent that has said hello; it is started by `before`, where there is any."""
    if kind == "native":
        if not NATIVE.exists():
            pytest.skip("the native agent is not built")
        spoken = Spoken([*before, str(NATIVE)])
    else:
        code = f"import sys; sys.path.insert(0, {str(GUEST)!r}); from agent.main import main; main()"
        spoken = Spoken([*before, sys.executable, "-I", "-S", "-B", "-c", code])
    first, number, payload = spoken.next()
    assert (first, number, payload[0]) == (ToHost.HELLO, 0, frames.VERSION)
    return spoken


@pytest.fixture(scope="module", params=["native", "python"])
def agent(request: pytest.FixtureRequest) -> Iterator[Spoken]:
    spoken = speak(request.param)
    yield spoken
    spoken.end()


@pytest.fixture(params=["native", "python"])
def ending(request: pytest.FixtureRequest) -> Iterator[Spoken]:
    """An agent that the test ends."""
    spoken = speak(request.param)
    yield spoken
    spoken.end()


def alive(mark: str) -> int:
    """How many processes have this word in their command line."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += mark.encode() in words
    return found


def test_frames_of_a_command_come_in_their_order(agent: Spoken) -> None:
    agent.start(1, ["sh", "-c", "echo out; echo err >&2; exit 3"], StartFlag.NONE)
    seen = agent.until(ToHost.OVER, 1)
    kinds = [kind for kind, _ in seen]
    assert kinds[0] is ToHost.STARTED
    assert kinds[-3:] == [ToHost.EXIT, ToHost.CLOSED, ToHost.OVER]
    assert (ToHost.STDOUT, b"out\n") in seen
    assert (ToHost.STDERR, b"err\n") in seen
    assert os.waitstatus_to_exitcode(frames.read_exit(dict(seen)[ToHost.EXIT])[0]) == 3


@pytest.mark.parametrize(
    ("argv", "how", "code"),
    [
        (["no-such-program"], {}, 2),
        (["/etc/passwd"], {}, 13),
        (["true"], {"directory": "/nowhere"}, 2),
        (["true"], {"user": "no-such-user"}, 22),
    ],
)
def test_what_cannot_be_started_is_told_with_its_errno(
    agent: Spoken, argv: list[str], how: dict[str, str], code: int
) -> None:
    agent.start(1, argv, **how)
    kind, number, payload = agent.next()
    assert (kind, number, frames.read_number(payload)) == (ToHost.FAILED, 1, code)
    # The id is free again.
    agent.start(1, ["true"])
    assert agent.output(1) == (b"", 0)


def test_an_end_is_told_while_a_child_holds_the_output_and_the_childs_output_follows(
    agent: Spoken, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    agent.start(1, ["sh", "-c", f"(until [ -e {gate} ]; do sleep 0.01; done; echo late) & echo early"])
    assert b"".join(p for k, p in agent.until(ToHost.EXIT, 1) if k is ToHost.STDOUT) == b"early\n"
    gate.touch()
    assert (ToHost.STDOUT, b"late\n") in agent.until(ToHost.OVER, 1)


def test_output_waits_for_credit_and_holds_up_nobody_else(agent: Spoken) -> None:
    agent.start(1, ["sh", "-c", "head -c 3000000 /dev/zero"])
    taken = 0
    while taken < frames.OUTPUT_WINDOW_BYTES:
        kind, _, payload = agent.next()
        taken += len(payload) if kind is ToHost.STDOUT else 0
    assert taken == frames.OUTPUT_WINDOW_BYTES
    agent.start(2, ["echo", "through"])
    assert agent.output(2) == (b"through\n", 0)
    while taken < 3_000_000:
        agent.send(frames.number(ToAgent.CREDIT, 1, 1 << 16))
        kind, number, payload = agent.next()
        taken += len(payload) if kind is ToHost.STDOUT and number == 1 else 0
    assert taken == 3_000_000
    agent.until(ToHost.OVER, 1)


def test_input_arrives_whole_and_is_counted(agent: Spoken) -> None:
    agent.start(1, ["wc", "-c"], StartFlag.STDIN | StartFlag.MERGED)
    for _ in range(4):
        agent.send(frames.frame(ToAgent.STDIN, 1, b"x" * 60_000))
    agent.send(frames.frame(ToAgent.STDIN_END, 1))
    seen = agent.until(ToHost.OVER, 1)
    assert sum(frames.read_number(payload) for kind, payload in seen if kind is ToHost.TAKEN) == 240_000
    assert [payload for kind, payload in seen if kind is ToHost.STDOUT] == [b"240000\n"]


def test_a_command_without_input_reads_its_end(agent: Spoken) -> None:
    agent.start(1, ["cat"])
    assert agent.output(1) == (b"", 0)


def test_variables_are_set_over_the_agents_own_and_taken_out(agent: Spoken) -> None:
    agent.start(1, ["/usr/bin/env"], environment={"NEW": "value", "PATH": None})
    shown = agent.output(1)[0].split(b"\n")
    assert b"NEW=value" in shown
    assert not [line for line in shown if line.startswith(b"PATH=")]


def test_a_terminal_has_its_size_and_another_when_it_is_told(agent: Spoken) -> None:
    agent.start(1, ["sh", "-c", "stty size; read x; stty size"], StartFlag.TERMINAL, size=(30, 90))
    assert agent.until(ToHost.STDOUT, 1)[-1][1] == b"30 90\r\n"
    agent.send(frames.resize(1, 10, 20))
    agent.send(frames.frame(ToAgent.STDIN, 1, b"go\n"))
    assert b"10 20\r\n" in agent.output(1)[0]


def test_a_command_that_closes_its_terminal_before_it_ends_is_not_hung_up_on(agent: Spoken) -> None:
    agent.start(1, ["sh", "-c", "exec <&- >&- 2>&-; sleep 0.3; exit 7"], StartFlag.TERMINAL, size=(30, 90))
    assert agent.output(1)[1] >> 8 == 7


def test_killing_ends_what_left_its_session_and_its_parent(agent: Spoken) -> None:
    mark = f"kept-{os.getpid()}"
    script = (
        "import os, signal, sys, time\n"
        "for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    agent.start(1, ["env", "-i", sys.executable, "-c", script, mark])
    ready = b""
    while ready.count(b"ready") < 4:
        kind, _, payload = agent.next()
        ready += payload if kind is ToHost.STDOUT else b""
    assert alive(mark) >= 4
    agent.send(frames.number(ToAgent.KILL, 1, 100))
    seen = agent.until(ToHost.OVER, 1)
    assert (ToHost.KILLED, b"\0\0\0\0") in seen
    assert alive(mark) == 0


def test_a_polite_end_is_by_term(agent: Spoken) -> None:
    agent.start(1, ["sleep", "60"])
    agent.until(ToHost.STARTED, 1)
    agent.send(frames.number(ToAgent.KILL, 1, 5000))
    assert agent.output(1)[1] == 15


def test_a_keeper_that_is_killed_loses_neither_the_end_nor_the_processes(agent: Spoken) -> None:
    agent.start(1, ["sh", "-c", "kill -9 $PPID; sleep 0.1; echo still; exit 5"])
    output, status = agent.output(1)
    assert output == b"still\n"
    assert os.waitstatus_to_exitcode(status) == 5


def test_when_its_owner_is_gone_everything_goes(ending: Spoken) -> None:
    mark = f"{os.getpid()}.25"
    ending.start(1, ["sh", "-c", f"setsid sleep {mark} & sleep {mark} & echo ready; wait"])
    ending.until(ToHost.STDOUT, 1)
    ending.end()
    assert ending.process.returncode == 0
    assert alive(mark) == 0


@pytest.mark.parametrize(
    "broken",
    [
        struct.pack(">IBI", 4, 1, 1),
        struct.pack(">IBI", 1 << 23, 1, 1),
        struct.pack(">IBI", 5, 1, 1),
        struct.pack(">IBIBHHII", 18, 1, 1, 0, 0, 0, 1 << 30, 0),
    ],
)
def test_a_broken_frame_ends_the_agent(ending: Spoken, broken: bytes) -> None:
    ending.send(broken)
    assert ending.process.wait(20) == 0


def test_what_writes_left_that_were_cut_off_is_not_in_the_way(agent: Spoken, tmp_path: Path) -> None:
    last = int(Path("/proc/sys/kernel/ns_last_pid").read_text())
    for pid in range(last, last + 2000):
        (tmp_path / f".agentbox-{pid}").touch()
    agent.start(1, ["write", str(tmp_path / "file"), "-", "replace"], StartFlag.OWN | StartFlag.STDIN)
    agent.send(frames.frame(ToAgent.STDIN, 1, b"content"))
    agent.send(frames.frame(ToAgent.STDIN_END, 1))
    assert agent.output(1) == (b"", 0)
    assert (tmp_path / "file").read_text() == "content"


def test_files_are_written_read_listed_renamed_and_removed(agent: Spoken, tmp_path: Path) -> None:
    place = str(tmp_path / "new" / "file")
    agent.start(1, ["write", place, "-", "replace"], StartFlag.OWN | StartFlag.STDIN)
    agent.send(frames.frame(ToAgent.STDIN, 1, b"content"))
    agent.send(frames.frame(ToAgent.STDIN_END, 1))
    assert agent.output(1) == (b"", 0)
    assert oct(os.stat(place).st_mode & 0o777) == "0o644"
    os.symlink("file", tmp_path / "new" / "link")
    agent.start(2, ["read", str(tmp_path / "new" / "link"), "3", "2"], StartFlag.OWN)
    assert agent.output(2) == (b"te", 0)
    agent.start(3, ["list", str(tmp_path), "-1"], StartFlag.OWN)
    records = sorted(agent.output(3)[0].split(b"\0\0")[:-1], key=lambda one: one.partition(b"\t")[2])
    assert [record.split(b" ")[0] for record in records] == [b"d", b"f", b"l"]
    assert records[2].endswith(b"link\0file")
    agent.start(4, ["rename", place, place + "2"], StartFlag.OWN)
    assert agent.output(4)[1] == 0
    agent.start(5, ["remove", str(tmp_path / "new")], StartFlag.OWN)
    assert agent.output(5)[1] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["read", "{}/none", "0", "-1"], 2),
        (["read", "{}", "0", "-1"], 21),
        (["read", "{}/fifo", "0", "-1"], 22),
        (["write", "{}/file/below", "-", "replace"], 20),
        (["write", "{}/file", "-", "new"], 17),
        (["list", "{}/none", "1"], 2),
        (["mkdir", "{}/file", "755"], 17),
        (["remove", "{}/none"], 2),
        (["rename", "{}/none", "{}/other"], 2),
        (["compose", "{}"], 22),
    ],
)
def test_faults_of_files_are_told_by_their_errno(agent: Spoken, tmp_path: Path, argv: list[str], code: int) -> None:
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    agent.start(1, [one.format(tmp_path) for one in argv], StartFlag.OWN)
    seen = agent.until(ToHost.FAILED, 1)
    assert frames.read_number(seen[-1][1]) == code


@pytest.mark.parametrize("kind", ["native", "python"])
def test_a_file_that_something_is_mounted_on_is_written_where_it_is(kind: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        not_here("only root mounts")
    shown, kept = tmp_path / "shown", tmp_path / "kept"
    shown.write_text("of the mount point")
    kept.write_text("something longer than what follows")
    mount = f'mount --bind {kept} {shown} && exec "$@"'
    agent = speak(kind, "unshare", "--mount", "sh", "-c", mount, "sh")
    try:
        agent.start(1, ["write", str(shown), "-", "replace"], StartFlag.OWN | StartFlag.STDIN)
        agent.send(frames.frame(ToAgent.STDIN, 1, b"new") + frames.frame(ToAgent.STDIN_END, 1))
        assert agent.output(1) == (b"", 0)
    finally:
        agent.end()
    assert (shown.read_text(), kept.read_text()) == ("of the mount point", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "shown"]


def test_a_command_ignores_and_blocks_no_signal(agent: Spoken) -> None:
    agent.start(1, ["sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status"])
    masks = dict(line.split(":\t") for line in agent.output(1)[0].decode().splitlines())
    # The C library keeps 32 and 33 to itself: they stay as whoever started the tests has them.
    own = 1 << 31 | 1 << 32
    assert {name: int(mask, 16) & ~own for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}


def test_a_deep_tree_is_removed_and_no_link_followed(agent: Spoken, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=place)
        os.symlink(str(outside), "link", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    agent.start(1, ["remove", str(tmp_path / "d")], StartFlag.OWN)
    assert agent.output(1)[1] == 0
    assert (outside / "kept").read_text() == "x"
    assert not (tmp_path / "d").exists()
