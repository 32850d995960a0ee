# SPDX-License-Identifier: MIT
"""The backends that have durable boxes, by name. To add one: a module and a row here."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from agentbox.errors import BackendUnavailableError, UnknownBackendError
from agentbox.isolation.durable import DurableBackend
from agentbox.isolation.facilities import Facilities


def _jail(facilities: Facilities) -> DurableBackend:
    from agentbox.isolation.durable_jail import JailDurable

    return JailDurable(facilities)


def _gvisor(facilities: Facilities) -> DurableBackend:
    from agentbox.isolation.backends.gvisor.durable import GvisorDurable

    return GvisorDurable(facilities)


def _docker(runtime: str | None) -> Callable[[Facilities], DurableBackend]:
    def make(facilities: Facilities) -> DurableBackend:
        from agentbox.isolation.backends.docker.durable import DockerDurable

        return DockerDurable(facilities, runtime)

    return make


DURABLE: dict[str, Callable[[Facilities], DurableBackend]] = {
    "jail": _jail,
    "gvisor": _gvisor,
    "docker": _docker(None),
    "docker-runc": _docker("runc"),
    "docker-runsc": _docker("runsc"),
}
# What a sandbox gets when nobody says: boxes with a kernel of their own. Others are asked for by name.
PREFERRED = ("docker-runsc", "gvisor")


def judging() -> tuple[str, ...]:
    """The names of those that decide on programs in their boxes."""
    return ("jail",)


def make_durable(name: str, facilities: Facilities) -> DurableBackend:
    """The backend of that name. Raises UnknownBackendError."""
    try:
        return DURABLE[name](facilities)
    except KeyError:
        near = difflib.get_close_matches(name, DURABLE, 1)
        raise UnknownBackendError(
            f"no backend {name!r} has durable sandboxes",
            hint=f"did you mean {near[0]}?" if near else f"use one of {', '.join(DURABLE)}",
        ) from None


def preferred(facilities: Facilities) -> DurableBackend:
    """The first of PREFERRED whose requirements are met here. Raises BackendUnavailableError that names the choices and
    what each of them lacks."""
    lacking = []
    for name in PREFERRED:
        make = DURABLE.get(name)
        if make is None:
            lacking.append(f"{name}: not built in")
            continue
        backend = make(facilities)
        missing = [one for one in backend.requirements() if not one.met]
        if not missing:
            return backend
        lacking.append(f"{name}: {'; '.join(f'{one.name} ({one.fix or one.detail})' for one in missing)}")
    raise BackendUnavailableError(
        "no sandbox with a kernel of its own can be had here: " + "; ".join(lacking),
        hint=f"install what is missing, or choose another wall with backend=: one of {', '.join(DURABLE)}",
    )
