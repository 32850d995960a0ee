# SPDX-License-Identifier: MIT
"""The host's files that a policy lends to a box, made fit for one: what is missing is made, what the box has of its
own stays its own, and what belongs to agentbox stays out of reach."""

from __future__ import annotations

import os

from agentbox.isolation.plan import DEVICES
from agentbox.light import contextlib
from agentbox.models import FileDenial
from agentbox.policy.paths import is_below
from agentbox.records import dataclass, field, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentbox.models import Confinement, FileGrant

OWN_DIRECTORY = "/run/agentbox"
TEMPORARY = "/tmp"  # noqa: S108 - inside the box
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - inside the box
# Directories that every box has of its own; a grant of the host's would show other processes, devices, sockets.
_OF_THE_BOX = ("/proc", "/sys", "/dev", OWN_DIRECTORY)
_MAX_AROUND = 4096


@dataclass(slots=True)
class Lent:
    """`confinement` as a box can be built from it. `made` are paths that were made for `write:` rules, in order."""

    confinement: Confinement
    made: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take_back(self) -> None:
        """Remove what was made and not used."""
        for path in reversed(self.made):
            with contextlib.suppress(OSError):
                if os.path.isdir(path):
                    os.rmdir(path)
                elif os.stat(path).st_size == 0:
                    os.unlink(path)


def lend(confinement: Confinement, *, trace: str, private: Sequence[str]) -> Lent:
    """Make what the confinement's grants need. `trace` is this run's own; `private` are directories of agentbox that
    no grant may show. Raises nothing: what cannot be lent is left out and named in `warnings`."""
    lent = Lent(confinement)
    grants: dict[str, FileGrant] = {}
    for grant in confinement.files:
        for one in _around_the_boxes_own(grant, lent.warnings):
            before = grants.get(one.path)
            if before is None or one.writable:
                grants[one.path] = one
    files = _with_missing(list(grants.values()), lent)
    denials = [_as_it_is_now(denial) for denial in confinement.file_denials]
    shown = [grant.path for grant in files if grant.present]
    for directory in private:
        real = os.path.realpath(directory)
        if any(is_below(real, path) for path in shown):
            denials.append(FileDenial(real, True, os.path.isdir(real), "agentbox's own state"))
    written = os.path.realpath(trace)
    if any(is_below(written, grant.path) for grant in files if grant.present and grant.writable):
        denials.append(FileDenial(written, False, True, "the policy and the traces"))
    lent.confinement = replace(confinement, files=tuple(files), file_denials=tuple(denials))
    return lent


def _as_it_is_now(denial: FileDenial) -> FileDenial:
    """The run's own directory may have been made since the policy was compiled. A link cannot be covered: it would be
    what it leads to that is."""
    return replace(denial, present=os.path.lexists(denial.path) and not os.path.islink(denial.path))


def _around_the_boxes_own(grant: FileGrant, warnings: list[str]) -> Iterator[FileGrant]:
    """The grant, or, where it would cover what the box has of its own, grants of everything beside that."""
    path = grant.path
    if any(is_below(path, own) for own in _OF_THE_BOX) and not (
        path != SHARED_MEMORY and is_below(path, SHARED_MEMORY)
    ):
        if not _has_its_own(path):
            warnings.append(f"`{grant.rule}`: the host's {path} is never lent to a box")
        return
    if not grant.present or not any(is_below(own, path) for own in _OF_THE_BOX):
        yield grant
        return
    if grant.writable:
        warnings.append(f"`{grant.rule}`: nothing new can be made directly in {path}, since the box has its own parts")
    try:
        names = sorted(os.listdir(path))[:_MAX_AROUND]
    except OSError:
        return
    for name in names:
        below = os.path.join(path, name)
        # The box's /tmp is its own unless a rule names the host's; links of the root are there anyway.
        if not os.path.islink(below) and below not in (*_OF_THE_BOX, TEMPORARY):
            yield from _around_the_boxes_own(replace(grant, path=below), warnings)


def _has_its_own(path: str) -> bool:
    """Whether a program finds in the box what it would at this path of the host."""
    name = path.rpartition("/")[2]
    return is_below(path, "/proc") or path in ("/dev", SHARED_MEMORY) or name in (*DEVICES, "tty", "pts", "ptmx", "fd")


def _with_missing(grants: list[FileGrant], lent: Lent) -> list[FileGrant]:
    """A box can only write where something is: make what `write:` rules name."""
    there = [grant.path for grant in grants if grant.present and grant.writable]
    for index, grant in enumerate(grants):
        # Looked at again, since another run may have taken back what it had made.
        if not grant.writable or (grant.present and os.path.lexists(grant.path)):
            continue
        if any(is_below(grant.path, path) and path != grant.path for path in there):
            continue
        try:
            lent.made += _make(grant.path, directory=grant.rule.endswith("/") or not os.path.splitext(grant.path)[1])
        except OSError as error:
            lent.warnings.append(f"{grant.path} cannot be made for `{grant.rule}`: {error.strerror}")
            continue
        there.append(grant.path)
        grants[index] = replace(grant, present=True)
    return grants


def _make(path: str, *, directory: bool) -> list[str]:
    """Make a path with its parents, as the owner of the directory that was there; returns what was made."""
    missing = [path]
    while not os.path.lexists(above := os.path.dirname(missing[-1])):
        missing.append(above)
    owner = os.stat(above)
    made = []
    for one in reversed(missing):
        try:
            if one == path and not directory:
                os.close(os.open(one, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            else:
                os.mkdir(one)
        except FileExistsError:
            # Another run was faster.
            continue
        made.append(one)
        if os.geteuid() == 0:
            os.chown(one, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return made
