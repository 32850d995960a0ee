# SPDX-License-Identifier: MIT
"""Fixtures of the trace tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trace.recording import Recording


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A key, a ledger and a directory for traces."""
    return Recording(tmp_path)
