# SPDX-License-Identifier: MIT
"""The caller's terminal while a box uses it: raw, restored as it was found, its size passed on."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from agentbox.engine.output import Stream
from agentbox.engine.terminal import Terminal, _minds_suspension, _write_all
from agentbox.linux import terminals

pytestmark = pytest.mark.linux


class Pair:
    """A terminal: `side` is the program's end, `keyboard` that of the person."""

    def __init__(self) -> None:
        self.keyboard, self.side = pty.openpty()

    def end_side(self) -> None:
        """Close the program's end."""
        os.close(self.side)
        self.side = -1

    def close(self) -> None:
        os.close(self.keyboard)
        if self.side >= 0:
            os.close(self.side)


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [Pair(), Pair()]
    yield made
    for pair in made:
        pair.close()


def is_raw(fd: int) -> bool:
    return not termios.tcgetattr(fd)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)


def test_a_terminal_without_a_size_has_the_usual_one(pairs: list[Pair]) -> None:
    terminal = Terminal(os.dup(pairs[0].side), {})
    assert terminal.size() == (24, 80)
    terminals.set_size(pairs[0].side, 50, 132)
    assert terminal.size() == (50, 132)
    terminal.close()


async def test_it_is_raw_while_it_is_held_and_as_before_afterwards(pairs: list[Pair]) -> None:
    side = pairs[0].side
    before = termios.tcgetattr(side)
    terminal = Terminal(os.dup(side), {})
    terminal.hold()
    assert is_raw(side)
    terminal.hold()
    terminal.release()
    assert termios.tcgetattr(side) == before
    terminal.hold()
    terminal.close()
    terminal.close()
    assert termios.tcgetattr(side) == before


async def test_what_is_typed_and_written_crosses_and_the_size_too(pairs: list[Pair]) -> None:
    own, boxes = pairs
    terminals.set_size(own.side, 33, 99)
    terminal = Terminal(os.dup(own.side), {})
    relaying = asyncio.create_task(terminal.relay(os.dup(boxes.keyboard), lambda: None))
    os.write(boxes.side, b"hello")
    assert await asyncio.to_thread(os.read, own.keyboard, 100) == b"hello"
    assert terminals.size_of(boxes.side) == (33, 99)
    os.write(own.keyboard, b"typed\r")
    assert await asyncio.to_thread(os.read, boxes.side, 100) == b"typed\n"
    # Nobody has the box's side open, which a program may do that is yet to end.
    boxes.end_side()
    done, _ = await asyncio.wait({relaying}, timeout=0.1)
    assert not done
    terminal.over()
    async with asyncio.timeout(20):
        await relaying
    assert not is_raw(own.side)


async def test_a_terminal_that_is_followed_may_be_opened_again_until_everybody_has_ended() -> None:
    keyboard, side = os.openpty()
    name = os.ttyname(side)
    stream = Stream((0, 1, 2), -1)
    stream.adopt(keyboard)
    os.write(side, b"first ")
    os.close(side)
    await asyncio.sleep(0)
    # Hung up, it could not be opened any more, and whoever had it would be dead.
    for _ in range(3):
        again = os.open(name, os.O_RDWR | os.O_NOCTTY)
        os.write(again, b"again ")
        os.close(again)
        await asyncio.sleep(0.001)
    await stream.finish()
    assert stream.written.held() == b"first again again again "


def test_only_a_program_that_catches_or_ignores_suspension_minds_it() -> None:
    code = "import signal, sys; signal.signal(signal.SIGTSTP, {}); print('set', flush=True); sys.stdin.read()"
    for handling, minds in (("signal.SIG_IGN", True), ("lambda *_: None", True), ("signal.SIG_DFL", False)):
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code.format(handling)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"set\n"
            assert _minds_suspension(process.pid) is minds
            process.communicate()
    assert _minds_suspension(process.pid), "nobody is suspended who cannot be looked at"


def test_everything_is_written_to_a_pipe_that_takes_little_at_a_time() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    code = "import sys; print(len(sys.stdin.read()))"
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=read, stdout=subprocess.PIPE)
    os.close(read)
    _write_all(write, b"x" * (1 << 20))
    os.close(write)
    assert process.communicate()[0] == b"1048576\n"
