# SPDX-License-Identifier: MIT
"""Which room may import which: the table of CONTRIBUTING.md as a test."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source import imported_room, imports_of, is_third_party, modules

BASE = frozenset({"errors", "light", "models", "records"})
ENGINE_AND_BELOW = BASE | {
    "config",
    "linux",
    "policy",
    "trace",
    "replay",
    "workspace",
    "isolation",
    "egress",
    "guest",
    "engine",
}

MAY_IMPORT: dict[str, frozenset[str]] = {
    "__init__": BASE,
    "errors": frozenset(),
    "client": frozenset({"errors"}),
    "records": frozenset(),
    "light": frozenset(),
    "models": frozenset({"errors", "records"}),
    "config": BASE,
    "linux": frozenset({"errors", "light", "records"}),
    "policy": BASE,
    "trace": BASE,
    "replay": BASE | {"trace"},
    "workspace": BASE | {"linux"},
    "isolation": BASE | {"linux"},
    "egress": BASE | {"policy", "linux"},
    "guest": BASE,
    "engine": ENGINE_AND_BELOW,
    "sandbox": ENGINE_AND_BELOW,
    "server": ENGINE_AND_BELOW | {"sandbox"},
    "cli": ENGINE_AND_BELOW | {"sandbox"},
    "sdk": BASE,
    "integrations": ENGINE_AND_BELOW | {"sandbox"},
}

# The command that starts the server is the one place where two edges meet.
# A sandbox behind a server is reached over one line.
# Keys ask the OpenSSL of this process, which is called as the kernel is.
# The two modules that make the guard's tables of a policy are the ones of the guest's room that know policies.
ALSO: dict[str, frozenset[str]] = {
    "cli/serve.py": frozenset({"server"}),
    "guest/tables.py": frozenset({"policy"}),
    "guest/reading.py": frozenset({"policy"}),
    "sandbox/line.py": frozenset({"sdk"}),
    "trace/keys.py": frozenset({"linux"}),
}

# Rooms that are not named use the standard library only: guest code runs under whatever interpreter a box has, and
# what builds a box must not depend on code that we did not read.
THIRD_PARTY: dict[str, frozenset[str]] = {
    "server": frozenset({"httptools", "pydantic", "pydantic_core", "starlette", "uvicorn"}),
    "cli": frozenset({"click"}),
    "trace": frozenset({"cryptography"}),
    "sdk": frozenset({"httpx"}),
    "integrations": frozenset({"deepagents", "inspect_ai"}),
}


def test_every_module_imports_only_rooms_that_its_room_may_import() -> None:
    wrong = []
    for module in modules():
        assert module.room in MAY_IMPORT, f"{module.room} is not a room: add it to CONTRIBUTING.md and to this table"
        allowed = MAY_IMPORT[module.room] | ALSO.get(module.relative, frozenset()) | {module.room, "", "__init__"}
        wrong += [
            f"{module.relative}:{found.line} imports {found.module}"
            for found in module.imports
            if (room := imported_room(found.module)) is not None and room not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_every_module_uses_only_third_party_packages_that_its_room_may_use() -> None:
    wrong = [
        f"{module.relative}:{found.line} imports {found.module}"
        for module in modules()
        for found in module.imports
        if is_third_party(found.module) and found.module.split(".")[0] not in THIRD_PARTY.get(module.room, frozenset())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("import agentbox.engine.runner", "engine"),
        ("from agentbox import config", "config"),
        ("def f():\n    from agentbox.server import x", "server"),
        ("if TYPE_CHECKING:\n    from agentbox.cli import main", "cli"),
        ("from ..linux import credentials", "linux"),
        ("import importlib\nimportlib.import_module('agentbox.sdk')", "sdk"),
    ],
)
def test_import_is_seen_however_it_is_written(code: str, seen: str) -> None:
    rooms = {
        imported_room(found.module)
        for found in imports_of(ast.walk(ast.parse(code)), "agentbox.policy.rules", is_package=False)
    }
    assert seen in rooms
