# SPDX-License-Identifier: MIT
"""Loaded by schemathesis itself: an array that must be long is a few drawn items again and again, where it would draw
hundreds, one by one. Its size is what such a case is about; drawing them took three quarters of the whole time."""

from __future__ import annotations

from schemathesis.specs.openapi.coverage import _schema

_MOST_DRAWN_ITEMS = 4

# A schemathesis without it draws them all, and is slower.
if hasattr(_schema, "MAX_DRAWN_ARRAY_ITEMS"):
    _schema.MAX_DRAWN_ARRAY_ITEMS = _MOST_DRAWN_ITEMS
