# SPDX-License-Identifier: MIT
"""agentbox runs code that an AI agent wrote, or a whole agent, in a box."""

from __future__ import annotations

__version__ = "0.9.0"

# Public names, loaded when they are used: importing the package must cost nothing.
_PUBLIC = {
    "AgentboxError": "agentbox.errors",
    "AsyncSandbox": "agentbox.sandbox.asynchronous",
    "CheckpointError": "agentbox.errors",
    "Policy": "agentbox.policy.document",
    "PolicyError": "agentbox.errors",
    "PolicyViolation": "agentbox.errors",
    "ReplayDivergence": "agentbox.errors",
    "Sandbox": "agentbox.sandbox.synchronous",
    "SandboxError": "agentbox.errors",
    "TraceTampered": "agentbox.errors",
}
__all__ = [
    "AgentboxError",
    "AsyncSandbox",
    "CheckpointError",
    "Policy",
    "PolicyError",
    "PolicyViolation",
    "ReplayDivergence",
    "Sandbox",
    "SandboxError",
    "TraceTampered",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_PUBLIC[name]), name)
    return found
