# SPDX-License-Identifier: MIT
"""Programs that a recorded run starts: what they gave is recorded, and in a replay a stand-in gives it again.

Whatever way a program is started, it comes down to `fork_exec` or `posix_spawn` here. Pipes, waiting, signals and
timeouts are the kernel's, with a process of its own in a replay too, so that all of it works as it does with any child.
"""

from __future__ import annotations

import posix
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from os import strerror
from posix import close, dup, fstat, getpgid, pipe, pread, read, waitid, write

from .channel import text_of
from .effects import Effects
from .relay import Relay, placed_high
from .seal import Namespace, sealed
from .stand_in import StandIn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KIND, _FIFO, _SOCKET, _REGULAR = 0o170000, 0o010000, 0o140000, 0o100000
# Arguments of fork_exec by their place; see Modules/_posixsubprocess.c.
_ARGV, _CANDIDATES, _CLOSE_FDS, _KEPT, _DIRECTORY, _ENVIRONMENT, _GIVEN, _GIVER = range(8)
_OUT, _ERR, _ERRORS_READ, _ERRORS_WRITE = 9, 11, 12, 13
_BEFORE = 20 if sys.version_info < (3, 11) else 21
_ENOENT = 2
_MAX_ERROR_BYTES = 50_000
_READ_BYTES = 1 << 20
# From CPython 3.13 on.
_CLOSE_FROM = getattr(posix, "POSIX_SPAWN_CLOSEFROM", None)
_OUTPUTS = ((1, _OUT), (2, _ERR))
_NAMES = ("stdout", "stderr")
_TRACKER = "multiprocessing.resource_tracker"
# Interpreters that go on with this program's own work, and answer it by pipes of their own.
_ANEW = ("--multiprocessing-fork", "multiprocessing.forkserver", "multiprocessing.spawn")


