# SPDX-License-Identifier: MIT
"""asyncio: tasks, timeouts, queues, threads, programs."""

import asyncio
import random
import time


async def worker(number):
    began = time.time()
    await asyncio.sleep(random.random() / 50)
    return number, began, random.randint(0, 10**6)


async def produce(channel):
    for item in range(5):
        await channel.put(item)
    await channel.put(None)


async def main():
    print(await asyncio.gather(*(worker(number) for number in range(5))))
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.05)
    except asyncio.TimeoutError:
        print("it was too slow at", time.time())
    channel = asyncio.Queue()
    producing = asyncio.create_task(produce(channel))
    items = []
    while (item := await channel.get()) is not None:
        items.append(item)
    await producing
    print(items, await asyncio.get_running_loop().run_in_executor(None, time.time))
    process = await asyncio.create_subprocess_exec("sort", stdin=-1, stdout=-1)
    print(await process.communicate(b"b\na\n"), process.returncode)
    process = await asyncio.create_subprocess_shell("echo out; echo err >&2; exit 2", stdout=-1, stderr=-1)
    print(await process.communicate(), process.returncode)
    print(await asyncio.to_thread(lambda: sum(range(10))))


asyncio.run(main())
