# SPDX-License-Identifier: MIT
"""The loop of the launcher process: a box for every request, until the owner is gone."""

from __future__ import annotations

import os
import select
import sys

from agentbox.isolation.launcher import box, orphans, wire
from agentbox.isolation.launcher.begun import Begun
from agentbox.isolation.launcher.steps import StepError, step
from agentbox.light import contextlib, signal, socket
from agentbox.linux import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def serve(owner_fd: int) -> None:
    """Fork a box for every request; end when the owner's end of the socket closes.

    A request is the plan of a box (`box`), or only announces one (`begin`): that one joins its control groups, which
    waits for the kernel's grace periods, while its owner is still making the plan. Where it is told a `skeleton` of the
    plan, it builds that too (begun.py), and the plan comes here (`plan`), or that none will (`forget`); else the box
    reads the plan from its own socket.
    """
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
    owner = socket.socket(fileno=owner_fd)
    receiver = wire.Receiver(owner)
    wire.send(owner, {"ready": True})
    poller = select.poll()
    poller.register(owner, select.POLLIN)
    poller.register(wake_read, select.POLLIN)
    forked: dict[int, bool] = {}
    begun: Begun | None = None
    while True:
        for fd, _ in poller.poll():
            if fd == wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            elif not receiver.fill():
                return
        while (taken := receiver.take()) is not None:
            message, descriptors = taken
            if begun is not None and ("plan" in message or "forget" in message):
                if "plan" in message:
                    begun.complete(message["plan"], descriptors)
                begun.close()
                begun = None
                for fd in descriptors:
                    os.close(fd)
                continue
            told = message.get("begin", {}).get("skeleton")
            early = Begun(**told) if told else None
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
                if begun is not None:
                    begun.close()
                _live(message, descriptors, early)
            forked[pid] = "nursery" in message or message["box" if "box" in message else "begin"]["namespaces"]
            for fd in descriptors:
                os.close(fd)
            if early is not None:
                begun = early
                begun.lend()
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if not forked.get(ended.si_pid, True):
                    # Before the init is reaped: its owner waits for that, and then nothing may be left.
                    orphans.sweep(forked)
                forked.pop(ended.si_pid, None)
                os.waitpid(ended.si_pid, os.WNOHANG)


def _live(message: dict[str, Any], descriptors: list[int], begun: Begun | None) -> None:
    """The life of a box's process; never returns."""
    sock = socket.socket(fileno=descriptors[0])
    try:
        if begun is not None:
            begun.live(sock, descriptors[1:])
            os._exit(0)
        if "begin" in message:
            box.join(descriptors[1:])
            message, descriptors = _plan(sock)
        else:
            del descriptors[0]
        if "nursery" in message:
            from agentbox.isolation.launcher import nursery

            nursery.build(message["nursery"], sock, descriptors)
        if message["box"]["runtime"]:
            from agentbox.isolation.launcher import gvisor

            gvisor.build(message["box"], sock, descriptors)
        else:
            box.build(message["box"], sock, descriptors)
    except BaseException as error:
        box.report_failure(sock, error)
        os._exit(1)
    os._exit(0)


def _plan(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The plan of a box that was announced, and its descriptors."""
    receiver = wire.Receiver(sock)
    with step("wait for the plan"):
        while (taken := receiver.take()) is None:
            if not receiver.fill():
                os._exit(0)
    return taken
