# SPDX-License-Identifier: MIT
"""What a run without a box needs on the host: the guard's channel, its policy, a home and a scratch directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from agentbox.light import socket

_BACKLOG = 256


class Outside:
    """A private directory of this run, removed by `close`. A UNIX socket's path has 107 bytes, so it lies in the
    system's directory for temporary files, under a name that nobody can guess and only this user may enter."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="agentbox-run-"))
        self.channel = str(self._directory / "channel")
        self.policy = str(self._directory / "policy")
        self.home = str(self._directory / "home")
        self.scratch = str(self._directory / "tmp")
        os.mkdir(self.home, 0o700)
        os.mkdir(self.scratch, 0o700)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.channel)
        self.listener.listen(_BACKLOG)

    def write_policy(self, text: str) -> None:
        """The file that the guard reads its policy from."""
        Path(self.policy).write_text(text, encoding="utf-8")

    def close(self) -> None:
        """Remove everything."""
        self.listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)
