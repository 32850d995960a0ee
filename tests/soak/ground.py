# SPDX-License-Identifier: MIT
"""The backends that a soak has here."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

from tests import docker_engine

ALL = ("jail", "gvisor", "docker-runc", "docker-runsc")


def backends(stack: contextlib.ExitStack, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `wanted`, or all, that this host has, with an engine of the tests' own where none runs. What is wanted
    by name and is not here ends the program."""
    found = ["jail"]
    missing = {}
    if os.geteuid() == 0 and shutil.which("runsc"):
        found.append("gvisor")
    else:
        missing["gvisor"] = "needs root and runsc"
    if not wanted or any(name.startswith("docker-") for name in wanted):
        try:
            engine = stack.enter_context(docker_engine.engine())
        except docker_engine.MissingError as error:
            missing |= dict.fromkeys(("docker-runc", "docker-runsc"), str(error))
        else:
            os.environ.update(engine.environment)
            found += [f"docker-{name}" for name in engine.runtimes if f"docker-{name}" in ALL]
    for name in wanted:
        if name not in found:
            sys.exit(f"backend {name} is not here: {missing.get(name, 'there is none of that name')}")
    for name, why in missing.items():
        if not wanted:
            print(f"without {name}: {why}", file=sys.stderr)
    return tuple(name for name in found if not wanted or name in wanted)
