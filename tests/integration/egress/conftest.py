# SPDX-License-Identifier: MIT
"""A gateway for each test, on each kind of event loop that it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.integration.egress.crossings import Crossings
from tests.integration.egress.servers import certificate


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def crossings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crossings]:
    world = Crossings(tmp_path, request.param)
    yield world
    world.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate for allowed.test and other.test."""
    directory = tmp_path_factory.mktemp("certificates")
    certificate(directory, "allowed.test", "other.test")
    return directory
