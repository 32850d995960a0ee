# SPDX-License-Identifier: MIT
"""What a sandbox was asked to be, checked and in the project's units."""

from __future__ import annotations

import os
from collections.abc import Mapping

from agentbox.errors import SandboxError
from agentbox.models import Limits
from agentbox.records import dataclass
from agentbox.sandbox.confining import SandboxPolicy
from agentbox.sandbox.sizes import megabytes, processors
from agentbox.sandbox.spool import DEFAULT_BYTES

DEFAULT_IMAGE = "python:3.12"
_NO_TIMEOUT_SECONDS = 366 * 86400.0
_FEWEST_PIDS = 8


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """The arguments of a sandbox; see AsyncSandbox. `limits.max_output_bytes` is how much of a command's output is
    kept."""

    limits: Limits
    image: str | None
    exec_timeout: float
    backend: str | None
    policy: str | None
    workspace: str | os.PathLike[str] | None
    env: Mapping[str, str]
    user: str
    idle_timeout: float | None
    max_lifetime: float | None
    trace: bool | str | os.PathLike[str] | None = None
    snapshot: str | None = None
    ceiling: str | None = None

    @property
    def policies(self) -> tuple[str, ...]:
        """The texts of which each must allow: the sandbox's own, and that of an operator."""
        return tuple(text for text in (self.policy, self.ceiling) if text is not None)


def read_options(
    *,
    image: str | None = None,
    memory: str | int = "2g",
    cpus: str | float = "2",
    pids_limit: int = 512,
    exec_timeout: float = 60,
    backend: str | None = None,
    policy: str | None = None,
    workspace: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    user: str = "agent",
    disk: str | int = "1g",
    idle_timeout: float | None = None,
    max_lifetime: float | None = None,
    spool_bytes: int = DEFAULT_BYTES,
    trace: bool | str | os.PathLike[str] | None = None,
    snapshot: str | None = None,
    ceiling: str | None = None,
) -> SandboxOptions:
    """The options that these arguments say; `ceiling` is the text of an operator's policy. Raises SandboxError,
    PolicyError."""
    if user not in ("agent", "root"):
        raise SandboxError(f"user={user!r} is not known in a sandbox", hint='use "agent" or "root"')
    if pids_limit < _FEWEST_PIDS:
        raise SandboxError(f"pids_limit={pids_limit} is too few", hint=f"use {_FEWEST_PIDS} or more")
    limits = Limits(
        timeout_seconds=_NO_TIMEOUT_SECONDS,
        memory_mb=megabytes(memory, "memory"),
        cpus=processors(cpus),
        pids=pids_limit,
        disk_mb=megabytes(disk, "disk"),
        max_output_bytes=spool_bytes,
    )
    texts = [text for text in (policy, ceiling) if text is not None]
    if texts:
        # Read once more where the box is; here for its limits, and for faults that can be told at once.
        limits = SandboxPolicy(*texts).limits(limits)
        if limits.timeout_seconds < _NO_TIMEOUT_SECONDS:
            max_lifetime = min(limits.timeout_seconds, max_lifetime or limits.timeout_seconds)
    return SandboxOptions(
        limits,
        image,
        exec_timeout,
        backend,
        policy,
        workspace,
        dict(env or {}),
        user,
        idle_timeout,
        max_lifetime,
        trace,
        snapshot,
        ceiling,
    )
