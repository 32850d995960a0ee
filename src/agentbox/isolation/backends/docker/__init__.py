# SPDX-License-Identifier: MIT
"""Backend `docker`: containers of a Docker engine, on runc or on gVisor's runsc."""

from __future__ import annotations

from agentbox.isolation.backends.docker.backend import DockerBackend

__all__ = ["DockerBackend"]
