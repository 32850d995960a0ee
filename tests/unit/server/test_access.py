# SPDX-License-Identifier: MIT
from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.config import Settings
from agentbox.errors import ConfigError
from agentbox.server.access import HostRule, KeyRing, check_bind, load_keys, origin_is_own

LONG_KEY = "k" * 40


def key_file(tmp_path: Path, text: str, mode: int = 0o600) -> Settings:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(mode)
    return Settings(key_file=path)


def test_token_belongs_to_the_default_caller() -> None:
    keys, warnings = load_keys(Settings(token=LONG_KEY))
    assert keys.owner_of(LONG_KEY) == "default"
    assert keys.owner_of(LONG_KEY + "x") is None
    assert keys.owner_of("") is None
    assert warnings == []


def test_without_a_key_the_ring_is_empty() -> None:
    assert not load_keys(Settings())[0]


def test_short_token_is_warned_about() -> None:
    assert "short" in load_keys(Settings(token="abc"))[1][0]


@pytest.mark.parametrize("token", ["with space", "ünïcode", "new\nline"])
def test_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="AGENTBOX_TOKEN"):
        load_keys(Settings(token=token))


def test_key_file_names_several_callers(tmp_path: Path) -> None:
    keys, _ = load_keys(key_file(tmp_path, f"# callers\n\nalice:{LONG_KEY}1\n bob : {LONG_KEY}2 \n"))
    assert (keys.owner_of(LONG_KEY + "1"), keys.owner_of(LONG_KEY + "2")) == ("alice", "bob")


def test_key_may_hold_a_colon(tmp_path: Path) -> None:
    keys, _ = load_keys(key_file(tmp_path, f"alice:a:{LONG_KEY}"))
    assert keys.owner_of("a:" + LONG_KEY) == "alice"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("alice", 1),
        ("alice:", 1),
        (f"\n\n:{LONG_KEY}", 3),
        (f"al ice:{LONG_KEY}", 1),
        ("alice:two words", 1),
        (f"a:{LONG_KEY}\na:{LONG_KEY}2", 2),
        (f"a:{LONG_KEY}\nb:{LONG_KEY}", 2),
    ],
)
def test_bad_line_of_a_key_file_is_an_error_with_its_number(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=f"line {line}:") as caught:
        load_keys(key_file(tmp_path, text))
    assert LONG_KEY not in caught.value.message


def test_key_file_that_every_user_may_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every user") as caught:
        load_keys(key_file(tmp_path, f"a:{LONG_KEY}", 0o644))
    assert "chmod 600" in caught.value.hint


def test_key_file_that_the_group_may_read_is_warned_about(tmp_path: Path) -> None:
    assert "group" in load_keys(key_file(tmp_path, f"a:{LONG_KEY}", 0o640))[1][0]


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_key_file_without_keys_is_refused_rather_than_no_key_needed(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="no key"):
        load_keys(key_file(tmp_path, text))


def test_missing_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(Settings(key_file=tmp_path / "none"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "box.example"])
def test_bind_beyond_loopback_without_a_key_is_refused_with_the_two_ways_out(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_bind(Settings(host=host), KeyRing({}))
    assert "AGENTBOX_TOKEN" in caught.value.hint
    assert "127.0.0.1" in caught.value.hint


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_bind_to_loopback_needs_no_key(host: str) -> None:
    check_bind(Settings(host=host), KeyRing({}))


def test_bind_beyond_loopback_with_a_key_is_allowed() -> None:
    check_bind(Settings(host="0.0.0.0"), load_keys(Settings(token=LONG_KEY))[0])


@pytest.mark.parametrize("header", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8080", "[::1]:80", "127.9.9.9"])
def test_loopback_names_are_answered_with_any_port(header: str) -> None:
    assert HostRule.of(Settings(), KeyRing({})).allows(header)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost:1@evil.example",
        "[::ffff:203.0.113.9]",
        "192.0.2.1",
        "localhost:99999999",
        "localhost/",
        " localhost",
        "0x7f.1",
        "2130706433",
    ],
)
def test_foreign_names_are_refused(header: str) -> None:
    assert not HostRule.of(Settings(), KeyRing({})).allows(header)


def test_names_that_the_operator_allows_are_answered() -> None:
    rule = HostRule.of(Settings(allowed_hosts=("box.example",)), KeyRing({}))
    assert rule.allows("Box.example:443")
    assert not rule.allows("x.box.example")


def test_server_with_a_key_on_every_address_answers_addresses_but_no_foreign_names() -> None:
    rule = HostRule.of(Settings(host="0.0.0.0"), load_keys(Settings(token=LONG_KEY))[0])
    assert rule.allows("192.0.2.1:8080")
    assert rule.allows("[2001:db8::1]:8080")
    assert not rule.allows("evil.example")


@pytest.mark.parametrize(
    ("origin", "own"),
    [
        ("http://localhost:8080", True),
        ("http://LOCALHOST:8080", True),
        ("http://localhost:3000", False),
        ("https://evil.example", False),
        ("null", False),
        ("", False),
        ("file://localhost:8080", False),
        ("http://[", False),
    ],
)
def test_only_pages_of_the_server_itself_are_its_own_origin(origin: str, own: bool) -> None:
    assert origin_is_own(origin, "localhost:8080") is own
