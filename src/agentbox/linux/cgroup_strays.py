# SPDX-License-Identifier: MIT
"""Empty groups that a container engine leaves: for a container below a group of ours it makes that group in every
hierarchy, also in those where we have none, and removes only the container's own."""

from __future__ import annotations

import os

from agentbox.light import contextlib
from agentbox.linux.cgroup_owners import find_owner_parents, is_dead, subgroups
from agentbox.linux.cgroupfs import mounts


def remove_strays(path: str) -> None:
    """Remove an empty group, given from the root of every hierarchy (Cgroup.nested_path), where it is. Never raises."""
    for mount in mounts():
        root = mount.root.rstrip("/")
        if path.startswith(f"{root}/"):
            with contextlib.suppress(OSError):
                os.rmdir(f"{mount.point}{path[len(root) :]}")


def sweep_strays(owner: str | None = None) -> None:
    """Remove what is empty of dead owners' groups, and of this `owner`'s, in every hierarchy. Never raises."""
    for mount in mounts():
        for parent in find_owner_parents(mount.point):
            for directory in subgroups(parent):
                if os.path.basename(directory) == owner or is_dead(os.path.basename(directory)):
                    for group in (*subgroups(directory), directory, parent):
                        with contextlib.suppress(OSError):
                            os.rmdir(group)
