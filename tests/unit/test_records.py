# SPDX-License-Identifier: MIT
"""Records and words mean what the standard library's dataclasses and string enums mean."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Mapping

import pytest

from agentbox.records import StrEnum, asdict, dataclass, field, fields, replace


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    tags: Mapping[str, int] = field(default_factory=dict)
    secret: str = field(default="s", repr=False, compare=False)


@dataclass(slots=True)
class Line:
    ends: tuple[Point, ...]
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Checked:
    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("negative")


class Colour(StrEnum):
    """Two words."""

    RED = "red"
    BLUE = "blue"

    def is_warm(self) -> bool:
        return self is Colour.RED


def test_values_come_by_place_by_name_and_by_default() -> None:
    assert (Point(1).x, Point(1).y, Point(1, y=5).y, Point(x=3).x) == (1, 2, 5, 3)
    assert Point(1).tags is not Point(1).tags


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), ((1, 2, {}, "s", 5), {}), ((1,), {"x": 2}), ((1,), {"z": 2})], ids=str
)
def test_values_that_do_not_fit_are_a_type_error(values: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Point(*values, **named)  # type: ignore[arg-type]


def test_a_frozen_record_cannot_be_changed_and_a_plain_one_can() -> None:
    point, line = Point(1), Line(())
    with pytest.raises(AttributeError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del point.x  # type: ignore[misc]
    line.ends = (point,)
    assert line.ends == (point,)


def test_records_are_equal_by_their_compared_values_and_kind() -> None:
    assert Point(1) == Point(1, secret="other")
    assert Point(1) != Point(2)
    assert Point(1) != Checked(1)
    assert Checked(4) in {Checked(4)}
    with pytest.raises(TypeError):
        hash(Line(()))


def test_a_representation_leaves_out_what_is_not_to_be_shown() -> None:
    assert repr(Point(1)) == "Point(x=1, y=2, tags={})"


def test_a_record_is_checked_when_it_is_made_and_when_it_is_copied() -> None:
    with pytest.raises(ValueError):
        replace(Checked(1), value=-1)
    assert replace(Point(1), y=9) == Point(1, 9)


def test_records_within_records_become_plain_values() -> None:
    line = Line((Point(1),), ["a"])
    plain = asdict(line)
    assert plain == {"ends": ({"x": 1, "y": 2, "tags": {}, "secret": "s"},), "names": ["a"]}
    assert plain["names"] is not line.names
    assert [one.name for one in fields(Line)] == ["ends", "names"]


def test_the_standard_librarys_functions_accept_records() -> None:
    assert dataclasses.is_dataclass(Point)
    assert dataclasses.asdict(Line((Point(1),))) == asdict(Line((Point(1),)))
    assert dataclasses.replace(Point(1), x=4) == Point(4)
    assert [one.name for one in dataclasses.fields(Point)] == ["x", "y", "tags", "secret"]
    assert copy.deepcopy(Point(1)) == Point(1)


def test_words_are_strings_that_keep_their_identity() -> None:
    assert Colour("red") is Colour.RED
    assert (Colour.RED.value, str(Colour.RED), f"{Colour.RED}", json.dumps(Colour.RED)) == (*["red"] * 3, '"red"')
    assert list(Colour) == ["red", "blue"]
    assert Colour.RED.is_warm()
    assert pickle.loads(pickle.dumps(Colour.BLUE)) is Colour.BLUE
    with pytest.raises(ValueError, match="green"):
        Colour("green")
