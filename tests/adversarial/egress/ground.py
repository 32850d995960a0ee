# SPDX-License-Identifier: MIT
"""The ground of attacks on the gateway: the world of the integration tests with servers that keep what arrived, and
both doors of the product, each as root and as an ordinary user."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.adversarial.egress.far_services import NAMES, PORT_NAMES
from tests.integration.egress.world import World, _enter, server
from tests.ordinary_user import OrdinaryUser
from tests.standing import Standing

MOST_AT_ONCE = 6
SEATS = ("run-root", "run-user", "http-root", "http-user")
PYTHON = "/usr/bin/python3"
NAME_SERVER = f"{NAMES}:{PORT_NAMES}"
# What each program begins with: `attempt` keeps what a function gives, or the name of what it raises; `several` calls a
# function with many arguments, eight at once, as most of them wait for an answer that never comes.
PRELUDE = """
import ctypes, errno, fcntl, json, os, select, socket, ssl, struct, sys, time
told = {}
def attempt(function):
    try:
        told[function.__name__] = function()
    except BaseException as error:
        told[function.__name__] = f"{type(error).__name__} {getattr(error, 'errno', '')}"
    return function
def talk(host, port, data, seconds=6):
    end = socket.create_connection((host, port), seconds)
    end.settimeout(seconds)
    out = b""
    try:
        if data:
            end.sendall(data)
        while part := end.recv(65536):
            out += part
    except OSError as error:
        out += b"<" + type(error).__name__.encode() + b">"
    end.close()
    return out.decode("latin-1")
def several(function, arguments):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(8) as threads:
        for begun in [threads.submit(function, *one) for one in arguments]:
            begun.result()
