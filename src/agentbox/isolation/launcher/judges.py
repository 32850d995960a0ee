# SPDX-License-Identifier: MIT
"""The judges of a nursery: one process for every watched box, forked before a run is asked for.

They live in the nursery's user namespace, whose powers reach into every box of it and no further, and in the host's
PID namespace, so that their reports name processes as the guards' connections do. See judge.py for what one does.
"""

from __future__ import annotations

import os

from agentbox.isolation.launcher import judge, wire
from agentbox.light import contextlib, jsons, signal, socket
from agentbox.linux import namespaces, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def serve(owner: socket.socket) -> NoReturn:
    """Fork a judge for every request, until the owner is gone. A request names the uid and gid of a box as the nursery
    sees them, and comes with the box's init (a pidfd), the judge's end of its owner's line, its end of the line to the
    box's first program, and the file in which it notes that it was asked."""
    os.chdir("/")
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    process.show_as("agentbox-judge")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    receiver = wire.Receiver(owner)
    try:
        while True:
            while (taken := receiver.take()) is None:
                if not receiver.fill():
                    os._exit(0)
            own = os.getpid()
            if os.fork() == 0:
                owner.close()
                receiver.close()
                _judge(proc, own, taken[0]["judge"], *taken[1])
            for fd in taken[1]:
                os.close(fd)
    except OSError as error:
        _complain("the exec judges ended", error)
    os._exit(1)


def _judge(proc: int, parent: int, ids: tuple[int, int], init: int, line: int, program: int, seen: int) -> NoReturn:
    """Judge one box. Whatever ends this process, its owner sees the line close, and ends the box."""
    owner = socket.socket(fileno=line)
    try:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # What programs name is found where they find it; nothing runs in the box yet.
        namespaces.enter(init, namespaces.CLONE_NEWNS)
        os.chdir("/")
        if ids[0] != 0:
            # As one of the box's own it may end what it stops, and sees files as the box does.
            process.become_user(*ids, only_ptrace=True)
        else:
            process.keep_only_ptrace()
        # Also when it is stopped, and would never see that its owner is gone.
        process.die_with_parent()
        if os.getppid() != parent:
            os._exit(0)
        wire.send(owner, {"judging": True})
        plan = _plan(owner)
        with socket.socket(fileno=program) as first:
            said, listeners, _, _ = socket.recv_fds(first, 1, 1)
            if plan is None or not listeners:
                os._exit(0)
            served = judge.Judge(listeners[0], proc, owner, plan, init_fd=init, seen_fd=seen)
            if said == b"w":
                # The rules name files that the program could change.
                first.send(b"j")
        served.serve()
    except BaseException as error:
        _complain("an exec judge ended", error)
    os._exit(0)


def _complain(what: str, error: BaseException) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"agentbox: {what}: {error!r}\n".encode("utf-8", "backslashreplace"))


def _plan(owner: socket.socket) -> dict[str, Any] | None:
    """The rules of the run, when it begins; None when there will be none. What comes behind them is not read."""
    head = owner.recv(wire.HEADER_BYTES, socket.MSG_WAITALL)
    length = int.from_bytes(head, "little")
    text = owner.recv(length, socket.MSG_WAITALL) if len(head) == wire.HEADER_BYTES else b""
    if not text or len(text) < length:
        return None
    plan: dict[str, Any] = jsons.loads(text)["plan"]
    return plan
