# SPDX-License-Identifier: MIT
"""Run by test_attached_box.py as a program of each standing: a jail whose boxes are attached; prints what happened.

`self-check` examines the backend with attachments. `guest` runs GUEST in one attached box while this process answers
connections with where they wanted to go, then runs it again when the attachment is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict

from agentbox.egress.attachment import Attachment, original_destination
from agentbox.egress.names import GATEWAY_IPV4
from agentbox.egress.stock import AttachmentStock
from agentbox.errors import ConfinementError
from agentbox.isolation.backend import LiveBox
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.interpreters import INTERPRETERS
from agentbox.isolation.network import Network
from agentbox.isolation.selfcheck import examine
from agentbox.models import Confinement, Limits

LIMITS = Limits(timeout_seconds=20, memory_mb=128, cpus=1.0, pids=24, disk_mb=8, max_output_bytes=1 << 16)
FORWARDED = 8080
UNIX = "/run/database/.s.5432"

GUEST = r"""
import json, os, socket, sys
found = {}
def attempt(name, function):
    try:
        found[name] = function()
    except OSError as error:
        found[name] = error.errno
def wanted(host, port, family=socket.AF_INET):
    with socket.socket(family) as sock:
        sock.settimeout(10)
        sock.connect((host, port))
        return sock.recv(200).decode()
