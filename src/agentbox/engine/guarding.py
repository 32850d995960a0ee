# SPDX-License-Identifier: MIT
"""The guard within a box with a wall: where it is shown, what loads it, and which rules it holds alone."""

from __future__ import annotations

from agentbox.engine.lent_files import OWN_DIRECTORY, SHARED_MEMORY, TEMPORARY
from agentbox.guest.injection import GUARD_DIR, guard_directory, injection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentbox.models import Confinement

CHANNEL = f"{OWN_DIRECTORY}/channel"
POLICY = f"{OWN_DIRECTORY}/policy"
# Languages of requests whose interpreter loads a guard.
GUARDED = ("python", "javascript")
# Rules of these verbs are held by the kernel, or the gateway, for all that was there when the box was built.
_ALSO_BELOW = ("deny:", "protect:", "net:")


class Guards:
    """The guard directories of one process: made when they are first needed, and remembered."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        import threading

        self._lock = threading.Lock()
        self._made: dict[str | None, Path] = {}

    def known(self, python: str | None) -> Path | None:
        """The directory, where it was made before."""
        found = self._made.get(python)
        return found if found is not None and found.is_dir() else None

    def directory(self, python: str | None) -> Path:
        """The directory to show in a box, compiled for this Python if there is one. Raises ConfinementError."""
        with self._lock:
            found = self._made.get(python)
            if found is None or not found.is_dir():
                found = self._made[python] = guard_directory(self._cache, python, seen_as=GUARD_DIR)
            return found


def guarded_environment(
    base: Mapping[str, str],
    *,
    kind: str,
    root: str,
    entry: str,
    enforce: bool = True,
    seed: str = "",
    mode: str = "record",
) -> dict[str, str]:
    """`base` with what loads the guard into an interpreter inside a box. `root` is where relative paths of rules begin,
    `entry` the script, both as the box sees them. `seed` and `mode`: see `injection`."""
    return injection(
        kind,
        GUARD_DIR,
        CHANNEL,
        POLICY,
        root,
        mode,
        enforce,
        base,
        wall="jail",
        private=(TEMPORARY, SHARED_MEMORY),
        entry=entry,
        seed=seed,
    )


def held_by_guard_alone(confinement: Confinement) -> tuple[str, ...]:
    """The rules that are wider below the guard than they read: a program without one is not held to them."""
    return tuple(rule for rule in confinement.interpreter_only if not rule.startswith(_ALSO_BELOW))


def notes_on_guard_alone(confinement: Confinement) -> tuple[str, ...]:
    """What a caller should know of such rules."""
    return tuple(f"`{rule}` is held by the guard in Python and Node alone" for rule in held_by_guard_alone(confinement))
