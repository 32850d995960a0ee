# SPDX-License-Identifier: MIT
"""One ground for all attacks on the gateway, and the seats that they are made from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.adversarial.egress.ground import SEATS, Ground, far_services, process_that_listens, serving
from tests.conftest import not_here
from tests.integration.egress.world import world
from tests.standing import Standing


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory, standings: Callable[[str], Standing]) -> Iterator[Ground]:
    if os.geteuid() != 0:
        not_here("only root can make the world that is attacked")
    with ExitStack() as stack:
        found = stack.enter_context(world(tmp_path_factory.mktemp("world")))
        stack.enter_context(far_services(found))
        made = Ground(found, tmp_path_factory.mktemp("scratch"), {name: standings(name) for name in ("root", "user")})
        for name, standing in made.standings.items():
            url = serving(made, name, made.directory(standing.user), AGENTBOX_ALLOW_REQUEST_EGRESS="1")
            made.urls[name] = stack.enter_context(url)
            made.pids[name] = process_that_listens(made, made.urls[name])
        stack.callback(lambda: made.threads.shutdown())
        yield made


@pytest.fixture(params=SEATS)
def seat(request: pytest.FixtureRequest) -> str:
    """A door and who stands behind it."""
    return str(request.param)
