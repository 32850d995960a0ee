# SPDX-License-Identifier: MIT
"""What stands behind the functions of `doors`: each asks the policy and does what the replaced function did."""

from __future__ import annotations

import _imp
import posix
import sys
from _thread import get_ident

from .interpreter import SUBINTERPRETERS
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WRITING = posix.O_WRONLY | posix.O_RDWR
_ANY_MODE = 0o666
# Functions that write to a descriptor, by where their target, their data or count, and their offset stand.
_LENGTH, _LENGTHS, _COUNT = range(3)
WRITING = {
    "write": (0, 1, None, _LENGTH),
    "pwrite": (0, 1, 2, _LENGTH),
    "writev": (0, 1, None, _LENGTHS),
    "pwritev": (0, 1, 2, _LENGTHS),
    "sendfile": (0, 3, None, _COUNT),
    "posix_fallocate": (0, 2, 1, _COUNT),
    "copy_file_range": (1, 2, 4, _COUNT),
    "splice": (1, 2, 4, _COUNT),
}


# Modules that open databases, and how the names of their files end.
DATABASES = {"_gdbm": ("",), "_dbm": (".db",)}


@sealed
class Services:
    """The answers of one process to the event of `doors`."""

    def __init__(self, files: Any, network: Any, processes: Any, caps: Any, effects: Any) -> None:
        self._files, self._network, self._processes = files, network, processes
        self._caps, self._effects = caps, effects
        self._loading: dict[int, Any] = {}
        # The real functions, kept from before they were replaced.
        names = ("open", "mkfifo", "mknod", "posix_spawn", "posix_spawnp", *(WRITING if caps.active else ()))
        self._real = {name: getattr(posix, name) for name in names if hasattr(posix, name)}
        self._real["create_builtin"] = _imp.create_builtin
        self._services = {
            "open": self.open,
            "mkfifo": self.makes_node("mkfifo"),
            "mknod": self.makes_node("mknod"),
            "create_builtin": self.create_builtin,
            "loading": self.loading,
            "keep": self.keep,
            "open_capped": self.open_capped,
            "before_write": self.before_write,
            "fork_exec": self.fork_exec,
            "getaddrinfo": self.looks_up("getaddrinfo", lambda found: [entry[4][0] for entry in found]),
            "gethostbyname": self.looks_up("gethostbyname", lambda found: [found]),
            "gethostbyname_ex": self.looks_up("gethostbyname_ex", lambda found: found[2]),
        }
        for name in ("read_history_file", "read_init_file", "write_history_file", "append_history_file"):
            self._services[name] = self.history_file(name)
        for name in DATABASES:
            self._services[f"{name}.open"] = self.database(name)
        if caps.active:
            for name in WRITING:
                self._services[name] = self.writes(name)
        for name in ("_socket", "_posixsubprocess", "readline", *DATABASES):
            if name in sys.modules:
                self.keep(sys.modules[name], name)

    def add(self, name: str, service: Any) -> None:
        """Answer another question."""
        self._services[name] = service

    def real(self, name: str) -> Any:
        """The real function that was replaced."""
        if name == "fork_exec" and name not in self._real:
            # No program has needed it yet; loading it keeps what it has.
            __import__("_posixsubprocess")
        return self._real[name]

    def on_event(self, name: Any, arguments: Any, reply: Any) -> None:
        """Answer one question: (failed, result or error) is put into the reply."""
        try:
            value = self._services[name](*arguments)
            failed = False
        except BaseException as caught:
            value, failed = caught, True
            caught.__traceback__ = caught.__context__ = caught.__cause__ = None
        reply.append(failed)
        reply.append(value)

    def keep(self, module: Any, name: str) -> None:
        """Keep the real functions of a module that is about to be patched."""
        members = module.__dict__
        if name == "_posixsubprocess":
            self._real.setdefault("fork_exec", members["fork_exec"])
        elif name == "_socket":
            for function in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
                self._real.setdefault(function, members[function])
        elif name in DATABASES:
            self._real.setdefault(f"{name}.open", members["open"])
        elif name == "readline":
            for function in ("read_history_file", "read_init_file", "write_history_file", "append_history_file"):
                if function in members:
                    self._real.setdefault(function, members[function])

    def loading(self, name: Any) -> None:
        """This thread loads a module that will be patched, or has done so."""
        self._loading[get_ident()] = name

    def is_loading(self, name: str) -> bool:
        """Whether the module that is loaded now will be patched."""
        return self._loading.get(get_ident()) == name

    def open(self, path: Any, flags: int, mode: int, dir_fd: Any) -> Any:
        """`os.open` from an open directory, or where files have caps."""
        text = self._files.text(path) if type(path) is not int else None
        if text is None:
            return self._real["open"](path, flags, mode)
        if dir_fd is not None and text[:1] != "/":
            # The event knows nothing of the directory: the path is made whole instead.
            text = self._files.directory_of(dir_fd) + "/" + text
        if not self._caps.active or not flags & _WRITING:
            return self._real["open"](text, flags, mode)
        return self._open_capped(text, flags, mode)

    def open_capped(self, file: Any, mode: str) -> Any:
        """A descriptor for `open` when the file has a cap, else None."""
        if type(file) is int:
            return file if self._caps.capped_path(file) is not None else None
        text = self._files.text(file)
        if text is None or not self._caps.is_capped(self._files.place_of(text)):
            return None
        flags = posix.O_RDWR if "+" in mode else posix.O_WRONLY
        flags |= {"w": posix.O_CREAT | posix.O_TRUNC, "a": posix.O_CREAT | posix.O_APPEND}.get(mode.strip("bt+"), 0)
        if "x" in mode:
            flags |= posix.O_CREAT | posix.O_EXCL
        return self._open_capped(text, flags | posix.O_CLOEXEC, _ANY_MODE)

    def _open_capped(self, text: str, flags: int, mode: int) -> Any:
        full = self._files.place_of(text)
        if not self._caps.is_capped(full):
            return self._real["open"](text, flags, mode)
        # A string of its own: the event of this very call is recognised by it.
        own = "/" + full
        self._caps.expected[id(own)] = own
        try:
            descriptor = self._real["open"](own, flags, mode)
        finally:
            del self._caps.expected[id(own)]
        self._caps.watch(descriptor, full)
        return descriptor

    def before_write(self, descriptor: int, count: int) -> None:
        """A file object is about to write."""
        self._caps.before_write(descriptor, count)

    def writes(self, name: str) -> Any:
        """A function that writes to a descriptor."""
        at, data, place, measure = WRITING[name]

        def service(*arguments: Any) -> Any:
            if len(arguments) > data and self._caps.capped_path(arguments[at]) is not None:
                self._caps.before_write(
                    arguments[at],
                    _size(arguments, data, measure),
                    arguments[place] if place is not None and len(arguments) > place else None,
                )
            return self._call(name, arguments)

        return service

    def makes_node(self, name: str) -> Any:
        """`os.mkfifo` and `os.mknod`, which have no event."""

        def service(path: Any, *arguments: Any) -> Any:
            named = arguments[-1] if arguments and type(arguments[-1]) is dict else {}
            directory = named.get("dir_fd")
            refused = self._files.change("fs." + name, path, -1 if directory is None else directory)
            if refused is not None:
                raise refused
            return self._call(name, (path, *arguments))

        return service

    def history_file(self, name: str) -> Any:
        """Functions of readline, which read and write files below Python and, before 3.13, say so to nobody."""
        at = 1 if name == "append_history_file" else 0

        def service(*arguments: Any) -> Any:
            given = arguments[at] if len(arguments) > at else None
            if given is not None:
                text = self._files.text(given)
                refused = self._files.on_open(text, "r" if name.startswith("read") else "a", 0)
                if refused is not None:
                    raise refused
                arguments = (*arguments[:at], text)
            return self._call(name, arguments)

        return service

    def database(self, name: str) -> Any:
        """What `dbm` opens databases with: files below Python, of which no event tells."""

        def service(path: Any, *arguments: Any) -> Any:
            text = self._files.text(path)
            reads = not arguments or str(arguments[0])[:1] == "r"
            for ending in DATABASES[name]:
                refused = None if text is None else self._files.on_open(text + ending, "r" if reads else "a", 0)
                if refused is not None:
                    raise refused
            return self._call(f"{name}.open", (path if text is None else text, *arguments))

        return service

    def looks_up(self, name: str, addresses: Any) -> Any:
        """A look-up: behind a wall its answer says which name an address was asked for by."""

        def service(*arguments: Any) -> Any:
            found = self._call(name, arguments)
            if not self._effects.strict and arguments and type(arguments[0]) is not dict:
                self._network.remember(arguments[0], addresses(found))
            return found

        return service

    def fork_exec(self, *arguments: Any) -> Any:
        """What `subprocess` and `multiprocessing` start programs with: (args, executables, .., .., cwd, env, ...)."""
        refused = self._processes.starts_below(arguments[0], arguments[1], arguments[4], arguments[5])
        if refused is not None:
            raise refused
        return self._real["fork_exec"](*arguments)

    def create_builtin(self, spec: Any) -> Any:
        """Modules within the interpreter can be made without an import."""
        if spec.name in SUBINTERPRETERS:
            refused = self._effects.deny("subinterpreter", spec.name)
            if refused is not None:
                raise refused
        return self._real["create_builtin"](spec)

    def _call(self, name: str, arguments: Any) -> Any:
        if arguments and type(arguments[-1]) is dict:
            return self._real[name](*arguments[:-1], **arguments[-1])
        return self._real[name](*arguments)


def _size(arguments: Any, data: int, measure: int) -> int:
    if measure == _COUNT:
        count = int(arguments[data])
        try:
            return min(count, posix.fstat(arguments[0]).st_size or count)
        except OSError:
            return count
    parts = arguments[data] if measure == _LENGTHS else (arguments[data],)
    return sum([memoryview(part).nbytes for part in parts])
