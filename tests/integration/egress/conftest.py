# SPDX-License-Identifier: MIT
"""A gateway for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.egress.crossings import Crossings
from tests.integration.egress.servers import certificate


@pytest.fixture
def crossings(tmp_path: Path) -> Iterator[Crossings]:
    world = Crossings(tmp_path)
    yield world
    world.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate for allowed.test and other.test."""
    directory = tmp_path_factory.mktemp("certificates")
    certificate(directory, "allowed.test", "other.test")
    return directory
