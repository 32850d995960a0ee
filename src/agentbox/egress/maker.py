# SPDX-License-Identifier: MIT
"""Entry of the process that makes attachments: `python -I -S maker.py FD`, FD being its end of the owner's socket.

It exists because a threaded server can neither fork safely nor enter a user namespace. Every request is answered by a
fork that lives for some milliseconds; the socket keeps the borders of messages, so answers can come in any order:

    owner --{"id": 1, "do": "make"}--> a fork makes a network namespace and fits it out (fitting.py)
    owner --{"id": 2, "do": "fit"}, [network namespace, user namespace or none]--> a fork enters it and fits it out
    owner --{"id": 3, "do": "listen", "ports": [8080]}, [the same]--> a fork enters it and listens on its loopback
    fork --{"id": 1, "holds": ["network", "stream", ...], "notes": [...]}, [descriptors in that order]--> owner
    fork --{"id": 1, "error": "set lo up: ...", "errno": 1, "step": "fit out"}--> owner

The owner's death closes the socket, which ends this process and its forks. Namespaces live only by the descriptors that
were sent, so they go with the owner too. Runs only the standard library and rooms egress, linux and errors.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any

MAX_MESSAGE_BYTES = 1 << 16
MAX_DESCRIPTORS = 200


def main() -> None:
    """Fork for every request; end when the owner's end of the socket closes."""
    # Run as a file by an isolated interpreter, so the package is not on its path yet.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from agentbox.egress import fitting
    from agentbox.linux import process

    # Once, for all forks.
    for ipv6 in (True, False):
        fitting.rules(ipv6=ipv6)
    process.show_as("agentbox-attachments")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Nobody waits for the forks: the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    owner = socket.socket(fileno=int(sys.argv[1]))
    owner.send(json.dumps({"id": 0, "holds": []}).encode())
    own_pid = os.getpid()
    while True:
        data, descriptors, flags, _ = socket.recv_fds(owner, MAX_MESSAGE_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        request = json.loads(data)
        try:
            if flags & socket.MSG_CTRUNC:
                raise OSError(24, "descriptors were lost on the way (descriptor limit reached)")
            pid = _fork(owner, own_pid, request, descriptors)
        except OSError as error:
            _refuse(owner, request, error, "fork")
            pid = -1
        for fd in descriptors:
            os.close(fd)
        if pid == 0:
            return


def _fork(owner: socket.socket, own_pid: int, request: dict[str, Any], descriptors: list[int]) -> int:
    """A fork that answers a request. Returns its pid; in the fork itself, never."""
    from agentbox.linux import namespaces, process

    privileged = process.has_capability(process.CAP_SYS_ADMIN)
    # A root without that capability still gives boxes ids of their own, which must exist in the namespace.
    maps_all = not privileged and os.geteuid() == 0 and process.has_capability(process.CAP_SETUID)
    mapped_read, mapped_write = os.pipe()
    unshared_read, unshared_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        step = "start"
        try:
            process.die_with_parent()
            if os.getppid() != own_pid:
                os._exit(1)
            os.close(mapped_write)
            step = "network namespace"
            held: list[tuple[str, int]] = []
            if request["do"] == "make":
                flags = namespaces.CLONE_NEWNET | (0 if privileged else namespaces.CLONE_NEWUSER)
                uid, gid = os.geteuid(), os.getegid()
                namespaces.unshare(flags)
                if maps_all:
                    os.write(unshared_write, b"u")
                    if os.read(mapped_read, 1) != b"m":
                        raise OSError(1, "the ids of this user namespace cannot be mapped")
                elif not privileged:
                    namespaces.keep_own_ids(uid, gid)
                held.append(("network", os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)))
                if not privileged:
                    held.append(("user", os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)))
            else:
                if len(descriptors) > 1:
                    namespaces.enter(descriptors[1], namespaces.CLONE_NEWUSER)
                namespaces.enter(descriptors[0], namespaces.CLONE_NEWNET)
            step = "listen" if request["do"] == "listen" else "fit out"
            _answer(owner, request, held)
        except BaseException as error:  # a fork must never return into the loop
            _refuse(owner, request, error, step)
        os._exit(0)
    try:
        os.close(unshared_write)
        unshared_write = -1
        if maps_all and request["do"] == "make" and os.read(unshared_read, 1) == b"u":
            with contextlib.suppress(OSError):
                namespaces.keep_all_ids(pid)
                os.write(mapped_write, b"m")
    finally:
        for fd in (mapped_read, mapped_write, unshared_read, unshared_write):
            if fd >= 0:
                os.close(fd)
    return pid


def _answer(owner: socket.socket, request: dict[str, Any], held: list[tuple[str, int]]) -> None:
    from agentbox.egress import fitting

    notes: list[str] = []
    if request["do"] == "listen":
        try:
            for port in request["ports"]:
                held += ((str(port), sock.detach()) for sock in fitting.loopback_listeners(port))
        except OSError:
            # All or none, by the time that the owner hears of it.
            for _, fd in held:
                os.close(fd)
            raise
    else:
        fitted = fitting.fit_out()
        notes = fitted.notes
        for name, sockets in (
            ("stream", fitted.stream_listeners),
            ("dns_datagram", fitted.dns_datagrams),
            ("dns_stream", fitted.dns_streams),
            ("netfilter", [fitted.netfilter] if fitted.netfilter else []),
        ):
            held += ((name, sock.detach()) for sock in sockets)
    message = {"id": request["id"], "holds": [name for name, _ in held], "notes": notes}
    socket.send_fds(owner, [json.dumps(message).encode()], [fd for _, fd in held])


def _refuse(owner: socket.socket, request: dict[str, Any], error: BaseException, step: str) -> None:
    text = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    code = error.errno or 0 if isinstance(error, OSError) else 0
    message = {"id": request["id"], "error": text, "errno": code, "step": step}
    with contextlib.suppress(OSError):
        owner.send(json.dumps(message).encode())


if __name__ == "__main__":
    main()
