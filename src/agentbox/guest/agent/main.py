# SPDX-License-Identifier: MIT
"""How it begins."""

from __future__ import annotations

import os
import signal
import struct
from typing import NoReturn

from .keeper import IGNORED, become_subreaper, prctl
from .protocol import HELLO, VERSION
from .serving import Agent

_DUMPABLE = 4
_NO_NEW_PRIVS = 38


def main() -> NoReturn:
    """Serve the owner at stdin and stdout."""
    while True:
        fd = os.open("/", os.O_RDONLY)
        if fd > 2:
            os.close(fd)
            break
    subreaping = _try_subreaping()
    prctl(_NO_NEW_PRIVS, 1)
    prctl(_DUMPABLE, 0)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    agent = Agent(subreaping=subreaping)
    agent.send(HELLO, 0, struct.pack(">BIB", VERSION, os.geteuid(), 2))
    agent.serve(wake_read)


def _try_subreaping() -> bool:
    """Whether orphans can be had by others than PID 1. To PID 1 every kernel says yes: a child is asked there."""
    mine = become_subreaper()
    if not mine or os.getpid() != 1:
        return mine
    pid = os.fork()
    if pid == 0:
        os._exit(0 if become_subreaper() else 1)
    return os.waitpid(pid, 0)[1] == 0
