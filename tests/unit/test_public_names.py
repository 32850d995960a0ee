# SPDX-License-Identifier: MIT
"""The names that programs import from `agentbox`, and what the errors among them are."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentbox
from agentbox import errors


@pytest.mark.parametrize("name", agentbox.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(agentbox, name) is not None


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agentbox.nothing


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys, agentbox; print([name for name in sys.modules if name.startswith('agentbox.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("PolicyError", ValueError),
        ("PolicyViolation", PermissionError),
        ("ReplayDivergence", errors.AgentboxError),
        ("CheckpointError", errors.WorkspaceError),
        ("TraceTampered", errors.TraceError),
    ],
)
def test_an_error_is_of_agentbox_and_of_the_kind_that_programs_catch(name: str, base: type[BaseException]) -> None:
    error = getattr(agentbox, name)("what happened", hint="what to do", target="/x")
    assert isinstance(error, base)
    assert isinstance(error, agentbox.AgentboxError)
    assert (str(error), error.message, error.hint, error.data) == (
        "what happened",
        "what happened",
        "what to do",
        {"target": "/x"},
    )
    assert error.code
