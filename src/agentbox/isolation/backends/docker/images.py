# SPDX-License-Identifier: MIT
"""The interpreters of images: looked for by a container each, once."""

from __future__ import annotations

import contextlib
import io
import posixpath
import secrets
import struct
import tarfile
from collections.abc import Mapping

from agentbox.errors import AgentboxError, EngineError
from agentbox.isolation.backends.docker.daemon import Daemon
from agentbox.isolation.backends.docker.engine import Engine
from agentbox.isolation.backends.docker.spec import LABEL_KIND, LABEL_OWNER, Container, request_of
from agentbox.isolation.interpreters import Found
from agentbox.linux.cgroup_owners import owner_name

# Where a shell in an image looks for programs.
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
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


async def loads_libraries(daemon: Daemon, image: str, program: str) -> bool:
    """Whether the program at a path of an image, or the interpreter of the script there, is started by the dynamic
    loader. Raises IsolationError."""
    return (await find(daemon, image, program))[1]


async def find(daemon: Daemon, image: str, program: str) -> tuple[str, bool]:
    """The path of a program in an image, as a shell there would find it, empty where there is none; and whether it, or
    the interpreter of the script there, is started by the dynamic loader. Looked for once. Raises IsolationError."""
    key = (daemon.options.host, image, program)
    if key not in _FOUND:
        _FOUND[key] = await daemon.engine.in_thread(lambda: _find(daemon, image, program))
    return _FOUND[key]


_FOUND: dict[tuple[str, str, str], tuple[str, bool]] = {}
_LINKS = 8
_INTERPRETED = 3
HEAD_BYTES = 1 << 16


def _find(daemon: Daemon, image: str, program: str) -> tuple[str, bool]:
    engine, name = daemon.engine, f"agentbox-look-{secrets.token_hex(8)}"
    labels = {LABEL_OWNER: owner_name(), LABEL_KIND: "look"}
    container = Container(image, ("/bin/true",), "65534:65534", "/", labels, daemon.plain_runtime())
    try:
        engine.ask("POST", "/containers/create", {"name": name}, request_of(container))
        named = (program,) if "/" in program else (f"{place}/{program}" for place in SEARCH_PATH.split(":"))
        for path in named:
            head = _head(engine, name, path)
            if head is not None:
                return path, is_dynamic(head)
        return "", False
    finally:
        with contextlib.suppress(AgentboxError):
            engine.ask("DELETE", f"/containers/{name}", {"force": "1", "v": "1"})


def _head(engine: Engine, container: str, path: str) -> bytes | None:
    """How the program at a path begins, or the interpreter of the script there; None where nothing is."""
    for _ in range(_LINKS):
        try:
            content = engine.read("GET", f"/containers/{container}/archive", {"path": path})
        except EngineError as error:
            if error.data["status"] == 404:
                return None
            raise
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            member = archive.next()
            if member is None or member.isdir():
                return None
            if member.issym():
                path = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
                continue
            taken = archive.extractfile(member)
            head = taken.read(HEAD_BYTES) if taken is not None else b""
        if head[:2] != b"#!":
            return head
        path = (head[2:].split(b"\n", 1)[0].split() or [b"/bin/sh"])[0].decode(errors="surrogateescape")
    return b""


def is_dynamic(head: bytes) -> bool:
    """Whether a program that begins so is started by the dynamic loader. Pure."""
    if head[:4] != b"\x7fELF" or head[4:6] != b"\2\1":
        return False
    (table,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    places = (table + index * size for index in range(count))
    return any(struct.unpack_from("<I", head, place)[0] == _INTERPRETED for place in places if place + 4 <= len(head))


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
