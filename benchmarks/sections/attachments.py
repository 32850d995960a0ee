# SPDX-License-Identifier: MIT
"""What a box's way out costs: leasing it from stock, and its connections beside those of many other boxes.

A lease is compared with making a network namespace with a veth pair (over netlink, no process started: the quickest
that can be had that way; only as root), interleaved. The first box's connections, each with one question and one
answer, are timed while it is the only box and while many others are attached and run, one part after the other and back
again; of a part's rounds the quietest counts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack

from agentbox.egress.names import GATEWAY_IPV4
from agentbox.egress.stock import AttachmentStock
from agentbox.isolation.backend import LiveBox
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.network import Network
from agentbox.linux import namespaces, netlink
from agentbox.models import Confinement, Limits
from benchmarks.interleaved import progress
from benchmarks.processes import PYTHON
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "Ways out of boxes"
NOTE = "Microseconds; a connection is made, asked and answered inside a box."
LIMITS = Limits(timeout_seconds=600, memory_mb=64, cpus=1.0, pids=16, disk_mb=8, max_output_bytes=1 << 16)
MOST_OF_A_VETH_PAIR = "<= 0.2"
MOST_OF_THE_FIRST = "<= 1.3"
LEASE = "lease of a way out from stock"
CONNECTIONS = 400
SLEEP = "/usr/bin/sleep"

# Times connections; prints the median in microseconds.
CLIENT = f"""
import socket, statistics, time
found = []
for _ in range({CONNECTIONS}):
    began = time.perf_counter()
    with socket.create_connection(("192.0.2.1", 80)) as sock:
        sock.sendall(b"question")
        sock.recv(100)
    found.append(time.perf_counter() - began)
print(statistics.median(found) * 1e6)
"""

_RTM_NEWLINK = 16
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_INFO_PEER = 1, 2, 1


def veth_namespace(number: int) -> int:
    """A namespace with `lo` and one end of a veth pair, both ends up; as a descriptor."""
    made: list[int] = []

    def make() -> None:
        host = netlink.open_socket(netlink.NETLINK_ROUTE)
        namespaces.unshare(namespaces.CLONE_NEWNET)
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        interface = struct.pack("=BxHiII", 0, 0, 0, 1, 1)
        peer = bytes(16) + netlink.text(_IFLA_IFNAME, "eth0")
        peer += netlink.attribute(_IFLA_NET_NS_FD, struct.pack("=i", own))
        data = netlink.nested(_INFO_DATA, netlink.attribute(_VETH_INFO_PEER, peer))
        payload = interface + netlink.text(_IFLA_IFNAME, f"ab{os.getpid()}.{number}")
        payload += netlink.nested(_IFLA_LINKINFO, netlink.text(_INFO_KIND, "veth"), data)
        flags = netlink.NLM_F_ACK | netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
        with host, netlink.open_socket(netlink.NETLINK_ROUTE) as inside:
            netlink.converse(host, [netlink.Message("make a veth pair", _RTM_NEWLINK, flags, payload)])
            up = netlink.Message(
                "set it up", _RTM_NEWLINK, netlink.NLM_F_ACK, interface + netlink.text(_IFLA_IFNAME, "eth0")
            )
            netlink.converse(inside, [netlink.loopback_up(), up])
        made.append(own)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


async def leasing(rounds: int) -> list[Row]:
    """A lease from stock beside, as root, a namespace with a veth pair, and beside one made when it is asked for."""
    leases, pairs, made = [], [], []
    async with AsyncExitStack() as stack:
        stock = AttachmentStock(2)
        stack.push_async_callback(stock.close)
        empty = AttachmentStock(0)
        stack.push_async_callback(empty.close)
        (await empty.lease()).close()
        for at in range(rounds):
            await stock.fill()
            leases.append([await _leased(stock)])
            # What is made in its place must not be made meanwhile.
            await stock.fill()
            made.append([await _leased(empty)])
            if os.geteuid() == 0:
                began = time.perf_counter()
                namespace = veth_namespace(at)
                pairs.append([(time.perf_counter() - began) * 1e6])
                os.close(namespace)
    spread = Spread.of_rounds(leases)
    if pairs:
        against = ratio_in_rounds(leases, pairs)
        extra = {"veth pair us": Spread.of_rounds(pairs).median}
        row = Row(LEASE, spread, "us", against, "a veth pair", MOST_OF_A_VETH_PAIR, extra=extra)
    else:
        row = Row(LEASE, spread, "us")
    return [row, Row("the same, made when it is asked for", Spread.of_rounds(made), "us")]


async def _leased(stock: AttachmentStock) -> float:
    began = time.perf_counter()
    attachment = await stock.lease()
    elapsed = time.perf_counter() - began
    attachment.close()
    return elapsed * 1e6


async def many_boxes(count: int, rounds: int) -> Row:
    """The first box's connections beside `count` - 1 others, to the same alone."""
    async with AsyncExitStack() as stack:
        facilities = await Facilities.open()
        stack.push_async_callback(facilities.close)
        stock = AttachmentStock(2)
        stack.push_async_callback(stock.close)
        first = await _attached_box(stack, facilities, stock)
        alone = [await _ask(first) for _ in range(rounds)]
        async with AsyncExitStack() as others:
            for number in range(count - 1):
                if not number % 100:
                    progress(f"{number + 1} attached boxes")
                box = await _attached_box(others, facilities, stock)
                await box.start([SLEEP, "600"], {}, box.workspace_path, _nothing(others))
            beside = [await _ask(first) for _ in range(rounds)]
        alone += [await _ask(first) for _ in range(rounds)]
    quietest = min(alone)
    ratio = Spread.of([min(beside) / quietest])
    extra = {"alone us": quietest}
    name = f"connection of a box beside {count - 1} others"
    return Row(name, Spread.of(beside), "us", ratio, "alone", MOST_OF_THE_FIRST, extra=extra)


async def _attached_box(stack: AsyncExitStack, facilities: Facilities, stock: AttachmentStock) -> LiveBox:
    attachment = await stock.lease()
    stack.callback(attachment.close)
    network = Network(attachment.namespace_fd, attachment.user_namespace_fd, GATEWAY_IPV4)
    box = await JailBackend(facilities).launch(Confinement(LIMITS), network=network)
    stack.push_async_callback(box.destroy)
    serving = [asyncio.create_task(_answer(listener)) for listener in attachment.stream_listeners]
    stack.push_async_callback(_cancelled, serving)
    return box


async def _answer(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        connection, _ = await loop.sock_accept(listener)
        with connection:
            await loop.sock_recv(connection, 100)
            await loop.sock_sendall(connection, b"answer")


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(box: LiveBox) -> float:
    read, write = os.pipe()
    async with AsyncExitStack() as stack:
        null, _, error = _nothing(stack)
        ended = await box.start([PYTHON, "-I", "-S", "-c", CLIENT], {}, box.workspace_path, [null, write, error])
        os.close(write)
        with os.fdopen(read) as file:
            output = await asyncio.to_thread(file.read)
        await ended
    return float(output)


def _nothing(stack: AsyncExitStack) -> list[int]:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    stack.callback(os.close, null)
    return [null, null, null]


def measure(options: Options) -> Section:
    """Both comparisons."""
    rows = asyncio.run(leasing(options.rounds_or(100, 10)))
    rows.append(asyncio.run(many_boxes(30 if options.quick else 300, 2 if options.quick else 10)))
    return Section("attachments", TITLE, "", tuple(rows), (NOTE,))
