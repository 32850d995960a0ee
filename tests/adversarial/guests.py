# SPDX-License-Identifier: MIT
"""Programs for boxes: how tests hand them to a server, and what they bring back."""

from __future__ import annotations

import ast
import contextlib
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from agentbox.linux.syscalls import NUMBERS, number
from tests.running_server import RunningServer

ATTEMPT = Path(__file__).with_name("escape") / "guest" / "attempt.py"
# Calls that attacks make and the product has no use for.
_MORE_NUMBERS = {
    "execveat": (322, 281), "getdents64": (217, 61), "getpid": (39, 172), "memfd_create": (319, 279),
    "move_mount": (429, 429), "name_to_handle_at": (303, 264), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "process_madvise": (440, 440), "rt_sigqueueinfo": (129, 138),
    "shmget": (29, 194), "tgkill": (234, 131),
}  # fmt: skip

Answer = dict[str, Any]


def execute(server: RunningServer, code: str, language: str = "python", **fields: object) -> Answer:
    """The result of one run; of a run that timed out too (`status` 408)."""
    with server.client() as client:
        response = client.post("/v1/run", json={"code": code, "language": language, **fields})
    assert response.status_code in (200, 408), response.text
    body: Answer = response.json()
    return {"status": response.status_code, **(body if response.status_code == 200 else body["result"])}


def output_of(server: RunningServer, code: str, language: str = "python", **fields: object) -> str:
    """What a program printed that must end well."""
    result = execute(server, code, language, **fields)
    assert (result["outcome"], result["exit_code"]) == ("exited", 0), result
    return str(result["stdout"])


@contextlib.contextmanager
def running(server: RunningServer, code: str, until: str = "ready", **fields: object) -> Iterator[str]:
    """A run that has printed the line `until`; yields everything up to there. Leaving ends it, as a client may."""
    with (
        httpx.Client(base_url=server.url, timeout=60.0) as client,
        client.stream(
            "POST", "/v1/run", json={"code": code, **fields}, headers={"Accept": "text/event-stream"}
        ) as response,
    ):
        assert response.status_code == 200, response.read()
        printed, event = "", ""
        # A name of its own: the connection closes when these lines are forgotten.
        lines = response.iter_lines()
        for line in lines:
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                data = json.loads(line[6:])
                assert event == "stdout", f"the run ended or complained before {until!r}: {event} {data}"
                printed += data.get("text", "")
                if until in printed.split("\n"):
                    break
        yield printed


def attacks_of(program: Path) -> list[str]:
    """Names of the functions that a guest program marks as attacks."""
    tree = ast.parse(program.read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(mark) == "attack" for mark in node.decorator_list)
    ]


def call_numbers() -> dict[str, int]:
    """Numbers of this machine's system calls, for guests that make them raw."""
    machine = platform.machine()
    found = {name: number(name, machine) for name in NUMBERS}
    column = 0 if machine == "x86_64" else 1
    found |= {name: pair[column] for name, pair in _MORE_NUMBERS.items()}
    return {name: value for name, value in found.items() if value is not None}


def perform(server: RunningServer, program: Path, known: dict[str, object], **fields: object) -> dict[str, str | None]:
    """Every attack of a guest program: None where the box held, else what was possible."""
    told = json.dumps({**known, "numbers": call_numbers()})
    files = {"attempt.py": ATTEMPT.read_text(), "known.json": told}
    code = program.read_text() + "\nimport attempt\nattempt.main()\n"
    result = execute(server, code, files=files, limits={"timeout_seconds": 60, "memory_mb": 256}, **fields)
    lines = result["stdout"].splitlines()
    assert lines, result
    assert lines[-1].startswith("{"), result
    answers: dict[str, str | None] = json.loads(lines[-1])
    return answers
