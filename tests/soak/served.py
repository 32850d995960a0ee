# SPDX-License-Identifier: MIT
"""Sandboxes behind a server while the server and the keeper of its sandboxes are killed at random: what was answered is
there, what was cut off says so, and everything is found again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from agentbox.errors import SandboxError
from agentbox.linux import mounts
from agentbox.sandbox.synchronous import Sandbox
from tests.running_server import RunningServer, launch
from tests.soak.section import Found, Options

ROUNDS, BOXES, KILLS = 400, 4, 24
_KEY = "s" * 40
# Those whose boxes end with their keeper, and are built anew around their workspace.
_BACKENDS = ("jail", "gvisor")
_LEAST_SECONDS, _MOST_SECONDS = 0.2, 1.5
# As long as it takes a busy machine to start a server, find the sandboxes and build their boxes.
_PATIENCE_SECONDS = 120.0
_END_SECONDS = 60.0


def work(options: Options, found: Found) -> None:
    """The section."""
    os.environ["AGENTBOX_URL"] = ""
    _Served(options, found).run()


class _Served:
    def __init__(self, options: Options, found: Found) -> None:
        self.options, self.found = options, found
        self.backends = tuple(name for name in _BACKENDS if name in options.backends) or _BACKENDS[:1]
        self.state = options.place / "state"
        self.state.mkdir()
        self.chance = random.Random(f"{options.seed} served")
        self.server = self._launch(())
        # The next ones listen where clients know them.
        self.port = self.server.url.rpartition(":")[2]
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.unanswered = 0

    def _launch(self, arguments: tuple[str, ...]) -> RunningServer:
        settings = {
            "AGENTBOX_TOKEN": _KEY,
            "AGENTBOX_POOL": "0",
            "AGENTBOX_MAX_SANDBOXES": "100",
            "AGENTBOX_ALLOWED_BACKENDS": ",".join(self.backends),
            "AGENTBOX_KEEPER_LINGER_SECONDS": "30",
        }
        return launch(self.state, arguments, settings)

    def run(self) -> None:
        left: list[dict[str, object]] = []
        try:
            killing = threading.Thread(target=self._kill_again_and_again)
            killing.start()
            with ThreadPoolExecutor(BOXES) as pool:
                playing = [
                    pool.submit(self._play, number, self.backends[number % len(self.backends)])
                    for number in range(BOXES)
                ]
                for one in playing:
                    one.exception()
            self.ended.set()
            killing.join()
            for one in playing:
                if (error := one.exception()) is not None:
                    self.found.fault(f"{type(error).__name__}: {error}")
            with self.server.client(headers={"X-API-Key": _KEY}) as client:
                left = client.get("/v1/sandboxes").json()["sandboxes"]
            # Of a start whose answer was lost nobody knows the id.
            if len(left) > self.unanswered:
                self.found.fault(f"not removed: {left}")
        finally:
            self.ended.set()
            self._end()
        there = {one.name for one in (self.state / "durable").glob("*/sbx-*")}
        if unknown := there - {one["id"] for one in left}:
            self.found.fault(f"left behind: {unknown}")

    # ---- kills

    def _kill_again_and_again(self) -> None:
        for _ in range(self.options.of(KILLS)):
            if self.ended.wait(self.chance.uniform(_LEAST_SECONDS, _MOST_SECONDS)):
                return
            what = self.chance.choice(("server", "keeper", "both"))
            if what != "server":
                with contextlib.suppress(OSError, ValueError):
                    os.kill(int((self.state / "keeper.lock").read_text()), signal.SIGKILL)
            if what != "keeper":
                self.server.process.kill()
                self.server.process.wait()
                self.server = self._launch(("--port", self.port))
            self.found.counts[f"times {what} killed"] += 1

    def _end(self) -> None:
        keeper = 0
        with contextlib.suppress(OSError, ValueError):
            keeper = int((self.state / "keeper.lock").read_text())
        self.server.stop()
        with contextlib.suppress(OSError):
            if keeper:
                os.kill(keeper, signal.SIGTERM)
            deadline = time.monotonic() + _END_SECONDS
            while keeper and time.monotonic() < deadline:
                os.kill(keeper, 0)
                time.sleep(0.05)
        for point in mounts.below(str(self.state)):
            mounts.detach(point)

    # ---- what is done

    def _play(self, number: int, backend: str) -> None:
        chance = random.Random(f"{self.options.seed} {number}")
        sandbox = Sandbox(backend=backend, url=self.server.url, api_key=_KEY, memory="256m")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not sandbox.running:
            try:
                sandbox.start()
            except SandboxError:
                if time.monotonic() > deadline:
                    raise
                with self.lock:
                    self.unanswered += 1
                time.sleep(0.1)
        # Path to the hashes that it may have: the last one that was answered, and those of calls that were cut off.
        files: dict[str, set[str]] = {}
        for turn in range(max(1, self.options.of(ROUNDS) // BOXES)):
            name = f"f{chance.randrange(6)}"
            content = chance.randbytes(chance.choice((10, 1000, 100_000)))
            digest = hashlib.sha256(content).hexdigest()
            before = files.get(name, {""})
            files[name] = before | {digest}
            try:
                if chance.random() < 0.5:
                    sandbox.files.write(name, content)
                    files[name] = {digest}
                else:
                    done = sandbox.exec(f"cat > .new-{turn}; mv .new-{turn} {name}; echo {turn}", stdin=content)
                    if done.lost is None:
                        files[name] = {digest}
                        self._must(done.exit_code == 0, f"{backend}: a command ended with {done.exit_code}")
                        self._must(done.stdout == b"%d\n" % turn, f"{backend}: turn {turn} said {done.stdout!r}")
            except SandboxError as error:
                self._count(f"{backend} calls cut off")
                if "not known" not in str(error) and "keeper" not in str(error) and "no server" not in str(error):
                    self._must("agent" in str(error), f"{backend}: {type(error).__name__}: {error}")
            self._count(f"{backend} turns")
            if turn % 5 == 4:
                self._compare(sandbox, backend, files)
        self._compare(sandbox, backend, files)
        _insist(sandbox.stop)

    def _compare(self, sandbox: Sandbox, backend: str, files: dict[str, set[str]]) -> None:
        for name, known in files.items():
            there = hashlib.sha256(_insist(lambda name=name: _read(sandbox, name))).hexdigest()
            if there == _NOTHING:
                there = ""
            self._must(there in known, f"{backend}: {name} has other content than any that it was given")
            files[name] = {there}
        self._count("workspaces compared")

    def _must(self, holds: bool, what: str) -> None:
        if not holds:
            with self.lock:
                self.found.fault(what)

    def _count(self, what: str) -> None:
        with self.lock:
            self.found.counts[what] += 1


_NOTHING = hashlib.sha256(b"").hexdigest()


def _read(sandbox: Sandbox, name: str) -> bytes:
    try:
        return sandbox.files.read(name)
    except FileNotFoundError:
        return b""


def _insist(ask):  # type: ignore[no-untyped-def]
    """The answer to what may be asked again and again, from a server that is there again in time."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except SandboxError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
