# SPDX-License-Identifier: MIT
"""Output of a command behind a server as it comes: the server's events, asked for again where they broke off."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from agentbox.sandbox.line import Line, NoAnswerError

MEDIA_TYPE = "text/event-stream"
# Until the first event: a box may have to be built before.
_ANSWER_SECONDS = 600.0
# A server tells that it lives every 15 s.
_SILENCE_SECONDS = 60.0
_OUTAGE_SECONDS = 60.0
_PAUSE_SECONDS = 0.2


async def follow_events(line: Line, path: str) -> AsyncIterator[tuple[str, Any]]:
    """(stdout or stderr, some bytes) of the command at `path`; last comes ("exit", the server's description of it)."""
    place = ""
    failing: float | None = None
    while True:
        try:
            headers = {"accept": MEDIA_TYPE} | ({"last-event-id": place} if place else {})
            async with line.open("GET", f"{path}/output", headers=headers) as answer:
                parser = _Events()
                async for piece in answer.pieces(_SILENCE_SECONDS):
                    failing = None
                    for kind, place_of_event, body in parser.feed(piece):
                        place = place_of_event or place
                        if kind == "exit":
                            yield kind, body
                            return
                        if kind in ("stdout", "stderr"):
                            yield kind, base64.b64decode(body["b64"]) if "b64" in body else body["text"].encode()
        except (NoAnswerError, TimeoutError):
            failing = failing if failing is not None else time.monotonic()
            if time.monotonic() - failing > _OUTAGE_SECONDS:
                raise
        # It broke off before its end: the server may be starting again.
        await asyncio.sleep(_PAUSE_SECONDS)


async def ask_with_progress(line: Line, method: str, path: str, value: object, told: Callable[[int], None]) -> Any:
    """The JSON of an answer that takes time; `told` hears how many bytes are copied so far. Raises as Line.ask."""
    headers = {"accept": MEDIA_TYPE}
    async with line.open(method, path, value=value, headers=headers, seconds=_ANSWER_SECONDS) as answer:
        if not answer.headers.get("content-type", "").startswith(MEDIA_TYPE):
            # A server of before.
            return await answer.json()
        parser = _Events()
        async for piece in answer.pieces(_SILENCE_SECONDS):
            for kind, _, body in parser.feed(piece):
                if kind == "progress":
                    told(int(body["bytes"]))
                elif kind == "done":
                    return body
                elif kind == "error":
                    raise line.refused(body)
    raise NoAnswerError(
        f"{line.url} broke off before it was done; whether it was is not known",
        hint="look at what is there before doing it again",
    )


class _Events:
    """Bytes of a text/event-stream become (event, id, data)."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[tuple[str, str, Any]]:
        """The events that are complete now."""
        *blocks, self._pending = (self._pending + data).split(b"\n\n")
        found = []
        for block in blocks:
            fields: dict[str, str] = {}
            for line in block.decode("utf-8", "replace").split("\n"):
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            if fields.get("event") and "data" in fields:
                found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
        return found
