# SPDX-License-Identifier: MIT
"""A gateway on a loop of its own, real servers on loopback addresses, and clients that say where they want to go.

What a namespace does for a box, turning every connection to one listener and remembering where it was to go, is stood
in for by the client's own address: it is told to the gateway before the client connects.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agentbox.egress.events import EgressEvent
from agentbox.egress.gateway import Gateway, Limits
from agentbox.egress.rules import EgressRules
from agentbox.egress.upstream import Upstream
from agentbox.policy.parser import parse
from tests.integration.egress.servers import WAIT_SECONDS, Seen, Servers

IPV4 = socket.AF_INET


def rules_of(*values: str) -> EgressRules:
    """Rules of `net:` values; those that begin with `deny ` are denials."""
    lines = [f"deny: net {value[5:]}" if value.startswith("deny ") else f"net: {value}" for value in values]
    return EgressRules.of(parse("\n".join(lines) + "\n", root="/"))


class Crossings:
    """One gateway and its world."""

    def __init__(self, directory: Path) -> None:
        self.events: list[EgressEvent] = []
        self._wanted: dict[tuple[str, int], tuple[str, int]] = {}
        self._hosts = directory / "hosts"
        self._hosts.write_text("")
        self._stack = ExitStack()
        self._servers = self._stack.enter_context(Servers())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        self.gateway: Gateway

    def start(
        self, *rules: str, limits: Limits | None = None, names: dict[str, str | Sequence[str]] | None = None
    ) -> None:
        """Serve under these rules; `names` are the addresses of names as the host knows them."""
        lines = [
            f"{address} {name}"
            for name, addresses in (names or {}).items()
            for address in ([addresses] if isinstance(addresses, str) else addresses)
        ]
        self._hosts.write_text("\n".join(lines) + "\n")
        self.gateway = self.call(
            lambda: Gateway(
                rules_of(*rules),
                self.events.append,
                Upstream(hosts_file=str(self._hosts)),
                limits=limits,
                destination=self._destination,
            )
        )
        self.call(lambda: self.gateway.listen([self.listener], {}, {}))

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the gateway's loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT_SECONDS)

    def _destination(self, guest: socket.socket) -> tuple[str, int]:
        return self._wanted[guest.getpeername()[:2]]

    def connect(self, host: str, port: int) -> socket.socket:
        """A guest's connection to an address, or to a name by its synthetic address."""
        if host[0].isdigit() or ":" in host:
            where = host
        else:
            where = self.call(lambda: self.gateway.names.address_of(host, IPV4))
        client = socket.socket()
        client.settimeout(WAIT_SECONDS)
        client.bind(("127.0.0.1", 0))
        self._wanted[client.getsockname()] = (where, port)
        client.connect(self.listener.getsockname())
        self._stack.callback(client.close)
        return client

    def keep(self, end: socket.socket) -> socket.socket:
        """A socket that is closed at the end."""
        return self._stack.enter_context(end)

    def serve(self, handle: Callable[[socket.socket, Seen], None], address: str = "127.0.0.1") -> tuple[int, Seen]:
        """A server as `Servers.serve`."""
        return self._servers.serve(handle, address)

    def told(self, op: str, *, allowed: bool | None = None) -> list[EgressEvent]:
        """The events of an operation so far."""
        return [event for event in self.events if event.op == op and allowed in (None, event.allowed)]

    def wait_for(self, holds: Callable[[], object]) -> None:
        """Wait until something holds, seen from the gateway's loop; fails after WAIT_SECONDS."""

        async def wait() -> None:
            async with asyncio.timeout(WAIT_SECONDS):
                while not holds():
                    await asyncio.sleep(0.002)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(WAIT_SECONDS + 1)

    def end_gateway(self) -> None:
        """Close the gateway alone."""
        asyncio.run_coroutine_threadsafe(self.gateway.close(), self._loop).result(WAIT_SECONDS)

    def close(self) -> None:
        """End everything."""
        if hasattr(self, "gateway"):
            self.end_gateway()
        self._stack.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()
