# SPDX-License-Identifier: MIT
"""A warm interpreter: the script that an interpreter of a nursery runs in place of a guest's.

It loads what runs need, then forks children into boxes on its owner's word. A child is one run, which begins and ends
as `python main.py` does; that part is in C (isolation/native/zygote.c and program.h), with no frame of this file below
the program's own. What a run can still tell is in docs/guide/warm-pool.md.

Standard library only, any CPython from 3.9 on. A stub at the place of the guest's own file executes it with names of
its own, so that the command line, `sys.path` and the first `__main__` are a run's.
"""

import sys

# As a run finds them. What this file itself needs must not be there when a program starts.
_MAIN = {name: one for name, one in sys.modules["__main__"].__dict__.items() if name != "__warningregistry__"}
_MODULES = dict(sys.modules)
_IMPORTERS = dict(sys.path_importer_cache)

import _imp  # noqa: E402
import atexit  # noqa: E402
import builtins  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
from _frozen_importlib import ModuleSpec  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIBRARY = "/work/zygote.so"
_WANTED = "/work/modules"
# Where boxes have a guard: a file that names its directory, with variables and a policy for its rehearsal.
_GUARDED = "/work/guard"
# In the interpreter's own copy of its builtins these are not: it makes them, and `site` does, when it is ready.
_LATE_BUILTINS = ("open", "quit", "exit", "copyright", "credits", "license", "help")
# What draws from a state that would be every run's, and how it starts anew.
_SEEDS = (("numpy.random", "seed"), ("torch", "seed"))

# What arms the guard, until it is armed.
_guard: "list[Any]" = []
# What it is tried with: the variables of a run, and a policy for where no better one is expected.
_sample: "list[Any]" = []


def _prepare(words: "bytes | None", arguments: int, variables: int) -> None:
    """In a child, before its program: `words` are so many arguments of it, then so many variables that its environment
    has more, each ended by NUL. Without any only for what changes in every child; see `_changes`."""
    if words is None:
        _rehearse_guard()
        return
    parts = words.split(b"\0")
    for part in parts[arguments : arguments + variables]:
        key, _, value = part.partition(b"=")
        if os.environb.get(key) != value:
            os.environb[key] = value
    more = [os.fsdecode(part) for part in parts[:arguments]]
    sys.argv[1:] = more
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[2:] = more
    threading = sys.modules.get("threading")
    if threading is not None and hasattr(threading.main_thread(), "_set_tstate_lock"):
        # The lock of the state that this thread had in the warm interpreter went with it.
        threading.main_thread()._set_tstate_lock()
    for name, function in _SEEDS:
        module = sys.modules.get(name)
        if module is not None:
            getattr(module, function)()
    if _guard:
        arm, loaded = _guard.pop()
        # It ends the process where it cannot.
        arm(lambda: loaded)
        # What the guard sees of an interpreter that starts the file, which looks first whether it is a ZIP archive.
        # Where it may not be read the kernel says so.
        path = _MAIN["__file__"]
        try:
            sys.audit("open", path, "rb", os.O_RDONLY | os.O_CLOEXEC)
            sys.audit("cpython.run_file", path)
            sys.audit("open", path, "rb", os.O_RDONLY)
        # contextlib would be one more module in every box.
        except OSError:
            pass
        # What the guard is made of is not looked through at the program's end. Its names are: they are new.
        gc.freeze()
        _new_main()


def _new_main() -> None:
    """The `__main__` of programs. Each child is a process, so one serves all; nothing but `sys.modules` may hold it."""
    main = type(sys)("__main__")
    names = main.__dict__
    names.update(_MAIN)
    if "__annotations__" in names:
        names["__annotations__"] = {}
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main


def _changes() -> bool:
    """Whether there is something to do in every child before its program begins."""
    threading = sys.modules.get("threading")
    seeded = any(name in sys.modules for name, _ in _SEEDS)
    return seeded or bool(_guard) or (threading is not None and hasattr(threading.main_thread(), "_set_tstate_lock"))