"""
EPILOGUE = "\nprint(json.dumps(told))\n"


def unguarded(code: str) -> str:
    """A program that becomes this one in an interpreter without a guard."""
    return f"import os\nos.execv({PYTHON!r}, ['python3', '-I', '-c', {code!r}])"


@dataclass(frozen=True)
class Outcome:
    """How a program ended, what it said, and what is in its trace."""

    stdout: str
    stderr: str
    records: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def told(self) -> dict[str, Any]:
        """What the attempts brought."""
        assert self.stdout.strip(), self.stderr
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return found

    def denied(self, origin: str = "gateway") -> list[str]:
        """What was denied, as a rule would name it."""
        return [
            str(one["args"].get("target")) for one in self.records if one["kind"] == "deny" and one["origin"] == origin
        ]

    def seen(self, op: str, origin: str = "gateway") -> list[dict[str, Any]]:
        """Arguments of the records of an operation."""
        return [one["args"] for one in self.records if one["op"] == op and one["origin"] == origin]


@dataclass
class Ground:
    """`urls` are the addresses of the servers by standing."""

    world: World
    scratch: Path
    standings: dict[str, Standing]
    urls: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    _marks: dict[str, int] = field(default_factory=dict)
    _threads: list[ThreadPoolExecutor] = field(default_factory=list)

    def attack(self, seat: str, code: str, *net: str, lines: str = "", limits: dict[str, Any] | None = None) -> Outcome:
        """Run a program that fills `told`, under `net:` rules of these values and further lines of a policy; without a
        guard in its interpreter, so that only the box and the gateway stand before it."""
        code = PRELUDE + code + EPILOGUE
        if seat.startswith("http"):
            lines, code = f"{lines}exec: {PYTHON}\n", unguarded(code)
        return self.run(seat, code, *net, lines=lines, limits=limits)

    def run(
        self,
        seat: str,
        code: str,
        *net: str,
        lines: str = "",
        limits: dict[str, Any] | None = None,
        options: Sequence[str] = (),
    ) -> Outcome:
        """Run a Python program under `net:` rules of these values and further lines of a policy; `options` are those of
        `agentbox run`."""
        door, _, name = seat.partition("-")
        policy = "".join(f"net: {value}\n" for value in net) + lines
        if door == "run":
            return self._wrapped(self.standings[name], code, policy, options)
        body = {"code": code, "policy": policy, "trace": True, "limits": {"timeout_seconds": 90, **(limits or {})}}
        answer = self.world.post(f"{self.urls[name]}/v1/run", body)
        assert answer.status_code == 200, answer.text
        result = answer.json()
        return Outcome(result["stdout"], result["stderr"], self.trace(name, result["run_id"]), result)

    def begin(self, name: str, code: str, *net: str, **fields: Any) -> Future[dict[str, Any]]:
        """Start a program behind the server of a standing; its result comes later. At most `MOST_AT_ONCE` of them."""
        import httpx

        policy = "".join(f"net: {value}\n" for value in net) + f"exec: {PYTHON}\n"
        body = {"code": unguarded(code), "policy": policy, "trace": True, **fields}

        def ask() -> dict[str, Any]:
            answer = httpx.post(f"{self.urls[name]}/v1/run", json=body, timeout=300)
            found: dict[str, Any] = answer.json()
            assert answer.status_code in (200, 408), answer.text
            return found if answer.status_code == 200 else found["result"]

        return self.threads.submit(ask)

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Threads that are where the servers are."""
        if not self._threads:
            (pid,) = re.findall(r"/proc/(\d+)/", " ".join(self.world.inside))
            self._threads.append(ThreadPoolExecutor(MOST_AT_ONCE, initializer=_enter, initargs=(int(pid),)))
        return self._threads[0]

    def trace(self, name: str, run_id: str) -> list[dict[str, Any]]:
        """The records of a run behind the server of a standing."""
        import httpx

        url = f"{self.urls[name]}/v1/runs/{run_id}/trace"
        text = self.world.threads.submit(lambda: httpx.get(url, timeout=60).text).result()
        return [json.loads(line) for line in text.splitlines()]

    def _wrapped(self, standing: Standing, code: str, policy: str, options: Sequence[str]) -> Outcome:
        directory = self.directory(standing.user)
        (directory / "agentbox.policy").write_text(policy)
        environment = {**standing.environment, "AGENTBOX_STATE_DIR": str(self.directory(standing.user))}
        done = self.world.command(
            *standing.command, "-m", "agentbox.cli.main", "run", "-q", *options, "--", PYTHON, "-I", "-c", code,
            cwd=directory, **{"AGENTBOX_DNS_UPSTREAM": NAME_SERVER, **environment},
        )  # fmt: skip
        trace = directory / "trace.jsonl"
        records = [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []
        return Outcome(done.stdout, done.stderr, records, {"exit_code": done.returncode})

    def directory(self, user: OrdinaryUser | None) -> Path:
        """A new directory of the user."""
        return user.directory("project") if user else Path(tempfile.mkdtemp(dir=self.scratch))

    def new(self, name: str) -> list[Any]:
        """What was noted on the far side since this was last asked."""
        path = self.world.directory / name
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        before, self._marks[name] = self._marks.get(name, 0), len(lines)
        return [json.loads(line) for line in lines[before:]]


@contextlib.contextmanager
def far_services(world: World) -> Iterator[None]:
    """The servers of far_services.py on the far side."""
    services = subprocess.Popen(
        [*world.far, sys.executable, "-m", "tests.adversarial.egress.far_services", str(world.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert services.stdout is not None
        assert services.stdout.readline() == b"ready\n"
        yield
    finally:
        services.kill()
        services.communicate()


@contextlib.contextmanager
def serving(ground: Ground, name: str, state: Path, **settings: str) -> Iterator[str]:
    """A server of a standing in the near world; its address."""
    standing = ground.standings[name]
    settings = {"AGENTBOX_DNS_UPSTREAM": NAME_SERVER, **standing.environment, **settings}
    with server(ground.world, state, standing.command, "--backend", "jail", **settings) as url:
        yield url


def process_that_listens(ground: Ground, url: str) -> int:
    """The process that has the listening socket of an address in the near world."""
    port = int(url.rpartition(":")[2])
    tables = ground.threads.submit(Path("/proc/thread-self/net/tcp").read_text).result()
    (inode,) = [
        words[9]
        for line in tables.splitlines()[1:]
        if (words := line.split())[1].endswith(f":{port:04X}") and words[3] == "0A"
    ]
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(descriptor.readlink()) == f"socket:[{inode}]":
                return int(descriptor.parts[2])
    raise AssertionError(f"nobody listens at {url}")
