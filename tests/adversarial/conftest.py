# SPDX-License-Identifier: MIT
"""Servers with backend jail, one for each standing, shared by all attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.adversarial.escape.canaries import Canaries, canaries
from tests.running_server import RunningServer
from tests.standing import NAMES, Standing


@dataclass(frozen=True)
class Jail:
    """A server whose environment holds secrets, and the canaries around it."""

    standing: Standing
    server: RunningServer
    canaries: Canaries

    @property
    def known(self) -> dict[str, object]:
        """What attacks are told."""
        return {**self.canaries.known, "server_port": int(self.server.url.rpartition(":")[2])}


@pytest.fixture(scope="session")
def jails(
    start_server: Callable[..., RunningServer], standings: Callable[[str], Standing]
) -> Iterator[Callable[[str], Jail]]:
    """A function that gives the jail of a standing, started when it is first asked for."""
    started: dict[str, Jail] = {}
    with ExitStack() as stack:

        def give(name: str) -> Jail:
            if name not in started:
                standing = standings(name)
                placed = stack.enter_context(canaries(standing.uid))
                names = ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "DATABASE_URL", "MY_APP_CREDS", "SSH_AUTH_SOCK")
                secrets = {name: f"{placed.secret}-{name}" for name in names}
                server = start_server(arguments=("--backend", "jail"), standing=standing, **secrets)
                started[name] = Jail(standing, server, placed)
            return started[name]

        yield give


@pytest.fixture(params=NAMES)
def jail(request: pytest.FixtureRequest, jails: Callable[[str], Jail]) -> Jail:
    """A server with backend jail: as root, as an ordinary user, as one with control groups."""
    return jails(request.param)
