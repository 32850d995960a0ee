# SPDX-License-Identifier: MIT
"""Settings: what is read, from where, and what a bad value leads to."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from agentbox.config import RETIRED, Settings, env_name, load, parse_allowlist
from agentbox.errors import ConfigError

NOWHERE = Path("/nonexistent/.env")


def settings_of(**environ: str) -> Settings:
    return load(environ, NOWHERE)[0]


def warnings_of(**environ: str) -> list[str]:
    return load(environ, NOWHERE)[1]


def test_empty_environment_gives_a_server_that_only_this_machine_reaches() -> None:
    settings = settings_of()
    assert settings.host == "127.0.0.1"
    assert settings.port == 8080
    assert settings.sandbox_backend == "auto"
    assert not settings.allow_unisolated
    assert settings.token == ""
    assert settings.egress_allowlist is None


def test_name_counts_in_any_case() -> None:
    assert settings_of(agentbox_Port="9000").port == 9000


def test_other_names_of_the_environment_are_not_looked_at() -> None:
    assert load({"PORT": "9", "HOST": "x", "PATH": "/bin"}, NOWHERE) == (Settings(), [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "-1"),
        ("PORT", "65536"),
        ("PORT", "http"),
        ("PORT", ""),
        ("LOG_LEVEL", "LOUD"),
        ("SANDBOX_BACKEND", "Bogus"),
        ("ALLOWED_BACKENDS", "jail,bogus"),
        ("ALLOW_UNISOLATED", "maybe"),
        ("DEFAULT_TIMEOUT_SECONDS", "0"),
        ("DEFAULT_MEMORY_MB", "1.5"),
        ("DEFAULT_CPUS", "nan"),
        ("MAX_CPUS", "inf"),
        ("MAX_OUTPUT_BYTES", "1"),
        ("EGRESS_ALLOWLIST", "*.example.test"),
        ("EGRESS_ALLOWLIST", "https://example.test"),
        ("EGRESS_ALLOWLIST", "example.test:0"),
        ("EGRESS_ALLOWLIST", "10.0.0.0/8"),
    ],
)
def test_bad_value_is_an_error_that_names_setting_and_value(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(**{f"AGENTBOX_{name}": value})
    assert f"AGENTBOX_{name}" in caught.value.message
    assert repr(value) in caught.value.message
    assert caught.value.hint


def test_bad_backend_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean jail"):
        settings_of(AGENTBOX_SANDBOX_BACKEND="jial")


@pytest.mark.parametrize("text", [" Jail ", "JAIL", "jail"])
def test_backend_is_stored_in_one_spelling(text: str) -> None:
    assert settings_of(AGENTBOX_SANDBOX_BACKEND=text).sandbox_backend == "jail"


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("yes", True), ("ON", True), ("0", False), ("false", False), ("", False)]
)
def test_flag_is_read_from_the_usual_words(text: str, expected: bool) -> None:
    assert settings_of(AGENTBOX_ALLOW_UNISOLATED=text).allow_unisolated is expected


def test_unknown_setting_is_a_warning_with_the_nearest_known_name() -> None:
    assert warnings_of(AGENTBOX_PROT="1") == ["AGENTBOX_PROT is not a setting; did you mean AGENTBOX_PORT?"]


def test_unknown_setting_that_resembles_none_is_a_plain_warning() -> None:
    assert warnings_of(AGENTBOX_ZZZZZZZZZZZZ="1") == ["AGENTBOX_ZZZZZZZZZZZZ is not a setting"]


def test_the_address_that_the_examples_read_is_no_misspelled_setting() -> None:
    assert warnings_of(AGENTBOX_URL="http://127.0.0.1:9000") == []


def test_names_that_a_box_carries_are_no_warning() -> None:
    assert warnings_of(AGENTBOX_RUN_ID="r", AGENTBOX_POLICY="p") == []


def test_no_retired_name_is_still_a_setting() -> None:
    assert not {env_name(f.name) for f in fields(Settings)} & RETIRED.keys()


def test_secret_is_not_repeated_in_messages() -> None:
    assert "hunter2" not in "".join(warnings_of(AGENTBOX_TOKEN="hunter2", AGENTBOX_TOKENN="x"))


def test_allowlist_is_lower_case_without_doubles_and_in_order() -> None:
    settings = settings_of(AGENTBOX_EGRESS_ALLOWLIST="B.test:443, a.test ,b.test:443")
    assert settings.egress_allowlist == ("b.test:443", "a.test")


def test_empty_allowlist_permits_nothing_while_an_unset_one_is_none() -> None:
    assert settings_of(AGENTBOX_EGRESS_ALLOWLIST="").egress_allowlist == ()
    assert settings_of().egress_allowlist is None


@pytest.mark.parametrize("entry", ["", " ", "a b", "a.test:", "a.test:99999", "[::1]", "a.test\n", "user@a.test"])
def test_allowlist_entry_that_is_no_host_is_refused_by_name(entry: str) -> None:
    with pytest.raises(ValueError, match="Invalid egress allowlist entry"):
        parse_allowlist([entry])


def test_default_above_a_set_ceiling_is_an_error_when_both_were_set() -> None:
    with pytest.raises(ConfigError, match="AGENTBOX_DEFAULT_MEMORY_MB=512 is above AGENTBOX_MAX_MEMORY_MB=256"):
        settings_of(AGENTBOX_DEFAULT_MEMORY_MB="512", AGENTBOX_MAX_MEMORY_MB="256")


def test_built_in_default_above_a_set_ceiling_is_a_warning() -> None:
    assert warnings_of(AGENTBOX_MAX_MEMORY_MB="64") == [
        "AGENTBOX_DEFAULT_MEMORY_MB is held to AGENTBOX_MAX_MEMORY_MB=64"
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("AGENTBOX_PYTHON=/opt/py", "/opt/py"),
        ("export AGENTBOX_PYTHON=/opt/py", "/opt/py"),
        ('AGENTBOX_PYTHON="/opt/a b"', "/opt/a b"),
        ("AGENTBOX_PYTHON='/opt/a # b'", "/opt/a # b"),
        ("AGENTBOX_PYTHON=/opt/py # the new one", "/opt/py"),
        ("agentbox_python = /opt/py", "/opt/py"),
        ("# AGENTBOX_PYTHON=/opt/py", ""),
        ("PYTHON=/opt/py", ""),
    ],
)
def test_dotenv_line_is_read_as_a_shell_user_expects(tmp_path: Path, line: str, expected: str) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text(line + "\n")
    assert load({}, dotenv)[0].python == expected


def test_environment_wins_over_dotenv(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("AGENTBOX_PORT=1\nAGENTBOX_HOST=::1\n")
    settings = load({"AGENTBOX_PORT": "2"}, dotenv)[0]
    assert (settings.port, settings.host) == (2, "::1")


def test_dotenv_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_bytes(b"AGENTBOX_HOST=\xff\xfe\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load({}, dotenv)


def test_dotenv_of_the_working_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("AGENTBOX_PORT=4242\n")
    monkeypatch.chdir(tmp_path)
    assert load({})[0].port == 4242


def test_snapshots_live_below_the_state_directory_unless_told_otherwise(tmp_path: Path) -> None:
    assert settings_of(AGENTBOX_STATE_DIR=str(tmp_path)).resolved_snapshot_dir() == tmp_path / "snapshots"
    elsewhere = settings_of(AGENTBOX_STATE_DIR=str(tmp_path), AGENTBOX_SNAPSHOT_DIR="/srv/snaps")
    assert elsewhere.resolved_snapshot_dir() == Path("/srv/snaps")


def test_state_is_never_kept_in_a_shared_temporary_directory() -> None:
    assert not settings_of().resolved_state_dir().is_relative_to("/tmp")


@pytest.mark.parametrize("field", fields(Settings), ids=lambda f: f.name)
def test_every_setting_is_documented_in_code(field: object) -> None:
    assert field.metadata["doc"]
