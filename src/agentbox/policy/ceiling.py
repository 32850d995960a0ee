# SPDX-License-Identifier: MIT
"""Request and ceiling in, effective limits out. Pure."""

from __future__ import annotations

from agentbox.models import Limits
from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.models import RequestedLimits


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The operator's defaults and maxima. A default above its maximum is held to the maximum."""

    default: Limits
    maximum: Limits


# The setting that holds each limit's maximum, for the warning.
_SETTING = {
    "timeout_seconds": "AGENTBOX_MAX_TIMEOUT_SECONDS",
    "memory_mb": "AGENTBOX_MAX_MEMORY_MB",
    "cpus": "AGENTBOX_MAX_CPUS",
    "pids": "AGENTBOX_MAX_PIDS",
    "disk_mb": "AGENTBOX_MAX_DISK_MB",
    "max_output_bytes": "AGENTBOX_MAX_OUTPUT_BYTES",
}


def effective_limits(requested: RequestedLimits, ceiling: Ceiling) -> tuple[Limits, tuple[str, ...]]:
    """The smaller of request and ceiling for each limit, and a warning for each that the ceiling lowered."""
    chosen: dict[str, float] = {}
    warnings = []
    for name, setting in _SETTING.items():
        asked = getattr(requested, name)
        most = getattr(ceiling.maximum, name)
        if asked is None:
            chosen[name] = getattr(ceiling.default, name)
        elif asked > most:
            chosen[name] = most
            warnings.append(f"limits.{name}: {asked} was lowered to this server's {setting}={most}")
        else:
            chosen[name] = asked
    limits = Limits(
        timeout_seconds=chosen["timeout_seconds"],
        memory_mb=int(chosen["memory_mb"]),
        cpus=chosen["cpus"],
        pids=int(chosen["pids"]),
        disk_mb=int(chosen["disk_mb"]),
        max_output_bytes=int(chosen["max_output_bytes"]),
    )
    return limits, tuple(warnings)
