# SPDX-License-Identifier: MIT
"""Putting clocks, randomness and lanes in their places, where a run can be replayed."""

from __future__ import annotations

import os
import posix

from .frozen import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SEED_DIGITS = 64
_SEED = "AGENTBOX_SEED"
_LIVE = {"": False, "recorded": False, "live": True}


def freezing(given: dict[str, str], doors: Any, effects: Any, services: Any, spawning: Any, sha256: Any) -> Any:
    """What puts everything in its place: a function of what loads a module of doors, and of what a forked child does
    anyhow. Raises ValueError."""
    seed = given[_SEED]
    live = _LIVE.get(given.get("AGENTBOX_CLOCKS", ""))
    if len(seed) != _SEED_DIGITS:
        raise ValueError(f"{_SEED} has {len(seed)} characters, not {_SEED_DIGITS} hexadecimal digits")
    if live is None:
        raise ValueError("AGENTBOX_CLOCKS is neither recorded nor live")
    drawn_from = bytes.fromhex(seed)

    # What this process starts is another program, which is in no replay: it must not draw the same bytes.
    for name in (_SEED, "AGENTBOX_CLOCKS"):
        os.environ.pop(name, None)
        posix.environ.pop(name.encode(), None)

    def freeze(door: Any, forked: Any) -> None:
        clock_doors, random_doors = door("clock_doors"), door("random_doors")
        frozen = Frozen(effects, drawn_from, sha256, clock_doors.real_clocks())
        for name, answer in (*frozen.services().items(), *spawning.answers().items()):
            services.add(name, answer)
        generators: Any = ()
        in_child = None
        if not live:
            lists = (frozen.calls, frozen.quick, frozen.still, frozen.ready)
            clock_doors.install(doors.ask, lists, doors.bound, doors.later, effects.replay)
            generators, in_child = random_doors.install(
                doors.ask, frozen.one, frozen.inside, doors.bound, doors.replace, doors.later
            )
        random_doors.install_order(doors.bound, doors.replace)
        door("lane_doors").install(doors.ask, generators, doors.bound, doors.replace, doors.later)

        door("process_doors").install(doors.ask, doors.bound, doors.replace, doors.later)

        def all_forked() -> None:
            forked()
            frozen.forked()

        posix.register_at_fork(before=frozen.forks, after_in_child=all_forked)
        if in_child is not None:
            # It runs code that a program can replace: by itself, with no frame of the guard below it.
            posix.register_at_fork(after_in_child=in_child)

    return freeze
