# SPDX-License-Identifier: MIT
"""The gateway of one box: takes the connections that its guest makes, and passes on what the rules allow.

    gateway = Gateway(rules, on_event, Upstream())
    await gateway.serve(attachment, await attachment.open_loopback_ports(rules.loopback_ports), {})
    gateway.replace(other_rules)      # ends connections that these do not allow
    await gateway.close()             # before the attachment is closed

What decides, and when:

- A synthetic address is its name. The gateway resolves that name itself, asks the rules about each address, and
  connects to those it asked about. A synthetic address that stands for no name now is refused.
- A literal address is itself.
- A loopback port leads to that port of the host, a UNIX socket to the host's of the same path.
- What a client says first must fit: the server name of TLS is the name connected to; for a literal address it is absent
  or a name that the rules allow there. An encrypted hello is judged by its outer name. Every HTTP request names the
  host connected to, or one that the rules allow as well (a proxy's client does). What a proxy is asked to connect to is
  judged as if it were connected to. Upgraded connections, HTTP/2 in clear and other protocols are tunnels to the one
  host that was judged.

All of it happens on the event loop on which `serve` was called.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from agentbox.egress.attachment import Attachment, original_destination
from agentbox.egress.crossing import Crossing
from agentbox.egress.dialing import dial, dial_unix, finish, start
from agentbox.egress.events import EgressEvent, OnEvent, Repeats
from agentbox.egress.names import SyntheticNames, is_synthetic
from agentbox.egress.pipes import Pipes, Room
from agentbox.egress.resolver import Resolver
from agentbox.egress.rules import EgressRules, Verdict
from agentbox.egress.shares import Budget, Share
from agentbox.egress.stream import Relay
from agentbox.egress.target import Denied, Reached, Target, denial_of
from agentbox.egress.upstream import Upstream
from agentbox.policy.hosts import parse_address

MAX_HOSTS_COUNTED = 4096
OTHER_HOSTS = "(other hosts)"
_ACCEPTS_A_TURN = 64
_SWEEP_SECONDS = 0.25
_PAUSE_SECONDS = 0.1
# Descriptors of this process that connections leave to everything else.
_SPARE_DESCRIPTORS = 256
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Destination = Callable[[socket.socket], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the host one box may take. `connections` may be open at a time; the first `events_told` events of
    allowed connections are told one by one, those after them in steps, as denials are from the first."""

    connections: int = 5000
    events_told: int = 10_000


