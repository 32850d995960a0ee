# SPDX-License-Identifier: MIT
"""The interpreters of images: looked for by a container each, once."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping

from agentbox.errors import AgentboxError
from agentbox.isolation.backends.docker.daemon import Daemon
from agentbox.isolation.backends.docker.spec import LABEL_KIND, LABEL_OWNER, Container, request_of
from agentbox.isolation.interpreters import Found
from agentbox.linux.cgroup_owners import owner_name

_LOOK = (
    "for p in python3 python; do command -v $p && break; done; echo; "
    "for p in node nodejs; do command -v $p && break; done; echo; command -v bash; true"
)


async def look(daemon: Daemon) -> Mapping[str, Found]:
    """The interpreters of the images in use, by language; a language that no image has is left out.

    Raises IsolationError when there is no image for Python, or the engine fails.
    """

    def work() -> dict[str, Found]:
        image = daemon.image_of("python")
        try:
            node_image = daemon.image_of("javascript")
        except AgentboxError:
            node_image = ""
        programs = {image: programs_of(daemon, image)}
        if node_image and node_image not in programs:
            programs[node_image] = programs_of(daemon, node_image)
        chosen = {"python": image, "bash": image, "javascript": node_image}
        return {
            language: Found(programs[one][language], "", (), one)
            for language, one in chosen.items()
            if one and language in programs[one]
        }

    found: dict[str, Found] = await daemon.engine.in_thread(work)
    return found


def programs_of(daemon: Daemon, image: str) -> dict[str, str]:
    """The absolute path of each interpreter that an image has, by language. Blocks; raises IsolationError."""
    daemon.info()
    engine, name = daemon.engine, f"agentbox-look-{secrets.token_hex(8)}"
    container = Container(
        image=image,
        command=("/bin/sh", "-c", _LOOK),
        user="65534:65534",
        directory="/",
        labels={LABEL_OWNER: owner_name(), LABEL_KIND: "look"},
        runtime=daemon.plain_runtime(),
        memory_bytes=64 << 20,
        pids=32,
    )
    try:
        engine.ask("POST", "/containers/create", {"name": name}, request_of(container))
        streams = engine.attach(name)
        try:
            engine.ask("POST", f"/containers/{name}/start")
            output = _all_output(streams)
        finally:
            streams.close()
    finally:
        # Where that fails, its label tells the next start whose it was.
        with contextlib.suppress(AgentboxError):
            engine.ask("DELETE", f"/containers/{name}", {"force": "1", "v": "1"})
    paths = [line.strip() for line in output.decode(errors="replace").split("\n")]
    found = {}
    for language, names in (("python", ("python3", "python")), ("javascript", ("node", "nodejs")), ("bash", ("bash",))):
        path = next((path for path in paths if path.startswith("/") and path.rpartition("/")[2] in names), None)
        if path is not None:
            found[language] = path
    return found


def _all_output(streams: object) -> bytes:
    import socket

    from agentbox.isolation.backends.docker.streams import STDOUT, Frames

    assert isinstance(streams, socket.socket)
    streams.settimeout(60)
    frames, output = Frames(), bytearray()
    while data := streams.recv(1 << 16):
        for stream, part in frames.feed(data):
            if stream == STDOUT:
                output += part
    return bytes(output)
