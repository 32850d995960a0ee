# SPDX-License-Identifier: MIT
"""One machine for all tests of this directory: a boot takes longer than most of what is shown in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.vm import run as machine

# Each with its arguments, in the order in which they run.
SCRIPTS = {"posture": ("3",), "self_check": (), "cgroups_v2": ()}
SECONDS = 1200


@pytest.fixture(scope="session")
def results() -> dict[str, machine.Result]:
    """How each script ended."""
    missing = machine.why_not()
    if missing:
        pytest.skip(missing)
    scripts = [(Path(__file__).with_name(f"{name}.py"), arguments) for name, arguments in SCRIPTS.items()]
    ended = dict(zip(SCRIPTS, machine.run_all(scripts, timeout=SECONDS), strict=True))
    last = ended["cgroups_v2"]
    print(f"{last.accelerator}, {last.seconds:.0f} s", file=sys.stderr)
    return ended
