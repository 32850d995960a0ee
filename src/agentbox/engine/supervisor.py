# SPDX-License-Identifier: MIT
"""One program in one box: its deadline, its output caps, and how it ended."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import signal as signals
import time
from collections.abc import Awaitable, Callable

from agentbox.engine.capture import Capture, Follower, PipeFollower, SinkFollower
from agentbox.models import Outcome
from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentbox.isolation.backend import LiveBox
    from agentbox.isolation.boxes import CommandExit
    from agentbox.models import CapturedStream, Limits

OutputSink = Callable[[str, bytes], Awaitable[None]]

# What a shorter program says fits into its pipes: nobody need look before its end.
_FOLLOW_SECONDS = 0.02
# A program that is over sooner cannot have taken much, and most are.
_MEMORY_WATCH_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Ending:
    """How a supervised program ended. Times are of the monotonic clock."""

    outcome: Outcome
    exit_code: int
    signal: int | None
    stdout: CapturedStream
    stderr: CapturedStream
    started_at: float
    ended_at: float


def decode_status(status: int) -> tuple[int, int | None]:
    """(exit code, signal) of a wait(2) status; the exit code is 128+n after signal n."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, number
    return os.WEXITSTATUS(status), None


def _stdin(content: bytes) -> int:
    """A descriptor to read `content` from that nobody can change; empty content is at its end at once."""
    if not content:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


async def supervise(
    box: LiveBox,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: bytes,
    limits: Limits,
    max_total_output_bytes: int,
    on_output: OutputSink | None = None,
) -> Ending:
    """Run one program to its end; when it returns nothing that the program started is alive.

    Raises OSError when the program cannot be executed. Cancelling kills what runs.
    """
    captures = {"stdout": Capture(limits.max_output_bytes), "stderr": Capture(limits.max_output_bytes)}
    ready = box.ready_streams(argv, env, stdin)
    readers: dict[str, int] = dict(zip(captures, ready, strict=True)) if ready is not None else {}
    ends: list[int] = []
    try:
        if ready is None:
            ends.append(_stdin(stdin))
            for name in captures:
                readers[name], write = os.pipe2(os.O_CLOEXEC)
                ends.append(write)
                os.set_blocking(readers[name], False)
        # Before the request: the program may be at work before the answer is read.
        started_at = time.monotonic()
        exited = await box.start(argv, env, box.workspace_path, ends)
    except BaseException:
        for fd in readers.values():
            os.close(fd)
        raise
    finally:
        for fd in ends:
            os.close(fd)

    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    flooded = False

    def end(*_: object) -> None:
        if not over.done():
            over.set_result(None)

    def on_bytes(capture: Capture) -> None:
        nonlocal flooded
        if capture.total > max_total_output_bytes:
            flooded = True
            end()

    followers: list[Follower] = [
        PipeFollower(fd, captures[name], on_bytes)
        if on_output is None
        else SinkFollower(fd, captures[name], on_bytes, functools.partial(on_output, name))
        for name, fd in readers.items()
    ]
    exited.add_done_callback(end)
    followed = loop.call_later(_FOLLOW_SECONDS, _follow, followers)
    deadline = loop.call_later(limits.timeout_seconds, end)
    watch = loop.call_later(_MEMORY_WATCH_SECONDS, lambda: watches.append(asyncio.create_task(box.watch_memory())))
    watches: list[asyncio.Task[None]] = []
    try:
        await over
        ended_at = time.monotonic()
        ending = exited.result() if exited.done() else None
        # Whatever the program left behind goes now; only then do the pipes hold all there will be.
        await box.kill_programs()
        if on_output is not None:
            await box.taken_apart()
        for follower in followers:
            await follower.finish()
        outcome, code, number = _judge(box, ending, flooded)
        if ending is not None:
            box.ended(ending)
    finally:
        followed.cancel()
        deadline.cancel()
        watch.cancel()
        for follower in followers:
            follower.close()
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    return Ending(outcome, code, number, captures["stdout"].result(), captures["stderr"].result(), started_at, ended_at)


def _follow(followers: Sequence[Follower]) -> None:
    for follower in followers:
        follower.follow()


def _judge(box: LiveBox, ending: CommandExit | None, flooded: bool) -> tuple[Outcome, int, int | None]:
    killed = (128 + signals.SIGKILL, int(signals.SIGKILL))
    if ending is None:
        return (Outcome.OUTPUT_LIMITED if flooded else Outcome.TIMED_OUT, *killed)
    if ending.status is None:
        # The whole box went down under the program.
        return (Outcome.OOM_KILLED if box.oom_killed() else Outcome.KILLED, *killed)
    code, number = decode_status(ending.status)
    if number == signals.SIGKILL and box.oom_killed():
        return Outcome.OOM_KILLED, code, number
    return Outcome.EXITED, code, number