@dataclass(slots=True)
class HostCount:
    """What went to one host and came from it."""

    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class Gateway:
    """One box's way out."""

    def __init__(
        self,
        rules: EgressRules,
        on_event: OnEvent,
        upstream: Upstream,
        *,
        names: SyntheticNames | None = None,
        limits: Limits | None = None,
        destination: Destination = original_destination,
        pipes: Pipes | None = None,
        share: Share | None = None,
    ) -> None:
        """`destination` tells where an accepted connection was meant to go; `pipes` may be shared by all gateways of a
        process, and `share` is what this one may hold beside them."""
        self.rules = rules
        self.names = SyntheticNames() if names is None else names
        self._on_event = on_event
        self._repeats = Repeats(on_event)
        self._told = 0
        self._upstream = upstream
        self._limits = limits or Limits()
        self._destination = destination
        self._pipes = pipes or Pipes()
        self._owns_pipes = pipes is None
        self._share = share or Budget(self._limits.connections, 1).share()
        self._counts: dict[str, HostCount] = {}
        self._open: dict[Relay, None] = {}
        self._pressed: dict[Crossing, float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._listening: dict[socket.socket, Callable[[socket.socket], None]] = {}
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._room: Room | None = None
        self._resolver: Resolver | None = None
        self._attachment: Attachment | None = None
        self._closed = False

    @property
    def counters(self) -> Mapping[str, HostCount]:
        """Connections and bytes by host, with those of open connections; `OTHER_HOSTS` has what MAX_HOSTS_COUNTED left
        out."""
        counted = {host: replace(count) for host, count in self._counts.items()}
        for relay in self._open:
            if isinstance(relay, Crossing) and relay.connected:
                count = counted.setdefault(self._counted_as(relay), HostCount())
                count.bytes_up += relay.up.moved
                count.bytes_down += relay.down.moved
        return counted

    async def serve(
        self,
        attachment: Attachment,
        loopback_ports: Mapping[int, Sequence[socket.socket]],
        unix_listeners: Mapping[str, socket.socket],
    ) -> None:
        """Begin to take connections and questions for names; returns at once, `close` ends it.

        The sockets stay the caller's. `loopback_ports` are listeners inside by port, `unix_listeners` by the path of
        the host's socket.
        """
        resolver = self._resolver = Resolver(lambda: self.rules, self.names, self._upstream, self._on_event)
        self._attachment = attachment
        for sock in attachment.dns_datagrams:
            resolver.serve_udp(sock)
        for sock in attachment.dns_streams:
            resolver.serve_tcp(sock)
        self.listen(attachment.stream_listeners, loopback_ports, unix_listeners)

    def listen(
        self,
        streams: Sequence[socket.socket],
        loopback_ports: Mapping[int, Sequence[socket.socket]],
        unix_listeners: Mapping[str, socket.socket],
    ) -> None:
        """Begin to take connections of these listeners too, as `serve` does."""
        if self._room is None:
            self._room = Room(asyncio.get_running_loop(), self._pipes)
        for listener in streams:
            self._listen(listener, self._take_stream)
        for port, listeners in loopback_ports.items():
            for listener in listeners:
                self._listen(listener, partial(self._take_loopback, port))
        for path, listener in unix_listeners.items():
            self._listen(listener, partial(self._take_unix, path))

    def replace(self, rules: EgressRules) -> None:
        """Let other rules hold from now on; connections that they do not allow are reset."""
        self.rules = rules.continued_from(self.rules)
        for relay in list(self._open):
            if isinstance(relay, Crossing):
                relay.recheck()

    async def close(self) -> None:
        """Take nothing more and reset what is open; everything that was counted is told."""
        if self._closed:
            return
        self._closed = True
        if self._room is not None:
            for listener in self._listening:
                self._room.loop.remove_reader(listener.fileno())
        self._listening.clear()
        for handle in (*self._pauses.values(), *([self._sweep] if self._sweep else [])):
            handle.cancel()
        for relay in list(self._open):
            relay.abort()
        self._share.end()
        if self._resolver is not None:
            await self._resolver.close()
        self._tell_dropped()
        self._repeats.flush()
        if self._owns_pipes:
            self._pipes.close()

    # What crossings need

    def tell(self, event: EgressEvent) -> None:
        """Hand an event on; equal ones in steps."""
        if event.allowed and self._told < self._limits.events_told:
            self._told += 1
            self._on_event(event)
        else:
            self._repeats(event)

    def press(self, crossing: Crossing, seconds: float | None) -> None:
        """Call `late` of a crossing after so many seconds; None calls it off."""
        if seconds is None:
            self._pressed.pop(crossing, None)
            return
        self._pressed[crossing] = time.monotonic() + seconds
        if self._sweep is None and self._room is not None:
            self._sweep = self._room.loop.call_later(_SWEEP_SECONDS, self._sweep_pressed)

    def _sweep_pressed(self) -> None:
        self._sweep = None
        now = time.monotonic()
        for crossing in [crossing for crossing, until in self._pressed.items() if until <= now]:
            self._pressed.pop(crossing, None)
            crossing.late()
        if self._pressed and self._sweep is None and self._room is not None and not self._closed:
            self._sweep = self._room.loop.call_later(_SWEEP_SECONDS, self._sweep_pressed)

    # Accepting

    def _listen(self, listener: socket.socket, take: Callable[[socket.socket], None]) -> None:
        assert self._room is not None
        listener.setblocking(False)
        self._listening[listener] = take
        self._room.loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        take = self._listening.get(listener)
        for _ in range(_ACCEPTS_A_TURN):
            if take is None:
                return
            try:
                guest, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._after_failed_accept(listener, error)
                return
            guest.setblocking(False)
            full = len(self._open) >= self._limits.connections or not self._share.has_room
            if full or guest.fileno() >= _most_descriptors():
                self._overfull(guest)
                continue
            try:
                take(guest)
            except OSError:
                # It was reset before it could be asked where it was to go.
                guest.close()

    def _after_failed_accept(self, listener: socket.socket, error: OSError) -> None:
        """Out of descriptors or memory: the queue stays readable, so look away for a moment. Else it is the end of
        this listener."""
        assert self._room is not None
        self._room.loop.remove_reader(listener.fileno())
        if error.errno in _NO_ROOM:
            self._pauses[listener] = self._room.loop.call_later(_PAUSE_SECONDS, self._resume, listener)
        else:
            del self._listening[listener]

    def _resume(self, listener: socket.socket) -> None:
        self._pauses.pop(listener, None)
        if self._room is not None and listener in self._listening:
            self._room.loop.add_reader(listener.fileno(), self._accept, listener)

    def _overfull(self, guest: socket.socket) -> None:
        reason = "there are as many connections open as this box may have"
        hint = (
            f"close some of its {len(self._open)} that are not used any more; boxes of this host share its descriptors"
        )
        self.tell(EgressEvent("net.connect", "", False, reason=reason, hint=hint))
        assert self._room is not None
        Relay(self._room, guest, lambda _: None).abort()

    def _crossing(self, guest: socket.socket, target: Target) -> Crossing:
        assert self._room is not None
        if target.port is not None:
            guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        crossing = Crossing(self._room, guest, target, self, self._forget)
        self._open[crossing] = None
        self._share.take()
        return crossing

    def _take_stream(self, guest: socket.socket) -> None:
        """A connection to anywhere but the guest's own loopback."""
        where, port = self._destination(guest)
        name = self.names.name_of(where)
        if name is not None:
            self._take_name(guest, Target(name, port))
            return
        address = parse_address(where)
        host = where if address is None else str(address)
        target = Target(host, port, host)
        if is_synthetic(where):
            reason = "this address stands for no name any more"
            hint = "look the name up again"
            self._crossing(guest, target).deny(EgressEvent("net.connect", host, False, port, reason=reason, hint=hint))
            return
        verdict = self.rules.connect(host, port)
        if verdict.allowed:
            self._go(guest, target, [host], verdict)
        else:
            self._crossing(guest, target).deny(denial_of(target, verdict))

    def _take_name(self, guest: socket.socket, target: Target) -> None:
        assert target.port is not None
        found = self._upstream.known(target.host)
        if found is not None and found.addresses:
            try:
                allowed, verdict = self._judge(target, found.addresses)
            except Denied as denied:
                self._crossing(guest, target).deny(denied.event)
            else:
                self._go(guest, target, allowed, verdict)
            return
        ahead = self.rules.connect(target.host, target.port, counted=False)
        if ahead.allowed:
            self._crossing(guest, target).begin(lambda: self._reach_name(target))
        else:
            self._crossing(guest, target).deny(denial_of(target, ahead))

    def _go(self, guest: socket.socket, target: Target, addresses: Sequence[str], verdict: Verdict) -> None:
        """Connect to addresses that were judged; to a single one at once, without a turn of the loop."""
        crossing = self._crossing(guest, target)
        if len(addresses) != 1 or target.port is None:
            crossing.begin(lambda: self._reach(addresses, target, verdict))
            return
        address = addresses[0]
        try:
            end, connected = start(address, target.port)
        except OSError as error:
            crossing.begin(partial(_raise, error))
            return
        reached = Reached(end, target.host, address, verdict)
        crossing.begin(reached if connected else partial(_finish, reached))

    def _take_loopback(self, port: int, guest: socket.socket) -> None:
        """A connection to a port of the guest's loopback that a rule leads to the host's."""
        first, second = ("::1", "127.0.0.1") if guest.family == socket.AF_INET6 else ("127.0.0.1", "::1")
        target = Target(first, port, first)
        routes = [(first, first), ("localhost", first), (second, second), ("localhost", second)]
        verdicts = [(host, address, self.rules.connect(host, port, address, counted=False)) for host, address in routes]
        allowed = [(host, address) for host, address, verdict in verdicts if verdict.allowed]
        if not allowed:
            self._crossing(guest, target).deny(denial_of(target, verdicts[0][2]))
            return
        self._crossing(guest, target).begin(lambda: self._reach_loopback(target, allowed))

    def _take_unix(self, path: str, guest: socket.socket) -> None:
        """A connection to a UNIX socket that stands for the host's of the same path."""
        target = Target(path, None)
        verdict = self.rules.unix(path)
        if not verdict.allowed:
            self._crossing(guest, target).deny(denial_of(target, verdict))
            return

        async def reach() -> Reached:
            return Reached(await dial_unix(path), path, None, verdict)

        self._crossing(guest, target).begin(reach)

    # Connecting

    async def _reach_name(self, target: Target) -> Reached:
        """Resolve once, and connect to an address that was judged."""
        host = target.host
        found = await self._upstream.lookup(host)
        if not found.addresses:
            raise OSError(found.failure or ("it has no address" if found.exists else "there is no such name"))
        allowed, verdict = self._judge(target, found.addresses)
        return await self._reach(allowed, target, verdict)

    def _judge(self, target: Target, addresses: Sequence[str]) -> tuple[Sequence[str], Verdict]:
        """The addresses of a name that the rules allow, and the verdict on the first; this is what a rate counts.

        Raises Denied when there is none.
        """
        host, port = target.host, target.port
        assert port is not None
        allowed = addresses
        if len(addresses) > 1:
            allowed = [one for one in addresses if self.rules.connect(host, port, one, counted=False).allowed]
        first = allowed[0] if allowed else addresses[0]
        verdict = self.rules.connect(host, port, first)
        if not verdict.allowed:
            verdict = replace(verdict, reason=f"{first}: {verdict.reason}")
            raise Denied(denial_of(target, verdict, first))
        return allowed, verdict

    async def _reach(self, addresses: Sequence[str], target: Target, verdict: Verdict) -> Reached:
        assert target.port is not None
        end, address = await dial(addresses, target.port)
        return Reached(end, target.host, address, verdict)

    async def _reach_loopback(self, target: Target, routes: Sequence[tuple[str, str]]) -> Reached:
        assert target.port is not None
        failure: Exception = OSError("there is no address to connect to")
        for host, address in routes:
            verdict = self.rules.connect(host, target.port, address)
            if not verdict.allowed:
                raise Denied(denial_of(target, verdict, address))
            try:
                end, _ = await dial([address], target.port)
            except (OSError, TimeoutError) as error:
                failure = error
                continue
            return Reached(end, host, address, verdict)
        raise failure

    # Counting

    def _forget(self, relay: Relay) -> None:
        if relay in self._open:
            del self._open[relay]
            self._share.give_back()
        if not isinstance(relay, Crossing):
            return
        self._pressed.pop(relay, None)
        if not relay.connected:
            return
        count = self._counts.setdefault(self._counted_as(relay), HostCount())
        count.connections += 1
        count.bytes_up += relay.up.moved
        count.bytes_down += relay.down.moved
        event = relay.finished_event()
        if event is not None:
            self.tell(event)

    def _counted_as(self, crossing: Crossing) -> str:
        host = crossing.target.host
        return host if host in self._counts or len(self._counts) < MAX_HOSTS_COUNTED else OTHER_HOSTS

    def _tell_dropped(self) -> None:
        dropped = 0
        if self._attachment is not None:
            with contextlib.suppress(OSError):
                dropped = self._attachment.dropped()
        if dropped:
            reason = "packets to other than a TCP port or a name server"
            hint = "only TCP and DNS leave the box"
            self.tell(EgressEvent("net.dropped", "", False, reason=reason, hint=hint, count=dropped))


def _most_descriptors() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS


async def _finish(reached: Reached) -> Reached:
    await finish(reached.end)
    return reached


async def _raise(error: OSError) -> Reached:
    raise error
