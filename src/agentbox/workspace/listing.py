# SPDX-License-Identifier: MIT
"""What is in a workspace, by name: paths, kinds, and where links point."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from agentbox.errors import WorkspaceError
from agentbox.linux.credentials import acting_as
from agentbox.workspace.descent import Descent
from agentbox.workspace.faults import workspace_fault
from agentbox.workspace.tree import Tree


@dataclass(frozen=True, slots=True)
class Listing:
    """`links` maps the path of each link to its target; `below` each directory ('' is the top) to its names."""

    links: Mapping[str, str]
    below: Mapping[str, tuple[str, ...]]


EMPTY = Listing({}, {"": ()})


def list_tree(tree: Tree, max_entries: int) -> Listing:
    """Everything in a workspace in which nothing runs. Raises WorkspaceError, also for more than `max_entries`."""
    links: dict[str, str] = {}
    below: dict[str, tuple[str, ...]] = {}
    count = 0
    with acting_as(tree.uid, tree.gid):
        descent = Descent(tree.fd)
        path = ""
        # Names that are still to be entered, one list for each directory on the way down.
        waiting: list[list[str]] = []
        try:
            while True:
                names, directories = [], []
                with os.scandir(descent.fd) as entries:
                    for entry in entries:
                        count += 1
                        if count > max_entries:
                            raise WorkspaceError(
                                f"the working directory has more than {max_entries} entries, too many for a policy",
                                hint="leave the policy out, or start from a smaller snapshot",
                            )
                        names.append(entry.name)
                        if entry.is_symlink():
                            links[_joined(path, entry.name)] = os.readlink(entry.name, dir_fd=descent.fd)
                        elif entry.is_dir(follow_symlinks=False):
                            directories.append(entry.name)
                below[path] = tuple(sorted(names))
                waiting.append(directories)
                while not waiting[-1]:
                    waiting.pop()
                    if not waiting:
                        return Listing(links, below)
                    descent.leave()
                    path = path.rpartition("/")[0]
                name = waiting[-1].pop()
                path = _joined(path, name)
                descent.enter(name)
        except OSError as error:
            raise workspace_fault(error, path, "listed") from error
        finally:
            descent.close()


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