@sealed
class Spawning:
    """The children of one process. `services` has the real functions."""

    def __init__(
        self, effects: Effects, processes: Any, services: Any, files: Any, observations: Any, large: Any, sha256: Any
    ) -> None:
        self._effects = effects
        self._observations = observations
        self._processes = processes
        self._services = services
        self._files = files
        self._large = large
        self._sha256 = sha256
        self._children: dict[int, Any] = {}
        # Those that have ended, and whose output has not.
        self._open: list[Any] = []
        # Children that had ended before this process knew that they had begun, while it starts one.
        self._early: dict[int, Any] = {}
        self._starting = 0
        # Threads that call posix_spawn for the guard itself.
        self._own: dict[int, bool] = {}
        self._lock = allocate_lock()

    def answers(self) -> Any:
        """The services by their names."""
        return {
            "fork_exec": self.fork_exec,
            "posix_spawn": lambda *arguments: self.posix_spawn("posix_spawn", *arguments),
            "posix_spawnp": lambda *arguments: self.posix_spawn("posix_spawnp", *arguments),
            "system": self.system,
            "spawn": self.spawn,
            "reaped": self.reaped,
            "spawns end": self.ends,
        }

    def handlers(self, others: Any) -> Any:
        """Handlers of events, each before or in place of the one among `others`."""
        found = {"os.posix_spawn": self._unless_own(others["os.posix_spawn"])}
        for event, told in (("os.kill", self._signalled), ("os.killpg", self._group_signalled)):
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
        given = environment
        if given is not None:
            given = [_encoded(f"{key}=") + _encoded(value) for key, value in dict(given).items()]
        return self._started(list(argv), candidates, given)

    def posix_spawn(self, name: str, path: Any, argv: Any, environment: Any, named: Any = None) -> Any:
        """`os.posix_spawn` and `os.posix_spawnp`."""
        named = named or {}
        text = self._files.text(path)
        actions = [tuple(action) for action in named.get("file_actions") or ()]
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
                plan = _arguments(list(argv), candidates, None, made, told)
                return self._forked(plan, self._player(given, lambda: _apply(actions)), None, b"")
            finally:
                close(made)
                close(told)
        child = self._new_child(given, started)
        self._starting += 1
        outputs, ends = self._pipes({stream: _target_after(actions, stream) for stream in (1, 2)}, child)
        try:
            more = [(posix.POSIX_SPAWN_DUP2, end, stream) for stream, end in ends.items()]
            child.relay = Relay(outputs, None, self._large.collector, self._sha256)
            rest = next((at for at, action in enumerate(actions) if action[0] == _CLOSE_FROM), len(actions))
            actions[rest:rest] = more
            pid = self._really(name, (path, argv, environment), {**named, "file_actions": actions})
        except OSError as error:
            child.failed = f"OSError:{error.errno or 0:x}:"
            self._drop(child)
            child.code = 255
            self._tell(child)
            raise
        finally:
            for end in set(ends.values()):
                close(end)
        self._begin(pid, child)
        return pid

    def reaped(self, pid: int, status: Any, code: Any = None) -> None:
        """A child has ended: by the status of `wait`, or by its code. Its output is passed on before this returns."""
        if status is not None:
            if status & 0xFF == 0x7F or status == 0xFFFF:
                return
            code = -(status & 0x7F) if status & 0x7F else status >> 8
        child = self._children.pop(pid, None)
        if child is None:
            if self._starting:
                self._early[pid] = code
            return
        self._over(child, code)

    def _over(self, child: Any, code: Any) -> None:
        child.code = code
        child.relay.settle()
        child.relay.ended()
        if child.relay.is_over():
            self._tell(child)
        else:
            self._open.append(child)

    def ends(self) -> None:
        """This process ends: what is known of its children is told."""
        for pid, child in list(self._children.items()):
            try:
                found = waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
            except OSError:
                found = None
            if found is not None and found.si_pid == pid:
                child.code = found.si_status if found.si_code == posix.CLD_EXITED else -found.si_status
        for child in [*self._children.values(), *self._open]:
            child.relay.settle()
            self._tell(child)
        self._children.clear()
        self._open.clear()

    def forked(self) -> None:
        """In the child after a fork: what the parent started is not its own."""
        for child in [*self._children.values(), *self._open]:
            child.relay.drop()
            for _, copy, _ in child.files:
                close(copy)
        self._children.clear()
        self._open.clear()
        self._early.clear()
        self._starting = 0
        self._lock = allocate_lock()

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
        given = self._asked(started)
        if not replay:
            return self._recorded(arguments, self._new_child(given, started))
        failed = str(given.get("failed") or "").encode("ascii", "replace")
        return self._forked(arguments, self._player(given), arguments[_BEFORE], failed), failed

    def _asked(self, started: Any) -> Any:
        refused, answer = self._effects.ask("observe", "proc.spawn", text_of(started))
        if refused is not None:
            raise refused
        given = answer.get("result")
        return given if type(given) is dict else {}

    def _new_child(self, given: Any, started: Any) -> Any:
        lanes = self._effects.lanes
        lane = lanes.here()
        child = Namespace()
        child.number = given.get("spawn")
        child.lane = f"{lane.name[:54]}|{lanes.number(lane, '|')}"
        child.code, child.signalled, child.failed, child.told, child.relay = None, False, "", False, None
        child.files = []
        # What it gives goes through pipes that nobody else has.
        child.is_anew = any(word in " ".join(started["argv"]) for word in _ANEW)
        return child

    def _recorded(self, arguments: Any, child: Any) -> Any:
        """Start a program with relays on its streams."""
        self._starting += 1
        args = list(arguments)
        targets = {stream: args[at] if args[at] >= 0 else stream for stream, at in _OUTPUTS}
        outputs, ends = self._pipes(targets, child)
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
        failed = b""
        try:
            pid = self._services.real("fork_exec")(*args)
            close(teller)
            teller = -1
            failed = read(told, _MAX_ERROR_BYTES)
        except BaseException:
            self._drop(child)
            raise
        finally:
            for descriptor in (*mine, told, teller):
                if descriptor >= 0:
                    close(descriptor)
        if failed:
            child.failed = failed.decode("ascii", "replace")
            write(arguments[_ERRORS_WRITE], failed)
        self._begin(pid, child)
        return pid, failed

    def _pipes(self, targets: Any, child: Any) -> Any:
        """For each stream that goes to a pipe or a socket, a pipe in its place: what a relay needs, and the ends for
        the child by stream. Streams that go to the same place go through the same pipe. Of one that goes to a file is
        remembered where it begins."""
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
                child.files.append((stream, copy, _position(copy)))
                continue
            if kind not in (_FIFO, _SOCKET):
                continue
            source, end = pipe()
            known[place] = ends[stream] = placed_high(end)
            outputs.append((placed_high(source), placed_high(dup(target)), stream))
        return outputs, ends

    def _begin(self, pid: int, child: Any) -> None:
        """A child runs: pass on what it writes until there is no more."""
        self._children[pid] = child
        self._starting -= 1
        code = self._early.pop(pid, None)
        if not self._starting:
            self._early.clear()
        if code is not None:
            self._over(self._children.pop(pid), code)
        relay = child.relay
        if relay.is_over() and not relay.is_fed:
            return

        def run() -> None:
            relay.run()
            if child.code is not None:
                self._tell(child)

        start_new_thread(run, ())

    def _drop(self, child: Any) -> None:
        self._starting -= 1
        if child.relay is not None:
            child.relay.drop()

    def _tell(self, child: Any) -> None:
        """Hand over what a child gave, once."""
        with self._lock:
            if child.told or child.number is None:
                return
            child.told = True
        if child.is_anew:
            # Without a result the replay says that it cannot be answered.
            return
        relay = child.relay
        args: dict[str, Any] = {"spawn": child.number, "code": child.code}
        with relay.lock:
            for stream, kept in relay.kept.items():
                args[_NAMES[stream - 1]] = kept.value()
            written = self._written(child)
            args.update(written)
            if not written and (len(relay.kept) > 1 or relay.is_fed):
                args["chunks"] = [list(chunk) for chunk in relay.chunks]
            if child.signalled:
                args["signalled"] = True
            if child.failed:
                args["failed"] = child.failed
            if not relay.is_over():
                args["open"] = True
            if relay.is_fed:
                args["fed"] = relay.has_all_input
            given = relay.given() if relay.has_all_input else None
        lane = text_of(child.lane)
        frame = '{{"id":0,"kind":"observe","op":"{}","args":{},"lane":{}}}'
        send = self._effects.channel.send
        if given is not None:
            send(frame.format("proc.stdin", text_of(given), lane).encode("ascii"))
        send(frame.format("proc.result", text_of(args), lane).encode("ascii"))

    def _written(self, child: Any) -> Any:
        """What a child wrote to files that were open when it began."""
        found = {}
        for stream, copy, start in child.files:
            try:
                source = self._observations.open_again(copy)
                try:
                    kept = self._large.collector()
                    at, end = start, _position(copy)
                    while at < end:
                        data = pread(source, min(_READ_BYTES, end - at), at)
                        if not data:
                            break
                        kept.add(data)
                        at += len(data)
                    found[_NAMES[stream - 1]] = kept.value()
                finally:
                    close(source)
            except OSError:
                continue
            finally:
                close(copy)
        child.files.clear()
        return found

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
        lanes = effects.lanes
        here = lanes.here()
        lane = f"{here.name[:54]}|{lanes.number(here, '|')}"

        def asked(args: Any) -> None:
            effects.ask("observe", "proc.stdin", text_of(args), lane)

        silent = given.get("open") is not True
        fed = given.get("fed") is True
        signalled = given.get("signalled") is True
        made = Namespace()
        made.player = StandIn(chunks, given.get("code"), silent, signalled, self._sha256, asked, fed)
        made.prepare = prepare
        return made

    def _forked(self, arguments: Any, made: Any, before: Any, failed: bytes) -> Any:
        """Fork what stands in for a program; `before` is what the program itself does in a child first."""
        args = list(arguments)
        errors = args[_ERRORS_WRITE]
        kept = {number for number in args[_KEPT] if number != errors} if args[_CLOSE_FDS] else None
        # What it does is read from a pipe until nobody writes to it.
        read_out = any(_TRACKER in str(word) for word in args[_ARGV])
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
            return self._services.real("fork_exec")(*args)
        finally:
            lanes.stand_in = False

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

    def _signalled(self, pid: Any, number: Any) -> None:
        child = self._children.get(pid)
        if child is not None and number:
            child.signalled = True

    def _group_signalled(self, group: Any, number: Any) -> None:
        for pid, child in list(self._children.items()):
            try:
                child.signalled = child.signalled or bool(number and getpgid(pid) == group)
            except OSError:
                continue


def _position(descriptor: int) -> int:
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


def _both(other: Any, told: Any) -> Any:
    def handler(*arguments: Any) -> Any:
        refused = other(*arguments) if other is not None else None
        if refused is None:
            told(*arguments)
        return refused

    return handler


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


def _target_after(actions: Any, stream: int) -> Any:
    """Which descriptor of this process a stream of the child is, after the actions; None when it is none."""
    places: dict[int, Any] = {}
    for action in actions:
        if action[0] == posix.POSIX_SPAWN_DUP2:
            places[action[2]] = places.get(action[1], action[1])
        elif action[0] != _CLOSE_FROM:
            places[action[1]] = None
    return places.get(stream, stream)


def _apply(actions: Any) -> None:
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
