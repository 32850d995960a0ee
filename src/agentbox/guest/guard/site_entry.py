# SPDX-License-Identifier: MIT
"""The guard directory's `sitecustomize`: arms the guard, then gives the environment's own `sitecustomize` its turn.

The guard's modules are loaded apart: not into `sys.modules`, and with builtins of their own, so that a program which
replaces `len` or `sorted` changes nothing in it.

A warm interpreter (guest/zygote.py) executes this file itself, and leaves a list as `agentbox_warm` in its names: then
the guard is only loaded, and the list gets the functions that arm it. Nothing in an environment can ask for that.
"""

import sys
from _frozen_importlib_external import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _loaded() -> "Any":
    """Load every module of the guard: the functions that arm it, and that only try to, under a policy's tables."""
    import builtins
    import marshal
    import posix

    directory = __file__.rpartition("/")[0]
    loaded = {}  # type: ignore[var-annotated]
    real_import = builtins.__import__
    module_type = type(sys)
    future = module_type("__future__")
    future.annotations = None  # type: ignore[attr-defined]
    own = dict(vars(builtins))
    bundle = {}  # type: ignore[var-annotated]

    def code_of(name: str) -> "Any":
        code = bundle.get(name)
        if code is not None:
            # Each module is text of its own there: what a run does not need is not unpacked.
            code = marshal.loads(code)  # noqa: S302 - the host wrote it
        else:
            code = SourceFileLoader("agentbox_guard_" + name, directory + "/guard/" + name + ".py").get_code(
                "agentbox_guard_" + name
            )
        return code

    def load(name: str, within: "Any") -> "Any":
        found = loaded.get(name)
        if found is None:
            found = loaded[name] = module_type("agentbox_guard_" + name)
            found.__dict__["__builtins__"] = within
            exec(code_of(name), found.__dict__)  # noqa: S102 - this is an import
        return found

    def own_import(name, globals=None, locals=None, fromlist=(), level=0):  # type: ignore[no-untyped-def]  # noqa: A002
        if level:
            return load(name, own)
        if name == "__future__":
            return future
        return real_import(name, globals, locals, fromlist, 0)

    own["__import__"] = own_import
    try:
        descriptor = posix.open(directory + "/guard." + str(sys.implementation.cache_tag) + ".bundle", posix.O_RDONLY)
    except OSError:
        descriptor = -1
    if descriptor >= 0:
        size = posix.fstat(descriptor).st_size
        bundle = marshal.loads(posix.read(descriptor, size))  # noqa: S302 - the host wrote it
        posix.close(descriptor)
    module, doors = load("arm", own), load("doors", vars(builtins))
    arm, rehearse, code = module.arm, module.rehearse, module.code_of(directory)

    def door(name: str) -> "Any":
        return load(name, vars(builtins))

    ready = []  # type: ignore[var-annotated]

    def try_it(policy: str, variables: "Any") -> None:
        ready[:] = rehearse(doors, code, policy, variables)

    return lambda: arm(directory, doors, code, door, ready), try_it


def _arm(load: "Any") -> None:
    """Arm the guard, whose arming `load` gives, or end the process."""
    import posix

    try:
        load()[0]()
    except BaseException as error:  # whatever it is, the guest must not run
        reason = str(error) if type(error).__name__ == "ArmingError" else type(error).__name__ + ": " + str(error)
        text = "agentbox: failed to arm sandbox, refusing to run: " + reason + "\n"
        posix.write(2, text.encode("utf-8", "backslashreplace"))
        posix._exit(70)


def _lasting(arm: "Any", load: "Any") -> None:
    """Do what makes nothing but things that live as long as the process, and keep the collector from all that is there:
    it would look through it now, and when the process ends, and then free the guard piece by piece."""
    known = "gc" in sys.modules
    import gc

    if not known:
        del sys.modules["gc"]
    gc.disable()
    arm(load)
    gc.freeze()
    gc.enable()
    # The program's own names are in a module made after that: they are still freed, so its files are flushed.
    fresh = type(sys)("__main__")
    vars(fresh).update(vars(sys.modules["__main__"]))
    sys.modules["__main__"] = fresh


def _go_on() -> None:
    """Run the `sitecustomize` that would have run without the guard, if there is one."""
    directory = __file__.rpartition("/")[0]
    sys.path[:] = [place for place in sys.path if place != directory]
    sys.path_importer_cache.pop(directory, None)
    name = "sitecustomize"
    mine = sys.modules.pop(name, None)
    try:
        __import__(name)
    except ImportError as error:
        if error.name != name:
            raise
        if mine is not None:
            sys.modules[name] = mine


_warm = globals().pop("agentbox_warm", None)
if _warm is None:
    _lasting(_arm, _loaded)
    _go_on()
else:
    _warm.append((_arm, _loaded()))
del _arm, _lasting, _loaded, _warm
