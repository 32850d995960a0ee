# SPDX-License-Identifier: MIT
"""Copies between this machine and a box of a server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
import secrets
import time
from typing import TYPE_CHECKING

from agentbox.cli import exit_codes
from agentbox.cli.console import Progress, fail, say
from agentbox.cli.server_options import amount

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbox.cli.server_options import Server
    from agentbox.sandbox.core import SandboxFiles

_INSIDE = re.compile(r"(sbx-[0-9a-f]+):(.*)\Z", re.DOTALL)
_QUIET_SECONDS = 1.0
_STEP_SECONDS = 0.1
_BAR_WIDTH = 24


async def copy(server: Server, source: str, target: str) -> None:
    """Copy one way or the other. Raises SandboxError, OSError."""
    out, into = _INSIDE.match(source), _INSIDE.match(target)
    if (out is None) == (into is None):
        fail(
            "one of both sides must be in a box",
            "write it as ID:PATH, for example `agentbox sandbox cp ./project sbx-1f3a5c7e9b2d4f60:project`",
            exit_codes.USAGE,
        )
    found = out or into
    assert found is not None
    box = await server.attach(found[1])
    try:
        bar = Bar()
        try:
            if into is not None:
                path = await _place_inside(box.files, into[2] or ".", source)
                bar.total = await asyncio.to_thread(_size, source)
                copied = await box.files.upload(source, path, told=bar.show)
                where = f"{into[1]}:{path}"
            else:
                assert out is not None
                where = await asyncio.to_thread(_place_here, target, out[2])
                copied = await _download(box.files, out[2] or ".", where, bar)
        finally:
            bar.clear()
        say(f"copied {amount(copied)} to {where}")
    finally:
        await box.stop()


async def _place_inside(files: SandboxFiles, path: str, source: str) -> str:
    """Where it goes: below what is a directory already, if it is a file or that was said with a slash."""
    name = await asyncio.to_thread(lambda: os.path.basename(os.path.abspath(source)))
    if path.endswith("/"):
        return posixpath.join(path, name)
    try:
        there = (await files.info(path)).kind == "directory"
    except (FileNotFoundError, NotADirectoryError):
        return path
    return posixpath.join(path, name) if there else path


def _place_here(target: str, path: str) -> str:
    name = posixpath.basename(posixpath.normpath(posixpath.join("/work", path))) or "root"
    return os.path.join(target, name) if os.path.isdir(target) or target.endswith("/") else target


async def _download(files: SandboxFiles, path: str, to: str, bar: Bar) -> int:
    about = await files.info(path)
    if about.kind == "directory":
        return await files.download(path, to, told=bar.show)
    bar.total = about.size
    # Nobody finds half a file under its name.
    beside = f"{to}.{secrets.token_hex(4)}.part"
    try:
        copied = await files.download(path, beside, told=bar.show)
        await asyncio.to_thread(os.replace, beside, to)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        raise
    os.chmod(to, about.mode & 0o777 | 0o600)
    return copied


def _size(path: str) -> int:
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(
        os.lstat(os.path.join(above, name)).st_size
        for above, _, names in os.walk(path)
        for name in names
        if os.path.isfile(os.path.join(above, name)) and not os.path.islink(os.path.join(above, name))
    )


class Bar:
    """How far a copy is, on a terminal, once it takes longer than a second. `total` is None where that is not known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.total: int | None = None
        self._clock = clock
        self._progress = Progress()
        self._begun = clock()
        self._next = self._begun + _QUIET_SECONDS

    def show(self, copied: int) -> None:
        """So many bytes are copied."""
        now = self._clock()
        if now >= self._next:
            self._next = now + _STEP_SECONDS
            self._progress.show(self.text(copied, now))

    def text(self, copied: int, now: float) -> str:
        """The line."""
        rate = f"{amount(round(copied / max(now - self._begun, 0.001)))}/s"
        if not self.total:
            return f"{amount(copied)}  {rate}"
        done = min(1.0, copied / self.total)
        filled = round(done * _BAR_WIDTH)
        bar = "#" * filled + "." * (_BAR_WIDTH - filled)
        return f"[{bar}] {done:4.0%}  {amount(copied)} of {amount(self.total)}  {rate}"

    def clear(self) -> None:
        """Remove the line."""
        self._progress.clear()
