# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbox.errors import PolicyError, PolicySyntaxError
from agentbox.policy.document import Policy, canonical_text
from agentbox.policy.parser import MAX_RULES, MAX_VALUE_CHARACTERS, MAX_WILDCARD_RULES, nearest, parse

PIECES = st.sampled_from(
    [
        *[
            "read",
            "write",
            "net",
            "exec",
            "env",
            "allow",
            "deny",
            "read-once",
            "limits",
            "protect",
            "include",
            "READ",
            "x",
        ],
        *[
            ":",
            ": ",
            ",",
            "\n",
            "\r\n",
            " ",
            "\t",
            "#",
            "./a",
            "./b c",
            "*",
            "**",
            "?",
            "[a]",
            "~",
            "~/x",
            "/",
            "..",
            "\\",
        ],
        *[
            "api.x.com",
            ":443",
            "127.0.0.1",
            "[::1]:80",
            "::1",
            "cidr/10.0.0.0/8",
            "unix:",
            "@10/min",
            " @2/s",
            "max=1KB",
        ],
        *[
            " max=5",
            "git status",
            '"',
            "'",
            "HOME",
            "on",
            "off",
            "memory_mb=5",
            "=",
            "é",
            "𝄞",
            "\u202e",
            "\0",
            "$A",
            "://",
        ],
    ]
)
POLICY_LIKE = st.lists(PIECES, max_size=25).map("".join)
VALUES = {
    "read": st.sampled_from(["./a", ".", "/", "~", "~/x", "./**/*.py", "read me", "a#b", "é"]),
    "write": st.sampled_from(["./a", "./a max=10MB", "b max=5", "./*/x"]),
    "net": st.sampled_from(["a.com", "*.a.com:443", "[::1]:80", "::1", "cidr/10.0.0.0/8", "unix:/x", "unix:@a", "*"]),
    "exec": st.sampled_from(["git status", "sh -c 'a b'", '/bin/x "y"', "./t"]),
    "env": st.sampled_from(["HOME", "A_*", "[AB]C"]),
    "read-once": st.sampled_from(["./k", "./k/*"]),
    "limits": st.sampled_from(["memory_mb=5", "cpus=0.5", "timeout_seconds=1.25"]),
    "protect": st.sampled_from(["on", "off"]),
}
RULES = st.one_of(
    [st.tuples(st.just(f"{verb}: "), values).map("".join) for verb, values in VALUES.items()]
    + [st.tuples(st.just(f"deny: {verb} "), VALUES[verb]).map("".join) for verb in ("read", "net", "exec", "env")]
)


def read(text: str | bytes) -> Policy:
    return parse(text, root="/w", home="/home/u", find_program=lambda name: f"/bin/{name.rpartition('/')[2]}")


def error_of(content: str | bytes) -> PolicySyntaxError | None:
    try:
        read(content)
    except PolicySyntaxError as error:
        return error
    return None


