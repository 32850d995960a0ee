# SPDX-License-Identifier: MIT
"""Which processes of a box are the command's own and its forks, and which run another program.

A fork shares the places of its parent's program, stack, arguments and environment in memory; execve draws them anew.
So it is seen whatever became of the processes in between, and nothing that a guest says is believed.
"""

from __future__ import annotations

# Of the fields of /proc/PID/stat behind the name: start and end of the code, start of the stack; and from the kernel's
# 3.5 on of data, heap, arguments and environment.
_IMAGE_FIELDS = (23, 24, 25, 42, 43, 44, 45, 46, 47, 48)


class Processes:
    """Tells them apart, from when the command's own process is known: the first that `started` is told of."""

    def __init__(self) -> None:
        self._root = 0
        self._image: tuple[bytes, ...] | None = None

    def started(self, pid: int) -> None:
        """A program was started in that process; the first is the command. 0 is none."""
        if not self._root:
            self._root = pid

    def is_other_program(self, pid: int) -> bool:
        """Whether a process that asks just now runs another program than the command. Where the kernel does not say, it
        does not."""
        found = image_of(pid)
        if found is None or not self._root:
            return False
        if self._image is None:
            self._image = found if pid == self._root else image_of(self._root)
        return self._image is not None and found != self._image


def image_of(pid: int) -> tuple[bytes, ...] | None:
    """What all forks of one start of a program have in common, None where this process may not know."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    image = tuple(fields[number] for number in _IMAGE_FIELDS if number < len(fields))
    # Zeros, or ones, where the reader may not look.
    return image if any(value not in (b"0", b"1") for value in image) else None
