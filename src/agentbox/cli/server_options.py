# SPDX-License-Identifier: MIT
"""What commands that speak with a server share: its address, the key, and errors as lines."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbox.sandbox.asynchronous import AsyncSandbox
    from agentbox.sandbox.line import Line

DEFAULT_URL = "http://127.0.0.1:8080"


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --url and --key; the command gets one `server`."""

    @click.option("--url", metavar="URL", help=f"Address of the server [default: AGENTBOX_URL, else {DEFAULT_URL}].")
    @click.option("--key", metavar="KEY", help="API key [default: AGENTBOX_TOKEN].")
    @functools.wraps(command)
    def with_server(*args: Any, url: str | None, key: str | None, **more: Any) -> Any:
        return command(*args, server=Server(url, key), **more)

    return with_server


class Server:
    """The server that a command speaks with."""

    def __init__(self, url: str | None, key: str | None) -> None:
        from agentbox.config import server_of_clients

        with errors_are_lines():
            usual_url, usual_key = server_of_clients()
        self.url = url or usual_url or DEFAULT_URL
        self.key = usual_key if key is None else key

    def line(self) -> Line:
        """Requests to it. Raises SandboxError for what is no address."""
        from agentbox.sandbox.line import Line

        return Line(self.url, self.key)

    async def attach(self, sandbox_id: str) -> AsyncSandbox:
        """One of its sandboxes. Raises SandboxError."""
        from agentbox.sandbox.asynchronous import AsyncSandbox

        return await AsyncSandbox.attach(sandbox_id, url=self.url, api_key=self.key)

    async def about(self, sandbox_id: str, method: str, path: str, **how: Any) -> Any:
        """The JSON of one answer about one sandbox. Raises as Line.ask."""
        from agentbox.sandbox.remote import checked_id

        return await self.ask(method, f"/{checked_id(sandbox_id)}{path}", **how)

    async def about_with_progress(self, sandbox_id: str, path: str, value: object, told: Callable[[int], None]) -> Any:
        """As `about`, for a POST that copies a workspace; `told` hears how many bytes are copied so far."""
        from agentbox.sandbox.remote import checked_id
        from agentbox.sandbox.remote_events import ask_with_progress

        line = self.line()
        try:
            return await ask_with_progress(line, "POST", f"/{checked_id(sandbox_id)}{path}", value, told)
        finally:
            await line.close()

    async def ask(self, method: str, path: str, **how: Any) -> Any:
        """The JSON of one answer about sandboxes. Raises as Line.ask."""
        line = self.line()
        try:
            return await line.ask(method, path, **how)
        finally:
            await line.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine; what is wrong becomes a line and an exit code."""
    with lines_for_files():
        return asyncio.run(work)


@contextmanager
def lines_for_files() -> Iterator[None]:
    """As errors_are_lines, also for errors of files."""
    with errors_are_lines():
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            where = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str) else ""
            fail(f"{where}{error.strerror or error}", "", exit_codes.FAILURE)
        except ValueError as error:
            fail(str(error), "", exit_codes.USAGE)


def table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns; nothing of a box may steer the terminal."""
    shown = [tuple(_shown(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in (titles, *shown)) for column in range(len(titles))]
    for row in (titles, *shown):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _shown(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def amount(size: int) -> str:
    """Bytes for people: 512 B, 3.4 MB."""
    value = float(size)
    for unit in ("B", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GB"