@given(st.lists(RULES, max_size=12))
def test_policy_that_was_read_is_read_again_from_its_own_text(rules: list[str]) -> None:
    policy = read("\n".join(rules))
    again = read(canonical_text(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    assert again.policy_sha256 == policy.policy_sha256
    assert canonical_text(again) == canonical_text(policy)


@settings(max_examples=400)
@given(POLICY_LIKE)
def test_text_of_rule_fragments_is_a_policy_or_a_placed_error(text: str) -> None:
    error = error_of(text)
    if error is None:
        policy = read(text)
        assert read(canonical_text(policy)) == policy
    else:
        assert error.problem
        assert error.hint
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        assert len(error.caret) <= error.column


@given(st.text() | st.binary())
def test_no_text_and_no_bytes_make_anything_but_a_syntax_error(content: str | bytes) -> None:
    error = error_of(content)
    assert error is None or (isinstance(error, PolicyError) and isinstance(error, ValueError))


def test_equal_policies_may_stand_in_different_files_and_lines() -> None:
    assert parse("read: a", root="/w", path="x") == parse("\n\nread:  a", root="/w", path="y")


def test_error_names_file_line_and_column_and_shows_a_caret() -> None:
    with pytest.raises(PolicySyntaxError) as caught:
        parse("read: ./a\n\twrte: ./b\n", root="/w", path="sub/agentbox.policy")
    error = caught.value
    assert str(error) == "sub/agentbox.policy:2:2: unknown key 'wrte'"
    assert error.code == "policy_syntax"
    assert (error.source, error.caret) == ("\twrte: ./b", "\t^")
    assert error.hint == "did you mean `write:`?"


def test_caret_stays_below_a_character_that_cannot_be_shown() -> None:
    with pytest.raises(PolicySyntaxError) as caught:
        read("read: \u202eabc")
    assert "\u202e" not in caught.value.source
    assert caught.value.caret == "      ^"


def test_very_long_line_is_not_repeated_in_the_error() -> None:
    with pytest.raises(PolicySyntaxError) as caught:
        read("net: " + "a" * 5000 + "!")
    assert len(str(caught.value)) < 600
    assert len(caught.value.hint) < 600
    assert len(caught.value.source) <= 300


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("read: " + "a" * (MAX_VALUE_CHARACTERS + 1), "value_too_long"),
        ("env: A\n" * (MAX_RULES + 1), "too_many_rules"),
        ("env: A*\n" * (MAX_WILDCARD_RULES + 1), "too_many_rules"),
        ("#" * ((1 << 20) + 1), "too_long"),
        ("net: *." + "a" * 254, "bad_host"),
        ("env: " + "A" * 257, "bad_env"),
    ],
)
def test_policy_is_bounded(text: str, problem: str) -> None:
    with pytest.raises(PolicySyntaxError) as caught:
        read(text)
    assert caught.value.problem == problem


def test_many_blanks_before_an_option_are_read_at_once() -> None:
    blanks = " " * (1 << 19)
    with pytest.raises(PolicySyntaxError) as caught:
        read(f"write: a{blanks}b")
    assert caught.value.problem == "value_too_long"


def test_number_of_included_files_is_bounded() -> None:
    with pytest.raises(PolicySyntaxError) as caught:
        parse("include: a\n" * 100, root="/w", read_include=lambda path: "env: A\n")
    assert caught.value.problem == "too_many_includes"


def test_include_is_relative_to_the_policy_and_paths_to_the_root() -> None:
    asked: list[str] = []

    def include(path: str) -> str:
        asked.append(path)
        return "read: ./data\n"

    policy = parse("include: base\n", root="/w", path="/etc/box/agentbox.policy", read_include=include)
    assert asked == ["/etc/box/base"]
    assert [rule.canonical for rule in policy.rules] == ["/w/data"]
    assert policy.sources == ("/etc/box/agentbox.policy", "/etc/box/base")
    assert policy.rules[0].place.path == "/etc/box/base"


def test_root_must_be_absolute() -> None:
    with pytest.raises(ValueError, match="absolute"):
        parse("read: a", root="w")


def test_without_a_home_a_tilde_is_an_error() -> None:
    with pytest.raises(PolicySyntaxError) as caught:
        parse("read: ~/x", root="/w")
    assert caught.value.problem == "bad_path"


@pytest.mark.parametrize(("word", "expected"), [("raed", "read"), ("writ", "write"), ("xyz", None), ("exce", "exec")])
def test_nearest_key_is_at_most_two_edits_away(word: str, expected: str | None) -> None:
    assert nearest(word, frozenset({"read", "write", "exec"})) == expected


def test_limits_are_the_smallest_of_those_given() -> None:
    policy = read("limits: memory_mb=64, pids=5\nlimits: memory_mb=32, cpus=1.5\n")
    assert policy.limits == {"memory_mb": 32, "pids": 5, "cpus": 1.5}
