# SPDX-License-Identifier: MIT
"""Frozen records without the price of the standard library's.

A guard is imported before every program, so what it shares with the host may not import `dataclasses` (which brings
`inspect`), `typing`, `re` or `collections`: together they take longer than a bare interpreter. A type checker sees the
standard library's names here; at run time they are the few lines below, with the same meaning for what this room uses:
`@dataclass(frozen=True)`, `field(default=, init=, compare=, repr=)`, `replace` and `__post_init__`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
    from types import MappingProxyType
else:
    MappingProxyType = type(type.__dict__)
    _ABSENT = object()

    class field:  # noqa: N801 - the standard library's name
        """What differs from a plain field."""

        def __init__(self, *, default=_ABSENT, init=True, compare=True, repr=True):  # noqa: A002
            self.default = default
            self.init = init
            self.compare = compare
            self.repr = repr

    class _Record:
        """The methods of every record."""

        def __init__(self, *values, **named):
            content = self.__dict__
            content.update(self._defaults)
            names = self._names
            if len(values) > len(names):
                raise TypeError(f"{type(self).__name__} takes at most {len(names)} values")
            for name, value in zip(names, values):  # noqa: B905 - fewer values than names are right
                content[name] = value
            for name in named:
                if name not in names or name in names[: len(values)]:
                    raise TypeError(f"{type(self).__name__} takes no other value for {name!r}")
            content.update(named)
            if not self._needed <= content.keys():
                raise TypeError(f"{type(self).__name__} needs {sorted(self._needed - content.keys())}")
            if hasattr(self, "__post_init__"):
                self.__post_init__()

        def __setattr__(self, name, _value):
            raise AttributeError(f"{type(self).__name__} is frozen: {name}")

        def __delattr__(self, name):
            raise AttributeError(f"{type(self).__name__} is frozen: {name}")

        def __eq__(self, other):
            return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

        def __hash__(self):
            return hash(_values(self))

        def __repr__(self):
            return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self._shown)})"

    def _values(record):
        return tuple(record.__dict__[name] for name in record._compared)

    def dataclass(*, frozen):
        """A decorator that makes a class of annotated names a frozen record."""
        if not frozen:
            raise TypeError("records are frozen")
        return _made

    def _made(cls):
        declared = {name: cls.__dict__.get(name, _ABSENT) for name in cls.__annotations__}
        fields = {n: d if isinstance(d, field) else field(default=d) for n, d in declared.items()}
        for name, of in fields.items():
            if of.default is not _ABSENT:
                setattr(cls, name, of.default)
            elif name in cls.__dict__:
                delattr(cls, name)
        cls._names = tuple(name for name, of in fields.items() if of.init)
        cls._needed = frozenset(n for n, of in fields.items() if of.init and of.default is _ABSENT)
        cls._compared = tuple(name for name, of in fields.items() if of.compare)
        cls._shown = tuple(name for name, of in fields.items() if of.repr)
        cls._defaults = {n: of.default for n, of in fields.items() if of.default is not _ABSENT}
        for name in ("__init__", "__setattr__", "__delattr__", "__eq__", "__hash__", "__repr__"):
            if name != "__init__" or name not in cls.__dict__:
                setattr(cls, name, _Record.__dict__[name])
        return cls

    def replace(record, **changes):
        """A copy of a record with some values changed."""
        return type(record)(**{**{name: record.__dict__[name] for name in record._names}, **changes})


__all__ = ["TYPE_CHECKING", "MappingProxyType", "dataclass", "field", "replace"]
