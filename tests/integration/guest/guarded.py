# SPDX-License-Identifier: MIT
"""Programs under the real guard, without a wall: a small host that serves their frames and keeps the records."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbox.engine.counting import Counting, Sizes
from agentbox.engine.policy_world import read_policy
from agentbox.engine.search_path import trusted_path
from agentbox.guest.injection import guard_directory, injection, policy_file
from agentbox.trace import frames
from agentbox.workspace.tree import Tree


@dataclass
class Outcome:
    """How a program ended, and what it told the host."""

    exit_code: int
    stdout: str
    stderr: str
    records: list[frames.Request]

    def of(self, kind: str, op: str | None = None) -> list[dict[str, Any]]:
        return [r.args for r in self.records if r.kind == kind and (op is None or r.op == op)]


@dataclass
class Host:
    """Runs guarded programs in `project`. `refuses` names ops that the host does not allow."""

    base: Path
    project: Path
    guards: Path
    refuses: frozenset[str] = frozenset()
    counting: Counting | None = None
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def channel(self, records: list[frames.Request]) -> Iterator[str]:
        path = str(self.base / "channel")
        Path(path).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(64)
        threads: list[threading.Thread] = []

        def serve(connection: socket.socket) -> None:
            parser = frames.FrameParser()
            with connection:
                while data := connection.recv(1 << 16):
                    for message in parser.feed(data):
                        request = frames.request_of(message)
                        records.append(request)
                        if request.ack:
                            connection.sendall(self.answer(request))

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            accepting.join(5)
            for thread in threads:
                thread.join(5)

    def answer(self, request: frames.Request) -> bytes:
        args = request.args
        with self.one_at_a_time:
            if request.kind == "count" and self.counting is not None:
                asked = self.counting.grow(args["path"], args["identity"], args["size"], 0)
                granted, why = asyncio.run(asked)
                if why:
                    return frames.answer(request.id, ok=False, denied=True, error=f"policy denies write {args['path']}")
                return frames.answer(request.id, result={"size": granted})
            if args.get("once") is True and self.counting is not None and self.counting.read_once(args["identity"]):
                return frames.answer(request.id, ok=False, denied=True, error=f"policy denies read {args['path']}")
        return frames.answer(
            request.id, ok=request.op not in self.refuses, error="the host says no" * (request.op in self.refuses)
        )

    @staticmethod
    def sizes() -> Sizes:
        top = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        try:
            return Sizes(Tree(top))
        finally:
            os.close(top)

    def environment(self, **more: str) -> dict[str, str]:
        """What a caller's own environment is to a run."""
        private = str(self.base / "private")
        return {"PATH": os.pathsep.join(trusted_path()), "TMPDIR": private, "HOME": private, **more}

    def run(
        self,
        policy: str,
        argv: list[str],
        *,
        wall: str = "none",
        enforce: bool = True,
        entry: str = "",
        node_flags: Sequence[str] = (),
        variables: dict[str, str] | None = None,
        base: dict[str, str] | None = None,
        stdin: str = "",
    ) -> Outcome:
        records: list[frames.Request] = []
        file = self.base / "policy"
        parsed = read_policy(policy, root=str(self.project))
        file.write_text(policy_file(parsed))
        self.counting = Counting(parsed, self.sizes())
        interpreter = argv[0] if "python" in argv[0] else None
        temporary = self.base / "private"
        temporary.mkdir(exist_ok=True)
        with self.channel(records) as channel:
            environment = injection(
                "python",
                str(guard_directory(self.guards, interpreter)),
                channel,
                str(file),
                str(self.project),
                "record",
                enforce,
                base if base is not None else self.environment(),
                wall=wall,
                private=(str(temporary),),
                entry=entry,
                node_flags=node_flags,
            )
            done = subprocess.run(
                argv,
                cwd=self.project,
                env=environment | (variables or {}),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        return Outcome(done.returncode, done.stdout, done.stderr, records)
