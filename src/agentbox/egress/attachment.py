# SPDX-License-Identifier: MIT
"""What connects a box with the gateway: a network namespace of its own, and sockets that were made in it.

The namespace has no interface but `lo`, where every address is local. The kernel's rules there (fitting.py) turn every
TCP connection to anything but 127.0.0.0/8 and ::1 to `stream_listeners`, and what is sent to port 53 to the sockets for
names. A socket stays in the namespace that it was made in, so whoever holds these accepts the box's connections
directly; nothing of ours runs inside, and a guest without CAP_NET_ADMIN there can change nothing.

    attachment = await stock.lease()                                  # stock.py; handed out once
    box = await backend.launch(..., network=Network(attachment.namespace_fd, attachment.user_namespace_fd))
    connection, _ = attachment.stream_listeners[0].accept()           # non-blocking listeners: any loop can serve them
    where = original_destination(connection)                          # ("192.0.2.7", 443): where the guest wanted to go
    ports = await attachment.open_loopback_ports({8080})              # {8080: [listener of 127.0.0.1, of ::1]}
    attachment.close()                                                # what the guest opens now is refused at once

Each kind of socket comes once for IPv4 and, unless `ipv6` is false, once more for IPv6. The peer's address of an
accepted connection says nothing: it is an address of the namespace, or one that the guest chose.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from agentbox.egress.fitting import read_dropped

_SO_ORIGINAL_DST = 80
_SOL_IPV6 = 41


def original_destination(connection: socket.socket) -> tuple[str, int]:
    """The address and port that the guest connected to, of a connection accepted from `stream_listeners` or
    `dns_streams`. Raises OSError when the kernel does not know them any more (the connection is long dead)."""
    if connection.family == socket.AF_INET6:
        found = connection.getsockopt(_SOL_IPV6, _SO_ORIGINAL_DST, 28)
        return socket.inet_ntop(socket.AF_INET6, found[8:24]), struct.unpack_from("!H", found, 2)[0]
    found = connection.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
    return socket.inet_ntop(socket.AF_INET, found[4:8]), struct.unpack_from("!H", found, 2)[0]


OpenPorts = Callable[["Attachment", Iterable[int]], Awaitable[dict[int, list[socket.socket]]]]


@dataclass(slots=True, eq=False)
class Attachment:
    """One box's way to the gateway. Its descriptors belong to this process until `close`.

    `namespace_fd` is the network namespace to join, `user_namespace_fd` the user namespace to be entered first where an
    ordinary user made both, else None. All sockets are non-blocking. `notes` say, for people, what this host could not
    give (IPv6, for instance).
    """

    namespace_fd: int
    user_namespace_fd: int | None
    stream_listeners: list[socket.socket]
    dns_datagrams: list[socket.socket]
    dns_streams: list[socket.socket]
    ipv6: bool
    notes: tuple[str, ...]
    _netfilter: socket.socket
    _open_ports: OpenPorts
    _dropped: int = field(default=0)
    _closed: bool = field(default=False)

    async def open_loopback_ports(self, ports: Iterable[int]) -> dict[int, list[socket.socket]]:
        """Listeners inside, at 127.0.0.1:P and [::1]:P for each port; the caller closes them.

        Raises IsolationError when a port is taken already; none is open then.
        """
        return await self._open_ports(self, ports)

    def dropped(self) -> int:
        """How many packets the guest sent elsewhere than to a TCP port or a name server, and lost."""
        if not self._closed:
            self._dropped = read_dropped(self._netfilter)
        return self._dropped

    @property
    def namespace_path(self) -> str:
        """A path of the namespace that other programs can enter it by, while this process holds it; for runtimes that
        are started inside (`nsenter --net=PATH runsc --network=host ...`)."""
        return f"/proc/{os.getpid()}/fd/{self.namespace_fd}"

    def close(self) -> None:
        """Close every descriptor. The namespace lives as long as a process in it does; connections that the guest
        opens there from now on are refused. May be called twice."""
        if self._closed:
            return
        try:
            self.dropped()
        except OSError:
            # Whoever needs the exact count asks before the end.
            self._dropped = max(self._dropped, 0)
        self._closed = True
        for sock in (*self.stream_listeners, *self.dns_datagrams, *self.dns_streams, self._netfilter):
            sock.close()
        for fd in (self.namespace_fd, self.user_namespace_fd):
            if fd is not None:
                os.close(fd)
