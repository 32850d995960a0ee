# SPDX-License-Identifier: MIT
"""What of the guard a program can touch: the hook that raises its refusals, and the functions that have no audit event,
or whose event leaves out what matters.

Nothing here holds anything of the guard. A function asks by raising an audit event of its own; the hook, which no
program can get hold of, answers. A program that raises that event itself does what the function does, and no more.
"""

from __future__ import annotations

import _imp
import builtins
import io
import os
import posix
import sys
from _frozen_importlib_external import spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EVENT = "agentbox"
PATCHED = ("readline", "_socket", "_posixsubprocess", "_dbm", "_gdbm")
# What an agent can import in every interpreter: its functions always from here, the package where it has none.
_PACKAGE, _CLIENT = "agentbox", "agentbox.client"
_audit = sys.audit
# What else is done to modules when they have been loaded, by their names.
_later: dict[str, Any] = {}
# Where the guard's directory lies for this process; its code may have been compiled for another place.
_place = [""]


def hook_over(get: Any) -> Any:
    """The audit hook: `get` gives the handler of an event, which gives None or the error to raise.

    A traceback shows the frame of the hook, so nothing is left in it when an error leaves.
    """

    def hook(event: Any, arguments: Any, get: Any = get) -> None:
        handler = None
        try:
            handler = get(event)
            if handler is None:
                return
            error = handler(*arguments)
            if error is None:
                return
        except BaseException as caught:  # whatever fails here, the effect does not happen
            error = caught
        get = handler = event = arguments = None
        error.__traceback__ = error.__context__ = error.__cause__ = None
        raise error

    return hook


def ask(name: str, *arguments: Any) -> Any:
    """Let the guard do it: the result, or the error that it gave."""
    reply: list[Any] = []
    _audit(EVENT, name, arguments, reply)
    failed, value = reply
    if failed:
        raise value
    return value


def lies_at(directory: str) -> None:
    """Say where the guard's own directory is."""
    _place[0] = directory


def install(capped: bool, writing: Any) -> None:
    """Put the functions in their places. `capped`: the policy has caps, so what writes must ask; `writing` names the
    functions that write to a descriptor."""
    os_open = posix.open

    def open(_: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:  # noqa: A001
        if dir_fd is None and not capped:
            return os_open(path, flags, mode)
        return int(ask("open", path, flags, mode, dir_fd))

    replace("open", bound(open, "open"))
    for name in ("mkfifo", "mknod"):
        replace(name, _asking(name))
    if capped:
        for name in writing:
            if hasattr(posix, name):
                replace(name, _asking(name))
        builtins.open = io.open = _open_file(io.open)
    _imp.create_builtin = _asking("create_builtin")
    for name in PATCHED:
        module = sys.modules.get(name)
        if module is not None:
            patch(module, name)
    sys.meta_path.insert(0, Finder())


def patch(module: Any, name: str) -> None:
    """Patch a module that has been loaded just now."""
    if name == "_posixsubprocess":
        module.fork_exec = _asking("fork_exec")
        loaded = sys.modules.get("subprocess")
        # A warm interpreter may have it already, with the function as it was.
        if loaded is not None and hasattr(loaded, "_fork_exec"):
            loaded._fork_exec = module.fork_exec  # type: ignore[attr-defined]
    elif name == "_socket":
        for function in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
            setattr(module, function, _asking(function))
    elif name in ("_dbm", "_gdbm"):
        module.open = _asking(f"{name}.open")
    else:
        for function in ("read_history_file", "read_init_file", "write_history_file", "append_history_file"):
            if hasattr(module, function):
                setattr(module, function, _asking(function))


def later(name: str, change: Any) -> None:
    """Call `change` with a module when it is loaded, now if it is."""
    _later[name] = (*_later.get(name, ()), change)
    module = sys.modules.get(name)
    if module is not None:
        change(module)


class Finder:
    """Lets the others find a module that is to be patched when it has been loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of one of these modules, None for all others."""
        if name == _CLIENT:
            return _own_spec(name, "client/__init__.py")
        if name not in PATCHED and name not in _later:
            return self._find_package(name, path, target) if name == _PACKAGE else None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None and spec.loader is not None:
                    spec.loader = Loader(spec.loader)  # type: ignore[assignment]
                    return spec
        return None

    def _find_package(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None and spec.loader is not None:
                    return spec
        return _own_spec(name, "__init__.py")


def _own_spec(name: str, file: str) -> Any:
    path = f"{_place[0]}/lib/agentbox/{file}"
    return spec_from_file_location(name, path, submodule_search_locations=[path.rpartition("/")[0]])


class Loader:
    """Loads with another loader, and patches."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: Any) -> Any:
        """The module, not yet filled."""
        ask("loading", spec.name)
        try:
            return self._real.create_module(spec)
        finally:
            ask("loading", None)

    def exec_module(self, module: Any) -> None:
        """Fill the module and patch it."""
        self._real.exec_module(module)
        module.__spec__.loader = module.__loader__ = self._real
        name = module.__name__
        if name in PATCHED:
            ask("keep", module, name)
            patch(module, name)
        for change in _later.get(name, ()):
            change(module)


def _asking(name: str) -> Any:
    def function(_: Any, *arguments: Any, **named: Any) -> Any:
        return ask(name, *arguments, named) if named else ask(name, *arguments)

    return bound(function, name)


def bound(function: Any, name: str) -> Any:
    """A callable that stays itself when it becomes an attribute of a class, as the built-in function does."""
    function.__name__ = function.__qualname__ = name
    return _Method(function, name)


def replace(name: str, function: Any) -> None:
    """Put a function in the place of one of `os`, also in the sets by which `os` says what it supports."""
    real = getattr(posix, name)
    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if real in supported:
            supported.add(function)
    setattr(posix, name, function)
    setattr(os, name, function)


_Method: Any = type(Finder().find_spec)


class CappedFile(io.FileIO):
    """A file that asks before it grows."""

    def write(self, data: Any) -> Any:
        """Write, when the cap has room for it."""
        with memoryview(data) as view:
            ask("before_write", self.fileno(), view.nbytes)
        return io.FileIO.write(self, data)

    def truncate(self, size: Any = None) -> Any:
        """Cut or grow, when the cap has room for it."""
        return io.FileIO.truncate(self, self.tell() if size is None else size)


def _open_file(real: Any) -> Any:
    """`open` for a policy with caps; `real` opens everything that has none."""

    def open(  # noqa: A001 - it stands for the builtin
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        descriptor = None
        if set("wax+") & set(mode) and opener is None:
            # The arguments are checked by the real function, on a file that takes everything.
            real("/dev/null", mode.replace("x", "w"), buffering, encoding, errors, newline).close()
            descriptor = ask("open_capped", file, mode)
        if descriptor is None:
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw_mode = mode.replace("b", "").replace("t", "").replace("x", "w")
        raw = CappedFile(descriptor, raw_mode, closefd)
        raw.name = file
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
        buffered = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    return open
