# SPDX-License-Identifier: MIT
"""The code of all modules of a run in one file, beside the compiled modules of this package: finding and reading a
hundred files takes a third of the time of importing them, and asking Python to import each takes another quarter.

The file lies in the package's own `__pycache__`, so whoever can write it can write compiled modules too, and it is
believed like those: a module's code is used only while its source has the size and time that it was compiled from,
in nanoseconds; all else is left to Python's own finder. It is made, and grows, at the end of runs that had to look for
modules. PYTHONDONTWRITEBYTECODE and `-B` forbid that as they forbid compiled modules.

Its modules are in sets, each of which is imported whole, in the order in which Python completed it (`Bundle.load`).
"""

from __future__ import annotations

import marshal
import os
import sys

import agentbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec, SourceFileLoader
    from types import CodeType, ModuleType
    from typing import Any, TypeAlias

    # Name; size and time of the source, in bytes and nanoseconds; whether it is a package.
    Entry: TypeAlias = tuple[str, int, int, bool]
    Codes: TypeAlias = Sequence[CodeType]
else:
    # Of importlib.machinery, which need not be imported for them.
    SourceFileLoader = type(agentbox.__spec__.loader)
    ModuleSpec = type(agentbox.__spec__)

# The set that is there before each, and what it begins with.
_SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "verify": (
        "",
        (
            *("agentbox.cli.checking", "agentbox.cli.exit_codes", "agentbox.config", "agentbox.trace.verify"),
            *("agentbox.trace.keys", "agentbox.trace.ledger"),
        ),
    ),
    "front": ("", ("agentbox.cli.front", "agentbox.isolation.launcher.forked", "agentbox.linux.cgroup_grace")),
    "launcher": ("front", ("agentbox.isolation.launcher.serving",)),
    "begin": ("front", ("agentbox.config", "agentbox.engine.limits", "agentbox.isolation.early")),
    "plan": (
        "begin",
        (
            *("agentbox.engine.policy_world", "agentbox.light.loop", "agentbox.engine.search_path"),
            *("agentbox.engine.agent_run", "agentbox.guest.tables"),
        ),
    ),
    "session": ("plan", ("agentbox.engine.agent_session",)),
    "replay": ("plan", ("agentbox.cli.replaying", "agentbox.engine.agent_replay")),
    "replayed": (
        "replay",
        (
            *("agentbox.cli.checking", "agentbox.cli.exit_codes", "agentbox.trace.verify", "agentbox.trace.keys"),
            *("agentbox.trace.ledger", "agentbox.engine.replay_session"),
        ),
    ),
}

_PREFIX = "agentbox."
_MOST_BYTES = 16 << 20
_LENGTH_BYTES = 8
_LAST_STREAM = 2
_OPTIMIZED = f".opt-{sys.flags.optimize}" if sys.flags.optimize else ""
_TAG = f"{sys.implementation.cache_tag}{_OPTIMIZED}"


class _Loader(SourceFileLoader):
    """Python's own loader of the file, which has its code already."""

    def __init__(self, name: str, path: str, code: CodeType | None) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the module."""
        code, self._code = self._code, None
        return code if code is not None and fullname == self.name else super().get_code(fullname)


class _Noting(SourceFileLoader):
    """Python's own loader of the file, which tells when a module is complete."""

    def __init__(self, name: str, path: str, completed: list[str]) -> None:
        super().__init__(name, path)
        self._completed = completed

    def exec_module(self, module: ModuleType) -> None:
        """See `importlib.abc.Loader`."""
        super().exec_module(module)
        self._completed.append(self.name)


class _Set:
    """Modules that are imported together; one that stands alone is a set too."""

    def __init__(self, entries: Sequence[Entry], descriptor: int, at: int, size: int) -> None:
        self.entries = entries
        self._place = (descriptor, size, at)
        self._codes: Codes | None = None

    def codes(self) -> Codes | None:
        """The code of each; None where the file was spoiled since it was opened."""
        if self._codes is None:
            try:
                self._codes = marshal.loads(os.pread(*self._place))  # noqa: S302 - believed like a compiled module
            except (EOFError, OSError, TypeError, ValueError):
                return None
        return self._codes

    def forget(self) -> None:
        """They have been used, most likely all of them."""
        self._codes = None


