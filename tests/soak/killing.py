# SPDX-License-Identifier: MIT
"""Kills from outside: what boxes consist of on the host, and containers of the engine."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal

from agentbox.errors import AgentboxError
from agentbox.isolation.backends.docker.engine import DEFAULT_HOST, Engine
from agentbox.linux.cgroup_owners import owner_name
from tests.adversarial.host_state import descendants, field_of


class Killer:
    """Kills something of this process's boxes at random. `containers` are the ids of all that it has seen, and `places`
    the directories of the host that go with them."""

    def __init__(self, chance: random.Random, *, docker: bool) -> None:
        self.containers: set[str] = set()
        self.places: set[str] = set()
        self._chance = chance
        self._engine = Engine(os.environ.get("AGENTBOX_DOCKER_HOST", DEFAULT_HOST)) if docker else None

    def look(self) -> list[str]:
        """The ids of the containers that there are."""
        if self._engine is None:
            return []
        query = {"all": "1", "filters": json.dumps({"label": [f"agentbox.owner={owner_name()}"]})}
        listed = self._engine.ask("GET", "/containers/json", query)
        self.containers |= {one["Id"] for one in listed}
        self.places |= {one["Labels"].get("agentbox.place", "") for one in listed} - {""}
        return [str(one["Id"]) for one in listed]

    def kill(self) -> str:
        """Kill one thing; what it was, empty where there was nothing."""
        if self._chance.random() < 0.5 and (found := self.look()):
            with contextlib.suppress(AgentboxError):
                return self._kill_container(self._chance.choice(found))
            return ""
        mine = os.readlink("/proc/self/ns/pid")
        below = descendants(os.getpid())
        # What gVisor traces is how it computes: without it a program of the guest stands still for ever.
        boxes = [pid for pid in below if _namespace(pid) not in ("", mine) and field_of(pid, "TracerPid") == "0"]
        return _kill(self._chance.choice(boxes)) if boxes else ""

    def _kill_container(self, container: str) -> str:
        assert self._engine is not None
        way = self._chance.choice(("kill", "remove", "process"))
        if way == "kill":
            self._engine.ask("POST", f"/containers/{container}/kill", {"signal": "KILL"})
        elif way == "remove":
            self._engine.ask("DELETE", f"/containers/{container}", {"force": "1", "v": "1"})
        else:
            pid = self._engine.ask("GET", f"/containers/{container}/json")["State"]["Pid"]
            return _kill(pid) if pid else ""
        return f"{way} container"


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _kill(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            name = file.read().strip()
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return ""
    return f"kill {name}"
