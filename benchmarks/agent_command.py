# SPDX-License-Identifier: MIT
"""The `agentbox` command of this environment and that of the old runtime, and a project in which both run programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.guest_effects import FILES
from benchmarks.interleaved import NotHereError
from benchmarks.processes import PYTHON
from benchmarks.ways import old_python
from tests.running_server import clean_environment

_SCRIPT = Path(sys.executable).with_name("agentbox")
# An installed command starts without what `-m` adds.
AGENTBOX = [str(_SCRIPT)] if _SCRIPT.is_file() else [sys.executable, "-m", "agentbox.cli.main"]
OLD_NAME = "agentbox-runtime 0.3"
OLD_VARIABLE = "AGENTBOX_BENCH_S3_PYTHON"
_REPOSITORY = Path(__file__).parent.parent
_POLICY = "read: ./data\nexec: /bin/true\nexec: /usr/bin/python3\nenv: PATH\n"
# Without it the old runtime refuses look-ups, which are timed.
_OLD_POLICY = f"{_POLICY}net: localhost\n"


def old_command() -> list[str]:
    """The command of the old runtime; NotHereError where it is not installed."""
    return [str(Path(old_python(OLD_VARIABLE, OLD_NAME)).parent / "agentbox")]


def old_command_or_none() -> list[str]:
    """The command of the old runtime, or nothing."""
    try:
        return old_command()
    except NotHereError:
        return []


def compiled_environment(state: Path, **further: str) -> dict[str, str]:
    """An environment in which a command compiles its modules once, as a user's does."""
    environment = clean_environment({"AGENTBOX_STATE_DIR": str(state), **further})
    # The old runtime is a package of the same name.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH"):
        environment.pop(name, None)
    return environment


class Project:
    """A project with a policy below `directory`, and what commands do there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "project"
        self._environment = compiled_environment(directory / "state", PATH="/usr/bin:/bin")
        (self.path / "data").mkdir(parents=True)
        for number in range(FILES):
            (self.path / f"data/{number}.txt").write_text("hello\n")
        (self.path / "agentbox.policy").write_text(_POLICY)
        (self.path / "old.policy").write_text(_OLD_POLICY)
        (self.path / "effects.py").write_text(Path(__file__).with_name("guest_effects.py").read_text())

    def execute(self, command: Sequence[str]) -> tuple[str, float, int]:
        """Standard output, processor seconds of the command and all it waited for, and its peak memory in KiB."""
        environment = {**self._environment, "PYTHONPATH": f"{_REPOSITORY}"} if "-m" in command else self._environment
        with subprocess.Popen(
            command, cwd=self.path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            text = process.stdout.read()
            problem = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command} ended with {process.returncode}: {problem or text}")
        return text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss

    def inside(self, by: Sequence[str], effect: str, count: int, *, processor: bool = False) -> float:
        """Microseconds of one effect as the program inside saw it."""
        isolated = ["-I", "-S"] if effect == "spawn" else []
        text, _, _ = self.execute([*by, PYTHON, *isolated, "effects.py", effect, str(count)])
        return float(text.split()[1 if processor else 0])

    def end_to_end(self, by: Sequence[str], effect: str, count: int, *, host: bool) -> float:
        """Processor microseconds of one effect in the program, and with `host` what the command used for it as well,
        which it does not wait for as its child."""
        text, with_effects, _ = self.execute([*by, PYTHON, "effects.py", effect, str(count)])
        in_guest = float(text.split()[1])
        if not host:
            return in_guest
        _, without, _ = self.execute([*by, PYTHON, "effects.py", effect, "0"])
        return in_guest + max(0.0, with_effects - without) * 1e6 / count
