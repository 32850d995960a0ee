# SPDX-License-Identifier: MIT
"""Runs inside the virtual machine: the jail's whole self-check with control groups of version 2 alone, as root and
as an ordinary user to whom a group was delegated; prints one line of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentbox.isolation import registry
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.interpreters import INTERPRETERS, locate
from agentbox.isolation.selfcheck import examine

ROOT = Path("/sys/fs/cgroup")
USER = 1000
CONTROLLERS = "+memory +pids +cpu"

Reports = dict[str, Any]


async def examine_jail() -> Reports:
    """An emulated machine is slow: what needs no wall is shown on the host."""
    facilities = await Facilities.open()
    try:
        python = await asyncio.to_thread(locate, INTERPRETERS["python"], "")
        report = await examine(registry.make("jail", facilities), python, contextlib.nullcontext)
        return {"usable": report.usable, **asdict(report)}
    finally:
        await facilities.close()


def as_root() -> None:
    pass


def as_user_with_a_delegated_group() -> None:
    (ROOT / "cgroup.subtree_control").write_text(CONTROLLERS)
    group = ROOT / "lent"
    group.mkdir()
    for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(group / name, USER, USER)
    (group / "cgroup.procs").write_text("0")
    become_user()


def become_user() -> None:
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)


def in_a_child(prepare: Callable[[], None]) -> Reports:
    """A situation changes the identity and the group of its process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            answer: Reports = asyncio.run(examine_jail())
        except BaseException:
            answer = {"broken": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe, default=str)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(text))


if __name__ == "__main__":
    print(json.dumps({one.__name__: in_a_child(one) for one in (as_root, as_user_with_a_delegated_group)}))
