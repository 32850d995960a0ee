# SPDX-License-Identifier: MIT
"""Ids of requests."""

from __future__ import annotations

import os

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_LENGTH = 16
_LETTER_OF_BYTE = bytes(_LETTERS[byte % len(_LETTERS)] for byte in range(256))


def new_request_id() -> str:
    """A random id of 75 bits. It has letters only, so that a search for a number in an answer does not find it."""
    return os.urandom(_LENGTH).translate(_LETTER_OF_BYTE).decode("ascii")
