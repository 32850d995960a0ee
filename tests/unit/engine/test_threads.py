# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentbox.engine.threads import in_thread, to_its_end


def test_a_cancelled_run_goes_on_only_when_the_thread_that_uses_its_workspace_has_ended() -> None:
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        release.wait()
        ended.set()

    async def main(threads: ThreadPoolExecutor) -> None:
        run = asyncio.create_task(in_thread(threads, work))
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            run.cancel()
            await asyncio.sleep(0)
            assert not run.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert ended.is_set()

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(main(threads))


def test_the_work_of_a_cancelled_run_that_has_not_begun_is_dropped() -> None:
    begun, release, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        release.wait()

    async def main(threads: ThreadPoolExecutor) -> None:
        first = asyncio.create_task(in_thread(threads, work))
        await asyncio.to_thread(begun.wait)
        second = asyncio.create_task(in_thread(threads, done.append, "second"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        release.set()
        await first

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(main(threads))
    assert done == []


def test_the_result_and_the_error_of_work_that_was_not_cancelled_come_back() -> None:
    async def answer() -> int:
        return 42

    async def fail() -> None:
        raise OSError("full")

    assert asyncio.run(to_its_end(answer())) == 42
    with pytest.raises(OSError, match="full"):
        asyncio.run(to_its_end(fail()))


def test_work_that_was_itself_cancelled_ends_the_wait() -> None:
    async def main() -> None:
        work = asyncio.get_running_loop().create_future()
        run = asyncio.create_task(to_its_end(work))
        await asyncio.sleep(0)
        work.cancel()
        await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
