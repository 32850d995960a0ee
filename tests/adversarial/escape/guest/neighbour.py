# SPDX-License-Identifier: MIT
"""Two boxes at the same time: the first offers everything it has under known names, the second looks for it."""

import contextlib
import ctypes
import glob
import os
import socket
import sys

MARK = os.environ["MARK"]
KEY = int(os.environ["KEY"])
libc = ctypes.CDLL(None)
PLACES = ("/tmp", "/work", "/dev/shm", "/var/tmp", "/run")


def offer():
    kept = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        one = socket.socket(socket.AF_UNIX, kind)
        one.bind("\0%s-%d" % (MARK, kind))
        kept.append(one)
        if kind == socket.SOCK_STREAM:
            one.listen(4)
    tcp = socket.socket()
    tcp.bind(("0.0.0.0", 40000))
    tcp.listen(4)
    for place in PLACES:
        with contextlib.suppress(OSError):
            with open("%s/%s" % (place, MARK), "w") as file:
                file.write(MARK)
            os.chmod("%s/%s" % (place, MARK), 0o666)
    named = socket.socket(socket.AF_UNIX)
    named.bind("/tmp/%s.sock" % MARK)
    named.listen(4)
    libc.shmget(KEY, 4096, 0o1666)
    libc.semget(KEY, 1, 0o1666)
    libc.msgget(KEY, 0o1666)
    queue = ctypes.CDLL(None).mq_open(b"/" + MARK.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
    del queue
    print("ready", flush=True)
    sys.stdin.read()
    os.read(os.open(_fifo(), os.O_RDWR), 1)


def _fifo():
    os.mkfifo("/tmp/never")
    return "/tmp/never"


def look():
    found = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as one, contextlib.suppress(OSError):
            one.connect("\0%s-%d" % (MARK, kind))
            found.append("abstract socket %d" % kind)
    with socket.socket() as tcp, contextlib.suppress(OSError):
        tcp.settimeout(2)
        tcp.connect(("127.0.0.1", 40000))
        found.append("port")
    found += [path for place in PLACES for path in glob.glob("%s/%s*" % (place, MARK))]
    for name in ("shmget", "semget", "msgget"):
        arguments = {"shmget": (KEY, 4096, 0), "semget": (KEY, 1, 0), "msgget": (KEY, 0)}[name]
        if getattr(libc, name)(*arguments) >= 0:
            found.append(name)
    if ctypes.CDLL(None).mq_open(b"/" + MARK.encode(), os.O_RDONLY) >= 0:
        found.append("message queue")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/environ" % pid, "rb") as file:
            if MARK.encode() in file.read() and int(pid) != os.getpid():
                found.append("process " + pid)
    print(", ".join(found) or "nothing")


{"offer": offer, "look": look}[sys.argv[1]]()
