# SPDX-License-Identifier: MIT
"""The first minute of a newcomer: the command of the README gives the answer that the README shows."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.docs.render import REPOSITORY, part_of
from tests.running_server import RunningServer, clean_environment

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
MEASURED = {"run_id", "duration_ms", "timings", "usage", "enforcement"}


def test_command_of_the_readme_gives_the_answer_of_the_readme(server: RunningServer, tmp_path: Path) -> None:
    (command,) = re.findall(r"^curl .*$", README, re.MULTILINE)
    done = subprocess.run(
        ["bash", "-c", command.replace("http://127.0.0.1:8080", server.url)],
        cwd=tmp_path,
        env=clean_environment({}),
        capture_output=True,
        text=True,
        check=True,
    )
    shown = _shown_answer()
    real = json.loads(done.stdout)
    assert list(shown) == list(real)
    assert {name: shown[name] for name in shown.keys() - MEASURED} == {
        name: real[name] for name in real.keys() - MEASURED
    }
    for name in ("timings", "usage", "enforcement"):
        assert shown[name].keys() == real[name].keys()


def test_python_of_the_readme_runs(server: RunningServer) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(code.replace("http://127.0.0.1:8080", server.url), "README.md", "exec"), namespace)
    assert namespace["answer"].stdout == "42\n"


def _shown_answer() -> dict[str, Any]:
    text = part_of(README, "answer").group().removeprefix("```json\n").removesuffix("\n```")
    answer: dict[str, Any] = json.loads(text)
    return answer
