# SPDX-License-Identifier: MIT
"""Ports of the loopback that stay the test's own: held from the moment they are chosen, so that nobody takes them."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

IPV4, IPV6 = "127.0.0.1", "::1"
STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
TURNS = 1000


def sockets_at_one_port(*wanted: tuple[str, int]) -> list[socket.socket]:
    """Bound sockets, one for each address and type, all at one port. Streams do not listen yet.

    The kernel chooses a port for the first; where another socket of it is taken, a port is given up only after the next
    was chosen, so that no port comes twice. Fails with the OSError of any other trouble.
    """
    with contextlib.ExitStack() as given_up:
        for _ in range(TURNS):
            port, bound = 0, contextlib.ExitStack()
            try:
                made = []
                for address, kind in wanted:
                    family = socket.AF_INET6 if ":" in address else socket.AF_INET
                    made.append(bound.enter_context(socket.socket(family, kind)))
                    made[-1].bind((address, port))
                    port = made[0].getsockname()[1]
            except OSError as error:
                given_up.push(bound)
                if error.errno != errno.EADDRINUSE or not port:
                    raise
            else:
                return made
    raise AssertionError(f"no port of {TURNS} was free for all of {wanted}")


@contextlib.contextmanager
def port_that_refuses(kind: int = STREAM) -> Iterator[int]:
    """A port of 127.0.0.1 at which connections, or datagrams, are refused: it is held, and nobody listens at it."""
    with socket.socket(socket.AF_INET, kind) as held, socket.socket(socket.AF_INET, kind) as other:
        held.bind((IPV4, 0))
        if kind == DATAGRAM:
            # Of datagrams a socket that is connected takes those of its peer alone.
            other.bind((IPV4, 0))
            held.connect(other.getsockname())
        yield int(held.getsockname()[1])
