# SPDX-License-Identifier: MIT
"""What attacks on the gateway need of the far side: servers that keep what arrived, and a name server that lies.

Run as `python far_services.py DIRECTORY`; says "ready". At WEB, which is allowed, and at EVIL, which is not, each
connection to one of PORTS appends a line of JSON to DIRECTORY/arrived: where, and what was sent, in Latin-1.

    PORT_KEEP      keeps everything and answers each end of a head with 204, as a lenient server would
    PORT_HOLD      reads nothing and says nothing, for ever
    PORT_POUR      sends without end
    PORT_SWITCH    answers the first head with 101, whatever it asked, and keeps the rest
    PORT_SLOW      answers a byte at a time, for ever
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

WEB, EVIL, NAMES = "45.67.89.10", "45.67.89.66", "45.67.89.53"
PORT_KEEP, PORT_HOLD, PORT_POUR, PORT_SWITCH, PORT_SLOW = PORTS = (9001, 9002, 9003, 9004, 9005)
PORT_NAMES = 5353
# A name that leads elsewhere at each question; the rest lead to WEB, and `evil.` to EVIL.
REBIND = "rebind.example"
TURNS = (WEB, "127.0.0.1", "10.0.0.1", "169.254.169.254", "45.67.90.1")
_lock = threading.Lock()
_asked = 0


def note(file: str, line: object) -> None:
    with _lock, open(f"{sys.argv[1]}/{file}", "a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def keep(end: socket.socket) -> bytes:
    received = b""
    answered = 0
    end.settimeout(3)
    try:
        while part := end.recv(65536):
            received += part
            heads = received.count(b"\r\n\r\n") + received.count(b"\n\n")
            end.sendall(b"HTTP/1.1 204 No Content\r\n\r\n" * (heads - answered))
            answered = heads
    except OSError:
        pass
    return received


def hold(end: socket.socket) -> bytes:
    _held.append(end)
    return b""


_held: list[socket.socket] = []


def pour(end: socket.socket) -> bytes:
    end.settimeout(None)
    while True:
        end.sendall(b"\xff" * 65536)


def switch(end: socket.socket) -> bytes:
    received = b""
    end.settimeout(3)
    try:
        while b"\r\n\r\n" not in received:
            part = end.recv(65536)
            if not part:
                return received
            received += part
        end.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: any\r\nConnection: Upgrade\r\n\r\n")
        while part := end.recv(65536):
            received += part
            end.sendall(b"<" + part + b">")
    except OSError:
        pass
    return received


def slow(end: socket.socket) -> bytes:
    end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        end.sendall(b"z")
        time.sleep(0.2)


KINDS: dict[int, Callable[[socket.socket], bytes]] = {
    PORT_KEEP: keep, PORT_HOLD: hold, PORT_POUR: pour, PORT_SWITCH: switch, PORT_SLOW: slow,
}  # fmt: skip


def attend(end: socket.socket, address: str, port: int) -> None:
    received = b""
    with contextlib.suppress(OSError):
        received = KINDS[port](end)
    note("arrived", [address, port, received.decode("latin-1")])
    if end not in _held:
        end.close()


def serve(address: str, port: int) -> None:
    listener = socket.create_server((address, port), backlog=4096)

    def accept() -> None:
        while True:
            end, _ = listener.accept()
            threading.Thread(target=attend, args=(end, address, port), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def answer(question: bytes) -> bytes:
    global _asked
    at, labels = 12, []
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("latin-1"))
        at += 1 + length
    (kind,) = struct.unpack_from("!H", question, at + 1)
    name = ".".join(labels).lower()
    note("questions", name)
    address = EVIL if name.startswith("evil.") else WEB
    if name == REBIND and kind == 1:
        address = TURNS[_asked % len(TURNS)]
        _asked += 1
    found = [socket.inet_aton(address)] if kind == 1 else []
    answers = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(one)) + one for one in found)
    return question[:2] + struct.pack("!HHHHH", 0x8180, 1, len(found), 0, 0) + question[12 : at + 5] + answers


def main() -> None:
    threading.stack_size(128 * 1024)
    for port in PORTS:
        serve(WEB, port)
        serve(EVIL, port)
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind((NAMES, PORT_NAMES))

    def names_for_ever() -> None:
        while True:
            question, asker = names.recvfrom(4096)
            names.sendto(answer(question), asker)

    threading.Thread(target=names_for_ever, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
