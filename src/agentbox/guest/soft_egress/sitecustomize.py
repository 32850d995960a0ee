# SPDX-License-Identifier: MIT
"""Refuses connections to hosts that AGENTBOX_EGRESS_HOSTS does not name. Loaded by Python at its start, through
PYTHONPATH; runs inside the guest, so it asks nobody and only stops code that does not mean to get around it."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_VARIABLE = "AGENTBOX_EGRESS_HOSTS"
_MAX_ADDRESSES = 4096


def _entries(text: str) -> dict[str, set[int | None]]:
    """Ports by host; None among them is any port."""
    found: dict[str, set[int | None]] = {}
    for entry in filter(None, text.split(",")):
        host, _, port = entry.partition(":")
        found.setdefault(host.lower().rstrip("."), set()).add(int(port) if port else None)
    return found


def _install(allowed: dict[str, set[int | None]]) -> None:
    import _socket

    ports_of = dict(allowed)
    asking: list[str] = []
    inet = (_socket.AF_INET, _socket.AF_INET6)

    def text_of(host: Any) -> str:
        if isinstance(host, (bytes, bytearray)):
            host = bytes(host).decode("ascii", "replace")
        return host.lower().rstrip(".").partition("%")[0] if isinstance(host, str) else ""

    def refuse(host: Any) -> NoReturn:
        raise OSError("agentbox egress denied: " + str(host))

    def is_address(host: str) -> bool:
        for family in inet:
            try:
                _socket.inet_pton(family, host)
            except OSError:
                continue
            return True
        return False

    def on_lookup(host: Any) -> None:
        name = text_of(host)
        if asking or not name or is_address(name):
            return
        if name not in allowed:
            refuse(host)
        asking.append(name)
        try:
            found = _socket.getaddrinfo(name, None)
        except OSError:
            return
        finally:
            asking.pop()
        if len(ports_of) > _MAX_ADDRESSES:
            ports_of.clear()
            ports_of.update(allowed)
        for entry in found:
            address = str(entry[4][0])
            ports_of[address] = ports_of.get(address, set()) | allowed[name]

    def on_connect(sock: Any, address: Any) -> None:
        if address is None or sock.family not in inet or not isinstance(address, tuple) or len(address) < 2:
            return
        host = text_of(address[0])
        if host and not is_address(host):
            on_lookup(host)
        ports = ports_of.get(host, set())
        if None not in ports and address[1] not in ports:
            refuse(address[0])

    def hook(event: str, arguments: Any) -> None:
        if not event.startswith("socket."):
            return
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            on_connect(*arguments[:2])
        elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
            on_lookup(arguments[0])

    sys.addaudithook(hook)


def _next_sitecustomize() -> None:
    """Another one that is installed here must run too: Python loads only the first on its path."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if _VARIABLE in os.environ:
    _install(_entries(os.environ[_VARIABLE]))
    _next_sitecustomize()