def _hooked() -> bool:
    """Whether a module may have asked to be called in a fork. Without any the interpreter has nothing to do there."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path is None or path == _MAIN["__file__"]:
            continue
        try:
            with open(path, "rb") as file:
                if b"register_at_fork" in file.read():
                    return True
        except OSError:
            return True
    return False


def _serve(*world: "Any") -> None:
    """Serve the owner, in C. That is no module of programs, so it is not loaded as one; nor by ctypes, of which every
    child would have a copy, where objects are laid out as extension modules of the stable ABI expect."""
    if any(letter in getattr(sys, "abiflags", "") for letter in "dt"):
        import ctypes

        function = ctypes.PyDLL(_LIBRARY).zygote_serve
        function.argtypes = (ctypes.py_object, ctypes.py_object)
        function(None, world)
    module = _imp.create_dynamic(ModuleSpec("zygote", None, origin=_LIBRARY))
    _imp.exec_dynamic(module)
    module.serve(*world)


def _plain() -> "list[type]":
    """Types of objects that end unnoticed: what they refer to is looked at by itself."""

    def cell() -> "Any":
        return cell

    return [dict, list, tuple, set, frozenset, type(_plain), type(len), type(cell.__closure__[0])]  # type: ignore[index]


def _rehearse_guard() -> None:
    """In a child that waits: do what arming will do, for the policy that its owner expects, if any."""
    variables, policy = _sample
    # Every run here has them.
    os.environ.update(variables)
    with open(variables["AGENTBOX_POLICY"], encoding="utf-8") as file:
        policy = file.read() or policy
    for _, (_, rehearse) in _guard:
        rehearse(policy, variables)
    # What it leaves is not for a program to find.
    gc.collect()


def _load_guard(directory: str) -> None:
    """Load the guard's modules and arm nothing: that is for a child, by the policy of its run."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import spec_from_file_location

    spec: Any = spec_from_file_location("sitecustomize", directory + "/sitecustomize.py")
    module: Any = module_from_spec(spec)
    module.agentbox_warm = _guard
    # Where a run's own modules are comes later, and is no code of the interpreter's.
    first = sys.path.pop(0)
    spec.loader.exec_module(module)
    sys.path.insert(0, first)
    # The environment's own had its turn already.
    sys.modules.setdefault("sitecustomize", module)


def _main() -> None:
    thread = sys.modules["_thread"]
    for name in [name for name in sys.modules if name not in _MODULES]:
        del sys.modules[name]
    for path in [path for path in sys.path_importer_cache if path not in _IMPORTERS]:
        del sys.path_importer_cache[path]
    with open(_WANTED, encoding="utf-8") as file:
        for name in file.read().split():
            try:
                __import__(name)
            except Exception as error:  # a module that is not there must not take the pool down
                os.write(2, f"AGENTBOX_POOL_MODULES: {name}: {type(error).__name__}: {error}\n".encode())
    if os.path.exists(_GUARDED):
        with open(_GUARDED, encoding="utf-8") as file:
            text, _, policy = file.read().partition("\n\n")
        directory, *variables = text.split("\n")
        _sample[:] = dict(line.split("=", 1) for line in variables), policy
        _load_guard(directory)
    sys.path_importer_cache.pop("/work", None)
    sys.modules.pop("__main__", None)
    modules = dict(sys.modules)
    first = {name: value for name, value in vars(builtins).items() if name not in _LATE_BUILTINS}
    # A program's end takes them away from where they are; that they stay spares a child from taking them apart.
    kept = [dict(vars(builtins)), *sys.path_importer_cache.values(), *sys.meta_path, *sys.path_hooks, *sys.path]
    plain, changes, hooked = _plain(), int(_changes()), int(_hooked())
    gc.collect()
    gc.freeze()
    gc.disable()
    _serve(_MAIN["__file__"], _prepare, _new_main, modules, first, atexit, gc, thread, plain, changes, hooked)
    del kept


_main()
