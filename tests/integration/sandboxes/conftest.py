# SPDX-License-Identifier: MIT
"""A server whose sandboxes are shared by the tests of a file, and what they ask of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer

KEYS = {"alice": "a" * 40, "bob": "b" * 40}


@dataclass
class Box:
    """One sandbox of a server."""

    client: httpx.Client
    id: str

    @property
    def path(self) -> str:
        return f"/v1/sandboxes/{self.id}"

    def ask(self, method: str, path: str = "", **more: Any) -> httpx.Response:
        return self.client.request(method, self.path + path, **more)

    def exec(self, command: str | list[str], **more: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/exec", json={"command": command, **more})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def start(self, command: str | list[str], **more: Any) -> str:
        answer = self.ask("POST", "/commands", json={"command": command, **more})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def write(self, path: str, content: bytes) -> None:
        answer = self.ask("PUT", "/files", params={"path": path}, content=content)
        assert answer.status_code == 204, answer.text

    def read(self, path: str) -> bytes:
        answer = self.ask("GET", "/files", params={"path": path})
        assert answer.status_code == 200, answer.text
        return answer.content


def made(client: httpx.Client, **wanted: Any) -> Box:
    """A new sandbox."""
    answer = client.post("/v1/sandboxes", json=wanted)
    assert answer.status_code == 201, answer.text
    return Box(client, answer.json()["id"])


def keeper_pid(state: Path) -> int:
    """The process that keeps the sandboxes of a state directory."""
    return int((state / "keeper.lock").read_text())


def gone(pid: int) -> bool:
    """Whether a process has ended, with its last thread: until then its sockets take connections. One that nobody
    waited for has, too."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return len(threads) <= 1 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def rss_bytes(pid: int) -> int:
    """What a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.fixture(scope="module")
def kept_server(
    start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server with two keys, whose keeper ends with it."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    keys.chmod(0o600)
    server = start_server(
        AGENTBOX_KEY_FILE=str(keys),
        AGENTBOX_MAX_SANDBOXES="6",
        AGENTBOX_MAX_UPLOAD_BYTES=str(50 << 20),
        AGENTBOX_KEEPER_LINGER_SECONDS="0",
        AGENTBOX_POOL="0",
    )
    yield server
    server.stop()


@pytest.fixture(scope="module")
def alice(kept_server: RunningServer) -> Iterator[httpx.Client]:
    with kept_server.client(headers={"Authorization": f"Bearer {KEYS['alice']}"}) as client:
        yield client


@pytest.fixture(scope="module")
def bob(kept_server: RunningServer) -> Iterator[httpx.Client]:
    with kept_server.client(headers={"X-API-Key": KEYS["bob"]}) as client:
        yield client


@pytest.fixture(scope="module")
def box(alice: httpx.Client) -> Iterator[Box]:
    """A sandbox of alice's that all tests of a file use."""
    found = made(alice)
    yield found
    found.ask("DELETE")
