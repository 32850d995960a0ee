# SPDX-License-Identifier: MIT
"""The faces of a sandbox, so that one list of behaviours is asked of all of them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from agentbox import AsyncSandbox, Sandbox
from agentbox.sandbox.loops import call

NAMES = ("sandbox", "async sandbox", "sandbox over http", "async sandbox over http")


class Awaited:
    """An asynchronous object of the loop behind the synchronous faces, with its methods as plain ones."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _plain(found) if callable(found) else found


class AwaitedCommand(Awaited):
    """A command, read as the synchronous one is."""

    @property
    def stdout(self) -> bytes:
        return call(self._inner.output())

    @property
    def stderr(self) -> bytes:
        return call(self._inner.output(error=True))

    def follow(self) -> Iterator[tuple[str, bytes]]:
        pieces = self._inner.follow()
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield call(anext(pieces))

    def text(self, begin: int = 0) -> str:
        return str(self._inner.text(begin).text)

    def send(self, data: bytes | str) -> None:
        call(self._inner.send(data.encode() if isinstance(data, str) else data))


class AwaitedSandbox(Awaited):
    """A sandbox, whose commands and forks are wrapped too."""

    @property
    def files(self) -> Awaited:
        return Awaited(self._inner.files)

    def exec(self, *args: Any, **how: Any) -> AwaitedCommand:
        return AwaitedCommand(call(self._inner.exec(*args, **how)))

    def find_commands(self) -> list[AwaitedCommand]:
        return [AwaitedCommand(one) for one in call(self._inner.find_commands())]

    def fork(self, count: int = 1) -> list[AwaitedSandbox]:
        return [AwaitedSandbox(one) for one in call(self._inner.fork(count))]

    @property
    def denials(self) -> Any:
        call(self._inner.refresh())
        return self._inner.denials

    @property
    def core(self) -> Any:
        return self._inner.core


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    async def work(args: Any, how: Any) -> Any:
        found = method(*args, **how)
        if isinstance(found, AsyncIterator):
            return [piece async for piece in found]
        return await found if inspect.isawaitable(found) else found

    return lambda *args, **how: call(work(args, how))


class Face:
    """Makes sandboxes of one face. `over_http` says whether their boxes are a server's."""

    def __init__(self, name: str, url: str, api_key: str) -> None:
        self.name = name
        self.url = url
        self.over_http = "http" in name
        self._asynchronous = "async" in name
        self._server: dict[str, Any] = {"url": url, "api_key": api_key} if self.over_http else {"url": ""}
        self._made: list[Any] = []

    def __repr__(self) -> str:
        return self.name

    def make(self, **how: Any) -> Any:
        """A sandbox that was not started; it is stopped in the end."""
        how = {**self._server, **({} if "sandbox_id" in how else {"backend": "jail"}), **how}
        sandbox: Any
        if self._asynchronous:

            async def make() -> AsyncSandbox:
                return AsyncSandbox(**how)

            sandbox = AwaitedSandbox(call(make()))
        else:
            sandbox = Sandbox(**how)
        self._made.append(sandbox)
        return sandbox

    def start(self, **how: Any) -> Any:
        """A sandbox that runs."""
        sandbox = self.make(**how)
        sandbox.start()
        return sandbox

    def attach(self, sandbox_id: str) -> Any:
        """One that the server has."""
        if self._asynchronous:
            found = call(AsyncSandbox.attach(sandbox_id, **self._server))
            return AwaitedSandbox(found)
        return Sandbox.attach(sandbox_id, **self._server)

    def close(self) -> None:
        """Stop what was made."""
        for sandbox in self._made:
            sandbox.stop()
