# SPDX-License-Identifier: MIT
"""The backends, by name. To add one: a module in backends/ and a row here."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from agentbox.errors import UnknownBackendError
from agentbox.isolation.backend import Backend
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.backends.subprocess import SubprocessBackend
from agentbox.isolation.facilities import Facilities


def _gvisor(facilities: Facilities) -> Backend:
    from agentbox.isolation.backends.gvisor import GvisorBackend

    return GvisorBackend(facilities)


def _docker(facilities: Facilities) -> Backend:
    from agentbox.isolation.backends.docker import DockerBackend

    return DockerBackend(facilities)


BACKENDS: dict[str, Callable[[Facilities], Backend]] = {
    "jail": JailBackend,
    "gvisor": _gvisor,
    "docker": _docker,
    "subprocess": SubprocessBackend,
    "unrestricted": lambda facilities: SubprocessBackend(facilities, "unrestricted"),
}
DEFAULT = "jail"


def make(name: str, facilities: Facilities) -> Backend:
    """The backend of that name; `auto` is the default one. Raises UnknownBackendError."""
    chosen = DEFAULT if name == "auto" else name
    try:
        return BACKENDS[chosen](facilities)
    except KeyError:
        near = difflib.get_close_matches(name, BACKENDS, 1)
        raise UnknownBackendError(
            f"unknown backend {name!r}",
            hint=f"did you mean {near[0]}?" if near else f"use one of {', '.join(BACKENDS)}",
        ) from None
