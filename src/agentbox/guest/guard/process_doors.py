# SPDX-License-Identifier: MIT
"""Where programs are started and waited for, in a run that can be replayed. As `doors`, nothing here holds anything of
the guard."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import os
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REPLACED = ("posix_spawn", "posix_spawnp", "system")
_NOT_STARTED = 127
_ENDING_SECONDS = 5


def install(ask: Any, bound: Any, replace: Any, later: Any) -> None:
    """Put the functions in their places."""
    for name in ("posix_spawn", "posix_spawnp"):
        if hasattr(posix, name):
            replace(name, _spawning(ask, bound, name))
    real_wait = posix.waitpid
    for name in ("waitpid", "wait", "wait3", "wait4"):
        replace(name, _waiting(getattr(posix, name), ask, bound, name))
    loaded = sys.modules.get("subprocess")
    if loaded is not None:
        _wait_there(loaded, real_wait)
    replace("waitid", _waiting_by_id(posix.waitid, ask, bound))
    if sys.version_info >= (3, 12):
        replace("fork", _fork(posix.fork, ask, bound))
    replace("system", _system(real_wait, ask, bound))
    os._spawnvef = _spawnvef(real_wait, ask, bound)  # type: ignore[attr-defined]
    replace("_exit", _ending(posix._exit, ask, bound))
    atexit.register(lambda: ask("spawns end"))
    later("subprocess", _say_whole_timeouts)
    later("subprocess", lambda module: _poll_alike(module, ask))


def _say_whole_timeouts(subprocess: Any) -> None:
    """Where nothing is captured, `subprocess.run` says in its error how much time was left when it began to wait, which
    is chance. With this it says what it says elsewhere: the timeout that it was given."""
    real = subprocess.Popen.communicate

    def communicate(self: Any, input: Any = None, timeout: Any = None) -> Any:  # noqa: A002 - it stands for that one
        try:
            return real(self, input, timeout)
        except subprocess.TimeoutExpired as error:
            error.timeout = timeout
            raise

    communicate.__doc__, communicate.__qualname__ = real.__doc__, real.__qualname__
    communicate.__module__ = real.__module__
    subprocess.Popen.communicate = communicate


def _poll_alike(subprocess: Any, ask: Any) -> None:
    """How often a program is found running is recorded, and in a replay it is found so as often."""
    real = subprocess.Popen.poll

    def poll(self: Any) -> Any:
        if self.returncode is not None:
            return self.returncode
        running = ask("polls", self.pid)
        if running:
            return None
        if running is False:
            # It had ended by then, so it is ending now.
            try:
                return self.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                return None
        found = real(self)
        if found is None:
            ask("polled", self.pid)
        return found

    poll.__doc__, poll.__qualname__, poll.__module__ = real.__doc__, real.__qualname__, real.__module__
    subprocess.Popen.poll = poll


def _wait_there(subprocess: Any, real: Any) -> None:
    """A warm interpreter may have `subprocess` already, which keeps the function that it waits with."""
    kept = getattr(subprocess, "_del_safe", None)
    if kept is not None:
        kept.waitpid = posix.waitpid
    poll = subprocess.Popen._internal_poll
    poll.__defaults__ = tuple([posix.waitpid if value is real else value for value in poll.__defaults__ or ()])


def _spawning(ask: Any, bound: Any, name: str) -> Any:
    def spawn(_: Any, path: Any, argv: Any, env: Any, **named: Any) -> Any:
        # Whatever the program made them of, what is judged and what runs is the same.
        words = [os.fsencode(word) for word in argv]
        actions = [tuple(action) for action in named.get("file_actions") or ()]
        variables = None if env is None else _variables(env)
        return ask(name, os.fspath(path), words, variables, {**named, "file_actions": actions})

    return bound(spawn, name)


def _variables(env: Any) -> dict[bytes, bytes]:
    return {os.fsencode(key): os.fsencode(value) for key, value in env.items()}


def _waiting(real: Any, ask: Any, bound: Any, name: str) -> Any:
    def wait(_: Any, *arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        if found[0]:
            ask("reaped", found[0], found[1])
        return found

    return bound(wait, name)


def _waiting_by_id(real: Any, ask: Any, bound: Any) -> Any:
    def waitid(_: Any, *arguments: Any) -> Any:
        found = real(*arguments)
        if found is not None and found.si_code in (posix.CLD_EXITED, posix.CLD_KILLED, posix.CLD_DUMPED):
            exited = found.si_code == posix.CLD_EXITED
            ask("reaped", found.si_pid, None, found.si_status if exited else -found.si_status)
        return found

    return bound(waitid, "waitid")


def _fork(real: Any, ask: Any, bound: Any) -> Any:
    """From CPython 3.12 on it warns of threads, also of those that only the guard has."""

    def fork(_: Any) -> int:
        threading = sys.modules.get("threading")
        if not ask("relaying") or (threading is not None and threading.active_count() > 1):
            return int(real())
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return int(real())

    return bound(fork, "fork")


def _system(wait: Any, ask: Any, bound: Any) -> Any:
    def system(_: Any, command: Any) -> int:
        pid, failed = ask("system", command)
        with _Ignored():
            status = int(wait(pid, 0)[1])
        ask("reaped", pid, status)
        return _NOT_STARTED << 8 if failed else status

    return bound(system, "system")


class _Ignored:
    """Signals of the terminal are for the program that is waited for."""

    def __enter__(self) -> None:
        self._kept: dict[int, Any] = {}
        for number in (_signal.SIGINT, _signal.SIGQUIT):
            try:
                self._kept[number] = _signal.signal(number, _signal.SIG_IGN)
            except ValueError:
                # Only the main thread may.
                return

    def __exit__(self, *_: object) -> None:
        for number, handler in self._kept.items():
            _signal.signal(number, _signal.SIG_DFL if handler is None else handler)


def _spawnvef(wait: Any, ask: Any, bound: Any) -> Any:
    """What all of `os.spawn*` end in."""

    def spawnvef(_: Any, mode: int, file: Any, args: Any, env: Any, func: Any) -> int:
        if not isinstance(args, (tuple, list)):
            raise TypeError("argv must be a tuple or a list")
        if not args or not args[0]:
            raise ValueError("argv first element cannot be empty")
        words = [os.fsencode(word) for word in args]
        variables = None if env is None else [key + b"=" + value for key, value in _variables(env).items()]
        pid, failed = ask("spawn", os.fspath(file), words, variables, func in (os.execvp, os.execvpe))
        if mode == os.P_NOWAIT:
            return int(pid)
        while True:
            status = wait(pid, 0)[1]
            if not os.WIFSTOPPED(status):
                break
        ask("reaped", pid, status)
        if failed:
            return _NOT_STARTED
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    return bound(spawnvef, "_spawnvef")


def _ending(real: Any, ask: Any, bound: Any) -> Any:
    def end(_: Any, *arguments: Any, **named: Any) -> None:
        ask("spawns end")
        real(*arguments, **named)

    return bound(end, "_exit")
