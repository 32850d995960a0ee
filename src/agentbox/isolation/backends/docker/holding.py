# SPDX-License-Identifier: MIT
"""A network namespace for a container that will have a way out.

The engine puts a container into a namespace of another one, and into no other. So a small container without a network
is made first; whoever has the namespace fits it out, and then the box joins it. It stays the same when the box is
started again.
"""

from __future__ import annotations

import contextlib
import secrets
from datetime import UTC, datetime

from agentbox.errors import AgentboxError, BackendUnavailableError, IsolationError
from agentbox.isolation.backends.docker.daemon import Daemon
from agentbox.isolation.backends.docker.ground import INIT, NATIVE_INIT
from agentbox.isolation.backends.docker.spec import (
    LABEL_KIND,
    LABEL_OWNER,
    LABEL_STARTED,
    Container,
    request_of,
)
from agentbox.linux.cgroup_owners import owner_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from agentbox.isolation.network import Closable

_NOBODY = "65534:65534"
_MEMORY_BYTES = 32 << 20
_PIDS = 8
# Where they ask: an address of the namespace itself (egress/names.py).
NAME_SERVER = "198.18.0.1"


class Holder:
    """A container that waits, and so keeps its network. It ends with the process that holds its stdin."""

    def __init__(self, daemon: Daemon, name: str, path: str, stdin: socket.socket) -> None:
        self.holder = name
        self.path = path
        self.user_path = ""
        self.fitted: Closable | None = None
        self._daemon = daemon
        self._stdin: socket.socket | None = stdin

    async def close(self) -> None:
        """See HeldNetwork."""
        if self._stdin is None:
            return
        self._stdin.close()
        self._stdin = None
        with contextlib.suppress(AgentboxError):
            await self._daemon.engine.call("DELETE", f"/containers/{self.holder}", {"force": "1", "v": "1"})


async def hold(daemon: Daemon) -> Holder:
    """A namespace whose containers ask the gateway for names. Raises IsolationError; BackendUnavailableError where
    no container of this runtime could use it."""
    await daemon.engine.in_thread(daemon.info)
    daemon.attached_runtime()
    image = await daemon.default_image()
    name = f"agentbox-net-{secrets.token_hex(8)}"
    container = Container(
        image=image,
        command=(INIT, "wait"),
        user=_NOBODY,
        directory="/",
        labels={
            LABEL_OWNER: owner_name(),
            LABEL_STARTED: datetime.now(UTC).isoformat(timespec="seconds"),
            LABEL_KIND: "net",
        },
        runtime=daemon.plain_runtime(),
        binds=((NATIVE_INIT, INIT, False),),
        memory_bytes=_MEMORY_BYTES,
        pids=_PIDS,
        name_server=NAME_SERVER,
    )
    stdin = None
    try:
        await daemon.engine.call("POST", "/containers/create", {"name": name}, request_of(container))
        stdin = await daemon.engine.in_thread(lambda: daemon.engine.attach(name))
        await daemon.engine.call("POST", f"/containers/{name}/start")
        state = (await daemon.engine.call("GET", f"/containers/{name}/json"))["State"]
        if not state["Running"] or not state["Pid"]:
            raise IsolationError("the container that holds a network has ended", hint="the daemon's log has more")
        if daemon.process() is None:
            raise BackendUnavailableError(
                "the processes of the docker engine cannot be seen from here, so no container gets a way out",
                hint="run agentbox beside the engine, not in a container",
            )
    except BaseException:
        if stdin is not None:
            stdin.close()
        with contextlib.suppress(AgentboxError):
            await daemon.engine.call("DELETE", f"/containers/{name}", {"force": "1", "v": "1"})
        raise
    return Holder(daemon, name, f"/proc/{state['Pid']}/ns/net", stdin)
