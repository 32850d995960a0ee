# SPDX-License-Identifier: MIT
"""Tables of a policy that comes as text, read where the guard runs. The slow way; a runner gives the tables itself."""

from __future__ import annotations

import os

from agentbox.guest.tables import tables
from agentbox.policy.parser import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional


def tables_of_text(text: str, root: str) -> dict[str, Any]:
    """The tables of a policy whose relative paths begin at `root`. Raises PolicySyntaxError."""
    return tables(
        parse(text, root=root, home=os.path.expanduser("~"), resolve=os.path.realpath, find_program=_find_program)
    )


def _find_program(name: str) -> Optional[str]:  # noqa: UP045 - Python 3.9
    directories = os.get_exec_path()
    candidates = [name] if "/" in name else [f"{place}/{name}" for place in directories if place.startswith("/")]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return os.path.realpath(candidate)
    return None
