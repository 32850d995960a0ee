# SPDX-License-Identifier: MIT
"""Entry of the launcher process: `python -I -S main.py FD`, FD being its end of the owner's socket."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys


def main() -> None:
    """Fork a box for every request; end when the owner's end of the socket closes."""
    # Run as a file by an isolated interpreter, so the package is not on its path yet.
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.path.insert(0, package_root)
    from agentbox.isolation.launcher import box, orphans, wire
    from agentbox.isolation.launcher.steps import StepError
    from agentbox.linux import process

    if sys.platform == "linux":
        process.become_subreaper()
        # A guest sees its init, a fork of this process: where the host keeps agentbox is not its business.
        process.show_as("agentbox-launcher")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    owner = socket.socket(fileno=int(sys.argv[1]))
    receiver = wire.Receiver(owner)
    wire.send(owner, {"ready": True})
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    poller.register(wake_read, select.POLLIN)
    forked: dict[int, bool] = {}
    while True:
        for fd, _ in poller.poll():
            if fd == wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            elif not receiver.fill():
                return
        while (taken := receiver.take()) is not None:
            message, descriptors = taken
            try:
                pid = os.fork()
            except OSError as error:
                pid = -1
                with socket.socket(fileno=os.dup(descriptors[0])) as sock:
                    box.report_failure(sock, StepError("fork", error))
            if pid == 0:
                signal.set_wakeup_fd(-1)
                # Requests that wait in the buffer hold other boxes' descriptors.
                receiver.close()
                for fd in (owner.detach(), wake_read, wake_write):
                    os.close(fd)
                _live(message["box"], descriptors)
            forked[pid] = message["box"]["namespaces"]
            for fd in descriptors:
                os.close(fd)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if not forked.get(ended.si_pid, True):
                    # Before the init is reaped: its owner waits for that, and then nothing may be left.
                    orphans.sweep(forked)
                forked.pop(ended.si_pid, None)
                os.waitpid(ended.si_pid, os.WNOHANG)


def _live(plan: dict[str, object], descriptors: list[int]) -> None:
    """The life of a box's process; never returns."""
    from agentbox.isolation.launcher import box

    sock = socket.socket(fileno=descriptors[0])
    try:
        box.build(plan, sock, descriptors[1:])
    except BaseException as error:
        box.report_failure(sock, error)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
