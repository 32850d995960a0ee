# SPDX-License-Identifier: MIT
"""Runs code in boxes through the Python package, as PythonDoor asks: a line of JSON for each run, and one in answer.

It reads without blocking, because what agentbox prepares for the next run is prepared by the same event loop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict

from agentbox import config
from agentbox.engine.runner import Runner
from agentbox.models import RunRequest


async def main() -> None:
    """Until standard input ends."""
    settings, _ = config.load()
    runner = await Runner.start(settings)
    try:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        print("{}", flush=True)
        while line := await reader.readline():
            request = RunRequest(**json.loads(line))
            begin = time.perf_counter()
            result = await runner.run(request)
            elapsed = (time.perf_counter() - begin) * 1000
            if result.stdout.data != b"1\n":
                raise RuntimeError(f"the run failed: {result.stderr.data[-300:]!r}")
            print(json.dumps({"ms": elapsed, "timings": asdict(result.timings)}), flush=True)
    finally:
        await runner.close()


if __name__ == "__main__":
    asyncio.run(main())
