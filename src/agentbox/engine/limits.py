# SPDX-License-Identifier: MIT
"""The limits of an agent's run where its policy sets none."""

from __future__ import annotations

from agentbox.models import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.config import Settings

# An interactive agent may be left open for weeks.
_NO_TIMEOUT_SECONDS = 366 * 86400.0


def agent_limits(settings: Settings) -> Limits:
    """An agent's run has the operator's ceilings: it is the user's own work, and the policy may lower them."""
    return Limits(
        timeout_seconds=_NO_TIMEOUT_SECONDS,
        memory_mb=settings.max_memory_mb,
        cpus=settings.max_cpus,
        pids=settings.max_pids,
        disk_mb=min(1024, settings.max_disk_mb),
        max_output_bytes=settings.max_output_bytes,
    )
