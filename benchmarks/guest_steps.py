# SPDX-License-Identifier: MIT
"""Runs inside, recorded and replayed: so many steps of a kind. `python guest_steps.py KIND COUNT`."""

import sys
import time

FILES = 100


def direct_read(number: int) -> None:
    with open(f"data/{number % FILES}.txt"):
        pass


def direct_write(number: int) -> None:
    with open(f"out/{number % FILES}.txt", "w"):
        pass


def clock(_: int) -> None:
    time.time()


def effect_read(number: int) -> None:
    box.read_text(f"data/{number % FILES}.txt")


def effect_write(number: int) -> None:
    box.write_text(f"out/{number % FILES}.txt", str(number))


KINDS = {
    "reads": (direct_read,),
    "writes": (direct_write,),
    "clocks": (clock,),
    "effects that read": (effect_read,),
    "effects that write": (effect_write,),
    "a mixture": (effect_read, effect_write, direct_read, clock),
}

if __name__ == "__main__":
    kind, count = KINDS[sys.argv[1]], int(sys.argv[2])
    if any("effect" in step.__name__ for step in kind):
        import agentbox.client as box
    for number in range(count):
        kind[number % len(kind)](number)
