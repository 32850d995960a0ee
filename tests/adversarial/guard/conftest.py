# SPDX-License-Identifier: MIT
"""The guard's own fixtures, for attacks on it, and what an attack must leave as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.guest.conftest import host, node, python
from tests.ports import DATAGRAM, IPV4, STREAM, sockets_at_one_port

__all__ = ["host", "node", "python"]


@contextmanager
def unchanged(secret: Path) -> Iterator[None]:
    """The file, and what lies beside it, is the same afterwards."""

    def state() -> object:
        found = secret.stat()
        return sorted(secret.parent.iterdir()), secret.read_text(), found.st_mtime, found.st_mode

    before = state()
    yield
    assert state() == before


@contextmanager
def unheard() -> Iterator[int]:
    """A port of the loopback at which nothing arrives, neither a connection nor a datagram."""
    listener, datagrams = sockets_at_one_port((IPV4, STREAM), (IPV4, DATAGRAM))
    with listener, datagrams:
        listener.listen()
        listener.setblocking(False)
        datagrams.setblocking(False)
        yield int(listener.getsockname()[1])
        with pytest.raises(BlockingIOError):
            listener.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(9)
