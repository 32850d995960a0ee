# SPDX-License-Identifier: MIT
from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.errors import InvalidRequestError
from agentbox.workspace.names import checked_path, shown


@pytest.mark.parametrize(
    "text", ["a", "a/b.txt", ".hidden", "..a", "a..", "...", "a b/c\nd", "back\\slash", "é/ü", "-rf"]
)
def test_a_relative_path_is_split_into_its_parts(text: str) -> None:
    assert "/".join(checked_path(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "/", "/a", "a/", "a//b", "//a", ".", "./a", "a/.", "a/./b", "..", "../a", "a/..", "a/../b"),
        *("a\0b", "\ud800", "x" * 256, "é" * 128, "/".join("a" * 65), "/".join(["x" * 200] * 21)),
    ],
)
def test_a_path_that_could_mean_another_place_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_path(text)
    assert caught.value.data["path"] == text
    assert caught.value.hint
    assert caught.value.message.isprintable()


def test_the_longest_part_and_the_deepest_path_are_accepted() -> None:
    assert checked_path("x" * 255) == ("x" * 255,)
    assert len(checked_path("/".join("a" * 64))) == 64


@given(st.text())
def test_an_accepted_path_stays_below_where_it_starts(text: str) -> None:
    try:
        parts = checked_path(text)
    except InvalidRequestError:
        return
    assert parts
    assert not {"", ".", ".."} & set(parts)
    assert not any("/" in part or "\0" in part for part in parts)


@given(st.one_of(st.text(), st.binary()))
def test_any_name_is_shown_on_one_short_line(name: str | bytes) -> None:
    text = shown(name, 40)
    assert len(text) <= 40
    assert text.isprintable()
    text.encode("utf-8")


@given(st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Co"]))
def test_a_character_that_cannot_be_printed_is_shown_as_python_writes_it(character: str) -> None:
    assert shown(character) == character.encode("unicode_escape").decode()


def test_showing_a_name_loads_nothing_that_a_guest_might_not_be_allowed_to_read() -> None:
    program = (
        "import sys; from agentbox.workspace.names import shown; before = set(sys.modules);"
        "shown('\\n\\x01\\xad\\u2028\\udcff\\ue000\\U000e0001'); print(sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded == "[]\n"
