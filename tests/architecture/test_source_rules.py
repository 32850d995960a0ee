# SPDX-License-Identifier: MIT
"""Rules of the source that a reader may rely on: where danger lives, what words mean, how large a file may be."""

from __future__ import annotations

import re
from functools import cache

from tests.architecture.source import modules, repository_files

MAX_MODULE_LINES = 500

# Readers of the environment besides config.py, each with its reason.
ENVIRONMENT_READERS: dict[str, str] = {
    "guest/agent/protocol.py": "runs inside the guest: what the box gave it, its commands get",
    "guest/guard/freezing.py": "takes the seed out of the guest's environment, so that its children do not have it",
    "guest/soft_egress/sitecustomize.py": "runs inside the guest, whose environment is all that it is told",
    "guest/zygote.py": "makes the environment of a run, inside the guest",
    "linux/process.py": "overwrites the environment in processes that a guest may come near",
}

# Users of ctypes besides linux/, each with its reason.
RAW_CALLERS: dict[str, str] = {
    "guest/agent/keeper.py": "runs inside the guest, where nothing of linux/ is visible",
    "guest/checks.py": "makes forbidden calls from inside a box, where nothing of linux/ is visible",
    "guest/zygote.py": "loads what is compiled for it, inside the guest, where nothing of linux/ is visible",
}

# One word per idea: a run is not a job, and a thing is named by what it is, not by being a helper.
FORBIDDEN_WORDS = frozenset({"job", "jobs", "task", "tasks", "manager", "helper", "helpers", "util", "utils", "common"})
# asyncio calls its own objects tasks, and a variable may hold what two things have in common.
FORBIDDEN_IN_VARIABLES = frozenset({"job", "jobs"})

# These are asyncio's names for asyncio's things.
NAMED_LIKE_ASYNCIO = frozenset({"light/futures.py", "light/loop.py"})


def test_there_are_modules_to_look_at() -> None:
    assert {"config.py", "engine/runner.py"} <= {module.relative for module in modules()}


def test_every_module_says_what_it_is_for_and_under_which_licence() -> None:
    unlicensed = [m.relative for m in modules() if not m.text.startswith("# SPDX-License-Identifier: MIT\n")]
    assert not unlicensed
    silent = [module.relative for module in modules() if not module.findings.docstring]
    assert not silent, f"{silent} have no docstring"


def test_every_module_is_small_enough_to_be_read_at_once() -> None:
    lengths = {module.relative: len(module.text.splitlines()) for module in modules()}
    long = {relative: lines for relative, lines in lengths.items() if lines > MAX_MODULE_LINES}
    assert not long, f"{long}: split them by subject"


def test_no_module_leaves_anything_for_later() -> None:
    mark = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    assert not {module.relative: found for module in modules() if (found := mark.findall(module.text))}


def test_only_the_command_line_prints() -> None:
    assert not {m.relative: m.findings.prints for m in modules() if m.room != "cli" and m.findings.prints}


def test_raw_system_calls_are_made_in_the_linux_room_only() -> None:
    wrong = [
        f"{module.relative}:{found.line}"
        for module in modules()
        if module.room != "linux" and module.relative not in RAW_CALLERS
        for found in module.imports
        if found.module.split(".")[0] in {"ctypes", "_ctypes", "cffi"}
    ]
    assert not wrong, f"{wrong} use ctypes"


def test_environment_is_read_in_config_only() -> None:
    reads = {
        module.relative: module.findings.environment
        for module in modules()
        if module.findings.environment and module.relative not in {"config.py", *ENVIRONMENT_READERS}
    }
    assert not reads, f"{reads} read the environment; take a value from Settings"


def test_names_use_the_words_of_the_project() -> None:
    wrong = []
    for module in modules():
        if FORBIDDEN_WORDS & _words(module.path.stem):
            wrong.append(f"{module.relative}: the file")
        for kind, name, line in module.findings.names:
            asyncios = kind == "variable" or module.relative in NAMED_LIKE_ASYNCIO
            forbidden = FORBIDDEN_IN_VARIABLES if asyncios else FORBIDDEN_WORDS
            if forbidden & _words(name):
                wrong.append(f"{module.relative}:{line}: {kind} {name}")
    assert not wrong, "\n".join(wrong)


def test_repository_names_no_machine_and_no_registry() -> None:
    patterns = [
        re.compile(r"(?:py" + r"pi|npm" + r"js|python" + r"hosted|deb" + r"ian|ubu" + r"ntu)\.(?:org|com|net)\b"),
        re.compile(r"/wo" + r"rk/(?:main(?![.\w])|steering|shared|\.library|\.mirror)\b"),
        re.compile(r"/ro" + r"ot/\.pyenv|abv" + r"env|/tmp/br" + r"ief|/fa" + r"rm/"),
        re.compile(r"\bC" + r"EO\b|\bissues? (?:number )?#?\d"),
    ]
    wrong = []
    for path in repository_files():
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            wrong += [f"{path.name}:{number}: {found.group()}" for p in patterns if (found := p.search(line))]
    assert not wrong, "\n".join(wrong[:20])


def test_every_source_file_names_its_licence() -> None:
    for path in repository_files():
        if path.suffix in {".py", ".sh"} or path.name in {"Makefile", "run"}:
            head = path.read_text(encoding="utf-8").splitlines()[:2]
            assert not head or any("SPDX-License-Identifier: MIT" in line for line in head), f"{path} has no SPDX line"


@cache
def _words(name: str) -> frozenset[str]:
    """The lower-case words of a snake_case or CamelCase name."""
    return frozenset(part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name))
