# SPDX-License-Identifier: MIT
"""Programs that a recorded run starts: what they gave is recorded, and in a replay a stand-in gives it again.

Whatever way a program is started, it comes down to `fork_exec` or `posix_spawn` here. Pipes, waiting, signals and
timeouts are the kernel's, with a process of its own in a replay too, so that all of it works as it does with any child.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from os import strerror
from posix import close, dup, pipe, read, write

from .channel import text_of
from .children import Children
from .effects import Effects
from .relay import Relay, placed_high
from .seal import Namespace, sealed
from .stand_in import StandIn
from .streams import apply, is_pipe, piped, target_after, with_ends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Arguments of fork_exec by their place; see Modules/_posixsubprocess.c.
_ARGV, _CANDIDATES, _CLOSE_FDS, _KEPT, _DIRECTORY, _ENVIRONMENT, _GIVEN, _GIVER = range(8)
_OUT, _ERR, _ERRORS_READ, _ERRORS_WRITE = 9, 11, 12, 13
_BEFORE = 20 if sys.version_info < (3, 11) else 21
_ENOENT = 2
_MAX_ERROR_BYTES = 50_000
_OUTPUTS = ((1, _OUT), (2, _ERR))
_NAMES = ("stdout", "stderr")
_TRACKER = "multiprocessing.resource_tracker"


@sealed
class Spawning:
    """The children of one process. `services` has the real functions."""

    def __init__(
        self, effects: Effects, processes: Any, services: Any, files: Any, observations: Any, large: Any, sha256: Any
    ) -> None:
        self._effects = effects
        self._processes = processes
        self._services = services
        self._files = files
        self._large = large
        self._sha256 = sha256
        self._children = Children(effects, observations, large)
        # In the child after a fork: what the parent started is not its own.
        self.forked = self._children.forked
        # In a replay: how often each child was found running when it was asked about.
        self._polls: dict[int, int] = {}
        # Threads that call posix_spawn for the guard itself.
        self._own: dict[int, bool] = {}

    def answers(self) -> Any:
        """The services by their names."""
        return {
            "fork_exec": self.fork_exec,
            "posix_spawn": lambda *arguments: self.posix_spawn("posix_spawn", *arguments),
            "posix_spawnp": lambda *arguments: self.posix_spawn("posix_spawnp", *arguments),
            "system": self.system,
            "spawn": self.spawn,
            "reaped": self._children.reaped,
            "spawns end": self._children.ends,
            "polled": self._children.polled,
            "polls": self.polls,
            "relaying": self._children.relaying,
        }

    def handlers(self, others: Any) -> Any:
        """Handlers of events, each before or in place of the one among `others`."""
        found = {"os.posix_spawn": self._unless_own(others["os.posix_spawn"])}
        for event, told in (("os.kill", self._children.signalled), ("os.killpg", self._children.group_signalled)):
            found[event] = _both(others.get(event), told)
        return found

    def fork_exec(self, *arguments: Any) -> Any:
        """What `subprocess` and `multiprocessing` start programs with."""
        if self._effects.lanes.is_inside():
            refused = self._processes.starts_below(*[arguments[at] for at in (0, 1, 4, 5)])
            if refused is not None:
                raise refused
            return self._services.real("fork_exec")(*arguments)
        return self._fork_exec(arguments)[0]

    def polls(self, pid: Any) -> Any:
        """In a replay: whether a child was found running when it was asked about now, None when nobody knows."""
        left = self._polls.get(pid)
        if left is None:
            return None
        self._polls[pid] = max(0, left - 1)
        return left > 0

    def system(self, command: Any) -> Any:
        """A shell's process id, and what is told when there is no shell."""
        text = self._files.text(command)
        if text is None:
            raise TypeError("os.system takes a command as text")
        return self._started(["sh", "-c", text], ["/bin/sh"], None)

    def spawn(self, file: Any, argv: Any, environment: Any, searched: bool) -> Any:
        """`os.spawn*`: the process id, and what is told of a program that could not be started."""
        text = self._files.text(file)
        if text is None:
            raise TypeError("a program is started by a path that is text")
        candidates = self._processes.found(text, environment) if searched else [text]
        return self._started(argv, candidates, environment)

    def posix_spawn(self, name: str, path: Any, argv: Any, environment: Any, named: Any) -> Any:
        """`os.posix_spawn` and `os.posix_spawnp`."""
        text = self._files.text(path)
        actions = named.get("file_actions", ())
        if text is None or self._effects.lanes.is_inside():
            return self._really(name, (path, argv, environment), named)
        candidates = self._processes.found(text, environment) if name == "posix_spawnp" else [text]
        refused, started = self._processes.judged(candidates, argv, environment)
        if refused is not None:
            raise refused
        if started is None:
            raise _named_error(_ENOENT, text)
        given = self._asked(started)
        if self._effects.replay:
            error = given.get("failed")
            if type(error) is str and error:
                raise _named_error(int(error.split(":")[1], 16), text)
            made, told = pipe()
            told = placed_high(told)
            try:
                # Nothing is executed, so nothing but the words matters.
                plan = _arguments(argv, candidates, None, made, told)
                return self._forked(plan, self._player(given, lambda: apply(actions)), None, b"")
            finally:
                close(made)
                close(told)
        child = self._children.new(given, started)
        outputs, ends = piped({stream: target_after(actions, stream) for stream in (1, 2)}, child)
        try:
            child.relay = Relay(outputs, None, self._large.collector, self._sha256)
            named = {**named, "file_actions": with_ends(actions, ends)}
            pid = self._really(name, (path, argv, environment), named)
        except OSError as error:
            child.failed = f"OSError:{error.errno or 0:x}:"
            self._children.drop(child)
            child.code = 255
            self._children.tell(child)
            raise
        finally:
            for end in set(ends.values()):
                close(end)
        self._children.begin(pid, child)
        return pid

    def _started(self, argv: Any, candidates: Any, environment: Any) -> Any:
        """Start a program that has this process's own descriptors: its process id, and what is told when it could not
        be started."""
        made, told = pipe()
        told = placed_high(told)
        try:
            return self._fork_exec(_arguments(argv, candidates, environment, made, told))
        finally:
            close(made)
            close(told)

    def _fork_exec(self, arguments: Any) -> Any:
        """The process id, and what was told when the program could not be started."""
        processes, replay = self._processes, self._effects.replay
        candidates = processes.placed(arguments[_CANDIDATES], arguments[_DIRECTORY])
        refused, started = processes.judged(candidates, arguments[_ARGV], arguments[_ENVIRONMENT])
        if refused is not None:
            raise refused
        if started is None:
            if replay:
                failed = f"OSError:{_ENOENT:x}:".encode()
                return self._forked(arguments, None, arguments[_BEFORE], failed), failed
            return self._services.real("fork_exec")(*arguments), b"?"
        directory = arguments[_DIRECTORY]
        if directory is not None:
            started = {**started, "cwd": self._files.text(directory)}
        given = self._asked(started)
        if not replay:
            return self._recorded(arguments, self._children.new(given, started))
        failed = str(given.get("failed") or "").encode("ascii", "replace")
        return self._forked(arguments, self._player(given), arguments[_BEFORE], failed), failed

    def _asked(self, started: Any) -> Any:
        refused, answer = self._effects.ask("observe", "proc.spawn", text_of(started))
        if refused is not None:
            raise refused
        given = answer.get("result")
        return given if type(given) is dict else {}

    def _recorded(self, arguments: Any, child: Any) -> Any:
        """Start a program with relays on its streams."""
        args = list(arguments)
        targets = {stream: args[at] if args[at] >= 0 else stream for stream, at in _OUTPUTS}
        outputs, ends = piped(targets, child)
        for stream, at in _OUTPUTS:
            if stream in ends:
                args[at] = ends[stream]
        mine = set(ends.values())
        feed = None
        if args[_GIVEN] >= 0 and args[_GIVER] >= 0:
            source, end = pipe()
            feed = (placed_high(dup(args[_GIVEN])), placed_high(end))
            args[_GIVEN] = source
            mine.add(source)
        told, teller = pipe()
        teller = placed_high(teller)
        args[_ERRORS_READ], args[_ERRORS_WRITE] = told, teller
        args[_KEPT] = tuple(sorted([teller if kept == arguments[_ERRORS_WRITE] else kept for kept in args[_KEPT]]))
        child.relay = Relay(outputs, feed, self._large.collector, self._sha256)
        further = [number for number in arguments[_KEPT] if number > 2 and number != arguments[_ERRORS_WRITE]]
        if any(is_pipe(number) for number in further) and not _is_tracker(args):
            child.is_beyond = True
        failed = b""
        try:
            pid = self._services.real("fork_exec")(*args)
            close(teller)
            teller = -1
            failed = read(told, _MAX_ERROR_BYTES)
        except BaseException:
            self._children.drop(child)
            raise
        finally:
            for descriptor in (*mine, told, teller):
                if descriptor >= 0:
                    close(descriptor)
        if failed:
            child.failed = failed.decode("ascii", "replace")
            write(arguments[_ERRORS_WRITE], failed)
        self._children.begin(pid, child)
        return pid, failed

    def _player(self, given: Any, prepare: Any = None) -> Any:
        """What stands in for a recorded child."""
        effects = self._effects
        data = {}
        for stream, name in enumerate(_NAMES, 1):
            if name in given:
                data[stream] = self._large.bytes_of(given[name])
                if data[stream] is None:
                    raise effects.diverged(f"the {name} of the program was too large to be kept")
        chunks = []
        at = dict.fromkeys(data, 0)
        for stream, size, after in given.get("chunks") or [[stream, len(data[stream]), 0] for stream in data]:
            chunks.append((stream, data[stream][at[stream] : at[stream] + size], after))
            at[stream] += size
        shown = given.get("terminal")
        if type(shown) is dict:
            data = self._large.bytes_of(shown)
            if data is None:
                raise effects.diverged("what the program wrote to the terminal was too large to be kept")
            chunks.append((-shown["stream"], data, 0))
        lane = self._children.lane()

        def asked(args: Any) -> None:
            effects.ask("observe", "proc.stdin", text_of(args), lane)

        silent = given.get("open") is not True
        fed = given.get("fed") is True
        signalled = given.get("signalled") is True
        made = Namespace()
        pace = given.get("milliseconds")
        made.player = StandIn(chunks, given.get("code"), silent, signalled, self._sha256, asked, fed, pace)
        made.polls = given.get("polls", 0) if given.get("code") is not None else None
        made.prepare = prepare
        return made

    def _forked(self, arguments: Any, made: Any, before: Any, failed: bytes) -> Any:
        """Fork what stands in for a program; `before` is what the program itself does in a child first."""
        args = list(arguments)
        errors = args[_ERRORS_WRITE]
        kept = {number for number in args[_KEPT] if number != errors} if args[_CLOSE_FDS] else None
        # What it does is read from a pipe until nobody writes to it.
        read_out = _is_tracker(args)
        player = StandIn((), 0, True, False, self._sha256, None, False) if made is None else made.player

        def play() -> None:
            if before is not None:
                before()
            if made is not None and made.prepare is not None:
                made.prepare()
            player.play(failed, errors, kept, read_out)

        args[_BEFORE] = play
        lanes = self._effects.lanes
        lanes.stand_in = before is None
        try:
            pid = self._services.real("fork_exec")(*args)
        finally:
            lanes.stand_in = False
        if made is not None and made.polls is not None:
            self._polls[pid] = made.polls
        return pid

    def _really(self, name: str, arguments: Any, named: Any) -> Any:
        me = get_ident()
        self._own[me] = True
        try:
            return self._services.real(name)(*arguments, **named)
        finally:
            self._own.pop(me, None)

    def _unless_own(self, other: Any) -> Any:
        def handler(*arguments: Any) -> Any:
            # Within an effect of the functions for agents it is judged as ever.
            if get_ident() in self._own and not self._effects.lanes.is_inside():
                return None
            return other(*arguments)

        return handler


def _both(other: Any, told: Any) -> Any:
    def handler(*arguments: Any) -> Any:
        refused = other(*arguments) if other is not None else None
        if refused is None:
            told(*arguments)
        return refused

    return handler


def _is_tracker(arguments: Any) -> bool:
    return any(_TRACKER in str(word) for word in arguments[_ARGV])


def _arguments(argv: Any, candidates: Any, environment: Any, told: int, teller: int) -> Any:
    """Arguments of fork_exec for a program that has this process's own descriptors."""
    group = () if sys.version_info < (3, 11) else (-1,)
    words = [_encoded(word) for word in argv]
    places = [_encoded(candidate) for candidate in candidates]
    streams = (-1,) * 6
    vfork = () if sys.version_info < (3, 11) or sys.version_info >= (3, 14) else (False,)
    head = (words, places, False, (), None, environment, *streams, told, teller, False, False)
    return (*head, *group, None, None, None, -1, None, *vfork)


def _encoded(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    return str(word).encode(sys.getfilesystemencoding(), "surrogateescape")


def _named_error(number: int, name: str) -> OSError:
    return OSError(number, strerror(number), name)