def datagram(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(10)
        sock.sendto(b"who?", (host, port))
        return sock.recvfrom(200)[0].decode()
def own_server(host, port, seen_at=None):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        server.bind((host, port))
        server.listen()
        pid = os.fork()
        if pid == 0:
            with socket.create_connection((seen_at or host, port), 10) as client:
                client.sendall(b"from another process")
            os._exit(0)
        connection, _ = server.accept()
        with connection:
            said = connection.recv(100).decode()
        os.waitpid(pid, 0)
        return said
def unix(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        return sock.recv(200).decode()
def read(path):
    with open(path) as file:
        return file.read()
attempt("literal", lambda: wanted("192.0.2.7", 443))
attempt("literal_ipv6", lambda: wanted("2001:db8::7", 80, socket.AF_INET6))
attempt("metadata", lambda: wanted("169.254.169.254", 80))
attempt("gateway_itself", lambda: wanted("198.18.0.1", 65530))
if "closed" not in sys.argv:
    attempt("name", lambda: wanted("allowed.test", 8443))
    attempt("dns_stream", lambda: wanted("192.0.2.53", 53))
    attempt("dns_elsewhere", lambda: datagram("192.0.2.53", 53))
    attempt("dns_ipv6", lambda: datagram("2001:db8::53", 53, socket.AF_INET6))
    attempt("dns_systemd", lambda: datagram("127.0.0.53", 53))
    attempt("forwarded", lambda: wanted("127.0.0.1", FORWARDED))
    attempt("forwarded_ipv6", lambda: wanted("::1", FORWARDED, socket.AF_INET6))
    attempt("unix", lambda: unix(UNIX))
    attempt("unix_of_the_host", lambda: unix(LENT))
    attempt("not_listening", lambda: wanted("127.0.0.1", 9))
    for port in (53, 80, 9999):
        attempt("own_%d" % port, lambda: own_server("127.0.0.1", port))
    attempt("own_everywhere", lambda: own_server("0.0.0.0", 8000, "127.0.0.1"))
    attempt("own_ipv6", lambda: own_server("::1", 8001))
    attempt("udp", lambda: datagram("192.0.2.1", 443))
    attempt("udp_ipv6", lambda: datagram("2001:db8::1", 443, socket.AF_INET6))
    attempt("own_address", lambda: own_server("198.18.0.2", 8002))
    attempt("resolv_conf", lambda: read("/etc/resolv.conf"))
print(json.dumps(found))
"""


@contextlib.asynccontextmanager
async def joined(stock: AttachmentStock) -> AsyncIterator[Network]:
    attachment = await stock.lease()
    try:
        yield network_of(attachment)
    finally:
        attachment.close()


def network_of(attachment: Attachment, *unix: str) -> Network:
    return Network(attachment.namespace_fd, attachment.user_namespace_fd, GATEWAY_IPV4, unix)


@contextlib.asynccontextmanager
async def _directory() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory() as path:
        yield path


async def self_check(facilities: Facilities, stock: AttachmentStock) -> None:
    report = await examine(JailBackend(facilities), None, _directory, networks=lambda: joined(stock), thorough=False)
    print(json.dumps(asdict(report)))


async def tell(listener: socket.socket, what: str) -> None:
    """Answer each connection with where it wanted to go, or with what it reached."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    while True:
        connection, _ = await loop.sock_accept(listener)
        with connection:
            where = what or " port ".join(map(str, original_destination(connection)))
            await loop.sock_sendall(connection, where.encode())


async def answer(sock: socket.socket) -> None:
    """Answer questions for names with an address of the gateway's, and everything else with a word."""
    loop = asyncio.get_running_loop()
    while True:
        asked, peer = await loop.sock_recvfrom(sock, 512)
        if asked == b"who?":
            sock.sendto(b"the name server", peer)
            continue
        question = asked[12 : asked.index(b"\0", 12) + 5]
        for_ipv4 = question[-4:-2] == b"\0\1"
        record = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton("198.18.1.7")
        counts = b"\0\1" + (b"\0\1" if for_ipv4 else b"\0\0") + bytes(4)
        sock.sendto(asked[:2] + b"\x81\x80" + counts + question + (record if for_ipv4 else b""), peer)


async def run(box: LiveBox, python: str, lent: str, *arguments: str) -> dict[str, object]:
    read, write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    ended = await box.start(
        [python, "-I", "-c", f"{FORWARDED=}\n{UNIX=}\nLENT={lent!r}\n{GUEST}", *arguments],
        {},
        box.workspace_path,
        [null, write, 2],
    )
    os.close(write)
    os.close(null)
    with os.fdopen(read) as file:
        output = await asyncio.to_thread(file.read)
    await ended
    found: dict[str, object] = json.loads(output)
    return found


@contextlib.contextmanager
def service_of_the_host() -> Iterator[str]:
    """The path of a socket that a process of the host listens at."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        # Lent as it is: the box's own user must be able to go there.
        os.chmod(directory, 0o755)
        listener.bind(f"{directory}/socket")
        listener.listen()
        yield f"{directory}/socket"


async def guest(facilities: Facilities, stock: AttachmentStock, lent: str) -> None:
    python = INTERPRETERS["python"].find(sys.executable)
    attachment = await stock.lease()
    box = await JailBackend(facilities).launch(
        Confinement(LIMITS, (*python.directories, os.path.dirname(lent))),
        network=network_of(attachment, UNIX, lent),
    )
    ports = await attachment.open_loopback_ports([FORWARDED])
    serving = [asyncio.create_task(tell(listener, "")) for listener in attachment.stream_listeners]
    serving += [asyncio.create_task(tell(listener, "the name server")) for listener in attachment.dns_streams]
    serving += [asyncio.create_task(answer(sock)) for sock in attachment.dns_datagrams]
    serving += [asyncio.create_task(tell(listener, "forwarded")) for listener in ports[FORWARDED]]
    serving += [asyncio.create_task(tell(listener, path)) for path, listener in box.unix_listeners.items()]
    before = attachment.dropped()
    served = await run(box, python.path, lent)
    dropped = attachment.dropped() - before
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    for listener in ports[FORWARDED]:
        listener.close()
    attachment.close()
    closed = await run(box, python.path, lent, "closed")
    await box.destroy()
    refused = ""
    attachment = await stock.lease()
    try:
        await JailBackend(facilities).launch(
            Confinement(LIMITS, python.directories), network=network_of(attachment, "/usr/lib/new/socket")
        )
    except ConfinementError as error:
        refused = error.message
    attachment.close()
    print(json.dumps({"lent": lent, "served": served, "dropped": dropped, "closed": closed, "refused": refused}))


async def main() -> None:
    facilities = await Facilities.open()
    stock = AttachmentStock(2)
    try:
        if sys.argv[1] == "self-check":
            await self_check(facilities, stock)
        else:
            with service_of_the_host() as lent:
                await guest(facilities, stock, lent)
    finally:
        await stock.close()
        await facilities.close()


asyncio.run(main())
