# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentbox.engine import supervisor


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise SystemExit(0)", (0, None)),
        ("raise SystemExit(3)", (3, None)),
        ("raise SystemExit(300)", (44, None)),
        ("raise SystemExit(-1)", (255, None)),
        ("raise SystemExit(137)", (137, None)),
        ("import os; os.kill(os.getpid(), 9)", (137, 9)),
        ("import os; os.kill(os.getpid(), 15)", (143, 15)),
        ("import os; os.abort()", (134, 6)),
    ],
)
def test_a_wait_status_becomes_the_shells_exit_code_and_the_signal(program: str, expected: tuple[int, int]) -> None:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stderr=subprocess.DEVNULL)
    _, status = os.waitpid(child.pid, 0)
    child.returncode = 0
    assert supervisor.decode_status(status) == expected


def test_stdin_content_can_be_read_but_not_changed() -> None:
    fd = supervisor._stdin(b"x" * 200_000)
    assert os.read(fd, 1 << 20) == b"x" * 200_000
    assert os.read(fd, 10) == b""
    with pytest.raises(OSError):
        os.write(fd, b"y")
    os.close(fd)


def test_empty_stdin_is_at_its_end_at_once() -> None:
    fd = supervisor._stdin(b"")
    assert os.read(fd, 10) == b""
    os.close(fd)
