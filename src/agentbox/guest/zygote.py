# SPDX-License-Identifier: MIT
"""A warm interpreter: the script that an interpreter of a nursery runs in place of a guest's.

It loads what runs need, then forks children into boxes on its owner's word (isolation/native/zygote.c). A child is one
run: it becomes `python main.py` as nearly as one process can, runs the guest's file, and ends as an interpreter ends.
What differs from a new interpreter is in docs/guide/warm-pool.md.

Standard library only, any CPython from 3.9 on. A stub at the place of the guest's own file executes it with names of
its own, so that the command line, `sys.path` and `__main__` are a run's.
"""

from __future__ import annotations

import atexit
import gc
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_LIBRARY = "/work/zygote.so"
_MODULES = "/work/modules"


def _zygote() -> Callable[[int], object]:
    """Load, warm up, fork. Returns in a child alone: what it shall run with, and how to end it."""
    import ctypes
    import os

    library = ctypes.PyDLL(_LIBRARY)
    library.zygote_wait.restype = ctypes.c_void_p
    with open(_MODULES, encoding="utf-8") as file:
        for name in file.read().split():
            try:
                __import__(name)
            except Exception as error:  # a module that is not there must not take the pool down
                os.write(2, f"agentbox: AGENTBOX_POOL_MODULES: {name}: {error}\n".encode())
    counts = (ctypes.c_long * 3)()
    after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
    # The first compile() and the first traceback of a process make tables that every run needs.
    _rehearse(os, "print(1)\nx = [i * i for i in range(9)]\ndef f(a):\n  return a\nclass A: pass\nf(1)", "1 / 0")
    gc.collect()
    gc.freeze()
    gc.disable()
    if library.zygote_loop() != 0:
        os._exit(0)
    after_fork()
    # Pages that every run writes to are copied now, before it comes.
    exec(compile("1", "main.py", "exec"), {})  # noqa: S102
    text = library.zygote_wait(counts)
    if text is None:
        os._exit(0)
    arguments, variables, length = counts
    if length:
        words = ctypes.string_at(text, length).split(b"\0")
        for word in words[arguments : arguments + variables]:
            key, _, value = word.partition(b"=")
            os.environb[key] = value
        sys.argv[1:] = [os.fsdecode(word) for word in words[:arguments]]
    if "random" in sys.modules:
        # What the rehearsal and the zygote drew must not be drawn again.
        sys.modules["random"].seed()
    gc.enable()
    return library.zygote_finish


def _rehearse(os: ModuleType, *texts: str) -> None:
    """Run and print into nothing."""
    kept = [os.dup(1), os.dup(2)]
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        for text in texts:
            try:
                exec(compile(text, "main.py", "exec"), {"__name__": "__main__"})  # noqa: S102
            except Exception:
                sys.excepthook(*_current())
    finally:
        for target, fd in enumerate(kept, 1):
            os.dup2(fd, target)
            os.close(fd)
        os.close(nothing)


def _run(path: str, names: dict[str, Any]) -> int:
    """Run the file at `path` as `__main__`, whose names are `names`; the status to end with, or a signal's negative."""
    try:
        try:
            code = compile(_content(path), path, "exec", dont_inherit=True)
        except FileNotFoundError as error:
            sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
            return 2
        exec(code, names)  # noqa: S102
    except SystemExit as error:
        return _status(error.code)
    except BaseException:
        return _uncaught(1)
    return 0


def _content(path: str) -> bytes:
    """What is in a file, without the objects that `open` makes."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        parts = []
        while True:
            part = posix.read(fd, posix.fstat(fd).st_size + 1)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        posix.close(fd)


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 255
    try:
        sys.stderr.write(f"{code}\n")
    except Exception:
        return 1
    return 1


def _uncaught(frames: int) -> int:
    """Show an exception as the interpreter does, without the frames that are ours."""
    kind, value, trace = _current()
    for _ in range(frames):
        trace = trace.tb_next if trace is not None else None
    value.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, value, trace
    try:
        sys.excepthook(kind, value, trace)
    except SystemExit as error:
        return _status(error.code)
    except BaseException:
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(*_current())
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(kind, value, trace)
    return -2 if issubclass(kind, KeyboardInterrupt) else 1


def _current() -> tuple[type[BaseException], BaseException, Any]:
    kind, value, trace = sys.exc_info()
    assert kind is not None
    assert value is not None
    return kind, value, trace


def _end(status: int, names: dict[str, Any], known: set[str], finish: Callable[[int], object]) -> None:
    """What an interpreter does at its end, in its order; then end."""
    threading = sys.modules.get("threading")
    if threading is not None:
        try:
            threading._shutdown()
        except BaseException:
            sys.excepthook(*_current())
    try:
        atexit._run_exitfuncs()
    except BaseException:
        status = status or 1
    status = _flushed(status)
    # Objects of the program that say something when they go, say it now.
    _empty(names)
    for name in [name for name in sys.modules if name not in known]:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "__dict__"):
            _empty(vars(module))
    gc.collect()
    status = _flushed(status)
    if status < 0:
        import os
        import signal

        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    finish(status)


def _flushed(status: int) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException as error:
            if stream is sys.stdout:
                try:
                    sys.stderr.write(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
                except BaseException:
                    return 120
            return 120
    return status


def _empty(names: dict[str, Any]) -> None:
    """The order in which the interpreter clears a module: first what begins with one underscore."""
    for private in (True, False):
        for name in list(names):
            begins = name[:1] == "_" and name[1:2] != "_"
            if begins is private and name != "__builtins__":
                names[name] = None


def _main() -> None:
    finish = _zygote()
    names = sys.modules["__main__"].__dict__
    known = set(sys.modules)
    _end(_run(names["__file__"], names), names, known, finish)


_main()
