# SPDX-License-Identifier: MIT
"""Where the host looks up the names that rules allow: the system's resolver, or one name server.

Nothing here knows rules: a caller asks only for names that its rules allow. Answers are kept for a short time within
bounds, also that a name does not exist; several who ask for a name at once share one question.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from agentbox.egress import dns
from agentbox.egress.dns import Code
from agentbox.egress.dns_reply import MAX_ADDRESSES, Reply
from agentbox.egress.stub import Server, query
from agentbox.policy.hosts import normal_name, parse_address

HOSTS_FILE = "/etc/hosts"
DEADLINE_SECONDS = 4.5
MAX_KEPT = 4096
MAX_ASKING = 64
_FLIGHTS_PER_SLOT = 4
_KEPT_SECONDS = (5.0, 300.0)
# The system's resolver does not tell for how long an address holds.
_SYSTEM_SECONDS = 30.0
_UNKNOWN_SECONDS = 10.0
_FAILURE_SECONDS = 2.0
_MAX_HOSTS_BYTES = 1 << 20
_LOOPBACK = ("127.0.0.1", "::1")
_NO_ADDRESS = frozenset({getattr(socket, "EAI_NODATA", -5), getattr(socket, "EAI_ADDRFAMILY", -9)})


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a name: its IPv4 and IPv6 addresses in their usual spelling, whether it exists at all, or, in
    `failure`, why nobody could tell. A name may exist without an address."""

    addresses: tuple[str, ...] = ()
    exists: bool = True
    failure: str = ""


_CLOSED = Found(failure="the gateway is being closed")


