# SPDX-License-Identifier: MIT
"""A lent directory does not lend the host's sockets in it, and one that a rule names passes the gateway."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.policy_run import Project

STREAM = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_UNIX)\n"
    "try: s.connect(sys.argv[1]); print(s.recv(99))\n"
    "except OSError as error: print(type(error).__name__)\n"
)
DATAGRAM = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "try: s.sendto(b'x', sys.argv[1]); print('sent')\n"
    "except OSError as error: print(type(error).__name__)\n"
)


class Service:
    """Listens and receives on the host; `reached` has what came."""

    def __init__(self, directory: Path) -> None:
        self.reached: list[bytes] = []
        self.stream = socket.socket(socket.AF_UNIX)
        self.datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        before = os.open(".", os.O_RDONLY)
        os.chdir(directory)
        try:
            # By a relative name, as development servers do.
            self.stream.bind("data/stream.sock")
        finally:
            os.fchdir(before)
            os.close(before)
        self.datagram.bind(str(directory / "data/datagram.sock"))
        for name in ("stream", "datagram"):
            (directory / f"data/{name}.sock").chmod(0o777)
        self.stream.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        # Until the socket is closed.
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.stream.accept()
                self.reached.append(b"connection")
                with connection, contextlib.suppress(ConnectionError):
                    connection.sendall(b"the host")

    def received(self) -> bool:
        try:
            return bool(self.datagram.recv(9, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()
        self.datagram.close()


@pytest.fixture
def service(project: Project) -> Iterator[Service]:
    found = Service(project.directory)
    yield found
    found.close()


@pytest.mark.parametrize("rules", [("read: ./data",), ("read: .",), ("write: ./data",), ("read: ./data/*",)])
def test_no_file_rule_opens_a_socket_of_the_host(project: Project, service: Service, rules: tuple[str, ...]) -> None:
    project.policy(*rules)
    for code, name in ((STREAM, "stream"), (DATAGRAM, "datagram")):
        done = project.run("/usr/bin/python3", "-I", "-c", code, f"data/{name}.sock")
        assert done.text.splitlines()[0] in ("PermissionError", "FileNotFoundError", "ConnectionRefusedError"), done
    assert service.reached == []
    assert not service.received()


def test_socket_that_a_rule_names_is_the_gateway_s_and_each_use_is_recorded(project: Project, service: Service) -> None:
    project.policy("read: ./data", "net: unix:./data/stream.sock")
    done = project.run("/usr/bin/python3", "-I", "-c", STREAM, "data/stream.sock")
    assert done.text.splitlines()[0] == "b'the host'", done
    assert service.reached == [b"connection"]
    (used,) = [one for one in done.records if one["op"] == "net.unix"]
    assert (used["origin"], used["args"]["host"]) == ("gateway", str(project.directory / "data/stream.sock"))


def test_pattern_names_the_sockets_that_are_there(project: Project, service: Service) -> None:
    project.policy("read: ./data", "net: unix:./data/*.sock", "deny: net unix:./data/stream.sock")
    done = project.run("/usr/bin/python3", "-I", "-c", STREAM, "data/stream.sock")
    assert done.text.splitlines()[0] == "PermissionError", done
    project.policy("read: ./data", "net: unix:./data/st*.sock")
    assert "the host" in project.run("/usr/bin/python3", "-I", "-c", STREAM, "data/stream.sock").text


def test_socket_of_the_box_s_own_works_where_it_may_write(project: Project) -> None:
    project.policy("write: ./out")
    code = (
        "import os, socket\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('out/own.sock'); s.listen()\n"
        "c = socket.socket(socket.AF_UNIX); c.connect('out/own.sock'); s.accept(); print('own')\n"
        "os.unlink('out/own.sock')\n"
    )
    assert project.run("/usr/bin/python3", "-I", "-c", code).text.splitlines()[0] == "own"
