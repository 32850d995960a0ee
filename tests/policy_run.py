# SPDX-License-Identifier: MIT
"""`agentbox run` as tests use it: a project with a policy, commands in it, and what their traces say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.running_server import clean_environment

AGENTBOX = (sys.executable, "-m", "agentbox.cli.main")
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class PolicyRun:
    """A command that has ended. `records` are those of its trace, in order."""

    exit_code: int
    stdout: bytes
    stderr: str
    records: list[dict[str, Any]]

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")

    def denials(self, op: str = "exec", origin: str = "kernel") -> list[str]:
        """Targets of what was denied."""
        return [
            str(one["args"]["target"])
            for one in self.records
            if one["kind"] == "deny" and one["op"] == op and one["origin"] == origin
        ]

    def started(self) -> list[str]:
        """Programs that the exec judge let run."""
        return [str(one["args"]["exe"]) for one in self.records if one["op"] == "proc.exec"]


@dataclass
class Project:
    """A directory with a policy; `state` holds the key that signs."""

    directory: Path
    state: Path
    command: Sequence[str] = AGENTBOX
    environment: dict[str, str] = field(default_factory=dict)

    def policy(self, *lines: str) -> None:
        (self.directory / "agentbox.policy").write_text("\n".join(lines) + "\n")

    def file(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        settings = {"AGENTBOX_STATE_DIR": str(self.state), "PATH": SYSTEM_PATH}
        return clean_environment({**settings, **self.environment, **(extra or {})})

    def run(
        self,
        *command: str,
        options: Sequence[str] = (),
        stdin: bytes | int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
        timeout: float = 120.0,
    ) -> PolicyRun:
        """Run a command under the policy, to its end."""
        before = self.traces()
        given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        done = subprocess.run(
            [*self.command, "run", *options, "--", *command],
            cwd=self.directory,
            env=self.environ(environment),
            capture_output=True,
            timeout=timeout,
            check=False,
            **given,  # type: ignore[call-overload]
        )
        new = [trace for trace in self.traces() if trace not in before]
        records = self.records(new[0]) if new else []
        return PolicyRun(done.returncode, done.stdout, done.stderr.decode(errors="replace"), records)

    def python(self, code: str, *words: str, **options: Any) -> PolicyRun:
        """Run the system's Python with a program that the policy need not show."""
        return self.run("/usr/bin/python3", "-c", code, *words, **options)

    def traces(self) -> list[Path]:
        return sorted((self.directory / ".agentbox" / "runs").glob("*/trace.jsonl"))

    @staticmethod
    def records(trace: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in trace.read_text().splitlines()]

    def verdict(self, trace: Path | str = "trace.jsonl") -> tuple[int, str]:
        """Exit code and words of `agentbox verify`."""
        done = subprocess.run(
            [*self.command, "verify", "-t", str(trace)],
            cwd=self.directory,
            env=self.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


def new_project(directory: Path) -> Project:
    """A project below a directory of tests; its state lies beside it."""
    (directory / "project").mkdir()
    (directory / "state").mkdir()
    return Project(directory / "project", directory / "state")


def has_program(name: str) -> bool:
    """Whether the system has a program."""
    return any(os.access(f"{directory}/{name}", os.X_OK) for directory in SYSTEM_PATH.split(":"))
