# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from agentbox import errors
from agentbox.server.problems import encode, from_error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequestError("x"), 400),
        (errors.UnsupportedLanguageError("x"), 400),
        (errors.UnknownBackendError("x"), 400),
        (errors.NotFoundError("x"), 404),
        (errors.QuotaExceededError("x"), 409),
        (errors.OverloadedError("x", retry_after_seconds=7), 429),
        (errors.BackendUnavailableError("x"), 503),
        (errors.ConfinementError("x"), 503),
        (errors.UnsafeArchiveError("x"), 422),
        (errors.WorkspaceError("x"), 400),
        (errors.PolicyError("x"), 400),
        (errors.PolicySyntaxError("x"), 400),
        (errors.TraceError("x"), 503),
        (errors.InternalError("x"), 500),
        (ZeroDivisionError("x"), 500),
    ],
)
def test_every_error_has_its_status(error: Exception, status: int) -> None:
    assert from_error(error).status == status


def test_snapshot_that_does_not_exist_makes_a_run_a_bad_request() -> None:
    assert from_error(errors.NotFoundError("Unknown snapshot: x"), on_run=True).status == 400


def test_overload_says_when_to_come_back() -> None:
    assert from_error(errors.OverloadedError("x", retry_after_seconds=7)).headers["Retry-After"] == "7"


def test_faults_of_a_stored_archive_keep_the_list_of_422() -> None:
    detail = from_error(errors.UnsafeArchiveError("bad member")).detail
    assert isinstance(detail, list)
    assert detail[0]["msg"] == "bad member"


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfinementError("/var/lib/agentbox/x: mount failed"),
        errors.BackendUnavailableError("/sys/fs/cgroup is read-only"),
        errors.InternalError("/srv/agentbox/engine.py line 5"),
        errors.TraceError("/var/lib/agentbox/traces/x: no space", hint="make room in /var/lib/agentbox"),
        errors.WorkspaceError("/var/lib/agentbox/boxes/1: no space", hint="make room in /var/lib/agentbox"),
        OSError(2, "no such file", "/root/secret"),
    ],
)
def test_body_names_no_path_of_the_host(error: Exception) -> None:
    text = str(from_error(error).body("id"))
    assert "/var" not in text
    assert "/sys" not in text
    assert "/s" not in text.replace("/snapshots", "")
    assert "/root" not in text


def test_a_fault_of_a_policy_says_where_it_is() -> None:
    error = errors.PolicySyntaxError("unknown key", line=3, column=3, problem="unknown_key", source="  wrte: x")
    assert from_error(error).body("id")["policy"] == {
        "line": 3,
        "column": 3,
        "problem": "unknown_key",
        "reason": "unknown key",
        "source": "  wrte: x",
        "caret": "  ^",
    }


def test_control_characters_of_a_message_are_escaped() -> None:
    assert from_error(errors.InvalidRequestError("a\r\n\x1b[31mb")).detail == "a\\r\\n\\x1b[31mb"


def test_time_to_come_back_stands_in_the_body_too() -> None:
    problem = from_error(errors.QueueTimeoutError("x", retry_after_seconds=7))
    body = problem.body("r")
    assert (problem.status, body["code"], body["retry_after_seconds"]) == (429, "queue_timeout", 7)
    assert "retry_after_seconds" not in from_error(errors.InvalidRequestError("x")).body("r")


def test_json_is_compact_utf8_and_refuses_half_a_character() -> None:
    assert encode({"a": [1, None, True, 0.05], "é": "\u2028"}) == '{"a":[1,null,true,0.05],"é":"\u2028"}'.encode()
    with pytest.raises(ValueError):
        encode("\ud800")
