# SPDX-License-Identifier: MIT
"""The light loop means what asyncio means: each claim is made of both."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from types import ModuleType
from typing import Any

import pytest

from agentbox.light import loop as light


@pytest.fixture(params=[asyncio, light], ids=["asyncio", "light"])
def aio(request: pytest.FixtureRequest) -> Any:
    module: ModuleType = request.param
    return module


def test_a_task_has_the_result_or_the_exception_of_its_coroutine(aio: Any) -> None:
    async def good() -> int:
        await aio.sleep(0)
        return 4

    async def bad() -> None:
        raise LookupError("gone")

    async def main() -> list[Any]:
        return list(await aio.gather(good(), bad(), return_exceptions=True))

    result, error = aio.run(main())
    assert result == 4
    assert isinstance(error, LookupError)


def test_cancelling_reaches_what_a_task_awaits_and_runs_its_clean_up(aio: Any) -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await aio.Event().wait()
        except aio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            await aio.sleep(0)
            seen.append("cleaned")

    async def main() -> None:
        task = aio.create_task(waits())
        await aio.sleep(0)
        task.cancel()
        with pytest.raises(aio.CancelledError):
            await task
        assert task.cancelled()

    aio.run(main())
    assert seen == ["cancelled", "cleaned"]


def test_a_task_that_was_cancelled_before_it_began_never_begins(aio: Any) -> None:
    seen: list[str] = []

    async def begins() -> None:
        seen.append("begun")

    async def main() -> None:
        task = aio.create_task(begins())
        task.cancel()
        with pytest.raises(aio.CancelledError):
            await task

    aio.run(main())
    assert seen == []


def test_a_timeout_is_a_timeout_error_and_only_its_own(aio: Any) -> None:
    async def main() -> str:
        async with aio.timeout(None), aio.timeout(60):
            try:
                async with aio.timeout(0.001):
                    await aio.Event().wait()
            except TimeoutError:
                await aio.sleep(0)
                return "inner"
        return "none"

    assert aio.run(main()) == "inner"


def test_a_cancellation_is_not_turned_into_a_timeout(aio: Any) -> None:
    async def main() -> None:
        async def patient() -> None:
            async with aio.timeout(60):
                await aio.Event().wait()

        task = aio.create_task(patient())
        await aio.sleep(0)
        task.cancel()
        with pytest.raises(aio.CancelledError):
            await task

    aio.run(main())


def test_waiting_ends_with_the_first_or_with_the_time(aio: Any) -> None:
    async def main() -> None:
        quick, never = aio.create_task(aio.sleep(0)), aio.get_running_loop().create_future()
        done, pending = await aio.wait({quick, never}, return_when=aio.FIRST_COMPLETED)
        assert (done, pending) == ({quick}, {never})
        done, pending = await aio.wait({never}, timeout=0.001)
        assert (done, pending) == (set(), {never})
        never.cancel()

    aio.run(main())


def test_a_shield_keeps_what_it_guards_from_being_cancelled(aio: Any) -> None:
    async def main() -> int:
        inner = aio.get_running_loop().create_future()

        async def guarded() -> None:
            await aio.shield(inner)

        task = aio.create_task(guarded())
        await aio.sleep(0)
        task.cancel()
        with pytest.raises(aio.CancelledError):
            await task
        assert not inner.done()
        inner.set_result(3)
        return int(await inner)

    assert aio.run(main()) == 3


def test_a_lock_is_handed_on_in_order_even_past_one_that_gave_up(aio: Any) -> None:
    order: list[int] = []

    async def main() -> None:
        lock = aio.Lock()

        async def take(number: int) -> None:
            async with lock:
                order.append(number)
                await aio.sleep(0)

        await lock.acquire()
        tasks = [aio.create_task(take(number)) for number in range(4)]
        await aio.sleep(0)
        tasks[1].cancel()
        await aio.sleep(0)
        lock.release()
        await aio.gather(*tasks, return_exceptions=True)
        assert not lock.locked()

    aio.run(main())
    assert order == [0, 2, 3]


def test_a_queue_gives_each_item_once_and_in_order(aio: Any) -> None:
    async def main() -> list[int]:
        queue = aio.Queue()

        async def take() -> int:
            return int(await queue.get())

        takers = [aio.create_task(take()) for _ in range(4)]
        await aio.sleep(0)
        for number in range(4):
            queue.put_nowait(number)
        takers[0].cancel()
        kept = [one for one in await aio.gather(*takers, return_exceptions=True) if isinstance(one, int)]
        while not queue.empty():
            kept.append(queue.get_nowait())
        return kept

    assert sorted(aio.run(main()))[-3:] == [1, 2, 3]


def test_work_in_a_thread_gives_its_result_or_its_exception(aio: Any) -> None:
    def work(value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value * 2

    async def main() -> int:
        with pytest.raises(ValueError, match="negative"):
            await aio.to_thread(work, -1)
        return int(await aio.to_thread(work, 4))

    assert aio.run(main()) == 8


def test_sockets_are_accepted_read_and_written_without_blocking_the_loop(aio: Any) -> None:
    async def main() -> bytes:
        loop = aio.get_running_loop()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0agentbox-light-" + os.urandom(8).hex())
        listener.listen()
        listener.setblocking(False)
        client = socket.socket(socket.AF_UNIX)
        client.connect(listener.getsockname())
        client.setblocking(False)
        accepted, _ = await loop.sock_accept(listener)
        large = b"x" * (4 << 20)
        sending = aio.create_task(loop.sock_sendall(client, large))
        got = b""
        while len(got) < len(large):
            got += await loop.sock_recv(accepted, 1 << 16)
        await sending
        client.close()
        end: bytes = await loop.sock_recv(accepted, 10)
        accepted.close()
        listener.close()
        assert got == large
        return end

    assert aio.run(main()) == b""


def test_a_signal_is_handled_in_the_loop_and_given_back(aio: Any) -> None:
    before = signal.getsignal(signal.SIGUSR1)

    async def main() -> list[int]:
        loop, seen = aio.get_running_loop(), []
        arrived = aio.Event()

        def note(number: int) -> None:
            seen.append(number)
            arrived.set()

        loop.add_signal_handler(signal.SIGUSR1, note, 5)
        os.kill(os.getpid(), signal.SIGUSR1)
        async with aio.timeout(60):
            await arrived.wait()
        assert loop.remove_signal_handler(signal.SIGUSR1)
        assert not loop.remove_signal_handler(signal.SIGUSR1)
        return seen

    assert aio.run(main()) == [5]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("module", ["asyncio", "agentbox.light.loop"])
def test_an_interrupt_cancels_the_coroutine_and_is_raised_afterwards(module: str) -> None:
    program = f"""
        import os, signal
        import {module} as aio
        async def main():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                await aio.sleep(60)
            finally:
                print("cleaned", flush=True)
        try:
            aio.run(main())
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["cleaned", "interrupted"], done.stderr


def test_what_a_coroutine_left_running_is_ended_with_it(aio: Any) -> None:
    seen: list[str] = []

    async def main() -> None:
        async def left() -> None:
            try:
                await aio.Event().wait()
            finally:
                seen.append("ended")

        aio.create_task(left())
        await aio.sleep(0)

    aio.run(main())
    assert seen == ["ended"]
