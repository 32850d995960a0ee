# SPDX-License-Identifier: MIT
"""The words of `agentbox run` as the front door reads them are those that the whole parser reads, or none."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.cli.front import read_words
from agentbox.cli.run import run

WORDS = st.sampled_from(
    [
        "-p", "--policy", "-t", "--trace", "--isolation", "--witness", "--observe", "--json", "-q", "--quiet", "jail",
        "--checkpoint", "--live-clocks", "--hash-bodies",
        "guard", "exec", "all", "a.policy", "-", "", "--policy=b", "--isolation=guard", "--isolation=x", "-qp", "-pc",
        "--quiet=1", "--help", "--pol", "python", "-c",
    ]
)  # fmt: skip


def _parsed(words: list[str]) -> dict[str, object] | None:
    """What click makes of the words; None when it refuses them or shows help."""
    try:
        return run.make_context("run", list(words)).params
    except (click.exceptions.Exit, click.ClickException):
        return None


@given(st.lists(WORDS, max_size=6), st.lists(WORDS, max_size=3))
def test_both_readers_agree(options: list[str], command: list[str]) -> None:
    words = [*options, "--", *command]
    found = read_words(words)
    if found is None:
        return
    params = _parsed(words)
    assert params is not None
    assert params == {
        "policy_path": found.policy,
        "trace": found.trace,
        "isolation": found.isolation,
        "observe": found.observe,
        "checkpoint": found.checkpoint,
        "live_clocks": found.live_clocks,
        "hash_bodies": found.hash_bodies,
        "witness": found.witness,
        "as_json": found.as_json,
        "quiet": found.quiet,
        "command": found.command,
    }


@pytest.mark.parametrize(
    "words",
    [
        ["-p", "a.policy", "--", "python", "-c", "pass"],
        ["--policy=a.policy", "-q", "--witness", "all", "--json", "--", "true"],
        ["--observe", "--isolation", "guard", "-t", "out.jsonl", "--", "--", "-p"],
    ],
    ids=" ".join,
)
def test_usual_words_need_no_parser(words: list[str]) -> None:
    assert read_words(words) is not None
