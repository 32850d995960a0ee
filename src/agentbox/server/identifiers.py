# SPDX-License-Identifier: MIT
"""Ids of requests."""

from __future__ import annotations

import secrets

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LENGTH = 16


def new_request_id() -> str:
    """A random id of 75 bits. It has letters only, so that a search for a number in an answer does not find it."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
