# SPDX-License-Identifier: MIT
"""Rivals that need an image: a docker daemon of our own with runc and runsc, and runsc alone.

The image is this host's own interpreter with its standard library and the libraries of both, so that every row starts
the same program. The daemon has its own directory, no network and no rules in the host's firewall, and nothing of it
stays: whoever has a docker daemon keeps it as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.interleaved import NotHereError, progress
from benchmarks.processes import PROGRAM, PYTHON

IMAGE = "agentbox-bench:latest"
START_SECONDS = 30.0
# As this host's control groups may be of version 1, which this runsc cannot use everywhere.
RUNSC_ARGUMENTS = ["--network=none", "--ignore-cgroups"]
_LEFT_OUT = ("test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip")


def program(name: str, package: str) -> str:
    """The path of an installed program; NotHereError when it is not there."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise NotHereError(f"{name} is not installed (apt-get install {package})")
    return found


def need_root() -> None:
    """NotHereError for an ordinary user."""
    if os.geteuid() != 0:
        raise NotHereError("needs root, for a daemon or a sandbox of its own")


def archive(path: Path) -> Path:
    """Write the image as a tar file."""
    asked = "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib'))"
    said = subprocess.run([PYTHON, "-I", "-c", asked], capture_output=True, text=True, check=True).stdout
    executable, library = said.split()
    modules = [str(module) for module in Path(library, "lib-dynload").glob("*.so")]
    linked = subprocess.run(["ldd", executable, "/bin/true", *modules], capture_output=True, text=True, check=False)
    words = {word for line in linked.stdout.splitlines() for word in line.split()}
    libraries = sorted(word for word in words if word.startswith("/") and not word.endswith(":"))
    with tarfile.open(path, "w") as tar:
        for link in ("/bin", "/lib", "/lib64"):
            if os.path.islink(link):
                tar.add(link, arcname=link[1:], recursive=False)
        for name in ("tmp", "proc", "sys", "dev", "etc", "work"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        placed: set[str] = set()
        for name in (executable, PYTHON, library, "/bin/true", *libraries):
            _add(tar, name, placed)
        short = tarfile.TarInfo("usr/local/bin/python")
        short.type, short.linkname = tarfile.SYMTYPE, PYTHON
        tar.addfile(short)
    return path


def _add(tar: tarfile.TarFile, name: str, placed: set[str]) -> None:
    """The file below its real directory, and what it links to."""
    for one in (name, os.path.realpath(name)):
        real = f"{os.path.realpath(os.path.dirname(one))}/{os.path.basename(one)}"
        if real not in placed:
            placed.add(real)
            tar.add(real, arcname=real[1:], filter=_needed)


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = member.name.split("/")
    return None if any(part in _LEFT_OUT or part.startswith("config-") for part in parts[2:]) else member


class Docker:
    """A daemon with the image, until the stack is closed; NotHereError when it cannot be had. `image` writes it."""

    def __init__(self, stack: ExitStack, image: Callable[[], Path]) -> None:
        need_root()
        self.client = program("docker", "docker.io")
        daemon = program("dockerd", "docker.io")
        progress("starting a docker daemon")
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-docker-")))
        self.address = f"unix://{place}/socket"
        self.runsc = ""
        runtimes = {}
        try:
            self.runsc = program("runsc", "runsc")
            runtimes = {"runsc": {"path": self.runsc, "runtimeArgs": RUNSC_ARGUMENTS}}
        except NotHereError:
            pass
        (place / "daemon.json").write_text(json.dumps({"runtimes": runtimes}))
        log = stack.enter_context((place / "log").open("w+"))
        process = subprocess.Popen(
            [
                daemon, "--config-file", f"{place}/daemon.json", "--data-root", f"{place}/data",
                "--exec-root", f"{place}/run", "--pidfile", f"{place}/pid", "--host", self.address,
                "--bridge=none", "--iptables=false", "--ip6tables=false",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        stack.callback(_stop, process)
        self.environment = {**os.environ, "DOCKER_HOST": self.address}
        deadline = time.monotonic() + START_SECONDS
        while self._docker("version").returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise NotHereError(f"dockerd does not start: {log.read().strip().rpartition(chr(10))[2][:160]}")
            time.sleep(0.1)
        imported = self._docker("import", str(image()), IMAGE)
        if imported.returncode:
            raise NotHereError(f"docker import fails: {imported.stderr.strip()[:160]}")

    def run(self, runtime: str, *options: str) -> list[str]:
        """The words that run the snippet in a new container and remove it."""
        if runtime == "runsc" and not self.runsc:
            raise NotHereError("runsc is not installed (apt-get install runsc)")
        words = [self.client, "run", "--rm", "--network=none", f"--runtime={runtime}", *options]
        return [*words, IMAGE, "python3", "-c", PROGRAM]

    def _docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.client, *words], env=self.environment, capture_output=True, text=True, check=False, timeout=120
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Runsc:
    """gVisor without a daemon: a bundle with the image's files; NotHereError when it cannot be had."""

    def __init__(self, stack: ExitStack, image: Callable[[], Path]) -> None:
        need_root()
        self.path = program("runsc", "runsc")
        self.place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-runsc-")))
        root = self.place / "bundle" / "rootfs"
        root.mkdir(parents=True)
        with tarfile.open(image()) as tar:
            tar.extractall(root, filter="fully_trusted")
        (self.place / "bundle" / "config.json").write_text(json.dumps(_bundle()))
        self._number = 0

    def run(self) -> list[str]:
        """The words that run the snippet in a new sandbox."""
        self._number += 1
        words = [self.path, "--root", f"{self.place}/state", *RUNSC_ARGUMENTS, "run"]
        return [*words, "--bundle", f"{self.place}/bundle", f"bench{self._number}"]


def _bundle() -> dict[str, object]:
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 65534, "gid": 65534},
            "args": [PYTHON, "-c", PROGRAM],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
