# SPDX-License-Identifier: MIT
from __future__ import annotations

import json
from typing import Any

import pytest

from agentbox.server.problems import Problem, encode
from agentbox.server.schemas import RunBody, to_request
from agentbox.server.validation import MAX_ECHO_CHARACTERS, bounded, parse_run

JSON = "application/json"


def run_of(raw: bytes | str, content_type: str = JSON) -> RunBody:
    return parse_run(raw.encode() if isinstance(raw, str) else raw, content_type)


def faults_of(raw: bytes | str, content_type: str = JSON) -> list[dict[str, Any]]:
    with pytest.raises(Problem) as caught:
        run_of(raw, content_type)
    assert caught.value.status == 422
    assert isinstance(caught.value.detail, list)
    encode(caught.value.body("id"))
    return caught.value.detail


def fault_of(body: Any) -> tuple[str, list[Any]]:
    fault = faults_of(json.dumps(body))[0]
    return fault["type"], fault["loc"]


@pytest.mark.parametrize(
    ("body", "kind", "loc"),
    [
        ({}, "missing", ["body", "code"]),
        ({"code": 5}, "string_type", ["body", "code"]),
        ({"code": ""}, "string_too_short", ["body", "code"]),
        ({"code": None}, "string_type", ["body", "code"]),
        ({"code": "1", "language": ["python"]}, "string_type", ["body", "language"]),
        ({"code": "1", "limits": {"timeout_seconds": 0}}, "greater_than_equal", ["body", "limits", "timeout_seconds"]),
        ({"code": "1", "limits": {"timeout_seconds": 301}}, "less_than_equal", ["body", "limits", "timeout_seconds"]),
        ({"code": "1", "limits": {"timeout_seconds": 1.5}}, "int_from_float", ["body", "limits", "timeout_seconds"]),
        ({"code": "1", "limits": {"memory_mb": "abc"}}, "int_parsing", ["body", "limits", "memory_mb"]),
        ({"code": "1", "limits": {"memory_mb": 8}}, "greater_than_equal", ["body", "limits", "memory_mb"]),
        (
            {"code": "1", "limits": {"max_output_bytes": 1023}},
            "greater_than_equal",
            ["body", "limits", "max_output_bytes"],
        ),
        ({"code": "1", "limits": [1]}, "model_attributes_type", ["body", "limits"]),
        ({"code": "1", "egress_allowlist": "example.com"}, "list_type", ["body", "egress_allowlist"]),
        ({"code": "1", "egress_allowlist": [None]}, "string_type", ["body", "egress_allowlist", 0]),
        ([1], "model_attributes_type", ["body"]),
        ("text", "model_attributes_type", ["body"]),
        (None, "model_attributes_type", ["body"]),
    ],
)
def test_fault_has_the_type_and_place_that_clients_know(body: Any, kind: str, loc: list[Any]) -> None:
    assert fault_of(body) == (kind, loc)


def test_body_that_is_no_json_names_the_position() -> None:
    fault = faults_of('{"code":\n x}')[0]
    assert (fault["type"], fault["loc"]) == ("json_invalid", ["body", 10])


def test_empty_body_is_a_missing_body() -> None:
    assert faults_of("")[0]["loc"] == ["body"]


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_body_of_a_type_that_a_foreign_page_may_send_is_refused(content_type: str) -> None:
    assert faults_of('{"code":"1"}', content_type)[0]["type"] == "model_attributes_type"


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"])
def test_json_types_are_read(content_type: str) -> None:
    assert run_of('{"code":"1"}', content_type).code == "1"


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"code":"1","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"code":"1","limits":{"timeout_seconds":NaN}}',
        b'{"code":"1","limits":{"cpus":1e999}}',
        b'{"code":"1","limits":{"pids":1e999}}',
        b'{"code":"1","limits":{"timeout_seconds":1e999}}',
        b'{"code":"1","limits":{"memory_mb":' + b"9" * 6000 + b"}}",
        b'{"code":"1","limits":{"memory_mb":' + b"9" * 4000 + b"}}",
        b'{"code":"\\ud800"}',
        b'{"code":"\xff"}',
        b'{"code":"1"}x',
    ],
)
def test_hostile_json_is_a_fault_and_no_crash(raw: bytes) -> None:
    assert faults_of(raw)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [({"timeout_seconds": "2"}, 2), ({"timeout_seconds": True}, 1), ({"timeout_seconds": 9.0}, 9)],
)
def test_limits_of_the_first_api_are_lax(limits: dict[str, Any], seconds: int) -> None:
    body = run_of(json.dumps({"code": "1", "limits": limits}))
    assert body.limits is not None
    assert body.limits.timeout_seconds == seconds


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("false", False), ("ON", True), ("0", False)])
def test_snapshot_is_lax(text: str, value: bool) -> None:
    assert run_of(json.dumps({"code": "1", "snapshot": text})).snapshot is value


