# SPDX-License-Identifier: MIT
"""Audit events about names, connections and sockets.

A program looks a name up and then connects to an address. Which name was meant is remembered from the answer of the
look-up, so that a rule for a name also holds for its port.
"""

from __future__ import annotations

import _socket
from time import monotonic

from .channel import text_of
from .effects import Effects
from .net_answers import host_of, parse_address
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNIX = _socket.AF_UNIX
_INTERNET = (_socket.AF_INET, _socket.AF_INET6)
_STREAM_OR_DATAGRAM = (_socket.SOCK_STREAM, _socket.SOCK_DGRAM)
_TYPE_MASK = 0xF
_FAMILY_OF: Any = _socket.socket.family.__get__
_MAX_NAMES = 4096
# What the gateway gives names for addresses (egress/names.py): it alone knows which name one stands for.
_SYNTHETIC = ((4, 0xC6120000, 0xFFFE0000), (6, 0xFD6167626F78 << 80, ((1 << 96) - 1) << 32))
_getaddrinfo = _socket.getaddrinfo


@sealed
class Network:
    """The handlers. Each gives None, or the error to raise."""

    def __init__(self, answers: Any, effects: Effects, view: Any, paths: Any, files: Any) -> None:
        self._answers = answers
        self._effects = effects
        self._view = view
        self._paths = paths
        self._files = files
        self._opening = effects.channel.opening
        self._names: dict[Any, Any] = {}
        self._asking: dict[int, Any] = {}

    def handlers(self) -> Any:
        """The handlers by the name of their event."""
        found = {
            "socket.connect": self.on_connect,
            "socket.sendto": self.on_connect,
            "socket.sendmsg": self.on_connect,
            "socket.bind": self.on_bind,
            "socket.getaddrinfo": self.on_lookup,
            "socket.gethostbyname": self.on_lookup,
            "socket.gethostbyaddr": self.on_lookup,
        }
        if self._effects.strict:
            found["socket.__new__"] = self.on_new
        return found

    def on_lookup(self, host: Any, *_: Any) -> Any:
        """A look-up of a name; an address needs none."""
        if self._asking and self._asking.get(id(host)) is host:
            return None
        name = _text(host)
        if name is None or name == "" or parse_address(name) is not None:
            return None
        allowed = self._answers.resolve(name)[0]
        if not allowed and not (name.lower().rstrip(".") == "localhost" and not self._effects.strict):
            return self._effects.deny("net", name)
        if self._effects.strict:
            self._look_up(name)
        self._effects.observed("net.resolve", text_of({"host": name}))
        return None

    def _look_up(self, name: str) -> None:
        """Ask for the addresses here: what a program says that a name has is not believed without a wall."""
        # A string of its own: the event of this very look-up is recognised by it.
        own = (name + ".")[:-1]
        self._asking[id(own)] = own
        try:
            found = _getaddrinfo(own, None)
        except OSError:
            return
        finally:
            del self._asking[id(own)]
        self.remember(name, [entry[4][0] for entry in found])

    def on_connect(self, socket: Any, address: Any) -> Any:
        """A connection, or a datagram to an address."""
        if self._opening and self._opening.get(id(socket)) is socket:
            return None
        if address is None:
            return None
        family = _FAMILY_OF(socket)
        if family == _UNIX:
            return self._unix(address, "net.connect")
        if family not in _INTERNET:
            return self._effects.deny("net", f"address family {int(family)}") if self._effects.strict else None
        if not issubclass(type(address), tuple) or tuple.__len__(address) < 2:
            # The call itself refuses it, in its own words.
            return None
        host, port = _text(tuple.__getitem__(address, 0)), tuple.__getitem__(address, 1)
        if host is None:
            return self._effects.deny("net", "an address that is no text")
        return self._internet(host, port)

    def _internet(self, host: str, port: Any) -> Any:
        if not self._effects.strict and _is_synthetic(parse_address(host)):
            # Behind a wall the gateway decides on names, and records what it decides.
            return None
        now = monotonic()
        verdict = self._answers.connect(host, port, None, now)
        shown: dict[str, Any] = {"host": host, "port": port}
        address = parse_address(host)
        if not verdict[0] and address is not None:
            for name in self._names.get(address, ()):
                verdict = self._answers.connect(name, port, host, now)
                if verdict[0]:
                    shown = {"host": name, "port": port, "address": host}
                    break
        if verdict[0] or self._is_own(address):
            return self._effects.happens("net.connect", text_of(shown))
        return self._effects.deny("net", f"{host}:{port}")

    def _is_own(self, address: Any) -> bool:
        """Behind a wall the loopback addresses are the box's own, and no rule is needed for them."""
        if self._effects.strict or address is None:
            return False
        return bool(address == (6, 1) or (address[0] == 4 and address[1] >> 24 == 127))

    def _unix(self, address: Any, op: str) -> Any:
        text = _text(address)
        if text is None or text == "":
            return None
        if text[:1] == "\0":
            path = "@" + text[1:]
            if not self._effects.strict:
                self._effects.observed(op, text_of({"path": path}))
                return None
        else:
            path = self._paths.resolve(text)[0]
            if self._view.is_private(path):
                return None
        if self._answers.unix(path, monotonic())[0]:
            return self._effects.happens(op, text_of({"path": path}))
        return self._effects.deny("net", f"unix:{path}")

    def on_bind(self, socket: Any, address: Any) -> Any:
        """A name for a socket. Behind a wall the box has a network of its own; else a rule must name the address."""
        family = _FAMILY_OF(socket)
        if family == _UNIX:
            text = _text(address)
            if text is None or text[:1] in ("", "\0"):
                return None if not self._effects.strict or not text else self._unix(address, "net.bind")
            return self._files.change("net.bind", text)
        if family not in _INTERNET or not self._effects.strict:
            return None
        if not issubclass(type(address), tuple) or tuple.__len__(address) < 2:
            return None
        host = _text(tuple.__getitem__(address, 0)) or "0.0.0.0"  # noqa: S104 - that is what it means
        port = tuple.__getitem__(address, 1)
        if self._answers.resolve(host)[0]:
            return self._effects.happens("net.bind", text_of({"host": host, "port": port}))
        return self._effects.deny("net", f"{host}:{port}")

    def on_new(self, _socket: Any, family: Any, kind: Any, _protocol: Any) -> Any:
        """Kinds of sockets that no rule speaks of, where no wall refuses them."""
        if family in (-1, _UNIX) or (family in _INTERNET and (kind & _TYPE_MASK) in (0, 1, 2, _TYPE_MASK)):
            return None
        return self._effects.deny("net", f"socket of family {int(family)} and type {int(kind) & _TYPE_MASK}")

    def remember(self, host: Any, addresses: Any) -> None:
        """A look-up of a name gave these addresses."""
        name = _text(host)
        found = None if name is None else host_of(name)
        if found is None or not found[0]:
            return
        for text in addresses:
            address = parse_address(text) if type(text) is str else None
            if address is None:
                continue
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            names = self._names.get(address, ())
            if found[0] not in names:
                self._names[address] = (found[0], *names[:15])


def _is_synthetic(address: Any) -> bool:
    return address is not None and any(address[0] == of and address[1] & mask == net for of, net, mask in _SYNTHETIC)


def _text(value: Any) -> Any:
    """The text of a host or of a socket's path; None for what is neither."""
    if type(value) is str:
        return value
    if issubclass(type(value), str):
        return str.__str__(value)
    if issubclass(type(value), bytes):
        return bytes.__getitem__(value, slice(None)).decode("utf-8", "surrogateescape")
    if type(value) is bytearray:
        return bytes(value).decode("utf-8", "surrogateescape")
    return None
