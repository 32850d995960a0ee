# SPDX-License-Identifier: MIT
"""An agent in stock runs a command of no consequence, and whoever gets it afterwards finds it as if newly started."""

import asyncio
import os
import struct
from collections.abc import Callable

import pytest

from agentbox.errors import SandboxError
from agentbox.isolation.durable import AgentStream, PipeStream
from agentbox.sandbox.frames import ToHost
from agentbox.sandbox.link import AgentLink
from agentbox.sandbox.rehearsing import rehearse

UID = 1234


def _said(kind: ToHost, number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) + 5, kind, number) + payload


HELLO = _said(ToHost.HELLO, 0, struct.pack(">BIB", 1, UID, 1))
OVER = _said(ToHost.OVER, 0xFFFFFFFF)
FAILED = _said(ToHost.FAILED, 0xFFFFFFFF, struct.pack(">I", 2))


def _with(said: bytes, check: Callable[[AgentStream], object], *, ended: bool = False) -> None:
    """Have an agent that has said all that speak with `check`."""

    async def speak() -> None:
        guest_in, ours_out = os.pipe()
        ours_in, guest_out = os.pipe()
        stream = PipeStream(ours_in, ours_out)
        try:
            os.write(guest_out, said)
            if ended:
                os.close(guest_out)
            await check(stream)  # type: ignore[misc]
        finally:
            await stream.close()
            os.close(guest_in)
            if not ended:
                os.close(guest_out)

    asyncio.run(speak())


@pytest.mark.parametrize("said", [HELLO + OVER + OVER, HELLO + FAILED], ids=["a shell", "no shell"])
def test_a_link_over_a_rehearsed_stream_hears_the_agents_hello_and_starts_with_the_first_id(said: bytes) -> None:
    async def check(stream: AgentStream) -> None:
        link = await AgentLink.open(await rehearse(stream))
        assert (link.agent_uid, link.native, link.lost) == (UID, True, None)

        class Nobody:
            def hear(self, kind: ToHost, payload: bytes) -> None: ...

            def lose(self, why: str) -> None: ...

        assert link.new_id(Nobody()) == 1
        await link.close()

    _with(said, check)


@pytest.mark.parametrize(
    ("said", "why"),
    [(HELLO, "ended before it was used"), (b"\xff" * 9, "broke the protocol")],
    ids=["it ends", "it talks nonsense"],
)
def test_an_agent_that_does_not_get_through_its_rehearsal_is_not_used(said: bytes, why: str) -> None:
    async def check(stream: AgentStream) -> None:
        with pytest.raises(SandboxError, match=why):
            await rehearse(stream)

    _with(said, check, ended=True)