class Bundle:
    """Finds this package's modules. `entries` are by the names of modules: the set of each, and which one it is."""

    def __init__(self, path: str, key: tuple[str, ...]) -> None:
        self._path = path
        self._key = key
        # What was there before anything could be found here.
        self._before = set(sys.modules)
        self._descriptor, self.sets = _opened(path, key)
        self.entries: dict[str, tuple[_Set, int]] = {
            entry[0]: (one, index) for one in self.sets.values() for index, entry in enumerate(one.entries)
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; None for what is not in the file, or not as it was."""
        del target
        found = self.entries.get(fullname)
        if found is None or not path:
            return None
        within, index = found
        entry = within.entries[index]
        codes = within.codes()
        if codes is None or not _is_as_it_was(entry, path[0]):
            del self.entries[fullname]
            return None
        return _spec(entry, path[0], codes[index])

    def load(self, name: str) -> None:
        """Import all modules of a set: what each of them imports is there before it, so that Python need look for none.
        Those that are not as they were, and what needs them, are left to be imported when they are wanted. For a
        process with one thread."""
        wanted = self.sets.get(name)
        codes = None if wanted is None else wanted.codes()
        if wanted is None or codes is None:
            return
        modules = sys.modules
        for entry, code in zip(wanted.entries, codes, strict=True):
            fullname = entry[0]
            parent, _, last = fullname.rpartition(".")
            above = modules.get(parent)
            # A package that imports its own modules comes after them; they are left to it.
            if above is None or fullname in modules:
                continue
            directory = above.__path__[0]
            if not _is_as_it_was(entry, directory):
                self.entries.pop(fullname, None)
                return
            spec = _spec(entry, directory, None)
            module = modules[fullname] = type(sys)(fullname)
            content = module.__dict__
            content["__spec__"] = spec
            content["__loader__"] = spec.loader
            content["__package__"] = spec.parent
            content["__file__"] = spec.origin
            content["__cached__"] = spec.cached
            if entry[3]:
                content["__path__"] = spec.submodule_search_locations
            try:
                exec(code, content)  # noqa: S102 - this is an import
            except BaseException:
                del modules[fullname]
                raise
            setattr(above, last, module)
        wanted.forget()

    def stop(self) -> None:
        """Find nothing any more."""
        self.sets.clear()
        self.entries.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def keep(self) -> None:
        """Write the file anew when modules were imported that are not in it. A place that cannot be written is left as
        it is. For the end of a process: modules are imported a second time for it."""
        missing = [name for name in sys.modules if name.startswith(_PREFIX) and name not in self.entries]
        missing = [name for name in missing if name not in self._before]
        if not missing or sys.dont_write_bytecode or not os.access(os.path.dirname(self._path), os.W_OK):
            return
        sets = _orders(self._before)
        together = {name for names in sets.values() for name in names}
        alone = [name for name in (*self.entries, *missing) if name not in together]
        _write(self._path, _packed(self._key, sets | {name: [name] for name in alone}))


def use() -> Bundle:
    """Let modules of this package be found in its file from now on."""
    directory = os.path.dirname(agentbox.__file__)
    bundle = Bundle(f"{directory}/__pycache__/run.{_TAG}.bundle", (sys.version, _TAG, directory))
    finders: list[Any] = sys.meta_path
    finders.insert(0, bundle)
    return bundle


def load(name: str) -> None:
    """Import all modules of a set of the file in use, if one is in use."""
    for finder in sys.meta_path:
        if isinstance(finder, Bundle):
            finder.load(name)


def stop() -> None:
    """Let nothing be found in the file in use: for a process that closes descriptors which are not its own."""
    for finder in sys.meta_path:
        if isinstance(finder, Bundle):
            finder.stop()


def _is_as_it_was(entry: Entry, directory: str) -> bool:
    """Whether the source of a module below that directory has the size and time that its code was compiled from."""
    try:
        facts = os.stat(_source(entry[0], directory, package=entry[3]))
    except OSError:
        return False
    return facts.st_size == entry[1] and facts.st_mtime_ns == entry[2]


def _source(fullname: str, directory: str, *, package: bool) -> str:
    place = f"{directory}/{fullname.rpartition('.')[2]}"
    return f"{place}/__init__.py" if package else f"{place}.py"


def _spec(entry: Entry, directory: str, code: CodeType | None) -> ModuleSpec:
    fullname, package = entry[0], entry[3]
    source = _source(fullname, directory, package=package)
    spec = ModuleSpec(fullname, _Loader(fullname, source, code), origin=source, is_package=package)
    spec.has_location = True
    last = fullname.rpartition(".")[2]
    if package:
        spec.submodule_search_locations = [f"{directory}/{last}"]
    # Else it is computed, which takes a tenth of an import.
    compiled = f"{directory}/{last}/__pycache__/__init__" if package else f"{directory}/__pycache__/{last}"
    spec.cached = f"{compiled}.{_TAG}.pyc"
    return spec


def _opened(path: str, key: tuple[str, ...]) -> tuple[int, dict[str, _Set]]:
    """The sets of a file that nobody but the package's owner, root and this user can have written, and its descriptor,
    from which each is read when it is wanted; -1 without any."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return -1, {}
    # The numbers of the standard streams are the command's, also where the caller closed them.
    sets = _read(descriptor, key) if descriptor > _LAST_STREAM else {}
    if sets:
        return descriptor, sets
    os.close(descriptor)
    return -1, {}


def _read(descriptor: int, key: tuple[str, ...]) -> dict[str, _Set]:
    try:
        facts = os.fstat(descriptor)
        owners = (0, os.geteuid(), os.stat(agentbox.__file__).st_uid)
        regular = facts.st_mode & 0o170000 == 0o100000
        if not regular or facts.st_mode & 0o022 or facts.st_uid not in owners or facts.st_size > _MOST_BYTES:
            return {}
        begin = _LENGTH_BYTES + int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, 0), "little")
        if begin > facts.st_size:
            return {}
        found, places = marshal.loads(os.pread(descriptor, begin - _LENGTH_BYTES, _LENGTH_BYTES))  # noqa: S302
        if found != key or begin + sum(size for _, _, size in places) != facts.st_size:
            return {}
        sets = {}
        for name, entries, size in places:
            sets[name] = _Set(entries, descriptor, begin, size)
            begin += size
        return sets
    except (EOFError, OSError, TypeError, ValueError):
        return {}


