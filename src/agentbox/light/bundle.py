# SPDX-License-Identifier: MIT
"""The code of all modules of a run in one file, beside the compiled modules of this package: finding and reading a
hundred files takes a third of the time of importing them.

The file lies in the package's own `__pycache__`, so whoever can write it can write compiled modules too, and it is
believed like those: a module's code is used only while its source has the size and time that it was compiled from,
in nanoseconds; all else is left to Python's own finder. It is made, and grows, at the end of runs that had to look for
modules. PYTHONDONTWRITEBYTECODE and `-B` forbid that as they forbid compiled modules.
"""

from __future__ import annotations

import marshal
import os
import sys

import agentbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec, SourceFileLoader
    from types import CodeType, ModuleType
    from typing import Any, TypeAlias

    # Size and time of the source, in bytes and nanoseconds; whether it is a package; its code.
    Entry: TypeAlias = tuple[int, int, bool, memoryview | bytes]
else:
    # Of importlib.machinery, which need not be imported for them.
    SourceFileLoader = type(agentbox.__spec__.loader)
    ModuleSpec = type(agentbox.__spec__)

_PREFIX = "agentbox."
_MOST_BYTES = 16 << 20
_LENGTH_BYTES = 8
_OPTIMIZED = f".opt-{sys.flags.optimize}" if sys.flags.optimize else ""
_TAG = f"{sys.implementation.cache_tag}{_OPTIMIZED}"


class _Loader(SourceFileLoader):
    """Python's own loader of the file, which has its code already."""

    def __init__(self, name: str, path: str, code: memoryview | bytes) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the module."""
        code: CodeType = marshal.loads(self._code)  # noqa: S302 - believed like a compiled module
        return code if fullname == self.name else super().get_code(fullname)


class Bundle:
    """A finder of this package's modules. `entries` are by the names of modules."""

    def __init__(self, path: str, key: tuple[str, ...]) -> None:
        self._path = path
        self._key = key
        self.entries: dict[str, Entry] = _read(path, key)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; None for what is not in the file, or not as it was."""
        del target
        entry = self.entries.get(fullname)
        if entry is None or not path:
            return None
        size, time, package, code = entry
        place = f"{path[0]}/{fullname.rpartition('.')[2]}"
        source = f"{place}/__init__.py" if package else f"{place}.py"
        if _facts(source) != (size, time):
            del self.entries[fullname]
            return None
        spec = ModuleSpec(fullname, _Loader(fullname, source, code), origin=source, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [place]
        # Else it is computed, which takes a tenth of an import.
        spec.cached = f"{place}/__pycache__/__init__.{_TAG}.pyc" if package else self._compiled(path[0], fullname)
        return spec

    @staticmethod
    def _compiled(directory: str, fullname: str) -> str:
        return f"{directory}/__pycache__/{fullname.rpartition('.')[2]}.{_TAG}.pyc"

    def keep(self, also: str) -> None:
        """Write the file anew when modules were imported that are not in it, with those that `also` imports, which a
        fork of this process needs. A place that cannot be written is left as it is."""
        writable = os.access(os.path.dirname(self._path), os.W_OK)
        if sys.dont_write_bytecode or not writable or not self._missing():
            return
        __import__(also)
        found = {name: entry for name in self._missing() if (entry := _entry(name, sys.modules[name])) is not None}
        if found:
            _write(self._path, _packed(self._key, {**self.entries, **found}))

    def _missing(self) -> list[str]:
        return [name for name in sys.modules if name.startswith(_PREFIX) and name not in self.entries]


def use() -> Bundle:
    """Let modules of this package be found in its file from now on."""
    directory = os.path.dirname(agentbox.__file__)
    bundle = Bundle(f"{directory}/__pycache__/run.{_TAG}.bundle", (sys.version, _TAG, directory))
    finders: list[Any] = sys.meta_path
    finders.insert(0, bundle)
    return bundle


def _facts(source: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(source)
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def _read(path: str, key: tuple[str, ...]) -> dict[str, Entry]:
    """The entries of a file that nobody but the package's owner, root and this user can have written."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        facts = os.fstat(descriptor)
        owners = (0, os.geteuid(), os.stat(agentbox.__file__).st_uid)
        regular = facts.st_mode & 0o170000 == 0o100000
        if not regular or facts.st_mode & 0o022 or facts.st_uid not in owners or facts.st_size > _MOST_BYTES:
            return {}
        content = memoryview(os.read(descriptor, facts.st_size))
        begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        found, places = marshal.loads(content[_LENGTH_BYTES:begin])  # noqa: S302
        if found != key:
            return {}
        codes = content[begin:]
        return {name: (size, time, package, codes[at:end]) for name, (size, time, package, at, end) in places.items()}
    except (EOFError, OSError, TypeError, ValueError):
        return {}
    finally:
        os.close(descriptor)


def _packed(key: tuple[str, ...], entries: dict[str, Entry]) -> bytes:
    """Where each code is, then all codes: only those that are used are looked at."""
    places, codes, at = {}, [], 0
    for name, (size, time, package, code) in entries.items():
        places[name] = (size, time, package, at, at + len(code))
        codes.append(code)
        at += len(code)
    head = marshal.dumps((key, places))
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, *codes])


def _entry(name: str, module: ModuleType) -> Entry | None:
    """A module as it is on the disk; None for one that is not a file of Python code."""
    spec = module.__spec__
    if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
        return None
    facts = _facts(spec.origin)
    try:
        code = spec.loader.get_code(name)
    except (ImportError, OSError, SyntaxError):
        return None
    if facts is None or code is None or facts != _facts(spec.origin):
        return None
    return (*facts, spec.submodule_search_locations is not None, marshal.dumps(code))


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
