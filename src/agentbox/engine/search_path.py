# SPDX-License-Identifier: MIT
"""PATH as a box sees it: with the programs themselves where a version manager has put scripts before them.

pyenv, rbenv, nodenv and their kind put a directory of shims first on PATH: scripts that look for the chosen version and
start its program. A rule such as `exec: python3` means that program, and nobody wants to lend the whole manager to a
box. So the directory of shims is replaced by those of the chosen versions, everywhere alike: where rules are read,
where the command is looked for, and in the environment of the box.
"""

from __future__ import annotations

import os

from agentbox.config import process_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_FILES = {
    "pyenv": ".python-version",
    "rbenv": ".ruby-version",
    "nodenv": ".node-version",
    "plenv": ".perl-version",
    "goenv": ".go-version",
    "phpenv": ".php-version",
}
_MAX_BYTES = 4096


def with_plain_path(environment: Mapping[str, str], directory: str) -> dict[str, str]:
    """The variables, with shims taken out of PATH as the managers would do it in `directory`."""
    found = dict(environment)
    if "/shims" in found.get("PATH", ""):
        found["PATH"] = os.pathsep.join(search_path(environment, directory))
    return found


def trusted_path() -> tuple[str, ...]:
    """The directories of this process's PATH, without shims."""
    environment = process_environment()
    path = environment.get("PATH", os.defpath)
    return tuple(search_path(environment, os.getcwd()) if "/shims" in path else path.split(os.pathsep))


def search_path(environment: Mapping[str, str], directory: str) -> list[str]:
    """The directories of PATH, those of shims replaced by those of the versions that they would choose. A directory of
    shims for which that cannot be told stays."""
    found: list[str] = []
    for place in environment.get("PATH", os.defpath).split(os.pathsep):
        plain = place.rstrip("/")
        chosen = _chosen(plain[: -len("/shims")], environment, directory) if plain.endswith("/shims") else None
        found += [place] if chosen is None else chosen
    return found


def _chosen(root: str, environment: Mapping[str, str], directory: str) -> list[str] | None:
    """The directories of the versions that a manager at `root` chooses; None when that cannot be told."""
    name = os.path.basename(root).lstrip(".")
    if name not in _FILES or not os.path.isdir(f"{root}/versions"):
        return None
    asked = environment.get(f"{name.upper()}_VERSION", "").replace(":", "\n")
    if not asked.strip():
        asked = _nearest(_FILES[name], directory) or _read(f"{root}/version") or "system"
    found = []
    for line in asked.splitlines():
        version = line.partition("#")[0].strip()
        if not version or version == "system":
            continue
        place = _installed(root, version)
        if place is None:
            return None
        found.append(place)
    return found


def _installed(root: str, version: str) -> str | None:
    """The programs of a version by its name, or of the newest that begins so (`3.12` for `3.12.4`)."""
    if "/" in version or version in (".", ".."):
        return None
    exact = f"{root}/versions/{version}/bin"
    if os.path.isdir(exact):
        return exact
    try:
        names = [name for name in os.listdir(f"{root}/versions") if name.startswith(f"{version}.")]
    except OSError:
        return None
    newest = max((name for name in names if _numbers(name)), key=_numbers, default="")
    place = f"{root}/versions/{newest}/bin"
    return place if newest and os.path.isdir(place) else None


def _numbers(name: str) -> tuple[int, ...]:
    parts = name.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _nearest(name: str, directory: str) -> str:
    """The content of a file of that name in the directory or the nearest above it; '' when there is none."""
    at = directory
    while True:
        text = _read(f"{at.rstrip('/')}/{name}")
        if text or at in ("/", ""):
            return text
        at = os.path.dirname(at)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return ""
