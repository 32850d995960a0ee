# SPDX-License-Identifier: MIT
"""Audit events about the interpreter itself: the doors that lead below or around its hooks.

Subinterpreters, which have no hooks, are refused always. The other doors are closed where no wall stands behind them;
that does not make the guard one.
"""

from __future__ import annotations

from .effects import Effects
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUBINTERPRETERS = frozenset(
    ("_xxsubinterpreters", "_interpreters", "_xxinterpchannels", "_interpchannels", "_interpqueues")
)
_TEST_MODULES = frozenset(("_testcapi", "_testinternalcapi", "_testlimitedcapi", "_testmultiphase", "_ctypes_test"))
_BELOW = (
    *("ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function", "ctypes.addressof", "ctypes.cdata"),
    *("ctypes.cdata/buffer", "ctypes.string_at", "ctypes.wstring_at", "ctypes.set_exception"),
)
_INSIDE = (
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "sys._current_exceptions"),
    *("sqlite3.enable_load_extension", "sqlite3.load_extension", "sys.remote_exec"),
)
_PATCHED = ("readline", "_socket", "_posixsubprocess", "_dbm", "_gdbm")
_TIOCSTI = 0x5412


@sealed
class Interpreter:
    """The handlers. Each gives None, or the error to raise."""

    def __init__(self, effects: Effects, view: Any, files: Any, lanes: Any) -> None:
        self._effects = effects
        self._view = view
        self._files = files
        self._lanes = lanes
        # Set later: whether a module is being loaded by `doors`, and so will be patched.
        self.is_loading: Any = None

    def handlers(self) -> Any:
        """The handlers by the name of their event."""
        found = {
            "cpython.PyInterpreterState_New": self.on_subinterpreter,
            "import": self.on_import,
            "_thread.start_new_thread": self.on_thread,
            "_thread.start_joinable_thread": self.on_thread,
            "cpython.run_file": self.on_script,
            "cpython.run_command": self.on_command,
            "cpython.run_module": self.on_command,
            "cpython.run_stdin": self.on_command,
        }
        if self._effects.strict:
            for event in _BELOW:
                found[event] = self._closed("ctypes")
            for event in _INSIDE:
                found[event] = self._closed(event)
            found["ctypes.dlopen"] = self.on_library
            found["fcntl.ioctl"] = self.on_ioctl
        return found

    def on_subinterpreter(self, *_: Any) -> Any:
        """Hooks of Python do not follow into one."""
        return self._effects.deny("subinterpreter", "a new interpreter in this process")

    def on_import(self, name: Any, filename: Any = None, *_: Any) -> Any:
        """Modules that make subinterpreters; extension modules, which are native code."""
        if type(name) is not str:
            return None
        if filename is None:
            if name in SUBINTERPRETERS:
                return self._effects.deny("subinterpreter", name)
            if self._effects.strict and name in _TEST_MODULES:
                return self._effects.deny("ctypes", name)
            return None
        if not self._effects.strict:
            return None
        full = self._files.place_of(filename)
        if full is None or not self._view.is_code(full) or name in _TEST_MODULES:
            return self._effects.deny("ctypes", f"native code of {filename}")
        if name in _PATCHED and not self.is_loading(name):
            return self._effects.deny("ctypes", f"a second copy of {name}")
        return None

    def on_thread(self, function: Any, *_: Any) -> Any:
        """A thread starts: it gets a lane."""
        self._lanes.thread_starts(function)

    def on_script(self, name: Any = None, *_: Any) -> Any:
        """The entry script, before anything of it ran; behind a wall its place is the kernel's to show."""
        if not self._effects.strict and type(name) is str:
            full = self._files.place_of(name)
            if full is not None:
                self._view.enter(full)
                self._files.forget()

    def on_command(self, *_: Any) -> Any:
        """`-c`, `-m` or stdin: modules come from the working directory."""
        if not self._effects.strict:
            full = self._files.place_of(".")
            if full is not None:
                self._view.enter(full + "/")
                self._files.forget()

    def on_library(self, name: Any, *_: Any) -> Any:
        """Importing ctypes opens the program itself; anything else is for calling below Python."""
        return None if name is None else self._effects.deny("ctypes", str(name))

    def on_ioctl(self, _descriptor: Any, request: Any, _argument: Any = 0) -> Any:
        """Pushing characters into a terminal, for the shell that waits outside."""
        return self._effects.deny("ioctl", "TIOCSTI") if request & 0xFFFFFFFF == _TIOCSTI else None

    def _closed(self, what: str) -> Any:
        def handler(*arguments: Any) -> Any:
            shown = arguments[-1] if arguments and type(arguments[-1]) is str else ""
            op = "ctypes" if what == "ctypes" else "introspection"
            return self._effects.deny(op, shown or what)

        return handler
