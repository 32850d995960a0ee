# SPDX-License-Identifier: MIT
"""Which interpreters an image has, as a box that is made of it says."""

from __future__ import annotations

import asyncio
import os

from agentbox.errors import ConfinementError
from agentbox.isolation.interpreters import INTERPRETERS, Found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbox.isolation.backend import LiveBox

_SECONDS = 60
_PROGRAMS = {
    "python": ("python3", "--version"),
    "javascript": ("node", "--version"),
    "bash": ("bash", "-c 'echo $BASH_VERSION'"),
}
_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/bin")
_SCRIPT = "".join(
    f"for d in {' '.join(_DIRECTORIES)}; do if [ -x $d/{program} ]; then "
    f"echo {language} $d/{program} $($d/{program} {words} 2>&1 | tail -n 1); break; fi; done\n"
    for language, (program, words) in _PROGRAMS.items()
)


async def interpreters_in(box: LiveBox, image: str) -> Mapping[str, Found]:
    """The programs of its image, by language. Raises ConfinementError."""
    read, write = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            ended = await box.start(["/bin/sh", "-c", _SCRIPT], {}, "/", [null, write, null])
        finally:
            os.close(write)
            os.close(null)
        async with asyncio.timeout(_SECONDS):
            await ended
        await box.kill_programs()
        with os.fdopen(read, "rb", closefd=False) as file:
            said = (await asyncio.to_thread(file.read, 1 << 16)).decode(errors="replace")
    except (OSError, TimeoutError) as error:
        raise ConfinementError(
            f"nothing can be started in the image {image}: {error!r}", hint="use another", step="image", errno=0
        ) from error
    finally:
        os.close(read)
    found = {}
    for line in said.splitlines():
        language, path, *words = line.split()
        if language in INTERPRETERS:
            version = words[-1].removeprefix("v").partition("(")[0] if words else ""
            found[language] = Found(path, version, (), image)
    return found
