# SPDX-License-Identifier: MIT
"""Records are used like the standard library's frozen data classes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from agentbox.policy import record


def made(module: Any) -> Any:
    """The same class by one of the two modules."""

    @module.dataclass(frozen=True)
    class Thing:
        name: str
        size: int = 3
        note: str = module.field(default="", compare=False, repr=False)
        double: int = module.field(default=0, init=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "double", self.size * 2)

    return Thing


@pytest.mark.parametrize("module", [record, dataclasses], ids=["ours", "standard"])
def test_record_is_a_frozen_value(module: Any) -> None:
    thing_class = made(module)
    thing = thing_class("a", note="x")
    assert (thing.name, thing.size, thing.note, thing.double) == ("a", 3, "x", 6)
    assert thing == thing_class("a", 3, "y")
    assert hash(thing) == hash(thing_class("a", 3, "y"))
    assert thing != thing_class("a", 4)
    assert repr(thing).endswith("Thing(name='a', size=3, double=6)")
    changed = module.replace(thing, size=5)
    assert (changed.name, changed.size, changed.note, changed.double) == ("a", 5, "x", 10)
    with pytest.raises(AttributeError):
        thing.name = "b"
    with pytest.raises(AttributeError):
        del thing.name


@pytest.mark.parametrize("module", [record, dataclasses], ids=["ours", "standard"])
@pytest.mark.parametrize(
    ("values", "named"), [((), {}), (("a", 1, "n", 2), {}), (("a",), {"name": "b"}), (("a",), {"other": 1})]
)
def test_record_takes_its_values_once_and_no_others(module: Any, values: Any, named: Any) -> None:
    with pytest.raises(TypeError):
        made(module)(*values, **named)
