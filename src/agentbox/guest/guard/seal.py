# SPDX-License-Identifier: MIT
"""Objects that a program cannot reach or change from its own code.

Every class can be found from `object.__subclasses__()`, and its methods replaced. So the classes of the guard are only
their text: `sealed` takes the functions out of one, and an "instance" is a namespace of a built-in type, whose methods
are bound to it. What is left of the class is empty.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Class = TypeVar("Class")

Namespace: Any = type(sys.implementation)
_Function = type(lambda: None)


class _Sample:
    def method(self) -> None:
        """Only for its type."""


Method: Any = type(_Sample().method)
del _Sample.method


def sealed(of: Class) -> Class:
    """Make a class into a function that makes its sealed instances."""
    functions = [(name, value) for name, value in vars(of).items() if type(value) is _Function]

    def make(*arguments: Any, **named: Any) -> Any:
        made = Namespace()
        members = made.__dict__
        for name, function in functions:
            members[name] = Method(function, made)
        members.pop("__init__")(*arguments, **named)
        return made

    for name, _ in functions:
        delattr(of, name)
    make.__doc__ = of.__doc__
    return make  # type: ignore[return-value]
