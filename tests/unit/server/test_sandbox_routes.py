# SPDX-License-Identifier: MIT
"""What the document says of sandboxes is what a keeper answers."""

from __future__ import annotations

from pathlib import Path

from agentbox.config import Settings
from agentbox.server.body import BodyBudget
from agentbox.server.openapi import document
from agentbox.server.sandboxes.application import routes_of
from agentbox.server.sandboxes.collection import Sandboxes
from agentbox.server.sandboxes.journal import Journal
from agentbox.server.sandboxes.reading import Desk
from agentbox.server.supervised import Occasion


def test_every_route_of_sandboxes_is_documented(tmp_path: Path) -> None:
    settings = Settings(state_dir=str(tmp_path))
    sandboxes = Sandboxes(settings, Journal(tmp_path))
    router = routes_of(Desk(sandboxes, settings, BodyBudget(1024), Occasion()))
    paths = document(settings, "jail", keyed=True)["paths"]
    documented = {
        (method.upper(), path)
        for path, item in paths.items()
        for method in item
        if path.startswith("/v1/sandboxes") and method != "parameters"
    }
    assert documented == router.routes


def test_backends_of_sandboxes_are_those_that_the_operator_allows() -> None:
    found = document(Settings(allowed_backends=("docker", "subprocess")), "jail", keyed=False)
    backend = found["components"]["schemas"]["SandboxBody"]["properties"]["backend"]
    assert backend["anyOf"][0]["enum"] == ["jail", "docker", "docker-runc", "docker-runsc"]
