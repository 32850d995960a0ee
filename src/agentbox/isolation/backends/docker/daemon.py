# SPDX-License-Identifier: MIT
"""The engine that boxes are made by: what it offers, and what it lacks."""

from __future__ import annotations

import os
import sys

from agentbox.errors import AgentboxError, BackendUnavailableError, EngineError
from agentbox.isolation.backends.docker.engine import Engine
from agentbox.isolation.backends.docker.ground import ALONE, NATIVE_INIT, STAT
from agentbox.isolation.requirement import Requirement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.isolation.facilities import DockerOptions

# What `agentbox image build` makes, and what ran before there was one.
BASE_IMAGE = "agentbox/base:latest"
USUAL_IMAGES = {"python": "python:3.12-slim", "javascript": "node:20-slim"}
_LOOK_SECONDS = 10.0
RUNSC_ENTRY = '"runtimes": {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=none"]}}'
HOSTNET_ENTRY = '"runsc-hostnet": {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=host"]}'


class Daemon:
    """Asked once for what does not change while it runs."""

    def __init__(self, options: DockerOptions) -> None:
        self.options = options
        self.engine = Engine(options.host)
        self._info: dict[str, Any] | None = None
        self._process: int | None = 0

    @property
    def runs_gvisor(self) -> bool:
        """Whether boxes get a kernel of their own: the runtime is a runsc."""
        runtime = self.options.runtime
        path = str(self._runtimes().get(runtime, {}).get("path", runtime)) if self._info else runtime
        return "runsc" in os.path.basename(path) or "runsc" in runtime

    @property
    def limits_hold(self) -> bool:
        """Whether the limits of a container's memory, processes and processors are in force: gVisor's runtime can be
        told to leave control groups alone."""
        arguments = self._runtimes().get(self.options.runtime, {}).get("runtimeArgs") or ()
        return not any(str(word).startswith("--ignore-cgroups") and "false" not in str(word) for word in arguments)

    def info(self) -> dict[str, Any]:
        """What the engine says about itself. Blocks; raises IsolationError."""
        if self._info is None:
            self._info = self.engine.ask("GET", "/info", timeout=_LOOK_SECONDS)
        return self._info

    @property
    def shows_sockets(self) -> bool:
        """Whether programs can connect to a UNIX socket of the host that a container shows: gVisor must be told."""
        arguments = self._runtimes().get(self.options.runtime, {}).get("runtimeArgs") or ()
        return not self.runs_gvisor or any(str(word).partition("=")[0].endswith("host-uds") for word in arguments)

    def plain_runtime(self) -> str:
        """A runtime whose containers have the host's kernel, where the engine has one."""
        return "runc" if "runc" in self._runtimes() else self.options.runtime

    def attached_runtime(self) -> str:
        """The runtime for boxes that have a way out: gVisor must be told to use the network that it is put into. Raises
        BackendUnavailableError."""
        if not self.runs_gvisor or self._uses_host_network(self.options.runtime):
            return self.options.runtime
        for name, runtime in sorted(self._runtimes().items()):
            if "runsc" in os.path.basename(str(runtime.get("path", ""))) and self._uses_host_network(name):
                return name
        raise BackendUnavailableError(
            f"the runtime {self.options.runtime} has a network of its own, which leads nowhere, so `net:` rules and "
            "allowlists cannot be held",
            hint=f"put a second entry into /etc/docker/daemon.json and restart the daemon: {HOSTNET_ENTRY}",
        )

    def _uses_host_network(self, runtime: str) -> bool:
        return "--network=host" in (self._runtimes().get(runtime, {}).get("runtimeArgs") or ())

    def process(self) -> int | None:
        """The process that listens at the engine's socket; None where it is not to be seen from here, as in a container
        that was lent the socket."""
        if self._process == 0:
            self._process = self.engine.peer()
        return self._process

    def _runtimes(self) -> dict[str, dict[str, Any]]:
        return (self._info or {}).get("Runtimes") or {}

    def requirements(self) -> tuple[Requirement, ...]:
        """See Backend."""
        if sys.platform != "linux":
            return (Requirement("Linux", False, sys.platform, "run the server on Linux, or in a Linux VM"),)
        found = [_compiled()]
        try:
            info = self.info()
        except AgentboxError as error:
            return (*found, Requirement("a docker engine", False, error.message, error.hint))
        found.append(Requirement("a docker engine", True, f"{info.get('ServerVersion')} at {self.options.host}"))
        found.append(self._runtime())
        found.append(_own_ids(info))
        try:
            image = self.image_of("python")
        except AgentboxError as error:
            found.append(Requirement("an image with Python", False, error.message, error.hint))
        else:
            found.append(Requirement("an image with Python", True, image))
        return tuple(found)

    def _runtime(self) -> Requirement:
        name = self.options.runtime
        offered = self._runtimes()
        if name in offered:
            return Requirement("the container runtime", True, name)
        fix = f"AGENTBOX_DOCKER_RUNTIME must be one of {', '.join(sorted(offered))}"
        if "runsc" in name:
            fix = f"install runsc, put this into /etc/docker/daemon.json and restart the daemon: {RUNSC_ENTRY}"
        return Requirement("the container runtime", False, f"the engine has no runtime {name}", fix)

    def image_of(self, language: str) -> str:
        """The image for a language. Blocks; raises BackendUnavailableError when the engine does not have it."""
        configured = self.options.node_image if language == "javascript" else self.options.image
        setting = "AGENTBOX_DOCKER_NODE_IMAGE" if language == "javascript" else "AGENTBOX_DOCKER_IMAGE"
        choices = [configured] if configured else [BASE_IMAGE, USUAL_IMAGES.get(language, USUAL_IMAGES["python"])]
        for image in choices:
            if self.has_image(image):
                return image
        raise BackendUnavailableError(
            f"the docker engine has no image {' and no image '.join(choices)}",
            hint=f"`agentbox image build` makes {BASE_IMAGE} here; or `docker pull` one and name it in {setting}",
        )

    def has_image(self, image: str) -> bool:
        """Whether the engine has an image. Blocks; raises IsolationError."""
        from urllib.parse import quote

        try:
            self.engine.ask("GET", f"/images/{quote(image, safe='')}/json", timeout=_LOOK_SECONDS)
        except EngineError as error:
            if error.data["status"] == 404:
                return False
            raise
        return True

    async def default_image(self) -> str:
        """The image for boxes that do not name one. Raises IsolationError."""
        found: str = await self.engine.in_thread(lambda: self.image_of("python"))
        return found

    async def nests_groups(self) -> bool:
        """Whether containers can be made in a control group of ours. Raises IsolationError."""
        info = await self.engine.in_thread(self.info)
        return info.get("CgroupDriver") == "cgroupfs" and os.geteuid() == 0 and self.limits_hold


def _compiled() -> Requirement:
    missing = [path for path in (NATIVE_INIT, STAT.file, ALONE.file) if not os.path.isfile(path)]
    return Requirement(
        "the compiled part of agentbox",
        not missing,
        f"{missing[0]} is missing" if missing else NATIVE_INIT,
        "" if not missing else "install a C compiler and then agentbox again (`pip install .`)",
    )


def _own_ids(info: dict[str, Any]) -> Requirement:
    options = " ".join(info.get("SecurityOptions") or ())
    word = next((word for word in ("rootless", "userns") if f"name={word}" in options), "")
    return Requirement(
        "an engine with the host's ids",
        not word,
        f"the engine runs with {word}" if word else "no remapping of ids",
        "start the daemon as root and without userns-remap, or use backend jail, which needs neither" if word else "",
    )
