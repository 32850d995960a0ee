# SPDX-License-Identifier: MIT
"""Which backends a request for a sandbox may name."""

from __future__ import annotations

from agentbox.config import Settings
from agentbox.errors import UnknownBackendError
from agentbox.isolation.durable_registry import DURABLE
from agentbox.isolation.registry import DEFAULT


def durable_backends(settings: Settings) -> list[str]:
    """Those that the operator allows, the default first where that has durable boxes."""
    named = [DEFAULT if settings.sandbox_backend == "auto" else settings.sandbox_backend, *settings.allowed_backends]
    if "docker" in named:
        named += [name for name in DURABLE if name.startswith("docker-")]
    return [name for name in dict.fromkeys(named) if name in DURABLE]


def chosen_backend(settings: Settings, asked: str | None) -> str:
    """The backend of a new sandbox. Raises UnknownBackendError."""
    allowed = durable_backends(settings)
    if asked is None and allowed:
        return allowed[0]
    if asked is None or asked not in allowed:
        hint = f"use one of {', '.join(allowed)}" if allowed else "the operator sets AGENTBOX_ALLOWED_BACKENDS"
        raise UnknownBackendError(
            f"backend {(asked or settings.sandbox_backend)[:64]!r} cannot be had for sandboxes here", hint=hint
        )
    return asked
