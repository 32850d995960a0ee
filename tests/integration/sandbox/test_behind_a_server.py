# SPDX-License-Identifier: MIT
"""What a client keeps when its server does not."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentbox import Sandbox, SandboxError
from agentbox.sandbox.line import Line
from tests.ports import port_that_refuses
from tests.running_server import RunningServer

KEY = "key-of-the-tests"


def test_a_command_is_waited_for_and_followed_across_a_kill_of_its_server(
    start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    state: Path = tmp_path_factory.mktemp("state")

    def start(port: int) -> RunningServer:
        settings = {"AGENTBOX_TOKEN": KEY, "AGENTBOX_KEEPER_LINGER_SECONDS": "60"}
        return start_server(state=state, arguments=("--port", str(port)), **settings)

    server = start(0)
    with Sandbox(url=server.url, api_key=KEY, backend="jail") as box, ThreadPoolExecutor(2) as pool:
        command = box.exec("echo one; read x; echo two", stdin=True, wait=0)
        waiting = pool.submit(command.wait)
        following = pool.submit(lambda: b"".join(data for _, data in command.follow()))
        command.more(0)
        server.stop(signal.SIGKILL)
        with pytest.raises(SandboxError, match=r"no server answers|connection was lost|closed the connection"):
            box.exec("true")
        start(int(server.url.rpartition(":")[2]))
        command.send("\n")
        assert waiting.result(60)
        assert following.result(60) == b"one\ntwo\n"
        assert (command.stdout, command.exit_code) == (b"one\ntwo\n", 0)


def test_what_a_server_cannot_do_for_a_client_is_refused() -> None:
    with pytest.raises(SandboxError, match="keeps the trace"):
        Sandbox(url="http://127.0.0.1:1", trace="trace.jsonl")
    with pytest.raises(SandboxError, match="directory of this machine"):
        Sandbox(url="http://127.0.0.1:1", workspace="/srv/project")
    with pytest.raises(SandboxError, match="no http or https URL"):
        Sandbox(url="127.0.0.1:8080")
    with port_that_refuses() as port, pytest.raises(SandboxError, match=f"no server answers at .*:{port}: Connection"):
        Sandbox(url=f"http://127.0.0.1:{port}").start()


async def test_a_server_that_says_nothing_is_no_server_that_did_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        line = Line(f"http://127.0.0.1:{mute.getsockname()[1]}", None)
        with pytest.raises(SandboxError, match="did not answer in time; whether it was done is not known"):
            await line.ask("POST", "/x", value={}, seconds=0.1)


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with port_that_refuses() as port:
        monkeypatch.setenv("AGENTBOX_URL", f"http://127.0.0.1:{port}")
        with pytest.raises(SandboxError, match=f"no server answers at http://127.0.0.1:{port}"):
            Sandbox().start()
    assert Sandbox(url="").container_id is None
