# SPDX-License-Identifier: MIT
"""Runs inside: does one thing so many times and prints the microseconds of each, wall clock and processor.

`python guest_effects.py WHAT COUNT`. What a guard records is asked for by raising the audit event alone, so that its
price is seen without that of the effect. Nothing is imported that the old runtime's guard would have to let through.
"""

import os
import socket  # noqa: F401 - the old runtime imports it at the first look-up
import sys
import time

FILES = 400


def read():
    with open("data/0.txt") as file:
        file.read()


def spawn():
    os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], {}), 0)


def recorded(event, *arguments):
    def raise_event():
        sys.audit(event, *arguments)

    return raise_event


def read_others():
    for number in range(FILES):
        sys.audit("open", f"data/{number}.txt", "r", os.O_CLOEXEC)


def denied():
    try:
        sys.audit("open", "/root/secret", "r", os.O_CLOEXEC)
    except PermissionError:
        return
    raise SystemExit("it was not denied")


EFFECTS = {
    "read": (read, 1),
    "spawn": (spawn, 1),
    "record of a read, same file": (recorded("open", "data/0.txt", "r", os.O_CLOEXEC), 1),
    "record of a read, 400 files": (read_others, FILES),
    "record of a denial": (denied, 1),
    "record of a start": (recorded("os.posix_spawn", "/bin/true", ["/bin/true"], {}), 1),
    "record of a look-up": (recorded("socket.getaddrinfo", "localhost", None, 0, 0, 0), 1),
}


def main():
    effect, each = EFFECTS[sys.argv[1]]
    count = int(sys.argv[2]) // each
    batch = max(1, count // 20)
    for _ in range(min(20, count)):
        effect()
    wall, processor = [], []
    for _ in range(count // batch):
        began, used = time.perf_counter(), time.process_time()
        for _ in range(batch):
            effect()
        wall.append((time.perf_counter() - began) * 1e6 / batch / each)
        processor.append((time.process_time() - used) * 1e6 / batch / each)
    if wall:
        print(sorted(wall)[len(wall) // 2], sorted(processor)[len(processor) // 2])


if __name__ == "__main__":
    main()
