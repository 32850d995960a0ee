# SPDX-License-Identifier: MIT
"""Servers that the cases of a section share: each is started when it is first asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from benchmarks import ways
from benchmarks.containers import IMAGE, Docker, archive
from benchmarks.interleaved import NotHereError
from benchmarks.old_service import serve_old

Opened = TypeVar("Opened")


class Servers:
    """Open until the stack is closed. Each method raises NotHereError, the same one each time, where it cannot be."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._opened: dict[str, object] = {}

    def warm(self) -> str:
        """The address of a server with its pool."""
        ways.need_pool()
        return self._once("warm", lambda: self._serve(ways.WARM))

    def on_demand(self) -> str:
        """The address of a server whose pool has no boxes in stock."""
        ways.need_pool()
        return self._once("on demand", lambda: self._serve(ways.ON_DEMAND))

    def cold(self) -> str:
        """The address of a server without one."""
        return self._once("cold", lambda: self._serve(ways.COLD))

    def docker(self) -> Docker:
        """A docker daemon."""
        return self._once("docker", lambda: Docker(self._stack, self.image))

    def image(self) -> Path:
        """The image of containers, as a tar file."""
        return self._once("image", self._archive)

    def old(self) -> str:
        """The address of the old service, which starts programs on the host."""
        return self._once("old", lambda: serve_old(self._stack, {}))

    def old_with_docker(self) -> str:
        """The address of the old service, which starts containers."""
        settings = {
            "AGENTBOX_SANDBOX_BACKEND": "docker",
            "AGENTBOX_DOCKER_IMAGE": IMAGE,
            "DOCKER_HOST": self.docker().address,
        }
        return self._once("old with docker", lambda: serve_old(self._stack, settings))

    def _archive(self) -> Path:
        place = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-image-"))
        return archive(Path(place) / "image.tar")

    def _serve(self, settings: Mapping[str, str]) -> str:
        server = ways.serve(self._stack, settings)
        ways.settle(server.pid)
        return server.url

    def _once(self, name: str, make: Callable[[], Opened]) -> Opened:
        if name not in self._opened:
            try:
                self._opened[name] = make()
            except NotHereError as error:
                self._opened[name] = error
        found = self._opened[name]
        if isinstance(found, NotHereError):
            raise found
        return found  # type: ignore[return-value]
