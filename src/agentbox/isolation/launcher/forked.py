# SPDX-License-Identifier: MIT
"""A launcher that is forked from its owner, in place of a second interpreter: for an owner of one short command.

It must happen first, while the owner has one thread, no secret but its environment, and little memory. The box's
programs must never see that environment, nor may their init, a fork of this process, hold it.
"""

from __future__ import annotations

import gc
import os

from agentbox.light import contextlib, signal, socket


class Forked:
    """The launcher process, with what boxes.Launcher asks of a process that it started itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False

    def poll(self) -> int | None:
        """None while it lives."""
        return self._wait(os.WNOHANG)

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Until it has ended."""
        return self._wait(0) or 0

    def _wait(self, options: int) -> int | None:
        if not self._ended:
            with contextlib.suppress(ChildProcessError):
                pid, _ = os.waitpid(self.pid, options)
                if pid == 0:
                    return None
            self._ended = True
        return 0


def fork_launcher() -> tuple[Forked, socket.socket]:
    """The process, and the owner's end of its socket. Raises OSError when no process can be made."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pid = os.fork()
    if pid != 0:
        theirs.close()
        return Forked(pid), ours
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        ours.close()
        os.setsid()
        os.chdir("/")
        from agentbox.light import bundle

        bundle.load("launcher")
        bundle.stop()
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        kept = theirs.detach()
        os.dup2(kept, 3, inheritable=False)
        os.closerange(4, 1 << 16)
        from agentbox.linux import process

        process.forget_environment()
        from agentbox.isolation.launcher.serving import serve

        # Modules are no garbage; looking through them would copy their pages in every fork.
        gc.freeze()
        gc.enable()
        serve(3)
    except BaseException as error:
        os.write(2, f"agentbox-launcher: {error!r}\n".encode())
        os._exit(1)
    os._exit(0)