def test_unknown_field_names_the_nearest_known_one() -> None:
    fault = faults_of('{"code":"1","langage":"python"}')[0]
    assert fault["type"] == "extra_forbidden"
    assert "'language'" in fault["msg"]


def test_limit_outside_limits_is_told_where_it_belongs() -> None:
    for written, meant in (
        ("memory_mb", "limits.memory_mb"),
        ("timeout", "limits.timeout_seconds"),
        ("timout", "limits.timeout_seconds"),
        ("limit", "limits"),
        ("enviroment", "env"),
    ):
        message = faults_of(json.dumps({"code": "1", written: 64}))[0]["msg"]
        assert message == f"Unknown field '{written}': did you mean '{meant}'?"


def test_unknown_limit_names_the_nearest_known_one() -> None:
    fault = faults_of('{"code":"1","limits":{"memroy_mb":64}}')[0]
    assert "'memory_mb'" in fault["msg"]


def test_fault_never_echoes_a_large_input() -> None:
    huge = "x" * 5_000_000
    fault = faults_of(json.dumps({"code": huge}))[0]
    assert fault["type"] == "string_too_long"
    assert len(fault["input"]) == MAX_ECHO_CHARACTERS + 1


def test_many_faults_are_cut() -> None:
    body = json.dumps({"code": "1", **{f"field{n}": "y" * 1000 for n in range(5000)}})
    assert len(json.dumps(faults_of(body))) < 20_000


@pytest.mark.parametrize("value", [float("inf"), 10**400, {"a": {"b": {"c": 1}}}, list(range(10_000))])
def test_echo_is_small_json(value: Any) -> None:
    assert len(encode(bounded(value))) < 300


@pytest.mark.parametrize(
    "body",
    [
        {"code": "a\0b"},
        {"code": "1", "args": ["a\0"]},
        {"code": "1", "env": {"A=B": "1"}},
        {"code": "1", "env": {"": "1"}},
        {"code": "1", "env": {"A\0": "1"}},
        {"code": "1", "env": {"A": "\0"}},
        {"code": "1", "env": {"A": 5}},
        {"code": "1", "files": {"../x": ""}},
        {"code": "1", "files": {"/etc/x": ""}},
        {"code": "1", "files": {"a//b": ""}},
        {"code": "1", "files": {"a/./b": ""}},
        {"code": "1", "files": {"a/": ""}},
        {"code": "1", "files": {"": ""}},
        {"code": "1", "files": {"a\0": ""}},
        {"code": "1", "files": {"é" * 200: ""}},
        {"code": "1", "files": {"/".join("a" * 65): ""}},
        {"code": "1", "files": {"a": "", "a/b": ""}},
        {"code": "1", "files": {"a": {"base64": "!"}}},
        {"code": "1", "files": {"a": {"base64": "QQ"}}},
        {"code": "1", "files": {"a": {"base64": "QQ==\n"}}},
        {"code": "1", "files": {"a": {}}},
        {"code": "1", "stdin": 5},
        {"code": "1", "return_files": ["../*"]},
        {"code": "1", "limits": {"cpus": "1"}},
        {"code": "1", "limits": {"pids": "64"}},
        {"code": "1", "limits": {"pids": True}},
        {"code": "1", "limits": {"disk_mb": 0}},
        {"code": "1", "args": ["x" * 29_000] * 40},
    ],
)
def test_field_that_a_box_cannot_take_is_a_fault(body: Any) -> None:
    assert faults_of(json.dumps(body))


def test_request_has_everything_that_was_sent() -> None:
    body = run_of(
        json.dumps(
            {
                "code": "print(1)",
                "language": "Node",
                "stdin": {"base64": "AP8="},
                "files": {"a/b.txt": "é", "c.bin": {"base64": "/w=="}},
                "env": {"LD_PRELOAD": "x", "with.dot": ""},
                "args": ["-v", ""],
                "limits": {"cpus": 0.5, "pids": 64.0, "disk_mb": 10, "max_output_bytes": 2048},
                "backend": "jail",
                "return_files": ["out/**/*.png"],
                "snapshot_id": "",
                "egress_allowlist": [],
            }
        )
    )
    request = to_request(body, "alice")
    assert request.language == "node"
    assert request.stdin == b"\x00\xff"
    assert request.files == {"a/b.txt": "é".encode(), "c.bin": b"\xff"}
    assert request.env == {"LD_PRELOAD": "x", "with.dot": ""}
    assert request.args == ("-v", "")
    assert (request.limits.cpus, request.limits.pids, request.limits.disk_mb) == (0.5, 64, 10)
    assert request.limits.max_output_bytes == 2048
    assert request.snapshot_id is None
    assert request.egress_allowlist == ()
    assert request.return_files == ("out/**/*.png",)
    assert (request.owner, request.backend) == ("alice", "jail")


def test_of_a_name_that_occurs_twice_the_last_counts() -> None:
    assert run_of('{"code":"1","code":"2"}').code == "2"
