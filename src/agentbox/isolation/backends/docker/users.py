# SPDX-License-Identifier: MIT
"""The lists of users and groups of an image, with the user of a box in them."""

from __future__ import annotations

import io
import tarfile

from agentbox.errors import EngineError
from agentbox.isolation.backends.docker.engine import Engine

_MAX_BYTES = 1 << 20


def users_of(engine: Engine, container: str, uid: int, gid: int) -> tuple[bytes, bytes]:
    """passwd and group for a container that was made and has not started. Blocks; raises IsolationError."""
    passwd = _file(engine, container, "/etc/passwd") or b"root:x:0:0:root:/root:/bin/sh\n"
    group = _file(engine, container, "/etc/group") or b"root:x:0:\n"
    shell = b"/bin/bash" if _exists(engine, container, "/bin/bash") else b"/bin/sh"
    return (
        with_line(passwd, b"agent:x:%d:%d:agent:/root:%s" % (uid, gid, shell), uid),
        with_line(group, b"agent:x:%d:" % gid, gid),
    )


def with_line(content: bytes, line: bytes, number: int) -> bytes:
    """A list with one more line, in place of those of that name or number. Pure."""
    name = line.partition(b":")[0]

    def other(one: bytes) -> bool:
        fields = one.split(b":")
        return len(fields) > 2 and fields[0] != name and fields[2] != b"%d" % number

    return b"\n".join([*filter(other, content.splitlines()), line, b""])


def _file(engine: Engine, container: str, path: str) -> bytes | None:
    """A file of the container, None where there is none that can be used."""
    try:
        content = engine.read("GET", f"/containers/{container}/archive", {"path": path})
    except EngineError as error:
        if error.data["status"] == 404:
            return None
        raise
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.next()
        if member is None or not member.isreg() or member.size > _MAX_BYTES:
            return None
        taken = archive.extractfile(member)
        return taken.read() if taken is not None else None


def _exists(engine: Engine, container: str, path: str) -> bool:
    try:
        engine.read("HEAD", f"/containers/{container}/archive", {"path": path})
    except EngineError as error:
        if error.data["status"] == 404:
            return False
        raise
    return True
