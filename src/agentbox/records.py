# SPDX-License-Identifier: MIT
"""Frozen records and closed sets of words without the price of the standard library's.

`agentbox run` stands before every start of a program, and there the import of `dataclasses` (which brings `inspect`)
and `enum`, with the code that each class makes by `exec`, takes longer than the interpreter itself. A type checker sees
the standard library's names here; at run time they are the lines below, with the same meaning for what this package
uses of them; the standard library's own functions accept them too.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
    from enum import StrEnum
else:

    class _Missing:
        def __repr__(self):
            return "<MISSING>"

    MISSING = _Missing()

    class Field:
        """What differs from a plain field."""

        __slots__ = ("compare", "default", "default_factory", "init", "metadata", "name", "repr")

        def __init__(self, default, default_factory, init, repr, compare, metadata):  # noqa: A002
            self.name = ""
            self.default = default
            self.default_factory = default_factory
            self.init = init
            self.repr = repr
            self.compare = compare
            self.metadata = {} if metadata is None else metadata

    def field(
        *,
        default=MISSING,
        default_factory=MISSING,
        init=True,
        repr=True,  # noqa: A002 - the standard library's name
        compare=True,
        metadata=None,
    ):
        """See the standard library's `dataclasses.field`."""
        return Field(default, default_factory, init, repr, compare, metadata)

    # A class of which so many are made is worth the making of a function.
    _MANY = 200

    class _Record:
        """The methods of every record."""

        def __init__(self, *values, **named):
            cls = type(self)
            cls._record_made += 1
            if cls._record_made == _MANY and cls.__init__ is _Record.__init__:
                cls.__init__ = _compiled(cls)
            content = self.__dict__
            names = cls._record_names
            content.update(cls._record_defaults)
            if values:
                if len(values) > len(names):
                    raise TypeError(f"{cls.__name__} takes at most {len(names)} values, {len(values)} were given")
                content.update(zip(names, values))  # noqa: B905 - fewer values than names are right
            if named:
                for name in named:
                    if name not in names or name in names[: len(values)]:
                        raise TypeError(f"{cls.__name__} takes no (other) value for {name!r}")
                content.update(named)
            for name, make in cls._record_factories:
                if name not in content:
                    content[name] = make()
            if not cls._record_needed <= content.keys():
                raise TypeError(f"{cls.__name__} needs {', '.join(sorted(cls._record_needed - content.keys()))}")
            if cls._record_finish is not None:
                cls._record_finish(self)

        def __eq__(self, other):
            if type(other) is not type(self):
                return NotImplemented
            return _compared(self) == _compared(other)

        def __hash__(self):
            return hash(_compared(self))

        def __repr__(self):
            shown = (f"{one.name}={self.__dict__[one.name]!r}" for one in type(self)._record_fields if one.repr)
            return f"{type(self).__qualname__}({', '.join(shown)})"

    def _compiled(cls):
        """`__init__` as the standard library would make it: several times faster, once it is made."""
        known, parameters, lines = {"_missing": MISSING}, [], ["content = self.__dict__"]
        for one in cls._record_fields:
            name, given = one.name, one.name
            if not one.init:
                given = f"_make_{name}()" if one.default_factory is not MISSING else f"_default_{name}"
            elif one.default_factory is not MISSING:
                parameters.append(f"{name}=_missing")
                given = f"_make_{name}() if {name} is _missing else {name}"
            elif one.default is not MISSING:
                parameters.append(f"{name}=_default_{name}")
            else:
                parameters.append(name)
            known[f"_make_{name}"], known[f"_default_{name}"] = one.default_factory, one.default
            if one.init or one.default_factory is not MISSING or one.default is not MISSING:
                lines.append(f"content[{name!r}] = {given}")
        if cls._record_finish is not None:
            known["_finish"] = cls._record_finish
            lines.append("_finish(self)")
        exec(f"def __init__(self, {', '.join(parameters)}):\n " + "\n ".join(lines), known)  # noqa: S102
        return known["__init__"]

    class _Frozen:
        def __setattr__(self, name, value):
            del value
            raise AttributeError(f"{type(self).__name__} is frozen: {name}")

        def __delattr__(self, name):
            raise AttributeError(f"{type(self).__name__} is frozen: {name}")

    class _StandardFields:
        """What the standard library's `fields`, `replace`, `asdict` and `is_dataclass` look for, made when they do."""

        def __get__(self, record, cls):
            import dataclasses

            found = {}
            for one in cls._record_fields:
                like = dataclasses.field(init=one.init, repr=one.repr, compare=one.compare, metadata=one.metadata)
                for name in ("default", "default_factory"):
                    if getattr(one, name) is not MISSING:
                        setattr(like, name, getattr(one, name))
                like.name, like.type, like._field_type = one.name, cls.__annotations__.get(one.name), dataclasses._FIELD
                found[one.name] = like
            return found

    def _compared(record):
        return tuple([record.__dict__[name] for name in type(record)._record_compared])

    def dataclass(cls=None, *, frozen=False, slots=False):
        """Make a class of annotated names a record; `slots` is for the type checker."""
        del slots
        if cls is None:
            return _frozen if frozen else _mutable
        return _mutable(cls)

    def _frozen(cls):
        cls = _mutable(cls)
        cls.__setattr__ = _Frozen.__setattr__
        cls.__delattr__ = _Frozen.__delattr__
        cls.__hash__ = _Record.__hash__
        return cls

    def _mutable(cls):
        own = {}
        for base in reversed(cls.__mro__[1:]):
            own.update({one.name: one for one in base.__dict__.get("_record_fields", ())})
        for name in cls.__annotations__:
            declared = cls.__dict__.get(name, MISSING)
            one = declared if isinstance(declared, Field) else field(default=declared)
            one.name = name
            own[name] = one
            if one.default is not MISSING:
                setattr(cls, name, one.default)
            elif name in cls.__dict__:
                delattr(cls, name)
        made = tuple(own.values())
        cls._record_fields = made
        cls.__dataclass_fields__ = _StandardFields()
        cls._record_names = tuple([one.name for one in made if one.init])
        cls._record_defaults = {one.name: one.default for one in made if one.default is not MISSING}
        cls._record_factories = tuple(
            [(one.name, one.default_factory) for one in made if one.default_factory is not MISSING]
        )
        cls._record_needed = frozenset(
            [o.name for o in made if o.init and o.default is MISSING and o.default_factory is MISSING]
        )
        cls._record_compared = tuple([one.name for one in made if one.compare])
        cls._record_finish = getattr(cls, "__post_init__", None)
        cls._record_made = 0
        for name in ("__init__", "__repr__", "__eq__"):
            if name not in cls.__dict__:
                setattr(cls, name, _Record.__dict__[name])
        if "__hash__" not in cls.__dict__:
            cls.__hash__ = None
        return cls

    def fields(record):
        """The fields of a record or of its class, in order."""
        return record._record_fields

    def replace(record, /, **changes):
        """A copy of a record with some values changed."""
        kept = {name: record.__dict__[name] for name in type(record)._record_names}
        return type(record)(**{**kept, **changes})

    def asdict(record):
        """The values of a record by name, records in them likewise, to any depth."""
        return {one.name: _plain(record.__dict__[one.name]) for one in type(record)._record_fields}

    def _plain(value):
        kind = type(value)
        if kind is str or kind is int or value is None:
            return value
        if hasattr(kind, "_record_fields"):
            return asdict(value)
        if kind is tuple or kind is list:
            return kind([_plain(one) for one in value])
        if kind is dict:
            return {_plain(name): _plain(one) for name, one in value.items()}
        return value

    class _Words(type):
        """The class of a closed set of words."""

        def __new__(cls, name, bases, body):
            words = {key: word for key, word in body.items() if not key.startswith("_") and isinstance(word, str)}
            made = super().__new__(cls, name, bases, {key: one for key, one in body.items() if key not in words})
            made._members = {}
            for key, word in words.items():
                member = str.__new__(made, word)
                member.__dict__.update(name=key, value=word)
                made._members[word] = member
                setattr(made, key, member)
            return made

        def __call__(cls, value):
            try:
                return cls._members[value]
            except KeyError:
                raise ValueError(f"{value!r} is not a valid {cls.__name__}") from None

        def __iter__(cls):
            return iter(cls._members.values())

        def __len__(cls):
            return len(cls._members)

        def __contains__(cls, value):
            return value in cls._members

    class StrEnum(str, metaclass=_Words):
        """Words of which a value must be one; each is a string too."""

        def __str__(self):
            return self.value

        def __repr__(self):
            return f"<{type(self).__name__}.{self.name}: {self.value!r}>"

        def __reduce__(self):
            return type(self), (self.value,)


__all__ = ["MISSING", "Field", "StrEnum", "asdict", "dataclass", "field", "fields", "replace"]
