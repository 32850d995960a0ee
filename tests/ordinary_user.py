# SPDX-License-Identifier: MIT
"""An ordinary user for servers under test: an id of its own, and a copy of the server that this id can read.

The checkout and the interpreter of the tests may lie below a directory that only root enters, such as /root.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[1]
# Nobody's id: above what distributions give to people, below the subordinate ids.
UID = 61_457
DELEGATED = ("memory", "pids", "cpu", "cpuacct")


@dataclass(frozen=True)
class OrdinaryUser:
    """`home` belongs to the user and is removed at the end; `python` runs the server from the copy below it."""

    uid: int
    home: Path
    python: str

    @property
    def command(self) -> tuple[str, ...]:
        """The start of a command line that runs Python as this user, without root's groups and capabilities."""
        identity = (f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--inh-caps=-all")
        return ("setpriv", *identity, "--", self.python)

    @property
    def environment(self) -> dict[str, str]:
        """What the copied server needs, and what an ordinary user's shell would have."""
        path = f"{self.home / 'code'}:{self.home / 'packages'}"
        return {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(self.home), "PYTHONSAFEPATH": "1"}

    def directory(self, name: str) -> Path:
        """A new directory of the user, for instance for a server's state."""
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.home))
        os.chown(path, self.uid, self.uid)
        return path


@contextlib.contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Needs root."""
    home = Path(tempfile.mkdtemp(prefix="agentbox-user-"))
    try:
        home.chmod(0o755)
        shutil.copytree(REPOSITORY / "src" / "agentbox", home / "code" / "agentbox", ignore=_CACHES)
        _copy_packages(home / "packages")
        user = OrdinaryUser(UID, home, _reachable_python(home))
        os.chown(home, UID, UID)
        yield user
    finally:
        shutil.rmtree(home, ignore_errors=True)


_CACHES = shutil.ignore_patterns("__pycache__", "test", "idlelib", "ensurepip")


def _copy_packages(target: Path) -> None:
    """Everything that the server imports, as installed for the tests."""
    waiting, seen = ["agentbox"], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        for text in distribution.requires or ():
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", "server")):
                waiting.append(need.name)
        if name == "agentbox":
            continue
        for file in distribution.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                copy = target / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), copy)


def _reachable_python(home: Path) -> str:
    """A Python of this very version that the user can run: the system's, or a copy of the tests' own."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    probe = "import json, sqlite3, sys; print('%d.%d' % sys.version_info[:2])"
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3", f"/usr/bin/python{version}"):
        with contextlib.suppress(OSError):
            # setpriv itself may still pass directories that only root enters; what a shell starts may not.
            asked = [
                "setpriv",
                f"--reuid={UID}",
                f"--regid={UID}",
                "--clear-groups",
                "--",
                "sh",
                "-c",
                'exec "$@"',
                "sh",
            ]
            asked += [python, "-I", "-c", probe]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return python
    prefix = Path(sys.base_prefix)
    shutil.copytree(
        sysconfig.get_path("stdlib"), home / "python" / "lib" / f"python{version}", ignore=_WITH_PACKAGES, symlinks=True
    )
    for library in (prefix / "lib").glob("libpython*"):
        shutil.copy(library, home / "python" / "lib")
    (home / "python" / "bin").mkdir()
    return shutil.copy(os.path.realpath(sys.executable), home / "python" / "bin" / f"python{version}")


_WITH_PACKAGES = shutil.ignore_patterns("__pycache__", "test", "idlelib", "ensurepip", "site-packages", "dist-packages")
