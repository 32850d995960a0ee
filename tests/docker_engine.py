# SPDX-License-Identifier: MIT
"""A Docker engine for tests: this host's, or one that they start, with runc, gVisor's runsc and the default image.

An engine of the tests' own is shared by all test processes and keeps its images for the next time. What is missing to
have one is said by `MissingError`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentbox.errors import AgentboxError
from agentbox.isolation.backends.docker.daemon import BASE_IMAGE
from agentbox.isolation.backends.docker.engine import DEFAULT_HOST, Engine

PLACE = Path("/var/tmp/agentbox-test-docker")
START_SECONDS = 60.0
# The second is for boxes that have a way out: it joins a network that was made for it.
RUNTIMES = {"runsc": "--network=none", "runsc-hostnet": "--network=host"}


class MissingError(Exception):
    """What this host lacks for an engine."""


@dataclass(frozen=True)
class TestEngine:
    """`host` is what AGENTBOX_DOCKER_HOST says; `runtimes` are those that boxes can be tried on."""

    __test__ = False
    host: str
    runtimes: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        return {"AGENTBOX_DOCKER_HOST": self.host}

    def docker(self) -> Engine:
        return Engine(self.host)

    def names(self, owner: int) -> list[str]:
        """The containers that a process has made, running or not."""
        query = {"all": "1", "filters": json.dumps({"label": ["agentbox.owner"]})}
        listed = self.docker().ask("GET", "/containers/json", query)
        return [
            container["Names"][0].lstrip("/")
            for container in listed
            if container["Labels"]["agentbox.owner"].startswith(f"{owner}-")
        ]


@contextlib.contextmanager
def engine() -> Iterator[TestEngine]:
    """An engine with the default image. Raises MissingError."""
    with contextlib.ExitStack() as stack:
        found = _usable(DEFAULT_HOST) or stack.enter_context(_own())
        with _locked("image"):
            if not any(image["name"] == BASE_IMAGE for image in _images(found)):
                _build(found)
        yield found


def _usable(host: str) -> TestEngine | None:
    try:
        info = Engine(host).ask("GET", "/info", timeout=20.0)
    except AgentboxError:
        return None
    offered = tuple(name for name in ("runc", *RUNTIMES) if name in info["Runtimes"])
    return TestEngine(host, offered) if "runsc" in offered else None


def _images(found: TestEngine) -> list[dict[str, str]]:
    from agentbox.isolation.backends.docker.building import listed

    return listed(found.docker())


def _build(found: TestEngine) -> None:
    if shutil.which("mmdebstrap") is None:
        raise MissingError("mmdebstrap is not installed")
    made = subprocess.run(
        [sys.executable, "-m", "agentbox.cli.main", "image", "build"],
        env={**os.environ, "AGENTBOX_DOCKER_HOST": found.host},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise MissingError(f"the image could not be made: {made.stderr[-2000:]}")


@contextlib.contextmanager
def _own() -> Iterator[TestEngine]:
    if os.geteuid() != 0:
        raise MissingError("no Docker engine runs here, and only root can start one")
    for program in ("dockerd", "runsc"):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is not installed")
    PLACE.mkdir(mode=0o700, exist_ok=True)
    host = f"unix://{PLACE}/docker.sock"
    # Every test process holds it while it uses the engine: whoever is the last ends it.
    users = os.open(PLACE / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
        with _locked("start"):
            found = _usable(host) or _start(host)
        yield found
    finally:
        with contextlib.suppress(BlockingIOError), _locked("start"):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _stop()
        os.close(users)


def _start(host: str) -> TestEngine:
    runsc = shutil.which("runsc")
    configuration = {
        "data-root": f"{PLACE}/data",
        "exec-root": f"{PLACE}/exec",
        "pidfile": f"{PLACE}/pid",
        "hosts": [host],
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "runtimes": {
            name: {"path": runsc, "runtimeArgs": [network, "--platform=ptrace"]} for name, network in RUNTIMES.items()
        },
    }
    (PLACE / "daemon.json").write_text(json.dumps(configuration))
    (PLACE / "pid").unlink(missing_ok=True)
    log = PLACE / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["dockerd", "--config-file", str(PLACE / "daemon.json")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if (found := _usable(host)) is not None:
            return found
        time.sleep(0.1)
    process.kill()
    raise MissingError(f"dockerd did not start: {log.read_text(errors='replace')[-2000:]}")


def _stop() -> None:
    with contextlib.suppress(OSError, ValueError):
        pid = int((PLACE / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and _lives(pid):
            time.sleep(0.05)


def _lives(pid: int) -> bool:
    """Whether it runs. The process that started it may be one of another test process, which does not wait for it."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    directory = PLACE if os.geteuid() == 0 else Path(f"{PLACE}-{os.geteuid()}")
    directory.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


if __name__ == "__main__":
    # So that the image is there before tests wait for it.
    try:
        with engine():
            pass
    except MissingError as error:
        print(f"tests of containers will not run: {error}", file=sys.stderr)
