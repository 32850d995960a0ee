# SPDX-License-Identifier: MIT
"""Builds what pyproject.toml cannot describe: the small programs in C that the warm pool needs.

Without a C compiler the package is complete but for them: every run starts cold, and `agentbox doctor` says so.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = Path("src/agentbox/isolation/native")
FLAGS = ["-O2", "-Wall", "-Wextra", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"]
# What every program of a box loads: each segment, and each page that is written, is dear in gVisor.
FEW_PAGES = ["-fno-asynchronous-unwind-tables", *(f"-Wl,-z,{word}" for word in ("noseparate-code", "norelro", "lazy"))]
# A maker without libraries of its own is small, so that forks of it are fast; not every system can link one.
PROGRAMS = {
    "agentbox-maker": ("maker.c", [["-static"], ["-fPIE", "-pie"]]),
    "agentbox-inside": ("inside.c", [["-static"], ["-fPIE", "-pie"]]),
    "gvisor-stat.so": ("gvisor_stat.c", [["-shared", "-fPIC", "-nostdlib", "-fno-stack-protector", *FEW_PAGES]]),
    "agentbox-box-init": ("box_init.c", [["-static"], []]),
    "agentbox-agent": ("agent.c", [["-static"], []]),
    "alone.so": ("alone.c", [["-shared", "-fPIC", "-nostdlib", "-fno-stack-protector"]]),
    "zygote.so": ("zygote.c", [["-shared", "-fPIC"]]),
}


def compile_into(directory: Path) -> bool:
    """Compile every program; False, and a word why, where one could not be."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    directory.mkdir(parents=True, exist_ok=True)
    for name, (source, ways) in PROGRAMS.items():
        for way in ways:
            command = [*compiler, *FLAGS, *way, "-o", str(directory / name), str(NATIVE / source)]
            try:
                done = subprocess.run(command, check=False, capture_output=True, text=True)
            except OSError as error:
                sys.stderr.write(f"agentbox: no warm pool: {compiler[0]}: {error}\n")
                return False
            if done.returncode == 0:
                break
        else:
            sys.stderr.write(f"agentbox: no warm pool: {source} does not compile:\n{done.stderr}\n")
            return False
    return True


class BuildPy(build_py):
    """Copies the package, and puts the compiled programs into it: in an editable installation, beside their source."""

    def run(self) -> None:
        """See setuptools."""
        super().run()
        if sys.platform == "linux":
            compile_into(NATIVE if self.editable_mode else Path(self.build_lib, *NATIVE.parts[1:]))


class BdistWheel(bdist_wheel):
    """A wheel with compiled programs is of one machine, but of any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """See setuptools."""
        python, abi, platform = super().get_tag()
        compiled = Path(self.bdist_dir, *NATIVE.parts[1:], "agentbox-maker")
        if sys.platform == "linux" and compiled.exists():
            return python, abi, f"linux_{os.uname().machine}"
        return python, abi, platform


setup(cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel})
