# SPDX-License-Identifier: MIT
"""Backend `gvisor`: a kernel of its own for every box, inside namespaces as the jail's; no daemon."""

from __future__ import annotations

from agentbox.isolation.backends.gvisor.backend import GvisorBackend

__all__ = ["GvisorBackend"]
