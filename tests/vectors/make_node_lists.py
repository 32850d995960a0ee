# SPDX-License-Identifier: MIT
"""Writes the lists that the Node guard needs to read a policy as text: `python -m tests.vectors.make_node_lists`."""

from __future__ import annotations

import json
from pathlib import Path

from agentbox.guest.tables import tables
from agentbox.policy.parser import parse
from tests.architecture.source import REPOSITORY

LISTS = REPOSITORY / "src" / "agentbox" / "guest" / "node" / "known.cjs"
_HEAD = """// SPDX-License-Identifier: MIT
// Special networks and protected names as guest/tables.py gives them; written by tests/vectors/make_node_lists.py.
'use strict';

"""


def text() -> str:
    """The content of the file: one line an entry, so that a change of a list is a change of its lines."""
    known = tables(parse("", root="/"))
    body = json.dumps({name: known[name] for name in ("special", "protected")}, indent=1)
    return f"{_HEAD}module.exports = {body};\n"


if __name__ == "__main__":
    Path(LISTS).write_text(text(), encoding="utf-8")
