# SPDX-License-Identifier: MIT
"""The words of `agentbox replay`, as they are read without click."""

from __future__ import annotations

import pytest

from agentbox.cli.replaying import read_words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("agentbox.policy", "trace.jsonl", False, False, ())),
        (["-q", "--json"], ("agentbox.policy", "trace.jsonl", True, True, ())),
        (["-p", "a", "-t", "b", "--", "python3", "-q"], ("a", "b", False, False, ("python3", "-q"))),
        (["--policy", "a", "--trace", "b", "--quiet"], ("a", "b", False, True, ())),
    ],
)
def test_options_stand_before_the_command(words: list[str], expected: tuple[object, ...]) -> None:
    found = read_words(words)
    assert found is not None
    assert (found.policy, found.trace, found.as_json, found.quiet, found.command) == expected


@pytest.mark.parametrize("words", [["--help"], ["-p"], ["-p", ""], ["-t", "-q"], ["python3"], ["--trace=b"], ["-x"]])
def test_what_needs_explaining_is_left_to_the_whole_parser(words: list[str]) -> None:
    assert read_words(words) is None
