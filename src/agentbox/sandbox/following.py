# SPDX-License-Identifier: MIT
"""A command's output as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbox.sandbox.command import Command

_PIECE_BYTES = 1 << 18


async def follow(command: Command) -> AsyncIterator[tuple[str, bytes]]:
    """(stdout or stderr, some bytes) until the command has ended and everything was given that it wrote until then."""
    spools = {"stdout": command.stdout}
    if command.stderr is not None:
        spools["stderr"] = command.stderr
    offsets = dict.fromkeys(spools, 0)
    while True:
        ended = not command.running
        told = False
        for name, spool in spools.items():
            while offsets[name] < spool.total:
                begin, data = spool.read(offsets[name], _PIECE_BYTES)
                if not data:
                    break
                offsets[name] = begin + len(data)
                told = True
                yield name, data
        if ended:
            return
        if not told:
            await _news(command, offsets)


async def _news(command: Command, offsets: dict[str, int]) -> None:
    waits = [asyncio.ensure_future(command.more(offset, error=name == "stderr")) for name, offset in offsets.items()]
    ending = asyncio.ensure_future(command.wait())
    try:
        await asyncio.wait((*waits, ending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in (*waits, ending):
            wait.cancel()
