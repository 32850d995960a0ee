# SPDX-License-Identifier: MIT
"""compose.yaml and its variant with containers as boxes: they are read, built, started and used as the guide says."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from agentbox.sandbox.synchronous import Sandbox
from agentbox.sdk.client import AgentboxClient, AgentboxHTTPError
from tests.docker_engine import TestEngine
from tests.docs.render import REPOSITORY

KEY = "k" * 40
SECONDS = 600.0
BASE = "agentbox/base:latest"

pytestmark = pytest.mark.skipif(
    not (shutil.which("docker-compose") and shutil.which("docker")), reason="docker-compose is not installed"
)


@dataclass
class Compose:
    """A project of its own, with images of its own, on the tests' engine."""

    project: str
    environment: dict[str, str]
    files: tuple[str, ...] = ("compose.yaml",)

    def __call__(self, *arguments: str) -> str:
        """What docker-compose prints. AssertionError with its words when it fails."""
        options = [word for file in self.files for word in ("-f", file)]
        return _run("docker-compose", "-p", self.project, *options, *arguments, environment=self.environment)

    @functools.cached_property
    def url(self) -> str:
        """Where the service answers, once it does."""
        address = self("port", "agentbox", "8080").strip()
        assert address.startswith("127.0.0.1:")
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"http://{address}/health", timeout=5.0).status_code == 200:
                    return f"http://{address}"
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(self("logs", "agentbox"))


def _run(*command: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


@pytest.fixture(scope="module")
def environment(docker_engine: TestEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What docker and docker-compose are told; the wheels are there."""
    found = {
        "DOCKER_HOST": docker_engine.host,
        "AGENTBOX_TAG": f"test-{secrets.token_hex(4)}",
        "AGENTBOX_PORT": "0",
        "AGENTBOX_HOST_TMP": str(tmp_path_factory.mktemp("lent")),
        "AGENTBOX_DOCKER_SOCKET": docker_engine.host.removeprefix("unix://"),
        "BASE_IMAGE": BASE,
    }
    _run("bash", "requirements/compose-wheels", sys.executable, BASE, environment=found)
    yield found
    images = [f"agentbox/{name}:{found['AGENTBOX_TAG']}" for name in ("server", "server-docker", "test")]
    subprocess.run(["docker", "rmi", *images], env={**os.environ, **found}, capture_output=True, check=False)


@pytest.fixture(scope="module")
def plain(environment: dict[str, str]) -> Iterator[Compose]:
    """As compose.yaml is. Its key is the one that the first start makes."""
    compose = Compose(f"agentbox{secrets.token_hex(4)}", environment)
    compose("build", "agentbox", "test")
    compose("up", "-d", "agentbox")
    yield compose
    compose("down", "-v", "-t", "10")


@pytest.fixture
def with_containers(environment: dict[str, str]) -> Iterator[Compose]:
    """With the engine's socket, and containers as boxes."""
    compose = Compose(
        f"agentbox{secrets.token_hex(4)}",
        {**environment, "AGENTBOX_TOKEN": KEY},
        ("compose.yaml", "compose.docker-sandbox.yaml"),
    )
    compose("build", "agentbox")
    compose("up", "-d", "agentbox")
    yield compose
    compose("down", "-v", "-t", "10")


def test_service_is_published_on_the_loopback_alone(environment: dict[str, str]) -> None:
    # The variant holds all of compose.yaml too.
    told = Compose("agentbox", environment, ("compose.yaml", "compose.docker-sandbox.yaml"))("config")
    assert "127.0.0.1:0:8080/tcp" in told
    assert "privileged" not in told


def test_service_needs_the_key_that_its_first_start_made(plain: Compose) -> None:
    with AgentboxClient(plain.url) as client, pytest.raises(AgentboxHTTPError) as caught:
        client.run("print(1)")
    assert caught.value.status == 401


def test_jail_holds_everything_in_the_container_and_the_server_has_no_capability(plain: Compose) -> None:
    url = plain.url
    name, key = plain("exec", "-T", "agentbox", "cat", "/var/lib/agentbox/key").strip().split(":")
    assert (name, len(key)) == ("default", 64)
    with AgentboxClient(url, api_key=key) as client:
        answer = client.run("print(6 * 7)")
        assert (answer.stdout, answer.backend, answer.warnings) == ("42\n", "jail", [])
        held = {resource: layer for resource, layer in answer.enforcement.items() if resource != "exec"}
        assert set(held.values()) == {"kernel"}
        assert answer.timings["start"] in {"warm", "forked"}
        assert client.run("x = bytearray(10**9)", memory_mb=64).outcome == "oom_killed"
        assert client.run("console.log(6 * 7)", language="node").stdout == "42\n"
    status = plain("exec", "-T", "agentbox", "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert {fields[f"Cap{name}"].strip("0") for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {""}
    assert fields["NoNewPrivs"] == "1"
    assert "0" not in fields["Uid"].split()


def test_unit_tests_run_in_their_service(plain: Compose) -> None:
    assert " passed" in plain("run", "--rm", "test", "-n0", "tests/unit/test_records.py")


def test_boxes_are_containers_beside_a_server_that_was_lent_the_socket(
    with_containers: Compose, docker_engine: TestEngine
) -> None:
    url = with_containers.url
    with AgentboxClient(url, api_key=KEY) as client:
        answer = client.run("open('made', 'w').write('kept'); print(6 * 7)", snapshot=True)
        assert (answer.stdout, answer.backend) == ("42\n", "docker")
        assert (answer.enforcement["memory"], answer.enforcement["network"]) == ("kernel", "kernel")
        # Said truly: the engine's processes cannot be seen from a container.
        assert answer.enforcement["disk"] == "none"
        assert client.run("print(open('made').read())", snapshot_id=answer.snapshot_id).stdout == "kept\n"
    with Sandbox(url=url, api_key=KEY, backend="docker-runc") as sandbox:
        sandbox_id = sandbox.container_id or ""
        assert sandbox_id.startswith("sbx-")
        sandbox.files.write("memo", "work")
        sandbox.exec("echo more >>memo; ln -s /etc/passwd link; mkdir -p deep/er; echo 1 >deep/er/file")
        sandbox.reset()
        # Another box with another id, around the same files.
        assert sandbox.exec("cat memo; echo 2 >>deep/er/file; cat deep/er/file").stdout == b"workmore\n1\n2\n"
    left = docker_engine.docker().ask("GET", "/containers/json", {"all": "1"})
    assert not [one["Names"] for one in left if sandbox_id in one["Names"][0]]


def test_variant_with_containers_needs_a_directory_of_the_host(environment: dict[str, str]) -> None:
    compose = Compose(
        "agentbox", {**environment, "AGENTBOX_HOST_TMP": ""}, ("compose.yaml", "compose.docker-sandbox.yaml")
    )
    with pytest.raises(AssertionError, match="must be an absolute path of the host"):
        compose("config")


def test_guide_and_files_name_the_same_commands() -> None:
    guide = (REPOSITORY / "docs" / "guide" / "compose.md").read_text(encoding="utf-8")
    for command in ("make compose-images", "docker-compose up agentbox", "docker-compose run --rm test"):
        assert command in guide
    assert Path(REPOSITORY / "scripts" / "container-entry").stat().st_mode & 0o111
