# SPDX-License-Identifier: MIT
from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.policy.glob import is_pattern, matches, tokens

PATTERN = st.text("ab*?[]!-", max_size=8)


@given(PATTERN, st.text("ab-!]", max_size=8))
def test_a_pattern_with_classes_matches_what_the_standard_librarys_does(pattern: str, text: str) -> None:
    # Ranges that run backwards are an error in a regular expression and empty here.
    if not re.search(r"b-a|[\]-]-|!-", pattern):
        assert matches(tokens(pattern, classes=True), text) == fnmatch.fnmatchcase(text, pattern)


def test_a_range_that_runs_backwards_holds_nothing() -> None:
    assert not matches(tokens("[b-a]", classes=True), "a")


def test_without_classes_a_bracket_is_itself() -> None:
    assert matches(tokens("[ab]"), "[ab]")
    assert not matches(tokens("[ab]"), "a")


@pytest.mark.parametrize(
    ("text", "classes", "expected"),
    [("a", False, False), ("a*", False, True), ("?", False, True), ("[a]", False, False), ("[a]", True, True)],
)
def test_a_pattern_is_known_by_its_wildcards(text: str, classes: bool, expected: bool) -> None:
    assert is_pattern(text, classes=classes) is expected


@given(st.text(max_size=30))
def test_every_text_matches_itself_where_it_has_no_wildcard(text: str) -> None:
    if not is_pattern(text):
        assert matches(tokens(text), text)
