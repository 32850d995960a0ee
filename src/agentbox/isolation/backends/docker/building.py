# SPDX-License-Identifier: MIT
"""Images made on this host, without a registry: a small distribution by mmdebstrap, given to the engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Sequence

from agentbox.errors import BackendUnavailableError, InvalidRequestError, IsolationError
from agentbox.isolation.backends.docker.engine import Engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What agents use, and what the tests of ours ask for: `ps`, certificates, and a `python` beside `python3`.
PACKAGES = (
    "python3", "python3-pip", "python3-venv", "python3-dev", "python-is-python3", "nodejs", "git", "gcc", "libc6-dev",
    "make", "procps", "ca-certificates",
)  # fmt: skip
LABEL_IMAGE = "agentbox.image"
_DEFAULT_SUITE = "bookworm"
_OS_RELEASE = "/etc/os-release"
_SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")
_KEPT_LINES = 8

OnStep = Callable[[str], None]


def build(
    tarball: str, on_step: OnStep, *, suite: str = "", source: str = "", packages: Sequence[str] = PACKAGES
) -> None:
    """Make the root file system of an image as a tar file. `suite` is the distribution's name for its release, by
    default this host's own where it is Debian; `source` a mirror's URL or a file of sources, by default the host's.

    Raises BackendUnavailableError without mmdebstrap, IsolationError with its last words when it fails; a part of the
    file is not left behind then.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise BackendUnavailableError(
            "mmdebstrap is not installed, and images are made with it",
            hint="`apt-get install mmdebstrap`; or `agentbox image import FILE.tar` with a root file system of yours",
        )
    chosen, own_source = _of_this_host()
    suite = suite or chosen
    if not source and suite == chosen:
        source = own_source
    parted = f"{tarball}.part"
    command = [
        program,
        "--variant=minbase",
        "--format=tar",
        f"--include={','.join(packages)}",
        suite,
        parted,
        *([source] if source else []),
    ]
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.strip():
                    last.append(line.strip())
                    if line.startswith("I: "):
                        on_step(line[3:].strip())
        if process.returncode != 0:
            raise IsolationError(
                f"mmdebstrap could not make the image (exit {process.returncode}): {' | '.join(last)}",
                hint="the mirror must be reachable: see --source, and `apt-get update` on this host",
            )
        os.replace(parted, tarball)
    except OSError as error:
        raise IsolationError(
            f"{tarball} cannot be written: {error.strerror or error}", hint="name another file with --output"
        ) from error
    finally:
        if os.path.exists(parted):
            os.unlink(parted)


def give(engine: Engine, tarball: str, name: str, on_step: OnStep) -> str:
    """Make an image of a tar file in the engine; returns its id. Blocks; raises IsolationError."""
    repository, tag = parts_of(name)
    query = {"fromSrc": "-", "repo": repository, "tag": tag, "changes": f"LABEL {LABEL_IMAGE}=1"}
    image = ""
    try:
        with open(tarball, "rb") as content:
            for told in engine.load("/images/create", query, content):
                image = str(told.get("status", image))
                on_step(image)
    except FileNotFoundError as error:
        raise InvalidRequestError(f"{tarball} is not there", hint="name a tar file of a root file system") from error
    return image


def parts_of(name: str) -> tuple[str, str]:
    """Repository and tag of an image's name. Raises InvalidRequestError for one that is none."""
    head, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        head, tag = name, "latest"
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789._-/")
    if not head or not set(head) <= allowed or head[0] in "./-_" or not tag or set(tag) & set("/ "):
        raise InvalidRequestError(
            f"{name!r} cannot name an image", hint="lower case letters, digits, . _ - and /, then :TAG if you like"
        )
    return head, tag


def listed(engine: Engine) -> list[dict[str, Any]]:
    """The images of the engine, those of ours first: name, id, bytes, made here. Blocks; raises IsolationError."""
    found = []
    for image in engine.ask("GET", "/images/json"):
        for name in image.get("RepoTags") or ():
            if name != "<none>:<none>":
                ours = LABEL_IMAGE in (image.get("Labels") or {})
                found.append({"name": name, "id": image["Id"], "bytes": image["Size"], "made_here": ours})
    return sorted(found, key=lambda image: (not image["made_here"], image["name"]))


def _of_this_host() -> tuple[str, str]:
    """The release of this host where it is Debian, and its file of sources; else the release that we know works."""
    try:
        with open(_OS_RELEASE, encoding="utf-8") as file:
            fields = dict(line.strip().partition("=")[::2] for line in file if "=" in line)
    except OSError:
        fields = {}
    suite = fields.get("VERSION_CODENAME", "").strip('"')
    if fields.get("ID", "").strip('"') != "debian" or not suite:
        return _DEFAULT_SUITE, ""
    return suite, next((path for path in _SOURCES if os.path.isfile(path) and os.path.getsize(path)), "")
