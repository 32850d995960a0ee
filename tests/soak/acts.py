# SPDX-License-Identifier: MIT
"""What is done in a sandbox of the soak. Each act knows what must come of it: anything else is a WrongError."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentbox import AsyncSandbox
from agentbox.errors import SandboxError
from agentbox.sandbox.core import SandboxCommand
from tests.soak.ledger import Ledger, sha256

SPOOL_BYTES = 1 << 18
PATIENCE_SECONDS = 90.0
# How the tools for models say that a box was killed.
_LOST = ("sandbox is gone", "ended with the agent", "the agent in the box", "was lost before it started")
_LARGE, _SMALL = 1 << 21, 1 << 14


class WrongError(Exception):
    """Something came out otherwise than it must."""


class LostError(Exception):
    """A command whose end nobody knows: its box was killed."""


@dataclass
class Scene:
    """One sandbox of the soak, what its workspace holds, its own chance, and how many commands it was given."""

    sandbox: AsyncSandbox
    ledger: Ledger
    chance: random.Random
    commands: int = 0
    numbers: dict[str, int] = field(default_factory=dict)

    def name(self) -> str:
        """A path that nothing has yet, deep at times."""
        number = self.numbers["file"] = self.numbers.get("file", 0) + 1
        return f"{self.chance.choice(('', 'a/', 'a/b/', 'c d/'))}{number}.dat"

    def content(self) -> bytes:
        """Some bytes, many at times."""
        return self.chance.randbytes(self.chance.randrange(_LARGE if self.chance.random() < 0.05 else _SMALL))

    async def run(self, *argv: str, code: int = 0, **how: object) -> bytes:
        """The output of a command that ends with `code`."""
        command = await self.begin(*argv, **how)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await command.wait()
            await command.wait_closed()
        if command.lost is not None:
            raise LostError(command.lost)
        output = command.stdout.read(0, SPOOL_BYTES)[1]
        if command.exit_code != code:
            raise WrongError(f"{argv[:3]} ended with {command.exit_code}: {output[-200:]!r}")
        return output

    async def begin(self, *argv: str, **how: object) -> SandboxCommand:
        """A command that runs."""
        self.commands += 1
        return await self.sandbox.exec(argv, wait=0, **how)  # type: ignore[arg-type]


def must(holds: bool, what: str) -> None:
    """Raise WrongError unless it holds."""
    if not holds:
        raise WrongError(what)


async def write_by_command(scene: Scene) -> None:
    path, content = scene.name(), scene.content()
    with scene.ledger.changing(path) as after:
        said = await scene.run(
            "/bin/sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1" && sha256sum < "$1"', "sh", path, stdin=content
        )
        must(said.decode().split()[0] == sha256(content), f"{path} was written as something else: {said!r}")
        after[path] = content


async def write_by_files(scene: Scene) -> None:
    path, content = scene.ledger.some(scene.chance) or scene.name(), scene.content()
    scene.commands += 1
    with scene.ledger.changing(path) as after:
        await scene.sandbox.files.write(path, content)
        after[path] = content


async def append(scene: Scene) -> None:
    if (path := scene.ledger.some(scene.chance)) is None:
        return
    content = await scene.sandbox.files.read(path)
    with scene.ledger.changing(path) as after:
        await scene.run("/bin/sh", "-c", 'printf more >> "$1"', "sh", path)
        after[path] = content + b"more"


async def remove(scene: Scene) -> None:
    if (path := scene.ledger.some(scene.chance)) is None:
        return
    with scene.ledger.changing(path) as after:
        await scene.run("rm", path)
        after[path] = None


async def rename(scene: Scene) -> None:
    if (path := scene.ledger.some(scene.chance)) is None:
        return
    content, to = await scene.sandbox.files.read(path), scene.name().rpartition("/")[2]
    with scene.ledger.changing(path, to) as after:
        await scene.run("mv", path, to)
        after[path], after[to] = None, content


async def read_by_command(scene: Scene) -> None:
    if (path := scene.ledger.some(scene.chance)) is None:
        return
    said = await scene.run("sha256sum", path)
    must(said.decode().split()[0].lstrip("\\") == scene.ledger.files[path], f"a command reads another {path}")


async def read_by_files(scene: Scene) -> None:
    if (path := scene.ledger.some(scene.chance)) is None:
        return
    scene.commands += 1
    must(sha256(await scene.sandbox.files.read(path)) == scene.ledger.files[path], f"files.read gives another {path}")


async def say(scene: Scene) -> None:
    word, code = scene.chance.randbytes(8).hex(), scene.chance.choice((0, 1, 7, 124, 137, 255))
    said = await scene.run("/bin/sh", "-c", 'echo "$WORD"; exit "$1"', "sh", str(code), code=code, env={"WORD": word})
    must(said == f"{word}\n".encode(), f"echo {word} said {said!r}")


async def say_much(scene: Scene) -> None:
    size = scene.chance.randrange(1 << 22)
    command = await scene.begin("/bin/sh", "-c", f"head -c {size} /dev/zero; exit 3")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await command.wait()
        await command.wait_closed()
    if command.lost is not None:
        raise LostError(command.lost)
    must((command.stdout.total, command.exit_code) == (size, 3), f"of {size} bytes {command.stdout.total} came")


async def several_at_once(scene: Scene) -> None:
    said = await asyncio.gather(
        *(scene.run("/bin/sh", "-c", f"echo {number}") for number in range(5)), return_exceptions=True
    )
    for number, one in enumerate(said):
        if isinstance(one, BaseException):
            raise one
        must(one == f"{number}\n".encode(), f"command {number} of several said {one!r}")


async def leave_in_background(scene: Scene) -> None:
    command = await scene.begin("/bin/sh", "-c", "sleep 1000 & (setsid sleep 1000 &) ; echo left")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await command.wait()
    if command.lost is not None:
        raise LostError(command.lost)
    if scene.chance.random() < 0.5:
        left = await command.kill(0.0)
        must(not left, f"{left} processes stayed after kill")


async def be_ended_by_its_timeout(scene: Scene) -> None:
    scene.commands += 1
    command = await scene.sandbox.exec(["sleep", "1000"], timeout=scene.chance.random() / 4)
    if command.lost is not None:
        raise LostError(command.lost)
    must(command.timed_out and command.exit_code in (143, 137), f"a timeout came to {command.exit_code}")


async def be_cancelled(scene: Scene) -> None:
    scene.commands += 1
    calling = asyncio.create_task(scene.sandbox.exec(["sleep", "1000"]))
    await asyncio.sleep(scene.chance.random() / 10)
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await calling
    for command in scene.sandbox.commands:
        if command.running:
            await command.kill(0.0)


async def use_shell_tools(scene: Scene) -> None:
    scene.commands += 2
    said = await scene.sandbox.shell_exec("echo begun; sleep 1000", 0.2)
    if said.startswith("still running"):
        said = await scene.sandbox.shell_kill()
        _gone_or(said, said.startswith("killed (exit="), f"shell_kill said {said!r}")
    else:
        _gone_or(said, False, f"shell_exec said {said!r}")
    said = await scene.sandbox.shell_exec("echo $((6*7))")
    _gone_or(said, said == "exit=0\noutput:\n42\n", f"shell_exec said {said!r}")


def _gone_or(said: str, holds: bool, what: str) -> None:
    if any(words in said for words in _LOST):
        raise LostError(said)
    must(holds, what)


async def use_a_terminal(scene: Scene) -> None:
    said = await scene.run("/bin/sh", "-c", "test -t 1 && stty size", terminal=(21, 77))
    must(said.strip() == b"21 77", f"a terminal says {said!r}")


async def fork_much(scene: Scene) -> None:
    said = await scene.run("/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do (exit 0) & done; wait; echo done")
    must(said == b"done\n", f"many processes said {said!r}")


async def kill_inside(scene: Scene) -> None:
    """The box, or all that runs in it."""
    deed = scene.chance.choice(("kill -9 -1", "kill -9 1; sleep 0.05; kill -9 -1", "kill -TERM 1; kill -9 -1"))
    with contextlib.suppress(SandboxError):
        command = await scene.begin("/bin/sh", "-c", deed)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await command.wait()
        must(
            command.lost is not None or command.exit_code in (0, 1, 128 + signal.SIGKILL),
            f"{deed} ended with {command.exit_code}",
        )


async def reset(scene: Scene) -> None:
    await scene.sandbox.reset()


async def stop_and_start(scene: Scene) -> None:
    await scene.sandbox.stop()
    await scene.sandbox.start()


Act = Callable[[Scene], Awaitable[None]]
# How often each is done, in proportion.
WEIGHTS: dict[Act, int] = {
    write_by_command: 8,
    write_by_files: 6,
    read_by_command: 6,
    read_by_files: 6,
    append: 4,
    remove: 3,
    rename: 3,
    say: 8,
    say_much: 3,
    several_at_once: 2,
    leave_in_background: 3,
    be_ended_by_its_timeout: 3,
    be_cancelled: 2,
    use_shell_tools: 2,
    use_a_terminal: 3,
    fork_much: 2,
    kill_inside: 2,
    reset: 2,
    stop_and_start: 1,
}
