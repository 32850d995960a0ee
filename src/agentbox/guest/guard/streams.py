# SPDX-License-Identifier: MIT
"""Where the streams of a started program go: pipes of the guard in place of those of the program, files, actions of
`posix_spawn`."""

from __future__ import annotations

import posix
from posix import close, dup, fstat, isatty, pipe, pread, read

from .relay import placed_high

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KIND, _FIFO, _SOCKET, _REGULAR = 0o170000, 0o010000, 0o140000, 0o100000
_READ_BYTES = 1 << 20
# From CPython 3.13 on.
_CLOSE_FROM = getattr(posix, "POSIX_SPAWN_CLOSEFROM", None)


def is_pipe(descriptor: int) -> bool:
    """Whether it leads to somebody else: a pipe or a socket."""
    try:
        return fstat(descriptor).st_mode & _KIND in (_FIFO, _SOCKET)
    except OSError:
        return False


def piped(targets: Any, child: Any) -> Any:
    """For each stream that goes to a pipe or a socket, a pipe in its place: what a relay needs, and the ends for
    the child by stream. Streams that go to the same place go through the same pipe. Of one that goes to a file is
    added to the child's files where it begins: (stream, descriptor, place); of a terminal only which one it is."""
    outputs: list[Any] = []
    ends: dict[int, int] = {}
    known: dict[Any, int] = {}
    for stream, target in targets.items():
        try:
            found = fstat(target)
        except (OSError, TypeError):
            continue
        kind, place = found.st_mode & _KIND, (found.st_dev, found.st_ino)
        if place in known:
            if kind != _REGULAR:
                ends[stream] = known[place]
            continue
        if kind == _REGULAR:
            known[place] = target
            copy = placed_high(dup(target))
            child.files.append((stream, copy, position(copy)))
            continue
        if kind not in (_FIFO, _SOCKET):
            if isatty(target):
                child.terminal = child.terminal or stream
            continue
        source, end = pipe()
        known[place] = ends[stream] = placed_high(end)
        outputs.append((placed_high(source), placed_high(dup(target)), stream))
    return outputs, ends


def written(files: Any, open_again: Any, collector: Any) -> Any:
    """By stream, what a child wrote to files that were open when it began; their descriptors are closed."""
    found = {}
    for stream, copy, start in files:
        try:
            source = open_again(copy)
            try:
                kept = collector()
                at, end = start, position(copy)
                while at < end:
                    data = pread(source, min(_READ_BYTES, end - at), at)
                    if not data:
                        break
                    kept.add(data)
                    at += len(data)
                found[stream] = kept.value()
            finally:
                close(source)
        except OSError:
            continue
        finally:
            close(copy)
    files.clear()
    return found


def position(descriptor: int) -> int:
    """Where what is written to a file goes next."""
    appends = 0
    try:
        file = posix.open(f"/proc/self/fdinfo/{descriptor}", posix.O_RDONLY)
        try:
            for line in read(file, 4096).splitlines():
                if line.startswith(b"flags:"):
                    appends = int(line.split()[1], 8) & posix.O_APPEND
        finally:
            close(file)
    except OSError:
        appends = 0
    return fstat(descriptor).st_size if appends else posix.lseek(descriptor, 0, 1)


def target_after(actions: Any, stream: int) -> Any:
    """Which descriptor of this process a stream of the child is, after the actions; None when it is none."""
    places: dict[int, Any] = {}
    for action in actions:
        if action[0] == posix.POSIX_SPAWN_DUP2:
            places[action[2]] = places.get(action[1], action[1])
        elif action[0] != _CLOSE_FROM:
            places[action[1]] = None
    return places.get(stream, stream)


def apply(actions: Any) -> None:
    """Do in a forked child what `posix_spawn` would have done."""
    for action in actions:
        if action[0] == posix.POSIX_SPAWN_DUP2:
            posix.dup2(action[1], action[2])
        elif action[0] == posix.POSIX_SPAWN_CLOSE:
            close(action[1])
        elif action[0] == posix.POSIX_SPAWN_OPEN:
            descriptor = posix.open(*action[2:])
            if descriptor != action[1]:
                posix.dup2(descriptor, action[1])
                close(descriptor)


def with_ends(actions: Any, ends: Any) -> Any:
    """The actions, with the guard's pipes put in place before what is left is closed."""
    more = [(posix.POSIX_SPAWN_DUP2, end, stream) for stream, end in ends.items()]
    rest = next((at for at, action in enumerate(actions) if action[0] == _CLOSE_FROM), len(actions))
    return [*actions[:rest], *more, *actions[rest:]]
