# SPDX-License-Identifier: MIT
"""The modules that code inside a box uses too run on Python 3.9 with nothing but its standard library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import agentbox.trace

SHARED = ("canonical.py", "frames.py")


@pytest.mark.parametrize("name", SHARED)
def test_shared_module_is_python_3_9_and_imports_the_standard_library_only(name: str) -> None:
    source = Path(agentbox.trace.__file__).with_name(name).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 9))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {module.split(".")[0] for module in imported} <= sys.stdlib_module_names
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
    assert all(
        keyword.arg not in {"slots", "kw_only", "strict"}
        for keyword in ast.walk(tree)
        if isinstance(keyword, ast.keyword)
    )