class Upstream:
    """Looks up names, for all boxes of a process; belongs to one event loop."""

    def __init__(
        self,
        server: str | None = None,
        *,
        hosts_file: str = HOSTS_FILE,
        deadline_seconds: float = DEADLINE_SECONDS,
        max_kept: int = MAX_KEPT,
        max_asking: int = MAX_ASKING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`server` is a name server as `IP[:PORT]`; without it the system's resolver is asked, `hosts_file` first.

        `max_kept` answers are kept, `max_asking` names are asked for at the same time. Raises ConfigError.
        """
        self._server = None if server is None else Server.parse(server)
        self._hosts_file = hosts_file
        self._hosts: tuple[object, dict[str, tuple[str, ...]]] = (None, {})
        self._deadline_seconds = deadline_seconds
        self._max_kept = max_kept
        self._max_asking = max_asking
        self._clock = clock
        self._kept: dict[str, tuple[float, Found]] = {}
        self._flights: dict[str, asyncio.Task[Found]] = {}
        self._slots = asyncio.Semaphore(max_asking)
        self._closed = False

    def known(self, name: str) -> Found | None:
        """What is known of a name without asking anybody."""
        normal = normal_name(name)
        if normal is None:
            return Found(exists=False)
        if normal == "localhost" or normal.endswith(".localhost"):
            return Found(_LOOPBACK)
        kept = self._kept.get(normal)
        if kept is None:
            return None
        if kept[0] <= self._clock():
            del self._kept[normal]
            return None
        return kept[1]

    async def lookup(self, name: str) -> Found:
        """What is known of a name, asking when needed. Takes `deadline_seconds` at most; never raises."""
        found = self.known(name)
        if found is not None:
            return found
        normal = normal_name(name) or ""
        flight = self._flights.get(normal)
        if flight is None:
            if self._closed:
                return _CLOSED
            if len(self._flights) >= _FLIGHTS_PER_SLOT * self._max_asking:
                return Found(failure="too many names are being looked up")
            flight = self._flights[normal] = asyncio.get_running_loop().create_task(self._fly(normal))
        try:
            # Whoever gives up waiting must not take the answer from the others.
            return await asyncio.shield(flight)
        except asyncio.CancelledError:
            if flight.cancelled():
                return _CLOSED
            raise

    async def close(self) -> None:
        """Ask nothing more; whoever waits gets a failure."""
        self._closed = True
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    async def _fly(self, name: str) -> Found:
        try:
            async with asyncio.timeout(self._deadline_seconds):
                found, seconds = await (self._from_system(name) if self._server is None else self._from_server(name))
        except TimeoutError:
            found, seconds = Found(failure="the name server did not answer in time"), _FAILURE_SECONDS
        finally:
            del self._flights[name]
        if len(self._kept) >= self._max_kept:
            del self._kept[next(iter(self._kept))]
        self._kept[name] = (self._clock() + seconds, found)
        return found

    async def _from_server(self, name: str) -> tuple[Found, float]:
        assert self._server is not None
        async with self._slots:
            four, six = await asyncio.gather(
                query(self._server, name, dns.TYPE_A), query(self._server, name, dns.TYPE_AAAA)
            )
        replies = [reply for reply in (four, six) if isinstance(reply, Reply)]
        addresses = tuple(address for reply in replies for address in reply.addresses)
        if addresses:
            ttl = min(reply.ttl_seconds for reply in replies if reply.addresses)
            return Found(addresses), min(max(ttl, _KEPT_SECONDS[0]), _KEPT_SECONDS[1])
        if any(reply.code == Code.NXDOMAIN for reply in replies):
            return Found(exists=False), _UNKNOWN_SECONDS
        failure = next((reply for reply in (four, six) if isinstance(reply, str)), "")
        if failure:
            return Found(failure=f"the name server {self._server.address} gave no answer: {failure}"), _FAILURE_SECONDS
        return Found(), _UNKNOWN_SECONDS

    async def _from_system(self, name: str) -> tuple[Found, float]:
        listed = self._in_hosts_file(name)
        if listed:
            return Found(listed), _KEPT_SECONDS[0]
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[Found, float]] = loop.create_future()

        def landed(result: tuple[Found, float]) -> None:
            # Only now: a thread that waits for a name server cannot be stopped, so it holds its place until it ends.
            self._slots.release()
            if not answer.done():
                answer.set_result(result)

        def ask() -> None:
            result = _getaddrinfo(name)
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(landed, result)

        # Not of a pool: the interpreter would wait for its threads when it ends.
        try:
            threading.Thread(target=ask, name="agentbox-lookup", daemon=True).start()
        except RuntimeError:
            self._slots.release()
            return Found(failure="the host has no room for another thread"), _FAILURE_SECONDS
        return await answer

    def _in_hosts_file(self, name: str) -> tuple[str, ...]:
        try:
            status = os.stat(self._hosts_file)
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._hosts[0] != version:
                self._hosts = (version, _read_hosts(self._hosts_file))
        except OSError:
            return ()
        return self._hosts[1].get(name, ())


def _getaddrinfo(name: str) -> tuple[Found, float]:
    # With a dot at its end a name is asked for as it is: a search list would ask for others, which no rule allows.
    absolute = f"{name}." if "." in name else name
    try:
        found = socket.getaddrinfo(absolute.encode(), None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            return Found(exists=False), _UNKNOWN_SECONDS
        if error.errno in _NO_ADDRESS:
            return Found(), _UNKNOWN_SECONDS
        return Found(failure=f"the system's resolver gave no answer: {error.strerror}"), _FAILURE_SECONDS
    except (OSError, UnicodeError) as error:
        return Found(failure=f"the system's resolver gave no answer: {error}"), _FAILURE_SECONDS
    addresses = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return Found(tuple(addresses)[:MAX_ADDRESSES]), _SYSTEM_SECONDS


def _read_hosts(path: str) -> dict[str, tuple[str, ...]]:
    """Addresses by name of a hosts file. Raises OSError."""
    with open(path, "rb") as file:
        text = file.read(_MAX_HOSTS_BYTES).decode("utf-8", "replace")
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        address = parse_address(words[0]) if words else None
        if address is None:
            continue
        for word in words[1:]:
            name = normal_name(word)
            if name is not None and len(found.get(name, ())) < MAX_ADDRESSES:
                found[name] = (*found.get(name, ()), str(address))
    return found
