# SPDX-License-Identifier: MIT
"""`agentbox serve`: it says where it listens, and every reason not to start is one line and an exit code."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.commands import agentbox, assert_is_told_what_to_do
from tests.running_server import RunningServer

Start = Callable[..., RunningServer]


def state(directory: Path) -> dict[str, str]:
    return {"AGENTBOX_STATE_DIR": str(directory)}


def test_server_says_address_backend_and_where_the_documentation_is(server: RunningServer) -> None:
    (line,) = [line for line in server.lines if "listening on" in line]
    assert line.startswith(f"agentbox: listening on {server.url}")
    assert "backend jail" in line
    assert f"{server.url}/docs" in line


def test_flags_win_over_the_environment(start_server: Start) -> None:
    server = start_server(arguments=("--host", "127.0.0.1"), AGENTBOX_HOST="203.0.113.1", AGENTBOX_PORT="1")
    assert server.client().get("/health").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_server_without_a_traceback(start_server: Start, number: signal.Signals) -> None:
    server = start_server()
    exit_code = server.stop(number)
    assert exit_code in {0, 128 + number}
    assert not [line for line in server.lines if "Traceback" in line]


def test_unknown_setting_is_a_warning_with_the_nearest_name(start_server: Start) -> None:
    server = start_server(AGENTBOX_MAX_MEMORY="64")
    assert any("warning: AGENTBOX_MAX_MEMORY is not a setting; did you mean" in line for line in server.lines)


@pytest.mark.parametrize(
    ("name", "value"), [("AGENTBOX_PORT", "http"), ("AGENTBOX_EGRESS_ALLOWLIST", "*"), ("AGENTBOX_MAX_PIDS", "")]
)
def test_bad_setting_is_named_and_ends_with_two(tmp_path: Path, name: str, value: str) -> None:
    assert_is_told_what_to_do(agentbox("serve", cwd=tmp_path, environment={name: value}), 2, name, repr(value))


def test_port_that_is_taken_ends_with_three(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = agentbox("serve", "--port", str(port), cwd=tmp_path, environment=state(tmp_path))
    assert_is_told_what_to_do(done, 3, f"port {port}", "--port")


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid", "a..b"])
def test_address_of_another_machine_ends_with_three(tmp_path: Path, host: str) -> None:
    done = agentbox(
        "serve", "--host", host, "--port", "0", cwd=tmp_path, environment=state(tmp_path) | {"AGENTBOX_TOKEN": "k" * 32}
    )
    assert_is_told_what_to_do(done, 3, host, "--host")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""], ids=["v4", "v6", "empty"])
def test_address_that_others_reach_is_refused_without_a_key(tmp_path: Path, host: str) -> None:
    done = agentbox("serve", "--host", host, "--port", "0", cwd=tmp_path, environment=state(tmp_path))
    assert_is_told_what_to_do(done, 2, "AGENTBOX_TOKEN", "127.0.0.1")


@pytest.mark.parametrize("backend", ["subprocess", "unrestricted"])
def test_backend_without_a_wall_is_refused_unless_permitted(tmp_path: Path, backend: str) -> None:
    done = agentbox("serve", "--backend", backend, "--port", "0", cwd=tmp_path, environment=state(tmp_path))
    assert_is_told_what_to_do(done, 4, backend, "--allow-unisolated")


def test_backend_without_a_wall_starts_when_permitted_and_says_so(start_server: Start) -> None:
    server = start_server(arguments=("--backend", "subprocess", "--allow-unisolated"))
    answer = server.client().post("/v1/run", json={"code": "print(1)"}).json()
    assert answer["backend"] == "subprocess"
    assert answer["enforcement"]["filesystem"] == "none"
    assert any("no wall" in line for line in server.lines)
