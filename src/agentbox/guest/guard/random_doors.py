# SPDX-License-Identifier: MIT
"""The randomness that a program sees while it is recorded or replayed, and the order of directories. As `doors`,
nothing here holds anything of the guard.

Everything draws from the bytes of the caller's lane. The functions of `random` draw from one generator in the main
lane, and from one of its own in every other, until the program seeds it: then there is the one that it seeded.
"""

from __future__ import annotations

import posix
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SEED_BYTES = 32
# As in `randomness`.
_BLOCK_BYTES, _MOST_BLOCKS = 32, 8
_NODE_BITS = 48
# The address is none of a machine's.
_MULTICAST = 1 << 40


def _whole(size: Any) -> int:
    """An integer, as the real functions read one. Raises TypeError."""
    if type(size) is int:
        return size
    from _operator import index

    return index(size)


def install(ask: Any, one: Any, inside: Any, bound: Any, replace: Any, later: Any) -> Any:
    """Put the functions in their places. The list `one` has something in it while the caller can only be the main
    lane; the list `inside` has the threads that are inside an effect. Gives a list that gets the variable of a context
    with the random numbers of its lane, and what a forked child does."""
    ready: list[bytes] = []

    def urandom(_: Any, size: Any) -> bytes:
        count = _whole(size)
        if not one or count < 0:
            return bytes(ask("draw", count))
        if len(ready) < _MOST_BLOCKS:
            ready[:0] = ask("draw blocks")
        if count <= _BLOCK_BYTES:
            return ready.pop()[:count]
        if count <= _BLOCK_BYTES * _MOST_BLOCKS:
            return b"".join([ready.pop() for _ in range(-(-count // _BLOCK_BYTES))])[:count]
        return bytes(ask("stretch", ready.pop(), count))

    draw = bound(urandom, "urandom")
    replace("urandom", draw)
    if hasattr(posix, "getrandom"):

        def getrandom(_: Any, size: Any, flags: int = 0) -> bytes:  # noqa: ARG001 - as the real one
            return urandom(_, size)

        replace("getrandom", bound(getrandom, "getrandom"))
    forked: list[Any] = [ready.clear]
    # Where the numbers of a lane are in a context, when there are any.
    generators: list[Any] = []
    later("random", lambda module: _patch_random(module, draw, one, inside, generators, forked))
    later("uuid", lambda module: _patch_uuid(module, draw))
    later("tempfile", lambda module: _patch_tempfile(module, draw))

    def in_child() -> None:
        for function in forked:
            function()

    return generators, in_child


def install_order(bound: Any, replace: Any) -> None:
    """Names of a directory come in their own order, not in that of the file system."""
    listdir, scandir = posix.listdir, posix.scandir

    def sorted_names(_: Any, *arguments: Any, **named: Any) -> Any:
        found = listdir(*arguments, **named)
        found.sort()
        return found

    def sorted_entries(_: Any, *arguments: Any, **named: Any) -> Any:
        with scandir(*arguments, **named) as entries:
            found = list(entries)
        found.sort(key=lambda entry: entry.name)
        return Entries(found)

    replace("listdir", bound(sorted_names, "listdir"))
    replace("scandir", bound(sorted_entries, "scandir"))


class Entries:
    """What `os.scandir` gives."""

    __slots__ = ("_left",)

    def __init__(self, entries: Any) -> None:
        self._left = iter(entries)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the listing."""
        self._left = iter(())


Entries.__name__ = Entries.__qualname__ = "ScandirIterator"
Entries.__module__ = "posix"


def _patch_random(module: Any, draw: Any, one: Any, inside: Any, generators: Any, forked: Any) -> None:
    # Not before: to load it costs as much as all of this.
    from _contextvars import ContextVar

    generator: Any = ContextVar("generator", default=None)
    generators[:] = [generator]
    kind, instance = module.Random, module._inst
    real_seed = kind.seed
    module._urandom = draw

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        if a is None:
            a = int.from_bytes(draw(_SEED_BYTES), "big")
        real_seed(self, a, version)

    seed.__doc__ = real_seed.__doc__
    seed.__qualname__ = "Random.seed"
    seed.__module__ = "random"
    kind.seed = seed
    main = kind()
    main_random, main_bits = main.random, main.getrandbits
    # Has something in it when the program has seeded its numbers.
    seeded: list[bool] = []

    def mine() -> Any:
        """The generator of the caller's lane."""
        if one or seeded:
            return main
        me = get_ident()
        if inside and me in inside:
            return kind()
        known = generator.get()
        if known is None or known[0] != me:
            known = (me, kind())
            generator.set(known)
        return known[1]

    def random() -> Any:
        return main_random() if one or seeded else mine().random()

    def getrandbits(k: Any, /) -> Any:
        return main_bits(k) if one or seeded else mine().getrandbits(k)

    def gauss(mu: float = 0.0, sigma: float = 1.0) -> Any:
        return mine().gauss(mu, sigma)

    def seed_all(a: Any = None, version: int = 2) -> None:
        if a is None:
            mine().seed()
            return
        main.seed(a, version)
        seeded[:] = [True]

    def getstate() -> Any:
        return mine().getstate()

    def setstate(state: Any) -> None:
        main.setstate(state)
        seeded[:] = [True]

    def in_child() -> None:
        if not seeded:
            main.seed()
        generator.set((get_ident(), main))

    forked.append(in_child)
    # The main lane's, also where a task of its event loop comes first.
    generator.set((get_ident(), main))
    put = {"random": random, "getrandbits": getrandbits, "gauss": gauss, "getstate": getstate, "setstate": setstate}
    for name, function in {**put, "seed": seed_all}.items():
        function.__name__ = function.__qualname__ = name
        function.__module__ = "random"
        function.__doc__ = getattr(kind, name).__doc__
        setattr(module, name, function)
        setattr(instance, name, function)


def _patch_uuid(module: Any, draw: Any) -> None:
    """`uuid1` of the library's own making: of the clock that is recorded, and of no machine's address."""
    module._generate_time_safe = module._UuidCreate = None
    module._node = int.from_bytes(draw(_SEED_BYTES), "big") >> (8 * _SEED_BYTES - _NODE_BITS) | _MULTICAST


def _patch_tempfile(module: Any, draw: Any) -> None:
    """Names of temporary files."""
    # Threads that look for a directory that can be written: the first of a process does, whichever that is.
    looking: dict[int, int] = {}

    class Names:
        """Chooses letters, with what `random.Random` calls it, for a lane of whatever name sequence."""

        def choice(self, letters: Any) -> Any:
            return self.choices(letters, k=1)[0]

        def choices(self, letters: Any, *, k: int) -> Any:
            me = get_ident()
            if me in looking:
                looking[me] += 1
                return [letters[looking[me] % len(letters)]] * k
            return [letters[byte % len(letters)] for byte in draw(k)]

    names = Names()
    module._RandomNameSequence.rng = property(lambda _: names)
    look = module._get_default_tempdir

    def _get_default_tempdir(*arguments: Any, **named: Any) -> Any:
        looking[get_ident()] = 0
        try:
            return look(*arguments, **named)
        finally:
            del looking[get_ident()]

    module._get_default_tempdir = _get_default_tempdir
