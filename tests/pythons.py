# SPDX-License-Identifier: MIT
"""The Python programs that guests of the tests run with: this one, the system's, and those that
`AGENTBOX_TEST_PYTHONS` names.

`AGENTBOX_TEST_PYTHONS` is a list of paths separated by `:`, so that other versions of Python can be tried too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

_SYSTEM = "/usr/bin/python3"


def pythons() -> list[str]:
    """Paths, each of another program."""
    candidates = [sys.executable, _SYSTEM, *os.environ.get("AGENTBOX_TEST_PYTHONS", "").split(os.pathsep)]
    found: dict[str, str] = {}
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            found.setdefault(os.path.realpath(candidate), candidate)
    return list(found.values())


def versions() -> list[str]:
    """One path for each version, 3.11 and so on: where what is tested does not depend on how a Python was built."""
    found: dict[str, str] = {}
    for python in pythons():
        found.setdefault(name(python).removeprefix("system-"), python)
    return list(found.values())


@cache
def name(python: str) -> str:
    """What a test calls it: its version, and where it comes from when that is the system."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    return f"system-{version.strip()}" if python == _SYSTEM else version.strip()
