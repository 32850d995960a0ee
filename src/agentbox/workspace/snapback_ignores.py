# SPDX-License-Identifier: MIT
"""What a project's `snapback.toml` leaves out of snapshots; our own checkpoints leave it out too."""

from __future__ import annotations

import tomllib

from agentbox.errors import CheckpointError

CONFIGURATION = "snapback.toml"
_MAX_BYTES = 1 << 20


def ignored_by_project(directory: str) -> tuple[str, ...]:
    """The patterns of `[snapshot] ignore`, none without such a file. Raises CheckpointError for one that is wrong."""
    path = f"{directory}/{CONFIGURATION}"
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES)
        told = tomllib.loads(text.decode("utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", hint="correct it, or remove it") from error
    snapshot = told.get("snapshot", {})
    patterns = snapshot.get("ignore", []) if isinstance(snapshot, dict) else None
    if not isinstance(patterns, list) or not all(isinstance(one, str) for one in patterns):
        raise CheckpointError(
            f"{path}: `ignore` of [snapshot] is no list of patterns", hint='write ignore = ["node_modules", "*.log"]'
        )
    return tuple(patterns)
