# SPDX-License-Identifier: MIT
"""Results of which only hashes are recorded."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from agentbox.engine.bodies import hashed

TEXT = {"sha256": hashlib.sha256(b"text").hexdigest(), "bytes": 4}
B64 = {"b64": base64.b64encode(b"text").decode()}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("text", TEXT),
        (B64, TEXT),
        ({"kept": "a" * 64, "bytes": 9}, {"sha256": "a" * 64, "bytes": 9}),
        ({"kept": "a" * 64, "bytes": 9, "cut": True}, {"sha256": "a" * 64, "bytes": 9, "cut": True}),
        ({"status": 200, "url": "http://a/", "body": "text"}, {"status": 200, "url": "http://a/", "body": TEXT}),
        ({"code": 1, "stdout": B64, "stderr": "text"}, {"code": 1, "stdout": TEXT, "stderr": TEXT}),
        (
            {"error": {"type": "E", "message": "m", "body": "text"}},
            {"error": {"type": "E", "message": "m", "body": TEXT}},
        ),
        ({"code": 0, "events": [["message", "text"]], "terminal": {"kept": "b"}}, {"code": 0}),
        ({"b64": "a"}, {}),
        (1.5, 1.5),
        (None, None),
    ],
)
def test_of_content_only_hash_and_length_are_left(result: Any, expected: Any) -> None:
    assert hashed(result) == expected
