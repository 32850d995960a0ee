# SPDX-License-Identifier: MIT
"""A client of one name server that is given by address, and the questions it is asked.

Each question goes from a socket of its own: a port and an id by chance and letters in a case by chance, which a forged
reply would have to guess. A reply that does not fit a datagram is fetched by TCP, as is one that many forged ones came
before.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
import struct
from dataclasses import dataclass

from agentbox.egress import dns, dns_reply
from agentbox.egress.dns import Code
from agentbox.egress.dns_reply import Asked, Reply
from agentbox.errors import ConfigError

# Together less than the five seconds after which the C library of a guest asks again.
_ATTEMPT_SECONDS = (1.0, 1.0, 1.5)
_STREAM_SECONDS = 2.0
_MAX_FORGED = 16
_PORT = 53


class _CaseLostError(Exception):
    """The server answers in other letters than it was asked in."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a name server is."""

    address: str
    port: int = _PORT

    @classmethod
    def parse(cls, text: str) -> Server:
        """The server of `IP`, `IP:PORT` or `[IPv6]:PORT`. Raises ConfigError."""
        host, port = text.strip(), str(_PORT)
        if host.startswith("["):
            host, bracket, after = host[1:].partition("]")
            if not bracket or (after and not after.startswith(":")):
                host = ""
            port = after[1:] if after else port
        elif host.count(":") == 1:
            host, _, port = host.partition(":")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            address = None
        if address is None or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 0xFFFF):
            raise ConfigError(
                f"{text!r} is no address of a name server", hint="write IP, IP:PORT or [IPv6]:PORT, for example 9.9.9.9"
            )
        return cls(str(address), int(port))


async def query(server: Server, name: str, qtype: int) -> Reply | str:
    """What a server says of a name, or why it says nothing. Takes 3.5 seconds at most, and 2 more by TCP.

    Codes other than NOERROR and NXDOMAIN count as no answer.
    """
    problem = "it did not answer in time"
    edns = mixed = True
    for seconds in _ATTEMPT_SECONDS:
        asked = dns_reply.ask(secrets.randbits(16), _mixed(name) if mixed else name, qtype, edns=edns)
        try:
            async with asyncio.timeout(seconds):
                reply = await _by_datagram(server, asked)
            if reply is None or reply.truncated:
                async with asyncio.timeout(_STREAM_SECONDS):
                    reply = await _by_stream(server, asked)
        except _CaseLostError:
            mixed = False
            continue
        except TimeoutError:
            continue
        except (OSError, EOFError) as error:
            problem = getattr(error, "strerror", None) or "the connection ended early"
            continue
        if reply is None or reply.truncated:
            problem = "its answer could not be read"
        elif reply.code in (Code.NOERROR, Code.NXDOMAIN):
            return reply
        else:
            edns = edns and reply.code not in (Code.FORMERR, Code.NOTIMP)
            problem = f"it answered {_code_name(reply.code)}"
    return problem


async def _by_datagram(server: Server, asked: Asked) -> Reply | None:
    """The reply; None when so many others came that one of them may be forged to fit. Raises _CaseLostError."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in server.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as asking:
        # The kernel then passes on nothing that comes from elsewhere, and tells when nobody is there.
        asking.connect((server.address, server.port))
        asking.send(asked.message)
        for _ in range(_MAX_FORGED):
            message = await loop.sock_recv(asking, dns.MAX_STREAM_BYTES)
            reply = dns_reply.read_reply(message, asked)
            if reply is not None:
                return reply
            if dns_reply.lost_case(message, asked):
                raise _CaseLostError
    return None


async def _by_stream(server: Server, asked: Asked) -> Reply | None:
    reader, writer = await asyncio.open_connection(server.address, server.port)
    try:
        writer.write(struct.pack(">H", len(asked.message)) + asked.message)
        await writer.drain()
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        return dns_reply.read_reply(await reader.readexactly(length), asked)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _mixed(name: str) -> str:
    bits = secrets.randbits(len(name) or 1)
    return "".join(letter.upper() if bits >> place & 1 else letter for place, letter in enumerate(name))


def _code_name(code: int) -> str:
    return Code(code).name if code in Code.__members__.values() else f"code {code}"
