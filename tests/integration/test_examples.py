# SPDX-License-Identifier: MIT
"""Every example runs against a real server and prints what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import RunningServer, clean_environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

PROMISES = {
    "curl.sh": ['"status":"ok"', '"stdout":"42\\n"', '"stdout":"hello\\nargument: one\\n4\\n"', "event: result"],
    "sdk_run.py": ["hello from 3.", "ok: True", "Error", "64: oom_killed", "timed out: 408 timed_out 'begun\\n'"],
    "sdk_stream.py": ["stdout: line 0", "stdout: line 2", "stderr: done", "outcome: exited exit code: 0"],
    "files_and_snapshots.py": [
        "total: 42",
        "from the snapshot: 42",
        "snapshots kept: True",
        "after deletion: False",
        "'numbers.txt', 'total.txt'",
    ],
    "javascript.py": ["arguments: one two", "GREETING: hello", "stdin: four", "network: none"],
}


def test_every_example_is_run_and_listed() -> None:
    scripts = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh"}}
    assert scripts == PROMISES.keys()
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name})" in listed for name in scripts)


@pytest.mark.parametrize("name", PROMISES)
def test_example_prints_what_it_promises(name: str, server: RunningServer, tmp_path: Path) -> None:
    interpreter = "bash" if name.endswith(".sh") else sys.executable
    done = subprocess.run(
        [interpreter, str(EXAMPLES / name)],
        env=clean_environment({"AGENTBOX_URL": server.url}),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for promise in PROMISES[name]:
        assert promise in done.stdout, done.stdout
