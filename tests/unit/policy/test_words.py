# SPDX-License-Identifier: MIT
from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.policy.words import UnbalancedError, split_words


@given(st.text("ab \t'\"\\é$;", max_size=12))
def test_words_are_those_that_a_shell_would_make(text: str) -> None:
    try:
        expected = tuple(shlex.split(text))
    except ValueError:
        with pytest.raises(UnbalancedError):
            split_words(text)
    else:
        assert split_words(text) == expected


@given(st.lists(st.text("ab '\"\\", max_size=5), max_size=5))
def test_quoted_words_come_back(words: list[str]) -> None:
    assert split_words(shlex.join(words)) == tuple(words)


@pytest.mark.parametrize(("text", "offset"), [('a "b', 2), ("'", 0), ("ab\\", 2), ("a 'b' \"c", 6)])
def test_an_unbalanced_quote_is_pointed_at(text: str, offset: int) -> None:
    with pytest.raises(UnbalancedError) as caught:
        split_words(text)
    assert caught.value.offset == offset