def _orders(before: set[str]) -> dict[str, list[str]]:
    """The modules of each set in the order in which they are complete when they are imported anew. What is imported now
    is so again afterwards."""
    finders: list[Any] = sys.meta_path
    others = finders[:]
    completed: list[str] = []

    class Finder:
        """Finds what Python's own finder finds, and notes when it is complete."""

        @staticmethod
        def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
            if not fullname.startswith(_PREFIX):
                return None
            find: Callable[..., ModuleSpec | None] = finders[-1].find_spec
            spec = find(fullname, path, target)
            if spec is not None and spec.origin is not None and type(spec.loader) is SourceFileLoader:
                spec.loader = _Noting(fullname, spec.origin, completed)
            return spec

    now = _Imported(before)
    orders: dict[str, list[str]] = {}
    made: dict[str, _Imported] = {}
    finders[:] = [Finder, *[finder for finder in others if not isinstance(finder, Bundle)]]
    try:
        for name, (first, roots) in _SETS.items():
            _Imported(before).remove()
            if first:
                made[first].restore()
            completed.clear()
            try:
                for root in roots:
                    __import__(root)
            except ImportError:
                # A set for another system.
                pass
            orders[name] = completed[:]
            made[name] = _Imported(before)
    finally:
        finders[:] = others
        _Imported(before).remove()
        now.restore()
    return orders


class _Imported:
    """The modules of this package that are imported now, and the names that packages have for them."""

    def __init__(self, before: set[str]) -> None:
        self._before = before
        self._modules = {name: module for name, module in _mine().items() if name not in before}
        self._names = {name: _members(module) for name, module in _mine().items() if hasattr(module, "__path__")}

    def remove(self) -> None:
        """As if none of them had been imported."""
        for name in self._modules:
            del sys.modules[name]
        for name in self._names.keys() & self._before:
            for one, value in _members(sys.modules[name]).items():
                if value.__name__ in self._modules:
                    delattr(sys.modules[name], one)

    def restore(self) -> None:
        """Have them as they were, and no others."""
        _Imported(self._before).remove()
        sys.modules.update(self._modules)
        for name, members in self._names.items():
            package = sys.modules[name]
            for one in _members(package):
                delattr(package, one)
            vars(package).update(members)


def _mine() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if f"{name}.".startswith(_PREFIX)}


def _members(package: ModuleType) -> dict[str, ModuleType]:
    """The names of a package that are modules of ours."""
    found = {name: value for name, value in vars(package).items() if type(value) is type(sys)}
    return {name: value for name, value in found.items() if value.__name__.startswith(_PREFIX)}


def _packed(key: tuple[str, ...], sets: dict[str, list[str]]) -> bytes:
    """Where the modules of each set are, then their codes: only those that are used are looked at."""
    places, contents = [], []
    for name, names in sets.items():
        found = [one for one in map(_compiled, names) if one is not None]
        if found:
            contents.append(marshal.dumps(tuple(code for _, code in found)))
            places.append((name, tuple(entry for entry, _ in found), len(contents[-1])))
    head = marshal.dumps((key, tuple(places)))
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, *contents])


def _compiled(name: str) -> tuple[Entry, CodeType] | None:
    """A module as it is on the disk; None for one that is not a file of Python code."""
    directory = os.path.dirname(agentbox.__file__) + "/".join(["", *name.split(".")[1:-1]])
    for package in (False, True):
        source = _source(name, directory, package=package)
        try:
            facts = os.stat(source)
            code = SourceFileLoader(name, source).get_code(name)
            entry = (name, facts.st_size, facts.st_mtime_ns, package)
        except (ImportError, OSError, SyntaxError):
            continue
        if code is not None and _is_as_it_was(entry, directory):
            return entry, code
    return None


def _write(path: str, content: bytes) -> None:
    """A whole file or none."""
    draft = f"{path}.{os.urandom(4).hex()}"
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, path)
    except OSError:
        os.unlink(draft)
