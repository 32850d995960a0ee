# SPDX-License-Identifier: MIT
"""Control groups for boxes: memory, processes and processor time held by the kernel, version 1 and 2.

Groups are named agentbox/OWNER/BOX, where OWNER is the pid, start time and PID namespace of the process that made
them, so that whatever a killed owner left behind can be told from the boxes of a living one.
"""

from __future__ import annotations

import os

from agentbox.errors import ConfinementError
from agentbox.light import contextlib
from agentbox.linux import cgroups_v1, cgroups_v2
from agentbox.linux.cgroup_box import Cgroup, CgroupLimits, CgroupUsage, Hierarchy, Ownership
from agentbox.linux.cgroup_owners import find_owner_parents, is_dead, owner_name, remove, subgroups
from agentbox.linux.cgroupfs import CONTROLLERS, DIRECTORY, Place, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from agentbox.linux.cgroup_box import Version
    from agentbox.linux.cgroupfs import Survey

__all__ = ["Cgroup", "CgroupLimits", "CgroupTree", "CgroupUsage"]

_MAX_BOX_ID = 64
_DIALECTS: dict[Version, ModuleType] = {"v2": cgroups_v2, "v1": cgroups_v1}
_TRIES = 5


class CgroupTree:
    """The place of this process for the groups of its boxes: one per owning process."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self.version: Version = ownership.version
        offered = frozenset[str]().union(*(hierarchy.place.controllers for hierarchy in ownership.hierarchies))
        self.controllers: frozenset[str] = offered & frozenset(CONTROLLERS)
        self._closed = False

    @classmethod
    def open(cls) -> CgroupTree | None:
        """Make this process an owner of groups, or return None when no controller is usable; `explain` says why.

        With version 2 this may move this process (alone) into a leaf of its own group.
        """
        version, survey = _survey()
        if not survey.usable:
            return None
        owner, found = owner_name(), []
        for place in survey.places:
            with contextlib.suppress(OSError):
                found.append(_establish(_DIALECTS[version], place, owner))
        hierarchies = tuple(hierarchy for hierarchy in found if hierarchy.place.controllers)
        tree = cls(Ownership(version, _DIALECTS[version], hierarchies, owner))
        if tree.controllers:
            return tree
        tree.close()
        return None

    @staticmethod
    def explain() -> str:
        """Return, for people, which limits are held here, why others are not, and how to get them."""
        version, survey = _survey()
        lines = [f"control groups {version}: " + (", ".join(sorted(survey.usable)) or "nothing usable")]
        lines += [f"  {controller}: {reason}" for controller, reason in sorted(survey.missing.items())]
        return "\n".join([*lines, *(_hints(version) if survey.missing else ())])

    def create(self, box_id: str, limits: CgroupLimits) -> Cgroup:
        """Make the groups of a box with its limits in force. `box_id`: letters, digits, - and _, at most 64.

        Raises ConfinementError when a name is refused or a limit did not stick; nothing is left behind then.
        """
        if not _is_box_id(box_id):
            raise ConfinementError(
                f"{box_id!r} cannot name a control group",
                hint="use letters, digits, - and _, starting with a letter or digit, at most 64",
                step="cgroup",
                errno=0,
            )
        group = Cgroup(self._ownership, box_id, limits)
        group.make()
        return group

    def close(self) -> None:
        """Remove the owner's directories once their boxes are destroyed. Idempotent; never raises."""
        if self._closed:
            return
        self._closed = True
        ownership = self._ownership
        for box_id in ownership.abandoned:
            remove([(hierarchy.fd, box_id) for hierarchy in ownership.hierarchies], ownership.tail(box_id))
        for hierarchy in ownership.hierarchies:
            os.close(hierarchy.fd)
            _remove_empty(hierarchy.path)

    @classmethod
    def sweep(cls) -> int:
        """Remove the groups that dead owners left, killing what still lives in them; returns the number of boxes.

        Groups of a living owner, and of one in another PID namespace (its pid says nothing here), are not touched.
        Boxes that cannot be removed within about 2 s, or are another user's, stay.
        """
        boxes: dict[str, list[tuple[int | None, str]]] = {}
        owners: set[str] = set()
        # The same owner has groups in several hierarchies.
        judged: dict[str, bool] = {}
        for mount in mounts():
            if mount.kind == "cgroup" and not mount.controllers & cgroups_v1.JOINED:
                continue
            for parent in find_owner_parents(mount.point):
                found = subgroups(parent)
                for name in {os.path.basename(path) for path in found} - judged.keys():
                    judged[name] = is_dead(name)
                dead = [path for path in found if judged[os.path.basename(path)]]
                owners.update(dead)
                for path in dead:
                    for group in subgroups(path):
                        tail = f"/{DIRECTORY}/{os.path.basename(path)}/{os.path.basename(group)}"
                        boxes.setdefault(tail, []).append((None, group))
        removed = sum(remove(groups, tail) for tail, groups in boxes.items())
        for path in owners:
            _remove_empty(path)
        return removed


def _is_box_id(text: str) -> bool:
    return (
        text.isascii()
        and 0 < len(text) <= _MAX_BOX_ID
        and text[0].isalnum()
        and text.replace("-", "").replace("_", "").isalnum()
    )


def _survey() -> tuple[Version, Survey]:
    """Return the version to use: the one with more usable controllers, else the one that has controllers at all."""
    second, first = cgroups_v2.survey(), cgroups_v1.survey()
    in_first = any(mount.kind == "cgroup" and mount.controllers & frozenset(CONTROLLERS) for mount in mounts())
    if len(first.usable) > len(second.usable) or (in_first and not second.usable):
        return "v1", first
    return "v2", second


def _establish(dialect: ModuleType, place: Place, owner: str) -> Hierarchy:
    place = dialect.settle(place)
    parent, path = f"{place.base}/{DIRECTORY}", f"{place.base}/{DIRECTORY}/{owner}"
    for remaining in reversed(range(_TRIES)):
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(parent, 0o755)
            controllers = dialect.prepare(parent, place.controllers)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o755)
            controllers = dialect.prepare(path, controllers)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            # Another owner removed the parent, which was empty, when it ended.
            if not remaining:
                raise
        else:
            return Hierarchy(Place(place.base, controllers), path, fd)
    raise AssertionError("unreachable")


def _remove_empty(path: str) -> None:
    """Remove an owner's directory and then the parent of all owners, each only if it is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(path)
        os.rmdir(os.path.dirname(path))


def _hints(version: Version) -> tuple[str, ...]:
    user = (
        "systemd-run --user --scope -p Delegate=yes -- agentbox serve   (a user's own, delegated group)",
        "or a systemd unit with Delegate=yes",
    )
    container = (
        "in a container: make /sys/fs/cgroup writable (docker run --privileged, or --cgroupns=private and a remount)"
        " and start agentbox alone in its group, or first move the other processes to a child group",
    )
    first = ("start agentbox as root", "or boot with systemd.unified_cgroup_hierarchy=1 and use a delegated group")
    return tuple(
        f"  how to get it: {text}" for text in ((*user, *container) if version == "v2" else (*first, *container))
    )
