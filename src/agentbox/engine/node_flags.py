# SPDX-License-Identifier: MIT
"""Node's own permission model as a second layer of its guard: the flags, where a version of Node has them.

Host side and pure. It is used where no wall stands behind the guard: then it holds what JavaScript cannot close, the
native functions below `fs`. It knows paths as text, not as the files they mean, neither denials nor wildcards, so its
grants are as wide as the policy's or wider, and the shim says the rest. It refuses symbolic links and changes of mode
through an open file altogether.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from agentbox.policy.document import policies_of
from agentbox.policy.rule import ExecTarget, PathTarget

if TYPE_CHECKING:
    from agentbox.policy.document import AnyPolicy

_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})\.[0-9]{1,4}\s*\Z")
# From here on the model is no experiment, and has another name.
_STABLE = ((22, 13), (23, 5))
_FIRST = (20, 0)
# `--allow-net` came with this one; what a policy says of the network is the shim's.
_NET = (25, 0)
# What a program sees without a rule, as guest/node/effects.cjs has it; in detail the shim says it.
_VIEWED = (
    "/proc",
    "/dev",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/nix/store",
    "/etc",
    "/sys",
    "/Library",
    "/System",
)
_DEVICES = ("/dev",)
_VERSION_SECONDS = 10


@dataclass(frozen=True)
class NodeGrants:
    """What a policy lets a program of Node do, as the permission model can say it: absolute paths, and switches."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    programs: bool = False


def read_version(text: str) -> tuple[int, int] | None:
    """Major and minor of what `node --version` prints; None for what is no version."""
    found = _VERSION.match(text)
    return None if found is None else (int(found.group(1)), int(found.group(2)))


def node_grants(policy: AnyPolicy, *, reads: Iterable[str] = (), writes: Iterable[str] = ()) -> NodeGrants:
    """What a policy grants, in both spellings of each path, and the places that a run's own files need."""
    readable, writable = list(reads), list(writes)
    programs = False
    for rule in (rule for one in policies_of(policy) for rule in one.rules if not rule.deny):
        target = rule.target
        programs = programs or isinstance(target, ExecTarget)
        if isinstance(target, PathTarget):
            spellings = [target.path, *([target.alias] if target.alias else [])]
            (writable if rule.verb == "write" else readable).extend(spellings)
    return NodeGrants(tuple(dict.fromkeys(readable)), tuple(dict.fromkeys(writable)), programs)


def version_of(node: str) -> tuple[int, int] | None:
    """The version of a Node program, None when it does not say."""
    try:
        found = os.stat(node)
    except OSError:
        return None
    return _asked(node, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=16)
def _asked(node: str, _changed: int, _size: int) -> tuple[int, int] | None:
    try:
        done = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False, env={}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_version(done.stdout)


def permission_flags(version: tuple[int, int] | None, grants: NodeGrants) -> list[str]:
    """The flags for a version of Node; none where it has no permission model, or is not known.

    A path with a comma or a wildcard in it is replaced by its nearest parent without. Symbolic links are not followed:
    a path that is reached through one needs both spellings.
    """
    if version is None or version < _FIRST:
        return []
    stable = version >= _STABLE[1] or (_STABLE[0] <= version < (23, 0))
    flags = ["--permission" if stable else "--experimental-permission"]
    flags += [_quoted(f"--allow-fs-read={path}") for path in _sayable((*_VIEWED, *grants.reads, *grants.writes))]
    flags += [_quoted(f"--allow-fs-write={path}") for path in _sayable((*_DEVICES, *grants.writes))]
    # Threads arm their own guard. What may be started is the shim's to say; the model only knows yes and no.
    flags.append("--allow-worker")
    if grants.programs:
        flags.append("--allow-child-process")
    if version >= _NET:
        flags.append("--allow-net")
    return [*flags, *_quiet(version)]


def _quiet(version: tuple[int, int]) -> list[str]:
    """Without these the model's own warnings would stand among what the program prints."""
    has_codes = version >= (21, 3) or (20, 11) <= version < (21, 0)
    return ["--disable-warning=SecurityWarning", "--disable-warning=ExperimentalWarning"] if has_codes else []


def _sayable(paths: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for path in paths:
        at = path
        while re.search(r"[,*]", at):
            at = at.rpartition("/")[0]
        found[at or "/*"] = None
    return list(found)


def _quoted(flag: str) -> str:
    """A word of NODE_OPTIONS."""
    if not re.search(r"[\s\"'\\]", flag):
        return flag
    escaped = flag.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
