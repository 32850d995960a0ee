# SPDX-License-Identifier: MIT
"""A world of its own: a namespace where agentbox runs, and one beside it with everything that there is to reach."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.integration.egress.servers import certificate
from tests.ordinary_user import OrdinaryUser
from tests.running_server import clean_environment

HERE = Path(__file__).parent
NAME_SERVER, SECURE_SHELL = "45.67.89.53", "45.67.89.22"
_CLONE_NEWNET = 0x40000000
_SECONDS = 120


@dataclass
class World:
    """`inside` are the words before a command that make it run where agentbox is; `directory` is shared with the
    services (world_services.py)."""

    directory: Path
    inside: tuple[str, ...]
    far: tuple[str, ...]
    threads: ThreadPoolExecutor
    certificate: Path

    def hits(self) -> list[str]:
        """What the host that nobody may reach was asked."""
        return self._lines("hits")

    def asked(self) -> set[str]:
        """The names that the world's name server was asked for."""
        return set(self._lines("asked"))

    def _lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def command(
        self, *argv: str, cwd: Path, user: OrdinaryUser | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command beside agentbox, as an ordinary user where one is given."""
        prefix = ("setpriv", f"--reuid={user.uid}", f"--regid={user.uid}", "--clear-groups") if user else ()
        return subprocess.run(
            [*self.inside, *prefix, *argv],
            cwd=cwd,
            env=clean_environment({"AGENTBOX_DNS_UPSTREAM": NAME_SERVER, **environment}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )

    def post(self, url: str, body: dict[str, Any]) -> httpx.Response:
        """A request to a server that runs inside."""
        return self.threads.submit(httpx.post, url, json=body, timeout=_SECONDS).result()


@contextlib.contextmanager
def world(directory: Path) -> Iterator[World]:
    """Make it; needs root, `ip`, `unshare`, `nsenter` and `openssl`."""
    with contextlib.ExitStack() as stack:
        near, far = (stack.enter_context(_namespace()) for _ in range(2))
        for words in (
            f"link add near netns {near} type veth peer name far netns {far}",
            f"-n {near} addr add 45.67.90.1/32 dev near",
            f"-n {near} addr add 2a00:1450:4001:80b::2/64 dev near nodad",
            f"-n {near} link set near up",
            f"-n {near} link set lo up",
            f"-n {far} link set lo up",
            f"-n {far} link set far up",
            f"-n {far} addr add 2a00:1450:4001:80b::10/64 dev far nodad",
            *(f"-n {far} addr add 45.67.89.{last}/32 dev lo" for last in (10, 11, 53, 66, 22)),
            f"-n {far} route add 45.67.90.1/32 dev far",
            f"-n {near} route add 45.67.89.0/24 dev near src 45.67.90.1",
        ):
            _ip(words)
        certificate(directory, "web.example", "pkg.web.example", "other.example", "evil.example")
        for name in ("www", "git"):
            (directory / name).mkdir()
        services = subprocess.Popen(
            [*_in(far), sys.executable, str(HERE / "world_services.py"), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        stack.callback(_end, services)
        assert services.stdout is not None
        assert services.stdout.readline() == b"ready\n"
        threads = stack.enter_context(ThreadPoolExecutor(1, initializer=_enter, initargs=(near,)))
        yield World(directory, _in(near), _in(far), threads, directory / "certificate.pem")


@contextlib.contextmanager
def secure_shell(found: World) -> Iterator[Path]:
    """An SSH server at 45.67.89.22 of the far namespace that takes one key for root; the key's file."""
    home = found.directory / "ssh"
    home.mkdir()
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)], check=True)
    settings = (
        f"HostKey {home}/host\nListenAddress {SECURE_SHELL}:22\nAuthorizedKeysFile {home}/client.pub\n"
        f"PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\n"
    )
    (home / "config").write_text(settings)
    Path("/run/sshd").mkdir(exist_ok=True)
    daemon = subprocess.Popen(
        [*found.far, "/usr/sbin/sshd", "-D", "-e", "-f", str(home / "config")], stderr=subprocess.PIPE
    )
    try:
        assert daemon.stderr is not None
        assert b"listening" in daemon.stderr.readline()
        threading.Thread(target=deque, args=(daemon.stderr, 0), daemon=True).start()
        yield home / "client"
    finally:
        daemon.kill()
        daemon.wait()


@contextlib.contextmanager
def server(
    found: World, state: Path, python: Sequence[str] = (sys.executable,), *arguments: str, **environment: str
) -> Iterator[str]:
    """`agentbox serve` inside; its address."""
    process = subprocess.Popen(
        [*found.inside, *python, "-m", "agentbox.cli.main", "serve", "--port", "0", *arguments],
        env=clean_environment({"AGENTBOX_STATE_DIR": str(state), "AGENTBOX_DNS_UPSTREAM": NAME_SERVER, **environment}),
        cwd=state,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "listening on " in line:
                url = line.partition("listening on ")[2].split()[0]
                threading.Thread(target=deque, args=(process.stderr, 0), daemon=True).start()
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(said))
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    """A process that holds a network namespace."""
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        # It has one as soon as it answers.
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        holder.stdout.readline()
        yield holder.pid
    finally:
        _end(holder)


def _in(pid: int) -> tuple[str, ...]:
    return ("nsenter", f"--net=/proc/{pid}/ns/net", "--")


def _ip(words: str) -> None:
    """`ip`, with the namespace of `-n PID` entered first."""
    parts = words.split()
    prefix: tuple[str, ...] = ()
    if parts[0] == "-n":
        prefix, parts = _in(int(parts[1])), parts[2:]
    ip = shutil.which("ip") or "/usr/sbin/ip"
    subprocess.run([*prefix, ip, *parts], check=True, capture_output=True)


def _enter(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(fd, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()
