# SPDX-License-Identifier: MIT
"""Sockets that no box has: what tries them is refused as before, and the kernel's refusal is in the trace, with a guard
and without one."""

from __future__ import annotations

import json

import pytest

from tests.policy_run import Project

pytestmark = pytest.mark.linux

# AF_PACKET, raw IPv4 and IPv6, SCTP, the audit netlink, AF_VSOCK, AF_ALG, one that nobody knows; then ordinary ones.
TRIES = """
import errno, json, socket
found = []
for words in [(17, 3, 768), (2, 3, 1), (10, 3, 58), (2, 1, 132), (16, 3, 9), (40, 1, 0), (38, 5, 0), (99, 1, 0),
              (2, 1, 262), (1, 1, 0), (2, 1, 0), (10, 2, 17), (16, 3, 0)]:
    try:
        socket.socket(*words).close()
        found.append('made')
    except OSError as error:
        found.append(errno.errorcode[error.errno])
print(json.dumps(found))
"""
ANSWERS = [
    *("EAFNOSUPPORT", "EPERM", "EPERM", "EPROTONOSUPPORT", "EPROTONOSUPPORT"),
    *("EAFNOSUPPORT", "EAFNOSUPPORT", "EAFNOSUPPORT"),
    *("EPROTONOSUPPORT", "made", "made", "made", "made"),
]
RECORDED = [
    "AF_PACKET SOCK_RAW protocol 768",
    "AF_INET SOCK_RAW protocol 1",
    "AF_INET6 SOCK_RAW protocol 58",
    "AF_INET SOCK_STREAM protocol 132",
    "AF_NETLINK SOCK_RAW protocol 9",
    "AF_VSOCK SOCK_STREAM",
    "AF_ALG SOCK_SEQPACKET",
    "family 99 SOCK_STREAM",
]


@pytest.mark.parametrize("flags", [(), ("-I", "-S")], ids=["guarded", "without_a_guard"])
@pytest.mark.parametrize("witness", ["off", "exec", "all"])
def test_a_refused_socket_is_a_denial_that_the_kernel_saw(
    project: Project, flags: tuple[str, ...], witness: str
) -> None:
    done = project.run("/usr/bin/python3", *flags, "-c", TRIES, options=["--witness", witness])
    assert json.loads(done.text.splitlines()[0]) == ANSWERS, done.stderr
    assert done.denials("net") == RECORDED
    [first] = [one for one in done.records if one["kind"] == "deny" and one["args"].get("family") == 17]
    assert first["args"] == {
        "target": "AF_PACKET SOCK_RAW protocol 768",
        "family": 17,
        "type": 3,
        "protocol": 768,
        "enforced": True,
        "reason": "no box has sockets of this kind",
    }
    assert project.verdict()[0] == 0


def test_an_ordinary_program_s_sockets_leave_no_denial(project: Project) -> None:
    code = """
import socket, asyncio
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)
    reader, _ = await asyncio.open_connection(*server.sockets[0].getsockname())
    await reader.read()
socket.if_nameindex(); socket.socketpair(); asyncio.run(main()); print('served')
"""
    done = project.run("/usr/bin/python3", "-c", code)
    assert done.text.startswith("served"), done.stderr
    assert done.denials("net") == []


def test_a_flood_of_refused_sockets_does_not_fill_the_trace(project: Project) -> None:
    code = """
import socket
for _ in range(5000):
    try: socket.socket(17, 3)
    except OSError: pass
print('goes on')
"""
    done = project.python(code)
    assert done.text.startswith("goes on"), done.stderr
    counts = [one["args"].get("count", 1) for one in done.records if one["kind"] == "deny"]
    assert (len(counts), sum(counts)) == (5, 5000)
