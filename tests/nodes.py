# SPDX-License-Identifier: MIT
"""The Node programs that the tests run with: the one on the PATH, and those that `AGENTBOX_TEST_NODES` names.

`AGENTBOX_TEST_NODES` is a list of paths separated by `:`, so that other versions of Node can be tried too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache


def nodes() -> list[str]:
    """Paths, each of another version."""
    candidates = [shutil.which("node"), *os.environ.get("AGENTBOX_TEST_NODES", "").split(os.pathsep)]
    found: dict[str, str] = {}
    for candidate in candidates:
        if candidate:
            found.setdefault(version_text(candidate), candidate)
    return list(found.values())


@cache
def version_text(node: str) -> str:
    """What `node --version` prints, without the v."""
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("v")


def version(node: str) -> tuple[int, int]:
    """Major and minor version."""
    major, minor, *_ = version_text(node).split(".")
    return int(major), int(minor)


def name(node: str) -> str:
    """How a test shows which Node it runs."""
    return f"node-{version_text(node)}"
