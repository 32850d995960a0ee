# SPDX-License-Identifier: MIT
"""Attachments in stock: each handed out once, bounded, and nothing of them left, however their owner ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest

from agentbox.egress.attachment import Attachment, original_destination
from agentbox.egress.stock import AttachmentStock
from agentbox.errors import IsolationError
from agentbox.linux import namespaces

pytestmark = pytest.mark.linux
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="not on this host: enters a network namespace without its user namespace"
)

PATIENCE_SECONDS = 30
OWNER = """
import asyncio, os
from agentbox.egress.stock import AttachmentStock
async def main():
    stock = AttachmentStock(3)
    await stock.fill()
    attachment = await stock.lease()
    print(stock.maker_pid, os.fstat(attachment.namespace_fd).st_ino, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


def inside(attachment: Attachment, program: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the namespace, as a process of a container would be there."""

    def enter() -> None:
        if attachment.user_namespace_fd is not None:
            namespaces.enter(attachment.user_namespace_fd, namespaces.CLONE_NEWUSER)
        namespaces.enter(attachment.namespace_fd, namespaces.CLONE_NEWNET)

    return subprocess.run(
        [sys.executable, "-I", "-c", program],
        preexec_fn=enter,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def identity(attachment: Attachment) -> int:
    return os.fstat(attachment.namespace_fd).st_ino


def holders(inode: int) -> list[str]:
    """Processes that are in a network namespace or hold a descriptor of it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino == inode:
                found.append(pid)
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == f"net:[{inode}]":
                        found.append(pid)
    return found


def ended(pid: int) -> bool:
    """Wait until a process that is no child of ours is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], PATIENCE_SECONDS)[0])
    finally:
        os.close(pidfd)


def with_stock(size: int, use: Callable[[AttachmentStock], Awaitable[None]]) -> None:
    async def main() -> None:
        stock = AttachmentStock(size)
        try:
            await use(stock)
        finally:
            await stock.close()

    asyncio.run(main())


def test_what_is_leased_was_never_leased_before_and_the_stock_stays_within_its_size() -> None:
    async def use(stock: AttachmentStock) -> None:
        seen: list[Attachment] = []
        for _ in range(7):
            seen.append(await stock.lease())
            assert len(stock) <= 2
        assert len({identity(attachment) for attachment in seen}) == 7
        for attachment in seen:
            attachment.close()
            attachment.close()

    with_stock(2, use)


def test_a_stock_is_full_again_after_a_lease() -> None:
    async def use(stock: AttachmentStock) -> None:
        await stock.fill()
        assert len(stock) == 3
        (await stock.lease()).close()
        await stock.fill()
        assert len(stock) == 3

    with_stock(3, use)


def test_leases_that_are_asked_for_at_once_all_get_one() -> None:
    async def use(stock: AttachmentStock) -> None:
        found = await asyncio.gather(*(stock.lease() for _ in range(12)))
        assert len({identity(attachment) for attachment in found}) == 12
        for attachment in found:
            attachment.close()

    with_stock(1, use)


def test_a_closed_stock_leaves_no_process_no_descriptor_and_no_namespace() -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    facts: list[int] = []

    async def use(stock: AttachmentStock) -> None:
        await stock.fill()
        attachment = await stock.lease()
        facts.extend((identity(attachment), stock.maker_pid or 0))
        attachment.close()

    with_stock(3, use)
    inode, maker = facts
    assert ended(maker)
    assert holders(inode) == []
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_lease_that_is_given_up_leaves_no_descriptor() -> None:
    open_before = len(os.listdir("/proc/self/fd"))

    async def use(stock: AttachmentStock) -> None:
        (await stock.lease()).close()
        for turns in range(12):
            lease = asyncio.create_task(stock.lease())
            for _ in range(turns):
                await asyncio.sleep(0)
            lease.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await lease).close()

    with_stock(0, use)
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_nothing_is_left_of_an_owner_that_was_killed_and_the_next_owner_starts_anew() -> None:
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            maker, inode = map(int, owner.stdout.readline().split())
            assert str(owner.pid) in holders(inode)
            owner.send_signal(signal.SIGKILL)
        assert ended(maker)
        assert holders(inode) == []


def test_the_death_of_the_process_that_makes_them_is_survived() -> None:
    async def use(stock: AttachmentStock) -> None:
        first = await stock.lease()
        assert stock.maker_pid is not None
        os.kill(stock.maker_pid, signal.SIGKILL)
        with contextlib.suppress(IsolationError):
            (await stock.lease()).close()
        second = await stock.lease()
        assert identity(first) != identity(second)
        first.close()
        second.close()

    with_stock(0, use)


def test_a_lease_from_a_closed_stock_is_an_error_that_says_so() -> None:
    async def use(stock: AttachmentStock) -> None:
        await stock.close()
        with pytest.raises(IsolationError, match="is closed"):
            await stock.lease()

    with_stock(1, use)


def test_a_port_that_is_taken_inside_is_refused_and_none_of_the_others_stays_open() -> None:
    async def use(stock: AttachmentStock) -> None:
        attachment = await stock.lease()
        opened = await attachment.open_loopback_ports([8080])
        with pytest.raises(IsolationError, match="port 8080: Address already in use") as refused:
            await attachment.open_loopback_ports([8079, 8080])
        assert "forward another" in refused.value.hint
        again = await attachment.open_loopback_ports([8079])
        for listener in (*opened[8080], *again[8079]):
            listener.close()
        attachment.close()

    with_stock(0, use)


def test_many_ports_can_be_forwarded() -> None:
    async def use(stock: AttachmentStock) -> None:
        attachment = await stock.lease()
        opened = await attachment.open_loopback_ports(range(9000, 9150))
        assert len(opened) == 150
        assert {listener.getsockname()[0] for listener in opened[9149]} <= {"127.0.0.1", "::1"}
        for listener in (listener for listeners in opened.values() for listener in listeners):
            listener.close()
        attachment.close()

    with_stock(0, use)


def test_what_was_dropped_can_be_asked_after_the_end() -> None:
    async def use(stock: AttachmentStock) -> None:
        attachment = await stock.lease()
        program = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n" + (
            "try: s.sendto(b'x', ('192.0.2.1', 123))\nexcept OSError as error: print(error.errno)\n" * 3
        )
        assert inside(attachment, program).stdout.split() == ["1"] * 3
        attachment.close()
        assert attachment.dropped() == 3

    with_stock(0, use)


@contextlib.contextmanager
def container_without_network() -> Iterator[int]:
    """A process in a network namespace of its own, as a container runtime leaves it: even `lo` is down."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", "print(flush=True); input()"],
        preexec_fn=lambda: namespaces.unshare(namespaces.CLONE_NEWNET),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@as_root
@pytest.mark.parametrize("by", ["path", "descriptor"])
def test_a_namespace_that_a_container_runtime_made_is_fitted_out(by: str) -> None:
    async def use(stock: AttachmentStock) -> None:
        with container_without_network() as pid, open(f"/proc/{pid}/ns/net", "rb") as file:
            attachment = await stock.fit_out(file.name if by == "path" else file.fileno())
            accepted = asyncio.create_task(_accept(attachment.stream_listeners[0]))
            program = "import socket\nprint(socket.create_connection(('192.0.2.9', 443), 10).recv(99).decode())"
            done = await asyncio.to_thread(inside, attachment, program)
            assert done.stdout == "192.0.2.9:443\n", done.stderr
            await accepted
            attachment.close()

    with_stock(0, use)


@as_root
def test_a_namespace_that_is_not_there_is_an_error_that_names_it() -> None:
    async def use(stock: AttachmentStock) -> None:
        with pytest.raises(IsolationError, match="/proc/0/ns/net cannot be opened"):
            await stock.fit_out("/proc/0/ns/net")

    with_stock(0, use)


@as_root
def test_a_runtime_can_be_started_in_an_attachment_by_its_path() -> None:
    async def use(stock: AttachmentStock) -> None:
        attachment = await stock.lease()
        accepted = asyncio.create_task(_accept(attachment.stream_listeners[0]))
        program = "import socket\nprint(socket.create_connection(('192.0.2.9', 22), 10).recv(99).decode())"
        command = ["nsenter", f"--net={attachment.namespace_path}", sys.executable, "-I", "-c", program]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert done.stdout == "192.0.2.9:22\n", done.stderr
        await accepted
        attachment.close()

    with_stock(0, use)


async def _accept(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    connection, _ = await loop.sock_accept(listener)
    with connection:
        await loop.sock_sendall(connection, "{}:{}".format(*original_destination(connection)).encode())


FLOOD = """
import errno, socket
# Every address is its own here, so sources are free to choose.
refused = 0
for at in range(20000):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((f"10.{at >> 8 & 255}.{at & 255}.1", 5353))
        try:
            sock.sendto(b"x", ("192.0.2.53", 53))
        except OSError:
            refused += 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((f"10.{at >> 8 & 255}.{at & 255}.1", 5353))
        sock.sendto(b"x", ("127.0.0.1", 1 + at))
with open("/proc/sys/net/netfilter/nf_conntrack_count") as file:
    print(refused, file.read())
"""


@as_root
def test_a_guest_cannot_fill_the_kernel_s_connection_table() -> None:
    async def use(stock: AttachmentStock) -> None:
        attachment = await stock.lease()
        done = inside(attachment, FLOOD)
        assert done.returncode == 0, done.stderr
        refused, entries = map(int, done.stdout.split())
        # What a quiet time allows at once, and what comes with each second of the flood.
        assert entries < 20_000 - refused + 100
        assert refused > 0
        attachment.close()

    with_stock(0, use)
